//! Section 4 of PROTOCOL.md, requirement by requirement.

use super::job::control_header;
use super::*;
use crate::plain::host;
use proptest::prelude::*;
use tally_wire::control::{LeaveCode, Role, State};
use tally_wire::frame::group_of;
use tally_wire::{Accept, FragmentId, Part, Rank, Refuse};

mod attacks;
mod behind;
mod challenges;
mod changes;
mod events;
mod incarnations;
mod joining;
mod leaving;
mod servers;
mod silence;
mod status;
mod tenants;

const JOB: JobId = JobId(7);
const WORKERS: u8 = 3;
const PS: usize = WORKERS as usize;
const SWITCH: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn key() -> Key {
    Key::new(&[7; 16]).unwrap()
}

fn config() -> RegistryConfig {
    RegistryConfig {
        mac: SWITCH,
        base_port: 31249,
        shards: 2,
        window: 64,
        units: 16,
        member_timeout: ms(5000),
        secret: [1; 32],
        fabric: None,
    }
}

fn registry(config: RegistryConfig) -> Registry {
    let job = |id, key| JobConfig {
        id,
        key,
        workers: WORKERS,
        previous_key: None,
        servers: 1,
        tree: None,
    };
    let jobs = vec![job(JOB, key()), job(JobId(8), Key::new(&[8; 16]).unwrap())];
    Registry::new(config, jobs)
}

/// A member's process, as far as it talks to the registry.
#[derive(Clone, Debug)]
struct Peer {
    key: Key,
    job: JobId,
    member: Member,
    rank: Rank,
    epoch: Epoch,
    join: Join,
    /// All that it was told, oldest first.
    heard: Vec<Heard>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Accept(Epoch, Accept),
    Refuse(Refuse),
}

impl Heard {
    fn state(self) -> Option<State> {
        match self {
            Self::Accept(_, accept) => Some(accept.state),
            Self::Refuse(_) => None,
        }
    }

    fn reason(self) -> Option<Reason> {
        match self {
            Self::Accept(..) => None,
            Self::Refuse(refuse) => Some(refuse.reason),
        }
    }
}

impl Peer {
    fn worker(rank: u8) -> Self {
        Self {
            key: key(),
            job: JOB,
            member: host(u16::from(rank)),
            rank: Rank(rank),
            epoch: Epoch(0),
            join: Join {
                instance: 0x1000 + u64::from(rank),
                challenge: 0,
                role: Role::Worker,
                workers: WORKERS,
                units: 8,
                running: false,
                window: 32,
                shape: [9; 32],
                sent: None,
                awaiting: 0,
                salt: 0,
                tree: None,
                part: Part::ONLY,
            },
            heard: Vec::new(),
        }
    }

    fn ps() -> Self {
        Self {
            key: key(),
            job: JOB,
            member: host(99),
            rank: Rank::PS,
            epoch: Epoch(0),
            join: Join {
                instance: 0x2000,
                challenge: 0,
                role: Role::Ps,
                workers: 0,
                units: 0,
                running: false,
                window: 0,
                shape: [0; 32],
                sent: None,
                awaiting: 0,
                salt: 0,
                tree: None,
                part: Part::ONLY,
            },
            heard: Vec::new(),
        }
    }

    /// The same process, started anew.
    fn restarted(&self) -> Self {
        let mut new = self.clone();
        new.join.instance += 0x10_0000;
        new.join.challenge = 0;
        new.epoch = Epoch(0);
        new.join.running = false;
        new.join.salt = 0;
        new.join.sent = None;
        new.heard.clear();
        new
    }

    fn sealed(&self, kind: Kind, emit: impl FnOnce(&mut [u8])) -> Datagram {
        let mut datagram = [0xa5; DATAGRAM_BYTES];
        control_header(kind, self.job, self.epoch, self.rank).emit(&mut datagram);
        emit(&mut datagram);
        self.key.seal(&mut datagram);
        datagram
    }

    fn say_join(&self) -> Datagram {
        self.sealed(Kind::Join, |b| self.join.emit(b))
    }

