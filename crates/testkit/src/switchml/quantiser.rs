//! Floats as integers, and back: block fixed point, as the published clients have it.
//!
//! A block is what a packet holds. Its *exponent* e is the least for which all of its floats are
//! below 2^e. The switch takes the maximum over all workers, and each gets to know it before it
//! sends the block itself. With it all of them scale alike: by (2^31 − 1) / (n · 2^e) for n
//! workers, rounded to a `f32`. So n numbers never overflow an `i32`, and what is lost is at most
//! half a unit of the last place of each.
//!
//! The catches: an exponent is an `i8`, so floats must be finite and below 2^127; the published
//! clients do not look. Where they round ties to even or away from zero, we do the latter. They
//! compute in `f32`, and so get an infinite scale for a block of zeros; we compute in `f64`. The
//! integers may differ by one from theirs, so both kinds can be in one job.

use std::fmt;

/// Floats are below this in magnitude.
pub const LIMIT: f32 = f32::from_bits((127 + 127) << 23);

/// The exponent of a block: the least e for which all floats are below 2^e, −126 if all are smaller
/// than any normal number.
///
/// The floats must be below [`LIMIT`] in magnitude.
#[must_use]
pub fn exponent(block: &[f32]) -> i8 {
    let most = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    debug_assert!(most < LIMIT, "{most}");
    // The bits hold e − 1 with an offset of 127.
    ((most.to_bits() >> 23).cast_signed() - 126) as i8
}

/// What a block's floats are multiplied with.
#[derive(Clone, Copy, PartialEq)]
pub struct Scale(f64);

impl Scale {
    /// For blocks of that exponent, of that many workers.
    #[must_use]
    pub fn new(exponent: i8, workers: u8) -> Self {
        let share = (f64::from(i32::MAX) / f64::from(workers)) as f32;
        Self(f64::from(share) * 2_f64.powi(-i32::from(exponent)))
    }

    /// A float as an integer.
    #[must_use]
    pub fn quantise(self, value: f32) -> i32 {
        (f64::from(value) * self.0).round() as i32
    }

    /// The float that a sum of such integers stands for.
    #[must_use]
    pub fn restore(self, sum: i32) -> f32 {
        (f64::from(sum) / self.0) as f32
    }
}

impl fmt::Debug for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scale({:e})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_the_least_power_above_all() {
        let cases = [
            (1.0, 1),
            (0.999, 0),
            (2.0, 2),
            (-3.0, 2),
            (1.5e-38, -125),
            (f32::MIN_POSITIVE, -125),
            (1e-40, -126),
            (0.0, -126),
            (LIMIT.next_down(), 127),
        ];
        for (value, e) in cases {
            assert_eq!(exponent(&[0.0, value, -value / 2.0]), e, "{value}");
            let above = 2_f64.powi(i32::from(e));
            assert!(f64::from(value.abs()) < above);
        }
        assert_eq!(exponent(&[]), -126);
        assert_eq!(LIMIT, 2_f32.powi(127));
    }

    #[test]
    fn the_largest_value_of_every_worker_does_not_overflow_the_sum() {
        for workers in 1..=64 {
            for e in [-126, -1, 0, 1, 24, 127] {
                let most = (2_f64.powi(i32::from(e)) as f32).next_down();
                assert_eq!(exponent(&[most]), e);
                let quantised = i64::from(Scale::new(e, workers).quantise(most));
                let sum = quantised * i64::from(workers);
                assert!(sum <= i32::MAX.into(), "{workers} times {most}: {sum}");
                // Nor is much of the room left unused.
                assert!(sum > i64::from(i32::MAX) - (1 << 10), "{workers}: {sum}");
            }
        }
    }

    #[test]
    fn a_float_comes_back_as_near_as_the_last_place_is() {
        for workers in [1, 2, 3, 8, 64] {
            for (value, e) in [(0.1_f32, -3), (-0.7, 0), (123_456.7, 17), (1e-40, -126)] {
                assert_eq!(exponent(&[value]), e);
                let scale = Scale::new(e, workers);
                let back = scale.restore(scale.quantise(value));
                let place = f64::from(workers) * 2_f64.powi(i32::from(e) - 31);
                let off = (f64::from(back) - f64::from(value)).abs();
                assert!(
                    off <= place * 0.5001 + f64::from(value.abs()) * 2_f64.powi(-24) + 1e-45,
                    "{value} with {workers}: off by {off:e}"
                );
            }
        }
        assert_eq!(Scale::new(-126, 3).quantise(0.0), 0);
        assert_eq!(Scale::new(-126, 3).restore(0), 0.0);
    }
}
