//! Whole jobs in virtual time: workers, PS and a naive switch over links that lose, copy and
//! reorder. In every case all workers get the same right bits, or say why not.

mod common;

use common::switch::{Habits, MAC};
use common::{Faults, Plan, Rng, World};
use std::time::Duration;
use tally_endpoint::{Awaited, Event, Hint, PsEvent, Ranks, WorkerError};
use tally_wire::control::{LeaveCode, Reason};
use tally_wire::{AuthTag, Epoch, Mac, Part, Rank};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_quiet_job_needs_no_repair() {
    let mut world = World::new(&Plan::quiet(4));
    world.submit(500);
    world.finish();
    world.run_to_end(60 * SECOND);
    world.assert_right(500);
    for (worker, data) in &world.workers {
        let stats = worker.stats();
        assert_eq!(stats.fragments, 500);
        assert_eq!(stats.from_switch, 500);
        assert_eq!(data.latencies, 500);
        assert_eq!(
            stats.retransmissions.probes_timeout + stats.retransmissions.contributions,
            0
        );
        assert!(worker.typical_latency().is_some());
    }
    assert_eq!(world.ps.stats().partials, 0);
}

/// The main property. A seed that failed is a test of its own: put it in `SEEDS`.
#[test]
fn all_workers_get_the_same_right_bits_on_any_network() {
    const SEEDS: std::ops::Range<u64> = 0..300;
    let (mut from_ps, mut again, mut narrowed) = (0, 0, 0);
    for seed in SEEDS {
        let mut rng = Rng(seed);
        let fragments = 1 + rng.below(200);
        let wraps = rng.chance(300);
        let plan = Plan {
            seed,
            workers: 1 + rng.below(6) as u8,
            window: 1 + rng.below(40) as u16,
            first: if wraps { (1 << 32) - fragments / 2 } else { 0 },
            depends: rng.chance(500).then(|| 1 + rng.below(30)),
            faults: Faults {
                lose: rng.below(120),
                copy: rng.below(100),
                delay: rng.below(100),
                mark: rng.below(50),
            },
            habits: Habits {
                collide: rng.below(400),
                preempt: rng.below(300),
                mark: rng.below(50),
            },
        };
        let mut world = World::new(&plan);
        world.submit(fragments);
        world.finish();
        world.run_to_end(600 * SECOND);
        println!(
            "seed {seed}: {fragments} fragments, done at {:?}",
            world.now
        );
        world.assert_right(fragments);
        from_ps += world.workers[0].0.stats().from_ps;
        let causes = world.workers[0].0.stats().retransmissions;
        again += causes.probes_timeout.min(causes.probes_early);
        let congestion = world.workers[0].0.stats().congestion;
        narrowed += congestion.rounds_marked.min(congestion.rounds_collided);
    }
    assert!(
        from_ps > 1000 && again > 100 && narrowed > 100,
        "the faults did nothing: {from_ps}, {again}, {narrowed}"
    );
}

/// A job of three workers over a network without faults but for these.
fn congested(collide: u64, at_switch: u64, at_members: u64) -> World {
    let mut plan = Plan::quiet(3);
    plan.window = 64;
    plan.habits.collide = collide;
    plan.habits.mark = at_switch;
    plan.faults.mark = at_members;
    let mut world = World::new(&plan);
    world.submit(5000);
    world.finish();
    world.run_to_end(60 * SECOND);
    world.assert_right(5000);
    world
}

#[test]
fn a_full_link_and_a_full_pool_are_told_apart() {
    for (worker, _) in &congested(0, 0, 0).workers {
        assert_eq!(worker.windows(), (40, 40), "five eighths");
        assert_eq!(worker.stats().congestion.rounds, 5000 / 40);
    }
    for (at_switch, at_members) in [(300, 0), (0, 300)] {
        for (worker, _) in &congested(0, at_switch, at_members).workers {
            let c = worker.stats().congestion;
            assert!(
                c.rounds_marked > c.rounds / 2 && c.rounds_collided == 0,
                "{c:?}"
            );
            assert!(c.link_window_min < 8, "{c:?}");
            assert_eq!(c.aggregation_window_min, c.link_window_min);
        }
    }
    for (worker, data) in &congested(500, 0, 0).workers {
        let c = worker.stats().congestion;
        assert!(
            c.rounds_collided > c.rounds / 2 && c.rounds_marked == 0,
            "{c:?}"
        );
        assert_eq!(c.link_window_min, 40);
        assert!(c.aggregation_window_min < 8, "{c:?}");
        assert!(data.from_ps > 100, "{}", data.from_ps);
    }
}

