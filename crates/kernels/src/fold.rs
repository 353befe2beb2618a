//! Sums of sub-32-bit types in one pass, generic over [`Simd`].
//!
//! A sub-32-bit element cannot hold the sum of several, so these types have no partial sums. A fold
//! loads a block of the accumulator into registers, widens it, adds the same block of every source
//! in order, and narrows once at the end. The wide sums never reach memory.
//!
//! Two registers hold the wide sums of one register of elements.
//!
//! * `f16` becomes `f32`, converted by the CPU, the first half of the elements in one register and
//!   the second in the other. Only the conversion to `f16` rounds to it, once.
//! * `bf16` is the upper half of an `f32`. So the elements at odd indices become `f32` with a mask,
//!   those at even indices with a shift. The conversion back is integer arithmetic: see
//!   [`SumBf16`].
//! * `i8` and `i16` are summed exactly in lanes of 16 bits: see [`SumI8`] and [`SumI16`].

use crate::simd::{Chunk, Simd};

/// Registers of elements in a block.
///
/// Their sums take twice that number; AVX2 has 16 in all.
const BLOCK: usize = 4;

#[inline(always)]
pub(crate) fn fold_f16<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) {
    fold(s, acc, srcs, &mut SumF16);
}

#[inline(always)]
pub(crate) fn fold_bf16<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) {
    fold(s, acc, srcs, &mut SumBf16);
}

#[inline(always)]
pub(crate) fn fold_i16<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
    let mut sum = SumI16(Bytes::new(s, srcs.len()));
    fold(s, acc, srcs, &mut sum);
    s.any_nonzero(sum.0.cut)
}

#[inline(always)]
pub(crate) fn fold_i8<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
    let mut sum = SumI8(Bytes::new(s, srcs.len()));
    fold(s, acc, srcs, &mut sum);
    s.any_nonzero(sum.0.cut)
}

/// Sum of a register's elements in a wider type.
trait Wide<S: Simd> {
    /// The wide values of the accumulator's own elements.
    fn first(&self, s: S, from: &S::Bytes) -> [S::V; 2];
    /// The sums, with a source's elements added.
    fn next(&self, s: S, sums: [S::V; 2], from: &S::Bytes) -> [S::V; 2];
    /// The sums as elements. Elements that are zero in the accumulator and in all sources yield
    /// zeros and no other effect.
    fn narrow(&mut self, s: S, sums: [S::V; 2]) -> S::V;
}

#[inline(always)]
fn fold<S: Simd>(s: S, acc: &mut [u8], srcs: &[&[u8]], wide: &mut impl Wide<S>) {
    if srcs.is_empty() {
        return;
    }
    let (body, tail) = S::Bytes::split_mut(acc);
    let (blocks, rest) = body.as_chunks_mut::<BLOCK>();
    for (i, block) in blocks.iter_mut().enumerate() {
        let mut sums = [[s.zero(); 2]; BLOCK];
        for u in 0..BLOCK {
            sums[u] = wide.first(s, &block[u]);
        }
        for src in srcs {
            let src = &S::Bytes::split(src).0.as_chunks::<BLOCK>().0[i];
            for u in 0..BLOCK {
                sums[u] = wide.next(s, sums[u], &src[u]);
            }
        }
        for u in 0..BLOCK {
            s.store(wide.narrow(s, sums[u]), &mut block[u]);
        }
    }
    let done = blocks.len() * BLOCK;
    for (i, bytes) in rest.iter_mut().enumerate() {
        let mut sums = wide.first(s, bytes);
        for src in srcs {
            sums = wide.next(s, sums, &S::Bytes::split(src).0[done + i]);
        }
        s.store(wide.narrow(s, sums), bytes);
    }
    if !tail.is_empty() {
        let mut sums = wide.first(s, &filled_up(tail));
        for src in srcs {
            sums = wide.next(s, sums, &filled_up(S::Bytes::split(src).1));
        }
        s.store_part(wide.narrow(s, sums), tail);
    }
}

