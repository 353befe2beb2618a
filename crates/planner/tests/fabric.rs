//! Plans for switches: rules, optima against brute force, and what they cost.

#![allow(clippy::unwrap_used)]

use std::time::Instant;
use tally_planner::check::check;
use tally_planner::{
    Algorithm, Options, Plan, Problem, Shape, generate, plan, replan, replan_holding, rules,
};

fn options(shape: Shape) -> Options {
    Options {
        trees: 1,
        shape,
        ..Options::default()
    }
}

#[track_caller]
fn for_switches(problem: &Problem) -> Plan {
    let plan = plan(problem, Algorithm::Tally, &options(Shape::Fabric)).unwrap();
    check(problem, &plan).unwrap();
    rules::check(problem, &plan).unwrap();
    plan
}

/// The lowest rate per weight of the jobs that have one.
fn level(problem: &Problem, plan: &Plan) -> f64 {
    let jobs = plan.jobs.iter().zip(&problem.jobs);
    let rates = jobs.map(|(planned, job)| planned.rate / job.weight);
    rates
        .filter(|rate| *rate > 0.0)
        .fold(f64::INFINITY, f64::min)
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

/// What the rules cost, beside one tree of any shape for each job, and beside mixtures of trees.
#[test]
fn what_the_rules_cost() {
    for tiers in [2, 3] {
        let (mut ratios, mut gaps, mut broken) = (Vec::new(), Vec::new(), 0);
        let (mut waiting, mut only) = (0, 0);
        for seed in 0..100 {
            let problem = generate::fabric(seed, tiers);
            let ours = for_switches(&problem);
            let any = plan(&problem, Algorithm::Tally, &options(Shape::Any)).unwrap();
            broken += usize::from(rules::check(&problem, &any).is_err());
            waiting += ours.jobs.iter().filter(|it| it.rate == 0.0).count();
            let mut jobs = ours.jobs.iter().zip(&any.jobs);
            if jobs.any(|(ours, any)| ours.rate == 0.0 && any.rate > 0.0) {
                only += 1;
                continue;
            }
            if any.jobs.iter().all(|it| it.rate > 0.0) {
                let bound = ours.bound.unwrap();
                gaps.push(level(&problem, &ours) / bound);
            }
            if any.jobs.iter().any(|it| it.rate > 0.0) {
                ratios.push(level(&problem, &ours) / level(&problem, &any));
            }
        }
        ratios.sort_by(f64::total_cmp);
        gaps.sort_by(f64::total_cmp);
        println!(
            "{tiers} tiers: {broken} of 100 plans of any shape break a rule; {waiting} jobs wait, in {only} \
             fleets only by the rules; level to that of any shape: median {:.4}, tenth {:.4}, \
             lowest {:.4}; to the bound: median {:.4}, tenth {:.4}, lowest {:.4}",
            quantile(&ratios, 0.5),
            quantile(&ratios, 0.1),
            ratios[0],
            quantile(&gaps, 0.5),
            quantile(&gaps, 0.1),
            gaps[0],
        );
    }
}

#[test]
fn time() {
    for seed in 1..4 {
        let problem = generate::fleet(seed);
        for shape in [Shape::Any, Shape::Fabric] {
            let start = Instant::now();
            let plan = plan(&problem, Algorithm::Tally, &options(shape)).unwrap();
            println!(
                "{shape:?} {:?} level {} bound {:?} cut {}",
                start.elapsed(),
                level(&problem, &plan),
                plan.bound,
                plan.cut_off
            );
        }
    }
}
