//! A rate limit in one word, shared by cores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tally_wire::Time;

/// How far ahead of its rate a sender may be, as time: a tenth of a second's frames come at once.
const BURST_NS: u64 = 100_000_000;

/// A token bucket: so many frames in a second, a tenth of them at once, and always one.
///
/// It holds the moment at which the frames so far would have passed at the limit's rate (the
/// virtual schedule of ATM's cell rate algorithm).
#[derive(Debug)]
pub struct RateLimit {
    /// Nanoseconds a frame; 0: no limit.
    interval_ns: u64,
    passed_at: AtomicU64,
}

impl RateLimit {
    /// A limit of so many frames in a second; 0: none.
    #[must_use]
    pub fn new(per_s: u32) -> Self {
        Self {
            interval_ns: 1_000_000_000_u64.checked_div(u64::from(per_s)).unwrap_or(0),
            passed_at: AtomicU64::new(0),
        }
    }

    /// Takes a frame, if it is within the limit.
    #[inline]
    pub fn take(&self, now: Time) -> bool {
        self.take_many(now, 1)
    }

    /// Takes `frames` frames together, if the first of them is within the limit.
    #[inline]
    pub fn take_many(&self, now: Time, frames: u32) -> bool {
        let interval_ns = self.interval_ns * u64::from(frames);
        let next = |passed_at: u64| {
            let from = passed_at.max(now.0);
            (from - now.0 <= BURST_NS).then(|| from + interval_ns)
        };
        self.interval_ns == 0 || self.passed_at.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn taken(limit: &RateLimit, times: impl Iterator<Item = u64>) -> usize {
        times.filter(|&ns| limit.take(Time(ns))).count()
    }

    #[test]
    fn a_burst_passes_then_the_rate() {
        let limit = RateLimit::new(1000);
        assert_eq!(taken(&limit, std::iter::repeat_n(5, 500)), 101);
        // A hundred times the rate, for ten seconds.
        let flood = (1..=1_000_000).map(|n| 5 + n * 10_000);
        assert_eq!(taken(&limit, flood), 10_000);
        // What is slower passes whole.
        let slow = (0..100).map(|n| 20 * SECOND + n * 1_000_000);
        assert_eq!(taken(&limit, slow), 100);
    }

    #[test]
    fn the_slowest_lets_one_pass_and_zero_is_no_limit() {
        let limit = RateLimit::new(1);
        assert_eq!(taken(&limit, (0..98).map(|n| n * SECOND / 10)), 10);
        let none = RateLimit::new(0);
        assert_eq!(taken(&none, std::iter::repeat_n(0, 100_000)), 100_000);
    }

    #[test]
    fn frames_taken_together_count_each() {
        let limit = RateLimit::new(1000);
        let taken = (0..10_000_u64).filter(|n| limit.take_many(Time(n * 1_000_000), 45));
        // Ten seconds at the rate, and what comes at once.
        assert!((10_000 / 45..10_200 / 45).contains(&taken.count()));
    }

    #[test]
    fn cores_whose_clocks_differ_share_one_limit() {
        let limit = RateLimit::new(1000);
        let ahead = (0..1000).map(|n| SECOND + n * 1000);
        let behind = (0..1000).map(|n| SECOND - 5000 + n * 1000);
        let times = ahead.zip(behind).flat_map(|(a, b)| [a, b]);
        assert!((101..=103).contains(&taken(&limit, times)));
    }
}