    fn say_leave(&self, code: LeaveCode, fragment: u32) -> Datagram {
        let leave = Leave {
            instance: self.join.instance,
            challenge: self.join.challenge,
            code,
            fragment: FragmentId(fragment),
            behind: 0,
            salt: self.join.salt,
            tree: None,
        };
        self.sealed(Kind::Leave, |b| leave.emit(b))
    }

    fn last(&self) -> Heard {
        *self.heard.last().expect("it heard something")
    }
}

/// A registry, its members and what it asked the shards to do.
struct Net {
    registry: Registry,
    now: Time,
    peers: Vec<Peer>,
    bound: Vec<Roster>,
    unbound: usize,
    /// Jobs of tenants that shards know, with their workers.
    of_tenants: BTreeMap<JobId, u8>,
}

impl Net {
    /// No member has joined. Peers 0..3 are the workers, peer 3 the PS.
    fn new() -> Self {
        let mut peers: Vec<_> = (0..WORKERS).map(Peer::worker).collect();
        peers.push(Peer::ps());
        Self {
            registry: registry(config()),
            now: Time(1_000_000_000),
            peers,
            bound: Vec::new(),
            unbound: 0,
            of_tenants: BTreeMap::new(),
        }
    }

    /// All have joined and the job runs.
    fn running() -> Self {
        let mut net = Self::new();
        for peer in [PS, 0, 1, 2, PS] {
            net.join(peer);
        }
        assert_eq!(net.phase(), JobPhase::Running);
        assert_eq!(net.bound.len(), 1);
        net
    }

    /// What a datagram does, without anybody hearing of it.
    fn raw(&mut self, from: Member, datagram: &[u8]) -> Vec<Action> {
        match Header::parse(datagram) {
            Ok(header) => self.registry.handle(self.now, from, &header, datagram),
            Err(_) => Vec::new(),
        }
    }

