//! Tally's own plan: trees of any depth for all jobs at once, mixed by column generation.
//!
//! The first candidates are those of the simple algorithms; in large networks only GRID's and trees
//! of the workers' own switches. Then prices ask for better trees until none improves, or the bound
//! of the prices is reached. The plan's `bound` holds for all plans in the model: any trees, any
//! split, any routes.

use crate::master::{Candidate, Master, Pricer, Prices};
use crate::model::{Error, Node, Problem};
use crate::network::{Network, Paths};
use crate::options::{Algorithm, Options, Shape};
use crate::plan::{JobPlan, Plan};
use crate::price::{Raw, Tor, Trees};
use crate::rules;
use crate::trees::Builder;
use crate::{choice, fabric, fewer, grid};
use std::collections::BTreeSet;

/// Part of the best level that a plan with fewer changes must reach.
const ENOUGH: f64 = 0.95;

/// Number of switches up to which all simple algorithms give first candidates.
const SMALL: usize = 24;

/// First candidates of some jobs.
fn seeds(problem: &Problem, network: &Network, jobs: &[usize]) -> Vec<Candidate> {
    let builder = Builder { problem, network };
    let paths = Paths::hops(network);
    let tor = Tor::new(problem, network);
    let (mut candidates, _) = Raw(problem, network).price(&Prices::none(problem, network));
    for &job in jobs {
        let groups = builder.groups(job);
        let has_capacity = |switch: usize| network.free[network.capacity(switch)] > 0.0;
        for server in 0..problem.topology.servers.len() {
            let summed = |switch: usize, count: usize| if has_capacity(switch) { count } else { 0 };
            candidates.extend(
                tor.tree(job, server, summed)
                    .map(|tree| Candidate::of(job, tree)),
            );
            let top = builder.switch_of(Node::Server(server));
            if !has_capacity(top) {
                continue;
            }
            let mut workers = Vec::new();
            let mut parents = vec![(top, Node::Server(server))];
            for (switch, group) in &groups {
                let to = if has_capacity(*switch) { *switch } else { top };
                workers.extend(group.iter().map(|&worker| (worker, Node::Switch(to))));
                if to != top {
                    parents.push((to, Node::Switch(top)));
                }
            }
            let tree = builder.tree(&paths, server, &workers, &parents);
            candidates.extend(tree.map(|tree| Candidate::of(job, tree)));
        }
    }
    candidates.extend(grid::exact(problem, network));
    if network.switches <= SMALL {
        candidates.extend(choice::tor_whole(problem, network));
        candidates.extend(choice::switchml(problem, network));
    }
    candidates.retain(|candidate| jobs.contains(&candidate.job));
    candidates
}

/// The plan for a validated problem.
pub fn plan(problem: &Problem, network: &Network, options: &Options) -> Plan {
    let all: Vec<_> = (0..problem.jobs.len()).collect();
    solve(problem, network, options, &all, Vec::new())
}

/// The plan in which `jobs` are free and others have the candidates given.
fn solve(
    problem: &Problem,
    network: &Network,
    options: &Options,
    jobs: &[usize],
    given: Vec<Candidate>,
) -> Plan {
    if options.shape == Shape::Fabric {
        return fabric::plan(problem, network, options, jobs, given);
    }
    let mut master = Master::new(problem, network);
    let seeds = seeds(problem, network, jobs);
    for candidate in seeds.into_iter().chain(given) {
        master.add(candidate);
    }
    let mut pricer = Trees::new(problem, network, jobs.to_vec());
    let is_proven = master.solve(&mut pricer, options.rounds);
    let plan = master.plan(Algorithm::Tally.name(), is_proven);
    if plan
        .jobs
        .iter()
        .all(|job| job.shares.len() <= options.trees)
    {
        return plan;
    }
    fewer::plan(problem, network, &plan, jobs, options.trees.max(1))
}

/// A plan that follows another one.
#[derive(Clone, Debug)]
pub struct Replanned {
    /// The new plan.
    pub plan: Plan,
    /// Jobs whose trees or fractions are not those of the plan before, new jobs included.
    pub moved: Vec<usize>,
    /// Jobs that were held, and that a plan without this limit would move.
    pub held: Vec<usize>,
}

