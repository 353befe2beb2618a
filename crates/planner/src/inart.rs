//! InArt's model: gradients are split over parameter servers, and for each of them each worker's
//! part is summed at one switch or at the server.
//!
//! With `t = 1 / rate` the program is linear: minimise `t` so that the loads at rate 1 are at most
//! `t` times what is free. `x` is the part of a server, `y` the part of a worker's gradient that is
//! summed at a node for a server, `a` that of the stream that a switch sends on: `sum y = x`,
//! `a >= y`. Whole choices are `y <= z` with `z` 0 or 1. The equation printed in the paper counts a
//! link's term once a switch; here each stream loads each link of its route once.
//!
//! A stream's route is one shortest path, fixed by its ends. In networks with many switches only
//! those on shortest paths from the worker to the server sum.

use crate::choice::Chooser;
use crate::master::Candidate;
use crate::model::{Error, Node, Problem};
use crate::network::{Network, ROUTES, Routes};
use crate::options::Options;
use crate::plan::Stream;
use crate::random::Random;
use crate::trees::Builder;
use microlp::{ComparisonOp, OptimizationDirection, SolveOptions, SolveOutcome, Variable};
use std::collections::BTreeMap;

/// Number of switches up to which each may sum for each worker.
const ALL_SWITCHES: usize = 16;

/// A job with its routes.
struct Inart<'a> {
    builder: Builder<'a>,
    routes: &'a Routes,
    job: usize,
    scale: f64,
}

/// Workers that are decided alike.
struct Unit {
    workers: Vec<usize>,
}

/// A choice of a unit for a server.
struct Choice {
    unit: usize,
    server: usize,
    to: Node,
    part: Variable,
    whole: Option<Variable>,
}

/// A node that sums, the stream to it, and that of its sum.
type Receiver = (Node, Stream, Option<Stream>);

/// The program with its variables.
struct Program {
    lp: microlp::Problem,
    servers: Vec<Variable>,
    choices: Vec<Choice>,
}

impl<'a> Inart<'a> {
    fn new(problem: &'a Problem, network: &'a Network, routes: &'a Routes, job: usize) -> Self {
        Self {
            builder: Builder { problem, network },
            routes,
            job,
            scale: scale(problem),
        }
    }

    fn stream(&self, from: Node, to: Node) -> Option<Stream> {
        self.builder.routed(self.routes, from, to)
    }

    /// Where a worker's part for a server may be summed, with the stream to there, and the stream
    /// of a switch's sum to the server.
    fn receivers(&self, worker: usize, server: usize) -> Vec<Receiver> {
        let network = self.builder.network;
        let (host, root) = (Node::Host(worker), Node::Server(server));
        let (from, end) = (self.builder.switch_of(host), self.builder.switch_of(root));
        let direct = self.routes.hops(from, end);
        let is_near = |at: &usize| {
            let through = self.routes.hops(from, *at) + self.routes.hops(*at, end);
            let is_allowed = through <= direct || network.switches <= ALL_SWITCHES;
            is_allowed && network.free[network.capacity(*at)] > 0.0
        };
        let summed = (0..network.switches).filter(is_near).filter_map(|at| {
            let (to, up) = (Node::Switch(at), self.stream(Node::Switch(at), root)?);
            Some((to, self.stream(host, to)?, Some(up)))
        });
        let direct = self.stream(host, root).map(|stream| (root, stream, None));
        summed.chain(direct).collect()
    }

    /// The lowest rate of a worker's cable.
    fn cable(&self) -> f64 {
        let network = self.builder.network;
        let workers = self.builder.problem.jobs[self.job].workers.iter();
        let cables = workers.map(|&host| network.free[network.host_out(host)]);
        cables.fold(f64::INFINITY, f64::min)
    }

