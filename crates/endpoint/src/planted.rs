//! Bugs planted on purpose, so that the simulator can show that it finds them.
//!
//! They are there with the feature `planted` alone, which no package but the simulator's may enable
//! (the tidy test sees to it), and one at a time at most. Without it [`is`] is `false` at compile time.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A worker takes results of any epoch.
    StaleEpoch,
    /// The PS merges a partial that overlaps what it has.
    MergeOverlap,
    /// A contribution is sent again under the next number.
    WrongFragment,
    /// A worker sends one fragment more than its window.
    BeyondWindow,
    /// A worker hands a result that it had to the application again.
    ResultTwice,
    /// A worker takes frames with any tag.
    NoTag,
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
            Self::StaleEpoch,
            Self::MergeOverlap,
            Self::WrongFragment,
            Self::BeyondWindow,
            Self::ResultTwice,
            Self::NoTag,
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
