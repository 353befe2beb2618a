//! Frames of members, right or wrong for their job.

use super::oracle::canonical;
use super::{
    BASE_PORT, FRAGMENTS, Peer, SHARDS, SWITCH_IP, SWITCH_MAC, Script, WORKERS, World, element_of,
    job_id, key,
};
use tally_engine::Member;
use tally_wire::control::{DATAGRAM_BYTES, LeaveCode, Role};
use tally_wire::frame::{UDP_END, emit};
use tally_wire::header::CONTROL_UNITS;
use tally_wire::{
    Addresses, AuthTag, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header, JobId, Join,
    Kind, Leave, Part, Rank,
};

impl World {
    pub(super) fn join_frame(&self, peer: usize, units: u8) -> Vec<u8> {
        let peer = &self.peers[peer];
        let ps = peer.rank == Rank::PS;
        let join = Join {
            instance: peer.instance,
            challenge: peer.challenge,
            role: if ps { Role::Ps } else { Role::Worker },
            workers: if ps { 0 } else { WORKERS[peer.job] },
            units: if ps { 0 } else { units },
            running: false,
            window: if ps { 0 } else { 8 },
            shape: [0; 32],
            sent: None,
            awaiting: 0,
            salt: peer.salt,
            tree: None,
            part: Part::ONLY,
        };
        sealed(peer, Kind::Join, |b| join.emit(b))
    }

    /// JOIN or LEAVE of some member.
    pub(super) fn control(&self, script: &mut Script<'_>) -> (Member, Vec<u8>) {
        let at = script.below(self.peers.len());
        let choice = script.byte();
        let peer = &self.peers[at];
        let frame = if choice & 0x80 == 0 {
            let code = LeaveCode::from_number(u32::from(choice % 5)).expect("a code");
            let behind = if code == LeaveCode::Stalled { 0b111 } else { 0 };
            let leave = Leave {
                instance: peer.instance,
                challenge: peer.challenge,
                code,
                fragment: FragmentId(0),
                behind,
                salt: peer.salt,
                tree: None,
            };
            sealed(peer, Kind::Leave, |b| leave.emit(b))
        } else {
            self.join_frame(at, 1 + (choice & 3))
        };
        (self.peers[at].home, frame)
    }

    fn header(&self, peer: usize, kind: Kind, fragment: u8, rank: Rank, bitmap: u64) -> Header {
        let peer = &self.peers[peer];
        let fragment = u32::from(fragment);
        let elements = kind.has_elements();
        Header {
            kind,
            flags: Flags::NONE,
            priority: 0,
            element: if elements {
                element_of(fragment)
            } else {
                Element::None
            },
            job: job_id(peer.job),
            epoch: peer.epoch,
            fragment: FragmentId(fragment),
            rank,
            units: u8::from(elements),
            bitmap,
            tag: AuthTag::NONE,
        }
    }

    pub(super) fn data(
        &self,
        peer: usize,
        fragment: u8,
        flags: Flags,
        priority: u8,
        poison: bool,
    ) -> Vec<u8> {
        let rank = self.peers[peer].rank;
        let header = Header {
            flags,
            priority,
            ..self.header(peer, Kind::Data, fragment, rank, rank.bit())
        };
        let mut payload = canonical(&header);
        if poison {
            payload[9] ^= 0x55;
        }
        framed(self.peers[peer].home, header, &payload)
    }

    /// A contribution of some worker, said from its home.
    pub(super) fn sensible_data(&self, script: &mut Script<'_>) -> (Member, Vec<u8>) {
        let place = script.below(2);
        let rank = script.byte() % WORKERS[place];
        let peer = self.peer(place, Rank(rank));
        let fragment = script.byte() % FRAGMENTS;
        let choice = script.byte();
        let flags = Flags::RESEND.when(choice & 7 == 0);
        let from = self.peers[peer].home;
        (from, self.data(peer, fragment, flags, choice & 0xf0, false))
    }

