//! How much is worth having under way: one and a half times what the path holds (C-6).
//!
//! The window is configured for the longest path that there may be. On a short one, worker to
//! switch and back in 5 µs, 100 Gbit/s are 61 fragments of 1 KiB under way, and a window of 256
//! lets a worker that is ahead of the slowest put 195 more into the pool, where each waits in a
//! slot of its own for nothing. With several jobs that is all of the pool, and all that they gain
//! is to preempt each other in blocks.
//!
//! So a worker measures what the path holds, as BBR does (Cardwell et al., ACM Queue 14:5, 2016):
//! the most results that came within the shortest time that a fragment takes, in the last few such
//! times. Half as much again keeps the links busy while the others catch up. (Twice as much is as
//! fast for one job; where eight share a pool of 512 slots it is 0.3 % slower, because some of them
//! turn each other away.)
//!
//! The catch: the shortest time must be the path's. On a host that shares a core it is luck, and
//! the usual time is many times as long; there the measure would be far too small. So it counts
//! only while half of all fragments take less than [`FAST`], and never below a quarter of the
//! window or 16.

use core::time::Duration;
use tally_wire::Time;

/// Paths on which the half of all fragments take longer have other reasons to be slow.
pub(super) const FAST: Duration = Duration::from_micros(100);
/// The least, as a part of the window and in fragments.
const LEAST_DIVISOR: u64 = 4;
const LEAST: u64 = 16;
/// Shortest times that are remembered.
const ROUNDS: usize = 8;

/// What comes back of what is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    began: Time,
    results: u64,
    /// Results of the last rounds, of one shortest time each.
    rounds: [u64; ROUNDS],
    next: usize,
}

impl Flight {
    /// A result came; the shortest time that a fragment took so far.
    pub(super) fn result(&mut self, now: Time, least: Duration) {
        self.results += 1;
        let elapsed = now.since(self.began).as_nanos();
        let least = least.as_nanos().max(1);
        if elapsed >= least {
            // A round is never over at the moment.
            let results = u128::from(self.results) * least / elapsed;
            self.rounds[self.next] = results as u64;
            self.next = (self.next + 1) % ROUNDS;
            self.began = now;
            self.results = 0;
        }
    }

    /// How many fragments are worth having under way, of a window of `width`, when half of them
    /// take `median`.
    pub(super) fn limit(&self, width: u64, median: Option<Duration>) -> u64 {
        if median.is_none_or(|median| median > FAST) {
            return width;
        }
        let held = self.rounds.iter().copied().max().unwrap_or(0);
        let least = (width / LEAST_DIVISOR).max(LEAST);
        (held + held / 2).max(least).min(width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// `n` results, one each `apart_ns`.
    fn run(f: &mut Flight, from: Time, n: u64, apart_ns: u64) -> Time {
        let mut now = from;
        for _ in 0..n {
            now = now.after(Duration::from_nanos(apart_ns));
            f.result(now, 5 * US);
        }
        now
    }

    #[test]
    fn is_half_as_much_again_as_comes_in_the_shortest_time() {
        let mut f = Flight::default();
        run(&mut f, Time(0), 1000, 100);
        let limit = f.limit(256, Some(6 * US));
        assert!((68..=77).contains(&limit), "{limit}");
    }

    #[test]
    fn a_pause_does_not_count_for_long_and_a_slow_time_is_outlived() {
        let mut f = Flight::default();
        let now = run(&mut f, Time(0), 1000, 100);
        let now = run(&mut f, now.after(1000 * US), 60, 100);
        assert!(f.limit(256, Some(6 * US)) >= 68);
        run(&mut f, now, 1000, 5000);
        assert_eq!(f.limit(256, Some(6 * US)), 64, "a quarter of the window");
    }

    #[test]
    fn is_the_window_where_nothing_is_known_or_hosts_are_slow() {
        let mut f = Flight::default();
        assert_eq!(f.limit(256, None), 256);
        run(&mut f, Time(0), 1000, 100);
        assert_eq!(f.limit(256, Some(FAST + US)), 256);
        assert_eq!(f.limit(1, Some(US)), 1);
        assert_eq!(f.limit(20, Some(US)), 20);
    }

    #[test]
    fn grows_from_the_least_within_a_few_rounds() {
        // What is under way comes back in one shortest time: so the limit grows by half.
        let mut f = Flight::default();
        let (mut now, mut limits) = (Time(0), Vec::new());
        for _ in 0..6 {
            let limit = f.limit(256, Some(5 * US));
            limits.push(limit);
            now = run(&mut f, now, limit, 5000 / limit + 1);
        }
        assert_eq!(limits[0], 64);
        assert!(limits[5] >= 240, "{limits:?}");
    }
}
