//! Section 6 of PROTOCOL.md, row by row, for each policy.

use super::*;
use crate::buffer::To;
use crate::plain::{Ledger, Plain, Sent, Wire, host};
use crate::roster::PortId;
use tally_wire::{Epoch, FragmentId};

const JOB: JobId = JobId(7);
const OTHER: JobId = JobId(8);
const EPOCH: Epoch = Epoch(3);
const UNITS: u8 = 1;
const POLICIES: [PolicyName; 3] = [PolicyName::Esa, PolicyName::Fcfs, PolicyName::Static];

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
        let mut world = Self::with(PoolConfig {
            slots,
            held: 16,
            window: 4,
            shards: 1,
            shard: 0,
            jobs: 2,
            policy,
        });
        world.bind(roster(JOB, 3, 0), 0);
        world.bind(roster(OTHER, 2, 10), 1);
        world
    }

    fn bind(&mut self, roster: Roster, index: usize) {
        assert!(self.shard.bind(roster, index, &mut self.wire));
    }

    /// Hands in one frame; what left since.
    fn handle(&mut self, from: Member, header: Header, payload: &[u8]) -> Vec<Sent> {
        assert_eq!(header.check(), Ok(()), "the test's own frame: {header:?}");
        let payload = if header.units == 0 { &[] } else { payload };
        let buffer = self.ledger.frame(payload);
        self.shard
            .handle(self.now, &from, &header, buffer, &mut self.wire);
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
        expected.drops[reason as usize] += 1;
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
    Roster::new(job, EPOCH, UNITS, members, host(first_host + 9))
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
        rank: Rank::PS,
        ..data(fragment, 0)
    }
}

fn nack(fragment: u32, rank: u8) -> Header {
    Header {
        rank: Rank(rank),
        bitmap: 1 << rank,
        ..ps(Kind::Nack, fragment)
    }
}

fn result_of(rank: Rank, fragment: u32) -> Header {
    Header {
        kind: Kind::Result,
        rank,
        bitmap: 0b111,
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

fn published(header: Header, payload: Vec<u8>, born: Option<Time>) -> Sent {
    let first = if header.job == JOB { 0 } else { 10 };
    let workers = header.bitmap.count_ones() as u16;
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
        again @ Sent::Again(..) => again,
    }
}

// --- The rows of section 6, in their order. ---

#[test]
fn a_resend_in_the_ring_gets_the_result_on_its_own_port() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        finish(&mut w, 0, 7);
        let discarded = w.wire.discarded;
        assert_eq!(
            w.resend(0, 1, 99),
            [Sent::Again(Rank(1), PortId(1), ints(7))],
            "{policy}"
        );
        assert_eq!(w.wire.discarded, discarded + 1, "the question's buffer");
        assert_eq!(w.shard.counters().results_again, 1);
        assert_eq!(w.shard.counters().drops, [0; DropReason::ALL.len()]);
        assert_eq!(w.taken(), 0);
    }
}

/// Takes fragment `f` of job 7 to its result, by whatever way the policy has.
fn finish(w: &mut World, fragment: u32, value: i32) {
    for rank in 0..3 {
        w.data(fragment, rank, if rank == 0 { value } else { 0 });
    }
    if w.shard.policy.completion() == Completion::ToPsAndHold {
        w.say(result_of(Rank::PS, fragment), value);
    }
}

#[test]
fn data_of_a_finished_fragment_is_late() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        finish(&mut w, 0, 7);
        w.dropped(DropReason::Late, |w| w.data(0, 1, 1));
    }
}

#[test]
fn data_older_than_the_ring_is_late_also_with_resend() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        for fragment in 0..9 {
            finish(&mut w, fragment, 1);
        }
        // W-4: two windows of 4 are kept.
        w.dropped(DropReason::Late, |w| w.data(0, 1, 1));
        w.dropped(DropReason::Late, |w| w.resend(0, 1, 1));
        assert_eq!(w.resend(1, 1, 1).len(), 1, "still in the ring");
    }
}

#[test]
fn the_last_contribution_completes() {
    for policy in [PolicyName::Esa, PolicyName::Static] {
        let mut w = World::new(policy, 8);
        assert_eq!(w.data(0, 2, 100), []);
        w.now = Time(2000);
        assert_eq!(w.data(0, 0, 1), []);
        assert_eq!(w.data(0, 1, 10), [result(0, 111)], "{policy}");
        assert_eq!(w.taken(), 0, "slot free at once");
        assert_eq!(w.shard.counters().results, 1);
        assert_eq!(w.shard.counters().contributions, 3);
    }
}

