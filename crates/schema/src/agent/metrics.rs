//! The status of an agent and the report of a parameter server as families for OpenMetrics.

use super::report::{PsJobReport, PsReport};
use super::status::{RankStatus, Status};
use crate::metrics::{Families, Family, state};
use std::collections::BTreeMap;
use tally_engine::metrics;
use tally_engine::metrics::{Label, Metric, MetricSet};

const COLLECTIVE: Label = Label {
    name: "kind",
    values: &["all_reduce", "broadcast", "barrier"],
};

metrics! {
    /// An agent.
    #[derive(Clone, Debug)]
    pub(crate) struct AgentGauges, labels [] {
        /// Time since the agent's start.
        pub seconds: f64 = gauge "agent_uptime_seconds" in Seconds;
        /// What makes all jobs of the agent slower than they could be.
        pub warnings: u64 = gauge "agent_warnings";
    }
}

metrics! {
    /// A process of a job at an agent.
    #[derive(Clone, Debug)]
    pub(crate) struct RankFigures, labels ["job_id", "rank"] {
        /// Collectives that are done, by kind.
        pub done: [u64; 3] = counter "agent_collectives" by COLLECTIVE;
        /// Collectives that another library did in place of Tally.
        pub fallback: u64 = counter "agent_fallback_collectives";
        /// Collectives that are submitted and not done.
        pub under_way: u64 = gauge "agent_collectives_in_flight";
        /// Ranks that the process waits for.
        pub behind: u64 = gauge "agent_awaited_ranks";
        /// Bytes of collectives that are done.
        pub bytes: u64 = counter "agent_collective_bytes" in Bytes;
        /// Fragments contributed.
        pub fragments: u64 = counter "agent_fragments";
        /// Results finished by the switch.
        pub from_switch: u64 = counter "agent_results_from_switch";
        /// Results finished by the parameter server.
        pub from_ps: u64 = counter "agent_results_from_ps";
        /// Contributions retransmitted.
        pub sent_again: u64 = counter "agent_retransmissions";
        /// The most fragments that may be in flight.
        pub window: u64 = gauge "agent_window_limit_fragments";
        /// Fragments in flight that the links allow.
        pub link_window: u64 = gauge "agent_link_window_fragments";
        /// Fragments in flight that the switch's pool allows.
        pub aggregation_window: u64 = gauge "agent_aggregation_window_fragments";
        /// Median time from a contribution to its result.
        pub latency_us_p50: f64 = gauge "agent_latency_p50_seconds" in Seconds / 1e6;
        /// 99th percentile of the time from a contribution to its result.
        pub latency_us_p99: f64 = gauge "agent_latency_p99_seconds" in Seconds / 1e6;
        /// Retransmission timeout.
        pub rto_us: f64 = gauge "agent_rto_seconds" in Seconds / 1e6;
        /// What makes the process slower than it could be.
        pub warnings: u64 = gauge "agent_rank_warnings";
    }
}

metrics! {
    /// A job of a parameter server.
    #[derive(Clone, Debug)]
    pub(crate) struct PsFigures, labels ["job_id"] {
        /// PARTIALs summed.
        pub partials: u64 = counter "ps_partials";
        /// PARTIALs that brought nothing new.
        pub duplicates: u64 = counter "ps_duplicates";
        /// PARTIALs dropped because they overlapped.
        pub overlaps: u64 = counter "ps_overlaps";
        /// Results finished by the parameter server.
        pub results: u64 = counter "ps_results";
        /// Results retransmitted.
        pub results_resent: u64 = counter "ps_results_retransmitted";
        /// PROBEs of workers that missed a result.
        pub probes: u64 = counter "ps_probes";
        /// NACKs sent.
        pub nacks: u64 = counter "ps_nacks";
        /// REMINDs sent.
        pub reminds: u64 = counter "ps_reminds";
        /// Answers that the switch has nothing of a fragment.
        pub not_here: u64 = counter "ps_not_here";
        /// Fragments forgotten because the switch had finished them.
        pub forgotten: u64 = counter "ps_forgotten";
        /// Results with a saturated element.
        pub overflows: u64 = counter "ps_overflows";
        /// Frames of another epoch, or too old.
        pub late: u64 = counter "ps_late_frames" in Frames;
        /// Frames that fit no job.
        pub foreign: u64 = counter "ps_foreign_frames" in Frames;
    }
}

