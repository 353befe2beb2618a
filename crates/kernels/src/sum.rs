//! Sums and maxima, once, over any [`Simd`].
//!
//! Integer sums are made on the assumption that nothing overflows: wrapping adds, with the
//! overflow of all elements gathered in one register and looked at once, at the end. In the rare
//! case that it did, a second pass takes the sources back out of the sums, which wrapping
//! arithmetic allows without loss, and adds them again, saturating. The usual case so pays
//! nothing for saturation but the detection.

use crate::simd::{Chunk, Simd};

/// The number of sources that are added in one pass over the accumulator. More are added in
/// groups of as many.
pub const MAX_FUSED: usize = 8;

#[inline(always)]
pub(crate) fn sum_i32<S: Simd>(s: S, acc: &mut [u8], src: &[u8]) -> bool {
    fused_i32(s, acc, [src])
}

#[inline(always)]
pub(crate) fn sum_f32<S: Simd>(s: S, acc: &mut [u8], src: &[u8]) {
    fused_f32(s, acc, [src]);
}

#[inline(always)]
pub(crate) fn sum_i32_many<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
    let mut saturated = false;
    for group in srcs.chunks(MAX_FUSED) {
        saturated |= match *group {
            [a] => fused_i32(s, acc, [a]),
            [a, b] => fused_i32(s, acc, [a, b]),
            [a, b, c] => fused_i32(s, acc, [a, b, c]),
            [a, b, c, d] => fused_i32(s, acc, [a, b, c, d]),
            [a, b, c, d, e] => fused_i32(s, acc, [a, b, c, d, e]),
            [a, b, c, d, e, f] => fused_i32(s, acc, [a, b, c, d, e, f]),
            [a, b, c, d, e, f, g] => fused_i32(s, acc, [a, b, c, d, e, f, g]),
            [a, b, c, d, e, f, g, h] => fused_i32(s, acc, [a, b, c, d, e, f, g, h]),
            _ => unreachable!("groups hold 1 to MAX_FUSED sources"),
        };
    }
    saturated
}

#[inline(always)]
pub(crate) fn sum_f32_many<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) {
    for group in srcs.chunks(MAX_FUSED) {
        match *group {
            [a] => fused_f32(s, acc, [a]),
            [a, b] => fused_f32(s, acc, [a, b]),
            [a, b, c] => fused_f32(s, acc, [a, b, c]),
            [a, b, c, d] => fused_f32(s, acc, [a, b, c, d]),
            [a, b, c, d, e] => fused_f32(s, acc, [a, b, c, d, e]),
            [a, b, c, d, e, f] => fused_f32(s, acc, [a, b, c, d, e, f]),
            [a, b, c, d, e, f, g] => fused_f32(s, acc, [a, b, c, d, e, f, g]),
            [a, b, c, d, e, f, g, h] => fused_f32(s, acc, [a, b, c, d, e, f, g, h]),
            _ => unreachable!("groups hold 1 to MAX_FUSED sources"),
        }
    }
}

#[inline(always)]
pub(crate) fn max_u8<S: Simd>(s: S, acc: &mut [u8], src: &[u8]) {
    zip_with(s, acc, [src], &mut MaxU8);
}

#[inline(always)]
fn fused_i32<S: Simd, const K: usize>(s: S, acc: &mut [u8], srcs: [&[u8]; K]) -> bool {
    let mut wrapping = WrappingI32 { overflow: s.zero() };
    zip_with(s, acc, srcs, &mut wrapping);
    let saturated = s.any_negative_i32(wrapping.overflow);
    if saturated {
        zip_with(s, acc, srcs, &mut ResaturateI32);
    }
    saturated
}

#[inline(always)]
fn fused_f32<S: Simd, const K: usize>(s: S, acc: &mut [u8], srcs: [&[u8]; K]) {
    zip_with(s, acc, srcs, &mut SumF32);
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

/// Sums from left to right. One look for NaNs at the end is enough: a NaN plus anything is a NaN.
struct SumF32;

impl<S: Simd, const K: usize> Step<S, K> for SumF32 {
    #[inline(always)]
    fn step(&mut self, s: S, acc: S::V, srcs: [S::V; K]) -> S::V {
        let mut sum = acc;
        for src in srcs {
            sum = s.add_f32(sum, src);
        }
        s.canonicalize_nan_f32(sum)
    }
}

/// Unsigned maxima of bytes.
struct MaxU8;

impl<S: Simd> Step<S, 1> for MaxU8 {
    #[inline(always)]
    fn step(&mut self, s: S, acc: S::V, [src]: [S::V; 1]) -> S::V {
        s.max_u8(acc, src)
    }
}

/// Takes `step` over every vector of `acc` and the vectors at the same place in `srcs`.
#[inline(always)]
fn zip_with<S: Simd, const K: usize>(
    s: S,
    acc: &mut [u8],
    srcs: [&[u8]; K],
    step: &mut impl Step<S, K>,
) {
    let (body, tail) = S::Bytes::split_mut(acc);
    let mut streams: [&[S::Bytes]; K] = [&[]; K];
    let mut tails: [&[u8]; K] = [&[]; K];
    for k in 0..K {
        let (stream, stream_tail) = S::Bytes::split(srcs[k]);
        // Says to the optimiser that the lengths agree, so that it need not ask in the loop.
        streams[k] = &stream[..body.len()];
        tails[k] = stream_tail;
    }

    for (i, acc) in body.iter_mut().enumerate() {
        let mut vectors = [s.zero(); K];
        for k in 0..K {
            vectors[k] = s.load(&streams[k][i]);
        }
        let v = step.step(s, s.load(acc), vectors);
        s.store(v, acc);
    }

    if !tail.is_empty() {
        let mut vectors = [s.zero(); K];
        for k in 0..K {
            vectors[k] = s.load_part(tails[k]);
        }
        let v = step.step(s, s.load_part(tail), vectors);
        s.store_part(v, tail);
    }
}
