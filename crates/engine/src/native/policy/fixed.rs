//! A fixed share of the slots for each job, as in SwitchML (NSDI'21, "Scaling Distributed Machine
//! Learning with In-Network Aggregation", sections 4.3 to 4.5).
//!
//! The pool is divided evenly among its places for jobs, whether they are taken or not. A job whose
//! window is at most its share never finds its slot taken, because a worker sends fragment f only
//! after it has the result of f − window. SwitchML's two sets of slots, which let a lost result be
//! answered, are here the ring of results, which all policies have. There is no PS in SwitchML, and
//! a RESEND may allocate. Here it may not: once a part of a fragment is at the PS, a slot that
//! fills again with what is sent again would only hold back what the PS lacks (the simulator found
//! jobs that never ended).

use super::{Collision, Completion, Placement, Policy, Resend};
use crate::native::pool::PoolConfig;
use tally_wire::JobId;

/// The policy of SwitchML.
#[derive(Clone, Copy, Debug)]
pub struct Static;

impl Static {
    /// Slots of each of `jobs` on a pool of `slots`: the largest power of two that fits, at least
    /// 1.
    #[must_use]
    pub const fn share(jobs: usize, slots: u32) -> u32 {
        let even = slots / if jobs == 0 { 1 } else { jobs as u32 };
        if even <= 1 { 1 } else { 1 << even.ilog2() }
    }
}

impl Policy for Static {
    fn placement(&self, _job: JobId, index: usize, pool: &PoolConfig) -> Placement {
        let share = Self::share(pool.places(), pool.slots);
        // A set lies within the share, also when that is smaller than the pool's sets.
        let ways = pool.ways.min(share);
        Placement {
            // More jobs than slots: they share after all, and collisions go to the PS.
            base: (index as u32 * share) & (pool.slots - 1),
            mask: share / ways - 1,
            hash: 0,
            ways,
        }
    }

    fn collision(&self, _held: &mut u8, _arriving: u8) -> Collision {
        Collision::ToPs
    }

    fn completion(&self) -> Completion {
        Completion::Result
    }

    fn resend(&self) -> Resend {
        Resend::JoinOrTake
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::pool::{PolicyName, PoolJob};

    fn pool(jobs: u16, slots: u32, ways: u32) -> PoolConfig {
        PoolConfig {
            slots,
            ways,
            held: 0,
            window: 1,
            shards: 1,
            shard: 0,
            jobs: (0..jobs).map(|id| PoolJob::unlimited(JobId(id))).collect(),
            policy: PolicyName::Static,
            places: 0,
        }
    }

    #[test]
    fn shares_are_disjoint_and_inside_the_pool_with_any_ways() {
        for ways in [1, 2, 4, 8] {
            for jobs in 1..20 {
                let pool = pool(jobs, 64, ways);
                let mut used = [false; 64];
                for job in 0..jobs {
                    let p = Static.placement(JobId(job), job.into(), &pool);
                    let mut slots = 0;
                    for slot in (0..=p.mask).flat_map(|n| p.set(n)) {
                        assert!(!used[slot], "{jobs} jobs, slot {slot} twice");
                        used[slot] = true;
                        slots += 1;
                    }
                    assert_eq!(slots, Static::share(jobs.into(), 64), "the whole share");
                }
            }
        }
    }

    #[test]
    fn more_jobs_than_slots_stay_inside_the_pool() {
        for ways in [1, 2, 4, 8] {
            for job in 0..100 {
                let p = Static.placement(JobId(job), job.into(), &pool(100, 8, ways));
                assert!(p.set(12345).end <= 8);
            }
        }
    }
}