/// What a job did before, if all of it is possible still.
fn kept(
    problem: &Problem,
    network: &Network,
    shape: Shape,
    job: usize,
    before: &JobPlan,
) -> Option<Candidate> {
    let workers: BTreeSet<_> = problem.jobs[job].workers.iter().copied().collect();
    let topology = &problem.topology;
    let mut parts = Vec::new();
    for share in &before.shares {
        let mut hosts = BTreeSet::new();
        for stream in &share.tree.streams {
            match stream.from {
                Node::Host(host) => _ = hosts.insert(host),
                Node::Switch(_) | Node::Server(_) => {}
            }
            if matches!(stream.to, Node::Switch(at) if network.free[network.capacity(at)] <= 0.0) {
                return None;
            }
            if stream
                .route
                .iter()
                .any(|&way| network.free[network.index(way)] <= 0.0)
            {
                return None;
            }
        }
        if hosts != workers || share.tree.server >= topology.servers.len() {
            return None;
        }
        parts.push((share.tree.clone(), share.fraction));
    }
    if shape == Shape::Fabric && rules::check_job(problem, job, before).is_err() {
        return None;
    }
    (before.rate > 0.0 && !parts.is_empty()).then_some(Candidate { job, parts })
}

/// Plans again after a change, and moves as few jobs as it can.
///
/// `before` is the plan of the problem before; its jobs are `names`, in that order. Elements of the
/// topology keep their index: what is dead has rate and capacity 0. Jobs whose trees are possible
/// still keep them with their fractions, while the lowest rate per weight is at least 0.95 of that
/// of a plan from scratch; otherwise the plan is from scratch.
///
/// # Errors
///
/// The problem is not valid.
pub fn replan(
    problem: &Problem,
    before: &Plan,
    names: &[String],
    options: &Options,
) -> Result<Replanned, Error> {
    replan_holding(problem, before, names, &[], options)
}

/// As [`replan`]. Jobs of `held` keep trees that are possible still, also if others lose by it.
///
/// # Errors
///
/// The problem is not valid.
pub fn replan_holding(
    problem: &Problem,
    before: &Plan,
    names: &[String],
    held: &[usize],
    options: &Options,
) -> Result<Replanned, Error> {
    problem.validate()?;
    let network = Network::new(problem);
    let old = |job: usize| {
        let at = names
            .iter()
            .position(|name| *name == problem.jobs[job].name)?;
        before.jobs.get(at)
    };
    let mut given = Vec::new();
    let mut free = Vec::new();
    for job in 0..problem.jobs.len() {
        match old(job).and_then(|before| kept(problem, &network, options.shape, job, before)) {
            Some(candidate) => given.push(candidate),
            None => free.push(job),
        }
    }
    let fresh = plan(problem, &network, options);
    // The lowest rate per weight of the jobs that can have one.
    let level = |plan: &Plan| {
        let jobs = plan.jobs.iter().zip(&fresh.jobs).zip(&problem.jobs);
        let can = jobs.filter(|((_, fresh), _)| fresh.rate > 0.0);
        let rates = can.map(|((planned, _), job)| planned.rate / job.weight);
        rates.fold(f64::INFINITY, f64::min)
    };
    let holds = given.iter().filter(|it| held.contains(&it.job));
    let holds: Vec<_> = holds.cloned().collect();
    let mut best = solve(problem, &network, options, &free, given);
    let mut waiting = Vec::new();
    if level(&best) < level(&fresh) * ENOUGH {
        let would_move = |job: &usize| old(*job).is_some_and(|it| !same(&fresh.jobs[*job], it));
        waiting = holds.iter().map(|it| it.job).filter(would_move).collect();
        best = if waiting.is_empty() {
            fresh
        } else {
            let is_free = |job: &usize| holds.iter().all(|it| it.job != *job);
            let free: Vec<_> = (0..problem.jobs.len()).filter(is_free).collect();
            let mut best = solve(problem, &network, options, &free, holds);
            best.bound = fresh.bound;
            best
        };
    } else {
        best.bound = fresh.bound;
        best.cut_off = fresh.cut_off;
    }
    let is_moved = |job: &usize| {
        let (now, then) = (&best.jobs[*job], old(*job));
        then.is_none_or(|then| !same(now, then))
    };
    let moved = (0..problem.jobs.len()).filter(is_moved).collect();
    Ok(Replanned {
        plan: best,
        moved,
        held: waiting,
    })
}

/// Whether two plans of a job have the same trees in the same proportions.
fn same(a: &JobPlan, b: &JobPlan) -> bool {
    a.shares.len() == b.shares.len()
        && a.shares.iter().all(|share| {
            let other = b.shares.iter().find(|other| other.tree == share.tree);
            other.is_some_and(|other| (other.fraction - share.fraction).abs() < 1e-6)
        })
}
