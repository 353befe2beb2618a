//! What a plan means for Tally: a job for each share with its ranks and its tree of switches, and a
//! circuit for each stream.

use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use tally_planner::check::check;
use tally_planner::{Node, Plan, Problem, Resource, Tree};

/// The number of the first job of Tally.
const FIRST_JOB: u16 = 7;
/// Workers and child switches of a job at one switch.
const MEMBERS_MAX: usize = 64;

/// Fragments that a worker has in flight at least, of each share.
const LEAST_IN_FLIGHT: u16 = 3;

/// A tunnel from where gradients are made or summed to where they are summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// A host or a switch.
    pub from: Node,
    /// A switch or a parameter server.
    pub to: Node,
    /// Ways of cables from the one to the other, in order.
    pub route: Vec<Resource>,
    /// The share whose worker has it; several shares may have a circuit between switches.
    pub worker: Option<usize>,
}

impl Circuit {
    /// Ways and the capacity that its frames of gradients load.
    pub fn resources(&self) -> impl Iterator<Item = Resource> {
        let capacity = match self.to {
            Node::Switch(switch) => Some(Resource::Capacity(switch)),
            _ => None,
        };
        self.route.iter().copied().chain(capacity)
    }
}

/// The place of a switch or PS in the tree of a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Workers that join here, as hosts of the problem with their circuits, in the order of ranks.
    pub workers: Vec<(usize, usize)>,
    /// Switches that send their sums here, in the order of ranks, and the workers at and below
    /// each.
    pub children: Vec<(Node, u16)>,
    /// Where its own sums go, and its local rank there; none at the PS.
    pub parent: Option<(Node, u8)>,
    /// Global rank of the first worker at or below it.
    pub first: u16,
    /// Workers at and below it.
    pub covered: u16,
}

/// A share of a job, as a job of Tally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The job of the problem.
    pub job: usize,
    /// Its number on the wire.
    pub id: u16,
    /// Fragments of its gradients.
    pub fragments: u64,
    /// Fragments that a worker has in flight at most.
    pub in_flight: u16,
    /// Who sums, by switch or PS.
    pub roles: BTreeMap<Node, Role>,
    /// Circuits of its sums.
    links: Vec<usize>,
}

/// Jobs and circuits.
#[derive(Clone, Debug)]
pub struct Layout {
    /// One for each share that has fragments.
    pub parts: Vec<Part>,
    /// Circuits of workers and between switches.
    pub circuits: Vec<Circuit>,
    /// Elements' fragments of each job of the problem.
    pub fragments: Vec<u64>,
    /// Frames that each way and each capacity carries in a round.
    frames: BTreeMap<Resource, u64>,
}

impl Layout {
    /// Of a plan, in which the job of the highest rate has `fragments`, and `in_flight` of them at
    /// once.
    ///
    /// # Errors
    /// A plan that is not feasible, or that Tally's switches cannot carry out.
    pub fn new(problem: &Problem, plan: &Plan, fragments: u64, in_flight: f64) -> Result<Self> {
        check(problem, plan)?;
        let highest = plan.jobs.iter().map(|job| job.rate).fold(0.0, f64::max);
        ensure!(highest > 0.0, "no job of the plan has a rate above 0");
        let mut layout = Self {
            parts: Vec::new(),
            circuits: Vec::new(),
            fragments: Vec::new(),
            frames: BTreeMap::new(),
        };
        for (at, (job, planned)) in problem.jobs.iter().zip(&plan.jobs).enumerate() {
            ensure!(
                !job.element.is_narrow(),
                "job {}: 16-bit elements are not carried out",
                job.name
            );
            let relative = planned.rate / highest;
            let all = fragments as f64 * relative;
            let (mut done, mut until) = (0, 0.0);
            for share in &planned.shares {
                until += share.fraction;
                let end = (all * until).round() as u64;
                let part = end - done;
                done = end;
                if part == 0 {
                    continue;
                }
                let own = in_flight * relative * share.fraction;
                layout.parts.push(Part {
                    job: at,
                    id: 0,
                    fragments: part,
                    in_flight: (own.round() as u16).max(LEAST_IN_FLIGHT),
                    roles: BTreeMap::new(),
                    links: Vec::new(),
                });
                layout.add_tree(&share.tree)?;
                layout.count(&share.tree, part);
            }
            layout.fragments.push(done);
        }
        layout.check_order()?;
        layout.number()?;
        Ok(layout)
    }