#[test]
fn fcfs_sends_a_complete_sum_to_the_ps_and_holds_the_slot_until_its_result() {
    let mut w = World::new(PolicyName::Fcfs, 1);
    w.data(0, 2, 100);
    w.data(0, 0, 1);
    assert_eq!(w.data(0, 1, 10), [partial(0, 0b111, 111)]);
    assert_eq!(w.taken(), 1, "held");
    // What comes meanwhile is a duplicate, and other fragments find the slot taken.
    w.dropped(DropReason::Duplicate, |w| w.data(0, 1, 10));
    assert_eq!(w.data(1, 0, 5), [partial(1, 0b001, 5)]);
    let sent = w.say(result_of(Rank::PS, 0), 111);
    let expected = published(result_of(Rank::SWITCH, 0), ints(111), None);
    assert_eq!(sent, [flagged(expected, Flags::FROM_PS)]);
    assert_eq!(w.taken(), 0, "its result has passed");
}

#[test]
fn a_rank_counts_once() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        w.dropped(DropReason::Duplicate, |w| w.data(0, 0, 50));
        w.data(0, 1, 10);
        let last = w.data(0, 2, 100);
        let expected = if policy == PolicyName::Fcfs {
            partial(0, 0b111, 111)
        } else {
            result(0, 111)
        };
        assert_eq!(last, [expected], "{policy}");
    }
}

#[test]
fn a_resend_joins_the_slot_of_its_fragment() {
    for policy in [PolicyName::Esa, PolicyName::Static] {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        assert_eq!(w.resend(0, 1, 10), [], "combined");
        w.dropped(DropReason::Duplicate, |w| w.resend(0, 0, 1));
        assert_eq!(w.resend(0, 2, 100), [result(0, 111)], "{policy}");
    }
}

#[test]
fn fcfs_drives_the_slot_and_the_resend_to_the_ps() {
    let mut w = World::new(PolicyName::Fcfs, 8);
    w.data(0, 0, 1);
    w.data(0, 1, 10);
    assert_eq!(
        w.resend(0, 2, 100),
        [
            flagged(partial(0, 0b011, 11), Flags::RESEND),
            flagged(partial(0, 0b100, 100), Flags::RESEND),
        ]
    );
    assert_eq!(w.taken(), 0);
    assert_eq!(w.shard.counters().resends_to_ps, 1);
    assert_eq!(w.shard.counters().partials, 2);
}

/// The PS answers a RESEND of what it has finished with RESULT (P-2), so the RESEND must reach it also
/// when the slot held its contribution, or had sent the sum already.
#[test]
fn fcfs_lets_a_resend_ask_the_ps_even_if_its_contribution_was_in_the_slot() {
    let mut w = World::new(PolicyName::Fcfs, 8);
    w.data(0, 0, 1);
    assert_eq!(
        w.resend(0, 0, 1),
        [
            flagged(partial(0, 0b001, 1), Flags::RESEND),
            flagged(partial(0, 0b001, 1), Flags::RESEND),
        ]
    );
    for rank in 0..3 {
        w.data(1, rank, 1);
    }
    assert_eq!(w.taken(), 1, "complete, waits for the PS");
    assert_eq!(
        w.resend(1, 0, 1),
        [flagged(partial(1, 0b001, 1), Flags::RESEND)],
        "the sum went before"
    );
    assert_eq!(w.taken(), 0);
}

#[test]
fn a_resend_never_allocates_but_for_static() {
    for policy in [PolicyName::Esa, PolicyName::Fcfs] {
        let mut w = World::new(policy, 8);
        let expected = flagged(partial(0, 0b010, 5), Flags::RESEND);
        assert_eq!(w.resend(0, 1, 5), [expected], "{policy}");
        assert_eq!(w.taken(), 0);
        assert_eq!(w.shard.counters().slots_taken, 0);
    }
    let mut w = World::new(PolicyName::Static, 8);
    assert_eq!(w.resend(0, 1, 5), []);
    assert_eq!(w.taken(), 1);
    // Also for static, a taken slot stays taken: job 7 has 4 slots, so 4 falls on 0.
    let expected = flagged(partial(4, 0b001, 6), Flags::RESEND);
    assert_eq!(w.resend(4, 0, 6), [expected]);
}

#[test]
fn a_resend_does_not_preempt() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(0, 0, 1);
    let header = Header {
        flags: Flags::RESEND,
        ..other(0, 0, 255)
    };
    let expected = partial_of(header, 0b01, ints(5));
    assert_eq!(w.say(header, 5), [expected]);
    assert_eq!(w.shard.counters().preemptions, 0);
    assert_eq!(w.taken(), 1);
}

#[test]
fn a_free_slot_is_taken() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        assert_eq!(w.data(0, 1, 5), [], "{policy}");
        assert_eq!(w.taken(), 1);
        assert_eq!(w.shard.counters().slots_taken, 1);
    }
}

