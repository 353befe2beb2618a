//! Every backend's sums and maxima against an oracle that shares no code with them, at every
//! length and alignment, between canaries.

mod support;

use proptest::prelude::*;
use support::{Case, Placed, Rng, backends, oracle};
use tally_kernels::{Kernels, MAX_FUSED};

const ELEMENT: usize = 4;

/// Every length up to two and more vectors of any backend, and two payloads of the field.
fn lengths(step: usize) -> impl Iterator<Item = usize> {
    (0..=600).step_by(step).chain([1024, 8192])
}

/// One source into one accumulator, in place, with everything around it checked.
fn check_one(kernels: Kernels, op: &dyn Op, acc: &[u8], src: &[u8], at: (usize, usize)) {
    let case = Case {
        backend: kernels.backend(),
        op: op.name(),
        bytes: acc.len(),
        at,
    };
    let mut acc_placed = Placed::new(acc, at.0);
    let src_placed = Placed::new(src, at.1);
    let flag = op.run(kernels, acc_placed.get_mut(), src_placed.get());
    let (expected, expected_flag) = op.oracle(acc, &[src]);
    acc_placed.assert_is(&expected, &case);
    src_placed.assert_is(src, &case);
    assert_eq!(flag, expected_flag, "saturation flag: {case:?}");
}

trait Op {
    fn name(&self) -> &'static str;
    fn step(&self) -> usize {
        ELEMENT
    }
    fn run(&self, kernels: Kernels, acc: &mut [u8], src: &[u8]) -> bool;
    fn run_many(&self, kernels: Kernels, acc: &mut [u8], srcs: &[&[u8]]) -> bool;
    fn oracle(&self, acc: &[u8], srcs: &[&[u8]]) -> (Vec<u8>, bool);
    fn fill(&self, rng: &mut Rng, bytes: usize) -> Vec<u8>;
}

struct SumI32;
struct AddBeI32;
struct AddLeI32;
struct SumF32;
struct MaxU8;

impl Op for SumI32 {
    fn name(&self) -> &'static str {
        "sum_i32"
    }
    fn run(&self, kernels: Kernels, acc: &mut [u8], src: &[u8]) -> bool {
        kernels.sum_i32(acc, src)
    }
    fn run_many(&self, kernels: Kernels, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        kernels.sum_i32_many(acc, srcs)
    }
    fn oracle(&self, acc: &[u8], srcs: &[&[u8]]) -> (Vec<u8>, bool) {
        oracle::sum_i32(acc, srcs)
    }
    fn fill(&self, rng: &mut Rng, bytes: usize) -> Vec<u8> {
        rng.i32_payload(bytes)
    }
}

impl Op for AddBeI32 {
    fn name(&self) -> &'static str {
        "add_be_i32"
    }
    fn run(&self, kernels: Kernels, acc: &mut [u8], src: &[u8]) -> bool {
        kernels.add_be_i32(acc, src);
        false
    }
    fn run_many(&self, kernels: Kernels, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        kernels.add_be_i32_many(acc, srcs);
        false
    }
    fn oracle(&self, acc: &[u8], srcs: &[&[u8]]) -> (Vec<u8>, bool) {
        (oracle::add_be_i32(acc, srcs), false)
    }
    fn fill(&self, rng: &mut Rng, bytes: usize) -> Vec<u8> {
        rng.i32_payload(bytes)
    }
}

impl Op for AddLeI32 {
    fn name(&self) -> &'static str {
        "add_le_i32"
    }
    fn run(&self, kernels: Kernels, acc: &mut [u8], src: &[u8]) -> bool {
        kernels.add_le_i32_many(acc, &[src]);
        false
    }
    fn run_many(&self, kernels: Kernels, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        kernels.add_le_i32_many(acc, srcs);
        false
    }
    fn oracle(&self, acc: &[u8], srcs: &[&[u8]]) -> (Vec<u8>, bool) {
        (oracle::add_le_i32(acc, srcs), false)
    }
    fn fill(&self, rng: &mut Rng, bytes: usize) -> Vec<u8> {
        rng.i32_payload(bytes)
    }
}

impl Op for SumF32 {
    fn name(&self) -> &'static str {
        "sum_f32"
    }
    fn run(&self, kernels: Kernels, acc: &mut [u8], src: &[u8]) -> bool {
        kernels.sum_f32(acc, src);
        false
    }
    fn run_many(&self, kernels: Kernels, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        kernels.sum_f32_many(acc, srcs);
        false
    }
    fn oracle(&self, acc: &[u8], srcs: &[&[u8]]) -> (Vec<u8>, bool) {
        (oracle::sum_f32(acc, srcs), false)
    }
    fn fill(&self, rng: &mut Rng, bytes: usize) -> Vec<u8> {
        rng.f32_payload(bytes)
    }
}

