//! Optima against brute force on small random problems.
//!
//! Nothing of the algorithms is used: assignments and trees are enumerated, loads are the
//! checker's, and the mixture of all trees is solved by another solver.

#![allow(clippy::unwrap_used)]

use microlp::{ComparisonOp, OptimizationDirection};
use std::time::Duration;
use tally_planner::check::{check, loads};
use tally_planner::{
    Algorithm, Element, Host, Job, JobPlan, Link, Node, Options, Plan, Problem, Random, Resource,
    Share, Stream, Switch, Topology, Tree, plan,
};

/// Switches in a tree, so that routes are unique, with devices at random switches.
fn problem(random: &mut Random, sizes: [usize; 3], jobs: usize, link: (f64, f64)) -> Problem {
    let [switches, workers, servers] = sizes;
    let mut topology = Topology::default();
    for at in 0..switches {
        let (name, capacity) = (String::new(), random.between(2.0, 20.0));
        topology.switches.push(Switch {
            name,
            capacity,
            narrow_cost: random.between(0.5, 1.0),
            tier: None,
        });
        if at > 0 {
            let rate = random.between(link.0, link.1);
            topology.links.push(Link {
                a: at,
                b: random.below(at),
                rate,
            });
        }
    }
    let mut device = |rate| Host {
        name: String::new(),
        switch: random.below(switches),
        rate,
    };
    topology.hosts = (0..workers * jobs).map(|_| device(10.0)).collect();
    topology.servers = (0..servers).map(|at| device(4.0 + at as f64)).collect();
    let jobs = (0..jobs).map(|at| Job {
        name: format!("job-{at}"),
        workers: (at * workers..(at + 1) * workers).collect(),
        bytes: 1,
        element: [Element::F32, Element::F16][random.below(2)],
        weight: [1.0, 2.0][random.below(2)],
    });
    let jobs = jobs.collect();
    Problem {
        topology,
        jobs,
        background: Vec::new(),
        results: random.below(2) == 0,
    }
}

/// The route between two nodes of a tree of switches.
fn route(topology: &Topology, from: Node, to: Node) -> Vec<Resource> {
    let mut route = Vec::new();
    let mut at = match from {
        Node::Host(host) => {
            route.push(Resource::HostOut(host));
            topology.hosts[host].switch
        }
        Node::Switch(switch) => switch,
        Node::Server(_) => unreachable!(),
    };
    let end = match to {
        Node::Switch(switch) => switch,
        Node::Server(server) => topology.servers[server].switch,
        Node::Host(_) => unreachable!(),
    };
    // Link n - 1 leads from switch n to its parent.
    let above = |mut at: usize| {
        let mut path = vec![at];
        while at > 0 {
            at = topology.links[at - 1].b;
            path.push(at);
        }
        path
    };
    let (ups, downs) = (above(at), above(end));
    let meet = ups.iter().copied().find(|at| downs.contains(at));
    let meet = meet.expect("all paths lead to switch 0");
    while at != meet {
        route.push(Resource::Forward(at - 1));
        at = topology.links[at - 1].b;
    }
    for &down in downs
        .iter()
        .take_while(|down| **down != meet)
        .collect::<Vec<_>>()
        .iter()
        .rev()
    {
        route.push(Resource::Backward(down - 1));
    }
    if let Node::Server(server) = to {
        route.push(Resource::ServerIn(server));
    }
    route
}

fn stream(topology: &Topology, from: Node, to: Node) -> Stream {
    Stream {
        from,
        to,
        route: route(topology, from, to),
    }
}

/// All ways to choose one of `count` for each of `places`.
fn choices(places: usize, count: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..count.pow(places as u32)).map(move |mut code| {
        let digit = |_| {
            let digit = code % count;
            code /= count;
            digit
        };
        (0..places).map(digit).collect()
    })
}

/// The plan of one job with these trees at rate 1, the others idle.
fn unit(problem: &Problem, job: usize, shares: Vec<Share>) -> Plan {
    let idle = JobPlan {
        rate: 0.0,
        binding: None,
        marginal: 0.0,
        shares: Vec::new(),
    };
    let mut jobs = vec![idle; problem.jobs.len()];
    (jobs[job].rate, jobs[job].shares) = (1.0, shares);
    Plan {
        algorithm: String::new(),
        jobs,
        bound: None,
        cut_off: false,
    }
}

fn limit(problem: &Problem, resource: Resource) -> f64 {
    let topology = &problem.topology;
    match resource {
        Resource::Forward(at) | Resource::Backward(at) => topology.links[at].rate,
        Resource::HostOut(at) | Resource::HostIn(at) => topology.hosts[at].rate,
        Resource::ServerOut(at) | Resource::ServerIn(at) => topology.servers[at].rate,
        Resource::Capacity(at) => topology.switches[at].capacity,
    }
}

fn rate(problem: &Problem, plan: &Plan) -> f64 {
    let loads = loads(problem, plan).into_iter();
    let rates = loads.map(|(resource, load)| limit(problem, resource) / load);
    rates.fold(f64::INFINITY, f64::min)
}

