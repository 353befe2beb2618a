//! The fragments of one job in flight: when contributions are due, which results arrived, what to
//! retransmit.
//!
//! Contributions are numbered through, fragment by fragment and rank by rank: number k is rank k
//! mod n of fragment k / n. A number is *due* at a moment of the clock (open loop: the
//! first one's plus k intervals) or as soon as the window has room (closed loop:
//! when the result of the fragment a window before was there). What is due is taken in batches by
//! [`Flow::take`]. Latency counts from when a contribution was due, not from when it was sent: a
//! generator or a window that was stopped by a slow answer would else leave out the very waits that
//! it stands for (coordinated omission).
//!
//! The window is the job's: no worker sends fragment f before all of them have the results up to f
//! − window (W-2, a little stricter). There is no congestion control: the load is the requested
//! one.
//!
//! A fragment is probed after eight times the usual latency if one that was sent later has its
//! result. If none has, all fragments are late, and the timeout is much longer. It doubles with
//! each probe (backoff).

use std::ops::Range;
use tally_wire::{FragmentId, all_ranks};

/// Fragments taken at a time: a burst of each worker.
pub const BATCH_FRAGMENTS: u64 = 32;
/// When a fragment is sent again: in usual latencies, and between these bounds.
const RETRY_TIMES: u64 = 8;
const RETRY_NS_MIN: u64 = 1_000_000;
const RETRY_NS_MAX: u64 = 250_000_000;
/// When it is although no later one has a result.
const STILL_NS: u64 = 50_000_000;

/// The rule by which contributions are due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The answers: a fragment follows when the window has room.
    Closed,
    /// The clock: a contribution every so many nanoseconds.
    Open {
        /// Between two contributions of the job.
        interval_ns: f64,
    },
}

/// One fragment.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// When its first and its last contribution were due.
    due_first: u64,
    due_last: u64,
    /// When its last contribution was sent.
    sent: u64,
    /// When it is sent again.
    retry: u64,
    /// Ranks that have its result.
    have: u64,
    /// Ranks whose contribution was retransmitted since the last PROBE.
    again: u64,
    tries: u8,
}

/// What a result turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It reached a rank that lacked it.
    New(Times),
    /// All ranks that it reaches have it.
    Duplicate,
    /// Of a fragment that is not in flight: one given up, or never sent.
    Unasked,
    /// Of a fragment of which not all contributions have been sent: the sum cannot be known.
    TooEarly,
}

/// When a fragment's contributions were due and sent, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Which fragment of the flow it is, from 0.
    pub seq: u64,
    /// When the first contribution was due.
    pub due_first: u64,
    /// When the last one was.
    pub due_last: u64,
    /// When that was sent.
    pub sent: u64,
    /// Whether all ranks have the result now.
    pub complete: bool,
}

/// What a NACK asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The contribution, again.
    Data,
    /// The result, which the worker has.
    Result,
    /// Nothing that was sent.
    Nothing,
}

/// The state of one job. Moments are nanoseconds on the caller's clock.
pub struct Flow {
    workers: u64,
    all: u64,
    window: u64,
    pace: Pace,
    start: u64,
    /// The number on the wire of the first fragment.
    first: FragmentId,
    entries: Box<[Entry]>,
    /// All fragments before it are done with.
    base: u64,
    /// The next contribution.
    cursor: u64,
    /// The contribution before which it ends.
    end: u64,
    /// Usual time from sending to result, smoothed.
    usual_ns: u64,
    /// When the fragment was sent that was sent last of those that have a result.
    newest_sent: u64,
}

impl Flow {
    /// A job of `workers` workers whose first contribution is due at `start`.
    #[must_use]
    pub fn new(workers: u8, window: u16, pace: Pace, first: FragmentId, start: u64) -> Self {
        let slots = usize::from(window).next_power_of_two();
        let entry = Entry {
            due_first: start,
            due_last: start,
            ..Entry::default()
        };
        Self {
            workers: workers.into(),
            all: all_ranks(workers),
            window: window.into(),
            pace,
            start,
            first,
            entries: vec![entry; slots].into_boxed_slice(),
            base: 0,
            cursor: 0,
            end: u64::MAX,
            usual_ns: 0,
            newest_sent: 0,
        }
    }

