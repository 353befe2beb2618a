//! The worked examples of GRID and InArt, with their assignments.

#![allow(clippy::unwrap_used)]

use std::time::Duration;
use tally_planner::check::check;
use tally_planner::{Algorithm, Node, Options, Plan, Problem, examples, plan};

fn planned(problem: &Problem, name: &str) -> (Plan, f64) {
    let algorithm: Algorithm = name.parse().unwrap();
    // Without optimisation, and beside other programs, a proof takes its time.
    let options = Options {
        time_limit: Duration::from_secs(300),
        ..Options::default()
    };
    let plan = plan(problem, algorithm, &options).unwrap();
    check(problem, &plan).unwrap();
    let rate = plan.rate([1.0]);
    (plan, rate)
}

fn assert_rate(problem: &Problem, name: &str, expected: f64) -> Plan {
    let (plan, rate) = planned(problem, name);
    assert!(
        (rate - expected).abs() < 1e-6,
        "{name}: {rate}, not {expected}"
    );
    plan
}

#[test]
fn grid_figure_1() {
    let problem = examples::grid_fig1();
    assert_rate(&problem, "none", 1.0);
    assert_rate(&problem, "tor", 2.4375);
    let plan = assert_rate(&problem, "grid-exact", 3.0);
    // Each switch sums three gradients but the last, which has two: W4 goes to S2.
    let tree = &plan.jobs[0].shares[0].tree;
    let at = |worker| {
        tree.streams
            .iter()
            .find(|s| s.from == Node::Host(worker))
            .unwrap()
            .to
    };
    let receivers: Vec<_> = (0..8).map(at).collect();
    let expected = [0, 0, 0, 1, 1, 1, 2, 2].map(Node::Switch);
    assert_eq!(receivers, expected);
    let (plan, rate) = planned(&problem, "tally");
    assert!(rate >= 3.0, "{rate}");
    assert!(plan.bound.unwrap() / rate < 1.0001, "{:?}", plan.bound);
}

#[test]
fn inart_figure_1() {
    let problem = examples::inart_fig1();
    assert_rate(&problem, "none", 4.0 / 3.0);
    assert_rate(&problem, "tor-whole", 2.0);
    assert_rate(&problem, "tor", 2.5);
    let plan = assert_rate(&problem, "inart-exact", 8.0 / 3.0);
    assert!((plan.bound.unwrap() - 8.0 / 3.0).abs() < 1e-6);
    let servers: Vec<_> = plan.jobs[0]
        .shares
        .iter()
        .map(|share| share.tree.server)
        .collect();
    assert_eq!(servers, [0, 1]);
    let (plan, rate) = planned(&problem, "tally");
    assert!(rate >= 8.0 / 3.0 - 1e-6, "{rate}");
    assert!(plan.bound.unwrap() / rate < 1.0001, "{:?}", plan.bound);
}

#[test]
fn every_algorithm_plans_both() {
    for problem in [examples::grid_fig1(), examples::inart_fig1()] {
        for algorithm in Algorithm::ALL {
            let (plan, rate) = planned(&problem, algorithm.name());
            println!(
                "{} {rate} {:?} {}",
                algorithm.name(),
                plan.bound,
                plan.jobs[0].shares.len()
            );
            assert!(rate > 0.5, "{}", algorithm.name());
            assert!(plan.jobs[0].binding.is_some(), "{}", algorithm.name());
        }
    }
}
