//! Every random number of a simulation, from one seed.

/// splitmix64 (Steele, Lea, Flood, OOPSLA'14): any seed is a good one, and a step is a few cycles.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// One million: probabilities are given in parts of it.
pub const MILLION: u32 = 1_000_000;

/// The finaliser of splitmix64: one number made of another, with nothing left of its pattern.
#[inline]
#[must_use]
pub const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The numbers that belong to `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Another sequence, so that what one part of a simulation draws does not shift the others.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// 64 random bits.
    #[inline]
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`, which is above 0.
    #[inline]
    pub const fn below(&mut self, n: u64) -> u64 {
        // Biased by n / 2^64 at most (Lemire, "Fast random integer generation in an interval").
        ((self.next() as u128 * n as u128) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    #[inline]
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `ppm` of a million cases. Draws nothing when that is never.
    #[inline]
    pub const fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(MILLION as u64) < ppm as u64
    }

    /// Puts them in another order, each as likely.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for n in (1..all.len()).rev() {
            all.swap(n, self.below(n as u64 + 1) as usize);
        }
    }

    /// One of them.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_does_not() {
        let numbers = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next(), rng.next(), rng.below(1000)]
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn bounds_are_reached_and_kept() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 5];
        for _ in 0..10_000 {
            seen[(rng.between(10, 14) - 10) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 1800), "{seen:?}");
        let hits = (0..100_000).filter(|_| rng.chance(250_000)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
        assert!(!rng.chance(0));
        assert!(rng.chance(MILLION));
    }
}
