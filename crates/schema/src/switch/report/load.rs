//! Where a data core's time goes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use tally_engine::metrics;
use tally_engine::metrics::{Figure, Label, Number, Total};

/// A stage of a data core's poll iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Looking for frames, and taking them from the driver.
    Receive,
    /// Checking what a frame is, and who may send it; forwarding ordinary ones.
    Classify,
    /// Ring, slots and sums.
    Aggregate,
    /// Handing frames to the drivers and to other cores, and giving back buffers.
    Send,
    /// Poll iterations without a frame.
    Idle,
}

impl Stage {
    /// All stages, in the order of a poll iteration.
    pub const ALL: [Self; 5] = [
        Self::Receive,
        Self::Classify,
        Self::Aggregate,
        Self::Send,
        Self::Idle,
    ];
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Receive => "receive",
            Self::Classify => "classify",
            Self::Aggregate => "aggregate",
            Self::Send => "send",
            Self::Idle => "idle",
        })
    }
}

/// The label of cycles.
const STAGE: Label = Label {
    name: "stage",
    values: &["receive", "classify", "aggregate", "send", "idle"],
};

/// Cycles by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCycles([u64; Stage::ALL.len()]);

impl StageCycles {
    /// Those of all stages.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Index<Stage> for StageCycles {
    type Output = u64;

    #[inline]
    fn index(&self, stage: Stage) -> &u64 {
        &self.0[stage as usize]
    }
}

impl IndexMut<Stage> for StageCycles {
    #[inline]
    fn index_mut(&mut self, stage: Stage) -> &mut u64 {
        &mut self.0[stage as usize]
    }
}

impl Serialize for StageCycles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Stage::ALL.iter().zip(self.0))
    }
}

impl<'de> Deserialize<'de> for StageCycles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let by_stage = BTreeMap::<Stage, u64>::deserialize(deserializer)?;
        let cycles = Stage::ALL.map(|stage| by_stage.get(&stage).copied().unwrap_or(0));
        Ok(Self(cycles))
    }
}

impl Figure for StageCycles {
    fn zero() -> Self {
        Self::default()
    }

    fn combine(&mut self, other: &Self, total: Total) {
        self.0.combine(&other.0, total);
    }

    fn visit(&self, by: Option<&Label>, f: &mut dyn FnMut(Option<&str>, Number)) {
        self.0.visit(by, f);
    }

    fn fill(&mut self, by: Option<&Label>, next: &mut dyn FnMut() -> u64) {
        Figure::fill(&mut self.0, by, next);
    }
}

metrics! {
    /// What a data core did since the switch started.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct LoadCounters, labels ["cpu"] {
        /// Poll iterations that found something to do.
        pub busy_turns: u64 = counter "core_busy_iterations";
        /// Poll iterations that found nothing.
        pub empty_turns: u64 = counter "core_empty_iterations";
        /// Polls of receive queues.
        pub polls: u64 = counter "core_polls";
        /// Polls that brought no frame.
        pub empty_polls: u64 = counter "core_empty_polls";
        /// Frames that the core received from ports.
        pub frames: u64 = counter "core_rx_frames" in Frames;
        /// Cycles of the time-stamp counter by stage, estimated: one poll iteration of
        /// seventeen is measured and counts for all.
        pub cycles: StageCycles = counter "core_cycles" in Cycles by STAGE;
    }
}

impl LoadCounters {
    /// Share of the time in which there was something to do.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        let all = self.cycles.total();
        (all - self.cycles[Stage::Idle]) as f64 / all.max(1) as f64
    }
}
