//! Where a data core's time goes: what its turns found, and cycles by stage.
//!
//! Budget: one poll iteration of [`TURNS`] is measured, and counts for all of them. In it the clock
//! is read twice for each port that had frames and four times besides. Each reading costs an eighth
//! of a frame of 1 KiB, so measuring every iteration would take 2 to 3 % of the time.
//!
//! The catch: cycles are an estimate. What only one iteration in a thousand does may be missing
//! from them, or be in them seventeen times.

use tally_dpdk::cycles;
use tally_schema::switch::report::{LoadCounters, Stage};

/// Poll iterations of which one is measured. A prime, so that what comes every second or fourth
/// iteration is measured as often as it happens.
pub const TURNS: u32 = 17;

/// Measures the stages of a turn one after the other: each lasts from the end of the one before.
#[derive(Default)]
pub struct Meter {
    /// What it has measured.
    pub load: LoadCounters,
    /// Turns until one is measured.
    left: u32,
    /// In a turn that is measured, when the stage began.
    since: Option<u64>,
}

impl Meter {
    /// A turn begins here.
    #[inline]
    pub fn begin(&mut self) {
        if self.left == 0 {
            self.left = TURNS;
            self.since = Some(cycles());
        } else {
            self.since = None;
        }
        self.left -= 1;
    }

    /// A stage ends here.
    #[inline]
    pub fn end(&mut self, stage: Stage) {
        if let Some(since) = &mut self.since {
            let now = cycles();
            // Counters of different cores may differ a little, and a thread may be moved.
            let spent = now.saturating_sub(*since);
            self.load.cycles[stage] += spent * u64::from(TURNS);
            *since = now;
        }
    }

    /// A queue was asked, and gave so many frames.
    #[inline]
    pub fn polled(&mut self, frames: usize) {
        self.load.polls += 1;
        self.load.empty_polls += u64::from(frames == 0);
        self.load.frames += frames as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cycle_of_a_turn_that_is_measured_belongs_to_one_stage_and_counts_for_all() {
        let mut meter = Meter::default();
        for turn in 0..3 * TURNS {
            let before: u64 = meter.load.cycles.total();
            let start = cycles();
            meter.begin();
            for (n, stage) in Stage::ALL.into_iter().enumerate() {
                assert_eq!(stage as usize, n);
                meter.end(stage);
            }
            let spent = cycles() - start;
            let counted = meter.load.cycles.total() - before;
            if turn % TURNS == 0 {
                assert!(counted > 0 && counted <= spent * u64::from(TURNS));
            } else {
                assert_eq!(counted, 0);
            }
        }
        let busy = meter.load.busy_share();
        assert!(busy > 0.0 && busy < 1.0, "{busy}");
    }

    #[test]
    fn a_core_that_never_ran_was_not_busy() {
        assert!(LoadCounters::default().busy_share().abs() < f64::EPSILON);
    }
}
