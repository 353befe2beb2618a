//! The real program at a rig, and processes that use it.

use super::{KEY, Rig, write_config};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tally_local::{Client, Hello, LocalError};

/// Limit of a test's waits.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// One agent, which serves all ranks of a rig's job.
pub struct Agent {
    pub rig: Rig,
    pub folder: tempfile::TempDir,
    pub program: Child,
}

impl Agent {
    pub fn new(rig: Rig, arguments: &[&str]) -> Self {
        let agent = Self::quiet(rig, arguments, "info");
        agent.logs("listening");
        agent
    }

    /// One whose files `change` has changed.
    pub fn changed(rig: Rig, arguments: &[&str], change: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_config(&folder.path().join("agent.json"), &config(&rig, &folder));
        change(folder.path());
        let program = start(&folder, arguments);
        let agent = Self {
            rig,
            folder,
            program,
        };
        agent.logs("listening");
        agent
    }

    /// One that says only what `level` lets through.
    pub fn quiet(rig: Rig, arguments: &[&str], level: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_config(&folder.path().join("agent.json"), &config(&rig, &folder));
        let program = start_at(&folder, arguments, level);
        Self {
            rig,
            folder,
            program,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    #[track_caller]
    pub fn logs(&self, what: &str) {
        eventually(what, || self.log());
    }

    pub fn connect(&self, rank: u8) -> Result<Client, LocalError> {
        let hello = Hello {
            job: 7,
            rank: rank.into(),
            workers: self.rig.workers.into(),
        };
        Client::connect(&self.socket(), &hello, WAIT_MAX)
    }

    /// `work` at all ranks at once.
    pub fn all<T: Send>(&self, work: impl Fn(u8, Client) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let start = |rank| scope.spawn(move || work(rank, self.connect(rank).unwrap()));
            let threads: Vec<_> = (0..self.rig.workers).map(start).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = i32::try_from(self.program.id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    }

    pub fn ask(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tally-agent"))
            .args(["status", "--socket"])
            .arg(self.socket())
            .args(arguments)
            .output()
            .unwrap()
    }
}

/// Until `said` has `what` in it.
#[track_caller]
pub fn eventually(what: &str, mut said: impl FnMut() -> String) {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        // Before looking: it may take its time.
        let is_last = Instant::now() > deadline;
        let now = said();
        if now.contains(what) {
            return;
        }
        assert!(!is_last, "{what}: {now}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.program.kill();
        self.program.wait().unwrap();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

pub fn config(rig: &Rig, folder: &tempfile::TempDir) -> String {
    format!(
        r#"{{"socket": "{}", "switch": {{"address": "{}"}}, "transport": {{"type": "udp", "bind": "{}"}},
            "jobs": [{{"id": 7, "key": "{}", "workers": {}}}],
            "payload_bytes": {}, "window": {}, "timeouts": {{"join_ms": 20000}}, "memory_mib": 64}}"#,
        folder.path().join("agent.sock").display(),
        rig.address(254),
        rig.address(1),
        KEY,
        rig.workers,
        rig.payload_bytes,
        rig.window,
    )
}

pub fn start(folder: &tempfile::TempDir, arguments: &[&str]) -> Child {
    start_at(folder, arguments, "info")
}

pub fn start_at(folder: &tempfile::TempDir, arguments: &[&str], level: &str) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.path().join("log"))
        .unwrap();
    Command::new(env!("CARGO_BIN_EXE_tally-agent"))
        .args(["serve", "--config"])
        .arg(folder.path().join("agent.json"))
        .args(arguments)
        .env("TALLY_LOG", level)
        .stderr(log)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}