    /// Circuits and roles of the last share.
    fn add_tree(&mut self, tree: &Tree) -> Result<()> {
        let at = self.parts.len() - 1;
        let mut roles = BTreeMap::<Node, Role>::new();
        let mut links = Vec::new();
        let root = Node::Server(tree.server);
        for stream in &tree.streams {
            let worker = matches!(stream.from, Node::Host(_)).then_some(at);
            let circuit = Circuit {
                from: stream.from,
                to: stream.to,
                route: stream.route.clone(),
                worker,
            };
            let known = self.circuits.iter().position(|it| *it == circuit);
            let number = known.unwrap_or(self.circuits.len());
            if known.is_none() {
                self.circuits.push(circuit);
            }
            let role = roles.entry(stream.to).or_default();
            match stream.from {
                Node::Host(host) => role.workers.push((host, number)),
                from => {
                    role.children.push((from, 0));
                    links.push(number);
                }
            }
        }
        rank(&mut roles, root, 0)?;
        (self.parts[at].roles, self.parts[at].links) = (roles, links);
        Ok(())
    }

    fn count(&mut self, tree: &Tree, fragments: u64) {
        for stream in &tree.streams {
            let capacity = match stream.to {
                Node::Switch(switch) => Some(Resource::Capacity(switch)),
                _ => None,
            };
            for &resource in stream.route.iter().chain(&capacity) {
                *self.frames.entry(resource).or_default() += fragments;
            }
        }
    }

    /// Refuses switches that are above themselves.
    fn check_order(&self) -> Result<()> {
        let above = |of: Node| self.between_switches().filter(move |it| it.from == of);
        let mut left: BTreeSet<_> = self.between_switches().map(|it| it.from).collect();
        while let Some(&top) = left
            .iter()
            .find(|of| !above(**of).any(|it| left.contains(&it.to)))
        {
            left.remove(&top);
        }
        if let Some(one) = left.first() {
            bail!("the plan has {one:?} below itself: no fabric of switches has that");
        }
        Ok(())
    }

    fn between_switches(&self) -> impl Iterator<Item = &Circuit> {
        let circuits = self.circuits.iter();
        circuits.filter(|it| it.worker.is_none())
    }

    /// Gives jobs their numbers. Of several links to its parent a job takes one by its number, so
    /// the number decides for the circuit of the plan.
    fn number(&mut self) -> Result<()> {
        let mut next = FIRST_JOB;
        for at in 0..self.parts.len() {
            let wanted = self.wanted_links(at);
            let fits = |id: &u16| {
                wanted
                    .iter()
                    .all(|(n, links)| usize::from(*id) % links == *n)
            };
            let id = (next..u16::MAX).find(fits);
            let id = id.context("no number of a job chooses the links of the plan")?;
            self.parts[at].id = id;
            next = id + 1;
        }
        Ok(())
    }

    /// For each sum of a share: which of the links between the same two switches it takes, and how
    /// many there are.
    fn wanted_links(&self, at: usize) -> Vec<(usize, usize)> {
        let routes = &self.parts[at].links;
        let of = |circuit: &usize| {
            let Circuit { from, to, .. } = &self.circuits[*circuit];
            let same = self
                .circuits
                .iter()
                .enumerate()
                .filter(|(_, it)| it.worker.is_none() && it.from == *from && it.to == *to);
            let same: Vec<_> = same.map(|(n, _)| n).collect();
            let place = same.iter().position(|n| n == circuit).unwrap_or(0);
            (place, same.len())
        };
        routes.iter().map(of).collect()
    }

    /// Frames of gradients that each way and each capacity carries in a round.
    #[must_use]
    pub fn frames(&self) -> BTreeMap<Resource, u64> {
        self.frames.clone()
    }

    /// Frames of gradients that a circuit carries in a round.
    #[must_use]
    pub fn frames_of(&self, circuit: usize) -> u64 {
        let own = self.circuits[circuit].worker;
        let parts = self.parts.iter().enumerate();
        let passing = parts.filter(|(at, it)| own == Some(*at) || it.links.contains(&circuit));
        passing.map(|(_, part)| part.fragments).sum()
    }

    /// All switches that sum, and parameter servers.
    #[must_use]
    pub fn summing(&self) -> BTreeSet<Node> {
        self.circuits.iter().map(|it| it.to).collect()
    }
}

/// Places the tree below `at`, whose first worker has global rank `first`. Returns its workers.
fn rank(roles: &mut BTreeMap<Node, Role>, at: Node, first: u16) -> Result<u16> {
    let role = roles.get_mut(&at).context("a switch that gets no stream")?;
    role.first = first;
    let own = role.workers.len();
    let children: Vec<_> = role.children.iter().map(|(child, _)| *child).collect();
    ensure!(
        own + children.len() <= MEMBERS_MAX,
        "{at:?} sums {} streams of a share, up to {MEMBERS_MAX} are allowed",
        own + children.len()
    );
    let mut covered = own as u16;
    for (n, child) in children.into_iter().enumerate() {
        let below = rank(roles, child, first + covered)?;
        if let Some(it) = roles.get_mut(&child) {
            it.parent = Some((at, (own + n) as u8));
        }
        if let Some(it) = roles.get_mut(&at) {
            it.children[n].1 = below;
        }
        covered += below;
    }
    if let Some(it) = roles.get_mut(&at) {
        it.covered = covered;
    }
    Ok(covered)
}
