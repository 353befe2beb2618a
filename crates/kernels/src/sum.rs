//! Sums and maxima, once, over any [`Simd`].
//!
//! Sums that wrap are adds and nothing else. The other two expect the usual case, look once at the end whether it was, and go over the payload
//! again in the rare one:
//!
//! * Sums of `i32` are wrapping adds, with the overflow of all elements gathered in a register. If
//!   there was any, a second pass takes the sources back out of the sums, which wrapping
//!   arithmetic allows without loss, and adds them again, saturating.
//! * Sums of `f32` are plain adds, and each result is also added to a register of no other use,
//!   which a single NaN turns into a NaN. If it did, a second pass makes every NaN canonical.

use crate::simd::{Chunk, Simd};

/// The number of sources that are added in one pass over the accumulator. More are added in
/// groups of as many.
pub const MAX_FUSED: usize = 8;

/// Vectors per round where there is one source. With more, each round has work enough.
const UNROLL: usize = 4;

#[inline(always)]
pub(crate) fn sum_i32<S: Simd>(s: S, acc: &mut [u8], src: &[u8]) -> bool {
    fused_i32::<UNROLL, _, _>(s, acc, [src])
}

#[inline(always)]
pub(crate) fn sum_f32<S: Simd>(s: S, acc: &mut [u8], src: &[u8]) {
    fused_f32::<UNROLL, _, _>(s, acc, [src]);
}

#[inline(always)]
pub(crate) fn sum_i32_many<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
    let mut saturated = false;
    for group in srcs.chunks(MAX_FUSED) {
        saturated |= match *group {
            [a] => fused_i32::<UNROLL, _, _>(s, acc, [a]),
            [a, b] => fused_i32::<1, _, _>(s, acc, [a, b]),
            [a, b, c] => fused_i32::<1, _, _>(s, acc, [a, b, c]),
            [a, b, c, d] => fused_i32::<1, _, _>(s, acc, [a, b, c, d]),
            [a, b, c, d, e] => fused_i32::<1, _, _>(s, acc, [a, b, c, d, e]),
            [a, b, c, d, e, f] => fused_i32::<1, _, _>(s, acc, [a, b, c, d, e, f]),
            [a, b, c, d, e, f, g] => fused_i32::<1, _, _>(s, acc, [a, b, c, d, e, f, g]),
            [a, b, c, d, e, f, g, h] => fused_i32::<1, _, _>(s, acc, [a, b, c, d, e, f, g, h]),
            _ => unreachable!("groups hold 1 to MAX_FUSED sources"),
        };
    }
    saturated
}

#[inline(always)]
pub(crate) fn sum_f32_many<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) {
    for group in srcs.chunks(MAX_FUSED) {
        match *group {
            [a] => fused_f32::<UNROLL, _, _>(s, acc, [a]),
            [a, b] => fused_f32::<1, _, _>(s, acc, [a, b]),
            [a, b, c] => fused_f32::<1, _, _>(s, acc, [a, b, c]),
            [a, b, c, d] => fused_f32::<1, _, _>(s, acc, [a, b, c, d]),
            [a, b, c, d, e] => fused_f32::<1, _, _>(s, acc, [a, b, c, d, e]),
            [a, b, c, d, e, f] => fused_f32::<1, _, _>(s, acc, [a, b, c, d, e, f]),
            [a, b, c, d, e, f, g] => fused_f32::<1, _, _>(s, acc, [a, b, c, d, e, f, g]),
            [a, b, c, d, e, f, g, h] => fused_f32::<1, _, _>(s, acc, [a, b, c, d, e, f, g, h]),
            _ => unreachable!("groups hold 1 to MAX_FUSED sources"),
        }
    }
}

#[inline(always)]
pub(crate) fn add_be_i32<S: Simd>(s: S, acc: &mut [u8], src: &[u8]) {
    zip_with(s, acc, [src], &mut [AddI32; UNROLL]);
}

