//! GRID's model: each worker's gradient is summed at one switch, or at the one parameter server.
//!
//! In the model no link but the parameter server's binds. Its optimum has a closed form: at rate
//! `r`, a switch of capacity `C` sums `floor(C / r)` workers and sends one stream; with the `k`
//! largest switches and `d` workers without one, `(k + d) r <= B`. The rate is one of `B / n` and
//! `C / m`. Where links bind after all, workers go where they load them least, and the rate is what
//! the links allow.

use crate::choice::Chooser;
use crate::master::Candidate;
use crate::model::{Node, Problem, Resource};
use crate::network::{Network, ROUTES, Routes};
use crate::random::Random;
use crate::trees::Builder;

/// A job at one parameter server, in GRID's model.
struct Grid<'a> {
    builder: Builder<'a>,
    routes: &'a Routes,
    job: usize,
    server: usize,
    /// Switches and capacities, largest first.
    switches: Vec<(usize, f64)>,
    /// Rate of the parameter server.
    ingress: f64,
    /// Lowest rate of a worker's cable.
    cable: f64,
}

impl<'a> Grid<'a> {
    fn new(
        problem: &'a Problem,
        network: &'a Network,
        routes: &'a Routes,
        job: usize,
        server: usize,
    ) -> Self {
        let builder = Builder { problem, network };
        let capacity = |at: usize| network.free[network.capacity(at)] / builder.cost(job, at);
        let switches = (0..network.switches).map(|at| (at, capacity(at)));
        let mut switches: Vec<_> = switches.filter(|of| of.1 > 0.0).collect();
        switches.sort_by(|a, b| b.1.total_cmp(&a.1));
        let cables = problem.jobs[job]
            .workers
            .iter()
            .map(|&at| network.free[network.host_out(at)]);
        let cable = cables.fold(f64::INFINITY, f64::min);
        let ingress = network.free[network.server_in(server)];
        Self {
            builder,
            routes,
            job,
            server,
            switches,
            ingress,
            cable,
        }
    }

    fn workers(&self) -> &[usize] {
        &self.builder.problem.jobs[self.job].workers
    }

    /// Workers that a switch can sum at a rate.
    fn count(&self, capacity: f64, rate: f64) -> usize {
        ((capacity / rate + 1e-9).floor() as usize).min(self.workers().len())
    }

    /// The numbers of switches with which a rate is reached.
    fn sizes(&self, rate: f64) -> Vec<usize> {
        let streams = (self.ingress / rate + 1e-9).floor();
        let mut sizes = Vec::new();
        let mut summed = 0;
        for size in 0..=self.switches.len().min(self.workers().len()) {
            let direct = self.workers().len().saturating_sub(summed);
            if (size + direct) as f64 <= streams {
                sizes.push(size);
            }
            if direct == 0 {
                break;
            }
            if let Some(&(_, capacity)) = self.switches.get(size) {
                summed += self.count(capacity, rate);
            }
        }
        sizes
    }

    /// The best rate.
    fn rate(&self) -> f64 {
        let counts = 1..=self.workers().len();
        let mut rates: Vec<_> = counts
            .clone()
            .map(|count| self.ingress / count as f64)
            .collect();
        rates.push(self.cable);
        for &(_, capacity) in &self.switches {
            rates.extend(counts.clone().map(|count| capacity / count as f64));
        }
        rates.retain(|rate| *rate > 0.0 && *rate <= self.cable);
        rates.sort_by(f64::total_cmp);
        let feasible = rates.partition_point(|rate| !self.sizes(*rate).is_empty());
        if feasible == 0 {
            0.0
        } else {
            rates[feasible - 1]
        }
    }

