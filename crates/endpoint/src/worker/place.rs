//! Global ranks of a job with a tree of switches, from what the worker's switch says.

use crate::error::Ranks;
use tally_wire::control::Place;
use tally_wire::{RankRange, all_ranks};

/// Workers that a bitmap of ranks has place for.
const IN_BITMAP: u16 = 64;

/// Global ranks: a bitmap where all ranks of the job fit one, else a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Global {
    pub(super) ranks: Ranks,
    pub(super) range: Option<RankRange>,
}

impl Global {
    /// These local ranks, and what the switch said of others. Child switches are not ranks.
    pub(super) fn of(place: Option<Place>, local: u64, elsewhere: Option<RankRange>) -> Self {
        let Some(place) = place else {
            return Self {
                ranks: Ranks(local),
                range: None,
            };
        };
        let hosts = local & all_ranks(place.hosts);
        if place.total <= IN_BITMAP {
            let far = elsewhere.into_iter().flat_map(RankRange::iter);
            let bits = far.fold(hosts << (place.first & 63), |bits, rank| bits | 1 << rank);
            return Self {
                ranks: Ranks(bits),
                range: None,
            };
        }
        let first = hosts.trailing_zeros() as u16;
        let run = hosts.checked_shr(first.into()).unwrap_or(0).trailing_ones() as u16;
        let first = place.first + first;
        Self {
            ranks: Ranks(0),
            range: RankRange::new(first, first + run).or(elsewhere),
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.ranks.0 == 0 && self.range.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_wire::Rank;

    fn place(first: u16, hosts: u8, total: u16) -> Option<Place> {
        Some(Place {
            local: Rank(0),
            hosts,
            first,
            total,
            elsewhere: None,
            ps_elsewhere: false,
            has_run: false,
            slowest: 0,
        })
    }

    #[test]
    fn local_ranks_become_global_ones() {
        let far = RankRange::new(9, 11);
        let none = Global::of(None, 0b101, None);
        assert_eq!((none.ranks, none.range), (Ranks(0b101), None));
        let few = Global::of(place(4, 4, 16), 0b1_0101, far);
        assert_eq!((few.ranks.0, few.range), (0b101 << 4 | 0b11 << 9, None));
        let many = Global::of(place(1000, 4, 4096), 0b1_0110, far);
        assert_eq!(many.range, RankRange::new(1001, 1003));
        assert_eq!(Global::of(place(1000, 4, 4096), 1 << 5, far).range, far);
        assert!(Global::of(place(1000, 64, 4096), 0, None).is_empty());
        let last = Global::of(place(4032, 64, 4096), 1 << 63, None);
        assert_eq!(last.range, RankRange::one(4095));
    }
}
