//! `tally-controller run` on real switches: jobs begin, move away from a dead switch, stay while
//! they run, and come and go with the fleet's file; a standby finishes what a killed leader began.
//!
//! Uses the release programs (`cargo build --release`). Needs root.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/site.rs"]
mod site;

use common::alone;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use site::{LONG, Site};
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tally_schema::switch::report::JobPhase;
use tally_testkit::cluster::Network;

/// A running controller, and the lines that it prints.
struct Controller {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Controller {
    fn start(site: &Site, fleet: &str) -> Self {
        let mut child = site.spawn(&["run", fleet]);
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let said = Vec::new();
        Self { child, lines, said }
    }

    /// Waits until it says this, after what it was waited for before.
    #[track_caller]
    fn says(&mut self, words: &str) -> String {
        let until = Instant::now() + LONG;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("not said: {words}\n{}", self.said.join("\n"));
            };
            println!("  {line}");
            self.said.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// SIGTERM.
    fn end(mut self) {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

/// Waits until the job is at this spine and both leaves.
#[track_caller]
fn moved(site: &Site, id: u16, down: &str, spine: &str) -> Instant {
    let until = Instant::now() + LONG;
    let wanted = [spine, "leaf1", "leaf2"];
    while site.with_but(id, down) != wanted {
        assert!(Instant::now() < until, "{}", site.logs());
        std::thread::sleep(Duration::from_millis(5));
    }
    Instant::now()
}

fn other(spine: &str) -> &'static str {
    if spine == "spine1" {
        "spine2"
    } else {
        "spine1"
    }
}

#[test]
fn a_controller_keeps_jobs_on_trees_that_live() {
    if Network::for_this_user() != Network::Namespaces {
        println!("SKIPPED: needs root (network namespaces)");
        return;
    }
    let _alone = alone();
    let mut site = Site::start();
    let [fleet, _] = site.plan("run", &[0], "");
    let mut leader = Controller::start(&site, &fleet);
    leader.says("job job0 begins");
    let root = site.with(7)[0].clone();
    site.sums(&[0]);

    // The root dies while workers sum.
    let workers = site.train(0, 50_000_000);
    site.wait(&root, 7, |job| {
        job.is_some_and(|it| it.phase == JobPhase::Running)
    });
    let died = Instant::now();
    site.kill_switch(&root);
    let changed = moved(&site, 7, &root, other(&root)) - died;
    for worker in workers {
        let ended = worker.wait(LONG).unwrap();
        assert!(ended.log.contains("removed"), "{}", ended.log);
    }
    let ended = died.elapsed();
    site.sums(&[0]);
    let summed = died.elapsed();
    println!("root dead: other tree after {changed:.2?}, workers end after {ended:.2?}");
    println!("new workers have summed after {summed:.2?}");
    assert!(changed < Duration::from_secs(10), "{changed:?}");
    let line = leader.says("job job0 moves");
    assert!(line.contains("ms after the loss was seen"), "{line}");

    // It comes back while workers sum: nothing moves.
    let workers = site.train(0, 3_000_000);
    site.start_switch(&root);
    leader.says(&format!("switch {root}: up"));
    for worker in workers {
        worker.wait_ok(LONG).unwrap();
    }
    site.is_exact(0, 3_000_000);
    assert_eq!(site.with(7), [other(&root), "leaf1", "leaf2"]);

    // A leaf that restarts has no job, and gets its role back.
    site.kill_switch("leaf1");
    site.start_switch("leaf1");
    leader.says("job job0 is repaired");
    assert_eq!(site.with(7), [other(&root), "leaf1", "leaf2"]);
    site.sums(&[0]);

    // The leader is killed in the middle of a move; a standby takes over.
    let mut standby = Controller::start(&site, &fleet);
    standby.says("standby");
    let second = other(&root);
    site.kill_switch(second);
    site.wait("leaf1", 7, |job| job.is_none());
    leader.child.kill().unwrap();
    standby.says("this controller works");
    moved(&site, 7, second, &root);
    site.sums(&[0]);
    site.start_switch(second);
    standby.says(&format!("switch {second}: up"));

    // Jobs come and go with the file.
    site.plan("run", &[0, 1], "");
    standby.says("job job1 begins");
    site.sums(&[0, 1]);
    site.plan("run", &[0], "");
    standby.says("job job1 is removed");
    assert_eq!(site.with(8), [""; 0]);
    std::fs::write(&fleet, "{").unwrap();
    standby.says("the fleet read before stays");
    let roles = site.with(7);
    standby.end();
    assert_eq!(site.with(7), roles);
    site.sums(&[0]);
}
