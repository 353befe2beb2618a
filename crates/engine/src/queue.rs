//! What waits for one port: eight bounded queues, of which the highest goes first.
//!
//! A frame joins the class of its priority ([`class_of_header`]; C-4 of the protocol). Within a
//! class frames leave in the order in which they came; between classes the highest that waits goes
//! first, so that what a job needs soon does not stand behind what another needs late.
//!
//! How it works: a bit for each class says whether it waits. While only one does, which is nearly
//! always, taking frames is moving a run of them. Strict priority alone would let a lower class
//! wait without limit, so each counts the frames that were served from above it since its own last
//! turn, or since it began to wait. At [`QueueConfig::guard`] of them it is due, and what is due
//! goes first, the lowest of them before the others.
//!
//! What that guarantees, with g for the guard:
//!
//! * While a class waits, at most g frames from the classes above it leave before one of its own.
//!   So of the frames that leave from it and from above, at least one in g + 1 is its own. Lowest
//!   first is what makes this exact however many classes are due at a time: as long as a class is
//!   due, no higher one is served.
//! * No class gets more than that at the cost of a higher one: between two turns that a class had
//!   while a higher one waited, g frames left from above it. When all eight classes wait, class c
//!   has 1/g of what leaves from above it, and the highest keeps (g / (g + 1))⁷ of the port; with
//!   the default of 31 that is four fifths.
//!
//! A queue is long for a frame when many frames wait that will leave before it: those of its class
//! and of the classes above ([`PortQueue::is_long`]). Such a frame is marked when it joins (C-1),
//! so that its sender slows down before the queue is full. What finds its class full is not taken.
//!
//! The catch: the numbers are in frames, because that is what is counted without looking at them;
//! they were chosen for frames of 1 KiB ([`QueueConfig`] says how). A superframe counts as the
//! frames that it is on a wire ([`PortQueue::weighing`]); it joins a class that is not full yet.

use crate::metrics;
use crate::metrics::Label;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tally_wire::{Header, Kind};

/// Number of classes.
pub const CLASSES: usize = 8;

/// The class of a priority.
#[inline]
#[must_use]
pub const fn class_of(priority: u8) -> usize {
    (priority >> 5) as usize
}

/// The class of a Tally frame: that of its priority; the highest for those few and short ones on
/// which the progress of others depends (C-4).
#[inline]
#[must_use]
pub const fn class_of_header(header: &Header) -> usize {
    match header.kind {
        Kind::Data | Kind::Result | Kind::Partial => class_of(header.priority),
        Kind::Join
        | Kind::Accept
        | Kind::Refuse
        | Kind::Leave
        | Kind::Remind
        | Kind::NotHere
        | Kind::Nack
        | Kind::Probe => CLASSES - 1,
    }
}

/// How long a port's queues may be, and when they count as long.
///
/// The defaults are for 100 Gbit/s, round trips of 10 to 20 µs and frames of 1 KiB, which take 85
/// ns each. The path then holds 120 to 240 frames (the product of bandwidth and delay).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Frames that wait in one class at most. 512 by default: two to four times what the path
    /// holds, 43 µs in each class, and eight times the threshold for marks, so that senders who
    /// slow down a round trip later are still in time.
    pub frames: u32,
    /// A frame that finds as many before it is marked. 64 by default. DCTCP (SIGCOMM'10, section
    /// 3.3) needs a seventh of what the path holds to keep the link busy, which is 17 to 35; but
    /// pollers send and take bursts of 32, so that two at a time must not count as congestion yet.
    /// Eight times `frames` is never reached: no marks.
    pub mark_frames: u32,
    /// Frames from above that a waiting class lets pass. 31 by default: the lowest class has a
    /// 32nd of the port at least.
    pub guard: u32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            frames: 512,
            mark_frames: 64,
            guard: 31,
        }
    }
}

/// The label of what is counted by class.
pub const CLASS: Label = Label {
    name: "class",
    values: &["0", "1", "2", "3", "4", "5", "6", "7"],
};

metrics! {
    /// What a port's queue saw.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct QueueCounters, labels ["port"] {
        /// Frames that found their class of the port's queue full.
        pub tx_dropped_by_class: [u64; CLASSES] = counter "port_tx_dropped_frames" in Frames by CLASS;
        /// Frames marked because the port's queue was long.
        pub ecn_marked: u64 = counter "port_ecn_marked_frames" in Frames;
        /// Most frames that waited for the port at one time, in all classes.
        pub queue_frames_max: u32 = maximum "port_queue_max_frames" in Frames;
    }
}

impl QueueCounters {
    /// Frames dropped in all classes.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.tx_dropped_by_class.iter().sum()
    }
}

/// The queue of one port.
#[derive(Debug)]
pub struct PortQueue<T> {
    config: QueueConfig,
    classes: [VecDeque<T>; CLASSES],
    /// Frames in all classes; of a superframe, one.
    len: u32,
    /// What all of them count as.
    weight: u32,
    /// What a frame counts as.
    weigh: fn(&T) -> u32,
    /// By class, what superframes count as beyond one.
    extra: [u32; CLASSES],
    /// A bit for each class that is not empty.
    waiting: u8,
    /// Of them, those whose turn has come though a higher one waits.
    due: u8,
    /// Frames served from above each waiting class since its last turn.
    passed: [u32; CLASSES],
    counters: QueueCounters,
}

