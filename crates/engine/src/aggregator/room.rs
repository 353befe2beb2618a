//! Where an arrival goes whose fragment has no slot yet: a free way of its set, or that of a victim.

use super::{Aggregator, Out};
use crate::buffer::{Buffer, Egress};
use crate::policy::Collision;
use std::ops::Range;
use tally_wire::{Flags, JobId};

impl<B: Buffer> Aggregator<B> {
    /// A slot of the set that is free, or that is made so; `None`: the arrival goes to its PS.
    #[inline]
    pub(super) fn room(
        &mut self,
        set: Range<usize>,
        priority: u8,
        egress: &mut impl Egress<B>,
    ) -> Option<usize> {
        let free = self.slots[set.clone()].iter().position(|s| s.key.is_none());
        match free {
            Some(way) => Some(set.start + way),
            None => self.drive_out(set, priority, egress),
        }
    }

    /// All ways are taken. The policy decides about the slot of lowest priority, the oldest of them.
    fn drive_out(
        &mut self,
        set: Range<usize>,
        priority: u8,
        egress: &mut impl Egress<B>,
    ) -> Option<usize> {
        let victim = set.min_by_key(|&at| (self.slots[at].priority, self.slots[at].born))?;
        let slot = &mut self.slots[victim];
        match self.policy.collision(&mut slot.priority, priority) {
            Collision::ToPs => None,
            Collision::Preempt => {
                self.counters.preemptions += 1;
                // The partial may be another job's: its own roster says where its PS is.
                let owner = slot
                    .key
                    .map(|key| key.job)
                    .and_then(|id| place(&self.index, id));
                if let Some(Some(owner)) = owner.map(|place| &self.jobs[place]) {
                    let mut out = Out {
                        roster: &owner.roster,
                        counters: &mut self.counters,
                        egress,
                    };
                    out.evict(slot, &mut self.arena, Flags::COLLISION);
                }
                Some(victim)
            }
        }
    }
}

/// The place in `jobs` of a job that runs.
#[inline]
fn place(index: &[u8], id: JobId) -> Option<usize> {
    usize::from(index[usize::from(id.0)]).checked_sub(1)
}
