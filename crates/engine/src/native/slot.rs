//! One aggregator slot.

use crate::native::held::List;
use tally_wire::{Element, Epoch, Flags, FragmentId, JobId, Time};

/// Whose slot it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotKey {
    pub(crate) job: JobId,
    pub(crate) epoch: Epoch,
    pub(crate) fragment: FragmentId,
}

/// An aggregator: free, or the partial sum of one fragment. The fan-in is the job's; the count of
/// contributions is the number of set bits.
pub(crate) struct Slot<B> {
    /// `None`: free.
    pub(crate) key: Option<SlotKey>,
    /// Ranks whose contributions are in `sum` or `held`.
    pub(crate) bitmap: u64,
    pub(crate) born: Time,
    /// The accumulator: the buffer of the first contribution, or for ordered elements of rank 0.
    /// None also while a complete slot waits for the PS.
    pub(crate) sum: Option<B>,
    /// Contributions ahead of their turn; of sub-32-bit types all but rank 0's, until all are
    /// there.
    pub(crate) held: List,
    pub(crate) priority: u8,
    pub(crate) element: Element,
    /// For ordered elements: `sum` is the fold of ranks `0..folded`, of narrow ones at most `0..1`.
    pub(crate) folded: u8,
    /// OVERFLOW and MARKED, as a sum of what is in it has them, and COLLISION of what a child
    /// switch sent (TR-7). Own COLLISION is of what leaves: nothing comes into a slot that had one.
    pub(crate) flags: Flags,
    /// A part of the fragment is with the PS (S-8).
    pub(crate) is_split: bool,
}

impl<B> Slot<B> {
    pub(crate) const fn free() -> Self {
        Self {
            key: None,
            bitmap: 0,
            born: Time(0),
            sum: None,
            held: List::EMPTY,
            priority: 0,
            element: Element::None,
            folded: 0,
            flags: Flags::NONE,
            is_split: false,
        }
    }
}
