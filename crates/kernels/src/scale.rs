//! Block fixed point: an agreed scale under which integer sums cannot overflow.

/// Maximum number of workers in one sum.
pub const MAX_WORKERS: u32 = 64;
/// Maximum number of workers of one fixed point: those of a tree of switches.
pub const MAX_TREE_WORKERS: u32 = 4096;

/// The biased exponent of infinities and NaNs.
///
/// A block with this exponent has no fixed point.
pub const NON_FINITE: u8 = 255;

/// The fixed point of one block, from agreed exponent and number of workers.
///
/// Before a block is summed its workers agree on `e`, the largest biased `f32` exponent of any
/// element of any worker: each takes [`max_exponent`](crate::Kernels::max_exponent) of its own
/// part and the maximum of those is taken in the network with
/// [`max_u8`](crate::Kernels::max_u8). Then all use the same scale:
///
/// ```text
/// n = workers          c = ceil(log2 n), for n > 128 ceil(log2 (n + 1))
/// E = max(e, 1) - 126  so that |v| < 2^E for every element v of every worker
/// s = 31 - c - E       the fixed point: q = round(v * 2^s)
/// ```
///
/// # The sum of n workers cannot overflow
///
/// An `f32` below `2^E` is at most `2^E - 2^(E-24)`, as its significand has 24 bits (the bound
/// also holds for subnormals, where `e = 0` is treated as `e = 1`). So
/// `|v * 2^s| <= 2^(31-c) - 2^(7-c)`. For `c <= 7` that bound is an integer: rounding to the
/// nearest integer cannot exceed it, and `|q| <= 2^(31-c) - 2^(7-c)`. With `n <= 2^c`,
/// `|sum of q| <= 2^31 - 2^7`, which is in the range of `i32`, as is every partial sum, in any
/// order. For `c >= 8` rounding may reach `|q| = 2^(31-c)`. There `n <= 2^c - 1`, so
/// `|sum of q| <= 2^31 - 2^(31-c)`. No sum of such blocks saturates.
///
/// # The error
///
/// Rounding costs each worker at most half a unit of `2^-s`, which is `2^(E+c-32)`. The integer
/// sum is exact. So
///
/// ```text
/// |result - exact sum| <= n * 2^(E+c-32) + r
/// ```
///
/// where `r` is the final rounding to `f32`: half an ulp of the result, or, where the result is
/// subnormal, `3 * 2^-151`, three quarters of the smallest subnormal, since such a sum may be
/// rounded twice: to 24 bits, then to the subnormal grid. A sum beyond the largest `f32` becomes
/// infinite, as it would in floating point.
///
/// # Why two factors
///
/// `s` runs from -103 to 156, and `2^156` exceeds the range of `f32`. Multiplying by `2^(s/2)` and
/// by `2^(s - s/2)` is equivalent and exact, as both are powers of two. An intermediate product
/// loses bits only below `2^-126`; then the final product is far below one half and rounds to 0 in
/// any case.
///
/// Source: agreeing on a scale per block, one exchange ahead of the values, is SwitchML's (Sapio et
/// al., NSDI 2021, on floating-point numbers); the `c` bits of headroom are its scaling factor,
/// restricted to powers of two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    exponent: u8,
    shift: i32,
    /// `2^(s/2)` and `2^(s - s/2)`.
    pub(crate) up: [f32; 2],
    /// The reciprocals of `up`, exact.
    pub(crate) down: [f32; 2],
}

impl Scale {
    /// The fixed point of a block with agreed biased exponent `exponent`.
    ///
    /// `workers` is the number of contributing workers.
    ///
    /// # Panics
    ///
    /// When `workers` is 0 or more than [`MAX_TREE_WORKERS`].
    #[must_use]
    pub const fn new(exponent: u8, workers: u32) -> Self {
        assert!(
            0 < workers && workers <= MAX_TREE_WORKERS,
            "workers must be 1 to 4096"
        );
        let shift = shift(exponent, headroom_bits(workers));
        let half = shift / 2;
        let rest = shift - half;
        Self {
            exponent,
            shift,
            up: [power_of_two(half), power_of_two(rest)],
            down: [power_of_two(-half), power_of_two(-rest)],
        }
    }

    /// The agreed biased exponent, `e`.
    #[must_use]
    pub const fn exponent(self) -> u8 {
        self.exponent
    }

