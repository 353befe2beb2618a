//! Frame formats of the Tally native protocol, version 2 (`docs/PROTOCOL.md`), and of what it serves besides.
//!
//! Four layers, each a small value with `parse` and `emit`:
//!
//! * [`frame`]: Ethernet, IPv4 and UDP, as much of them as the protocol allows;
//! * [`header`]: the 22 bytes of the Tally header;
//! * [`auth`]: the tag by which a receiver knows that a frame is of its job;
//! * [`control`]: the authenticated payloads of JOIN, ACCEPT, REFUSE and LEAVE;
//!
//! and beside them:
//!
//! * [`neighbour`]: the two answers (ARP, ICMP echo) that the switch's own address owes;
//! * [`encapsulation`]: what ordinary frames carry behind VLAN tags;
//! * [`switchml`]: the dialect of another system whose clients the switch serves.
//!
//! Catches: `parse` never panics, whatever the bytes. `emit` panics when the buffer is shorter
//! than the constant its documentation names, which is a bug of the caller and not of the network.
//! The crate is `no_std`, allocates nothing and does no I/O.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod auth;
pub mod control;
mod ecn;
pub mod encapsulation;
pub mod frame;
pub mod header;
pub mod ids;
pub mod neighbour;
pub mod switchml;
pub mod train;

pub use auth::{AuthTag, EpochSecret};
pub use control::{Accept, Join, Key, Leave, Refuse};
pub use ecn::Ecn;
pub use frame::{Addresses, FrameError, Mac, UdpFrame};
pub use header::{Element, Flags, Header, HeaderError, Kind};
pub use ids::{Epoch, FragmentId, JobId, Rank, Time};
pub use train::Train;

/// First UDP port of the switch unless configured (F-3).
pub const DEFAULT_PORT: u16 = 31249;
/// Bytes in front of the payload: Ethernet, IPv4, UDP and Tally headers. One cache line.
pub const HEADERS_BYTES: usize = frame::UDP_END + header::HEADER_BYTES;
/// Bytes in one unit of payload (F-4).
pub const UNIT_BYTES: usize = 64;
/// Most units in a payload: 8 KiB.
pub const MAX_UNITS: u8 = 128;
/// Most bytes in a payload.
pub const MAX_PAYLOAD_BYTES: usize = MAX_UNITS as usize * UNIT_BYTES;
/// Most workers in a job: the bits of the bitmap.
pub const MAX_WORKERS: usize = 64;

const _: () = assert!(HEADERS_BYTES == 64, "the payload starts on a cache line");
const _: () = assert!(MAX_PAYLOAD_BYTES == 8192);
const _: () = assert!(MAX_WORKERS == u64::BITS as usize);

/// The bitmap with the bits of ranks `0..workers` set.
///
/// `workers` above 64 counts as 64.
#[inline]
#[must_use]
pub const fn all_ranks(workers: u8) -> u64 {
    if workers >= 64 {
        u64::MAX
    } else {
        (1 << workers) - 1
    }
}
