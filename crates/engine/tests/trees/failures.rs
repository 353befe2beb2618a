//! Members and switches that die, jobs that are removed or drained, keys that change.

use super::world::{JOB, World, job_key, mac_of, ms};
use super::{THREE, TWO, running};
use tally_engine::registry::JobPhase;
use tally_engine::{Action, JobConfig};
use tally_wire::control::Reason;
use tally_wire::{Header, Key, Kind, Refuse};

/// TR-25: a worker dies: all others hear its rank and its switch in bounded time.
#[test]
fn all_hear_which_worker_was_lost_and_where() {
    let leaf_of = [
        "core", "spine1", "leaf1", "leaf1", "leaf2", "leaf3", "leaf3", "leaf3",
    ];
    for lost in [0, 1, 3, 6] {
        let mut world = running(lost as u64, &THREE);
        world.loss = 30;
        world.hosts[lost].worker = None;
        let all = |it: &World| (0..8).all(|rank| rank == lost || it.error(rank).is_some());
        world.run_until(ms(6500), all);
        for rank in (0..8).filter(|&rank| rank != lost) {
            let text = world.error_text(rank);
            let want = format!("rank {lost} lost: silent for 5");
            assert!(text.starts_with(&want), "{text}");
            assert!(
                text.ends_with(&format!("at switch {:?}", leaf_of[lost])),
                "{text}"
            );
        }
        world.run(ms(1000));
        assert!(world.switches.iter().all(|it| it.bound.is_none()));
    }
}

/// TR-25: a worker leaves with an error.
#[test]
fn all_hear_which_worker_left_and_where() {
    let mut world = running(3, &THREE);
    let now = world.now;
    world.hosts[6].worker.as_mut().unwrap().0.interrupt(now);
    world.run_until(ms(1500), |it| (0..8).all(|rank| it.error(rank).is_some()));
    for rank in (0..8).filter(|&rank| rank != 6) {
        assert_eq!(
            world.error_text(rank),
            "rank 6 left the job because it was interrupted, at switch \"leaf3\""
        );
    }
}

/// TR-25: how an epoch has ended says nothing of the next one, when a slow link delivers it late:
/// to a node that has no epoch yet, that forms one, and that runs.
#[test]
fn a_late_end_of_the_last_epoch_does_not_end_the_next_one() {
    let mut world = running(8, &TWO);
    world.take_record(2);
    let now = world.now;
    world.hosts[0].worker.as_mut().unwrap().0.interrupt(now);
    world.run_until(ms(1500), |it| (1..4).all(|rank| it.error(rank).is_some()));
    let is_end = |datagram: &Vec<u8>| {
        let kind = Header::parse(datagram).unwrap().kind;
        kind == Kind::Refuse && Refuse::parse(datagram).unwrap().reason == Reason::MemberFailed
    };
    let late = world.take_record(2).into_iter().filter(is_end);
    let late: Vec<_> = late.collect();
    assert!(!late.is_empty());
    (0..4).for_each(|rank| world.start(rank));
    let mut runs_for = 0;
    for _ in 0..5000 {
        world.run(ms(1));
        for datagram in &late {
            let actions = world.inject(2, world.switches[2].uplink, mac_of(0), datagram);
            world.carry_out(2, actions);
        }
        runs_for += u32::from(world.all_run());
        for rank in 0..4 {
            assert!(world.error(rank).is_none(), "{}", world.error_text(rank));
        }
    }
    assert!(runs_for > 1000, "{}", world.describe());
    world.assert_one_epoch();
}

