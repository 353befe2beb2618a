//! Weighted max-min fairness, background load, and plans that follow plans.

#![allow(clippy::unwrap_used)]

use tally_planner::check::check;
use tally_planner::{Algorithm, Element, Host, Job, Node, Options, Plan, Problem, Resource};
use tally_planner::{examples, generate, plan, replan, replan_holding};

fn job(name: &str, workers: &[usize], weight: f64) -> Job {
    let (name, workers) = (name.to_owned(), workers.to_vec());
    Job {
        name,
        workers,
        bytes: 1_000_000,
        element: Element::I32,
        weight,
    }
}

fn tally(problem: &Problem) -> Plan {
    let plan = plan(problem, Algorithm::Tally, &Options::default()).unwrap();
    check(problem, &plan).unwrap();
    plan
}

/// One switch that sums all, one server: 12 of capacity.
fn shared(jobs: Vec<Job>) -> Problem {
    let mut problem = examples::inart_fig1();
    problem.topology.switches[0].capacity = 12.0;
    problem.topology.servers.truncate(1);
    problem.topology.servers[0].rate = 100.0;
    problem.topology.hosts = (0..6)
        .map(|at| Host {
            name: format!("h{at}"),
            switch: 0,
            rate: [6.0, 1.0][usize::from(at > 3)],
        })
        .collect();
    problem.jobs = jobs;
    problem
}

#[test]
fn a_bottleneck_is_shared_by_weight() {
    let mut problem = shared(vec![job("a", &[0, 1], 2.0), job("b", &[2, 3], 1.0)]);
    problem.topology.servers[0].rate = 3.0;
    let plan = tally(&problem);
    assert!(
        (plan.jobs[0].rate - 2.0).abs() < 1e-6,
        "{}",
        plan.jobs[0].rate
    );
    assert!(
        (plan.jobs[1].rate - 1.0).abs() < 1e-6,
        "{}",
        plan.jobs[1].rate
    );
    assert_eq!(plan.jobs[0].binding, Some(Resource::ServerIn(0)));
}

#[test]
fn what_a_slow_job_leaves_goes_to_the_others() {
    let mut problem = shared(vec![job("a", &[0, 1], 1.0), job("slow", &[4, 5], 1.0)]);
    problem.topology.servers[0].rate = 4.0;
    let plan = tally(&problem);
    assert!(
        (plan.jobs[1].rate - 1.0).abs() < 1e-6,
        "{}",
        plan.jobs[1].rate
    );
    assert!(
        (plan.jobs[0].rate - 3.0).abs() < 1e-6,
        "{}",
        plan.jobs[0].rate
    );
    assert_eq!(plan.jobs[0].binding, Some(Resource::ServerIn(0)));
    assert!(matches!(
        plan.jobs[1].binding,
        Some(Resource::HostOut(4 | 5))
    ));
}

#[test]
fn a_job_out_of_reach_does_not_stop_the_others() {
    let mut problem = examples::inart_fig1();
    problem.topology.links[0].rate = 0.0;
    problem.topology.servers.truncate(1);
    problem.jobs = vec![job("a", &[0, 1], 1.0), job("cut", &[4, 5], 1.0)];
    let plan = tally(&problem);
    assert!(plan.jobs[0].rate > 3.0);
    assert!(plan.jobs[1].rate == 0.0 && plan.jobs[1].shares.is_empty());
}

#[test]
fn a_plan_survives_json() {
    let problem = examples::grid_fig1();
    let plan = tally(&problem);
    let text = serde_json::to_string(&plan).unwrap();
    let read: Plan = serde_json::from_str(&text).unwrap();
    assert_eq!(read.jobs[0].shares.len(), plan.jobs[0].shares.len());
    check(&problem, &read).unwrap();
    let text = serde_json::to_string(&problem).unwrap();
    assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem);
}

fn names(problem: &Problem) -> Vec<String> {
    problem.jobs.iter().map(|job| job.name.clone()).collect()
}

/// Eight jobs of six workers in a fat-tree.
fn many() -> Problem {
    let mut problem = generate::inart(48, true, 3);
    for switch in &mut problem.topology.switches {
        switch.capacity = 200.0;
    }
    let workers = problem.jobs[0].workers.clone();
    let jobs = workers.chunks(6).enumerate();
    problem.jobs = jobs
        .map(|(at, workers)| job(&format!("job-{at}"), workers, 1.0))
        .collect();
    problem
}

