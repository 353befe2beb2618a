//! Block fixed point: every backend against the oracle, and the two promises of [`Scale`], that
//! sums do not overflow and that their error is bounded.

mod support;

use proptest::prelude::*;
use support::{Case, HARD_F32, HARD_I32, Placed, Rng, backends, oracle};
use tally_kernels::{CANONICAL_NAN, Kernels, MAX_WORKERS, NON_FINITE, Scale};

const WORKERS: [u32; 7] = [1, 2, 3, 8, 33, 63, 64];

/// `f32` at a chosen offset from a 64-byte boundary, in elements, with canaries on both sides.
struct PlacedFloats {
    memory: Vec<f32>,
    start: usize,
    elements: usize,
}

const CANARY: u32 = 0xa5a5_a5a5;
const CANARIES: usize = 32;

impl PlacedFloats {
    fn new(values: &[f32], at: usize) -> Self {
        let mut memory = vec![f32::from_bits(CANARY); values.len() + 2 * CANARIES + 32];
        let boundary = memory.as_ptr().addr().next_multiple_of(64) - memory.as_ptr().addr();
        let start = boundary / size_of::<f32>() + CANARIES + at % 16;
        memory[start..start + values.len()].copy_from_slice(values);
        Self {
            memory,
            start,
            elements: values.len(),
        }
    }

    fn get(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.elements]
    }

    fn get_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.elements]
    }

    fn assert_is(&self, expected: &[u32], case: &Case) {
        let got: Vec<u32> = self.get().iter().map(|v| v.to_bits()).collect();
        assert_eq!(got, expected, "{case:?}");
        let (before, rest) = self.memory.split_at(self.start);
        let around = before.iter().chain(&rest[self.elements..]);
        assert!(
            around.map(|v| v.to_bits()).all(|v| v == CANARY),
            "wrote beside it: {case:?}"
        );
    }
}

fn check_quantize(kernels: Kernels, src: &[f32], e: u8, n: u32, at: (usize, usize)) {
    let case = Case {
        backend: kernels.backend(),
        op: "quantize",
        bytes: 4 * src.len(),
        at,
    };
    let expected: Vec<u8> = src
        .iter()
        .flat_map(|v| oracle::quantize(*v, e, n).to_be_bytes())
        .collect();
    let placed = PlacedFloats::new(src, at.0);
    let mut out = Placed::new(&vec![0x5a; expected.len()], at.1);
    kernels.quantize(placed.get(), Scale::new(e, n), out.get_mut());
    out.assert_is(&expected, &case);
}

fn check_dequantize(kernels: Kernels, q: &[i32], e: u8, n: u32, at: (usize, usize)) {
    let case = Case {
        backend: kernels.backend(),
        op: "dequantize",
        bytes: 4 * q.len(),
        at,
    };
    let src: Vec<u8> = q.iter().flat_map(|q| q.to_be_bytes()).collect();
    let expected: Vec<u32> = q.iter().map(|q| oracle::dequantize(*q, e, n)).collect();
    let placed = Placed::new(&src, at.0);
    let mut out = PlacedFloats::new(&vec![1.5; q.len()], at.1);
    kernels.dequantize(placed.get(), Scale::new(e, n), out.get_mut());
    out.assert_is(&expected, &case);
}

/// Values that lie within the bound of an exponent, those at the very edge first.
fn within(exponent: u8, elements: usize, rng: &mut Rng) -> Vec<f32> {
    let largest = if exponent == 0 {
        0x007f_ffff
    } else {
        u32::from(exponent) << 23 | 0x007f_ffff
    };
    let mut bits = vec![
        largest,
        largest | 1 << 31,
        largest - 1,
        u32::from(exponent) << 23,
        0,
    ];
    bits.resize_with(elements, || {
        let bits = rng.next() as u32;
        // Near the bound, or anywhere below it.
        match rng.below(2) {
            0 => (bits & 0x807f_ffff) | u32::from(exponent) << 23,
            _ => (bits & (1 << 31)) | ((bits & 0x7fff_ffff) % (largest + 1)),
        }
    });
    bits.into_iter().map(f32::from_bits).collect()
}

