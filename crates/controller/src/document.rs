//! A plan as a file, by names: to review, to keep, and to plan the next change from.

use crate::fleet::Unit;
use crate::names;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tally_config::ConfigError;
use tally_planner::{JobPlan, Node, Plan, Problem, Resource, Share, Stream, Topology, Tree};

/// A plan for all jobs of a fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Counts the plans of a controller that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Name of the algorithm.
    pub algorithm: String,
    /// Unit of all rates.
    pub unit: Unit,
    /// The lowest rate per weight of all jobs that have a plan.
    pub level: f64,
    /// No plan of the algorithm's model has a higher level. `None` if unknown.
    pub bound: Option<f64>,
    /// Whether a limit of time or steps ended the search before its proof.
    pub cut_off: bool,
    /// Jobs, in the order of the fleet's file.
    pub jobs: Vec<PlannedJob>,
}

/// What is planned for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedJob {
    /// Its name.
    pub name: String,
    /// Rate at which each worker sends its gradients. 0 if it reaches no parameter server.
    pub rate: f64,
    /// Time of an all-reduce in seconds; `None` without a rate.
    pub seconds: Option<f64>,
    /// What keeps the rate from being higher, in words.
    pub binding: Option<String>,
    /// What one unit more of it adds to the rate of the slowest jobs, per weight.
    pub marginal: f64,
    /// Parts of its gradients, which add up to 1.
    pub shares: Vec<PlannedShare>,
}

/// A part of a job's gradients, and the tree that it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedShare {
    /// The part, of 1.
    pub fraction: f64,
    /// Name of the parameter server.
    pub server: String,
    /// One for each worker and for each switch that sums.
    pub streams: Vec<PlannedStream>,
}

/// A flow of gradients from a worker, or from a switch that has summed, to where they are summed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedStream {
    /// Name of its begin.
    pub from: String,
    /// Names of the switches that only forward it, in order.
    pub via: Vec<String>,
    /// Name of its end.
    pub to: String,
}

impl Document {
    /// Of a plan.
    #[must_use]
    pub fn of(problem: &Problem, plan: &Plan, unit: Unit) -> Self {
        let topology = &problem.topology;
        let jobs = plan.jobs.iter().zip(&problem.jobs).map(|(planned, job)| {
            let seconds = planned.seconds(job.bytes, unit.bits_per_second());
            PlannedJob {
                name: job.name.clone(),
                rate: planned.rate,
                seconds: seconds.is_finite().then_some(seconds),
                binding: planned.binding.map(|it| names::resource(topology, it)),
                marginal: planned.marginal,
                shares: planned
                    .shares
                    .iter()
                    .map(|it| share(topology, it))
                    .collect(),
            }
        });
        Self {
            version: None,
            algorithm: plan.algorithm.clone(),
            unit,
            level: level(problem, plan),
            bound: plan.bound,
            cut_off: plan.cut_off,
            jobs: jobs.collect(),
        }
    }

    /// Reads a plan that [`Document::of`] made, for a topology that has all that it names.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn load(path: &Path, topology: &Topology) -> Result<(Self, Plan), ConfigError> {
        let document: Self = tally_config::load(path)?;
        let reader = Reader { topology, path };
        let jobs = document.jobs.iter().enumerate();
        let jobs: Result<_, _> = jobs.map(|(at, job)| reader.job(at, job)).collect();
        let plan = document.plan(jobs?);
        Ok((document, plan))
    }

    /// The names of the jobs all of whose trees are of this topology, and the plan of these.
    #[must_use]
    pub fn known(&self, topology: &Topology) -> (Vec<String>, Plan) {
        // Only errors have the path.
        let path = Path::new("");
        let reader = Reader { topology, path };
        let jobs = self.jobs.iter().enumerate();
        let jobs = jobs.filter_map(|(at, job)| Some((job.name.clone(), reader.job(at, job).ok()?)));
        let (names, jobs) = jobs.unzip();
        (names, self.plan(jobs))
    }

    fn plan(&self, jobs: Vec<JobPlan>) -> Plan {
        Plan {
            algorithm: self.algorithm.clone(),
            jobs,
            bound: self.bound,
            cut_off: self.cut_off,
        }
    }
}

