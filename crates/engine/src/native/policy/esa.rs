//! ESA: preemption by priority (arXiv 2201.06398, "Efficient Data-Plane Memory Scheduling for
//! In-Network Aggregation", section on the preemptive aggregator allocation).
//!
//! All jobs share all slots. An arrival of strictly higher priority takes the slot, and the evicted
//! partial goes to the PS; equal never preempts, so two jobs of one priority cannot evict each
//! other in turn. An arrival that does not preempt goes to the PS and halves the priority of the
//! slot, so that a stalled job cannot hold it without limit.
//!
//! Where it departs: the paper's PS asks for the rest of a fragment that has come apart, after a
//! while (REMIND). Here the rest follows by itself once it is all ([`crate::native::elsewhere`]),
//! and asking is for what was lost. Nearly every fragment that meets a collision comes apart, and
//! while one waits to be asked for, the windows of all its workers stand still behind it.

use super::{Collision, Completion, Placement, Policy, Resend, scattered};
use crate::native::pool::PoolConfig;
use tally_wire::JobId;

/// The policy of ESA.
#[derive(Clone, Copy, Debug)]
pub struct Esa;

impl Policy for Esa {
    fn placement(&self, job: JobId, _index: usize, pool: &PoolConfig) -> Placement {
        scattered(job, pool)
    }

    fn collision(&self, held: &mut u8, arriving: u8) -> Collision {
        if arriving > *held {
            return Collision::Preempt;
        }
        *held /= 2;
        Collision::ToPs
    }

    fn preempts(&self) -> bool {
        true
    }

    fn completion(&self) -> Completion {
        Completion::Result
    }

    fn resend(&self) -> Resend {
        Resend::JoinOrTake
    }

    fn follows_to_ps(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strictly_higher_preempts_equal_never_does() {
        let mut held = 100;
        assert_eq!(Esa.collision(&mut held, 101), Collision::Preempt);
        assert_eq!(held, 100);
        assert_eq!(Esa.collision(&mut held, 100), Collision::ToPs);
        assert_eq!(held, 50, "halved");
    }

    #[test]
    fn a_stalled_slot_yields_to_the_lowest_but_one_in_eight_collisions() {
        let mut held = 255;
        let collisions = (1..).find(|_| Esa.collision(&mut held, 1) == Collision::Preempt);
        assert_eq!(collisions, Some(9));
    }
}
