//! The connections of a ring, as all cores know them.
//!
//! The core that receives the first message of a connection notes its queue pair here. Behind other
//! switches, the connection's packets come by another link when theirs dies, and so on another
//! core: it finds their ring.

use std::sync::atomic::{AtomicU64, Ordering};
use tally_wire::netreduce::RingEpoch;
use tally_wire::roce::QueuePair;

/// Epoch and queue pair of each member's connection, by rank. Shared by all cores.
#[derive(Debug)]
pub struct Connections(Box<[AtomicU64]>);

/// A connection that is known, beside the 24 bits of its queue pair and the 32 of its epoch.
const KNOWN: u64 = 1 << 63;

impl Connections {
    /// Of so many members, none of which has begun a connection.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self((0..members).map(|_| AtomicU64::new(0)).collect())
    }

    /// That of a rank, if one has begun.
    #[inline]
    pub(super) fn get(&self, rank: u8) -> Option<(RingEpoch, QueuePair)> {
        decode(self.0[usize::from(rank)].load(Ordering::Relaxed))
    }

    /// A connection begins, unless a newer one has; says whether it does.
    pub(super) fn begin(&self, rank: u8, epoch: RingEpoch, qp: QueuePair) -> bool {
        let word = KNOWN | u64::from(qp.0) << 32 | u64::from(epoch.0);
        let relaxed = Ordering::Relaxed;
        let newer = |old| match decode(old) {
            Some((running, _)) if running.is_after(epoch) => None,
            _ => Some(word),
        };
        let connection = &self.0[usize::from(rank)];
        connection.fetch_update(relaxed, relaxed, newer).is_ok()
    }

    /// The connection of a rank has ended if it still has this queue pair.
    pub(super) fn end(&self, rank: u8, qp: QueuePair) {
        let relaxed = Ordering::Relaxed;
        let ended = |old| decode(old).filter(|(_, known)| *known == qp).map(|_| 0);
        // If another has begun, it stays.
        let _ = self.0[usize::from(rank)].fetch_update(relaxed, relaxed, ended);
    }
}

fn decode(word: u64) -> Option<(RingEpoch, QueuePair)> {
    let qp = QueuePair((word >> 32) as u32 & 0xff_ffff);
    (word & KNOWN != 0).then_some((RingEpoch(word as u32), qp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_until_a_newer_one_begins_or_it_ends() {
        let connections = Connections::new(2);
        let (old, new) = (RingEpoch(u32::MAX), RingEpoch(3));
        assert_eq!(connections.get(1), None);
        assert!(connections.begin(1, old, QueuePair(0xff_ffff)));
        assert_eq!(connections.get(1), Some((old, QueuePair(0xff_ffff))));
        assert_eq!(connections.get(0), None, "another rank");
        assert!(connections.begin(1, new, QueuePair(0)));
        assert!(!connections.begin(1, old, QueuePair(1)), "an older one");
        assert_eq!(connections.get(1), Some((new, QueuePair(0))));
        connections.end(1, QueuePair(0xff_ffff));
        assert_eq!(connections.get(1), Some((new, QueuePair(0))));
        connections.end(1, QueuePair(0));
        assert_eq!(connections.get(1), None);
    }
}
