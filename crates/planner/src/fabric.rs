//! A plan with one tree for each job, as Tally's switches can make it ([`rules`](crate::rules)).
//!
//! First the best mixture of such trees, by prices: its level bounds that of the plan. Then each
//! job takes one tree. Job after job takes that with which the fullest resource on its own ways is
//! as empty as it can be, and of equal ones that over the emptiest resources, until no job has a
//! better one. This never lowers the level. The search begins with the largest shares of the
//! mixture, and again with no tree; the better plan is taken.
//!
//! One job alone gets the best tree of all if each root has one (`upward.rs`). All else is a
//! heuristic, and the bound says how far from the best plan it may be.

use crate::market::Market;
use crate::master::{Candidate, Fixed, Master, Pricer, Prices, usage};
use crate::model::{Node, Problem};
use crate::network::Network;
use crate::options::{Algorithm, Options};
use crate::plan::{Plan, Tree};
use crate::trees::Builder;
use crate::upward::{Upward, ups};

/// Sweeps over all jobs.
const SWEEPS: usize = 16;
/// Least gain of a level, of 1, for which a job takes another tree.
const GAIN: f64 = 1e-6;
/// Least gain of a price, of 1, for which a job takes another tree of the same level.
const CHEAPER: f64 = 1e-3;
/// How steep prices are in the search for trees: the power of a resource's load.
const STEEP: i32 = 8;

/// Trees that switches can make.
struct Fabric<'a> {
    problem: &'a Problem,
    network: &'a Network,
    /// Whose trees are sought.
    jobs: Vec<Upward<'a>>,
    /// Indices of these jobs.
    of: Vec<usize>,
}

impl<'a> Fabric<'a> {
    fn new(problem: &'a Problem, network: &'a Network, jobs: &[usize]) -> Self {
        let ups = ups(problem, network);
        let upward = |&job: &usize| Upward::new(problem, network, job, &ups);
        Self {
            problem,
            network,
            jobs: jobs.iter().map(upward).collect(),
            of: jobs.to_vec(),
        }
    }

    /// Prices with routes to the parameter servers.
    fn market(&self, prices: &[f64]) -> Market<'a> {
        let (problem, network) = (self.problem, self.network);
        let builder = Builder { problem, network };
        let servers = 0..problem.topology.servers.len();
        let mut ends: Vec<_> = servers
            .map(|at| builder.switch_of(Node::Server(at)))
            .collect();
        ends.sort_unstable();
        ends.dedup();
        Market::toward(problem, network, prices, ends.into_iter())
    }
}

impl Pricer for Fabric<'_> {
    fn price(&mut self, prices: &Prices) -> (Vec<Candidate>, Vec<f64>) {
        let market = self.market(&prices.of);
        let of = |resource: usize, load: f64| {
            let is_arc = resource < self.network.arcs;
            // Prices of arcs are by way, so a way back has none left.
            let price = if is_arc {
                prices.of[resource]
            } else {
                market.switches[resource - self.network.arcs]
            };
            price * load
        };
        let servers = self.problem.topology.servers.len();
        let mut candidates = Vec::new();
        let mut floors = vec![0.0; self.problem.jobs.len()];
        for (upward, &job) in self.jobs.iter_mut().zip(&self.of) {
            let mut floor = f64::INFINITY;
            let mut best: Vec<Option<(f64, usize, _)>> = (0..servers).map(|_| None).collect();
            for root in 0..upward.roots.len() {
                let branches = upward.improve(root, &of);
                let price = branches.as_ref().map(|it| {
                    let loads = upward.loads(it).into_iter();
                    loads.map(|(at, load)| of(at, load)).sum::<f64>()
                });
                let least = match price {
                    Some(price) if upward.is_unique(root) => price,
                    _ => upward.floor(root, &market),
                };
                for (server, best) in best.iter_mut().enumerate() {
                    let out = upward.out(root, server, &market);
                    floor = floor.min(least + out);
                    let (Some(price), Some(branches)) = (price, &branches) else {
                        continue;
                    };
                    let price = price + out;
                    if price < best.as_ref().map_or(f64::INFINITY, |it| it.0) {
                        *best = Some((price, root, branches.clone()));
                    }
                }
            }
            for (server, best) in best.into_iter().enumerate() {
                let tree = best.and_then(|it| upward.tree(it.1, &it.2, server, &market));
                candidates.extend(tree.map(|tree| Candidate::of(job, tree)));
            }
            floors[job] = (floor - market.ties(job)).max(0.0) + market.fixed(job);
        }
        (candidates, floors)
    }
}

/// One tree of each job.
struct Choice<'a> {
    problem: &'a Problem,
    network: &'a Network,
    trees: Vec<Option<Tree>>,
    /// Load of all trees at the level 1, by resource.
    load: Vec<f64>,
}