#[test]
fn strictly_higher_priority_preempts_in_esa_and_the_partial_goes_to_its_own_ps() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(0, 0, 1);
    w.data(0, 2, 100);
    assert_eq!(w.say(other(5, 0, 11), 40), [partial(0, 0b101, 101)]);
    assert_eq!(w.shard.counters().preemptions, 1);
    assert_eq!(w.shard.counters().collisions, 0);
    let done = Header {
        priority: 11,
        bitmap: 0b11,
        ..Header {
            job: OTHER,
            ..result_of(Rank::SWITCH, 5)
        }
    };
    let expected = published(done, ints(42), Some(Time(1000)));
    assert_eq!(
        w.say(other(5, 1, 0), 2),
        [expected],
        "the slot is the arrival's"
    );
}

#[test]
fn equal_or_lower_priority_goes_to_its_ps_and_halves_the_slots() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(0, 0, 1);
    let expected = |p| partial_of(other(5, 0, p), 0b01, ints(40));
    assert_eq!(w.say(other(5, 0, 10), 40), [expected(10)], "equal");
    assert_eq!(
        w.say(other(5, 0, 5), 40),
        [expected(5)],
        "10 was halved to 5"
    );
    assert_eq!(
        w.say(other(5, 0, 1), 40),
        [expected(1)],
        "5 was halved to 2"
    );
    assert_eq!(w.shard.counters().collisions, 3);
    let mut held = partial(0, 0b001, 1);
    if let Sent::To(_, _, header, _) = &mut held {
        header.priority = 1;
    }
    assert_eq!(w.say(other(5, 0, 2), 40), [held], "2 was halved to 1");
}

#[test]
fn a_slot_has_the_priority_of_its_highest_contribution() {
    let mut w = World::new(PolicyName::Esa, 1);
    for (rank, priority) in [(0, 10), (1, 30)] {
        let header = Header {
            priority,
            ..data(0, rank)
        };
        assert_eq!(w.say(header, 1), []);
    }
    let expected = partial_of(other(5, 0, 30), 0b01, ints(40));
    assert_eq!(w.say(other(5, 0, 30), 40), [expected], "equal");
}

#[test]
fn fcfs_and_static_never_preempt() {
    for policy in [PolicyName::Fcfs, PolicyName::Static] {
        // One slot is less than two jobs need, so also static has to share it.
        let mut w = World::new(policy, 1);
        w.data(0, 0, 1);
        for priority in [255, 10, 0, 1] {
            let expected = partial_of(other(5, 0, priority), 0b01, ints(40));
            assert_eq!(w.say(other(5, 0, priority), 40), [expected], "{policy}");
        }
        assert_eq!(w.shard.counters().collisions, 4);
        assert_eq!(w.shard.counters().preemptions, 0);
        assert_eq!(w.data(0, 1, 10), [], "the slot was not touched");
        assert_eq!(w.data(0, 2, 100).len(), 1);
    }
}

#[test]
fn static_jobs_do_not_meet() {
    let mut w = World::new(PolicyName::Static, 8);
    for fragment in 0..4 {
        assert_eq!(w.data(fragment, 0, 1), []);
    }
    for fragment in 0..4 {
        assert_eq!(w.say(other(fragment, 0, 255), 1), []);
    }
    assert_eq!(w.taken(), 8);
    assert_eq!(w.shard.counters().collisions, 0);
}

#[test]
fn a_job_collides_with_itself_when_the_pool_is_smaller_than_its_window() {
    let mut w = World::new(PolicyName::Esa, 2);
    w.data(0, 0, 1);
    assert_eq!(w.data(2, 0, 5), [partial(2, 0b001, 5)]);
    let urgent = Header {
        priority: 200,
        ..data(4, 0)
    };
    let mut held = partial(0, 0b001, 1);
    if let Sent::To(_, _, header, _) = &mut held {
        header.priority = 5;
    }
    assert_eq!(w.say(urgent, 5), [held]);
}

// --- S-1: combining. ---

#[test]
fn another_element_type_than_the_slots_is_dropped() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        for element in [Element::F32, Element::Scale] {
            let odd = Header {
                element,
                ..data(0, 1)
            };
            w.dropped(DropReason::ElementMismatch, |w| w.say(odd, 1));
        }
    }
}

#[test]
fn scales_combine_by_maximum() {
    let mut w = World::new(PolicyName::Esa, 8);
    let header = |rank| Header {
        element: Element::Scale,
        ..data(0, rank)
    };
    let mut expected = vec![0; 64];
    let mut sent = Vec::new();
    for rank in [1u8, 2, 0] {
        let payload: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(91 + rank * 40)).collect();
        for (e, p) in expected.iter_mut().zip(&payload) {
            *e = *p.max(e);
        }
        sent = w.handle(host(u16::from(rank)), header(rank), &payload);
    }
    let done = Header {
        element: Element::Scale,
        ..result_of(Rank::SWITCH, 0)
    };
    assert_eq!(sent, [published(done, expected, Some(Time(1000)))]);
}

