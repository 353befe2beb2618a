//! What a card must do: the checks of the switch in their order, then the engine in software.
//!
//! The switch in front of a card verifies the tags of what it sends to the card, and writes those of what comes back. So
//! a header gets the right tag here before the engine sees it, whatever tag came, and what leaves has none.

use super::card::{Counts, Own, Shape};
use std::net::Ipv4Addr;
use tally_bridge::registers::{COUNTERS, Group};
use tally_card::Flaw;
use tally_engine::{
    Aggregator, Buffer, DropReason, Egress, Member, PolicyName, PoolConfig, PortId, Roster, To,
};
use tally_kernels::Kernels;
use tally_wire::frame::{self, FrameError, group_of};
use tally_wire::{Addresses, AuthTag, HEADERS_BYTES, Header, Kind, Mac, Rank, Time, UdpFrame};

/// `02:54:43:KK:NN:NN`: a tag of this kind for this number.
pub const fn tag(kind: u8, number: u16) -> Mac {
    let [high, low] = number.to_be_bytes();
    Mac([0x02, 0x54, 0x43, kind, high, low])
}

/// The kinds of tags: port that a frame came in by, ports that one leaves by, and probe.
pub const PORT: u8 = 0;
pub const MASK: u8 = 1;
pub const PROBE: u8 = 2;

/// Port of frames without a tag.
pub const NO_PORT: PortId = PortId(0xffff);

pub fn mac_at(frame: &[u8], at: usize) -> Option<Mac> {
    Some(Mac(*frame.get(at..)?.first_chunk()?))
}

/// The port that a tag names; the last number stands for none, and is no tag.
pub fn port_of(mac: Mac) -> Option<PortId> {
    let [0x02, 0x54, 0x43, PORT, high, low] = mac.0 else {
        return None;
    };
    Some(PortId(u16::from_be_bytes([high, low]))).filter(|port| *port != NO_PORT)
}

/// Whether the stream shows the flaw in a frame of so many bytes.
pub fn shows(flaw: Flaw, bytes: usize) -> Option<&'static str> {
    match flaw {
        Flaw::None => None,
        Flaw::Bad => Some("stream-error"),
        Flaw::ShortBeat => (bytes > 64).then_some("stream-keep"),
        Flaw::Hole => ((bytes - 1) % 64 + 1 > 2).then_some("stream-keep"),
    }
}

/// Which of the frames that left.
pub enum Fate {
    /// Not the card's business.
    Pass,
    Drop(DropReason),
    /// For the engine; with the shard that its UDP port names.
    Take(Header, Member, u16),
}

/// The checks up to where the job has to be known.
pub fn classify(frame: &[u8], port: PortId, own: &Own) -> Fate {
    if frame.len() < frame::ETHERNET_BYTES {
        return Fate::Drop(DropReason::Truncated);
    }
    if mac_at(frame, 6) == Some(own.mac) {
        return Fate::Drop(DropReason::SpoofedSwitch);
    }
    if mac_at(frame, 0) != Some(own.mac) {
        return Fate::Pass;
    }
    let udp = match UdpFrame::parse(frame) {
        Ok(udp) => udp,
        Err(FrameError::Vlan | FrameError::NotIpv4 | FrameError::NotUdp) => return Fate::Pass,
        Err(error) => return Fate::Drop(error.into()),
    };
    let addresses = &udp.addresses;
    if addresses.dst_ip != own.ip {
        return Fate::Pass;
    }
    if addresses.src_ip == own.ip {
        return Fate::Drop(DropReason::SpoofedSwitch);
    }
    let shard = addresses.dst_port.wrapping_sub(own.base_port);
    if shard >= own.shards {
        return Fate::Pass;
    }
    let header = match Header::parse(udp.datagram(frame)) {
        Ok(header) => header.received_with(udp.ecn),
        Err(error) => return Fate::Drop(error.into()),
    };
    if header.kind.is_control() {
        return Fate::Pass;
    }
    let from = Member {
        port,
        mac: addresses.src_mac,
        ip: addresses.src_ip,
        udp_port: addresses.src_port,
    };
    Fate::Take(header, from, shard)
}

/// The whole frame, headers only once it has been sent.
pub struct Frame(Vec<u8>);

impl Buffer for Frame {
    fn payload(&self) -> &[u8] {
        &self.0[HEADERS_BYTES..]
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.0[HEADERS_BYTES..]
    }
}

