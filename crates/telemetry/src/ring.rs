//! The last events, for reports and `show events`.
//!
//! When the ring is full, the oldest event of the kind that has most of them gives way. So a kind
//! that says much, also at its limit, does not push the others' events out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tally_schema::event::Event;

/// Events that are kept.
pub const KEPT: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Ring {
    events: VecDeque<Arc<Event>>,
    by_kind: BTreeMap<String, usize>,
}

impl Ring {
    pub(crate) fn push(&mut self, event: Arc<Event>) {
        if self.events.len() == KEPT {
            self.give_way();
        }
        *self.by_kind.entry(event.kind.clone()).or_default() += 1;
        self.events.push_back(event);
    }

    fn give_way(&mut self) {
        let most = self.by_kind.iter().max_by_key(|(_, n)| **n);
        let Some(kind) = most.map(|(kind, _)| kind.clone()) else {
            return;
        };
        if let Some(at) = self.events.iter().position(|event| event.kind == kind) {
            self.events.remove(at);
        }
        match self.by_kind.get_mut(&kind) {
            Some(n) if *n > 1 => *n -= 1,
            _ => drop(self.by_kind.remove(&kind)),
        }
    }

    /// From the oldest to the latest.
    pub(crate) fn all(&self) -> Vec<Event> {
        self.events.iter().map(|event| (**event).clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_says_much_does_not_push_others_out() {
        let mut ring = Ring::default();
        let event = |number, kind: &str| {
            Arc::new(Event {
                number,
                kind: kind.into(),
                ..Event::default()
            })
        };
        for n in 0..10 {
            ring.push(event(n, "lost"));
        }
        for n in 10..10_000 {
            ring.push(event(n, if n % 100 == 0 { "joined" } else { "refused" }));
        }
        let all = ring.all();
        assert_eq!(all.len(), KEPT);
        assert!(all.is_sorted_by_key(|event| event.number), "in their order");
        let of = |kind: &str| all.iter().filter(|event| event.kind == kind).count();
        assert_eq!(of("lost"), 10);
        assert_eq!(of("joined"), 99);
        assert_eq!(all.last().unwrap().number, 9999);
    }
}
