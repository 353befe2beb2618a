//! A shard of SwitchML's dialect against a plain model of its table: random operations on several
//! sessions, and a small world completely.
//!
//! `TALLY_SEED=17 cargo test -p tally-engine --test switchml` repeats one seed.

mod common;

use common::pair::{Pair, session, station, told};
use common::table::{Verdict, WAYS};
use common::{Rng, seeds};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tally_engine::switchml::{Arrival, HostAddress, Route, Session, SwitchmlConfig};
use tally_engine::{DropReason, PortId};
use tally_kernels::{Backend, Kernels};
use tally_wire::switchml::{Header, Size};

fn payload(rng: &mut Rng, size: Size) -> Vec<u8> {
    let hard = [0, 1, -1, i32::MAX, i32::MIN, 0x0102_0304];
    (0..size.elements())
        .flat_map(|_| {
            let v = if rng.percent(30) {
                hard[rng.below(hard.len())]
            } else {
                rng.next() as i32
            };
            v.to_be_bytes()
        })
        .collect()
}

/// What a test knows of a session that it has bound.
struct Job {
    session: Session,
    /// By slot and rank: the set that an honest worker sends to next.
    next: Vec<Vec<bool>>,
}

fn one_seed(seed: u64, totals: &mut [u64; DropReason::ALL.len() + 3]) {
    let mut rng = Rng(seed);
    let shards = 1u8 << rng.below(3);
    let slots = 1 + rng.below(12) as u16;
    let config = SwitchmlConfig {
        sessions: 1 + rng.below(4),
        slots,
        held: rng.below(40) as u32,
        shards,
        shard: rng.below(usize::from(shards)) as u8,
    };
    let backends: Vec<_> = Backend::available().collect();
    let backend = backends[rng.below(backends.len())];
    let mut pair = Pair::new(config, Kernels::new(backend).expect("available"));
    let mut jobs: Vec<Job> = Vec::new();
    let honesty = 50 + rng.below(50) as u64;
    for _ in 0..400 {
        pair.now = pair
            .now
            .after(Duration::from_micros(rng.next() % 3_000_000));
        let choice = rng.below(100);
        if jobs.is_empty() || choice < 3 {
            // A new session, perhaps under a number that is taken, with workers that may be in
            // others.
            let workers = if rng.percent(10) {
                64
            } else {
                1 + rng.below(5)
            };
            let first = rng.below(8) as u8 * 3;
            let size = if rng.percent(80) {
                Size::ALL[rng.below(2)]
            } else {
                Size::ALL[rng.below(Size::ALL.len())]
            };
            let id = rng.next() % 6;
            let session = session(id, size, (0..workers as u8).map(|n| first + n));
            jobs.retain(|job| job.session.id != session.id);
            if pair.bind(&session) {
                let next = vec![vec![false; workers]; usize::from(slots)];
                jobs.push(Job { session, next });
            }
        } else if choice < 5 {
            let id = rng.next() % 6;
            jobs.retain(|job| job.session.id.0 != id);
            pair.unbind(id);
        } else if choice < 7 {
            let statuses = pair.status();
            assert_eq!(statuses.len(), jobs.len());
        } else {
            let at = rng.below(jobs.len());
            let job = &mut jobs[at];
            let rank = rng.below(job.session.workers.len());
            let from = job.session.workers[rank];
            let mut route = Route {
                from,
                to: told(from),
            };
            let slot = rng.below(usize::from(slots));
            let honest = rng.percent(honesty);
            let mut header = Header {
                size: job.session.size,
                job: rng.next() as u8,
                packet: (rng.next() as u32).to_be_bytes(),
                slot: slot as u16,
                set: if honest {
                    job.next[slot][rank]
                } else {
                    rng.percent(50)
                },
                exponents: [rng.next() as i8, rng.next() as i8],
            };
            let mut arrival = Arrival {
                port: PortId(u16::from(from.mac.0[5]) + WAYS * rng.below(2) as u16),
                udp_port: 4000 + rng.below(4) as u16,
                own_port: 0xbee0 + rng.below(2) as u16,
                tos: rng.next() as u8,
            };
            if rng.percent(5) {
                match rng.below(5) {
                    0 => route.from = station(200),
                    1 => header.size = Size::ALL[rng.below(Size::ALL.len())],
                    2 => header.slot = slots + rng.below(3) as u16,
                    3 => route.to = told(station(200)),
                    // Not often: it is the end of the session's sums.
                    _ if rng.percent(10) => arrival.port = PortId(7),
                    _ => {}
                }
            }
            let elements = payload(&mut rng, header.size);
            if let Verdict::Sent(to, header, _) = pair.arrive(&route, &arrival, &header, &elements)
            {
                for to in to {
                    let is_it = |s: &HostAddress| s.mac == to.mac;
                    let found = jobs.iter_mut().rev().find_map(|job| {
                        let rank = job.session.workers.iter().position(is_it)?;
                        Some((job, rank))
                    });
                    let (job, rank) = found.expect("a worker");
                    job.next[usize::from(header.slot)][rank] = !header.set;
                }
            }
        }
    }
    pair.status();
    for job in jobs {
        pair.unbind(job.session.id.0);
    }
    assert_eq!((pair.ledger.live(), pair.ledger.lost()), (0, 0));
    let counters = pair.shard.counters();
    let counts = [counters.contributions, counters.results, counters.answered];
    for (total, count) in totals
        .iter_mut()
        .zip(counts.into_iter().chain(counters.drops.drops))
    {
        *total += count;
    }
}

