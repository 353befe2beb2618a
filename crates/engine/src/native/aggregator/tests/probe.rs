//! S-7: PROBE, row by row.

use super::*;

const ALL_POLICIES: [PolicyName; 4] = [
    PolicyName::Esa,
    PolicyName::Fcfs,
    PolicyName::Static,
    PolicyName::None,
];

/// PROBE as it leaves to the PS of job 7.
fn forwarded(fragment: u32, rank: u8) -> Sent {
    Sent::To(To::Ps, host(9), probe(fragment, rank), Vec::new())
}

/// PROBE of each rank, with the one answer, and nothing else changed by it.
fn all_ask(w: &mut World, fragment: u32, answer: impl Fn(u8) -> Sent) {
    for rank in 0..3 {
        let expected = answer(rank);
        let mut counters = *w.shard.counters();
        counters.probes += 1;
        let is_nack = matches!(&expected, Sent::To(To::Worker(_), ..));
        counters.probe_nacks += u64::from(is_nack);
        counters.results_again += u64::from(matches!(&expected, Sent::Retransmit(..)));
        let (taken, held, live) = (w.taken(), w.shard.held_in_use(), w.ledger.live());
        assert_eq!(w.probe(fragment, rank), [expected]);
        assert_eq!(*w.shard.counters(), counters);
        assert_eq!((w.taken(), w.shard.held_in_use()), (taken, held));
        assert_eq!(w.ledger.live(), live);
    }
}

#[test]
fn a_finished_fragment_gives_its_result_on_the_askers_port() {
    for policy in ALL_POLICIES {
        let mut w = World::new(policy, 8);
        finish(&mut w, 0, 7);
        if policy == PolicyName::None {
            w.say(result_of(Rank::PS, 0), 7);
        }
        let again = |rank| Sent::Retransmit(Rank(rank), PortId(rank.into()), ints(7));
        all_ask(&mut w, 0, again);
    }
}

#[test]
fn a_fragment_older_than_the_ring_is_late() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        for fragment in 0..9 {
            finish(&mut w, fragment, 1);
        }
        let mut expected = *w.shard.counters();
        assert_eq!(w.probe(0, 1), [], "{policy}");
        expected.probes += 1;
        expected.drop(DropReason::Late);
        assert_eq!(*w.shard.counters(), expected);
        assert_eq!(w.probe(1, 1).len(), 1, "still in the ring");
    }
}

/// Slots of every set of ranks of a job of five, and each asker.
#[test]
fn a_rank_that_the_slot_lacks_is_asked_from_the_asker_on_upwards() {
    for policy in POLICIES {
        for inside in 1..31u64 {
            let mut w = World::with(PoolConfig { policy, ..pool() });
            w.bind(roster(JOB, 5, 0));
            for rank in (0..5).filter(|rank| inside >> rank & 1 == 1) {
                assert_eq!(w.data(0, rank, 1), []);
            }
            for asker in 0..5 {
                let cyclic = (asker..5).chain(0..asker);
                let mut lacking = cyclic.filter(|rank| inside >> rank & 1 == 0);
                let asked = lacking.next().unwrap();
                assert_eq!(w.probe(0, asker), [nacked(0, asked)], "{policy} {inside:b}");
            }
            assert_eq!(w.taken(), 1);
        }
    }
}

#[test]
fn ranks_of_a_job_of_sixty_four_are_asked_likewise() {
    let mut w = World::with(pool());
    w.bind(next_epoch(64));
    let mut asked = |inside: &[u8], asker: u8, fragment: u32| {
        let of = |header: Header| Header {
            epoch: Epoch(4),
            ..header
        };
        for &rank in inside {
            let from = host(u16::from(rank));
            assert_eq!(w.handle(from, of(data(fragment, rank)), &ints(1)), []);
        }
        let from = host(u16::from(asker));
        match &w.handle(from, of(probe(fragment, asker)), &[])[..] {
            [Sent::To(To::Worker(rank), ..)] => rank.0,
            sent => panic!("{sent:?}"),
        }
    };
    assert_eq!(asked(&[0], 63, 0), 63);
    assert_eq!(asked(&[63], 63, 1), 0);
    assert_eq!(asked(&[63, 0], 63, 2), 1);
    assert_eq!(asked(&[0], 0, 3), 1);
}

#[test]
fn what_waits_for_its_turn_is_in_the_slot() {
    let mut w = World::new(PolicyName::Esa, 8);
    let float = Header {
        element: Element::F32,
        ..data(0, 2)
    };
    assert_eq!(w.say(float, 0), []);
    assert_eq!(w.shard.held_in_use(), 1);
    all_ask(&mut w, 0, |rank| nacked(0, [0, 1, 0][usize::from(rank)]));
}

