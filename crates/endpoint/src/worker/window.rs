//! The fragments a worker has unfinished, which of them to probe, and which to retransmit.
//!
//! A ring of entries indexed by sequence number. A fragment that seems lost is probed: PROBE has no
//! payload, and the switch answers with the result, or asks the rank whose contribution it lacks.
//! Only such a NACK makes a worker retransmit a payload. Two events say that a fragment is
//! lost, as in QUIC's loss detection (RFC 9002, section 6, whose ideas these are):
//!
//! * *Early* (R-2): one that was sent later has its result. Unfinished fragments are in a few
//!   [`Lists`], by how often they were probed or retransmitted; in each list the head was sent
//!   first, so a loss shows at a head, for any window. After a probe the limit is a path time
//!   longer, because the answer comes by way of the rank that is asked. It is also longer where the
//!   later one was probed or retransmitted: its result needed the one rank that was asked, and a
//!   fragment sent once needs the slowest. What went over the PS is late without being lost; see
//!   [`detour`].
//! * *Timeout* (R-1): nothing was sent and nothing came for a while. Then the oldest fragment is
//!   probed, and those that were probed before and have been waiting as long. If more are lost, the
//!   next result shows them to be.
//!
//! A NACK does not say that a contribution is lost: it may wait in a queue of this host, for longer
//! than any timeout on a slow link. It is retransmitted when a later one has its result, or when no
//! result comes any more. To retransmit it sooner would lengthen the queue that it waits in.
//!
//! A wrong guess costs two frames without payload. On a fast path ([`Rtt::is_fast`]) both limits
//! are shorter: at 100 Gbit/s a window of 256 fragments of 1 KiB is 22 µs, and a repair that takes
//! longer stops all workers.

mod detour;

use crate::lists::Lists;
use crate::rtt::{Bounds, Rtt};
use core::time::Duration;
use detour::Detour;
use std::collections::VecDeque;
use tally_wire::{Element, FragmentId, Time};

/// Bounds of the timeout. RFC 6298 begins with 1 s, for the Internet; this is one rack.
pub(crate) const RTO: Bounds = Bounds {
    min: Duration::from_micros(200),
    usual: Duration::from_millis(5),
    max: Duration::from_millis(250),
    initial: Duration::from_millis(50),
};
/// What is taken for reordering and not for loss: a quarter of the path time, but at least so
/// many medians between the bounds. Where half of all fragments are slow enough for the upper
/// bound, also so many transmissions: there, a batch of frames has one time. On a fast fabric, 16
/// later ones are 1.5 µs, and a window that meets a full pool for the first time would be probed as
/// a whole. On a fast path without collisions it is what half of all fragments take beyond the path
/// time, as batches in hosts and switch cores make it; at least an eighth of the path time, and
/// `REORDER_FAST`.
const REORDER_MIN: Duration = Duration::from_micros(5);
const REORDER_FAST: Duration = Duration::from_nanos(500);
const REORDER_USUAL: Duration = Duration::from_millis(1);
const REORDER_ROOM_TIMES: u32 = 1;
const REORDER_TRANSMISSIONS: u64 = 16;
/// For how many windows a collision is remembered.
const DETOUR_WINDOWS: u64 = 8;

/// Fragments that were sent once are in the first list, others in that of how often they were
/// probed or retransmitted, or in the last.
const FRESH: usize = 0;
const LISTS: usize = 12;
/// So many probes of a fragment, and timeouts in a row, wait equally long; the limits double from
/// then on.
const EQUAL: u32 = 6;
/// What the answer to a probe may take, as a part of the median, doubled as often as *caution*
/// says. It rises when more than this share of a window's results had come before, and falls when
/// less than that had: as RACK adapts to reordering (RFC 8985, 6.2, step 4).
const ANSWER_PARTS: u32 = 4;
const CAUTION_RESULTS: u64 = 64;
const CAUTION_RAISE: u64 = 12;
const CAUTION_LOWER: u64 = 24;
const CAUTION_MAX: u32 = 5;
const _: () = assert!((EQUAL as usize) < LISTS);

