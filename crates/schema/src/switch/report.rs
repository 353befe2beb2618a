//! What a switch did: one value, as JSON for programs and as lines for people.

mod card;
mod fabric;
mod families;
mod lines;
mod link;
mod load;
mod member;
mod rings;
mod sessions;
mod since;
mod table;
mod tree;

pub use card::{CardCounts, CardEvents, CardReport, CardState};
pub use fabric::FabricLinkReport;
pub use families::{RESIDENCE_BOUNDS_US, STATES};
pub use link::{LinkCounters, NeighbourReport, NicCounters, PortState};
pub use load::{LoadCounters, Stage, StageCycles};
pub use member::{MemberGauges, MemberReport};
pub use rings::{NetreduceLimits, NetreduceReport, RingReport};
pub use sessions::{
    RankGauges, RankReport, SessionGauges, SessionReport, SwitchmlLimits, SwitchmlReport,
};
pub use table::{Group, Sample, TABLE};
pub use tree::{ChildReport, ParentReport, TreeReport};

use crate::event::Event;
use crate::metrics::Histogram;
use crate::text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tally_engine::egress::{PortCounters, RareCounters};
use tally_engine::forwarding::PortAddresses;
use tally_engine::metrics;
use tally_engine::native::PoolUse;
use tally_engine::queue::QueueCounters;
use tally_engine::{JobCounters, PolicyName};
use tally_kernels::Backend;

/// Who puts a port's frames into the receive queues of the data cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// None: there is one core.
    #[default]
    #[serde(rename = "single core")]
    SingleCore,
    /// The device, by flow rules.
    Rules,
    /// The device, by a hash of addresses and ports.
    Rss,
    /// The other end of the link.
    Peer,
    /// The device, in a way of its own.
    Device,
    /// The core with the port's one queue, which hands frames over.
    HandOver,
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::SingleCore => "single core",
            Self::Rules => "rules",
            Self::Rss => "rss",
            Self::Peer => "peer",
            Self::Device => "device",
            Self::HandOver => "hand-over",
        })
    }
}

/// One port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Frames and bytes.
    #[serde(flatten)]
    pub counters: PortCounters,
    /// What is rarely counted.
    #[serde(flatten)]
    pub rare: RareCounters,
    /// MAC addresses behind it.
    #[serde(flatten)]
    pub addresses: PortAddresses,
    /// Its queue.
    #[serde(flatten)]
    pub queue: QueueCounters,
    /// Its link, storms and loops.
    #[serde(flatten)]
    pub link: LinkCounters,
    /// What its device counts.
    #[serde(flatten)]
    pub nic: NicCounters,
    /// What it does.
    #[serde(default)]
    pub state: PortState,
    /// Speed of its link in Mbit/s, if the device says one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// Who is at the other end, if it says so by LLDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<NeighbourReport>,
    /// Receive queues.
    #[serde(default)]
    pub rx_queues: u16,
    /// Transmit queues.
    #[serde(default)]
    pub tx_queues: u16,
    /// Who steers frames into the receive queues.
    #[serde(default)]
    pub steering: Spread,
    /// Flow rules that the device has for it.
    #[serde(default)]
    pub rules: u16,
    /// Why it has none, in the driver's words, if it was asked for some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules_refused: Option<String>,
    /// Frames dropped at its queue, of all classes.
    pub tx_dropped: u64,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobPhase {
    /// No member has joined.
    Idle,
    /// Some members have joined.
    Waiting,
    /// All members have joined.
    Running,
    /// Its PS is gone.
    Paused,
}

impl std::fmt::Display for JobPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Paused => "paused",
        })
    }
}

metrics! {
    /// Workers of a job.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct JobMembers, labels ["job_id"] {
        /// Workers of the job.
        pub workers: u8 = gauge "job_workers";
        /// Workers that have joined.
        pub joined: u32 = gauge "job_workers_joined";
        /// Workers that have left.
        pub left: u32 = gauge "job_workers_left";
    }
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// Its number.
    pub id: u16,
    /// What it does.
    pub phase: JobPhase,
    /// Its incarnation.
    pub epoch: u16,
    /// Its workers.
    #[serde(flatten)]
    pub members: JobMembers,
    /// Whether all its parameter servers are there.
    pub ps: bool,
    /// Its parameter servers.
    #[serde(
        default = "crate::switch::config::one",
        skip_serializing_if = "crate::switch::config::is_one"
    )]
    pub parameter_servers: u8,
    /// Whether the card has it.
    #[serde(default)]
    pub on_card: bool,
    /// Whether it begins no epoch (`drain`).
    #[serde(default)]
    pub draining: bool,
    /// The place of the switch in its tree, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeReport>,
    /// The tenant that it is of, if a JOIN made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The ranks that use the job's previous key, `ps` among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub previous_key: Vec<String>,
    /// Bytes of a fragment, once its first worker has joined; 0 before.
    #[serde(default)]
    pub payload_bytes: u32,
    /// What was summed of it here, without what a card did.
    #[serde(default)]
    pub counters: JobCounters,
    /// Its members that have joined, the parameter servers last.
    #[serde(default)]
    pub ranks: Vec<MemberReport>,
}