/// The tree in which each worker's gradient is summed at one node, whose sum goes to the server.
fn flat(problem: &Problem, job: usize, server: usize, choice: &[usize]) -> Tree {
    let topology = &problem.topology;
    let count = |switch: usize| choice.iter().filter(|at| **at == switch).count();
    let mut streams = Vec::new();
    for (&worker, &at) in problem.jobs[job].workers.iter().zip(choice) {
        let is_summed = at < topology.switches.len() && count(at) > 1;
        let to = if is_summed {
            Node::Switch(at)
        } else {
            Node::Server(server)
        };
        streams.push(stream(topology, Node::Host(worker), to));
    }
    for switch in (0..topology.switches.len()).filter(|&switch| count(switch) > 1) {
        streams.push(stream(topology, Node::Switch(switch), Node::Server(server)));
    }
    Tree { server, streams }
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 1e-5 * expected
}

#[test]
fn grid_exact_is_the_optimum() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let sizes = [
            1 + random.below(4),
            2 + random.below(4),
            1 + random.below(2),
        ];
        let problem = problem(&mut random, sizes, 1, (1e4, 1e4));
        let mut best: f64 = 0.0;
        for server in 0..sizes[2] {
            for choice in choices(sizes[1], sizes[0] + 1) {
                let tree = flat(&problem, 0, server, &choice);
                let plan = unit(
                    &problem,
                    0,
                    vec![Share {
                        fraction: 1.0,
                        tree,
                    }],
                );
                best = best.max(rate(&problem, &plan));
            }
        }
        let plan = plan(&problem, Algorithm::GridExact, &Options::default()).unwrap();
        check(&problem, &plan).unwrap();
        let found = plan.jobs[0].rate;
        assert!(close(found, best), "seed {seed}: {found}, not {best}");
    }
}

/// The best split over two servers, by bisection of an interval: the rate has one peak.
fn best_split(problem: &Problem, trees: &[Tree; 2]) -> f64 {
    let loads = trees.each_ref().map(|tree| {
        loads(
            problem,
            &unit(
                problem,
                0,
                vec![Share {
                    fraction: 1.0,
                    tree: tree.clone(),
                }],
            ),
        )
    });
    let time = |part: f64| {
        let resources = loads[0].keys().chain(loads[1].keys());
        let times = resources.map(|resource| {
            let load = |at: usize| loads[at].get(resource).copied().unwrap_or_default();
            (part * load(0) + (1.0 - part) * load(1)) / limit(problem, *resource)
        });
        times.fold(0.0, f64::max)
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if time(a) < time(b) { high = b } else { low = a }
    }
    1.0 / time(low)
}

#[test]
fn inart_exact_is_the_optimum() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let sizes = [1 + random.below(3), 2 + random.below(2), 2];
        let problem = problem(&mut random, sizes, 1, (3.0, 9.0));
        let trees = |server| choices(sizes[1], sizes[0] + 1).map(move |choice| (server, choice));
        let mut best: f64 = 0.0;
        for (_, first) in trees(0) {
            for (_, second) in trees(1) {
                let trees = [flat(&problem, 0, 0, &first), flat(&problem, 0, 1, &second)];
                best = best.max(best_split(&problem, &trees));
            }
        }
        let options = Options {
            time_limit: Duration::from_secs(300),
            ..Options::default()
        };
        let plan = plan(&problem, Algorithm::InartExact, &options).unwrap();
        check(&problem, &plan).unwrap();
        assert!(!plan.cut_off, "seed {seed}");
        let found = plan.jobs[0].rate;
        assert!(close(found, best), "seed {seed}: {found}, not {best}");
        let bound = plan.bound.unwrap() * problem.jobs[0].weight;
        assert!(close(bound, best), "seed {seed}: bound {bound}, not {best}");
    }
}

/// All trees of a job to a server: each worker and each switch has any parent.
fn all_trees(problem: &Problem, job: usize, server: usize) -> Vec<Tree> {
    let topology = &problem.topology;
    let switches = topology.switches.len();
    let workers = &problem.jobs[job].workers;
    let mut trees = Vec::new();
    for parents in choices(workers.len() + switches, switches + 1) {
        let node = |at: usize| {
            if at < switches {
                Node::Switch(at)
            } else {
                Node::Server(server)
            }
        };
        let mut streams = Vec::new();
        for (&worker, &to) in workers.iter().zip(&parents) {
            streams.push(stream(topology, Node::Host(worker), node(to)));
        }
        let mut active = vec![false; switches];
        for _ in 0..switches {
            for switch in 0..switches {
                let to = parents[workers.len() + switch];
                let is_used = streams
                    .iter()
                    .any(|stream| stream.to == Node::Switch(switch));
                if is_used && !active[switch] && to != switch {
                    active[switch] = true;
                    streams.push(stream(topology, Node::Switch(switch), node(to)));
                }
            }
        }
        let tree = Tree { server, streams };
        let plan = unit(
            problem,
            job,
            vec![Share {
                fraction: 1.0,
                tree: tree.clone(),
            }],
        );
        let is_sum = !matches!(check(problem, &plan), Err(fault) if !matches!(fault,
            tally_planner::check::Fault::Overload { .. }));
        if is_sum {
            trees.push(tree);
        }
    }
    trees
}

