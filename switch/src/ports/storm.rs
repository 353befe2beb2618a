//! When a storm begins and when it ends, from counters that grow.

use std::time::Duration;
use tally_engine::forwarding::FloodKind;
use tally_wire::Time;

/// How long nothing may have been dropped before a storm is over.
const OVER_AFTER: Duration = Duration::from_secs(5);
const KINDS: usize = FloodKind::ALL.len();

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormEvent {
    /// A storm of that kind began; so many frames were dropped so far.
    Began(FloodKind, u64),
    /// It is over: how long it lasted, and how many frames were dropped in it.
    Ended(FloodKind, Duration, u64),
}

#[derive(Clone, Copy, Debug)]
struct Storm {
    since: Time,
    last: Time,
    before: u64,
}

/// The storms of one port.
#[derive(Debug, Default)]
pub struct StormWatch {
    seen: [u64; KINDS],
    storms: [Option<Storm>; KINDS],
}

impl StormWatch {
    /// Compares frames dropped so far, by kind, with those of the last look.
    pub fn look(&mut self, now: Time, dropped: [u64; KINDS]) -> Vec<StormEvent> {
        let mut events = Vec::new();
        for (at, kind) in FloodKind::ALL.into_iter().enumerate() {
            let before = std::mem::replace(&mut self.seen[at], dropped[at]);
            let grew = dropped[at] > before;
            match &mut self.storms[at] {
                Some(storm) if grew => storm.last = now,
                Some(storm) if now.since(storm.last) >= OVER_AFTER => {
                    let lasted = storm.last.since(storm.since);
                    let frames = dropped[at] - storm.before;
                    events.push(StormEvent::Ended(kind, lasted, frames));
                    self.storms[at] = None;
                }
                None if grew => {
                    events.push(StormEvent::Began(kind, dropped[at] - before));
                    self.storms[at] = Some(Storm {
                        since: now,
                        last: now,
                        before,
                    });
                }
                _ => {}
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time(s * 1_000_000_000)
    }

    #[test]
    fn a_storm_is_told_when_it_begins_and_when_it_is_over() {
        use FloodKind::{Broadcast, Unknown};
        let mut watch = StormWatch::default();
        assert_eq!(watch.look(at(1), [0; 3]), []);
        assert_eq!(
            watch.look(at(2), [7, 0, 0]),
            [StormEvent::Began(Broadcast, 7)]
        );
        for s in 3..10 {
            assert_eq!(watch.look(at(s), [s * 10, 0, 0]), []);
        }
        assert_eq!(
            watch.look(at(12), [90, 0, 4]),
            [StormEvent::Began(Unknown, 4)]
        );
        let over = StormEvent::Ended(Broadcast, Duration::from_secs(7), 90);
        assert_eq!(watch.look(at(14), [90, 0, 4]), [over]);
        assert_eq!(watch.look(at(15), [90, 0, 4]), []);
        let again = watch.look(at(16), [91, 0, 4]);
        assert_eq!(again, [StormEvent::Began(Broadcast, 1)]);
    }
}
