//! The switch without its ports: frames in, the whole way through parsing, membership and shards, with
//! an oracle. The fuzz target and `tests/dispatch.rs` feed it.
//!
//! Bytes are read as a script of operations: members join and leave, say what they may and what they
//! may not; strangers say the same with other payloads; frames are mutated, recorded and said again
//! from elsewhere, or with tags that are not theirs; or are bytes without any sense. Members'
//! frames are composed in `dispatch/frames.rs`, wrong tags in `dispatch/forgery.rs`; SwitchML's
//! part is in `dialect.rs`. The oracle:
//!
//! * nothing panics;
//! * a frame is dropped with exactly one counter and no other effect, or has an effect;
//! * a frame with a wrong tag has no effect, and what leaves has the right one;
//! * whoever is bound sits where it has always sat, and has the key;
//! * what leaves for the PS or the group holds exactly the contributions that its bitmap names, each of
//!   which its bound member has said in this epoch; a fragment is published once;
//! * PROBE has at most one answer, and asks another rank only for a fragment that something is known of;
//! * no buffer is lost, and none is left when all jobs are unbound.
//!
//! Contributions are made up from job and fragment (see [`sums`](super::sums)), so that the oracle
//! need not remember them. A fragment for which a bound member says anything else is *tainted*: its
//! sums are that member's affair, and are not checked.

use super::dialect::Dialect;
use super::plain::{Ledger, Plain, Sent, Wire, host};
use super::sums;
use frames::enclose;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tally_engine::registry::JobStatus;
use tally_engine::{
    Action, Aggregator, DropReason, JobConfig, Limits, Member, PolicyName, PoolConfig, Registry,
    RegistryConfig, Roster, To,
};
use tally_kernels::Kernels;
use tally_wire::control::DATAGRAM_BYTES;
use tally_wire::frame::UDP_END;
use tally_wire::{
    Accept, AuthTag, Element, Epoch, EpochSecret, Flags, HEADERS_BYTES, Header, JobId, Key, Kind,
    Mac, Rank, Refuse, Time, UdpFrame, switchml,
};

mod forgery;
mod frames;

pub const SWITCH_MAC: Mac = Mac([2, 0x54, 0x41, 0x4c, 0x4c, 0x59]);
pub const SWITCH_IP: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 0, 255, 254);
const BASE_PORT: u16 = 31249;
const SHARDS: u8 = 2;
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
    /// Somebody bound has spoken of fragments far apart, so the ring may have forgotten.
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
    /// PROBEs that went on to a PS.
    pub probes_to_ps: u64,
    /// Frames of bound members with a wrong tag.
    pub forged: u64,
    /// Epochs that ran.
    pub binds: u64,
    /// Sums sent to SwitchML's clients.
    pub replies: u64,
}

