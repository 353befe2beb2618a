//! Workers that are hosts of several ranks: the fold is that of ADR 43, bit by bit.

use super::*;
use crate::collective::Parts;
use crate::descriptor::differing;

/// What a host contributes, as numbers: its ranks' elements in their order.
fn host_sum(collective: &Collective, parts: &[Vec<u8>]) -> Vec<f64> {
    let dtype = collective.dtype;
    let all: Vec<_> = parts.iter().map(|it| numbers(dtype, it)).collect();
    let each = 0..all[0].len();
    if dtype.is_int() {
        return each.map(|i| all.iter().map(|it| it[i]).sum()).collect();
    }
    let fold = |i: usize| all.iter().map(|it| it[i] as f32).reduce(|a, b| a + b);
    let rounded = |v: f32| match (collective.arithmetic, dtype) {
        (Arithmetic::Own, Dtype::F16) => f16::from_f32(v).to_f64(),
        (Arithmetic::Own, Dtype::Bf16) => bf16::from_f32(v).to_f64(),
        _ => f64::from(v),
    };
    each.map(|i| rounded(fold(i).unwrap())).collect()
}

/// The buffer of a collective that is done.
fn done_of(rank: &Rank, ticket: usize) -> &dyn Elements {
    let of = |it: &&Done| it.ticket.0 == ticket as u64;
    &*rank.done.iter().find(of).unwrap().buffer
}

/// Pushes a collective at all hosts, whose ranks bring `inputs`, `parts` each.
fn push(world: &mut World, collective: &Collective, inputs: &[Vec<u8>], parts: usize) {
    for (host, inputs) in inputs.chunks(parts).enumerate() {
        let mut order = inputs.to_vec();
        if let CollectiveKind::Broadcast { root } = collective.kind
            && usize::from(root) / parts == host
        {
            order.swap(0, usize::from(root) % parts);
        }
        let stream = &mut world.ranks[host].stream;
        stream.push(Time(1), collective.clone(), Box::new(Parts::new(order)));
    }
}

#[test]
fn every_kind_of_every_type_is_right_at_every_rank_of_hosts() {
    for seed in 0..60 {
        eprintln!("seed {seed}");
        let mut rng = Rng(7000 + seed);
        let hosts = 1 + rng.below(3) as usize;
        let parts = 1 + rng.below(8 / hosts as u64) as usize;
        let ranks = hosts * parts;
        let root = rng.below(ranks as u64) as u16;
        let mut world = World::new(seed, hosts as u16, 1 + rng.below(20) as u16);
        let mut all = Vec::new();
        for dtype in DTYPES {
            for arithmetic in ARITHMETICS {
                for kind in [
                    CollectiveKind::Sum,
                    CollectiveKind::Mean,
                    CollectiveKind::Broadcast { root },
                ] {
                    let n = [0, 1, 15, 16, 17, 33, 200][rng.below(7) as usize];
                    let finite = arithmetic == Arithmetic::Fixed || rng.below(2) == 0;
                    let one = |_| input(&mut rng, dtype, n, finite);
                    let inputs: Vec<_> = (0..ranks).map(one).collect();
                    all.push((sum_of("w", kind, dtype, arithmetic), inputs));
                }
            }
        }
        for (collective, inputs) in &all {
            push(&mut world, collective, inputs, parts);
        }
        world.run(all.len());
        for (i, (collective, inputs)) in all.iter().enumerate() {
            let want = if let CollectiveKind::Broadcast { root } = collective.kind {
                numbers(collective.dtype, &inputs[usize::from(root)])
            } else {
                let hosts: Vec<_> = inputs.chunks(parts).collect();
                let sums: Vec<_> = hosts.iter().map(|it| host_sum(collective, it)).collect();
                expected_of(collective, &sums, ranks)
            };
            let buffer = done_of(&world.ranks[0], i);
            let mut first = vec![0; buffer.bytes()];
            buffer.read(0, &mut first);
            let got = numbers(collective.dtype, &first);
            assert_eq!(got.len(), want.len());
            for (e, (g, w)) in got.iter().zip(&want).enumerate() {
                let same = g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan();
                assert!(
                    same,
                    "{hosts} hosts of {parts}: element {e} of {collective:?}: {g} and not {w}"
                );
            }
            for rank in &world.ranks {
                for part in 0..parts {
                    let mut bytes = vec![0; first.len()];
                    done_of(rank, i).read_part(part, 0, &mut bytes);
                    assert_eq!(bytes, first, "the same bits at every rank: {collective:?}");
                }
            }
        }
    }
}

#[test]
fn a_sum_that_leaves_its_range_in_the_host_is_never_sent() {
    for (dtype, most) in [
        (Dtype::I32, i32::MAX.to_ne_bytes().to_vec()),
        (Dtype::I16, i16::MAX.to_ne_bytes().to_vec()),
        (Dtype::I8, i8::MAX.to_ne_bytes().to_vec()),
    ] {
        let zeros = vec![0; dtype.bytes()];
        let large = [&zeros[..], &most].concat();
        for (other, fits) in [(zeros.repeat(2), true), (large.clone(), false)] {
            let collective = sum_of("w", CollectiveKind::Sum, dtype, Arithmetic::Own);
            let mut stream = Stream::new(0, 2, 8, PAYLOAD);
            let parts = Parts::new(vec![large.clone(), other]);
            stream.push(Time(0), collective, Box::new(parts));
            let mut payload = [0; PAYLOAD];
            stream.contribute(0, &mut payload);
            let got = stream.contribute(1, &mut payload);
            let is_ready = got == Contribution::Ready(dtype.element());
            assert!(is_ready == fits, "{dtype}: {got:?}");
            assert!(fits || got == Contribution::Overflow);
        }
    }
}

#[test]
fn ranks_of_a_host_that_differ_are_named() {
    let sum = |name: &str, dtype| sum_of(name, CollectiveKind::Sum, dtype, Arithmetic::Native);
    let (w, b) = (sum("w", Dtype::F32), sum("b", Dtype::F32));
    assert_eq!(differing(&[(4, &w, 8), (5, &w, 8), (6, &w, 8)]), None);
    let (ranks, text) = differing(&[(4, &w, 8), (5, &w, 12), (6, &w, 8)]).unwrap();
    assert_eq!(ranks, [5]);
    assert_eq!(
        text,
        "ranks 4, 6 bring a sum of 2 F32 as f32 called \"w\", rank 5 brings a sum of 3 F32 as f32 called \"w\""
    );
    let (ranks, text) = differing(&[(70, &w, 8), (71, &b, 8)]).unwrap();
    assert_eq!(ranks, [70, 71]);
    assert!(text.contains("rank 71 brings a sum of 2 F32 as f32 called \"b\""));
    let (ranks, _) = differing(&[(0, &w, 8), (1, &sum("w", Dtype::I32), 8), (2, &w, 8)]).unwrap();
    assert_eq!(ranks, [1]);
}