/// J-6: a LEAVE of an epoch that has failed is answered with its end, under its number, also when
/// the next epoch runs.
#[test]
fn a_late_leave_of_the_last_epoch_is_answered_under_its_number() {
    let mut world = running(9, &TWO);
    world.take_record(0);
    let now = world.now;
    world.hosts[0].worker.as_mut().unwrap().0.interrupt(now);
    world.run_until(ms(1500), |it| (1..4).all(|rank| it.error(rank).is_some()));
    let is_leave = |datagram: &Vec<u8>| Header::parse(datagram).unwrap().kind == Kind::Leave;
    let late: Vec<_> = world.take_record(0).into_iter().filter(is_leave).collect();
    (0..4).for_each(|rank| world.start(rank));
    world.run_until(ms(6000), World::all_run);
    let mut ends = 0;
    for datagram in &late {
        let last = Header::parse(datagram).unwrap().epoch;
        // Of leaf1, at its port of the root.
        let actions = world.inject(0, 101, mac_of(1), datagram);
        for action in &actions {
            let Action::Send(_, answer) = action else {
                panic!("{action:?}");
            };
            let reason = Refuse::parse(&**answer).unwrap().reason;
            if reason == Reason::MemberFailed {
                assert_eq!(Header::parse(&**answer).unwrap().epoch, last);
                ends += 1;
            }
        }
        world.carry_out(0, actions);
        world.run(ms(100));
    }
    assert!(ends > 0, "no LEAVE was answered with the end of its epoch");
    assert!(world.all_run(), "{}", world.describe());
    world.assert_one_epoch();
}

/// TR-25: a switch dies with all that is below it.
#[test]
fn all_hear_which_switch_was_lost_with_its_ranks() {
    let mut world = running(4, &THREE);
    for at in [1, 3, 4] {
        world.kill_switch(at);
    }
    for rank in 1..5 {
        world.hosts[rank].worker = None;
    }
    world.run_until(ms(6500), |it| {
        [0, 5, 6, 7].iter().all(|&rank| it.error(rank).is_some())
    });
    for rank in [0, 5, 6, 7] {
        let text = world.error_text(rank);
        let want = "ranks 1 to 4 lost: switch \"spine1\" silent for 5";
        assert!(text.starts_with(want), "{text}");
    }
}

/// TR-25: a parent dies for good: all below hear of it, and so do all beside and above.
#[test]
fn all_hear_that_a_parent_was_lost() {
    let mut world = running(5, &THREE);
    world.kill_switch(1);
    world.run_until(ms(7500), |it| {
        (0..8)
            .filter(|&rank| rank != 1)
            .all(|rank| it.error(rank).is_some())
    });
    for rank in 2..5 {
        let text = world.error_text(rank);
        assert!(
            text.starts_with("switch \"spine1\" lost: silent for 5"),
            "{text}"
        );
    }
    for rank in [0, 5, 6, 7] {
        let text = world.error_text(rank);
        assert!(
            text.starts_with("ranks 1 to 4 lost: switch \"spine1\" silent for 5"),
            "{text}"
        );
    }
}

/// A worker that dies before the job runs is replaced, in any rack.
#[test]
fn a_worker_that_dies_before_the_job_runs_is_replaced() {
    for seed in 0..8 {
        let mut world = World::new(seed, &THREE);
        world.start_all();
        let dies = seed as usize % 8;
        let waits = (dies + 3) % 8;
        world.hosts[waits].worker = None;
        world.run(ms(2000));
        world.hosts[dies].worker = None;
        let wait = ms(world.rng.below(3000));
        world.run(wait);
        world.start(waits);
        world.run(ms(1600));
        world.start(dies);
        world.run_until(ms(8000), World::all_run);
        world.assert_one_epoch();
    }
}

/// A whole rack dies before the job runs, its switch too, and comes again.
#[test]
fn a_rack_that_dies_before_the_job_runs_comes_again() {
    for seed in 0..10 {
        let mut world = World::new(seed, &TWO);
        world.start_all();
        world.hosts[3].worker = None;
        world.run(ms(1000));
        world.kill_switch(1);
        world.hosts[0].worker = None;
        world.hosts[1].worker = None;
        let wait = ms(world.rng.below(4000));
        world.run(wait);
        world.start_switch(1);
        for rank in [0, 1, 3] {
            world.start(rank);
        }
        world.run_until(ms(12_000), World::all_run);
        world.assert_one_epoch();
    }
}

/// J-12: a job that is removed at one switch ends at all, and each says where.
#[test]
fn a_job_that_is_removed_at_a_switch_ends_everywhere() {
    for at in 0..6 {
        let mut world = running(at as u64, &THREE);
        let now = world.now;
        let actions = world.switches[at].registry.remove(now, JOB);
        world.carry_out(at, actions);
        world.run_until(ms(3000), |it| (0..8).all(|rank| it.error(rank).is_some()));
        for rank in 0..8 {
            let text = world.error_text(rank);
            assert!(text.contains("removed from"), "{text}");
        }
    }
}

