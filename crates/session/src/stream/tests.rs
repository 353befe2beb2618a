//! Whole sessions without a network: ranks that contribute, take results, ask again, in an order
//! that is drawn from a seed. Sums are those of the endpoint tests' naive switch, and results are
//! compared with sums made here.

#[path = "../../../endpoint/tests/common/mod.rs"]
mod common;
mod hosts;

use super::*;
use crate::collective::CollectiveKind;
use crate::collective::Priority;
use crate::dtype::{Arithmetic, Dtype};
use common::Rng;
use common::switch::naive_sum;
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::time::Duration;

const PAYLOAD: usize = 64;
const DELIVERY: Delivery = Delivery {
    latency: Duration::from_micros(50),
    from_ps: false,
};
const DTYPES: [Dtype; 6] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::I32,
    Dtype::I16,
    Dtype::I8,
];
const ARITHMETICS: [Arithmetic; 3] = [Arithmetic::Fixed, Arithmetic::Native, Arithmetic::Own];

struct Rank {
    stream: Stream,
    base: u64,
    next: u64,
    /// What it contributed, as long as there is no result.
    sent: BTreeMap<u64, (Element, Vec<u8>)>,
    /// Results it has.
    got: BTreeMap<u64, (Element, Vec<u8>)>,
    done: Vec<Done>,
}

struct World {
    rng: Rng,
    window: u64,
    ranks: Vec<Rank>,
    contributions: BTreeMap<u64, BTreeMap<usize, (Element, Vec<u8>)>>,
    results: BTreeMap<u64, (Element, Vec<u8>)>,
}

impl World {
    fn new(seed: u64, workers: u16, window: u16) -> Self {
        let rank = |r| Rank {
            stream: Stream::new(r, workers, window, PAYLOAD),
            base: 0,
            next: 0,
            sent: BTreeMap::new(),
            got: BTreeMap::new(),
            done: Vec::new(),
        };
        Self {
            rng: Rng(seed),
            window: u64::from(window),
            ranks: (0..workers).map(rank).collect(),
            contributions: BTreeMap::new(),
            results: BTreeMap::new(),
        }
    }

    fn push(&mut self, rank: usize, collective: &Collective, bytes: &[u8]) {
        let stream = &mut self.ranks[rank].stream;
        stream.push(Time(1), collective.clone(), Box::new(bytes.to_vec()));
    }

    /// Something happens at a random rank. Says whether anything could.
    fn step(&mut self) -> bool {
        let r = self.rng.below(self.ranks.len() as u64) as usize;
        let mut payload = vec![0xa5; PAYLOAD];
        let rank = &mut self.ranks[r];
        match self.rng.below(4) {
            0 if rank.next < rank.base + self.window && rank.next < rank.stream.end => {
                let Contribution::Ready(element) = rank.stream.contribute(rank.next, &mut payload)
                else {
                    return false;
                };
                rank.sent.insert(rank.next, (element, payload.clone()));
                let all = self.contributions.entry(rank.next).or_default();
                // As S-1 has it.
                if all.values().all(|(first, _)| *first == element) {
                    all.insert(r, (element, payload));
                }
                if all.len() == self.ranks.len() {
                    let payloads: Vec<_> = all.values().map(|(_, p)| p.as_slice()).collect();
                    let (sum, overflow) = naive_sum(element, &payloads);
                    assert!(!overflow, "inputs are too large");
                    self.results.insert(self.ranks[r].next, (element, sum));
                }
                self.ranks[r].next += 1;
            }
            // Any of the results that it lacks.
            1 => {
                let missing: Vec<_> = rank
                    .sent
                    .keys()
                    .filter(|s| self.results.contains_key(s))
                    .collect();
                if missing.is_empty() {
                    return false;
                }
                let seq = *missing[self.rng.below(missing.len() as u64) as usize];
                let (element, sum) = self.results[&seq].clone();
                rank.sent.remove(&seq);
                rank.stream.at(Time(1_000_001));
                rank.stream.result(seq, element, &sum, DELIVERY);
                rank.got.insert(seq, (element, sum));
                rank.base = rank.sent.first_key_value().map_or(rank.next, |(s, _)| *s);
                while let Some(done) = rank.stream.pop_done() {
                    rank.done.push(done);
                }
            }
            2 => {
                for (seq, (element, bytes)) in &rank.sent {
                    payload.fill(0xa5);
                    let again = rank.stream.contribute(*seq, &mut payload);
                    assert_eq!(again, Contribution::Ready(*element));
                    assert_eq!(&payload, bytes, "W-3: fragment {seq} of rank {r}");
                }
            }
            _ => {
                let newest = rank.got.keys().next_back().copied().unwrap_or_default();
                for (seq, (element, sum)) in
                    rank.got.range(newest.saturating_sub(2 * self.window - 1)..)
                {
                    payload.fill(0xa5);
                    let stored = rank.stream.stored_result(*seq, &mut payload);
                    assert_eq!(stored, Some(*element), "fragment {seq} of rank {r}");
                    assert_eq!(&payload, sum, "fragment {seq} of rank {r}");
                }
            }
        }
        true
    }

