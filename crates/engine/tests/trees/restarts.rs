//! Switches that start anew: before the job runs, while it runs, and while it ends (TR-23, J-4).

use super::world::{Plan, World, ms};
use super::{THREE, TWO, running};
use tally_engine::registry::JobPhase;

/// Kills some switches, starts them after a while, and says which.
fn restart(world: &mut World, count: u64, down: u64) -> Vec<usize> {
    let mut which = Vec::new();
    for _ in 0..count {
        let at = world.rng.below(world.switches.len() as u64) as usize;
        if !which.contains(&at) {
            which.push(at);
            world.kill_switch(at);
        }
    }
    let wait = ms(world.rng.below(down));
    world.run(wait);
    for &at in &which {
        world.start_switch(at);
        let wait = ms(world.rng.below(100));
        world.run(wait);
    }
    which
}

fn plan(seed: u64) -> &'static [Plan] {
    if seed.is_multiple_of(2) { &TWO } else { &THREE }
}

#[track_caller]
fn ends_well(world: &mut World, what: &str) {
    world.finish();
    world.run_until(ms(8000), World::all_closed);
    for rank in 0..world.hosts.len() {
        let error = world.error(rank);
        assert!(error.is_none(), "{what}: rank {rank}: {error:?}");
    }
}

/// Restarts of one or two switches while the job forms: it runs all the same.
#[test]
fn a_switch_that_restarts_before_the_job_runs_delays_it_only() {
    for seed in 0..14 {
        let mut world = World::new(seed, plan(seed));
        world.loss = (seed % 3) * 40;
        world.start_all();
        let wait = ms(world.rng.below(500));
        world.run(wait);
        let which = restart(&mut world, 1 + seed % 2, 1500);
        world.run_until(ms(15_000), |it| {
            it.all_run() && it.switches.iter().all(|it| it.bound.is_some())
        });
        world.run(ms(1500));
        world.assert_one_epoch();
        ends_well(&mut world, &format!("seed {seed}, restarted {which:?}"));
    }
}

/// Restarts of one or two switches while the job runs: the epoch resumes, without a round.
#[test]
fn a_switch_that_restarts_while_the_job_runs_resumes_the_epoch() {
    for seed in 0..14 {
        let mut world = running(seed, plan(seed));
        world.loss = (seed % 3) * 40;
        let epoch = world.switches[0].bound.as_ref().unwrap().epoch;
        let wait = ms(world.rng.below(1000));
        world.run(wait);
        let which = restart(&mut world, 1 + seed % 2, 2000);
        world.run_until(ms(4000), |it| {
            it.switches.iter().all(|it| it.bound.is_some())
        });
        world.run(ms(1500));
        world.assert_one_epoch();
        let now = world.switches[0].bound.as_ref().unwrap().epoch;
        assert_eq!(now, epoch, "seed {seed}, restarted {which:?}");
        ends_well(&mut world, &format!("seed {seed}, restarted {which:?}"));
    }
}

/// Restarts while workers leave: all finish, and no switch keeps the job.
#[test]
fn a_switch_that_restarts_while_the_job_ends_ends_it() {
    for seed in 0..14 {
        let mut world = running(seed, plan(seed));
        world.loss = (seed % 3) * 40;
        world.finish();
        let wait = ms(world.rng.below(60));
        world.run(wait);
        let which = restart(&mut world, 1 + seed % 2, 300);
        world.run_until(ms(8000), World::all_closed);
        for rank in 0..world.hosts.len() {
            let error = world.error(rank);
            assert!(
                error.is_none(),
                "seed {seed} {which:?}: rank {rank}: {error:?}"
            );
        }
        world.run(ms(14_000));
        for it in &world.switches {
            let phase = it.registry.status().next().unwrap().phase;
            assert_eq!(
                phase,
                JobPhase::Idle,
                "seed {seed} {which:?}: {}",
                world.describe()
            );
        }
    }
}