/// Why something is sent for a fragment once more: by the first two PROBE, by the last DATA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its timeout passed.
    Timeout,
    /// One that was sent later has its result.
    Early,
    /// The switch or the PS asked for the contribution.
    Nack,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the list given by [`Lists`].
    InFlight,
    /// In the queue, for this reason.
    Queued(Cause),
    /// Has its result.
    Done,
}

#[derive(Clone, Copy)]
struct Entry {
    first_sent: Time,
    /// When its contribution was last sent.
    contributed: Time,
    /// Which transmission of the session that was.
    contribution: u64,
    /// When anything was last sent for it.
    last_sent: Time,
    /// Which transmission of the session that was.
    transmission: u64,
    /// The list that it was in last: how often it was probed or retransmitted.
    list: u8,
    priority: u8,
    element: Element,
    state: State,
}

/// What a result turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The first for its fragment, that long after the contribution.
    New { seq: u64, latency: Duration },
    /// Its fragment has one, which may be long ago.
    Duplicate,
    /// Not of a fragment that was sent, or of another element type than was sent.
    Foreign,
}

/// What a NACK asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Something that has its result.
    Result { seq: u64 },
    /// Something that will be retransmitted.
    Data,
    /// Something not sent yet, just sent, or too long ago.
    Nothing,
}

/// Something to probe or retransmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retransmit {
    pub(crate) seq: u64,
    pub(crate) priority: u8,
    pub(crate) element: Element,
    pub(crate) cause: Cause,
}

pub(crate) struct Window {
    entries: Box<[Entry]>,
    lists: Lists<LISTS>,
    /// Fragments to probe or retransmit, oldest reason first. An entry is in it at most once.
    queue: VecDeque<u64>,
    /// All before it have their results.
    base: u64,
    /// The next to be sent for the first time.
    next: u64,
    /// Sent and without a result.
    unfinished: u64,
    width: u64,
    rtt: Rtt,
    detour: Detour,
    /// Timeouts since the last result.
    timeouts: u32,
    /// When something was last sent, and how often something was.
    last_sent: Time,
    transmissions: u64,
    /// When a fragment last got its result, and when a result last was a duplicate.
    last_result: Time,
    last_duplicate: Time,
    /// The latest fragment sent once that has a result: when it was sent, and as which
    /// transmission.
    newest_fresh: (Time, u64),
    /// The latest transmission of a contribution to a fragment that has a result.
    newest_contribution: u64,
    /// When the latest fragment was last sent, of those that have a result.
    newest_finished: Time,
    /// How often limits that follow the median are doubled; results since it was decided, and those
    /// that had come before.
    caution: u32,
    results: u64,
    duplicates: u64,
}

impl Window {
    pub(crate) fn new(first: u64, width: u16) -> Self {
        let width = u64::from(width.max(1));
        let slots = width.next_power_of_two() as usize;
        let done = Entry {
            first_sent: Time(0),
            contributed: Time(0),
            contribution: 0,
            last_sent: Time(0),
            transmission: 0,
            list: 0,
            priority: 0,
            element: Element::None,
            state: State::Done,
        };
        Self {
            entries: vec![done; slots].into_boxed_slice(),
            lists: Lists::new(slots),
            queue: VecDeque::with_capacity(slots),
            base: first,
            next: first,
            unfinished: 0,
            width,
            rtt: Rtt::new(RTO),
            detour: Detour::default(),
            timeouts: 0,
            last_sent: Time(0),
            transmissions: 0,
            last_result: Time(0),
            last_duplicate: Time(0),
            newest_fresh: (Time(0), 0),
            newest_contribution: 0,
            newest_finished: Time(0),
            caution: 0,
            results: 0,
            duplicates: 0,
        }
    }