struct World {
    registry: Registry,
    shards: Vec<Aggregator<Plain>>,
    ledger: Ledger,
    wire: Wire,
    now: Time,
    secret: u8,
    peers: Vec<Peer>,
    bound: [Bound; 2],
    recorded: Vec<(Member, Vec<u8>)>,
    /// Frames with tags, from home.
    tagged: Vec<(usize, Header)>,
    dialect: Dialect,
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
    };
    let jobs = (0..2).map(|place| JobConfig {
        id: job_id(place),
        key: key(place),
        workers: WORKERS[place],
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
        assert_eq!(world.ledger.lost(), 0, "a buffer disappeared");
    }
    world.unbind_all();
    assert_eq!(world.ledger.live(), 0, "buffers left over");
    world.summary
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
            jobs: 2,
            limits: vec![limits; 2],
            policy,
        };
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
            shards: (0..SHARDS)
                .map(|shard| Aggregator::new(config(shard), Kernels::best()))
                .collect(),
            ledger: Ledger::default(),
            wire: Wire::default(),
            now: Time(1_000_000_000),
            secret: 1,
            peers,
            bound: Default::default(),
            recorded: Vec::new(),
            tagged: Vec::new(),
            dialect: Dialect::new(layout),
            summary: Summary::default(),
        };
        if layout < 0xc0 {
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
            for (from, frame) in self.dialect.operation(script) {
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
                self.dispatch(host(77), &frame);
            }
            23 => {
                let n = script.below(140);
                let frame = script.bytes(n).to_vec();
                self.dispatch(host(77), &frame);
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
                        host(77)
                    } else {
                        from
                    };
                    self.dispatch(from, &frame);
                }
            }
            29 => {
                let ms = u64::from(script.byte()) * 30;
                let end = self.now.after(Duration::from_millis(ms));
                // Half of the time the switch stands still for as long.
                let stands_still = script.byte() & 1 == 0;
                let due = |registry: &Registry| registry.poll_timeout().filter(|&at| at <= end);
                while !stands_still && let Some(at) = due(&self.registry) {
                    self.now = at;
                    let actions = self.registry.handle_timeout(at);
                    self.carry_out(actions);
                }
                self.now = end;
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
                    assert_eq!(self.ledger.live(), 0);
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

    // --- The dispatch, as the switch does it. ---

    fn dispatch(&mut self, from: Member, frame: &[u8]) {
        self.summary.frames += 1;
        let drops = self.drops();
        let effect = self.classify(from, frame);
        let dropped = self.drops() - drops;
        assert!(dropped <= 1, "counted {dropped} times");
        assert_eq!(dropped == 0, effect, "an effect or a counter, never both");
        self.summary.drops += dropped;
    }

    fn drops(&self) -> u64 {
        let all = self
            .shards
            .iter()
            .map(|s| s.counters().drops.iter().sum::<u64>());
        all.sum::<u64>() + self.dialect.drops()
    }

    fn drop_here(&mut self, reason: impl Into<DropReason>) -> bool {
        self.shards[0].count_drop(reason.into());
        false
    }

    /// Whether the frame had an effect; else it was counted.
    fn classify(&mut self, from: Member, frame: &[u8]) -> bool {
        let udp = match UdpFrame::parse(frame) {
            Ok(udp) => udp,
            Err(error) => return self.drop_here(error),
        };
        let a = udp.addresses;
        if a.src_mac == SWITCH_MAC || a.src_ip == SWITCH_IP {
            return self.drop_here(DropReason::SpoofedSwitch);
        }
        // Each of their workers was told an address of its own.
        if a.dst_ip == SWITCH_IP && switchml::is_port(a.dst_port) {
            let replies = self.dialect.take(from.port, &udp, frame);
            return replies.map(|n| self.summary.replies += n).is_some();
        }
        if a.dst_mac != SWITCH_MAC || a.dst_ip != SWITCH_IP {
            return self.drop_here(DropReason::NotOurs);
        }
        let Some(shard) = a
            .dst_port
            .checked_sub(BASE_PORT)
            .filter(|n| *n < u16::from(SHARDS))
        else {
            return self.drop_here(DropReason::UdpPort);
        };
        let datagram = udp.datagram(frame);
        let header = match Header::parse(datagram) {
            Ok(header) => header,
            Err(error) => return self.drop_here(error),
        };
        let sender = Member {
            port: from.port,
            mac: a.src_mac,
            ip: a.src_ip,
            udp_port: a.src_port,
        };
        if matches!(header.kind, Kind::Join | Kind::Leave) {
            self.membership(sender, &header, datagram);
            return true;
        }
        let payload = &datagram[22..22 + header.payload_bytes()];
        self.shard(usize::from(shard), sender, &header, payload)
    }

    fn membership(&mut self, sender: Member, header: &Header, datagram: &[u8]) {
        let before: Vec<JobStatus> = self.registry.status().collect();
        let actions = self.registry.handle(self.now, sender, header, datagram);
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
                Action::Send(to, datagram) => self.tell(to, &datagram),
                Action::Unbind(id) => self.unbind(id),
                Action::Bind(roster, index) => {
                    self.summary.binds += 1;
                    let place = place_of(roster.job).expect("a configured job");
                    assert_eq!(index, place);
                    let home = |rank| self.peers[self.peer(place, rank)].home;
                    let ranks = (0..WORKERS[place]).map(|r| home(Rank(r)));
                    assert!(
                        roster.workers.iter().copied().eq(ranks),
                        "a thief: {roster:?}"
                    );
                    assert_eq!(roster.ps, home(Rank::PS), "a thief");
                    for shard in &mut self.shards {
                        assert!(shard.bind((*roster).clone(), index, &mut self.wire));
                    }
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
        assert_eq!(self.wire.take(), [], "binding sends nothing");
    }

    /// J-8, as far as a member here needs it.
    fn tell(&mut self, to: Member, datagram: &[u8; DATAGRAM_BYTES]) {
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
        for shard in &mut self.shards {
            shard.unbind(id, &mut self.wire);
        }
        if let Some(place) = place_of(id) {
            self.bound[place] = Bound::default();
        }
    }

    fn unbind_all(&mut self) {
        (0..2).for_each(|place| self.unbind(job_id(place)));
        assert_eq!(self.wire.take(), [], "unbinding sends nothing");
        self.dialect.unbind_all();
        for shard in &self.shards {
            assert_eq!((shard.slots_in_use(), shard.held_in_use()), (0, 0));
        }
    }

    fn shard(&mut self, at: usize, sender: Member, header: &Header, payload: &[u8]) -> bool {
        self.note(at, sender, header, payload);
        let state = |w: &Self| {
            let s = &w.shards[at];
            (s.slots_in_use(), s.held_in_use(), w.ledger.live())
        };
        let counts = |w: &Self| *w.shards[at].counters();
        let (before, state_before) = (counts(self), state(self));
        let buffer = self.ledger.frame(payload);
        self.shards[at].handle(self.now, &sender, header, buffer, &mut self.wire);
        let sent = self.wire.take();
        let shard = &self.shards[at];
        let held: u32 = (0..2).map(|place| shard.slots_of(job_id(place))).sum();
        assert_eq!(held as usize, shard.slots_in_use(), "counted wrong");
        let after = counts(self);
        let effect = !sent.is_empty() || after.contributions > before.contributions;
        if self.is_forged(header) {
            assert!(!effect, "the effect of a wrong tag: {header:?} {sent:?}");
            self.summary.forged += after.dropped(DropReason::AuthTag);
            self.summary.forged -= before.dropped(DropReason::AuthTag);
        }
        if header.kind == Kind::Probe {
            assert!(sent.len() <= 1, "S-7: {sent:?}");
        }
        if !effect {
            assert_eq!(
                state(self),
                state_before,
                "changed by a frame without effect"
            );
        }
        for sent in sent {
            self.check(header, sender, sent);
        }
        effect
    }

    /// Whether its tag is wrong in the epoch of its job that runs.
    fn is_forged(&self, header: &Header) -> bool {
        let bound = place_of(header.job).map(|place| &self.bound[place]);
        let roster = bound.and_then(|bound| bound.roster.as_ref());
        roster.is_some_and(|roster| !roster.secret.verifies(header))
    }

    /// Remembers what a bound member says.
    fn note(&mut self, at: usize, sender: Member, header: &Header, payload: &[u8]) {
        let Some(place) = place_of(header.job) else {
            return;
        };
        let bound = &mut self.bound[place];
        let Some(roster) = &bound.roster else { return };
        let rank = match header.kind {
            Kind::Data => header.rank,
            Kind::Result if roster.secret.verifies(header) => header.rank,
            _ => return,
        };
        let is_bound = match rank {
            Rank::PS => roster.ps == sender,
            Rank(r) => roster.workers.get(usize::from(r)) == Some(&sender),
        };
        let fragment = header.fragment.0;
        let is_here = fragment as usize % usize::from(SHARDS) == at;
        if !is_bound || header.epoch != roster.epoch || !is_here || header.units != roster.units {
            return;
        }
        if fragment >= 1 << 20 {
            bound.wild = true;
        }
        if header.kind == Kind::Data {
            *bound.said.entry(fragment).or_default() |= header.bitmap;
        }
        let sensible = header.element == element_of(fragment)
            && roster.units == 1
            && payload == canonical(header);
        if !sensible {
            bound.tainted.insert(fragment);
        }
    }

    /// Whatever leaves is true.
    fn check(&mut self, cause: &Header, asker: Member, sent: Sent) {
        let (to, header, payload) = match sent {
            Sent::Again(_, port, payload) => {
                assert_eq!(port, asker.port, "to who asked");
                let place = place_of(cause.job).expect("a configured job");
                let bound = &self.bound[place];
                let fragment = cause.fragment.0;
                assert!(bound.published.contains(&fragment), "never published");
                if !bound.tainted.contains(&fragment) {
                    let all = all_of(place);
                    let element = element_of(fragment);
                    let sum = sums::of(cause.job, cause.fragment, element, all);
                    assert_eq!(payload, sum, "from the ring");
                }
                return;
            }
            Sent::To(to, member, header, payload) => (Some((to, member)), header, payload),
            Sent::Group(ports, header, payload, _) => {
                let place = place_of(header.job).expect("a configured job");
                let roster = self.bound[place].roster.as_ref().expect("it runs");
                assert_eq!(ports, roster.ports);
                assert_eq!((header.kind, header.rank), (Kind::Result, Rank::SWITCH));
                (None, header, payload)
            }
        };
        let place = place_of(header.job).expect("a configured job");
        let bound = &mut self.bound[place];
        let roster = bound.roster.as_ref().expect("it runs");
        assert_eq!(header.epoch, roster.epoch);
        match to {
            Some((To::Ps, member)) => {
                assert_eq!(member, roster.ps);
                if header.kind == Kind::Probe {
                    let tag = AuthTag::NONE;
                    assert_eq!(header, Header { tag, ..*cause }, "as it came");
                    self.summary.probes_to_ps += 1;
                }
            }
            Some((To::Worker(rank), member)) => {
                assert_eq!((header.kind, header.rank), (Kind::Nack, rank));
                self.summary.nacks += 1;
                assert_eq!(Some(&member), roster.workers.get(usize::from(rank.0)));
                assert_eq!(header.fragment, cause.fragment);
                // S-7: others are asked for a fragment that the asker has contributed to.
                let said = bound.said.get(&header.fragment.0).copied().unwrap_or(0);
                let is_of_probe = cause.kind == Kind::Probe;
                assert!(!is_of_probe || rank == cause.rank || said & cause.rank.bit() != 0);
            }
            None => {
                self.summary.results += 1;
                let first = bound.published.insert(header.fragment.0);
                assert!(first || bound.wild, "published twice: {header:?}");
            }
        }
        if !header.kind.has_elements() {
            return;
        }
        assert_eq!(payload.len(), header.payload_bytes());
        let from_ps = cause.kind == Kind::Result && cause.rank == Rank::PS;
        assert_eq!(header.flags.has(Flags::FROM_PS), from_ps);
        if cause.kind != Kind::Result {
            self.summary.partials += u64::from(header.kind == Kind::Partial);
            let said = bound.said.get(&header.fragment.0).copied().unwrap_or(0);
            let ranks = ranks_of(&header);
            assert_eq!(ranks & !said, 0, "no member said that: {header:?}");
            let fits = sums::may_be_one_frame(header.element, ranks, all_of(place));
            assert!(fits, "H-3: {header:?}");
        }
        if !bound.tainted.contains(&header.fragment.0) {
            assert_eq!(payload, canonical(&header), "{header:?}");
        }
    }
}

/// The ranks whose contributions a frame with elements has.
fn ranks_of(header: &Header) -> u64 {
    match (header.kind, place_of(header.job)) {
        (Kind::Result, Some(place)) => all_of(place),
        _ => header.bitmap,
    }
}

/// What the frame of this header ought to carry.
fn canonical(header: &Header) -> Vec<u8> {
    let ranks = ranks_of(header) & 0xfff;
    if header.units == 0 || ranks == 0 || header.element == Element::None {
        return Vec::new();
    }
    sums::of(header.job, header.fragment, header.element, ranks)
}
