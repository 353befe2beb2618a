//! The card's part of a report.

use crate::config::CardSection;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write as _};
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
    /// Jobs given to it and taken back, those that it failed with not counted.
    pub moves: u64,
    /// Times that it failed.
    pub failures: u64,
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
    /// Frames given to it.
    pub given: u64,
    /// Its results that went on.
    pub results: u64,
    /// Results of PSs that it passed on.
    pub results_from_ps: u64,
    /// Its frames that went on to one member.
    pub others: u64,
    /// Probes that came back.
    pub probes: u64,
    /// What it did, by name, as of a second ago at most; from the moment on that it was last cleared.
    pub counters: BTreeMap<String, u64>,
    /// What it dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Frames and beats of its streams.
    pub stream: BTreeMap<String, u64>,
}

impl CardReport {
    /// Of a card that nobody has asked yet.
    #[must_use]
    pub fn new(section: &CardSection) -> Self {
        Self {
            port: section.port.clone(),
            registers: section.registers.to_string(),
            ..Self::default()
        }
    }

    pub(super) fn with(self, traffic: &CardTraffic) -> Self {
        Self {
            given: traffic.given,
            results: traffic.results,
            results_from_ps: traffic.results_from_ps,
            others: traffic.others,
            probes: traffic.probes,
            ..self
        }
    }
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
            self.given,
            self.results,
            self.results_from_ps,
            self.others,
            self.probes,
            self.moves,
            self.failures
        )?;
        for (id, why) in &self.unfit {
            writeln!(f, "card         not for job {id}: {why}")?;
        }
        for (name, map) in [
            ("counters", &self.counters),
            ("drops", &self.drops),
            ("stream", &self.stream),
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
