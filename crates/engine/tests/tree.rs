//! Trees of real aggregators, against sums that share no code with them.
//!
//! Each node of a tree has a pool of its own, a parameter server, hosts and child switches; workers
//! and parameter servers are as little as the protocol needs. The network delays, duplicates,
//! reorders and loses. Every frame with elements that leaves a node is compared, bit for bit, with
//! the fold of the contributions that it says. Switches restart, alone and together, parameter
//! servers come back empty, and a new epoch begins while frames of the last one are on their way.
//! In the end the network is kind, every worker must have every result, and no buffer may be
//! missing.
//!
//! `TALLY_SEED=17 cargo test -p tally-engine --test tree` repeats one seed.

mod common;
#[path = "tree/exhaustive.rs"]
mod exhaustive;
#[path = "tree/fold.rs"]
mod fold;
#[path = "tree/world.rs"]
mod world;

use common::{Rng, seeds};
use fold::Place;
use tally_engine::{Counters, PolicyName};
use tally_wire::Flags;
use world::{World, pool};

const FRAGMENTS: u32 = 40;

/// A random tree of at most three levels and 12 workers; node 0 is the root.
fn random_tree(rng: &mut Rng) -> Vec<Place> {
    let mut tree = vec![Place::default()];
    let levels = 2 + rng.below(2);
    let mut level = vec![0];
    for _ in 1..levels {
        let mut next = Vec::new();
        for &parent in &level {
            for _ in 0..1 + rng.below(2) {
                let child = tree.len();
                tree.push(Place {
                    parent: Some(parent),
                    ..Place::default()
                });
                tree[parent].children.push(child);
                next.push(child);
            }
        }
        level = next;
    }
    // Hosts by number in the order of the design: a node's own first, then those of its children.
    let mut ranks = 0;
    number(rng, &mut tree, 0, &mut ranks);
    tree
}

fn number(rng: &mut Rng, tree: &mut [Place], at: usize, ranks: &mut u8) {
    let is_leaf = tree[at].children.is_empty();
    let hosts = if is_leaf {
        1 + rng.below(3)
    } else {
        rng.below(2)
    };
    // Terms are such that 12 do not saturate.
    for _ in 0..hosts {
        if *ranks < 8 || is_leaf && tree[at].hosts.is_empty() {
            tree[at].hosts.push(*ranks);
            *ranks += 1;
        }
    }
    for child in tree[at].children.clone() {
        number(rng, tree, child, ranks);
    }
}

struct Random {
    rng: Rng,
    world: World,
    loss: u64,
    /// Nodes that have not heard of the new epoch.
    behind: Vec<usize>,
}

impl Random {
    fn new(seed: u64, policy: PolicyName) -> Self {
        let mut rng = Rng(seed ^ (policy as u64) << 60);
        let tree = random_tree(&mut rng);
        let window = 1 + rng.below(8) as u16;
        // Half of the trees have the same policy everywhere.
        let is_mixed = rng.percent(50);
        let pools = tree.iter().map(|_| {
            let all = PolicyName::ALL;
            let policy = if is_mixed {
                all[rng.below(all.len())].1
            } else {
                policy
            };
            let slots = 1 << rng.below(4);
            let ways = slots.min(1 << rng.below(4));
            pool(policy, slots, ways, window, 1 << rng.below(2))
        });
        let pools = pools.collect();
        let in_turns = rng.percent(50);
        let mut world = World::new(tree, window, in_turns, pools);
        // Half of them wrap.
        world.first = if rng.percent(50) { 0 } else { u32::MAX - 20 };
        // Each node has parameter servers of its own: one, or several by fragment (P-6).
        for at in 0..world.switches.len() {
            let parts = [1, 1, 2, 4, 16][rng.below(5)];
            world.set_parts(at, parts);
        }
        Self {
            rng,
            world,
            loss: 0,
            behind: Vec::new(),
        }
    }

    fn worker(&mut self) -> usize {
        self.rng.below(self.world.workers.len())
    }

    fn node(&mut self) -> usize {
        self.rng.below(self.world.switches.len())
    }

    fn step(&mut self) {
        self.world.wire.queued = self.rng.percent(50);
        match self.rng.below(100) {
            0..30 => {
                let (worker, priority) = (self.worker(), self.rng.next() as u8);
                self.world.send_next(worker, FRAGMENTS, priority);
            }
            30..40 => {
                let worker = self.worker();
                let missing = self.world.missing(worker);
                if !missing.is_empty() {
                    let n = missing[self.rng.below(missing.len())];
                    self.world.probe(worker, n);
                }
            }
            40..45 => {
                let at = self.node();
                let open = self.world.open_at_ps(at);
                if !open.is_empty() {
                    let n = open[self.rng.below(open.len())];
                    self.world.remind(at, n);
                }
            }
            45 if self.rng.percent(10) => {
                let at = self.node();
                let any = self.rng.below(16);
                self.world.restart_ps(at, any);
            }
            46 if self.rng.percent(10) => self.restart(),
            47 if self.rng.percent(2) && self.world.epoch == 1 => self.new_epoch(),
            48 => self.catch_up(),
            49..54 => {
                let at = self.node();
                self.world.aggregate(at);
            }
            _ => self.deliver(),
        }
    }

