//! Reference conversions of `f32` and `f16` or `bf16`, in integer arithmetic.

use crate::{CANONICAL_NAN_BF16, CANONICAL_NAN_F16};

/// The sign bit of an `f16`, and its infinity.
const SIGN: u16 = 0x8000;
const INFINITE: u16 = 0x7c00;
/// Bits of an `f32` fraction that an `f16` lacks.
const PLACES: u32 = 13;
/// Difference of the exponent biases, shifted to the exponent's position.
const REBIAS: u32 = (127 - 15) << 23;
/// The smallest normal `f16`, and the smallest power of two above all, as `f32`.
const LEAST_NORMAL: u32 = (127 - 14) << 23;
const TOO_LARGE: u32 = (127 + 16) << 23;
const INFINITE_F32: u32 = 0x7f80_0000;

/// The value of an `f16`, exactly.
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let magnitude = half & !SIGN;
    let bits = u32::from(magnitude) << PLACES;
    let value = if magnitude >= INFINITE {
        f32::from_bits(bits | INFINITE_F32)
    } else if magnitude >> 10 == 0 {
        // A subnormal is a multiple of the smallest one, 2^-24.
        f32::from(magnitude) / (1u32 << 24) as f32
    } else {
        f32::from_bits(bits + REBIAS)
    };
    if half & SIGN != 0 { -value } else { value }
}

/// The nearest `f16`, ties to even; any NaN becomes the canonical one.
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let magnitude = value.to_bits() & !(1 << 31);
    let sign = (value.to_bits() >> 16) as u16 & SIGN;
    if value.is_nan() {
        CANONICAL_NAN_F16
    } else if magnitude >= TOO_LARGE {
        sign | INFINITE
    } else if magnitude < LEAST_NORMAL {
        // Exact, except for the rounding to an integer.
        let multiple = value.abs() * (1u32 << 24) as f32;
        sign | multiple.round_ties_even() as u16
    } else {
        // A carry out of the fraction gives the next exponent; after the last one, infinity.
        let odd = magnitude >> PLACES & 1;
        let rounded = magnitude + (1 << (PLACES - 1)) - 1 + odd;
        sign | ((rounded - REBIAS) >> PLACES) as u16
    }
}

/// The value of a `bf16`, exactly.
pub(crate) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The nearest `bf16`, ties to even; any NaN becomes the canonical one.
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    if value.is_nan() {
        return CANONICAL_NAN_BF16;
    }
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All values of one sign except NaN, in ascending order.
    fn ascending(infinite: u16) -> impl Iterator<Item = u16> {
        0..=infinite
    }

    /// Checks both sides of every rounding boundary, for every value. `f32`s between two boundaries
    /// round alike, as rounding is monotone.
    fn check(infinite: u16, widen: fn(u16) -> f32, narrow: fn(f32) -> u16) {
        for half in ascending(infinite) {
            for sign in [0, SIGN] {
                let value = widen(half | sign);
                assert_eq!(narrow(value), half | sign, "{half:#06x} comes back");
            }
            if half == infinite {
                continue;
            }
            let value = f64::from(widen(half));
            // The value at the code of infinity, if it were a finite number.
            let next = match half + 1 {
                next if next == infinite => 2.0 * value - f64::from(widen(half - 1)),
                next => f64::from(widen(next)),
            };
            assert!(value < next);
            // Exact: each has few significant bits.
            let tie = ((value + next) / 2.0) as f32;
            assert_eq!(f64::from(tie), (value + next) / 2.0);
            let even = half + (half & 1);
            for (v, want) in [
                (tie.next_down(), half),
                (tie, even),
                (tie.next_up(), half + 1),
            ] {
                assert_eq!(narrow(v), want, "{v} beside {half:#06x}");
                assert_eq!(narrow(-v), want | SIGN, "-{v} beside {half:#06x}");
            }
        }
        for nan in infinite + 1..SIGN {
            assert!(widen(nan).is_nan() && widen(nan | SIGN).is_nan());
        }
        assert_eq!(narrow(f32::MAX), infinite);
        assert_eq!(narrow(f32::INFINITY), infinite);
        assert_eq!(narrow(f32::from_bits(1)), 0);
        assert_eq!(narrow(-f32::from_bits(1)), SIGN);
    }

    #[test]
    fn every_f16_and_every_tie_between_two() {
        check(INFINITE, f16_to_f32, f32_to_f16);
        assert_eq!(f16_to_f32(0x3c01), 1.0 + 1.0 / 1024.0);
        assert_eq!(f16_to_f32(0x7bff), 65504.0);
        assert_eq!(f16_to_f32(0x0001), 2f32.powi(-24));
        assert_eq!(f16_to_f32(0xc000), -2.0);
    }

    #[test]
    fn every_bf16_and_every_tie_between_two() {
        check(0x7f80, bf16_to_f32, f32_to_bf16);
        assert_eq!(bf16_to_f32(0x3f81), 1.0 + 1.0 / 128.0);
        assert_eq!(f64::from(bf16_to_f32(0x0001)), 2f64.powi(-133));
    }

    #[test]
    fn nans_of_all_kinds_become_one() {
        for bits in [
            0x7f80_0001,
            0x7fc0_0000,
            0x7fff_ffff,
            0xff80_0001,
            0xffff_ffff,
        ] {
            let nan = f32::from_bits(bits);
            assert_eq!(f32_to_f16(nan), CANONICAL_NAN_F16);
            assert_eq!(f32_to_bf16(nan), CANONICAL_NAN_BF16);
        }
    }
}