/// Where a data core's time went since the switch started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreLoad {
    /// Its CPU.
    pub cpu: usize,
    /// Share of the time in which there was something to do.
    pub busy_share: f64,
    /// What it did.
    #[serde(flatten)]
    pub counters: LoadCounters,
    /// Frames that a poll brought which brought any.
    pub frames_per_burst: f64,
    /// Cycles for each frame by stage, without `idle`.
    pub cycles_per_frame: BTreeMap<Stage, f64>,
}

impl CoreLoad {
    /// With the shares that follow from what the core of `cpu` counted.
    #[must_use]
    pub fn new(cpu: usize, counters: LoadCounters) -> Self {
        let frames = counters.frames.max(1) as f64;
        let bursts = counters.polls.saturating_sub(counters.empty_polls).max(1);
        Self {
            cpu,
            busy_share: counters.busy_share(),
            counters,
            frames_per_burst: counters.frames as f64 / bursts as f64,
            cycles_per_frame: (Stage::ALL.into_iter())
                .filter(|&stage| stage != Stage::Idle)
                .map(|stage| (stage, counters.cycles[stage] as f64 / frames))
                .collect(),
        }
    }
}

metrics! {
    /// Residence of fragments: from the first contribution to the result, in the switch.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Latency, labels [] {
        /// Fragments whose residence was measured.
        pub count: u64 = counter "residence_fragments";
        /// Median of the residence: from a fragment's first contribution to its result.
        pub p50_us: f64 = maximum "residence_p50_seconds" in Seconds / 1e6;
        /// 99th percentile of the residence.
        pub p99_us: f64 = maximum "residence_p99_seconds" in Seconds / 1e6;
        /// 99.9th percentile of the residence.
        pub p999_us: f64 = maximum "residence_p999_seconds" in Seconds / 1e6;
        /// Longest residence.
        pub max_us: f64 = maximum "residence_max_seconds" in Seconds / 1e6;
    }
}

metrics! {
    /// Age and size of a switch.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct SwitchGauges, labels [] {
        /// Time since the start.
        pub seconds: f64 = gauge "uptime_seconds" in Seconds;
        /// Slots of all shards.
        pub slots: u32 = gauge "slots";
        /// Bytes of frames that the slots may hold.
        pub pool_bytes: u64 = gauge "pool_bytes" in Bytes;
    }
}

/// Everything that the switch did since it started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the program.
    pub version: String,
    /// Name of the switch; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version of the configuration that runs; the first is 1.
    #[serde(default)]
    pub config_version: u64,
    /// Its age and size.
    #[serde(flatten)]
    pub gauges: SwitchGauges,
    /// Policy of the pool.
    #[serde(with = "text")]
    pub policy: PolicyName,
    /// SIMD backend of the sums.
    #[serde(with = "text")]
    pub kernel: Backend,
    /// CPUs of the data cores.
    pub cores: Vec<usize>,
    /// Slots that a fragment may be in.
    #[serde(default)]
    pub ways: u32,
    /// What is in use of the pool.
    #[serde(flatten)]
    pub in_use: PoolUse,
    /// What the engine did, by name.
    pub counters: BTreeMap<String, u64>,
    /// Frames dropped, by reason; only reasons that occurred.
    pub drops: BTreeMap<String, u64>,
    /// From a fragment's first contribution to its result, in the switch.
    pub residence: Latency,
    /// The same, by how long.
    #[serde(default)]
    pub residence_histogram: Histogram,
    /// Share of arrivals that found a slot, or needed none because their fragment came whole.
    #[serde(default)]
    pub hit_rate: f64,
    /// Where each core's time went.
    #[serde(default)]
    pub load: Vec<CoreLoad>,
    /// Ports.
    pub ports: Vec<PortReport>,
    /// Jobs.
    pub jobs: Vec<JobReport>,
    /// SwitchML's clients; absent if the switch has no SwitchML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchml: Option<SwitchmlReport>,
    /// Rings of RoCEv2 hosts; absent if the switch serves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netreduce: Option<NetreduceReport>,
    /// The card; absent if the switch has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardReport>,
    /// Links to other switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fabric: Vec<FabricLinkReport>,
    /// The last events of its log, from the oldest to the latest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// Frames of the pool that were not back at the end; absent while the switch runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames_missing: Option<usize>,
}

impl Report {
    /// One JSON object on one line.
    #[must_use]
    pub fn json(&self) -> String {
        // Strings, numbers, lists and maps with string keys: nothing that JSON cannot say.
        simd_json::to_string(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests;
