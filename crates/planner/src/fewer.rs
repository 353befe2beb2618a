//! A plan with a limited number of trees for each job.
//!
//! Each job gets equal parts, one for each tree. Part after part leaves its tree and takes the
//! cheapest one at prices that grow exponentially with the load of the others. After a few sweeps
//! the rates over the trees found are computed anew. The best plan of all sweeps is taken, that
//! with the largest shares' trees of the unlimited plan among them.

use crate::master::{Candidate, Fixed, Master, Pricer, Prices, usage};
use crate::model::Problem;
use crate::network::Network;
use crate::plan::{Plan, Tree};
use crate::price::Trees;

/// Sweeps over all parts of all jobs.
const SWEEPS: usize = 4;
/// How steep prices are: a resource of full load costs e to this times an idle one.
const STEEP: f64 = 12.0;

/// A part of a job and its tree.
struct Part {
    job: usize,
    tree: Tree,
    /// Load of the part, by resource.
    usage: Vec<(usize, f64)>,
}

/// What is on the resources, and prices by it.
struct Loads<'a> {
    network: &'a Network,
    of: Vec<f64>,
}

impl Loads<'_> {
    fn add(&mut self, usage: &[(usize, f64)], times: f64) {
        for &(resource, load) in usage {
            self.of[resource] += load * times;
        }
    }

    fn prices(&self) -> Vec<f64> {
        let free = &self.network.free;
        let parts = self.of.iter().zip(free);
        let parts: Vec<_> = parts
            .map(|(load, free)| if *free > 0.0 { load / free } else { 0.0 })
            .collect();
        let highest = parts.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let prices = parts.iter().zip(free).map(|(part, free)| {
            let price = (STEEP * (part / highest - 1.0)).exp() / free;
            if price.is_finite() { price } else { 0.0 }
        });
        prices.collect()
    }
}

fn rated(problem: &Problem, network: &Network, parts: &[Part], before: &Plan) -> Plan {
    let mut master = Master::new(problem, network);
    for part in parts {
        master.add(Candidate::of(part.job, part.tree.clone()));
    }
    master.solve(&mut Fixed, 1);
    let mut plan = master.plan(&before.algorithm, !before.cut_off);
    plan.bound = before.bound;
    plan
}

/// A plan with at most `trees` trees for each job, from one with more. Only `jobs` are rerouted.
pub fn plan(
    problem: &Problem,
    network: &Network,
    before: &Plan,
    jobs: &[usize],
    trees: usize,
) -> Plan {
    let weights = || problem.jobs.iter().map(|job| job.weight);
    let mut loads = Loads {
        network,
        of: vec![0.0; network.free.len()],
    };
    let mut parts = Vec::new();
    for (job, planned) in before
        .jobs
        .iter()
        .enumerate()
        .filter(|(_, job)| job.rate > 0.0)
    {
        let mut shares: Vec<_> = planned.shares.iter().collect();
        shares.sort_by(|a, b| b.fraction.total_cmp(&a.fraction));
        for share in shares.iter().cycle().take(trees) {
            let of_part = planned.rate / trees as f64;
            let usage = usage(problem, network, job, &share.tree).into_iter();
            let usage: Vec<_> = usage.map(|(at, load)| (at, load * of_part)).collect();
            loads.add(&usage, 1.0);
            parts.push(Part {
                job,
                tree: share.tree.clone(),
                usage,
            });
        }
    }
    let mut best = rated(problem, network, &parts, before);
    let mut pricers: Vec<_> = (0..problem.jobs.len())
        .map(|job| Trees::new(problem, network, vec![job]))
        .collect();
    for _ in 0..SWEEPS {
        for part in parts.iter_mut().filter(|it| jobs.contains(&it.job)) {
            loads.add(&part.usage, -1.0);
            let prices = Prices {
                of: loads.prices(),
                worth: vec![0.0; problem.jobs.len()],
            };
            let (candidates, _) = pricers[part.job].price(&prices);
            let price = |usage: &[(usize, f64)]| -> f64 {
                usage.iter().map(|&(at, load)| prices.of[at] * load).sum()
            };
            let of_part = before.jobs[part.job].rate / trees as f64;
            let mut least = price(&part.usage);
            for (tree, _) in candidates.into_iter().flat_map(|candidate| candidate.parts) {
                let usage = usage(problem, network, part.job, &tree).into_iter();
                let usage: Vec<_> = usage.map(|(at, load)| (at, load * of_part)).collect();
                let found = price(&usage);
                if found < least {
                    least = found;
                    (part.tree, part.usage) = (tree, usage);
                }
            }
            loads.add(&part.usage, 1.0);
        }
        let plan = rated(problem, network, &parts, before);
        if plan.rate(weights()) > best.rate(weights()) {
            best = plan;
        }
    }
    best
}
