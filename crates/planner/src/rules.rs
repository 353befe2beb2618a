//! What Tally's switches can make of a tree, and the judge of plans for them.
//!
//! A switch sums all streams of a job that it gets, and sends one on, over one link up. A plan
//! obeys these rules if it is feasible ([`check`](crate::check::check)) and:
//!
//! * each job has one share at most, and up to [`WORKERS_MAX`] workers;
//! * one stream goes to the parameter server: the sum of the root, or that of the only worker;
//! * each other stream goes up with each link ([`Topology::tiers`]);
//! * each switch sends one stream at most, be it its sum or one that it passes on;
//! * a switch that sums has two members at least and [`MEMBERS_MAX`] at most;
//! * a switch that passes on what comes from another one has a capacity above 0. Without, it is
//!   down, or none of Tally's.
//!
//! So each switch has one parent, and the root is above all others. A worker joins its own switch,
//! because two streams may not leave that. The way from the root to the parameter server is free:
//! nothing is summed on it.
//!
//! Written from these definitions alone, without code of the search (`upward.rs`).

use crate::check::ends;
use crate::model::{Node, Problem, Topology};
use crate::plan::{JobPlan, Plan, Stream, Tree};
use std::collections::BTreeMap;

/// Workers and switches below that a switch has in a job at most.
pub const MEMBERS_MAX: usize = 64;
/// Workers of a job at most.
pub const WORKERS_MAX: usize = 4096;

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A mixture of trees.
    #[error("job {job}: {shares} shares, expected 1")]
    Shares {
        /// The job.
        job: usize,
        /// Their number.
        shares: usize,
    },
    /// Too many workers.
    #[error("job {job}: {workers} workers, expected up to {WORKERS_MAX}")]
    Workers {
        /// The job.
        job: usize,
        /// Their number.
        workers: usize,
    },
    /// Streams that meet at the parameter server.
    #[error("job {job}: {streams} streams go to the parameter server, expected 1")]
    Server {
        /// The job.
        job: usize,
        /// Their number.
        streams: usize,
    },
    /// A stream that does not go up.
    #[error("job {job}: a stream goes from switch {from} to switch {to}, which is not above it")]
    Down {
        /// The job.
        job: usize,
        /// Index of the switch at the begin of the link.
        from: usize,
        /// Index of that at its end.
        to: usize,
    },
    /// A switch that would forward a stream and send another one.
    #[error("job {job}: {streams} streams leave switch {switch}, expected 1")]
    Leaves {
        /// The job.
        job: usize,
        /// Index of the switch.
        switch: usize,
        /// Their number.
        streams: usize,
    },
    /// A stream over a switch that is down.
    #[error("job {job}: a stream passes switch {switch}, which has capacity 0")]
    Passes {
        /// The job.
        job: usize,
        /// Index of the switch.
        switch: usize,
    },
    /// A switch with too few or too many members.
    #[error("job {job}: switch {switch} sums {members} streams, expected 2 to {MEMBERS_MAX}")]
    Members {
        /// The job.
        job: usize,
        /// Index of the switch.
        switch: usize,
        /// Their number.
        members: usize,
    },
}

/// Checks a feasible plan against the rules.
///
/// # Errors
///
/// The first rule broken.
pub fn check(problem: &Problem, plan: &Plan) -> Result<(), Broken> {
    let jobs = plan.jobs.iter().enumerate();
    jobs.map(|(job, planned)| check_job(problem, job, planned))
        .collect()
}

/// Checks the plan of one job, which sums each gradient once, against the rules.
///
/// # Errors
///
/// The first rule broken.
pub fn check_job(problem: &Problem, job: usize, planned: &JobPlan) -> Result<(), Broken> {
    match &planned.shares[..] {
        [] => Ok(()),
        [share] => check_tree(problem, job, &share.tree),
        shares => {
            let shares = shares.len();
            Err(Broken::Shares { job, shares })
        }
    }
}

fn check_tree(problem: &Problem, job: usize, tree: &Tree) -> Result<(), Broken> {
    let tiers = problem.topology.tiers();
    let workers = problem.jobs[job].workers.len();
    if workers > WORKERS_MAX {
        return Err(Broken::Workers { job, workers });
    }
    let is_last = |to: Node| matches!(to, Node::Server(_));
    let streams = tree.streams.iter().filter(|it| is_last(it.to)).count();
    if streams != 1 {
        return Err(Broken::Server { job, streams });
    }
    let mut leaving = BTreeMap::<usize, usize>::new();
    let mut members = BTreeMap::<usize, usize>::new();
    for stream in &tree.streams {
        if let Node::Switch(switch) = stream.to {
            *members.entry(switch).or_default() += 1;
        }
        let mut hops = hops(&problem.topology, stream);
        if is_last(stream.to) {
            hops.truncate(1);
        }
        // The first hop begins at the switch of the worker, or at the one that has summed.
        let passed = hops.iter().skip(1).map(|hop| hop.0);
        let is_up = |at: usize| problem.topology.switches[at].capacity > 0.0;
        if let Some(switch) = passed.into_iter().find(|&at| !is_up(at)) {
            return Err(Broken::Passes { job, switch });
        }
        for (from, to) in hops {
            *leaving.entry(from).or_default() += 1;
            if let Some(to) = to
                && !is_last(stream.to)
                && tiers[to] <= tiers[from]
            {
                return Err(Broken::Down { job, from, to });
            }
        }
    }
    if let Some((&switch, &streams)) = leaving.iter().find(|(_, streams)| **streams > 1) {
        return Err(Broken::Leaves {
            job,
            switch,
            streams,
        });
    }
    let mut members = members.into_iter();
    let wrong = members.find(|(_, members)| !(2..=MEMBERS_MAX).contains(members));
    wrong.map_or(Ok(()), |(switch, members)| {
        Err(Broken::Members {
            job,
            switch,
            members,
        })
    })
}

/// The switches that a stream leaves, and where to, if that is a switch.
fn hops(topology: &Topology, stream: &Stream) -> Vec<(usize, Option<usize>)> {
    let ends = stream.route.iter().filter_map(|&way| ends(topology, way));
    let hops = ends.filter_map(|(from, to)| match (from, to) {
        (Node::Switch(from), Node::Switch(to)) => Some((from, Some(to))),
        (Node::Switch(from), _) => Some((from, None)),
        _ => None,
    });
    hops.collect()
}
