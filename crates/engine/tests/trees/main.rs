//! Membership of jobs with trees of switches (PROTOCOL.md, "Trees", TR-20 to TR-28): real
//! registries, workers and parameter servers.

#![allow(clippy::unwrap_used)]

mod world;

use tally_engine::registry::JobPhase;
use world::{JOB, Plan, TIMEOUT, World, ms};

/// A root with two leaves of two workers each.
const TWO: [Plan; 3] = [
    ("spine1", None, 0),
    ("leaf1", Some(0), 2),
    ("leaf2", Some(0), 2),
];
/// Three levels, with hosts at each.
const THREE: [Plan; 6] = [
    ("core", None, 1),
    ("spine1", Some(0), 1),
    ("spine2", Some(0), 0),
    ("leaf1", Some(1), 2),
    ("leaf2", Some(1), 1),
    ("leaf3", Some(2), 3),
];

fn running(seed: u64, plan: &[Plan]) -> World {
    let mut world = World::new(seed, plan);
    world.start_all();
    world.run_until(ms(3000), World::all_run);
    world.assert_one_epoch();
    world
}

/// TR-20, TR-24: a job forms in any order of arrival, with loss, and all nodes have one epoch.
#[test]
fn a_tree_forms_in_any_order_with_loss() {
    for seed in 0..40 {
        let plan: &[Plan] = if seed % 2 == 0 { &TWO } else { &THREE };
        let mut world = World::new(seed, plan);
        world.loss = (seed % 4) * 70;
        let mut order: Vec<_> = (0..world.hosts.len() + world.servers.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, world.rng.below(at as u64 + 1) as usize);
        }
        for which in order {
            match which.checked_sub(world.hosts.len()) {
                None => world.start(which),
                Some(ps) => world.start_ps(ps),
            }
            let wait = ms(world.rng.below(400));
            world.run(wait);
        }
        world.run_until(ms(15_000), World::all_run);
        world.assert_one_epoch();
        world.finish();
        world.run_until(ms(5000), World::all_closed);
        world.run_until(ms(5000), |it| {
            it.switches.iter().all(|it| it.bound.is_none())
        });
        for it in &world.switches {
            assert_eq!(it.registry.status().next().unwrap().phase, JobPhase::Idle);
        }
        let _ = (JOB, TIMEOUT);
    }
}
