//! What a controller that runs has counted, as JSON and as families for OpenMetrics.

use crate::metrics::{Families, Family};
use serde::{Deserialize, Serialize};
use tally_engine::metrics;
use tally_engine::metrics::{Metric, MetricSet};

metrics! {
    /// A controller.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub struct ControllerFigures, labels [] {
        /// Time since the controller's start.
        pub seconds: f64 = gauge "controller_uptime_seconds" in Seconds;
        /// 1 if it is the leader, 0 if it waits as standby.
        pub leads: u64 = gauge "controller_leader";
        /// 1 if fleet and plan can be read and written.
        pub store_answers: u64 = gauge "controller_store_up";
        /// Version of the plan that switches follow.
        pub plan_version: u64 = gauge "controller_plan_version";
        /// Plans made.
        pub plans: u64 = counter "controller_plans";
        /// Time to make the last plan.
        pub plan_ms: f64 = gauge "controller_plan_seconds" in Seconds / 1e3;
        /// Changes made at switches.
        pub changes: u64 = counter "controller_switch_changes";
        /// Time from an event to the end of the changes that it led to, of the last ones.
        pub change_ms: f64 = gauge "controller_reaction_seconds" in Seconds / 1e3;
        /// Errors: a pass over switches that failed, state that cannot be read, a refused fleet.
        pub errors: u64 = counter "controller_errors";
        /// Links of switches that are down.
        pub links_down: u64 = gauge "controller_links_down";
    }
}

metrics! {
    /// A switch of the fleet.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub struct SwitchFigures, labels ["switch"] {
        /// 1 if the switch answers.
        pub up: u64 = gauge "controller_switch_up";
        /// Gradients that the switch can sum in a second, as plans have it.
        pub capacity_bytes: f64 = gauge "controller_switch_capacity_bytes" in Bytes;
    }
}

metrics! {
    /// A job of the fleet.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub struct JobFigures, labels ["job_name"] {
        /// 1 if switches report the job's tree, so that its hosts can join.
        pub ready: u64 = gauge "controller_job_ready";
        /// Gradients of each worker in a second that the plan predicts.
        pub rate_bytes: f64 = gauge "controller_job_rate_bytes" in Bytes;
    }
}

/// A controller at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControllerReport {
    /// The program's version.
    pub version: String,
    /// Of itself.
    pub figures: ControllerFigures,
    /// Switches by name, of the leader.
    pub switches: Vec<(String, SwitchFigures)>,
    /// Jobs by name, of the leader.
    pub jobs: Vec<(String, JobFigures)>,
}

/// All rows of a controller, for the documentation.
#[must_use]
pub fn controller_rows() -> Vec<&'static Metric> {
    let sets = ControllerFigures::TABLE.iter().chain(SwitchFigures::TABLE);
    sets.chain(JobFigures::TABLE).collect()
}

impl ControllerReport {
    /// The controller, its switches and its jobs.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let mut families = Families::default();
        families.set(&[], &self.figures);
        for (name, figures) in &self.switches {
            families.set(std::slice::from_ref(name), figures);
        }
        for (name, figures) in &self.jobs {
            families.set(std::slice::from_ref(name), figures);
        }
        families.into_vec()
    }
}
