//! Cheapest trees under prices of resources: what a master program adds.
//!
//! A tree's price is that of its streams: the cables of their routes, and the capacity of the
//! switch that sums them. Three kinds of trees are sought:
//!
//! * [`Raw`]: no switch sums. The cheapest tree is a cheapest route for each worker.
//! * [`Tor`]: a worker's own switch sums or passes on, on fixed routes. Each switch decides alone.
//! * [`Trees`]: any tree. This is the Steiner arborescence problem over the cheapest routes. It is
//!   solved exactly for up to eight workers (`exact.rs`), else by local search over the set of
//!   switches that sum, from where the search for the same job ended last.

use crate::exact;
use crate::market::Market;
use crate::master::{Candidate, Pricer, Prices};
use crate::model::{Node, Problem};
use crate::network::{Network, ROUTES, Routes};
use crate::plan::Tree;
use crate::trees::Builder;

/// Largest number of workers, and of switches, for the exact search.
const EXACT: (usize, usize) = (8, 24);

/// Trees without sums, on any routes.
pub struct Raw<'a>(pub &'a Problem, pub &'a Network);

impl Raw<'_> {
    fn tree(&self, market: &Market, job: usize, server: usize) -> Option<Tree> {
        let workers = self.0.jobs[job]
            .workers
            .iter()
            .map(|&worker| (worker, Node::Server(server)));
        market
            .builder
            .tree(&market.paths, server, &workers.collect::<Vec<_>>(), &[])
    }
}

impl Pricer for Raw<'_> {
    fn price(&mut self, prices: &Prices) -> (Vec<Candidate>, Vec<f64>) {
        let market = Market::new(self.0, self.1, &prices.of);
        let mut candidates = Vec::new();
        let mut floors = Vec::new();
        for job in 0..self.0.jobs.len() {
            let groups = market.builder.groups(job);
            let mut floor = f64::INFINITY;
            for server in 0..self.0.topology.servers.len() {
                let streams = groups.iter().map(|(from, workers)| {
                    workers.len() as f64 * market.stream(job, *from, Node::Server(server))
                });
                floor = floor.min(streams.sum());
                let tree = self.tree(&market, job, server);
                candidates.extend(tree.map(|tree| Candidate::of(job, tree)));
            }
            floors.push((floor - market.ties(job)).max(0.0) + market.fixed(job));
        }
        (candidates, floors)
    }
}

/// Trees in which a worker's own switch sums or passes on, on the routes with the fewest hops.
pub struct Tor<'a> {
    builder: Builder<'a>,
    routes: Routes,
}

impl<'a> Tor<'a> {
    /// Each share may be summed at a switch or not.
    pub fn new(problem: &'a Problem, network: &'a Network) -> Self {
        Self {
            builder: Builder { problem, network },
            routes: Routes::new(network, ROUTES),
        }
    }

    /// The tree in which each switch sums the number of its workers that `summed` says.
    pub fn tree(
        &self,
        job: usize,
        server: usize,
        summed: impl Fn(usize, usize) -> usize,
    ) -> Option<Tree> {
        let mut workers = Vec::new();
        for (switch, group) in self.builder.groups(job) {
            let count = summed(switch, group.len());
            let sums = group[..count]
                .iter()
                .map(|&worker| (worker, Node::Switch(switch)));
            workers.extend(sums);
            workers.extend(
                group[count..]
                    .iter()
                    .map(|&worker| (worker, Node::Server(server))),
            );
        }
        self.builder.flat(&self.routes, server, &workers)
    }
}

impl Pricer for Tor<'_> {
    fn price(&mut self, prices: &Prices) -> (Vec<Candidate>, Vec<f64>) {
        let Builder { problem, network } = self.builder;
        let mut candidates = Vec::new();
        for job in 0..problem.jobs.len() {
            for server in 0..problem.topology.servers.len() {
                let way = |switch: usize| -> Option<f64> {
                    let end = problem.topology.servers[server].switch;
                    let paths = self.routes.of(switch, end);
                    let route = paths
                        .cost(switch, end)
                        .is_finite()
                        .then(|| paths.route(switch, end));
                    let arcs = route?.into_iter().chain([network.server_in(server)]);
                    let back = |arc: usize| {
                        if problem.results {
                            prices.of[arc ^ 1]
                        } else {
                            0.0
                        }
                    };
                    Some(arcs.map(|arc| prices.of[arc] + back(arc)).sum())
                };
                let tree = self.tree(job, server, |switch, count| {
                    let capacity = network.capacity(switch);
                    let price = prices.of[capacity] * self.builder.cost(job, switch);
                    let up = way(switch).unwrap_or(f64::INFINITY);
                    let sums = count as f64 * price + up < count as f64 * up + 1e-12;
                    if sums && network.free[capacity] > 0.0 {
                        count
                    } else {
                        0
                    }
                });
                candidates.extend(tree.map(|tree| Candidate::of(job, tree)));
            }
        }
        (candidates, vec![0.0; problem.jobs.len()])
    }
}

/// Any trees.
pub struct Trees<'a> {
    problem: &'a Problem,
    network: &'a Network,
    /// Whose trees are sought.
    jobs: Vec<usize>,
    /// By job and server: the switches that summed in the last tree found.
    last: Vec<Vec<Vec<usize>>>,
}

