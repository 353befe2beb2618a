//! A small tree, completely: a root, two leaves of two workers each, and every order in which the
//! frames of a bounded set can arrive, alone and with each one of them lost.
//!
//! A schedule is a list of choices, each of which frame in flight arrives next. Schedules are
//! walked in lexical order: one is run from the start, then the last choice that has an alternative
//! is changed. Frames to workers and to parameter servers arrive at once, as their order among each
//! other decides nothing at a switch. After each schedule the world is repaired by PROBE and
//! REMIND, and every worker has the same bits.

use super::fold::Place;
use super::world::{Frame, Node, World, pool};
use super::{converge, report};
use tally_engine::PolicyName;
use tally_wire::{Element, Flags};

/// A root with two leaves of so many workers.
fn tree(workers: [u8; 2]) -> Vec<Place> {
    let leaf = |from: u8, count: u8| Place {
        parent: Some(0),
        hosts: (from..from + count).collect(),
        children: Vec::new(),
    };
    let root = Place {
        children: vec![1, 2],
        ..Place::default()
    };
    vec![root, leaf(0, workers[0]), leaf(workers[0], workers[1])]
}

/// What a run did at its choices: how many there were at each.
struct Schedule {
    choices: Vec<usize>,
    options: Vec<usize>,
}

impl Schedule {
    fn choose(&mut self, at: usize, options: usize) -> usize {
        if at == self.choices.len() {
            self.choices.push(0);
        }
        self.options.push(options);
        self.choices[at]
    }

    /// The next schedule in lexical order, if there is one.
    fn advance(&mut self) -> bool {
        self.choices.truncate(self.options.len());
        while let Some(last) = self.choices.pop() {
            if last + 1 < self.options[self.choices.len()] {
                self.choices.push(last + 1);
                self.options.clear();
                return true;
            }
        }
        false
    }
}

struct Small {
    policy: PolicyName,
    workers: [u8; 2],
    slots: u32,
    element: Element,
    fragments: u32,
    /// Whether results of the root and frames of parameter servers arrive at once, too.
    is_quick: bool,
    /// Frames that are sent twice or out of the ordinary at the start, besides all contributions.
    extra: fn(&mut World),
}

impl Small {
    fn world(&self) -> World {
        let tree = tree(self.workers);
        let pools = tree.iter().map(|_| pool(self.policy, self.slots, 1, 4, 1));
        let pools = pools.collect();
        let mut world = World::new(tree, 4, false, pools);
        world.element = Some(self.element);
        for n in 0..self.fragments {
            for worker in 0..world.workers.len() {
                // The later fragment is the more urgent, from one of the leaves.
                let priority = 10 + (n as u8) * (worker as u8 % 2);
                world.workers[worker].sent = n + 1;
                world.contribute(worker, n, Flags::NONE, priority);
            }
        }
        (self.extra)(&mut world);
        world
    }

    /// One schedule, in which the frame at `lost` is lost. Says how many choices it had.
    fn run(&self, schedule: &mut Schedule, lost: Option<usize>) -> usize {
        let mut world = self.world();
        let mut at = 0;
        loop {
            // Frames to workers arrive at once.
            let is_free = |frame: &Frame| match (frame.from, frame.to) {
                (Node::Switch(0) | Node::Ps(_), Node::Switch(_)) => self.is_quick,
                (_, to) => !matches!(to, Node::Switch(_)),
            };
            while let Some(free) = world.network.iter().position(is_free) {
                let frame = world.network.remove(free);
                world.receive(frame);
            }
            // Links keep order: the first frame of each is next.
            let mut next: Vec<usize> = Vec::new();
            for (index, frame) in world.network.iter().enumerate() {
                let link = |&other: &usize| {
                    let other = &world.network[other];
                    (other.from, other.to) == (frame.from, frame.to)
                };
                if !next.iter().any(link) {
                    next.push(index);
                }
            }
            if next.is_empty() {
                break;
            }
            let choice = schedule.choose(at, next.len());
            let frame = world.network.remove(next[choice]);
            if lost != Some(at) {
                world.receive(frame);
            }
            at += 1;
            assert!(at < 200, "no end: {}", report(&world));
        }
        converge(&mut world, self.fragments);
        for worker in &world.workers {
            for n in 0..self.fragments {
                assert_eq!(worker.results[&n], world.result(n));
            }
        }
        world.end();
        at
    }

    /// All schedules without a loss, and with one; says how many of both there were.
    fn all(&self, with_loss: bool) -> (usize, usize) {
        let (mut runs, mut losses) = (0, 0);
        let mut schedule = Schedule {
            choices: Vec::new(),
            options: Vec::new(),
        };
        loop {
            let choices = self.run(&mut schedule, None);
            runs += 1;
            if with_loss {
                // Once for each beginning: a loss changes what comes after it.
                let is_first = |lost: &usize| schedule.choices[lost + 1..].iter().all(|c| *c == 0);
                for lost in (0..choices).filter(is_first) {
                    let mut rest = Schedule {
                        choices: schedule.choices[..=lost].to_vec(),
                        options: Vec::new(),
                    };
                    self.run(&mut rest, Some(lost));
                    losses += 1;
                }
            }
            if !schedule.advance() {
                return (runs, losses);
            }
        }
    }
}

fn nothing(_: &mut World) {}

const POLICIES: [PolicyName; 4] = [
    PolicyName::Esa,
    PolicyName::Fcfs,
    PolicyName::Static,
    PolicyName::None,
];

#[test]
fn one_fragment_in_every_order_with_each_frame_lost() {
    for policy in POLICIES {
        let of_esa = [Element::F32, Element::I32, Element::F16];
        let elements = if policy == PolicyName::Esa { 3 } else { 1 };
        for element in of_esa.into_iter().take(elements) {
            let small = Small {
                policy,
                workers: [2, 2],
                slots: 1,
                element,
                fragments: 1,
                is_quick: false,
                extra: nothing,
            };
            let (runs, losses) = small.all(true);
            println!("{policy} {element:?}: {runs} orders, {losses} losses");
            assert!(runs >= 80 && losses > runs, "{runs} {losses}");
        }
    }
}

#[test]
fn two_fragments_that_share_a_slot_at_each_node() {
    for (policy, element) in [
        (PolicyName::Esa, Element::I32),
        (PolicyName::Esa, Element::F32),
    ] {
        let small = Small {
            policy,
            workers: [2, 1],
            slots: 1,
            element,
            fragments: 2,
            is_quick: true,
            extra: nothing,
        };
        let (runs, _) = small.all(false);
        println!("{policy} {element:?}: {runs} orders");
        assert!(runs > 100, "{runs}");
    }
}

#[test]
fn a_child_that_sends_twice_and_asks_early_is_counted_once() {
    for policy in POLICIES {
        let small = Small {
            policy,
            workers: [1, 1],
            slots: 1,
            element: Element::I32,
            fragments: 1,
            is_quick: true,
            extra: |world| {
                world.contribute(0, 0, Flags::RESEND, 10);
                world.probe(1, 0);
            },
        };
        let (runs, _) = small.all(true);
        println!("{policy}: {runs} orders");
        assert!(runs > 50, "{runs}");
    }
}
