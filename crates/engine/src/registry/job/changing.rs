//! A job that is changed while the switch runs.

use super::link::Link;
use super::visit::Refusal;
use super::{Incarnation, Job, Phase};
use crate::registry::{Action, JobConfig, RegistryConfig};
use std::time::Duration;
use tally_wire::Time;
use tally_wire::control::Reason;

/// How long a removed job is remembered: longer than any member of it lives (J-9).
const REMEMBERED: Duration = Duration::from_secs(60);
/// A tenant's job without workers is forgotten after this time.
const IDLE_FORGOTTEN: Duration = Duration::from_secs(60);

impl Job {
    /// Whether its members sum, or may: an epoch runs, or has run before and resumes.
    pub(in crate::registry) fn runs(&self) -> bool {
        self.fixed || matches!(self.phase, Phase::Running | Phase::Paused) || self.resumed.is_some()
    }

    /// Whether it is a tenant's job without workers: the next worker says how many it has.
    pub(in crate::registry) fn is_free(&self) -> bool {
        self.tenant.is_some() && self.phase == Phase::Idle
    }

    /// Whether this is the epoch that ended last.
    pub(in crate::registry) fn has_ended(&self, incarnation: Incarnation) -> bool {
        incarnation != Incarnation::NONE
            && self.ended.is_some_and(|end| end.incarnation == incarnation)
    }

    /// Has another number of workers; those that wait lose their places.
    pub(in crate::registry) fn resize(&mut self, workers: u8) {
        if self.config.workers != workers {
            self.vacate_all();
            self.config.workers = workers;
            self.workers = vec![None; usize::from(workers)];
        }
    }

    /// What makes the places of members different from those of this configuration.
    pub(in crate::registry) fn differs_in(&self, config: &JobConfig) -> Option<&'static str> {
        if self.config.tree != config.tree {
            Some("tree")
        } else if self.config.workers != config.workers {
            Some("number of workers")
        } else if self.config.servers != config.servers {
            Some("number of parameter servers")
        } else {
            None
        }
    }

    /// Has other workers, parameter servers, or another tree; those that wait lose their places.
    pub(in crate::registry) fn replace(&mut self, config: JobConfig) {
        self.vacate_all();
        if self.phase == Phase::Forming {
            // Of a node whose members have not come yet.
            self.close_if_empty();
        }
        self.workers = vec![None; usize::from(config.members())];
        self.link = Link::of(&config);
        if self.config.servers != config.servers {
            self.vacate_servers(config.servers);
        }
        self.config = config;
    }

    /// The places of all workers, before the job ran.
    pub(in crate::registry) fn vacate_all(&mut self) {
        if self.joined() != 0 {
            self.workers.fill(None);
            self.close_if_empty();
        }
    }

    /// All members are told that the job was removed, and it is remembered for others.
    pub(in crate::registry) fn remove(
        &mut self,
        now: Time,
        config: &RegistryConfig,
        actions: &mut Vec<Action>,
    ) {
        self.fail(config, Refusal::new(Reason::Removed), actions);
        self.vacate_servers(self.config.servers);
        self.removed = Some(now);
        self.tenant = None;
        self.draining = false;
        self.fixed = false;
    }

    /// Whether the job is not to be forgotten yet.
    pub(in crate::registry) fn stays(&self, now: Time) -> bool {
        if let Some(removed) = self.removed {
            return now.since(removed) < REMEMBERED;
        }
        !self.is_free() || now.since(self.last_worker) < IDLE_FORGOTTEN
    }

    /// What a job of this number counts from, so that nothing of this one comes again.
    pub(in crate::registry) fn serial(&self) -> u64 {
        self.round.max(self.drawn) + 1
    }

    /// Workers that joined under another key than the current one.
    pub(in crate::registry) fn previous_key(&self) -> u64 {
        let workers = self
            .memberships()
            .filter(|(rank, it)| rank.is_worker() && !it.switch);
        let old = workers.filter(|(_, membership)| membership.key != self.config.key);
        old.fold(0, |bits, (rank, _)| bits | rank.bit())
    }

    /// Whether a PS joined under another key than the current one.
    pub(in crate::registry) fn ps_previous_key(&self) -> bool {
        self.served_parts()
            .any(|(_, membership)| membership.key != self.config.key)
    }
}
