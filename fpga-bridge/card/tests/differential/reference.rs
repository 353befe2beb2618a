//! What a card must do: the core of the switch, of which all checks and all sums are.
//!
//! A card differs from the switch by design, in these ways and no others:
//!
//! * MACs say which ports a frame came in on and leaves on ([`Reference::frame`], [`as_card`]).
//! * Streams show flaws, and frames that are too long ([`flaw_of`]).
//! * Tags of the protocol are the switch's business: it verifies those of what it sends to the
//!   card, and writes those of what comes back ([`Reference::sealed`], [`as_card`]).
//! * All shards are one pool ([`Reference::is_of_wrong_shard`]).
//! * Frames for others it returns unchanged ([`is_passed`]).

use super::card::{Counts, Own, Shape};
use super::common::platform::Memory;
use super::common::switch::{ADDRESS, Switch, forwarding, native};
use std::collections::BTreeSet;
use std::sync::Arc;
use tally_bridge::registers::{COUNTERS, Group};
use tally_card::Flaw;
use tally_engine::metrics::MetricSet as _;
use tally_engine::offload::tags::{mask_mac, port_of};
use tally_engine::{
    Command, Dialects, DropReason, PolicyName, PoolConfig, PoolJob, PortId, Roster,
};
use tally_wire::frame::{self, UDP_END};
use tally_wire::{Addresses, AuthTag, HEADERS_BYTES, Header, JobId, Mac, UdpFrame};

/// Port of frames without a port tag.
pub const NO_PORT: PortId = PortId(0xffff);
/// Ports that a member can be behind.
const PORTS: u16 = 16;
/// Stands for all other ports.
const STRANGER: PortId = PortId(PORTS);

pub fn mac_at(frame: &[u8], at: usize) -> Option<Mac> {
    Some(Mac(*frame.get(at..)?.first_chunk()?))
}

/// The drop reason of the stream, of a frame of so many bytes.
pub fn flaw_of(flaw: Flaw, bytes: usize, shape: &Shape) -> Option<&'static str> {
    let shown = match flaw {
        Flaw::None => None,
        Flaw::Bad => Some("stream-error"),
        Flaw::ShortBeat => (bytes > 64).then_some("stream-keep"),
        Flaw::Hole => ((bytes - 1) % 64 + 1 > 2).then_some("stream-keep"),
    };
    shown.or((bytes > shape.frame_max()).then_some("stream-oversize"))
}

const IP_BYTES_AT: usize = 16;
const CHECKSUM_AT: usize = 24;
const UDP_PORT_AT: usize = 36;
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

/// What the switch sent, as a card sends it: once, with a mask of its ports.
fn as_card(sent: Vec<(PortId, Vec<u8>)>) -> Vec<Vec<u8>> {
    let mut all: Vec<(Vec<u8>, u16)> = Vec::new();
    for (port, frame) in sent {
        match all.iter_mut().find(|(other, _)| *other == frame) {
            Some((_, ports)) => {
                assert_eq!(*ports >> port.0 & 1, 0, "a frame left twice on a port");
                *ports |= 1 << port.0;
            }
            None => all.push((frame, 1 << port.0)),
        }
    }
    let untagged = |(mut frame, ports): (Vec<u8>, u16)| {
        let udp = UdpFrame::parse(&frame).expect("a datagram");
        let header = Header::parse(udp.datagram(&frame)).expect("a header");
        frame.truncate(HEADERS_BYTES + header.payload_bytes());
        let src_mac = mask_mac(ports);
        let addresses = Addresses {
            src_mac,
            ..udp.addresses
        };
        write_headers(&mut frame, &addresses, &header);
        frame
    };
    all.into_iter().map(untagged).collect()
}

/// Whether a frame to the switch, on which it decided so, is not the card's business.
fn is_passed(frame: &[u8], dropped: Option<DropReason>) -> bool {
    let is_control = || {
        let udp = UdpFrame::parse(frame);
        let header = udp.map(|udp| Header::parse(udp.datagram(frame)));
        matches!(header, Ok(Ok(header)) if header.kind.is_control())
    };
    match dropped {
        Some(
            DropReason::Vlan
            | DropReason::NotIpv4
            | DropReason::NotUdp
            | DropReason::NotOurs
            | DropReason::UdpPort
            | DropReason::UnknownJob,
        ) => true,
        Some(DropReason::NotForSwitch) => is_control(),
        Some(_) => false,
        // JOIN and LEAVE, which the switch hands to control, ARP and ping, which it answers.
        None => UdpFrame::parse(frame).is_err() || is_control(),
    }
}