    fn run(&mut self, collectives: usize) {
        for _ in 0..200_000 {
            self.step();
            if self.ranks.iter().all(|r| r.done.len() == collectives) {
                return;
            }
        }
        panic!("it does not end");
    }

    /// Until nothing happens any more.
    fn run_out(&mut self) {
        let mut idle = 0;
        while idle < 2000 {
            let before: (u64, usize) = self
                .ranks
                .iter()
                .fold((0, 0), |(a, b), r| (a + r.next, b + r.got.len()));
            self.step();
            let after = self
                .ranks
                .iter()
                .fold((0, 0), |(a, b), r| (a + r.next, b + r.got.len()));
            idle = if before == after { idle + 1 } else { 0 };
        }
    }
}

fn sum_of(name: &str, kind: CollectiveKind, dtype: Dtype, arithmetic: Arithmetic) -> Collective {
    Collective {
        kind,
        dtype,
        arithmetic,
        name: name.into(),
        priority: Priority::FIRST,
        more_follow: false,
    }
}

/// A rank's elements, in host order. No sum of eight overflows.
fn input(rng: &mut Rng, dtype: Dtype, elements: usize, finite: bool) -> Vec<u8> {
    let float = |rng: &mut Rng| {
        let x = rng.next();
        match x % 50 {
            0 if !finite => f32::NAN,
            1 if !finite => f32::NEG_INFINITY,
            2 => -0.0,
            _ => ((x >> 40) as f32 - 8e6) * 2f32.powi((x % 9) as i32 - 22),
        }
    };
    (0..elements)
        .flat_map(|_| match dtype {
            Dtype::F32 => float(rng).to_ne_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(float(rng)).to_ne_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(float(rng)).to_ne_bytes().to_vec(),
            Dtype::I32 => ((rng.next() as i32) >> 3).to_ne_bytes().to_vec(),
            Dtype::I16 => ((rng.next() as i16) >> 3).to_ne_bytes().to_vec(),
            Dtype::I8 => vec![((rng.next() as i8) >> 3) as u8],
        })
        .collect()
}

/// The elements as numbers: f64 has all of them exactly.
fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let two = |b: &[u8]| [b[0], b[1]];
    let number = |b: &[u8]| match dtype {
        Dtype::F32 => f32::from_ne_bytes(b.try_into().unwrap()).into(),
        Dtype::F16 => f16::from_ne_bytes(two(b)).to_f64(),
        Dtype::Bf16 => bf16::from_ne_bytes(two(b)).to_f64(),
        Dtype::I32 => i32::from_ne_bytes(b.try_into().unwrap()).into(),
        Dtype::I16 => i16::from_ne_bytes(two(b)).into(),
        Dtype::I8 => (b[0] as i8).into(),
    };
    bytes.chunks(dtype.bytes()).map(number).collect()
}

/// What the elements must become, as numbers.
fn expected(collective: &Collective, inputs: &[Vec<u8>]) -> Vec<f64> {
    let all: Vec<_> = inputs
        .iter()
        .map(|b| numbers(collective.dtype, b))
        .collect();
    expected_of(collective, &all, inputs.len())
}