#[test]
fn random_operations() {
    let mut totals = [0; DropReason::ALL.len() + 3];
    for seed in seeds(400) {
        println!("seed {seed}");
        one_seed(seed, &mut totals);
    }
    let [contributions, results, answered, drops @ ..] = totals;
    println!("{contributions} contributions, {results} results, {answered} answered, {drops:?}");
    if std::env::var("TALLY_SEED").is_err() {
        // That all of the table is met.
        assert!(contributions > 20_000 && results > 2000 && answered > 1000);
        for reason in [
            DropReason::SwitchmlStation,
            DropReason::SwitchmlSize,
            DropReason::SwitchmlSlot,
            DropReason::SwitchmlSet,
            DropReason::SwitchmlHeld,
            DropReason::Shard,
            DropReason::SwitchmlForged,
            DropReason::SwitchmlPort,
            DropReason::Duplicate,
        ] {
            assert!(drops[reason as usize] > 300, "{reason:?}: {drops:?}");
        }
    }
}

/// One slot, in which each of the workers sends in each of two sets.
struct Slot {
    pair: Pair,
    session: Session,
    results: u64,
}

impl Slot {
    fn new(workers: u8, held: u32) -> Self {
        let config = SwitchmlConfig {
            sessions: 1,
            slots: 1,
            held,
            shards: 1,
            shard: 0,
        };
        let session = session(1, Size::B128, 0..workers);
        Self {
            pair: Pair::new(config, Kernels::best()),
            session,
            results: 0,
        }
    }

    fn symbols(&self) -> u32 {
        2 * self.session.workers.len() as u32
    }

    /// One arrival after the other in a new session; each symbol is a rank and a set.
    fn play(&mut self, symbols: impl Iterator<Item = u32>) {
        assert!(self.pair.bind(&self.session));
        for (step, symbol) in symbols.enumerate() {
            let rank = (symbol / 2) as u8;
            let header = Header {
                size: self.session.size,
                job: step as u8,
                packet: [rank, 0, 0, step as u8],
                slot: 0,
                set: symbol % 2 == 1,
                exponents: [step as i8, -(step as i8)],
            };
            let arrival = Arrival {
                port: PortId(u16::from(rank)),
                udp_port: 4000 + step as u16,
                own_port: 0xbee0,
                tos: 0,
            };
            // What is said at a step is said at no other.
            let element = (step as u32 + 1).wrapping_mul(0x9e37_79b1);
            let elements = element.to_be_bytes().repeat(self.session.size.elements());
            let route = Route {
                from: station(rank),
                to: told(station(rank)),
            };
            let verdict = self.pair.arrive(&route, &arrival, &header, &elements);
            self.results += u64::from(matches!(verdict, Verdict::Sent(..)));
        }
    }
}

/// Every sequence of so many arrivals.
fn every_sequence(workers: u8, steps: u32, held: u32) {
    let mut slot = Slot::new(workers, held);
    let symbols = slot.symbols();
    for sequence in 0..symbols.pow(steps) {
        slot.play((0..steps).map(|step| sequence / symbols.pow(step) % symbols));
    }
    assert!(slot.results > 0);
}

/// Every arrival in every state that arrivals can lead to.
fn every_state(workers: u8, held: u32, at_least: usize) {
    let mut slot = Slot::new(workers, held);
    let mut seen = BTreeSet::from([Vec::new()]);
    let mut open = VecDeque::from([Vec::new()]);
    while let Some(way) = open.pop_front() {
        for symbol in 0..slot.symbols() {
            let mut way = way.clone();
            way.push(symbol);
            slot.play(way.iter().copied());
            if seen.insert(slot.pair.table.shape()) {
                open.push_back(way);
            }
        }
    }
    println!("{workers} workers, {held} held: {} states", seen.len());
    assert!(seen.len() >= at_least && slot.results > 0, "{}", seen.len());
}

#[test]
fn one_worker_completely() {
    every_sequence(1, 8, 2);
    every_state(1, 2, 3);
}

#[test]
fn two_workers_completely() {
    every_sequence(2, 6, 2);
    every_state(2, 2, 10);
}

#[test]
fn three_workers_completely() {
    every_sequence(3, 5, 2);
    every_state(3, 2, 50);
}

#[test]
fn four_workers_in_every_state() {
    every_state(4, 2, 200);
}

#[test]
fn room_for_one_sum_completely() {
    every_sequence(2, 6, 1);
    every_state(3, 1, 10);
}
