//! How a shard's pool is laid out, and how much of it a job may have.

use crate::native::policy::PolicyName;

/// Most ways of a set.
pub const MAX_WAYS: u32 = 8;

/// What of a shard a job has for certain, and how much at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// As many are not taken from the job by others, and it gets as many from jobs that have more
    /// than theirs. Only policies that preempt can keep it; 0 for all others.
    pub min_slots: u32,
    /// More the job does not take.
    pub max_slots: u32,
    /// Contributions held out of order that are reserved for the job, whether it runs or not: what is
    /// held cannot be evicted.
    pub min_held: u32,
}

impl Limits {
    /// Nothing for certain, everything at most.
    pub const NONE: Self = Self {
        min_slots: 0,
        max_slots: u32::MAX,
        min_held: 0,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::NONE
    }
}

/// How a shard's pool is laid out. All shards of a switch have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Slots of this shard; a power of two, at least 1.
    pub slots: u32,
    /// Slots that a fragment may be in: 1, 2, 4 or 8, at most `slots`. One way is what the papers have.
    pub ways: u32,
    /// Contributions held out of order, all slots together.
    pub held: u32,
    /// Largest window of a job, in fragments over all shards.
    pub window: u16,
    /// Number of shards; a power of two.
    pub shards: u8,
    /// Which shard this is.
    pub shard: u8,
    /// Jobs in the configuration, for policies that divide the pool.
    pub jobs: usize,
    /// What each job may have of this shard, by its place in the configuration; none if missing.
    pub limits: Vec<Limits>,
    /// The policy.
    pub policy: PolicyName,
}

impl PoolConfig {
    /// Fragments that the ring of a job spans (W-4): two windows.
    #[must_use]
    pub const fn ring_fragments(&self) -> u32 {
        self.window as u32 * 2
    }

    /// # Panics
    /// As [`Aggregator::new`](crate::Aggregator::new).
    pub(crate) fn check(&self) {
        assert!(self.slots.is_power_of_two(), "slots: a power of two");
        assert!(self.shards.is_power_of_two(), "shards: a power of two");
        assert!(self.shard < self.shards && self.window > 0);
        assert!(
            self.ways.is_power_of_two() && self.ways <= MAX_WAYS.min(self.slots),
            "ways: 1, 2, 4 or 8, at most the slots"
        );
        let minimums = self.limits.iter().map(|l| u64::from(l.min_slots));
        assert!(
            minimums.sum::<u64>() <= u64::from(self.slots),
            "more slots for certain than there are"
        );
        let minimums = self.limits.iter().map(|l| u64::from(l.min_held));
        assert!(
            minimums.sum::<u64>() <= u64::from(self.held),
            "more held contributions reserved than there are"
        );
        for limits in &self.limits {
            assert!(limits.min_slots <= limits.max_slots && limits.max_slots > 0);
            assert!(
                limits.min_slots == 0 || self.policy.policy().preempts(),
                "a minimum that the policy cannot keep"
            );
        }
    }
}
