//! The metrics of a report: the table of all rows, and their values.
//!
//! Rows are declared beside the structs that are counted in ([`tally_engine::metrics`]). Shares and
//! averages in a report (`hit_rate`, `busy_share`, `cycles_per_frame`) are quotients of rows, and
//! are none. Nor is what the configuration or the device says.

use super::{
    CardCounts, CardEvents, JobMembers, Latency, LinkCounters, LoadCounters, MemberGauges,
    NetreduceLimits, NicCounters, RankGauges, Report, SessionGauges, SwitchGauges, SwitchmlLimits,
    SwitchmlReport,
};
use std::collections::BTreeMap;
use tally_engine::egress::{PortCounters, RareCounters};
use tally_engine::forwarding::PortAddresses;
use tally_engine::metrics::{Metric, MetricSet, Number};
use tally_engine::native::PoolUse;
use tally_engine::netreduce::{NetreduceCounters, NetreduceUse, RingCounters};
use tally_engine::offload::CardTraffic;
use tally_engine::queue::QueueCounters;
use tally_engine::switchml::{RankCounters, SessionCounters, SwitchmlCounters, SwitchmlUse};
use tally_engine::{Counters, Drops, JobCounters};

/// Metrics that are at one place of the report.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The place: keys from the top, `[]` after that of a list.
    pub place: &'static str,
    /// Its metrics.
    pub metrics: &'static [Metric],
}

const fn at<T: MetricSet>(place: &'static str) -> Group {
    Group {
        place,
        metrics: T::TABLE,
    }
}

/// All metrics of the switch.
pub const TABLE: [Group; 29] = [
    at::<SwitchGauges>(""),
    at::<PoolUse>(""),
    at::<Counters>("counters"),
    at::<Drops>(""),
    at::<Latency>("residence"),
    at::<LoadCounters>("load[]"),
    at::<PortCounters>("ports[]"),
    at::<RareCounters>("ports[]"),
    at::<PortAddresses>("ports[]"),
    at::<QueueCounters>("ports[]"),
    at::<LinkCounters>("ports[]"),
    at::<NicCounters>("ports[]"),
    at::<JobMembers>("jobs[]"),
    at::<JobCounters>("jobs[].counters"),
    at::<MemberGauges>("jobs[].ranks[]"),
    at::<SwitchmlCounters>("switchml.counters"),
    at::<SwitchmlUse>("switchml"),
    at::<SwitchmlLimits>("switchml"),
    at::<SessionGauges>("switchml.sessions[]"),
    at::<SessionCounters>("switchml.sessions[]"),
    at::<RankCounters>("switchml.sessions[].ranks[]"),
    at::<RankGauges>("switchml.sessions[].ranks[]"),
    at::<NetreduceCounters>("netreduce.counters"),
    at::<NetreduceUse>("netreduce"),
    at::<NetreduceLimits>("netreduce"),
    at::<RingCounters>("netreduce.rings[]"),
    at::<CardEvents>("card"),
    at::<CardTraffic>("card"),
    at::<CardCounts>("card"),
];

/// One value of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its row.
    pub metric: &'static Metric,
    /// The value of each of the row's labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value, in the unit of the report.
    pub value: Number,
}

impl Report {
    /// The values of all metrics, also those that are 0; in the order of [`TABLE`] for each port,
    /// core, job, session and rank. Drops and counters are those that the report has.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = Samples(Vec::new());
        samples.add(&[], &self.gauges);
        samples.add(&[], &self.in_use);
        samples.add_named::<Counters>(&self.counters);
        for metric in Drops::TABLE {
            for (reason, &frames) in &self.drops {
                samples.push(metric, &[], Some(reason), Number::Integer(frames));
            }
        }
        samples.add(&[], &self.residence);
        for core in &self.load {
            samples.add(&[core.cpu.to_string()], &core.counters);
        }
        for port in &self.ports {
            let labels = [port.name.clone()];
            samples.add(&labels, &port.counters);
            samples.add(&labels, &port.rare);
            samples.add(&labels, &port.addresses);
            samples.add(&labels, &port.queue);
            samples.add(&labels, &port.link);
            samples.add(&labels, &port.nic);
        }
        for job in &self.jobs {
            samples.add(&[job.id.to_string()], &job.members);
            samples.add(&[job.id.to_string()], &job.counters);
            for member in &job.ranks {
                samples.add(&[job.id.to_string(), member.label()], &member.gauges);
            }
        }
        if let Some(switchml) = &self.switchml {
            samples.add_switchml(switchml);
        }
        if let Some(netreduce) = &self.netreduce {
            samples.add_named::<NetreduceCounters>(&netreduce.counters);
            samples.add(&[], &netreduce.in_use);
            samples.add(&[], &netreduce.limits);
            for ring in &netreduce.rings {
                samples.add(&[ring.id.to_string()], &ring.counters);
            }
        }
        if let Some(card) = &self.card {
            samples.add(&[], &card.events);
            samples.add(&[], &card.traffic);
            samples.add(&[], &card.counts);
        }
        samples.0
    }
}

struct Samples(Vec<Sample>);

impl Samples {
    /// A value with those of its set's labels and of its own.
    fn push(&mut self, metric: &'static Metric, set: &[String], own: Option<&str>, value: Number) {
        let values = set.iter().map(String::as_str).chain(own);
        self.0.push(Sample {
            metric,
            labels: metric.labels().zip(values.map(str::to_owned)).collect(),
            value,
        });
    }

    fn add(&mut self, labels: &[String], set: &impl MetricSet) {
        set.visit(&mut |metric, own, value| self.push(metric, labels, own, value));
    }

    /// Values that the report has by their rows' keys.
    fn add_named<T: MetricSet>(&mut self, values: &BTreeMap<String, u64>) {
        for metric in T::TABLE {
            if let Some(&n) = values.get(metric.key) {
                self.push(metric, &[], None, Number::Integer(n));
            }
        }
    }

    fn add_switchml(&mut self, switchml: &SwitchmlReport) {
        self.add_named::<SwitchmlCounters>(&switchml.counters);
        self.add(&[], &switchml.in_use);
        self.add(&[], &switchml.limits);
        for session in &switchml.sessions {
            let labels = [session.id.clone()];
            self.add(&labels, &session.gauges);
            self.add(&labels, &session.counters);
            for (rank, worker) in session.ranks.iter().enumerate() {
                let labels = [session.id.clone(), rank.to_string()];
                self.add(&labels, &worker.counters);
                self.add(&labels, &worker.gauges);
            }
        }
    }
}
