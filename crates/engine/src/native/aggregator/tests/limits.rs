//! What jobs have for certain, and what they may have at most.

use super::*;

const fn limits(min_slots: u32, max_slots: u32) -> Limits {
    Limits {
        min_slots,
        max_slots,
        min_held: 0,
    }
}

fn world(policy: PolicyName, slots: u32, ways: u32, first: Limits, second: Limits) -> World {
    World::of_ways(policy, slots, ways, [first, second])
}

fn urgent(fragment: u32, rank: u8, priority: u8) -> Header {
    Header {
        priority,
        ..data(fragment, rank)
    }
}

#[test]
fn a_job_at_its_maximum_takes_no_free_slot() {
    for policy in POLICIES {
        for ways in [1, 4] {
            let mut w = world(policy, 16, ways, limits(0, 2), Limits::NONE);
            assert_eq!(w.data(0, 0, 1), []);
            assert_eq!(w.data(1, 0, 1), []);
            assert_eq!(w.data(2, 0, 5), [collided(partial(2, 1, 5))], "{policy}");
            assert_eq!(w.shard.slots_of(JOB), 2);
            assert_eq!(w.data(0, 1, 1), [], "it continues with those it has");
            assert_eq!(w.say(ps(Kind::Remind, 0), 0).len(), 1);
            assert_eq!(w.data(2, 1, 1), [], "one is free again");
            assert_eq!(w.shard.slots_of(JOB), 2);
        }
    }
}

#[test]
fn a_job_at_its_maximum_preempts_no_job_but_itself() {
    let mut w = world(PolicyName::Esa, 2, 2, limits(0, 1), Limits::NONE);
    w.say(urgent(0, 0, 20), 1);
    w.say(other(0, 0, 10), 1);
    let sent = w.say(urgent(1, 0, 19), 5);
    let expected = partial_of(urgent(1, 0, 19), 1, ints(5));
    assert_eq!(sent, [collided(expected)], "its own is higher");
    // That halved the job's own slot to 10, and not the other's.
    let expected = partial_of(urgent(0, 0, 10), 1, ints(1));
    assert_eq!(w.say(urgent(2, 0, 11), 5), [collided(expected)]);
    assert_eq!((w.shard.slots_of(JOB), w.shard.slots_of(OTHER)), (1, 1));
    assert_eq!(w.say(other(0, 1, 0), 1).len(), 1, "the other completes");
}

#[test]
fn what_a_job_has_for_certain_does_not_yield() {
    let mut w = world(PolicyName::Esa, 2, 1, Limits::NONE, limits(1, 9));
    w.say(other(0, 0, 1), 1);
    for (rank, priority) in [(0, 2), (1, 255)] {
        let mut collisions = 0;
        for fragment in 0..2 {
            let sent = w.say(urgent(fragment, rank, priority), 5);
            collisions += sent.len();
        }
        assert_eq!(collisions, 1, "one set is the other job's");
    }
    assert_eq!(w.say(other(0, 1, 1), 1).len(), 1);
    assert_eq!(w.shard.counters().preemptions, 0);
}

#[test]
fn more_than_that_yields_again() {
    let mut w = world(PolicyName::Esa, 2, 2, Limits::NONE, limits(1, 9));
    w.say(other(0, 0, 1), 1);
    w.say(other(1, 0, 2), 1);
    let sent = w.say(urgent(0, 0, 3), 5);
    assert_eq!(sent, [collided(partial_of(other(0, 0, 1), 1, ints(1)))]);
    assert_eq!(w.shard.slots_of(OTHER), 1);
    let sent = w.say(urgent(1, 0, 2), 5);
    let expected = partial_of(urgent(1, 0, 2), 1, ints(5));
    assert_eq!(sent, [collided(expected)], "against its own, which is 3");
}

#[test]
fn a_job_below_its_minimum_takes_the_lowest_slot_of_one_that_has_more() {
    let mut w = world(PolicyName::Esa, 2, 2, limits(1, 9), limits(1, 9));
    w.say(urgent(0, 0, 200), 1);
    w.say(urgent(1, 0, 100), 1);
    let sent = w.say(other(0, 0, 0), 1);
    assert_eq!(sent, [collided(partial_of(urgent(1, 0, 100), 1, ints(1)))]);
    // Both have what is theirs: now priorities decide, each job against itself.
    let expected = partial_of(other(1, 0, 0), 1, ints(1));
    assert_eq!(w.say(other(1, 0, 0), 1), [collided(expected)]);
    assert_eq!((w.shard.slots_of(JOB), w.shard.slots_of(OTHER)), (1, 1));
}

