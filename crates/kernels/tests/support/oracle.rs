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

/// Digit by digit in base 256, the last carry lost.
pub fn add_be_i32(acc: &[u8], srcs: &[&[u8]]) -> Vec<u8> {
    let mut out = acc.to_vec();
    for src in srcs {
        for at in (0..acc.len()).step_by(4) {
            let mut carry = 0;
            for i in (at..at + 4).rev() {
                let digit = u16::from(out[i]) + u16::from(src[i]) + carry;
                out[i] = (digit % 256) as u8;
                carry = digit / 256;
            }
        }
    }
    out
}

/// Sums modulo 2^32, byte by byte from the lowest, which is first.
pub fn add_le_i32(acc: &[u8], srcs: &[&[u8]]) -> Vec<u8> {
    let mut out = acc.to_vec();
    for src in srcs {
        for at in (0..acc.len()).step_by(4) {
            let mut carry = 0;
            for i in at..at + 4 {
                let digit = u16::from(out[i]) + u16::from(src[i]) + carry;
                out[i] = (digit % 256) as u8;
                carry = digit / 256;
            }
        }
    }
    out
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
        // The largest k with 2^(k - 127) not above the value; 0 if there is none.
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

/// A type of 16 bits with a sign, `exponent_bits` and a fraction, by the definition of IEEE 754.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    exponent_bits: u32,
}

pub const F16: Half = Half { exponent_bits: 5 };
pub const BF16: Half = Half { exponent_bits: 8 };

impl Half {
    fn fraction_bits(self) -> u32 {
        15 - self.exponent_bits
    }

    /// The bits of infinity.
    pub fn infinity(self) -> u16 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits()
    }

    /// The quiet, positive NaN without a payload.
    pub fn nan(self) -> u16 {
        self.infinity() | 1 << (self.fraction_bits() - 1)
    }

    /// The value, but that infinity is the power of two that follows the largest number.
    fn magnitude(self, bits: u16) -> f64 {
        let bits = i32::from(bits & 0x7fff);
        let places = self.fraction_bits().cast_signed();
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let fraction = f64::from(bits % (1 << places)) / f64::from(1 << places);
        match bits >> places {
            0 => fraction * 2f64.powi(1 - bias),
            exponent => (1.0 + fraction) * 2f64.powi(exponent - bias),
        }
    }

    fn widen(self, bits: u16) -> f64 {
        let magnitude = match bits & 0x7fff {
            b if b > self.infinity() => f64::NAN,
            b if b == self.infinity() => f64::INFINITY,
            b => self.magnitude(b),
        };
        if bits >> 15 == 1 {
            -magnitude
        } else {
            magnitude
        }
    }

    /// The nearest by bisection, of two that are as near the one with the even fraction.
    fn narrow(self, value: f64) -> u16 {
        if value.is_nan() {
            return self.nan();
        }
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        let value = value.abs();
        let (mut low, mut high) = (0, self.infinity());
        if value >= self.magnitude(high) {
            return sign | high;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.magnitude(middle) <= value {
                low = middle;
            } else {
                high = middle;
            }
        }
        let (down, up) = (value - self.magnitude(low), self.magnitude(high) - value);
        let up_it_is = up < down || (up == down && low % 2 == 1);
        sign | if up_it_is { high } else { low }
    }
}

/// Sums rounded to `f32` at every step, as [`sum_f32`] does it, and to the half type at the end.
pub fn fold_half(half: Half, acc: &[u8], srcs: &[&[u8]]) -> Vec<u8> {
    if srcs.is_empty() {
        return acc.to_vec();
    }
    let mut out = Vec::new();
    for at in (0..acc.len()).step_by(2) {
        let element =
            |payload: &[u8]| half.widen(u16::from(payload[at + 1]) << 8 | u16::from(payload[at]));
        let mut sum = element(acc) as f32;
        for src in srcs {
            sum = (f64::from(sum) + element(src)) as f32;
        }
        let bits = half.narrow(f64::from(sum));
        out.extend([bits as u8, (bits >> 8) as u8]);
    }
    out
}

/// Big-endian elements of `bytes` bytes.
pub fn fold_int(bytes: usize, acc: &[u8], srcs: &[&[u8]]) -> (Vec<u8>, bool) {
    if srcs.is_empty() {
        return (acc.to_vec(), false);
    }
    let limit = 1i64 << (8 * bytes - 1);
    let mut out = Vec::new();
    let mut saturated = false;
    for at in (0..acc.len()).step_by(bytes) {
        let element = |payload: &[u8]| {
            let bits = payload[at..at + bytes]
                .iter()
                .fold(0i64, |v, byte| v * 256 + i64::from(*byte));
            if bits >= limit {
                bits - 2 * limit
            } else {
                bits
            }
        };
        let sum = element(acc) + srcs.iter().map(|src| element(src)).sum::<i64>();
        saturated |= sum >= limit || sum < -limit;
        let cut = sum.clamp(-limit, limit - 1);
        out.extend((0..bytes).rev().map(|i| (cut >> (8 * i)) as u8));
    }
    (out, saturated)
}
