//! Section 4 of PROTOCOL.md, requirement by requirement.

use super::*;
use crate::plain::host;
use proptest::prelude::*;

const JOB: JobId = JobId(7);
const WORKERS: u8 = 3;
const PS: usize = WORKERS as usize;
const FIRST_EPOCH: u16 = 40;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn key() -> Key {
    Key::new(&[7; 16]).unwrap()
}

fn config() -> RegistryConfig {
    RegistryConfig {
        base_port: 31249,
        shards: 2,
        window: 64,
        units: 16,
        member_timeout: ms(5000),
        secret: [1; 32],
        first_epoch: FIRST_EPOCH,
    }
}

fn registry(config: RegistryConfig) -> Registry {
    let job = |id, key| JobConfig {
        id,
        key,
        workers: WORKERS,
    };
    let jobs = vec![job(JOB, key()), job(JobId(8), Key::new(&[8; 16]).unwrap())];
    Registry::new(config, jobs)
}

/// A member's process, as far as it talks to the registry.
#[derive(Clone, Debug)]
struct Peer {
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
            member: host(u16::from(rank)),
            rank: Rank(rank),
            epoch: Epoch(0),
            join: Join {
                instance: 0x1000 + u64::from(rank),
                challenge: 0,
                role: Role::Worker,
                workers: WORKERS,
                units: 8,
                window: 32,
                shape: [9; 32],
            },
            heard: Vec::new(),
        }
    }

    fn ps() -> Self {
        Self {
            member: host(99),
            rank: Rank::PS,
            epoch: Epoch(0),
            join: Join {
                instance: 0x2000,
                challenge: 0,
                role: Role::Ps,
                workers: 0,
                units: 0,
                window: 0,
                shape: [0; 32],
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
        new.heard.clear();
        new
    }

    fn sealed(&self, kind: Kind, emit: impl FnOnce(&mut [u8])) -> Datagram {
        let mut datagram = [0xa5; DATAGRAM_BYTES];
        control_header(kind, JOB, self.epoch, self.rank).emit(&mut datagram);
        emit(&mut datagram);
        key().seal(&mut datagram);
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
}

impl Net {
    /// Nobody has joined. Peers 0..3 are the workers, peer 3 the PS.
    fn new() -> Self {
        let mut peers: Vec<_> = (0..WORKERS).map(Peer::worker).collect();
        peers.push(Peer::ps());
        Self {
            registry: registry(config()),
            now: Time(1_000_000_000),
            peers,
            bound: Vec::new(),
            unbound: 0,
        }
    }

    /// All have joined and the job runs.
    fn running() -> Self {
        let mut net = Self::new();
        for peer in [PS, 0, 1, 2, PS] {
            net.join(peer);
        }
        assert_eq!(net.phase(), "running");
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
                Action::Bind(roster, _) => self.bound.push(*roster),
                Action::Unbind(id) => {
                    assert_eq!(id, JOB);
                    self.unbound += 1;
                }
                Action::Send(to, datagram) => {
                    let header = Header::parse(&*datagram).expect("the switch's own frame");
                    let heard = read(&header, &datagram);
                    let (instance, challenge) = match heard {
                        Heard::Accept(_, a) => (a.instance, a.challenge),
                        Heard::Refuse(r) => (r.instance, r.challenge),
                    };
                    let ours = |p: &&mut Peer| p.member == to && p.join.instance == instance;
                    if let Some(peer) = self.peers.iter_mut().find(ours) {
                        assert_eq!(header.rank, peer.rank);
                        peer.join.challenge = challenge;
                        if let Heard::Accept(epoch, accept) = heard
                            && accept.state != State::Ended
                        {
                            peer.epoch = epoch;
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

    /// JOIN, said again with the challenge if one is asked for.
    fn join(&mut self, peer: usize) -> Heard {
        // Once because it has none, and once more when it finds a place vacated.
        for _ in 0..2 {
            let heard = self.join_once(peer);
            if heard.reason() != Some(Reason::Challenge) {
                return heard;
            }
        }
        self.join_once(peer)
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
    fn restart_switch(&mut self, first_epoch: u16) {
        self.registry = registry(RegistryConfig {
            secret: [2; 32],
            first_epoch,
            ..config()
        });
        self.bound.clear();
        self.unbound = 0;
    }

    fn status(&self) -> JobStatus {
        self.registry.status().next().unwrap()
    }

    fn phase(&self) -> &'static str {
        self.status().phase
    }

    fn state(&self) -> String {
        format!("{:?}", self.registry)
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
                Some(read(&Header::parse(&**answer).unwrap(), answer))
            }
            more => panic!("more than an answer: {more:?}"),
        }
    }
}

fn read(header: &Header, datagram: &Datagram) -> Heard {
    match header.kind {
        Kind::Accept => {
            assert!(key().verify(datagram), "ACCEPT under the job's key");
            Heard::Accept(header.epoch, Accept::parse(datagram).unwrap())
        }
        Kind::Refuse => {
            let refuse = Refuse::parse(datagram).unwrap();
            if refuse.reason.is_hint() {
                assert_eq!(datagram[DATAGRAM_BYTES - 16..], [0; 16], "hint: zero MAC");
            } else {
                assert!(key().verify(datagram), "REFUSE under the job's key");
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

// --- J-1 to J-5: joining. ---

#[test]
fn a_job_forms_and_runs() {
    let mut net = Net::new();
    assert_eq!(net.phase(), "idle");
    let first = refusal(net.join_once(0));
    assert_eq!(first.reason, Reason::Challenge);
    assert_ne!(first.challenge, 0);
    let accept = acceptance(net.join_once(0));
    assert_eq!(accept.instance, 0x1000);
    assert_eq!(accept.state, State::Waiting);
    assert_eq!(
        (
            accept.workers,
            accept.units,
            accept.shards,
            accept.base_port
        ),
        (3, 8, 2, 31249)
    );
    assert_eq!((accept.window, accept.joined, accept.left), (64, 1, 0));
    assert!(!accept.ps);
    assert_eq!(accept.group, group_of(JOB));
    assert_eq!(net.peers[0].epoch, Epoch(FIRST_EPOCH + 1));
    assert_ne!(accept.challenge, first.challenge, "an epoch opened");

    assert_eq!(net.join(2).state(), Some(State::Waiting));
    assert_eq!(net.join(1).state(), Some(State::Waiting));
    assert_eq!(acceptance(net.peers[1].last()).joined, 0b111);
    assert_eq!(net.bound, [], "the PS is missing");
    // It does not know the epoch yet, and is told at once.
    assert_eq!(net.join(PS).state(), Some(State::Waiting));
    assert_eq!(net.join(PS).state(), Some(State::Running));
    assert_eq!(net.phase(), "running");
    for peer in &net.peers {
        assert_eq!(peer.last().state(), Some(State::Running), "told at once");
        assert!(acceptance(peer.last()).ps);
    }
    let members = (0..3).map(host).collect();
    let epoch = Epoch(FIRST_EPOCH + 1);
    assert_eq!(net.bound, [Roster::new(JOB, epoch, 8, members, host(99))]);
}

#[test]
fn a_ps_that_is_there_first_hears_of_the_epoch_when_all_workers_are() {
    let mut net = Net::new();
    assert_eq!(net.join(PS).state(), Some(State::Waiting));
    for worker in 0..3 {
        net.join(worker);
    }
    let Heard::Accept(epoch, accept) = net.peers[PS].last() else {
        panic!()
    };
    assert_eq!(
        (epoch, accept.state),
        (Epoch(FIRST_EPOCH + 1), State::Waiting)
    );
    assert!(!accept.ps, "this epoch it has not joined");
    assert_eq!(
        net.join_once(PS).state(),
        Some(State::Running),
        "with that challenge"
    );
}

#[test]
fn join_is_idempotent() {
    let mut net = Net::running();
    let (status, roster) = (net.status(), net.bound.clone());
    for peer in [0, 1, 2, PS, PS, 2, 0] {
        assert_eq!(net.join(peer).state(), Some(State::Running));
    }
    assert_eq!(net.status(), status);
    assert_eq!(net.bound, roster);
    let heard = net.peers[1].heard.len();
    net.join_once(0);
    assert_eq!(
        net.peers[1].heard.len(),
        heard,
        "only the asker is answered"
    );
}

#[test]
fn every_epoch_is_new() {
    let mut net = Net::running();
    let mut epochs = vec![net.bound[0].epoch];
    for _ in 0..5 {
        for worker in 0..3 {
            net.leave(worker, LeaveCode::Finished);
            net.peers[worker] = net.peers[worker].restarted();
        }
        for peer in [0, 1, 2, PS, PS] {
            net.join(peer);
        }
        let epoch = net.bound.last().unwrap().epoch;
        assert!(!epochs.contains(&epoch) && epoch != Epoch(0));
        epochs.push(epoch);
    }
}

#[test]
fn epoch_zero_is_skipped_at_the_wrap() {
    let mut net = Net::new();
    net.restart_switch(u16::MAX);
    net.join(0);
    assert_eq!(net.peers[0].epoch, Epoch(1));
}

/// An epoch number that members of an ended epoch still use must not come back: they, and the new
/// epoch's members as well, would be told that it has ended.
#[test]
fn an_epoch_that_has_just_ended_is_not_given_again() {
    let mut net = Net::new();
    for worker in 0..3 {
        // The switch had restarted; its counter stands just before.
        net.peers[worker].epoch = Epoch(FIRST_EPOCH + 2);
    }
    for peer in [0, 1, 2, PS, PS] {
        net.join(peer);
    }
    assert_eq!(net.bound[0].epoch, Epoch(FIRST_EPOCH + 2));
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
        net.peers[worker] = net.peers[worker].restarted();
    }
    // One that does not come to pass lies between.
    net.join(0);
    assert_eq!(net.peers[0].epoch, Epoch(FIRST_EPOCH + 1));
    net.pass(ms(5000));
    assert_eq!(net.phase(), "idle");
    net.peers[0] = net.peers[0].restarted();
    net.join(0);
    assert_eq!(net.join(0).state(), Some(State::Waiting), "not: ended");
    assert_eq!(net.peers[0].epoch, Epoch(FIRST_EPOCH + 3));
}

/// A PS that kept an epoch over a restart of the switch has state of it (J-5).
#[test]
fn an_epoch_that_the_ps_remembers_is_not_given_again() {
    let mut net = Net::new();
    net.peers[PS].epoch = Epoch(FIRST_EPOCH + 1);
    for peer in [PS, 0, 1, 2] {
        net.join(peer);
    }
    assert_eq!(net.phase(), "waiting", "it must confirm the new one first");
    net.join(PS);
    assert_eq!(net.phase(), "running");
    assert_eq!(net.bound[0].epoch, Epoch(FIRST_EPOCH + 2));
}

#[test]
fn a_join_of_the_ps_that_was_overtaken_does_not_take_its_confirmation_back() {
    let mut net = Net::new();
    for peer in [0, 1, 2, PS] {
        net.join(peer);
    }
    let mut early = net.peers[PS].clone();
    early.epoch = Epoch(0);
    let early = early.say_join();
    net.join(PS);
    assert_eq!(net.phase(), "running");
    let actions = net.raw(host(99), &early);
    net.carry_out(actions);
    assert!(acceptance(net.join(0)).ps, "it has joined this epoch");
}

// --- J-2: challenges. ---

#[test]
fn without_the_challenge_nothing_happens() {
    let mut net = Net::running();
    for peer in 0..4 {
        for challenge in [0, 1, u64::MAX, net.peers[peer].join.challenge ^ 1] {
            let mut liar = net.peers[peer].clone();
            liar.join.challenge = challenge;
            for datagram in [
                liar.say_join(),
                liar.say_leave(LeaveCode::Finished, 0),
                liar.say_leave(LeaveCode::Failed, 0),
            ] {
                let heard = net.changes_nothing(liar.member, &datagram);
                assert_eq!(heard.and_then(Heard::reason), Some(Reason::Challenge));
            }
        }
    }
}

/// All JOINs and LEAVEs that were ever said, said again, from their own and from other ports.
fn replay(net: &mut Net, recorded: &[(Member, Datagram)], but: &[Reason]) {
    for (from, datagram) in recorded {
        for from in [*from, host(200)] {
            let heard = net.changes_nothing(from, datagram);
            let reason = heard.and_then(Heard::reason);
            assert!(
                reason.is_some_and(|r| r == Reason::Challenge || but.contains(&r)),
                "{heard:?}"
            );
        }
    }
}

#[test]
fn a_recorded_join_is_worth_nothing_after_the_end_of_the_epoch() {
    let ends: [fn(&mut Net); 3] = [
        |net| (0..3).for_each(|w| _ = net.leave(w, LeaveCode::Finished)),
        |net| _ = net.leave(1, LeaveCode::Failed),
        |net| net.pass_alive(ms(5500), &[0, 1, PS]),
    ];
    for end in ends {
        let mut net = Net::running();
        let recorded: Vec<_> = net.peers.iter().map(|p| (p.member, p.say_join())).collect();
        end(&mut net);
        assert_eq!(net.phase(), "idle");
        replay(&mut net, &recorded, &[]);
    }
}

#[test]
fn a_recorded_join_is_worth_nothing_after_a_restart_of_the_switch() {
    let mut net = Net::running();
    let recorded: Vec<_> = net.peers.iter().map(|p| (p.member, p.say_join())).collect();
    net.restart_switch(FIRST_EPOCH);
    replay(&mut net, &recorded, &[]);
    net.join(0);
    replay(&mut net, &recorded, &[]);
}

#[test]
fn a_recorded_join_is_worth_nothing_after_the_ps_has_changed() {
    let mut net = Net::running();
    let recorded: Vec<_> = net.peers.iter().map(|p| (p.member, p.say_join())).collect();
    net.leave(PS, LeaveCode::Interrupted);
    replay(&mut net, &recorded, &[]);
    net.peers[PS] = net.peers[PS].restarted();
    net.join(PS);
    net.join(PS);
    assert_eq!(net.phase(), "running");
    replay(&mut net, &recorded, &[]);
}

#[test]
fn a_recorded_join_from_another_port_does_not_move_a_member() {
    let mut net = Net::running();
    for peer in 0..4 {
        let thieves = [
            host(200),
            Member {
                port: host(200).port,
                ..net.peers[peer].member
            },
            Member {
                udp_port: 1,
                ..net.peers[peer].member
            },
        ];
        for thief in thieves {
            let recorded = net.peers[peer].say_join();
            let heard = net.changes_nothing(thief, &recorded);
            assert_eq!(heard.and_then(Heard::reason), Some(Reason::RankTaken));
            let recorded = net.peers[peer].say_leave(LeaveCode::Failed, 0);
            let before = (net.status(), net.unbound);
            net.raw(thief, &recorded);
            assert_eq!((net.status(), net.unbound), before);
        }
    }
}

/// The thief waits until the member is gone, and comes before anybody else, from a port of its own.
#[test]
fn a_recorded_join_does_not_take_the_place_of_a_ps_that_has_gone() {
    for silent_ms in [1500, 2000, 4999, 5000, 6000] {
        let mut net = Net::running();
        net.join(PS);
        let recorded = net.peers[PS].say_join();
        net.pass_alive(ms(silent_ms), &[0, 1, 2]);
        let actions = net.raw(host(200), &recorded);
        net.carry_out(actions);
        let thief = net.raw(host(200), &recorded);
        net.carry_out(thief);
        assert!(
            net.bound.iter().all(|roster| roster.ps == host(99)),
            "after {silent_ms} ms"
        );
        net.join(PS);
        net.join(PS);
        assert_eq!(net.phase(), "running", "the true one is back");
    }
}

#[test]
fn a_recorded_join_does_not_take_the_place_of_a_worker_that_has_gone() {
    let goes: [fn(&mut Net); 3] = [
        |net| net.pass_alive(ms(1600), &[0]),
        |net| net.pass_alive(ms(5500), &[0]),
        |net| _ = net.leave(1, LeaveCode::Interrupted),
    ];
    for go in goes {
        let mut net = Net::new();
        net.join(0);
        net.join(1);
        let recorded = net.peers[1].say_join();
        go(&mut net);
        for _ in 0..2 {
            let actions = net.raw(host(200), &recorded);
            net.carry_out(actions);
        }
        net.join(2);
        net.join(PS);
        net.join(PS);
        assert_eq!(net.bound, [], "rank 1 is not there");
    }
}

#[test]
fn challenges_differ_between_jobs_turns_and_starts() {
    let mut seen = std::collections::BTreeSet::new();
    for secret in 0..4 {
        let config = RegistryConfig {
            secret: [secret; 32],
            ..config()
        };
        let mut registry = registry(config.clone());
        for job in registry.jobs.values_mut() {
            for turn in 0..50 {
                job.turn = turn;
                assert_ne!(job.challenge(&config), 0);
                assert!(seen.insert(job.challenge(&config)));
            }
        }
    }
}

// --- Refusals. ---

/// What a peer hears that says this, with the right challenge, in the middle of forming.
fn refused(change: impl FnOnce(&mut Peer)) -> (Refuse, Net) {
    let mut net = Net::new();
    net.join(0);
    let mut odd = Peer::worker(1);
    odd.join.challenge = net.peers[0].join.challenge;
    odd.epoch = net.peers[0].epoch;
    change(&mut odd);
    let heard = net.changes_nothing(odd.member, &odd.say_join());
    (refusal(heard.expect("an answer")), net)
}

/// Reason, rank, found, allowed.
type Numbers = (Reason, Option<Rank>, u32, u32);

fn numbers(refuse: Refuse) -> Numbers {
    (refuse.reason, refuse.about, refuse.found, refuse.allowed)
}

#[test]
fn each_reason_has_its_numbers() {
    type Change = fn(&mut Peer);
    type Case = (Change, Numbers);
    let cases: [Case; 10] = [
        (|p| p.rank = Rank(3), (Reason::BadRank, None, 3, 3)),
        (|p| p.rank = Rank(63), (Reason::BadRank, None, 63, 3)),
        (|p| p.rank = Rank::PS, (Reason::BadRank, None, 255, 3)),
        (|p| p.join.workers = 4, (Reason::Workers, None, 4, 3)),
        (|p| p.join.units = 17, (Reason::Payload, None, 17, 16)),
        (|p| p.join.units = 9, (Reason::Payload, Some(Rank(0)), 9, 8)),
        (
            |p| p.join.shape[31] = 1,
            (Reason::Shape, Some(Rank(0)), 0, 0),
        ),
        (
            |p| p.rank = Rank(0),
            (Reason::RankTaken, Some(Rank(0)), 0, 0),
        ),
        (|p| p.epoch.0 += 1, (Reason::StaleEpoch, None, 0, 0)),
        (|p| p.join.window = 65, (Reason::Window, None, 65, 64)),
    ];
    for (change, expected) in cases {
        let (refuse, net) = refused(change);
        assert_eq!(numbers(refuse), expected);
        assert_eq!(refuse.instance, 0x1001, "echoed");
        assert_eq!(refuse.challenge, net.peers[0].join.challenge);
        assert_eq!(net.status().joined, 1);
    }
}

#[test]
fn a_ps_is_refused_for_its_own_reasons() {
    let (refuse, _) = refused(|p| {
        let challenge = p.join.challenge;
        *p = Peer::ps();
        p.join.challenge = challenge;
        p.rank = Rank(2);
    });
    assert_eq!(numbers(refuse), (Reason::BadRank, None, 2, 3));
    let (refuse, _) = refused(|p| {
        let challenge = p.join.challenge;
        *p = Peer::ps();
        p.join.challenge = challenge;
        p.join.workers = 2;
    });
    assert_eq!(numbers(refuse), (Reason::Workers, None, 2, 3));
    // 0 is whatever the switch says, and the right number is right.
    let mut net = Net::new();
    net.peers[PS].join.workers = WORKERS;
    assert_eq!(net.join(PS).state(), Some(State::Waiting));
}

#[test]
fn hints_cannot_be_authenticated_and_change_nothing() {
    let mut net = Net::running();
    for peer in 0..4 {
        for datagram in [
            net.peers[peer].say_join(),
            net.peers[peer].say_leave(LeaveCode::Failed, 0),
        ] {
            let from = net.peers[peer].member;
            for flip in [16, 22, 30, 38, 100, 133, 134, 149] {
                let mut forged = datagram;
                forged[flip] ^= 1;
                let Some(heard) = net.changes_nothing(from, &forged) else {
                    continue; // A header that does not parse is dropped before.
                };
                assert_eq!(heard.reason(), Some(Reason::BadMac));
            }
            let mut elsewhere = datagram;
            elsewhere[4..6].copy_from_slice(&[1, 1]);
            let heard = net.changes_nothing(from, &elsewhere);
            assert_eq!(heard.and_then(Heard::reason), Some(Reason::UnknownJob));
            // Another job's key is no better than none.
            let mut other = datagram;
            other[4..6].copy_from_slice(&[0, 8]);
            key().seal(&mut other);
            let heard = net.changes_nothing(from, &other);
            assert_eq!(heard.and_then(Heard::reason), Some(Reason::BadMac));
        }
    }
}

#[test]
fn a_worker_may_agree_on_what_a_dead_one_of_its_rank_did_not() {
    let mut net = Net::new();
    net.join(0);
    net.peers[0] = net.peers[0].restarted();
    net.peers[0].join.units = 4;
    net.peers[0].join.shape = [5; 32];
    net.pass(ms(100));
    assert_eq!(net.join(0).reason(), Some(Reason::RankTaken), "not final");
    net.pass(ms(1500));
    assert_eq!(net.join(0).state(), Some(State::Waiting));
    assert_eq!(acceptance(net.peers[0].last()).units, 4);
}

// --- Taking over a place. ---

#[test]
fn another_instance_takes_a_workers_place_only_after_silence_and_before_the_job_runs() {
    let mut net = Net::new();
    net.join(0);
    net.join(1);
    net.peers[1] = net.peers[1].restarted();
    net.pass(ms(1499));
    assert_eq!(net.join(0).state(), Some(State::Waiting));
    assert_eq!(net.join(1).reason(), Some(Reason::RankTaken));
    net.pass(ms(1));
    assert_eq!(net.join(1).state(), Some(State::Waiting));
    for peer in [2, PS, 0, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), "running");

    net.peers[1] = net.peers[1].restarted();
    net.pass_alive(ms(4900), &[0, 2, PS]);
    assert_eq!(net.join(1).reason(), Some(Reason::RankTaken));
    assert_eq!(net.phase(), "running");
    net.pass_alive(ms(500), &[0, 2, PS]);
    assert_eq!(net.phase(), "idle", "lost");
    assert_eq!(net.join(1).state(), Some(State::Waiting), "the next epoch");
}

#[test]
fn another_ps_takes_the_place_after_silence_also_in_a_running_job() {
    let mut net = Net::running();
    let epoch = net.bound[0].epoch;
    net.peers[PS] = net.peers[PS].restarted();
    net.peers[PS].member = host(98);
    net.pass_alive(ms(1499), &[]);
    assert_eq!(net.join(PS).reason(), Some(Reason::RankTaken));
    net.pass(ms(1));
    net.join(PS);
    assert_eq!(net.phase(), "paused", "it does not know the epoch yet");
    assert_eq!(net.join(0).state(), Some(State::Waiting));
    net.join(PS);
    assert_eq!(net.phase(), "running");
    assert_eq!(net.unbound, 0, "what the shards hold stays");
    assert_eq!(net.bound.len(), 2);
    assert_eq!((net.bound[1].epoch, net.bound[1].ps), (epoch, host(98)));
    assert_eq!(net.bound[1].workers, net.bound[0].workers);
    for peer in &net.peers {
        assert_eq!(peer.last().state(), Some(State::Running));
    }
}

#[test]
fn whoever_takes_the_place_of_one_that_left_has_not_left() {
    let mut net = Net::running();
    let epoch = net.peers[0].epoch;
    net.restart_switch(900);
    net.join(0);
    net.leave(1, LeaveCode::Finished);
    assert_eq!(net.status().left, 0b010);
    net.peers[1] = net.peers[1].restarted();
    net.pass_alive(ms(1600), &[0]);
    assert_eq!(net.join(1).state(), Some(State::Waiting));
    assert_eq!((net.status().epoch, net.status().joined), (epoch, 0b011));
    assert_eq!(net.status().left, 0);
}

// --- J-6: silence and failure. ---

#[test]
fn a_silent_worker_ends_the_job_for_all() {
    let mut net = Net::running();
    net.pass_alive(ms(4999), &[0, 2, PS]);
    assert_eq!(net.phase(), "running");
    net.pass(ms(1));
    for peer in [0, 2, PS] {
        let refuse = refusal(net.peers[peer].last());
        assert_eq!(
            (refuse.reason, refuse.about, refuse.allowed),
            (Reason::MemberLost, Some(Rank(1)), 5000)
        );
        assert!(refuse.found >= 5000);
    }
    assert_eq!((net.phase(), net.unbound), ("idle", 1));
    assert!(net.status().ps, "and serves on");
    // The lost one comes back and hears the same.
    let refuse = refusal(net.join(1));
    assert_eq!(
        (refuse.reason, refuse.about),
        (Reason::MemberLost, Some(Rank(1)))
    );
    assert_eq!(
        net.join(0).reason(),
        Some(Reason::MemberLost),
        "asked again"
    );
}

#[test]
fn a_silent_worker_is_forgotten_while_the_job_forms() {
    let mut net = Net::new();
    net.join(0);
    net.pass(ms(1000));
    net.join(1);
    net.pass(ms(4000));
    assert_eq!(net.status().joined, 0b010);
    net.pass(ms(1000));
    assert_eq!((net.phase(), net.status().joined), ("idle", 0));
    assert_eq!((net.unbound, net.registry.poll_timeout()), (0, None));
}

#[test]
fn the_loss_of_the_ps_pauses_the_job_until_it_is_back() {
    let mut net = Net::running();
    net.pass_alive(ms(5500), &[0, 1, 2]);
    assert_eq!((net.phase(), net.unbound), ("paused", 0));
    assert_eq!(net.peers[0].last().state(), Some(State::Waiting));
    assert!(!acceptance(net.peers[0].last()).ps);
    net.pass_alive(ms(20_000), &[0, 1, 2]);
    assert_eq!(net.phase(), "paused");
    // The same process, which was only cut off.
    assert_eq!(net.join(PS).state(), Some(State::Running));
    assert_eq!(net.bound.len(), 2);
    assert_eq!(net.bound[0], net.bound[1]);
}

#[test]
fn a_worker_that_is_lost_while_the_ps_is_away_ends_the_job_too() {
    let mut net = Net::running();
    net.leave(PS, LeaveCode::Finished);
    assert_eq!(net.phase(), "paused");
    net.pass_alive(ms(5500), &[0, 1]);
    assert_eq!((net.phase(), net.unbound), ("idle", 1));
    assert_eq!(net.peers[0].last().reason(), Some(Reason::MemberLost));
}

#[test]
fn a_failing_worker_ends_the_job_and_everybody_hears_how() {
    let codes = [
        LeaveCode::Failed,
        LeaveCode::Overflow,
        LeaveCode::Interrupted,
    ];
    for code in codes {
        let mut net = Net::running();
        let fragment = if code == LeaveCode::Overflow { 77 } else { 0 };
        let heard = net.leave_once(1, code, fragment);
        assert_eq!(heard.state(), Some(State::Ended));
        for peer in [0, 2, PS] {
            let expected = (Reason::MemberFailed, Some(Rank(1)), code as u32, fragment);
            assert_eq!(numbers(refusal(net.peers[peer].last())), expected);
        }
        assert_eq!((net.phase(), net.unbound), ("idle", 1));
        // The news was lost: it is told again to JOIN, LEAVE, and to LEAVE under the old challenge.
        for (peer, refresh) in [(0, true), (2, true), (0, false), (1, false)] {
            let old = net.peers[peer].clone();
            if refresh {
                assert_eq!(net.join(peer).reason(), Some(Reason::MemberFailed));
            }
            let heard = net.leave(peer, LeaveCode::Finished);
            assert_eq!(
                heard.reason(),
                Some(Reason::MemberFailed),
                "{peer} {refresh}"
            );
            net.peers[peer] = old;
        }
        assert_eq!(net.unbound, 1);
    }
}

#[test]
fn leaving_while_the_job_forms_only_frees_the_place() {
    let mut net = Net::new();
    net.join(0);
    net.join(1);
    assert_eq!(
        net.leave(1, LeaveCode::Interrupted).state(),
        Some(State::Ended)
    );
    assert_eq!((net.phase(), net.status().joined), ("waiting", 0b001));
    assert_eq!(
        net.leave(1, LeaveCode::Interrupted).state(),
        Some(State::Ended),
        "again"
    );
    assert_eq!((net.phase(), net.status().joined), ("waiting", 0b001));
    assert_eq!(net.leave(0, LeaveCode::Failed).state(), Some(State::Ended));
    assert_eq!((net.phase(), net.unbound), ("idle", 0));
    assert_eq!(
        net.peers[1]
            .heard
            .iter()
            .filter(|h| h.reason() == Some(Reason::MemberFailed))
            .count(),
        0
    );
}

// --- J-7: leaving. ---

#[test]
fn a_job_ends_when_all_workers_have_left() {
    let mut net = Net::running();
    assert_eq!(
        net.leave(0, LeaveCode::Finished).state(),
        Some(State::Running)
    );
    assert_eq!(acceptance(net.peers[0].last()).left, 0b001);
    assert_eq!(
        net.leave(0, LeaveCode::Finished).state(),
        Some(State::Running),
        "again"
    );
    assert_eq!(
        net.leave(2, LeaveCode::Finished).state(),
        Some(State::Running)
    );
    assert_eq!(net.unbound, 0);
    assert_eq!(
        net.leave(1, LeaveCode::Finished).state(),
        Some(State::Ended)
    );
    for peer in &net.peers {
        assert_eq!(peer.last().state(), Some(State::Ended), "told at once");
    }
    assert_eq!((net.phase(), net.unbound), ("idle", 1));
    assert!(net.status().ps, "the PS stays");
}

#[test]
fn the_end_is_told_again_to_who_missed_it() {
    let mut net = Net::running();
    let old = net.peers.clone();
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
    }
    for (worker, old) in (0..3).zip(old) {
        // LEAVE with the old epoch's challenge, LEAVE with the new one, JOIN.
        let heard = net.changes_nothing(old.member, &old.say_leave(LeaveCode::Finished, 0));
        assert_eq!(heard.and_then(Heard::state), Some(State::Ended));
        assert_eq!(
            net.leave(worker, LeaveCode::Finished).state(),
            Some(State::Ended)
        );
        net.peers[worker] = old;
        assert_eq!(net.join(worker).state(), Some(State::Ended));
        assert_eq!(
            net.leave(worker, LeaveCode::Finished).state(),
            Some(State::Ended)
        );
    }
    assert_eq!((net.phase(), net.unbound), ("idle", 1));
}

/// A worker takes only what is of its own epoch.
#[test]
fn the_end_is_told_with_the_number_of_what_ended() {
    let mut net = Net::running();
    let old = net.peers[0].clone();
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
        net.peers[worker] = net.peers[worker].restarted();
    }
    net.join(1);
    assert_ne!(net.peers[1].epoch, old.epoch);
    let heard = net.changes_nothing(old.member, &old.say_leave(LeaveCode::Finished, 0));
    let Some(Heard::Accept(epoch, accept)) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!((epoch, accept.state), (old.epoch, State::Ended));
}

#[test]
fn the_silence_of_one_that_left_is_no_loss() {
    let mut net = Net::running();
    net.leave(1, LeaveCode::Finished);
    net.pass_alive(ms(30_000), &[0, 2, PS]);
    assert_eq!(net.phase(), "running");
    net.leave(0, LeaveCode::Finished);
    net.leave(2, LeaveCode::Finished);
    assert_eq!(net.phase(), "idle");
}

#[test]
fn the_ps_may_leave_and_another_come() {
    let mut net = Net::running();
    assert_eq!(
        net.leave(PS, LeaveCode::Finished).state(),
        Some(State::Ended)
    );
    assert_eq!(net.phase(), "paused");
    net.peers[PS] = net.peers[PS].restarted();
    net.join(PS);
    net.join(PS);
    assert_eq!(net.phase(), "running");
}

#[test]
fn the_ps_may_leave_an_ended_job() {
    let mut net = Net::running();
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
    }
    assert_eq!(
        net.leave(PS, LeaveCode::Finished).state(),
        Some(State::Ended)
    );
    assert!(!net.status().ps);
}

#[test]
fn a_leave_of_no_member_is_refused_and_does_nothing() {
    let mut net = Net::running();
    let challenge = net.peers[0].join.challenge;
    let mut stranger = Peer::worker(1).restarted();
    stranger.join.challenge = challenge;
    stranger.epoch = net.peers[0].epoch;
    for code in [LeaveCode::Finished, LeaveCode::Failed] {
        let heard = net.changes_nothing(stranger.member, &stranger.say_leave(code, 0));
        assert_eq!(heard.and_then(Heard::reason), Some(Reason::StaleEpoch));
    }
    stranger.rank = Rank(3);
    let heard = net.changes_nothing(stranger.member, &stranger.say_leave(LeaveCode::Failed, 0));
    assert_eq!(
        numbers(refusal(heard.unwrap())),
        (Reason::BadRank, None, 3, 3)
    );
    let mut stale = net.peers[1].clone();
    stale.join.challenge = challenge;
    stale.epoch = Epoch(1);
    let heard = net.changes_nothing(stale.member, &stale.say_leave(LeaveCode::Failed, 0));
    assert_eq!(heard.and_then(Heard::reason), Some(Reason::StaleEpoch));
    // Nor does another PS's.
    let mut other_ps = Peer::ps().restarted();
    other_ps.join.challenge = challenge;
    net.changes_nothing(other_ps.member, &other_ps.say_leave(LeaveCode::Finished, 0));
}

// --- J-4: restart of the switch. ---

#[test]
fn after_a_restart_the_members_epoch_is_taken_over() {
    let mut net = Net::running();
    let roster = net.bound[0].clone();
    net.restart_switch(900);
    for peer in [2, PS, 1, 0] {
        assert!(net.join(peer).state().is_some());
    }
    assert_eq!(net.phase(), "running");
    assert_eq!(net.bound, [roster], "the same epoch, the same addresses");
    for peer in &net.peers {
        assert_eq!(peer.last().state(), Some(State::Running));
    }
}

#[test]
fn after_a_restart_one_that_lingers_takes_its_place_too() {
    for order in [[0, 1, 2, PS], [PS, 2, 1, 0], [1, 0, PS, 2], [1, 2, 0, PS]] {
        let mut net = Net::running();
        net.leave(1, LeaveCode::Finished);
        let roster = net.bound[0].clone();
        net.restart_switch(900);
        for peer in order {
            let heard = if peer == 1 {
                net.leave(1, LeaveCode::Finished)
            } else {
                net.join(peer)
            };
            assert!(heard.state().is_some(), "{order:?}: {heard:?}");
        }
        assert_eq!((net.phase(), net.status().left), ("running", 0b010));
        assert_eq!(net.bound, [roster]);
        net.leave(0, LeaveCode::Finished);
        assert_eq!(
            net.leave(2, LeaveCode::Finished).state(),
            Some(State::Ended)
        );
    }
}

#[test]
fn after_a_restart_all_may_be_lingering() {
    let mut net = Net::running();
    net.restart_switch(900);
    for worker in [2, 0] {
        let heard = net.leave(worker, LeaveCode::Finished);
        assert_eq!(heard.state(), Some(State::Waiting));
    }
    assert_eq!(
        net.leave(1, LeaveCode::Finished).state(),
        Some(State::Ended)
    );
    assert_eq!(net.phase(), "idle");
}

#[test]
fn one_that_lingers_alone_does_not_keep_the_job_open() {
    let mut net = Net::running();
    net.restart_switch(900);
    net.leave(1, LeaveCode::Finished);
    assert_eq!(net.phase(), "waiting");
    net.pass(ms(5000));
    assert_eq!((net.phase(), net.registry.poll_timeout()), ("idle", None));
}

#[test]
fn a_failing_worker_after_a_restart_leaves_an_idle_job_alone() {
    let mut net = Net::running();
    net.restart_switch(900);
    let heard = net.leave(1, LeaveCode::Failed);
    assert_eq!(heard.reason(), Some(Reason::StaleEpoch));
    assert_eq!(net.phase(), "idle");
}

/// One that slept through the end of its epoch, and of the next: its contributions belong to another
/// run of the job. Only a switch that has given no epoch yet takes one from a member.
#[test]
fn an_epoch_from_before_the_last_is_stale_also_while_the_job_is_idle() {
    let mut net = Net::running();
    let sleeper = net.peers[1].clone();
    for _ in 0..2 {
        net.leave(0, LeaveCode::Failed);
        for peer in 0..3 {
            net.peers[peer] = net.peers[peer].restarted();
        }
        for peer in [0, 1, 2, PS, PS] {
            net.join(peer);
        }
    }
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
    }
    assert_eq!(net.phase(), "idle");
    for _ in 0..2 {
        net.peers[1] = sleeper.clone();
        assert_eq!(net.join(1).reason(), Some(Reason::StaleEpoch));
        assert_eq!(
            net.leave(1, LeaveCode::Finished).reason(),
            Some(Reason::StaleEpoch)
        );
        assert_eq!(net.status().joined, 0);
        // Nor after one that did not come to pass.
        net.peers[0] = net.peers[0].restarted();
        net.join(0);
        net.leave(0, LeaveCode::Interrupted);
        assert_eq!(net.phase(), "idle");
    }
}

#[test]
fn a_restart_while_the_job_forms_keeps_the_epoch_of_who_had_one() {
    let mut net = Net::new();
    net.join(0);
    let epoch = net.peers[0].epoch;
    net.restart_switch(900);
    for peer in [0, 1, 2, PS, PS] {
        net.join(peer);
    }
    assert_eq!(net.bound[0].epoch, epoch);
}

// --- Jobs with fixed members. ---

#[test]
fn a_job_with_fixed_members_runs_for_ever() {
    let mut net = Net::new();
    let members: Vec<_> = (0..3).map(host).collect();
    let action = net.registry.fix_members(JOB, 8, members.clone(), host(99));
    let roster = Roster::new(JOB, Epoch(1), 8, members, host(99));
    assert_eq!(action, Action::Bind(Box::new(roster), 0));
    assert_eq!((net.phase(), net.status().joined), ("running", 0b111));
    for peer in 0..4 {
        assert_eq!(net.join(peer).reason(), Some(Reason::RankTaken));
        for epoch in [0, 1] {
            net.peers[peer].epoch = Epoch(epoch);
            for code in [LeaveCode::Finished, LeaveCode::Failed] {
                assert_eq!(net.leave(peer, code).reason(), Some(Reason::RankTaken));
            }
        }
    }
    net.pass(ms(60_000));
    assert_eq!((net.phase(), net.unbound), ("running", 0));
    assert_eq!(net.registry.poll_timeout(), None);
}

// --- Properties. ---

proptest! {
    /// Whatever comes without the key: no panic, no change, one answer at most.
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
            bytes[0] = 0x10 | (kind & 0xf);
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
            (proptest::collection::vec(any::<u8>(), 56), any::<bool>(), 0u8..5, 0u16..3, any::<bool>(), 0u64..3000),
            1..40,
        ),
    ) {
        let mut net = Net::running();
        for (payload, is_join, rank, epoch, zeros, wait) in payloads {
            let rank = if rank == 4 { Rank::PS } else { Rank(rank) };
            let header = control_header(
                if is_join { Kind::Join } else { Kind::Leave },
                JOB,
                Epoch(if epoch == 0 { 0 } else { 40 + epoch }),
                rank,
            );
            let mut datagram = [0; DATAGRAM_BYTES];
            header.emit(&mut datagram);
            datagram[22..78].copy_from_slice(&payload);
            if zeros {
                datagram[22 + 16..78].fill(0);
                datagram[22 + 16] = payload[16] & 3;
                datagram[22 + 17] = payload[17] & 3;
                datagram[22 + 18] = payload[18] & 15;
                datagram[22 + 21] = payload[19] & 63;
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
            if ["running", "paused"].contains(&after.phase) {
                prop_assert_eq!(after.joined, 7);
            }
        }
    }
}
