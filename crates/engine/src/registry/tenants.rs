//! Tenants: who may make jobs by JOIN, and how many.
//!
//! A tenant has a key, the numbers of its jobs, and quotas. A worker's JOIN under that key, for a
//! number without a job, makes the job, with the number of workers that the JOIN states. Without
//! the key, or without the current challenge, it makes nothing: a JOIN that is recorded and sent
//! again is worthless (J-2). Idle jobs give way to new ones and are forgotten after a
//! minute; so a tenant never has more jobs than its quota.
//!
//! A parameter server makes no job: it does not know the number of workers. Until a worker has
//! come it is told that there is no such job, and asks again.

use super::job::{Job, Phase, Refusal, Visit};
use super::{Action, JobConfig, Registry};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tally_wire::control::{Reason, Role};
use tally_wire::{JobId, Join, Key, Time};

/// A tenant as the operator configures it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantConfig {
    /// Its name.
    pub name: Arc<str>,
    /// Its key, which all its jobs have.
    pub key: Key,
    /// Its key before that, while members may still have it.
    pub previous_key: Option<Key>,
    /// The numbers of its jobs; no other tenant's, and no configured job's.
    pub jobs: Vec<RangeInclusive<u16>>,
    /// Most jobs at a time.
    pub max_jobs: u16,
    /// Most workers, of all its jobs together.
    pub max_workers: u16,
}

impl TenantConfig {
    fn has(&self, id: JobId) -> bool {
        self.jobs.iter().any(|range| range.contains(&id.0))
    }

    fn job(&self, id: JobId, workers: u8) -> JobConfig {
        JobConfig {
            id,
            key: self.key.clone(),
            previous_key: self.previous_key.clone(),
            workers,
            tree: None,
            servers: 1,
        }
    }
}

/// The tenant that has this job's number.
pub(super) fn of(tenants: &BTreeMap<Arc<str>, TenantConfig>, id: JobId) -> Option<&TenantConfig> {
    tenants.values().find(|tenant| tenant.has(id))
}

/// What a JOIN may change.
pub(super) struct JobsOf<'a> {
    pub(super) jobs: &'a mut BTreeMap<JobId, Job>,
    pub(super) tenants: &'a BTreeMap<Arc<str>, TenantConfig>,
    pub(super) serial: &'a mut u64,
}

impl JobsOf<'_> {
    /// A JOIN under a key of its job, or of the tenant whose job it would be.
    pub(super) fn join(&mut self, visit: &mut Visit<'_>, id: JobId, join: &Join) {
        let opens = join.role == Role::Worker;
        match self.jobs.get_mut(&id) {
            Some(job) if !opens || !job.is_free() || job.has_ended(visit.incarnation) => {
                job.join(visit, join);
            }
            None if !opens => visit.hint(id, Reason::UnknownJob),
            _ => match of(self.tenants, id) {
                Some(tenant) => self.open(tenant, visit, id, join),
                // A tenant that was removed took its jobs along.
                None => visit.hint(id, Reason::UnknownJob),
            },
        }
    }

    /// A worker comes to a tenant's job that is idle, or is not there yet.
    fn open(&mut self, tenant: &TenantConfig, visit: &mut Visit<'_>, id: JobId, join: &Join) {
        let before = self.jobs.remove(&id);
        let is_new = before.is_none();
        let mut job = before.unwrap_or_else(|| {
            let mut job = Job::new(tenant.job(id, join.workers), *self.serial);
            job.tenant = Some(Arc::clone(&tenant.name));
            job
        });
        let workers = job.config.workers;
        let verdict = if join.challenge == job.challenge(visit.config) {
            self.quota(tenant, join.workers)
        } else {
            Err(Refusal::new(Reason::Challenge))
        };
        match verdict {
            Err(refusal) => job.refuse(visit, refusal),
            Ok(()) => {
                job.resize(join.workers);
                let told = visit.actions.len();
                visit.actions.push(Action::Create(id, join.workers));
                job.join(visit, join);
                if job.joined() == 0 {
                    // Refused for another reason.
                    visit.actions.remove(told);
                    job.resize(workers);
                } else if is_new {
                    let mut forgotten = self.make_place(tenant);
                    forgotten.append(&mut visit.actions);
                    visit.actions = forgotten;
                }
            }
        }
        if !is_new || job.joined() > 0 {
            self.jobs.insert(id, job);
        }
    }

    /// The tenant's jobs.
    fn all<'b>(&'b self, tenant: &'b TenantConfig) -> impl Iterator<Item = &'b Job> {
        let is_of = |job: &&Job| job.tenant.as_ref() == Some(&tenant.name);
        self.jobs.values().filter(is_of)
    }

    /// Whether a job of so many workers may begin beside the others.
    fn quota(&self, tenant: &TenantConfig, workers: u8) -> Result<(), Refusal> {
        let active = self.all(tenant).filter(|job| job.phase != Phase::Idle);
        let (jobs, sum) = active.fold((1, u32::from(workers)), |(jobs, sum), job| {
            (jobs + 1, sum + u32::from(job.config.workers))
        });
        if jobs > u32::from(tenant.max_jobs) {
            return Err(Refusal::numbers(Reason::TenantJobs, jobs, tenant.max_jobs));
        }
        if sum > u32::from(tenant.max_workers) {
            let reason = Reason::TenantWorkers;
            return Err(Refusal::numbers(reason, sum, tenant.max_workers));
        }
        Ok(())
    }

    /// Forgets idle jobs until there is a place for one more.
    fn make_place(&mut self, tenant: &TenantConfig) -> Vec<Action> {
        let mut actions = Vec::new();
        while self.all(tenant).count() >= usize::from(tenant.max_jobs) {
            let idle = self.all(tenant).filter(|job| job.phase == Phase::Idle);
            let Some(id) = idle
                .min_by_key(|job| job.last_worker)
                .map(|job| job.config.id)
            else {
                break;
            };
            if let Some(job) = self.jobs.remove(&id) {
                *self.serial = job.serial().max(*self.serial);
            }
            actions.push(Action::Forget(id));
        }
        actions
    }
}

impl Registry {
    /// Adds a tenant, or changes it. Jobs whose numbers are no longer its own end; others have its
    /// keys from now on. Quotas count for what begins from now on.
    pub fn set_tenant(&mut self, now: Time, tenant: TenantConfig) -> Vec<Action> {
        let mut actions = Vec::new();
        for (&id, job) in &mut self.jobs {
            let is_own = job.tenant.as_ref() == Some(&tenant.name);
            if is_own && !tenant.has(id) {
                job.remove(now, &self.config, &mut actions);
                self.events.append(&mut job.events);
                actions.push(Action::Forget(id));
            } else if is_own || job.removed.is_some() && tenant.has(id) {
                let config = tenant.job(id, job.config.workers);
                if job.differs_in(&config).is_none() {
                    job.config = config;
                } else {
                    // A removed job had a tree, or several parameter servers.
                    job.replace(config);
                }
                job.tenant = Some(Arc::clone(&tenant.name));
                job.removed = None;
            }
        }
        self.tenants.insert(Arc::clone(&tenant.name), tenant);
        actions
    }

    /// Removes a tenant and all its jobs.
    pub fn remove_tenant(&mut self, now: Time, name: &str) -> Vec<Action> {
        let mut actions = Vec::new();
        self.tenants.remove(name);
        for (&id, job) in &mut self.jobs {
            if job.tenant.as_deref() == Some(name) {
                job.remove(now, &self.config, &mut actions);
                self.events.append(&mut job.events);
                actions.push(Action::Forget(id));
            }
        }
        actions
    }
}
