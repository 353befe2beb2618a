//! How many fragments a worker may have unfinished: one window for links, one for the pool (C-3).
//!
//! A result says of its fragment whether a link was full on its way (MARKED) and whether it found
//! no slot, or lost one (COLLISION). The two want different answers. A full link drops frames, so
//! its window is cut as DCTCP's (RFC 8257): by half of the smoothed share of marked results. A full
//! pool only makes the PS work, and some of that is what a shared pool is for; so the aggregation
//! window is cut by as much as the smoothed share of collisions exceeds a tenth, in parts of
//! the largest excess, 1.9. Without a reason to shrink each grows by one fragment in a round. This
//! is A2TP (EuroSys'23).
//!
//! A round is one window of results. All workers of a job get the same results with the same flags,
//! so their windows go the same way, unless losses keep them apart for a while.
//!
//! # Where it departs
//!
//! * A2TP raises the excess of collisions to the power of the job's straggler degree, from 0 to 1,
//!   so that jobs with stragglers leave the pool sooner. Here the power is 1: a straggler's
//!   fragments are preempted anyway, by priority or by ageing.
//! * Both windows begin at their largest ([`in_flight`]), with no congestion seen: the first round
//!   says more than a guess. Beginning with all congestion assumed (as DCTCP does) would answer one
//!   marked result among hundreds with half of the window.
//! * Arithmetic is in integers with 16 binary places, so that a replay has the same bits anywhere.

/// 1.0 in shares and windows.
const ONE: u64 = 1 << 16;
/// Share of collisions that is no reason to shrink.
const COLLISIONS_ALLOWED: u64 = ONE / 10;
/// The aggregation window keeps `1 - excess * 10 / 19`.
const EXCESS: (u64, u64) = (10, 19);
/// Weight of a round in the smoothed shares: 1 in this number.
const SMOOTHING: u64 = 8;

/// What congestion control did in a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionStats {
    /// Windows of results.
    pub rounds: u64,
    /// Those with a result that was MARKED.
    pub rounds_marked: u64,
    /// Those with a result that had COLLISION.
    pub rounds_collided: u64,
    /// The least link window so far, in fragments; 0 before the first round.
    pub link_window_min: u32,
    /// The least aggregation window so far, in fragments; 0 before the first round.
    pub aggregation_window_min: u32,
}

/// Unfinished fragments at most: five eighths of the configured window.
///
/// The rest is room in front of a fragment that is being repaired, so that a loss does not stop the
/// worker (W-2). Without loss it would only fill queues.
pub(crate) fn in_flight(window: u16) -> u16 {
    (u32::from(window) * 5).div_ceil(8) as u16
}

/// The two windows of a session.
pub(crate) struct Congestion {
    /// Upper bound of both windows.
    max: u64,
    link: u64,
    aggregation: u64,
    /// Smoothed shares of results that were marked and that collided.
    marked: u64,
    collided: u64,
    round: Round,
}

/// What the results of a round have said so far.
#[derive(Clone, Copy, Default)]
struct Round {
    results: u64,
    marked: u64,
    collided: u64,
}

impl Congestion {
    /// For at most `window` fragments unfinished.
    pub(crate) fn new(window: u16) -> Self {
        let max = u64::from(window.max(1)) * ONE;
        Self {
            max,
            link: max,
            aggregation: max,
            marked: 0,
            collided: 0,
            round: Round::default(),
        }
    }

    /// The link window and the aggregation window, in whole fragments.
    pub(crate) fn windows(&self) -> (u32, u32) {
        ((self.link / ONE) as u32, (self.aggregation / ONE) as u32)
    }

    /// How many fragments may be unfinished. At least 1: a worker that may send nothing learns
    /// nothing.
    pub(crate) fn limit(&self) -> u64 {
        self.aggregation / ONE
    }

    /// Takes note of a fragment's first result.
    pub(crate) fn result(&mut self, marked: bool, collided: bool, stats: &mut CongestionStats) {
        self.round.results += 1;
        self.round.marked += u64::from(marked);
        self.round.collided += u64::from(collided);
        if self.round.results >= self.limit() {
            self.end_round();
            stats.rounds += 1;
            stats.rounds_marked += u64::from(self.round.marked > 0);
            stats.rounds_collided += u64::from(self.round.collided > 0);
            let least = |least: u32, now| if least == 0 { now } else { least.min(now) };
            let (link, aggregation) = self.windows();
            stats.link_window_min = least(stats.link_window_min, link);
            stats.aggregation_window_min = least(stats.aggregation_window_min, aggregation);
            self.round = Round::default();
        }
    }

    fn end_round(&mut self) {
        let Round {
            results,
            marked,
            collided,
        } = self.round;
        let smooth = |old, n| (old * (SMOOTHING - 1) + n * ONE / results) / SMOOTHING;
        self.marked = smooth(self.marked, marked);
        self.collided = smooth(self.collided, collided);
        self.link = if marked > 0 {
            self.link - self.link * self.marked / (2 * ONE)
        } else {
            self.link + ONE
        };
        let excess = self.collided.saturating_sub(COLLISIONS_ALLOWED);
        self.aggregation = if collided > 0 && excess > 0 {
            self.aggregation - self.aggregation * excess * EXCESS.0 / (EXCESS.1 * ONE)
        } else {
            self.aggregation + ONE
        };
        self.link = self.link.clamp(ONE, self.max);
        self.aggregation = self.aggregation.clamp(ONE, self.link);
    }
}

#[cfg(test)]
mod tests;
