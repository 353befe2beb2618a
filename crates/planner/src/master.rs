//! The rates of jobs over given trees: weighted max-min fair, and exact.
//!
//! A [`Candidate`] is a tree, or several in fixed proportions, that a job may use for any part of
//! its gradients. The master program finds the mixture with the highest lowest rate per weight,
//! fixes the jobs that cannot have more, and repeats with the others. A [`Pricer`] may add
//! candidates on the way: it sees the price of each resource, and a tree that costs less than the
//! job pays is an improvement (column generation).
//!
//! The rates of the plan are not the program's: they are computed from the loads of the trees, and
//! lowered where one exceeds its limit by rounding.

use crate::model::{Node, Problem, Resource};
use crate::network::Network;
use crate::plan::{JobPlan, Plan, Share, Tree};
use crate::simplex::Simplex;

/// Least gain, of 1, for which a candidate is taken.
const GAIN: f64 = 1e-7;

/// Trees of a job in fixed proportions, which add up to 1.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The job.
    pub job: usize,
    /// Trees and their parts.
    pub parts: Vec<(Tree, f64)>,
}

impl Candidate {
    /// One tree for all gradients.
    pub fn of(job: usize, tree: Tree) -> Self {
        Self {
            job,
            parts: vec![(tree, 1.0)],
        }
    }
}

/// Prices at the current solution.
pub struct Prices {
    /// By resource. 0 where one is not scarce.
    pub of: Vec<f64>,
    /// By job: what a unit of its rate is worth, less the price of its own cables.
    pub worth: Vec<f64>,
}

impl Prices {
    /// Prices of a network on which nothing is scarce.
    pub fn none(problem: &Problem, network: &Network) -> Self {
        Self {
            of: vec![0.0; network.free.len()],
            worth: vec![1.0; problem.jobs.len()],
        }
    }
}

/// A source of candidates.
pub trait Pricer {
    /// Candidates that cost less than they are worth, and by job a lower bound of the price of any
    /// candidate (0 is always one).
    fn price(&mut self, prices: &Prices) -> (Vec<Candidate>, Vec<f64>);
}

/// A pricer without candidates.
pub struct Fixed;

impl Pricer for Fixed {
    fn price(&mut self, prices: &Prices) -> (Vec<Candidate>, Vec<f64>) {
        (Vec::new(), vec![0.0; prices.worth.len()])
    }
}

struct Entry {
    candidate: Candidate,
    usage: Vec<(usize, f64)>,
    column: usize,
}

/// Rows of a job.
struct JobRows {
    /// `weight x level <= rate`.
    rate: usize,
    /// `rate <= cap`.
    cap: usize,
}

/// The master program.
pub struct Master<'a> {
    problem: &'a Problem,
    network: &'a Network,
    lp: Simplex,
    level: usize,
    jobs: Vec<Option<JobRows>>,
    /// By job: the lowest rate of the cables that it alone uses, and that cable.
    caps: Vec<(f64, Resource)>,
    /// By resource: the row, `None` while no candidate uses it.
    rows: Vec<Option<usize>>,
    /// By resource: whether it is a cable that is in `caps`.
    is_private: Vec<bool>,
    entries: Vec<Entry>,
    scale: f64,
    bound: f64,
    binding: Vec<(Option<Resource>, f64)>,
}

/// What a unit of a tree's rate loads, by resource.
pub fn usage(problem: &Problem, network: &Network, job: usize, tree: &Tree) -> Vec<(usize, f64)> {
    let mut loads = Vec::new();
    let is_narrow = problem.jobs[job].element.is_narrow();
    for stream in &tree.streams {
        for &way in &stream.route {
            let arc = network.index(way);
            loads.push((arc, 1.0));
            if problem.results {
                loads.push((arc ^ 1, 1.0));
            }
        }
        if let Node::Switch(switch) = stream.to {
            let narrow = problem.topology.switches[switch].narrow_cost;
            loads.push((
                network.capacity(switch),
                if is_narrow { narrow } else { 1.0 },
            ));
        }
    }
    merged(loads)
}

fn merged(mut loads: Vec<(usize, f64)>) -> Vec<(usize, f64)> {
    loads.sort_unstable_by_key(|&(index, _)| index);
    loads.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 += next.1;
        }
        is_same
    });
    loads
}

