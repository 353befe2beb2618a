//! What a caller chooses: an algorithm by name, seeds and limits.

use crate::model::Error;
use std::str::FromStr;
use std::time::Duration;

/// How a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// No switch sums. Routes and the split over parameter servers are the best ones.
    None,
    /// ATP: the switch of a worker sums a share of all its workers' gradients.
    Tor,
    /// ATP as InArt reads it: the switch of a worker sums some workers' whole gradients.
    TorWhole,
    /// SwitchML: one switch sums a job.
    Switchml,
    /// GRID: linear program, random rounding.
    RGria,
    /// InArt: linear program, random rounding.
    RInart,
    /// The optimum of GRID's model.
    GridExact,
    /// The optimum of InArt's model, by branch and bound.
    InartExact,
    /// Trees of any depth, mixed by column generation.
    Tally,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Tor,
        Self::TorWhole,
        Self::Switchml,
        Self::RGria,
        Self::RInart,
        Self::GridExact,
        Self::InartExact,
        Self::Tally,
    ];

    /// The name by which a user chooses it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Tor => "tor",
            Self::TorWhole => "tor-whole",
            Self::Switchml => "switchml",
            Self::RGria => "r-gria",
            Self::RInart => "r-inart",
            Self::GridExact => "grid-exact",
            Self::InartExact => "inart-exact",
            Self::Tally => "tally",
        }
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name);
        known.ok_or_else(|| Error::Algorithm(name.to_owned()))
    }
}

/// Which trees a plan of `tally` may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// All trees, of any depth and over any links.
    #[default]
    Any,
    /// One tree for each job, as Tally's switches can make it ([`rules`](crate::rules)).
    Fabric,
}

/// Limits and seeds.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Random seed of rounding.
    pub seed: u64,
    /// Draws of rounding, of which the best is taken.
    pub draws: usize,
    /// Time that branch and bound may take for each job.
    pub time_limit: Duration,
    /// Rounds of pricing.
    pub rounds: usize,
    /// Largest number of trees of a job in a plan of `tally`, if its shape allows several.
    pub trees: usize,
    /// Which trees a plan of `tally` may have.
    pub shape: Shape,
}

impl Default for Options {
    fn default() -> Self {
        let time_limit = Duration::from_secs(10);
        Self {
            seed: 1,
            draws: 16,
            time_limit,
            rounds: 200,
            trees: usize::MAX,
            shape: Shape::Any,
        }
    }
}
