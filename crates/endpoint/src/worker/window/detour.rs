//! How long the way over the PS takes, for fragments that find no slot in the switch.
//!
//! Results of one path come in the order of their contributions, and one that is missing behind
//! others is lost. A fragment that found the pool full (COLLISION) takes another path, over the PS,
//! several times as long, and is overtaken by hundreds. To send it again would be the more harm as
//! the PS, to which it would go, is what is busy. So while collisions happen, a fragment has the
//! time that those need that have one.
//!
//! Tracked is the time that seven of eight of them need, so that it neither follows every queue nor
//! leaves out many.

use core::time::Duration;

/// Shares by which the estimate moves, of 64: up for a longer time, down for a shorter one. It
/// rests where shorter and longer times are at 7 : 1.
const UP: u32 = 7;
const DOWN: u32 = 1;
const STEPS: u32 = 64;
/// What a fragment has, in times that the way takes.
const TIMES: u32 = 2;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Detour {
    /// The time; of the last transmissions, which was the latest to have taken this way.
    way: Option<(Duration, u64)>,
}

impl Detour {
    /// The result of a fragment with a collision came `time` after its first contribution, and
    /// after `transmissions`. (Karn's rule would have us measure nothing: a worker without a
    /// timeout sends them all twice.)
    pub(super) fn sample(&mut self, time: Duration, transmissions: u64) {
        let time = time.max(Duration::from_nanos(STEPS.into()));
        let way = match self.way {
            None => time,
            Some((way, _)) if time > way => way + way * UP / STEPS,
            Some((way, _)) => way - way * DOWN / STEPS,
        };
        self.way = Some((way, transmissions));
    }

    /// What a fragment has that may be on this way; `None` if none was in the last `memory`
    /// transmissions.
    pub(super) fn timeout(&self, transmissions: u64, memory: u64) -> Option<Duration> {
        let (way, latest) = self.way?;
        (transmissions - latest <= memory).then_some(way * TIMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn no_wait_for_a_way_that_no_fragment_takes() {
        let mut d = Detour::default();
        assert_eq!(d.timeout(0, 10), None);
        d.sample(50 * US, 5);
        assert_eq!(d.timeout(15, 10), Some(100 * US));
        assert_eq!(d.timeout(16, 10), None);
    }

    #[test]
    fn leaves_time_for_nearly_all_and_is_not_led_by_few() {
        let mut d = Detour::default();
        // A queue: 40 to 71 us, and one in sixteen took a millisecond for another reason.
        for n in 0..10_000 {
            let time = if n % 16 == 0 { 1000 } else { 40 + n % 32 };
            d.sample(time * US, 0);
        }
        let timeout = d.timeout(0, 0).unwrap();
        assert!((110 * US..180 * US).contains(&timeout), "{timeout:?}");
    }

    #[test]
    fn times_of_nothing_are_survived() {
        let mut d = Detour::default();
        for _ in 0..10_000 {
            d.sample(Duration::ZERO, 0);
        }
        d.sample(US, 0);
        assert!(d.timeout(0, 0).unwrap() > Duration::ZERO);
    }
}