    fn program(&self, units: &[Unit], is_whole: bool) -> Program {
        let network = self.builder.network;
        let mut lp = microlp::Problem::new(OptimizationDirection::Minimize);
        let time = lp.add_var(1.0, (self.scale / self.cable(), f64::INFINITY));
        let mut loads = BTreeMap::<usize, Vec<(Variable, f64)>>::new();
        let results = self.builder.problem.results;
        let mut pass = |stream: &Stream, variable: Variable, times: f64| {
            for &way in &stream.route {
                let arc = network.index(way);
                loads.entry(arc).or_default().push((variable, times));
                if results {
                    loads.entry(arc ^ 1).or_default().push((variable, times));
                }
            }
        };
        let mut servers = Vec::new();
        let mut choices = Vec::new();
        let mut capacities = BTreeMap::<usize, Vec<(Variable, f64)>>::new();
        for server in 0..self.builder.problem.topology.servers.len() {
            let part = lp.add_var(0.0, (0.0, 1.0));
            servers.push(part);
            let mut sums = BTreeMap::<usize, Variable>::new();
            for (at, unit) in units.iter().enumerate() {
                let mut split = vec![(part, -1.0)];
                let mut wholes = Vec::new();
                for (to, stream, up) in self.receivers(unit.workers[0], server) {
                    let summed = lp.add_var(0.0, (0.0, 1.0));
                    // Each worker has its own cable, and the others' routes are alike.
                    let shared = Stream {
                        route: stream.route[1..].to_vec(),
                        ..stream
                    };
                    pass(&shared, summed, unit.workers.len() as f64);
                    if let (Node::Switch(switch), Some(up)) = (to, up) {
                        let sum = *sums.entry(switch).or_insert_with(|| {
                            let sum = lp.add_var(0.0, (0.0, 1.0));
                            pass(&up, sum, 1.0);
                            sum
                        });
                        lp.add_constraint([(sum, 1.0), (summed, -1.0)], ComparisonOp::Ge, 0.0);
                        let cost = self.builder.cost(self.job, switch) * unit.workers.len() as f64;
                        capacities.entry(switch).or_default().push((summed, cost));
                    }
                    split.push((summed, 1.0));
                    let whole = is_whole.then(|| lp.add_binary_var(0.0));
                    if let Some(whole) = whole {
                        lp.add_constraint([(whole, 1.0), (summed, -1.0)], ComparisonOp::Ge, 0.0);
                        wholes.push((whole, 1.0));
                    }
                    choices.push(Choice {
                        unit: at,
                        server,
                        to,
                        part: summed,
                        whole,
                    });
                }
                lp.add_constraint(split, ComparisonOp::Eq, 0.0);
                if is_whole {
                    lp.add_constraint(wholes, ComparisonOp::Eq, 1.0);
                }
            }
        }
        let all: Vec<_> = servers.iter().map(|&part| (part, 1.0)).collect();
        lp.add_constraint(all, ComparisonOp::Eq, 1.0);
        let capacities = capacities
            .into_iter()
            .map(|(at, terms)| (network.capacity(at), terms));
        for (resource, mut terms) in loads.into_iter().chain(capacities) {
            terms.push((time, -network.free[resource] / self.scale));
            lp.add_constraint(terms, ComparisonOp::Le, 0.0);
        }
        Program {
            lp,
            servers,
            choices,
        }
    }

    /// The candidate of one receiver for each worker and server.
    fn candidate(&self, parts: &[f64], placed: &[Vec<(usize, Node)>]) -> Option<Candidate> {
        let mut trees = Vec::new();
        let sum: f64 = parts.iter().filter(|part| **part > 1e-6).sum();
        for (server, (&part, workers)) in parts.iter().zip(placed).enumerate() {
            if part <= 1e-6 {
                continue;
            }
            let tree = self.builder.flat(self.routes, server, workers)?;
            trees.push((tree, part / sum));
        }
        Some(Candidate {
            job: self.job,
            parts: trees,
        })
    }
}

fn failed(algorithm: &'static str, error: &impl ToString) -> Error {
    Error::Solver {
        algorithm,
        reason: error.to_string(),
    }
}

fn scale(problem: &Problem) -> f64 {
    problem
        .topology
        .hosts
        .iter()
        .map(|host| host.rate)
        .fold(f64::MIN_POSITIVE, f64::max)
}

/// Candidates, and an upper bound of the lowest rate per weight of the model's plans.
type Bounded = (Vec<Candidate>, f64);