impl Op for MaxU8 {
    fn name(&self) -> &'static str {
        "max_u8"
    }
    fn step(&self) -> usize {
        1
    }
    fn run(&self, kernels: Kernels, acc: &mut [u8], src: &[u8]) -> bool {
        kernels.max_u8(acc, src);
        false
    }
    fn run_many(&self, kernels: Kernels, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        for src in srcs {
            kernels.max_u8(acc, src);
        }
        false
    }
    fn oracle(&self, acc: &[u8], srcs: &[&[u8]]) -> (Vec<u8>, bool) {
        (oracle::max_u8(acc, srcs), false)
    }
    fn fill(&self, rng: &mut Rng, bytes: usize) -> Vec<u8> {
        rng.bytes(bytes)
    }
}

const OPS: [&dyn Op; 5] = [&SumI32, &AddBeI32, &AddLeI32, &SumF32, &MaxU8];

#[test]
fn every_length_matches_the_oracle() {
    let mut rng = Rng::new("every_length");
    for kernels in backends() {
        for op in OPS {
            for bytes in lengths(op.step()) {
                for at in [(0, 0), (1, 0), (0, 1), (3, 61), (63, 63)] {
                    let (acc, src) = (op.fill(&mut rng, bytes), op.fill(&mut rng, bytes));
                    check_one(kernels, op, &acc, &src, at);
                }
            }
        }
    }
}

#[test]
fn every_alignment_matches_the_oracle() {
    let mut rng = Rng::new("every_alignment");
    for kernels in backends() {
        for op in OPS {
            for bytes in [4, 60, 64, 68, 188, 256, 260, 1024] {
                let (acc, src) = (op.fill(&mut rng, bytes), op.fill(&mut rng, bytes));
                for acc_at in 0..64 {
                    for src_at in 0..64 {
                        check_one(kernels, op, &acc, &src, (acc_at, src_at));
                    }
                }
            }
        }
    }
}

#[test]
fn every_pair_of_hard_values_matches_the_oracle() {
    for kernels in backends() {
        for (op, values) in [
            (
                &SumI32 as &dyn Op,
                support::HARD_I32.map(|v| v.to_be_bytes()).to_vec(),
            ),
            (
                &AddBeI32,
                support::HARD_I32.map(|v| v.to_be_bytes()).to_vec(),
            ),
            (&SumF32, support::HARD_F32.map(u32::to_le_bytes).to_vec()),
        ] {
            let pairs = || {
                values
                    .iter()
                    .flat_map(|a| values.iter().map(move |b| (a, b)))
            };
            let acc: Vec<u8> = pairs().flat_map(|(a, _)| *a).collect();
            let src: Vec<u8> = pairs().flat_map(|(_, b)| *b).collect();
            check_one(kernels, op, &acc, &src, (0, 0));
            // One pair at a time, so that the flag of each one counts.
            for (a, b) in pairs() {
                check_one(kernels, op, a, b, (0, 0));
            }
        }
    }
}

#[test]
fn a_saturating_element_anywhere_is_found() {
    for kernels in backends() {
        for bytes in [4, 64, 132, 256, 516] {
            for at in (0..bytes).step_by(ELEMENT) {
                for (limit, more) in [(i32::MAX, 1i32), (i32::MIN, -1)] {
                    let (mut acc, mut src) = (vec![0; bytes], vec![0; bytes]);
                    acc[at..at + ELEMENT].copy_from_slice(&limit.to_be_bytes());
                    assert!(!kernels.sum_i32(&mut acc, &src), "{kernels:?} {bytes} {at}");
                    src[at..at + ELEMENT].copy_from_slice(&more.to_be_bytes());
                    let before = acc.clone();
                    assert!(kernels.sum_i32(&mut acc, &src), "{kernels:?} {bytes} {at}");
                    assert_eq!(acc, before, "{kernels:?} {bytes} {at}");
                }
            }
        }
    }
}

#[test]
fn a_nan_anywhere_becomes_the_canonical_one_and_nothing_else_changes() {
    let values = |v: f32, bytes: usize| v.to_le_bytes().repeat(bytes / ELEMENT);
    for kernels in backends() {
        for bytes in [4, 64, 132, 256, 516] {
            for at in (0..bytes).step_by(ELEMENT) {
                for hard in [0x7f80_0001, 0xffc1_2345, f32::INFINITY.to_bits()] {
                    let (acc, mut src) = (values(1.5, bytes), values(2.0, bytes));
                    src[at..at + ELEMENT].copy_from_slice(&hard.to_le_bytes());
                    // An infinity of the other sign elsewhere must not be taken for a NaN.
                    let other = (at + 24) % bytes / ELEMENT * ELEMENT;
                    if other != at {
                        src[other..other + ELEMENT]
                            .copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
                    }
                    check_one(kernels, &SumF32, &acc, &src, (0, 0));
                    check_many(kernels, &SumF32, &acc, &vec![src.clone(); 7], 0);
                }
            }
        }
    }
}