/// The last part of a payload, padded with zeros.
#[inline(always)]
fn filled_up<B: Chunk<u8>>(tail: &[u8]) -> B {
    let mut bytes = B::ZERO;
    bytes.as_mut()[..tail.len()].copy_from_slice(tail);
    bytes
}

struct SumF16;

impl<S: Simd> Wide<S> for SumF16 {
    #[inline(always)]
    fn first(&self, s: S, from: &S::Bytes) -> [S::V; 2] {
        s.load_f16(from)
    }

    #[inline(always)]
    fn next(&self, s: S, sums: [S::V; 2], from: &S::Bytes) -> [S::V; 2] {
        let [a, b] = s.load_f16(from);
        [s.add_f32(sums[0], a), s.add_f32(sums[1], b)]
    }

    #[inline(always)]
    fn narrow(&mut self, s: S, [a, b]: [S::V; 2]) -> S::V {
        // The canonical NaN of `f32` narrows to that of `f16`.
        s.narrow_f16([s.canonicalize_nan_f32(a), s.canonicalize_nan_f32(b)])
    }
}

/// `bf16`, without the CPU's own `bf16` instructions.
///
/// `VCVTNEPS2BF16` and `VDPBF16PS` (AVX512_BF16) treat subnormals as zeros regardless of MXCSR.
/// Checked over all `f32` on a Zen 5: the conversion differs from this one for exactly the
/// subnormals that do not round to zero. A check for subnormals costs what the instruction saves,
/// as each fold converts once.
struct SumBf16;

impl SumBf16 {
    #[inline(always)]
    fn widen<S: Simd>(s: S, from: &S::Bytes) -> [S::V; 2] {
        let v = s.load(from);
        [s.low_half_up(v), s.and(v, s.splat_u32(0xffff_0000))]
    }

    /// The nearest `bf16`, ties to even, in the upper half.
    ///
    /// The lower half is undefined.
    ///
    /// As integers, magnitudes of one sign have the order of their values, subnormals and infinity
    /// included. So rounding adds half a unit of the last kept place, less one, and adds that one
    /// if the last kept place is odd. A carry out of the fraction gives the next exponent, and
    /// after the last exponent infinity. The canonical NaN is unchanged.
    #[inline(always)]
    fn round<S: Simd>(s: S, v: S::V) -> S::V {
        let v = s.canonicalize_nan_f32(v);
        let odd = s.and(s.high_half_down(v), s.splat_u32(1));
        s.add_i32(s.add_i32(v, s.splat_u32(0x7fff)), odd)
    }
}

impl<S: Simd> Wide<S> for SumBf16 {
    #[inline(always)]
    fn first(&self, s: S, from: &S::Bytes) -> [S::V; 2] {
        Self::widen(s, from)
    }

    #[inline(always)]
    fn next(&self, s: S, sums: [S::V; 2], from: &S::Bytes) -> [S::V; 2] {
        let [even, odd] = Self::widen(s, from);
        [s.add_f32(sums[0], even), s.add_f32(sums[1], odd)]
    }

    #[inline(always)]
    fn narrow(&mut self, s: S, [even, odd]: [S::V; 2]) -> S::V {
        let (even, odd) = (Self::round(s, even), Self::round(s, odd));
        s.or(s.high_half_down(even), s.and(odd, s.splat_u32(0xffff_0000)))
    }
}

/// Sums of the low and the high bytes of 16-bit lanes, for `i8` and `i16`.
///
/// For each lane it keeps two sums modulo `2^16`: of the whole lane, and of its high byte. The
/// first less 256 times the second is the sum of the low byte. Sums of a byte over 64 contributions
/// are between -8192 and 16320, so no bit is lost: the sums equal those of 32-bit lanes, at half
/// the cost.
///
/// The low byte has a sign. Its top bit is flipped, which adds 128 to it; the sums start at the
/// matching negative value.
struct Bytes<V> {
    /// Start value of the sums of whole lanes.
    bias: V,
    /// The top bit of every low byte.
    sign: V,
    /// Nonzero in some lane if any sum saturated.
    cut: V,
}

