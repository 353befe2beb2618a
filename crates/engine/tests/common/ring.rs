//! Rings of RoCEv2 hosts, and a switch that serves them.

#![allow(clippy::unwrap_used)]

use super::platform::Memory;
use super::switch::{ADDRESS, Switch, ask, forwarding, native, pool};
use std::net::Ipv4Addr;
use std::sync::Arc;
use tally_engine::forwarding::fabric::{Plan, Table};
use tally_engine::netreduce::{
    Command as NetreduceCommand, NetreduceCounters, NetreduceDialect, RingConfig, RingRole,
    RingStatus, ServedRing,
};
use tally_engine::{Command, DialectCommand, Dialects, DropReason, PortId, SwitchAddress};
use tally_kernels::Kernels;
use tally_wire::field::udp;
use tally_wire::frame::{UDP_END, emit_udp};
use tally_wire::netreduce::{
    Channel, DEFAULT_DSCP, Element, RING_HEADER_BYTES, RingEpoch, RingHeader, RingId, RingSecret,
    released_dscp,
};
use tally_wire::roce::{
    BTH_BYTES, Bth, ICRC_BYTES, Opcode, PORT, Packet, Place, Psn, QueuePair, Verb, is_sealed, seal,
};
use tally_wire::{Addresses, Key, Mac, UdpFrame};

pub const PORTS: u16 = 8;
pub const FRAME_BYTES: usize = 1514;
pub const RING: RingId = RingId(7);
pub const EPOCH: RingEpoch = RingEpoch(40);
pub const MTU: usize = 256;
/// A host that is in no ring, at the last port.
pub const STRANGER: usize = 7;

pub fn secret(ring: RingId) -> RingSecret {
    Key::new(&[1; 16]).unwrap().ring_secret(ring)
}

pub fn mac(host: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, host as u8 + 1])
}

pub fn ip(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1)
}

pub fn ring(members: usize) -> RingConfig {
    RingConfig {
        id: RING,
        secret: secret(RING),
        members: (0..members).map(ip).collect(),
        window_messages: 2,
        message_packets: 4,
        role: RingRole::Alone,
    }
}

/// One packet of a member's connection to the next.
#[derive(Clone)]
pub struct Data {
    pub rank: usize,
    pub to: usize,
    pub qp: QueuePair,
    pub psn: Psn,
    pub verb: Verb,
    pub place: Place,
    pub dscp: u8,
    pub payload: Vec<u8>,
}

impl Data {
    pub fn frame(&self) -> Vec<u8> {
        let extended = match self.verb {
            Verb::Write if self.place.begins() => 16,
            _ => 0,
        };
        let bytes = BTH_BYTES + extended + self.payload.len() + ICRC_BYTES;
        let mut frame = vec![0; UDP_END + bytes];
        let addresses = Addresses {
            src_mac: mac(self.rank),
            dst_mac: mac(self.to),
            src_ip: ip(self.rank),
            dst_ip: ip(self.to),
            src_port: 50_000,
            dst_port: PORT,
        };
        emit_udp(&mut frame, &addresses, bytes);
        frame[tally_wire::field::ipv4::TOS] |= self.dscp << 2;
        frame[udp::CHECKSUM].fill(0x77);
        fix_ip_checksum(&mut frame);
        let bth = Bth {
            opcode: Opcode::Message {
                verb: self.verb,
                place: self.place,
                has_immediate: false,
            },
            is_solicited: false,
            is_migrated: true,
            pad: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            qp: self.qp,
            ack_requested: true,
            psn: self.psn,
        };
        frame[UDP_END..UDP_END + BTH_BYTES].copy_from_slice(&bth.emit());
        let at = UDP_END + BTH_BYTES + extended;
        frame[at..at + self.payload.len()].copy_from_slice(&self.payload);
        seal(&mut frame);
        frame
    }
}

/// A packet as it leaves when the switch lets it go.
pub fn released(data: &Data) -> Data {
    Data {
        dscp: released_dscp(data.dscp),
        ..data.clone()
    }
}

fn fix_ip_checksum(frame: &mut [u8]) {
    use tally_wire::field::ipv4;
    frame[ipv4::CHECKSUM].fill(0);
    let sum = tally_wire::frame::internet_checksum(&frame[ipv4::HEADER]);
    frame[ipv4::CHECKSUM].copy_from_slice(&sum.to_be_bytes());
}

