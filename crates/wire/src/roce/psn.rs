//! Packet sequence numbers.

/// A packet sequence number, 24 bits.
///
/// Numbers less than 2^23 ahead of another are after it. They have no order of their own: `Ord`
/// would not be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00ff_ffff;

    /// The low 24 bits of `bits`.
    #[inline]
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        Self(bits & Self::MASK)
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `n` later.
    #[inline]
    #[must_use]
    pub const fn after(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// How many numbers `self` is after `start`, modulo 2^24.
    #[inline]
    #[must_use]
    pub const fn since(self, start: Self) -> u32 {
        self.0.wrapping_sub(start.0) & Self::MASK
    }

    /// Whether it is before `other`.
    #[inline]
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        let ahead = other.since(self);
        ahead != 0 && ahead < 1 << 23
    }
}

#[cfg(test)]
mod tests {
    use super::Psn;

    #[test]
    fn wraps_at_24_bits() {
        let last = Psn::new(u32::MAX);
        assert_eq!(last.get(), 0xff_ffff);
        assert_eq!(last.after(3), Psn::new(2));
        assert_eq!(Psn::new(2).since(last), 3);
        assert_eq!(last.since(Psn::new(2)), 0xff_fffd);
        assert!(last.is_before(Psn::new(2)) && !Psn::new(2).is_before(last));
        assert!(!last.is_before(last));
        // Half way round, neither is before the other in both directions.
        assert!(!Psn::new(0).is_before(Psn::new(1 << 23)));
        assert!(Psn::new(0).is_before(Psn::new((1 << 23) - 1)));
    }
}
