//! Trees that lead up, each switch of which sums all that it gets (`rules.rs`).
//!
//! A root is a switch to which ways up lead from all switches with workers of a job. Each link of
//! such a tree has one stream, whatever is below it. So the price of a tree is that of its links,
//! and of the members of each switch with two or more.
//!
//! Where each switch has one way up to the root, as in leaf-spine networks and fat-trees, one tree
//! leads to it. Else the cheapest one is a Steiner arborescence, sought by local search: a switch
//! takes another way up, or all that can take a way to some switch do.

use crate::market::Market;
use crate::model::{Node, Problem};
use crate::network::Network;
use crate::plan::{Stream, Tree};
use crate::rules::{MEMBERS_MAX, WORKERS_MAX};
use crate::trees::Builder;

/// An arc up, and the switch that it leads to.
type Way = (usize, usize);

/// The trees of a job.
pub struct Upward<'a> {
    builder: Builder<'a>,
    job: usize,
    /// Its workers by their switch.
    groups: Vec<(usize, Vec<usize>)>,
    /// Where its sum may be complete.
    pub roots: Vec<Root>,
}

/// Trees that lead to one switch.
pub struct Root {
    /// The switch.
    at: usize,
    /// By switch: the ways up that lead to the root.
    ways: Vec<Vec<Way>>,
    /// Switches with several ways up, or to which several ways lead, that are in reach of workers.
    open: Vec<usize>,
    /// By switch: the way up that is taken, if the switch is in the tree.
    taken: Vec<Option<Way>>,
}

/// A tree without its way to a parameter server.
#[derive(Clone)]
pub struct Branches {
    /// Switches with their ways up.
    ways: Vec<(usize, Way)>,
    /// By switch: workers and switches below.
    members: Vec<usize>,
}

/// How far a tree is from one that is possible, and its price. The lower, the better.
type Worth = (usize, f64);

fn is_better(a: Worth, b: Worth) -> bool {
    a.0 < b.0 || (a.0 == b.0 && a.1 < b.1 * (1.0 - 1e-9))
}

/// By switch: ways up on which something is free.
pub fn ups(problem: &Problem, network: &Network) -> Vec<Vec<Way>> {
    let tiers = problem.topology.tiers();
    let is_free =
        |arc: usize| network.free[arc] > 0.0 && (!problem.results || network.free[arc ^ 1] > 0.0);
    let mut ups = vec![Vec::new(); network.switches];
    for (to, arcs) in network.into.iter().enumerate() {
        for &(arc, from) in arcs {
            if tiers[to] > tiers[from] && is_free(arc) {
                ups[from].push((arc, to));
            }
        }
    }
    ups
}

impl<'a> Upward<'a> {
    /// The trees of a job over ways up.
    pub fn new(problem: &'a Problem, network: &'a Network, job: usize, ups: &[Vec<Way>]) -> Self {
        let builder = Builder { problem, network };
        let groups = builder.groups(job);
        let mut all = Self {
            builder,
            job,
            groups,
            roots: Vec::new(),
        };
        let workers = &problem.jobs[job].workers;
        let is_up = |&host: &usize| network.free[network.host_out(host)] > 0.0;
        if workers.len() <= WORKERS_MAX && workers.iter().all(is_up) {
            let roots = (0..network.switches).filter_map(|at| all.root(at, ups));
            all.roots = roots.collect();
        }
        all
    }

