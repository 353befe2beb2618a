//! Section 6 of PROTOCOL.md, row by row, for each policy.

use super::*;
use crate::buffer::To;
use crate::native::policy::Completion;
use crate::native::pool::{Limits, PolicyName, PoolJob};
use crate::plain::{Ledger, Plain, Sent, Wire, host, secret};
use crate::roster::PortId;
use tally_wire::{AuthTag, Element, Epoch, Flags};

mod abandoned;
mod admission;
mod combining;
mod congestion;
mod hand_over;
mod limits;
mod none;
mod probe;
mod ps;
mod resend;
mod sets;
mod slots;
mod tags;
mod tree;
mod turns;

const JOB: JobId = JobId(7);
const OTHER: JobId = JobId(8);
const EPOCH: Epoch = Epoch(3);
const UNITS: u8 = 1;
const POLICIES: [PolicyName; 3] = [PolicyName::Esa, PolicyName::Fcfs, PolicyName::Static];

/// Jobs 7 and 8 with these limits.
fn jobs(limits: [Limits; 2]) -> Vec<PoolJob> {
    let jobs = [JOB, OTHER].into_iter().zip(limits);
    jobs.map(|(id, limits)| PoolJob { id, limits }).collect()
}

/// One shard for two jobs without limits. Tests say what they want otherwise.
fn pool() -> PoolConfig {
    PoolConfig {
        slots: 8,
        ways: 1,
        held: 16,
        window: 4,
        shards: 1,
        shard: 0,
        jobs: jobs([Limits::NONE; 2]),
        policy: PolicyName::Esa,
        places: 0,
    }
}

/// A shard with its way out. Dropped: every buffer must be accounted for.
struct World {
    shard: Aggregator<Plain>,
    wire: Wire,
    ledger: Ledger,
    now: Time,
}

impl World {
    fn with(config: PoolConfig) -> Self {
        Self {
            shard: Aggregator::new(config, Kernels::best()),
            wire: Wire::default(),
            ledger: Ledger::default(),
            now: Time(1000),
        }
    }

    /// A pool of `slots`, with job 7 of 3 workers (hosts 0..) and job 8 of 2 (hosts 10..) bound.
    fn new(policy: PolicyName, slots: u32) -> Self {
        Self::of_ways(policy, slots, 1, [Limits::NONE; 2])
    }

    /// As `new`, in sets, and with limits for jobs 7 and 8.
    fn of_ways(policy: PolicyName, slots: u32, ways: u32, limits: [Limits; 2]) -> Self {
        Self::of_window(policy, slots, ways, 4, limits)
    }

    fn of_window(
        policy: PolicyName,
        slots: u32,
        ways: u32,
        window: u16,
        limits: [Limits; 2],
    ) -> Self {
        let mut world = Self::with(PoolConfig {
            slots,
            ways,
            window,
            jobs: jobs(limits),
            policy,
            ..pool()
        });
        world.bind(roster(JOB, 3, 0));
        world.bind(roster(OTHER, 2, 10));
        world
    }

    fn bind(&mut self, roster: Roster) {
        assert!(self.shard.bind(roster, &mut self.wire));
    }

    /// Hands in one frame with its tag; what left since. Tags of what leaves are checked on the
    /// way.
    fn handle(&mut self, from: Member, header: Header, payload: &[u8]) -> Vec<Sent> {
        let header = secret(header.job, header.epoch).seal(header);
        self.handle_as_is(from, header, payload)
    }

    /// As `handle`, with the tag that the header has.
    fn handle_as_is(&mut self, from: Member, header: Header, payload: &[u8]) -> Vec<Sent> {
        assert_eq!(header.check(), Ok(()), "the test's own frame: {header:?}");
        let payload = if header.units == 0 { &[] } else { payload };
        let buffer = self.ledger.frame(payload);
        self.shard
            .handle(self.now, &from, &header, buffer, &mut self.wire);
        for job in [JOB, OTHER] {
            let held = self.shard.holders().filter(|holder| *holder == job);
            assert_eq!(self.shard.slots_of(job) as usize, held.count());
        }
        self.wire.take()
    }

