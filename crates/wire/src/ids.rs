//! Newtypes for job, epoch, fragment, rank, time and tag.

use core::fmt;
use core::time::Duration;

/// A training job, as named in the switch's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct JobId(pub u16);

/// An incarnation of a job; 0 before the switch has assigned one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Epoch(pub u16);

/// The serial number of a fragment in its epoch (W-1).
///
/// It wraps, so it has no total order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FragmentId(pub u32);

impl FragmentId {
    /// Distance from `other` to `self`; negative when `self` is behind.
    ///
    /// In serial arithmetic (RFC 1982).
    #[inline]
    #[must_use]
    pub const fn ahead_of(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    /// The fragment `n` after this one.
    #[inline]
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

/// The rank in a frame: a worker 0..=63, the switch, or the parameter server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u8);

impl Rank {
    /// The switch itself.
    pub const SWITCH: Self = Self(254);
    /// The parameter server.
    pub const PS: Self = Self(255);

    /// Whether this is a worker's rank (0..=63).
    #[inline]
    #[must_use]
    pub const fn is_worker(self) -> bool {
        self.0 < 64
    }

    /// The worker's bit in a bitmap; 0 for the switch and the PS.
    #[inline]
    #[must_use]
    pub const fn bit(self) -> u64 {
        if self.is_worker() { 1 << self.0 } else { 0 }
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SWITCH => f.write_str("switch"),
            Self::PS => f.write_str("PS"),
            Self(r) => write!(f, "rank {r}"),
        }
    }
}

/// A time on the caller's monotonic clock, in nanoseconds from any origin.
///
/// Sans-IO code gets it as an argument and never reads a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

impl Time {
    /// The time `d` later; saturates.
    #[inline]
    #[must_use]
    pub const fn after(self, d: Duration) -> Self {
        let nanos = d.as_nanos();
        Self(self.0.saturating_add(if nanos > u64::MAX as u128 {
            u64::MAX
        } else {
            nanos as u64
        }))
    }

    /// The time since `earlier`; zero if it is not earlier.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Bytes of a tag on the wire.
pub const TAG_BYTES: usize = 8;

/// The tag of a frame; 0 on types without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AuthTag(pub u64);

impl AuthTag {
    /// Tag of types without one, and of headers not sealed yet.
    pub const NONE: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_compare_across_the_wrap() {
        let last = FragmentId(u32::MAX);
        assert_eq!(last.plus(1), FragmentId(0));
        assert_eq!(FragmentId(0).ahead_of(last), 1);
        assert_eq!(last.ahead_of(FragmentId(0)), -1);
        assert_eq!(FragmentId(5).ahead_of(FragmentId(5)), 0);
    }

    #[test]
    fn only_workers_have_a_bit() {
        assert_eq!(Rank(0).bit(), 1);
        assert_eq!(Rank(63).bit(), 1 << 63);
        assert_eq!(Rank(64).bit(), 0);
        assert_eq!(Rank::SWITCH.bit() | Rank::PS.bit(), 0);
    }
}
