//! Contributions of one poll iteration, by set.
//!
//! The workers of a session send for the same slots at about the same time, each on its own port.
//! Put side by side, the contributions of a set cost one look at its session and its slot, and one
//! pass over the elements.
//!
//! A row has up to eight contributions of one set, in the order in which they came. A set finds its
//! row in its own cache line. Rows are handled in the order in which they began, and a slot has one
//! row at a time that takes contributions. So a batch changes the order of arrivals only between
//! slots.

use super::Arrival;

/// Rows of a batch: it has room for as many contributions in any case.
pub(super) const ROWS: usize = 512;

/// Contributions in a row: as many as the kernels add to a sum in one pass.
pub(super) const ROW: usize = tally_kernels::MAX_FUSED;

/// What a contribution's headers say beside its set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contribution {
    pub(super) arrival: Arrival,
    pub(super) rank: u8,
    pub(super) job: u8,
    pub(super) packet: [u8; 4],
    pub(super) exponents: [i8; 2],
}

impl Contribution {
    const NONE: Self = Self {
        arrival: Arrival {
            port: crate::PortId(0),
            udp_port: 0,
            own_port: 0,
            tos: 0,
        },
        rank: 0,
        job: 0,
        packet: [0; 4],
        exponents: [0; 2],
    };
}

const _: () = assert!(size_of::<Contribution>() == 16);

/// The set that a row is for: index of its session, index of its slot in the shard, and which one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) place: u16,
    pub(super) at: u16,
    pub(super) set: bool,
}

/// Contributions of one set.
#[repr(align(64))]
pub(super) struct Row<B> {
    pub(super) key: Key,
    len: u8,
    contributions: [Contribution; ROW],
    /// `None` once it has been taken out.
    buffers: [Option<B>; ROW],
}

impl<B> Row<B> {
    fn empty() -> Self {
        Self {
            key: Key::default(),
            len: 0,
            contributions: [Contribution::NONE; ROW],
            buffers: [const { None }; ROW],
        }
    }

    #[inline]
    fn push(&mut self, contribution: Contribution, buffer: B) {
        let at = usize::from(self.len);
        self.contributions[at] = contribution;
        self.buffers[at] = Some(buffer);
        self.len += 1;
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.len).min(ROW)
    }

    /// Contributions and buffers of a part of the row.
    #[inline]
    pub(super) fn part_mut(
        &mut self,
        part: std::ops::Range<usize>,
    ) -> (&[Contribution], &mut [Option<B>]) {
        (&self.contributions[part.clone()], &mut self.buffers[part])
    }
}

/// Admitted contributions that wait for the end of a poll iteration.
pub(super) struct Batch<B> {
    rows: Box<[Row<B>]>,
    /// Rows in use; the others are left as they are.
    used: usize,
}

impl<B> Batch<B> {
    /// An empty batch; it never allocates again.
    pub(super) fn new() -> Self {
        Self {
            rows: (0..ROWS).map(|_| Row::empty()).collect(),
            used: 0,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether the rows must be handled before a row can begin.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.used == self.rows.len()
    }

    /// Adds a contribution to a row; `Err` if there is no such row, or it is full.
    #[inline]
    pub(super) fn push(
        &mut self,
        row: u16,
        contribution: Contribution,
        buffer: B,
    ) -> Result<(), B> {
        match self.rows.get_mut(usize::from(row)) {
            Some(row) if usize::from(row.len) < ROW => {
                row.push(contribution, buffer);
                Ok(())
            }
            _ => Err(buffer),
        }
    }

    /// Begins a row with this contribution; says which.
    ///
    /// # Panics
    /// If the batch is full.
    #[inline]
    pub(super) fn begin(&mut self, key: Key, contribution: Contribution, buffer: B) -> u16 {
        let at = self.used;
        let row = self.rows.get_mut(at).expect("handled before it is full");
        row.key = key;
        row.len = 0;
        row.push(contribution, buffer);
        self.used += 1;
        at as u16
    }

    /// The rows in use, to be handled. Their buffers must be taken out.
    #[inline]
    pub(super) fn rows_mut(&mut self) -> &mut [Row<B>] {
        let used = self.used;
        self.rows.get_mut(..used).unwrap_or(&mut [])
    }

    /// Empties it.
    #[inline]
    pub(super) fn clear(&mut self) {
        debug_assert!(
            self.rows_mut()
                .iter()
                .all(|row| row.buffers.iter().all(Option::is_none))
        );
        self.used = 0;
    }
}
