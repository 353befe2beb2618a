//! A slot with its two sets, in one line of the cache.

use crate::PortId;
use std::time::Duration;
use tally_wire::Time;

/// Nanoseconds in a tick, as a power of two: about a millisecond.
const TICK_SHIFT: u32 = 20;

/// A moment in ticks. Wraps after 52 days, which is longer than anybody waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticks(u32);

impl Ticks {
    #[inline]
    pub(super) const fn at(time: Time) -> Self {
        Self((time.0 >> TICK_SHIFT) as u32)
    }

    /// How long ago it was, to a tick.
    pub(super) const fn until(self, now: Time) -> Duration {
        let ticks = Self::at(now).0.wrapping_sub(self.0);
        Duration::from_nanos((ticks as u64) << TICK_SHIFT)
    }
}

/// From where a rank last sent for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sender {
    /// By which port of the switch.
    pub(super) port: PortId,
    pub(super) udp_port: u16,
    /// To which UDP port of the switch.
    pub(super) own_port: u16,
}

/// One of a slot's two sets. It has a sum as long as its bitmap has bits.
pub(super) struct Set<B> {
    /// Ranks that sent here, and not to the other set since.
    pub(super) bitmap: u64,
    /// Ranks that are in the sum. All: it is a result, and read-only.
    pub(super) summed: u64,
    /// The buffer of the first contribution.
    pub(super) sum: Option<B>,
    /// When that came.
    pub(super) since: Ticks,
    pub(super) exponents: [i8; 2],
    /// The row of this poll iteration's batch that takes its next contribution, or [`NO_ROW`].
    pub(super) row: u16,
}

/// No row of a batch.
pub(super) const NO_ROW: u16 = u16::MAX;

impl<B> Set<B> {
    const EMPTY: Self = Self {
        bitmap: 0,
        summed: 0,
        sum: None,
        since: Ticks(0),
        exponents: [0; 2],
        row: NO_ROW,
    };
}

/// Both sets of a slot.
#[repr(align(64))]
pub(super) struct Slot<B>([Set<B>; 2]);

impl<B> Default for Slot<B> {
    fn default() -> Self {
        Self([Set::EMPTY, Set::EMPTY])
    }
}

impl<B> Slot<B> {
    /// The set of this number, and the other one.
    #[inline]
    pub(super) fn sets_mut(&mut self, set: bool) -> (&mut Set<B>, &mut Set<B>) {
        let [first, second] = &mut self.0;
        if set {
            (second, first)
        } else {
            (first, second)
        }
    }

    /// Sets that have begun and wait for others.
    pub(super) fn unfinished(&self, all: u64) -> impl Iterator<Item = &Set<B>> {
        let begun = self.0.iter().filter(|set| set.sum.is_some());
        begun.filter(move |set| set.summed != all)
    }

    /// Takes its buffers out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = B> {
        self.0
            .iter_mut()
            .filter_map(|set| std::mem::replace(set, Set::EMPTY).sum)
    }
}

// With a buffer that is one pointer, as an mbuf is.
const _: () = assert!(size_of::<Slot<Box<u8>>>() == 64);
