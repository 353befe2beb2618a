//! How trees are made from decisions: who sums what, and shortest routes between them.

use crate::model::{Node, Problem};
use crate::network::{Network, Paths, Routes};
use crate::plan::{Stream, Tree};

/// What trees are made with.
#[derive(Clone, Copy)]
pub struct Builder<'a> {
    /// The problem.
    pub problem: &'a Problem,
    /// Its network.
    pub network: &'a Network,
}

impl Builder<'_> {
    /// The switch of a node.
    pub fn switch_of(&self, node: Node) -> usize {
        match node {
            Node::Switch(switch) => switch,
            Node::Host(host) => self.problem.topology.hosts[host].switch,
            Node::Server(server) => self.problem.topology.servers[server].switch,
        }
    }

    /// A stream on the cheapest route, `None` if there is none.
    pub fn stream(&self, paths: &Paths, from: Node, to: Node) -> Option<Stream> {
        let (start, end) = (self.switch_of(from), self.switch_of(to));
        if !paths.cost(start, end).is_finite() {
            return None;
        }
        let first = match from {
            Node::Host(host) => Some(self.network.host_out(host)),
            _ => None,
        };
        let last = match to {
            Node::Server(server) => Some(self.network.server_in(server)),
            _ => None,
        };
        let arcs = first.into_iter().chain(paths.route(start, end)).chain(last);
        let mut route = Vec::new();
        for arc in arcs {
            if self.network.free[arc] <= 0.0 {
                return None;
            }
            route.push(self.network.resource(arc));
        }
        Some(Stream { from, to, route })
    }

    /// A stream on the route of its ends, `None` if there is none.
    pub fn routed(&self, routes: &Routes, from: Node, to: Node) -> Option<Stream> {
        let paths = routes.of(self.switch_of(from), self.switch_of(to));
        self.stream(paths, from, to)
    }

    /// A tree on the cheapest routes; see [`tree_by`](Self::tree_by).
    pub fn tree(
        &self,
        paths: &Paths,
        server: usize,
        workers: &[(usize, Node)],
        parents: &[(usize, Node)],
    ) -> Option<Tree> {
        self.tree_by(
            |from, to| self.stream(paths, from, to),
            server,
            workers,
            parents,
        )
    }

    /// A tree of two levels: each worker's gradient goes to the node given, and each switch among
    /// these sends its sum to the server.
    pub fn flat(&self, routes: &Routes, server: usize, workers: &[(usize, Node)]) -> Option<Tree> {
        let mut sums: Vec<_> = workers.iter().map(|of| of.1).collect();
        sums.sort_unstable();
        sums.dedup();
        let parents = sums.into_iter().filter_map(|node| match node {
            Node::Switch(at) => Some((at, Node::Server(server))),
            _ => None,
        });
        let parents: Vec<_> = parents.collect();
        self.tree_by(
            |from, to| self.routed(routes, from, to),
            server,
            workers,
            &parents,
        )
    }

    /// A tree of which each worker's gradient goes to the node given, and each switch that sums
    /// sends to its parent. `None` if a route is missing. A switch that would sum one stream alone
    /// passes it on instead.
    pub fn tree_by(
        &self,
        stream: impl Fn(Node, Node) -> Option<Stream>,
        server: usize,
        workers: &[(usize, Node)],
        parents: &[(usize, Node)],
    ) -> Option<Tree> {
        let mut children = std::collections::BTreeMap::<Node, Vec<Node>>::new();
        for &(worker, to) in workers {
            children.entry(to).or_default().push(Node::Host(worker));
        }
        let mut parents = parents.to_vec();
        loop {
            // A switch without streams leaves, and makes its parent poorer by one.
            let mut all = children.clone();
            for &(switch, to) in &parents {
                all.entry(to).or_default().push(Node::Switch(switch));
            }
            let count = |switch: usize| all.get(&Node::Switch(switch)).map_or(0, Vec::len);
            let Some(at) = parents.iter().position(|&(switch, _)| count(switch) < 2) else {
                break;
            };
            let (switch, to) = parents.remove(at);
            match all.get(&Node::Switch(switch)).map(|nodes| nodes[0]) {
                Some(Node::Switch(child)) => {
                    for parent in parents.iter_mut().filter(|parent| parent.0 == child) {
                        parent.1 = to;
                    }
                }
                Some(worker) => {
                    children.remove(&Node::Switch(switch));
                    children.entry(to).or_default().push(worker);
                }
                None => {}
            }
        }
        let mut streams = Vec::new();
        for (&to, nodes) in &children {
            for &from in nodes {
                streams.push(stream(from, to)?);
            }
        }
        for &(switch, to) in &parents {
            streams.push(stream(Node::Switch(switch), to)?);
        }
        Some(Tree { server, streams })
    }

    /// The capacity that a bit of a job takes at a switch.
    pub fn cost(&self, job: usize, switch: usize) -> f64 {
        if self.problem.jobs[job].element.is_narrow() {
            self.problem.topology.switches[switch].narrow_cost
        } else {
            1.0
        }
    }

    /// A job's workers by their switch, in the order of switches.
    pub fn groups(&self, job: usize) -> Vec<(usize, Vec<usize>)> {
        let mut groups = std::collections::BTreeMap::<usize, Vec<usize>>::new();
        for &worker in &self.problem.jobs[job].workers {
            groups
                .entry(self.switch_of(Node::Host(worker)))
                .or_default()
                .push(worker);
        }
        groups.into_iter().collect()
    }
}
