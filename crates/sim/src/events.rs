//! What happens when: events, and their queue.
//!
//! A calendar queue (Brown, CACM 1988) of fixed geometry. Most events of a network are microseconds
//! away, so the next millisecond is a ring of buckets of 128 ns: pushing is an append. A bucket is
//! sorted when its turn comes. What is further away (timers) waits in a heap until the ring gets
//! there.
//!
//! Order is by time, and of the same time by the order of pushing, so that a simulation is the same
//! every time. Nothing is allocated per event once the buckets have grown.

use crate::address::{BridgeId, HostId, SessionId, SwitchId};
use crate::frame::Frame;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use tally_engine::PortId;
use tally_wire::Time;

/// What may happen.
pub enum Event {
    /// A frame arrives at a switch.
    ToSwitch(SwitchId, PortId, Frame),
    /// A frame arrives at an ordinary switch.
    ToBridge(BridgeId, PortId, Frame),
    /// A frame arrives at a host.
    ToHost(HostId, Frame),
    /// A frame arrives at a switch's card.
    ToCard(SwitchId, Frame),
    /// The deadline of the control of a switch's card.
    CardTimer(SwitchId),
    /// A core of a switch carries out a command of its card's control.
    CardCommand(SwitchId, usize),
    /// A core of a switch polls.
    Poll(SwitchId, usize),
    /// The deadline of a core's dialects.
    CoreTimer(SwitchId, usize),
    /// A port of a switch can send its next frame.
    PortIdle(SwitchId, PortId),
    /// A host's cable can take more.
    HostIdle(HostId),
    /// A session's deadline.
    Wake(SessionId),
    /// A switch's control thread takes its next frame.
    Control(SwitchId),
    /// The deadline of a switch's registry.
    SwitchTimer(SwitchId),
    /// A switch listens to the others of its fabric.
    Fabric(SwitchId),
    /// The app's.
    Alarm(u64),
}

const BUCKET_SHIFT: u32 = 7;
const BUCKETS: usize = 8192;

struct Entry<T> {
    at: Time,
    order: u64,
    what: T,
}

impl<T> Entry<T> {
    fn key(&self) -> (Time, u64) {
        (self.at, self.order)
    }

    const fn tick(&self) -> u64 {
        self.at.0 >> BUCKET_SHIFT
    }
}

// Reversed, because the standard heap has its greatest on top.
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Entry<T> {}

/// Events of type `T` in order of time.
pub struct EventQueue<T> {
    /// The bucket that is being emptied, last first, and what was added to it meanwhile.
    current: Vec<Entry<T>>,
    added: BinaryHeap<Entry<T>>,
    /// The number of that bucket, counted from time 0.
    tick: u64,
    buckets: Box<[Vec<Entry<T>>]>,
    /// Which buckets have something, a bit each.
    occupied: Box<[u64]>,
    far: BinaryHeap<Entry<T>>,
    pushed: u64,
    len: usize,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self {
            current: Vec::new(),
            added: BinaryHeap::new(),
            tick: 0,
            buckets: (0..BUCKETS).map(|_| Vec::new()).collect(),
            occupied: vec![0; BUCKETS / 64].into(),
            far: BinaryHeap::new(),
            pushed: 0,
            len: 0,
        }
    }
}

impl<T> EventQueue<T> {
    /// Events that are to come.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is to come.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets `what` happen at `at`. What is in the past happens next.
    #[inline]
    pub fn push(&mut self, at: Time, what: T) {
        let order = self.pushed;
        self.pushed += 1;
        self.len += 1;
        self.place(Entry { at, order, what });
    }

    #[inline]
    fn place(&mut self, entry: Entry<T>) {
        let tick = entry.tick();
        if tick <= self.tick {
            self.added.push(entry);
        } else if tick - self.tick < BUCKETS as u64 {
            let bucket = tick as usize % BUCKETS;
            self.occupied[bucket / 64] |= 1 << (bucket % 64);
            self.buckets[bucket].push(entry);
        } else {
            self.far.push(entry);
        }
    }

    /// Takes the next event unless it is later than `until`.
    #[inline]
    pub fn pop(&mut self, until: Time) -> Option<(Time, T)> {
        loop {
            // In this heap the greatest is the first to come.
            let entry = match (self.current.last(), self.added.peek()) {
                (None, None) => {
                    if !self.advance() {
                        return None;
                    }
                    continue;
                }
                (Some(a), b) if b.is_none_or(|b| a > b) => {
                    if a.at > until {
                        return None;
                    }
                    self.current.pop()
                }
                (_, Some(b)) if b.at > until => return None,
                _ => self.added.pop(),
            };
            self.len -= 1;
            return entry.map(|entry| (entry.at, entry.what));
        }
    }

    /// Advances to the next bucket that has an event.
    fn advance(&mut self) -> bool {
        let next = self.next_occupied();
        let Some(tick) = next.or_else(|| self.far.peek().map(Entry::tick)) else {
            return false;
        };
        self.tick = tick;
        if next.is_some() {
            let bucket = tick as usize % BUCKETS;
            self.occupied[bucket / 64] &= !(1 << (bucket % 64));
            std::mem::swap(&mut self.current, &mut self.buckets[bucket]);
            // The order reversed: the next to come is last.
            self.current.sort_unstable();
        }
        // So that far events stay behind everything in the ring.
        while let Some(entry) = self.far.peek()
            && entry.tick() - self.tick.min(entry.tick()) < BUCKETS as u64
        {
            if let Some(entry) = self.far.pop() {
                self.place(entry);
            }
        }
        true
    }

    fn next_occupied(&self) -> Option<u64> {
        let words = self.occupied.len();
        let start = (self.tick as usize + 1) % BUCKETS;
        // The word of the start comes twice: its upper part first, its lower part last.
        for n in 0..=words {
            let word = (start / 64 + n) % words;
            let mut bits = self.occupied[word];
            if n == 0 {
                bits &= u64::MAX << (start % 64);
            }
            if bits != 0 {
                let bucket = word * 64 + bits.trailing_zeros() as usize;
                let ahead = (bucket + BUCKETS - start) % BUCKETS;
                return Some(self.tick + 1 + ahead as u64);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn equals_a_sorted_list() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut queue = EventQueue::default();
            let mut model: Vec<(u64, u64)> = Vec::new();
            let (mut now, mut order) = (0, 0);
            for _ in 0..2000 {
                if rng.chance(520_000) {
                    let reach = rng.pick(&[1, 100, 10_000, 1 << 20, 1 << 21, 1 << 30]);
                    let at = now + rng.below(reach);
                    queue.push(Time(at), order);
                    model.push((at, order));
                    order += 1;
                } else {
                    let until = now + rng.pick(&[50, 5_000, 1 << 22, 1 << 40]);
                    let next = model.iter().min().copied().filter(|e| e.0 <= until);
                    assert_eq!(queue.pop(Time(until)).map(|(t, o)| (t.0, o)), next);
                    match next {
                        Some(next) => {
                            model.retain(|e| *e != next);
                            now = next.0;
                        }
                        None => now = until.min(now + (1 << 22)),
                    }
                }
                assert_eq!(queue.len(), model.len());
            }
        }
    }
}
