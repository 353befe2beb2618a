//! Random small problems: every plan is feasible, and no algorithm beats `tally`.

#![allow(clippy::unwrap_used)]

use std::time::Duration;
use tally_planner::check::check;
use tally_planner::{Algorithm, Options, generate, plan};

fn options() -> Options {
    Options {
        time_limit: Duration::from_millis(300),
        ..Options::default()
    }
}

#[test]
fn no_algorithm_beats_tally() {
    let mut gaps = Vec::new();
    for seed in 0..100 {
        let problem = generate::random(seed);
        let weights = || problem.jobs.iter().map(|job| job.weight);
        let mut rates = Vec::new();
        for algorithm in Algorithm::ALL {
            let plan = plan(&problem, algorithm, &options()).unwrap();
            check(&problem, &plan).unwrap_or_else(|fault| {
                panic!("seed {seed}, {}: {fault}", algorithm.name());
            });
            let rate = plan.rate(weights());
            if let (Algorithm::Tally, Some(bound)) = (algorithm, plan.bound) {
                gaps.push(bound / rate - 1.0);
            }
            rates.push((algorithm.name(), rate));
        }
        let tally = rates.last().unwrap().1;
        for (name, rate) in &rates {
            assert!(
                tally >= rate * (1.0 - 1e-6),
                "seed {seed}: {name} {rate} is above tally {tally}"
            );
        }
    }
    gaps.sort_by(f64::total_cmp);
    println!(
        "gap: median {}, highest {}",
        gaps[gaps.len() / 2],
        gaps[gaps.len() - 1]
    );
    assert!(gaps[gaps.len() - 1] < 0.05, "{gaps:?}");
}