#[test]
fn many_sources_match_the_oracle() {
    let mut rng = Rng::new("many_sources");
    for kernels in backends() {
        for op in OPS {
            for sources in 0..=2 * MAX_FUSED + 3 {
                for bytes in (0..=200).step_by(ELEMENT).chain([1024, 8192]) {
                    let acc = op.fill(&mut rng, bytes);
                    let srcs: Vec<_> = (0..sources).map(|_| op.fill(&mut rng, bytes)).collect();
                    check_many(kernels, op, &acc, &srcs, rng.below(64));
                }
            }
        }
    }
}

/// As the hard values are rare among the others, here a block has few elements and no others.
#[test]
fn many_hard_sources_match_the_oracle() {
    let mut rng = Rng::new("many_hard_sources");
    for kernels in backends() {
        for _ in 0..20_000 {
            let bytes = ELEMENT * (1 + rng.below(40));
            let sources = rng.below(MAX_FUSED + 2);
            let acc = rng.hard_i32_payload(bytes);
            let srcs: Vec<_> = (0..sources).map(|_| rng.hard_i32_payload(bytes)).collect();
            check_many(kernels, &SumI32, &acc, &srcs, 0);
            let acc = rng.hard_f32_payload(bytes);
            let srcs: Vec<_> = (0..sources).map(|_| rng.hard_f32_payload(bytes)).collect();
            check_many(kernels, &SumF32, &acc, &srcs, 0);
        }
    }
}

fn check_many(kernels: Kernels, op: &dyn Op, acc: &[u8], srcs: &[Vec<u8>], at: usize) {
    let case = Case {
        backend: kernels.backend(),
        op: op.name(),
        bytes: acc.len(),
        at: (at, at),
    };
    let mut acc_placed = Placed::new(acc, at);
    let placed: Vec<_> = srcs
        .iter()
        .enumerate()
        .map(|(k, s)| Placed::new(s, at + k))
        .collect();
    let views: Vec<_> = placed.iter().map(Placed::get).collect();
    let flag = op.run_many(kernels, acc_placed.get_mut(), &views);
    let (expected, expected_flag) =
        op.oracle(acc, &srcs.iter().map(Vec::as_slice).collect::<Vec<_>>());
    acc_placed.assert_is(&expected, &case);
    assert_eq!(
        flag,
        expected_flag,
        "saturation flag, {} sources: {case:?}",
        srcs.len()
    );
}

proptest! {
    #[test]
    fn any_bytes_match_the_oracle(
        pairs in prop::collection::vec(any::<(u32, u32)>(), 0..300),
        at in (0usize..64, 0usize..64),
    ) {
        let acc: Vec<u8> = pairs.iter().flat_map(|(a, _)| a.to_ne_bytes()).collect();
        let src: Vec<u8> = pairs.iter().flat_map(|(_, b)| b.to_ne_bytes()).collect();
        for kernels in backends() {
            for op in OPS {
                check_one(kernels, op, &acc, &src, at);
            }
        }
    }
}

/// Each panics as documented, on every backend: an operation may not silently take the shorter.
mod contract {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn assert_panics(what: &str, expected: &str, f: impl FnOnce()) {
        let payload = catch_unwind(AssertUnwindSafe(f)).expect_err(what);
        let message = payload.downcast_ref::<String>().expect("formatted");
        assert!(message.contains(expected), "{what}: {message}");
    }

    #[test]
    fn lengths_that_differ_panic() {
        for k in backends() {
            assert_panics("sum_i32", "8 and 4 bytes", || {
                let _ = k.sum_i32(&mut [0; 8], &[0; 4]);
            });
            assert_panics("sum_f32", "4 and 8 bytes", || {
                k.sum_f32(&mut [0; 4], &[0; 8]);
            });
            assert_panics("max_u8", "3 and 4 bytes", || k.max_u8(&mut [0; 3], &[0; 4]));
            let srcs: [&[u8]; 2] = [&[0; 8], &[0; 12]];
            assert_panics("many", "8 and 12 bytes", || {
                let _ = k.sum_i32_many(&mut [0; 8], &srcs);
            });
            assert_panics("many", "8 and 12 bytes", || {
                k.sum_f32_many(&mut [0; 8], &srcs);
            });
        }
    }

    #[test]
    fn parts_of_elements_panic() {
        for k in backends() {
            assert_panics("sum_i32", "of 6 bytes", || {
                let _ = k.sum_i32(&mut [0; 6], &[0; 6]);
            });
            assert_panics("sum_f32", "of 7 bytes", || k.sum_f32(&mut [0; 7], &[0; 7]));
        }
    }
}