/// J-13: a job that is drained at the root begins no epoch, and workers at leaves know why.
#[test]
fn a_job_that_is_drained_at_the_root_does_not_begin() {
    let mut world = World::new(6, &THREE);
    world.switches[0].registry.drain(JOB, true);
    world.start_all();
    world.run(ms(5000));
    assert!(!world.all_run());
    for rank in 0..8 {
        let (worker, _) = world.hosts[rank].worker.as_ref().unwrap();
        let text = worker.stall(world.now).unwrap().to_string();
        assert!(text.contains("the job is drained"), "{rank}: {text}");
    }
    world.switches[0].registry.drain(JOB, false);
    world.run_until(ms(3000), World::all_run);
    // A drained job continues.
    world.switches[0].registry.drain(JOB, true);
    world.run(ms(1000));
    world.finish();
    world.run_until(ms(3000), World::all_closed);
    assert!((0..8).all(|rank| world.error(rank).is_none()));
}

/// K-1 to K-4: the job's key changes at one switch after the other, also with a restart of each.
#[test]
fn the_key_of_the_job_changes_while_it_runs() {
    for restarts in [None, Some(0), Some(1), Some(3)] {
        let mut world = running(7, &THREE);
        let new = Key::new(&[8; 16]).unwrap();
        for at in 0..6 {
            let it = &mut world.switches[at];
            it.config = JobConfig {
                key: new.clone(),
                previous_key: Some(job_key()),
                ..it.config.clone()
            };
            it.registry.set(it.config.clone()).unwrap();
            world.run(ms(100));
        }
        for rank in 0..4 {
            let (worker, _) = world.hosts[rank].worker.as_mut().unwrap();
            worker.set_key(new.clone());
        }
        world.run(ms(2000));
        if let Some(at) = restarts {
            world.kill_switch(at);
            world.run(ms(300));
            world.start_switch(at);
        }
        world.run(ms(4000));
        world.assert_one_epoch();
        world.finish();
        world.run_until(ms(4000), World::all_closed);
        assert!(
            (0..8).all(|rank| world.error(rank).is_none()),
            "{}",
            world.describe()
        );
    }
}

/// K-1 of the switch key: it changes at one switch after the other, in any order.
#[test]
fn the_switch_key_changes_while_a_job_runs() {
    for order in [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]] {
        let mut world = running(8, &THREE);
        let new = Key::new(&[6; 16]).unwrap();
        for at in order {
            let it = &mut world.switches[at];
            it.fabric.previous_key = Some(std::mem::replace(&mut it.fabric.key, new.clone()));
            it.registry.set_fabric(Some(it.fabric.clone()));
            world.run(ms(3000));
        }
        // And the old one is retired.
        for at in order {
            let it = &mut world.switches[at];
            it.fabric.previous_key = None;
            it.registry.set_fabric(Some(it.fabric.clone()));
            world.run(ms(3000));
        }
        world.assert_one_epoch();
        world.finish();
        world.run_until(ms(4000), World::all_closed);
        assert!(
            (0..8).all(|rank| world.error(rank).is_none()),
            "{}",
            world.describe()
        );
    }
}

/// A tree whose numbers differ from those of the parent does not join, and its workers know it.
#[test]
fn a_switch_of_another_tree_is_refused() {
    let mut world = World::new(9, &TWO);
    let tree = world.switches[0].config.tree.as_mut().unwrap();
    tree.total = 5;
    tree.children[0].ranks = 3;
    world.start_switch(0);
    world.start_all();
    world.run(ms(31_000));
    for rank in 0..4 {
        let text = world.error_text(rank);
        let want = "the switch waits for its parent \"spine1\", which has another tree configured";
        assert!(text.contains(want), "{text}");
    }
}

/// What no parent remembers is forgotten: all switches are idle a while after an end.
#[test]
fn nothing_is_left_of_a_job_that_failed() {
    let mut world = running(10, &THREE);
    world.hosts[7].worker = None;
    world.run(ms(12_000));
    for it in &world.switches {
        assert_eq!(
            it.registry.status().next().unwrap().phase,
            JobPhase::Idle,
            "{}",
            it.name
        );
    }
    world.start_all();
    world.run_until(ms(8000), World::all_run);
    world.assert_one_epoch();
}
