//! The path time of a session, and the timeout that follows from it.
//!
//! RFC 6298 smooths round trips, because on a connection each of them measures the path. Here a
//! result also waits for the slowest worker, and for the repairs of that one: under loss, means and
//! quantiles of all fragments grow, the timeouts with them, and so do the repairs, until all
//! workers have talked each other up to the bound (seen with 8 workers at 1 % and a lower
//! quartile). So the path time is the shortest of a few windows of fragments, as BBR takes it: the
//! worker that contributes last waits for no other, and it is the one whose repairs all others wait
//! for. A timeout that is too short costs two frames without payload.

use core::time::Duration;

/// By how much an estimate moves, in parts of `STEP`: up for a longer time, down for a shorter one.
/// It rests where these balance: with longer and shorter times at 3 : 1, and at 1 : 1.
const STEP: u32 = 32;
const QUARTILE: (u32, u32) = (1, 3);
const MEDIAN: (u32, u32) = (2, 2);
/// The timeout, in path times.
const TIMES: u32 = 2;
/// Room for stalls in the timeout: this part of the median. A whole one would let timeouts and
/// repairs keep each other up; none would have hosts without a CPU probe instead of sum.
const ROOM_PARTS: u32 = 8;
/// Bound of doubled timeouts, in their lengths; at least [`LONGEST`].
const LONGEST_TIMES: u32 = 8;
const LONGEST: Duration = Duration::from_millis(1);
/// Number of samples of which the path time is the shortest; up to twice this number.
const BLOCK: u32 = 1024;

/// The times of a session's fragments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    typical: Option<Duration>,
    median: Option<Duration>,
    least: Duration,
    /// The shortest times of the last block and of this one, which has `in_block` samples.
    shortest: [Duration; 2],
    in_block: u32,
    bounds: Bounds,
}

/// On a *fast* path half of all samples are shorter than [`FAST`]: hosts do not wait for a CPU
/// there. The timeout is then some medians, four of which reach the usual minimum at [`FAST`].
const FAST: Duration = Duration::from_micros(50);
const FAST_TIMES: u32 = 4;
const FAST_MIN: Duration = Duration::from_micros(20);