impl<V: Copy> Bytes<V> {
    #[inline(always)]
    fn new<S: Simd<V = V>>(s: S, srcs: usize) -> Self {
        let bias = (-128 * (1 + srcs as i32)) as u16;
        Self {
            bias: splat_u16(s, bias),
            sign: splat_u16(s, 0x0080),
            cut: s.zero(),
        }
    }

    /// The sum of the low byte, signed.
    #[inline(always)]
    fn low<S: Simd<V = V>>(s: S, [whole, high]: [V; 2]) -> V {
        s.sub_i16(whole, s.low_byte_up(high))
    }

    /// Lanes saturated to -128 to 127.
    #[inline(always)]
    fn cut<S: Simd<V = V>>(&mut self, s: S, v: V) -> V {
        let cut = s.max_i16(v, splat_u16(s, (-128i16).cast_unsigned()));
        let cut = s.min_i16(cut, splat_u16(s, 127));
        self.cut = s.or(self.cut, s.xor(v, cut));
        cut
    }
}

#[inline(always)]
fn splat_u16<S: Simd>(s: S, value: u16) -> S::V {
    s.splat_u32(u32::from(value) * 0x0001_0001)
}

/// `i8`: two in a lane of 16 bits.
struct SumI8<V>(Bytes<V>);

impl<S: Simd> Wide<S> for SumI8<S::V> {
    #[inline(always)]
    fn first(&self, s: S, from: &S::Bytes) -> [S::V; 2] {
        self.next(s, [self.0.bias, s.zero()], from)
    }

    #[inline(always)]
    fn next(&self, s: S, [whole, high]: [S::V; 2], from: &S::Bytes) -> [S::V; 2] {
        let v = s.xor(s.load(from), self.0.sign);
        [
            s.add_i16(whole, v),
            s.add_i16(high, s.high_byte_down_i16(v)),
        ]
    }

    #[inline(always)]
    fn narrow(&mut self, s: S, sums: [S::V; 2]) -> S::V {
        let low = self.0.cut(s, Bytes::low(s, sums));
        let high = self.0.cut(s, sums[1]);
        s.or(s.and(low, splat_u16(s, 0x00ff)), s.low_byte_up(high))
    }
}

/// `i16`, big-endian, without byte swaps.
///
/// The low byte of a lane is the element's high byte, signed; the high byte of a lane is its low
/// byte, unsigned.
struct SumI16<V>(Bytes<V>);

impl<S: Simd> Wide<S> for SumI16<S::V> {
    #[inline(always)]
    fn first(&self, s: S, from: &S::Bytes) -> [S::V; 2] {
        self.next(s, [self.0.bias, s.zero()], from)
    }

    #[inline(always)]
    fn next(&self, s: S, [whole, high]: [S::V; 2], from: &S::Bytes) -> [S::V; 2] {
        let v = s.xor(s.load(from), self.0.sign);
        [
            s.add_i16(whole, v),
            s.add_i16(high, s.high_byte_down_u16(v)),
        ]
    }

    #[inline(always)]
    fn narrow(&mut self, s: S, sums: [S::V; 2]) -> S::V {
        // The sum is 256 * upper + lower, with a lower part of one byte.
        let lower = sums[1];
        let upper = s.add_i16(Bytes::low(s, sums), s.high_byte_down_u16(lower));
        let cut = self.0.cut(s, upper);
        // All ones where the sum is out of range; there the lower byte is that of the limit.
        let above = s.sign_i16(s.sub_i16(splat_u16(s, 127), upper));
        let below = s.sign_i16(s.add_i16(upper, splat_u16(s, 128)));
        let lower = s.and_not(s.or(lower, above), below);
        s.or(s.and(cut, splat_u16(s, 0x00ff)), s.low_byte_up(lower))
    }
}

// The bounds that `Bytes` documents for its lanes.
const _: () = {
    let contributions = crate::MAX_WORKERS as i32;
    assert!(contributions * -128 >= i16::MIN as i32 && contributions * 255 <= i16::MAX as i32);
    // `SumI16::narrow` adds a carry of at most 63 and compares at a distance of 128.
    assert!(contributions * 127 + 64 + 128 <= i16::MAX as i32);
};
