//! Who runs, and what is lost.

use crate::peers::Peer;
use clap::ValueEnum;
use serde::Serialize;
use std::fmt;
use tally_testkit::cluster::{LossPattern, Network};

/// Who sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Tally, f32 in the order of ranks
    Native,
    /// Tally, block fixed point
    Fixed,
    /// SwitchML's dialect, our own client
    Switchml,
    /// Gloo's ring over TCP with CUBIC
    GlooCubic,
    /// Gloo's ring over TCP with BBR
    GlooBbr,
}

impl Contender {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Native,
        Self::Fixed,
        Self::Switchml,
        Self::GlooCubic,
        Self::GlooBbr,
    ];

    /// Whether it is Tally's own protocol.
    pub fn is_tally(self) -> bool {
        matches!(self, Self::Native | Self::Fixed)
    }

    /// The kernel's congestion control that it uses.
    pub fn congestion_control(self) -> Option<&'static str> {
        match self {
            Self::GlooCubic => Some("cubic"),
            Self::GlooBbr => Some("bbr"),
            _ => None,
        }
    }

    /// Whether it can run on that network.
    pub fn is_on(self, network: Network) -> bool {
        self.congestion_control().is_none() || network == Network::Namespaces
    }

    /// Why it cannot run here.
    pub fn missing(self) -> Option<String> {
        let name = self.congestion_control()?;
        if let Err(reason) = Peer::GlooRing.find() {
            return Some(reason);
        }
        let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
        let available = std::fs::read_to_string(path).unwrap_or_default();
        let found = available.split_whitespace().any(|one| one == name);
        (!found).then(|| format!("the kernel has no {name}, only {}", available.trim()))
    }

    /// Whether a run's failure is a result: a rival's that is no wrong sum.
    pub fn may_fail(self, error: &anyhow::Error) -> bool {
        let text = format!("{error:#}");
        let is_wrong = text.contains("wrong sum") || text.contains("other results than");
        !self.is_tally() && !is_wrong
    }

    /// What it is, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Native => "Tally, f32",
            Self::Fixed => "Tally, fixed",
            Self::Switchml => "SwitchML's dialect",
            Self::GlooCubic => "Gloo, CUBIC",
            Self::GlooBbr => "Gloo, BBR",
        }
    }
}

/// The name of an option's value.
pub fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(self))
    }
}

/// A kind of loss other than of each frame with one probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// 64 frames in a row, one burst in 2,000 frames, at worker 0 each way
    Bursts,
    /// 1 % of the frames from the switch to workers
    Results,
    /// 1 % of the frames from workers to the switch
    Contributions,
    /// 3 % of the frames of worker 0, each way
    OneWorker,
    /// Worker 0 paused for 3 s in the middle
    Pause,
    /// Overflow of short queues at the shaped links
    Queue,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Bursts,
        Self::Results,
        Self::Contributions,
        Self::OneWorker,
        Self::Pause,
        Self::Queue,
    ];

    /// Whether a contender goes through it on that network.
    pub fn is_for(self, contender: Contender, network: Network) -> bool {
        contender.is_tally() && (self != Self::Queue || network == Network::Namespaces)
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Bursts => "bursts of 64 at one worker",
            Self::Results => "1 % of results only",
            Self::Contributions => "1 % of contributions only",
            Self::OneWorker => "3 % at one worker",
            Self::Pause => "one worker paused for 3 s",
            Self::Queue => "queue that overflows",
        }
    }

    /// The probability and the pattern of the agents' injectors.
    pub fn injected(self) -> (f64, LossPattern) {
        let counted = LossPattern {
            counted: true,
            ..LossPattern::default()
        };
        let only = Some(0);
        match self {
            Self::Bursts => (
                1.0 / 2000.0,
                LossPattern {
                    burst: 64,
                    only,
                    ..counted
                },
            ),
            Self::Results => (
                0.01,
                LossPattern {
                    direction: "in",
                    ..counted
                },
            ),
            Self::Contributions => (
                0.01,
                LossPattern {
                    direction: "out",
                    ..counted
                },
            ),
            Self::OneWorker => (0.03, LossPattern { only, ..counted }),
            Self::Pause | Self::Queue => (0.0, counted),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(self))
    }
}

/// What happens to frames in a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Case {
    /// Each is lost with one probability, on all links, each way.
    Rate {
        /// In percent; 0 loses none.
        percent: f64,
    },
    /// Something else.
    Pattern {
        /// Which.
        pattern: Pattern,
    },
}

impl Case {
    /// Whether it is what the others are compared with.
    pub fn is_lossless(self) -> bool {
        self == Self::Rate { percent: 0.0 }
    }

    /// Whether it is that pattern.
    pub fn is(self, other: Pattern) -> bool {
        matches!(self, Self::Pattern { pattern } if pattern == other)
    }

    /// What it is, for people.
    pub fn describe(self) -> String {
        match self {
            Self::Rate { percent } => format!("{percent} %"),
            Self::Pattern { pattern } => pattern.describe().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rival_may_fail_and_never_by_a_wrong_sum() {
        let stall = anyhow::anyhow!("no result for 30s").context("rank 1");
        let wrong = anyhow::anyhow!("element 7").context("rank 1: a wrong sum");
        for contender in Contender::ALL {
            assert_eq!(contender.may_fail(&stall), !contender.is_tally());
            assert!(!contender.may_fail(&wrong));
        }
    }
}
