//! The role of each switch in the tree of a job, as a plan asks for it. Without I/O.
//!
//! A plan has streams; a switch has a *role*: workers at it, the switch above, the switches below,
//! and which global ranks all these have. Ranks follow from the tree (PROTOCOL.md, TR-20): a
//! switch's own workers have the first ones, in the order of the job in the fleet's file, then each
//! switch below has those of its workers, the one with the earliest worker first.
//!
//! A worker joins its own switch, a switch sums all streams of a job that it gets, and a sum goes
//! up one link of the fabric. A plan for switches ([`rules`](tally_planner::rules)) has such trees,
//! and is made as it is if switches report the tiers that it was made for.
//!
//! Other plans are freer. A job's tree takes from them the links on which the job's gradients
//! travel, and no others:
//!
//! * The links without those that only lead to the parameter server (PS) make a tree, or the plan
//!   is refused. Its root is the switch that has no link up in it, wherever the PS is.
//! * So a sum may travel a link the other way than planned. A result travels against it, so the
//!   link has the same load.
//! * A switch may sum more or fewer streams than planned. [`check_capacity`] refuses what is above
//!   its capacity. A switch with one member passes on what comes; this takes no slot of its pool.
//! * Streams that meet at the PS meet at its switch, if that is the root: it sums what its pool
//!   takes, and the PS the rest.

use crate::names;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tally_planner::check::{limit, loads};
use tally_planner::rules::{MEMBERS_MAX, WORKERS_MAX};
use tally_planner::{Job, JobPlan, Node, Plan, Problem, Resource, Share, Stream, Topology};
use tally_schema::switch::config::TOTAL_MAX;
use tally_schema::switch::report::{FabricLinkReport, JobReport};

/// Relative excess of a load that is taken for rounding.
const TOLERANCE: f64 = 1e-7;
// The planner knows what switches take.
const _: () = assert!(WORKERS_MAX == TOTAL_MAX as usize);

/// What one switch does for a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Role {
    /// Workers at the switch.
    pub workers: u8,
    /// Parameter servers of the job at the switch.
    pub parameter_servers: u8,
    /// Its position in the tree; `None` if it is the job's only switch.
    pub tree: Option<Position>,
}

/// The position of a switch in the tree of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Workers of the whole job.
    pub total: u16,
    /// Global rank of the first worker at or below the switch.
    pub first: u16,
    /// The switch above; `None` at the root.
    pub parent: Option<Parent>,
    /// The switches below, in the order of their local ranks.
    pub children: Vec<Child>,
}

/// The switch above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parent {
    /// Its name.
    pub switch: String,
    /// Local rank of this switch there.
    pub rank: u8,
}

/// A switch below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Child {
    /// Its name.
    pub switch: String,
    /// Workers at and below it.
    pub ranks: u16,
}

impl Role {
    /// What a switch says that it does for a job.
    #[must_use]
    pub fn reported(job: &JobReport) -> Self {
        Self {
            workers: job
                .tree
                .as_ref()
                .map_or(job.members.workers, |tree| tree.hosts),
            parameter_servers: job.parameter_servers,
            tree: job.tree.as_ref().map(|tree| Position {
                total: tree.total,
                first: tree.first,
                parent: tree.parent.as_ref().map(|it| Parent {
                    switch: it.switch.clone(),
                    rank: it.rank,
                }),
                children: tree
                    .children
                    .iter()
                    .map(|it| Child {
                        switch: it.switch.clone(),
                        ranks: it.ranks,
                    })
                    .collect(),
            }),
        }
    }

    /// Name of the switch above.
    #[must_use]
    pub fn parent(&self) -> Option<&str> {
        let parent = self.tree.as_ref()?.parent.as_ref()?;
        Some(&parent.switch)
    }

    /// Workers and switches below.
    #[must_use]
    pub fn members(&self) -> usize {
        usize::from(self.workers) + self.children().count()
    }

    /// Names of the switches below.
    pub fn children(&self) -> impl Iterator<Item = &str> {
        let children = self.tree.iter().flat_map(|tree| &tree.children);
        children.map(|it| it.switch.as_str())
    }
}