type Software = Switch<Dialects<Memory>>;

/// A switch of as many cores as shards.
fn software(shape: Shape, shards: u8, jobs: &BTreeSet<JobId>) -> Software {
    let ports = PORTS + 1;
    let memory = Memory::new(shape.frame_max() + HEADERS_BYTES);
    let pool = |shard| PoolConfig {
        slots: shape.slots,
        ways: 1,
        held: 0,
        window: (shape.ring / 2) as u16,
        shards,
        shard,
        jobs: jobs.iter().copied().map(PoolJob::unlimited).collect(),
        policy: PolicyName::Esa,
        places: 0,
    };
    Switch::new(
        ADDRESS,
        shards,
        &forwarding(ADDRESS, ports),
        memory,
        |shard| Dialects {
            native: native(pool(shard), ports),
            switchml: None,
            netreduce: None,
            offload: None,
        },
    )
}

/// Drops so far, by `DropReason as usize`.
fn drops_of(switch: &Software) -> [u64; DropReason::ALL.len()] {
    let of = |reason: DropReason| {
        let cores = switch.cores.iter().map(|core| {
            let shard = core.dialects.native.aggregator().counters();
            core.context.drops()[reason] + shard.dropped(reason)
        });
        cores.sum()
    };
    std::array::from_fn(|at| of(DropReason::ALL[at]))
}

/// What the switch would hand to control.
fn discard_control(switch: &mut Software) {
    for core in &mut switch.cores {
        while core.poll_control().is_some() {}
    }
}