    fn slot(&self, seq: u64) -> usize {
        seq as usize & (self.entries.len() - 1)
    }

    /// The number on the wire of a fragment.
    #[must_use]
    pub fn fragment(&self, seq: u64) -> FragmentId {
        self.first.plus(seq as u32)
    }

    /// The fragment with that number that is nearest to those in flight.
    fn seq_of(&self, fragment: FragmentId) -> Option<u64> {
        let ahead = fragment.ahead_of(self.fragment(self.base));
        self.base.checked_add_signed(ahead.into())
    }

    /// Fragments of which something has been sent.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.cursor.div_ceil(self.workers)
    }

    /// Whether all that was begun is done with.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.base * self.workers >= self.cursor
    }

    /// Begins no fragment any more.
    pub fn stop(&mut self) {
        self.stop_before(self.begun());
    }

    /// Ends before that fragment.
    pub fn stop_before(&mut self, fragments: u64) {
        self.end = fragments.max(self.begun()).saturating_mul(self.workers);
    }

    /// Whether there will be nothing more to send for the first time.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.cursor >= self.end
    }

    /// When a contribution is due, in the open loop.
    fn due(&self, number: u64, interval_ns: f64) -> u64 {
        self.start + (number as f64 * interval_ns) as u64
    }

    /// Contributions that are due, sent or not.
    #[must_use]
    pub fn due_by(&self, now: u64) -> u64 {
        match self.pace {
            Pace::Closed => (self.base + self.window) * self.workers,
            Pace::Open { .. } if now < self.start => 0,
            Pace::Open { interval_ns } => ((now - self.start) as f64 / interval_ns) as u64 + 1,
        }
    }

    /// Takes what is due and has room in the window, up to a batch. All of it must be sent now.
    pub fn take(&mut self, now: u64) -> Range<u64> {
        let n = self.workers;
        let from = self.cursor;
        let to = self
            .due_by(now)
            .min((self.base + self.window) * n)
            .min(from + BATCH_FRAGMENTS * n)
            .min(self.end);
        if to <= from {
            return from..from;
        }
        for seq in from.div_ceil(n)..to.div_ceil(n) {
            let slot = self.slot(seq);
            let (due_first, due_last) = match self.pace {
                // As it was noted when the window got room.
                Pace::Closed => (self.entries[slot].due_first, self.entries[slot].due_first),
                Pace::Open { interval_ns } => (
                    self.due(seq * n, interval_ns),
                    self.due(seq * n + n - 1, interval_ns),
                ),
            };
            self.entries[slot] = Entry {
                due_first,
                due_last,
                ..Entry::default()
            };
        }
        let retry = now + self.retry_ns();
        for seq in from / n..to / n {
            let slot = self.slot(seq);
            self.entries[slot].sent = now;
            self.entries[slot].retry = retry;
        }
        self.cursor = to;
        from..to
    }

    /// The fragments to which `rank` contributes in a batch.
    #[must_use]
    pub fn of_rank(&self, batch: &Range<u64>, rank: u8) -> Range<u64> {
        let before = |number: u64| number.saturating_sub(rank.into()).div_ceil(self.workers);
        before(batch.start)..before(batch.end)
    }

    /// When rank's contribution to a fragment in flight was due.
    fn due_of(&self, seq: u64, rank: u8) -> u64 {
        match self.pace {
            Pace::Closed => self.entries[self.slot(seq)].due_first,
            Pace::Open { interval_ns } => {
                self.due(seq * self.workers + u64::from(rank), interval_ns)
            }
        }
    }

    /// Whether all contributions to a fragment have been sent.
    fn is_whole(&self, seq: u64) -> bool {
        (seq + 1) * self.workers <= self.cursor
    }

    /// Takes a result that has reached `ranks`.
    #[inline]
    pub fn result(&mut self, now: u64, fragment: FragmentId, ranks: u64) -> Taken {
        let Some(seq) = self.seq_of(fragment) else {
            return Taken::Unasked;
        };
        if seq < self.base {
            // It may have come on several ports, or been asked for more than once.
            return if seq + 4 * self.window >= self.base {
                Taken::Duplicate
            } else {
                Taken::Unasked
            };
        }
        if !self.is_whole(seq) {
            return if seq < self.begun() {
                Taken::TooEarly
            } else {
                Taken::Unasked
            };
        }
        let slot = self.slot(seq);
        let entry = &mut self.entries[slot];
        if entry.have & ranks == ranks {
            return Taken::Duplicate;
        }
        if entry.tries == 0 {
            let took = now.saturating_sub(entry.sent);
            self.usual_ns = (7 * self.usual_ns + took) / 8;
            self.newest_sent = self.newest_sent.max(entry.sent);
        }
        entry.have |= ranks;
        let complete = entry.have == self.all;
        let times = Times {
            seq,
            due_first: entry.due_first,
            due_last: entry.due_last,
            sent: entry.sent,
            complete,
        };
        if complete {
            self.advance(now);
        }
        Taken::New(times)
    }

    /// Takes a contribution that came back as it was, and says when it was due.
    #[inline]
    pub fn echo(&mut self, now: u64, fragment: FragmentId, rank: u8) -> Option<u64> {
        let seq = self.seq_of(fragment).filter(|&seq| seq >= self.base)?;
        let slot = self.slot(seq);
        let bit = 1_u64.checked_shl(rank.into())? & self.all;
        if seq * self.workers + u64::from(rank) >= self.cursor || self.entries[slot].have & bit != 0
        {
            return None;
        }
        let due = self.due_of(seq, rank);
        self.entries[slot].have |= bit;
        if self.entries[slot].have == self.all {
            self.advance(now);
        }
        Some(due)
    }

    /// Moves the window to the first fragment whose result a rank lacks.
    fn advance(&mut self, now: u64) {
        while self.is_whole(self.base) && self.entries[self.slot(self.base)].have == self.all {
            let freed = self.slot(self.base + self.window);
            self.entries[freed].due_first = now;
            self.base += 1;
        }
    }

    /// What a NACK for rank's contribution to a fragment asks for.
    ///
    /// Each rank that lacks the result causes a NACK; the contribution is sent once.
    #[must_use]
    pub fn asked(&mut self, fragment: FragmentId, rank: u8) -> Option<(u64, Asked)> {
        let seq = self.seq_of(fragment)?;
        let number = seq * self.workers + u64::from(rank);
        if number >= self.cursor || u64::from(rank) >= self.workers {
            return Some((seq, Asked::Nothing));
        }
        let slot = self.slot(seq);
        let entry = &mut self.entries[slot];
        if seq < self.base || entry.have >> rank & 1 == 1 {
            return Some((seq, Asked::Result));
        }
        let is_first = entry.again >> rank & 1 == 0;
        entry.again |= 1 << rank;
        Some((
            seq,
            if is_first {
                Asked::Data
            } else {
                Asked::Nothing
            },
        ))
    }

    fn retry_ns(&self) -> u64 {
        (RETRY_TIMES * self.usual_ns).clamp(RETRY_NS_MIN, RETRY_NS_MAX)
    }

    /// Calls `again` with each fragment that is to be probed, and the ranks that lack its result.
    pub fn overdue(&mut self, now: u64, mut again: impl FnMut(u64, u64)) {
        let retry_ns = self.retry_ns();
        for seq in self.base..self.cursor / self.workers {
            let slot = self.slot(seq);
            let entry = &mut self.entries[slot];
            let stands_still = entry.tries == 0
                && self.newest_sent <= entry.sent
                && now.saturating_sub(entry.sent) < STILL_NS;
            if entry.have != self.all && entry.retry <= now && !stands_still {
                entry.tries = entry.tries.saturating_add(1);
                entry.again = 0;
                let patience = retry_ns << entry.tries.min(8);
                entry.retry = now + patience.min(RETRY_NS_MAX);
                again(seq, self.all & !entry.have);
            }
        }
    }

    /// Gives up the fragments that were sent before `before` and still lack a result somewhere.
    /// Returns how many.
    pub fn give_up(&mut self, now: u64, before: u64) -> u64 {
        let mut lost = 0;
        for seq in self.base..self.cursor / self.workers {
            let slot = self.slot(seq);
            let entry = &mut self.entries[slot];
            if entry.have != self.all && entry.sent < before {
                entry.have = self.all;
                lost += 1;
            }
        }
        if lost > 0 {
            self.advance(now);
        }
        lost
    }
}

#[cfg(test)]
mod tests;
