//! What a run was like, in numbers, as JSON.

use crate::error::AgentError;
use crate::link::loss::Direction;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tally_endpoint::{CongestionStats, PsStats, WorkerStats};

/// A worker's report.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The job.
    pub job: u16,
    /// Its incarnation.
    pub epoch: u16,
    /// Our rank.
    pub rank: u8,
    /// Workers of the job.
    pub workers: u8,
    /// `sum` or `mean`.
    pub op: &'static str,
    /// `fixed` or `native`.
    pub arithmetic: &'static str,
    /// `udp` or `dpdk`.
    pub transport: &'static str,
    /// The instruction set of the conversions.
    pub kernels: &'static str,
    /// Bytes of elements in a frame.
    pub payload_bytes: u32,
    /// Fragments that might be unfinished.
    pub window: u16,
    /// How often the tensors were summed.
    pub rounds: u32,
    /// Elements of the tensors.
    pub elements: u64,
    /// Bytes of the tensors in their own types.
    pub tensor_bytes: u64,
    /// From the first contribution to the last result, over all rounds and the pauses between.
    pub seconds: f64,
    /// From the beginning of the first round's pause to the last result.
    pub job_seconds: f64,
    /// Of each round, from its first contribution to its last result.
    pub round_seconds: Vec<f64>,
    /// The pause before each round.
    pub compute_ms: f64,
    /// Bits of the tensors in all rounds, by these seconds, in 10^9.
    pub goodput_gbit_per_s: f64,
    /// Fragments contributed.
    pub fragments: u64,
    /// Results finished by the switch.
    pub from_switch: u64,
    /// Results finished by the parameter server.
    pub from_ps: u64,
    /// Contributions sent again.
    pub retransmissions: Retransmissions,
    /// Results sent to the parameter server for workers that had lost them.
    pub results_resent: u64,
    /// Results that had come before.
    pub duplicates: u64,
    /// Frames of another epoch.
    pub late: u64,
    /// Frames that were none of ours.
    pub foreign: u64,
    /// The lowest priority that a fragment had.
    pub priority_min: Option<u8>,
    /// The highest.
    pub priority_max: Option<u8>,
    /// What the network said, and what it made of the windows.
    pub congestion: Congestion,
    /// From a contribution to its result.
    pub latency_us: Latency,
    /// Typical latency (lower quartile) at the end.
    pub typical_us: Option<f64>,
    /// Timeout at the end.
    pub rto_us: f64,
    /// Losses made on purpose.
    pub loss: Option<Losses>,
}

/// PROBEs by reason, and the contributions that NACKs asked for.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Retransmissions {
    /// PROBEs after a timeout.
    pub timeout: u64,
    /// PROBEs because later fragments had results.
    pub early: u64,
    /// Contributions retransmitted because of a NACK.
    pub nack: u64,
}

/// Congestion, by its two causes.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Congestion {
    /// Windows of results.
    pub rounds: u64,
    /// Those in which a link was full.
    pub rounds_marked: u64,
    /// Those in which the pool was.
    pub rounds_collided: u64,
    /// The link window at the end, in fragments.
    pub link_window: u32,
    /// The least that it was.
    pub link_window_min: u32,
    /// The aggregation window at the end, in fragments.
    pub aggregation_window: u32,
    /// The least that it was.
    pub aggregation_window_min: u32,
}

impl Congestion {
    pub(crate) const fn new((link, aggregation): (u32, u32), stats: &CongestionStats) -> Self {
        Self {
            rounds: stats.rounds,
            rounds_marked: stats.rounds_marked,
            rounds_collided: stats.rounds_collided,
            link_window: link,
            link_window_min: stats.link_window_min,
            aggregation_window: aggregation,
            aggregation_window_min: stats.aggregation_window_min,
        }
    }
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// Half are below.
    pub p50: f64,
    /// 99 of 100 are below.
    pub p99: f64,
    /// 999 of 1000 are below.
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    /// The largest.
    pub max: f64,
}

/// Losses made on purpose, and all datagrams that passed the injector.
#[derive(Clone, Debug, Serialize)]
pub struct Losses {
    /// Of each datagram, or of each to begin a burst.
    pub probability: f64,
    /// Datagrams lost in a row.
    pub burst: u32,
    /// Which datagrams may be lost.
    pub direction: Direction,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Lost datagrams that were to leave.
    pub sent: u64,
    /// Lost datagrams that had arrived.
    pub received: u64,
    /// Datagrams with elements.
    pub elements: Traffic,
    /// Datagrams by kind, kinds without any left out.
    pub by_kind: BTreeMap<String, Traffic>,
}

/// Datagrams at an injector of losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Datagrams that were to leave, with the lost ones.
    pub sent: u64,
    /// The lost ones of them.
    pub sent_lost: u64,
    /// Datagrams that arrived, with the lost ones.
    pub received: u64,
    /// The lost ones of them.
    pub received_lost: u64,
}

impl From<&WorkerStats> for Retransmissions {
    fn from(stats: &WorkerStats) -> Self {
        let r = stats.retransmissions;
        Self {
            timeout: r.probes_timeout,
            early: r.probes_early,
            nack: r.contributions,
        }
    }
}

impl From<&Histogram<u64>> for Latency {
    fn from(ns: &Histogram<u64>) -> Self {
        let at = |q| ns.value_at_quantile(q) as f64 / 1e3;
        Self {
            p50: at(0.5),
            p99: at(0.99),
            p99_9: at(0.999),
            max: ns.max() as f64 / 1e3,
        }
    }
}

/// A parameter server's report.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PsReport {
    /// How long it ran.
    pub seconds: f64,
    /// Every job.
    pub jobs: Vec<PsJobReport>,
    /// Losses made on purpose.
    pub loss: Option<Losses>,
}

/// One job of a parameter server.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct PsJobReport {
    /// The job.
    pub job: u16,
    /// Partials taken in.
    pub partials: u64,
    /// Partials that brought nothing new.
    pub duplicates: u64,
    /// Partials dropped because they overlapped.
    pub overlaps: u64,
    /// Fragments finished here.
    pub results: u64,
    /// Results sent again.
    pub results_resent: u64,
    /// PROBEs of workers that missed a result.
    pub probes: u64,
    /// NACKs sent.
    pub nacks: u64,
    /// REMINDs sent.
    pub reminds: u64,
    /// Answers that the switch has nothing.
    pub not_here: u64,
    /// Fragments forgotten, because the switch had finished them.
    pub forgotten: u64,
    /// Fragments that overflowed.
    pub overflows: u64,
    /// Frames of another epoch or too old.
    pub late: u64,
    /// Frames that did not fit.
    pub foreign: u64,
}

impl PsJobReport {
    pub(crate) fn new(job: u16, s: &PsStats) -> Self {
        Self {
            job,
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
}

/// Latencies above this count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// For latencies in nanoseconds, with three digits.
pub(crate) fn latencies() -> Histogram<u64> {
    // The bounds are always valid.
    Histogram::new_with_bounds(100, LATENCY_NS_MAX, 3)
        .unwrap_or_else(|_| unreachable!("constant bounds"))
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
