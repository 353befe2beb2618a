//! The report as families for OpenMetrics.

use super::Report;
use crate::metrics::{Families, Family, Value, state};
use tally_engine::metrics::{Kind, Label, Metric, MetricSet as _, Unit};
use tally_engine::{DropReason, Drops};

/// Upper bounds of the residence's buckets.
pub const RESIDENCE_BOUNDS_US: [f64; 18] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6,
    1e7,
];

const PHASE: Label = Label {
    name: "phase",
    values: &["idle", "waiting", "running", "paused"],
};
const CARD: Label = Label {
    name: "state",
    values: &["absent", "working", "failed"],
};

const INFO: Metric = state(
    "switch_info",
    "version",
    "1, with what the switch is as labels.",
    &["version", "policy", "kernel"],
    None,
);
const JOB_PHASE: Metric = state(
    "job_phase",
    "jobs[].phase",
    "1 for what the job does, 0 for the other phases.",
    &["job_id"],
    Some(&PHASE),
);
const JOB_PS: Metric = state(
    "job_ps_present",
    "jobs[].ps",
    "1 if all parameter servers of the job have joined.",
    &["job_id"],
    None,
);
const JOB_ON_CARD: Metric = state(
    "job_on_card",
    "jobs[].on_card",
    "1 if the card has the job.",
    &["job_id"],
    None,
);
const CARD_STATE: Metric = state(
    "card_state",
    "card.state",
    "1 for the state of the card, 0 for the other states.",
    &[],
    Some(&CARD),
);
const RESIDENCE: Metric = Metric {
    unit: Unit::Seconds,
    kind: Kind::Counter,
    ..state(
        "residence_seconds",
        "residence_histogram",
        "Residence of fragments: from the first contribution to the result, in the switch.",
        &[],
        None,
    )
};

/// Families that are in none of the tables, for the documentation.
pub const STATES: [Metric; 6] = [INFO, JOB_PHASE, JOB_PS, JOB_ON_CARD, CARD_STATE, RESIDENCE];

impl Report {
    /// All metrics and states, in base units.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let mut families = Families::default();
        let info = [
            self.version.clone(),
            self.policy.to_string(),
            self.kernel.to_string(),
        ];
        families.one(&INFO, &info, 1u64);
        for sample in self.samples() {
            families.number(sample.metric, sample.labels, sample.value);
        }
        // From the start, so that the first one is an increase.
        for metric in Drops::TABLE {
            for reason in DropReason::NAMES {
                if !self.drops.contains_key(*reason) {
                    families.one(metric, &[(*reason).to_owned()], 0u64);
                }
            }
        }
        let residence = Value::Histogram(self.residence_histogram.clone());
        families.push(&RESIDENCE, Vec::new(), residence);
        for job in &self.jobs {
            let labels = [job.id.to_string()];
            families.state(&JOB_PHASE, &labels, &job.phase.to_string());
            families.one(&JOB_PS, &labels, u64::from(job.ps));
            families.one(&JOB_ON_CARD, &labels, u64::from(job.on_card));
        }
        if let Some(card) = &self.card {
            families.state(&CARD_STATE, &[], &card.state.to_string());
        }
        families.into_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::parse;
    use crate::switch::report::{CardState, JobPhase};
    use std::collections::BTreeSet;

    #[test]
    fn every_row_and_state_is_a_family_in_base_units() {
        let report: Report = parse(include_str!("../../../golden/switch-report.json"));
        let families = report.families();
        let names: BTreeSet<_> = families.iter().map(|family| family.metric.name).collect();
        assert_eq!(names.len(), families.len(), "each once");
        for metric in &STATES {
            assert!(names.contains(metric.name), "{}", metric.name);
        }
        let value = |name: &str| {
            let mut found = families.iter();
            &found
                .find(|family| family.metric.name == name)
                .unwrap()
                .points[0]
                .value
        };
        let p50 = report.residence.p50_us / 1e6;
        assert_eq!(value("residence_p50_seconds"), &Value::Real(p50));
        let Value::Histogram(residence) = value("residence_seconds") else {
            panic!("no histogram")
        };
        assert_eq!(residence.count(), 9);
        let phases = families
            .iter()
            .find(|family| family.metric.name == "job_phase");
        let running = phases
            .unwrap()
            .points
            .iter()
            .find(|p| p.labels[1].1 == "running");
        assert_eq!(running.unwrap().value, Value::Integer(1));
        for state in [CardState::Absent, CardState::Working, CardState::Failed] {
            assert!(CARD.values.contains(&&state.to_string()[..]));
        }
        use JobPhase::{Idle, Paused, Running, Waiting};
        for phase in [Idle, Waiting, Running, Paused] {
            assert!(PHASE.values.contains(&&phase.to_string()[..]));
        }
    }
}
