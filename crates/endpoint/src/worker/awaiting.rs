//! How much of its time a worker awaits results (J-11).
//!
//! All workers of a job get a fragment's result at the same time, when the last of them has
//! contributed. So the slowest waits least, and that is the one sign of it that needs no common
//! clock.

use core::time::Duration;
use tally_wire::Time;

/// What was so long ago counts for 1/e of what is now.
const MEMORY: Duration = Duration::from_secs(8);
/// A share that is all.
const ALL: u64 = 1000;
/// Binary places that the share has beyond thousandths, or little that is new would never change
/// it.
const PLACES: u32 = 16;

/// A share of time, the older time of less weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaiting {
    since: Option<Time>,
    /// Since the last look, as far as it has ended.
    so_far: Duration,
    looked: Time,
    share: Option<u64>,
}

impl Awaiting {
    pub(super) const fn new(now: Time) -> Self {
        Self {
            since: None,
            so_far: Duration::ZERO,
            looked: now,
            share: None,
        }
    }

    /// Something is awaited; nothing if it is already.
    pub(super) fn begins(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// All has come.
    pub(super) fn ends(&mut self, now: Time) {
        if let Some(since) = self.since.take() {
            self.so_far += now.since(since);
        }
    }

    /// Takes in the time since the last look. The share, in thousandths.
    pub(super) fn look(&mut self, now: Time) -> u16 {
        if self.since.is_some() {
            self.ends(now);
            self.begins(now);
        }
        let nanos = |it: Duration| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX);
        let time = nanos(now.since(self.looked));
        if time > 0 {
            let awaited = nanos(core::mem::take(&mut self.so_far)).min(time);
            let new = ((u128::from(awaited * ALL) << PLACES) / u128::from(time)) as u64;
            let weight = time.min(nanos(MEMORY));
            self.looked = now;
            self.share = Some(self.share.map_or(new, |old| {
                let rest = nanos(MEMORY) - weight;
                let sum = u128::from(old) * u128::from(rest) + u128::from(new) * u128::from(weight);
                (sum / u128::from(nanos(MEMORY))) as u64
            }));
        }
        self.share()
    }

    /// The share as of the last look.
    pub(super) fn share(&self) -> u16 {
        (self.share.unwrap_or(0) >> PLACES) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks every 400 ms for so many seconds at what is awaited for `awaited` of each 100 ms.
    fn grow(it: &mut Awaiting, from: &mut u64, seconds: u64, awaited: u64) -> u16 {
        let mut share = 0;
        for _ in 0..seconds * 10 {
            it.begins(Time(*from));
            it.begins(Time(*from + 1));
            it.ends(Time(*from + awaited * MS));
            it.ends(Time(*from + awaited * MS + 1));
            *from += 100 * MS;
            if (*from / MS).is_multiple_of(400) {
                share = it.look(Time(*from));
            }
        }
        share
    }

    #[test]
    fn the_share_is_that_of_the_last_seconds() {
        let (mut it, mut now) = (Awaiting::new(Time(0)), 0);
        assert_eq!(it.look(Time(0)), 0);
        assert_eq!(grow(&mut it, &mut now, 2, 30), 300);
        let soon = grow(&mut it, &mut now, 4, 70);
        assert!((400..600).contains(&soon), "{soon}");
        let later = grow(&mut it, &mut now, 60, 70);
        assert!((698..=700).contains(&later), "{later}");
        assert!(grow(&mut it, &mut now, 60, 0) <= 2);
    }

    #[test]
    fn a_wait_under_way_counts_and_a_long_silence_is_one_sample() {
        let mut it = Awaiting::new(Time(0));
        it.begins(Time(100 * MS));
        assert_eq!(it.look(Time(400 * MS)), 750);
        // Hours without a look: nothing overflows, and nothing older counts.
        let hours = 5 * 3600 * 1000 * MS;
        assert_eq!(it.look(Time(hours)), 1000);
        it.ends(Time(hours));
        assert_eq!(it.look(Time(2 * hours)), 0);
    }
}
