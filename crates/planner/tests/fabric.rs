//! Plans for switches: rules with planted faults, optima against brute force, and what rules cost.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use tally_planner::check::{check, limit, loads};
use tally_planner::rules::{self, Broken, MEMBERS_MAX, WORKERS_MAX};
use tally_planner::{
    Algorithm, Host, Job, JobPlan, Link, Node, Options, Plan, Problem, Resource, Shape, Share,
    Stream, Switch, Topology, Tree, generate, plan, replan_holding,
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

/// The ends of a link's way.
fn ends(topology: &Topology, way: Resource) -> (usize, usize) {
    match way {
        Resource::Forward(at) => (topology.links[at].a, topology.links[at].b),
        Resource::Backward(at) => (topology.links[at].b, topology.links[at].a),
        way => panic!("{way:?} is no link"),
    }
}

/// Ways of links that are up.
fn ways(topology: &Topology) -> Vec<Resource> {
    let links = topology.links.iter().enumerate();
    let links = links.filter(|(_, link)| link.rate > 0.0);
    let ways = links.flat_map(|(at, _)| [Resource::Forward(at), Resource::Backward(at)]);
    ways.collect()
}

/// Longest way from a root to a parameter server that is tried.
const OUT: usize = 4;

/// All ways from a switch to another that pass none twice.
fn simple(topology: &Topology, from: usize, to: usize, passed: &[usize]) -> Vec<Vec<Resource>> {
    if from == to {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    let mut passed = passed.to_vec();
    passed.push(from);
    if passed.len() > OUT {
        return all;
    }
    for way in ways(topology) {
        let (begin, end) = ends(topology, way);
        if begin == from && !passed.contains(&end) {
            for rest in simple(topology, end, to, &passed) {
                all.push([vec![way], rest].concat());
            }
        }
    }
    all
}

/// All trees of a job: each switch that a stream reaches sends by one of its ways up, until streams
/// meet for the last time. Of the rules, only the direction is known here.
fn trees(problem: &Problem, job: usize) -> Vec<Tree> {
    let topology = &problem.topology;
    let tiers = topology.tiers();
    let mut at = vec![Vec::<Coming>::new(); tiers.len()];
    for &host in &problem.jobs[job].workers {
        let coming = (Node::Host(host), vec![Resource::HostOut(host)]);
        at[topology.hosts[host].switch].push(coming);
    }
    let mut order: Vec<_> = (0..tiers.len()).collect();
    order.sort_by_key(|&switch| tiers[switch]);
    let mut shapes = Vec::new();
    climb(topology, &order, &tiers, at, Vec::new(), &mut shapes);
    let mut all = Vec::new();
    for (root, (from, begin), streams) in shapes {
        for (server, device) in topology.servers.iter().enumerate() {
            if device.rate == 0.0 {
                continue;
            }
            for way in simple(topology, root, device.switch, &[]) {
                let mut streams = streams.clone();
                streams.push(Stream {
                    from,
                    to: Node::Server(server),
                    route: [begin.clone(), way, vec![Resource::ServerIn(server)]].concat(),
                });
                all.push(Tree { server, streams });
            }
        }
    }
    all
}

type Coming = (Node, Vec<Resource>);
/// A root, what leaves it, and the streams below.
type Climbed = (usize, Coming, Vec<Stream>);

/// What becomes of a job's streams, from the lowest tier up: all ways.
fn climb(
    topology: &Topology,
    order: &[usize],
    tiers: &[u32],
    mut at: Vec<Vec<Coming>>,
    mut streams: Vec<Stream>,
    shapes: &mut Vec<Climbed>,
) {
    let Some((&switch, rest)) = order.split_first() else {
        return;
    };
    let coming = std::mem::take(&mut at[switch]);
    let leaving = match &coming[..] {
        [] => return climb(topology, rest, tiers, at, streams, shapes),
        [one] => one.clone(),
        _ => {
            let to = Node::Switch(switch);
            let coming = coming.into_iter();
            streams.extend(coming.map(|(from, route)| Stream { from, to, route }));
            (to, Vec::new())
        }
    };
    if at.iter().all(Vec::is_empty) {
        shapes.push((switch, leaving, streams));
        return;
    }
    for way in ways(topology) {
        let (from, to) = ends(topology, way);
        if from == switch && tiers[to] > tiers[from] {
            let mut at = at.clone();
            let route = [leaving.1.clone(), vec![way]].concat();
            at[to].push((leaving.0, route));
            climb(topology, rest, tiers, at, streams.clone(), shapes);
        }
    }
}

/// A plan of one tree for a job at rate 1, the others idle.
fn unit(problem: &Problem, trees: &[(usize, &Tree)]) -> Plan {
    let idle = JobPlan {
        rate: 0.0,
        binding: None,
        marginal: 0.0,
        shares: Vec::new(),
    };
    let mut jobs = vec![idle; problem.jobs.len()];
    for &(job, tree) in trees {
        let (fraction, tree) = (1.0, tree.clone());
        jobs[job].rate = problem.jobs[job].weight;
        jobs[job].shares = vec![Share { fraction, tree }];
    }
    Plan {
        algorithm: String::new(),
        jobs,
        bound: None,
        cut_off: false,
    }
}

/// The level that trees allow, by the checker's loads.
fn allowed(problem: &Problem, trees: &[(usize, &Tree)]) -> f64 {
    let plan = unit(problem, trees);
    let loads = loads(problem, &plan).into_iter();
    let levels = loads.map(|(resource, load)| limit(problem, resource) / load);
    levels.fold(f64::INFINITY, f64::min)
}

/// The trees that obey the rules; the enumeration makes no others but those over switches that are
/// down.
fn possible(problem: &Problem, job: usize) -> Vec<Tree> {
    let mut all = trees(problem, job);
    all.retain(
        |tree| match rules::check(problem, &unit(problem, &[(job, tree)])) {
            Ok(()) => true,
            Err(Broken::Passes { .. }) => false,
            Err(broken) => panic!("{broken}"),
        },
    );
    all
}

/// Few workers, so that the trees can be counted.
fn few(mut problem: Problem, jobs: usize) -> Problem {
    problem.jobs.truncate(jobs);
    for job in &mut problem.jobs {
        job.workers.truncate(5);
    }
    problem
}

/// One job, with a PS at each switch of the highest tier.
#[test]
fn one_job_has_the_best_tree_of_all() {
    let (mut equal, mut lowest) = ([0, 0], 1.0_f64);
    for (nth, tiers) in [2, 3].into_iter().enumerate() {
        for seed in 0..60 {
            let problem = few(generate::fabric(seed, tiers), 1);
            let plan = for_switches(&problem);
            let all = possible(&problem, 0);
            let best = all.iter().map(|tree| allowed(&problem, &[(0, tree)]));
            let best = best.fold(0.0, f64::max);
            let found = plan.jobs[0].rate / problem.jobs[0].weight;
            assert!(
                found <= best * (1.0 + 1e-6),
                "{tiers} {seed}: {found} {best}"
            );
            // Each root of two tiers has one tree.
            assert!(
                tiers > 2 || found >= best * (1.0 - 1e-6),
                "{seed}: {found} {best}"
            );
            assert_eq!(found > 0.0, best > 0.0, "{tiers} {seed}: {found} {best}");
            if best > 0.0 {
                equal[nth] += usize::from(found >= best * (1.0 - 1e-6));
                lowest = lowest.min(found / best);
            } else {
                equal[nth] += 1;
            }
        }
    }
    println!("of 60 each, the best: {equal:?}; lowest ratio {lowest:.4}");
    assert!(equal[1] >= 54, "{equal:?}");
    assert!(lowest > 0.8, "{lowest}");
}

/// Two jobs in small leaf-spine fabrics, against all pairs of trees.
#[test]
fn two_jobs_come_near_the_best_pair() {
    let mut ratios = Vec::new();
    for seed in 0..60 {
        let problem = few(generate::fabric(seed, 2), 2);
        if problem.jobs.len() < 2 {
            continue;
        }
        let plan = for_switches(&problem);
        let all = [0, 1].map(|job| possible(&problem, job));
        if all.iter().any(Vec::is_empty) {
            continue;
        }
        let pairs = all[0]
            .iter()
            .flat_map(|a| all[1].iter().map(move |b| (a, b)));
        let levels = pairs.map(|(a, b)| allowed(&problem, &[(0, a), (1, b)]));
        let best = levels.fold(0.0, f64::max);
        ratios.push(level(&problem, &plan) / best);
    }
    ratios.sort_by(f64::total_cmp);
    let equal = ratios.iter().filter(|ratio| **ratio > 1.0 - 1e-6).count();
    println!(
        "the best pair: {equal} of {}; lowest {:.4}",
        ratios.len(),
        ratios[0]
    );
    assert!(
        ratios.len() > 20 && equal * 10 >= ratios.len() * 9,
        "{ratios:?}"
    );
    assert!(
        ratios[ratios.len() - 1] < 1.0 + 1e-6 && ratios[0] > 0.7,
        "{ratios:?}"
    );
}

fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

/// What the rules cost, beside one tree of any shape for each job. docs/PLANNING.md has the
/// figures.
#[test]
fn what_the_rules_cost() {
    for tiers in [2, 3] {
        let (mut ratios, mut bounds, mut broken, mut lost) = (Vec::new(), Vec::new(), 0, 0);
        for seed in 0..100 {
            let problem = generate::fabric(seed, tiers);
            let ours = for_switches(&problem);
            let any = plan(&problem, Algorithm::Tally, &options(Shape::Any)).unwrap();
            broken += usize::from(rules::check(&problem, &any).is_err());
            let jobs = ours.jobs.iter().zip(&any.jobs);
            lost += jobs
                .filter(|it| it.0.rate == 0.0 && it.1.rate > 0.0)
                .count();
            let level = |plan: &Plan| level(&problem, plan);
            if level(&any).is_finite() {
                ratios.push(level(&ours) / level(&any));
                bounds.push(level(&ours) / ours.bound.unwrap());
            }
        }
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        println!(
            "{tiers} tiers: {broken} of 100 plans of any shape break a rule; level with the rules \
             to that without: mean {mean:.4}, median {:.4}, lowest tenth below {:.4}, lowest {:.4}, highest {:.4}; to \
             the bound: median {:.4}, lowest {:.4}",
            quantile(&mut ratios, 0.5),
            quantile(&mut ratios, 0.1),
            quantile(&mut ratios, 0.0),
            quantile(&mut ratios, 1.0),
            quantile(&mut bounds, 0.5),
            quantile(&mut bounds, 0.0),
        );
        assert_eq!(lost, 0);
        assert!(bounds.iter().all(|it| *it <= 1.0 + 1e-6), "{bounds:?}");
        assert!(broken > 30 && mean > 0.9, "{broken} {mean}");
    }
}
