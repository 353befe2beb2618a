//! The part of a node's fragments that one of its parameter servers completes (P-6).

use crate::FragmentId;
use core::fmt;

/// Maximum number of parameter servers of a node.
pub const MAX_PARTS: u8 = 16;

/// Which of a node's parameter servers: the one whose fragments f have f mod `count` = `index`.
///
/// `count` is a power of two, so the parts continue when fragment numbers wrap. Printed as `ps`, or
/// `ps1` if there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    index: u8,
    count: u8,
}

impl Part {
    /// The part of the only server: all fragments.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Part `index` of `count`; `None` unless `count` is 1, 2, 4, 8 or 16, and `index` below it.
    #[must_use]
    pub const fn new(index: u8, count: u8) -> Option<Self> {
        if is_count(count) && index < count {
            Some(Self { index, count })
        } else {
            None
        }
    }

    /// Which one, from 0.
    #[must_use]
    pub const fn index(self) -> u8 {
        self.index
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u8 {
        self.count
    }

    /// Whether the fragment is one of the part.
    #[inline]
    #[must_use]
    pub const fn has(self, fragment: FragmentId) -> bool {
        fragment.0 & (self.count as u32 - 1) == self.index as u32
    }

    /// The fragment's number among those of its part.
    #[inline]
    #[must_use]
    pub const fn number(self, fragment: FragmentId) -> u32 {
        fragment.0 >> self.count.trailing_zeros()
    }
}

/// Whether a node may have this number of parameter servers.
#[must_use]
pub const fn is_count(count: u8) -> bool {
    count.is_power_of_two() && count <= MAX_PARTS
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => f.pad("ps"),
            _ => write!(f, "ps{}", self.index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn each_fragment_is_of_one_part_also_where_numbers_wrap() {
        for count in [1, 2, 4, 8, 16] {
            let parts: std::vec::Vec<_> = (0..count)
                .map(|index| Part::new(index, count).unwrap())
                .collect();
            let mut before = None;
            for n in 0..64 {
                let fragment = FragmentId((u32::MAX - 31).wrapping_add(n));
                let of: std::vec::Vec<_> = parts.iter().filter(|it| it.has(fragment)).collect();
                assert_eq!(of.len(), 1);
                let next = before.map(|it: u8| (it + 1) % count);
                assert!(next.is_none_or(|next| next == of[0].index()), "in turn");
                before = Some(of[0].index());
            }
        }
    }

    #[test]
    fn fragments_of_a_part_are_counted_without_gaps() {
        let part = Part::new(3, 4).unwrap();
        let numbers = [3, 7, 11].map(|n| part.number(FragmentId(n)));
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(Part::ONLY.number(FragmentId(9)), 9);
    }

    #[test]
    fn a_count_is_a_power_of_two_up_to_16() {
        for (index, count) in [
            (0, 0),
            (0, 3),
            (1, 1),
            (2, 2),
            (16, 16),
            (0, 32),
            (255, 255),
        ] {
            assert_eq!(Part::new(index, count), None, "{index} of {count}");
        }
        assert_eq!(Part::new(0, 1), Some(Part::ONLY));
        assert_eq!(
            format!("{} {}", Part::ONLY, Part::new(1, 2).unwrap()),
            "ps ps1"
        );
    }
}
