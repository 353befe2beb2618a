//! The ordinary switch underneath: learning, ageing, and where a frame goes.
//!
//! One table for all data cores. An entry is one 64-bit word (MAC and port) and the second in which
//! it was last seen, both atomics with relaxed order: a reader sees an old port or a new one, never
//! a mixture, which is all that learning needs. Sets of eight, no chains: an address that finds its
//! set full takes the place of the one not seen for longest.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tally_engine::PortId;
use tally_wire::Mac;

const WAYS: usize = 8;
const SETS: usize = 1024;
/// Addresses that the table holds.
pub const MAX_ADDRESSES: usize = WAYS * SETS;
/// No address is all zeros, so neither is an entry in use.
const UNUSED: u64 = 0;

#[derive(Default)]
struct Entry {
    /// Port in the high 16 bits, MAC in the low 48.
    address: AtomicU64,
    seen_s: AtomicU32,
}

/// Which MAC is behind which port.
pub struct MacTable {
    sets: Box<[[Entry; WAYS]]>,
    ageing_s: u32,
    /// Times that an address was learned anew or at another port.
    changes: AtomicU32,
}

const MAC_BITS: u64 = (1 << 48) - 1;

impl MacTable {
    /// An empty table that forgets addresses not seen for `ageing_s` seconds.
    #[must_use]
    pub fn new(ageing_s: u32) -> Self {
        Self {
            sets: (0..SETS).map(|_| Default::default()).collect(),
            ageing_s,
            changes: AtomicU32::new(0),
        }
    }

    #[inline]
    fn set(&self, mac: Mac) -> &[Entry; WAYS] {
        // Fibonacci hashing: the high bits of the product depend on all bits of the address.
        let hash = mac.to_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.sets[(hash >> (64 - SETS.ilog2())) as usize]
    }

    fn is_fresh(&self, entry: &Entry, now_s: u32) -> bool {
        now_s.wrapping_sub(entry.seen_s.load(Relaxed)) <= self.ageing_s
    }

    /// Notes that `mac` is behind `port`, at the second `now_s`. Group addresses are no senders and
    /// are not noted.
    #[inline]
    pub fn learn(&self, mac: Mac, port: PortId, now_s: u32) {
        if mac.is_group() || mac == Mac::default() {
            return;
        }
        let word = u64::from(port.0) << 48 | mac.to_u64();
        let set = self.set(mac);
        let same = |e: &&Entry| e.address.load(Relaxed) & MAC_BITS == mac.to_u64();
        let age = |e: &&Entry| match e.address.load(Relaxed) {
            UNUSED => u32::MAX,
            _ => now_s.wrapping_sub(e.seen_s.load(Relaxed)),
        };
        let Some(entry) = set.iter().find(same).or_else(|| set.iter().max_by_key(age)) else {
            return;
        };
        // Write only what changes: the line stays shared between cores.
        if entry.address.load(Relaxed) != word {
            entry.address.store(word, Relaxed);
            self.changes.fetch_add(1, Relaxed);
        }
        if entry.seen_s.load(Relaxed) != now_s {
            entry.seen_s.store(now_s, Relaxed);
        }
    }

    /// The port behind which `mac` was last seen, unless that was too long ago.
    #[inline]
    #[must_use]
    pub fn port_of(&self, mac: Mac, now_s: u32) -> Option<PortId> {
        let (port, entry) = self.find(mac)?;
        self.is_fresh(entry, now_s).then_some(port)
    }

    /// The port behind which `mac` was last seen, however long ago, unless others took its place.
    #[must_use]
    pub fn last_port_of(&self, mac: Mac) -> Option<PortId> {
        self.find(mac).map(|(port, _)| port)
    }

    /// A number that is another one after an address was learned anew or at another port.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.changes.load(Relaxed)
    }

    #[inline]
    fn find(&self, mac: Mac) -> Option<(PortId, &Entry)> {
        let entry = self
            .set(mac)
            .iter()
            .find(|e| e.address.load(Relaxed) & MAC_BITS == mac.to_u64())?;
        let word = entry.address.load(Relaxed);
        // Read again: another core may have put another address in its place meanwhile.
        let same = word & MAC_BITS == mac.to_u64() && word != UNUSED;
        same.then_some((PortId((word >> 48) as u16), entry))
    }

    /// Addresses known at the second `now_s`.
    #[must_use]
    pub fn len(&self, now_s: u32) -> usize {
        let entries = self.sets.iter().flatten();
        entries
            .filter(|e| e.address.load(Relaxed) != UNUSED && self.is_fresh(e, now_s))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(n: u64) -> Mac {
        let b = n.to_be_bytes();
        Mac([2, b[3], b[4], b[5], b[6], b[7]])
    }

    #[test]
    fn learns_moves_and_forgets() {
        let t = MacTable::new(10);
        assert_eq!(t.port_of(mac(1), 0), None);
        t.learn(mac(1), PortId(3), 0);
        assert_eq!(t.port_of(mac(1), 10), Some(PortId(3)));
        assert_eq!(t.port_of(mac(1), 11), None, "aged");
        t.learn(mac(1), PortId(4), 11);
        assert_eq!(t.port_of(mac(1), 12), Some(PortId(4)), "moved");
        assert_eq!(t.len(12), 1);
        assert_eq!(t.port_of(mac(1), 100), None);
        assert_eq!(t.last_port_of(mac(1)), Some(PortId(4)));
        assert_eq!(t.last_port_of(mac(2)), None);
        assert_eq!(t.last_port_of(Mac::default()), None);
        let changes = t.changes();
        t.learn(mac(1), PortId(4), 100);
        assert_eq!(t.changes(), changes, "nothing new");
        t.learn(mac(1), PortId(5), 100);
        t.learn(mac(2), PortId(5), 100);
        assert_eq!(t.changes(), changes + 2);
    }

    #[test]
    fn groups_and_zero_are_never_learned() {
        let t = MacTable::new(10);
        for m in [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1]), Mac::default()] {
            t.learn(m, PortId(1), 0);
            assert_eq!(t.port_of(m, 0), None);
        }
        assert_eq!(t.len(0), 0);
    }

    #[test]
    fn a_flood_of_addresses_is_bounded_and_keeps_the_busy_ones() {
        let t = MacTable::new(1000);
        for n in 0..100_000u64 {
            t.learn(mac(n), PortId(2), (n / 100) as u32);
            t.learn(mac(u64::from(u32::MAX)), PortId(7), (n / 100) as u32);
        }
        assert!(t.len(1000) <= MAX_ADDRESSES);
        assert_eq!(t.port_of(mac(u64::from(u32::MAX)), 1000), Some(PortId(7)));
    }

    #[test]
    fn the_clock_may_wrap() {
        let t = MacTable::new(10);
        t.learn(mac(1), PortId(1), u32::MAX - 2);
        assert_eq!(t.port_of(mac(1), 3), Some(PortId(1)));
        assert_eq!(t.port_of(mac(1), 9), None);
    }
}