#[test]
fn a_fragment_of_which_nothing_is_known_asks_the_asker() {
    for policy in ALL_POLICIES {
        let mut w = World::new(policy, 1);
        all_ask(&mut w, 0, |rank| nacked(0, rank));
        // Another fragment in its slot is none of it.
        w.data(1, 0, 1);
        all_ask(&mut w, 0, |rank| nacked(0, rank));
    }
}

#[test]
fn a_fragment_of_the_ps_asks_the_ps() {
    for ranks in 1..4 {
        let mut w = World::new(PolicyName::Esa, 1);
        w.say(other(0, 0, 200), 1);
        for rank in 0..ranks {
            assert_eq!(w.data(0, rank, 1).len(), 1, "collides");
        }
        all_ask(&mut w, 0, |rank| forwarded(0, rank));
    }
}

#[test]
fn a_fragment_that_was_reminded_or_preempted_asks_the_ps() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(0, 0, 1);
    w.say(ps(Kind::Remind, 0), 0);
    all_ask(&mut w, 0, |rank| forwarded(0, rank));
    w.data(1, 0, 1);
    w.say(other(0, 0, 99), 1);
    all_ask(&mut w, 1, |rank| forwarded(1, rank));
}

#[test]
fn a_rank_that_is_neither_in_the_slot_nor_noted_is_asked() {
    for policy in [PolicyName::Esa, PolicyName::Static] {
        let mut w = World::new(policy, 1);
        w.say(other(0, 0, 10), 1);
        assert_eq!(w.data(0, 1, 1).len(), 1, "collides");
        assert_eq!(w.say(other(0, 1, 10), 1).len(), 1, "completes");
        w.data(0, 0, 1);
        all_ask(&mut w, 0, |_| nacked(0, 2));
    }
}

/// Under static the slot does not follow: the PS has to ask for it.
#[test]
fn a_slot_and_notes_that_have_all_ranks_ask_the_ps() {
    let mut w = World::new(PolicyName::Static, 1);
    w.say(other(0, 0, 10), 1);
    w.data(0, 1, 1);
    w.say(other(0, 1, 10), 1);
    w.data(0, 0, 1);
    assert_eq!(w.data(0, 2, 1), []);
    all_ask(&mut w, 0, |rank| forwarded(0, rank));
    assert_eq!(w.say(ps(Kind::Remind, 0), 0), [partial(0, 0b101, 2)]);
}

/// S-8 is for all policies: what found no place to wait for its turn has gone to the PS.
#[test]
fn what_found_no_place_to_wait_is_noted() {
    for policy in POLICIES {
        let mut w = World::with(PoolConfig {
            held: 0,
            policy,
            ..pool()
        });
        w.bind(roster(JOB, 3, 0));
        let float = |rank| Header {
            element: Element::F32,
            ..data(0, rank)
        };
        assert_eq!(w.say(float(0), 0), []);
        assert_eq!(w.say(float(2), 0), [partial_of(float(2), 0b100, ints(0))]);
        all_ask(&mut w, 0, |_| nacked(0, 1));
        // Also where it would have opened the slot.
        let float = Header {
            fragment: FragmentId(1),
            ..float(2)
        };
        assert_eq!(w.say(float, 0), [partial_of(float, 0b100, ints(0))]);
        all_ask(&mut w, 1, |rank| forwarded(1, rank));
    }
}

#[test]
fn a_sum_that_fcfs_has_sent_asks_the_ps() {
    let mut w = World::new(PolicyName::Fcfs, 8);
    for rank in 0..3 {
        w.data(0, rank, 1);
    }
    all_ask(&mut w, 0, |rank| forwarded(0, rank));
    assert_eq!(w.taken(), 1);
}

#[test]
fn a_probe_of_a_slot_that_fcfs_evicted_asks_the_ps() {
    let mut w = World::new(PolicyName::Fcfs, 8);
    w.data(0, 0, 1);
    w.resend(0, 1, 1);
    all_ask(&mut w, 0, |rank| forwarded(0, rank));
    // What comes now takes a slot anew, and the PS knows of the others.
    w.data(0, 2, 1);
    all_ask(&mut w, 0, |rank| forwarded(0, rank));
}

#[test]
fn without_slots_the_ps_is_asked_for_what_it_got() {
    let mut w = World::new(PolicyName::None, 8);
    w.data(0, 1, 1);
    all_ask(&mut w, 0, |rank| forwarded(0, rank));
    all_ask(&mut w, 1, |rank| nacked(1, rank));
}

#[test]
fn after_a_hand_over_nothing_is_known() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(0, 0, 1);
    w.shard.hand_over(JOB, &mut w.wire);
    w.wire.take();
    w.bind(roster(JOB, 3, 0));
    all_ask(&mut w, 0, |rank| nacked(0, rank));
}
