//! The configured jobs of a shard while it runs: which there are, and what each may have.
//!
//! A job keeps its place, by which the policy and the arena know it. New limits count from the next
//! allocation on: a job above its new maximum gets no slot until it is below, and a minimum that
//! others use is its own as soon as they give it back. Nothing is evicted.

use super::{Aggregator, Limits, PoolJob};
use crate::buffer::Buffer;
use crate::counters::JobCounters;
use tally_wire::JobId;

impl<B: Buffer> Aggregator<B> {
    /// Has these jobs configured, each with these limits, and no others.
    ///
    /// # Panics
    /// As [`new`](Self::new), if there are more jobs than places, or a job that runs is not among
    /// them: control ends a job on all shards before it takes the job from them.
    pub fn configure(&mut self, jobs: &[PoolJob]) {
        self.config.check_jobs(jobs);
        let after = |id: JobId| jobs.iter().find(|job| job.id == id).copied();
        for job in self.jobs.iter_mut().flatten() {
            let id = job.roster.job;
            let Some(PoolJob { limits, .. }) = after(id) else {
                panic!("job {}: taken from the pool while it runs", id.0);
            };
            job.limits = limits;
        }
        for place in &mut self.places {
            *place = place.and_then(|job| after(job.id));
        }
        for job in jobs
            .iter()
            .filter(|job| self.configured(job.id).is_none())
            .collect::<Vec<_>>()
        {
            let free = self.places.iter().position(Option::is_none);
            let free = free.expect("no more jobs than places");
            self.places[free] = Some(*job);
            self.ended[free] = JobCounters::default();
        }
        self.arena.set_minimums(minimums(&self.places));
    }

    /// The place of a configured job, and its limits. Searches the list: once per control change.
    pub(super) fn configured(&self, id: JobId) -> Option<(usize, Limits)> {
        let mut places = self.places.iter().enumerate();
        places.find_map(|(index, place)| {
            let job = place.filter(|job| job.id == id)?;
            Some((index, job.limits))
        })
    }
}

/// What is reserved of the arena, by place.
pub(super) fn minimums(places: &[Option<PoolJob>]) -> impl Iterator<Item = u32> {
    let reserved = |place: &Option<PoolJob>| place.map_or(0, |job| job.limits.min_held);
    places.iter().map(reserved)
}
