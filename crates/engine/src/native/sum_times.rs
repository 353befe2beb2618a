//! Times from a node's sums to their results, which say whether a sum is in flight (TR-5).
//!
//! Each child that misses a result makes the parent send a NACK. Without a limit, a late child
//! would retransmit its sum for each of them. The queues that this fills would delay it further.
//!
//! A sum is in flight for the shortest time from a sum to its result. Frames of one path come in
//! order: so it also is while results come, until a sum that was sent later has its result. On a
//! slow link a window of sums waits in a queue for longer than the shortest time.

use super::ring::REPEAT_MAX;
use core::time::Duration;
use tally_wire::Time;

/// Number of samples of which the shortest counts; up to twice this number.
const BLOCK: u32 = 64;

/// The times from sums to their results, of sums that were sent once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumTimes {
    /// The shortest of the last block and of this one, which has `in_block` samples.
    shortest: [Duration; 2],
    in_block: u32,
    /// When the latest sum was sent that has its result.
    newest: Time,
    /// When the last result came.
    last_result: Time,
}

impl SumTimes {
    pub(crate) const fn new() -> Self {
        Self {
            shortest: [Duration::MAX; 2],
            in_block: 0,
            newest: Time(0),
            last_result: Time(0),
        }
    }

    /// A result came for a sum that was sent once.
    pub(crate) fn sample(&mut self, sent: Time, now: Time) {
        let time = now.since(sent);
        self.newest = self.newest.max(sent);
        self.last_result = now;
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
        let age = now.since(sent);
        let since_result = now.since(sent.max(self.last_result));
        let is_overtaken = sent < self.newest;
        shortest != Duration::MAX
            && age < REPEAT_MAX
            && (age < shortest || !is_overtaken && since_result < shortest)
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
        times.sample(at(0), at(9));
        times.sample(at(0), at(5));
        times.sample(at(0), at(7));
        assert!(times.is_in_flight(at(11), at(15)));
        assert!(!times.is_in_flight(at(11), at(16)));
        // Two blocks later the path is longer.
        for _ in 0..2 * BLOCK {
            times.sample(at(20), at(40));
        }
        assert!(times.is_in_flight(at(61), at(80)));
        assert!(!times.is_in_flight(at(61), at(81)));
    }

    #[test]
    fn a_sum_is_in_flight_while_results_of_earlier_ones_come() {
        let mut times = SumTimes::new();
        times.sample(at(0), at(5));
        // Sums wait for a link that takes 4 ms for each.
        for n in 0..5 {
            times.sample(at(10), at(14 + 4 * n));
            assert!(times.is_in_flight(at(11), at(17 + 4 * n)), "{n}");
        }
        assert!(!times.is_in_flight(at(11), at(35)), "no result for 5 ms");
        times.sample(at(12), at(36));
        assert!(!times.is_in_flight(at(11), at(37)), "overtaken");
        assert!(times.is_in_flight(at(12), at(37)));
    }

    #[test]
    fn no_answer_is_kept_back_for_longer_than_the_bound() {
        let mut times = SumTimes::new();
        times.sample(at(0), at(3000));
        assert!(times.is_in_flight(at(4000), at(4049)));
        assert!(!times.is_in_flight(at(4000), at(4050)));
    }
}