impl<'a> Master<'a> {
    /// A program without candidates.
    pub fn new(problem: &'a Problem, network: &'a Network) -> Self {
        let mut users = vec![0; problem.topology.hosts.len()];
        for &worker in problem.jobs.iter().flat_map(|job| &job.workers) {
            users[worker] += 1;
        }
        let mut is_private = vec![false; network.free.len()];
        for (host, _) in users.iter().enumerate().filter(|(_, users)| **users == 1) {
            is_private[network.host_out(host)] = true;
            is_private[network.host_out(host) + 1] = true;
        }
        let cap = |workers: &[usize]| {
            let ways = workers.iter().flat_map(|&host| {
                let out = network.host_out(host);
                [out, if problem.results { out + 1 } else { out }]
            });
            let least = ways.min_by(|&a, &b| network.free[a].total_cmp(&network.free[b]));
            least.map_or((0.0, Resource::HostOut(0)), |way| {
                (network.free[way], network.resource(way))
            })
        };
        let caps: Vec<_> = problem.jobs.iter().map(|job| cap(&job.workers)).collect();
        let scale = caps
            .iter()
            .map(|cap| cap.0)
            .fold(f64::MIN_POSITIVE, f64::max);
        let mut lp = Simplex::default();
        let level = lp.add_column(1.0, Vec::new());
        Self {
            problem,
            network,
            lp,
            level,
            jobs: problem.jobs.iter().map(|_| None).collect(),
            rows: vec![None; network.free.len()],
            is_private,
            entries: Vec::new(),
            scale,
            bound: f64::INFINITY,
            binding: vec![(None, 0.0); caps.len()],
            caps,
        }
    }

    /// Adds a candidate. A job's first one must come before the program is solved.
    pub fn add(&mut self, candidate: Candidate) {
        let job = candidate.job;
        if self.jobs[job].is_none() {
            let rate = self
                .lp
                .add_row(&[(self.level, self.problem.jobs[job].weight)], 0.0);
            let cap = self.lp.add_row(&[], self.caps[job].0 / self.scale);
            self.jobs[job] = Some(JobRows { rate, cap });
        }
        let usage = self.usage_of(&candidate);
        let mut cells = Vec::new();
        if let Some(JobRows { rate, cap }) = self.jobs[job] {
            cells.extend([(rate, -1.0), (cap, 1.0)]);
        }
        for &(resource, load) in &usage {
            if !self.is_private[resource] {
                let limit = self.network.free[resource] / self.scale;
                let row = *self.rows[resource].get_or_insert_with(|| self.lp.add_row(&[], limit));
                cells.push((row, load));
            }
        }
        let column = self.lp.add_column(0.0, cells);
        self.entries.push(Entry {
            candidate,
            usage,
            column,
        });
    }

    fn usage_of(&self, candidate: &Candidate) -> Vec<(usize, f64)> {
        let parts = candidate.parts.iter().flat_map(|(tree, part)| {
            let loads = usage(self.problem, self.network, candidate.job, tree);
            loads
                .into_iter()
                .map(move |(resource, load)| (resource, load * part))
        });
        merged(parts.collect())
    }

    /// Prices, the share of each job's row in the objective, and the prices of the jobs' caps.
    fn prices(&self) -> (Prices, Vec<f64>, Vec<f64>) {
        let duals = self.lp.duals();
        let of = self
            .rows
            .iter()
            .map(|row| row.map_or(0.0, |row| duals[row].max(0.0)));
        let of = of.collect();
        let rows = |pick: fn(&JobRows) -> usize| -> Vec<f64> {
            let duals = &duals;
            let rows = self.jobs.iter();
            rows.map(|rows| rows.as_ref().map_or(0.0, |rows| duals[pick(rows)].max(0.0)))
                .collect()
        };
        let (rate, cap) = (rows(|rows| rows.rate), rows(|rows| rows.cap));
        let worth = rate
            .iter()
            .zip(&cap)
            .map(|(rate, cap)| rate - cap)
            .collect();
        (Prices { of, worth }, rate, cap)
    }

    /// No mixture of candidates, known or not, has a higher level than this, by weak duality.
    fn bound_of(&self, prices: &Prices, caps: &[f64], cheapest: &[f64]) -> f64 {
        let free = prices.of.iter().zip(&self.network.free);
        let sold: f64 = free.map(|(price, free)| price * free).sum();
        let mut value = sold;
        let mut need = 0.0;
        for (at, job) in self.problem.jobs.iter().enumerate() {
            if self.jobs[at].is_some() {
                value += caps[at] * self.caps[at].0;
                need += job.weight * (cheapest[at] + caps[at]);
            }
        }
        if need > 0.0 {
            value / need
        } else {
            f64::INFINITY
        }
    }

    /// Solves, with at most so many rounds of pricing.
    pub fn solve(&mut self, pricer: &mut impl Pricer, rounds: usize) -> bool {
        for (at, job) in self.problem.jobs.iter().enumerate() {
            if self.jobs[at].is_some() {
                self.bound = self.bound.min(self.caps[at].0 / job.weight);
            }
        }
        let mut open: Vec<_> = (0..self.jobs.len())
            .filter(|&job| self.jobs[job].is_some())
            .collect();
        let mut is_proven = true;
        let mut is_first = true;
        while !open.is_empty() {
            let is_optimal =
                self.solve_level(pricer, if is_first { rounds } else { rounds / 4 }, is_first);
            is_proven &= is_optimal || !is_first;
            is_first = false;
            let (prices, rate, caps) = self.prices();
            let (done, rest): (Vec<_>, Vec<_>) = open.iter().partition(|job| rate[**job] > GAIN);
            for &job in &done {
                self.binding[job] = self.binding_of(job, &prices, caps[job]);
            }
            if done.is_empty() {
                break;
            }
            open = rest;
            self.next_level(&open);
        }
        is_proven
    }