#[test]
fn a_mark_reaches_the_workers_also_by_way_of_the_ps() {
    // All go to the PS, and only what comes to the switch is marked: contributions.
    for (worker, data) in &congested(1000, 1000, 0).workers {
        assert_eq!(data.from_ps, 5000);
        let c = worker.stats().congestion;
        assert_eq!((c.rounds_marked, c.rounds_collided), (c.rounds, c.rounds));
        assert_eq!(worker.windows(), (1, 1));
    }
}

#[test]
fn losses_need_no_ps_and_shrink_no_window() {
    let mut plan = Plan::quiet(3);
    plan.window = 64;
    plan.faults.lose = 150;
    plan.faults.delay = 300;
    let mut world = World::new(&plan);
    world.submit(5000);
    world.finish();
    world.run_to_end(600 * SECOND);
    world.assert_right(5000);
    for (worker, data) in &world.workers {
        assert_eq!(worker.windows(), (40, 40), "five eighths");
        assert_eq!(data.from_ps, 0);
        let again = worker.stats().retransmissions;
        assert!(
            again.contributions > 0 && again.probes_early > 0,
            "{again:?}"
        );
    }
}

/// The first contribution finds no slot, the others do, and theirs will never be full: only the PS
/// can tell, and the window waits for it.
#[test]
fn what_sits_in_the_switch_while_a_part_is_at_the_ps_is_fetched_within_a_few_round_trips() {
    let mut plan = Plan::quiet(4);
    plan.habits.collide = 50;
    let mut world = World::new(&plan);
    world.submit(10_000);
    world.finish();
    let begin = world.now;
    world.run_to_end(60 * SECOND);
    world.assert_right(10_000);
    let (stats, took) = (world.ps.stats(), world.now.since(begin));
    println!("{took:?}, {stats:?} {:?}", world.workers[0].0.stats());
    assert!(stats.reminds > 400);
    // Up to 55 us each way to the switch, so 110 us from a contribution to its result.
    assert!(took < Duration::from_millis(400), "{took:?}");
}

#[test]
fn several_messages_in_one_life_with_pauses_between() {
    let mut world = World::new(&Plan::quiet(3));
    for _ in 0..3 {
        world.submit(20);
        world.run_for(30 * SECOND);
        for events in &mut world.events {
            assert_eq!(events.pop(), Some(Event::Delivered));
        }
    }
    world.finish();
    world.run_to_end(SECOND);
    world.assert_right(60);
}

#[test]
fn nothing_to_do_is_done_at_once() {
    let mut world = World::new(&Plan::quiet(2));
    world.finish();
    world.run_to_end(SECOND);
    world.assert_right(0);
}

#[test]
fn a_restart_of_the_switch_is_survived() {
    for seed in 0..20 {
        let mut plan = Plan::quiet(3);
        plan.seed = seed;
        plan.habits = Habits {
            collide: 200,
            preempt: 200,
            mark: 0,
        };
        let mut world = World::new(&plan);
        world.submit(300);
        world.finish();
        world.run_for(Duration::from_micros(500 + 100 * seed));
        assert!(world.workers[0].0.delivered() < 300);
        world.switch.restart();
        world.run_to_end(30 * SECOND);
        world.assert_right(300);
    }
}

