//! Contributions of one turn of a data core, by fragment.
//!
//! Workers of a job send the same fragments at about the same time, each on its own port, so what a
//! core takes from all of its ports in one turn has most fragments several times. Put together, they
//! cost one look at the ring, one at the pool, and one pass over the payloads, in which the
//! accumulator stays in registers ([`Aggregator::handle_batch`](crate::Aggregator::handle_batch)).
//!
//! A batch changes the order of arrivals only between fragments: of one fragment, contributions are taken
//! in the order in which they came.

use crate::aggregator::Admission;
use tally_wire::{Flags, FragmentId, Header, Kind, Rank};

/// Contributions of a batch at most.
pub const BATCH_FRAMES: usize = 512;

/// Places of the table that finds a fragment's group; a power of two.
const TABLE: usize = 512;

/// No contribution, no group.
pub(crate) const NONE: u16 = u16::MAX;

/// What the engine needs to know of an admitted contribution; the rest is its job's roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contribution {
    admission: Admission,
    tag: Tag,
}

/// Fragment, rank, element type, flags and priority, from the top. One word, because fields written one
/// by one and read together make the processor wait until they have left its store buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl Tag {
    #[inline]
    const fn new(header: &Header) -> Self {
        Self(
            (header.fragment.0 as u64) << 32
                | (header.rank.0 as u64) << 24
                | (header.element as u64) << 16
                | (header.flags.0 as u64) << 8
                | header.priority as u64,
        )
    }

    #[inline]
    pub(crate) const fn fragment(self) -> FragmentId {
        FragmentId((self.0 >> 32) as u32)
    }

    #[inline]
    pub(crate) const fn rank(self) -> Rank {
        Rank((self.0 >> 24) as u8)
    }

    /// The element type as a number.
    #[inline]
    pub(crate) const fn element(self) -> u8 {
        (self.0 >> 16) as u8
    }

    #[inline]
    pub(crate) const fn flags(self) -> Flags {
        Flags((self.0 >> 8) as u8)
    }

    #[inline]
    pub(crate) const fn priority(self) -> u8 {
        self.0 as u8
    }
}

impl Contribution {
    /// Of a frame that was admitted; `None` if it is anything else than a contribution sent for the
    /// first time.
    #[inline]
    #[must_use]
    pub fn new(admission: Admission, header: &Header) -> Option<Self> {
        (header.kind == Kind::Data && !header.flags.has(Flags::RESEND)).then_some(Self {
            admission,
            tag: Tag::new(header),
        })
    }

    /// The same worker's for another fragment.
    #[inline]
    #[must_use]
    pub const fn of(&self, fragment: FragmentId, priority: u8) -> Self {
        let same = self.tag.0 & 0xffff_ff00;
        Self {
            admission: self.admission,
            tag: Tag((fragment.0 as u64) << 32 | same | priority as u64),
        }
    }

    /// What admitted it.
    #[inline]
    #[must_use]
    pub const fn admission(&self) -> Admission {
        self.admission
    }
}

/// A contribution of a batch.
pub(crate) struct Arrival<B> {
    /// `None` once it has been taken out.
    pub(crate) buffer: Option<B>,
    pub(crate) tag: Tag,
    /// The next one of its group.
    pub(crate) next: u16,
}

/// Contributions of one fragment.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(crate) fragment: FragmentId,
    pub(crate) first: u16,
    last: u16,
    pub(crate) place: u8,
}

/// Admitted contributions that wait for the end of a turn.
pub struct Batch<B> {
    pub(crate) arrivals: Vec<Arrival<B>>,
    pub(crate) groups: Vec<Group>,
    /// The latest group of each hash. What a batch before this one left in it is known by its group,
    /// which is another one or none.
    table: Box<[u16; TABLE]>,
}

impl<B> Default for Batch<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> Batch<B> {
    /// An empty batch; it never allocates again.
    #[must_use]
    pub fn new() -> Self {
        Self {
            arrivals: Vec::with_capacity(BATCH_FRAMES),
            groups: Vec::with_capacity(BATCH_FRAMES),
            table: Box::new([NONE; TABLE]),
        }
    }

    /// Whether nothing waits in it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Whether it must be handled before the next [`push`](Self::push).
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.arrivals.len() == BATCH_FRAMES
    }

    /// Adds a contribution, which was admitted with the rosters that the batch will be handled with.
    ///
    /// # Panics
    /// If it is full.
    #[inline]
    pub fn push(&mut self, contribution: Contribution, buffer: B) {
        assert!(!self.is_full(), "handled before it is full");
        let Contribution { admission, tag } = contribution;
        let (place, fragment) = (admission.place, tag.fragment());
        let at = self.arrivals.len() as u16;
        self.arrivals.push(Arrival {
            buffer: Some(buffer),
            tag,
            next: NONE,
        });
        let hash = fragment.0 ^ (u32::from(place) << 6);
        let latest = &mut self.table[hash as usize & (TABLE - 1)];
        if let Some(group) = self.groups.get_mut(usize::from(*latest))
            && group.fragment == fragment
            && group.place == place
        {
            self.arrivals[usize::from(group.last)].next = at;
            group.last = at;
            return;
        }
        *latest = self.groups.len() as u16;
        self.groups.push(Group {
            fragment,
            first: at,
            last: at,
            place,
        });
    }

    /// Puts the groups of each job into the order of their fragments, where ports that lag behind have brought
    /// it about: results that leave in another order would be taken for lost by those who wait for them.
    #[inline]
    pub(crate) fn put_in_order(&mut self) {
        let follows =
            |a: &Group, b: &Group| a.place != b.place || b.fragment.ahead_of(a.fragment) > 0;
        if !self.groups.is_sorted_by(follows) {
            self.sort();
        }
    }

    #[cold]
    fn sort(&mut self) {
        // What is in one turn lies within a window, so that any of its fragments will do to count from.
        let Some(from) = self.groups.first().map(|group| group.fragment) else {
            return;
        };
        self.groups
            .sort_unstable_by_key(|group| (group.place, group.fragment.ahead_of(from)));
    }

    /// Empties it; all buffers have been taken out.
    pub(crate) fn clear(&mut self) {
        debug_assert!(self.arrivals.iter().all(|arrival| arrival.buffer.is_none()));
        self.arrivals.clear();
        self.groups.clear();
    }
}
