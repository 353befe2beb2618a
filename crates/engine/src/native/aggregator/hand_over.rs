//! Giving a running job away: to another aggregator, which takes its frames from now on.
//!
//! What the slots have leaves to the PS, as if the PS had asked for it. So each contribution is in
//! one place still, and those that come for the same fragments elsewhere find the others at the PS.

use super::Aggregator;
use super::out::Out;
use crate::buffer::{Buffer, Egress};
use tally_wire::{Flags, JobId};

impl<B: Buffer> Aggregator<B> {
    /// Ends a job here that another aggregator serves from now on. Each of its slots leaves as
    /// PARTIAL; the rest is as by [`unbind`](Self::unbind). Between poll iterations: no
    /// contribution of it may wait in a [`Batch`](crate::Batch).
    pub fn hand_over(&mut self, id: JobId, egress: &mut impl Egress<B>) {
        let place = usize::from(self.index[usize::from(id.0)]).wrapping_sub(1);
        if let Some(Some(job)) = self.jobs.get_mut(place) {
            let mut out = Out {
                roster: &job.roster,
                counters: &mut self.counters,
                egress,
            };
            let own = |key: &crate::native::slot::SlotKey| key.job == id;
            for slot in &mut self.slots {
                if slot.key.as_ref().is_some_and(own) {
                    out.evict(slot, &mut self.arena, Flags::NONE);
                    job.slots -= 1;
                }
            }
            assert_eq!(job.slots, 0);
        }
        self.unbind(id, egress);
    }

    /// Contributions of each running job that have come since it was bound: summed, forwarded or
    /// dropped.
    pub fn arrivals(&self) -> impl Iterator<Item = (JobId, u64)> {
        let running = self.jobs.iter().flatten();
        running.map(|job| (job.roster.job, job.counts.arrivals))
    }
}