    /// Carries actions out: members take what is for them (J-8).
    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Bind(roster) => self.bound.push(*roster),
                Action::Unbind(id) => {
                    let is_known = id == JOB || self.of_tenants.contains_key(&id);
                    assert!(is_known, "{id:?}");
                    self.unbound += 1;
                }
                Action::Create(id, workers) => drop(self.of_tenants.insert(id, workers)),
                Action::Forget(id) => drop(self.of_tenants.remove(&id)),
                Action::Send(to, datagram) => {
                    let header = Header::parse(&*datagram).expect("the switch's own frame");
                    let at = |p: &&Peer| p.member == to && p.job == header.job;
                    let key = self.peers.iter().find(at).map_or(key(), |p| p.key.clone());
                    let heard = read(&header, &datagram, &key);
                    let (instance, challenge) = match heard {
                        Heard::Accept(_, a) => (a.instance, a.challenge),
                        Heard::Refuse(r) => (r.instance, r.challenge),
                    };
                    let ours = |p: &&mut Peer| {
                        p.member == to && p.join.instance == instance && p.job == header.job
                    };
                    if let Some(peer) = self.peers.iter_mut().find(ours) {
                        assert_eq!(header.rank, peer.rank);
                        peer.join.challenge = challenge;
                        if let Heard::Accept(epoch, accept) = heard
                            && accept.state != State::Ended
                        {
                            (peer.epoch, peer.join.salt) = (epoch, accept.salt);
                            let worker = peer.join.role == Role::Worker;
                            peer.join.running |= worker && accept.state == State::Running;
                        }
                        peer.heard.push(heard);
                    }
                }
            }
        }
    }

    fn join_once(&mut self, peer: usize) -> Heard {
        let (from, datagram) = (self.peers[peer].member, self.peers[peer].say_join());
        let actions = self.raw(from, &datagram);
        self.carry_out(actions);
        self.peers[peer].last()
    }

    /// JOIN, said again with the challenge if one is asked for; also by the others, if the roll is
    /// called.
    fn join(&mut self, peer: usize) -> Heard {
        self.join_once(peer);
        self.answer_calls();
        self.peers[peer].last()
    }

    /// Each member that was given a new challenge says JOIN with it.
    fn answer_calls(&mut self) {
        let asked = |p: &Peer| p.heard.last().and_then(|h| h.reason()) == Some(Reason::Challenge);
        while let Some(peer) = self.peers.iter().position(asked) {
            self.join_once(peer);
        }
    }

    fn leave_once(&mut self, peer: usize, code: LeaveCode, fragment: u32) -> Heard {
        let from = self.peers[peer].member;
        let datagram = self.peers[peer].say_leave(code, fragment);
        let actions = self.raw(from, &datagram);
        self.carry_out(actions);
        self.peers[peer].last()
    }

    fn leave(&mut self, peer: usize, code: LeaveCode) -> Heard {
        match self.leave_once(peer, code, 0) {
            heard if heard.reason() == Some(Reason::Challenge) => self.leave_once(peer, code, 0),
            heard => heard,
        }
    }

    /// Time passes; the registry is woken as often as it asks for.
    fn pass(&mut self, d: Duration) {
        let end = self.now.after(d);
        while let Some(at) = self.registry.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            let actions = self.registry.handle_timeout(self.now);
            self.carry_out(actions);
            let next = self.registry.poll_timeout();
            assert!(next.is_none_or(|t| t > self.now), "wakes up for nothing");
        }
        // And once when nothing is due, which must not matter.
        self.now = end;
        let before = self.state();
        assert_eq!(self.registry.handle_timeout(end), []);
        assert_eq!(self.state(), before);
    }

    /// Time passes in which these members show that they live.
    fn pass_alive(&mut self, d: Duration, alive: &[usize]) {
        let end = self.now.after(d);
        while self.now < end {
            self.pass(ms(500).min(end.since(self.now)));
            for &peer in alive {
                self.join(peer);
            }
        }
    }

    /// The switch starts anew and has forgotten everything.
    fn restart_switch(&mut self, secret: u8) {
        self.registry = registry(RegistryConfig {
            secret: [secret; 32],
            ..config()
        });
        self.bound.clear();
        self.unbound = 0;
    }

    fn status(&self) -> JobStatus {
        self.registry.status().next().unwrap()
    }

    fn phase(&self) -> JobPhase {
        self.status().phase
    }

    fn state(&self) -> String {
        format!("{:?}", self.registry.jobs)
    }

    /// That a datagram gets one answer at most and changes nothing.
    fn changes_nothing(&mut self, from: Member, datagram: &[u8]) -> Option<Heard> {
        let before = self.state();
        let actions = self.raw(from, datagram);
        assert_eq!(self.state(), before);
        match &actions[..] {
            [] => None,
            [Action::Send(to, answer)] => {
                assert_eq!(*to, from, "the answer goes to the asker");
                Some(read(&Header::parse(&**answer).unwrap(), answer, &key()))
            }
            more => panic!("more than an answer: {more:?}"),
        }
    }
}

fn read(header: &Header, datagram: &Datagram, key: &Key) -> Heard {
    match header.kind {
        Kind::Accept => {
            assert!(key.verify(datagram), "ACCEPT under the member's key");
            Heard::Accept(header.epoch, Accept::parse(datagram).unwrap())
        }
        Kind::Refuse => {
            let refuse = Refuse::parse(datagram).unwrap();
            if refuse.reason.is_hint() {
                assert_eq!(datagram[DATAGRAM_BYTES - 16..], [0; 16], "hint: zero MAC");
            } else {
                assert!(key.verify(datagram), "REFUSE under the member's key");
            }
            Heard::Refuse(refuse)
        }
        kind => panic!("the registry sends {kind:?}"),
    }
}

fn refusal(heard: Heard) -> Refuse {
    match heard {
        Heard::Refuse(refuse) => refuse,
        Heard::Accept(..) => panic!("accepted: {heard:?}"),
    }
}

fn acceptance(heard: Heard) -> Accept {
    match heard {
        Heard::Accept(_, accept) => accept,
        Heard::Refuse(_) => panic!("refused: {heard:?}"),
    }
}

