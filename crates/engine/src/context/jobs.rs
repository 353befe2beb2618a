//! Running jobs of one core, and the dialect that serves each.

use crate::Roster;
use crate::demux::DialectId;
use std::collections::BTreeMap;
use std::sync::Arc;
use tally_wire::{Epoch, JobId};

/// A running job.
struct Job {
    roster: Arc<Roster>,
    server: DialectId,
    /// Contributions that dialects counted before the job was moved to this one.
    arrivals: u64,
}

/// All running jobs. A job is served by one dialect at a time.
pub struct Jobs {
    jobs: BTreeMap<JobId, Job>,
    /// Whether the job is served by another dialect than the first, by number.
    moved: Box<[bool]>,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            jobs: BTreeMap::new(),
            moved: vec![false; 1 << 16].into_boxed_slice(),
        }
    }
}

impl Jobs {
    /// Whether the job is served by another dialect than the first.
    #[inline]
    #[must_use]
    pub fn is_moved(&self, job: JobId) -> bool {
        self.moved[usize::from(job.0)]
    }

    /// The dialect that serves the job.
    #[must_use]
    pub fn server(&self, job: JobId) -> Option<DialectId> {
        Some(self.jobs.get(&job)?.server)
    }

    /// The jobs that a dialect serves.
    #[must_use]
    pub fn served_by(&self, server: DialectId) -> Vec<JobId> {
        let jobs = self.jobs.iter().filter(|(_, job)| job.server == server);
        jobs.map(|(&id, _)| id).collect()
    }

    /// An epoch begins, or has other addresses. Returns the dialect that serves it: an epoch stays
    /// where it is, a new one begins at `first`. Then the one that served the epoch before, if it
    /// is another, comes back too.
    pub(crate) fn bind(
        &mut self,
        roster: &Arc<Roster>,
        first: DialectId,
    ) -> (DialectId, Option<DialectId>) {
        let id = roster.job;
        let before = self.jobs.get_mut(&id);
        if let Some(job) = before
            && job.roster.epoch == roster.epoch
        {
            job.roster = Arc::clone(roster);
            return (job.server, None);
        }
        self.moved[usize::from(id.0)] = false;
        let job = Job {
            roster: Arc::clone(roster),
            server: first,
            arrivals: 0,
        };
        let before = self.jobs.insert(id, job).map(|job| job.server);
        (first, before.filter(|&server| server != first))
    }

    /// A job has ended.
    pub(crate) fn unbind(&mut self, id: JobId) {
        self.moved[usize::from(id.0)] = false;
        self.jobs.remove(&id);
    }

    /// Has `server` serve a job, of which the dialect before counted so many contributions. `None`,
    /// and nothing has changed, if the job or that epoch of it does not run, or is there already.
    pub(crate) fn serve(
        &mut self,
        id: JobId,
        epoch: Option<Epoch>,
        server: DialectId,
        arrivals: u64,
    ) -> Option<Arc<Roster>> {
        let job = self.jobs.get_mut(&id)?;
        if job.server == server || epoch.is_some_and(|epoch| epoch != job.roster.epoch) {
            return None;
        }
        job.server = server;
        job.arrivals += arrivals;
        self.moved[usize::from(id.0)] = server.0 != 0;
        Some(Arc::clone(&job.roster))
    }

    /// Each job, its server, and contributions that earlier servers of the epoch counted.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = (JobId, DialectId, u64)> {
        self.jobs
            .iter()
            .map(|(&id, job)| (id, job.server, job.arrivals))
    }
}

#[cfg(test)]
mod tests;