/// In short: `2 workers, ranks 2 to 3 of 4, rank 1 at spine1`.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.workers {
            0 => {}
            1 => write!(f, "1 worker, ")?,
            n => write!(f, "{n} workers, ")?,
        }
        let Some(tree) = &self.tree else {
            write!(f, "the job's only switch")?;
            return self.servers(f);
        };
        let below: u32 = tree.children.iter().map(|it| u32::from(it.ranks)).sum();
        let ranks = u32::from(self.workers) + below;
        match ranks {
            1 => write!(f, "rank {} of {}", tree.first, tree.total)?,
            _ => {
                let last = (u32::from(tree.first) + ranks).saturating_sub(1);
                write!(f, "ranks {} to {last} of {}", tree.first, tree.total)?;
            }
        }
        match &tree.parent {
            None => write!(f, ", root")?,
            Some(parent) => write!(f, ", local rank {} at {}", parent.rank, parent.switch)?,
        }
        if !tree.children.is_empty() {
            let names: Vec<_> = self.children().collect();
            write!(f, ", below: {}", names.join(", "))?;
        }
        self.servers(f)
    }
}

impl Role {
    fn servers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parameter_servers {
            1 => Ok(()),
            n => write!(f, ", {n} parameter servers"),
        }
    }
}

/// Where a worker joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Index of its host.
    pub host: usize,
    /// Index of its switch.
    pub switch: usize,
    /// Its global rank.
    pub rank: u16,
}

/// The tree of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobTree {
    /// Roles by the index of the switch: each after those below it, the root last.
    pub roles: Vec<(usize, Role)>,
    /// Workers by global rank.
    pub workers: Vec<Worker>,
    /// Of each switch that sums, how many streams.
    pub sums: Vec<(usize, usize)>,
}

/// Why a plan cannot be applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The job reaches no PS over switches that can sum.
    #[error(
        "job {job}: the plan has no tree, because no parameter server is in reach of its workers \
         over switches that are up and can sum; change the fleet, or take the job out of it"
    )]
    NoTree {
        /// The job.
        job: String,
    },
    /// A mixture of trees.
    #[error("job {job}: found {shares} shares, expected 1; plan with `--trees 1`")]
    Shares {
        /// The job.
        job: String,
        /// Their number.
        shares: usize,
    },
    /// A switch that would sum more than it can.
    #[error(
        "job {job}: {switch} would sum the streams of {members}, because a worker joins its own \
         switch and a switch sums all that it gets; all jobs have it sum {load:.4} then, expected \
         up to {limit:.4}; give it capacity, or plan with `--algorithm tally --trees 1`"
    )]
    Capacity {
        /// The job.
        job: String,
        /// The switch.
        switch: String,
        /// Names of its workers and of the switches below.
        members: String,
        /// What all jobs have it sum.
        load: f64,
        /// Its capacity without background load.
        limit: f64,
    },
    /// Links that are no tree.
    #[error(
        "job {job}: the plan takes several ways between {switches}, but a job has one tree; plan \
         with `--algorithm tally --trees 1`"
    )]
    Ways {
        /// The job.
        job: String,
        /// Names of the switches.
        switches: String,
    },
    /// A switch below two others.
    #[error(
        "job {job}: the plan joins {first} and {second} by {switch}, which is below both, but a \
         switch has one parent in the tree of a job; plan with `--algorithm tally --trees 1`, and \
         give the fleet the `tier` of {switch} if it is not its distance from hosts"
    )]
    Parents {
        /// The job.
        job: String,
        /// The switch.
        switch: String,
        /// Name of a switch above.
        first: String,
        /// Name of another one.
        second: String,
    },
    /// Too many members.
    #[error(
        "job {job}: {switch} has {members} workers and switches of the job, expected up to \
         {MEMBERS_MAX}"
    )]
    Members {
        /// The job.
        job: String,
        /// The switch.
        switch: String,
        /// Workers and child switches.
        members: usize,
    },
    /// Too many workers.
    #[error("job {job}: found {total} workers, expected up to {TOTAL_MAX} in a tree")]
    Total {
        /// The job.
        job: String,
        /// Workers.
        total: usize,
    },
    /// A link of the plan that the fabric does not have.
    #[error(
        "job {job}: the plan has a link of {switch} and {other}, but {switch} reports none{way} \
         to {other} (its links{way}: {links}); see `fabric.links` of both, and `links` of the \
         fleet"
    )]
    Link {
        /// The job.
        job: String,
        /// The switch that lacks it.
        switch: String,
        /// The other end.
        other: String,
        /// ` up`, ` down`, or nothing for both.
        way: &'static str,
        /// What it has.
        links: String,
    },
}