#[test]
fn the_mac_of_the_last_accept_is_that_of_the_switch_while_it_answers() {
    let mut world = World::new(&Plan::quiet(2));
    let mac = |world: &World| {
        let all = world.workers.iter().map(|(w, _)| w.switch_mac(world.now));
        let all: Vec<_> = all.chain([world.ps.switch_mac(world.now)]).collect();
        assert!(all.iter().all(|mac| *mac == all[0]), "{all:?}");
        all[0]
    };
    assert_eq!(mac(&world), None);
    world.run_for(SECOND);
    assert_eq!(mac(&world), Some(MAC));
    // Nothing is submitted: heartbeats are answered.
    world.run_for(10 * SECOND);
    assert_eq!(mac(&world), Some(MAC));
    world.silent.push(254);
    world.run_for(SECOND);
    assert_eq!(mac(&world), Some(MAC));
    world.run_for(2 * SECOND);
    assert_eq!(mac(&world), None);
    let other = Mac([2, 0, 0, 0, 0, 9]);
    world.switch.restart();
    world.switch.mac = other;
    world.silent.clear();
    world.run_for(SECOND);
    assert_eq!(mac(&world), Some(other));
    world.submit(50);
    world.finish();
    world.run_to_end(30 * SECOND);
    world.assert_right(50);
}

#[test]
fn a_restart_of_the_ps_is_survived() {
    for seed in 0..20 {
        let mut plan = Plan::quiet(3);
        plan.seed = seed;
        plan.habits = Habits {
            collide: 300,
            preempt: 300,
            mark: 0,
        };
        let mut world = World::new(&plan);
        world.submit(300);
        world.finish();
        world.run_for(Duration::from_micros(500 + 100 * seed));
        world.ps = World::new_ps(world.now, 6);
        world.run_to_end(60 * SECOND);
        world.assert_right(300);
    }
}

#[test]
fn a_switch_that_never_answers_is_named() {
    let mut world = World::new(&Plan::quiet(1));
    world.silent.push(254);
    world.run_to_end(60 * SECOND);
    let after = 30 * SECOND;
    assert_eq!(
        world.error(0),
        Some(&WorkerError::NoAnswer { after, hint: None })
    );
}

#[test]
fn hints_are_told_and_not_believed() {
    for (reason, hint) in [
        (Reason::UnknownJob, Hint::UnknownJob),
        (Reason::BadMac, Hint::BadKey),
    ] {
        let mut world = World::new(&Plan::quiet(1));
        world.silent.push(254);
        let mut refuse = world.switch.refuse(0, 1000, reason, 255, 0, 0);
        refuse[22 + 112..].fill(0);
        world.inject(0, &refuse);
        assert!(!world.workers[0].0.is_closed());
        world.run_to_end(60 * SECOND);
        let hint = Some(hint);
        let after = 30 * SECOND;
        assert_eq!(world.error(0), Some(&WorkerError::NoAnswer { after, hint }));
    }
}

#[test]
fn missing_members_are_named() {
    let mut world = World::new(&Plan::quiet(5));
    world.silent.extend([1, 4, 255]);
    world.run_to_end(60 * SECOND);
    let error = world.error(0).unwrap();
    let missing = Ranks(0b10010);
    assert!(
        matches!(error, WorkerError::NotStarted { missing: m, missing_ps: Some(Part::ONLY), .. } if *m == missing)
    );
    assert_eq!(
        error.to_string(),
        "the job did not start within 30s: ranks 1, 4 and the parameter server are missing"
    );
    assert!(
        world.events[0]
            .iter()
            .any(|e| matches!(e, Event::Waiting(m) if m.joined == 0b1101))
    );
}

/// Of several parameter servers, the error names the part of the first that is missing.
#[test]
fn a_missing_server_of_several_is_named_by_its_part() {
    let mut world = World::new(&Plan::quiet(2));
    world.switch.part = Part::new(1, 2).unwrap();
    world.silent.push(255);
    world.run_to_end(60 * SECOND);
    assert_eq!(
        world.error(0).unwrap().to_string(),
        "the job did not start within 30s: the parameter server of part 1 of 2 is missing"
    );
}

/// Who gave up waiting a moment before us waited for the same ones as we.
#[test]
fn who_waited_too_is_not_named_as_missing() {
    let mut world = World::with(&Plan::quiet(3), |config| {
        if config.rank == 2 {
            config.join_timeout = Duration::from_secs(20);
        }
    });
    world.silent.push(1);
    world.run_to_end(60 * SECOND);
    for rank in [0, 2] {
        let error = world.error(rank).unwrap();
        let missing = Ranks(0b010);
        assert!(
            matches!(error, WorkerError::NotStarted { missing: m, missing_ps: None, .. } if *m == missing),
            "{error}"
        );
    }
}

