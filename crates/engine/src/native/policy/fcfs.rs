//! First come first served, as in ATP (NSDI'21, "ATP: In-network Aggregation for Multi-tenant
//! Learning", sections 3.1 to 3.3).
//!
//! All jobs share all slots by hash. Who finds its slot taken goes to the PS. A complete sum goes
//! to the PS as well, and the slot is held until the PS's result passes back through the switch. A
//! RESEND drives the slot's partial to the PS and follows it there.

use super::{Collision, Completion, Placement, Policy, Resend, scattered};
use crate::native::pool::PoolConfig;
use tally_wire::JobId;

/// The policy of ATP.
#[derive(Clone, Copy, Debug)]
pub struct Fcfs;

impl Policy for Fcfs {
    fn placement(&self, job: JobId, _index: usize, pool: &PoolConfig) -> Placement {
        scattered(job, pool)
    }

    fn collision(&self, _held: &mut u8, _arriving: u8) -> Collision {
        Collision::ToPs
    }

    fn completion(&self) -> Completion {
        Completion::ToPsAndHold
    }

    fn resend(&self) -> Resend {
        Resend::Evict
    }
}
