//! The operations again, as naively as they can be said, by other means than the crate's: wide
//! integers instead of saturating adds, `f64` instead of `f32` sums, decimal shifts instead of
//! bit tricks. Shares nothing with the crate but its documentation.

const NAN: u32 = 0x7fc0_0000;

pub fn sum_i32(acc: &[u8], srcs: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    let mut saturated = false;
    for at in (0..acc.len()).step_by(4) {
        let element = |payload: &[u8]| {
            payload[at..at + 4]
                .iter()
                .fold(0i64, |v, byte| v << 8 | i64::from(*byte))
                << 32
                >> 32
        };
        let mut sum = element(acc);
        for src in srcs {
            sum += element(src);
            let clamped = sum.clamp(-(1 << 31), (1 << 31) - 1);
            saturated |= clamped != sum;
            sum = clamped;
        }
        out.extend((0..4).rev().map(|i| (sum >> (8 * i)) as u8));
    }
    (out, saturated)
}

/// A sum of two `f32` rounded to `f64` and again to `f32` is the one rounded once: 53 bits are at
/// least 2 * 24 + 2 (Figueroa, "When is double rounding innocuous?", 1995), and sums that are
/// subnormal in `f32` are exact.
pub fn sum_f32(acc: &[u8], srcs: &[&[u8]]) -> Vec<u8> {
    if srcs.is_empty() {
        return acc.to_vec();
    }
    let mut out = Vec::new();
    for at in (0..acc.len()).step_by(4) {
        let element = |payload: &[u8]| {
            let bytes = payload[at..at + 4].iter().rev();
            f32::from_bits(bytes.fold(0, |bits, byte| bits << 8 | u32::from(*byte)))
        };
        let mut sum = element(acc);
        for src in srcs {
            sum = (f64::from(sum) + f64::from(element(src))) as f32;
        }
        let bits = if sum.is_nan() { NAN } else { sum.to_bits() };
        out.extend((0..4).map(|i| (bits >> (8 * i)) as u8));
    }
    out
}

pub fn max_u8(acc: &[u8], srcs: &[&[u8]]) -> Vec<u8> {
    let largest = |i: usize| {
        srcs.iter()
            .fold(acc[i], |max, src| if src[i] > max { src[i] } else { max })
    };
    (0..acc.len()).map(largest).collect()
}

pub fn max_exponent(src: &[f32]) -> u8 {
    let exponent = |v: &f32| {
        if !v.is_finite() {
            return 255;
        }
        // The largest k whose power of two, 2^(k - 127), is not above the value; 0 if there is none.
        let reached = |k: &u8| f64::from(v.abs()) >= 2f64.powi(i32::from(*k) - 127);
        (1..=254).rev().find(reached).unwrap_or(0)
    };
    src.iter().map(exponent).max().unwrap_or(0)
}

/// The fixed point of the specification, `s`.
pub fn shift(exponent: u8, workers: u32) -> i32 {
    let c = f64::from(workers).log2().ceil() as i32;
    31 - c - (i32::from(exponent).max(1) - 126)
}

/// `v * 2^s` is exact in `f64`, whose exponents reach far beyond all that occur.
pub fn quantize(v: f32, exponent: u8, workers: u32) -> i32 {
    if exponent == 255 || v.is_nan() {
        return 0;
    }
    let scaled = f64::from(v) * 2f64.powi(shift(exponent, workers));
    let below = scaled.floor();
    let odd = below.rem_euclid(2.0) != 0.0;
    let rounded = match scaled - below {
        part if part > 0.5 || (part == 0.5 && odd) => below + 1.0,
        _ => below,
    };
    rounded.clamp(-2_147_483_648.0, 2_147_483_647.0) as i32
}

/// The product is exact in `f64`, so that it is rounded once, at the end.
pub fn dequantize(q: i32, exponent: u8, workers: u32) -> u32 {
    if exponent == 255 {
        return NAN;
    }
    let scaled = f64::from(q as f32) * 2f64.powi(-shift(exponent, workers));
    (scaled as f32).to_bits()
}
