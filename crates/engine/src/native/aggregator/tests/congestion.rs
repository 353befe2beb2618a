//! C-1 and C-2: what leaves says what its parts met.

use super::*;

fn marked(header: Header) -> Header {
    Header {
        flags: header.flags.with(Flags::MARKED),
        ..header
    }
}

#[test]
fn a_sum_is_marked_if_any_part_of_it_is() {
    for policy in [PolicyName::Esa, PolicyName::Static] {
        for which in 0..3 {
            let mut w = World::new(policy, 8);
            let mut sent = Vec::new();
            for rank in 0..3 {
                let header = data(0, rank);
                let header = if rank == which {
                    marked(header)
                } else {
                    header
                };
                sent = w.say(header, 1);
            }
            assert_eq!(sent, [flagged(result(0, 3), Flags::MARKED)], "{policy}");
            // The slot's next fragment starts clean.
            for rank in 0..2 {
                w.data(8, rank, 1);
            }
            assert_eq!(w.data(8, 2, 1), [result(8, 3)]);
        }
    }
}

#[test]
fn fcfs_tells_the_ps_that_a_complete_sum_is_marked() {
    let mut w = World::new(PolicyName::Fcfs, 8);
    w.say(marked(data(0, 0)), 1);
    w.data(0, 1, 1);
    assert_eq!(
        w.data(0, 2, 1),
        [flagged(partial(0, 0b111, 3), Flags::MARKED)]
    );
}

#[test]
fn a_partial_is_marked_also_when_it_is_asked_for_and_then_met_no_collision() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.say(marked(data(0, 0)), 1);
        w.data(0, 2, 1);
        assert_eq!(
            w.say(ps(Kind::Remind, 0), 0),
            [flagged(partial(0, 0b101, 2), Flags::MARKED)],
            "{policy}"
        );
    }
}

#[test]
fn both_flags_leave_with_a_preempted_partial() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(0, 0, 1);
    w.say(marked(data(0, 1)), 1);
    let flags = Flags::MARKED.with(Flags::COLLISION);
    assert_eq!(
        w.say(other(5, 0, 11), 40),
        [flagged(partial(0, 0b011, 2), flags)]
    );
}

#[test]
fn a_float_that_waits_for_its_turn_marks_the_sum() {
    let mut w = World::new(PolicyName::Esa, 8);
    let float = |rank| Header {
        element: Element::F32,
        ..data(0, rank)
    };
    assert_eq!(w.say(marked(float(2)), 0), []);
    assert_eq!(w.say(float(0), 0), []);
    let done = Header {
        element: Element::F32,
        ..result_of(Rank::SWITCH, 0)
    };
    let expected = published(marked(done), ints(0), Some(Time(1000)));
    assert_eq!(w.say(float(1), 0), [expected]);
}

#[test]
fn a_marked_contribution_stays_marked_on_its_way_to_the_ps() {
    let mut w = World::new(PolicyName::Fcfs, 1);
    w.data(0, 0, 1);
    let flags = Flags::MARKED.with(Flags::COLLISION);
    assert_eq!(
        w.say(marked(data(1, 0)), 5),
        [flagged(partial(1, 0b001, 5), flags)],
        "collided"
    );
    // Loss is no collision.
    let flags = Flags::MARKED.with(Flags::RESEND);
    assert_eq!(
        w.say(marked(resend(1, 1)), 5),
        [flagged(partial(1, 0b010, 5), flags)],
        "sent again"
    );
}

#[test]
fn a_result_of_the_ps_keeps_its_flags() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        let flags = Flags::MARKED.with(Flags::COLLISION);
        let from_ps = Header {
            flags,
            ..result_of(Rank::PS, 0)
        };
        let expected = published(result_of(Rank::SWITCH, 0), ints(3), None);
        let expected = flagged(expected, flags.with(Flags::FROM_PS));
        assert_eq!(w.say(from_ps, 3), [expected], "{policy}");
    }
}

#[test]
fn what_finds_no_place_to_wait_has_met_no_collision() {
    let mut w = World::with(PoolConfig { held: 0, ..pool() });
    w.bind(roster(JOB, 3, 0));
    let float = Header {
        element: Element::F32,
        ..data(0, 2)
    };
    assert_eq!(w.say(float, 0), [partial_of(float, 0b100, ints(0))]);
}
