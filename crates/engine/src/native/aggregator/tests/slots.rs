//! The rows of section 6, in their order.

use super::*;

// --- The rows of section 6, in their order. ---

#[test]
fn a_resend_in_the_ring_gets_the_result_on_its_own_port() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        finish(&mut w, 0, 7);
        let discarded = w.wire.discarded;
        assert_eq!(
            w.resend(0, 1, 99),
            [Sent::Retransmit(Rank(1), PortId(1), ints(7))],
            "{policy}"
        );
        assert_eq!(w.wire.discarded, discarded + 1, "the question's buffer");
        assert_eq!(w.shard.counters().results_again, 1);
        assert_eq!(w.shard.counters().drops, crate::Drops::default());
        assert_eq!(w.taken(), 0);
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
    assert_eq!(w.data(1, 0, 5), [collided(partial(1, 0b001, 5))]);
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

// --- S-8: the rest of a fragment follows what went to the PS. ---

#[test]
fn a_slot_follows_what_found_no_slot() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.say(other(0, 0, 10), 1);
    assert_eq!(w.data(0, 1, 10), [collided(partial(0, 0b010, 10))]);
    w.say(other(0, 1, 10), 1);
    assert_eq!(w.taken(), 0, "the other completes");
    assert_eq!(w.data(0, 0, 1), []);
    w.dropped(DropReason::Duplicate, |w| w.data(0, 1, 10));
    let again = flagged(partial(0, 0b010, 10), Flags::RESEND);
    assert_eq!(w.resend(0, 1, 10), [again], "lost on the way, perhaps");
    assert_eq!(w.data(0, 2, 100), [partial(0, 0b101, 101)]);
    assert_eq!(w.taken(), 0);
    assert_eq!(w.shard.counters().followed, 1);
    w.dropped(DropReason::Duplicate, |w| w.data(0, 2, 100));
    assert_eq!(w.taken(), 0, "nothing is left to wait for");
}

#[test]
fn a_slot_follows_what_was_evicted_or_reminded() {
    for remind in [false, true] {
        let mut w = World::new(PolicyName::Esa, 1);
        w.data(0, 0, 1);
        w.data(0, 1, 10);
        if remind {
            w.say(ps(Kind::Remind, 0), 0);
        } else {
            w.say(other(0, 0, 99), 1);
            w.say(other(0, 1, 99), 1);
        }
        assert_eq!(w.taken(), 0);
        assert_eq!(w.data(0, 2, 100), [partial(0, 0b100, 100)]);
        assert_eq!(w.taken(), 0);
    }
}

#[test]
fn baselines_wait_to_be_asked() {
    let mut w = World::new(PolicyName::Fcfs, 1);
    w.say(other(0, 0, 10), 1);
    w.data(0, 1, 10);
    w.say(other(0, 1, 10), 1);
    let done = Header {
        job: OTHER,
        ..result_of(Rank::PS, 0)
    };
    assert_eq!(w.say(done, 2).len(), 1);
    w.data(0, 0, 1);
    assert_eq!(w.data(0, 2, 100), []);
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
    assert_eq!(
        w.say(other(5, 0, 11), 40),
        [collided(partial(0, 0b101, 101))]
    );
    assert_eq!(w.shard.counters().preemptions, 1);
    assert_eq!(w.shard.counters().collisions, 0);
    let done = Header {
        priority: 11,
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
    let expected = |f, p| collided(partial_of(other(f, 0, p), 0b01, ints(40)));
    assert_eq!(w.say(other(5, 0, 10), 40), [expected(5, 10)], "equal");
    assert_eq!(
        w.say(other(6, 0, 5), 40),
        [expected(6, 5)],
        "10 was halved to 5"
    );
    assert_eq!(
        w.say(other(7, 0, 1), 40),
        [expected(7, 1)],
        "5 was halved to 2"
    );
    assert_eq!(w.shard.counters().collisions, 3);
    let mut held = partial(0, 0b001, 1);
    if let Sent::To(_, _, header, _) = &mut held {
        header.priority = 1;
    }
    assert_eq!(
        w.say(other(8, 0, 2), 40),
        [collided(held)],
        "2 was halved to 1"
    );
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
    let expected = collided(partial_of(other(5, 0, 30), 0b01, ints(40)));
    assert_eq!(w.say(other(5, 0, 30), 40), [expected], "equal");
}

#[test]
fn fcfs_and_static_never_preempt() {
    for policy in [PolicyName::Fcfs, PolicyName::Static] {
        // One slot is less than two jobs need, so also static has to share it.
        let mut w = World::new(policy, 1);
        w.data(0, 0, 1);
        for priority in [255, 10, 0, 1] {
            let expected = collided(partial_of(other(5, 0, priority), 0b01, ints(40)));
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
    assert_eq!(w.data(2, 0, 5), [collided(partial(2, 0b001, 5))]);
    let urgent = Header {
        priority: 200,
        ..data(2, 1)
    };
    let mut held = partial(0, 0b001, 1);
    if let Sent::To(_, _, header, _) = &mut held {
        header.priority = 5;
    }
    assert_eq!(w.say(urgent, 5), [collided(held)]);
}
