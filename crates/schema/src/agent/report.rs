//! The reports of a worker's all-reduce and of a parameter server.

use crate::text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::ops::AddAssign;
use tally_kernels::Backend;

/// What a worker makes of the tensors of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Their sum.
    Sum,
    /// The sum divided by the number of workers.
    Mean,
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
        })
    }
}

/// How floats are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// As integers with one exponent per fragment.
    Fixed,
    /// As f32, in the order of ranks.
    Native,
    /// In their own type, in the order of ranks.
    Own,
}

/// How frames get to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// The kernel's UDP.
    Udp,
    /// A port of its own, through DPDK.
    Dpdk,
}

/// Datagrams by their direction, as the host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// All of them.
    Both,
    /// To the switch.
    Out,
    /// From the switch.
    In,
}

/// A worker's report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The job.
    pub job: u16,
    /// Its incarnation.
    pub epoch: u16,
    /// Our rank.
    pub rank: u16,
    /// Workers of the job.
    pub workers: u16,
    /// What it made of the tensors.
    pub op: Op,
    /// How it added them.
    pub arithmetic: Arithmetic,
    /// How frames got to the switch.
    pub transport: TransportKind,
    /// The instruction set of the conversions.
    #[serde(with = "text")]
    pub kernels: Backend,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retransmissions {
    /// PROBEs after a timeout.
    pub timeout: u64,
    /// PROBEs because later fragments had results.
    pub early: u64,
    /// Contributions retransmitted because of a NACK.
    pub nack: u64,
}

/// Congestion, by its two causes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Default)]
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

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Default)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// A parameter server's report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PsReport {
    /// How long it ran.
    pub seconds: f64,
    /// Every job.
    pub jobs: Vec<PsJobReport>,
    /// Losses made on purpose.
    pub loss: Option<Losses>,
}

/// One job of a parameter server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PsJobReport {
    /// The job.
    pub job: u16,
    /// The part of its fragments, if there are several parameter servers; else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u8>,
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

impl AddAssign for Retransmissions {
    fn add_assign(&mut self, other: Self) {
        self.timeout += other.timeout;
        self.early += other.early;
        self.nack += other.nack;
    }
}

impl Retransmissions {
    /// The sum over several workers.
    #[must_use]
    pub fn of_all(workers: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::default();
        workers.into_iter().for_each(|one| all += one);
        all
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.sent_lost += other.sent_lost;
        self.received += other.received;
        self.received_lost += other.received_lost;
    }
}

impl Traffic {
    /// Datagrams lost in both directions.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.sent_lost + self.received_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{names, round_trip};

    #[test]
    fn a_workers_report_has_the_keys_that_tools_rely_on() {
        let report: Report = round_trip(include_str!("../../golden/worker-report.json"));
        assert_eq!(report.op, Op::Mean);
        assert_eq!(report.arithmetic, Arithmetic::Own);
        assert_eq!(report.transport, TransportKind::Dpdk);
        let loss = report.loss.unwrap();
        assert_eq!(loss.direction, Direction::In);
        assert_eq!(loss.elements.lost(), 3 + 7);
    }

    #[test]
    fn a_parameter_servers_report_has_the_keys_that_tools_rely_on() {
        let report: PsReport = round_trip(include_str!("../../golden/ps-report.json"));
        assert_eq!(report.jobs[0].job, 7);
        assert_eq!(report.loss, None);
    }

    #[test]
    fn an_operation_has_one_name() {
        assert_eq!(names([Op::Sum, Op::Mean]), ["sum", "mean"]);
    }

    #[test]
    fn numbers_of_several_are_added_by_kind() {
        let one = Retransmissions {
            timeout: 1,
            early: 2,
            nack: 3,
        };
        let all = Retransmissions {
            timeout: 2,
            early: 4,
            nack: 6,
        };
        assert_eq!(Retransmissions::of_all([one, one]), all);
        let mut traffic = Traffic {
            sent: 1,
            sent_lost: 2,
            received: 3,
            received_lost: 4,
        };
        traffic += traffic;
        assert_eq!(traffic.lost(), 12);
        assert_eq!((traffic.sent, traffic.received), (2, 6));
    }
}
