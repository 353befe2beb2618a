//! A topology as the algorithms see it: arcs, what is free on them, and shortest paths.
//!
//! Each cable is two arcs, `2 c` and `2 c + 1`, each the other's way back. Links come first, then
//! hosts, then servers; a device's arc `2 c` leads to its switch. A resource's index is that of its
//! arc, or the number of arcs plus the index of the switch.

use crate::model::{Problem, Resource};
use crate::random::Random;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Arcs of a topology, and what background load leaves free.
pub struct Network {
    /// Number of switches.
    pub switches: usize,
    /// Number of arcs.
    pub arcs: usize,
    /// By resource: its rate without the background load.
    pub free: Vec<f64>,
    links: usize,
    hosts: usize,
    /// By switch: arcs to it from other switches, and their origins.
    pub into: Vec<Vec<(usize, usize)>>,
}

impl Network {
    /// The arcs of a problem's topology.
    pub fn new(problem: &Problem) -> Self {
        let topology = &problem.topology;
        let cables = topology.links.iter().map(|link| link.rate);
        let cables = cables.chain(topology.hosts.iter().map(|host| host.rate));
        let cables = cables.chain(topology.servers.iter().map(|server| server.rate));
        let mut free: Vec<f64> = cables.flat_map(|rate| [rate, rate]).collect();
        let arcs = free.len();
        free.extend(topology.switches.iter().map(|switch| switch.capacity));
        let mut into = vec![Vec::new(); topology.switches.len()];
        for (index, link) in topology.links.iter().enumerate() {
            into[link.b].push((2 * index, link.a));
            into[link.a].push((2 * index + 1, link.b));
        }
        let mut network = Self {
            switches: topology.switches.len(),
            arcs,
            free,
            links: topology.links.len(),
            hosts: topology.hosts.len(),
            into,
        };
        for &(resource, load) in &problem.background {
            let index = network.index(resource);
            network.free[index] = (network.free[index] - load).max(0.0);
        }
        network
    }

    /// The arc from a host to its switch.
    pub fn host_out(&self, host: usize) -> usize {
        2 * (self.links + host)
    }

    /// The arc from a switch to a parameter server.
    pub fn server_in(&self, server: usize) -> usize {
        2 * (self.links + self.hosts + server) + 1
    }

    /// The index of a switch's capacity.
    pub fn capacity(&self, switch: usize) -> usize {
        self.arcs + switch
    }

    /// A resource's index.
    pub fn index(&self, resource: Resource) -> usize {
        match resource {
            Resource::Forward(link) => 2 * link,
            Resource::Backward(link) => 2 * link + 1,
            Resource::HostOut(host) => self.host_out(host),
            Resource::HostIn(host) => self.host_out(host) + 1,
            Resource::ServerIn(server) => self.server_in(server),
            Resource::ServerOut(server) => self.server_in(server) - 1,
            Resource::Capacity(switch) => self.capacity(switch),
        }
    }

    /// The resource of an index.
    pub fn resource(&self, index: usize) -> Resource {
        if index >= self.arcs {
            return Resource::Capacity(index - self.arcs);
        }
        let (cable, is_even) = (index / 2, index.is_multiple_of(2));
        if cable < self.links {
            let ways = [Resource::Backward(cable), Resource::Forward(cable)];
            return ways[usize::from(is_even)];
        }
        let device = cable - self.links;
        if device < self.hosts {
            let ways = [Resource::HostIn(device), Resource::HostOut(device)];
            return ways[usize::from(is_even)];
        }
        let server = device - self.hosts;
        let ways = [Resource::ServerIn(server), Resource::ServerOut(server)];
        ways[usize::from(is_even)]
    }
}

/// A switch on the way of Dijkstra's algorithm, nearest first.
#[derive(PartialEq)]
struct Near(f64, usize);

impl Eq for Near {}

impl PartialOrd for Near {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Near {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0).then(other.1.cmp(&self.1))
    }
}

/// Cheapest paths between all switches.
pub struct Paths {
    switches: usize,
    cost: Vec<f64>,
    /// By target and switch: the arc towards the target and the switch that it leads to.
    next: Vec<(usize, usize)>,
}

impl Paths {
    /// Cheapest paths by a cost of each arc; arcs on which nothing is free are not used.
    pub fn new(network: &Network, cost_of: impl Fn(usize) -> f64) -> Self {
        Self::toward(network, 0..network.switches, cost_of)
    }

    /// The same to some switches only.
    pub fn toward(
        network: &Network,
        targets: impl Iterator<Item = usize>,
        cost_of: impl Fn(usize) -> f64,
    ) -> Self {
        let switches = network.switches;
        let mut paths = Self {
            switches,
            cost: vec![f64::INFINITY; switches * switches],
            next: vec![(usize::MAX, usize::MAX); switches * switches],
        };
        let mut heap = BinaryHeap::new();
        for target in targets {
            let row = target * switches;
            paths.cost[row + target] = 0.0;
            heap.push(Near(0.0, target));
            while let Some(Near(cost, at)) = heap.pop() {
                if cost > paths.cost[row + at] {
                    continue;
                }
                for &(arc, from) in &network.into[at] {
                    if network.free[arc] <= 0.0 {
                        continue;
                    }
                    let through = cost + cost_of(arc);
                    if through < paths.cost[row + from] {
                        paths.cost[row + from] = through;
                        paths.next[row + from] = (arc, at);
                        heap.push(Near(through, from));
                    }
                }
            }
        }
        paths
    }

    /// The fewest arcs. Among equal paths the first found is taken.
    pub fn hops(network: &Network) -> Self {
        Self::new(network, |_| 1.0)
    }

    /// The cost from a switch to another; infinite if there is no path.
    pub fn cost(&self, from: usize, to: usize) -> f64 {
        self.cost[to * self.switches + from]
    }

    /// The arcs from a switch to another that it reaches.
    pub fn route(&self, from: usize, to: usize) -> Vec<usize> {
        let mut route = Vec::new();
        let mut at = from;
        while at != to {
            let (arc, next) = self.next[to * self.switches + at];
            route.push(arc);
            at = next;
        }
        route
    }
}

/// Sets of shortest paths that the fixed routes are drawn from.
pub const ROUTES: usize = 8;

/// Shortest paths, of which a pair of switches has one, by a hash: as routers spread flows over
/// equal paths.
pub struct Routes {
    sets: Vec<Paths>,
}

impl Routes {
    /// Paths with the fewest arcs, chosen among so many sets. Of one set, the first path found is
    /// taken.
    pub fn new(network: &Network, sets: usize) -> Self {
        let mut random = Random::new(0);
        let mut all = vec![Paths::hops(network)];
        while all.len() < sets {
            let costs: Vec<f64> = (0..network.arcs)
                .map(|_| 1.0 + 1e-3 * random.unit())
                .collect();
            all.push(Paths::new(network, |arc| costs[arc]));
        }
        Self { sets: all }
    }

    /// The paths of a pair.
    pub fn of(&self, from: usize, to: usize) -> &Paths {
        let hash = Random::new((from * 31 + to) as u64).below(self.sets.len());
        &self.sets[hash]
    }

    /// The number of arcs between two switches.
    pub fn hops(&self, from: usize, to: usize) -> f64 {
        self.sets[0].cost(from, to)
    }
}
