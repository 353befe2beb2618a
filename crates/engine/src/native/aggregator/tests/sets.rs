//! Pools of more than one way.

use super::*;

fn sets(policy: PolicyName, slots: u32, ways: u32) -> World {
    World::of_window(policy, slots, ways, 128, [Limits::NONE; 2])
}

fn urgent(fragment: u32, rank: u8, priority: u8) -> Header {
    Header {
        priority,
        ..data(fragment, rank)
    }
}

#[test]
fn fragments_that_meet_take_the_ways_of_their_set() {
    for policy in [PolicyName::Esa, PolicyName::Fcfs] {
        for ways in [2u32, 4, 8] {
            // Another job's fragments and the job's own, all of them in the one set.
            let mut w = sets(policy, ways, ways);
            for fragment in 0..ways / 2 {
                assert_eq!(w.data(fragment, 0, 1), [], "{policy} {ways}");
                assert_eq!(w.say(other(fragment, 0, 10), 1), []);
            }
            assert_eq!(w.taken(), ways as usize);
            assert_eq!(w.shard.counters().collisions, 0);
            assert_eq!(
                w.data(100, 0, 5),
                [collided(partial(100, 0b001, 5))],
                "full"
            );
        }
    }
}

#[test]
fn a_fragment_is_found_in_each_way() {
    for policy in POLICIES {
        for ways in [1, 2, 4, 8] {
            let mut w = sets(policy, 32, ways);
            // They share a set with 8 ways, two sets with 4.
            for rank in [2, 0] {
                for fragment in 0..4 {
                    w.data(fragment * 4, rank, 1);
                }
            }
            assert_eq!(w.taken(), 4);
            assert_eq!(
                w.resend(4, 0, 1).len(),
                usize::from(policy == PolicyName::Fcfs) * 2
            );
            assert_eq!(w.say(result_of(Rank::PS, 0), 3).len(), 1);
            assert_eq!(w.data(8, 1, 1).len(), 1);
            assert_eq!(w.say(ps(Kind::Remind, 12), 0), [partial(12, 0b101, 2)]);
            assert_eq!(w.taken(), 1, "4, or for fcfs the complete 8");
            w.dropped(DropReason::Late, |w| w.data(0, 1, 1));
        }
    }
}

#[test]
fn the_way_of_lowest_priority_yields() {
    let mut w = sets(PolicyName::Esa, 4, 4);
    for (fragment, priority) in [(0, 40), (1, 20), (2, 30), (3, 50)] {
        w.say(urgent(fragment, 0, priority), 1);
    }
    let mut held = partial(1, 0b001, 1);
    if let Sent::To(_, _, header, _) = &mut held {
        header.priority = 20;
    }
    assert_eq!(w.say(other(9, 0, 21), 1), [collided(held)]);
    assert_eq!(w.taken(), 4);
    assert_eq!(w.shard.counters().preemptions, 1);
}

#[test]
fn of_equal_ways_the_oldest_yields() {
    let mut w = sets(PolicyName::Esa, 4, 4);
    for (fragment, born) in [(0, 3000), (1, 2000), (2, 1000), (3, 4000)] {
        w.now = Time(born);
        w.data(fragment, 0, 1);
    }
    assert_eq!(w.say(other(9, 0, 11), 1), [collided(partial(2, 0b001, 1))]);
}

#[test]
fn an_arrival_that_does_not_preempt_halves_its_victim_and_no_other_way() {
    let mut w = sets(PolicyName::Esa, 2, 2);
    w.say(urgent(0, 0, 40), 1);
    w.say(urgent(1, 0, 20), 1);
    // 20 is halved to 10, 5, 2; 40 never.
    for (fragment, priority) in [(9, 20), (10, 10), (11, 5)] {
        let sent = w.say(other(fragment, 0, priority), 1);
        assert_eq!(
            sent,
            [collided(partial_of(
                other(fragment, 0, priority),
                1,
                ints(1)
            ))]
        );
    }
    let at = |fragment, priority| {
        let mut held = partial(fragment, 0b001, 1);
        if let Sent::To(_, _, header, _) = &mut held {
            header.priority = priority;
        }
        held
    };
    assert_eq!(w.say(ps(Kind::Remind, 0), 0), [at(0, 40)]);
    assert_eq!(w.say(ps(Kind::Remind, 1), 0), [at(1, 2)]);
}

/// Fragments of a window in a row fill the sets evenly.
#[test]
fn a_job_whose_window_fits_the_pool_does_not_collide_with_itself() {
    for policy in [PolicyName::Esa, PolicyName::Fcfs, PolicyName::Static] {
        for ways in [1, 2, 4, 8] {
            let mut w = sets(policy, 32, ways);
            let share = if policy == PolicyName::Static { 16 } else { 32 };
            for fragment in 0..share {
                assert_eq!(w.data(fragment, 0, 1), [], "{policy}, {ways} ways");
            }
            assert_eq!(w.taken(), share as usize);
        }
    }
}

#[test]
#[should_panic(expected = "ways: 1, 2, 4 or 8")]
fn more_ways_than_slots_are_no_pool() {
    sets(PolicyName::Esa, 2, 4);
}

#[test]
#[should_panic(expected = "ways: 1, 2, 4 or 8")]
fn ways_are_at_most_eight() {
    sets(PolicyName::Esa, 64, 16);
}
