//! Every backend's folds of sub-32-bit types against an oracle that shares no code with them.

#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use support::{Case, Placed, Rng, backends, oracle};
use tally_kernels::{CANONICAL_NAN_BF16, CANONICAL_NAN_F16, Kernels, MAX_WORKERS};

const MAX_SOURCES: usize = MAX_WORKERS as usize - 1;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    F16,
    Bf16,
    I16,
    I8,
}

const OPS: [Op; 4] = [Op::F16, Op::Bf16, Op::I16, Op::I8];

impl Op {
    fn bytes(self) -> usize {
        if self == Op::I8 { 1 } else { 2 }
    }

    fn run(self, kernels: Kernels, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        match self {
            Op::F16 => kernels.fold_f16(acc, srcs),
            Op::Bf16 => kernels.fold_bf16(acc, srcs),
            Op::I16 => return kernels.fold_i16(acc, srcs),
            Op::I8 => return kernels.fold_i8(acc, srcs),
        }
        false
    }

    fn oracle(self, acc: &[u8], srcs: &[&[u8]]) -> (Vec<u8>, bool) {
        match self {
            Op::F16 => (oracle::fold_half(oracle::F16, acc, srcs), false),
            Op::Bf16 => (oracle::fold_half(oracle::BF16, acc, srcs), false),
            Op::I16 => oracle::fold_int(2, acc, srcs),
            Op::I8 => oracle::fold_int(1, acc, srcs),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Op::F16 => "fold_f16",
            Op::Bf16 => "fold_bf16",
            Op::I16 => "fold_i16",
            Op::I8 => "fold_i8",
        }
    }

    fn element(self, bits: u16) -> Vec<u8> {
        match self {
            Op::F16 | Op::Bf16 => bits.to_le_bytes().to_vec(),
            Op::I16 => bits.to_be_bytes().to_vec(),
            Op::I8 => vec![bits as u8],
        }
    }

    /// Zeros, limits, the neighbours of limits, and of halves infinities, NaNs and subnormals.
    fn hard(self) -> Vec<u16> {
        let magnitudes = match self {
            Op::F16 => vec![
                0, 1, 2, 0x03ff, 0x0400, 0x0401, 0x3c00, 0x3c01, 0x6800, 0x7800, 0x7bfe, 0x7bff,
                0x7c00, 0x7c01, 0x7dff, 0x7e00, 0x7fff,
            ],
            Op::Bf16 => vec![
                0, 1, 2, 0x007f, 0x0080, 0x0081, 0x3b80, 0x3c00, 0x3f80, 0x3f81, 0x4b00, 0x7f00,
                0x7f7e, 0x7f7f, 0x7f80, 0x7f81, 0x7fbf, 0x7fc0, 0x7fff,
            ],
            Op::I16 => return vec![0, 1, 0xffff, 0x00ff, 0x0100, 0xff00, 0x7fff, 0x7ffe, 0x8000],
            Op::I8 => return vec![0, 1, 0xff, 0x7f, 0x7e, 0x80, 0x81, 0x40, 0xc0],
        };
        let signed = magnitudes.iter().flat_map(|m| [*m, m | 0x8000]);
        signed.collect()
    }

    /// All anything, all small, or some hard ones among others.
    fn payload(self, rng: &mut Rng, bytes: usize) -> Vec<u8> {
        let hard = self.hard();
        let kind = rng.below(3);
        (0..bytes / self.bytes())
            .flat_map(|_| {
                let bits = rng.next() as u16;
                let bits = match kind {
                    0 => bits,
                    1 if self == Op::I8 => (bits as i8 >> 5) as u16,
                    1 if self == Op::I16 => (bits.cast_signed() >> 5).cast_unsigned(),
                    // Exponents near one another, so that sums have ties and carries.
                    1 if self == Op::F16 => bits & 0x8fff | 0x3000,
                    1 => bits & 0x83ff | 0x3c00,
                    _ if rng.below(3) == 0 => hard[rng.below(hard.len())],
                    _ => bits,
                };
                self.element(bits)
            })
            .collect()
    }
}