    /// One or two switches lose all that they had, but not what is on its way to them.
    fn restart(&mut self) {
        let two = [self.node(), self.node()];
        let count = 1 + self.rng.below(2);
        for &at in &two[..count] {
            self.world.stop(at);
            self.world.start(at);
        }
        // What was long on its way.
        for _ in 0..4 {
            let worker = self.worker();
            let results = &self.world.workers[worker].results;
            if !results.is_empty() {
                let back = self.rng.below(results.len().min(16));
                if let Some(&n) = results.keys().rev().nth(back) {
                    self.world.contribute(worker, n, Flags::NONE, 200);
                }
            }
        }
    }

    /// All begin anew, with other contributions; switches hear of it one after the other.
    fn new_epoch(&mut self) {
        self.world.epoch = 2;
        for worker in &mut self.world.workers {
            worker.sent = 0;
            worker.results.clear();
        }
        self.behind = (0..self.world.switches.len()).collect();
    }

    fn catch_up(&mut self) {
        if !self.behind.is_empty() {
            let at = self.rng.below(self.behind.len());
            let node = self.behind.swap_remove(at);
            self.world.bind(node, self.world.epoch);
        }
    }

    fn deliver(&mut self) {
        let network = &mut self.world.network;
        if network.is_empty() {
            return;
        }
        // Mostly in order, sometimes much later.
        let at = if self.rng.percent(70) {
            0
        } else {
            self.rng.below(network.len())
        };
        let frame = if self.rng.percent(self.loss) {
            network[at].clone()
        } else {
            network.remove(at)
        };
        if !self.rng.percent(self.loss) {
            self.world.receive(frame);
        }
    }

    fn run(mut self) -> Vec<Counters> {
        self.loss = self.rng.below(4) as u64 * 8;
        for _ in 0..3000 {
            self.step();
        }
        while !self.behind.is_empty() {
            self.catch_up();
        }
        // From here on the network is kind.
        converge(&mut self.world, FRAGMENTS);
        self.world.end();
        self.world.counters
    }
}

/// Nothing is lost any more, until all workers have all results.
fn converge(world: &mut World, fragments: u32) {
    let is_done = |world: &World| {
        let mut workers = world.workers.iter();
        workers.all(|worker| worker.results.len() == fragments as usize)
    };
    for round in 0.. {
        if is_done(world) {
            return;
        }
        assert!(round < 3000, "does not converge: {}", report(world));
        for worker in 0..world.workers.len() {
            (0..8).for_each(|_| world.send_next(worker, fragments, 10));
            for n in world.missing(worker) {
                world.probe(worker, n);
            }
        }
        for at in 0..world.switches.len() {
            for n in world.open_at_ps(at) {
                world.remind(at, n);
            }
        }
        while !world.network.is_empty() {
            let frame = world.network.remove(0);
            world.receive(frame);
            if world.network.is_empty() {
                (0..world.switches.len()).for_each(|at| world.aggregate(at));
            }
        }
    }
}

fn report(world: &World) -> String {
    let workers = world.workers.iter();
    let has: Vec<_> = workers.map(|w| (w.node, w.sent, w.results.len())).collect();
    let nodes = 0..world.switches.len();
    let open: Vec<_> = nodes.map(|at| world.open_at_ps(at)).collect();
    format!("{:?} workers {has:?} at PS {open:?}", world.tree)
}

fn run(policy: PolicyName) {
    let (mut sums, mut again, mut results, mut down) = (0, 0, 0, 0);
    let (mut probes, mut nacks, mut preemptions) = (0, 0, 0);
    for seed in seeds(30) {
        println!("{policy}, seed {seed}");
        for c in Random::new(seed, policy).run() {
            sums += c.sums_up;
            again += c.sums_up_again;
            results += c.results_up;
            down += c.results_down;
            probes += c.probes_up;
            nacks += c.nacks_down;
            preemptions += c.preemptions;
        }
    }
    let all = (sums, again, results, down, probes, nacks, preemptions);
    println!("{all:?}");
    if std::env::var("TALLY_SEED").is_err() {
        // That the seeds reach what they are meant to reach.
        let is_esa = policy == PolicyName::Esa;
        assert!(preemptions > 100 || !is_esa, "{all:?}");
        assert!(sums > 1000 && down > 1000, "{all:?}");
        assert!(again > 100 && results > 100 && probes > 100, "{all:?}");
        assert!(nacks > 100, "{all:?}");
    }
}

#[test]
fn random_esa() {
    run(PolicyName::Esa);
}

#[test]
fn random_fcfs() {
    run(PolicyName::Fcfs);
}

#[test]
fn random_static() {
    run(PolicyName::Static);
}

#[test]
fn random_none() {
    run(PolicyName::None);
}
