//! What threads tell each other.
//!
//! Data cores hand JOIN and LEAVE to the control thread. Control threads give them commands over the
//! [`bus`](crate::bus). The way from a data core is bounded, and the core never waits on it. What data
//! cores hand to each other is in [`handover`](crate::handover).

use crate::load::Load;
use std::sync::Arc;
use tally_engine::egress::{PortCounters, ReplyCounters};
use tally_engine::forwarding::PortAddresses;
use tally_engine::offload::CardTraffic;
use tally_engine::queue::QueueCounters;
use tally_engine::{
    Command, Counters, DialectCommand, DialectMetrics, Reply, Roster, offload, switchml,
};
use tally_wire::JobId;

/// What control threads ask of a data core.
pub enum CoreCommand {
    /// Of its switch core.
    Core(Command<DialectCommand, DialectMetrics>),
    /// Say when all is received that has arrived before.
    Drain(Reply<()>),
    /// Say what the core did.
    Report(Reply<CoreReport>),
}

impl From<Command<DialectCommand, DialectMetrics>> for CoreCommand {
    fn from(command: Command<DialectCommand, DialectMetrics>) -> Self {
        Self::Core(command)
    }
}

impl From<switchml::Command> for CoreCommand {
    fn from(command: switchml::Command) -> Self {
        Self::Core(Command::Dialect(DialectCommand::Switchml(command)))
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
    /// Slots taken now.
    pub slots_in_use: usize,
    /// Contributions held out of order now.
    pub held_in_use: u32,
    /// What it did for SwitchML, if the switch has that.
    pub switchml: Option<switchml::Metrics>,
    /// What went between it and the card, if there is one.
    pub card: Option<CardTraffic>,
    /// By ingress port, frames dropped because they claimed an address of another.
    pub claims: Vec<u64>,
    /// MAC addresses by port, of all cores together.
    pub addresses: Vec<PortAddresses>,
    /// What SwitchML adds to the ports' counters.
    pub replies: Vec<ReplyCounters>,
    /// Where its time went.
    pub load: Load,
}

impl CoreReport {
    /// What a switch core says, with the load of its data core.
    #[must_use]
    pub fn new(core: tally_engine::CoreReport<DialectMetrics>, load: Load) -> Self {
        let DialectMetrics {
            native,
            switchml,
            offload,
        } = core.dialects;
        let mut counters = native.counters;
        let mut add = |drops: &[u64]| {
            for (sum, n) in counters.drops.iter_mut().zip(drops) {
                *sum += n;
            }
        };
        add(&core.drops);
        if let Some(switchml) = &switchml {
            add(&switchml.counters.drops);
        }
        Self {
            counters,
            ports: core.ports,
            queues: core.queues,
            residence_ns: native.residence_ns,
            slots_in_use: native.slots_in_use,
            held_in_use: native.held_in_use,
            switchml,
            card: offload,
            claims: core.claims,
            addresses: core.addresses,
            replies: core.replies,
            load,
        }
    }
}
