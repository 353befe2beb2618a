//! The switch without its ports: whole frames into two cores that hand frames over to each other,
//! with an oracle. The fuzz target and `tests/dispatch.rs` feed it.
//!
//! Bytes are read as a script of operations: members join and leave, send what they may and what
//! they may not; strangers send the same with other payloads; frames are mutated, recorded and
//! repeated from elsewhere, or with tags that are not theirs; or are bytes without any sense.
//! Members' frames are composed in `dispatch/frames.rs`, wrong tags in `dispatch/forgery.rs`;
//! SwitchML's part is in `dialect.rs`. The oracle parses what goes in and what leaves:
//!
//! * nothing panics;
//! * a frame is dropped with exactly one counter and no other effect, or has an effect;
//! * a frame with a wrong tag has no effect, and what leaves has the right one;
//! * a bound member has the address that it always had, and has the key;
//! * a frame to the PS or the group holds exactly the contributions that its bitmap names, each of
//!   which its bound member has sent in this epoch; a fragment is published once;
//! * PROBE has at most one answer, and asks another rank only for a fragment that something is
//!   known of;
//! * a frame between other hosts leaves as it came, and none to the switch or in its name does;
//! * no buffer is lost, and none is left when all jobs are unbound.
//!
//! Contributions are made up from job and fragment (see [`sums`](super::sums)), so that the oracle
//! need not remember them. A fragment for which a bound member sends anything else is *tainted*:
//! its sums are that member's affair, and are not checked.
//!
//! Each seventh frame comes in two segments, which must make no difference.

use super::dialect::{Clients, Request};
use super::plain::host;
use super::platform::Memory;
use super::sums;
use super::switch::{ADDRESS, Switch, forwarding, native, switchml};
use frames::enclose;
use oracle::Input;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tally_engine::dialect::Dialect;
use tally_engine::registry::JobStatus;
use tally_engine::switchml::SwitchmlCounters;
use tally_engine::{
    Action, Command, ControlFrame, Dialects, DropReason, ForwardingConfig, JobConfig, Limits,
    Member, PolicyName, PoolConfig, PoolJob, PortId, Registry, RegistryConfig, Roster,
};
use tally_wire::control::DATAGRAM_BYTES;
use tally_wire::frame::{UDP_END, group_of};
use tally_wire::{
    Accept, Addresses, AuthTag, Element, Epoch, EpochSecret, Flags, HEADERS_BYTES, Header, JobId,
    Key, Kind, Mac, Rank, Refuse, UdpFrame,
};

mod forgery;
mod frames;
mod oracle;

pub const SWITCH_MAC: Mac = ADDRESS.mac;
pub const SWITCH_IP: Ipv4Addr = ADDRESS.ip;
const BASE_PORT: u16 = ADDRESS.base_port;
/// Cores, each with a shard.
pub const SHARDS: u8 = 2;
/// The hosts' ports, and that of a stranger.
pub const PORTS: u16 = 16;
const STRANGER: PortId = PortId(PORTS - 1);
/// Workers of the two jobs, 7 and 8.
const WORKERS: [u8; 2] = [3, 2];
/// Fragments that members talk about on their own; mutated frames talk about others.
const FRAGMENTS: u8 = 24;
/// Operations in one script.
const MAX_OPERATIONS: usize = 400;

/// A script: bytes that are read as choices. At its end all choices are 0.
pub struct Script<'a>(pub &'a [u8]);

impl<'a> Script<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// A member's process.
struct Peer {
    job: usize,
    rank: Rank,
    home: Member,
    instance: u64,
    challenge: u64,
    epoch: Epoch,
    salt: u64,
}

impl Peer {
    /// Of the epoch that it knows.
    fn secret(&self) -> EpochSecret {
        key(self.job).epoch_secret(job_id(self.job), self.epoch, self.salt)
    }
}

/// What the oracle knows of a running job.
#[derive(Default)]
struct Bound {
    roster: Option<Roster>,
    /// Ranks that have contributed, by fragment.
    said: BTreeMap<u32, u64>,
    tainted: BTreeSet<u32>,
    published: BTreeSet<u32>,
    /// A member has spoken of fragments far apart, so the ring may have forgotten.
    wild: bool,
}

