//! Contributions of one turn of a data core, by fragment.
//!
//! Workers of a job send the same fragments at about the same time, each on its own port, so what a
//! core takes from all of its ports in one turn has most fragments several times. Put together,
//! they cost one look at the ring, one at the pool, and one pass over the payloads, in which the
//! accumulator stays in registers ([`Aggregator::handle_batch`](crate::Aggregator::handle_batch)).
//! They stand side by side in a row of eight, and in further rows where they are more.
//!
//! A batch changes the order of arrivals only between fragments: of one fragment, contributions are
//! taken in the order in which they came.

use crate::native::admission::{Admission, MAX_JOBS};
use tally_wire::{Flags, FragmentId, Header, Kind, Rank};

/// Rows of a batch: as many contributions have room in any case.
const ROWS: usize = 512;

/// Contributions in a row: those that the kernels add in one pass.
pub(crate) const ROW: usize = tally_kernels::MAX_FUSED;

/// Places of the table that finds a fragment's row; a power of two.
const TABLE: usize = 512;

/// No row.
const NONE: u16 = u16::MAX;

/// What the engine needs to know of an admitted contribution; the rest is its job's roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contribution {
    admission: Admission,
    fragment: FragmentId,
    tag: Tag,
}

/// Rank, element type, flags and priority, from the top. One word, because fields written one by
/// one and read together make the processor wait until they have left its store buffer. Tags of one
/// fragment are in the order of their ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(pub(crate) u32);

impl Tag {
    #[inline]
    const fn new(header: &Header) -> Self {
        Self(u32::from_be_bytes([
            header.rank.0,
            header.element as u8,
            header.flags.0,
            header.priority,
        ]))
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
            fragment: header.fragment,
            tag: Tag::new(header),
        })
    }

    /// The same worker's for another fragment.
    #[inline]
    #[must_use]
    pub const fn of(&self, fragment: FragmentId, priority: u8) -> Self {
        Self {
            admission: self.admission,
            fragment,
            tag: Tag(self.tag.0 & 0xffff_ff00 | priority as u32),
        }
    }

    /// What admitted it.
    #[inline]
    #[must_use]
    pub const fn admission(&self) -> Admission {
        self.admission
    }
}

/// Contributions of one fragment, in the order in which they came: two lines of the cache.
#[repr(align(64))]
pub(crate) struct Row<B> {
    pub(crate) fragment: FragmentId,
    place: u8,
    len: u8,
    /// The row with further contributions of the fragment.
    next: u16,
    tags: [Tag; ROW],
    /// `None` once it has been taken out.
    buffers: [Option<B>; ROW],
}

impl<B> Row<B> {
    const fn empty() -> Self {
        Self {
            fragment: FragmentId(0),
            place: 0,
            len: 0,
            next: NONE,
            tags: [Tag(0); ROW],
            buffers: [const { None }; ROW],
        }
    }

    #[inline]
    pub(crate) fn place(&self) -> usize {
        usize::from(self.place)
    }

    #[inline]
    pub(crate) fn buffers(&self, from: usize) -> &[Option<B>] {
        let to = usize::from(self.len);
        self.buffers.get(from..to).unwrap_or(&[])
    }

    #[inline]
    pub(crate) fn buffers_mut(&mut self, from: usize) -> &mut [Option<B>] {
        let to = usize::from(self.len);
        self.buffers.get_mut(from..to).unwrap_or(&mut [])
    }

    #[inline]
    pub(crate) fn take(&mut self, at: usize) -> Option<B> {
        self.buffers[at].take()
    }
}

/// Fills an empty place without a read of it: to drop what is there would wait for the cache line,
/// where a store does not.
#[inline(always)]
fn put<B>(place: &mut Option<B>, buffer: B) {
    debug_assert!(place.is_none());
    std::mem::forget(place.replace(buffer));
}

/// The first row of a fragment.
#[derive(Clone, Copy)]
struct Head {
    fragment: FragmentId,
    row: u16,
    place: u8,
}

/// Where in a batch contributions of a fragment begin that have not been taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) row: usize,
    pub(crate) from: usize,
}

