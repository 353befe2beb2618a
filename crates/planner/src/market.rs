//! What streams cost under prices of resources, and a price that no tree is below.
//!
//! Equal prices are told apart by a part in 10^10 of the relative load, so that short routes and
//! large switches come first. Bounds allow for it.

use crate::model::{Node, Problem};
use crate::network::{Network, Paths};
use crate::trees::Builder;

/// What tells equal prices apart, for the load that fills a resource.
const TIE: f64 = 1e-10;
/// Prices with routes, and the prices of receivers.
pub struct Market<'a> {
    /// The network that is priced.
    pub builder: Builder<'a>,
    /// Cheapest routes.
    pub paths: Paths,
    /// By switch: price of a unit of its capacity; infinite if it has none.
    pub switches: Vec<f64>,
    /// By server: price of its cable; infinite if it is down.
    pub servers: Vec<f64>,
    /// By host: price of its cable.
    hosts: Vec<f64>,
    /// By arc: its price, with that of the way back if results load it.
    pub arcs: Vec<f64>,
}

impl<'a> Market<'a> {
    /// By the price of each resource.
    pub fn new(problem: &'a Problem, network: &'a Network, prices: &[f64]) -> Self {
        Self::toward(problem, network, prices, 0..network.switches)
    }

    /// With routes to some switches only.
    pub fn toward(
        problem: &'a Problem,
        network: &'a Network,
        prices: &[f64],
        targets: impl Iterator<Item = usize>,
    ) -> Self {
        let hosts = problem.topology.hosts.iter().map(|host| host.rate);
        let scale = hosts.fold(0.0, f64::max);
        let of = |resource: usize| {
            let free = network.free[resource];
            let tie = if free > 0.0 {
                (scale / free).min(100.0) * TIE
            } else {
                f64::INFINITY
            };
            prices[resource] + tie
        };
        let back = |arc: usize| {
            if !problem.results {
                0.0
            } else if network.free[arc ^ 1] > 0.0 {
                prices[arc ^ 1]
            } else {
                f64::INFINITY
            }
        };
        let arc = |arc: usize| of(arc) + back(arc);
        let topology = &problem.topology;
        let arcs: Vec<_> = (0..network.arcs).map(arc).collect();
        Self {
            paths: Paths::toward(network, targets, |arc| arcs[arc]),
            arcs,
            switches: (0..network.switches)
                .map(|at| of(network.capacity(at)))
                .collect(),
            servers: (0..topology.servers.len())
                .map(|at| arc(network.server_in(at)))
                .collect(),
            hosts: (0..topology.hosts.len())
                .map(|at| network.host_out(at))
                .map(|arc| {
                    prices[arc]
                        + if problem.results {
                            prices[arc ^ 1]
                        } else {
                            0.0
                        }
                })
                .collect(),
            builder: Builder { problem, network },
        }
    }

    /// The price of a stream from a switch to a receiver, which a job pays.
    pub fn stream(&self, job: usize, from: usize, to: Node) -> f64 {
        let way = self.paths.cost(from, self.builder.switch_of(to));
        match to {
            Node::Switch(switch) => way + self.switches[switch] * self.builder.cost(job, switch),
            Node::Server(server) => way + self.servers[server],
            Node::Host(_) => f64::INFINITY,
        }
    }

    /// What every tree of a job pays for its hosts' cables.
    pub fn fixed(&self, job: usize) -> f64 {
        self.builder.problem.jobs[job]
            .workers
            .iter()
            .map(|&host| self.hosts[host])
            .sum()
    }

    /// What the ties add to a tree's price at most.
    pub fn ties(&self, job: usize) -> f64 {
        let workers = self.builder.problem.jobs[job].workers.len() as f64;
        2.0 * workers * (self.builder.network.switches as f64 + 2.0) * 100.0 * TIE
    }

    /// A price that no tree is below: each worker pays for its first stream, and either all go to
    /// a parameter server or a switch that sums pays for one more.
    pub fn floor(&self, job: usize, groups: &[(usize, Vec<usize>)]) -> f64 {
        let servers = 0..self.servers.len();
        let nearest = |from: usize| {
            let prices = servers
                .clone()
                .map(|at| self.stream(job, from, Node::Server(at)));
            prices.fold(f64::INFINITY, f64::min)
        };
        let mut mixed = 0.0;
        let mut direct = 0.0;
        for (from, workers) in groups {
            let switches = 0..self.switches.len();
            let summed = switches.map(|at| self.stream(job, *from, Node::Switch(at)));
            let raw = nearest(*from);
            direct += workers.len() as f64 * raw;
            mixed += workers.len() as f64 * summed.fold(raw, f64::min);
        }
        let up = (0..self.switches.len())
            .filter(|&at| self.switches[at].is_finite())
            .map(nearest);
        let up = up.fold(f64::INFINITY, f64::min);
        (direct.min(mixed + up) - self.ties(job)).max(0.0) + self.fixed(job)
    }
}
