//! `tally-controller run` on real switches: a root that dies under load, a controller that dies
//! halfway, jobs that come and go. Sums are exact throughout; times are printed.
//!
//! Uses the release programs (`cargo build --release`). As root in namespaces.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/controller.rs"]
mod controller;
#[path = "common/site.rs"]
mod site;

use common::alone;
use controller::{CHANGED, Controller, roots};
use site::{LONG, OTHER_KEY, Site};
use std::time::{Duration, Instant};
use tally_schema::switch::report::JobPhase;
use tally_testkit::cluster::Network;

const UP: &str = r#""change":"switch-up""#;

/// A root dies while its workers sum: from then to the end of the changes, and to the first sums.
fn fail_over(site: &mut Site, controller: &Controller, root: &str, other: &str) {
    let changed = controller.count(CHANGED);
    let workers = site.train(0, 50_000_000);
    let runs = |job: Option<&_>| {
        job.is_some_and(|it: &tally_schema::switch::report::JobReport| {
            it.phase == JobPhase::Running
        })
    };
    site.wait(root, 7, runs);
    let start = Instant::now();
    site.kill_switch(root);
    controller.wait(site, CHANGED, changed + 1);
    let changes = start.elapsed();
    for worker in workers {
        let ended = worker.wait(LONG).unwrap();
        assert!(ended.log.contains("removed"), "{}", ended.log);
    }
    let ended = start.elapsed();
    let workers = site.train(0, 20_000);
    let switch = site.0.plan().find(other).unwrap();
    site.0
        .wait_for_results(switch, 1, LONG)
        .unwrap_or_else(|error| panic!("{error:#}\n{}", site.logs()));
    let sums = start.elapsed();
    for worker in workers {
        worker.wait_ok(LONG).unwrap();
    }
    site.is_exact(0, 20_000);
    let ms = |it: Duration| it.as_millis();
    println!(
        "from the death of {root}: changes made {} ms, workers ended {} ms, first sums {} ms",
        ms(changes),
        ms(ended),
        ms(sums)
    );
    assert!(sums < Duration::from_secs(10), "{sums:?}");
}

#[test]
fn a_controller_that_runs_keeps_jobs_on_trees_that_live() {
    if Network::for_this_user() != Network::Namespaces {
        return;
    }
    let _alone = alone();
    let mut site = Site::start();
    let fleet = site.fleet("run", &[0], "none");
    let leader = Controller::start(&site, "leader", &[&fleet]);
    leader.wait(&site, CHANGED, 1);
    let [root, other] = roots(&site, "");
    assert_eq!(site.with(7), [root, "leaf1", "leaf2"]);
    site.sums(&[0]);
    let standby = Controller::start(&site, "standby", &[&fleet]);
    standby.wait(&site, r#""event":"standby""#, 1);

    fail_over(&mut site, &leader, root, other);

    // The first root comes back: the job runs on, where it is.
    let changed = leader.count(CHANGED);
    let workers = site.train(0, 3_000_000);
    site.wait(other, 7, |job| {
        job.is_some_and(|it| it.phase == JobPhase::Running)
    });
    site.start_switch(root);
    leader.wait(&site, UP, 1);
    for worker in workers {
        worker.wait_ok(LONG).unwrap();
    }
    site.is_exact(0, 3_000_000);
    leader.wait(&site, r#""change":"link-up""#, 2);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(leader.count(CHANGED), changed, "{}", leader.log());
    assert_eq!(site.with(7), [other, "leaf1", "leaf2"]);

    // A leaf that restarts gets its role back, also if it was down meanwhile: the tree stays.
    let down = leader.count(r#""change":"switch-down""#);
    for (times, is_long) in [(1, false), (2, true)] {
        site.kill_switch("leaf1");
        if is_long {
            leader.wait(&site, r#""change":"switch-down""#, down + 1);
        }
        site.start_switch("leaf1");
        site.wait("leaf1", 7, |job| job.is_some());
        leader.wait(&site, CHANGED, changed + times);
        assert_eq!(site.with(7), [other, "leaf1", "leaf2"]);
    }
    assert_eq!(
        leader.count(r#""reason":"repaired""#),
        2,
        "{}",
        leader.log()
    );
    site.sums(&[0]);

    // The leader dies halfway. The other one finishes.
    let before = site.version("leaf1");
    let start = Instant::now();
    site.kill_switch(other);
    site.wait_changed("leaf1", before);
    let log = leader.log();
    leader.kill();
    assert_eq!(log.matches(CHANGED).count(), changed + 2, "{log}");
    standby.wait(&site, CHANGED, 1);
    println!(
        "from the death of {other}, and of the leader halfway: {} ms",
        start.elapsed().as_millis()
    );
    assert_eq!(site.with_but(7, other), [root, "leaf1", "leaf2"]);
    site.sums(&[0]);
    let ups = standby.count(UP);
    site.start_switch(other);
    standby.wait(&site, UP, ups + 1);

    // A job comes, a file is broken, a job goes.
    site.fleet("run", &[0, 1], "none");
    site.wait("leaf1", 8, |job| job.is_some());
    standby.wait(&site, CHANGED, 2);
    site.sums(&[0, 1]);
    site.write("run-fleet.json", "{");
    standby.wait(&site, "fleet-refused", 1);
    site.fleet("run", &[0], "none");
    standby.wait(&site, CHANGED, 3);
    assert_eq!(site.with(8), [""; 0]);
    let log = standby.log();
    assert!(log.contains(r#""reason":"ends""#), "{log}");
    site.sums(&[0]);

    refused_again_and_again(&mut site, &standby, root, other);

    assert!(standby.end().success());
    assert_eq!(site.with(7), [other, "leaf1", "leaf2"]);
}

/// leaf2 refuses the key of job 1, which another job has there. Job 0 comes after it in the list,
/// and its root dies.
fn refused_again_and_again(site: &mut Site, controller: &Controller, root: &str, other: &str) {
    let add = "job add 98 --workers 2 --key-file -";
    site.ctl("leaf2", add, OTHER_KEY).unwrap();
    let changed = controller.count(CHANGED);
    site.fleet("run", &[1, 0], "none");
    let refusal = "job job1 (8) is not added";
    controller.wait(site, refusal, 2);
    let start = Instant::now();
    site.kill_switch(root);
    controller.wait(site, CHANGED, changed + 1);
    println!(
        "from the death of {root}, while leaf2 refuses another job: {} ms",
        start.elapsed().as_millis()
    );
    assert_eq!(site.with_but(7, root), [other, "leaf1", "leaf2"]);
    site.sums(&[0]);
    assert_eq!(controller.count(CHANGED), changed + 1);
    // It is tried less often each time, and comes when it may.
    assert!(controller.count(refusal) < 12, "{}", controller.log());
    site.ctl("leaf2", "job remove 98", "").unwrap();
    controller.wait(site, CHANGED, changed + 2);
    site.sums(&[0, 1]);
    site.start_switch(root);
}
