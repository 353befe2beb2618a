//! The agent's reports, filled in from what its sessions count: [`tally_schema::agent::report`].

use crate::error::AgentError;
use crate::link::loss::Direction;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use tally_endpoint::{CongestionStats, PsStats, WorkerStats};
use tally_schema::agent::report::{self, Congestion, Latency, PsJobReport, Retransmissions};
use tally_session::Arithmetic;
use tally_wire::Part;

pub(crate) const fn arithmetic(arithmetic: Arithmetic) -> report::Arithmetic {
    match arithmetic {
        Arithmetic::Fixed => report::Arithmetic::Fixed,
        Arithmetic::Native => report::Arithmetic::Native,
        Arithmetic::Own => report::Arithmetic::Own,
    }
}

impl From<Direction> for report::Direction {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Both => Self::Both,
            Direction::Out => Self::Out,
            Direction::In => Self::In,
        }
    }
}

/// The link and the aggregation window now, and what they were.
pub(crate) const fn congestion(
    (link, aggregation): (u32, u32),
    stats: &CongestionStats,
) -> Congestion {
    Congestion {
        rounds: stats.rounds,
        rounds_marked: stats.rounds_marked,
        rounds_collided: stats.rounds_collided,
        link_window: link,
        link_window_min: stats.link_window_min,
        aggregation_window: aggregation,
        aggregation_window_min: stats.aggregation_window_min,
    }
}

pub(crate) const fn retransmissions(stats: &WorkerStats) -> Retransmissions {
    let r = stats.retransmissions;
    Retransmissions {
        timeout: r.probes_timeout,
        early: r.probes_early,
        nack: r.contributions,
    }
}

/// Of a histogram of nanoseconds.
pub(crate) fn latency(ns: &Histogram<u64>) -> Latency {
    let at = |q| ns.value_at_quantile(q) as f64 / 1e3;
    Latency {
        p50: at(0.5),
        p99: at(0.99),
        p99_9: at(0.999),
        max: ns.max() as f64 / 1e3,
    }
}

pub(crate) fn ps_job(job: u16, part: Part, s: &PsStats) -> PsJobReport {
    PsJobReport {
        job,
        part: (part.count() > 1).then_some(part.index()),
        partials: s.partials,
        duplicates: s.duplicates,
        overlaps: s.overlaps,
        results: s.results,
        results_resent: s.results_resent,
        probes: s.probes,
        nacks: s.nacks,
        reminds: s.reminds,
        not_here: s.not_here,
        forgotten: s.forgotten,
        overflows: s.overflows,
        late: s.late,
        foreign: s.foreign,
    }
}

pub(crate) fn micros(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e3
}

/// Writes a report to the file at `path`, as JSON.
///
/// # Errors
/// If the file cannot be written.
pub fn write(report: &impl Serialize, path: &Path) -> Result<(), AgentError> {
    let failed = |source| AgentError::Report {
        path: path.to_owned(),
        source,
    };
    let mut text = simd_json::serde::to_vec_pretty(report)
        .map_err(|e| failed(std::io::Error::other(e.to_string())))?;
    text.push(b'\n');
    tally_config::write_whole(path, text).map_err(failed)
}
