//! What threads tell each other.
//!
//! Data cores hand JOIN and LEAVE to the control thread. Control threads give them commands over
//! the [`bus`](crate::bus). The channel from a data core is bounded, and the core never waits on
//! it. What data cores hand to each other is in [`handover`](crate::handover).

use crate::capture::Capture;
use crate::queues::{Rx, Tx};
use std::collections::BTreeSet;
use std::sync::Arc;
use tally_engine::egress::{PortCounters, RareCounters};
use tally_engine::forwarding::PortAddresses;
use tally_engine::metrics::MetricSet as _;
use tally_engine::native::PoolUse;
use tally_engine::offload::CardTraffic;
use tally_engine::queue::{QueueConfig, QueueCounters};
use tally_engine::{
    Command, Counters, DialectCommand, DialectMetrics, JobCounters, PortId, Reply, Roster, native,
    netreduce, offload, switchml,
};
use tally_schema::switch::config::CardJobs;
use tally_schema::switch::report::LoadCounters;
use tally_wire::JobId;

/// What control threads ask of a data core.
pub enum CoreCommand {
    /// Of its switch core.
    Core(Command<DialectCommand, DialectMetrics>),
    /// Say when all is received that has arrived before.
    Drain(Reply<()>),
    /// Say that the core runs.
    Ping(Reply<()>),
    /// Say what the core did.
    Report(Reply<CoreReport>),
    /// Copy frames from now on, or no more.
    Capture(Option<Box<Capture>>),
    /// Take other queues for a port, and give back those that it had.
    Swap(Box<PortQueues>, Reply<OldQueues>),
}

/// A core's queues of one port.
pub struct PortQueues {
    /// The port.
    pub port: PortId,
    /// What it receives from.
    pub rx: Vec<Rx>,
    /// What it sends to and how much waits for it, or the core that does so for it.
    pub tx: Result<(Tx, QueueConfig), usize>,
    /// Bytes of the longest ordinary frame that may leave.
    pub longest_frame: usize,
}

/// What a core had of a port before.
pub struct OldQueues {
    /// What it received from.
    pub rx: Vec<Rx>,
    /// What it sent to.
    pub tx: Option<Tx>,
    /// Why the new queues are not received from.
    pub failed: Option<String>,
}

impl From<Command<DialectCommand, DialectMetrics>> for CoreCommand {
    fn from(command: Command<DialectCommand, DialectMetrics>) -> Self {
        Self::Core(command)
    }
}

impl From<native::Command> for CoreCommand {
    fn from(command: native::Command) -> Self {
        Self::Core(Command::Dialect(DialectCommand::Native(command)))
    }
}

impl From<switchml::Command> for CoreCommand {
    fn from(command: switchml::Command) -> Self {
        Self::Core(Command::Dialect(DialectCommand::Switchml(command)))
    }
}

impl From<netreduce::Command> for CoreCommand {
    fn from(command: netreduce::Command) -> Self {
        Self::Core(Command::Dialect(DialectCommand::Netreduce(command)))
    }
}

impl From<offload::Command> for CoreCommand {
    fn from(command: offload::Command) -> Self {
        Self::Core(Command::Dialect(DialectCommand::Offload(command)))
    }
}

/// What the control thread tells the card's.
pub enum CardNews {
    /// A job runs, or has other members.
    Bind(Arc<Roster>),
    /// A job has ended.
    Unbind(JobId),
    /// Other jobs may be offloaded.
    Jobs {
        /// Which the operator wants, if that is new.
        jobs: Option<CardJobs>,
        /// Jobs for which a card does all that is configured.
        eligible: BTreeSet<JobId>,
    },
}

/// What one data core did.
#[derive(Clone, Debug)]
pub struct CoreReport {
    /// What its pool shard did, and frames dropped anywhere on the core.
    pub counters: Counters,
    /// By port.
    pub ports: Vec<PortCounters>,
    /// What waited for each port, if it is one of this core's.
    pub queues: Vec<QueueCounters>,
    /// Nanoseconds from a fragment's first contribution to its result.
    pub residence_ns: hdrhistogram::Histogram<u64>,
    /// What it uses of its pool shard.
    pub in_use: PoolUse,
    /// What its pool shard did for each configured job.
    pub jobs: Vec<(JobId, JobCounters)>,
    /// What it did for SwitchML, if the switch has that.
    pub switchml: Option<switchml::Metrics>,
    /// What it did for rings, if the switch has them.
    pub netreduce: Option<netreduce::Metrics>,
    /// What went between it and the card, if there is one.
    pub card: Option<CardTraffic>,
    /// MAC addresses by port, of all cores together.
    pub addresses: Vec<PortAddresses>,
    /// By port, what is rarely counted.
    pub rare: Vec<RareCounters>,
    /// Where its time went.
    pub load: LoadCounters,
}

impl CoreReport {
    /// What a switch core says, with the load of its data core.
    #[must_use]
    pub fn new(core: tally_engine::CoreReport<DialectMetrics>, load: LoadCounters) -> Self {
        let DialectMetrics {
            native,
            switchml,
            netreduce,
            offload,
        } = core.dialects;
        let mut counters = native.counters;
        counters.drops.add(&core.drops);
        if let Some(switchml) = &switchml {
            counters.drops.add(&switchml.counters.drops);
        }
        Self {
            counters,
            ports: core.ports,
            queues: core.queues,
            residence_ns: native.residence_ns,
            in_use: native.in_use,
            jobs: native.jobs,
            switchml,
            netreduce,
            card: offload,
            addresses: core.addresses,
            rare: core.rare,
            load,
        }
    }
}