/// A JOIN from before the window was made smaller may come to the switch once more.
#[test]
fn a_refusal_of_a_window_that_is_ours_no_more_is_ignored() {
    let mut world = World::new(&Plan::quiet(1));
    world.run_for(SECOND / 10);
    let refuse = world.switch.refuse(0, 1000, Reason::Window, 255, 128, 8);
    world.inject(0, &refuse);
    world.submit(10);
    world.finish();
    world.run_to_end(10 * SECOND);
    world.assert_right(10);
}

#[test]
fn a_worker_that_gives_up_joining_gives_up_its_place() {
    let mut world = World::new(&Plan::quiet(2));
    world.silent.push(1);
    world.run_to_end(60 * SECOND);
    assert!(matches!(
        world.error(0),
        Some(WorkerError::NotStarted { .. })
    ));
    assert_eq!(world.switch.epoch, 0, "no place is taken, no epoch open");
}

#[test]
fn a_rank_that_is_taken_is_tried_until_time_runs_out() {
    let mut world = World::new(&Plan::quiet(2));
    world.silent.extend([1, 254]);
    let refuse = world.switch.refuse(0, 1000, Reason::RankTaken, 255, 0, 0);
    world.inject(0, &refuse);
    world.run_to_end(60 * SECOND);
    let hint = Some(Hint::RankTaken);
    let after = 30 * SECOND;
    assert_eq!(world.error(0), Some(&WorkerError::NoAnswer { after, hint }));
}

#[test]
fn final_refusals_end_the_session_and_name_the_culprit() {
    for (reason, about, found, allowed, want) in [
        (
            Reason::BadRank,
            255,
            4,
            4,
            "rank 4 is none of the job's 4 workers (ranks count from 0)",
        ),
        (
            Reason::Workers,
            255,
            2,
            4,
            "we expect 2 workers, but the job has 4",
        ),
        (
            Reason::Workers,
            255,
            65,
            4,
            "we expect 65 workers, but the job has 4: a switch has 64 members, and a tree of switches more (docs/FABRIC.md)",
        ),
        (
            Reason::Payload,
            3,
            16,
            8,
            "payloads of 1024 bytes do not fit: rank 3 512 bytes",
        ),
        (
            Reason::Payload,
            255,
            128,
            22,
            "payloads of 8192 bytes do not fit: the switch 1408 bytes",
        ),
        (
            Reason::Shape,
            2,
            0,
            0,
            "rank 2 has another payload size, another `ranks_per_host` or another version of sessions",
        ),
        (
            Reason::Window,
            255,
            8,
            5,
            "a window of 8 fragments is too large: the switch serves up to 5",
        ),
        (
            Reason::MemberLost,
            1,
            0,
            0,
            "rank 1 has been silent for too long, so the job has failed",
        ),
        (
            Reason::MemberFailed,
            1,
            3,
            0,
            "rank 1 left the job because it was interrupted",
        ),
        (
            Reason::StaleEpoch,
            255,
            0,
            0,
            "the job has started anew without us",
        ),
    ] {
        let mut world = World::new(&Plan::quiet(2));
        world.run_for(SECOND);
        let forged = {
            let mut f = world.switch.refuse(0, 1000, reason, about, found, allowed);
            *f.last_mut().unwrap() ^= 1;
            f
        };
        world.inject(0, &forged);
        let other = world.switch.refuse(0, 999, reason, about, found, allowed);
        world.inject(0, &other);
        assert!(!world.workers[0].0.is_closed(), "J-8");
        assert_eq!(world.workers[0].0.stats().unauthentic, 2);
        let good = world.switch.refuse(0, 1000, reason, about, found, allowed);
        world.inject(0, &good);
        world.run_for(SECOND);
        assert!(world.workers[0].0.is_closed());
        let text = world.error(0).unwrap().to_string();
        assert!(text.starts_with(want), "{text}");
    }
}