/// What a script did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Frames handed in.
    pub frames: u64,
    /// Frames dropped.
    pub drops: u64,
    /// Results published.
    pub results: u64,
    /// PARTIALs sent.
    pub partials: u64,
    /// NACKs to workers.
    pub nacks: u64,
    /// PROBEs that were forwarded to a PS.
    pub probes_to_ps: u64,
    /// Frames of bound members with a wrong tag.
    pub forged: u64,
    /// Epochs that ran.
    pub binds: u64,
    /// Sums sent to SwitchML's clients.
    pub replies: u64,
    /// Frames between other hosts that were forwarded.
    pub forwarded: u64,
}

/// What the oracle looks at before and after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Frames dropped, by `DropReason as usize`.
    drops: [u64; DropReason::ALL.len()],
    /// Contributions that Tally's own protocol has taken.
    contributions: u64,
    /// What SwitchML did on each core, and the buffers that it keeps.
    pub switchml: [(SwitchmlCounters, u32); SHARDS as usize],
    /// By core, slots taken and contributions held out of order.
    held: [(usize, u32); SHARDS as usize],
    /// Segments that exist.
    alive: usize,
}

impl State {
    fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Why a frame was dropped since then, if one was.
    pub fn reason_since(&self, before: &Self) -> Option<DropReason> {
        let mut all = DropReason::ALL.iter().copied();
        all.find(|&reason| self.drops[reason as usize] != before.drops[reason as usize])
    }
}

/// A frame of Tally's that left, with all ports that it left by.
#[derive(Debug)]
struct Sent {
    ports: Vec<PortId>,
    to: Addresses,
    header: Header,
    payload: Vec<u8>,
}

struct World {
    registry: Registry,
    switch: Switch<Dialects<Memory>>,
    /// Whether SwitchML takes its memory one by one, so that each segment is accounted for.
    is_strict: bool,
    secret: u8,
    peers: Vec<Peer>,
    bound: [Bound; 2],
    recorded: Vec<(Member, Vec<u8>)>,
    /// Frames with tags, from home.
    tagged: Vec<(usize, Header)>,
    clients: Clients,
    summary: Summary,
}

fn job_id(place: usize) -> JobId {
    JobId(7 + place as u16)
}

fn place_of(job: JobId) -> Option<usize> {
    (0..2).find(|&place| job_id(place) == job)
}

fn key(place: usize) -> Key {
    Key::new(&[place as u8 + 1; 16]).expect("a key of 16 bytes")
}

/// Every type in any seven fragments that follow one another; f32 in 2, as the seeds have it.
fn element_of(fragment: u32) -> Element {
    Element::ALL[4 * fragment as usize % 7]
}

fn all_of(place: usize) -> u64 {
    (1 << WORKERS[place]) - 1
}

fn registry(secret: u8) -> Registry {
    let config = RegistryConfig {
        mac: SWITCH_MAC,
        base_port: BASE_PORT,
        shards: SHARDS,
        window: 8,
        units: 2,
        member_timeout: Duration::from_secs(5),
        secret: [secret; 32],
        fabric: None,
    };
    let jobs = (0..2).map(|place| JobConfig {
        id: job_id(place),
        key: key(place),
        workers: WORKERS[place],
        previous_key: None,
        servers: 1,
        tree: None,
    });
    Registry::new(config, jobs.collect())
}

/// Runs a script.
///
/// # Panics
/// When the oracle is not content.
pub fn run(bytes: &[u8]) -> Summary {
    let mut script = Script(bytes);
    let mut world = World::new(&mut script);
    for _ in 0..MAX_OPERATIONS {
        if script.0.is_empty() {
            break;
        }
        world.operation(&mut script);
    }
    world.end()
}