#[test]
fn every_exponent_and_number_of_workers_match_the_oracle() {
    let mut rng = Rng::new("every_exponent");
    let hard: Vec<f32> = HARD_F32.map(f32::from_bits).to_vec();
    for kernels in backends() {
        for e in 0..=NON_FINITE {
            for n in WORKERS {
                check_quantize(kernels, &within(e, 77, &mut rng), e, n, (0, 0));
                // Beyond the bound too: saturated, and the same everywhere.
                check_quantize(kernels, &hard, e, n, (0, 0));
                let any: Vec<f32> = (0..77).map(|_| f32::from_bits(rng.next() as u32)).collect();
                check_quantize(kernels, &any, e, n, (0, 0));
                let any: Vec<i32> = (0..77)
                    .map(|_| (rng.next() as i32) >> rng.below(32))
                    .collect();
                check_dequantize(kernels, &any, e, n, (0, 0));
                check_dequantize(kernels, &HARD_I32, e, n, (0, 0));
            }
        }
    }
}

/// Elements that become k + 1/2 in the fixed point, and their neighbours.
#[test]
fn ties_go_to_even() {
    for kernels in backends() {
        for e in [1, 2, 60, 126, 127, 128, 200, 254] {
            for n in WORKERS {
                let unit = 2f64.powi(-oracle::shift(e, n));
                let halves = [0.5, 1.5, 2.5, 3.5, 4_194_303.5, 4_194_304.5];
                let ties: Vec<f32> = halves
                    .iter()
                    .flat_map(|half| [(half * unit) as f32, (-half * unit) as f32])
                    .flat_map(|v| [v.next_down(), v, v.next_up()])
                    .collect();
                check_quantize(kernels, &ties, e, n, (0, 0));
            }
        }
    }
}

#[test]
fn every_length_and_alignment_match_the_oracle() {
    let mut rng = Rng::new("every_length");
    for kernels in backends() {
        for elements in (0..=150).chain([256, 2048]) {
            for at in [(0, 0), (1, 0), (0, 1), (3, 61), (15, 63)] {
                let src = within(130, elements.max(5), &mut rng)[..elements].to_vec();
                check_quantize(kernels, &src, 130, 8, at);
                let q: Vec<i32> = (0..elements).map(|_| rng.next() as i32).collect();
                check_dequantize(kernels, &q, 130, 8, (at.1, at.0));
                let case = format!("{kernels:?} {elements} elements at {at:?}");
                let placed = PlacedFloats::new(&src, at.0);
                assert_eq!(
                    kernels.max_exponent(placed.get()),
                    oracle::max_exponent(&src),
                    "{case}"
                );
            }
        }
        for elements in [1, 15, 16, 17, 64] {
            for floats_at in 0..16 {
                for bytes_at in 0..64 {
                    let src = within(130, elements.max(5), &mut rng)[..elements].to_vec();
                    check_quantize(kernels, &src, 130, 8, (floats_at, bytes_at));
                    let q: Vec<i32> = (0..elements).map(|_| rng.next() as i32).collect();
                    check_dequantize(kernels, &q, 130, 8, (bytes_at, floats_at));
                }
            }
        }
    }
}

#[test]
fn the_largest_exponent_is_found_wherever_it_is() {
    for kernels in backends() {
        assert_eq!(kernels.max_exponent(&[]), 0);
        for bits in HARD_F32 {
            for elements in 1..70 {
                let at = elements / 2;
                let mut src = vec![0.0; elements];
                src[at] = f32::from_bits(bits);
                let expected = oracle::max_exponent(&src);
                assert_eq!(
                    kernels.max_exponent(&src),
                    expected,
                    "{kernels:?} {bits:08x} {at}"
                );
                assert_eq!(expected == NON_FINITE, !f32::from_bits(bits).is_finite());
            }
        }
    }
}

#[test]
fn without_a_fixed_point_zeros_go_and_nans_come() {
    for kernels in backends() {
        for n in WORKERS {
            let scale = Scale::new(NON_FINITE, n);
            assert!(!scale.is_finite());
            let mut out = [0x5a; 4 * 19];
            kernels.quantize(&[f32::INFINITY; 19], scale, &mut out);
            assert_eq!(out, [0; 4 * 19]);
            let mut back = [0.0; 19];
            kernels.dequantize(&[0x5a; 4 * 19], scale, &mut back);
            assert_eq!(back.map(f32::to_bits), [CANONICAL_NAN; 19]);
        }
    }
}