/// It was started again with another configuration, while the job ran.
#[test]
fn a_switch_whose_key_has_changed_is_not_only_called_silent() {
    for (reason, want) in [
        (Reason::BadMac, "the job's key is another one"),
        (Reason::UnknownJob, "it has no such job"),
    ] {
        let mut world = World::new(&Plan::quiet(2));
        world.run_for(SECOND);
        world.submit(10);
        world.silent.push(254);
        world.run_for(SECOND);
        let refuse = world.switch.refuse(0, 1000, reason, 255, 0, 0);
        world.inject(0, &refuse);
        world.run_to_end(60 * SECOND);
        let text = world.error(0).unwrap().to_string();
        assert!(
            text.starts_with("the switch has been silent for 10s, except"),
            "{text}"
        );
        assert!(text.contains(want), "{text}");
        // Not at a worker that heard nothing.
        let text = world.error(1).unwrap().to_string();
        assert_eq!(text, "the switch has been silent for 10s");
    }
}

#[test]
fn a_switch_that_falls_silent_is_named() {
    let mut world = World::new(&Plan::quiet(2));
    world.run_for(SECOND);
    world.submit(10);
    world.silent.push(254);
    world.run_to_end(60 * SECOND);
    let (after, hint) = (10 * SECOND, None);
    let silent = WorkerError::SwitchSilent { after, hint };
    assert_eq!(world.error(0), Some(&silent));
}

#[test]
fn a_switch_that_falls_silent_later_than_its_last_result_is_named() {
    let mut world = World::new(&Plan::quiet(2));
    world.run_for(SECOND);
    world.switch.sums = false;
    world.submit(10);
    world.run_for(2 * SECOND);
    world.silent.push(254);
    world.run_to_end(60 * SECOND);
    for rank in [0, 1] {
        let text = world.error(rank).unwrap().to_string();
        assert!(
            text.starts_with("the switch has been silent for "),
            "{text}"
        );
    }
}

/// A process that was stopped for longer than the stall timeout finds its timers first, and its
/// datagrams later.
#[test]
fn workers_that_stood_still_blame_neither_the_switch_nor_the_job() {
    let mut world = World::new(&Plan::quiet(2));
    world.run_for(SECOND);
    world.submit(10);
    world.silent.extend([0, 1]);
    world.run_for(30 * SECOND);
    world.silent.clear();
    world.finish();
    world.run_to_end(60 * SECOND);
    assert_eq!((world.error(0), world.error(1)), (None, None));
    world.assert_right(10);
}

#[test]
fn a_job_that_stalls_says_that_the_switch_answers() {
    let mut world = World::new(&Plan::quiet(2));
    world.switch.sums = false;
    world.submit(10);
    world.run_to_end(60 * SECOND);
    let after = 10 * SECOND;
    let want = WorkerError::Stalled {
        after,
        fragment: 0,
        awaited: Awaited::NoRank,
        missing_ps: None,
    };
    assert_eq!(world.error(0), Some(&want));
    let said = "no result for 10s, although the switch answers: every rank has contributed, and the sum comes neither \
                from the switch nor from the parameter server";
    assert_eq!(want.to_string(), said);
}

/// Ranks 1 and 3 of 4 are alive and do not come; what the others then say, and the late ones.
fn tardy(first: u64, stall: Duration, faults: Faults) -> World {
    let mut plan = Plan::quiet(4);
    (plan.first, plan.faults) = (first, faults);
    let mut world = World::with(&plan, |config| config.stall_timeout = stall);
    world.submit(20);
    world.run_for(SECOND);
    assert!(world.workers.iter().all(|(w, _)| w.delivered() == 20));
    let now = world.now;
    for rank in [0, 2] {
        world.workers[rank].0.submit(now, 20, 5);
    }
    world
}