/// Bounds of a timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// It is never shorter.
    pub(crate) min: Duration,
    /// It has this room for stalls, unless the median is shorter.
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
            shortest: [Duration::MAX; 2],
            in_block: 0,
            bounds,
        }
    }

    /// A time measured on something that was sent once (Karn's rule is the caller's).
    pub(crate) fn sample(&mut self, time: Duration) {
        self.least = self.least.min(time);
        self.shortest[1] = self.shortest[1].min(time);
        self.in_block += 1;
        if self.in_block == BLOCK {
            self.in_block = 0;
            self.shortest = [self.shortest[1], Duration::MAX];
        }
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

    /// The shortest time of the session; without any, one that nothing is shorter than.
    pub(crate) fn least(&self) -> Duration {
        if self.least == Duration::MAX {
            Duration::ZERO
        } else {
            self.least
        }
    }

    /// The path time: the shortest of the last thousand or two; `None` before anything was
    /// measured.
    pub(crate) fn path(&self) -> Option<Duration> {
        let shortest = self.shortest[0].min(self.shortest[1]);
        (shortest != Duration::MAX).then_some(shortest)
    }

    /// The time that a quarter of all do not take.
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

    /// Whether the path is fast.
    pub(crate) fn is_fast(&self) -> bool {
        self.median.is_some_and(|median| median < FAST)
    }

    /// The timeout of a fast path, doubled `doublings` times.
    pub(crate) fn fast_timeout(&self, doublings: u32) -> Duration {
        let path = self.path().unwrap_or_default() * TIMES;
        let medians = self.median.unwrap_or_default() * FAST_TIMES;
        self.doubled(path.max(medians).max(FAST_MIN), doublings)
    }

    /// `base` doubled `doublings` times, up to a bound.
    ///
    /// A burst of losses may last for a number of frames, as at a full queue, and a worker that
    /// only probes sends few. Doubled up to `bounds.max`, 64 timeouts in a row would exceed the
    /// time that a member may be silent.
    fn doubled(&self, base: Duration, doublings: u32) -> Duration {
        let longest = (base * LONGEST_TIMES).max(LONGEST).min(self.bounds.max);
        base.saturating_mul(1 << doublings.min(31)).min(longest)
    }

    /// The timeout, doubled `doublings` times, with room for stalls doubled `caution` times.
    pub(crate) fn timeout(&self, doublings: u32, caution: u32) -> Duration {
        let Bounds {
            min,
            usual,
            initial,
            ..
        } = self.bounds;
        let base = match self.path() {
            None => initial,
            Some(t) => {
                let room = self
                    .median
                    .map_or(usual, |median| median * (1 << caution) / ROOM_PARTS);
                (t * TIMES).max(room.clamp(min, usual))
            }
        };
        self.doubled(base, doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rtt() -> Rtt {
        Rtt::new(Bounds {
            min: MS / 5,
            usual: 5 * MS,
            max: 250 * MS,
            initial: 50 * MS,
        })
    }

    #[test]
    fn starts_with_the_initial_timeout() {
        assert_eq!(rtt().timeout(0, 0), 50 * MS);
        assert_eq!(rtt().timeout(1, 0), 100 * MS);
        assert_eq!(rtt().timeout(99, 0), 250 * MS);
    }

    #[test]
    fn the_first_sample_is_the_first_estimate() {
        let mut r = rtt();
        r.sample(8 * MS);
        assert_eq!(r.typical(), Some(8 * MS));
        assert_eq!(r.timeout(0, 0), 16 * MS);
    }

    #[test]
    fn a_shorter_path_counts_at_once_and_a_longer_one_after_two_blocks() {
        let mut r = rtt();
        for _ in 0..BLOCK {
            r.sample(20 * MS);
        }
        assert_eq!(r.timeout(0, 0), 40 * MS);
        r.sample(5 * MS);
        assert_eq!(r.timeout(0, 0), 10 * MS);
        for _ in 1..2 * BLOCK - 1 {
            r.sample(20 * MS);
        }
        assert_eq!(r.path(), Some(5 * MS));
        r.sample(20 * MS);
        assert_eq!(r.path(), Some(20 * MS));
    }

    /// Under loss nearly all fragments wait for the repairs of some worker, for longer each time.
    #[test]
    fn stalls_of_nearly_all_fragments_do_not_move_the_timeout() {
        let mut r = rtt();
        for n in 0..100_000_u32 {
            r.sample(if n % 500 == 0 { MS } else { MS * (n / 100) });
        }
        assert_eq!(r.timeout(0, 0), 5 * MS, "the most room");
        assert!(r.typical().unwrap() > 100 * MS);
    }

    #[test]
    fn a_quarter_of_all_fragments_takes_less_than_the_typical_time() {
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
        assert_eq!(r.timeout(0, 0), MS / 5);
    }

    #[test]
    fn the_timeout_is_two_path_times_or_the_least_there_is() {
        for (typical_us, timeout_us) in [(10, 200), (100, 200), (150, 300), (450, 900)] {
            let mut r = rtt();
            r.sample(Duration::from_micros(typical_us));
            assert_eq!(r.timeout(0, 0), Duration::from_micros(timeout_us));
        }
    }

    #[test]
    fn a_fast_path_has_a_timeout_of_four_medians() {
        for (sample_us, timeout_us) in [(0, 20), (4, 20), (10, 40), (49, 196)] {
            let mut r = rtt();
            r.sample(Duration::from_micros(sample_us));
            assert!(r.is_fast());
            assert_eq!(r.fast_timeout(0), Duration::from_micros(timeout_us));
            assert_eq!(r.fast_timeout(1), Duration::from_micros(2 * timeout_us));
            assert!((MS..2 * MS).contains(&r.fast_timeout(99)));
        }
        let mut r = rtt();
        assert!(!r.is_fast());
        r.sample(FAST);
        assert!(!r.is_fast());
        assert_eq!(
            r.timeout(0, 0),
            FAST * FAST_TIMES,
            "no step between the two"
        );
    }

    /// A member is lost after 5 s of silence.
    #[test]
    fn sixty_four_timeouts_in_a_row_are_shorter_than_a_member_may_be_silent() {
        for path in [MS / 100, MS / 10, MS, 4 * MS] {
            let mut r = rtt();
            r.sample(path);
            let all: Duration = (0..64).map(|n| r.timeout(n, 5)).sum();
            assert!(all < 5000 * MS, "{path:?}: {all:?}");
            let fast: Duration = (0..64).map(|n| r.fast_timeout(n)).sum();
            assert!(!r.is_fast() || fast < 100 * MS, "{path:?}: {fast:?}");
        }
    }

    #[test]
    fn a_host_that_stalls_has_room_though_its_shortest_time_is_short() {
        let mut r = rtt();
        for n in 0..10_000 {
            r.sample(if n % 5 < 2 { MS / 10 } else { 5 * MS });
        }
        assert_eq!(r.path(), Some(MS / 10));
        let room = MS * 5 / 8;
        assert!(
            (room * 9 / 10..room * 11 / 10).contains(&r.timeout(0, 0)),
            "{:?}",
            r.timeout(0, 0)
        );
        assert_eq!(r.room(2, MS / 20, MS), MS);
    }
}