const IP_BYTES_AT: usize = 16;
const CHECKSUM_AT: usize = 24;
const UDP_BYTES_AT: usize = 38;

/// Writes headers as a card does: without a tag, and without room for one behind the payload.
pub fn write_headers(out: &mut [u8], addresses: &Addresses, header: &Header) {
    let tag = AuthTag::NONE;
    frame::emit(out, addresses, &Header { tag, ..*header });
    let trailer = header.kind.trailer_bytes() as u16;
    for at in [IP_BYTES_AT, UDP_BYTES_AT] {
        let bytes = u16::from_be_bytes([out[at], out[at + 1]]) - trailer;
        out[at..at + 2].copy_from_slice(&bytes.to_be_bytes());
    }
    out[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
    let checksum = frame::internet_checksum(&out[14..34]);
    out[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// What left, as bytes.
struct Wire {
    own: Own,
    sent: Vec<Vec<u8>>,
}

impl Wire {
    /// The frame that leaves, tagged with the ports that it leaves by.
    fn send(&mut self, mut frame: Vec<u8>, ports: u16) {
        frame[6..12].copy_from_slice(&tag(MASK, ports).0);
        self.sent.push(frame);
    }

    fn addresses(&self, dst_mac: Mac, dst_ip: Ipv4Addr, dst_port: u16) -> Addresses {
        Addresses {
            src_mac: self.own.mac,
            dst_mac,
            src_ip: self.own.ip,
            dst_ip,
            src_port: self.own.base_port,
            dst_port,
        }
    }
}

impl Egress<Frame> for Wire {
    fn send(&mut self, roster: &Roster, to: To, header: &Header, Frame(mut frame): Frame) {
        let member = match to {
            To::Ps => &roster.ps,
            To::Worker(rank) => roster.member(rank).expect("the engine knows its ranks"),
        };
        let addresses = self.addresses(member.mac, member.ip, member.udp_port);
        write_headers(&mut frame, &addresses, header);
        self.send(frame, 1 << member.port.0);
    }

    fn publish(
        &mut self,
        roster: &Roster,
        header: &Header,
        Frame(mut frame): Frame,
        _born: Option<Time>,
    ) -> Frame {
        let group = group_of(roster.job);
        let addresses = self.addresses(Mac::of_group(group), group, self.own.base_port);
        write_headers(&mut frame, &addresses, header);
        let ports = roster.ports.iter().fold(0, |mask, port| mask | 1 << port.0);
        self.send(frame.clone(), ports);
        Frame(frame)
    }

    fn republish(&mut self, roster: &Roster, to: Rank, Frame(frame): &Frame) {
        let member = roster.member(to).expect("the engine knows its ranks");
        self.send(frame.clone(), 1 << member.port.0);
    }
}

/// Whether the engine would have looked at the shard before it came to this.
fn is_behind_shard(header: &Header, result: Option<DropReason>) -> bool {
    match result {
        None | Some(DropReason::Units) => true,
        Some(DropReason::RankOutOfJob) => header.kind == Kind::Nack,
        Some(_) => false,
    }
}

/// The reference.
pub struct Reference {
    own: Own,
    shape: Shape,
    engine: Aggregator<Frame>,
    wire: Wire,
    places: Vec<Option<Roster>>,
    /// Of the stream: error, oversize, keep.
    stream: [(&'static str, u64); 3],
    frames_in: u64,
    beats_in: u64,
    frames_out: u64,
    beats_out: u64,
    passed: u64,
}

impl Reference {
    pub fn new(shape: Shape, own: Own) -> Self {
        let config = PoolConfig {
            slots: shape.slots,
            ways: 1,
            held: 0,
            window: (shape.ring / 2) as u16,
            shards: 1,
            shard: 0,
            jobs: shape.jobs.into(),
            limits: Vec::new(),
            policy: PolicyName::Esa,
        };
        Self {
            own,
            shape,
            engine: Aggregator::new(config, Kernels::best()),
            wire: Wire {
                own,
                sent: Vec::new(),
            },
            places: vec![None; shape.jobs.into()],
            stream: [
                ("stream-error", 0),
                ("stream-oversize", 0),
                ("stream-keep", 0),
            ],
            frames_in: 0,
            beats_in: 0,
            frames_out: 0,
            beats_out: 0,
            passed: 0,
        }
    }

    pub fn load(&mut self, place: u8, roster: &Roster) {
        self.places[usize::from(place)] = Some(roster.clone());
        let index = usize::from(place);
        assert!(self.engine.bind(roster.clone(), index, &mut self.wire));
    }

    pub fn unload(&mut self, place: u8) {
        if let Some(roster) = self.places[usize::from(place)].take() {
            self.engine.unbind(roster.job, &mut self.wire);
        }
    }

    /// The header with the tag that it has when the switch sends it to the card.
    fn verified(&self, header: Header) -> Header {
        let mut rosters = self.places.iter().flatten();
        let roster = rosters.find(|roster| roster.job == header.job);
        roster.map_or(header, |roster| roster.secret.seal(header))
    }

    /// Takes a frame. What leaves because of it.
    pub fn frame(&mut self, frame: &[u8], flaw: Flaw) -> Vec<Vec<u8>> {
        self.frames_in += 1;
        self.beats_in += frame.len().div_ceil(64) as u64;
        let flaw = shows(flaw, frame.len())
            .or((frame.len() > self.shape.frame_max()).then_some("stream-oversize"));
        if let Some(name) = flaw {
            let count = self.stream.iter_mut().find(|(n, _)| *n == name);
            count.expect("named above").1 += 1;
            return Vec::new();
        }
        let mut inner = frame.to_vec();
        let port = mac_at(frame, 0).and_then(port_of);
        if port.is_some() {
            inner[..6].copy_from_slice(&self.own.mac.0);
        }
        match classify(&inner, port.unwrap_or(NO_PORT), &self.own) {
            Fate::Pass => return self.pass(frame),
            Fate::Drop(reason) => self.engine.count_drop(reason),
            Fate::Take(header, from, shard) => {
                let header = self.verified(header);
                match self.engine.admit(&from, &header) {
                    Err(DropReason::UnknownJob) => return self.pass(frame),
                    // The card has all shards, so the engine is one that has them, and does not look.
                    result
                        if is_behind_shard(&header, result.err()) && !self.fits(&header, shard) =>
                    {
                        self.engine.count_drop(DropReason::Shard);
                    }
                    Err(reason) => self.engine.count_drop(reason),
                    Ok(admission) => {
                        inner.truncate(HEADERS_BYTES + header.payload_bytes());
                        let buffer = Frame(inner);
                        self.engine.handle_admitted(
                            Time(0),
                            admission,
                            &header,
                            buffer,
                            &mut self.wire,
                        );
                    }
                }
            }
        }
        let sent = std::mem::take(&mut self.wire.sent);
        self.count_out(&sent);
        sent
    }

    fn fits(&self, header: &Header, shard: u16) -> bool {
        header.fragment.0 & (u32::from(self.own.shards) - 1) == u32::from(shard)
    }

    fn pass(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.passed += 1;
        let sent = vec![frame.to_vec()];
        self.count_out(&sent);
        sent
    }

    fn count_out(&mut self, sent: &[Vec<u8>]) {
        self.frames_out += sent.len() as u64;
        let beats = sent.iter().map(|frame| frame.len().div_ceil(64) as u64);
        self.beats_out += beats.sum::<u64>();
    }

    pub fn counters(&self) -> Counts {
        COUNTERS.map(|(group, name)| self.count(group, name)).into()
    }

    fn count(&self, group: Group, name: &str) -> u64 {
        let counters = self.engine.counters();
        let named = match group {
            Group::Count => counters.named().iter().find(|(n, _)| *n == name).copied(),
            Group::Drop => DropReason::ALL
                .iter()
                .find(|reason| reason.name() == name)
                .map(|&reason| ("", counters.dropped(reason)))
                .or_else(|| self.stream.iter().find(|(n, _)| *n == name).copied()),
            Group::Stream => match name {
                "frames_in" => Some(("", self.frames_in)),
                "beats_in" => Some(("", self.beats_in)),
                "frames_out" => Some(("", self.frames_out)),
                "beats_out" => Some(("", self.beats_out)),
                "passed" => Some(("", self.passed)),
                // How long it took is not the reference's business.
                _ => Some(("", 0)),
            },
        };
        named.unwrap_or_else(|| panic!("no such counter: {name}")).1
    }

    /// All drops that have no counter on the card, which must be none.
    pub fn uncounted(&self) -> u64 {
        let counters = self.engine.counters();
        let on_card = |reason: &DropReason| COUNTERS.iter().any(|(_, n)| *n == reason.name());
        let others = DropReason::ALL.iter().filter(|reason| !on_card(reason));
        others.map(|&reason| counters.dropped(reason)).sum()
    }
}