#[test]
fn ranks_that_do_not_come_are_named_to_all() {
    for first in [0, (1 << 32) - 24, (1 << 32) - 20] {
        for lose in [0, 30] {
            let faults = Faults {
                lose,
                copy: lose,
                delay: lose,
                mark: 0,
            };
            let mut world = tardy(first, 10 * SECOND, faults);
            world.run_for(SECOND / 2);
            assert_eq!(world.workers[0].0.awaited(), Awaited::Unknown, "too early");
            world.run_for(3 * SECOND);
            let behind = Ranks(0b1010);
            assert_eq!(world.workers[0].0.awaited(), Awaited::Ranks(behind));
            assert_eq!(world.workers[2].0.awaited(), Awaited::Ranks(behind));
            let Some(WorkerError::Stalled {
                after,
                awaited,
                fragment,
                ..
            }) = world.workers[0].0.stall(world.now)
            else {
                panic!("it does not know that it waits");
            };
            assert_eq!((awaited, fragment), (Awaited::Ranks(behind), first + 20));
            assert!((3 * SECOND..4 * SECOND).contains(&after), "{after:?}");
            assert_eq!(world.workers[1].0.stall(world.now), None);
            let idle = world.workers[1].0.awaited();
            assert_eq!(idle, Awaited::Unknown, "it waits for no rank");
            world.run_to_end(60 * SECOND);
            let fragment = first + 20;
            let gave_up = |rank: usize, error: &WorkerError| {
                let ours = behind.0 >> rank & 1 == 1;
                matches!(error, WorkerError::GaveUp { rank: Some(Rank(0 | 2)), behind: b, fragment: Some(f), ours: o }
                    if *b == behind && *f == fragment && *o == ours)
            };
            let stalled = WorkerError::Stalled {
                after: 10 * SECOND,
                fragment,
                awaited: Awaited::Ranks(behind),
                missing_ps: None,
            };
            for rank in [0, 2] {
                let error = world.error(rank).unwrap();
                assert!(*error == stalled || gave_up(rank, error), "{error:?}");
            }
            if lose == 0 {
                for rank in [1, 3] {
                    let error = world.error(rank).unwrap();
                    assert!(gave_up(rank, error), "{error:?}");
                }
            }
        }
    }
}

#[test]
fn one_that_comes_after_all_is_blamed_no_more() {
    let mut world = tardy(0, 10 * SECOND, Faults::default());
    world.run_for(3 * SECOND);
    let now = world.now;
    world.workers[1].0.submit(now, 20, 5);
    world.run_for(SECOND);
    assert_eq!(world.workers[0].0.awaited(), Awaited::Ranks(Ranks(0b1000)));
    let now = world.now;
    world.workers[3].0.submit(now, 20, 5);
    world.run_for(SECOND / 10);
    assert_eq!(world.workers[0].0.awaited(), Awaited::Unknown);
    world.finish();
    world.run_to_end(10 * SECOND);
    world.assert_right(40);
}

#[test]
fn without_the_time_to_know_no_rank_is_named() {
    let mut world = tardy(0, SECOND / 2, Faults::default());
    world.run_to_end(60 * SECOND);
    let error = world.error(0).or(world.error(2)).unwrap();
    let unknown = matches!(
        error,
        WorkerError::Stalled {
            awaited: Awaited::Unknown,
            ..
        }
    );
    let left = matches!(
        error,
        WorkerError::MemberFailed {
            rank: Some(Rank(0 | 2)),
            code: Some(LeaveCode::Stalled),
            ..
        }
    );
    assert!(unknown || left, "{error:?}");
}

#[test]
fn an_overflow_ends_the_job_for_all_and_names_the_fragment() {
    let plans = [(0, 0), (1000, 0), (500, (1 << 32) - 60)];
    // An i32, an i16 and an i8.
    let plans = [0, 5, 6].into_iter().flat_map(|k| plans.map(|p| (p, k)));
    for ((collide, first), place) in plans {
        let mut plan = Plan::quiet(3);
        plan.habits.collide = collide;
        plan.first = first;
        let mut world = World::new(&plan);
        let bad = first + 70 - first % 7 + place;
        for (_, data) in &mut world.workers {
            data.overflowing = Some(bad);
        }
        world.submit(500);
        world.finish();
        world.run_to_end(60 * SECOND);
        let mut own = 0;
        for rank in 0..3 {
            match world.error(rank) {
                Some(WorkerError::Overflow { fragment }) => {
                    assert_eq!(*fragment, bad);
                    own += 1;
                }
                Some(WorkerError::MemberFailed { code, fragment, .. }) => {
                    assert_eq!((*code, *fragment), (Some(LeaveCode::Overflow), Some(bad)));
                }
                other => panic!("rank {rank}: {other:?}"),
            }
        }
        assert!(own >= 1);
    }
}

