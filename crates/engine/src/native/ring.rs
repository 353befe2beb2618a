//! The last results of a job, kept so that the switch itself answers who lost one (W-4).
//!
//! A node of a tree keeps its sums here, too, from when they are sent up until their results come
//! (TR-1). It notes what their headers said, so that it can send them again.

use core::time::Duration;
use tally_wire::{Element, Flags, FragmentId, Header, Time};

/// Upper bound of the backoff between retransmissions about a sum (TR-4, TR-5).
pub(crate) const REPEAT_MAX: Duration = Duration::from_millis(50);

/// Where a fragment stands relative to the ring.
pub(crate) enum ResultState<'a, B> {
    /// Its result is here.
    Finished(&'a B),
    /// The node's sum is here, and its result has not come from the parent.
    SentUp(&'a B),
    /// It is older than the ring reaches: every worker has its result (W-2).
    Old,
    /// It has no result yet.
    Open,
}

/// What the header of a kept frame said, of a job that has an uplink.
#[derive(Clone, Copy)]
pub(crate) struct Note {
    pub(crate) element: Element,
    pub(crate) flags: Flags,
    pub(crate) priority: u8,
    /// When the sum was first sent, or its first contribution came; 0 if unknown.
    sent: Time,
    /// When the sum was last sent.
    sent_last: Time,
    /// When a PROBE for the result was last sent; `sent` if none was.
    probed: Time,
}

impl Note {
    const fn of(header: &Header, sent: Time) -> Self {
        Self {
            element: header.element,
            flags: header.flags,
            priority: header.priority,
            sent,
            sent_last: sent,
            probed: sent,
        }
    }

    /// Whether the backoff since the transmission at `last` has expired: the age of the sum has
    /// doubled, or [`REPEAT_MAX`] has passed.
    fn is_due(&self, last: Time, now: Time) -> bool {
        now.since(last) >= last.since(self.sent).min(REPEAT_MAX)
    }

    /// Notes a transmission about the sum. An unknown age counts from the first one.
    fn note_transmission(&mut self, now: Time) -> Time {
        if self.sent == Time(0) {
            *self = Self {
                sent: now,
                sent_last: now,
                probed: now,
                ..*self
            };
        }
        now
    }
}

/// A ring of published frames, indexed by the fragment's number within the shard.
pub(crate) struct Ring<B> {
    /// Fragment and frame; tags apart from frames, so that the common look-up reads 8 bytes.
    tags: Box<[Tag]>,
    frames: Box<[Option<B>]>,
    /// By frame; empty without an uplink.
    notes: Box<[Note]>,
    /// The newest fragment with a result; none yet in this epoch.
    newest: Option<FragmentId>,
    /// log2 of the number of shards: one shard sees each 2^shift-th fragment.
    shift: u32,
}

#[derive(Clone, Copy)]
struct Tag {
    fragment: FragmentId,
    entry: Entry,
}

/// What a place of the ring has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    Nothing,
    Result,
    Sum,
    /// A sum that the parent has asked for.
    SumAsked,
}

impl<B> Ring<B> {
    /// A ring over at least the last `fragments` fragments of the job, all shards together.
    pub(crate) fn new(fragments: u32, shift: u32) -> Self {
        // Rounded up: 6 fragments over 4 shards are 2 in the shard of fragments 0 and 4.
        let len = fragments.div_ceil(1 << shift).max(1).next_power_of_two() as usize;
        let unused = Tag {
            fragment: FragmentId(0),
            entry: Entry::Nothing,
        };
        Self {
            tags: vec![unused; len].into_boxed_slice(),
            frames: (0..len).map(|_| None).collect(),
            notes: Box::new([]),
            newest: None,
            shift,
        }
    }

    /// The same, of a job that has an uplink.
    pub(crate) fn with_notes(self) -> Self {
        let none = Note {
            element: Element::None,
            flags: Flags::NONE,
            priority: 0,
            sent: Time(0),
            sent_last: Time(0),
            probed: Time(0),
        };
        Self {
            notes: vec![none; self.tags.len()].into_boxed_slice(),
            ..self
        }
    }

    #[inline]
    fn index(&self, fragment: FragmentId) -> usize {
        (fragment.0 >> self.shift) as usize & (self.tags.len() - 1)
    }

    /// Fragments of the job that the ring spans.
    #[inline]
    fn span(&self) -> i64 {
        (self.tags.len() as i64) << self.shift
    }

