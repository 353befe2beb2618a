//! Where a data core's time goes: what its turns found, and cycles by stage.
//!
//! Budget: one turn of [`TURNS`] is measured, and counts for all of them. In it the clock is read
//! twice for each port that had frames and four times besides; each reading costs as much as an eighth of a frame
//! of 1 KiB, so to measure every turn would take 2 to 3 % of the time.
//!
//! The catch: cycles are an estimate. What only a turn in a thousand does may be missing from them, or be in them
//! seventeen times.

use tally_dpdk::cycles;

/// Turns of which one is measured. A prime, so that what comes every second or fourth turn is in it as often as it
/// happens.
pub const TURNS: u32 = 17;

/// The stages of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Looking for frames, and taking them from the driver.
    Receive,
    /// Checking what a frame is, and who may send it; forwarding ordinary ones.
    Classify,
    /// Ring, slots and sums.
    Aggregate,
    /// Handing frames to the drivers and to other cores, and giving back buffers.
    Send,
    /// Turns without a frame.
    Idle,
}

impl Stage {
    /// All stages with their names, in the order of a turn.
    pub const ALL: [(&'static str, Self); 5] = [
        ("receive", Self::Receive),
        ("classify", Self::Classify),
        ("aggregate", Self::Aggregate),
        ("send", Self::Send),
        ("idle", Self::Idle),
    ];
}

/// What a core did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Turns that found something to do.
    pub busy_turns: u64,
    /// Turns that found nothing.
    pub empty_turns: u64,
    /// Times that a queue was asked for frames.
    pub polls: u64,
    /// Of them, those that brought none.
    pub empty_polls: u64,
    /// Frames received from ports.
    pub frames: u64,
    /// Cycles of the time-stamp counter, by `Stage as usize`; estimated.
    pub cycles: [u64; Stage::ALL.len()],
}

impl Load {
    /// Share of the time in which there was something to do.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        let all: u64 = self.cycles.iter().sum();
        let idle = self.cycles[Stage::Idle as usize];
        (all - idle) as f64 / all.max(1) as f64
    }
}

/// Measures the stages of a turn one after the other: each lasts from the end of the one before.
#[derive(Default)]
pub struct Meter {
    /// What it has measured.
    pub load: Load,
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
            self.load.cycles[stage as usize] += spent * u64::from(TURNS);
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
            let before: u64 = meter.load.cycles.iter().sum();
            let start = cycles();
            meter.begin();
            for (n, (_, stage)) in Stage::ALL.into_iter().enumerate() {
                assert_eq!(stage as usize, n);
                meter.end(stage);
            }
            let spent = cycles() - start;
            let counted = meter.load.cycles.iter().sum::<u64>() - before;
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
        assert!(Load::default().busy_share().abs() < f64::EPSILON);
    }
}
