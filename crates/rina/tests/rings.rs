//! Rings of any racks, with any order of arrival: exact sums, the same bits at all workers.

#![allow(clippy::unwrap_used)]

mod world;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use tally_rina::{Operation, Plan, Rack};
use world::{Add, Fault, Rng, World, check};

const INTEGERS: Add = u32::wrapping_add;
const FLOATS: Add = |a, b| (f32::from_bits(a) + f32::from_bits(b)).to_bits();

/// Racks of random sizes with the ranks 0 to N - 1 in them, and random elements.
fn racks(rng: &mut Rng, members_max: usize, size_max: usize) -> Vec<Rack> {
    let mut racks = Vec::new();
    let (mut members, mut rank) = (0, 0u16);
    let all = 1 + rng.below(members_max);
    while members < all {
        let size = 1 + rng.below(size_max);
        let sums = rng.below(2) == 0;
        let size = if sums { size } else { size.min(all - members) };
        let workers = (rank..).take(size).collect();
        racks.push(Rack { workers, sums });
        members += if sums { 1 } else { size };
        rank += size as u16;
    }
    rng.shuffle(&mut racks);
    racks
}

/// Floats of very different exponents, so that each order has another sum.
fn inputs(rng: &mut Rng, workers: usize, elements: u64, add: Add) -> Vec<Vec<u32>> {
    let is_float = std::ptr::fn_addr_eq(add, FLOATS);
    let mut element = || {
        let bits = rng.next() as u32;
        if is_float {
            let value = (bits as i32 as f32) * f32::powi(2.0, (bits % 40) as i32);
            value.to_bits()
        } else {
            bits
        }
    };
    let mut vector = || (0..elements).map(|_| element()).collect();
    (0..workers).map(|_| vector()).collect()
}

/// Runs a world with a random order of events.
fn run(world: &mut World, rng: &mut Rng) {
    while world.choices() > 0 {
        world.step(rng.below(world.choices()));
    }
}

/// A random world; what the checks say.
fn random(seed: u64, add: Add, fault: Option<Fault>, max: (usize, usize)) -> Result<(), String> {
    let mut rng = Rng(seed);
    let racks = racks(&mut rng, max.0, max.1);
    let members: usize = racks
        .iter()
        .map(|rack| if rack.sums { 1 } else { rack.workers.len() })
        .sum();
    let elements = match rng.below(4) {
        0 => rng.below(3) as u64,
        1 => rng.below(members + 1) as u64,
        _ => rng.below(6 * members) as u64,
    };
    let segment = 1 + rng.below(4) as u64;
    let operation = Operation::ALL[rng.below(3)];
    let plan = if rng.below(2) == 0 {
        Plan::by_rank
    } else {
        Plan::balanced
    };
    let plan = Arc::new(plan(&racks, elements, segment).unwrap());
    let inputs = inputs(&mut rng, plan.workers(), elements, add);
    let mut world = World::new(&plan, operation, add, &inputs, fault);
    run(&mut world, &mut rng);
    check(&world, &inputs).map_err(|why| format!("seed {seed}, {operation:?}, {racks:?}: {why}"))
}

#[test]
fn small_rings_are_exact_in_random_orders() {
    for seed in 0..2000 {
        let add = if seed % 2 == 0 { INTEGERS } else { FLOATS };
        random(seed, add, None, (6, 5)).unwrap();
    }
}

#[test]
fn rings_of_up_to_64_members_and_64_workers_in_a_rack_are_exact() {
    for seed in 0..40 {
        let add = if seed % 2 == 0 { INTEGERS } else { FLOATS };
        random(seed, add, None, (64, 64)).unwrap();
    }
}

#[test]
fn planted_faults_are_found() {
    for fault in [
        Fault::CountedTwice,
        Fault::LeftOut,
        Fault::ArrivalOrder,
        Fault::NotAdded,
        Fault::NotMulticast,
        Fault::WrongSegment,
        Fault::OwnSum,
    ] {
        let found = (0..200).filter(|&seed| random(seed, FLOATS, Some(fault), (6, 5)).is_err());
        assert!(found.count() > 10, "{fault:?}");
    }
}

fn rack(workers: &[u16], sums: bool) -> Rack {
    let workers = workers.into();
    Rack { workers, sums }
}

/// All orders in which events can come, from all states that there are.
fn exhaust(world: World, seen: &mut HashSet<u64>, inputs: &[Vec<u32>], ends: &mut usize) {
    let mut hasher = DefaultHasher::new();
    world.state().hash(&mut hasher);
    if !seen.insert(hasher.finish()) {
        return;
    }
    if world.choices() == 0 {
        check(&world, inputs).unwrap();
        *ends += 1;
    }
    for n in 0..world.choices() {
        let mut next = world.clone();
        next.step(n);
        exhaust(next, seen, inputs, ends);
    }
}

#[test]
fn each_order_of_events_in_small_rings_has_the_same_bits() {
    let rings = [
        (vec![rack(&[0, 1], true), rack(&[2], false)], 2),
        (
            vec![rack(&[0], false), rack(&[1], true), rack(&[2], false)],
            3,
        ),
        (vec![rack(&[1, 0], true), rack(&[2, 3], true)], 1),
        (vec![rack(&[0, 1, 2], true)], 2),
    ];
    for (racks, elements) in rings {
        for operation in Operation::ALL {
            let plan = Arc::new(Plan::balanced(&racks, elements, 1).unwrap());
            let inputs = inputs(&mut Rng(1), plan.workers(), elements, FLOATS);
            let world = World::new(&plan, operation, FLOATS, &inputs, None);
            let (mut seen, mut ends) = (HashSet::new(), 0);
            exhaust(world, &mut seen, &inputs, &mut ends);
            assert_eq!(ends, 1, "one final state of {} for {racks:?}", seen.len());
        }
    }
}

#[test]
fn integers_have_the_same_bits_in_each_order_of_racks() {
    let mut rng = Rng(7);
    for _ in 0..50 {
        let mut racks = racks(&mut rng, 12, 8);
        let workers = racks.iter().map(|rack| rack.workers.len()).sum();
        let inputs = inputs(&mut rng, workers, 100, INTEGERS);
        let mut results = Vec::new();
        for _ in 0..3 {
            rng.shuffle(&mut racks);
            let plan = Arc::new(Plan::balanced(&racks, 100, 3).unwrap());
            let mut world = World::new(&plan, Operation::AllReduce, INTEGERS, &inputs, None);
            run(&mut world, &mut rng);
            check(&world, &inputs).unwrap();
            results.push(world.buffer(0).to_vec());
        }
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
