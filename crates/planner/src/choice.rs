//! Algorithms that choose one of a few trees for a job: SwitchML's one switch, and whole gradients
//! at the worker's own switch.
//!
//! Jobs choose one after the other, each the best for the lowest rate per weight of all jobs that
//! have chosen.

use crate::master::{Candidate, usage};
use crate::model::{Node, Problem};
use crate::network::{Network, ROUTES, Routes};
use crate::price::Tor;
use crate::trees::Builder;

/// What jobs that have chosen load, per unit of rate per weight.
pub struct Chooser<'a> {
    problem: &'a Problem,
    network: &'a Network,
    load: Vec<f64>,
}

impl<'a> Chooser<'a> {
    /// No job has chosen.
    pub fn new(problem: &'a Problem, network: &'a Network) -> Self {
        Self {
            problem,
            network,
            load: vec![0.0; network.free.len()],
        }
    }

    fn loads(&self, candidate: &Candidate) -> Vec<(usize, f64)> {
        let weight = self.problem.jobs[candidate.job].weight;
        let parts = candidate.parts.iter().flat_map(|(tree, part)| {
            let loads = usage(self.problem, self.network, candidate.job, tree);
            loads
                .into_iter()
                .map(move |(resource, load)| (resource, load * part * weight))
        });
        let mut sums = std::collections::BTreeMap::new();
        for (resource, load) in parts {
            *sums.entry(resource).or_insert(0.0) += load;
        }
        sums.into_iter().collect()
    }

    /// The level that all jobs reach on the resources that a candidate loads.
    pub fn level(&self, candidate: &Candidate) -> f64 {
        let loads = self.loads(candidate).into_iter();
        let levels = loads.map(|(at, load)| self.network.free[at] / (self.load[at] + load));
        levels.fold(f64::INFINITY, f64::min)
    }

    /// Takes the best candidate of a job; the first of equal ones.
    pub fn choose(&mut self, candidates: Vec<Candidate>) -> Option<Candidate> {
        let mut best: Option<(f64, Candidate)> = None;
        for candidate in candidates {
            let level = self.level(&candidate);
            if best
                .as_ref()
                .is_none_or(|(least, _)| level > *least * (1.0 + 1e-9))
            {
                best = Some((level, candidate));
            }
        }
        let (_, candidate) = best?;
        for (resource, load) in self.loads(&candidate) {
            self.load[resource] += load;
        }
        Some(candidate)
    }
}

/// One switch for each job, and one parameter server.
pub fn switchml(problem: &Problem, network: &Network) -> Vec<Candidate> {
    let builder = Builder { problem, network };
    let routes = Routes::new(network, ROUTES);
    let mut chooser = Chooser::new(problem, network);
    let mut chosen = Vec::new();
    for job in 0..problem.jobs.len() {
        let mut candidates = Vec::new();
        for switch in (0..network.switches).filter(|&at| network.free[network.capacity(at)] > 0.0) {
            let workers = problem.jobs[job].workers.iter();
            let workers: Vec<_> = workers
                .map(|&worker| (worker, Node::Switch(switch)))
                .collect();
            for server in 0..problem.topology.servers.len() {
                let tree = builder.flat(&routes, server, &workers);
                candidates.extend(tree.map(|tree| Candidate::of(job, tree)));
            }
        }
        chosen.extend(chooser.choose(candidates));
    }
    chosen
}

/// Each switch sums its own workers' gradients up to its capacity at the best common rate; all
/// parameter servers get equal parts.
pub fn tor_whole(problem: &Problem, network: &Network) -> Vec<Candidate> {
    let tor = Tor::new(problem, network);
    let mut chooser = Chooser::new(problem, network);
    let mut chosen = Vec::new();
    let servers = problem.topology.servers.len();
    for job in 0..problem.jobs.len() {
        let builder = Builder { problem, network };
        let capacity =
            |switch: usize| network.free[network.capacity(switch)] / builder.cost(job, switch);
        let groups = builder.groups(job);
        let mut rates: Vec<f64> = groups
            .iter()
            .flat_map(|(switch, group)| {
                (1..=group.len()).map(|count| capacity(*switch) / count as f64)
            })
            .filter(|rate| *rate > 0.0)
            .collect();
        rates.push(f64::INFINITY);
        rates.sort_unstable_by(f64::total_cmp);
        rates.dedup();
        let mut candidates = Vec::new();
        for rate in rates {
            let summed = |switch: usize, count: usize| {
                ((capacity(switch) / rate + 1e-9).floor() as usize).min(count)
            };
            let trees = (0..servers).map(|server| tor.tree(job, server, summed));
            if let Some(trees) = trees.collect::<Option<Vec<_>>>() {
                let part = 1.0 / servers as f64;
                let parts = trees.into_iter().map(|tree| (tree, part)).collect();
                candidates.push(Candidate { job, parts });
            }
        }
        chosen.extend(chooser.choose(candidates));
    }
    chosen
}