#[test]
fn a_saturated_sum_is_flagged_wherever_it_goes() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(0, 0, i32::MAX);
    w.data(0, 1, 1);
    let sent = w.data(0, 2, 0);
    assert_eq!(sent, [flagged(result(0, i32::MAX), Flags::OVERFLOW)]);
    assert_eq!(w.shard.counters().overflows, 1);

    w.data(1, 0, i32::MIN);
    w.data(1, 1, -1);
    let sent = w.say(other(0, 0, 99), 0);
    assert_eq!(
        sent,
        [flagged(partial(1, 0b011, i32::MIN), Flags::OVERFLOW)]
    );

    // The slot's next fragment starts clean.
    assert_eq!(w.say(ps_of_other(Kind::Remind, 0), 0).len(), 1);
    for rank in 0..2 {
        w.data(2, rank, 1);
    }
    assert_eq!(w.data(2, 2, 1), [result(2, 3)]);
    assert_eq!(w.shard.counters().overflows, 1);
}

fn ps_of_other(kind: Kind, fragment: u32) -> Header {
    Header {
        job: OTHER,
        ..ps(kind, fragment)
    }
}

// --- S-1: the order of f32. ---

/// A job of four workers on one shard, for f32.
fn float_world(policy: PolicyName, slots: u32, held: u32) -> World {
    let mut w = World::with(PoolConfig {
        slots,
        held,
        window: 4,
        shards: 1,
        shard: 0,
        jobs: 2,
        policy,
    });
    w.bind(roster(JOB, 4, 0), 0);
    w.bind(roster(OTHER, 2, 10), 1);
    w
}

/// Values whose sum depends on the order: every permutation of the fold gives other bits somewhere.
const TERMS: [f32; 4] = [1e8, 3.25, -1e8, 1.5e-3];

fn float_data(fragment: u32, rank: u8) -> Header {
    Header {
        element: Element::F32,
        ..data(fragment, rank)
    }
}

fn say_float(w: &mut World, header: Header) -> Vec<Sent> {
    let payload = floats(TERMS[usize::from(header.rank.0)]);
    w.handle(host(u16::from(header.rank.0)), header, &payload)
}

fn fold(ranks: std::ops::Range<usize>) -> f32 {
    TERMS[ranks].iter().copied().reduce(|a, b| a + b).unwrap()
}

fn permutations() -> Vec<[u8; 4]> {
    let mut all = Vec::new();
    for code in 0..256u32 {
        let p = [0, 2, 4, 6].map(|shift| (code >> shift & 3) as u8);
        if p.iter().fold(0, |set, r| set | 1 << r) == 0b1111 {
            all.push(p);
        }
    }
    assert_eq!(all.len(), 24);
    all
}

#[test]
fn floats_are_folded_in_rank_order_whatever_the_order_of_arrival() {
    let in_other_order = permutations()
        .iter()
        .map(|p| p.map(|r| TERMS[usize::from(r)]))
        .filter(|t| t.iter().sum::<f32>().to_bits() != fold(0..4).to_bits())
        .count();
    assert!(in_other_order > 0, "the terms do test the order");
    for policy in [PolicyName::Esa, PolicyName::Static] {
        for order in permutations() {
            let mut w = float_world(policy, 8, 16);
            let mut sent = Vec::new();
            for rank in order {
                assert_eq!(sent, [], "not yet");
                sent = say_float(&mut w, float_data(0, rank));
            }
            let done = Header {
                element: Element::F32,
                bitmap: 0b1111,
                ..result_of(Rank::SWITCH, 0)
            };
            let expected = published(done, floats(fold(0..4)), Some(Time(1000)));
            assert_eq!(sent, [expected], "{policy} {order:?}");
            assert_eq!(w.shard.held_in_use(), 0);
        }
    }
}

/// Every permutation, preempted after every prefix: the fold leaves as one PARTIAL, each held
/// contribution as its own, with the bits that it came with.
#[test]
fn a_preempted_float_slot_leaves_as_its_fold_and_the_rest_one_by_one() {
    for order in permutations() {
        for arrived in 1..4 {
            let mut w = float_world(PolicyName::Esa, 1, 16);
            for &rank in &order[..arrived] {
                assert_eq!(say_float(&mut w, float_data(0, rank)), []);
            }
            let here = order[..arrived].iter().fold(0u64, |set, r| set | 1 << r);
            let folded = here.trailing_ones() as usize;
            let mut expected = Vec::new();
            if folded > 0 {
                let bits = all_of(folded);
                expected.push(partial_of(float_data(0, 0), bits, floats(fold(0..folded))));
            }
            for rank in (folded..4).filter(|r| here >> r & 1 == 1) {
                expected.push(partial_of(float_data(0, 0), 1 << rank, floats(TERMS[rank])));
            }
            assert_eq!(
                w.say(other(0, 0, 99), 1),
                expected,
                "{:?}",
                &order[..arrived]
            );
            assert_eq!(w.shard.held_in_use(), 0);
            assert_eq!(w.taken(), 1, "the preempter's");
        }
    }
}