    /// DATA of a worker of job 7.
    fn data(&mut self, fragment: u32, rank: u8, value: i32) -> Vec<Sent> {
        self.say(data(fragment, rank), value)
    }

    /// RESEND of a worker of job 7.
    fn resend(&mut self, fragment: u32, rank: u8, value: i32) -> Vec<Sent> {
        self.say(resend(fragment, rank), value)
    }

    /// PROBE of a worker of job 7.
    fn probe(&mut self, fragment: u32, rank: u8) -> Vec<Sent> {
        self.say(probe(fragment, rank), 0)
    }

    /// A frame of i32 from the host that its header names.
    fn say(&mut self, header: Header, value: i32) -> Vec<Sent> {
        self.handle(host(host_of(&header)), header, &ints(value))
    }

    fn dropped(&mut self, reason: DropReason, act: impl FnOnce(&mut Self) -> Vec<Sent>) {
        let before = *self.shard.counters();
        let (slots, held) = (self.shard.slots_in_use(), self.shard.held_in_use());
        let live = self.ledger.live();
        let sent = act(self);
        assert_eq!(sent, [], "{reason:?}");
        let mut expected = before;
        expected.drops[reason] += 1;
        assert_eq!(
            *self.shard.counters(),
            expected,
            "{reason:?} and nothing else"
        );
        assert_eq!(self.shard.slots_in_use(), slots);
        assert_eq!(self.shard.held_in_use(), held);
        assert_eq!(self.ledger.live(), live, "given back");
    }

    fn taken(&self) -> usize {
        self.shard.slots_in_use()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for job in [JOB, OTHER] {
            self.shard.unbind(job, &mut self.wire);
        }
        assert_eq!(self.wire.sent, [], "unbinding sends nothing");
        assert_eq!(self.taken(), 0, "slots free after unbind");
        assert_eq!(self.shard.held_in_use(), 0, "nothing held after unbind");
        assert_eq!(self.ledger.live(), 0, "buffers still in the engine");
        assert_eq!(self.ledger.lost(), 0, "buffers that disappeared");
    }
}

fn roster(job: JobId, workers: u16, first_host: u16) -> Roster {
    let members = (first_host..first_host + workers).map(host).collect();
    of_epoch(EPOCH, job, members, host(first_host + 9))
}

fn of_epoch(epoch: Epoch, job: JobId, workers: Vec<Member>, ps: Member) -> Roster {
    Roster::new(job, epoch, secret(job, epoch), UNITS, workers, ps)
}

/// The next epoch of job 7.
fn next_epoch(workers: u16) -> Roster {
    of_epoch(Epoch(4), JOB, (0..workers).map(host).collect(), host(9))
}

fn host_of(header: &Header) -> u16 {
    let first = if header.job == JOB { 0 } else { 10 };
    let ps = matches!(header.kind, Kind::Remind | Kind::Nack);
    if ps || header.rank == Rank::PS {
        first + 9
    } else {
        first + u16::from(header.rank.0)
    }
}

fn data(fragment: u32, rank: u8) -> Header {
    Header {
        kind: Kind::Data,
        flags: Flags::NONE,
        priority: 10,
        element: Element::I32,
        job: JOB,
        epoch: EPOCH,
        fragment: FragmentId(fragment),
        rank: Rank(rank),
        units: UNITS,
        bitmap: 1 << rank,
        tag: AuthTag::NONE,
    }
}

fn resend(fragment: u32, rank: u8) -> Header {
    Header {
        flags: Flags::RESEND,
        ..data(fragment, rank)
    }
}

fn other(fragment: u32, rank: u8, priority: u8) -> Header {
    Header {
        job: OTHER,
        priority,
        ..data(fragment, rank)
    }
}

