//! The feasibility checker: refuses a plan that the network cannot carry or that is no sum.
//!
//! Written from the definitions alone. It shares the types of the input and the output with the
//! algorithms, and no code.

use crate::model::{Node, Problem, Resource, Topology};
use crate::plan::{Plan, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// Relative excess that is taken for rounding.
const TOLERANCE: f64 = 1e-7;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The plan has another number of jobs than the problem.
    #[error("plan of {found} jobs for a problem of {expected}")]
    Jobs {
        /// In the plan.
        found: usize,
        /// In the problem.
        expected: usize,
    },
    /// A rate or a fraction that is negative or no number.
    #[error("job {0}: rate or fraction is not a number of 0 or more")]
    Number(usize),
    /// The fractions of a job do not add up to 1.
    #[error("job {job}: fractions add up to {sum}, not to 1")]
    Fractions {
        /// The job.
        job: usize,
        /// Found.
        sum: f64,
    },
    /// A node that the problem does not have.
    #[error("job {0}: a stream names a node or way that is not in the topology")]
    Unknown(usize),
    /// A route that does not lead from the stream's origin to its end.
    #[error("job {job}: route of the stream from {from:?} does not lead to {to:?}")]
    Route {
        /// The job.
        job: usize,
        /// Origin of the stream.
        from: Node,
        /// Its end.
        to: Node,
    },
    /// A worker, or a switch that sums, sends another number of streams than one.
    #[error("job {job}: {node:?} sends {count} streams of one share, not 1")]
    Streams {
        /// The job.
        job: usize,
        /// Who sends.
        node: Node,
        /// Streams found.
        count: usize,
    },
    /// A stream from a node that has nothing to send, or to one that cannot sum.
    #[error("job {job}: {node:?} is no end of a stream in this tree")]
    End {
        /// The job.
        job: usize,
        /// The node.
        node: Node,
    },
    /// A gradient does not reach the parameter server exactly once.
    #[error("job {job}: gradients of {node:?} do not reach the parameter server")]
    Lost {
        /// The job.
        job: usize,
        /// The worker.
        node: Node,
    },
    /// A resource has more load than rate.
    #[error("{resource:?}: load {load} exceeds {limit}")]
    Overload {
        /// Which.
        resource: Resource,
        /// Load of the plan.
        load: f64,
        /// Rate without background load.
        limit: f64,
    },
}

/// The ends of a way of a cable, in its direction.
pub(crate) fn ends(topology: &Topology, way: Resource) -> Option<(Node, Node)> {
    let link = |at: usize| {
        let link = topology.links.get(at)?;
        Some((Node::Switch(link.a), Node::Switch(link.b)))
    };
    let host = |at: usize| Some((Node::Host(at), Node::Switch(topology.hosts.get(at)?.switch)));
    let server = |at: usize| {
        let switch = topology.servers.get(at)?.switch;
        Some((Node::Server(at), Node::Switch(switch)))
    };
    let turned = |pair: Option<(Node, Node)>| pair.map(|(from, to)| (to, from));
    match way {
        Resource::Forward(at) => link(at),
        Resource::Backward(at) => turned(link(at)),
        Resource::HostOut(at) => host(at),
        Resource::HostIn(at) => turned(host(at)),
        Resource::ServerOut(at) => server(at),
        Resource::ServerIn(at) => turned(server(at)),
        Resource::Capacity(_) => None,
    }
}

/// The same cable's other way.
#[must_use]
pub const fn opposite(way: Resource) -> Resource {
    match way {
        Resource::Forward(at) => Resource::Backward(at),
        Resource::Backward(at) => Resource::Forward(at),
        Resource::HostOut(at) => Resource::HostIn(at),
        Resource::HostIn(at) => Resource::HostOut(at),
        Resource::ServerOut(at) => Resource::ServerIn(at),
        Resource::ServerIn(at) => Resource::ServerOut(at),
        Resource::Capacity(at) => Resource::Capacity(at),
    }
}

/// The rate of a resource without background load.
#[must_use]
pub fn limit(problem: &Problem, resource: Resource) -> f64 {
    let topology = &problem.topology;
    let rate = match resource {
        Resource::Forward(at) | Resource::Backward(at) => topology.links[at].rate,
        Resource::HostOut(at) | Resource::HostIn(at) => topology.hosts[at].rate,
        Resource::ServerOut(at) | Resource::ServerIn(at) => topology.servers[at].rate,
        Resource::Capacity(at) => topology.switches[at].capacity,
    };
    let others = problem.background.iter();
    let others = others
        .filter(|(of, _)| *of == resource)
        .map(|(_, load)| load);
    (rate - others.sum::<f64>()).max(0.0)
}

