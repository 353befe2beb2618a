//! The kinds of traffic, each of about a thousand frames.

use super::bench::{Bench, WORKERS, Which};
use Which::{Many, Other, Two};
use tally_wire::{Element, Flags, Header, Kind, Rank};

pub struct Traffic {
    pub name: &'static str,
    pub meaning: &'static str,
    /// Whether the card says more than it is told.
    pub amplifies: bool,
    /// Brings the card to where it begins, and makes its frames.
    pub traffic: fn(&mut Bench) -> Result<Vec<Vec<u8>>, String>,
}

const FRAMES: u32 = 1000;

fn frames(bench: &Bench, headers: impl IntoIterator<Item = Header>) -> Vec<Vec<u8>> {
    headers.into_iter().map(|h| bench.frame(&h)).collect()
}

fn resend(header: Header) -> Header {
    Header {
        flags: header.flags.with(Flags::RESEND),
        ..header
    }
}

/// Without elements.
fn word(header: Header, kind: Kind) -> Header {
    Header {
        kind,
        element: Element::None,
        units: 0,
        rank: if kind == Kind::Remind {
            Rank::PS
        } else {
            header.rank
        },
        bitmap: 0,
        ..header
    }
}

fn probe(header: Header) -> Header {
    word(header, Kind::Probe)
}

fn result(header: Header) -> Header {
    Header {
        kind: Kind::Result,
        bitmap: 0,
        ..header
    }
}

fn float(header: Header) -> Header {
    Header {
        element: Element::F32,
        ..header
    }
}

/// Takes all slots for a job.
fn fill(bench: &mut Bench, which: Which, priority: u8) -> Result<(), String> {
    let headers: Vec<_> = (0..bench.slots)
        .map(|slot| bench.data(which, bench.fragment_at(which, slot, 0), 0, priority))
        .collect();
    bench.prepare(headers)
}

/// Slots that a job takes without having gone on by a window, after which they would only be
/// cleared.
fn owned(bench: &Bench) -> u32 {
    bench.ring / 2 - 1
}

/// Takes that many slots for a job.
fn own(bench: &mut Bench, which: Which, priority: u8) -> Result<(), String> {
    let headers: Vec<_> = (0..owned(bench))
        .map(|n| bench.data(which, n, 0, priority))
        .collect();
    bench.prepare(headers)
}

/// One frame for each of those slots; `make` gets the slot.
fn of_owned(bench: &Bench, which: Which, make: impl Fn(u32) -> Header) -> Vec<Vec<u8>> {
    let first = bench.slot_of(which, 0);
    frames(bench, (0..owned(bench)).map(|n| make(first + n)))
}

/// One frame for each of so many slots.
fn of_slots(bench: &Bench, make: impl Fn(u32) -> Header) -> Vec<Vec<u8>> {
    frames(bench, (0..FRAMES.min(bench.slots)).map(make))
}

/// Results of the last fragments of `Two`, up to the size of the result cache.
fn finish(bench: &mut Bench) -> Result<(), String> {
    let headers: Vec<_> = (0..bench.ring)
        .flat_map(|fragment| [0, 1].map(|rank| (fragment, rank)))
        .map(|(fragment, rank)| bench.data(Two, fragment, rank, 1))
        .collect();
    bench.prepare(headers)
}

/// Has a part of as many fragments of `Many` as there are notes for at the PS.
fn note(bench: &mut Bench) -> Result<(), String> {
    let headers: Vec<_> = (0..bench.ring)
        .map(|fragment| bench.data(Many, fragment, 1, 1))
        .flat_map(|data| [data, word(data, Kind::Remind)])
        .collect();
    bench.prepare(headers)
}

/// All that random workers and a PS say about fragments that are close to each other, of jobs that
/// share slots.
fn random(bench: &mut Bench, priorities: u32) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for n in 0..2 * FRAMES {
        let which = [Many, Two, Other][bench.below(3) as usize];
        let workers = bench.roster(which).workers.len() as u32;
        let slot = n / 16 + bench.below(8);
        let fragment = bench.fragment_at(which, slot, 1);
        let rank = bench.below(workers) as u8;
        let priority = bench.below(priorities) as u8;
        let data = bench.data(which, fragment, rank, priority);
        let header = match bench.below(40) {
            0 => word(data, Kind::Remind),
            1 => word(data, Kind::Nack),
            2..4 => resend(data),
            4 => result(Header {
                rank: Rank::PS,
                ..data
            }),
            5 => probe(data),
            6..16 => float(data),
            _ => data,
        };
        all.push(bench.frame(&header));
    }
    all
}

/// All contributions of one fragment after another.
fn burst(bench: &Bench) -> impl Iterator<Item = Header> {
    let all =
        (0..FRAMES / u32::from(WORKERS)).flat_map(|n| (0..WORKERS).map(move |rank| (n, rank)));
    all.map(|(n, rank)| bench.data(Many, n, rank, 1))
}

