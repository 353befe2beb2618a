//! Shortest time from a node's sum to its result: a younger sum is in flight (TR-5).
//!
//! Each child that misses a result makes the parent send a NACK. Without a limit, a late child
//! would retransmit its sum for each of them. The queues that this fills would delay it further.

use super::ring::REPEAT_MAX;
use core::time::Duration;
use tally_wire::Time;

/// Number of samples of which the shortest counts; up to twice this number.
const BLOCK: u32 = 64;

/// The shortest times from sums to their results, of the last samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumTimes {
    /// Of the last block and of this one, which has `in_block` samples.
    shortest: [Duration; 2],
    in_block: u32,
}

impl SumTimes {
    pub(crate) const fn new() -> Self {
        Self {
            shortest: [Duration::MAX; 2],
            in_block: 0,
        }
    }

    /// A result came for a sum that was sent once.
    pub(crate) fn sample(&mut self, time: Duration) {
        self.shortest[1] = self.shortest[1].min(time);
        self.in_block += 1;
        if self.in_block == BLOCK {
            self.in_block = 0;
            self.shortest = [self.shortest[1], Duration::MAX];
        }
    }

    /// Whether a sum that was sent then is still on its way, or its result is.
    pub(crate) fn is_in_flight(&self, sent: Time, now: Time) -> bool {
        let shortest = self.shortest[0].min(self.shortest[1]);
        shortest != Duration::MAX && now.since(sent) < shortest.min(REPEAT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn the_shortest_of_the_last_times_counts() {
        let mut times = SumTimes::new();
        assert!(!times.is_in_flight(at(0), at(0)), "nothing is known");
        times.sample(Duration::from_millis(9));
        times.sample(Duration::from_millis(5));
        times.sample(Duration::from_millis(7));
        assert!(times.is_in_flight(at(1), at(5)));
        assert!(!times.is_in_flight(at(1), at(6)));
        // Two blocks later the path is longer.
        for _ in 0..2 * BLOCK {
            times.sample(Duration::from_millis(20));
        }
        assert!(times.is_in_flight(at(1), at(20)));
        assert!(!times.is_in_flight(at(1), at(21)));
    }

    #[test]
    fn no_answer_is_kept_back_for_longer_than_the_bound() {
        let mut times = SumTimes::new();
        times.sample(Duration::from_secs(3));
        assert!(times.is_in_flight(at(0), at(49)));
        assert!(!times.is_in_flight(at(0), at(50)));
    }
}
