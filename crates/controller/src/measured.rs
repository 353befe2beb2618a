//! The file of measured capacities.

use crate::unit::Unit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use tally_config::ConfigError;

/// Share of the cores' time from which on a measurement is a capacity.
pub const BUSY_FULL: f64 = 0.8;

/// Measured capacities of a fleet: what `capacity` writes and `measured` of a fleet names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacities {
    /// Unit of all rates.
    pub unit: Unit,
    /// Switches by name.
    pub switches: BTreeMap<String, Measured>,
}

/// What one switch has shown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Rate of gradients that it can take in and sum, or more if it was not full.
    pub capacity: f64,
    /// Rate at which they came in.
    pub rate: f64,
    /// Share of the time in which its data cores had something to do.
    pub busy: f64,
    /// Its data cores.
    pub cores: usize,
}

impl Measured {
    /// Whether its cores had hardly time for more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.busy >= BUSY_FULL
    }
}

impl Capacities {
    /// These, and of the other switches what was known before.
    #[must_use]
    pub fn over(&self, known: Option<&Self>) -> Self {
        let mut all = self.clone();
        for (name, it) in known.iter().flat_map(|it| &it.switches) {
            let ratio = known.map_or(1.0, |it| it.unit.bits_per_second());
            let ratio = ratio / self.unit.bits_per_second();
            let it = Measured {
                capacity: it.capacity * ratio,
                rate: it.rate * ratio,
                ..*it
            };
            all.switches.entry(name.clone()).or_insert(it);
        }
        all
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or a number is none.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let all: Self = tally_config::load(path)?;
        for (name, it) in &all.switches {
            if !(it.capacity.is_finite() && it.capacity > 0.0) {
                let key = format!("switches.{name}.capacity");
                return Err(ConfigError::value(path, key, it.capacity, "a rate above 0"));
            }
        }
        Ok(all)
    }
}