pub const KINDS: &[Traffic] = &[
    Traffic {
        name: "first",
        meaning: "takes a free slot",
        amplifies: false,
        traffic: |bench| Ok(of_slots(bench, |n| bench.data(Many, n, 0, 1))),
    },
    Traffic {
        name: "add",
        meaning: "is added to a slot",
        amplifies: false,
        traffic: |bench| {
            fill(bench, Many, 1)?;
            let at = |slot| bench.fragment_at(Many, slot, 0);
            Ok(of_slots(bench, |n| bench.data(Many, at(n), 1, 1)))
        },
    },
    Traffic {
        name: "complete",
        meaning: "is the last of its fragment: the result leaves and is kept",
        amplifies: false,
        traffic: |bench| {
            let firsts: Vec<_> = (0..FRAMES).map(|n| bench.data(Two, n, 0, 1)).collect();
            bench.prepare(firsts)?;
            Ok(of_slots(bench, |n| bench.data(Two, n, 1, 1)))
        },
    },
    Traffic {
        name: "f32",
        meaning: "f32 in rank order, the last of its fragment",
        amplifies: false,
        traffic: |bench| {
            let firsts: Vec<_> = (0..FRAMES)
                .map(|n| float(bench.data(Two, n, 0, 1)))
                .collect();
            bench.prepare(firsts)?;
            Ok(of_slots(bench, |n| float(bench.data(Two, n, 1, 1))))
        },
    },
    Traffic {
        name: "f32-out-of-turn",
        meaning: "f32 ahead of its turn, goes to the PS",
        amplifies: false,
        traffic: |bench| Ok(of_slots(bench, |n| float(bench.data(Many, n, 3, 1)))),
    },
    Traffic {
        name: "burst",
        meaning: "all eight contributions of a fragment one behind the other",
        amplifies: false,
        traffic: |bench| Ok(frames(bench, burst(bench))),
    },
    Traffic {
        name: "burst-f32",
        meaning: "the same in f32, in rank order",
        amplifies: false,
        traffic: |bench| Ok(frames(bench, burst(bench).map(float))),
    },
    Traffic {
        name: "duplicate",
        meaning: "is in the slot already, and dropped",
        amplifies: false,
        traffic: |bench| {
            fill(bench, Many, 1)?;
            let at = |slot| bench.fragment_at(Many, slot, 0);
            Ok(of_slots(bench, |n| bench.data(Many, at(n), 0, 1)))
        },
    },
    Traffic {
        name: "late",
        meaning: "of a fragment that has its result, and dropped",
        amplifies: false,
        traffic: |bench| {
            finish(bench)?;
            Ok(of_slots(bench, |n| bench.data(Two, n % bench.ring, 0, 1)))
        },
    },
    Traffic {
        name: "resend",
        meaning: "RESEND answered from the ring",
        amplifies: false,
        traffic: |bench| {
            finish(bench)?;
            let at = |n| resend(bench.data(Two, n % bench.ring, 0, 1));
            Ok(of_slots(bench, at))
        },
    },
    Traffic {
        name: "resend-first",
        meaning: "RESEND that takes a free slot",
        amplifies: false,
        traffic: |bench| Ok(of_slots(bench, |n| resend(bench.data(Many, n, 0, 1)))),
    },
    Traffic {
        name: "resend-to-ps",
        meaning: "RESEND of a fragment that is at the PS, goes there",
        amplifies: false,
        traffic: |bench| {
            note(bench)?;
            let at = |n| resend(bench.data(Many, n % bench.ring, 0, 1));
            Ok(of_slots(bench, at))
        },
    },
    Traffic {
        name: "probe",
        meaning: "PROBE answered from the ring",
        amplifies: true,
        traffic: |bench| {
            finish(bench)?;
            let at = |n| probe(bench.data(Two, n % bench.ring, 0, 1));
            Ok(of_slots(bench, at))
        },
    },
    Traffic {
        name: "probe-slot",
        meaning: "PROBE of a slot, answered with NACK to the next missing rank",
        amplifies: false,
        traffic: |bench| {
            fill(bench, Many, 1)?;
            let at = |slot| bench.fragment_at(Many, slot, 0);
            Ok(of_slots(bench, |n| probe(bench.data(Many, at(n), 0, 1))))
        },
    },
    Traffic {
        name: "probe-unknown",
        meaning: "PROBE of a fragment that is not here, answered with NACK",
        amplifies: false,
        traffic: |bench| Ok(of_slots(bench, |n| probe(bench.data(Many, n, 0, 1)))),
    },
    Traffic {
        name: "probe-to-ps",
        meaning: "PROBE of a fragment that is at the PS, goes there",
        amplifies: false,
        traffic: |bench| {
            note(bench)?;
            let at = |n| probe(bench.data(Many, n % bench.ring, 0, 1));
            Ok(of_slots(bench, at))
        },
    },
    Traffic {
        name: "collision",
        meaning: "finds its slot taken, goes to the PS",
        amplifies: false,
        traffic: |bench| {
            own(bench, Many, 100)?;
            let at = |slot| bench.fragment_at(Two, slot, 0);
            Ok(of_owned(bench, Many, |n| bench.data(Two, at(n), 0, 50)))
        },
    },
    Traffic {
        name: "preempt",
        meaning: "evicts the slot of a lower priority",
        amplifies: false,
        traffic: |bench| {
            own(bench, Many, 1)?;
            let at = |slot| bench.fragment_at(Two, slot, 0);
            Ok(of_owned(bench, Many, |n| bench.data(Two, at(n), 0, 200)))
        },
    },
    Traffic {
        name: "preempt-same-slot",
        meaning: "each evicts the one before it",
        amplifies: false,
        traffic: |bench| {
            let all = (0..FRAMES).map(|n| {
                let which = [Two, Many][n as usize % 2];
                // From one slot to the next when priorities end.
                let fragment = bench.fragment_at(which, n / 250, n);
                bench.data(which, fragment, 0, (n % 250) as u8)
            });
            Ok(frames(bench, all))
        },
    },
    Traffic {
        name: "preempt-longer",
        meaning: "evicts a slot of the longest payload",
        amplifies: true,
        traffic: |bench| {
            bench.set_other_units(16)?;
            own(bench, Other, 1)?;
            let at = |slot| bench.fragment_at(Two, slot, 0);
            Ok(of_owned(bench, Other, |n| bench.data(Two, at(n), 0, 200)))
        },
    },
    Traffic {
        name: "remind",
        meaning: "REMIND that drives a slot out",
        amplifies: true,
        traffic: |bench| {
            fill(bench, Many, 1)?;
            let at = |slot| bench.fragment_at(Many, slot, 0);
            let remind = |n| word(bench.data(Many, at(n), 0, 1), Kind::Remind);
            Ok(of_slots(bench, remind))
        },
    },
    Traffic {
        name: "remind-not-here",
        meaning: "REMIND of a fragment without a slot",
        amplifies: false,
        traffic: |bench| {
            let remind = |n| word(bench.data(Many, n, 0, 1), Kind::Remind);
            Ok(of_slots(bench, remind))
        },
    },
    Traffic {
        name: "nack",
        meaning: "NACK, goes to its worker",
        amplifies: false,
        traffic: |bench| {
            let nack = |n| word(bench.data(Many, n, 1, 1), Kind::Nack);
            Ok(of_slots(bench, nack))
        },
    },
    Traffic {
        name: "ps-result",
        meaning: "the PS's result, goes to the group and is kept",
        amplifies: false,
        traffic: |bench| {
            let of_ps = |n| Header {
                rank: Rank::PS,
                ..result(bench.data(Many, n, 0, 1))
            };
            Ok(of_slots(bench, of_ps))
        },
    },
    Traffic {
        name: "worker-result",
        meaning: "a worker's result, goes to the group and is kept",
        amplifies: false,
        traffic: |bench| Ok(of_slots(bench, |n| result(bench.data(Many, n, 0, 1)))),
    },
    Traffic {
        name: "malformed",
        meaning: "version 1, dropped",
        amplifies: false,
        traffic: |bench| {
            let mut all = of_slots(bench, |n| bench.data(Many, n, 0, 1));
            all.iter_mut().for_each(|frame| frame[42] = 0x15);
            Ok(all)
        },
    },
    Traffic {
        name: "ordinary",
        meaning: "not for the card, passes through",
        amplifies: false,
        traffic: |bench| {
            let mut all = of_slots(bench, |n| bench.data(Many, n, 0, 1));
            all.iter_mut().for_each(|frame| frame[0] = 4);
            Ok(all)
        },
    },
    Traffic {
        name: "mix",
        meaning: "all of that at random, three jobs on the same slots",
        amplifies: false,
        traffic: |bench| Ok(random(bench, 4)),
    },
    Traffic {
        name: "mix-priorities",
        meaning: "as mix, every frame of another priority: preemptions and hazards",
        amplifies: false,
        traffic: |bench| Ok(random(bench, 256)),
    },
    Traffic {
        name: "mix-lengths",
        meaning: "as mix, and one job's payloads are the longest",
        amplifies: true,
        traffic: |bench| {
            bench.set_other_units(16)?;
            Ok(random(bench, 256))
        },
    },
    Traffic {
        name: "remind-and-add",
        meaning: "REMINDs that drive slots out, and additions in turn",
        amplifies: true,
        traffic: |bench| {
            fill(bench, Many, 1)?;
            let all = (0..FRAMES).map(|n| {
                let add = bench.data(Many, bench.fragment_at(Many, n, 0), 1, 1);
                match n % 2 {
                    0 => word(add, Kind::Remind),
                    _ => add,
                }
            });
            Ok(frames(bench, all))
        },
    },
];
