//! The table of MAC addresses: learning, ageing, and a limit for each port.
//!
//! One table for all data cores. An entry is one 64-bit word (MAC and port) and the second in which
//! it was last seen, both atomics with relaxed order: a reader sees an old port or a new one, never
//! a mixture, which is all that learning needs. Sets of eight, no chains.
//!
//! An address that finds its set full takes the place of one that is stale or of its own port,
//! never that of another port's. A port has so many addresses at most; what is beyond is not
//! learnt, and counted. So a port that floods addresses harms itself. The table has twice the
//! places that all ports may fill, and which addresses share a set depends on the seed.

use super::ForwardingConfig;
use crate::{PortId, metrics};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tally_wire::Mac;

const WAYS: usize = 8;
/// Sets at least.
const SETS_MIN: usize = 1024;
/// Largest limit of addresses of a port.
pub const ADDRESSES_MAX: u32 = 8192;
/// No address is all zeros, so neither is an entry in use.
const UNUSED: u64 = 0;
const MAC_BITS: u64 = (1 << 48) - 1;

#[derive(Debug, Default)]
struct Entry {
    /// Port in the high 16 bits, MAC in the low 48.
    address: AtomicU64,
    seen_s: AtomicU32,
}

/// One port's part of the table.
#[derive(Debug, Default)]
struct PortState {
    /// Entries, stale ones too.
    learnt: AtomicU32,
    /// Frames whose source was not learnt.
    refused: AtomicU64,
    /// When its stale entries were last given up.
    swept_s: AtomicU32,
    /// Most entries.
    limit: u32,
}

/// How much newer what another switch says must be than what is known, in seconds.
const NEWER_S: u32 = 2;

metrics! {
    /// What the table has of one port.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct PortAddresses, labels ["port"] {
        /// MAC addresses learnt behind the port, stale ones too.
        pub addresses: u32 = gauge "port_addresses";
        /// Frames from the port whose source was not learnt because of `limits.addresses`.
        pub addresses_refused: u64 = counter "port_unlearnt_frames" in Frames;
    }
}

/// Which MAC is behind which port.
#[derive(Debug)]
pub struct MacTable {
    sets: Box<[[Entry; WAYS]]>,
    /// Odd: the high bits of a product with it depend on all bits of the address.
    multiplier: u64,
    /// What leaves of a product as many high bits as number the sets.
    shift: u32,
    ageing_s: u32,
    /// Times that an address was learnt anew or at another port.
    changes: AtomicU32,
    /// By port; empty without limits.
    ports: Box<[PortState]>,
}

impl MacTable {
    /// An empty table without limits, which forgets addresses not seen for `ageing_s` seconds.
    #[must_use]
    pub fn new(ageing_s: u32) -> Self {
        Self::of(SETS_MIN, ageing_s, 0x9e37_79b9_7f4a_7c15)
    }

    /// An empty table that has room for as many addresses of each port as the configuration allows.
    #[must_use]
    pub fn with_limit(config: &ForwardingConfig) -> Self {
        Self::in_fabric(config, &[])
    }

    /// As [`with_limit`](Self::with_limit), with room for [`ADDRESSES_MAX`] at each of `switches`.
    #[must_use]
    pub fn in_fabric(config: &ForwardingConfig, switches: &[PortId]) -> Self {
        let state = |at| PortState {
            limit: match switches.contains(&PortId(at)) {
                true => ADDRESSES_MAX,
                false => config.addresses.min(ADDRESSES_MAX),
            },
            ..PortState::default()
        };
        let ports: Box<[_]> = (0..config.ports).map(state).collect();
        let places = 2 * ports.iter().map(|it| it.limit as usize).sum::<usize>();
        let sets = (places / WAYS).next_power_of_two().max(SETS_MIN);
        Self {
            ports,
            ..Self::of(sets, config.ageing_s, config.seed | 1)
        }
    }

    fn of(sets: usize, ageing_s: u32, multiplier: u64) -> Self {
        Self {
            sets: (0..sets).map(|_| Default::default()).collect(),
            multiplier,
            shift: 64 - sets.ilog2(),
            ageing_s,
            changes: AtomicU32::new(0),
            ports: Box::default(),
        }
    }

    #[inline]
    fn set(&self, mac: Mac) -> &[Entry; WAYS] {
        let hash = mac.to_u64().wrapping_mul(self.multiplier);
        &self.sets[(hash >> self.shift) as usize]
    }

    fn is_fresh(&self, entry: &Entry, now_s: u32) -> bool {
        now_s.wrapping_sub(entry.seen_s.load(Relaxed)) <= self.ageing_s
    }

    fn port_state(&self, port: PortId) -> Option<&PortState> {
        self.ports.get(usize::from(port.0))
    }

    /// Notes that `mac` is behind `port`, at the second `now_s`, if the port's limit allows it.
    /// Group addresses are no senders and are not noted.
    #[inline]
    pub fn learn(&self, mac: Mac, port: PortId, now_s: u32) {
        let word = u64::from(port.0) << 48 | mac.to_u64();
        let known = self.set(mac).iter();
        let mut known = known.filter(|entry| entry.address.load(Relaxed) == word);
        // Write only what changes: the line stays shared between cores.
        match known.next() {
            Some(entry) if word & MAC_BITS != UNUSED => {
                if entry.seen_s.load(Relaxed) != now_s {
                    entry.seen_s.store(now_s, Relaxed);
                }
            }
            _ => self.learn_anew(mac, port, now_s),
        }
    }

