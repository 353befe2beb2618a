//! The checker refuses plans that are wrong in each way it knows.

#![allow(clippy::unwrap_used)]

use tally_planner::check::{Fault, check, loads};
use tally_planner::{Algorithm, Node, Options, Plan, Problem, Resource, Stream, examples, plan};

fn good() -> (Problem, Plan) {
    let problem = examples::grid_fig1();
    let plan = plan(&problem, Algorithm::GridExact, &Options::default()).unwrap();
    check(&problem, &plan).unwrap();
    (problem, plan)
}

fn streams(plan: &mut Plan) -> &mut Vec<Stream> {
    &mut plan.jobs[0].shares[0].tree.streams
}

fn planted(change: impl Fn(&mut Problem, &mut Plan)) -> Fault {
    let (mut problem, mut plan) = good();
    change(&mut problem, &mut plan);
    check(&problem, &plan).unwrap_err()
}

#[test]
fn loads_are_those_of_the_figure() {
    let (problem, plan) = good();
    let loads = loads(&problem, &plan);
    for (resource, load) in [
        (Resource::Forward(0), 3.0),
        (Resource::Forward(1), 3.0),
        (Resource::Forward(2), 3.0),
        (Resource::Capacity(0), 9.0),
        (Resource::Capacity(1), 9.0),
        (Resource::Capacity(2), 6.0),
        (Resource::ServerIn(0), 9.0),
    ] {
        assert!(
            (loads[&resource] - load).abs() < 1e-6,
            "{resource:?}: {}",
            loads[&resource]
        );
    }
    assert!(!loads.contains_key(&Resource::Backward(0)));
}

#[test]
fn overstated_rates() {
    let fault = planted(|_, plan| plan.jobs[0].rate *= 1.001);
    assert!(matches!(fault, Fault::Overload { .. }), "{fault}");
    let fault = planted(|problem, _| problem.topology.switches[1].capacity = 8.9);
    assert!(
        matches!(
            fault,
            Fault::Overload {
                resource: Resource::Capacity(1),
                ..
            }
        ),
        "{fault}"
    );
    let fault = planted(|problem, _| problem.background.push((Resource::ServerIn(0), 0.1)));
    assert!(
        matches!(
            fault,
            Fault::Overload {
                resource: Resource::ServerIn(0),
                ..
            }
        ),
        "{fault}"
    );
    let fault = planted(|problem, _| problem.topology.links[1].rate = 2.9);
    assert!(
        matches!(
            fault,
            Fault::Overload {
                resource: Resource::Forward(1),
                ..
            }
        ),
        "{fault}"
    );
    // The figure's link from S1 to S2 has nothing to spare for results on the way back.
    let fault = planted(|problem, plan| {
        problem.results = true;
        problem.background.push((Resource::Backward(1), 0.1));
        assert!(plan.jobs[0].rate > 2.9);
    });
    assert!(
        matches!(
            fault,
            Fault::Overload {
                resource: Resource::Backward(1),
                ..
            }
        ),
        "{fault}"
    );
    let fault = planted(|_, plan| plan.jobs[0].rate = f64::NAN);
    assert_eq!(fault, Fault::Number(0));
}

#[test]
fn fractions_that_are_not_the_whole() {
    let fault = planted(|_, plan| plan.jobs[0].shares[0].fraction = 0.5);
    assert!(matches!(fault, Fault::Fractions { .. }), "{fault}");
    let fault = planted(|_, plan| plan.jobs[0].shares[0].fraction = -1.0);
    assert_eq!(fault, Fault::Number(0));
    let fault = planted(|_, plan| plan.jobs[0].shares.clear());
    assert!(matches!(fault, Fault::Fractions { .. }), "{fault}");
}

#[test]
fn gradients_that_are_lost_or_counted_twice() {
    // A worker is missing.
    let fault = planted(|_, plan| {
        streams(plan).retain(|stream| stream.from != Node::Host(3));
    });
    let missing = Fault::Streams {
        job: 0,
        node: Node::Host(3),
        count: 0,
    };
    assert_eq!(fault, missing);
    // A worker sends twice.
    let fault = planted(|_, plan| {
        let twice = streams(plan)[0].clone();
        streams(plan).push(twice);
    });
    assert!(matches!(fault, Fault::Streams { count: 2, .. }), "{fault}");
    // A sum is not sent on.
    let fault = planted(|_, plan| {
        streams(plan).retain(|stream| stream.from != Node::Switch(1));
    });
    assert!(
        matches!(
            fault,
            Fault::Streams {
                node: Node::Switch(1),
                count: 0,
                ..
            }
        ),
        "{fault}"
    );
    // Two switches send to each other.
    let fault = planted(|_, plan| {
        for stream in streams(plan) {
            match stream.from {
                Node::Switch(0) => {
                    (stream.to, stream.route) = (Node::Switch(1), vec![Resource::Forward(1)]);
                }
                Node::Switch(1) => {
                    (stream.to, stream.route) = (Node::Switch(0), vec![Resource::Backward(1)]);
                }
                _ => {}
            }
        }
    });
    assert!(matches!(fault, Fault::Lost { .. }), "{fault}");
    // A host of no worker sends.
    let fault = planted(|problem, _| _ = problem.jobs[0].workers.pop());
    assert!(
        matches!(
            fault,
            Fault::End {
                node: Node::Host(7),
                ..
            }
        ),
        "{fault}"
    );
    // A switch sends what it has not received.
    let fault = planted(|_, plan| {
        for stream in streams(plan) {
            if stream.to == Node::Switch(1) {
                (stream.to, stream.route) = match stream.from {
                    Node::Host(3) => (Node::Switch(0), vec![Resource::HostOut(3)]),
                    Node::Host(at) => {
                        let way = [Resource::HostOut(at), Resource::Backward(1)];
                        (Node::Switch(0), way.to_vec())
                    }
                    _ => continue,
                };
            }
        }
    });
    assert!(
        matches!(
            fault,
            Fault::End {
                node: Node::Switch(1),
                ..
            }
        ),
        "{fault}"
    );
}

#[test]
fn routes_that_do_not_lead_there() {
    let fault = planted(|_, plan| _ = streams(plan)[3].route.pop());
    assert!(matches!(fault, Fault::Route { .. }), "{fault}");
    let fault = planted(|_, plan| streams(plan)[0].route.push(Resource::Backward(1)));
    assert!(matches!(fault, Fault::Route { .. }), "{fault}");
    let fault = planted(|_, plan| streams(plan)[0].route[0] = Resource::HostOut(99));
    assert_eq!(fault, Fault::Unknown(0));
    let fault = planted(|_, plan| streams(plan)[0].route.push(Resource::Capacity(0)));
    assert_eq!(fault, Fault::Unknown(0));
    let fault = planted(|_, plan| plan.jobs[0].shares[0].tree.server = 1);
    assert_eq!(fault, Fault::Unknown(0));
    let fault = planted(|_, plan| _ = plan.jobs.pop());
    assert_eq!(
        fault,
        Fault::Jobs {
            found: 0,
            expected: 1
        }
    );
}
