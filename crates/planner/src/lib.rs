//! Which switch sums whose gradients, over which links, at which parameter server.
//!
//! [`plan`] answers a [`Problem`] with a [`Plan`]: for each job, and each share of its gradients,
//! the parameter server, the tree of switches that sum, the routes, the rate that it predicts, and
//! the constraint that binds. Algorithms are chosen by name ([`Algorithm`]).
//! [`check`](check::check) is the judge of all of them.
//!
//! How it works: an algorithm proposes trees, alone or in fixed proportions; one linear program
//! (`master.rs`) finds the weighted max-min fair rates over the trees proposed. `tally` proposes
//! trees by the prices of that program until none improves (`price.rs`).
//!
//! Without I/O. Randomness is a seed; the time limit of `inart-exact` is the only clock, in its
//! solver. Definitions and formulas: docs/PLANNING.md.

pub mod check;
mod choice;
mod exact;
pub mod examples;
mod fabric;
mod fewer;
pub mod generate;
mod grid;
mod inart;
mod market;
mod master;
mod model;
mod network;
mod options;
mod plan;
mod price;
pub mod random;
pub mod rules;
mod simplex;
mod tally;
mod trees;
mod upward;

pub use model::{Element, Error, Host, Job, Link, Node, Problem, Resource, Switch, Topology};
pub use options::{Algorithm, Options, Shape};
pub use plan::{JobPlan, Plan, Share, Stream, Tree};
pub use random::Random;
pub use tally::{Replanned, replan, replan_holding};

use master::{Fixed, Master, Pricer};
use network::Network;
use price::{Raw, Tor};

/// Plans all jobs of a problem.
///
/// # Errors
///
/// The problem is not valid, or a solver failed.
pub fn plan(problem: &Problem, algorithm: Algorithm, options: &Options) -> Result<Plan, Error> {
    problem.validate()?;
    let network = Network::new(problem);
    let name = algorithm.name();
    let mut plan = match algorithm {
        Algorithm::None => priced(problem, &network, Raw(problem, &network), name, options),
        Algorithm::Tor => priced(
            problem,
            &network,
            Tor::new(problem, &network),
            name,
            options,
        ),
        Algorithm::TorWhole => fixed(
            problem,
            &network,
            choice::tor_whole(problem, &network),
            name,
        ),
        Algorithm::Switchml => fixed(problem, &network, choice::switchml(problem, &network), name),
        Algorithm::RGria => {
            let candidates = grid::rounded(problem, &network, options.seed, options.draws);
            fixed(problem, &network, candidates, name)
        }
        Algorithm::GridExact => fixed(problem, &network, grid::exact(problem, &network), name),
        Algorithm::RInart => {
            let (candidates, bound) = inart::rounded(problem, &network, options)?;
            let mut plan = fixed(problem, &network, candidates, name);
            plan.bound = bound.is_finite().then_some(bound);
            plan
        }
        Algorithm::InartExact => {
            let (candidates, bound, cut_off) = inart::exact(problem, &network, options)?;
            let mut plan = fixed(problem, &network, candidates, name);
            (plan.bound, plan.cut_off) = (bound, cut_off);
            plan
        }
        Algorithm::Tally => tally::plan(problem, &network, options),
    };
    // Without prices the program knows its own candidates only.
    let has_bound = [
        Algorithm::None,
        Algorithm::Tally,
        Algorithm::RInart,
        Algorithm::InartExact,
    ];
    if !has_bound.contains(&algorithm) {
        plan.bound = None;
    }
    Ok(plan)
}

/// The best mixture of the trees that a pricer knows.
fn priced(
    problem: &Problem,
    network: &Network,
    mut pricer: impl Pricer,
    name: &str,
    options: &Options,
) -> Plan {
    let mut master = Master::new(problem, network);
    let (candidates, _) = pricer.price(&master::Prices::none(problem, network));
    for candidate in candidates {
        master.add(candidate);
    }
    let is_proven = master.solve(&mut pricer, options.rounds);
    master.plan(name, is_proven)
}

/// The rates over given trees.
fn fixed(
    problem: &Problem,
    network: &Network,
    candidates: Vec<master::Candidate>,
    name: &str,
) -> Plan {
    let mut master = Master::new(problem, network);
    for candidate in candidates {
        master.add(candidate);
    }
    let is_proven = master.solve(&mut Fixed, 1);
    master.plan(name, is_proven)
}