#[test]
fn a_contribution_that_overflowed_before_it_was_sent_ends_the_job_for_all() {
    let mut world = World::new(&Plan::quiet(3));
    world.workers[1].1.overflows = Some(70);
    world.submit(500);
    world.finish();
    world.run_to_end(60 * SECOND);
    assert_eq!(
        world.error(1),
        Some(&WorkerError::Overflow { fragment: 70 })
    );
    for rank in [0, 2] {
        let error = world.error(rank);
        let Some(WorkerError::MemberFailed { code, fragment, .. }) = error else {
            panic!("rank {rank}: {error:?}");
        };
        assert_eq!((*code, *fragment), (Some(LeaveCode::Overflow), Some(70)));
    }
    for (_, data) in &world.workers {
        assert!(!data.results.contains_key(&70), "no sum without rank 1");
    }
}

#[test]
fn an_interrupted_worker_takes_the_others_along() {
    let mut world = World::new(&Plan::quiet(3));
    world.run_for(SECOND);
    let now = world.now;
    world.workers[1].0.interrupt(now);
    world.run_to_end(SECOND);
    assert_eq!(world.error(1), Some(&WorkerError::Interrupted));
    let want = WorkerError::MemberFailed {
        rank: Some(Rank(1)),
        code: Some(LeaveCode::Interrupted),
        fragment: None,
    };
    assert_eq!(world.error(0), Some(&want));
    world.run_for(SECOND);
    let aborted = |e: &PsEvent| {
        matches!(
            e,
            PsEvent::Aborted {
                rank: Some(Rank(1)),
                ..
            }
        )
    };
    assert!(world.ps_events.iter().any(aborted), "{:?}", world.ps_events);
}

#[test]
fn a_worker_lingers_for_the_others_and_then_goes() {
    let mut world = World::new(&Plan::quiet(2));
    world.submit(5);
    world.run_for(SECOND);
    world.silent.push(1);
    world.finish();
    let begin = world.now;
    while !world.workers[0].0.is_closed() {
        assert!(world.step(begin.after(10 * SECOND)));
    }
    assert_eq!(world.now.since(begin), 2 * SECOND, "linger");
    world.run_for(SECOND);
    assert_eq!(world.events[0].last(), Some(&Event::Finished));
}

#[test]
fn frames_of_another_epoch_have_no_effect() {
    let mut world = World::new(&Plan::quiet(1));
    world.silent.push(255);
    world.submit(1);
    world.run_for(Duration::from_millis(200));
    world.silent.clear();
    world.switch.sums = false;
    world.run_for(Duration::from_millis(200));
    let result = |epoch, secret_of| {
        let header = tally_wire::Header {
            kind: tally_wire::Kind::Result,
            flags: tally_wire::Flags::NONE,
            priority: 0,
            element: common::element_of(0),
            job: common::switch::JOB,
            epoch: Epoch(epoch),
            fragment: tally_wire::FragmentId(0),
            rank: Rank::SWITCH,
            units: 1,
            bitmap: 0,
            tag: AuthTag::NONE,
        };
        let secret =
            common::switch::key().epoch_secret(common::switch::JOB, Epoch(secret_of), 0x5a17);
        let mut result = vec![0; 22 + 64];
        secret.seal(header).emit(&mut result);
        result
    };
    world.inject(0, &result(40, 40));
    assert_eq!(world.workers[0].0.stats().late, 1);
    assert_eq!(world.workers[0].0.delivered(), 0);
    let before = world.workers[0].0.stats().unauthentic;
    world.inject(0, &result(41, 40));
    assert_eq!(
        world.workers[0].0.stats().unauthentic,
        before + 1,
        "another's tag"
    );
    assert_eq!(world.workers[0].0.delivered(), 0);
    let result = result(41, 41);
    world.inject(0, &result);
    assert_eq!(world.workers[0].0.delivered(), 1);
    world.inject(0, &result);
    assert_eq!(world.workers[0].0.stats().duplicates, 1);
}

#[test]
fn the_ps_leaves_when_told() {
    let mut world = World::new(&Plan::quiet(1));
    world.run_for(SECOND);
    let now = world.now;
    world.ps.leave(now);
    world.run_for(SECOND);
    assert!(world.ps.is_closed());
    assert_eq!(world.ps_events.last(), Some(&PsEvent::Left));
}