/// All workers at the edge of the bound, all on the same side: the largest sum there can be.
#[test]
fn the_largest_sums_do_not_saturate() {
    for kernels in backends() {
        for n in 1..=MAX_WORKERS {
            for e in 0..NON_FINITE {
                let scale = Scale::new(e, n);
                let largest = f32::from_bits(u32::from(e) << 23 | 0x007f_ffff);
                let src = [largest, -largest, largest, -largest, largest];
                let mut q = [0; 20];
                kernels.quantize(&src, scale, &mut q);
                let mut acc = q;
                for worker in 1..n {
                    let saturated = kernels.sum_i32(&mut acc, &q);
                    assert!(!saturated, "{kernels:?} e={e} n={n} worker {worker}");
                }
                let mut fused = q;
                let srcs = vec![&q[..]; n as usize - 1];
                assert!(
                    !kernels.sum_i32_many(&mut fused, &srcs),
                    "{kernels:?} e={e} n={n}"
                );
                assert_eq!(acc, fused);
                // At full scale the proof's bound is met exactly, not merely kept.
                if e > 0 && n.is_power_of_two() {
                    let sum = i32::from_be_bytes([acc[0], acc[1], acc[2], acc[3]]);
                    assert_eq!(sum, i32::MAX - 127, "{kernels:?} e={e} n={n}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "payloads of 8 and 12 bytes differ in length")]
fn quantize_refuses_another_length() {
    Kernels::best().quantize(&[0.0; 3], Scale::new(127, 2), &mut [0; 8]);
}

#[test]
#[should_panic(expected = "payloads of 8 and 12 bytes differ in length")]
fn dequantize_refuses_another_length() {
    Kernels::best().dequantize(&[0; 8], Scale::new(127, 2), &mut [0.0; 3]);
}

/// `2^power`, also where it is subnormal.
fn exp2(power: i32) -> f64 {
    2f64.powi(power)
}

/// The parts of up to 64 workers: full exponent range, subnormals and zeros included, or all
/// within a few binades of each other, where the sums are hard.
fn contributions() -> impl Strategy<Value = Vec<Vec<f32>>> {
    let finite = any::<u32>().prop_map(|bits| {
        let v = f32::from_bits(bits);
        if v.is_finite() {
            v
        } else {
            f32::from_bits(bits & 0x807f_ffff)
        }
    });
    let near = (0u32..=246).prop_flat_map(|base| (Just(base), 0u32..8, any::<u32>()));
    let near =
        near.prop_map(|(base, up, bits)| f32::from_bits((bits & 0x807f_ffff) | (base + up) << 23));
    let subnormal = any::<u32>().prop_map(|bits| f32::from_bits(bits & 0x807f_ffff));
    let tiny = any::<u32>().prop_map(|bits| f32::from_bits(bits & 0x81ff_ffff));
    let element = prop_oneof![finite.boxed(), near.boxed()].boxed();
    let kind = prop_oneof![Just(element), Just(subnormal.boxed()), Just(tiny.boxed())];
    (1usize..=64, 1usize..20, kind).prop_flat_map(|(workers, elements, element)| {
        prop::collection::vec(prop::collection::vec(element, elements), workers)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The whole way: agree on an exponent, quantize, sum, dequantize; in the bound of [`Scale`].
    #[test]
    fn the_error_is_bounded(parts in contributions()) {
        let n = parts.len() as u32;
        let elements = parts[0].len();
        let mut results = Vec::new();
        for kernels in backends() {
            let mut e = [0u8];
            for part in &parts {
                kernels.max_u8(&mut e, &[kernels.max_exponent(part)]);
            }
            let scale = Scale::new(e[0], n);
            let mut acc = vec![0; 4 * elements];
            for part in &parts {
                let mut q = vec![0; 4 * elements];
                kernels.quantize(part, scale, &mut q);
                prop_assert!(!kernels.sum_i32(&mut acc, &q), "saturated");
            }
            let mut result = vec![0.0; elements];
            kernels.dequantize(&acc, scale, &mut result);

            let c = f64::from(n).log2().ceil() as i32;
            let bound_exponent = i32::from(e[0]).max(1) - 126;
            let quantization = f64::from(n) * exp2(bound_exponent + c - 32);
            // What the f64 sums of this test may be off by.
            let slack = f64::from(n * n) * exp2(bound_exponent - 52);
            for (i, result) in result.iter().enumerate() {
                let exact: f64 = parts.iter().map(|part| f64::from(part[i])).sum();
                if result.is_infinite() {
                    let reach = exact.abs() + quantization + slack;
                    prop_assert!(reach >= f64::from(f32::MAX), "{exact:e} became infinite");
                    continue;
                }
                let rounding = match result.to_bits() >> 23 & 0xff {
                    0 => 3.0 * exp2(-151),
                    exponent => exp2(exponent as i32 - 127 - 23 - 1),
                };
                let error = (f64::from(*result) - exact).abs();
                prop_assert!(
                    error <= quantization + rounding + slack,
                    "{:?} n={n} e={} exact {exact:e} result {result:e}", kernels, e[0]
                );
            }
            results.push(result.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
        }
        prop_assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "backends differ");
    }
}