    /// The ways to a root, if all workers have one.
    fn root(&self, at: usize, ups: &[Vec<Way>]) -> Option<Root> {
        let switches = ups.len();
        // Which switches are below, from the top down.
        let mut is_below = vec![false; switches];
        is_below[at] = true;
        let mut is_changed = true;
        while is_changed {
            is_changed = false;
            for from in (0..switches).filter(|&from| from != at) {
                if !is_below[from] && ups[from].iter().any(|way| is_below[way.1]) {
                    (is_below[from], is_changed) = (true, true);
                }
            }
        }
        if !self.groups.iter().all(|group| is_below[group.0]) {
            return None;
        }
        let mut ways = vec![Vec::new(); switches];
        let mut is_reached = vec![false; switches];
        let mut reached: Vec<_> = self.groups.iter().map(|group| group.0).collect();
        while let Some(from) = reached.pop() {
            if from == at || std::mem::replace(&mut is_reached[from], true) {
                continue;
            }
            let up = ups[from].iter().filter(|way| is_below[way.1]);
            ways[from] = up.copied().collect();
            reached.extend(ways[from].iter().map(|way| way.1));
        }
        let taken: Vec<_> = ways.iter().map(|ways| ways.first().copied()).collect();
        let choice = ways.iter().filter(|ways| ways.len() > 1);
        let mut open: Vec<_> = choice.flatten().map(|way| way.1).collect();
        open.sort_unstable();
        open.dedup();
        let root = Root {
            at,
            ways,
            open,
            taken,
        };
        // If there is one tree, its faults stay.
        let is_possible = !root.open.is_empty() || self.faults(&self.branches(&root), &root) == 0;
        is_possible.then_some(root)
    }

    /// The tree that is taken.
    pub fn branches(&self, root: &Root) -> Branches {
        let mut members = vec![0; root.taken.len()];
        let mut ways = Vec::new();
        let mut is_in = vec![false; root.taken.len()];
        for (switch, workers) in &self.groups {
            members[*switch] += workers.len();
            let mut at = *switch;
            while at != root.at && !is_in[at] {
                is_in[at] = true;
                let Some(way) = root.taken[at] else { break };
                ways.push((at, way));
                members[way.1] += 1;
                at = way.1;
            }
        }
        Branches { ways, members }
    }

    /// What keeps a tree from being made, counted.
    fn faults(&self, branches: &Branches, root: &Root) -> usize {
        let Builder { problem, network } = self.builder;
        let members = branches.members.iter().enumerate();
        let faults = members.map(|(switch, &members)| {
            let lacks = if network.free[network.capacity(switch)] > 0.0 {
                0
            } else {
                members.saturating_sub(1)
            };
            let is_down = problem.topology.switches[switch].capacity == 0.0;
            let is_passed = is_down && members > 0 && !self.has_workers(switch);
            lacks + members.saturating_sub(MEMBERS_MAX) + usize::from(is_passed)
        });
        // The root is where the last two streams meet.
        let is_lone = problem.jobs[self.job].workers.len() == 1;
        let is_root = branches.members[root.at] > 1 || (is_lone && branches.ways.is_empty());
        faults.sum::<usize>() + usize::from(!is_root)
    }

    fn has_workers(&self, switch: usize) -> bool {
        self.groups.binary_search_by_key(&switch, |it| it.0).is_ok()
    }

    /// What a unit of the job's rate loads on links and switches, by resource.
    pub fn loads(&self, branches: &Branches) -> Vec<(usize, f64)> {
        let network = self.builder.network;
        let mut loads = Vec::new();
        for &(_, (arc, _)) in &branches.ways {
            loads.push((arc, 1.0));
            if self.builder.problem.results {
                loads.push((arc ^ 1, 1.0));
            }
        }
        let members = branches.members.iter().enumerate();
        for (switch, &members) in members.filter(|(_, members)| **members > 1) {
            let cost = self.builder.cost(self.job, switch);
            loads.push((network.capacity(switch), members as f64 * cost));
        }
        loads
    }

    fn worth(&self, root: &Root, price: &dyn Fn(usize, f64) -> f64) -> Worth {
        let branches = self.branches(root);
        let loads = self.loads(&branches).into_iter();
        let prices = loads.map(|(resource, load)| price(resource, load));
        (self.faults(&branches, root), prices.sum())
    }

    /// Finds a cheap tree to a root, whose index is given, by the price of a load on a resource.
    /// `None` if none that is possible is found.
    pub fn improve(&mut self, at: usize, price: &dyn Fn(usize, f64) -> f64) -> Option<Branches> {
        let mut roots = std::mem::take(&mut self.roots);
        let root = &mut roots[at];
        if !root.open.is_empty() {
            self.search(root, price);
        }
        let branches = self.branches(root);
        let is_possible = self.faults(&branches, root) == 0;
        self.roots = roots;
        is_possible.then_some(branches)
    }

