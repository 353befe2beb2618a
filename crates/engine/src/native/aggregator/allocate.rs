//! The slot for an arrival whose fragment has none yet: a free way of its set, or that of a victim.
//!
//! The policy says whether the victim yields. The limits of jobs come before the policy: no job
//! yields its minimum, and no job takes more than its maximum. Before both comes an abandoned slot:
//! a frame took it that was in flight while the switch restarted, of a fragment that all others
//! have finished.

use super::Aggregator;
use super::out::{Out, clear};
use crate::buffer::{Buffer, Egress};
use crate::native::policy::Collision;
use std::ops::Range;
use tally_wire::{Flags, JobId, Time};

/// A slot that would have to yield.
struct Victim {
    at: usize,
    owner: usize,
    /// Whether it may yield, as the policy says, or must.
    may: bool,
    priority: u8,
    born: Time,
    /// Its fragment has its result: what it holds is needed no more (S-5).
    is_past: bool,
}

impl<B: Buffer> Aggregator<B> {
    /// A slot of the set that is free, or that is made so, for a job by its place; `None`: the
    /// arrival goes to its PS.
    #[inline]
    pub(super) fn allocate(
        &mut self,
        arriving: usize,
        set: Range<usize>,
        priority: u8,
        egress: &mut impl Egress<B>,
    ) -> Option<usize> {
        let job = self.jobs[arriving].as_ref()?;
        if job.slots < job.limits.max_slots {
            let free = self.slots[set.clone()].iter().position(|s| s.key.is_none());
            if let Some(way) = free {
                return Some(set.start + way);
            }
        }
        self.evict_for(arriving, set, priority, egress)
    }

    /// No way is free, or none for this job (S-6).
    fn evict_for(
        &mut self,
        arriving: usize,
        set: Range<usize>,
        priority: u8,
        egress: &mut impl Egress<B>,
    ) -> Option<usize> {
        let victim = self.victim(arriving, set)?;
        let slot = &mut self.slots[victim.at];
        if victim.is_past {
            clear(slot, &mut self.arena, egress);
            self.jobs[victim.owner].as_mut()?.slots -= 1;
            self.counters.abandoned += 1;
            return Some(victim.at);
        }
        if victim.may && self.policy.collision(&mut slot.priority, priority) == Collision::ToPs {
            return None;
        }
        self.counters.preemptions += 1;
        // The partial may be another job's: its own roster says where its PS is.
        let owner = self.jobs[victim.owner].as_mut()?;
        let mut out = Out {
            roster: &owner.roster,
            counters: &mut self.counters,
            egress,
        };
        if let Some(key) = slot.key {
            owner.sent_to_ps.add(key.fragment, slot.bitmap);
        }
        out.evict(slot, &mut self.arena, Flags::COLLISION);
        owner.slots -= 1;
        Some(victim.at)
    }

    /// The slot of the set that would have to yield; `None` if none has to.
    fn victim(&self, arriving: usize, set: Range<usize>) -> Option<Victim> {
        let job = self.jobs[arriving].as_ref()?;
        let is_below_minimum = job.slots < job.limits.min_slots;
        let is_at_maximum = job.slots >= job.limits.max_slots;
        let candidates = set.filter_map(|at| {
            let slot = &self.slots[at];
            let owner = place(&self.index, slot.key?.job)?;
            let holder = self.jobs[owner].as_ref()?;
            let is_own = owner == arriving;
            if !is_own && is_at_maximum {
                return None;
            }
            let is_past = holder.is_past(slot.key?.fragment, self.config.window);
            if !is_past && !is_own && holder.slots <= holder.limits.min_slots {
                return None;
            }
            Some(Victim {
                at,
                owner,
                may: !is_below_minimum || is_own,
                priority: slot.priority,
                born: slot.born,
                is_past,
            })
        });
        candidates.min_by_key(|v| (!v.is_past, v.may, v.priority, v.born))
    }
}

/// The place in `jobs` of a job that runs.
#[inline]
pub(super) fn place(index: &[u8], id: JobId) -> Option<usize> {
    usize::from(index[usize::from(id.0)]).checked_sub(1)
}