/// A host that is a member of nothing.
fn stranger() -> Member {
    Member {
        port: STRANGER,
        ..host(77)
    }
}

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let choice = usize::from(script.byte());
        let (_, policy) = PolicyName::ALL[choice % 4];
        let layout = script.byte();
        let slots = 1 << (layout & 3);
        let limit = (choice >> 4) as u32;
        let held = u32::from(layout >> 2 & 3);
        let limits = Limits {
            min_slots: if policy == PolicyName::Esa {
                limit & (slots / 2)
            } else {
                0
            },
            max_slots: if limit < 8 { u32::MAX } else { limit - 7 },
            min_held: held / 2,
        };
        let config = |shard| PoolConfig {
            slots,
            ways: slots.min(1 << (choice >> 2 & 3)),
            held,
            window: 8,
            shards: SHARDS,
            shard,
            jobs: vec![
                PoolJob {
                    id: JobId(7),
                    limits,
                },
                PoolJob {
                    id: JobId(8),
                    limits,
                },
            ],
            policy,
            places: 0,
        };
        let memory = Memory::new(2048);
        let is_strict = layout & 0x40 == 0;
        memory.set_bulk(!is_strict);
        let ordinary = ForwardingConfig {
            addresses: 16,
            ..forwarding(ADDRESS, PORTS)
        };
        let switch = Switch::new(ADDRESS, SHARDS, &ordinary, memory, |core| Dialects {
            native: native(config(core), PORTS),
            switchml: switchml(Clients::config(layout, core), PORTS),
            netreduce: None,
            offload: None,
        });
        let mut peers = Vec::new();
        for (job, workers) in WORKERS.into_iter().enumerate() {
            for rank in (0..workers).map(Rank).chain([Rank::PS]) {
                let n = peers.len() as u16;
                peers.push(Peer {
                    job,
                    rank,
                    home: host(n),
                    instance: u64::from(n) + 1,
                    challenge: 0,
                    epoch: Epoch(0),
                    salt: 0,
                });
            }
        }
        let mut world = Self {
            registry: registry(1),
            switch,
            is_strict,
            secret: 1,
            peers,
            bound: Default::default(),
            recorded: Vec::new(),
            tagged: Vec::new(),
            clients: Clients::new(layout),
            summary: Summary::default(),
        };
        if layout < 0xc0 {
            (0..2).for_each(|choice| world.clients.bind(&mut world.switch, choice));
            // Most scripts begin with jobs that run.
            for peer in (0..world.peers.len()).chain(0..world.peers.len()) {
                world.join(peer, 1);
                world.join(peer, 1);
            }
            assert_eq!(world.summary.binds, 2);
        }
        world
    }

    // --- The operations. ---

    fn operation(&mut self, script: &mut Script<'_>) {
        let operation = script.byte();
        if operation >= 224 {
            for (from, frame) in self.clients.operation(&mut self.switch, script) {
                self.dispatch(from, &frame);
            }
            return;
        }
        match operation % 32 {
            0..12 => {
                let (from, frame) = self.sensible_data(script);
                self.dispatch(from, &frame);
            }
            12..16 => {
                let (from, frame) = self.sensible_other(script);
                self.dispatch(from, &frame);
            }
            16 => {
                // All members of a fragment, one after the other: completes what can be completed.
                let (place, fragment) = (script.below(2), script.byte() % FRAGMENTS);
                for rank in 0..WORKERS[place] {
                    let peer = self.peer(place, Rank(rank));
                    let frame = self.data(peer, fragment, Flags::NONE, 9, false);
                    self.dispatch(self.peers[peer].home, &frame);
                }
            }
            17..21 => {
                // Nearly valid: a few bytes differ.
                let kind = script.below(6);
                let (from, mut frame) = match kind {
                    0 => self.sensible_other(script),
                    1 => self.control(script),
                    2 => self.wrong_for_the_job(script),
                    _ => self.sensible_data(script),
                };
                // Who can change the addresses of a member's first JOIN on its way, and keep the
                // original, is that member for the switch: no key covers them.
                let first = if kind == 1 { UDP_END } else { 0 };
                for _ in 0..script.below(4) {
                    let at = first + script.below(HEADERS_BYTES + 40);
                    let flip = script.byte();
                    if let Some(byte) = frame.get_mut(at) {
                        *byte ^= flip;
                    }
                }
                let len = frame.len();
                match script.byte() {
                    cut @ 0..16 => frame.truncate(len.saturating_sub(usize::from(cut))),
                    200.. => frame.extend_from_slice(&[0xa5; 20]),
                    _ => {}
                }
                self.dispatch(from, &frame);
            }
            21 => {
                let (from, frame) = self.forged(script);
                self.dispatch(from, &frame);
            }
            22 => {
                // From a stranger, and on a port of its own.
                let (_, frame) = if script.byte() & 1 == 0 {
                    self.sensible_data(script)
                } else {
                    self.sensible_other(script)
                };
                self.dispatch(stranger(), &frame);
            }
            23 => {
                let n = script.below(140);
                let frame = script.bytes(n).to_vec();
                self.dispatch(stranger(), &frame);
            }
            24 => {
                // A Tally header without any sense behind sensible addresses.
                let peer = script.below(self.peers.len());
                let n = 22 + 64 * script.below(3);
                let mut datagram = script.bytes(n).to_vec();
                datagram.resize(n, 0);
                datagram[0] = 0x20 | (datagram[0] & 15);
                let frame = enclose(self.peers[peer].home, script.byte() & 1, &datagram);
                self.dispatch(self.peers[peer].home, &frame);
            }
            25 => {
                // All members of a job show that they live, and open it if it is idle.
                let place = script.below(2);
                for _ in 0..5 {
                    for peer in 0..self.peers.len() {
                        if self.peers[peer].job == place {
                            self.join(peer, 1);
                        }
                    }
                }
            }
            26 => {
                let peer = script.below(self.peers.len());
                self.join(peer, 1);
            }
            27 => {
                let (from, frame) = self.control(script);
                self.record(from, &frame);
                self.dispatch(from, &frame);
            }
            28 => {
                // Recorded, and said again from somewhere else.
                if !self.recorded.is_empty() {
                    let at = script.below(self.recorded.len());
                    let (from, frame) = self.recorded[at].clone();
                    let from = if script.byte() & 1 == 0 {
                        stranger()
                    } else {
                        from
                    };
                    self.dispatch(from, &frame);
                }
            }
            29 => {
                let ms = u64::from(script.byte()) * 30;
                let end = self.switch.now.after(Duration::from_millis(ms));
                // Half of the time the switch stands still for as long.
                let stands_still = script.byte() & 1 == 0;
                let due = |registry: &Registry| registry.poll_timeout().filter(|&at| at <= end);
                while !stands_still && let Some(at) = due(&self.registry) {
                    self.switch.now = at;
                    let actions = self.registry.handle_timeout(at);
                    self.carry_out(actions);
                }
                self.switch.now = end;
                let actions = self.registry.handle_timeout(end);
                self.carry_out(actions);
            }
            30 => {
                // A process starts anew, at home.
                let peer = script.below(self.peers.len());
                let peer = &mut self.peers[peer];
                peer.instance += 0x100;
                peer.challenge = 0;
                peer.epoch = Epoch(0);
                peer.salt = 0;
            }
            _ => {
                // As often as secrets and epochs last without coming again.
                if script.byte() < 32 && self.secret < 200 {
                    // The switch starts anew.
                    self.unbind_all();
                    self.secret += 1;
                    self.registry = registry(self.secret);
                }
            }
        }
    }

    fn peer(&self, place: usize, rank: Rank) -> usize {
        let is = |p: &Peer| p.job == place && p.rank == rank;
        self.peers.iter().position(is).expect("a peer")
    }

    fn join(&mut self, peer: usize, units: u8) {
        let frame = self.join_frame(peer, units);
        self.record(self.peers[peer].home, &frame);
        self.dispatch(self.peers[peer].home, &frame);
    }

    /// The last 64 that went their way.
    fn record(&mut self, from: Member, frame: &[u8]) {
        if self.recorded.len() == 64 {
            self.recorded.remove(0);
        }
        self.recorded.push((from, frame.to_vec()));
    }

    // --- The dispatch, and its oracle. ---

    fn state(&self) -> State {
        let mut state = State {
            drops: [0; DropReason::ALL.len()],
            contributions: 0,
            switchml: [(SwitchmlCounters::default(), 0); SHARDS as usize],
            held: [(0, 0); SHARDS as usize],
            alive: self.switch.memory.alive(),
        };
        for (at, core) in self.switch.cores.iter().enumerate() {
            let aggregator = core.dialects.native.aggregator();
            let switchml = core.dialects.switchml.metrics(&core.context);
            let switchml = switchml.expect("the switch has it");
            // Frames that are ready for replies hold no state.
            let dialect = core.dialects.switchml.as_ref();
            state.alive -= dialect.map_or(0, |dialect| dialect.stock_frames());
            state.contributions += aggregator.counters().contributions;
            state.switchml[at] = (switchml.counters, switchml.in_use.held_in_use);
            state.held[at] = (aggregator.slots_in_use(), aggregator.held_in_use());
            let ports = &core.context.ports;
            for (of_all, reason) in state.drops.iter_mut().zip(DropReason::ALL) {
                *of_all += core.context.drops()[*reason]
                    + aggregator.counters().dropped(*reason)
                    + switchml.counters.dropped(*reason)
                    + match reason {
                        DropReason::HandoverFull => ports.handover_full,
                        DropReason::FrameTooLong => ports.frame_too_long,
                        DropReason::NoBuffer => ports.no_buffer,
                        _ => 0,
                    };
            }
        }
        state
    }

    fn dispatch(&mut self, from: Member, frame: &[u8]) {
        self.summary.frames += 1;
        let input = Input::of(from.port, frame);
        if let Input::Native(at, sender, header, payload) = &input {
            self.note(*at, *sender, header, payload);
        }
        let before = self.state();
        let memory = &self.switch.memory;
        let packet = if self.summary.frames % 7 == 3 {
            memory.segmented(frame, frame.len() / 2)
        } else {
            memory.packet(frame)
        };
        self.switch.receive(from.port, packet);
        let sent = self.switch.take();
        let after = self.state();
        let cores = self.switch.cores.iter_mut();
        let control: Vec<_> = cores
            .flat_map(|core| std::iter::from_fn(|| core.poll_control()))
            .collect();

        let dropped = after.dropped() - before.dropped();
        assert!(dropped <= 1, "counted {dropped} times");
        self.summary.drops += dropped;
        let taken = |state: &State| {
            let switchml = state.switchml.iter();
            state.contributions + switchml.map(|(c, _)| c.contributions).sum::<u64>()
        };
        let effect = !sent.is_empty() || !control.is_empty() || taken(&after) > taken(&before);
        assert_eq!(dropped == 0, effect, "an effect or a counter, never both");
        if !effect {
            let kept = |state: &State| (state.held, state.switchml.map(|(_, kept)| kept));
            assert_eq!(kept(&before), kept(&after), "changed without effect");
            assert_eq!(before.alive, after.alive, "a buffer lost or left over");
        }
        let reason = after.reason_since(&before);
        match input {
            Input::Native(at, sender, header, _) => {
                let sent = self.sent_by_native(sent);
                self.validate(at, sender, &header, sent, effect, reason, control);
            }
            Input::Switchml(request) => {
                assert!(control.is_empty());
                let replies = self.clients.validate(&request, &sent, &before, &after);
                self.summary.replies += replies;
            }
            other => {
                assert!(control.is_empty());
                self.judge_ordinary(&other, from.port, frame, &sent);
            }
        }
    }

    /// What left, with the ports of each frame to a group together.
    fn sent_by_native(&self, frames: Vec<(PortId, Vec<u8>)>) -> Vec<Sent> {
        let mut all: Vec<(Vec<u8>, Vec<PortId>)> = Vec::new();
        for (port, bytes) in frames {
            let mut same = all.iter_mut().filter(|(other, _)| *other == bytes);
            match same.next() {
                Some((_, ports)) if bytes[0] & 1 == 1 => ports.push(port),
                _ => all.push((bytes, vec![port])),
            }
        }
        let parse = |(bytes, mut ports): (Vec<u8>, Vec<PortId>)| {
            ports.sort_unstable();
            let udp = UdpFrame::parse(&bytes).expect("a datagram");
            let to = udp.addresses;
            let source = (to.src_mac, to.src_ip, to.src_port);
            assert_eq!(source, (SWITCH_MAC, SWITCH_IP, BASE_PORT));
            assert_eq!(bytes.len(), UDP_END + udp.datagram_bytes, "padding");
            let header = Header::parse(udp.datagram(&bytes)).expect("a valid header");
            assert_eq!(header.check(), Ok(()));
            let place = place_of(header.job).expect("a configured job");
            let roster = self.bound[place].roster.as_ref().expect("it runs");
            assert!(roster.secret.verifies(&header), "a wrong tag: {header:?}");
            Sent {
                ports,
                to,
                header,
                payload: bytes[HEADERS_BYTES..][..header.payload_bytes()].to_vec(),
            }
        };
        all.into_iter().map(parse).collect()
    }

    fn membership(&mut self, frame: &ControlFrame) {
        let (sender, header, datagram) = (frame.from, &frame.header, &frame.datagram[..]);
        let before: Vec<JobStatus> = self.registry.status().collect();
        let now = self.switch.now;
        let actions = self.registry.handle(now, sender, header, datagram);
        let place = place_of(header.job);
        let authentic = place.is_some_and(|place| key(place).verify(datagram));
        let mut to_others = actions
            .iter()
            .filter(|a| !matches!(a, Action::Send(to, _) if *to == sender));
        if !authentic {
            assert!(actions.len() <= 1 && to_others.next().is_none());
            assert!(
                before.into_iter().eq(self.registry.status()),
                "without the key"
            );
        }
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, datagram) => self.send(to, datagram),
                Action::Unbind(id) => self.unbind(id),
                Action::Create(..) | Action::Forget(_) => panic!("there are no tenants"),
                Action::Bind(roster) => {
                    self.summary.binds += 1;
                    let place = place_of(roster.job).expect("a configured job");
                    let home = |rank| self.peers[self.peer(place, rank)].home;
                    let ranks = (0..WORKERS[place]).map(|r| home(Rank(r)));
                    assert!(
                        roster.workers.iter().copied().eq(ranks),
                        "a thief: {roster:?}"
                    );
                    assert_eq!(roster.servers, [home(Rank::PS)], "a thief");
                    let shared = Arc::new((*roster).clone());
                    self.switch.command(|| Command::Bind(Arc::clone(&shared)));
                    assert_eq!(self.switch.take(), [], "binding sends nothing");
                    let bound = &mut self.bound[place];
                    let same = bound
                        .roster
                        .as_ref()
                        .is_some_and(|r| (r.epoch, r.secret) == (roster.epoch, roster.secret));
                    if !same {
                        *bound = Bound::default();
                    }
                    bound.roster = Some(*roster);
                }
            }
        }
    }

    /// A datagram of the registry's: it arrives as it is.
    fn send(&mut self, to: Member, datagram: Box<[u8; DATAGRAM_BYTES]>) {
        let at = self.switch.core_of(to.port);
        let command = Command::Send(to, datagram.clone());
        self.switch.cores[at].command(command);
        self.switch.poll();
        let sent = self.switch.take();
        let [(port, frame)] = &sent[..] else {
            panic!("one datagram: {sent:?}");
        };
        let udp = UdpFrame::parse(frame).expect("a datagram");
        let expected = Addresses {
            src_mac: SWITCH_MAC,
            dst_mac: to.mac,
            src_ip: SWITCH_IP,
            dst_ip: to.ip,
            src_port: BASE_PORT,
            dst_port: to.udp_port,
        };
        assert_eq!((*port, udp.addresses), (to.port, expected));
        assert_eq!(udp.datagram(frame), &datagram[..]);
        self.notify(to, &datagram);
    }

    /// J-8, as far as a member here needs it.
    fn notify(&mut self, to: Member, datagram: &[u8; DATAGRAM_BYTES]) {
        let header = Header::parse(datagram).expect("the switch's own frame");
        let Some(peer) = self.peers.iter_mut().find(|p| p.home == to) else {
            return;
        };
        if header.job != job_id(peer.job) || !key(peer.job).verify(datagram) {
            return;
        }
        match header.kind {
            Kind::Accept => {
                let accept = Accept::parse(datagram).expect("the switch's own ACCEPT");
                if accept.instance == peer.instance {
                    peer.challenge = accept.challenge;
                    peer.epoch = header.epoch;
                    peer.salt = accept.salt;
                    // what the member derives is what the data path has.
                    let roster = self.bound[peer.job].roster.as_ref();
                    if let Some(roster) = roster.filter(|r| r.epoch == peer.epoch) {
                        assert_eq!(peer.secret(), roster.secret);
                    }
                }
            }
            _ => {
                let refuse = Refuse::parse(datagram).expect("the switch's own REFUSE");
                if refuse.instance == peer.instance {
                    peer.challenge = refuse.challenge;
                }
            }
        }
    }

    fn unbind(&mut self, id: JobId) {
        self.switch.command(|| Command::Unbind(id));
        assert_eq!(self.switch.take(), [], "unbinding sends nothing");
        if let Some(place) = place_of(id) {
            self.bound[place] = Bound::default();
        }
    }

    fn unbind_all(&mut self) {
        (0..2).for_each(|place| self.unbind(job_id(place)));
        self.clients.unbind_all(&mut self.switch);
        let state = self.state();
        assert_eq!(state.held, [(0, 0); SHARDS as usize]);
        if self.is_strict {
            assert_eq!(state.alive, 0, "buffers left over");
        }
    }

    fn end(mut self) -> Summary {
        self.unbind_all();
        let Switch { memory, cores, .. } = self.switch;
        let waiting = |core: &tally_engine::Core<Memory, Dialects<Memory>>| {
            let ports = &core.context.ports;
            let of = |port| ports.waiting(PortId(port)) as u64;
            let full: u64 = ports
                .queue_counters()
                .iter()
                .map(|q| q.dropped_total())
                .sum();
            (0..PORTS).map(of).sum::<u64>() + full
        };
        assert_eq!(cores.iter().map(waiting).sum::<u64>(), 0);
        drop(cores);
        assert_eq!(memory.alive(), 0, "a buffer disappeared");
        self.summary
    }
}
