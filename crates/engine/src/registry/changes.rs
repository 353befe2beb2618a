//! Jobs that change while the switch runs: added, set, drained, removed, and forgotten.
//!
//! A removed job stays for a minute, without members: a member that asks is told that the job was
//! removed, and not that it never was. It keeps its challenge and its last epochs, so that the same
//! job, added again, takes nothing of before for its own.

use super::job::{Job, Phase};
use super::{Action, JobConfig, Registry};
use std::time::Duration;
use tally_wire::{JobId, Time};
use thiserror::Error;

/// A job that runs, and would have other places for members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "job {}: runs, its {part} cannot change; drain it and wait until it is idle, or remove it",
    .id.0
)]
pub struct Runs {
    /// Which.
    pub id: JobId,
    /// What would change.
    pub part: &'static str,
}

impl Registry {
    /// Whether [`set`](Self::set) takes this.
    ///
    /// # Errors
    /// The job runs with other workers, parameter servers, or another tree.
    pub fn check(&self, config: &JobConfig) -> Result<(), Runs> {
        let running = self.jobs.get(&config.id).filter(|job| job.runs());
        match running.and_then(|job| job.differs_in(config)) {
            Some(part) => Err(Runs {
                id: config.id,
                part,
            }),
            None => Ok(()),
        }
    }

    /// Adds a job, or changes its keys, its number of workers, or its tree. Workers that wait for a
    /// job of another number or tree have lost their places.
    ///
    /// # Errors
    /// As for [`check`](Self::check); nothing has changed.
    pub fn set(&mut self, config: JobConfig) -> Result<(), Runs> {
        self.check(&config)?;
        let serial = self.serial;
        let id = config.id;
        let job = (self.jobs.entry(id)).or_insert_with(|| Job::new(config.clone(), serial));
        if job.differs_in(&config).is_none() {
            job.config = config;
        } else {
            job.replace(config);
        }
        job.removed = None;
        job.tenant = None;
        Ok(())
    }

    /// Removes a job. If it runs it ends; its members are told.
    pub fn remove(&mut self, now: Time, id: JobId) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(job) = self.jobs.get_mut(&id)
            && job.removed.is_none()
        {
            job.remove(now, &self.config, &mut actions);
            self.events.append(&mut job.events);
        }
        actions
    }

    /// Has a job begin no epoch from now on, or begin epochs again. One that runs continues;
    /// workers that wait have lost their places. Says whether there is such a job.
    pub fn drain(&mut self, id: JobId, draining: bool) -> bool {
        let job = self.jobs.get_mut(&id);
        let Some(job) = job.filter(|job| job.removed.is_none()) else {
            return false;
        };
        job.draining = draining;
        if draining && job.phase == Phase::Forming && job.resumed.is_none() {
            job.vacate_all();
        }
        true
    }

    /// Sets how long a member may be silent.
    pub fn set_member_timeout(&mut self, timeout: Duration) {
        self.config.member_timeout = timeout;
    }

    /// Forgets jobs that were removed long ago, and a tenant's that have been idle for long.
    pub fn expire(&mut self, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut serial = self.serial;
        self.jobs.retain(|&id, job| {
            let stays = job.stays(now);
            if !stays {
                serial = serial.max(job.serial());
                if job.tenant.is_some() {
                    actions.push(Action::Forget(id));
                }
            }
            stays
        });
        self.serial = serial;
        actions
    }

    /// Whether there is a job that time may make forgotten.
    pub(super) fn expires(&self) -> bool {
        let mut jobs = self.jobs.values();
        jobs.any(|job| job.removed.is_some() || job.tenant.is_some())
    }
}
