//! Rings of a simulated switch: as its configuration names them, on all cores.

use super::Switch;
use crate::port::Outside;
use tally_engine::metrics::MetricSet as _;
use tally_engine::netreduce::{self, NetreduceCounters, RingConfig, RingStatus, ServedRing};
use tally_engine::{Command, DialectCommand};
use tally_wire::netreduce::RingId;

impl Switch {
    /// Serves a ring: now, once there are cores, and after a restart.
    pub(crate) fn bind_ring(&mut self, ring: RingConfig, out: &mut Outside<'_>) {
        let ring = ServedRing::from(ring);
        self.rings.push(ring.clone());
        self.begin_all(out);
        self.command_ring(|| netreduce::Command::Bind(Box::new(ring.clone())));
    }

    /// Ends a ring.
    pub(crate) fn unbind_ring(&mut self, id: RingId, out: &mut Outside<'_>) {
        self.rings.retain(|ring| ring.config.id != id);
        self.begin_all(out);
        self.command_ring(|| netreduce::Command::Unbind(id));
        for core in &mut self.cores {
            core.core.context.ports.give_back();
        }
    }

    fn begin_all(&mut self, out: &Outside<'_>) {
        for core in &mut self.cores {
            core.core.begin(out.now);
        }
    }

    fn command_ring(&mut self, command: impl Fn() -> netreduce::Command) {
        for core in &mut self.cores {
            let command = DialectCommand::Netreduce(command());
            core.core.command(Command::Dialect(command));
        }
    }

    /// The rings, and what they hold.
    #[must_use]
    pub fn rings(&self) -> Vec<RingStatus> {
        let mut all = Vec::new();
        for core in &self.cores {
            if let Some(metrics) = core.core.report().dialects.netreduce {
                all.extend(metrics.rings);
            }
        }
        all
    }

    /// What it did for rings, on all cores.
    #[must_use]
    pub fn ring_counters(&self) -> NetreduceCounters {
        let mut sum = NetreduceCounters::default();
        for core in &self.cores {
            if let Some(metrics) = core.core.report().dialects.netreduce {
                sum.add(&metrics.counters);
            }
        }
        sum
    }
}
