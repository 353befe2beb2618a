//! NetReduce: sums for rings of RoCEv2 hosts, whose NICs keep the transport (`docs/NETREDUCE.md`).
//!
//! Member i of a ring sends its elements to member i+1 as messages of a reliable connection. The
//! switch holds the packets of one offset, one of each member. When the last has come, it sums
//! their elements and releases all of them with the sum in place of their elements and a new ICRC.
//! Acknowledgements and retransmissions are the NICs' own.
//!
//! In a tree the members are those of several switches, its leaves. Each sums its own members'
//! packets, sends the partial sum to the root, and releases the packets with the total.
//!
//! * `dialect` finds the ring of a packet, by the [`Connections`] that all cores share.
//! * `ring` is one ring with members: their connections.
//! * `uplink` is a leaf's way to the root; `root` sums what leaves send.
//! * `messages` has what rings hold, `release` sums it and sends it.
//!
//! Invariants:
//!
//! * No data packet with the ring DSCP leaves with elements that are not the sum, unless its
//!   receiver never takes them: it has had the packet, or the PSN is out of its reach.
//! * A contribution is in at most one sum, once.
//! * A ring holds packets of at most two windows of messages.

mod connections;
pub mod dialect;
mod messages;
mod release;
mod ring;
mod root;
mod uplink;

pub use connections::Connections;
pub use dialect::{Command, Metrics, NetreduceDialect, NetreduceUse};

use crate::metrics;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;
use tally_wire::SwitchName;
use tally_wire::netreduce::{RingEpoch, RingId, RingSecret};

/// Messages of a window (N-10), unless configured.
pub const DEFAULT_WINDOW_MESSAGES: u8 = 2;
/// Packets of a message at most, unless configured.
pub const DEFAULT_MESSAGE_PACKETS: u16 = 170;

/// A registered ring (N-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Its number.
    pub id: RingId,
    /// What authenticates its headers.
    pub secret: RingSecret,
    /// Addresses by rank, 2 to 64.
    pub members: Vec<Ipv4Addr>,
    /// Messages that a member sends beyond the last sum that it has.
    pub window_messages: u8,
    /// Packets of a message at most.
    pub message_packets: u16,
    /// The switch's part in it.
    pub role: RingRole,
}

/// The part of a switch in a ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RingRole {
    /// It sums for all members.
    #[default]
    Alone,
    /// A leaf of a tree: it sums for the members of some ranks (N-16).
    Leaf {
        /// Its number.
        number: u8,
        /// Their ranks.
        ranks: Range<u8>,
        /// The root, a switch above.
        root: SwitchName,
    },
    /// The root of a tree: it sums what leaves send.
    Root {
        /// Their names, by number.
        leaves: Vec<SwitchName>,
    },
}

/// A ring as all cores of a switch serve it together: clones are the same one.
#[derive(Clone, Debug)]
pub struct ServedRing {
    /// What is registered.
    pub config: RingConfig,
    /// Its members' connections.
    pub connections: Arc<Connections>,
}

/// How a ring is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingStatus {
    /// The ring.
    pub id: RingId,
    /// Its members' addresses, by rank.
    pub members: Vec<Ipv4Addr>,
    /// The switch's part in it.
    pub role: RingRole,
    /// Its epoch, if one runs.
    pub epoch: Option<RingEpoch>,
    /// Ranks that the oldest unfinished sum lacks; at the root of a tree, numbers of leaves.
    pub missing: Vec<u8>,
    /// The oldest unfinished sum lacks no rank of this leaf, and waits for the root.
    pub awaits_root: bool,
    /// What it did.
    pub counters: RingCounters,
}

impl From<RingConfig> for ServedRing {
    /// One without connections.
    fn from(config: RingConfig) -> Self {
        Self {
            connections: Arc::new(Connections::new(config.members.len())),
            config,
        }
    }
}

impl RingConfig {
    /// Messages with state: two windows, and three at a leaf (N-18).
    #[must_use]
    pub const fn live_messages(&self) -> u32 {
        let windows = match self.role {
            RingRole::Alone | RingRole::Root { .. } => 2,
            RingRole::Leaf { .. } => 3,
        };
        windows * self.window_messages as u32
    }

    /// Ranks of the members whose packets the switch sums.
    #[must_use]
    pub fn ranks(&self) -> Range<u8> {
        match &self.role {
            RingRole::Alone => 0..self.members.len() as u8,
            RingRole::Leaf { ranks, .. } => ranks.clone(),
            RingRole::Root { .. } => 0..0,
        }
    }

    /// Packets of a slot: one of each member, or of each leaf at the root.
    #[must_use]
    pub fn contributors(&self) -> usize {
        match &self.role {
            RingRole::Root { leaves } => leaves.len(),
            RingRole::Alone | RingRole::Leaf { .. } => self.ranks().len(),
        }
    }

    /// Packets that the ring holds at most, kept sums included.
    #[must_use]
    pub fn held_max(&self) -> u64 {
        let slots = u64::from(self.live_messages()) * u64::from(self.message_packets);
        slots * self.contributors() as u64
    }

    /// The core that serves it.
    #[must_use]
    pub const fn core(&self, cores: u16) -> usize {
        (self.id.0 % cores as u32) as usize
    }
}

metrics! {
    /// What a ring did.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct RingCounters, labels ["ring"] {
        /// Sums made for the ring.
        pub sums: u64 = counter "netreduce_ring_sums";
        /// Bytes of elements in them.
        pub sum_bytes: u64 = counter "netreduce_ring_sum_bytes" in Bytes;
        /// Messages that all members have received.
        pub messages: u64 = counter "netreduce_ring_messages";
        /// Packets that the ring holds, kept sums included.
        pub held: u64 = gauge "netreduce_ring_held_frames" in Frames;
        /// Members that its oldest unfinished sum waits for; at the root of a tree, leaves.
        pub awaited: u64 = gauge "netreduce_ring_awaited";
    }
}

metrics! {
    /// What one core did for rings.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct NetreduceCounters, labels [] {
        /// Packets held as contributions, and at the root partial sums.
        pub contributions: u64 = counter "netreduce_contributions";
        /// Sums made.
        pub sums: u64 = counter "netreduce_sums";
        /// Packets released with a sum when it was made.
        pub released: u64 = counter "netreduce_released_frames" in Frames;
        /// Copies of packets that were sent on with a kept sum.
        pub sums_again: u64 = counter "netreduce_retransmitted_frames" in Frames;
        /// Copies of messages whose state was freed, sent on as they were.
        pub copies_passed: u64 = counter "netreduce_old_copies_frames" in Frames;
        /// Packets behind a lost one that begins a message, sent on for the NAK alone.
        pub ahead_passed: u64 = counter "netreduce_ahead_frames" in Frames;
        /// Epochs begun.
        pub epochs: u64 = counter "netreduce_epochs";
        /// Partial sums that a leaf sent to the root.
        pub partials: u64 = counter "netreduce_partials_frames" in Frames;
        /// Partial sums that a leaf sent again, since no total came.
        pub partials_again: u64 = counter "netreduce_repeated_partials_frames" in Frames;
        /// Rings whose state was freed because nothing came of what they waited for.
        pub expired: u64 = counter "netreduce_expired";
    }
}