/// The reference.
pub struct Reference {
    own: Own,
    shape: Shape,
    /// One core with one pool.
    switch: Software,
    /// As many cores as the card has shards. It only says which frames are of a wrong shard.
    sharded: Software,
    places: Vec<Option<Arc<Roster>>>,
    /// Of frames that the card does not pass, by `DropReason as usize`.
    drops: [u64; DropReason::ALL.len()],
    /// Of the stream: error, oversize, keep.
    stream: [(&'static str, u64); 3],
    frames_in: u64,
    beats_in: u64,
    frames_out: u64,
    beats_out: u64,
    passed: u64,
}

impl Reference {
    /// A reference that may be given these jobs.
    pub fn new(shape: Shape, own: Own, jobs: &BTreeSet<JobId>) -> Self {
        Self {
            own,
            shape,
            switch: software(shape, 1, jobs),
            sharded: software(shape, own.shards as u8, jobs),
            places: vec![None; shape.jobs.into()],
            drops: [0; DropReason::ALL.len()],
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

    /// A command to both switches, because of which nothing leaves.
    fn command(
        &mut self,
        command: impl Fn() -> Command<tally_engine::DialectCommand, tally_engine::DialectMetrics>,
    ) {
        for switch in [&mut self.switch, &mut self.sharded] {
            switch.command(&command);
            assert_eq!(switch.take(), []);
        }
    }

    pub fn load(&mut self, place: u8, roster: &Roster) {
        let roster = Arc::new(roster.clone());
        self.command(|| Command::Bind(Arc::clone(&roster)));
        self.places[usize::from(place)] = Some(roster);
    }

    pub fn unload(&mut self, place: u8) {
        if let Some(roster) = self.places[usize::from(place)].take() {
            self.command(|| Command::Unbind(roster.job));
        }
    }

    /// The frame with the tag that it has when the switch sends it to the card.
    fn sealed(&self, mut frame: Vec<u8>) -> Vec<u8> {
        let header = UdpFrame::parse(&frame).ok();
        let header = header.and_then(|udp| Header::parse(udp.datagram(&frame)).ok());
        if let Some(header) = header {
            let mut rosters = self.places.iter().flatten();
            if let Some(roster) = rosters.find(|roster| roster.job == header.job) {
                roster.secret.seal(header).emit(&mut frame[UDP_END..]);
            }
        }
        frame
    }

    /// Whether a switch whose cores have a shard each says so.
    fn is_of_wrong_shard(&mut self, port: PortId, frame: &[u8]) -> bool {
        let count = |switch: &Software| -> u64 {
            let cores = switch.cores.iter();
            let drops = cores.map(|core| core.context.drops()[DropReason::Shard]);
            drops.sum()
        };
        let before = count(&self.sharded);
        let packet = self.sharded.memory.packet(frame);
        self.sharded.receive(port, packet);
        self.sharded.take();
        discard_control(&mut self.sharded);
        count(&self.sharded) > before
    }

    /// The frame to the one pool, to whichever shard of the card's it is.
    fn to_pool(&self, mut frame: Vec<u8>) -> Vec<u8> {
        if let Ok(udp) = UdpFrame::parse(&frame)
            && udp.addresses.dst_port.wrapping_sub(self.own.base_port) < self.own.shards
        {
            frame[UDP_PORT_AT..UDP_PORT_AT + 2].copy_from_slice(&self.own.base_port.to_be_bytes());
        }
        frame
    }

    /// What the switch does with a frame to its MAC: why it drops it, and what leaves.
    fn decide(
        &mut self,
        port: PortId,
        frame: &[u8],
    ) -> (Option<DropReason>, Vec<(PortId, Vec<u8>)>) {
        if self.is_of_wrong_shard(port, frame) {
            return (Some(DropReason::Shard), Vec::new());
        }
        let before = drops_of(&self.switch);
        let packet = self.switch.memory.packet(&self.to_pool(frame.to_vec()));
        self.switch.receive(port, packet);
        discard_control(&mut self.switch);
        let after = drops_of(&self.switch);
        let changed = |reason: &&DropReason| after[**reason as usize] > before[**reason as usize];
        let reason = DropReason::ALL.iter().find(changed).copied();
        let more = after.iter().sum::<u64>() - before.iter().sum::<u64>();
        assert_eq!(more, u64::from(reason.is_some()), "one frame, two drops");
        (reason, self.switch.take())
    }

    /// Takes a frame. What leaves because of it.
    pub fn frame(&mut self, frame: &[u8], flaw: Flaw) -> Vec<Vec<u8>> {
        self.frames_in += 1;
        self.beats_in += frame.len().div_ceil(64) as u64;
        if let Some(name) = flaw_of(flaw, frame.len(), &self.shape) {
            let count = self.stream.iter_mut().find(|(n, _)| *n == name);
            count.expect("named above").1 += 1;
            return Vec::new();
        }
        let mut inner = frame.to_vec();
        let port = mac_at(frame, 0).and_then(port_of);
        if port.is_some() {
            inner[..6].copy_from_slice(&self.own.mac.0);
        }
        let port = port.filter(|port| port.0 < PORTS).unwrap_or(STRANGER);
        let (dropped, sent) = match self.switch.cores[0].context.forwarding.is_local(&inner) {
            // Forwarding is the switch's business.
            Ok(false) => return self.pass(frame),
            Err(reason) => (Some(reason), Vec::new()),
            Ok(true) => {
                let inner = self.sealed(inner);
                let decision = self.decide(port, &inner);
                if is_passed(&inner, decision.0) {
                    return self.pass(frame);
                }
                decision
            }
        };
        if let Some(reason) = dropped {
            self.drops[reason as usize] += 1;
        }
        let sent = as_card(sent);
        self.count_out(&sent);
        sent
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
        let counters = self.switch.cores[0].dialects.native.aggregator().counters();
        let named = match group {
            Group::Count => counters.named().iter().find(|(n, _)| *n == name).copied(),
            Group::Drop => DropReason::ALL
                .iter()
                .find(|reason| reason.name() == name)
                .map(|&reason| ("", self.drops[reason as usize]))
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
        let on_card = |reason: &DropReason| COUNTERS.iter().any(|(_, n)| *n == reason.name());
        let others = DropReason::ALL.iter().filter(|reason| !on_card(reason));
        others.map(|&reason| self.drops[reason as usize]).sum()
    }
}
