//! Metrics of an agent and of a parameter server over HTTP.
//!
//! The agent's are its status, which the listener's thread asks for at the agent's own socket: so
//! they cost its other threads what `tally-agent status` does, and are the successor's once an
//! upgrade has given it the socket. A parameter server has one thread, which leaves its report here
//! a few times a second.

use crate::config::{AgentConfig, PsConfig};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tally_schema::agent::report::PsReport;
use tally_schema::agent::status::Status;
use tally_telemetry::http::{Snapshot, Source, keep_serving};

/// For the agent to tell its status.
const STATUS_WITHIN: Duration = Duration::from_secs(2);
/// Between two reports of a parameter server.
const EVERY: Duration = Duration::from_millis(250);

/// Serves an agent's metrics for as long as the process runs, if they are configured.
pub fn serve_agent(config: &AgentConfig) {
    if let Some(section) = &config.metrics {
        keep_serving(section.clone(), Agent(config.socket.clone()));
    }
}

struct Agent(PathBuf);

impl Source for Agent {
    fn snapshot(&self) -> Option<Snapshot> {
        let json = tally_local::status(&self.0, STATUS_WITHIN).ok()?;
        let status: Status = tally_config::parse(&self.0, json.as_bytes()).ok()?;
        Some(Snapshot {
            families: status.families(),
            json: json + "\n",
        })
    }
}

/// Where a parameter server leaves its reports.
pub(crate) struct PsMonitor {
    latest: Arc<Mutex<Option<PsReport>>>,
    next: Instant,
}

impl PsMonitor {
    /// Serves metrics for as long as the process runs, if they are configured.
    pub(crate) fn of(config: &PsConfig) -> Option<Self> {
        let section = config.metrics.clone()?;
        let latest = Arc::default();
        keep_serving(section, Ps(Arc::clone(&latest)));
        Some(Self {
            latest,
            next: Instant::now(),
        })
    }

    /// Takes the report, if it is time to.
    pub(crate) fn look(&mut self, report: impl FnOnce() -> PsReport) {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + EVERY;
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            *latest = Some(report());
        }
    }
}

struct Ps(Arc<Mutex<Option<PsReport>>>);

impl Source for Ps {
    fn snapshot(&self) -> Option<Snapshot> {
        let latest = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()?;
        Some(Snapshot {
            families: latest.families(),
            json: simd_json::to_string(&latest).unwrap_or_default() + "\n",
        })
    }
}