fn check(kernels: Kernels, op: Op, acc: &[u8], srcs: &[Vec<u8>], at: usize) {
    let case = Case {
        backend: kernels.backend(),
        op: op.name(),
        bytes: acc.len(),
        at: (at, srcs.len()),
    };
    let mut acc_placed = Placed::new(acc, at);
    let place = |(k, src): (usize, &Vec<u8>)| Placed::new(src, at + k);
    let placed: Vec<_> = srcs.iter().enumerate().map(place).collect();
    let views: Vec<_> = placed.iter().map(Placed::get).collect();
    let flag = op.run(kernels, acc_placed.get_mut(), &views);
    let (expected, expected_flag) = op.oracle(acc, &views);
    acc_placed.assert_is(&expected, &case);
    assert_eq!(flag, expected_flag, "saturation flag: {case:?}");
}

fn all(op: Op) -> Vec<u8> {
    (0..=u16::MAX).flat_map(|bits| op.element(bits)).collect()
}

/// Adding what changes nothing widens and narrows every value there is.
#[test]
fn every_value_comes_back() {
    for kernels in backends() {
        for op in OPS {
            let negative_zero = match op {
                Op::F16 | Op::Bf16 => 0x8000,
                Op::I16 | Op::I8 => 0,
            };
            let nothing = op.element(negative_zero).repeat(1 << 16);
            for sources in [1, 2, MAX_SOURCES] {
                let mut acc = all(op);
                let flag = op.run(kernels, &mut acc, &vec![&nothing[..]; sources]);
                assert!(!flag, "{kernels:?} {op:?}");
                for (bits, got) in (0..=u16::MAX).zip(acc.chunks(op.bytes())) {
                    let is_nan = |infinity: u16| bits & 0x7fff > infinity;
                    let want = match op {
                        Op::F16 if is_nan(0x7c00) => CANONICAL_NAN_F16,
                        Op::Bf16 if is_nan(0x7f80) => CANONICAL_NAN_BF16,
                        _ => bits,
                    };
                    assert_eq!(got, op.element(want), "{kernels:?} {op:?} {bits:#06x}");
                }
            }
        }
    }
}

#[test]
fn every_value_with_every_hard_one_matches_the_oracle() {
    for op in OPS {
        let acc = all(op);
        for hard in op.hard() {
            let src = op.element(hard).repeat(1 << 16);
            let (expected, flag) = op.oracle(&acc, &[&src]);
            for kernels in backends() {
                let mut sum = acc.clone();
                assert_eq!(op.run(kernels, &mut sum, &[&src]), flag);
                assert_eq!(sum, expected, "{kernels:?} {op:?} {hard:#06x}");
            }
        }
    }
}

#[test]
fn every_length_and_number_of_sources_matches_the_oracle() {
    let mut rng = Rng::new("folds");
    for op in OPS {
        for bytes in (0..=600).step_by(op.bytes()).chain([1024, 8192]) {
            for sources in [0, 1, 2, 7] {
                let acc = op.payload(&mut rng, bytes);
                let srcs: Vec<_> = (0..sources).map(|_| op.payload(&mut rng, bytes)).collect();
                for kernels in backends() {
                    check(kernels, op, &acc, &srcs, rng.below(64));
                }
            }
        }
        for sources in 0..=MAX_SOURCES {
            let bytes = 576 + op.bytes();
            let acc = op.payload(&mut rng, bytes);
            let srcs: Vec<_> = (0..sources).map(|_| op.payload(&mut rng, bytes)).collect();
            for kernels in backends() {
                check(kernels, op, &acc, &srcs, rng.below(64));
            }
        }
    }
}

/// The largest sums that there can be, of both signs.
#[test]
fn sums_of_limits_match_the_oracle() {
    for kernels in backends() {
        for op in OPS {
            for hard in op.hard() {
                for sources in [1, 31, MAX_SOURCES] {
                    let payload = op.element(hard).repeat(70);
                    check(kernels, op, &payload, &vec![payload.clone(); sources], 0);
                }
            }
        }
    }
}