/// The same, of what workers bring, with a mean over `ranks`.
fn expected_of(collective: &Collective, all: &[Vec<f64>], ranks: usize) -> Vec<f64> {
    let dtype = collective.dtype;
    let n = ranks as f64;
    let is_mean = collective.kind == CollectiveKind::Mean && n > 1.0;
    let narrow = |v: f32| match dtype {
        Dtype::F16 => f16::from_f32(v).to_f64(),
        Dtype::Bf16 => bf16::from_f32(v).to_f64(),
        _ => f64::from(v),
    };
    let mean = |v: f32| {
        if is_mean {
            narrow(v / n as f32)
        } else {
            narrow(v)
        }
    };
    let each = 0..all[0].len();
    if let CollectiveKind::Broadcast { root } = collective.kind {
        return all[usize::from(root)].clone();
    }
    if collective.kind == CollectiveKind::Max {
        let byte = |v: &f64| (*v as i8).cast_unsigned();
        let largest = |i: usize| all.iter().map(|v| byte(&v[i])).max();
        return each
            .map(|i| largest(i).unwrap_or(0).cast_signed().into())
            .collect();
    }
    if dtype.is_int() {
        let sum = |i: usize| all.iter().map(|v| v[i]).sum::<f64>();
        return each
            .map(|i| {
                if is_mean {
                    (sum(i) / n).trunc() + 0.0
                } else {
                    sum(i)
                }
            })
            .collect();
    }
    if collective.arithmetic != Arithmetic::Fixed {
        let fold = |i: usize| {
            all.iter()
                .map(|v| v[i] as f32)
                .reduce(|a, b| a + b)
                .unwrap()
        };
        let own = collective.arithmetic == Arithmetic::Own;
        return each
            .map(|i| {
                if own {
                    mean(narrow(fold(i)) as f32)
                } else {
                    mean(fold(i))
                }
            })
            .collect();
    }
    let c = all.len().next_power_of_two().trailing_zeros() as i32;
    let mut sums = Vec::new();
    for start in each.step_by(PAYLOAD / 4) {
        let range = start..all[0].len().min(start + PAYLOAD / 4);
        let exponent = |v: &f64| ((*v as f32).to_bits() >> 23 & 0xff) as i32;
        let e = all
            .iter()
            .flat_map(|v| &v[range.clone()])
            .map(exponent)
            .max()
            .unwrap();
        let s = 31 - c - (e.max(1) - 126);
        for i in range {
            let q = |v: &Vec<f64>| (v[i] * 2f64.powi(s)).round_ties_even();
            // An integer has no negative zero.
            let total = all.iter().map(q).sum::<f64>() + 0.0;
            let sum = (f64::from(total as f32) * 2f64.powi(-s)) as f32;
            sums.push(mean(if e == 255 { f32::NAN } else { sum }));
        }
    }
    sums
}

#[track_caller]
fn assert_results(collective: &Collective, inputs: &[Vec<u8>], done: &Done) {
    let mut bytes = vec![0; done.buffer.bytes()];
    done.buffer.read(0, &mut bytes);
    if let CollectiveKind::Broadcast { root } = collective.kind {
        assert_eq!(
            bytes,
            inputs[usize::from(root)],
            "bit by bit: {collective:?}"
        );
    }
    let got = numbers(collective.dtype, &bytes);
    let want = expected(collective, inputs);
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let same = g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan();
        assert!(same, "element {i} of {collective:?}: {g} and not {w}");
    }
}

#[test]
fn every_kind_of_every_type_is_right_in_any_order_of_things() {
    for seed in 0..60 {
        eprintln!("seed {seed}");
        let mut rng = Rng(1000 + seed);
        let workers = 1 + rng.below(8) as u16;
        let window = 1 + rng.below(20) as u16;
        let mut world = World::new(seed, workers, window);
        let kinds = [
            CollectiveKind::Sum,
            CollectiveKind::Mean,
            CollectiveKind::Broadcast {
                root: rng.below(u64::from(workers)) as u16,
            },
            CollectiveKind::Barrier,
            CollectiveKind::Max,
        ];
        let mut brought = Vec::new();
        for number in 0..6 {
            let mut pick = |n: usize| rng.below(n as u64) as usize;
            let kind = kinds[pick(5)];
            let (dtype, arithmetic) = (DTYPES[pick(6)], ARITHMETICS[pick(3)]);
            let dtype = match kind {
                CollectiveKind::Max => Dtype::I8,
                _ => dtype,
            };
            let elements = match (kind, pick(4)) {
                (CollectiveKind::Barrier, _) | (_, 0) => 0,
                (_, 1) => 1,
                (_, 2) => pick(40),
                // Several windows, and in block fixed point more than a group of scales.
                _ => 1000 + pick(600),
            };
            let collective = sum_of(&format!("c{number}"), kind, dtype, arithmetic);
            let inputs: Vec<_> = (0..workers)
                .map(|_| input(&mut rng, dtype, elements, number % 2 == 0))
                .collect();
            brought.push((collective, inputs));
        }
        for (collective, inputs) in &brought {
            for (r, bytes) in inputs.iter().enumerate() {
                world.push(r, collective, bytes);
            }
        }
        world.run(brought.len());
        for rank in &world.ranks {
            assert_eq!((rank.stream.waiting(), rank.stream.live.len()), (0, 0));
            for done in &rank.done {
                let (collective, inputs) = &brought[done.ticket.0 as usize];
                assert_eq!(&done.collective, collective);
                assert_results(collective, inputs, done);
                assert!((done.seconds - 0.001).abs() < 1e-9);
            }
        }
    }
}