    /// Learns what another switch says: that `mac` was heard behind `port` at the second `seen_s`.
    /// What is known is left alone unless this is newer: by `NEWER_S`, if it is at another port.
    pub fn learn_told(&self, mac: Mac, port: PortId, now_s: u32, seen_s: u32) {
        if let Some((known, entry)) = self.find(mac)
            && self.is_fresh(entry, now_s)
        {
            let least = if known == port { 0 } else { NEWER_S };
            if seen_s <= entry.seen_s.load(Relaxed).saturating_add(least) {
                return;
            }
        }
        self.learn(mac, port, now_s);
        if let Some((known, entry)) = self.find(mac)
            && known == port
        {
            entry.seen_s.store(seen_s, Relaxed);
        }
    }

    #[inline(never)]
    fn learn_anew(&self, mac: Mac, port: PortId, now_s: u32) {
        if mac.is_group() || mac == Mac::default() {
            return;
        }
        let is_learnt = self.has_room(port, now_s) && self.place(mac, port, now_s);
        if let Some(state) = self.port_state(port)
            && !is_learnt
        {
            state.refused.fetch_add(1, Relaxed);
        }
    }

    /// Takes the address's entry, or one that is free for it; says whether there was one.
    fn place(&self, mac: Mac, port: PortId, now_s: u32) -> bool {
        let set = self.set(mac);
        let read = |entry: &Entry| entry.address.load(Relaxed);
        let is_own = |entry: &&Entry| read(entry) >> 48 == u64::from(port.0);
        let age = |entry: &&Entry| now_s.wrapping_sub(entry.seen_s.load(Relaxed));
        let same = set.iter().find(|e| read(e) & MAC_BITS == mac.to_u64());
        let unused = || set.iter().find(|e| read(e) == UNUSED);
        let stale = || set.iter().find(|e| !self.is_fresh(e, now_s));
        let oldest = || set.iter().filter(is_own).max_by_key(age);
        let found = same.or_else(unused).or_else(stale).or_else(oldest);
        let Some(entry) = found else {
            return false;
        };
        let before = read(entry);
        let word = u64::from(port.0) << 48 | mac.to_u64();
        // Another core that was faster has another address there now: this one's next frame tries
        // again.
        if self.replace(entry, before, word) {
            entry.seen_s.store(now_s, Relaxed);
        }
        true
    }

    /// Changes an entry from one word to another, with what ports have; says whether it was the
    /// first.
    fn replace(&self, entry: &Entry, before: u64, after: u64) -> bool {
        let replaced = entry
            .address
            .compare_exchange(before, after, Relaxed, Relaxed);
        if replaced.is_err() {
            return false;
        }
        let state = |word: u64| match word {
            UNUSED => None,
            word => self.port_state(PortId((word >> 48) as u16)),
        };
        if let Some(state) = state(after) {
            state.learnt.fetch_add(1, Relaxed);
        }
        if let Some(state) = state(before) {
            state.learnt.fetch_sub(1, Relaxed);
        }
        self.changes.fetch_add(1, Relaxed);
        true
    }

    /// Whether one address more may be learnt at a port. One that has its limit gives up what is
    /// stale, once a second at most.
    fn has_room(&self, port: PortId, now_s: u32) -> bool {
        let Some(state) = self.port_state(port) else {
            return true;
        };
        if state.learnt.load(Relaxed) < state.limit {
            return true;
        }
        if state.swept_s.swap(now_s, Relaxed) != now_s {
            for entry in self.sets.iter().flatten() {
                let word = entry.address.load(Relaxed);
                let is_own = word != UNUSED && word >> 48 == u64::from(port.0);
                if is_own && !self.is_fresh(entry, now_s) {
                    self.replace(entry, word, UNUSED);
                }
            }
        }
        state.learnt.load(Relaxed) < state.limit
    }

    /// Forgets the addresses of a port.
    pub fn forget(&self, port: PortId) {
        for entry in self.sets.iter().flatten() {
            let word = entry.address.load(Relaxed);
            if word != UNUSED && word >> 48 == u64::from(port.0) {
                self.replace(entry, word, UNUSED);
            }
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

    /// A number that is another one after an address was learnt anew or at another port.
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

    /// The addresses known at the second `now_s`, at most `limit` of them: each with its port, and
    /// the seconds since it was last seen.
    pub fn entries(&self, now_s: u32, limit: usize) -> Vec<(Mac, PortId, u32)> {
        let known = self.sets.iter().flatten().filter_map(|entry| {
            let word = entry.address.load(Relaxed);
            let is_known = word != UNUSED && self.is_fresh(entry, now_s);
            let age_s = now_s.saturating_sub(entry.seen_s.load(Relaxed));
            let [p0, p1, mac @ ..] = word.to_be_bytes();
            let port = PortId(u16::from_be_bytes([p0, p1]));
            is_known.then_some((Mac(mac), port, age_s))
        });
        known.take(limit).collect()
    }

    /// What it has of each port, if it has limits.
    pub fn by_port(&self) -> impl Iterator<Item = PortAddresses> {
        self.ports.iter().map(|state| PortAddresses {
            addresses: state.learnt.load(Relaxed),
            addresses_refused: state.refused.load(Relaxed),
        })
    }
}

#[cfg(test)]
mod tests;
