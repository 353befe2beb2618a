//! What a card counts.

use crate::registers::{COUNTERS, Group};

/// A card's counters, all of the same moment. They count since its reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardCounters {
    values: [u64; COUNTERS.len()],
}

impl Default for CardCounters {
    fn default() -> Self {
        Self {
            values: [0; COUNTERS.len()],
        }
    }
}

impl CardCounters {
    pub(crate) fn new(values: [u64; COUNTERS.len()]) -> Self {
        Self { values }
    }

    fn of(&self, group: Group) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        COUNTERS
            .iter()
            .zip(self.values)
            .filter(move |&(&(of, _), _)| of == group)
            .map(|(&(_, name), value)| (name, value))
    }

    /// What it did, by the names that the engine in software has for it.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.of(Group::Count)
    }

    /// What it dropped, by reason; those that the software has too go by the same names.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.of(Group::Drop)
    }

    /// What passed its streams.
    pub fn stream(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.of(Group::Stream)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let names = COUNTERS.iter().map(|&(_, name)| name);
        names.zip(self.values)
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter()
            .find(|&(other, _)| other == name)
            .map(|(_, value)| value)
    }
}