impl Refusal {
    /// The job that it is about.
    #[must_use]
    pub fn job(&self) -> &str {
        match self {
            Self::NoTree { job }
            | Self::Shares { job, .. }
            | Self::Capacity { job, .. }
            | Self::Ways { job, .. }
            | Self::Parents { job, .. }
            | Self::Members { job, .. }
            | Self::Total { job, .. }
            | Self::Link { job, .. } => job,
        }
    }
}

/// The switches that a stream passes: that of a worker, or the one that has summed, first. The last
/// one is that of its end.
fn path(topology: &Topology, stream: &Stream) -> Vec<usize> {
    let mut path = Vec::new();
    if let Node::Switch(at) = stream.from {
        path.push(at);
    }
    for &way in &stream.route {
        if let Some((_, Node::Switch(at))) = names::ends(topology, way) {
            path.push(at);
        }
    }
    path
}

/// All switches that streams of a plan pass.
#[must_use]
pub fn passed(topology: &Topology, plan: &Plan) -> BTreeSet<usize> {
    let jobs = plan.jobs.iter();
    jobs.flat_map(|job| passed_of(topology, job)).collect()
}

/// All switches that streams of a job pass.
#[must_use]
pub fn passed_of(topology: &Topology, job: &JobPlan) -> BTreeSet<usize> {
    let streams = job.shares.iter().flat_map(|share| &share.tree.streams);
    streams.flat_map(|it| path(topology, it)).collect()
}

/// The one share of a job.
///
/// # Errors
/// If there are several, or none.
pub fn only_share<'a>(job: &Job, planned: &'a JobPlan) -> Result<&'a Share, Refusal> {
    let name = || job.name.clone();
    match &planned.shares[..] {
        [share] => Ok(share),
        [] => Err(Refusal::NoTree { job: name() }),
        shares => Err(Refusal::Shares {
            job: name(),
            shares: shares.len(),
        }),
    }
}

/// The tree that a plan has for a job, and the fabric: `links` has the links that a switch reports.
///
/// # Errors
/// What of the plan Tally's switches cannot do.
pub fn tree<'a>(
    topology: &Topology,
    job: &Job,
    planned: &JobPlan,
    parameter_servers: u8,
    links: impl Fn(usize) -> &'a [FabricLinkReport],
) -> Result<JobTree, Refusal> {
    let share = only_share(job, planned)?;
    let mut shape = Shape::new(topology, job);
    let server = share.tree.server;
    let into = share.tree.streams.iter();
    let into: Vec<_> = into.filter(|it| it.to == Node::Server(server)).collect();
    // The only sum that goes to the PS is complete, and its way there is no part of the tree.
    let is_complete =
        |it: &Stream| matches!(it.from, Node::Switch(_)) && into.len() == 1 && *it == *into[0];
    let streams = share.tree.streams.iter();
    let streams = streams.filter(|it| !is_complete(it));
    streams.for_each(|it| shape.add(it));
    shape.prune();
    let root = shape.orient(links)?;
    let mut tree = shape.tree(root, parameter_servers)?;
    if into.len() > 1 && topology.servers[server].switch == root {
        // What comes to the PS from others is for the PS to sum.
        let others = into.iter().filter(|it| it.from != Node::Switch(root));
        let others = others.count();
        let of_root = tree.sums.iter_mut().filter(|it| it.0 == root);
        of_root.for_each(|it| it.1 = it.1.saturating_sub(others));
    }
    Ok(tree)
}