    #[inline]
    pub(crate) fn state(&self, fragment: FragmentId) -> ResultState<'_, B> {
        let at = self.index(fragment);
        let tag = self.tags[at];
        if tag.entry != Entry::Nothing
            && tag.fragment == fragment
            && let Some(frame) = &self.frames[at]
        {
            return match tag.entry {
                Entry::Nothing | Entry::Result => ResultState::Finished(frame),
                Entry::Sum | Entry::SumAsked => ResultState::SentUp(frame),
            };
        }
        match self.newest {
            Some(newest) if i64::from(newest.ahead_of(fragment)) >= self.span() => ResultState::Old,
            _ => ResultState::Open,
        }
    }

    /// Keeps the result of a fragment without one, and gives back the frame that it displaces.
    #[inline]
    pub(crate) fn keep(&mut self, fragment: FragmentId, frame: B) -> Option<B> {
        self.put(fragment, Entry::Result, frame)
    }

    /// As [`keep`](Self::keep), with what the header of the result says.
    pub(crate) fn keep_noted(&mut self, header: &Header, frame: B) -> Option<B> {
        self.note(header, Time(0));
        self.put(header.fragment, Entry::Result, frame)
    }

    /// Keeps the sum of an open fragment until its result comes, and gives back the frame that it
    /// displaces. `sent` is when it was sent, or when its first contribution came; 0 if unknown.
    pub(crate) fn keep_sum(&mut self, header: &Header, sent: Time, frame: B) -> Option<B> {
        self.note(header, sent);
        self.put(header.fragment, Entry::Sum, frame)
    }

    fn note(&mut self, header: &Header, sent: Time) {
        let at = self.index(header.fragment);
        if let Some(note) = self.notes.get_mut(at) {
            *note = Note::of(header, sent);
        }
    }

    /// What the header of a kept frame said.
    pub(crate) fn noted(&self, fragment: FragmentId) -> Option<Note> {
        self.notes.get(self.index(fragment)).copied()
    }

    /// Whether the parent has asked for a kept sum before. From now on it has.
    pub(crate) fn ask(&mut self, fragment: FragmentId) -> bool {
        let at = self.index(fragment);
        let before = self.tags[at];
        if before.entry == Entry::Sum && before.fragment == fragment {
            self.tags[at].entry = Entry::SumAsked;
        }
        before.entry == Entry::SumAsked
    }

    /// Whether PROBE for the result of a kept sum is due. If so, its backoff begins again.
    ///
    /// All workers below the node time out at about the same time.
    pub(crate) fn probe_is_due(&mut self, fragment: FragmentId, now: Time) -> bool {
        let at = self.index(fragment);
        let Some(note) = self.notes.get_mut(at) else {
            return true;
        };
        let is_due = note.is_due(note.probed, now);
        if is_due {
            note.probed = note.note_transmission(now);
        }
        is_due
    }

    /// When a kept sum was last sent, if its retransmission is due.
    pub(crate) fn repeat_is_due(&self, fragment: FragmentId, now: Time) -> Option<Time> {
        let note = self.noted(fragment)?;
        note.is_due(note.sent_last, now).then_some(note.sent_last)
    }

    /// A kept sum has been retransmitted.
    pub(crate) fn sent_again(&mut self, fragment: FragmentId, now: Time) {
        let at = self.index(fragment);
        if let Some(note) = self.notes.get_mut(at) {
            note.sent_last = note.note_transmission(now);
        }
    }

    /// When the kept sum was sent for which a result comes, if the parent has not asked for it.
    pub(crate) fn sent_once(&self, fragment: FragmentId) -> Option<Time> {
        let at = self.index(fragment);
        let tag = self.tags[at];
        let is_once = tag.entry == Entry::Sum && tag.fragment == fragment;
        let sent = self.notes.get(at)?.sent;
        (is_once && sent != Time(0)).then_some(sent)
    }

    #[inline]
    fn put(&mut self, fragment: FragmentId, entry: Entry, frame: B) -> Option<B> {
        let at = self.index(fragment);
        self.tags[at] = Tag { fragment, entry };
        if self
            .newest
            .is_none_or(|newest| fragment.ahead_of(newest) > 0)
        {
            self.newest = Some(fragment);
        }
        self.frames[at].replace(frame)
    }

    /// Empties the ring.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = B> {
        self.frames.iter_mut().filter_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open<B>(r: &Ring<B>, f: u32) -> bool {
        matches!(r.state(FragmentId(f)), ResultState::Open)
    }

    #[test]
    fn keeps_the_last_results_and_knows_the_older_ones() {
        let mut r = Ring::new(8, 0);
        assert!(
            is_open(&r, 0) && is_open(&r, 3_000_000_000),
            "nothing is old in a new ring"
        );
        for f in 0..20u32 {
            assert!(is_open(&r, f));
            let displaced = r.keep(FragmentId(f), f);
            assert_eq!(displaced, f.checked_sub(8));
        }
        for f in 0..12 {
            assert!(matches!(r.state(FragmentId(f)), ResultState::Old), "{f}");
        }
        for f in 12..20 {
            assert!(
                matches!(r.state(FragmentId(f)), ResultState::Finished(&x) if x == f),
                "{f}"
            );
        }
        assert!(is_open(&r, 20));
        assert_eq!(r.drain().count(), 8);
    }

    #[test]
    fn wraps_with_the_serial_numbers() {
        let mut r = Ring::new(4, 0);
        for i in 0..8u32 {
            let f = FragmentId(u32::MAX - 3).plus(i);
            assert!(is_open(&r, f.0));
            r.keep(f, i);
        }
        assert!(matches!(r.state(FragmentId(u32::MAX)), ResultState::Old));
        assert!(matches!(r.state(FragmentId(3)), ResultState::Finished(7)));
        assert!(is_open(&r, 4));
    }

    #[test]
    fn a_gap_stays_open_until_it_is_older_than_the_ring() {
        let mut r = Ring::new(4, 0);
        for f in [0, 1, 3, 4] {
            r.keep(FragmentId(f), f);
        }
        assert!(is_open(&r, 2));
        r.keep(FragmentId(5), 5);
        assert!(is_open(&r, 2));
        r.keep(FragmentId(6), 6);
        assert!(matches!(r.state(FragmentId(2)), ResultState::Old));
    }

    #[test]
    fn spans_at_least_what_was_asked_for_when_the_shards_do_not_divide_it() {
        for shift in 0..5 {
            for fragments in 1..100 {
                let r = Ring::<()>::new(fragments, shift);
                assert!(r.span() >= i64::from(fragments), "{fragments} >> {shift}");
            }
        }
    }

    #[test]
    fn a_shard_sees_each_second_fragment_and_spans_the_same() {
        let mut r = Ring::new(8, 1);
        for f in (0..20u32).step_by(2) {
            r.keep(FragmentId(f), f);
        }
        assert!(matches!(r.state(FragmentId(10)), ResultState::Old));
        assert!(matches!(r.state(FragmentId(12)), ResultState::Finished(12)));
    }
}
