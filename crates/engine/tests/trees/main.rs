//! Membership of jobs with trees of switches (PROTOCOL.md, "Trees", TR-20 to TR-28): real
//! registries, workers and parameter servers.

#![allow(clippy::unwrap_used)]

mod changes;
mod failures;
mod hostile;
mod restarts;
mod world;

use tally_engine::registry::JobPhase;
use world::{Plan, World, ms};

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
    for seed in 0..12 {
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
    }
}

/// P-6: each node has parameter servers of its own, and waits for all of them.
#[test]
fn nodes_with_several_parameter_servers_wait_for_all_of_them() {
    for missing in 0..7 {
        let mut world = World::with_servers(missing as u64, &TWO, &[2, 1, 4]);
        assert_eq!(world.servers.len(), 7);
        world.loss = 50;
        world.start_all();
        world.servers[missing].ps = None;
        world.run(ms(1500));
        assert!(!world.all_run(), "{}", world.describe());
        world.start_ps(missing);
        world.run_until(ms(5000), World::all_run);
        world.assert_one_epoch();
        // One that dies pauses its node, and the epoch continues when another serves its part.
        let epoch = world.switches[0].bound.as_ref().unwrap().epoch;
        world.servers[missing].ps = None;
        world.run(ms(7000));
        let at = world.servers[missing].switch;
        let phase = |it: &World| it.switches[at].registry.status().next().unwrap().phase;
        assert_eq!(phase(&world), JobPhase::Paused);
        world.start_ps(missing);
        world.run_until(ms(3000), |it| phase(it) == JobPhase::Running);
        assert_eq!(world.switches[0].bound.as_ref().unwrap().epoch, epoch);
    }
}

/// TR-20: of more than 64 workers the global rank is not in the header.
#[test]
fn a_tree_of_more_than_64_workers_forms() {
    let plan = [
        ("spine1", None, 3),
        ("leaf1", Some(0), 40),
        ("leaf2", Some(0), 40),
    ];
    let mut world = World::new(5, &plan);
    world.loss = 20;
    world.start_all();
    world.run_until(ms(8000), World::all_run);
    world.assert_one_epoch();
    world.finish();
    world.run_until(ms(5000), World::all_closed);
    assert!((0..83).all(|rank| world.error(rank).is_none()));
}

/// TR-22: until the parent has given an epoch, workers know what their switch waits for.
#[test]
fn the_error_names_the_parent_that_a_switch_waits_for() {
    let mut world = World::new(1, &THREE);
    world.kill_switch(0);
    world.start_all();
    world.run(ms(31_000));
    for rank in 2..world.hosts.len() {
        let text = world.error_text(rank);
        assert!(
            text.contains("the switch waits for its parent \"core\""),
            "{rank}: {text}"
        );
    }
}

/// TR-26: the missing ranks of other nodes are named while the job waits.
#[test]
fn the_error_names_the_ranks_that_are_missing_elsewhere() {
    for missing in [0, 3, 7] {
        let mut world = World::new(missing, &THREE);
        world.start_all();
        world.hosts[missing as usize].worker = None;
        world.run(ms(31_000));
        for rank in (0..8).filter(|&rank| rank != missing as usize) {
            let text = world.error_text(rank);
            let want = format!("rank {missing} is missing");
            assert!(text.contains(&want), "{rank}: {text}");
        }
    }
}

/// TR-26: so is a PS, of any node.
#[test]
fn the_error_says_that_a_parameter_server_is_missing_elsewhere() {
    for missing in [0, 1, 5] {
        let mut world = World::new(3, &THREE);
        world.start_all();
        world.servers[missing].ps = None;
        world.run(ms(31_000));
        for rank in 0..8 {
            let text = world.error_text(rank);
            assert!(
                text.contains("the parameter server is missing"),
                "{rank}: {text}"
            );
        }
    }
}

/// TR-26, J-10, J-11: who is behind in another rack is named to all, while it runs and in the
/// errors of the end.
#[test]
fn the_straggler_of_another_rack_is_named() {
    for straggler in [0, 2, 4, 7] {
        let mut world = World::new(straggler, &THREE);
        let slow = &mut world.hosts[straggler as usize];
        // It hears of the others before its own timeout.
        slow.config.stall_timeout = ms(20_000);
        world.start_all();
        let (_, data) = world.hosts[straggler as usize].worker.as_mut().unwrap();
        data.until = 0;
        world.run_until(ms(3000), World::all_run);
        world.submit(20);
        world.run(ms(5000));
        for rank in (0..8).filter(|&rank| rank != straggler as usize) {
            let (worker, _) = world.hosts[rank].worker.as_ref().unwrap();
            let text = worker.stall(world.now).unwrap().to_string();
            assert!(
                text.contains(&format!("rank {straggler} has not contributed")),
                "{rank}: {text}"
            );
            assert!(worker.slowest().is_some());
        }
        world.run_until(ms(20_000), World::all_closed);
        world.run(ms(1));
        for rank in (0..8).filter(|&rank| rank != straggler as usize) {
            let text = world.error_text(rank);
            assert!(
                text.contains(&format!("rank {straggler} has not contributed")),
                "{rank}: {text}"
            );
        }
        let text = world.error_text(straggler as usize);
        assert!(text.contains("for us"), "{text}");
    }
}

/// TR-27: the largest window is the smallest of all switches above.
#[test]
fn the_window_is_that_of_the_smallest_switch_above() {
    let mut world = World::new(1, &THREE);
    world.switches[0].window = 4;
    world.start_switch(0);
    world.start_all();
    world.run_until(ms(5000), World::all_run);
    for host in &world.hosts {
        let (worker, _) = host.worker.as_ref().unwrap();
        assert!(worker.windows().0 <= 4, "rank {}", host.config.rank);
    }
}
