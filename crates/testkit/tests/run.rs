//! `tally-controller run` on real switches: a root that dies under load, a controller that dies
//! halfway, jobs that come and go. Sums are exact throughout; times are printed.
//!
//! Uses the release programs (`cargo build --release`). As root in namespaces.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/site.rs"]
mod site;

use common::{alone, programs};
use site::{LONG, SPINES, Site};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};
use tally_schema::switch::report::JobPhase;
use tally_testkit::cluster::{Network, prefixed};

/// A controller that runs, with its events.
struct Controller {
    child: Child,
    log: PathBuf,
}

impl Controller {
    fn start(site: &Site, name: &str, fleet: &str) -> Self {
        let log = site.file(&format!("{name}.jsonl"));
        let file = File::create(&log).unwrap();
        let program = programs().join("tally-controller");
        let mut command = prefixed(&site.prefix(), Path::new(&program));
        command.args(["run", fleet, "--json"]);
        command.stderr(file.try_clone().unwrap()).stdout(file);
        let child = command.spawn().unwrap();
        Self { child, log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// How often it has said this.
    fn count(&self, what: &str) -> usize {
        self.log().matches(what).count()
    }

    /// Waits until it has said something so many times.
    #[track_caller]
    fn wait(&self, site: &Site, what: &str, times: usize) {
        let until = Instant::now() + LONG;
        while self.count(what) < times {
            let late = Instant::now() >= until;
            assert!(!late, "{what}: {}\n{}", self.log(), site.logs());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) -> ExitStatus {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}

const CHANGED: &str = r#""event":"changed""#;

/// The spine that has the job, and the other one.
fn roots(site: &Site, down: &str) -> [&'static str; 2] {
    let with = site.with_but(7, down);
    let is_root = |spine: &&str| with.iter().any(|it| it == *spine);
    let root = SPINES.into_iter().find(|it| is_root(it)).unwrap();
    [root, SPINES.into_iter().find(|it| *it != root).unwrap()]
}

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
    let leader = Controller::start(&site, "leader", &fleet);
    leader.wait(&site, CHANGED, 1);
    let [root, other] = roots(&site, "");
    assert_eq!(site.with(7), [root, "leaf1", "leaf2"]);
    site.sums(&[0]);
    let standby = Controller::start(&site, "standby", &fleet);
    standby.wait(&site, r#""event":"standby""#, 1);

    fail_over(&mut site, &leader, root, other);

    // The first root comes back: the job runs on, where it is.
    let changed = leader.count(CHANGED);
    let workers = site.train(0, 3_000_000);
    site.wait(other, 7, |job| {
        job.is_some_and(|it| it.phase == JobPhase::Running)
    });
    site.start_switch(root);
    leader.wait(&site, r#""change":"switch-up""#, 1);
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
    let start = Instant::now();
    site.kill_switch(other);
    site.wait("leaf1", 7, |job| job.is_none());
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
    site.start_switch(other);
    standby.wait(&site, r#""change":"switch-up""#, 1);

    // A job comes, a file is broken, a job goes.
    site.fleet("run", &[0, 1], "none");
    site.wait("leaf1", 8, |job| job.is_some());
    standby.wait(&site, CHANGED, 2);
    site.sums(&[0, 1]);
    site.write("run-fleet.json", "{");
    standby.wait(&site, "file-refused", 1);
    site.fleet("run", &[0], "none");
    standby.wait(&site, CHANGED, 3);
    assert_eq!(site.with(8), [""; 0]);
    let log = standby.log();
    assert!(log.contains(r#""reason":"ends""#), "{log}");
    site.sums(&[0]);

    assert!(standby.end().success());
    assert_eq!(site.with(7), [root, "leaf1", "leaf2"]);
}