    /// REMIND, NACK, RESULT or PROBE, with its tag, from the member that it is from.
    pub(super) fn sensible_other(&mut self, script: &mut Script<'_>) -> (Member, Vec<u8>) {
        let place = script.below(2);
        let ps = self.peer(place, Rank::PS);
        let worker = Rank(script.byte() % WORKERS[place]);
        let fragment = script.byte() % FRAGMENTS;
        let from_worker = self.peer(place, worker);
        let (peer, kind, rank) = match script.below(8) {
            0 | 1 => (ps, Kind::Remind, Rank::PS),
            2 => (ps, Kind::Nack, worker),
            3 => (from_worker, Kind::Result, worker),
            4 => (ps, Kind::Result, Rank::PS),
            _ => (from_worker, Kind::Probe, worker),
        };
        let header = self.header(peer, kind, fragment, rank, 0);
        let header = self.peers[peer].secret().seal(header);
        if self.tagged.len() == 64 {
            self.tagged.remove(0);
        }
        self.tagged.push((peer, header));
        let from = self.peers[peer].home;
        (from, framed(from, header, &canonical(&header)))
    }

    /// What only the job's roster shows to be wrong: other units, or a rank that the job does not
    /// have.
    pub(super) fn wrong_for_the_job(&self, script: &mut Script<'_>) -> (Member, Vec<u8>) {
        let peer = script.below(self.peers.len());
        let fragment = script.byte() % FRAGMENTS;
        let (rank, job) = (self.peers[peer].rank, self.peers[peer].job);
        let choice = script.byte();
        let outside = Rank(WORKERS[job] + (choice >> 4));
        let header = match choice & 3 {
            0 if rank.is_worker() => self.header(peer, Kind::Data, fragment, rank, rank.bit()),
            0 | 1 => self.header(peer, Kind::Result, fragment, rank, 0),
            2 if rank == Rank::PS => self.header(peer, Kind::Nack, fragment, outside, 0),
            2 => self.header(peer, Kind::Probe, fragment, outside, 0),
            _ => self.header(peer, Kind::Data, fragment, outside, outside.bit()),
        };
        let mut header = self.peers[peer].secret().seal(header);
        let mut payload = canonical(&header);
        payload.resize(header.payload_bytes(), 0x33);
        if choice & 4 == 0 && header.kind.has_elements() {
            header.units = 2;
            payload.extend_from_within(..);
        }
        let from = self.peers[peer].home;
        (from, framed(from, header, &payload))
    }
}

/// A member's frame with this header and payload.
pub(super) fn framed(from: Member, header: Header, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; header.datagram_bytes().max(22 + payload.len())];
    header.emit(&mut datagram);
    datagram[22..22 + payload.len()].copy_from_slice(payload);
    enclose(from, header.fragment.0 as u8 & (SHARDS - 1), &datagram)
}

fn sealed(peer: &Peer, kind: Kind, payload: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut datagram = [0; DATAGRAM_BYTES];
    let header = Header {
        kind,
        flags: Flags::NONE,
        priority: 0,
        element: Element::None,
        job: job_id(peer.job),
        epoch: peer.epoch,
        fragment: FragmentId(0),
        rank: peer.rank,
        units: CONTROL_UNITS,
        bitmap: 0,
        tag: AuthTag::NONE,
    };
    header.emit(&mut datagram);
    payload(&mut datagram);
    key(peer.job).seal(&mut datagram);
    enclose(peer.home, 0, &datagram)
}

/// The frame that takes a datagram of any bytes to a port of the switch.
pub(super) fn enclose(from: Member, shard: u8, datagram: &[u8]) -> Vec<u8> {
    let addresses = Addresses {
        src_mac: from.mac,
        dst_mac: SWITCH_MAC,
        src_ip: from.ip,
        dst_ip: SWITCH_IP,
        src_port: from.udp_port,
        dst_port: BASE_PORT + u16::from(shard),
    };
    // The headers of a control frame have the longest check; the lengths are set below.
    let header = Header {
        kind: Kind::Remind,
        flags: Flags::NONE,
        priority: 0,
        element: Element::None,
        job: JobId(0),
        epoch: Epoch(0),
        fragment: FragmentId(0),
        rank: Rank::PS,
        units: 0,
        bitmap: 0,
        tag: AuthTag::NONE,
    };
    let mut frame = vec![0; HEADERS_BYTES];
    emit(&mut frame, &addresses, &header);
    frame.truncate(UDP_END);
    let udp_bytes = 8 + datagram.len() as u16;
    frame[16..18].copy_from_slice(&(20 + udp_bytes).to_be_bytes());
    frame[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
    frame.extend_from_slice(datagram);
    frame
}
