//! A controller that runs on a site, with what it said.

#![allow(dead_code, reason = "each test takes what it needs")]

use super::common::programs;
use super::site::{LONG, SPINES, Site};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};
use tally_testkit::cluster::prefixed;

pub const CHANGED: &str = r#""event":"changed""#;

/// A controller that runs, with its events.
pub struct Controller {
    pub child: Child,
    log: PathBuf,
}

impl Controller {
    /// `run` with these arguments.
    pub fn start(site: &Site, name: &str, arguments: &[&str]) -> Self {
        let log = site.file(&format!("{name}.jsonl"));
        let file = File::create(&log).unwrap();
        let program = programs().join("tally-controller");
        let mut command = prefixed(&site.prefix(), Path::new(&program));
        command.args(["run", "--json"]).args(arguments);
        command.stderr(file.try_clone().unwrap()).stdout(file);
        let child = command.spawn().unwrap();
        Self { child, log }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// How often it has said this.
    pub fn count(&self, what: &str) -> usize {
        self.log().matches(what).count()
    }

    /// Waits until it has said something so many times.
    #[track_caller]
    pub fn wait(&self, site: &Site, what: &str, times: usize) {
        let until = Instant::now() + LONG;
        while self.count(what) < times {
            let late = Instant::now() >= until;
            assert!(!late, "{what}: {}\n{}", self.log(), site.logs());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(pid, signal).unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn end(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
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

/// The spine that has the job, and the other one.
pub fn roots(site: &Site, down: &str) -> [&'static str; 2] {
    let with = site.with_but(7, down);
    let is_root = |spine: &&str| with.iter().any(|it| it == *spine);
    let root = SPINES.into_iter().find(|it| is_root(it)).unwrap();
    [root, SPINES.into_iter().find(|it| *it != root).unwrap()]
}
