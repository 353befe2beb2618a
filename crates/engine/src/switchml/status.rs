//! What a shard says of its sessions, and what it counts.

use super::SessionId;
use crate::counters::{DropReason, Drops};
use crate::metrics;
use crate::metrics::MetricSet as _;
use crate::roster::PortId;
use serde::{Deserialize, Serialize};
use tally_wire::Time;

metrics! {
    /// What one shard did for SwitchML since it started.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SwitchmlCounters, labels [] {
        /// Contributions of SwitchML clients taken into slots.
        pub contributions: u64 = counter "switchml_contributions";
        /// Results sent to all workers of a session.
        pub results: u64 = counter "switchml_results";
        /// Duplicates answered with the result.
        pub answered: u64 = counter "switchml_duplicates_answered";
    }
    parts {
        /// Frames dropped.
        pub drops: Drops;
    }
}

impl SwitchmlCounters {
    /// Counts one dropped frame.
    #[inline]
    pub fn drop(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Frames dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason]
    }
}

metrics! {
    /// What one shard keeps for SwitchML.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct SwitchmlUse, labels [] {
        /// Frames that SwitchML's slots keep now.
        pub held_in_use: u32 = gauge "switchml_held_frames" in Frames;
    }
}

metrics! {
    /// What a session did since it was bound, and what it has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct SessionCounters, labels ["session"] {
        /// Contributions of the session taken into slots.
        pub contributions: u64 = counter "switchml_session_contributions";
        /// Results sent to all workers of the session.
        pub results: u64 = counter "switchml_session_results";
        /// Duplicates answered with the result.
        pub answered: u64 = counter "switchml_session_duplicates_answered";
        /// Duplicates dropped because others were still missing.
        pub duplicates: u64 = counter "switchml_session_duplicates_dropped";
        /// Slots in which a sum waits for contributions.
        pub slots_in_use: u32 = gauge "switchml_session_slots_in_use";
        /// Frames kept: unfinished sums, and results that a worker may still ask for.
        pub held: u32 = gauge "switchml_session_held_frames" in Frames;
    }
}

metrics! {
    /// What a rank of a session did, and who waits for it.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct RankCounters, labels ["session", "rank"] {
        /// Frames of the rank; with duplicates, and other drops that its session answers for.
        pub frames: u64 = counter "switchml_rank_frames" in Frames;
        /// Frames with the rank's addresses that were not to the switch address it was told, and
        /// were dropped.
        pub forged: u64 = counter "switchml_rank_forged_frames" in Frames;
        /// Sums that have waited for the rank for 10 ms or more.
        pub behind: u32 = gauge "switchml_rank_awaited_sums";
        /// Longest time that one of these sums has waited so far.
        pub behind_s: f64 = maximum "switchml_rank_awaited_seconds" in Seconds;
    }
}

/// How a session is.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionStatus {
    /// Which.
    pub id: SessionId,
    /// What it did. Without an age to compare with, `slots_in_use` is 0.
    pub counters: SessionCounters,
    /// Set when two ports claimed a rank: it sums nothing from then on, and is to be ended.
    pub conflict: Option<Conflict>,
    /// Its workers.
    pub ranks: Vec<RankStatus>,
}

/// A worker's secret was used from two ports of the switch that do not both lead to its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Whose.
    pub rank: u8,
    /// The ports, in the order of their first frames.
    pub ports: [PortId; 2],
}

/// How a rank is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankStatus {
    /// What it did. `behind` counts sums that have begun, are older than the age asked for, and
    /// lack it.
    pub counters: RankCounters,
    /// When the last of its frames came.
    pub last: Option<Time>,
    /// The port of the switch that it came in on.
    pub port: Option<PortId>,
    /// The port that the last forged frame came in on.
    pub forged_from: Option<PortId>,
}

impl SessionStatus {
    /// Adds what another shard says of the same session.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.id, other.id);
        self.counters.add(&other.counters);
        self.conflict = self.conflict.or(other.conflict);
        for (mine, theirs) in self.ranks.iter_mut().zip(&other.ranks) {
            mine.counters.add(&theirs.counters);
            if theirs.last > mine.last {
                (mine.last, mine.port) = (theirs.last, theirs.port);
            }
            mine.forged_from = mine.forged_from.or(theirs.forged_from);
        }
    }

    /// When the session's last frame came.
    #[must_use]
    pub fn last(&self) -> Option<Time> {
        self.ranks.iter().filter_map(|rank| rank.last).max()
    }
}