    fn search(&self, root: &mut Root, price: &dyn Fn(usize, f64) -> f64) {
        let mut worth = self.worth(root, price);
        let mut is_improved = true;
        while std::mem::take(&mut is_improved) {
            for switch in 0..root.ways.len() {
                for nth in 0..root.ways[switch].len() {
                    let way = root.ways[switch][nth];
                    let before = root.taken[switch].replace(way);
                    let found = self.worth(root, price);
                    if is_better(found, worth) {
                        (worth, is_improved) = (found, true);
                    } else {
                        root.taken[switch] = before;
                    }
                }
            }
            for nth in 0..root.open.len() {
                let (before, to) = (root.taken.clone(), root.open[nth]);
                for (ways, taken) in root.ways.iter().zip(&mut root.taken) {
                    let way = ways.iter().find(|way| way.1 == to);
                    *taken = way.copied().or(*taken);
                }
                let found = self.worth(root, price);
                if is_better(found, worth) {
                    (worth, is_improved) = (found, true);
                } else {
                    root.taken = before;
                }
            }
        }
    }

    /// Whether one tree leads to a root, whose index is given.
    pub fn is_unique(&self, root: usize) -> bool {
        self.roots[root].open.is_empty()
    }

    /// A price below that of all trees that lead to a root, by its index.
    pub fn floor(&self, root: usize, market: &Market) -> f64 {
        let root = &self.roots[root];
        let groups = self.groups.iter().map(|(switch, workers)| {
            let own = match workers.len() {
                1 => 0.0,
                n => n as f64 * market.switches[*switch] * self.builder.cost(self.job, *switch),
            };
            let ways = root.ways[*switch].iter();
            let least = ways.map(|way| market.arcs[way.0]);
            let least = least.reduce(f64::min).unwrap_or_default();
            own + least
        });
        groups.sum()
    }

    /// The price of the way from a root to a parameter server.
    pub fn out(&self, root: usize, server: usize, market: &Market) -> f64 {
        let to = self.builder.switch_of(Node::Server(server));
        market.paths.cost(self.roots[root].at, to) + market.servers[server]
    }

    /// The tree with the way from a root to a parameter server. `None` if there is none.
    pub fn tree(
        &self,
        root: usize,
        branches: &Branches,
        server: usize,
        market: &Market,
    ) -> Option<Tree> {
        if !self.out(root, server, market).is_finite() {
            return None;
        }
        let network = self.builder.network;
        let mut streams = Vec::new();
        let at = self.roots[root].at;
        let (from, mut route) = self.climb(at, branches, &mut streams)?;
        let end = self.builder.switch_of(Node::Server(server));
        route.extend(market.paths.route(at, end));
        route.push(network.server_in(server));
        streams.push((from, Node::Server(server), route));
        let streams = streams.into_iter().map(|(from, to, route)| Stream {
            from,
            to,
            route: route.into_iter().map(|arc| network.resource(arc)).collect(),
        });
        Some(Tree {
            server,
            streams: streams.collect(),
        })
    }

    /// Writes down the streams below a switch. What leaves it: the sum, or the one stream that it
    /// passes on, with the arcs before the switch.
    fn climb(
        &self,
        switch: usize,
        branches: &Branches,
        streams: &mut Vec<(Node, Node, Vec<usize>)>,
    ) -> Option<(Node, Vec<usize>)> {
        let network = self.builder.network;
        let mut coming = Vec::new();
        for (_, workers) in self.groups.iter().filter(|group| group.0 == switch) {
            let hosts = workers.iter();
            coming.extend(hosts.map(|&host| (Node::Host(host), vec![network.host_out(host)])));
        }
        for &(below, (arc, _)) in branches.ways.iter().filter(|it| it.1.1 == switch) {
            let (from, mut route) = self.climb(below, branches, streams)?;
            route.push(arc);
            coming.push((from, route));
        }
        if coming.len() < 2 {
            return coming.pop();
        }
        let to = Node::Switch(switch);
        streams.extend(coming.into_iter().map(|(from, route)| (from, to, route)));
        Some((to, Vec::new()))
    }
}
