//! Switches whose place in a job's tree changes while they run, each at a moment of its own.

use super::world::{JOB, Plan, World, ms};
use super::{TWO, running};

/// [`TWO`] without its second leaf.
const ONE: [Plan; 2] = [("spine1", None, 0), ("leaf1", Some(0), 2)];
/// Three leaves, of which the second is below the first spine or below the second.
const BEFORE: [Plan; 6] = below(1);
const AFTER: [Plan; 6] = below(2);

const fn below(spine: usize) -> [Plan; 6] {
    [
        ("core", None, 0),
        ("spine1", Some(0), 0),
        ("spine2", Some(0), 0),
        ("leaf1", Some(1), 2),
        ("leaf2", Some(spine), 2),
        ("leaf3", Some(2), 2),
    ]
}

/// Gives these switches the trees of a plan, in any order, with a while between each.
fn change(world: &mut World, mut switches: Vec<usize>, plan: &[Plan]) {
    while !switches.is_empty() {
        let which = world.rng.below(switches.len() as u64) as usize;
        let at = switches.swap_remove(which);
        let wait = ms(world.rng.below(1500));
        world.run(wait);
        assert_eq!(world.set_plan(at, plan), Ok(()));
    }
}

/// The job runs within this time, if processes that ended with an error are started anew.
#[track_caller]
fn runs_within(world: &mut World, seconds: u64, what: &str) {
    for _ in 0..2 * seconds {
        world.run(ms(500));
        if world.all_run() {
            world.run(ms(1500));
            return world.assert_one_epoch();
        }
        for rank in 0..world.hosts.len() {
            if world.error(rank).is_some() {
                world.start(rank);
            }
        }
    }
    panic!("{what}: {}", world.describe());
}

/// No place in the tree of a job that runs changes, at the root or at a leaf.
#[test]
fn the_tree_of_a_job_that_runs_is_left_as_it_is() {
    let mut world = running(1, &TWO);
    for at in [0, 1] {
        let error = world.set_plan(at, &ONE).unwrap_err();
        assert!(
            error.to_string().contains("its tree cannot change"),
            "{error}"
        );
    }
    world.run(ms(6000));
    assert!((0..4).all(|rank| world.error(rank).is_none()));
    world.assert_one_epoch();
}

/// A child more: workers of the smaller job sum, and the next epoch has all.
#[test]
fn a_child_is_added_between_two_epochs() {
    for seed in 0..8 {
        let mut world = World::new(seed, &TWO);
        world.loss = (seed % 3) * 40;
        for at in [0, 1] {
            world.set_plan(at, &ONE).unwrap();
        }
        for rank in [0, 1] {
            world.hosts[rank].config.workers = 2;
            world.start(rank);
        }
        (0..3).for_each(|ps| world.start_ps(ps));
        world.run_until(ms(8000), |it| {
            it.switches[..2].iter().all(|it| it.bound.is_some())
        });
        world.finish();
        world.run_until(ms(8000), World::all_closed);
        (0..2).for_each(|rank| world.hosts[rank].config.workers = 4);
        // Workers that are there before their switch knows of them are refused.
        let early = seed % 2 == 0;
        if early {
            (0..4).for_each(|rank| world.start(rank));
        }
        change(&mut world, vec![0, 1], &TWO);
        if !early {
            (0..4).for_each(|rank| world.start(rank));
        }
        runs_within(&mut world, 15, &format!("seed {seed}"));
    }
}

/// Another parent, while the job is idle, while it waits for a rank, and while it is drained.
#[test]
fn a_leaf_is_given_another_parent() {
    for seed in 0..12 {
        let mut world = World::new(seed, &BEFORE);
        world.loss = (seed % 2) * 40;
        world.start_all();
        match seed % 3 {
            0 => {
                world.run_until(ms(8000), World::all_run);
                world.finish();
                world.run_until(ms(8000), World::all_closed);
            }
            1 => {
                world.hosts[3].worker = None;
                world.run(ms(1500));
            }
            _ => assert!(world.switches[0].registry.drain(JOB, true)),
        }
        change(&mut world, (0..6).collect(), &AFTER);
        world.switches[0].registry.drain(JOB, false);
        let is_gone = |world: &World, rank: usize| {
            let worker = world.hosts[rank].worker.as_ref();
            worker.is_none_or(|(worker, _)| worker.is_closed())
        };
        for rank in (0..6)
            .filter(|&rank| is_gone(&world, rank))
            .collect::<Vec<_>>()
        {
            world.start(rank);
        }
        runs_within(&mut world, 15, &format!("seed {seed}"));
        world.finish();
        world.run_until(ms(8000), World::all_closed);
    }
}