    /// Makes the window smaller, before anything is sent.
    pub(crate) fn narrow(&mut self, width: u16) {
        assert_eq!(self.base, self.next);
        self.width = self.width.min(u64::from(width.max(1)));
    }

    fn slot(&self, seq: u64) -> usize {
        seq as usize & (self.entries.len() - 1)
    }

    /// All fragments before this one have their results.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The next fragment to be sent for the first time.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// How many fragments were sent and have no result.
    pub(crate) fn unfinished(&self) -> u64 {
        self.unfinished
    }

    pub(crate) fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    pub(crate) fn rto(&self) -> Duration {
        let doublings = self.timeouts.saturating_sub(EQUAL);
        if self.rtt.is_fast() && self.detour().is_none() {
            self.rtt.fast_timeout(doublings)
        } else {
            self.rtt.timeout(doublings, self.caution)
        }
    }

    /// The time for the way over the PS, if collisions happened lately.
    fn detour(&self) -> Option<Duration> {
        let memory = DETOUR_WINDOWS * self.width;
        self.detour.timeout(self.transmissions, memory)
    }

    /// W-2: the results of every fragment up to `next - width` are there.
    pub(crate) fn may_send(&self) -> bool {
        self.next < self.base + self.width
    }

    /// The sequence number nearest to what is unfinished that has `fragment` as its low 32 bits.
    pub(crate) fn seq_of(&self, fragment: FragmentId) -> Option<u64> {
        let ahead = fragment.ahead_of(FragmentId(self.base as u32));
        self.base.checked_add_signed(i64::from(ahead))
    }

    /// Notes that fragment `next` was sent for the first time. Nothing may wait to be probed or
    /// retransmitted, which is what bounds the queue.
    pub(crate) fn sent_new(&mut self, now: Time, element: Element, priority: u8) {
        assert!(self.may_send(), "W-2");
        assert!(self.queue.is_empty());
        let slot = self.slot(self.next);
        assert!(self.entries[slot].state == State::Done);
        self.entries[slot] = Entry {
            first_sent: now,
            contributed: now,
            contribution: self.transmissions,
            last_sent: now,
            transmission: self.transmissions,
            list: FRESH as u8,
            priority,
            element,
            state: State::InFlight,
        };
        self.lists.push(FRESH, slot);
        self.last_sent = now;
        self.transmissions += 1;
        self.next += 1;
        self.unfinished += 1;
    }