    /// A tree at a rate with `size` of the largest switches. A worker's own switch comes first,
    /// then the receiver whose routes have the least load.
    fn place(&self, rate: f64, size: usize) -> Option<Candidate> {
        let largest = self.switches[..size].iter();
        let mut room: Vec<(Node, usize)> = largest
            .map(|&(at, capacity)| (Node::Switch(at), self.count(capacity, rate)))
            .collect();
        let summed: usize = room.iter().map(|of| of.1).sum();
        room.push((
            Node::Server(self.server),
            self.workers().len().saturating_sub(summed),
        ));
        let network = self.builder.network;
        let mut load = vec![0.0; network.free.len()];
        let mut placed = Vec::new();
        let mut others = Vec::new();
        let mut is_open = vec![false; network.switches];
        for &worker in self.workers() {
            let own = Node::Switch(self.builder.switch_of(Node::Host(worker)));
            match room.iter_mut().find(|of| of.0 == own && of.1 > 0) {
                Some(of) => {
                    of.1 -= 1;
                    placed.push((worker, own));
                }
                None => others.push(worker),
            }
        }
        let server = Node::Server(self.server);
        let arcs = |from: Node, to: Node| -> Option<Vec<usize>> {
            let stream = self.builder.routed(self.routes, from, to)?;
            Some(
                stream
                    .route
                    .iter()
                    .map(|&way: &Resource| network.index(way))
                    .collect(),
            )
        };
        for &(_, to) in &placed {
            let at = self.builder.switch_of(to);
            if !is_open[at] {
                is_open[at] = true;
                arcs(to, server)?
                    .into_iter()
                    .for_each(|arc| load[arc] += rate);
            }
        }
        for worker in others {
            let mut best: Option<(f64, usize, Vec<usize>)> = None;
            for (at, &(to, _)) in room.iter().enumerate().filter(|(_, of)| of.1 > 0) {
                let mut route = arcs(Node::Host(worker), to)?;
                if matches!(to, Node::Switch(switch) if !is_open[switch]) {
                    route.extend(arcs(to, server)?);
                }
                let loads = route
                    .iter()
                    .map(|&arc| (load[arc] + rate) / network.free[arc]);
                let peak = loads.fold(0.0, f64::max);
                let peak = peak + 1e-6 * route.len() as f64;
                if best.as_ref().is_none_or(|(least, ..)| peak < *least) {
                    best = Some((peak, at, route));
                }
            }
            let (_, at, route) = best?;
            route.into_iter().for_each(|arc| load[arc] += rate);
            room[at].1 -= 1;
            if let Node::Switch(switch) = room[at].0 {
                is_open[switch] = true;
            }
            placed.push((worker, room[at].0));
        }
        self.candidate(&placed)
    }

    fn candidate(&self, placed: &[(usize, Node)]) -> Option<Candidate> {
        let tree = self.builder.flat(self.routes, self.server, placed)?;
        Some(Candidate::of(self.job, tree))
    }

    /// The linear program's rates by receiver: the largest switches first, then the parameter
    /// server.
    fn relaxed(&self) -> Vec<(Node, f64)> {
        let workers = self.workers().len() as f64;
        let mut left = self.ingress.min(self.cable);
        let mut rates = Vec::new();
        for &(at, capacity) in &self.switches {
            let rate = (capacity / workers).min(left);
            left -= rate;
            rates.push((Node::Switch(at), rate));
        }
        let sum: f64 = rates.iter().map(|of| of.1).sum();
        let direct = ((self.ingress - sum) / workers)
            .min(self.cable - sum)
            .max(0.0);
        rates.push((Node::Server(self.server), direct));
        rates
    }
}

fn for_each_job(
    problem: &Problem,
    network: &Network,
    mut candidates: impl FnMut(&Grid) -> Vec<Candidate>,
) -> Vec<Candidate> {
    let routes = Routes::new(network, ROUTES);
    let mut chooser = Chooser::new(problem, network);
    let mut chosen = Vec::new();
    for job in 0..problem.jobs.len() {
        let servers = 0..problem.topology.servers.len();
        let all = servers
            .flat_map(|server| candidates(&Grid::new(problem, network, &routes, job, server)));
        let all = all.collect();
        chosen.extend(chooser.choose(all));
    }
    chosen
}

/// The optimum of the model, for each job on its own.
pub fn exact(problem: &Problem, network: &Network) -> Vec<Candidate> {
    for_each_job(problem, network, |grid| {
        let rate = grid.rate();
        if rate <= 0.0 {
            return Vec::new();
        }
        grid.sizes(rate)
            .into_iter()
            .filter_map(|size| grid.place(rate, size))
            .collect()
    })
}

/// R-GRIA: each worker draws its receiver with the probabilities of the linear program. The best of
/// so many draws is taken.
pub fn rounded(problem: &Problem, network: &Network, seed: u64, draws: usize) -> Vec<Candidate> {
    let mut random = Random::new(seed);
    for_each_job(problem, network, |grid| {
        let rates = grid.relaxed();
        let sum: f64 = rates.iter().map(|of| of.1).sum();
        let draw = |random: &mut Random| {
            let mut mark = random.unit() * sum;
            for &(to, rate) in &rates {
                mark -= rate;
                if mark < 0.0 {
                    return to;
                }
            }
            Node::Server(grid.server)
        };
        let candidates = (0..draws).filter_map(|_| {
            let workers = grid.workers().iter();
            let placed: Vec<_> = workers.map(|&worker| (worker, draw(&mut random))).collect();
            grid.candidate(&placed)
        });
        candidates.collect()
    })
}
