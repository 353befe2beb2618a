//! No aggregation: the parameter server sums everything, as it would behind a switch that knows
//! nothing of jobs. To compare the other policies with.
//!
//! A job has no slots, so that each contribution finds no place and goes to the PS. Nothing was
//! full: none of them has met a collision. Results still pass through the switch, which keeps them
//! in the ring.

use super::{Collision, Completion, Placement, Policy, Resend};
use crate::native::pool::PoolConfig;
use tally_wire::JobId;

/// The policy of a switch that does not aggregate.
#[derive(Clone, Copy, Debug)]
pub struct NoAggregation;

impl Policy for NoAggregation {
    fn placement(&self, _job: JobId, _index: usize, _pool: &PoolConfig) -> Placement {
        Placement {
            base: 0,
            mask: 0,
            hash: 0,
            ways: 0,
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
