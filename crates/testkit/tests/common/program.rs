//! Programs with their logs, and processes that come to an agent.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tally_local::{Class, Client, Hello, LocalError};

/// How long what must come is waited for.
pub const LONG: Duration = Duration::from_secs(60);

/// A program that runs, with its log.
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    pub fn start(mut command: Command, log: PathBuf) -> Self {
        let file = File::options().create(true).append(true).open(&log);
        command.stdout(Stdio::null()).stderr(file.unwrap());
        let child = command.spawn().unwrap();
        Self { child, log }
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until its log has `what` so many times.
    #[track_caller]
    pub fn logs(&self, what: &str, times: usize) {
        let deadline = Instant::now() + LONG;
        while self.log().matches(what).count() < times {
            assert!(Instant::now() < deadline, "{what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks it to end, and waits for that.
    pub fn end(mut self) -> ExitStatus {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.log());
        }
    }
}

/// A rank of a job, which has a number and so many workers, at the agent of this socket.
pub fn connect(socket: &Path, (job, workers): (u16, u8), rank: u8) -> Client {
    let (rank, workers) = (rank.into(), workers.into());
    let hello = Hello { job, rank, workers };
    let deadline = Instant::now() + LONG;
    loop {
        match Client::connect(socket, &hello, LONG) {
            Ok(client) => return client,
            // The previous process of that rank has not left yet.
            Err(LocalError::Refused { failure, .. }) if failure.class == Class::Leaving => {}
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
}