fn all_of(ranks: usize) -> u64 {
    (1 << ranks) - 1
}

#[test]
fn a_contribution_that_finds_no_place_to_wait_goes_to_the_ps() {
    let mut w = float_world(PolicyName::Esa, 8, 1);
    assert_eq!(
        say_float(&mut w, float_data(0, 3)),
        [],
        "takes the only place"
    );
    let expected = partial_of(float_data(0, 0), 0b0100, floats(TERMS[2]));
    assert_eq!(say_float(&mut w, float_data(0, 2)), [expected]);
    assert_eq!(w.shard.counters().held_full, 1);
    // It is not in the slot, so it may come again and be counted there.
    say_float(&mut w, float_data(0, 0));
    say_float(&mut w, float_data(0, 1));
    let again = Header {
        flags: Flags::RESEND,
        ..float_data(0, 2)
    };
    let done = Header {
        element: Element::F32,
        bitmap: 0b1111,
        ..result_of(Rank::SWITCH, 0)
    };
    let expected = published(done, floats(fold(0..4)), Some(Time(1000)));
    assert_eq!(say_float(&mut w, again), [expected]);
}

#[test]
fn a_slot_that_could_hold_nothing_is_not_taken() {
    for policy in POLICIES {
        let mut w = float_world(policy, 8, 0);
        let expected = partial_of(float_data(0, 0), 0b0010, floats(TERMS[1]));
        assert_eq!(say_float(&mut w, float_data(0, 1)), [expected], "{policy}");
        assert_eq!(w.taken(), 0);
        assert_eq!(say_float(&mut w, float_data(0, 0)), []);
        assert_eq!(
            say_float(&mut w, float_data(0, 1)),
            [],
            "in order it needs no place"
        );
    }
}

#[test]
fn what_ends_a_float_slot_gives_up_all_that_it_holds() {
    let acts: [fn(&mut World); 3] = [
        |w| {
            let done = Header {
                element: Element::F32,
                bitmap: 0b1111,
                ..result_of(Rank::PS, 0)
            };
            assert_eq!(w.handle(host(9), done, &floats(1.0)).len(), 1, "S-2");
        },
        |w| assert_eq!(w.say(ps(Kind::Remind, 0), 0).len(), 3, "S-3"),
        |w| w.shard.unbind(JOB, &mut w.wire),
    ];
    for act in acts {
        let mut w = float_world(PolicyName::Esa, 8, 16);
        for rank in [0, 3, 2] {
            say_float(&mut w, float_data(0, rank));
        }
        assert_eq!(w.shard.held_in_use(), 2);
        act(&mut w);
        assert_eq!((w.taken(), w.shard.held_in_use()), (0, 0));
    }
}

#[test]
fn nan_sums_are_canonical() {
    let mut w = World::new(PolicyName::Esa, 8);
    let odd_nan = f32::from_bits(0xffab_cdef);
    let mut sent = Vec::new();
    for (rank, value) in [(0u8, odd_nan), (1, 1.0), (2, 2.0)] {
        sent = w.handle(host(u16::from(rank)), float_data(0, rank), &floats(value));
    }
    let Some(Sent::Group(_, _, payload, _)) = sent.first() else {
        panic!("no result: {sent:?}");
    };
    assert_eq!(*payload, floats(f32::from_bits(0x7fc0_0000)));
}

// --- S-2: the PS's result. ---

#[test]
fn a_result_of_the_ps_frees_the_slot_and_leaves_to_the_group() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        let from_ps = Header {
            flags: Flags::OVERFLOW,
            ..result_of(Rank::PS, 0)
        };
        let expected = published(result_of(Rank::SWITCH, 0), ints(111), None);
        let flags = Flags::OVERFLOW.with(Flags::FROM_PS);
        assert_eq!(w.say(from_ps, 111), [flagged(expected, flags)], "{policy}");
        assert_eq!(w.taken(), 0);
        assert_eq!(w.shard.counters().results_from_ps, 1);
        assert_eq!(w.shard.counters().overflows, 1);
        assert_eq!(
            w.resend(0, 2, 100),
            [Sent::Again(Rank(2), PortId(2), ints(111))]
        );
        w.dropped(DropReason::Late, |w| w.say(result_of(Rank::PS, 0), 111));
        w.dropped(DropReason::Late, |w| w.data(0, 1, 10));
    }
}

#[test]
fn a_result_of_the_ps_leaves_other_fragments_alone() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(0, 0, 1);
    assert_eq!(w.say(result_of(Rank::PS, 1), 5).len(), 1);
    assert_eq!(w.taken(), 1);
    w.data(0, 1, 10);
    assert_eq!(w.data(0, 2, 100), [result(0, 111)]);
}