#[inline(always)]
pub(crate) fn add_be_i32_many<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) {
    for group in srcs.chunks(MAX_FUSED) {
        match *group {
            [a] => zip_with(s, acc, [a], &mut [AddI32; UNROLL]),
            [a, b] => zip_with(s, acc, [a, b], &mut [AddI32]),
            [a, b, c] => zip_with(s, acc, [a, b, c], &mut [AddI32]),
            [a, b, c, d] => zip_with(s, acc, [a, b, c, d], &mut [AddI32]),
            [a, b, c, d, e] => zip_with(s, acc, [a, b, c, d, e], &mut [AddI32]),
            [a, b, c, d, e, f] => zip_with(s, acc, [a, b, c, d, e, f], &mut [AddI32]),
            [a, b, c, d, e, f, g] => zip_with(s, acc, [a, b, c, d, e, f, g], &mut [AddI32]),
            [a, b, c, d, e, f, g, h] => zip_with(s, acc, [a, b, c, d, e, f, g, h], &mut [AddI32]),
            _ => unreachable!("groups hold 1 to MAX_FUSED sources"),
        }
    }
}

#[inline(always)]
pub(crate) fn max_u8<S: Simd>(s: S, acc: &mut [u8], src: &[u8]) {
    zip_with(s, acc, [src], &mut [MaxU8; UNROLL]);
}

#[inline(always)]
fn fused_i32<const U: usize, const K: usize, S: Simd>(
    s: S,
    acc: &mut [u8],
    srcs: [&[u8]; K],
) -> bool {
    let mut lanes = [WrappingI32 { overflow: s.zero() }; U];
    zip_with(s, acc, srcs, &mut lanes);
    let mut overflow = lanes[0].overflow;
    for lane in &lanes[1..] {
        overflow = s.or(overflow, lane.overflow);
    }
    let saturated = s.any_negative_i32(overflow);
    if saturated {
        zip_with(s, acc, srcs, &mut [ResaturateI32]);
    }
    saturated
}

#[inline(always)]
fn fused_f32<const U: usize, const K: usize, S: Simd>(s: S, acc: &mut [u8], srcs: [&[u8]; K]) {
    let mut lanes = [SumF32 { poison: s.zero() }; U];
    zip_with(s, acc, srcs, &mut lanes);
    let mut poison = lanes[0].poison;
    for lane in &lanes[1..] {
        poison = s.add_f32(poison, lane.poison);
    }
    if s.any_nan_f32(poison) {
        zip_with(s, acc, [], &mut [CanonicalizeF32]);
    }
}

/// What happens to a vector of the accumulator and the `K` vectors that belong to it.
///
/// A trait and not a closure, as a closure cannot be marked `inline(always)`, and a call that is
/// left standing here would leave the shell, and with it the instruction set.
trait Step<S: Simd, const K: usize> {
    /// The accumulator's new value. Zeros, which fill up a last part, must be taken to zeros and
    /// leave no other trace.
    fn step(&mut self, s: S, acc: S::V, srcs: [S::V; K]) -> S::V;
}

/// Big-endian wrapping sums; gathers in the top bits of `overflow` whether any was too large.
#[derive(Clone, Copy)]
struct WrappingI32<V> {
    overflow: V,
}

impl<S: Simd, const K: usize> Step<S, K> for WrappingI32<S::V> {
    #[inline(always)]
    fn step(&mut self, s: S, acc: S::V, srcs: [S::V; K]) -> S::V {
        let mut sum = s.swap_bytes_u32(acc);
        for src in srcs {
            let src = s.swap_bytes_u32(src);
            let next = s.add_i32(sum, src);
            self.overflow = s.or(self.overflow, s.overflow_i32(sum, src, next));
            sum = next;
        }
        s.swap_bytes_u32(sum)
    }
}

/// Big-endian wrapping sums.
#[derive(Clone, Copy)]
struct AddI32;

impl<S: Simd, const K: usize> Step<S, K> for AddI32 {
    #[inline(always)]
    fn step(&mut self, s: S, acc: S::V, srcs: [S::V; K]) -> S::V {
        let mut sum = s.swap_bytes_u32(acc);
        for src in srcs {
            sum = s.add_i32(sum, s.swap_bytes_u32(src));
        }
        s.swap_bytes_u32(sum)
    }
}

/// Turns wrapping sums into the saturating ones.
struct ResaturateI32;

