//! How the members of a ring find each other, wait for each other and learn of failures: by TCP,
//! through a coordinator at rank 0.
//!
//! A member connects, and the coordinator sends a challenge. The member answers with a hello: who
//! it is, and its queue pairs. When the hellos of all members are there, each gets a welcome: the
//! epoch, its successor and its predecessor. Hello and welcome have an HMAC under the ring's key.
//! The connection stays open. A member enters each all-reduce with its element type and length,
//! and waits until all have entered with the same. A member that fails says why; the end of its
//! connection says that it died. The coordinator tells all others which rank it was.
//!
//! Catches: who can change TCP segments between two members can end their epoch. What they sum is
//! protected by the tags of the ring's headers alone.

mod client;
mod coordinator;
mod frame;

pub use client::Client;
pub use coordinator::{Coordinator, Limits};

use std::net::Ipv4Addr;
use tally_wire::Key;
use tally_wire::netreduce::{Element, RingEpoch, RingId};
use tally_wire::roce::{Psn, QueuePair};
use thiserror::Error;

/// TCP port of a coordinator by default.
pub const DEFAULT_PORT: u16 = 4790;

/// A ring, as all its members must be told.
#[derive(Clone, Debug)]
pub struct RingConfig {
    /// Its number.
    pub ring: RingId,
    /// Its key.
    pub key: Key,
    /// Number of members: 2 to 64.
    pub members: u8,
}

/// What a member tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its rank.
    pub rank: u8,
    /// Address of its device.
    pub address: Ipv4Addr,
    /// Queue pair of its connection to the successor.
    pub to: QueuePair,
    /// Queue pair of its connection from the predecessor.
    pub from: QueuePair,
    /// First PSN of the connection to the successor.
    pub psn: Psn,
    /// Longest payload of a packet on its link.
    pub mtu: u16,
    /// Packets of a message. All members have the same.
    pub packets: u16,
    /// Messages in flight. All members have the same.
    pub window: u16,
    /// Its last epoch.
    pub last_epoch: Option<RingEpoch>,
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its queue pair.
    pub qp: QueuePair,
    /// First PSN of the connection.
    pub psn: Psn,
}

/// What a member is told when all are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The new epoch.
    pub epoch: RingEpoch,
    /// Longest payload of a packet: the minimum of all members.
    pub mtu: u16,
    /// Rank after this one.
    pub successor: Neighbour,
    /// Rank before this one.
    pub predecessor: Neighbour,
}

/// What members must bring alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// An all-reduce.
    AllReduce {
        /// Type of the elements.
        element: Element,
        /// Bytes of the tensor.
        bytes: u64,
    },
    /// The end of the epoch.
    Leave,
}

/// Bytes of a call's name that the others compare, at most.
pub const NAME_BYTES_MAX: usize = 512;

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AllReduce { element, bytes } => write!(f, "{bytes} bytes of {element:?}"),
            Self::Leave => f.write_str("the end"),
        }
    }
}

/// Error of a rendezvous.
#[derive(Debug, Error)]
pub enum RendezvousError {
    /// The connection to the coordinator failed.
    #[error("connection to the coordinator, rank 0: {0}")]
    Connection(#[source] std::io::Error),
    /// The coordinator is none of the ring: its HMAC is wrong.
    #[error("the coordinator has another key or is not of this ring")]
    Unauthenticated,
    /// A frame that makes no sense.
    #[error("unexpected frame of type {0} from the coordinator")]
    Unexpected(u8),
    /// [`Stop`](crate::Stop) was set.
    #[error("it was stopped")]
    Stopped,
    /// The ring has failed, by the coordinator's words.
    #[error("{0}")]
    Failed(String),
}