#[test]
fn a_result_older_than_the_ring_is_dropped() {
    let mut w = World::new(PolicyName::Esa, 8);
    for fragment in 1..9 {
        finish(&mut w, fragment, 1);
    }
    w.dropped(DropReason::Late, |w| w.say(result_of(Rank::PS, 0), 5));
}

// --- S-3: REMIND. ---

#[test]
fn remind_takes_the_partial_once() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        w.data(0, 2, 100);
        assert_eq!(
            w.say(ps(Kind::Remind, 0), 0),
            [partial(0, 0b101, 101)],
            "{policy}"
        );
        assert_eq!(w.taken(), 0);
        assert_eq!(w.say(ps(Kind::Remind, 0), 0), [not_here(0, Flags::NONE)]);
        // Another fragment in the slot of the one that is asked for is not what was asked for.
        w.data(8, 0, 1);
        assert_eq!(w.say(ps(Kind::Remind, 0), 0), [not_here(0, Flags::NONE)]);
        assert_eq!(w.taken(), 1);
        assert_eq!(w.shard.counters().reminds, 3);
    }
}

fn not_here(fragment: u32, flags: Flags) -> Sent {
    let header = Header {
        kind: Kind::NotHere,
        rank: Rank::SWITCH,
        flags,
        ..ps(Kind::Remind, fragment)
    };
    Sent::To(To::Ps, host(9), header, Vec::new())
}

#[test]
fn remind_of_a_finished_fragment_says_so() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        for fragment in 0..9 {
            finish(&mut w, fragment, 1);
        }
        for fragment in [0, 1, 8] {
            let expected = not_here(fragment, Flags::FINISHED);
            assert_eq!(w.say(ps(Kind::Remind, fragment), 0), [expected], "{policy}");
        }
    }
}

#[test]
fn remind_of_a_sum_that_fcfs_has_sent_finds_nothing_and_leaves_the_slot() {
    let mut w = World::new(PolicyName::Fcfs, 8);
    for rank in 0..3 {
        w.data(0, rank, 1);
    }
    assert_eq!(w.say(ps(Kind::Remind, 0), 0), [not_here(0, Flags::NONE)]);
    assert_eq!(w.taken(), 1);
}

// --- S-4: forwarding. ---

#[test]
fn nack_goes_to_its_worker_and_a_workers_result_to_the_ps() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        let expected = Sent::To(To::Worker(Rank(1)), host(1), nack(5, 1), Vec::new());
        assert_eq!(w.say(nack(5, 1), 0), [expected]);
        assert_eq!(w.shard.counters().nacks, 1);
        let answer = result_of(Rank(2), 5);
        let expected = Sent::To(To::Ps, host(9), answer, ints(111));
        assert_eq!(w.say(answer, 111), [expected]);
        assert_eq!(w.taken(), 0);
    }
}

// --- Section 3: admission. Each refusal has one reason and no other effect. ---

#[test]
fn frames_of_a_job_are_taken_only_from_its_members() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        let one = host(1);
        let strangers = [
            Member {
                port: PortId(0),
                ..one
            },
            Member {
                mac: host(2).mac,
                ..one
            },
            Member {
                ip: host(2).ip,
                ..one
            },
            Member { udp_port: 1, ..one },
        ];
        for from in strangers {
            w.dropped(DropReason::NotMember, |w| {
                w.handle(from, data(0, 1), &ints(1))
            });
        }
        for header in [data(0, 0), result_of(Rank(0), 0), result_of(Rank::PS, 0)] {
            w.dropped(DropReason::NotMember, |w| w.handle(one, header, &ints(1)));
        }
        for header in [ps(Kind::Remind, 0), nack(0, 1)] {
            w.dropped(DropReason::NotMember, |w| w.handle(one, header, &[]));
        }
        w.dropped(DropReason::NotMember, |w| {
            w.handle(host(9), data(0, 1), &ints(1))
        });
    }
}