/// A sum may leave the type's range on its way, if it comes back: it is cut once, at the end.
#[test]
fn only_the_end_is_cut() {
    for kernels in backends() {
        let mut acc = 30_000i16.to_be_bytes();
        let (up, down) = (30_000i16.to_be_bytes(), (-30_000i16).to_be_bytes());
        assert!(!kernels.fold_i16(&mut acc, &[&up, &up, &down, &down]));
        assert_eq!(acc, 30_000i16.to_be_bytes());
        assert!(kernels.fold_i16(&mut acc, &[&up, &up, &down]));
        assert_eq!(acc, i16::MAX.to_be_bytes());
        let mut acc = [100i8.cast_unsigned(), 156];
        assert!(!kernels.fold_i8(&mut acc, &[&[100, 156], &[156, 100]]));
        assert_eq!(acc, [100, 156]);
        // 2 * 65504 is no f16, but the sum of all is.
        let (up, down) = (0x7bffu16.to_le_bytes(), 0xfbffu16.to_le_bytes());
        let mut acc = up;
        kernels.fold_f16(&mut acc, &[&up, &down]);
        assert_eq!(acc, up);
        kernels.fold_f16(&mut acc, &[&up]);
        assert_eq!(acc, 0x7c00u16.to_le_bytes(), "infinite");
    }
}

/// `2048 + 1 + 1` is 2050 when summed wider, and 2048 when each step is rounded to `f16`.
#[test]
fn halves_are_rounded_once() {
    for kernels in backends() {
        let (big, one) = (0x6800u16.to_le_bytes(), 0x3c00u16.to_le_bytes());
        let mut acc = big;
        kernels.fold_f16(&mut acc, &[&one, &one]);
        assert_eq!(acc, 0x6801u16.to_le_bytes());
        // 256 + 1 + 1 as `bf16`.
        let (big, one) = (0x4380u16.to_le_bytes(), 0x3f80u16.to_le_bytes());
        let mut acc = big;
        kernels.fold_bf16(&mut acc, &[&one, &one]);
        assert_eq!(acc, 0x4381u16.to_le_bytes());
    }
}

#[test]
fn one_element_that_is_cut_is_found_anywhere() {
    for kernels in backends() {
        for op in [Op::I16, Op::I8] {
            for bytes in [2, 64, 130, 256, 326] {
                for at in 0..bytes / op.bytes() {
                    let (acc, mut src) = (vec![0xff; bytes], vec![0; bytes]);
                    let lowest = op.element(if op == Op::I8 { 0x80 } else { 0x8000 });
                    let place = at * op.bytes();
                    src[place..place + op.bytes()].copy_from_slice(&lowest);
                    check(kernels, op, &acc, &[src], 0);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_match_the_oracle(
        payloads in (1usize..12, 0usize..80).prop_flat_map(|(n, elements)| {
            prop::collection::vec(prop::collection::vec(any::<u8>(), 2 * elements), n)
        }),
        at in 0usize..64,
    ) {
        for kernels in backends() {
            for op in OPS {
                check(kernels, op, &payloads[0], &payloads[1..], at);
            }
        }
    }
}

mod contract {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn message(f: impl FnOnce() -> bool) -> String {
        let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("must panic");
        payload.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn what_does_not_fit_panics() {
        for k in backends() {
            for op in OPS {
                let different = message(|| op.run(k, &mut [0; 8], &[&[0; 8], &[0; 4]]));
                assert!(different.contains("8 and 4 bytes"), "{different}");
                let many = message(|| op.run(k, &mut [0; 2], &[&[0; 2][..]; 64]));
                assert!(many.contains("65 payloads: the most are 64"), "{many}");
                if op.bytes() == 2 {
                    let part = message(|| op.run(k, &mut [0; 3], &[&[0; 3]]));
                    assert!(part.contains("of 3 bytes"), "{part}");
                }
            }
            assert!(!k.fold_i8(&mut [1], &[]), "no sources");
        }
    }
}