    /// The number of bits after the binary point, `s`.
    ///
    /// Negative when the point is beyond the last bit; undefined when the scale is not finite.
    #[must_use]
    pub const fn shift(self) -> i32 {
        self.shift
    }

    /// Whether the block has a fixed point: no worker has an infinity or a NaN.
    #[must_use]
    pub const fn is_finite(self) -> bool {
        self.exponent != NON_FINITE
    }
}

/// `c`: the bits by which a sum may grow.
const fn headroom_bits(workers: u32) -> i32 {
    // Above 128 workers rounding may reach the bound of an element: 2^c of them would overflow.
    let most = if workers > 128 { workers + 1 } else { workers };
    most.next_power_of_two().trailing_zeros() as i32
}

/// The fixed point, `s`.
const fn shift(exponent: u8, headroom_bits: i32) -> i32 {
    let bound = if exponent == 0 { 1 } else { exponent as i32 } - 126;
    31 - headroom_bits - bound
}

const MANTISSA_BITS: u32 = f32::MANTISSA_DIGITS - 1;
const BIAS: i32 = f32::MAX_EXP - 1;

/// `2^power` as a normal `f32`.
const fn power_of_two(power: i32) -> f32 {
    assert!(-BIAS < power && power <= BIAS, "not a normal f32");
    f32::from_bits(((power + BIAS) as u32) << MANTISSA_BITS)
}

// The bound on q is an integer only while its last bit, 2^(7-c), is one.
const _: () = assert!(headroom_bits(MAX_WORKERS) <= 7);
// Every fixed point splits into two normal factors with normal reciprocals.
const _: () = {
    let mut exponent = 0;
    while exponent < 255 {
        let _ = Scale::new(exponent, 1);
        let _ = Scale::new(exponent, MAX_WORKERS);
        let _ = Scale::new(exponent, MAX_TREE_WORKERS);
        exponent += 1;
    }
};
const _: () = assert!(headroom_bits(1) == 0 && headroom_bits(2) == 1 && headroom_bits(3) == 2);
const _: () = assert!(headroom_bits(33) == 6 && headroom_bits(64) == 6);
const _: () = assert!(headroom_bits(128) == 7 && headroom_bits(129) == 8);
const _: () = assert!(headroom_bits(255) == 8 && headroom_bits(256) == 9);
const _: () = assert!(headroom_bits(4095) == 12 && headroom_bits(4096) == 13);
const _: () = assert!(shift(0, 0) == 156 && shift(1, 0) == 156 && shift(254, 6) == -103);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_multiply_to_the_shift() {
        for exponent in 0..=NON_FINITE {
            for workers in (1..=MAX_WORKERS).chain([255, 256, MAX_TREE_WORKERS]) {
                let scale = Scale::new(exponent, workers);
                let up = f64::from(scale.up[0]) * f64::from(scale.up[1]);
                let down = f64::from(scale.down[0]) * f64::from(scale.down[1]);
                assert_eq!(up, 2f64.powi(scale.shift()), "e={exponent} n={workers}");
                assert_eq!(down, 2f64.powi(-scale.shift()), "e={exponent} n={workers}");
            }
        }
    }

    /// B-3: the largest elements of all workers, of each number of them.
    #[test]
    fn no_sum_of_the_largest_elements_overflows() {
        for exponent in [0, 1, 100, 127, 254] {
            let bits = if exponent == 0 {
                0x007f_ffff
            } else {
                u32::from(exponent) << 23 | 0x007f_ffff
            };
            let largest = f64::from(f32::from_bits(bits));
            for workers in 1..=MAX_TREE_WORKERS {
                let scale = Scale::new(exponent, workers);
                let q = (largest * 2f64.powi(scale.shift())).round_ties_even();
                let sum = q * f64::from(workers);
                assert!(
                    sum <= f64::from(i32::MAX),
                    "e={exponent} n={workers}: {sum}"
                );
                // And no more than two bits are given away.
                let least = 2f64.powi(if exponent == 0 { 28 } else { 29 });
                assert!(sum >= least, "e={exponent} n={workers}: {sum}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "workers must be 1 to 4096")]
    fn no_workers_is_refused() {
        let _ = Scale::new(127, 0);
    }

    #[test]
    #[should_panic(expected = "workers must be 1 to 4096")]
    fn too_many_workers_are_refused() {
        let _ = Scale::new(127, MAX_TREE_WORKERS + 1);
    }
}
