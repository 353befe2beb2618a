//! A fixed share of the slots for each job, as in SwitchML (NSDI'21, "Scaling Distributed Machine
//! Learning with In-Network Aggregation", sections 4.3 to 4.5).
//!
//! The pool is divided evenly among the configured jobs, whether they run or not. A job whose window
//! is at most its share never finds its slot taken, because a worker sends fragment f only after it
//! has the result of f − window. SwitchML's two sets of slots, which let a lost result be answered,
//! are here the ring of results, which all policies have. There is no PS in SwitchML, so a RESEND may
//! allocate: nothing of its fragment can be anywhere else.

use super::{Collision, Completion, Placement, Policy, Resend};
use tally_wire::JobId;

/// The policy of SwitchML.
#[derive(Clone, Copy, Debug)]
pub struct Static;

impl Static {
    /// Slots of each of `jobs` on a pool of `slots`: the largest power of two that fits, at least 1.
    #[must_use]
    pub const fn share(jobs: usize, slots: u32) -> u32 {
        let even = slots / if jobs == 0 { 1 } else { jobs as u32 };
        if even <= 1 { 1 } else { 1 << even.ilog2() }
    }
}

impl Policy for Static {
    fn placement(&self, _job: JobId, index: usize, jobs: usize, slots: u32) -> Placement {
        let share = Self::share(jobs, slots);
        // More jobs than slots: they share after all, and collisions go to the PS.
        let base = (index as u32 * share) & (slots - 1);
        Placement {
            base,
            mask: share - 1,
            hash: 0,
        }
    }

    fn collision(&self, _held: &mut u8, _arriving: u8) -> Collision {
        Collision::ToPs
    }

    fn completion(&self) -> Completion {
        Completion::Result
    }

    fn resend(&self) -> Resend {
        Resend::Allocate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_disjoint_and_inside_the_pool() {
        for jobs in 1..20 {
            let mut used = [false; 64];
            for index in 0..jobs {
                let p = Static.placement(JobId(9), index, jobs, 64);
                for n in 0..=p.mask {
                    let slot = p.slot(n);
                    assert!(!used[slot], "{jobs} jobs, slot {slot} twice");
                    used[slot] = true;
                }
            }
        }
    }

    #[test]
    fn more_jobs_than_slots_stay_inside_the_pool() {
        for index in 0..100 {
            let p = Static.placement(JobId(9), index, 100, 8);
            assert!(p.slot(12345) < 8);
        }
    }
}
