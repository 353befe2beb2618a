//! Smoothed time from a contribution to its result, and the timeout that follows from it.

use core::time::Duration;

/// RFC 6298 with the bounds of R-1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
    least: Duration,
    min: Duration,
    max: Duration,
    initial: Duration,
}

impl Rtt {
    pub(crate) fn new(min: Duration, initial: Duration, max: Duration) -> Self {
        Self {
            smoothed: None,
            variation: Duration::ZERO,
            least: Duration::MAX,
            min,
            max,
            initial,
        }
    }

    /// A time measured on something that was sent once (Karn's rule is the caller's).
    pub(crate) fn sample(&mut self, time: Duration) {
        self.least = self.least.min(time);
        match self.smoothed {
            None => {
                self.smoothed = Some(time);
                self.variation = time / 2;
            }
            Some(s) => {
                self.variation = (self.variation * 3 + s.abs_diff(time)) / 4;
                self.smoothed = Some((s * 7 + time) / 8);
            }
        }
    }

    /// The shortest time measured; without any, one that nothing is shorter than.
    pub(crate) fn least(&self) -> Duration {
        if self.least == Duration::MAX {
            Duration::ZERO
        } else {
            self.least
        }
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The timeout, doubled `doublings` times.
    pub(crate) fn timeout(&self, doublings: u32) -> Duration {
        let base = match self.smoothed {
            None => self.initial,
            Some(s) => (s + self.variation * 4).max(self.min),
        };
        base.saturating_mul(1 << doublings.min(31)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rtt() -> Rtt {
        Rtt::new(2 * MS, 50 * MS, 1000 * MS)
    }

    #[test]
    fn starts_with_the_initial_timeout() {
        assert_eq!(rtt().timeout(0), 50 * MS);
        assert_eq!(rtt().timeout(1), 100 * MS);
        assert_eq!(rtt().timeout(99), 1000 * MS);
    }

    #[test]
    fn the_first_sample_sets_both_terms() {
        let mut r = rtt();
        r.sample(8 * MS);
        assert_eq!(r.smoothed(), Some(8 * MS));
        assert_eq!(r.timeout(0), 24 * MS);
    }

    #[test]
    fn steady_samples_bring_it_to_the_floor_and_jumps_off_it() {
        let mut r = rtt();
        for _ in 0..100 {
            r.sample(Duration::from_micros(100));
        }
        assert_eq!(r.timeout(0), 2 * MS);
        r.sample(40 * MS);
        assert!(r.timeout(0) > 40 * MS, "{:?}", r.timeout(0));
    }
}
