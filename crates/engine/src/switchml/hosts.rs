//! Which rank of which session a host is.
//!
//! Open addressing, at most half full, built anew whenever a session comes or goes: a look is one
//! line of the cache in nearly all cases, and nothing is ever taken out.

use super::HostAddress;
use std::net::Ipv4Addr;
use tally_wire::Mac;

#[derive(Clone, Copy)]
struct Entry {
    station: HostAddress,
    place: u16,
    rank: u8,
    is_taken: bool,
}

const FREE: Entry = Entry {
    station: HostAddress {
        mac: Mac([0; 6]),
        ip: Ipv4Addr::UNSPECIFIED,
    },
    place: 0,
    rank: 0,
    is_taken: false,
};

const _: () = assert!(size_of::<Entry>() <= 16);

/// Hosts of all bound sessions.
pub(super) struct Hosts {
    /// A power of two.
    entries: Box<[Entry]>,
    shift: u32,
}

impl Hosts {
    /// A table with room for `most` hosts.
    pub(super) fn new(most: usize) -> Self {
        let entries = (2 * most).next_power_of_two();
        Self {
            entries: vec![FREE; entries].into_boxed_slice(),
            shift: u64::BITS - entries.trailing_zeros(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.fill(FREE);
    }

    /// Enters a host, in place of what was entered of it before.
    pub(super) fn enter(&mut self, station: HostAddress, place: u16, rank: u8) {
        let at = self.look(station);
        self.entries[at] = Entry {
            station,
            place,
            rank,
            is_taken: true,
        };
    }

    /// Place and rank.
    #[inline]
    pub(super) fn find(&self, station: HostAddress) -> Option<(u16, u8)> {
        let entry = &self.entries[self.look(station)];
        entry.is_taken.then_some((entry.place, entry.rank))
    }

    /// Where it is, or would be.
    #[inline]
    fn look(&self, station: HostAddress) -> usize {
        let key = station.mac.to_u64() ^ u64::from(station.ip.to_bits()).rotate_left(24);
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        // It ends, because half of the entries are free.
        loop {
            let entry = &self.entries[at];
            if !entry.is_taken || entry.station == station {
                return at;
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(n: u32) -> HostAddress {
        let [a, b, c, d] = n.to_be_bytes();
        HostAddress {
            mac: Mac([2, 0, a, b, c, d]),
            ip: Ipv4Addr::new(10, b, c, d),
        }
    }

    #[test]
    fn full_of_neighbours() {
        let mut stations = Hosts::new(512);
        for n in 0..512u32 {
            stations.enter(station(n), (n / 64) as u16, (n % 64) as u8);
        }
        for n in 0..512u32 {
            let found = stations.find(station(n));
            assert_eq!(found, Some(((n / 64) as u16, (n % 64) as u8)));
        }
        assert!((512..5000).all(|n| stations.find(station(n)).is_none()));
    }

    #[test]
    fn both_addresses_count_and_the_later_entry_holds() {
        let mut stations = Hosts::new(1);
        stations.enter(station(7), 0, 3);
        let HostAddress { mac, .. } = station(7);
        let ip = station(8).ip;
        assert_eq!(stations.find(HostAddress { mac, ip }), None);
        stations.enter(station(7), 5, 1);
        assert_eq!(stations.find(station(7)), Some((5, 1)));
        stations.clear();
        assert_eq!(stations.find(station(7)), None);
    }
}