/// Two ranks that bring what differs, and one that goes with the first.
#[track_caller]
fn mismatch(bring: [(Collective, usize); 2], said: &str) {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, 8);
        let barrier = Collective::barrier("before");
        for rank in 0..3 {
            world.push(rank, &barrier, &[]);
            let (collective, bytes) = &bring[usize::from(rank == 2)];
            world.push(rank, collective, &vec![1; *bytes]);
            world.push(rank, &Collective::barrier("behind"), &[]);
        }
        world.run_out();
        for (r, rank) in world.ranks.iter_mut().enumerate() {
            let tickets: Vec<_> = rank.done.iter().map(|d| d.ticket.0).collect();
            assert_eq!(
                tickets,
                [0],
                "rank {r} takes part in what all bring, and in no more"
            );
            let text = rank.stream.mismatch().expect("found").to_string();
            // Who has another name than the others tells theirs apart, and does not know it.
            assert!(r == 2 || text.contains(said), "{text}");
            assert_eq!(rank.stream.mismatch().unwrap().ranks.0, 0b100);
            // D-5.
            let next = rank.stream.contributed;
            let new = rank.stream.contribute(next, &mut [0; PAYLOAD]);
            assert!(next == rank.stream.end || new == Contribution::NotReady);
        }
    }
}

#[test]
fn every_difference_is_found_before_anything_is_believed() {
    let (sum, fixed) = (CollectiveKind::Sum, Arithmetic::Fixed);
    let usual = || (sum_of("w", sum, Dtype::F32, fixed), 400);
    let others = ", all others a sum of 100 F32 in block fixed point called \"w\"";
    let differs = |collective, bytes, says: &str| {
        let said = format!("rank 2 brings {says}{others}");
        mismatch([usual(), (collective, bytes)], &said);
    };
    let native = Arithmetic::Native;
    differs(
        sum_of("w", sum, Dtype::F32, fixed),
        404,
        "a sum of 101 F32 in block fixed point called \"w\"",
    );
    differs(
        sum_of("w", sum, Dtype::F32, native),
        400,
        "a sum of 100 F32 as f32 called \"w\"",
    );
    differs(
        sum_of("w", sum, Dtype::I32, fixed),
        400,
        "a sum of 100 I32 called \"w\"",
    );
    differs(
        sum_of("w", CollectiveKind::Mean, Dtype::F32, fixed),
        400,
        "a mean of 100 F32 in block fixed point called \"w\"",
    );
    differs(
        sum_of(
            "w",
            CollectiveKind::Broadcast { root: 1 },
            Dtype::F32,
            fixed,
        ),
        400,
        "a broadcast of 100 F32 from rank 1 called \"w\"",
    );
    differs(
        sum_of("b", sum, Dtype::F32, fixed),
        400,
        "a sum of 100 F32 in block fixed point of another name",
    );
    differs(Collective::barrier("w"), 0, "a barrier called \"w\"");
    differs(
        sum_of("w", sum, Dtype::F32, fixed),
        0,
        "a sum of 0 F32 in block fixed point called \"w\"",
    );
}

#[test]
fn roots_that_differ_give_no_rank_a_mixture() {
    let from = |root| {
        sum_of(
            "w",
            CollectiveKind::Broadcast { root },
            Dtype::I8,
            Arithmetic::Own,
        )
    };
    let others = "rank 2 brings a broadcast of 300 I8 from rank 1";
    mismatch([(from(0), 300), (from(1), 300)], others);
}

#[test]
fn arithmetic_matters_where_it_is_used_only() {
    let (own, native) = (Arithmetic::Own, Arithmetic::Native);
    let alike = |a: Collective, b: Collective| Record::new(&a, 8) == Record::new(&b, 8);
    let sum = |dtype, arithmetic| sum_of("w", CollectiveKind::Sum, dtype, arithmetic);
    assert!(alike(
        sum(Dtype::I32, own),
        sum(Dtype::I32, Arithmetic::Fixed)
    ));
    assert!(alike(sum(Dtype::F32, own), sum(Dtype::F32, native)));
    assert!(!alike(sum(Dtype::F16, own), sum(Dtype::F16, native)));
}

/// Elements that count how many of their bytes are read and written.
struct Counted {
    bytes: Vec<u8>,
    moved: std::sync::Arc<std::sync::Mutex<(usize, usize)>>,
}

impl Elements for Counted {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.moved.lock().unwrap().0 += into.len();
        self.bytes.read(at, into);
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        self.moved.lock().unwrap().1 += from.len();
        self.bytes.write(at, from);
    }
}

