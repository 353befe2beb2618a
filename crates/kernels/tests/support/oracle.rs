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