/// Admitted contributions that wait for the end of a turn.
pub struct Batch<B> {
    rows: Box<[Row<B>; ROWS]>,
    /// Rows that are in use; the others are left as they are.
    used: usize,
    heads: Vec<Head>,
    /// The latest row of each hash. What a batch before this one left in it is known by its row,
    /// which is another one or not in use.
    table: Box<[u16; TABLE]>,
    /// For [`sort`](Self::sort).
    unsorted: Vec<(Tag, Option<B>)>,
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
        let rows: Box<[_]> = (0..ROWS).map(|_| Row::empty()).collect();
        let Ok(rows) = rows.try_into() else {
            unreachable!("one for each that was made")
        };
        Self {
            rows,
            used: 0,
            heads: Vec::with_capacity(ROWS),
            table: Box::new([0; TABLE]),
            unsorted: Vec::with_capacity(64),
        }
    }

    /// Whether nothing waits in it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether it must be handled before the next [`push`](Self::push).
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.used == ROWS
    }

    /// Adds a contribution, which was admitted with the rosters that the batch will be handled
    /// with.
    ///
    /// # Panics
    /// If it is full.
    #[inline(always)]
    pub fn push(&mut self, contribution: Contribution, buffer: B) {
        let Contribution {
            admission,
            fragment,
            tag,
        } = contribution;
        let place = admission.place;
        let hash = fragment.0 ^ (u32::from(place) << 6);
        let latest = &mut self.table[hash as usize & (TABLE - 1)];
        if let Some(row) = self.rows[..self.used].get_mut(usize::from(*latest))
            && row.fragment == fragment
            && row.place == place
        {
            let len = usize::from(row.len);
            if len < ROW {
                row.tags[len] = tag;
                put(&mut row.buffers[len], buffer);
                row.len += 1;
                return;
            }
            row.next = self.used as u16;
        } else {
            self.heads.push(Head {
                fragment,
                row: self.used as u16,
                place,
            });
        }
        *latest = self.used as u16;
        let row = self
            .rows
            .get_mut(self.used)
            .expect("handled before it is full");
        self.used += 1;
        row.fragment = fragment;
        row.place = place;
        row.len = 1;
        row.next = NONE;
        row.tags[0] = tag;
        put(&mut row.buffers[0], buffer);
    }

    /// How many fragments there are, of all jobs.
    #[inline]
    pub(crate) fn fragments(&self) -> usize {
        self.heads.len()
    }

    /// All of one of them.
    #[inline]
    pub(crate) fn fragment(&self, at: usize) -> Option<Rest> {
        let row = usize::from(self.heads.get(at)?.row);
        Some(Rest { row, from: 0 })
    }

    #[inline]
    pub(crate) fn row(&mut self, row: usize) -> &mut Row<B> {
        &mut self.rows[row]
    }

    /// Of a row's contributions these and those behind them.
    #[inline]
    pub(crate) fn tags(&self, Rest { row, from }: Rest) -> &[Tag] {
        let row = &self.rows[row];
        row.tags.get(from..usize::from(row.len)).unwrap_or(&[])
    }

    /// These buffers and those behind them, row by row.
    pub(crate) fn buffers(&self, Rest { row, from }: Rest) -> impl Iterator<Item = &[Option<B>]> {
        let after = |row: &&Row<B>| self.rows.get(usize::from(row.next));
        let rows = std::iter::successors(self.rows.get(row), after);
        let from = std::iter::once(from).chain(std::iter::repeat(0));
        rows.zip(from).map(|(row, from)| row.buffers(from))
    }

    /// The row that continues this one.
    #[inline]
    pub(crate) fn after(&self, row: usize) -> Option<usize> {
        let next = self.rows[row].next;
        (next != NONE).then_some(usize::from(next))
    }

    /// Without the first one.
    #[inline]
    pub(crate) fn rest(&self, Rest { row, from }: Rest) -> Option<Rest> {
        if from + 1 < usize::from(self.rows[row].len) {
            return Some(Rest {
                row,
                from: from + 1,
            });
        }
        let row = self.after(row)?;
        Some(Rest { row, from: 0 })
    }

    /// Brings contributions into the order of their ranks.
    pub(crate) fn sort(&mut self, rest: Rest) {
        let mut all = std::mem::take(&mut self.unsorted);
        let mut at = Some(rest);
        while let Some(Rest { row, from }) = at {
            let buffer = self.rows[row].buffers[from].take();
            all.push((self.rows[row].tags[from], buffer));
            at = self.rest(Rest { row, from });
        }
        all.sort_unstable_by_key(|&(tag, _)| tag);
        let mut at = Some(rest);
        for (tag, buffer) in all.drain(..) {
            let Some(Rest { row, from }) = at else { break };
            self.rows[row].tags[from] = tag;
            self.rows[row].buffers[from] = buffer;
            at = self.rest(Rest { row, from });
        }
        self.unsorted = all;
    }

    /// Puts the fragments of each job into their order, where ports that lag behind have brought
    /// it about: results that leave in another order would be taken for lost by those who wait for
    /// them.
    #[inline]
    pub(crate) fn put_in_order(&mut self) {
        let follows = |a: &Head, b: &Head| {
            a.place < b.place || a.place == b.place && b.fragment.ahead_of(a.fragment) > 0
        };
        if !self.heads.is_sorted_by(follows) {
            self.sort_heads();
        }
    }

    #[cold]
    fn sort_heads(&mut self) {
        // What a job has in one turn lies within a window, so that any of its fragments will do to
        // count from.
        let mut from = [FragmentId(0); MAX_JOBS];
        for head in &self.heads {
            from[usize::from(head.place)] = head.fragment;
        }
        // Of a fragment that has several heads, the contributions stay in the order in which they
        // came.
        self.heads.sort_unstable_by_key(|head| {
            let ahead = head.fragment.ahead_of(from[usize::from(head.place)]);
            (head.place, ahead, head.row)
        });
    }

    /// Empties it; all buffers have been taken out.
    pub(crate) fn clear(&mut self) {
        debug_assert!(
            self.rows[..self.used]
                .iter()
                .all(|row| row.buffers.iter().all(Option::is_none))
        );
        self.used = 0;
        self.heads.clear();
    }
}