metrics! {
    /// A parameter server.
    #[derive(Clone, Debug)]
    pub(crate) struct PsGauges, labels [] {
        /// Time since the parameter server's start.
        pub seconds: f64 = gauge "ps_uptime_seconds" in Seconds;
    }
}

const INFO: Metric = state(
    "agent_info",
    "version",
    "1, with the agent's version and the address of its switch as labels.",
    &["version", "switch"],
    None,
);
const RUNNING: Metric = state(
    "agent_rank_running",
    "jobs[].ranks[].epoch",
    "1 if the job of the process runs, 0 while members are missing.",
    &["job_id", "rank"],
    None,
);

/// All rows of an agent, for the documentation.
#[must_use]
pub fn agent_rows() -> Vec<&'static Metric> {
    let sets = AgentGauges::TABLE.iter().chain(RankFigures::TABLE);
    sets.chain([&INFO, &RUNNING]).collect()
}

/// All rows of a parameter server.
#[must_use]
pub fn ps_rows() -> Vec<&'static Metric> {
    PsGauges::TABLE.iter().chain(PsFigures::TABLE).collect()
}

impl RankFigures {
    fn of(rank: &RankStatus) -> Self {
        Self {
            done: [rank.done.all_reduce, rank.done.broadcast, rank.done.barrier],
            fallback: rank
                .fallback
                .values()
                .fold(0, |all: u64, n| all.saturating_add(*n)),
            under_way: rank.under_way,
            behind: rank.behind.len() as u64,
            bytes: rank.bytes,
            fragments: rank.fragments,
            from_switch: rank.from_switch,
            from_ps: rank.from_ps,
            sent_again: rank.sent_again,
            window: rank.window.into(),
            link_window: rank.link_window.into(),
            aggregation_window: rank.aggregation_window.into(),
            latency_us_p50: rank.latency_us_p50,
            latency_us_p99: rank.latency_us_p99,
            rto_us: rank.rto_us,
            warnings: rank.warnings.len() as u64,
        }
    }
}

impl PsFigures {
    fn of(job: &PsJobReport) -> Self {
        Self {
            partials: job.partials,
            duplicates: job.duplicates,
            overlaps: job.overlaps,
            results: job.results,
            results_resent: job.results_resent,
            probes: job.probes,
            nacks: job.nacks,
            reminds: job.reminds,
            not_here: job.not_here,
            forgotten: job.forgotten,
            overflows: job.overflows,
            late: job.late,
            foreign: job.foreign,
        }
    }
}

impl Status {
    /// The agent and its processes.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let mut families = Families::default();
        let info = [self.version.clone(), self.switch.clone()];
        families.one(&INFO, &info, 1u64);
        let gauges = AgentGauges {
            seconds: self.seconds,
            warnings: self.warnings.len() as u64,
        };
        families.set(&[], &gauges);
        for job in &self.jobs {
            for rank in &job.ranks {
                let labels = [job.job.to_string(), rank.rank.to_string()];
                families.set(&labels, &RankFigures::of(rank));
                families.one(&RUNNING, &labels, u64::from(rank.epoch.is_some()));
            }
        }
        families.into_vec()
    }
}

impl PsReport {
    /// The parameter server and its jobs.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let mut families = Families::default();
        let gauges = PsGauges {
            seconds: self.seconds,
        };
        families.set(&[], &gauges);
        // A job that left and came back has a report of each time.
        let mut jobs: BTreeMap<u16, PsFigures> = BTreeMap::new();
        for job in &self.jobs {
            jobs.entry(job.job).or_default().add(&PsFigures::of(job));
        }
        for (job, figures) in jobs {
            families.set(&[job.to_string()], &figures);
        }
        families.into_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::parse;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_is_a_family_with_a_name_of_its_own() {
        let status: Status = parse(include_str!("../../golden/agent-status.json"));
        let report: PsReport = parse(include_str!("../../golden/ps-report.json"));
        for (families, rows) in [
            (status.families(), agent_rows()),
            (report.families(), ps_rows()),
        ] {
            let names: BTreeSet<_> = families.iter().map(|family| family.metric.name).collect();
            assert_eq!(names.len(), families.len());
            assert_eq!(names, rows.iter().map(|row| row.name).collect());
            for row in rows {
                assert!(row.help.ends_with('.'), "{}", row.name);
                let unit = row.unit.name();
                assert!(row.name.ends_with(unit), "{}", row.name);
            }
        }
    }
}