/// Refuses trees with which a switch sums more than planned, and more than it can.
///
/// # Errors
/// The first such switch.
pub fn check_capacity(problem: &Problem, plan: &Plan, trees: &[JobTree]) -> Result<(), Refusal> {
    let planned = loads(problem, plan);
    let mut sums = BTreeMap::<usize, f64>::new();
    for ((job, planned), tree) in problem.jobs.iter().zip(&plan.jobs).zip(trees) {
        for &(at, streams) in &tree.sums {
            let switch = &problem.topology.switches[at];
            let is_narrow = job.element.is_narrow();
            let cost = if is_narrow { switch.narrow_cost } else { 1.0 };
            *sums.entry(at).or_default() += planned.rate * streams as f64 * cost;
        }
    }
    for (job, tree) in problem.jobs.iter().zip(trees) {
        for (at, role) in &tree.roles {
            let load = sums.get(at).copied().unwrap_or_default();
            let resource = Resource::Capacity(*at);
            let planned = planned.get(&resource).copied().unwrap_or_default();
            let limit = limit(problem, resource);
            if load <= limit.max(planned) * (1.0 + TOLERANCE) {
                continue;
            }
            let topology = &problem.topology;
            let workers = tree.workers.iter().filter(|it| it.switch == *at);
            let workers = workers.map(|it| topology.hosts[it.host].name.as_str());
            let members: Vec<_> = workers.chain(role.children()).collect();
            return Err(Refusal::Capacity {
                job: job.name.clone(),
                switch: topology.switches[*at].name.clone(),
                members: members.join(", "),
                load,
                limit,
            });
        }
    }
    Ok(())
}

/// Where the gradients of a job travel.
struct Shape<'a> {
    topology: &'a Topology,
    job: &'a Job,
    /// Of each switch, those to which the job takes links.
    links: BTreeMap<usize, BTreeSet<usize>>,
    /// Of each switch, its workers as places in the job's list.
    workers: BTreeMap<usize, BTreeSet<usize>>,
    /// Of each switch, the one above.
    above: BTreeMap<usize, usize>,
}

impl<'a> Shape<'a> {
    fn new(topology: &'a Topology, job: &'a Job) -> Self {
        Self {
            topology,
            job,
            links: BTreeMap::new(),
            workers: BTreeMap::new(),
            above: BTreeMap::new(),
        }
    }

    fn name(&self, switch: usize) -> String {
        self.topology.switches[switch].name.clone()
    }

    fn add(&mut self, stream: &Stream) {
        let path = path(self.topology, stream);
        if let (Node::Host(host), Some(&own)) = (stream.from, path.first()) {
            let place = self.job.workers.iter().position(|&it| it == host);
            self.workers.entry(own).or_default().extend(place);
        }
        for &at in &path {
            self.links.entry(at).or_default();
        }
        for pair in path.windows(2) {
            self.links.entry(pair[0]).or_default().insert(pair[1]);
            self.links.entry(pair[1]).or_default().insert(pair[0]);
        }
    }

    /// Takes out switches that only lead to the PS: ends of the tree without workers.
    fn prune(&mut self) {
        loop {
            let mut links = self.links.iter();
            let end = links.find(|(at, to)| to.len() < 2 && !self.workers.contains_key(at));
            let Some((&end, _)) = end else { return };
            self.links.remove(&end);
            for to in self.links.values_mut() {
                to.remove(&end);
            }
        }
    }