#[test]
fn a_buffer_is_read_once_and_written_once_but_for_scales_and_the_last_two_windows() {
    const ELEMENTS: usize = 4000;
    let kept = 2 * 8 * PAYLOAD;
    let mean = CollectiveKind::Mean;
    let all = ELEMENTS * 4;
    for (kind, dtype, arithmetic, read) in [
        (
            CollectiveKind::Sum,
            Dtype::F32,
            Arithmetic::Native,
            all + kept,
        ),
        (
            CollectiveKind::Sum,
            Dtype::I32,
            Arithmetic::Native,
            all + kept,
        ),
        (
            CollectiveKind::Sum,
            Dtype::F16,
            Arithmetic::Own,
            all / 2 + kept,
        ),
        // What does not come back from the buffer is kept when it comes.
        (mean, Dtype::F32, Arithmetic::Native, all),
        (CollectiveKind::Sum, Dtype::F16, Arithmetic::Native, all / 2),
        // Once for the exponents, and once for the elements.
        (mean, Dtype::F32, Arithmetic::Fixed, 2 * all),
    ] {
        let collective = sum_of("w", kind, dtype, arithmetic);
        let mut stream = Stream::new(0, 2, 8, PAYLOAD);
        let moved = std::sync::Arc::default();
        let bytes = vec![0; ELEMENTS * dtype.bytes()];
        let written = bytes.len();
        let counted = Counted {
            bytes,
            moved: std::sync::Arc::clone(&moved),
        };
        stream.push(Time(0), collective, Box::new(counted));
        let mut payload = [0; PAYLOAD];
        for seq in 0..stream.end {
            let Contribution::Ready(element) = stream.contribute(seq, &mut payload) else {
                panic!("everything before it has come");
            };
            if seq == 0 {
                // Both ranks bring the same.
                payload.copy_within(..descriptor::RECORD_BYTES, descriptor::RECORD_BYTES);
            }
            stream.result(seq, element, &payload, DELIVERY);
        }
        assert!(stream.pop_done().is_some());
        assert_eq!(
            *moved.lock().unwrap(),
            (read, written),
            "{dtype} {arithmetic:?}"
        );
    }
}

/// If ranks bring different tensors, their sum in the scales of others might overflow.
#[test]
fn block_fixed_point_waits_for_the_descriptor_and_looks_at_exponents_once() {
    let collective = sum_of("w", CollectiveKind::Sum, Dtype::F32, Arithmetic::Fixed);
    let mut stream = Stream::new(0, 2, 8, PAYLOAD);
    let moved = std::sync::Arc::<std::sync::Mutex<(usize, usize)>>::default();
    let counted = Counted {
        bytes: vec![0; 400],
        moved: std::sync::Arc::clone(&moved),
    };
    stream.push(Time(0), collective, Box::new(counted));
    let [mut descriptor, mut scales, mut data] = [[0; PAYLOAD]; 3];
    let ready = Contribution::Ready;
    assert_eq!(stream.contribute(0, &mut descriptor), ready(Element::Scale));
    for _ in 0..3 {
        assert_eq!(stream.contribute(1, &mut scales), ready(Element::Scale));
        assert_eq!(*moved.lock().unwrap(), (400, 0));
    }
    assert_eq!(stream.contribute(2, &mut data), Contribution::NotReady);
    stream.result(1, Element::Scale, &scales, DELIVERY);
    assert_eq!(stream.contribute(2, &mut data), Contribution::NotReady);
    descriptor.copy_within(..descriptor::RECORD_BYTES, descriptor::RECORD_BYTES);
    stream.result(0, Element::Scale, &descriptor, DELIVERY);
    assert_eq!(stream.contribute(2, &mut data), ready(Element::I32));
}

#[test]
fn as_many_ranks_as_can_be_with_the_smallest_payload() {
    let mut world = World::new(9, 64, 3);
    let collective = sum_of("w", CollectiveKind::Sum, Dtype::F32, Arithmetic::Fixed);
    let mut rng = Rng(9);
    let inputs: Vec<_> = (0..64)
        .map(|_| input(&mut rng, Dtype::F32, 33, true))
        .collect();
    for (rank, bytes) in inputs.iter().enumerate() {
        world.push(rank, &collective, bytes);
    }
    assert_eq!(
        world.ranks[0].stream.end,
        16 + 1 + 3,
        "the descriptor, scales, and elements"
    );
    world.run(1);
    let all_done = world.ranks.iter().flat_map(|r| &r.done);
    all_done.for_each(|done| assert_results(&collective, &inputs, done));
}