/// TR-23: a leaf that restarts together with its workers does not continue the epoch with new
/// ones: the others hear which ranks were lost, and where, in bounded time.
#[test]
fn new_workers_behind_a_restarted_switch_do_not_enter_the_epoch() {
    for seed in 0..10 {
        let mut world = running(seed, &TWO);
        world.kill_switch(1);
        for rank in 0..2 {
            world.hosts[rank].worker = None;
        }
        world.run(ms(200));
        world.start_switch(1);
        for rank in 0..2 {
            world.start(rank);
        }
        let before = world.switches[0].bound.as_ref().unwrap().epoch;
        world.run_until(ms(7000), |it| {
            it.error(2).is_some() && it.error(3).is_some()
        });
        for rank in 2..4 {
            let text = world.error_text(rank);
            assert!(
                text.starts_with("ranks 0 to 1 lost: switch \"leaf1\" silent for 5"),
                "{text}"
            );
        }
        // The others come again: a new epoch.
        world.start(2);
        world.start(3);
        world.run_until(ms(10_000), World::all_run);
        world.assert_one_epoch();
        assert_ne!(world.switches[0].bound.as_ref().unwrap().epoch, before);
    }
}

/// TR-23: one worker of a restarted leaf is a new process: the epoch does not take it.
#[test]
fn one_new_worker_behind_a_restarted_switch_ends_the_epoch() {
    for seed in 0..10 {
        let mut world = running(seed, &TWO);
        world.kill_switch(1);
        world.hosts[0].worker = None;
        world.run(ms(100));
        world.start(0);
        world.start_switch(1);
        world.run_until(ms(8000), |it| (1..4).all(|rank| it.error(rank).is_some()));
        for rank in 1..4 {
            let text = world.error_text(rank);
            assert!(text.starts_with("rank 0 lost: silent for"), "{text}");
            assert!(text.ends_with("at switch \"leaf1\""), "{text}");
        }
    }
}

/// TR-23: another of doubled links takes the place of one that died, at once and in the same epoch.
#[test]
fn a_child_moves_to_another_link() {
    let mut world = running(1, &THREE);
    let epoch = world.switches[0].bound.as_ref().unwrap().epoch;
    for port in [201, 200, 201] {
        world.move_uplink(1, port);
        world.run(ms(1000));
        world.assert_one_epoch();
        let root = world.switches[0].bound.as_ref().unwrap();
        assert_eq!(root.workers[1].port.0, 101 + 100 * (port - 200));
    }
    assert_eq!(world.switches[0].bound.as_ref().unwrap().epoch, epoch);
    ends_well(&mut world, "moved");
}

/// A PS that dies pauses its node only; both nodes resume when new ones have come, in either order.
#[test]
fn a_new_parameter_server_resumes_its_node() {
    for (first, second) in [(0, 3), (3, 0), (1, 5), (3, 3)] {
        let mut world = running(first as u64, &THREE);
        let epoch = world.switches[0].bound.as_ref().unwrap().epoch;
        world.servers[first].ps = None;
        world.servers[second].ps = None;
        world.run(ms(6500));
        let phase = |it: &World, at: usize| it.switches[at].registry.status().next().unwrap().phase;
        assert_eq!(phase(&world, first), JobPhase::Paused);
        assert_eq!(phase(&world, 2), JobPhase::Running);
        world.start_ps(first);
        world.run_until(ms(1500), |it| phase(it, first) == JobPhase::Running);
        if second != first {
            world.start_ps(second);
        }
        let all = |it: &World| (0..6).all(|at| phase(it, at) == JobPhase::Running);
        world.run_until(ms(1500), all);
        world.assert_one_epoch();
        assert_eq!(world.switches[0].bound.as_ref().unwrap().epoch, epoch);
        ends_well(&mut world, "new PSs");
    }
}

/// TR-26: what a leaf said of its PS before it left is not what is.
#[test]
fn a_leaf_that_has_left_misses_no_parameter_server() {
    let mut world = running(6, &TWO);
    for rank in [2, 3] {
        let (worker, data) = world.hosts[rank].worker.as_mut().unwrap();
        data.until = 0;
        worker.submit(world.now, 4, 5);
    }
    // The last that leaf1 says while its workers run is that its PS is missing.
    world.servers[1].ps = None;
    let phase = |it: &World| it.switches[1].registry.status().next().unwrap().phase;
    world.run_until(ms(8000), |it| phase(it) == JobPhase::Paused);
    world.run(ms(700));
    for rank in [0, 1] {
        let (worker, _) = world.hosts[rank].worker.as_mut().unwrap();
        worker.finish(world.now);
    }
    world.run(ms(1500));
    assert!(world.error(0).is_none() && world.error(1).is_none());
    for rank in [2, 3] {
        let (worker, _) = world.hosts[rank].worker.as_ref().unwrap();
        let text = worker.stall(world.now).unwrap().to_string();
        assert!(
            !text.contains("parameter server is missing"),
            "{rank}: {text}"
        );
    }
}
