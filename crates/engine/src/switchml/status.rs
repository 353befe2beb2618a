//! What a shard says of its sessions, and what it counts.

use super::SessionId;
use crate::counters::DropReason;
use crate::roster::PortId;
use std::time::Duration;
use tally_wire::Time;

/// What one shard did for SwitchML since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchmlCounters {
    /// Contributions taken into slots.
    pub contributions: u64,
    /// Results sent to all workers of a session.
    pub results: u64,
    /// Duplicates answered with the result.
    pub answered: u64,
    /// Frames dropped, by `DropReason as usize`.
    pub drops: [u64; DropReason::ALL.len()],
}

impl Default for SwitchmlCounters {
    fn default() -> Self {
        Self {
            contributions: 0,
            results: 0,
            answered: 0,
            drops: [0; DropReason::ALL.len()],
        }
    }
}

impl SwitchmlCounters {
    /// Counts one dropped frame.
    #[inline]
    pub fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Frames dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// The named counters that are not drops, with their values.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 3] {
        [
            ("contributions", self.contributions),
            ("results", self.results),
            ("answered", self.answered),
        ]
    }

    /// Adds the counts of another shard.
    pub fn add(&mut self, other: &Self) {
        self.contributions += other.contributions;
        self.results += other.results;
        self.answered += other.answered;
        for (mine, theirs) in self.drops.iter_mut().zip(other.drops) {
            *mine += theirs;
        }
    }
}

/// What a session did since it was bound, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Which.
    pub id: SessionId,
    /// Contributions taken into slots.
    pub contributions: u64,
    /// Results sent to all its workers.
    pub results: u64,
    /// Duplicates answered with the result.
    pub answered: u64,
    /// Duplicates dropped, because others were still missing.
    pub duplicates: u64,
    /// Slots in which a sum waits for contributions; 0 if nobody asked for how long they wait.
    pub slots_in_use: u32,
    /// Buffers kept: these sums, and results that somebody may ask for again.
    pub held: u32,
    /// Set when two ports claimed a rank: it sums nothing from then on, and is to be ended.
    pub conflict: Option<Conflict>,
    /// Its workers.
    pub ranks: Vec<RankStatus>,
}

/// A worker's secret was used from two ports of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Whose.
    pub rank: u8,
    /// The ports, in the order of their first frames as far as that is known.
    pub ports: [PortId; 2],
}

/// Frames with a worker's addresses, but not to the address that it was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forged {
    /// How many.
    pub frames: u64,
    /// The port that the last one came in on.
    pub port: Option<PortId>,
}

/// What a rank did, and who waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankStatus {
    /// Frames of it, duplicates and other drops that its session has to answer for included.
    pub frames: u64,
    /// When the last of them came.
    pub last: Option<Time>,
    /// The port of the switch that it is bound to.
    pub port: Option<PortId>,
    /// What others sent in its name.
    pub forged: Forged,
    /// Sums that have begun, are older than what was asked for, and lack it: who has many is behind.
    pub lacking: u32,
    /// How long the oldest of them has waited, to about a millisecond.
    pub longest: Duration,
}

impl SessionStatus {
    /// Adds what another shard says of the same session.
    pub fn add(&mut self, other: &Self) {
        debug_assert_eq!(self.id, other.id);
        self.contributions += other.contributions;
        self.results += other.results;
        self.answered += other.answered;
        self.duplicates += other.duplicates;
        self.slots_in_use += other.slots_in_use;
        self.held += other.held;
        self.conflict = self.conflict.or(other.conflict);
        for (rank, (mine, theirs)) in self.ranks.iter_mut().zip(&other.ranks).enumerate() {
            if let (Some(here), Some(there)) = (mine.port, theirs.port)
                && here != there
            {
                let conflict = Conflict {
                    rank: rank as u8,
                    ports: [here, there],
                };
                self.conflict.get_or_insert(conflict);
            }
            mine.forged.frames += theirs.forged.frames;
            mine.forged.port = mine.forged.port.or(theirs.forged.port);
            mine.frames += theirs.frames;
            mine.last = mine.last.max(theirs.last);
            mine.port = mine.port.or(theirs.port);
            mine.lacking += theirs.lacking;
            mine.longest = mine.longest.max(theirs.longest);
        }
    }

    /// When the session's last frame came.
    #[must_use]
    pub fn last(&self) -> Option<Time> {
        self.ranks.iter().filter_map(|rank| rank.last).max()
    }
}
