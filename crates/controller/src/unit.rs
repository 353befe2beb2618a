//! Units of rates and capacities in files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Unit of all rates and capacities of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unit {
    /// 10^6 bit/s.
    #[serde(rename = "Mbit/s")]
    Megabit,
    /// 10^9 bit/s.
    #[serde(rename = "Gbit/s")]
    Gigabit,
}

impl Unit {
    /// In bit/s.
    #[must_use]
    pub fn bits_per_second(self) -> f64 {
        match self {
            Self::Megabit => 1e6,
            Self::Gigabit => 1e9,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Megabit => "Mbit/s",
            Self::Gigabit => "Gbit/s",
        })
    }
}
