//! Sessions as the data path knows them, where their frames come from, and where results go.

use crate::roster::PortId;
use std::net::Ipv4Addr;
use tally_wire::switchml::{Header, Size};
use tally_wire::{Mac, all_ranks};

/// A session, as the controller numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// A worker's host, as it told the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostAddress {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
}

/// What the data path knows of a session. Immutable; a change is a new session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// Size of all its packets.
    pub size: Size,
    /// Its workers, by rank; 1 to 64.
    pub workers: Vec<HostAddress>,
    /// By rank, the switch's Ethernet address that this worker alone was told: its secret.
    pub switch_macs: Vec<Mac>,
}

impl Session {
    /// The bitmap with all its ranks.
    #[inline]
    #[must_use]
    pub fn all(&self) -> u64 {
        all_ranks(self.workers.len() as u8)
    }
}

/// How large a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchmlConfig {
    /// Most sessions at a time.
    pub sessions: usize,
    /// Slots of a session, in all shards together; at most
    /// [`MAX_SLOTS`](tally_wire::switchml::MAX_SLOTS).
    pub slots: u16,
    /// Buffers that this shard may keep.
    pub held: u32,
    /// Number of shards, a power of two.
    pub shards: u8,
    /// Which of them this is.
    pub shard: u8,
}

/// Where a result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Port of the switch.
    pub port: PortId,
    /// The worker's Ethernet address.
    pub mac: Mac,
    /// The worker's IPv4 address.
    pub ip: Ipv4Addr,
    /// The worker's UDP port.
    pub udp_port: u16,
    /// The UDP port of the switch that the worker sent to.
    pub own_port: u16,
    /// The switch's Ethernet address that the worker was told.
    pub own_mac: Mac,
}

/// Where a frame came from and went to, as its headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its sender.
    pub from: HostAddress,
    /// The Ethernet address that it was sent to.
    pub to: Mac,
}

/// What a frame's arrival says besides its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Port of the switch that it came in on.
    pub port: PortId,
    /// Source UDP port.
    pub udp_port: u16,
    /// Destination UDP port.
    pub own_port: u16,
    /// Type of service of its IPv4 header.
    pub tos: u8,
}

/// The way out.
pub trait Replies<B> {
    /// Send `sum` with `header` to one worker. From the first reply on its bytes are shared and
    /// read-only. `tos` is that of the frame that caused it.
    fn reply(&mut self, to: &Destination, header: &Header, tos: u8, sum: &B);

    /// Send `sum` with `header` to all workers of a session. The engine neither reads nor writes
    /// the sum's payload any more: it may be made ready for leaving.
    fn reply_all<'a>(
        &mut self,
        to: impl Iterator<Item = &'a Destination>,
        header: &Header,
        tos: u8,
        sum: &mut B,
    ) {
        for to in to {
            self.reply(to, header, tos, sum);
        }
    }

    /// The engine is done with this buffer.
    fn discard(&mut self, buffer: B) {
        drop(buffer);
    }
}