/// A member that sends messages of elements.
pub struct Member {
    pub ring: RingId,
    pub rank: usize,
    pub members: usize,
    pub epoch: RingEpoch,
    pub verb: Verb,
    pub qp: QueuePair,
    pub psn: Psn,
    pub message: u32,
}

impl Member {
    pub fn new(rank: usize, members: usize) -> Self {
        Self {
            ring: RING,
            rank,
            members,
            epoch: EPOCH,
            verb: Verb::Send,
            qp: QueuePair(0x100 + rank as u32),
            // Near the wrap.
            psn: Psn::new(0xff_fffe + rank as u32),
            message: 0,
        }
    }

    pub fn to(&self) -> usize {
        (self.rank + 1) % self.members
    }

    pub fn channel(&self) -> Channel {
        Channel {
            source: ip(self.rank),
            destination: ip(self.to()),
            qp: self.qp,
        }
    }

    pub fn header(&self, element: Element, bytes: usize) -> RingHeader {
        RingHeader {
            element,
            rank: self.rank as u8,
            is_summed: false,
            ring: self.ring,
            epoch: self.epoch,
            message: self.message,
            bytes: bytes as u32,
        }
    }

    /// The packets of the next message.
    pub fn message(&mut self, element: Element, elements: &[u8]) -> Vec<Data> {
        let header = self.header(element, elements.len());
        let mut payload = header.emit(&secret(self.ring), &self.channel()).to_vec();
        payload.extend_from_slice(elements);
        let parts: Vec<_> = payload.chunks(MTU).collect();
        let packets = parts.iter().enumerate().map(|(i, part)| Data {
            rank: self.rank,
            to: self.to(),
            qp: self.qp,
            psn: self.psn.after(i as u32),
            verb: self.verb,
            place: match (i, parts.len() - 1 - i) {
                (0, 0) => Place::Only,
                (0, _) => Place::First,
                (_, 0) => Place::Last,
                _ => Place::Middle,
            },
            dscp: DEFAULT_DSCP,
            payload: part.to_vec(),
        });
        let packets: Vec<_> = packets.collect();
        self.psn = self.psn.after(packets.len() as u32);
        self.message += 1;
        packets
    }
}

/// Frames that left, each with its port.
pub type Left = Vec<(PortId, Vec<u8>)>;

/// What each core has.
fn dialects(cores: u8, rings: &[RingConfig]) -> impl FnMut(u8) -> Dialects<Memory> + use<> {
    let rings: Vec<ServedRing> = rings.iter().cloned().map(Into::into).collect();
    move |core| {
        let place = (usize::from(core), u16::from(cores));
        let rings = rings.iter().cloned();
        let dialect = NetreduceDialect::new(DEFAULT_DSCP, Kernels::best(), place, rings);
        Dialects {
            native: native(pool(cores, core, []), PORTS),
            switchml: None,
            netreduce: Some(Box::new(dialect)),
            offload: None,
        }
    }
}

pub struct World {
    pub switch: Switch<Dialects<Memory>>,
    pub cores: u16,
}

impl World {
    /// A switch with rings of so many members; all hosts have been heard, each at the port of its
    /// number.
    pub fn new(cores: u8, members: &[usize]) -> Self {
        let config = forwarding(ADDRESS, PORTS);
        let memory = Memory::new(FRAME_BYTES);
        let rings: Vec<_> = members.iter().map(|&members| ring(members)).collect();
        let mut world = Self {
            switch: Switch::new(ADDRESS, cores, &config, memory, dialects(cores, &rings)),
            cores: cores.into(),
        };
        world.greet_all();
        world
    }

    /// Each host is heard at the port of its number.
    pub fn greet_all(&mut self) {
        for host in 0..usize::from(PORTS) {
            self.greet(host, host);
        }
    }

    /// A switch of a fabric with these rings, of whose members none has been heard.
    pub fn in_fabric(cores: u8, rings: &[RingConfig], plan: &Plan, table: &Arc<Table>) -> Self {
        Self::in_fabric_at(ADDRESS, cores, rings, plan, table)
    }

