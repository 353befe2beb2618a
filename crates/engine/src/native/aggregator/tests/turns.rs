//! Contributions of a turn, of more workers than a row of the batch has room for, in any order.

use super::*;
use crate::native::batch::{Batch, Contribution};

const WORKERS: u16 = 20;

/// The job's workers in another order each time: 7 and 20 have no common divisor.
fn shuffled(from: u16) -> impl Iterator<Item = u8> {
    (0..WORKERS).map(move |n| ((from + n * 7) % WORKERS) as u8)
}

/// Of a rank. Added up in another order than that of the ranks, 2^24 swallows other ones.
fn value(rank: u8) -> f32 {
    if rank == 3 { 16_777_216.0 } else { 1.25 }
}

fn payload(element: Element, rank: u8) -> Vec<u8> {
    match element {
        Element::F32 => floats(value(rank)),
        Element::F16 => half::f16::from_f32(f32::from(rank))
            .to_le_bytes()
            .repeat(32),
        _ => ints(1 << rank),
    }
}

fn sum(element: Element) -> Vec<u8> {
    let ranks = 0..WORKERS as u8;
    match element {
        Element::F32 => floats(ranks.fold(0.0, |sum, rank| sum + value(rank))),
        Element::F16 => half::f16::from_f32(190.0).to_le_bytes().repeat(32),
        _ => ints((1 << WORKERS) - 1),
    }
}

struct Turns {
    world: World,
    batch: Batch<Plain>,
    element: Element,
}

impl Turns {
    /// Of two jobs: of 20 workers, and of two.
    fn new(element: Element) -> Self {
        Self::of(element, &[(JOB, WORKERS, 0), (OTHER, 2, 30)])
    }

    /// Jobs with their workers and the first of their hosts.
    fn of(element: Element, jobs: &[(JobId, u16, u16)]) -> Self {
        let mut world = World::with(PoolConfig {
            held: 64,
            jobs: jobs.iter().map(|job| PoolJob::unlimited(job.0)).collect(),
            ..pool()
        });
        for &(job, workers, first) in jobs {
            world.bind(roster(job, workers, first));
        }
        let batch = Batch::new();
        Self {
            world,
            batch,
            element,
        }
    }

    fn push(&mut self, fragment: u32, rank: u8) {
        self.push_to(JOB, 0, fragment, rank);
    }

    fn push_to(&mut self, job: JobId, first_host: u16, fragment: u32, rank: u8) {
        let header = Header {
            element: self.element,
            priority: rank,
            job,
            ..data(fragment, rank)
        };
        let from = host(first_host + u16::from(rank));
        let admission = self.world.shard.admit(&from, &header).unwrap();
        let contribution = Contribution::new(admission, &header).unwrap();
        let buffer = self.world.ledger.frame(payload(self.element, rank));
        self.batch.push(contribution, buffer);
    }

    /// The poll iteration ends; what left.
    fn aggregate(&mut self) -> Vec<Sent> {
        let World {
            shard, wire, now, ..
        } = &mut self.world;
        shard.handle_batch(*now, &mut self.batch, wire);
        assert!(self.batch.is_empty());
        wire.take()
    }

    fn result(&self, fragment: u32) -> Sent {
        let header = Header {
            element: self.element,
            priority: WORKERS as u8 - 1,
            ..result_of(Rank::SWITCH, fragment)
        };
        published_to(WORKERS, header, sum(self.element), Some(Time(1000)))
    }
}

#[test]
fn a_fragment_that_comes_whole_is_summed_at_once_in_any_order() {
    for element in [Element::I32, Element::F32, Element::F16] {
        let mut t = Turns::new(element);
        // Side by side with others, so that rows of a fragment are apart.
        for n in 0..usize::from(WORKERS) {
            for fragment in 0..3 {
                let rank = shuffled(fragment as u16 * 3).nth(n).unwrap();
                t.push(fragment, rank);
            }
        }
        let expected = [0, 1, 2].map(|fragment| t.result(fragment));
        assert_eq!(t.aggregate(), expected, "{element:?}");
        let counters = t.world.shard.counters();
        assert_eq!((counters.grouped, counters.results), (60, 3));
        assert_eq!(counters.slots_taken, 0);
    }
}