#[test]
fn every_other_reason_not_to_admit() {
    let mut w = World::new(PolicyName::Esa, 8);
    w.data(0, 0, 1);
    let cases = [
        (
            DropReason::UnknownJob,
            Header {
                job: JobId(9),
                ..data(0, 1)
            },
        ),
        (
            DropReason::RankOutOfJob,
            Header {
                rank: Rank(3),
                bitmap: 8,
                ..data(0, 1)
            },
        ),
        (
            DropReason::Epoch,
            Header {
                epoch: Epoch(2),
                ..data(0, 1)
            },
        ),
        (
            DropReason::Epoch,
            Header {
                epoch: Epoch(0),
                ..ps(Kind::Remind, 0)
            },
        ),
        (
            DropReason::Units,
            Header {
                units: 2,
                ..data(0, 1)
            },
        ),
        (
            DropReason::Units,
            Header {
                units: 2,
                ..result_of(Rank::PS, 0)
            },
        ),
        (
            DropReason::Bitmap,
            Header {
                bitmap: 0b011,
                ..result_of(Rank::PS, 0)
            },
        ),
        (
            DropReason::Bitmap,
            Header {
                bitmap: 0b1111,
                ..result_of(Rank(1), 0)
            },
        ),
        (DropReason::RankOutOfJob, nack(0, 3)),
        (DropReason::RankOutOfJob, nack(0, 63)),
        (DropReason::NotForSwitch, result_of(Rank::SWITCH, 0)),
        (
            DropReason::NotForSwitch,
            Header {
                kind: Kind::Partial,
                ..result_of(Rank::SWITCH, 0)
            },
        ),
        (
            DropReason::NotForSwitch,
            Header {
                kind: Kind::NotHere,
                rank: Rank::SWITCH,
                ..ps(Kind::Remind, 0)
            },
        ),
    ];
    for (reason, header) in cases {
        w.dropped(reason, |w| {
            let payload = vec![0; header.payload_bytes()];
            w.handle(host(host_of(&header)), header, &payload)
        });
    }
    for kind in [Kind::Join, Kind::Accept, Kind::Refuse, Kind::Leave] {
        let header = Header {
            units: tally_wire::header::CONTROL_UNITS,
            ..ps(kind, 0)
        };
        w.dropped(DropReason::NotForSwitch, |w| {
            w.handle(host(9), header, &[0; 128])
        });
    }
}

#[test]
fn a_shard_takes_only_its_own_fragments() {
    for shard in 0..4 {
        let mut w = World::with(PoolConfig {
            slots: 8,
            held: 4,
            window: 4,
            shards: 4,
            shard,
            jobs: 1,
            policy: PolicyName::Esa,
        });
        w.bind(roster(JOB, 3, 0), 0);
        for fragment in [0, 1, 2, 3, 4, u32::MAX] {
            if fragment % 4 == u32::from(shard) {
                w.data(fragment, 0, 1);
                assert_eq!(w.shard.counters().dropped(DropReason::Shard), 0);
            }
        }
        for fragment in (0..8).filter(|f| f % 4 != u32::from(shard)) {
            w.dropped(DropReason::Shard, |w| w.data(fragment, 0, 1));
            w.dropped(DropReason::Shard, |w| w.say(ps(Kind::Remind, fragment), 0));
            w.dropped(DropReason::Shard, |w| w.say(nack(fragment, 0), 0));
            w.dropped(DropReason::Shard, |w| {
                w.say(result_of(Rank::PS, fragment), 0)
            });
        }
    }
}

/// W-4, also when the window is no multiple of the shards.
#[test]
fn the_ring_spans_two_windows_for_any_number_of_shards() {
    for shards in [1u8, 2, 4, 8, 16] {
        for window in 1..40u16 {
            let mut w = World::with(PoolConfig {
                slots: 64,
                held: 4,
                window,
                shards,
                shard: 0,
                jobs: 1,
                policy: PolicyName::Esa,
            });
            w.bind(roster(JOB, 3, 0), 0);
            let step = usize::from(shards);
            let last = u32::from(window) * 2 - 1;
            for fragment in (0..=last).step_by(step) {
                finish(&mut w, fragment, 1);
            }
            let newest = last - last % u32::from(shards);
            for fragment in (0..=newest).step_by(step) {
                assert_eq!(
                    w.resend(fragment, 0, 0),
                    [Sent::Again(Rank(0), PortId(0), ints(1))],
                    "{shards} shards, window {window}, fragment {fragment} of {newest}"
                );
            }
        }
    }
}

// --- Binding. ---

#[test]
fn a_roster_of_the_same_epoch_replaces_addresses_and_nothing_else() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        finish(&mut w, 0, 7);
        w.data(1, 0, 1);
        let mut moved = roster(JOB, 3, 0);
        moved.ps = host(99);
        w.bind(moved, 0);
        assert_eq!(w.taken(), 1, "the slot stays");
        assert_eq!(w.resend(0, 0, 0).len(), 1, "the ring stays");
        w.dropped(DropReason::NotMember, |w| w.say(ps(Kind::Remind, 1), 0));
        let sent = w.handle(host(99), ps(Kind::Remind, 1), &[]);
        let Sent::To(to, _, header, payload) = partial(1, 0b001, 1) else {
            unreachable!()
        };
        assert_eq!(sent, [Sent::To(to, host(99), header, payload)]);
    }
}

#[test]
fn a_new_epoch_starts_with_nothing() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        finish(&mut w, 0, 7);
        w.data(1, 0, 1);
        w.say(other(0, 0, 1), 5);
        let next = Roster {
            epoch: Epoch(4),
            ..roster(JOB, 3, 0)
        };
        w.bind(next, 0);
        assert_eq!(w.wire.take(), []);
        assert_eq!(w.taken(), 1, "that of the other job");
        assert_eq!(w.ledger.live(), 1);
        w.dropped(DropReason::Epoch, |w| w.data(0, 0, 1));
        let fresh = Header {
            epoch: Epoch(4),
            ..data(0, 0)
        };
        assert_eq!(w.say(fresh, 1), [], "not late");
        assert_eq!(w.taken(), 2);
    }
}

