//! What a card did.

use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// What a card did until it was ended.
pub struct Summary {
    /// Of faults.
    pub seed: u64,
    /// Since it was last out of reset.
    pub up: Duration,
    /// Cycles of its clock.
    pub cycles: u64,
    /// Frames that came in on the port.
    pub frames_in: u64,
    /// Frames that came out of the card and were to be sent.
    pub frames_out: u64,
    /// Of them, those that the port did not take.
    pub unsent: u64,
    /// Registers read and written.
    pub accesses: u64,
    /// Frames lost on purpose.
    pub dropped: u64,
    /// Frames damaged on purpose.
    pub corrupted: u64,
    /// Resets on purpose.
    pub resets: u64,
    /// What the design has found wrong with itself.
    pub fault: Option<String>,
    /// Its own counters, since its last reset.
    pub counters: Vec<(&'static str, u64)>,
}

impl Summary {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            up: Duration::ZERO,
            cycles: 0,
            frames_in: 0,
            frames_out: 0,
            unsent: 0,
            accesses: 0,
            dropped: 0,
            corrupted: 0,
            resets: 0,
            fault: None,
            counters: Vec::new(),
        }
    }

    /// As JSON, in one line.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            seed: u64,
            up_ms: u64,
            cycles: u64,
            frames_in: u64,
            frames_out: u64,
            unsent: u64,
            register_accesses: u64,
            faults: Faults,
            failed: Option<&'a str>,
            counters: std::collections::BTreeMap<&'a str, u64>,
        }
        #[derive(Serialize)]
        struct Faults {
            dropped: u64,
            corrupted: u64,
            resets: u64,
        }
        let json = Json {
            seed: self.seed,
            up_ms: self.up.as_millis() as u64,
            cycles: self.cycles,
            frames_in: self.frames_in,
            frames_out: self.frames_out,
            unsent: self.unsent,
            register_accesses: self.accesses,
            faults: Faults {
                dropped: self.dropped,
                corrupted: self.corrupted,
                resets: self.resets,
            },
            failed: self.fault.as_deref(),
            counters: self.counters.iter().copied().collect(),
        };
        // Numbers, names and one text cannot fail to be written.
        simd_json::to_string(&json).unwrap_or_default() + "\n"
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:.1} s, {} cycles, {} frames in, {} out ({} not sent), {} register accesses, seed {}",
            self.up.as_secs_f64(),
            self.cycles,
            self.frames_in,
            self.frames_out,
            self.unsent,
            self.accesses,
            self.seed
        )?;
        if self.dropped + self.corrupted + self.resets > 0 {
            writeln!(
                f,
                "on purpose: {} frames lost, {} damaged, {} resets",
                self.dropped, self.corrupted, self.resets
            )?;
        }
        for (name, value) in self.counters.iter().filter(|&&(_, value)| value > 0) {
            writeln!(f, "{name:>20} {value}")?;
        }
        if let Some(fault) = &self.fault {
            writeln!(f, "failed: {fault}")?;
        }
        Ok(())
    }
}
