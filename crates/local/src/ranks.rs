//! Ranks that an error is about.

use std::fmt;

/// Ranks of a job: any of the first 64, or one range of a job of more than 64 workers.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranks {
    bits: u64,
    first: u16,
    end: u16,
}

impl Ranks {
    /// No rank, or none that is known.
    pub const NONE: Self = Self {
        bits: 0,
        first: 0,
        end: 0,
    };

    /// Bit `n` for rank `n`.
    #[must_use]
    pub const fn of_bits(bits: u64) -> Self {
        Self {
            bits,
            first: 0,
            end: 0,
        }
    }

    /// Ranks `first` to `end` - 1; none if there are none between them.
    #[must_use]
    pub fn of_range(first: u16, end: u16) -> Self {
        if end > 64 && first < end {
            return Self {
                bits: 0,
                first,
                end,
            };
        }
        let all = (first..end).fold(0, |bits, rank| bits | 1 << rank);
        Self::of_bits(all)
    }

    /// Those below 64, bit `n` for rank `n`.
    #[must_use]
    pub fn bits(self) -> u64 {
        let range = (self.first..self.end.min(64)).fold(0, |bits, rank| bits | 1 << rank);
        self.bits | range
    }

    /// The first run of ranks that follow one another: its first rank, and one past its last.
    #[must_use]
    pub fn run(self) -> Option<(u16, u16)> {
        if self.first < self.end {
            return Some((self.first, self.end));
        }
        let first = self.bits.trailing_zeros();
        let run = self.bits.checked_shr(first)?.trailing_ones();
        Some((first as u16, (first + run) as u16))
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        let bits = self.bits;
        let low = (0..64).filter(move |rank| bits >> rank & 1 == 1);
        low.chain(self.first..self.end)
    }

    /// Whether it is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// As messages have it; none if it cannot be.
    pub(crate) fn from_fields(bits: u64, first: u16, end: u16) -> Option<Self> {
        let it = Self { bits, first, end };
        let is_range = bits == 0 && first < end && end > 64;
        ((first, end) == (0, 0) || is_range).then_some(it)
    }

    /// As messages have it.
    pub(crate) fn fields(self) -> (u64, u16, u16) {
        (self.bits, self.first, self.end)
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first < self.end {
            return write!(f, "Ranks({}..{})", self.first, self.end);
        }
        write!(f, "Ranks({:#b})", self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_bits_or_a_range_beyond_them() {
        let few = Ranks::of_bits(0b1011_0000);
        assert_eq!(few.iter().collect::<Vec<_>>(), [4, 5, 7]);
        assert_eq!((few.bits(), few.run()), (0b1011_0000, Some((4, 6))));
        assert_eq!(Ranks::of_range(2, 4), Ranks::of_bits(0b1100));
        assert_eq!(Ranks::of_range(0, 64), Ranks::of_bits(u64::MAX));
        assert_eq!(Ranks::of_bits(u64::MAX).run(), Some((0, 64)));
        let many = Ranks::of_range(62, 66);
        assert_eq!(many.iter().collect::<Vec<_>>(), [62, 63, 64, 65]);
        assert_eq!((many.bits(), many.run()), (3 << 62, Some((62, 66))));
        assert_eq!(Ranks::of_range(4095, 4096).iter().next(), Some(4095));
        for none in [Ranks::of_range(70, 70), Ranks::of_range(9, 3), Ranks::NONE] {
            assert!(none.is_empty() && none.run().is_none() && none.iter().next().is_none());
        }
    }

    #[test]
    fn fields_have_one_form() {
        for ranks in [
            Ranks::NONE,
            Ranks::of_bits(1 << 63),
            Ranks::of_range(63, 65),
        ] {
            let (bits, first, end) = ranks.fields();
            assert_eq!(Ranks::from_fields(bits, first, end).unwrap(), ranks);
        }
        for (bits, first, end) in [(1, 63, 65), (0, 3, 9), (0, 70, 70), (0, 71, 70)] {
            assert_eq!(Ranks::from_fields(bits, first, end), None);
        }
    }
}
