//! The output: who sums what, on which routes, and at which rate.

use crate::model::{Node, Resource};
use crate::options::Algorithm;
use serde::{Deserialize, Serialize};

/// A flow of gradients from where they are made or summed to where they are summed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// A worker, or a switch that has summed.
    pub from: Node,
    /// A switch that sums, or the parameter server.
    pub to: Node,
    /// The resources that it passes, in order: ways of cables.
    pub route: Vec<Resource>,
}

/// How a share of a job's gradients becomes a sum: streams from all workers to one parameter
/// server. A switch to which streams go sums them and sends one on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Index of the parameter server.
    pub server: usize,
    /// One for each worker and for each switch that sums.
    pub streams: Vec<Stream>,
}

/// A part of a job's gradients, all of which take one tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The part, of 1.
    pub fraction: f64,
    /// Its tree.
    pub tree: Tree,
}

/// What is planned for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobPlan {
    /// The rate at which each worker sends its gradients, in the problem's unit. 0 if no parameter
    /// server is in reach of all workers.
    pub rate: f64,
    /// The constraint that keeps the rate from being higher.
    pub binding: Option<Resource>,
    /// What one unit more of it adds to the rate of the slowest jobs, per weight.
    pub marginal: f64,
    /// Where the gradients go. The fractions add up to 1.
    pub shares: Vec<Share>,
}

impl JobPlan {
    /// Seconds that an all-reduce of so many bytes takes, with rates in so many bit/s.
    #[must_use]
    pub fn seconds(&self, bytes: u64, unit: f64) -> f64 {
        bytes as f64 * 8.0 / (self.rate * unit)
    }
}

/// A plan for all jobs of a problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the algorithm.
    pub algorithm: String,
    /// By job.
    pub jobs: Vec<JobPlan>,
    /// No plan of the algorithm's model has a higher lowest rate per weight; `None` if unknown.
    pub bound: Option<f64>,
    /// Whether a limit of time or steps ended the search before its proof.
    pub cut_off: bool,
}

impl Plan {
    /// Of no job.
    #[must_use]
    pub fn none() -> Self {
        Self {
            algorithm: Algorithm::Tally.name().to_owned(),
            jobs: Vec::new(),
            bound: None,
            cut_off: false,
        }
    }

    /// The lowest rate per weight.
    #[must_use]
    pub fn rate(&self, weights: impl IntoIterator<Item = f64>) -> f64 {
        let rates = self.jobs.iter().zip(weights);
        rates
            .map(|(job, weight)| job.rate / weight)
            .fold(f64::INFINITY, f64::min)
    }
}