impl<S: Simd, const K: usize> Step<S, K> for ResaturateI32 {
    #[inline(always)]
    fn step(&mut self, s: S, acc: S::V, srcs: [S::V; K]) -> S::V {
        let mut sum = s.swap_bytes_u32(acc);
        for src in srcs {
            sum = s.sub_i32(sum, s.swap_bytes_u32(src));
        }
        for src in srcs {
            sum = s.saturating_add_i32(sum, s.swap_bytes_u32(src));
        }
        s.swap_bytes_u32(sum)
    }
}

/// Sums from left to right. `poison` is the sum of all results, a value of no use but that it is
/// a NaN if any of them is. (Infinities of both signs make it one too; then the second pass finds
/// nothing to do.)
#[derive(Clone, Copy)]
struct SumF32<V> {
    poison: V,
}

impl<S: Simd, const K: usize> Step<S, K> for SumF32<S::V> {
    #[inline(always)]
    fn step(&mut self, s: S, acc: S::V, srcs: [S::V; K]) -> S::V {
        let mut sum = acc;
        for src in srcs {
            sum = s.add_f32(sum, src);
        }
        self.poison = s.add_f32(self.poison, sum);
        sum
    }
}

/// Makes the canonical one of every NaN. Once, at the end, is enough: a NaN plus anything is one.
struct CanonicalizeF32;

impl<S: Simd> Step<S, 0> for CanonicalizeF32 {
    #[inline(always)]
    fn step(&mut self, s: S, acc: S::V, []: [S::V; 0]) -> S::V {
        s.canonicalize_nan_f32(acc)
    }
}

/// Unsigned maxima of bytes.
#[derive(Clone, Copy)]
struct MaxU8;

impl<S: Simd> Step<S, 1> for MaxU8 {
    #[inline(always)]
    fn step(&mut self, s: S, acc: S::V, [src]: [S::V; 1]) -> S::V {
        s.max_u8(acc, src)
    }
}

/// Takes a step over every vector of `acc` and the vectors at the same place in `srcs`.
///
/// The loop is unrolled as often as there are `steps`. Each of them sees its own vectors of every
/// round, so that what they gather are as many independent chains.
#[inline(always)]
fn zip_with<S: Simd, const K: usize, const U: usize>(
    s: S,
    acc: &mut [u8],
    srcs: [&[u8]; K],
    steps: &mut [impl Step<S, K>; U],
) {
    // Known to the callers; said here, once, to the optimiser, which need not ask in the loops.
    for src in srcs {
        assert!(src.len() == acc.len());
    }
    let (body, tail) = S::Bytes::split_mut(acc);
    let (blocks, rest) = body.as_chunks_mut::<U>();
    let mut src_blocks: [&[[S::Bytes; U]]; K] = [&[]; K];
    let mut src_rests: [&[S::Bytes]; K] = [&[]; K];
    let mut src_tails: [&[u8]; K] = [&[]; K];
    for k in 0..K {
        let body;
        (body, src_tails[k]) = S::Bytes::split(srcs[k]);
        (src_blocks[k], src_rests[k]) = body.as_chunks::<U>();
    }

    for i in 0..blocks.len() {
        for (u, step) in steps.iter_mut().enumerate() {
            let mut vectors = [s.zero(); K];
            for k in 0..K {
                vectors[k] = s.load(&src_blocks[k][i][u]);
            }
            let v = step.step(s, s.load(&blocks[i][u]), vectors);
            s.store(v, &mut blocks[i][u]);
        }
    }
    for (i, (acc, step)) in rest.iter_mut().zip(&mut *steps).enumerate() {
        let mut vectors = [s.zero(); K];
        for k in 0..K {
            vectors[k] = s.load(&src_rests[k][i]);
        }
        let v = step.step(s, s.load(acc), vectors);
        s.store(v, acc);
    }
    if !tail.is_empty() {
        let mut vectors = [s.zero(); K];
        for k in 0..K {
            vectors[k] = s.load_part(src_tails[k]);
        }
        let v = steps[0].step(s, s.load_part(tail), vectors);
        s.store_part(v, tail);
    }
}
