//! Where a data core's time goes: what its turns found, and cycles by stage.
//!
//! Budget: the clock is read twice for each port that had frames and three times for each turn that had
//! any, so a frame pays a few cycles at bursts of eight; an empty turn reads it once.

use tally_dpdk::cycles;

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
    /// Cycles of the time-stamp counter, by `Stage as usize`.
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

/// Measures the stages one after the other: each lasts from the end of the one before.
pub struct Meter {
    /// What it has measured.
    pub load: Load,
    since: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            load: Load::default(),
            since: cycles(),
        }
    }
}

impl Meter {
    /// A stage ends here.
    #[inline]
    pub fn end(&mut self, stage: Stage) {
        let now = cycles();
        // Counters of different cores may differ a little, and a thread may be moved.
        self.load.cycles[stage as usize] += now.saturating_sub(self.since);
        self.since = now;
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
    fn every_cycle_belongs_to_one_stage() {
        let start = cycles();
        let mut meter = Meter::default();
        for (n, (_, stage)) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, n);
            meter.end(stage);
        }
        let sum: u64 = meter.load.cycles.iter().sum();
        assert!(sum > 0 && sum <= cycles() - start);
        let busy = meter.load.busy_share();
        assert!(busy > 0.0 && busy < 1.0, "{busy}");
    }

    #[test]
    fn a_core_that_never_ran_was_not_busy() {
        assert!(Load::default().busy_share().abs() < f64::EPSILON);
    }
}
