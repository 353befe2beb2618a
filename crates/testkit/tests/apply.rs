//! `tally-controller apply` on real switches: jobs begin, move and are repaired, with exact sums;
//! runs that are refused or killed are run again. One switch is reached over TCP with mutual TLS.
//!
//! Uses the release programs (`cargo build --release`). As root in namespaces, else over memif.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/site.rs"]
mod site;

use common::alone;
use site::{LONG, OTHER_KEY, Site};
use tally_schema::switch::report::JobPhase;
use tally_testkit::cluster::Network;

#[test]
fn running_switches_follow_a_plan_and_the_next_one() {
    let _alone = alone();
    let mut site = Site::start();
    let first = site.plan("first", &[0], "spine2");
    let [fleet, plan] = &first;
    let text = site.done(&["apply", fleet, plan, "--dry-run"]);
    assert!(text.contains("3 changes to make; none is made"), "{text}");
    assert_eq!(site.with(7), [""; 0]);
    let output = site.call(&["status", fleet, plan]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("no such job").count(), 3, "{text}");

    // A file that mixes up two switches.
    let text = std::fs::read_to_string(fleet).unwrap();
    let text = text
        .replace("spine1-c", "@")
        .replace("spine2-c", "spine1-c");
    let mixed = site.write("mixed-fleet.json", &text.replace('@', "spine2-c"));
    let output = site.call(&["apply", &mixed, plan]);
    site.refused(
        &output,
        1,
        &["switch spine", "-control.sock is switch spine"],
    );

    site.apply(&first, &["job job0 begins", "3 changes made: all switches"]);
    assert_eq!(site.with(7), ["spine1", "leaf1", "leaf2"]);
    site.sums(&[0]);
    site.apply(&first, &["job job0 stays", "nothing to change"]);
    let text = site.done(&["status", fleet, plan]);
    assert_eq!(text.matches("as planned").count(), 3, "{text}");
    assert_eq!(text.matches("0 of 2").count(), 3, "{text}");
    let json = site.done(&["apply", fleet, plan, "--json"]);
    assert!(json.contains(r#""reason": "same""#) && json.contains(r#""rank": 3"#));

    // A job that runs does not move, and ends well.
    let second = site.plan("second", &[0, 1], "spine1");
    let [fleet, plan] = &second;
    let workers = site.train(0, 9_000_000);
    site.wait("spine1", 7, |job| {
        job.is_some_and(|it| it.phase == JobPhase::Running)
    });
    let output = site.call(&["apply", fleet, plan, "--drain", "0.1"]);
    let words = [
        "job job0",
        "still running",
        "--end-running",
        "nothing is changed",
    ];
    site.refused(&output, 1, &words);
    assert_eq!(site.with(7), ["spine1", "leaf1", "leaf2"]);
    assert!(!site.job("spine1", 7).unwrap().draining);
    // A change of another hand, while it waits for the job.
    let waiting = site.spawn(&["apply", fleet, plan, "--drain", "60"]);
    site.wait("spine1", 7, |job| job.is_some_and(|it| it.draining));
    let add = "job add 99 --workers 2 --key-file -";
    site.ctl("spine1", add, "9f8e7d6c5b4a39281706f5e4d3c2b1a0")
        .unwrap();
    let output = waiting.wait_with_output().unwrap();
    site.refused(&output, 1, &["spine1", "another controller or operator"]);
    let error = String::from_utf8_lossy(&output.stderr);
    let is_draining = site.job("spine1", 7).unwrap().draining;
    assert!(!is_draining, "{error}\n{}", site.logs());
    for worker in workers {
        worker.wait_ok(LONG).unwrap();
    }
    site.is_exact(0, 9_000_000);

    // leaf2 refuses a key that another job has: half of the changes are made.
    site.ctl("leaf2", &add.replace("99", "98"), OTHER_KEY)
        .unwrap();
    let output = site.call(&["apply", fleet, plan]);
    let words = ["switch leaf2", "job job1 (8)", "of 9 changes", "again"];
    site.refused(&output, 1, &words);
    assert_eq!(site.with(7), ["spine2", "leaf1", "leaf2"]);
    assert_eq!(site.with(8), ["leaf1"]);
    site.ctl("leaf2", "job remove 98", "").unwrap();
    let words = ["job job0 stays", "job job1 is repaired", "2 changes made"];
    site.apply(&second, &words);
    site.sums(&[0, 1]);
    assert_eq!(site.with(99), ["spine1"]);

    if Network::for_this_user() != Network::Namespaces {
        return;
    }
    // A job that runs on is ended only if that is asked for.
    let first = site.plan("first", &[0, 1], "spine2");
    let workers = site.train(0, 50_000_000);
    site.wait("spine2", 7, |job| {
        job.is_some_and(|it| it.phase == JobPhase::Running)
    });
    let [fleet, plan] = &first;
    site.done(&["apply", fleet, plan, "--drain", "0", "--end-running"]);
    for worker in workers {
        let ended = worker.wait(LONG).unwrap();
        assert!(ended.log.contains("removed"), "{}", ended.log);
    }
    site.sums(&[0]);
    site.apply(&second, &["job job0 moves", "12 changes made"]);
    let [fleet, plan] = &second;

    // A switch that is down stops an apply before it changes anything. It comes back without jobs.
    site.kill_switch("leaf1");
    let output = site.call(&["apply", fleet, plan]);
    site.refused(&output, 4, &["switch leaf1", "nothing is changed"]);
    site.start_switch("leaf1");
    let words = ["job job0 is repaired: leaf1 lacks it", "2 changes made"];
    site.apply(&second, &words);
    site.sums(&[0, 1]);

    // spine2 dies, as the next fleet says. The plan has the jobs at spine1.
    site.kill_switch("spine2");
    let third = site.plan("third", &[0, 1], "spine2");
    let [fleet, plan] = &third;
    let mut killed = site.spawn(&["apply", fleet, plan]);
    site.wait("leaf1", 7, |job| job.is_none());
    killed.kill().unwrap();
    killed.wait().unwrap();
    site.apply(
        &third,
        &["switch spine2 does not answer", "all switches report"],
    );
    assert_eq!(site.with_but(7, "spine2"), ["spine1", "leaf1", "leaf2"]);
    site.sums(&[0, 1]);
    // Back again, it is read again.
    site.start_switch("spine2");
    site.apply(&third, &["nothing to change"]);
}