    /// As [`in_fabric`](Self::in_fabric), with these addresses.
    pub fn in_fabric_at(
        address: SwitchAddress,
        cores: u8,
        rings: &[RingConfig],
        plan: &Plan,
        table: &Arc<Table>,
    ) -> Self {
        let config = forwarding(address, PORTS);
        let memory = Memory::new(FRAME_BYTES);
        let dialects = dialects(cores, rings);
        let mut world = Self {
            switch: Switch::in_fabric(address, cores, &config, plan, memory, dialects),
            cores: cores.into(),
        };
        world.set_links(table);
        world
    }

    pub fn set_links(&mut self, table: &Arc<Table>) {
        self.switch.command(|| Command::Fabric(Arc::clone(table)));
    }

    /// A host is heard at a port.
    pub fn greet(&mut self, host: usize, port: usize) {
        let mut hello = vec![0xff; 60];
        hello[6..12].copy_from_slice(&mac(host).0);
        hello[12..14].copy_from_slice(&[0x88, 0xb5]);
        self.send_from(port, &hello);
        self.switch.take();
    }

    pub fn send_from(&mut self, port: usize, frame: &[u8]) {
        let packet = self.switch.memory.packet(frame);
        self.switch.receive(PortId(port as u16), packet);
    }

    /// What leaves when this packet has come.
    pub fn send(&mut self, data: &Data) -> Left {
        self.send_from(data.rank, &data.frame());
        self.switch.take()
    }

    pub fn counters(&self) -> NetreduceCounters {
        let at = RING.0 as usize % usize::from(self.cores);
        let core = &self.switch.cores[at];
        *core.dialects.netreduce.as_ref().unwrap().counters()
    }

    pub fn status(&mut self) -> RingStatus {
        self.status_of(RING)
    }

    pub fn status_of(&mut self, ring: RingId) -> RingStatus {
        let core = ring.0 as usize % usize::from(self.cores);
        let command = |reply| {
            let command = DialectCommand::Netreduce(NetreduceCommand::Rings(reply));
            self.switch.cores[core].command(Command::Dialect(command));
        };
        let mut rings = ask(command).into_iter();
        rings.find(|it| it.id == ring).unwrap()
    }

    #[track_caller]
    pub fn assert_dropped(&mut self, port: usize, frame: &[u8], reason: DropReason) {
        let before = self.dropped(reason);
        self.send_from(port, frame);
        let left = self.switch.take();
        assert!(left.is_empty(), "{} frames left", left.len());
        assert_eq!(
            self.dropped(reason),
            before + 1,
            "{:?}",
            self.switch.drops()
        );
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        let drops = self.switch.drops();
        (drops.iter().find(|(it, _)| *it == reason)).map_or(0, |&(_, count)| count)
    }
}

pub fn i32s(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

/// The payload of a frame that left, which is otherwise the one that came.
#[track_caller]
pub fn payload(sent: &Data, left: &[u8]) -> Vec<u8> {
    assert!(is_sealed(left), "a wrong ICRC");
    let udp = UdpFrame::parse(left).unwrap();
    let packet = Packet::parse(udp.datagram(left)).unwrap();
    let came = released(sent).frame();
    let headers = UDP_END + packet.payload.start;
    assert_eq!(left.len(), came.len());
    assert_eq!(left[..udp::CHECKSUM.start], came[..udp::CHECKSUM.start]);
    assert_eq!(
        left[udp::CHECKSUM.end..headers],
        came[udp::CHECKSUM.end..headers]
    );
    udp.datagram(left)[packet.payload].to_vec()
}

/// The elements of a frame that left with a sum.
#[track_caller]
pub fn sum_of(sent: &Data, left: &[u8]) -> Vec<u8> {
    let payload = payload(sent, left);
    assert_eq!(
        left[udp::CHECKSUM],
        [0, 0],
        "UDP's checksum is not of the sum"
    );
    if !sent.place.begins() {
        return payload;
    }
    let channel = Channel {
        source: ip(sent.rank),
        destination: ip(sent.to),
        qp: sent.qp,
    };
    let header = RingHeader::parse(&payload, &secret(RING), &channel).unwrap();
    assert!(header.is_summed);
    assert_eq!(usize::from(header.rank), sent.rank);
    payload[RING_HEADER_BYTES..].to_vec()
}