fn ps(kind: Kind, fragment: u32) -> Header {
    Header {
        kind,
        element: Element::None,
        units: 0,
        bitmap: 0,
        tag: AuthTag::NONE,
        rank: Rank::PS,
        ..data(fragment, 0)
    }
}

fn nack(fragment: u32, rank: u8) -> Header {
    Header {
        rank: Rank(rank),
        ..ps(Kind::Nack, fragment)
    }
}

fn probe(fragment: u32, rank: u8) -> Header {
    Header {
        rank: Rank(rank),
        ..ps(Kind::Probe, fragment)
    }
}

/// NACK to a worker of job 7.
fn nacked(fragment: u32, rank: u8) -> Sent {
    let (to, member) = (To::Worker(Rank(rank)), host(u16::from(rank)));
    Sent::To(to, member, nack(fragment, rank), Vec::new())
}

fn result_of(rank: Rank, fragment: u32) -> Header {
    Header {
        kind: Kind::Result,
        rank,
        bitmap: 0,
        ..data(fragment, 0)
    }
}

fn ints(value: i32) -> Vec<u8> {
    value.to_be_bytes().repeat(16)
}

fn floats(value: f32) -> Vec<u8> {
    value.to_le_bytes().repeat(16)
}

/// PARTIAL to the PS of job 7.
fn partial(fragment: u32, bitmap: u64, value: i32) -> Sent {
    partial_of(data(fragment, 0), bitmap, ints(value))
}

/// PARTIAL to the PS of the frame's own job.
fn partial_of(header: Header, bitmap: u64, payload: Vec<u8>) -> Sent {
    let first = if header.job == JOB { 0 } else { 10 };
    let header = Header {
        kind: Kind::Partial,
        rank: Rank::SWITCH,
        bitmap,
        ..header
    };
    Sent::To(To::Ps, host(first + 9), header, payload)
}

/// RESULT of job 7, finished here.
fn result(fragment: u32, value: i32) -> Sent {
    published(
        result_of(Rank::SWITCH, fragment),
        ints(value),
        Some(Time(1000)),
    )
}

/// RESULT to the group of a job as the worlds have it.
fn published(header: Header, payload: Vec<u8>, born: Option<Time>) -> Sent {
    let workers = if header.job == JOB { 3 } else { 2 };
    published_to(workers, header, payload, born)
}

/// As `published`, to the group of a job of so many workers.
fn published_to(workers: u16, header: Header, payload: Vec<u8>, born: Option<Time>) -> Sent {
    let first = if header.job == JOB { 0 } else { 10 };
    let ports = (first..first + workers).map(PortId).collect();
    Sent::Group(ports, header, payload, born)
}

fn flagged(sent: Sent, flags: Flags) -> Sent {
    match sent {
        Sent::To(to, member, header, payload) => {
            Sent::To(to, member, Header { flags, ..header }, payload)
        }
        Sent::Group(ports, header, payload, born) => {
            Sent::Group(ports, Header { flags, ..header }, payload, born)
        }
        again @ (Sent::Retransmit(..) | Sent::Up(..)) => again,
    }
}

/// As `sent`, because of a collision or a preemption (C-2).
fn collided(sent: Sent) -> Sent {
    let flags = match &sent {
        Sent::To(_, _, header, _) | Sent::Group(_, header, _, _) => header.flags,
        Sent::Retransmit(..) | Sent::Up(..) => Flags::NONE,
    };
    flagged(sent, flags.with(Flags::COLLISION))
}

/// Takes fragment `f` of job 7 to its result, in the way of the policy.
fn finish(w: &mut World, fragment: u32, value: i32) {
    for rank in 0..3 {
        w.data(fragment, rank, if rank == 0 { value } else { 0 });
    }
    if w.shard.policy.completion() == Completion::ToPsAndHold {
        w.say(result_of(Rank::PS, fragment), value);
    }
}