/// R-InArt: for each server each worker draws its receiver with the probabilities of the linear
/// program. The split over servers is the program's. The best of so many draws is taken.
pub fn rounded(problem: &Problem, network: &Network, options: &Options) -> Result<Bounded, Error> {
    let routes = Routes::new(network, ROUTES);
    let mut random = Random::new(options.seed);
    let mut chooser = Chooser::new(problem, network);
    let mut candidates = Vec::new();
    let mut bound = f64::INFINITY;
    for job in 0..problem.jobs.len() {
        let inart = Inart::new(problem, network, &routes, job);
        let units = inart.builder.groups(job).into_iter();
        let units: Vec<_> = units.map(|(_, workers)| Unit { workers }).collect();
        if inart.cable() <= 0.0 {
            continue;
        }
        let program = inart.program(&units, false);
        let solution = match program.lp.solve() {
            Ok(outcome) => outcome.into_solution(),
            Err(microlp::Error::Infeasible) => continue,
            Err(error) => return Err(failed("r-inart", &error)),
        };
        let Ok(solution) = solution else { continue };
        bound = bound.min(inart.scale / solution.objective() / problem.jobs[job].weight);
        let value = |variable| solution.var_value(variable).max(0.0);
        let parts: Vec<_> = program.servers.iter().map(|&part| value(part)).collect();
        // By server and unit: receivers, and their parts.
        let mut odds = vec![vec![Vec::new(); units.len()]; parts.len()];
        for choice in &program.choices {
            odds[choice.server][choice.unit].push((choice.to, value(choice.part)));
        }
        let drawn = (0..options.draws).filter_map(|_| {
            let placed = odds.iter().enumerate().map(|(server, odds)| {
                let workers = units.iter().zip(odds).flat_map(|(unit, odds)| {
                    unit.workers.iter().map(move |&worker| (worker, odds))
                });
                workers
                    .map(|(worker, odds)| (worker, draw(&mut random, odds, server)))
                    .collect()
            });
            let placed: Vec<_> = placed.collect();
            inart.candidate(&parts, &placed)
        });
        let drawn = drawn.collect();
        candidates.extend(chooser.choose(drawn));
    }
    Ok((candidates, bound))
}

/// One of some receivers, by their parts.
fn draw(random: &mut Random, odds: &[(Node, f64)], server: usize) -> Node {
    let sum: f64 = odds.iter().map(|of| of.1).sum();
    let mut mark = random.unit() * sum;
    let drawn = odds.iter().find(|of| {
        mark -= of.1;
        mark < 0.0
    });
    drawn.map_or(Node::Server(server), |of| of.0)
}

/// The optimum of the model, for each job on its own; with it an upper bound of the lowest rate per
/// weight if one job is alone, and whether a time limit came first.
#[allow(clippy::type_complexity)]
pub fn exact(
    problem: &Problem,
    network: &Network,
    options: &Options,
) -> Result<(Vec<Candidate>, Option<f64>, bool), Error> {
    let routes = Routes::new(network, 1);
    let mut candidates = Vec::new();
    let mut bound = f64::INFINITY;
    let mut is_cut_off = false;
    let mut fallback = None;
    for (job, of_job) in problem.jobs.iter().enumerate() {
        let inart = Inart::new(problem, network, &routes, job);
        let workers = of_job.workers.iter();
        let units: Vec<_> = workers
            .map(|&worker| Unit {
                workers: vec![worker],
            })
            .collect();
        if inart.cable() <= 0.0 {
            continue;
        }
        let program = inart.program(&units, true);
        let mut limits = SolveOptions::default();
        limits.time_limit = Some(options.time_limit);
        let solution = match program.lp.solve_with(limits) {
            Ok(SolveOutcome::Solution(solution)) => solution,
            Ok(SolveOutcome::Interrupted(_)) => {
                // No whole choice was found in time: the rounded one stands in, without a bound.
                if fallback.is_none() {
                    fallback = Some(rounded(problem, network, options)?.0);
                }
                let rounded = fallback.iter().flatten();
                candidates.extend(rounded.filter(|candidate| candidate.job == job).cloned());
                is_cut_off = true;
                continue;
            }
            Err(microlp::Error::Infeasible) => continue,
            Err(error) => return Err(failed("inart-exact", &error)),
        };
        is_cut_off |= solution.status() != microlp::SolutionStatus::Optimal;
        if let Some(least) = solution.stats().best_bound {
            bound = bound.min(inart.scale / least / of_job.weight);
        }
        let parts: Vec<_> = program
            .servers
            .iter()
            .map(|&part| solution.var_value(part))
            .collect();
        let mut placed = vec![Vec::new(); parts.len()];
        for choice in &program.choices {
            if choice
                .whole
                .is_some_and(|whole| solution.var_value(whole) > 0.5)
            {
                placed[choice.server].push((units[choice.unit].workers[0], choice.to));
            }
        }
        candidates.extend(inart.candidate(&parts, &placed));
    }
    let is_known = bound.is_finite() && fallback.is_none();
    Ok((candidates, is_known.then_some(bound), is_cut_off))
}