    /// Whether a fragment waits to be probed or retransmitted; it may have its result meanwhile.
    pub(crate) fn has_retransmits(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether the first that waits is to be probed.
    pub(crate) fn has_probes(&self) -> bool {
        let first = self.queue.front().filter(|seq| **seq >= self.base);
        first.is_some_and(|&seq| match self.entries[self.slot(seq)].state {
            State::Queued(cause) => cause != Cause::Nack,
            State::InFlight | State::Done => false,
        })
    }

    /// The next fragment to probe or retransmit; [`retransmitted`](Self::retransmitted) must
    /// follow.
    pub(crate) fn pop_retransmit(&mut self) -> Option<Retransmit> {
        while let Some(seq) = self.queue.pop_front() {
            // Finished while it waited, and perhaps its slot has a new owner.
            if seq < self.base {
                continue;
            }
            let entry = self.entries[self.slot(seq)];
            if let State::Queued(cause) = entry.state {
                return Some(Retransmit {
                    seq,
                    priority: entry.priority,
                    element: entry.element,
                    cause,
                });
            }
        }
        None
    }

    pub(crate) fn retransmitted(&mut self, now: Time, again: &Retransmit) {
        let slot = self.slot(again.seq);
        let entry = &mut self.entries[slot];
        entry.last_sent = now;
        if again.cause == Cause::Nack {
            entry.contributed = now;
            entry.contribution = self.transmissions;
        }
        entry.transmission = self.transmissions;
        entry.state = State::InFlight;
        entry.list = (entry.list + 1).min(LISTS as u8 - 1);
        self.lists.push(usize::from(entry.list), slot);
        self.last_sent = now;
        self.transmissions += 1;
    }

    fn enqueue(&mut self, slot: usize, seq: u64, cause: Cause) {
        self.lists.remove(slot);
        self.entries[slot].state = State::Queued(cause);
        self.queue.push_back(seq);
    }

    /// The sequence number of the unfinished fragment in `slot`.
    fn seq_in(&self, slot: usize) -> u64 {
        let mask = self.entries.len() as u64 - 1;
        self.base + ((slot as u64).wrapping_sub(self.base) & mask)
    }

    /// Takes note of a result, and of whether its fragment met a collision.
    pub(crate) fn take(
        &mut self,
        now: Time,
        fragment: FragmentId,
        element: Element,
        collided: bool,
    ) -> Taken {
        let Some(seq) = self.seq_of(fragment).filter(|&seq| seq < self.next) else {
            return Taken::Foreign;
        };
        if seq < self.base {
            return self.duplicate(now);
        }
        let slot = self.slot(seq);
        let entry = self.entries[slot];
        if entry.state == State::Done {
            return self.duplicate(now);
        }
        if entry.element != element {
            return Taken::Foreign;
        }
        self.count(false);
        self.lists.remove(slot);
        self.entries[slot].state = State::Done;
        self.unfinished -= 1;
        while self.base < self.next && self.entries[self.slot(self.base)].state == State::Done {
            self.base += 1;
        }
        self.timeouts = 0;
        self.last_result = now;
        let latency = now.since(entry.first_sent);
        // Karn's rule: the result of what was sent twice measures nothing.
        if usize::from(entry.list) == FRESH {
            self.rtt.sample(latency);
        }
        if collided {
            self.detour.sample(latency, self.transmissions);
        }
        // It answers an earlier sending if the last one was too recent.
        let answered = now.since(entry.last_sent) >= self.rtt.least();
        if usize::from(entry.list) == FRESH || answered {
            self.newest_finished = self.newest_finished.max(entry.last_sent);
            self.newest_contribution = self.newest_contribution.max(entry.contribution);
            if usize::from(entry.list) == FRESH {
                let this = (entry.last_sent, entry.transmission);
                self.newest_fresh = self.newest_fresh.max(this);
            }
            self.find_lost();
        }
        Taken::New { seq, latency }
    }

    fn duplicate(&mut self, now: Time) -> Taken {
        self.last_duplicate = now;
        self.count(true);
        Taken::Duplicate
    }

    /// What the answer to a probe may take: the rank that is asked may be as busy as this one.
    fn answer(&self) -> Duration {
        let path = self.rtt.path().unwrap_or_default();
        if self.rtt.is_fast() {
            return path;
        }
        path.max((self.rtt.median().unwrap_or_default() * (1 << self.caution)) / ANSWER_PARTS)
    }

    /// Counts results for the caution: one that has come before answers a probe sent too early.
    fn count(&mut self, is_duplicate: bool) {
        self.results += 1;
        self.duplicates += u64::from(is_duplicate);
        if self.results >= self.width.max(CAUTION_RESULTS) {
            if self.duplicates > self.results / CAUTION_RAISE {
                self.caution = (self.caution + 1).min(CAUTION_MAX);
            } else if self.duplicates < self.results / CAUTION_LOWER {
                self.caution = self.caution.saturating_sub(1);
            }
            (self.results, self.duplicates) = (0, 0);
        }
    }

    /// A fragment that is probed has a longer limit next time, so this loop is bounded by the
    /// number of lists on average.
    fn find_lost(&mut self) {
        let path = self.rtt.path().unwrap_or_default();
        let room = self
            .rtt
            .room(REORDER_ROOM_TIMES, REORDER_MIN, REORDER_USUAL);
        let mut reordering = (path / 4).max(room);
        if self.rtt.is_fast() {
            let usual = self.rtt.median().unwrap_or_default();
            let batch = usual.saturating_sub(path);
            reordering = (path / 8).max(batch).max(REORDER_FAST);
        }
        let is_slow = self.rtt.median().is_none_or(|m| m >= REORDER_USUAL / 2);
        let mut transmissions = if is_slow {
            REORDER_TRANSMISSIONS
        } else {
            u64::MAX
        };
        if let Some(detour) = self.detour() {
            reordering = reordering.max(detour.min(self.rtt.timeout(0, self.caution)));
            transmissions = u64::MAX;
        }
        for list in 0..LISTS {
            let longer = (reordering + self.answer()) * (1 << (list as u32).saturating_sub(EQUAL));
            while let Some(slot) = self.lists.head(list) {
                let entry = &self.entries[slot];
                let (newest, transmission) = self.newest_fresh;
                let overtaken = list == FRESH
                    && (newest.since(entry.last_sent) > reordering
                        || transmission.saturating_sub(entry.transmission) > transmissions);
                if !overtaken && self.newest_finished.since(entry.last_sent) <= longer {
                    break;
                }
                self.enqueue(slot, self.seq_in(slot), Cause::Early);
            }
        }
    }

    /// Takes note of a NACK.
    pub(crate) fn asked(&mut self, now: Time, fragment: FragmentId) -> Asked {
        let Some(seq) = self.seq_of(fragment).filter(|&seq| seq < self.next) else {
            return Asked::Nothing;
        };
        if seq < self.base {
            // No worker can lack one that is older (W-2); two windows for the sake of slow frames.
            let kept = seq + 2 * self.width >= self.base;
            return if kept {
                Asked::Result { seq }
            } else {
                Asked::Nothing
            };
        }
        let slot = self.slot(seq);
        match self.entries[slot].state {
            State::Done => Asked::Result { seq },
            State::Queued(Cause::Nack) => Asked::Data,
            _ if self.is_in_flight(&self.entries[slot], now) => Asked::Nothing,
            State::Queued(_) => {
                self.entries[slot].state = State::Queued(Cause::Nack);
                Asked::Data
            }
            State::InFlight => {
                self.enqueue(slot, seq, Cause::Nack);
                Asked::Data
            }
        }
    }

    /// whether a contribution counts as in flight. Frames of one path come in order.
    fn is_in_flight(&self, entry: &Entry, now: Time) -> bool {
        let is_overtaken = entry.contribution < self.newest_contribution;
        now.since(entry.contributed) < self.rtt.least()
            || !is_overtaken && now.since(entry.contributed.max(self.last_result)) < self.rto()
    }

    /// Whether the oldest unfinished fragment waits for its result and for nothing else.
    fn waits(&self) -> bool {
        self.base < self.next && self.entries[self.slot(self.base)].state == State::InFlight
    }

    /// When the timeout passes. A duplicate says that the last one was too short, and any result
    /// that fragments sent once are still coming.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let is_fresh = usize::from(self.entries[self.slot(self.base)].list) == FRESH;
        let last_result = if is_fresh {
            self.last_result.max(self.last_duplicate)
        } else {
            self.last_duplicate
        };
        let last = self.last_sent.max(last_result);
        self.waits().then(|| last.after(self.rto()))
    }

    /// Queues probes if the timeout has passed by `now`.
    pub(crate) fn expire(&mut self, now: Time) {
        if self.deadline().is_none_or(|at| at > now) {
            return;
        }
        self.enqueue(self.slot(self.base), self.base, Cause::Timeout);
        for list in FRESH + 1..LISTS {
            let wait = self.rto().max(self.answer()) * (1 << (list as u32).saturating_sub(EQUAL));
            while let Some(slot) = self.lists.head(list) {
                if self.entries[slot].last_sent.after(wait) > now {
                    break;
                }
                self.enqueue(slot, self.seq_in(slot), Cause::Timeout);
            }
        }
        self.timeouts = self.timeouts.saturating_add(1);
    }
}

#[cfg(test)]
mod tests;