/// A program over all trees of all jobs, with the variables of each job.
fn all_mixtures(problem: &Problem) -> (microlp::Problem, Vec<Vec<microlp::Variable>>) {
    let mut lp = microlp::Problem::new(OptimizationDirection::Maximize);
    let mut rows = std::collections::BTreeMap::<Resource, Vec<(microlp::Variable, f64)>>::new();
    let mut rates = vec![Vec::new(); problem.jobs.len()];
    for (job, rates) in rates.iter_mut().enumerate() {
        for server in 0..problem.topology.servers.len() {
            for tree in all_trees(problem, job, server) {
                let rate = lp.add_var(0.0, (0.0, f64::INFINITY));
                rates.push(rate);
                let plan = unit(
                    problem,
                    job,
                    vec![Share {
                        fraction: 1.0,
                        tree,
                    }],
                );
                for (resource, load) in loads(problem, &plan) {
                    rows.entry(resource).or_default().push((rate, load));
                }
            }
        }
    }
    for (resource, terms) in rows {
        lp.add_constraint(terms, ComparisonOp::Le, limit(problem, resource));
    }
    (lp, rates)
}

fn highest(lp: &microlp::Problem) -> f64 {
    let outcome = lp.solve().expect("a program with a solution");
    outcome.into_solution().expect("no limit").objective()
}

/// The highest level of any mixture of all trees.
fn best_mixture(problem: &Problem) -> f64 {
    let (mut lp, rates) = all_mixtures(problem);
    let level = lp.add_var(1.0, (0.0, f64::INFINITY));
    for (job, rates) in problem.jobs.iter().zip(&rates) {
        let rates = rates.iter().map(|&rate| (rate, 1.0));
        let sum: Vec<_> = rates.chain([(level, -job.weight)]).collect();
        lp.add_constraint(sum, ComparisonOp::Ge, 0.0);
    }
    highest(&lp)
}

/// The highest rate of a job while no job of its level or below it has less than in the plan.
fn best_rate(problem: &Problem, plan: &Plan, job: usize) -> f64 {
    let (mut lp, rates) = all_mixtures(problem);
    let level = |job: usize| plan.jobs[job].rate / problem.jobs[job].weight;
    let rate = lp.add_var(1.0, (0.0, f64::INFINITY));
    let of_job = rates[job].iter().map(|&part| (part, 1.0));
    let of_job: Vec<_> = of_job.chain([(rate, -1.0)]).collect();
    lp.add_constraint(of_job, ComparisonOp::Ge, 0.0);
    let others = (0..problem.jobs.len()).filter(|&other| other != job);
    for other in others.filter(|&other| level(other) <= level(job) * (1.0 + 1e-5)) {
        let sum: Vec<_> = rates[other].iter().map(|&part| (part, 1.0)).collect();
        let least = plan.jobs[other].rate * (1.0 - 1e-6);
        lp.add_constraint(sum, ComparisonOp::Ge, least);
    }
    highest(&lp)
}

#[test]
fn tally_is_fair() {
    let mut levels = 0;
    for seed in 0..25 {
        let mut random = Random::new(seed);
        let sizes = [1 + random.below(3), 2, 1 + random.below(2)];
        let jobs = 2 + random.below(2);
        let mut problem = problem(&mut random, sizes, jobs, (3.0, 9.0));
        for host in &mut problem.topology.hosts {
            host.rate = random.between(0.5, 8.0);
        }
        let plan = plan(&problem, Algorithm::Tally, &Options::default()).unwrap();
        check(&problem, &plan).unwrap();
        for job in 0..jobs {
            let (found, best) = (plan.jobs[job].rate, best_rate(&problem, &plan, job));
            assert!(
                best <= found * (1.0 + 1e-4),
                "seed {seed}, job {job}: {found}, not {best}"
            );
        }
        let level = |job: usize| plan.jobs[job].rate / problem.jobs[job].weight;
        levels += usize::from((1..jobs).any(|job| (level(job) / level(0) - 1.0).abs() > 0.01));
    }
    assert!(levels > 3, "{levels} problems with several levels");
}

#[test]
fn tally_is_the_optimum_of_all_trees() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let sizes = [
            1 + random.below(3),
            2 + random.below(2),
            1 + random.below(2),
        ];
        let jobs = 1 + random.below(2);
        let problem = problem(&mut random, sizes, jobs, (3.0, 9.0));
        let best = best_mixture(&problem);
        let plan = plan(&problem, Algorithm::Tally, &Options::default()).unwrap();
        check(&problem, &plan).unwrap();
        let found = plan.rate(problem.jobs.iter().map(|job| job.weight));
        assert!(close(found, best), "seed {seed}: {found}, not {best}");
        let bound = plan.bound.unwrap();
        assert!(close(bound, best), "seed {seed}: bound {bound}, not {best}");
    }
}
