//! RESEND: it joins a slot, takes one, or goes to the PS.

use super::*;

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

/// The PS answers a RESEND of what it has finished with RESULT (P-2), so the RESEND must reach it
/// also when the slot held its contribution, or had sent the sum already.
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
fn a_resend_of_an_unknown_fragment_takes_a_slot() {
    for policy in [PolicyName::Esa, PolicyName::Static] {
        let mut w = World::new(policy, 8);
        assert_eq!(w.resend(0, 1, 10), [], "{policy}");
        assert_eq!(w.taken(), 1);
        let c = *w.shard.counters();
        assert_eq!((c.slots_taken, c.partials, c.resends_to_ps), (1, 0, 0));
        w.dropped(DropReason::Duplicate, |w| w.resend(0, 1, 10));
        w.dropped(DropReason::Duplicate, |w| w.data(0, 1, 10));
        w.resend(0, 0, 1);
        assert_eq!(w.resend(0, 2, 100), [result(0, 111)], "{policy}");
    }
}

#[test]
fn without_slots_or_under_fcfs_a_resend_goes_to_the_ps() {
    for policy in [PolicyName::Fcfs, PolicyName::None] {
        let mut w = World::new(policy, 8);
        let expected = flagged(partial(0, 0b010, 5), Flags::RESEND);
        assert_eq!(w.resend(0, 1, 5), [expected], "{policy}");
        assert_eq!(w.taken(), 0);
        let c = *w.shard.counters();
        assert_eq!((c.slots_taken, c.resends_to_ps, c.collisions), (0, 1, 0));
    }
}

fn urgent(header: Header, priority: u8) -> Header {
    Header { priority, ..header }
}

#[test]
fn a_resend_preempts_as_data_does() {
    for first in [data, resend] {
        let mut w = World::new(PolicyName::Esa, 1);
        w.data(0, 0, 1);
        let arrival = Header {
            job: OTHER,
            ..urgent(first(5, 0), 11)
        };
        assert_eq!(w.say(arrival, 40), [collided(partial(0, 0b001, 1))]);
        assert_eq!(w.shard.counters().preemptions, 1);
        assert_eq!((w.shard.slots_of(JOB), w.shard.slots_of(OTHER)), (0, 1));
        assert_eq!(w.say(other(5, 1, 0), 2).len(), 1, "completes");
    }
}

#[test]
fn a_resend_collides_as_data_does() {
    for policy in [PolicyName::Esa, PolicyName::Static] {
        for first in [data, resend] {
            let mut w = World::new(policy, 1);
            w.data(0, 0, 1);
            let arrival = Header {
                job: OTHER,
                ..first(5, 0)
            };
            let expected = collided(partial_of(arrival, 0b01, ints(40)));
            assert_eq!(w.say(arrival, 40), [expected], "{policy}");
            let c = *w.shard.counters();
            let is_resend = u64::from(arrival.flags.has(Flags::RESEND));
            assert_eq!((c.collisions, c.resends_to_ps), (1, is_resend));
            assert_eq!((c.partials, c.preemptions), (1, 0));
            // Under esa it has halved the priority of the slot.
            let mut held = partial(0, 0b001, 1);
            if let Sent::To(_, _, header, _) = &mut held
                && policy == PolicyName::Esa
            {
                header.priority = 5;
            }
            assert_eq!(w.say(ps(Kind::Remind, 0), 0), [held]);
        }
    }
}

#[test]
fn a_resend_takes_no_slot_above_the_maximum_of_its_job() {
    let most = Limits {
        max_slots: 1,
        ..Limits::NONE
    };
    let mut w = World::of_ways(PolicyName::Esa, 8, 1, [most, Limits::NONE]);
    w.resend(0, 0, 1);
    let expected = flagged(partial(1, 0b001, 1), Flags::RESEND);
    assert_eq!(w.resend(1, 0, 1), [collided(expected)]);
    assert_eq!(w.shard.slots_of(JOB), 1);
}

/// S-8: in each way in which a part of the fragment can come to the PS, RESEND follows it there and
/// takes no slot.
#[test]
fn a_resend_follows_a_part_of_its_fragment_to_the_ps() {
    let acts: [fn(&mut World); 3] = [
        |w| {
            w.say(urgent(other(4, 0, 0), 10), 1);
            assert_eq!(w.data(0, 0, 1).len(), 1, "collides");
            w.say(other(4, 1, 0), 1);
        },
        |w| {
            w.data(0, 0, 1);
            assert_eq!(w.say(ps(Kind::Remind, 0), 0).len(), 1);
        },
        |w| {
            w.resend(0, 0, 1);
            assert_eq!(w.say(other(4, 0, 11), 1).len(), 1, "preempts");
            w.say(other(4, 1, 0), 1);
        },
    ];
    for policy in [PolicyName::Esa, PolicyName::Static] {
        let how = if policy == PolicyName::Esa { 3 } else { 2 };
        for act in &acts[..how] {
            // Of one slot, which jobs share also under static.
            let mut w = World::new(policy, 1);
            act(&mut w);
            assert_eq!(w.taken(), 0);
            let before = *w.shard.counters();
            for rank in [1, 0, 2, 1] {
                let expected = flagged(partial(0, 1 << rank, 5), Flags::RESEND);
                assert_eq!(w.resend(0, rank, 5), [expected], "{policy}");
                assert_eq!(w.taken(), 0);
            }
            let c = *w.shard.counters();
            assert_eq!(c.resends_to_ps, before.resends_to_ps + 4);
            assert_eq!(c.slots_taken, before.slots_taken);
            // Of another fragment nothing is noted.
            assert_eq!(w.resend(1, 0, 5), []);
            assert_eq!(w.taken(), 1);
        }
    }
}

#[test]
fn a_resend_takes_a_stale_slot() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(10, 2, 1);
    assert_eq!(w.resend(14, 0, 5), [], "S-5");
    assert_eq!(w.shard.counters().abandoned, 1);
    w.dropped(DropReason::Duplicate, |w| w.resend(14, 0, 5));
}