#[test]
fn a_fragment_that_comes_in_parts_is_summed_when_its_last_part_is_here() {
    for element in [Element::I32, Element::F32, Element::F16] {
        for parts in [[1, 8, 11], [9, 10, 1], [17, 1, 2]] {
            let mut t = Turns::new(element);
            let mut ranks = shuffled(5);
            for (n, part) in parts.into_iter().enumerate() {
                for rank in ranks.by_ref().take(part) {
                    t.push(6, rank);
                }
                let sent = t.aggregate();
                if n < 2 {
                    assert_eq!(sent, [], "{element:?} {parts:?}");
                } else {
                    assert_eq!(sent, [t.result(6)], "{element:?} {parts:?}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_comes_twice_counts_once_wherever_it_stands() {
    for at in 0..WORKERS {
        let mut t = Turns::new(Element::I32);
        for (n, rank) in shuffled(2).enumerate() {
            t.push(0, rank);
            if n as u16 == at {
                t.push(0, 2);
            }
        }
        let sent = t.aggregate();
        assert_eq!(sent, [t.result(0)], "{at}");
        let drops = t.world.shard.counters().drops;
        let late = drops[DropReason::Late];
        assert_eq!(drops[DropReason::Duplicate] + late, 1);
    }
}

#[test]
fn a_full_batch_says_so_and_takes_one_contribution_a_row() {
    let mut t = Turns::new(Element::I32);
    let mut pushed = 0;
    while !t.batch.is_full() {
        t.push(pushed, 0);
        pushed += 1;
    }
    assert_eq!(pushed, 512);
    t.aggregate();
    assert_eq!(t.world.shard.counters().contributions, 512);
}

/// The ports are looked at one after the other, and each brings a train. That of a worker that lags
/// behind comes last and begins with older fragments: their results must not follow those of the
/// newer ones, which would make all workers take them for lost. Other jobs' trains in between
/// change nothing.
#[test]
fn workers_that_lag_behind_do_not_turn_the_results_around() {
    // Also where the numbers wrap, or change their sign.
    for first in [100, u32::MAX - 1, 0x7fff_fffe] {
        for jobs in [&[(JOB, 2, 0)][..], &[(JOB, 2, 0), (OTHER, 2, 30)]] {
            let mut t = Turns::of(Element::I32, jobs);
            // Each job's fragments have numbers of their own, half of all numbers apart.
            let begin = |job| {
                if jobs.len() == 1 || job == OTHER {
                    first
                } else {
                    100
                }
            };
            let mut turn = |trains: &[(u8, Range<u32>)]| {
                for (rank, fragments) in trains {
                    for &(job, _, host) in jobs {
                        for at in fragments.clone() {
                            t.push_to(job, host, begin(job).wrapping_add(at), *rank);
                        }
                    }
                }
                t.aggregate()
            };
            assert_eq!(turn(&[(0, 0..2)]), []);
            let sent = turn(&[(0, 2..4), (1, 0..4)]);
            for &(job, ..) in jobs {
                let of = |sent: &Sent| match sent {
                    Sent::Group(_, h, ..) if h.job == job => {
                        Some(h.fragment.0.wrapping_sub(begin(job)))
                    }
                    Sent::Group(..) => None,
                    other => panic!("{other:?}"),
                };
                let left: Vec<_> = sent.iter().filter_map(of).collect();
                assert_eq!(
                    left,
                    [0, 1, 2, 3],
                    "{job:?} of {} jobs, {first}",
                    jobs.len()
                );
            }
        }
    }
}
