//! S-5: an abandoned slot is free for the arrival that meets it, and no other slot is.

use super::*;

/// A window of 4 and one set of two ways, after the switch has started anew: a frame that was on
/// its way meanwhile has taken a slot.
fn world(policy: PolicyName) -> World {
    // Static gives each of two jobs half.
    let slots = if policy == PolicyName::Static { 4 } else { 2 };
    World::of_ways(policy, slots, 2, [Limits::NONE; 2])
}

#[test]
fn a_slot_yields_once_its_job_is_a_window_ahead() {
    for policy in POLICIES {
        let mut w = world(policy);
        w.data(10, 2, 1);
        w.data(11, 0, 1);
        // Who sends 13 need not have the result of 10.
        let low = |fragment| Header {
            priority: 0,
            ..data(fragment, 0)
        };
        let expected = partial_of(low(13), 1, ints(5));
        assert_eq!(w.say(low(13), 5), [collided(expected)], "{policy}");
        // Who sends 14 has it.
        assert_eq!(w.say(low(14), 5), [], "{policy}");
        assert_eq!(w.taken(), 2);
        assert_eq!(w.shard.counters().abandoned, 1);
        assert_eq!(w.shard.counters().preemptions, 0);
        w.dropped(DropReason::Duplicate, |w| w.data(11, 0, 1));
        w.dropped(DropReason::Duplicate, |w| w.data(14, 0, 5));
    }
}

#[test]
fn a_result_of_the_ps_says_so_as_well() {
    for policy in POLICIES {
        let mut w = world(policy);
        w.data(10, 2, 1);
        w.data(12, 2, 1);
        assert_eq!(w.say(result_of(Rank::PS, 14), 3).len(), 1);
        assert_eq!(w.data(13, 0, 5), [], "{policy}");
        assert_eq!(w.shard.counters().abandoned, 1);
    }
}

#[test]
fn it_yields_to_any_job_and_of_its_minimum() {
    let certain = Limits {
        min_slots: 1,
        max_slots: 1,
        min_held: 0,
    };
    let mut w = World::of_ways(PolicyName::Esa, 2, 2, [certain, Limits::NONE]);
    w.data(10, 2, 1);
    assert_eq!(w.data(13, 0, 1).len(), 1, "at its maximum");
    assert_eq!(w.say(other(0, 0, 0), 1), []);
    assert_eq!(w.say(other(1, 0, 0), 1).len(), 1, "full");
    assert_eq!(w.data(14, 0, 1), []);
    assert_eq!(w.shard.slots_of(JOB), 1);
    assert_eq!(w.shard.counters().abandoned, 1);
    assert_eq!(w.say(result_of(Rank::PS, 18), 3).len(), 1);
    assert_eq!(w.say(other(2, 0, 0), 1), []);
    assert_eq!((w.shard.slots_of(JOB), w.shard.slots_of(OTHER)), (0, 2));
}

#[test]
fn a_sum_that_fcfs_holds_for_a_result_which_has_passed_elsewhere_yields() {
    let mut w = World::new(PolicyName::Fcfs, 1);
    for rank in 0..3 {
        w.data(10, rank, 1);
    }
    assert_eq!(w.data(13, 0, 1), [collided(partial(13, 1, 1))]);
    assert_eq!(w.data(14, 0, 1), []);
}

#[test]
fn a_result_of_a_worker_says_so_as_well() {
    for policy in POLICIES {
        let mut w = world(policy);
        w.data(10, 2, 1);
        w.data(12, 2, 1);
        assert_eq!(w.say(result_of(Rank(0), 14), 3).len(), 1);
        assert_eq!(w.data(13, 0, 5), [], "{policy}");
        assert_eq!(w.shard.counters().abandoned, 1);
    }
}

/// PROBE says nothing about how far its sender is.
#[test]
fn a_probe_ahead_abandons_nothing() {
    let mut w = world(PolicyName::Esa);
    w.data(10, 2, 1);
    w.data(11, 0, 1);
    assert_eq!(w.probe(14, 0), [nacked(14, 0)]);
    let low = Header {
        priority: 0,
        ..data(13, 0)
    };
    assert_eq!(w.say(low, 5), [collided(partial_of(low, 1, ints(5)))]);
}

/// A late frame takes a slot for a fragment that all but rank 1 have the result of. The PROBEs of
/// rank 1 find those that have it.
#[test]
fn a_probe_gets_the_result_of_a_fragment_that_a_late_frame_opened() {
    for policy in [PolicyName::Esa, PolicyName::Static] {
        let mut w = World::new(policy, 8);
        w.data(10, 0, 1);
        assert_eq!(w.probe(10, 1), [nacked(10, 1)], "{policy}");
        assert_eq!(w.resend(10, 1, 5), [], "joins");
        assert_eq!(w.probe(10, 1), [nacked(10, 2)]);
        let expected = published(result_of(Rank::SWITCH, 10), ints(6), None);
        assert_eq!(w.say(result_of(Rank(2), 10), 6), [expected]);
        assert_eq!(w.taken(), 0);
    }
}

#[test]
fn serial_numbers_wrap() {
    let mut w = World::new(PolicyName::Fcfs, 1);
    w.data(u32::MAX - 1, 2, 1);
    assert_eq!(w.data(1, 0, 1), [collided(partial(1, 1, 1))]);
    assert_eq!(w.data(2, 0, 1), []);
    assert_eq!(w.shard.counters().abandoned, 1);
}
