//! The cheapest tree of a job with few workers, by dynamic programming over sets of workers
//! (Dreyfus and Wagner, for trees that lead to a root).
//!
//! `sum[set][v]` is the lowest price at which the sum of a set of workers is at switch `v`, from
//! two streams or more. `arrive[set][v]` is that of one stream which brings it there.

use crate::market::Market;
use crate::model::Node;
use crate::plan::Tree;

/// Prices and choices for one receiver, by set.
#[derive(Clone)]
struct Receiver {
    sum: Vec<f64>,
    /// The part of the set that one stream brings; the others bring the rest.
    split: Vec<usize>,
    arrive: Vec<f64>,
    /// Position of the switch from which the stream comes; `None` from the worker itself.
    from: Vec<Option<usize>>,
}

impl Receiver {
    fn new(sets: usize) -> Self {
        Self {
            sum: vec![f64::INFINITY; sets],
            split: vec![0; sets],
            arrive: vec![f64::INFINITY; sets],
            from: vec![None; sets],
        }
    }

    /// The price of a set by one stream or more.
    fn any(&self, set: usize) -> f64 {
        self.sum[set].min(self.arrive[set])
    }

    /// Finds the best two parts of a set. All smaller sets are known.
    fn split(&mut self, set: usize) {
        let lowest = set & set.wrapping_neg();
        let mut part = (set - 1) & set;
        while part > 0 {
            if part & lowest != 0 {
                // Either part may be the one that a single stream brings.
                for (one, rest) in [(part, set ^ part), (set ^ part, part)] {
                    let price = self.arrive[one] + self.any(rest);
                    if price < self.sum[set] {
                        (self.sum[set], self.split[set]) = (price, one);
                    }
                }
            }
            part = (part - 1) & set;
        }
    }
}

struct Table<'a> {
    market: &'a Market<'a>,
    job: usize,
    switches: Vec<usize>,
    receivers: Vec<Receiver>,
}

impl Table<'_> {
    /// Prices of one stream of a set to a receiver, over all its origins.
    fn arrive(&self, set: usize, to: Node) -> (f64, Option<usize>) {
        if set.is_power_of_two() {
            let worker =
                self.market.builder.problem.jobs[self.job].workers[set.trailing_zeros() as usize];
            let from = self.market.builder.switch_of(Node::Host(worker));
            return (self.market.stream(self.job, from, to), None);
        }
        let mut best = (f64::INFINITY, None);
        for (at, &switch) in self.switches.iter().enumerate() {
            if to != Node::Switch(switch) {
                let price = self.receivers[at].sum[set] + self.market.stream(self.job, switch, to);
                if price < best.0 {
                    best = (price, Some(at));
                }
            }
        }
        best
    }

    /// Writes down who sends to a receiver, and all below.
    fn collect(
        &self,
        receiver: &Receiver,
        to: Node,
        set: usize,
        workers: &mut Vec<(usize, Node)>,
        parents: &mut Vec<(usize, Node)>,
    ) {
        if receiver.sum[set] < receiver.arrive[set] {
            let one = receiver.split[set];
            self.bring(receiver, to, one, workers, parents);
            self.collect(receiver, to, set ^ one, workers, parents);
        } else {
            self.bring(receiver, to, set, workers, parents);
        }
    }

    fn bring(
        &self,
        receiver: &Receiver,
        to: Node,
        set: usize,
        workers: &mut Vec<(usize, Node)>,
        parents: &mut Vec<(usize, Node)>,
    ) {
        let Some(at) = receiver.from[set] else {
            let worker =
                self.market.builder.problem.jobs[self.job].workers[set.trailing_zeros() as usize];
            workers.push((worker, to));
            return;
        };
        let (switch, below) = (self.switches[at], &self.receivers[at]);
        parents.push((switch, to));
        let one = below.split[set];
        self.bring(below, Node::Switch(switch), one, workers, parents);
        self.collect(below, Node::Switch(switch), set ^ one, workers, parents);
    }
}

/// The cheapest tree to each parameter server, and the price of the cheapest of them.
pub fn cheapest(market: &Market, job: usize) -> (Vec<Tree>, f64) {
    let sets = 1_usize << market.builder.problem.jobs[job].workers.len();
    let switches = (0..market.switches.len()).filter(|&at| market.switches[at].is_finite());
    let switches: Vec<_> = switches.collect();
    let receivers = vec![Receiver::new(sets); switches.len()];
    let mut table = Table {
        market,
        job,
        switches,
        receivers,
    };
    for set in 1..sets {
        if !set.is_power_of_two() {
            for receiver in &mut table.receivers {
                receiver.split(set);
            }
        }
        for at in 0..table.switches.len() {
            let (price, from) = table.arrive(set, Node::Switch(table.switches[at]));
            let receiver = &mut table.receivers[at];
            (receiver.arrive[set], receiver.from[set]) = (price, from);
        }
    }
    let mut trees = Vec::new();
    let mut least = f64::INFINITY;
    for server in 0..market.servers.len() {
        let to = Node::Server(server);
        let mut root = Receiver::new(sets);
        for set in 1..sets {
            (root.arrive[set], root.from[set]) = table.arrive(set, to);
            if !set.is_power_of_two() {
                root.split(set);
            }
        }
        let price = root.any(sets - 1);
        if price.is_finite() {
            let (mut workers, mut parents) = (Vec::new(), Vec::new());
            table.collect(&root, to, sets - 1, &mut workers, &mut parents);
            trees.extend(
                market
                    .builder
                    .tree(&market.paths, server, &workers, &parents),
            );
            least = least.min(price);
        }
    }
    (trees, least)
}