    /// Finds the switch above each, and the root.
    fn orient<'b>(
        &mut self,
        reported: impl Fn(usize) -> &'b [FabricLinkReport],
    ) -> Result<usize, Refusal> {
        let ends: usize = self.links.values().map(BTreeSet::len).sum();
        let is_tree = ends / 2 + 1 == self.links.len();
        for (&at, to) in &self.links {
            for &other in to {
                if !self.is_up(at, other, &reported)? {
                    continue;
                }
                if let Some(first) = self.above.insert(at, other)
                    && is_tree
                {
                    return Err(Refusal::Parents {
                        job: self.job.name.clone(),
                        switch: self.name(at),
                        first: self.name(first),
                        second: self.name(other),
                    });
                }
            }
        }
        let roots = self.links.keys().filter(|at| !self.above.contains_key(at));
        match (is_tree, &roots.collect::<Vec<_>>()[..]) {
            (true, [root]) => Ok(**root),
            _ => {
                let switches = self.links.keys().map(|&at| self.name(at));
                Err(Refusal::Ways {
                    job: self.job.name.clone(),
                    switches: switches.collect::<Vec<_>>().join(", "),
                })
            }
        }
    }

    /// Whether a switch is above another one, as both report.
    fn is_up<'b>(
        &self,
        at: usize,
        other: usize,
        reported: impl Fn(usize) -> &'b [FabricLinkReport],
    ) -> Result<bool, Refusal> {
        let name = |at: usize| &self.topology.switches[at].name;
        let link = |at: usize, other: usize| {
            let mut links = reported(at).iter();
            links.find(|it| it.switch == *name(other)).map(|it| it.up)
        };
        let lacks = |at: usize, other: usize, way: &'static str| {
            let is_way = |it: &&FabricLinkReport| way.is_empty() || it.up == (way == " up");
            let links = reported(at).iter().filter(is_way);
            let links: BTreeSet<_> = links.map(|it| it.switch.as_str()).collect();
            let links: Vec<_> = links.into_iter().collect();
            Err(Refusal::Link {
                job: self.job.name.clone(),
                switch: self.name(at),
                other: self.name(other),
                way,
                links: match &links[..] {
                    [] => "none".to_owned(),
                    links => links.join(", "),
                },
            })
        };
        match (link(at, other), link(other, at)) {
            (None, _) => lacks(at, other, ""),
            (_, None) => lacks(other, at, ""),
            (Some(true), Some(true)) => lacks(other, at, " down"),
            (Some(false), Some(false)) => lacks(at, other, " up"),
            (Some(up), Some(_)) => Ok(up),
        }
    }

    /// Switches below, the one with the earliest worker first.
    fn children(&self, switch: usize) -> Vec<usize> {
        let mut below: Vec<_> = self.below(switch).collect();
        below.sort_by_key(|&child| self.earliest(child));
        below
    }

    fn below(&self, switch: usize) -> impl Iterator<Item = usize> {
        let above = self.above.iter();
        above.filter(move |it| *it.1 == switch).map(|it| *it.0)
    }

    /// The first worker at or below a switch, as a place in the job's list.
    fn earliest(&self, switch: usize) -> usize {
        let own = self.workers.get(&switch).and_then(|it| it.first().copied());
        let below = self.below(switch).map(|child| self.earliest(child));
        own.into_iter().chain(below).min().unwrap_or(usize::MAX)
    }

    /// Workers at and below a switch.
    fn ranks(&self, switch: usize) -> usize {
        let own = self.workers.get(&switch).map_or(0, BTreeSet::len);
        let below = self.below(switch).map(|child| self.ranks(child));
        own + below.sum::<usize>()
    }

    fn tree(&self, root: usize, parameter_servers: u8) -> Result<JobTree, Refusal> {
        let total = self.job.workers.len();
        if total > usize::from(TOTAL_MAX) {
            let job = self.job.name.clone();
            return Err(Refusal::Total { job, total });
        }
        let mut tree = JobTree {
            roles: Vec::new(),
            workers: Vec::new(),
            sums: Vec::new(),
        };
        self.place(root, None, parameter_servers, &mut tree)?;
        if let [(_, role)] = &mut tree.roles[..] {
            // Without others, it is a switch without a tree.
            role.tree = None;
        }
        Ok(tree)
    }

    /// Gives a switch and all below it their roles.
    fn place(
        &self,
        switch: usize,
        parent: Option<Parent>,
        parameter_servers: u8,
        tree: &mut JobTree,
    ) -> Result<(), Refusal> {
        let first = tree.workers.len();
        for &place in self.workers.get(&switch).into_iter().flatten() {
            tree.workers.push(Worker {
                host: self.job.workers[place],
                switch,
                rank: tree.workers.len() as u16,
            });
        }
        let own = tree.workers.len() - first;
        let below = self.children(switch);
        let members = own + below.len();
        if members > MEMBERS_MAX {
            return Err(Refusal::Members {
                job: self.job.name.clone(),
                switch: self.name(switch),
                members,
            });
        }
        let mut children = Vec::new();
        for (nth, &child) in below.iter().enumerate() {
            let here = Parent {
                switch: self.name(switch),
                rank: (own + nth) as u8,
            };
            self.place(child, Some(here), parameter_servers, tree)?;
            children.push(Child {
                switch: self.name(child),
                ranks: self.ranks(child) as u16,
            });
        }
        let role = Role {
            workers: own as u8,
            parameter_servers,
            tree: Some(Position {
                total: self.job.workers.len() as u16,
                first: first as u16,
                parent,
                children,
            }),
        };
        tree.roles.push((switch, role));
        if members > 1 {
            tree.sums.push((switch, members));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
