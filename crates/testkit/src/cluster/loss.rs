//! Losses that workers and parameter servers make on purpose.

use super::Cluster;
use std::process::Command;

/// What a parameter server is beside the ranks, where random numbers differ.
pub(super) const PS: u8 = 255;

/// Which frames workers and parameter servers drop on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossPattern {
    /// Frames dropped in a row; each such burst begins with the probability.
    pub burst: u32,
    /// In which direction: `both`, `out` or `in`. With one direction, only workers drop frames.
    pub direction: &'static str,
    /// The only rank that drops any.
    pub only: Option<u8>,
    /// Whether those that drop nothing count their frames, too.
    pub counted: bool,
}

impl Default for LossPattern {
    /// Each frame on its own, at all members.
    fn default() -> Self {
        Self {
            burst: 1,
            direction: "both",
            only: None,
            counted: false,
        }
    }
}

impl Cluster {
    /// Tells a worker, by its rank, or the [`PS`] what to drop.
    pub(super) fn add_loss(&self, command: &mut Command, job: usize, who: u8) {
        let LossPattern {
            burst,
            direction,
            only,
            counted,
        } = self.spec.loss_pattern;
        let is_worker = who != PS;
        let loses = only.is_none_or(|rank| rank == who) && (is_worker || direction == "both");
        let loss = if loses { self.spec.loss } else { 0.0 };
        if loss > 0.0 || counted {
            command.arg("--loss").arg(loss.to_string());
            command.arg("--loss-burst").arg(burst.to_string());
            command.args(["--loss-direction", direction]);
            // Every process draws its own numbers.
            let who = job as u64 * 256 + u64::from(who);
            let seed = self
                .spec
                .loss_seed
                .wrapping_mul(1_000_000)
                .wrapping_add(who);
            command.arg("--loss-seed").arg(seed.to_string());
        }
    }
}
