//! What a controller counts, over HTTP as OpenMetrics (`--metrics`).

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tally_program::VERSION;
use tally_schema::controller::{ControllerReport, JobFigures, SwitchFigures};
use tally_schema::event::MetricsSection;
use tally_telemetry::http::{Listener, Server, Snapshot, Source};

/// Figures, shared by the loop and the server.
#[derive(Clone, Debug)]
pub struct Figures {
    start: Instant,
    report: Arc<Mutex<ControllerReport>>,
}

impl Default for Figures {
    fn default() -> Self {
        let mut report = ControllerReport {
            version: VERSION.to_owned(),
            ..ControllerReport::default()
        };
        report.figures.store_answers = 1;
        Self {
            start: Instant::now(),
            report: Arc::new(Mutex::new(report)),
        }
    }
}

impl Figures {
    fn lock(&self) -> MutexGuard<'_, ControllerReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes them.
    pub fn change(&self, change: impl FnOnce(&mut ControllerReport)) {
        change(&mut self.lock());
    }

    /// Takes what the leader has seen.
    pub fn set(&self, version: u64, links_down: usize, jobs: Jobs, switches: Switches) {
        let mut report = self.lock();
        report.figures.plan_version = version;
        report.figures.links_down = links_down as u64;
        report.jobs = jobs;
        report.switches = switches;
    }
}

/// Jobs by name.
pub type Jobs = Vec<(String, JobFigures)>;
/// Switches by name.
pub type Switches = Vec<(String, SwitchFigures)>;

impl Source for Figures {
    fn snapshot(&self) -> Option<Snapshot> {
        let mut report = self.lock().clone();
        report.figures.seconds = self.start.elapsed().as_secs_f64();
        Some(Snapshot {
            families: report.families(),
            // Types of ours, which have no map with other keys than text.
            json: serde_json::to_string_pretty(&report).expect("figures are JSON"),
        })
    }
}

/// Serves figures until the value is dropped.
///
/// # Errors
/// If the address is taken, with the address.
pub fn serve(listen: SocketAddr, figures: Figures) -> io::Result<Server> {
    let section = MetricsSection {
        listen,
        hosts: Vec::new(),
    };
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("--metrics {listen}: {error}"));
    Server::start(Listener::bind(&section).map_err(named)?, figures)
}
