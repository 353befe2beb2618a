//! The operations as plain loops: the fallback, and the contract's shortest form.
//!
//! The loops are not tuned for the vectoriser: see the crate's catches.

use crate::{CANONICAL_NAN, ELEMENT_BYTES, Scale, half};

pub(crate) fn sum_i32(acc: &mut [u8], src: &[u8]) -> bool {
    let mut saturated = false;
    for (acc, src) in elements_mut(acc).iter_mut().zip(elements(src)) {
        let (a, b) = (i32::from_be_bytes(*acc), i32::from_be_bytes(*src));
        let sum = a.saturating_add(b);
        saturated |= sum != a.wrapping_add(b);
        *acc = sum.to_be_bytes();
    }
    saturated
}

pub(crate) fn sum_i32_many(acc: &mut [u8], srcs: &[&[u8]]) -> bool {
    srcs.iter()
        .fold(false, |saturated, src| saturated | sum_i32(acc, src))
}

pub(crate) fn add_be_i32(acc: &mut [u8], src: &[u8]) {
    for (acc, src) in elements_mut(acc).iter_mut().zip(elements(src)) {
        let sum = i32::from_be_bytes(*acc).wrapping_add(i32::from_be_bytes(*src));
        *acc = sum.to_be_bytes();
    }
}

pub(crate) fn add_be_i32_many(acc: &mut [u8], srcs: &[&[u8]]) {
    for src in srcs {
        add_be_i32(acc, src);
    }
}

pub(crate) fn add_le_i32_many(acc: &mut [u8], srcs: &[&[u8]]) {
    for src in srcs {
        for (acc, src) in elements_mut(acc).iter_mut().zip(elements(src)) {
            let sum = i32::from_le_bytes(*acc).wrapping_add(i32::from_le_bytes(*src));
            *acc = sum.to_le_bytes();
        }
    }
}

pub(crate) fn sum_f32(acc: &mut [u8], src: &[u8]) {
    for (acc, src) in elements_mut(acc).iter_mut().zip(elements(src)) {
        let sum = f32::from_le_bytes(*acc) + f32::from_le_bytes(*src);
        let bits = if sum.is_nan() {
            CANONICAL_NAN
        } else {
            sum.to_bits()
        };
        *acc = bits.to_le_bytes();
    }
}

pub(crate) fn sum_f32_many(acc: &mut [u8], srcs: &[&[u8]]) {
    for src in srcs {
        sum_f32(acc, src);
    }
}

pub(crate) fn fold_f16(acc: &mut [u8], srcs: &[&[u8]]) {
    fold_floats(acc, srcs, half::f16_to_f32, half::f32_to_f16);
}

pub(crate) fn fold_bf16(acc: &mut [u8], srcs: &[&[u8]]) {
    fold_floats(acc, srcs, half::bf16_to_f32, half::f32_to_bf16);
}

fn fold_floats(
    acc: &mut [u8],
    srcs: &[&[u8]],
    widen: impl Fn(u16) -> f32,
    narrow: impl Fn(f32) -> u16,
) {
    if srcs.is_empty() {
        return;
    }
    for (i, acc) in acc.as_chunks_mut().0.iter_mut().enumerate() {
        let mut sum = widen(u16::from_le_bytes(*acc));
        for src in srcs {
            sum += widen(u16::from_le_bytes(src.as_chunks().0[i]));
        }
        *acc = narrow(sum).to_le_bytes();
    }
}

pub(crate) fn fold_i16(acc: &mut [u8], srcs: &[&[u8]]) -> bool {
    let mut saturated = false;
    for (i, acc) in acc.as_chunks_mut().0.iter_mut().enumerate() {
        let mut sum = i32::from(i16::from_be_bytes(*acc));
        for src in srcs {
            sum += i32::from(i16::from_be_bytes(src.as_chunks().0[i]));
        }
        let cut = sum.clamp(i16::MIN.into(), i16::MAX.into());
        saturated |= cut != sum;
        *acc = (cut as i16).to_be_bytes();
    }
    saturated
}

pub(crate) fn fold_i8(acc: &mut [u8], srcs: &[&[u8]]) -> bool {
    let mut saturated = false;
    for (i, acc) in acc.iter_mut().enumerate() {
        let mut sum = i32::from(acc.cast_signed());
        for src in srcs {
            sum += i32::from(src[i].cast_signed());
        }
        let cut = sum.clamp(i8::MIN.into(), i8::MAX.into());
        saturated |= cut != sum;
        *acc = (cut as i8).cast_unsigned();
    }
    saturated
}

pub(crate) fn max_u8(acc: &mut [u8], src: &[u8]) {
    for (acc, src) in acc.iter_mut().zip(src) {
        *acc = (*acc).max(*src);
    }
}

pub(crate) fn max_exponent(src: &[f32]) -> u8 {
    src.iter()
        .map(|v| (v.to_bits() >> 23) as u8)
        .max()
        .unwrap_or(0)
}

pub(crate) fn quantize(src: &[f32], scale: Scale, out: &mut [u8]) {
    if !scale.is_finite() {
        return out.fill(0);
    }
    for (out, v) in elements_mut(out).iter_mut().zip(src) {
        // `as` saturates, and turns a NaN into 0.
        let q = (v * scale.up[0] * scale.up[1]).round_ties_even() as i32;
        *out = q.to_be_bytes();
    }
}

pub(crate) fn dequantize(src: &[u8], scale: Scale, out: &mut [f32]) {
    if !scale.is_finite() {
        return out.fill(f32::from_bits(CANONICAL_NAN));
    }
    for (out, q) in out.iter_mut().zip(elements(src)) {
        *out = i32::from_be_bytes(*q) as f32 * scale.down[0] * scale.down[1];
    }
}

fn elements(payload: &[u8]) -> &[[u8; ELEMENT_BYTES]] {
    payload.as_chunks().0
}

fn elements_mut(payload: &mut [u8]) -> &mut [[u8; ELEMENT_BYTES]] {
    payload.as_chunks_mut().0
}