impl<T> PortQueue<T> {
    /// An empty queue, with all the memory that it will ever need.
    ///
    /// # Panics
    /// If one of the numbers is 0.
    #[must_use]
    pub fn new(config: QueueConfig) -> Self {
        Self::weighing(config, |_| 1)
    }

    /// An empty queue of frames that count as `weigh` says, which is at least 1.
    ///
    /// # Panics
    /// If one of the numbers is 0.
    #[must_use]
    pub fn weighing(config: QueueConfig, weigh: fn(&T) -> u32) -> Self {
        let QueueConfig {
            frames,
            mark_frames,
            guard,
        } = config;
        assert!(frames > 0 && mark_frames > 0 && guard > 0, "{config:?}");
        Self {
            config,
            classes: std::array::from_fn(|_| VecDeque::with_capacity(config.frames as usize)),
            len: 0,
            weight: 0,
            weigh,
            extra: [0; CLASSES],
            waiting: 0,
            due: 0,
            passed: [0; CLASSES],
            counters: QueueCounters::default(),
        }
    }

    /// Frames that wait.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether none does.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether so many frames of this class and those above wait that one that joins now is to be
    /// marked.
    ///
    /// # Panics
    /// If there is no such class.
    #[inline]
    #[must_use]
    pub fn is_long(&self, class: usize) -> bool {
        // Nearly always the first comparison says it all.
        self.weight >= self.config.mark_frames && self.len_from(class) >= self.config.mark_frames
    }

    fn len_from(&self, class: usize) -> u32 {
        let extra: u32 = self.extra[class..].iter().sum();
        let frames: u32 = self.classes[class..].iter().map(|q| q.len() as u32).sum();
        frames + extra
    }

    /// Lets a frame join its class.
    ///
    /// # Errors
    /// The frame, if the class is full; it is counted as dropped.
    ///
    /// # Panics
    /// If there is no such class.
    #[inline]
    pub fn push(&mut self, class: usize, frame: T) -> Result<(), T> {
        let queue = &mut self.classes[class];
        let weight = (self.weigh)(&frame);
        if queue.len() as u32 + self.extra[class] >= self.config.frames {
            self.counters.tx_dropped_by_class[class] += u64::from(weight);
            return Err(frame);
        }
        self.extra[class] += weight - 1;
        queue.push_back(frame);
        self.waiting |= 1 << class;
        self.len += 1;
        self.weight += weight;
        self.counters.queue_frames_max = self.counters.queue_frames_max.max(self.weight);
        Ok(())
    }

    /// Takes the frame whose turn it is.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let class = self.turn()?;
        let frame = self.classes[class].pop_front()?;
        let weight = (self.weigh)(&frame);
        self.extra[class] -= weight - 1;
        self.served(class, 1, weight);
        Some(frame)
    }

    /// Takes up to `max` frames, in the order in which they have their turns, to the end of `out`.
    #[inline]
    pub fn pop_burst(&mut self, out: &mut Vec<T>, max: usize) {
        let mut left = max;
        while left > 0
            && let Some(class) = self.turn()
        {
            let queue = &mut self.classes[class];
            // While no other class waits, none falls due.
            let n = if self.waiting.is_power_of_two() {
                queue.len().min(left)
            } else {
                1
            };
            let mut weight = n as u32;
            if self.extra[class] > 0 {
                weight = queue.iter().take(n).map(self.weigh).sum();
                self.extra[class] -= weight - n as u32;
            }
            out.extend(queue.drain(..n));
            self.served(class, n as u32, weight);
            left -= n;
        }
    }

    /// Notes that a frame was marked because it joins a long queue.
    #[inline]
    pub fn count_mark(&mut self) {
        self.counters.ecn_marked += 1;
    }

    /// What it saw.
    #[must_use]
    pub fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    /// Continues the counters of a queue that was here before.
    pub fn set_counters(&mut self, counters: QueueCounters) {
        self.counters = counters;
    }

    /// The class that is served next.
    #[inline]
    fn turn(&self) -> Option<usize> {
        if self.due == 0 {
            self.waiting.checked_ilog2().map(|class| class as usize)
        } else {
            Some(self.due.trailing_zeros() as usize)
        }
    }

    /// `n` frames of this class have left, which count as `weight`.
    #[inline]
    fn served(&mut self, class: usize, n: u32, weight: u32) {
        let bit = 1u8 << class;
        self.len -= n;
        self.weight -= weight;
        self.due &= !bit;
        self.passed[class] = 0;
        let queue = &mut self.classes[class];
        if queue.is_empty() {
            // Back to the start of its memory: while little waits, it stays in the cache.
            queue.clear();
            self.waiting &= !bit;
        }
        let mut below = self.waiting & (bit - 1);
        while below != 0 {
            let other = below.trailing_zeros() as usize;
            below &= below - 1;
            self.passed[other] += weight;
            if self.passed[other] >= self.config.guard {
                self.due |= 1 << other;
            }
        }
    }
}

#[cfg(test)]
mod tests;