    /// Whether pricing ended by itself, so that no candidate improves.
    fn solve_level(&mut self, pricer: &mut impl Pricer, rounds: usize, is_first: bool) -> bool {
        for _ in 0..rounds {
            if !self.lp.solve() {
                return false;
            }
            let (prices, _, caps) = self.prices();
            let (candidates, cheapest) = pricer.price(&prices);
            if is_first {
                self.bound = self.bound.min(self.bound_of(&prices, &caps, &cheapest));
                if self.lp.value_of(self.level) * self.scale >= self.bound * (1.0 - 1e-6) {
                    return true;
                }
            }
            let mut is_improved = false;
            for candidate in candidates {
                let usage = self.usage_of(&candidate);
                let shared = usage
                    .iter()
                    .filter(|(resource, _)| !self.is_private[*resource]);
                let cost: f64 = shared
                    .map(|&(resource, load)| prices.of[resource] * load)
                    .sum();
                if prices.worth[candidate.job] - cost > GAIN {
                    self.add(candidate);
                    is_improved = true;
                }
            }
            if !is_improved {
                return true;
            }
        }
        self.lp.solve();
        false
    }

    fn next_level(&mut self, open: &[usize]) {
        let value = self.lp.value_of(self.level);
        self.lp.set_cost(self.level, 0.0);
        self.lp.add_row(&[(self.level, -1.0)], -value);
        let rows = open.iter().filter_map(|&job| {
            let rows = self.jobs[job].as_ref()?;
            Some((rows.rate, self.problem.jobs[job].weight))
        });
        self.level = self.lp.add_column(1.0, rows.collect());
    }

    fn binding_of(&self, job: usize, prices: &Prices, cap: f64) -> (Option<Resource>, f64) {
        let mut best = (cap, Some(self.caps[job].1), cap);
        let used = self
            .entries
            .iter()
            .filter(|entry| entry.candidate.job == job && self.lp.value_of(entry.column) > 0.0);
        for &(resource, load) in used.flat_map(|entry| &entry.usage) {
            let price = prices.of[resource];
            if price * load > best.0 {
                best = (price * load, Some(self.network.resource(resource)), price);
            }
        }
        if best.0 > GAIN {
            (best.1, best.2)
        } else {
            (None, 0.0)
        }
    }

    /// The best plan found.
    pub fn plan(&self, algorithm: &str, is_proven: bool) -> Plan {
        let rates: Vec<_> = self
            .entries
            .iter()
            .map(|entry| self.lp.value_of(entry.column))
            .collect();
        let mut loads = vec![0.0; self.network.free.len()];
        for (entry, rate) in self.entries.iter().zip(&rates) {
            for &(resource, load) in &entry.usage {
                loads[resource] += load * rate * self.scale;
            }
        }
        let fits = |resource: usize| {
            let (load, free) = (loads[resource], self.network.free[resource]);
            if load > free { free / load } else { 1.0 }
        };
        let mut jobs = Vec::new();
        for (job, &(binding, marginal)) in self.binding.iter().enumerate() {
            let own = self.entries.iter().zip(&rates);
            let own: Vec<_> = own
                .filter(|(entry, rate)| entry.candidate.job == job && **rate > 1e-9)
                .collect();
            let used = own.iter().flat_map(|(entry, _)| &entry.usage);
            let shrink = used
                .map(|&(resource, _)| fits(resource))
                .fold(1.0, f64::min);
            let sum: f64 = own.iter().map(|(_, rate)| **rate).sum();
            let mut shares: Vec<Share> = Vec::new();
            for (entry, rate) in own {
                for (tree, part) in entry.candidate.parts.iter().filter(|(_, part)| *part > 0.0) {
                    let fraction = *rate / sum * part;
                    match shares.iter_mut().find(|share| share.tree == *tree) {
                        Some(share) => share.fraction += fraction,
                        None => shares.push(Share {
                            fraction,
                            tree: tree.clone(),
                        }),
                    }
                }
            }
            let rate = sum * self.scale * shrink;
            jobs.push(JobPlan {
                rate,
                binding,
                marginal,
                shares,
            });
        }
        let bound = self.bound.is_finite().then_some(self.bound);
        Plan {
            algorithm: algorithm.to_owned(),
            jobs,
            bound,
            cut_off: !is_proven,
        }
    }
}