impl<'a> Trees<'a> {
    /// Trees of these jobs.
    pub fn new(problem: &'a Problem, network: &'a Network, jobs: Vec<usize>) -> Self {
        let last = |job: usize| {
            let builder = Builder { problem, network };
            let tors: Vec<_> = builder
                .groups(job)
                .into_iter()
                .map(|group| group.0)
                .collect();
            vec![tors; problem.topology.servers.len()]
        };
        Self {
            last: (0..problem.jobs.len()).map(last).collect(),
            problem,
            network,
            jobs,
        }
    }

    fn search(
        &mut self,
        market: &Market,
        job: usize,
        server: usize,
        groups: &[(usize, Vec<usize>)],
    ) -> Option<Tree> {
        let search = Search {
            market,
            job,
            root: Node::Server(server),
            groups,
        };
        let start: Vec<_> = self.last[job][server].clone();
        let open = search.improve(start);
        let tree = search.tree(server, &open);
        self.last[job][server] = open;
        tree
    }
}

impl Pricer for Trees<'_> {
    fn price(&mut self, prices: &Prices) -> (Vec<Candidate>, Vec<f64>) {
        let market = Market::new(self.problem, self.network, &prices.of);
        let mut candidates = Vec::new();
        let mut floors = vec![0.0; self.problem.jobs.len()];
        for job in self.jobs.clone() {
            let workers = self.problem.jobs[job].workers.len();
            let groups = market.builder.groups(job);
            if workers <= EXACT.0 && self.network.switches <= EXACT.1 {
                let (trees, price) = exact::cheapest(&market, job);
                candidates.extend(trees.into_iter().map(|tree| Candidate::of(job, tree)));
                floors[job] = (price - market.ties(job)).max(0.0) + market.fixed(job);
            } else {
                floors[job] = market.floor(job, &groups);
                for server in 0..self.problem.topology.servers.len() {
                    let tree = self.search(&market, job, server, &groups);
                    candidates.extend(tree.map(|tree| Candidate::of(job, tree)));
                }
            }
        }
        (candidates, floors)
    }
}

/// Local search for one job and server.
struct Search<'a> {
    market: &'a Market<'a>,
    job: usize,
    root: Node,
    groups: &'a [(usize, Vec<usize>)],
}

impl Search<'_> {
    /// The receiver of a group's streams, and its price.
    fn receiver(&self, from: usize, open: &[usize]) -> (Node, f64) {
        let mut best = (self.root, self.market.stream(self.job, from, self.root));
        for &switch in open {
            let price = self.market.stream(self.job, from, Node::Switch(switch));
            if price < best.1 {
                best = (Node::Switch(switch), price);
            }
        }
        best
    }

    /// Parents of the switches that sum, nearest to the root first, and their price.
    fn parents(&self, open: &[usize]) -> (Vec<(usize, Node)>, f64) {
        let mut outside: Vec<_> = open
            .iter()
            .map(|&switch| {
                (
                    switch,
                    self.root,
                    self.market.stream(self.job, switch, self.root),
                )
            })
            .collect();
        let mut parents = Vec::new();
        let mut sum = 0.0;
        while !outside.is_empty() {
            let mut best = 0;
            for at in 1..outside.len() {
                if outside[at].2 < outside[best].2 {
                    best = at;
                }
            }
            let (switch, parent, price) = outside.swap_remove(best);
            parents.push((switch, parent));
            sum += price;
            for other in &mut outside {
                let price = self.market.stream(self.job, other.0, Node::Switch(switch));
                if price < other.2 {
                    (other.1, other.2) = (Node::Switch(switch), price);
                }
            }
        }
        (parents, sum)
    }

    fn price(&self, open: &[usize]) -> f64 {
        let leaves = self
            .groups
            .iter()
            .map(|(from, workers)| workers.len() as f64 * self.receiver(*from, open).1);
        leaves.sum::<f64>() + self.parents(open).1
    }

    /// Opens and closes switches while the price falls.
    fn improve(&self, mut open: Vec<usize>) -> Vec<usize> {
        let mut price = self.price(&open);
        loop {
            let mut is_improved = false;
            for switch in 0..self.market.switches.len() {
                if self.market.switches[switch].is_infinite() {
                    open.retain(|&at| at != switch);
                    continue;
                }
                let mut other = open.clone();
                if let Some(at) = other.iter().position(|&at| at == switch) {
                    other.swap_remove(at);
                } else {
                    other.push(switch);
                }
                let changed = self.price(&other);
                if changed < price * (1.0 - 1e-12) || (price.is_infinite() && changed.is_finite()) {
                    (price, open, is_improved) = (changed, other, true);
                }
            }
            if !is_improved {
                return open;
            }
        }
    }

    fn tree(&self, server: usize, open: &[usize]) -> Option<Tree> {
        let mut workers = Vec::new();
        for (from, group) in self.groups {
            let (to, _) = self.receiver(*from, open);
            workers.extend(group.iter().map(|&worker| (worker, to)));
        }
        let (parents, _) = self.parents(open);
        self.market
            .builder
            .tree(&self.market.paths, server, &workers, &parents)
    }
}