/// Reason, rank, found, allowed.
type Numbers = (Reason, Option<Rank>, u32, u32);
fn numbers(refuse: Refuse) -> Numbers {
    (refuse.reason, refuse.about, refuse.found, refuse.allowed)
}

// --- Properties. ---

proptest! {
    /// Any datagram without the key: no panic, no change, one answer at most.
    #[test]
    fn unauthenticated_bytes_change_nothing(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        kind in prop_oneof![Just(1u8), Just(4), any::<u8>()],
        exact in any::<bool>(),
        from in 0u16..5,
        rank in prop_oneof![0u8..4, Just(255), any::<u8>()],
        job in prop_oneof![Just(7u16), Just(8), any::<u16>()],
        running in any::<bool>(),
    ) {
        if exact {
            bytes.resize(DATAGRAM_BYTES, 0);
        }
        if bytes.len() >= 22 {
            bytes[0] = 0x20 | (kind & 0xf);
            bytes[1] = 0;
            bytes[3] = 0;
            bytes[4..6].copy_from_slice(&job.to_be_bytes());
            bytes[12] = rank;
            bytes[13] = 2;
            bytes[14..22].fill(0);
        }
        let mut net = if running { Net::running() } else { Net::new() };
        net.changes_nothing(host(from), &bytes);
        // Also with a header that does not belong to the datagram.
        let before = net.state();
        let header = control_header(Kind::Join, JOB, Epoch(41), Rank(0));
        net.registry.handle(net.now, host(from), &header, &bytes);
        prop_assert_eq!(net.state(), before);
    }

    /// Any payload under the right key: no panic, and the status stays in its bounds.
    #[test]
    fn authenticated_nonsense_never_panics(
        payloads in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 61), any::<bool>(), 0u8..5, 0u16..3, any::<bool>(), 0u64..3000),
            1..40,
        ),
    ) {
        let mut net = Net::running();
        for (payload, is_join, rank, epoch, zeros, wait) in payloads {
            let rank = if rank == 4 { Rank::PS } else { Rank(rank) };
            let current = net.registry.jobs[&JOB].incarnation;
            let header = control_header(
                if is_join { Kind::Join } else { Kind::Leave },
                JOB,
                [Epoch(0), current.epoch, Epoch(current.epoch.0 ^ 1)][usize::from(epoch)],
                rank,
            );
            let mut datagram = [0; DATAGRAM_BYTES];
            header.emit(&mut datagram);
            datagram[22..83].copy_from_slice(&payload);
            if zeros {
                datagram[22 + 16..83].fill(0);
                datagram[22 + 16] = payload[16] & 3;
                datagram[22 + 17] = payload[17] & 3;
                datagram[22 + 18] = payload[18] & 15;
                datagram[22 + 21] = payload[19] & 63;
                if is_join && payload[20] & 1 == 1 {
                    datagram[22 + 19] = 1;
                    datagram[22 + 60] = 1;
                    datagram[22 + 56..22 + 60].copy_from_slice(&payload[56..60]);
                }
            }
            if epoch == 1 {
                let at = 22 + if is_join { 64 } else { 32 };
                datagram[at..at + 8].copy_from_slice(&current.salt.to_be_bytes());
            }
            let status = net.status();
            let job = net.registry.jobs.get(&JOB).unwrap();
            let challenge = job.challenge(&config());
            datagram[22 + 8..22 + 16].copy_from_slice(&challenge.to_be_bytes());
            key().seal(&mut datagram);
            let actions = net.raw(host(u16::from(rank.0)), &datagram);
            net.carry_out(actions);
            net.pass(ms(wait));
            let after = net.status();
            prop_assert_eq!(after.left & !after.joined, 0, "{:?} to {:?}", status, after);
            prop_assert!(after.joined < 8);
            if [JobPhase::Running, JobPhase::Paused].contains(&after.phase) {
                prop_assert_eq!(after.joined, 7);
            }
        }
    }
}