#[test]
fn nothing_moves_without_a_change() {
    let problem = many();
    let before = tally(&problem);
    let after = replan(&problem, &before, &names(&problem), &Options::default()).unwrap();
    assert_eq!(after.moved, Vec::<usize>::new());
    check(&problem, &after.plan).unwrap();
}

#[test]
fn a_new_job_moves_few() {
    let mut problem = many();
    let last = problem.jobs.pop().unwrap();
    let before = tally(&problem);
    let names = names(&problem);
    problem.jobs.insert(0, last);
    let after = replan(&problem, &before, &names, &Options::default()).unwrap();
    check(&problem, &after.plan).unwrap();
    assert!(after.moved.contains(&0));
    println!("new job moved {:?}", after.moved);
    let fresh = tally(&problem).rate([1.0; 8]);
    assert!(after.plan.rate([1.0; 8]) >= 0.95 * fresh);
}

#[test]
fn a_dead_switch_moves_its_jobs() {
    let mut problem = many();
    let before = tally(&problem);
    // An aggregation switch dies: its links and its capacity.
    let dead = 9;
    let is_user = |plan: &Plan, job: usize| {
        plan.jobs[job].shares.iter().any(|share| {
            share.tree.streams.iter().any(|stream| {
                stream.to == Node::Switch(dead)
                    || stream.route.iter().any(|way| match way {
                        Resource::Forward(at) | Resource::Backward(at) => {
                            let link = &problem.topology.links[*at];
                            link.a == dead || link.b == dead
                        }
                        _ => false,
                    })
            })
        })
    };
    let users: Vec<_> = (0..8).filter(|&job| is_user(&before, job)).collect();
    problem.topology.switches[dead].capacity = 0.0;
    for link in &mut problem.topology.links {
        if link.a == dead || link.b == dead {
            link.rate = 0.0;
        }
    }
    let after = replan(&problem, &before, &names(&problem), &Options::default()).unwrap();
    check(&problem, &after.plan).unwrap();
    println!("used by {users:?}, moved {:?}", after.moved);
    assert!(after.plan.rate([1.0; 8]) > 0.0);
    assert!(users.iter().all(|user| after.moved.contains(user)));
}

#[test]
fn a_job_that_is_held_keeps_its_tree_though_another_would_be_better() {
    for trees in [1, 64] {
        let options = Options {
            trees,
            ..Options::default()
        };
        let mut problem = many();
        let capacities: Vec<_> = (problem.topology.switches.iter())
            .map(|it| it.capacity)
            .collect();
        for switch in &mut problem.topology.switches {
            switch.capacity = 0.0;
        }
        let before = plan(&problem, Algorithm::Tally, &options).unwrap();
        for (switch, capacity) in problem.topology.switches.iter_mut().zip(capacities) {
            switch.capacity = capacity;
        }
        let names = names(&problem);
        let free = replan(&problem, &before, &names, &options).unwrap();
        assert!(free.moved.contains(&0) && free.moved.contains(&1));
        assert_eq!(free.held, Vec::<usize>::new());
        for held in [vec![0], vec![0, 1, 5], (0..8).collect()] {
            let after = replan_holding(&problem, &before, &names, &held, &options).unwrap();
            check(&problem, &after.plan).unwrap();
            let kept = held.iter().all(|it| !after.moved.contains(it));
            assert!(kept, "{trees} trees, {held:?}: moved {:?}", after.moved);
            assert!(!after.held.is_empty() && after.held.iter().all(|it| held.contains(it)));
        }
    }
}

#[test]
fn few_trees_are_few() {
    let problem = generate::inart(20, false, 2);
    let all = tally(&problem);
    assert!(all.jobs[0].shares.len() > 8);
    let mut last = 0.0;
    for trees in [1, 4, 8] {
        let options = Options {
            trees,
            ..Options::default()
        };
        let plan = plan(&problem, Algorithm::Tally, &options).unwrap();
        check(&problem, &plan).unwrap();
        assert!(plan.jobs[0].shares.len() <= trees);
        assert!(plan.jobs[0].rate > last && plan.jobs[0].rate < all.jobs[0].rate);
        last = plan.jobs[0].rate;
    }
}
