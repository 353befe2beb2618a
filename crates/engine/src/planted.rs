//! Bugs planted on purpose, so that the simulator can show that it finds them.
//!
//! They are there with the feature `planted` alone, which no package but the simulator's may enable
//! (the tidy test sees to it), and one at a time at most. Without it [`is`] is `false` at compile time.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A contribution is added although its rank is in the slot.
    DoubleCount,
    /// The partial that is driven out of a slot is given back in place of sent.
    LostPartial,
    /// A result of the PS frees the slot that its fragment would have, whosever it is.
    WrongDeallocation,
    /// A result is published with one contribution missing.
    EarlyResult,
    /// The ring answers with whatever is at the place.
    RingOfAnother,
    /// What a slot holds disappears when its job ends.
    BufferLeak,
    /// Slots stay taken when their job ends.
    SlotLeak,
    /// f32 are added in the order in which they come.
    ArrivalOrder,
    /// Frames like the last one of their port are admitted although rosters have changed.
    StaleAdmission,
    /// Tags are not checked. It shows where frames with wrong tags come from members' places.
    TagUnchecked,
    /// PROBE asks a rank whose contribution is in the slot, in place of one that is missing.
    ProbeOfPresent,
    /// A rank that is twice in a group is added twice. This and those below show in turns alone.
    GroupTwice,
    /// A group is added to a slot that has one of its ranks.
    GroupOver,
    /// f32 of a group are added in the order in which they came.
    GroupOrder,
    /// What was held until the ranks of a group had come stays held.
    GroupHeld,
    /// A fragment that needed no slot gives one back.
    WholeUncounted,
    /// Forwarding looks only at the outermost ethertype.
    OutermostOnly,
}

/// Whether this bug is to show itself.
#[cfg(not(feature = "planted"))]
#[inline]
#[must_use]
pub(crate) const fn is(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
pub use chosen::{choose, is};

#[cfg(feature = "planted")]
mod chosen {
    use super::Bug;
    use core::sync::atomic::{AtomicU8, Ordering};

    const NONE: u8 = u8::MAX;
    static CHOSEN: AtomicU8 = AtomicU8::new(NONE);

    impl Bug {
        /// All bugs of this crate.
        pub const ALL: &'static [Self] = &[
            Self::DoubleCount,
            Self::LostPartial,
            Self::WrongDeallocation,
            Self::EarlyResult,
            Self::RingOfAnother,
            Self::BufferLeak,
            Self::SlotLeak,
            Self::ArrivalOrder,
            Self::StaleAdmission,
            Self::TagUnchecked,
            Self::ProbeOfPresent,
            Self::GroupTwice,
            Self::GroupOver,
            Self::GroupOrder,
            Self::GroupHeld,
            Self::WholeUncounted,
            Self::OutermostOnly,
        ];
    }

    /// Lets this bug show itself from now on, and no other of this crate.
    pub fn choose(bug: Option<Bug>) {
        CHOSEN.store(bug.map_or(NONE, |bug| bug as u8), Ordering::Relaxed);
    }

    /// Whether this bug is to show itself.
    #[inline]
    #[must_use]
    pub fn is(bug: Bug) -> bool {
        CHOSEN.load(Ordering::Relaxed) == bug as u8
    }
}
