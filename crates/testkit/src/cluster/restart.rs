//! Restarts of a cluster's processes at a known point of a job.
//!
//! The point is a number of results that have left the switch, by its statistics. A time would not
//! do: the speed of a job depends on the machine.

use super::Cluster;
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::fmt;
use std::time::{Duration, Instant};

/// How often to ask the switch.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// A process that may be killed and started again while a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// The switch.
    Switch,
    /// The parameter server of the first job, of several the last.
    Ps,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch => "switch",
            Self::Ps => "parameter server",
        })
    }
}

/// A restart that has happened.
#[derive(Clone, Debug, Serialize)]
pub struct Restarted {
    /// Of what.
    pub process: Process,
    /// Results of the job that had left the switch when the process was killed.
    pub results: u64,
    /// Data fragments of the job.
    pub fragments: u64,
    /// From the kill until the new process ran.
    pub down_ms: f64,
}

impl Cluster {
    /// Results that have left the switch since it started: of the switch, the card and the PS.
    ///
    /// # Errors
    /// If the switch does not answer.
    pub fn results(&self) -> Result<u64> {
        let report = self.switch_report()?;
        let count = |name: &str| report.counters.get(name).copied().unwrap_or(0);
        let card = report.card.as_ref();
        let card = card.map_or(0, |card| {
            card.traffic.results + card.traffic.results_from_ps
        });
        Ok(count("results") + count("results_from_ps") + card)
    }

    /// Waits until that many results have left the switch; returns how many have.
    ///
    /// # Errors
    /// If they do not in time, or the switch does not answer.
    pub fn wait_for_results(&self, results: u64, patience: Duration) -> Result<u64> {
        let start = Instant::now();
        loop {
            let now = self.results()?;
            if now >= results {
                return Ok(now);
            }
            if start.elapsed() > patience {
                bail!("{now} results left the switch in {patience:?}, expected {results}");
            }
            std::thread::sleep(ASK_EVERY);
        }
    }

    /// Kills a process on the spot, as a crash would, and starts it again. Returns how long that
    /// took.
    ///
    /// # Errors
    /// If it did not run, cannot be started, or the network does not carry it.
    pub fn restart(&mut self, process: Process) -> Result<Duration> {
        ensure!(
            self.spec.network.carries_restarts(),
            "the {process} cannot come back: over memif a process connects once in its life; \
             restarts need network namespaces (root)"
        );
        let start = Instant::now();
        match process {
            Process::Switch => {
                self.kill_switch()?;
                self.start_switch()?;
            }
            Process::Ps => {
                let last = self.spec.parameter_servers - 1;
                self.kill_ps(0, last)?;
                self.start_ps_of(0, last)?;
            }
        }
        Ok(start.elapsed())
    }
}