impl Choice<'_> {
    /// What a job's tree loads at the level 1.
    fn loads(&self, job: usize, tree: &Tree) -> Vec<(usize, f64)> {
        let weight = self.problem.jobs[job].weight;
        let usage = usage(self.problem, self.network, job, tree).into_iter();
        usage.map(|(at, load)| (at, load * weight)).collect()
    }

    /// The level that the fullest resource of these allows.
    fn level(&self, loads: &[(usize, f64)]) -> f64 {
        let levels = loads.iter();
        let levels = levels.map(|&(at, load)| self.network.free[at] / (self.load[at] + load));
        levels.fold(f64::INFINITY, f64::min)
    }

    /// Takes a job's tree away, or puts it there.
    fn add(&mut self, job: usize, tree: Option<&Tree>, times: f64) {
        let loads = tree.map(|tree| self.loads(job, tree)).unwrap_or_default();
        for (at, load) in loads {
            self.load[at] = (self.load[at] + load * times).max(0.0);
        }
    }

    /// What loads more on a resource cost, which at the level given has loads from 0 to 1.
    fn price(&self, at: usize, more: f64, level: f64) -> f64 {
        let full = |load: f64| {
            let part = load / self.network.free[at] * level;
            part.min(1e9).powi(STEEP)
        };
        let price = full(self.load[at] + more) - full(self.load[at]);
        if price.is_finite() { price } else { 0.0 }
    }

    /// The level that a job's tree allows, and its price.
    fn worth(&self, job: usize, tree: &Tree, level: f64) -> (f64, f64) {
        let loads = self.loads(job, tree);
        let prices = loads.iter().map(|&(at, load)| self.price(at, load, level));
        (self.level(&loads), prices.sum())
    }

    /// Takes a better tree for a job, if there is one.
    fn improve(&mut self, fabric: &mut Fabric, nth: usize) -> bool {
        let job = fabric.of[nth];
        let now = self.trees[job].take();
        self.add(job, now.as_ref(), -1.0);
        let level = match &now {
            Some(tree) => self.level(&self.loads(job, tree)),
            None => 1.0,
        };
        let mut best = now.map(|tree| (self.worth(job, &tree, level), tree));
        let weight = self.problem.jobs[job].weight;
        let price = |at: usize, load: f64| self.price(at, load * weight, level);
        let prices: Vec<_> = (0..self.load.len()).map(|at| price(at, 1.0)).collect();
        let market = fabric.market(&prices);
        let mut is_better = false;
        let upward = &mut fabric.jobs[nth];
        for root in 0..upward.roots.len() {
            let Some(branches) = upward.improve(root, &price) else {
                continue;
            };
            for server in 0..self.problem.topology.servers.len() {
                let Some(tree) = upward.tree(root, &branches, server, &market) else {
                    continue;
                };
                let found = self.worth(job, &tree, level);
                let is_first = best.as_ref().is_none_or(|(best, _)| {
                    let is_equal = found.0 > best.0 * (1.0 - GAIN);
                    let is_cheaper = found.1 < best.1 * (1.0 - CHEAPER);
                    found.0 > best.0 * (1.0 + GAIN) || (is_equal && is_cheaper)
                });
                if is_first {
                    (best, is_better) = (Some((found, tree)), true);
                }
            }
        }
        let tree = best.map(|it| it.1);
        self.add(job, tree.as_ref(), 1.0);
        self.trees[job] = tree;
        is_better
    }

    /// The rates over the trees.
    fn plan(&self, mixed: &Plan) -> Plan {
        let mut master = Master::new(self.problem, self.network);
        for (job, tree) in self.trees.iter().enumerate() {
            if let Some(tree) = tree {
                master.add(Candidate::of(job, tree.clone()));
            }
        }
        master.solve(&mut Fixed, 1);
        let mut plan = master.plan(&mixed.algorithm, !mixed.cut_off);
        plan.bound = mixed.bound;
        plan
    }
}

/// Rates per weight of the jobs, the lowest first.
fn levels(problem: &Problem, plan: &Plan) -> Vec<f64> {
    let jobs = plan.jobs.iter().zip(&problem.jobs);
    let mut levels: Vec<_> = jobs
        .map(|(planned, job)| planned.rate / job.weight)
        .collect();
    levels.sort_unstable_by(f64::total_cmp);
    levels
}

/// Whether the lowest levels that differ are higher in `a`.
fn is_better(problem: &Problem, a: &Plan, b: &Plan) -> bool {
    let (a, b) = (levels(problem, a), levels(problem, b));
    let mut pairs = a.into_iter().zip(b);
    let differing = pairs.find(|(a, b)| (a - b).abs() > GAIN * a.max(*b));
    differing.is_some_and(|(a, b)| a > b)
}

/// The plan in which `jobs` are free and others have the candidates given, of one tree each.
pub fn plan(
    problem: &Problem,
    network: &Network,
    options: &Options,
    jobs: &[usize],
    given: Vec<Candidate>,
) -> Plan {
    let mut fabric = Fabric::new(problem, network, jobs);
    let mut master = Master::new(problem, network);
    let (seeds, _) = fabric.price(&Prices::none(problem, network));
    for candidate in seeds.into_iter().chain(given) {
        master.add(candidate);
    }
    let is_proven = master.solve(&mut fabric, options.rounds);
    let mixed = master.plan(Algorithm::Tally.name(), is_proven);
    let largest = mixed.jobs.iter().map(|job| {
        let shares = job.shares.iter();
        let largest = shares.max_by(|a, b| a.fraction.total_cmp(&b.fraction));
        largest.map(|share| share.tree.clone())
    });
    let largest: Vec<_> = largest.collect();
    let mut none = largest.clone();
    jobs.iter().for_each(|&job| none[job] = None);
    let plans = [none, largest].into_iter().map(|trees| {
        let load = vec![0.0; network.free.len()];
        let mut choice = Choice {
            problem,
            network,
            trees,
            load,
        };
        for (job, tree) in choice.trees.clone().into_iter().enumerate() {
            choice.add(job, tree.as_ref(), 1.0);
        }
        for _ in 0..SWEEPS {
            let better = (0..jobs.len()).filter(|&nth| choice.improve(&mut fabric, nth));
            if better.count() == 0 {
                break;
            }
        }
        choice.plan(&mixed)
    });
    // A mixture of one tree each is the best plan, but for the order of equal ones.
    let is_single = mixed.jobs.iter().all(|job| job.shares.len() <= 1);
    let single = is_single.then(|| mixed.clone());
    let best = plans.fold(single, |best, plan| match best {
        Some(best) if is_better(problem, &best, &plan) => Some(best),
        _ => Some(plan),
    });
    best.unwrap_or(mixed)
}
