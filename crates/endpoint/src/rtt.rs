//! The typical time from a contribution to its result, and the timeout that follows from it.
//!
//! RFC 6298 smooths round trips, because on a connection each of them measures the path. Here a
//! result also waits for the slowest worker, and for whatever that one has to repair. With a mean,
//! one stall makes everybody's timeout longer, the next stall lasts longer for it, and under loss
//! the timeouts of all workers talk each other up to their bound (seen with 8 workers at 2 %).
//! So this tracks the lower quartile, which stalls hardly move.
//!
//! What is shorter than a stall of the machine needs room for one: 2 ms on hosts whose kernels carry
//! the frames. On a fabric with round trips of 10 µs that would be for ever, and its hosts do not
//! stall like this. So that room is in proportion to the median, up to its usual size: on hosts that
//! stall the median is long, although a quarter of all fragments may be quick (seen with 8 workers
//! on two cores).

use core::time::Duration;

/// By how much an estimate moves, in parts of `STEP`: up for a longer time, down for a shorter one. It
/// rests where these balance: with three times as many longer as shorter, and with as many.
const STEP: u32 = 32;
const QUARTILE: (u32, u32) = (1, 3);
const MEDIAN: (u32, u32) = (2, 2);
/// The timeout, in typical times.
const TIMES: u32 = 2;
/// Room for stalls in the timeout, in medians.
const ROOM_TIMES: u32 = 5;

/// The typical time of a session's fragments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    typical: Option<Duration>,
    median: Option<Duration>,
    least: Duration,
    bounds: Bounds,
}

/// Bounds of a timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// It is never shorter.
    pub(crate) min: Duration,
    /// It has this room for stalls, unless the typical time is very short.
    pub(crate) usual: Duration,
    /// It is never longer.
    pub(crate) max: Duration,
    /// Before anything was measured.
    pub(crate) initial: Duration,
}

impl Rtt {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            typical: None,
            median: None,
            least: Duration::MAX,
            bounds,
        }
    }

    /// A time measured on something that was sent once (Karn's rule is the caller's).
    pub(crate) fn sample(&mut self, time: Duration) {
        self.least = self.least.min(time);
        let track = |estimate: &mut Option<Duration>, (up, down)| {
            *estimate = Some(match *estimate {
                None => time,
                Some(t) if time > t => t + t.max(Duration::from_micros(1)) * up / STEP,
                Some(t) => t - t * down / STEP,
            });
        };
        track(&mut self.typical, QUARTILE);
        track(&mut self.median, MEDIAN);
    }

    /// The shortest time measured; without any, one that nothing is shorter than.
    pub(crate) fn least(&self) -> Duration {
        if self.least == Duration::MAX {
            Duration::ZERO
        } else {
            self.least
        }
    }

    pub(crate) fn typical(&self) -> Option<Duration> {
        self.typical
    }

    /// The time that half of all take.
    pub(crate) fn median(&self) -> Option<Duration> {
        self.median
    }

    /// Room for stalls: so many medians, from `min` to `usual`.
    pub(crate) fn room(&self, times: u32, min: Duration, usual: Duration) -> Duration {
        self.median.map_or(usual, |m| (m * times).clamp(min, usual))
    }

    /// The timeout, doubled `doublings` times.
    pub(crate) fn timeout(&self, doublings: u32) -> Duration {
        let Bounds {
            min,
            usual,
            max,
            initial,
        } = self.bounds;
        let base = match self.typical {
            None => initial,
            Some(t) => (t * TIMES).max(self.room(ROOM_TIMES, min, usual)),
        };
        base.saturating_mul(1 << doublings.min(31)).min(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rtt() -> Rtt {
        Rtt::new(Bounds {
            min: MS / 5,
            usual: 2 * MS,
            max: 250 * MS,
            initial: 50 * MS,
        })
    }

    #[test]
    fn starts_with_the_initial_timeout() {
        assert_eq!(rtt().timeout(0), 50 * MS);
        assert_eq!(rtt().timeout(1), 100 * MS);
        assert_eq!(rtt().timeout(99), 250 * MS);
    }

    #[test]
    fn the_first_sample_is_the_first_estimate() {
        let mut r = rtt();
        r.sample(8 * MS);
        assert_eq!(r.typical(), Some(8 * MS));
        assert_eq!(r.timeout(0), 16 * MS);
    }

    #[test]
    fn follows_the_path_within_a_window() {
        let mut r = rtt();
        r.sample(20 * MS);
        for _ in 0..100 {
            r.sample(MS / 2);
        }
        assert_eq!(r.timeout(0), 2 * MS);
        for _ in 0..256 {
            r.sample(20 * MS);
        }
        let back = r.timeout(0);
        assert!((35 * MS..45 * MS).contains(&back), "{back:?}");
    }

    #[test]
    fn stalls_of_half_of_all_fragments_hardly_move_it() {
        let mut r = rtt();
        for n in 0..10_000 {
            r.sample(if n % 2 == 0 { MS } else { 1000 * MS });
        }
        let typical = r.typical().unwrap();
        assert!(typical < 2 * MS, "{typical:?}");
    }

    #[test]
    fn times_of_nothing_are_survived() {
        let mut r = rtt();
        for n in 0..1000 {
            r.sample(Duration::from_nanos(n % 2));
        }
        assert_eq!(r.timeout(0), MS / 5);
    }

    #[test]
    fn the_room_for_stalls_shrinks_on_a_fast_fabric_only() {
        for (typical_us, timeout_us) in [
            (10, 200),
            (50, 250),
            (200, 1000),
            (450, 2000),
            (900, 2000),
            (1500, 3000),
        ] {
            let mut r = rtt();
            r.sample(Duration::from_micros(typical_us));
            assert_eq!(r.timeout(0), Duration::from_micros(timeout_us));
        }
    }

    #[test]
    fn a_host_that_stalls_keeps_its_room_though_many_fragments_are_quick() {
        let mut r = rtt();
        for n in 0..10_000 {
            r.sample(if n % 5 < 2 { MS / 10 } else { 5 * MS });
        }
        assert!(r.typical().unwrap() < MS / 5, "{:?}", r.typical());
        assert_eq!(r.timeout(0), 2 * MS);
        assert_eq!(r.room(2, MS / 20, MS), MS);
    }
}
