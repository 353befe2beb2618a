//! Limits of each port.

use serde::{Deserialize, Serialize};
use tally_engine::forwarding::FloodLimits;

/// Limits of each port, as one of an ordinary switch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSection {
    /// MAC addresses learnt behind it.
    pub addresses: u32,
    /// Frames of each kind from it that are flooded in a second; 0: no limit.
    pub floods_per_s: u32,
    /// Of these, broadcasts; by default `floods_per_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcasts_per_s: Option<u32>,
    /// Of these, multicasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicasts_per_s: Option<u32>,
    /// Of these, frames to unknown addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_per_s: Option<u32>,
    /// Answers to ARP and ping in a second; 0: no limit.
    pub answers_per_s: u32,
}

impl Default for LimitsSection {
    fn default() -> Self {
        Self {
            addresses: 1024,
            floods_per_s: 10_000,
            broadcasts_per_s: None,
            multicasts_per_s: None,
            unknown_per_s: None,
            answers_per_s: 10_000,
        }
    }
}

impl LimitsSection {
    /// The limits of floods, by kind.
    #[must_use]
    pub fn floods(&self) -> FloodLimits {
        let kinds = [
            self.broadcasts_per_s,
            self.multicasts_per_s,
            self.unknown_per_s,
        ];
        FloodLimits(kinds.map(|limit| limit.unwrap_or(self.floods_per_s)))
    }
}