/// The lowest rate per weight of the jobs that have one.
#[must_use]
pub fn level(problem: &Problem, plan: &Plan) -> f64 {
    let jobs = plan.jobs.iter().zip(&problem.jobs);
    let rates = jobs.filter(|(planned, _)| planned.rate > 0.0);
    let level = rates.map(|(planned, job)| planned.rate / job.weight);
    let level = level.fold(f64::INFINITY, f64::min);
    if level.is_finite() { level } else { 0.0 }
}

fn share(topology: &Topology, share: &Share) -> PlannedShare {
    let name = |node| names::node(topology, node).to_owned();
    // Workers first, in the order of the fleet's file.
    let mut streams: Vec<_> = share.tree.streams.iter().collect();
    streams.sort_by_key(|stream| (stream.from, stream.to));
    let streams = streams.into_iter().map(|stream| {
        let ends = |&way: &Resource| names::ends(topology, way).map(|(_, end)| end);
        let between = stream.route.iter().filter_map(ends);
        PlannedStream {
            from: name(stream.from),
            via: between.filter(|end| *end != stream.to).map(name).collect(),
            to: name(stream.to),
        }
    });
    PlannedShare {
        fraction: share.fraction,
        server: name(Node::Server(share.tree.server)),
        streams: streams.collect(),
    }
}

struct Reader<'a> {
    topology: &'a Topology,
    path: &'a Path,
}

impl Reader<'_> {
    fn wrong(&self, key: String, found: &str, allowed: &str) -> ConfigError {
        ConfigError::value(self.path, key, format!("`{found}`"), allowed)
    }

    fn node(&self, key: String, name: &str) -> Result<Node, ConfigError> {
        let node = names::find(self.topology, name);
        node.ok_or_else(|| self.wrong(key, name, "a name in the fleet's file"))
    }

    fn job(&self, at: usize, job: &PlannedJob) -> Result<JobPlan, ConfigError> {
        let shares = job.shares.iter().enumerate();
        let shares = shares.map(|(nth, it)| self.share(&format!("jobs[{at}].shares[{nth}]"), it));
        Ok(JobPlan {
            rate: job.rate,
            // In words only, and no input of the next plan.
            binding: None,
            marginal: job.marginal,
            shares: shares.collect::<Result<_, _>>()?,
        })
    }

    fn share(&self, key: &str, share: &PlannedShare) -> Result<Share, ConfigError> {
        let server = self.node(format!("{key}.server"), &share.server)?;
        let Node::Server(server) = server else {
            let allowed = "the name of a parameter server";
            return Err(self.wrong(format!("{key}.server"), &share.server, allowed));
        };
        let streams = share.streams.iter().enumerate();
        let streams = streams.map(|(nth, it)| self.stream(&format!("{key}.streams[{nth}]"), it));
        let streams = streams.collect::<Result<_, _>>()?;
        Ok(Share {
            fraction: share.fraction,
            tree: Tree { server, streams },
        })
    }

    fn stream(&self, key: &str, stream: &PlannedStream) -> Result<Stream, ConfigError> {
        let from = self.node(format!("{key}.from"), &stream.from)?;
        let to = self.node(format!("{key}.to"), &stream.to)?;
        let mut route = Vec::new();
        let mut at = from;
        for (nth, name) in stream.via.iter().chain([&stream.to]).enumerate() {
            let next = self.node(format!("{key}.via[{nth}]"), name)?;
            let way = names::way(self.topology, at, next);
            let allowed = "a node with a cable to the one before it";
            route.push(way.ok_or_else(|| self.wrong(format!("{key}.via[{nth}]"), name, allowed))?);
            at = next;
        }
        Ok(Stream { from, to, route })
    }
}