/// Whether a tree brings each worker's gradient to its parameter server exactly once.
fn check_tree(problem: &Problem, job: usize, tree: &Tree) -> Result<(), Fault> {
    let topology = &problem.topology;
    if tree.server >= topology.servers.len() {
        return Err(Fault::Unknown(job));
    }
    let mut to = BTreeMap::<Node, Vec<Node>>::new();
    let mut receivers = BTreeSet::new();
    for stream in &tree.streams {
        let mut at = stream.from;
        for &way in &stream.route {
            let (begin, end) = ends(topology, way).ok_or(Fault::Unknown(job))?;
            let is_through = matches!(end, Node::Switch(_)) || end == stream.to;
            if begin != at || !is_through {
                let (from, to) = (stream.from, stream.to);
                return Err(Fault::Route { job, from, to });
            }
            at = end;
        }
        if at != stream.to || stream.from == stream.to {
            let (from, to) = (stream.from, stream.to);
            return Err(Fault::Route { job, from, to });
        }
        match stream.to {
            Node::Switch(switch) if switch < topology.switches.len() => {}
            Node::Server(server) if server == tree.server => {}
            node => return Err(Fault::End { job, node }),
        }
        receivers.insert(stream.to);
        to.entry(stream.from).or_default().push(stream.to);
    }
    let workers: BTreeSet<_> = problem.jobs[job]
        .workers
        .iter()
        .map(|&at| Node::Host(at))
        .collect();
    for &node in to.keys() {
        if !workers.contains(&node)
            && (matches!(node, Node::Server(_)) || !receivers.contains(&node))
        {
            return Err(Fault::End { job, node });
        }
    }
    let switches = receivers
        .iter()
        .filter(|node| matches!(node, Node::Switch(_)));
    for &node in workers.iter().chain(switches) {
        let count = to.get(&node).map_or(0, Vec::len);
        if count != 1 {
            return Err(Fault::Streams { job, node, count });
        }
    }
    for &worker in &workers {
        let mut at = worker;
        for _ in 0..=to.len() {
            let Some(next) = to.get(&at) else { break };
            at = next[0];
        }
        if at != Node::Server(tree.server) {
            return Err(Fault::Lost { job, node: worker });
        }
    }
    Ok(())
}

/// Loads of all resources under a plan.
#[must_use]
pub fn loads(problem: &Problem, plan: &Plan) -> BTreeMap<Resource, f64> {
    let mut loads = BTreeMap::new();
    for (job, planned) in problem.jobs.iter().zip(&plan.jobs) {
        for share in &planned.shares {
            let rate = planned.rate * share.fraction;
            for stream in &share.tree.streams {
                for &way in &stream.route {
                    *loads.entry(way).or_default() += rate;
                    if problem.results {
                        *loads.entry(opposite(way)).or_default() += rate;
                    }
                }
                if let Node::Switch(switch) = stream.to {
                    let cost = if job.element.is_narrow() {
                        problem.topology.switches[switch].narrow_cost
                    } else {
                        1.0
                    };
                    *loads.entry(Resource::Capacity(switch)).or_default() += rate * cost;
                }
            }
        }
    }
    loads
}

/// Checks a plan against its problem.
///
/// # Errors
///
/// The first fault found.
pub fn check(problem: &Problem, plan: &Plan) -> Result<(), Fault> {
    if plan.jobs.len() != problem.jobs.len() {
        let (found, expected) = (plan.jobs.len(), problem.jobs.len());
        return Err(Fault::Jobs { found, expected });
    }
    for (job, planned) in plan.jobs.iter().enumerate() {
        let fractions = planned.shares.iter().map(|share| share.fraction);
        if !fractions
            .clone()
            .chain([planned.rate])
            .all(|value| value.is_finite() && value >= 0.0)
        {
            return Err(Fault::Number(job));
        }
        let sum: f64 = fractions.sum();
        if planned.rate > 0.0 && (sum - 1.0).abs() > TOLERANCE {
            return Err(Fault::Fractions { job, sum });
        }
        for share in &planned.shares {
            check_tree(problem, job, &share.tree)?;
        }
    }
    for (resource, load) in loads(problem, plan) {
        let limit = limit(problem, resource);
        if load > limit * (1.0 + TOLERANCE) + f64::MIN_POSITIVE {
            return Err(Fault::Overload {
                resource,
                load,
                limit,
            });
        }
    }
    Ok(())
}
