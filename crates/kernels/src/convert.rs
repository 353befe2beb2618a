//! Block fixed point, generic over [`Simd`]. Contract: [`Scale`].

use crate::simd::{Chunk, Simd};
use crate::{CANONICAL_NAN, ELEMENT_BYTES, Scale, scalar};

/// All bits but the sign; their order is the order of finite magnitudes.
const MAGNITUDE: u32 = 0x7fff_ffff;

#[inline(always)]
pub(crate) fn max_exponent<S: Simd>(s: S, src: &[f32]) -> u8 {
    let (body, tail) = S::Floats::split(src);
    let magnitude = s.splat_u32(MAGNITUDE);
    let mut max = s.zero();
    for v in body {
        max = s.max_u32(max, s.and(s.load_floats(v), magnitude));
    }
    // The exponent is the top of the magnitude, so the largest magnitude has the largest one.
    let mut lanes = S::Floats::ZERO;
    s.store_floats(max, &mut lanes);
    scalar::max_exponent(lanes.as_ref()).max(scalar::max_exponent(tail))
}

#[inline(always)]
pub(crate) fn quantize<S: Simd>(s: S, src: &[f32], scale: Scale, out: &mut [u8]) {
    if !scale.is_finite() {
        return out.fill(0);
    }
    let up = scale.up.map(f32::to_bits);
    let up = [s.splat_u32(up[0]), s.splat_u32(up[1])];
    let (body, tail) = S::Floats::split(src);
    let (out_body, out_tail) = S::Bytes::split_mut(out);
    for (out, v) in out_body.iter_mut().zip(body) {
        let scaled = s.mul_f32(s.mul_f32(s.load_floats(v), up[0]), up[1]);
        let q = s.round_f32_to_i32(scaled);
        s.store(s.swap_bytes_u32(q), out);
    }
    if !tail.is_empty() {
        scalar::quantize(tail, scale, out_tail);
    }
}

#[inline(always)]
pub(crate) fn dequantize<S: Simd>(s: S, src: &[u8], scale: Scale, out: &mut [f32]) {
    if !scale.is_finite() {
        return out.fill(f32::from_bits(CANONICAL_NAN));
    }
    let down = scale.down.map(f32::to_bits);
    let down = [s.splat_u32(down[0]), s.splat_u32(down[1])];
    let (body, tail) = S::Bytes::split(src);
    let (out_body, out_tail) = S::Floats::split_mut(out);
    for (out, q) in out_body.iter_mut().zip(body) {
        let q = s.i32_to_f32(s.swap_bytes_u32(s.load(q)));
        s.store_floats(s.mul_f32(s.mul_f32(q, down[0]), down[1]), out);
    }
    if !tail.is_empty() {
        scalar::dequantize(tail, scale, out_tail);
    }
}

const _: () = assert!(
    size_of::<f32>() == ELEMENT_BYTES,
    "a register's bytes hold its floats"
);
