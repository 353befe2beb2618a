//! S-1: combining, and the order of f32.

use super::*;

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
        [collided(flagged(
            partial(1, 0b011, i32::MIN),
            Flags::OVERFLOW
        ))]
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
        policy,
        ..pool()
    });
    w.bind(roster(JOB, 4, 0));
    w.bind(roster(OTHER, 2, 10));
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

fn fold(ranks: Range<usize>) -> f32 {
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
fn floats_are_folded_in_rank_order_in_any_order_of_arrival() {
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
                ..result_of(Rank::SWITCH, 0)
            };
            let expected = published_to(4, done, floats(fold(0..4)), Some(Time(1000)));
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
                let fold = floats(fold(0..folded));
                expected.push(collided(partial_of(float_data(0, 0), bits, fold)));
            }
            for rank in (folded..4).filter(|r| here >> r & 1 == 1) {
                let own = partial_of(float_data(0, 0), 1 << rank, floats(TERMS[rank]));
                expected.push(collided(own));
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
    // The rest follows it there.
    assert_eq!(say_float(&mut w, float_data(0, 0)), []);
    let fold = partial_of(float_data(0, 0), 0b0011, floats(fold(0..2)));
    let held = partial_of(float_data(0, 0), 0b1000, floats(TERMS[3]));
    assert_eq!(say_float(&mut w, float_data(0, 1)), [fold, held]);
    assert_eq!(w.taken(), 0);
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
