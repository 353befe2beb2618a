//! Sums and maxima, generic over [`Simd`].
//!
//! Wrapping sums are plain adds. The other two sums assume the common case, check it once at the
//! end, and take a second pass over the payload in the rare case:
//!
//! * Sums of `i32` are wrapping adds; a register collects the overflow of all elements. On overflow
//!   a second pass subtracts the sources again, which wrapping arithmetic allows without loss, and
//!   adds them with saturation.
//! * Sums of `f32` are plain adds. Each result is also added to a check register, which any NaN
//!   turns into a NaN. In that case a second pass makes every NaN canonical.

use crate::simd::{Chunk, Simd};

/// Maximum number of sources added in one pass over the accumulator.
///
/// More sources take several passes.
pub const MAX_FUSED: usize = 8;

/// Vectors per loop iteration with one source.
///
/// With more sources an iteration has enough work.
const UNROLL: usize = 4;

/// Adds all sources, several in one pass, with a step that keeps no state.
macro_rules! add_many {
    ($step:ident, $s:ident, $acc:ident, $srcs:ident) => {
        for group in $srcs.chunks(MAX_FUSED) {
            match *group {
                [a] => zip_with($s, $acc, [a], &mut [$step; UNROLL]),
                [a, b] => zip_with($s, $acc, [a, b], &mut [$step]),
                [a, b, c] => zip_with($s, $acc, [a, b, c], &mut [$step]),
                [a, b, c, d] => zip_with($s, $acc, [a, b, c, d], &mut [$step]),
                [a, b, c, d, e] => zip_with($s, $acc, [a, b, c, d, e], &mut [$step]),
                [a, b, c, d, e, f] => zip_with($s, $acc, [a, b, c, d, e, f], &mut [$step]),
                [a, b, c, d, e, f, g] => zip_with($s, $acc, [a, b, c, d, e, f, g], &mut [$step]),
                [a, b, c, d, e, f, g, h] => {
                    zip_with($s, $acc, [a, b, c, d, e, f, g, h], &mut [$step]);
                }
                _ => unreachable!("groups hold 1 to MAX_FUSED sources"),
            }
        }
    };
}

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
    add_many!(AddI32, s, acc, srcs);
}

#[inline(always)]
pub(crate) fn add_le_i32_many<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) {
    add_many!(AddLeI32, s, acc, srcs);
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

/// Operation on a vector of the accumulator and its `K` source vectors.
///
/// A trait, not a closure: a closure cannot be marked `inline(always)`, and a call that is not
/// inlined would leave the shell, and with it the instruction set.
trait Step<S: Simd, const K: usize> {
    /// The accumulator's new value. Zeros, the padding of a last part, must yield zeros and no
    /// other effect.
    fn step(&mut self, s: S, acc: S::V, srcs: [S::V; K]) -> S::V;
}

/// Big-endian wrapping sums; collects overflow in the top bits of `overflow`.
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

/// Little-endian wrapping sums.
#[derive(Clone, Copy)]
struct AddLeI32;

impl<S: Simd, const K: usize> Step<S, K> for AddLeI32 {
    #[inline(always)]
    fn step(&mut self, s: S, acc: S::V, srcs: [S::V; K]) -> S::V {
        let mut sum = acc;
        for src in srcs {
            sum = s.add_i32(sum, src);
        }
        sum
    }
}

/// Converts wrapping sums to saturating ones.
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

/// Sums from left to right.
///
/// `poison` is the sum of all results: a NaN if any of them is. (Infinities of both signs make it
/// one, too; then the second pass changes nothing.)
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

/// Replaces every NaN by the canonical one.
///
/// Once, at the end, is enough: a NaN plus any value is a NaN.
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

/// Applies a step to every vector of `acc` and its vectors in `srcs`.
///
/// The loop is unrolled once for each of `steps`. Each step handles its own vectors of every
/// iteration, so the steps form independent dependency chains.
#[inline(always)]
fn zip_with<S: Simd, const K: usize, const U: usize>(
    s: S,
    acc: &mut [u8],
    srcs: [&[u8]; K],
    steps: &mut [impl Step<S, K>; U],
) {
    // The callers know this; the check here removes bounds checks from the loops.
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
