//! How a shard's pool is laid out, how much of it a job may have, and by which policy.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use tally_wire::JobId;

/// Most ways of a set.
pub const MAX_WAYS: u32 = 8;

/// What of a shard a job has for certain, and how much at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slots that other jobs do not take from the job, and that it gets from jobs that hold more
    /// than their own minimum. Only policies that preempt can keep it; 0 for all others.
    pub min_slots: u32,
    /// Upper bound of the job's slots.
    pub max_slots: u32,
    /// Contributions held out of order that are reserved for the job, whether it runs or not: what
    /// is held cannot be evicted.
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

/// A job that a pool may be told to bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolJob {
    /// Its id.
    pub id: JobId,
    /// Its limits in this shard.
    pub limits: Limits,
}

impl PoolJob {
    /// A job without limits.
    #[must_use]
    pub const fn unlimited(id: JobId) -> Self {
        let limits = Limits::NONE;
        Self { id, limits }
    }
}

/// How a shard's pool is laid out. All shards of a switch have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Slots of this shard; a power of two, at least 1.
    pub slots: u32,
    /// Slots that a fragment may be in: 1, 2, 4 or 8, at most `slots`. One way is what the papers
    /// have.
    pub ways: u32,
    /// Contributions held out of order, all slots together.
    pub held: u32,
    /// Largest window of a job, in fragments over all shards.
    pub window: u16,
    /// Number of shards; a power of two.
    pub shards: u8,
    /// Which shard this is.
    pub shard: u8,
    /// Jobs configured at first, each id once.
    pub jobs: Vec<PoolJob>,
    /// Most jobs that are configured at a time, among which `static` divides the pool. Fewer than
    /// `jobs` has count as their number.
    pub places: u16,
    /// The policy.
    pub policy: PolicyName,
}

impl PoolConfig {
    /// Fragments that the ring of a job spans (W-4): two windows.
    #[must_use]
    pub const fn ring_fragments(&self) -> u32 {
        self.window as u32 * 2
    }

    /// Most jobs that are configured at a time.
    #[must_use]
    pub fn places(&self) -> usize {
        usize::from(self.places).max(self.jobs.len())
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
        self.check_jobs(&self.jobs);
    }

    /// # Panics
    /// If the pool cannot have these jobs at a time, with these limits.
    pub(crate) fn check_jobs(&self, jobs: &[PoolJob]) {
        assert!(jobs.len() <= self.places(), "more jobs than places");
        let ids: BTreeSet<_> = jobs.iter().map(|job| job.id).collect();
        assert_eq!(ids.len(), jobs.len(), "jobs: an id twice");
        let limits = || jobs.iter().map(|job| job.limits);
        assert!(
            self.policy.policy().preempts() || limits().all(|limits| limits.min_slots == 0),
            "a minimum that the policy cannot keep"
        );
        let minimums = limits().map(|l| u64::from(l.min_slots));
        assert!(
            minimums.sum::<u64>() <= u64::from(self.slots),
            "more slots for certain than there are"
        );
        let minimums = limits().map(|l| u64::from(l.min_held));
        assert!(
            minimums.sum::<u64>() <= u64::from(self.held),
            "more held contributions reserved than there are"
        );
        for limits in limits() {
            assert!(limits.min_slots <= limits.max_slots && limits.max_slots > 0);
        }
    }
}

/// A policy by its name in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PolicyName {
    /// Preemptive, as in ESA.
    #[default]
    Esa,
    /// First come first served, as in ATP.
    Fcfs,
    /// A fixed share for each job, as in SwitchML.
    Static,
    /// No aggregation, to compare with.
    None,
}

impl PolicyName {
    /// All names, as they are written.
    pub const ALL: [(&'static str, Self); 4] = [
        ("esa", Self::Esa),
        ("fcfs", Self::Fcfs),
        ("static", Self::Static),
        ("none", Self::None),
    ];

    /// Slots that a fragment may be in unless configured. The baselines have what their papers
    /// have. Under `esa` jobs that walk the pool side by side would meet at every step while most
    /// of it is free; with four ways they still did now and then, with eight hardly
    /// (perf/record/HISTORY.md#jct has the figures).
    #[must_use]
    pub const fn default_ways(self) -> u32 {
        match self {
            Self::Esa => 8,
            Self::Fcfs | Self::Static | Self::None => 1,
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Esa => "esa",
            Self::Fcfs => "fcfs",
            Self::Static => "static",
            Self::None => "none",
        })
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .find(|(name, _)| *name == s)
            .map(|&(_, policy)| policy)
            .ok_or_else(|| format!("`{s}` is no policy; allowed: esa, fcfs, static, none"))
    }
}
