//! Allocation policies: where a fragment's slot is, and what happens when it is taken.
//!
//! The aggregator is the same for all; a policy answers the few questions in which the published
//! systems differ. The table of PROTOCOL.md, section 6, has them side by side.

mod esa;
mod fcfs;
mod fixed;
mod none;

pub use esa::Esa;
pub use fcfs::Fcfs;
pub use fixed::Static;
pub use none::NoAggregation;

use crate::native::pool::{PolicyName, PoolConfig};
use std::fmt;
use std::ops::Range;
use tally_wire::JobId;

/// The slots a job may use: for its n-th fragment in this shard the `ways` slots from
/// `base + ((hash + n) & mask) * ways`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// First slot.
    pub base: u32,
    /// Number of sets less one; the number is a power of two.
    pub mask: u32,
    /// The set where the job's first fragment falls.
    pub hash: u32,
    /// Slots of a set; none: the job has no slots at all.
    pub ways: u32,
}

impl Placement {
    /// The slots for the job's `n`-th fragment in this shard.
    #[inline]
    #[must_use]
    pub const fn set(&self, n: u32) -> Range<usize> {
        let first = self.base + (self.hash.wrapping_add(n) & self.mask) * self.ways;
        first as usize..(first + self.ways) as usize
    }
}

/// What an arrival does that finds its set taken by other fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collision {
    /// The held partial goes to its PS, the arrival takes the slot.
    Preempt,
    /// The arrival goes to its PS.
    ToPs,
}

/// What happens when the last contribution is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The result leaves to the workers, the slot is free.
    Result,
    /// The sum goes to the PS; the slot is held until the PS's result passes.
    ToPsAndHold,
    /// The sum goes to the node's parent, the slot is free: what [`Result`](Self::Result) is in a
    /// job with an uplink.
    Up,
}

/// What a contribution marked RESEND may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// As any other contribution, unless a part of its fragment went to the PS: then it follows.
    JoinOrTake,
    /// Drive the slot that has its key, and itself, to the PS.
    Evict,
}

/// The answers of one policy.
pub trait Policy: Send + Sync + fmt::Debug {
    /// The slots on this pool of a job that has the `index`-th of its places.
    fn placement(&self, job: JobId, index: usize, pool: &PoolConfig) -> Placement;

    /// An arrival of priority `arriving` found its set full; `held` is the priority of the slot in
    /// it that would have to yield, which the policy may change.
    fn collision(&self, held: &mut u8, arriving: u8) -> Collision;

    /// Whether an arrival may take a slot from another, as it must where jobs have minimums.
    fn preempts(&self) -> bool {
        false
    }

    /// A slot is complete.
    fn completion(&self) -> Completion;

    /// A RESEND came for a fragment without result.
    fn resend(&self) -> Resend;

    /// Whether a slot leaves to the PS as soon as what it has and what is there already are all of
    /// its fragment (S-8); else the PS has to ask for it.
    fn follows_to_ps(&self) -> bool {
        false
    }
}

/// All slots, beginning for each job at another set, while the fragments of one job stay in a row
/// so that a job whose window fits the pool never collides with itself.
fn scattered(job: JobId, pool: &PoolConfig) -> Placement {
    // 2^32 divided by the golden ratio: consecutive jobs fall far apart (Knuth, 6.4).
    let hash = u32::from(job.0).wrapping_mul(0x9e37_79b9) >> 7;
    Placement {
        base: 0,
        mask: pool.slots / pool.ways - 1,
        hash,
        ways: pool.ways,
    }
}

impl PolicyName {
    /// The policy.
    #[must_use]
    pub fn policy(self) -> &'static dyn Policy {
        match self {
            Self::Esa => &Esa,
            Self::Fcfs => &Fcfs,
            Self::Static => &Static,
            Self::None => &NoAggregation,
        }
    }
}