/// A tenant that claims the highest priority for everything, and never completes, floods the pool.
/// The other gets its minimum all the same.
#[test]
fn who_always_claims_the_highest_priority_does_not_starve_the_others() {
    for ways in [1, 2, 4, 8] {
        for (minimum, finished_here) in [(0, 0), (4, 4)] {
            let certain = limits(minimum, u32::MAX);
            let limits = [Limits::NONE, certain];
            let mut w = World::of_window(PolicyName::Esa, 32, ways, 64, limits);
            let mut next = 0;
            let mut flood = |w: &mut World| {
                for fragment in next..next + 64 {
                    w.say(urgent(fragment, 0, 255), 1);
                }
                next += 64;
            };
            for round in 0..20 {
                let mine = round * 4..round * 4 + 4;
                flood(&mut w);
                for fragment in mine.clone() {
                    w.say(other(fragment, 0, 1), 1);
                    flood(&mut w);
                }
                let mut results = 0;
                for fragment in mine.clone() {
                    let sent = w.say(other(fragment, 1, 1), 1);
                    results += sent.iter().filter(|s| matches!(s, Sent::Group(..))).count();
                    flood(&mut w);
                }
                assert_eq!(results, finished_here, "{ways} ways, round {round}");
            }
        }
    }
}

// --- Held contributions. ---

/// A victim of 8 workers sends f16, which are all held but for rank 0's, while a tenant of 64 holds
/// all slots that it gets and never completes. How many of the victim's fragments the switch
/// finishes, of 640.
fn finished_beside_a_hoarder(min_held: u32) -> usize {
    const WINDOW: u32 = 64;
    let tenant = Limits::NONE;
    let victim = Limits {
        min_held,
        ..limits(WINDOW, u32::MAX)
    };
    let mut w = World::with(PoolConfig {
        slots: 256,
        ways: 8,
        held: 4096,
        window: WINDOW as u16,
        jobs: jobs([tenant, victim]),
        ..pool()
    });
    w.bind(roster(JOB, 64, 100));
    w.bind(roster(OTHER, 8, 10));
    let mut finished = 0;
    for round in 0..10 {
        let fragments = round * WINDOW..(round + 1) * WINDOW;
        for fragment in fragments.clone() {
            for rank in (1..64).rev() {
                let header = Header {
                    element: Element::F16,
                    ..urgent(fragment, rank, 255)
                };
                w.handle(host(100 + u16::from(rank)), header, &ints(0));
            }
        }
        for rank in (0..8).rev() {
            for fragment in fragments.clone() {
                let header = Header {
                    element: Element::F16,
                    ..other(fragment, rank, 1)
                };
                let sent = w.say(header, 0);
                finished += sent.iter().filter(|s| matches!(s, Sent::Group(..))).count();
            }
        }
    }
    finished
}

#[test]
fn a_tenant_of_many_ranks_does_not_take_what_others_have_to_hold() {
    assert_eq!(finished_beside_a_hoarder(64 * 7), 640);
    let without = finished_beside_a_hoarder(0);
    assert!(without < 640, "the tenant does hold all: {without}");
}

#[test]
#[should_panic(expected = "more held contributions reserved than there are")]
fn reserved_contributions_fit_the_arena() {
    let half = Limits {
        min_held: 9,
        ..Limits::NONE
    };
    world(PolicyName::Esa, 2, 1, half, half);
}

#[test]
#[should_panic(expected = "a minimum that the policy cannot keep")]
fn first_come_first_served_keeps_no_minimum() {
    world(PolicyName::Fcfs, 2, 1, limits(1, 2), Limits::NONE);
}

/// The order in which jobs are configured and bound says nothing of whose limits are whose.
#[test]
fn a_job_has_the_limits_of_its_id() {
    let mut config = PoolConfig {
        slots: 16,
        jobs: jobs([limits(0, 2), limits(0, 1)]),
        ..pool()
    };
    for _ in 0..2 {
        let mut w = World::with(config.clone());
        w.bind(roster(OTHER, 2, 10));
        w.bind(roster(JOB, 3, 0));
        for fragment in 0..4 {
            w.data(fragment, 0, 1);
            w.say(other(fragment, 0, 1), 1);
        }
        assert_eq!((w.shard.slots_of(JOB), w.shard.slots_of(OTHER)), (2, 1));
        config.jobs.reverse();
    }
}

#[test]
#[should_panic(expected = "job 9: bound but not configured")]
fn a_job_that_is_not_configured_is_not_bound() {
    let mut w = World::new(PolicyName::Esa, 8);
    w.bind(roster(JobId(9), 1, 20));
}

#[test]
#[should_panic(expected = "an id twice")]
fn a_pool_knows_each_job_once() {
    World::with(PoolConfig {
        jobs: vec![PoolJob::unlimited(JOB); 2],
        ..pool()
    });
}

#[test]
#[should_panic(expected = "more slots for certain than there are")]
fn minimums_fit_the_pool() {
    world(PolicyName::Esa, 2, 1, limits(1, 2), limits(2, 2));
}
