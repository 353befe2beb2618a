//! The card's part of a report.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write as _};
use tally_engine::metrics;
use tally_engine::metrics::Label;
use tally_engine::offload::CardTraffic;

/// Whether a card works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CardState {
    /// Its registers do not answer.
    #[default]
    Absent,
    /// Registers and data path answer.
    Working,
    /// It stopped answering, or said nonsense.
    Failed,
}

impl Display for CardState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "absent",
            Self::Working => "working",
            Self::Failed => "failed",
        })
    }
}

metrics! {
    /// What the switch did with the card.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct CardEvents, labels [] {
        /// Jobs moved to the card and back, without those of a failure.
        pub moves: u64 = counter "card_moves";
        /// Failures of the card.
        pub failures: u64 = counter "card_failures";
    }
}

/// The label of what a card counts.
const COUNTER: Label = Label {
    name: "counter",
    values: &[],
};

metrics! {
    /// What a card says that it did, as of a second ago at most, since it was last cleared.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct CardCounts, labels [] {
        /// What the card did, by the name that `counters` has for the same; read once a second,
        /// since the card was last cleared.
        pub counters: BTreeMap<String, u64> = counter "card_operations" by COUNTER;
        /// Frames that the card dropped, by reason. Reasons `stream-…` are those of its ports.
        pub drops: BTreeMap<String, u64> = counter "card_dropped_frames" in Frames by CARD_REASON;
        /// Frames and beats of the card's streams.
        pub stream: BTreeMap<String, u64> = counter "card_stream" by COUNTER;
    }
}

/// The label of what a card drops.
const CARD_REASON: Label = Label {
    name: "reason",
    values: &[],
};

/// How things are with the card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardReport {
    /// The port that it is behind.
    pub port: String,
    /// Where its registers are.
    pub registers: String,
    /// Whether it works.
    pub state: CardState,
    /// Why it does not work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The jobs that it has.
    pub jobs: Vec<u16>,
    /// Running jobs that it cannot have, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unfit: BTreeMap<u16, String>,
    /// What the switch did with it.
    #[serde(flatten)]
    pub events: CardEvents,
    /// Its slots.
    pub slots: u32,
    /// Its longest payload.
    pub payload_bytes: u32,
    /// Jobs that it can have at a time.
    pub places: u32,
    /// Workers of a job at most.
    pub members: u32,
    /// Fragments of a job whose results it keeps.
    pub ring: u32,
    /// Whether it adds f32.
    pub f32: bool,
    /// Frames between switch and card.
    #[serde(flatten)]
    pub traffic: CardTraffic,
    /// What it counts itself.
    #[serde(flatten)]
    pub counts: CardCounts,
}

impl Display for CardReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "card         {}, registers at {}",
            self.state, self.registers
        )?;
        if let Some(why) = &self.why {
            write!(f, ": {why}")?;
        }
        if self.slots > 0 {
            write!(
                f,
                "; {} slots of {} bytes, {} jobs of {} workers, {} results each",
                self.slots, self.payload_bytes, self.places, self.members, self.ring
            )?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "card         {} frames given, {} results, {} from PS, {} others, {} probes; {} moves, {} failures",
            self.traffic.given,
            self.traffic.results,
            self.traffic.results_from_ps,
            self.traffic.others,
            self.traffic.probes,
            self.events.moves,
            self.events.failures
        )?;
        for (id, why) in &self.unfit {
            writeln!(f, "card         not for job {id}: {why}")?;
        }
        for (name, map) in [
            ("counters", &self.counts.counters),
            ("drops", &self.counts.drops),
            ("stream", &self.counts.stream),
        ] {
            let mut line = String::new();
            for (name, n) in map.iter().filter(|&(_, &n)| n > 0) {
                write!(line, " {name} {n}")?;
            }
            if !line.is_empty() {
                writeln!(f, "card {name:<8}{line}")?;
            }
        }
        Ok(())
    }
}
