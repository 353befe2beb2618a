//! A child process with its output in a file, that never outlives its owner.

use super::commands::check_run;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often to look whether something has happened.
const POLL: Duration = Duration::from_millis(10);
/// The last lines of a log that go into an error.
const LOG_LINES: usize = 12;

/// A running program.
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it printed, both streams.
    pub log: String,
}

impl Program {
    /// Starts `command` with its output going to `log`.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        command
            // `wait_until` needs its log lines, so the user's own setting must not hide them.
            .env("TALLY_LOG", "info")
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = command
            .spawn()
            .with_context(|| format!("{name}: {command:?}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// What it printed so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// If that cannot be known.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until its log satisfies `ready`.
    pub fn wait_until(
        &mut self,
        what: &str,
        patience: Duration,
        ready: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        while !ready(&self.log()) {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} ended ({status}) before {what}:\n{}",
                    self.name,
                    self.tail()
                );
            }
            if start.elapsed() > patience {
                bail!(
                    "{}: not within {patience:?} that {what}:\n{}",
                    self.name,
                    self.tail()
                );
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it does not end in time; it is killed then.
    pub fn wait(mut self, patience: Duration) -> Result<Ended> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Ended {
                    status,
                    log: self.log(),
                });
            }
            if start.elapsed() > patience {
                bail!(
                    "{}: not at its end after {patience:?}:\n{}",
                    self.name,
                    self.tail()
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits for its end, which must be a good one.
    ///
    /// # Errors
    /// If it does not end in time, or badly; with the end of its log.
    pub fn wait_ok(self, patience: Duration) -> Result<String> {
        let name = self.name.clone();
        let Ended { status, log } = self.wait(patience)?;
        if !status.success() {
            bail!("{name} ended with {status}:\n{}", tail(&log));
        }
        Ok(log)
    }

    /// Asks it to end (SIGTERM) and waits for a good end.
    ///
    /// # Errors
    /// As for [`wait_ok`](Self::wait_ok).
    pub fn stop(self, patience: Duration) -> Result<String> {
        self.signal("TERM")?;
        self.wait_ok(patience)
    }

    /// Sends a signal by name.
    ///
    /// # Errors
    /// If `kill` fails.
    pub fn signal(&self, signal: &str) -> Result<()> {
        check_run(
            Command::new("kill")
                .arg(format!("-{signal}"))
                .arg(self.id().to_string()),
        )
    }

    /// Has it read its file again, and waits until its log has `line` once more.
    ///
    /// # Errors
    /// If it ends, or does not say so.
    pub fn reload(&mut self, line: &str) -> Result<()> {
        let count = |log: &str| log.matches(line).count();
        let before = count(&self.log());
        self.signal("HUP")?;
        let what = format!("it says `{line}`");
        self.wait_until(&what, Duration::from_secs(10), |log| count(log) > before)
    }

    /// Kills it on the spot, as a crash would.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        let status = self.child.wait()?;
        if status.signal().is_none() {
            bail!(
                "{} had ended before it was killed:\n{}",
                self.name,
                self.tail()
            );
        }
        Ok(())
    }

    fn tail(&self) -> String {
        tail(&self.log())
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    let from = lines.len().saturating_sub(LOG_LINES);
    lines[from..]
        .iter()
        .map(|line| format!("    {line}\n"))
        .collect()
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