#[test]
fn unbind_gives_up_everything_of_the_job_and_only_of_it() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        for fragment in 0..4 {
            finish(&mut w, fragment, 7);
        }
        w.data(4, 0, 1);
        w.say(other(4, 0, 1), 5);
        w.shard.unbind(JOB, &mut w.wire);
        assert_eq!(w.taken(), 1, "{policy}");
        assert_eq!(w.ledger.live(), 1);
        w.dropped(DropReason::UnknownJob, |w| w.data(5, 0, 1));
        w.shard.unbind(JOB, &mut w.wire);
        w.say(other(4, 1, 1), 5);
        assert_eq!(w.taken(), usize::from(policy == PolicyName::Fcfs));
    }
}

#[test]
fn more_jobs_than_the_shard_serves_are_refused_and_places_are_reused() {
    let mut w = World::with(PoolConfig {
        slots: 1,
        held: 0,
        window: 1,
        shards: 1,
        shard: 0,
        jobs: 300,
        policy: PolicyName::Static,
    });
    for job in 0..MAX_JOBS as u16 {
        w.bind(roster(JobId(1000 + job), 1, 0), usize::from(job));
    }
    assert!(!w.shard.bind(roster(JOB, 3, 0), 255, &mut w.wire));
    w.dropped(DropReason::UnknownJob, |w| w.data(0, 0, 1));
    w.shard.unbind(JobId(1100), &mut w.wire);
    w.bind(roster(JOB, 3, 0), 255);
    finish(&mut w, 0, 1);
    for job in 0..MAX_JOBS as u16 {
        w.shard.unbind(JobId(1000 + job), &mut w.wire);
    }
}

#[test]
fn a_job_of_one_worker_needs_nobody() {
    for element in [Element::I32, Element::F32, Element::Scale] {
        let mut w = World::new(PolicyName::Esa, 8);
        w.bind(
            Roster {
                epoch: Epoch(4),
                ..roster(JOB, 1, 0)
            },
            0,
        );
        let header = Header {
            element,
            epoch: Epoch(4),
            ..data(0, 0)
        };
        let done = Header {
            kind: Kind::Result,
            rank: Rank::SWITCH,
            ..header
        };
        let expected = published(done, ints(5), Some(Time(1000)));
        assert_eq!(w.say(header, 5), [expected]);
    }
}

#[test]
fn results_leave_once_on_each_port_that_has_a_worker() {
    let mut w = World::new(PolicyName::Esa, 8);
    let mut shared = Roster {
        epoch: Epoch(4),
        ..roster(JOB, 3, 0)
    };
    for worker in &mut shared.workers {
        worker.port = PortId(worker.port.0 / 2);
    }
    let workers = shared.workers.clone();
    w.bind(
        Roster::new(JOB, Epoch(4), UNITS, workers.clone(), host(9)),
        0,
    );
    let mut sent = Vec::new();
    for (rank, from) in (0..).zip(workers) {
        let header = Header {
            epoch: Epoch(4),
            ..data(0, rank)
        };
        sent = w.handle(from, header, &ints(1));
    }
    let Some(Sent::Group(ports, ..)) = sent.first() else {
        panic!("no result: {sent:?}");
    };
    assert_eq!(*ports, [PortId(0), PortId(1)]);
}

#[test]
fn a_job_of_sixty_four_workers_fills_the_bitmap() {
    let mut w = World::new(PolicyName::Esa, 8);
    let members: Vec<_> = (100..164).map(host).collect();
    let roster = Roster::new(JOB, Epoch(4), UNITS, members.clone(), host(9));
    w.bind(roster, 0);
    for element in [Element::I32, Element::F32] {
        let fragment = element as u32;
        let mut sent = Vec::new();
        for rank in (0..64u8).rev() {
            let header = Header {
                element,
                epoch: Epoch(4),
                ..data(fragment, rank)
            };
            let payload = match element {
                Element::I32 => ints(1),
                _ => floats(1.0),
            };
            // In reverse, f32 must hold 63: more than there is room for.
            sent.extend(w.handle(members[usize::from(rank)], header, &payload));
        }
        if element == Element::I32 {
            let [Sent::Group(_, header, payload, _)] = &sent[..] else {
                panic!("no result: {sent:?}");
            };
            assert_eq!((header.bitmap, payload), (u64::MAX, &ints(64)));
        } else {
            assert_eq!(sent.len(), 47, "63 less the 16 places");
            assert_eq!(w.shard.counters().held_full, 47);
        }
    }
}
