//! Frame formats of the Tally native protocol, version 2 (`docs/PROTOCOL.md`).
//!
//! Four layers, each a small value with `parse` and `emit`:
//!
//! * [`frame`]: Ethernet, IPv4 and UDP, the subset that the protocol allows;
//! * [`header`]: the 22 bytes of the Tally header;
//! * [`auth`]: the tag that authenticates a frame as one of its job;
//! * [`control`]: the authenticated payloads of JOIN, ACCEPT, REFUSE and LEAVE.
//!
//! Seven modules serve other traffic:
//!
//! * [`neighbour`]: ARP and ICMP echo replies for the switch's own address;
//! * [`lldp`]: the switch's own LLDP frames, and those of its neighbours;
//! * [`fabric`]: what switches of a fabric say to their neighbours;
//! * [`encapsulation`]: the payload of ordinary frames behind VLAN tags;
//! * [`switchml`]: the dialect of SwitchML, whose clients the switch serves;
//! * [`roce`]: reliable connections of RoCEv2;
//! * [`netreduce`]: messages of rings of RoCEv2 hosts.
//!
//! Catches: `parse` never panics, on any input. `emit` panics when the buffer is shorter than the
//! constant that its documentation names; that is a bug of the caller.
//! The crate is `no_std`, allocates nothing and does no I/O.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod auth;
pub mod control;
mod ecn;
pub mod encapsulation;
pub mod fabric;
pub mod field;
pub mod frame;
pub mod header;
pub mod ids;
mod key;
pub mod lldp;
mod mac;
pub mod neighbour;
pub mod netreduce;
pub mod part;
pub mod roce;
pub mod superframe;
pub mod switchml;
mod template;
pub mod train;

pub use auth::{AuthTag, EpochSecret};
pub use control::{Accept, Join, Key, Leave, MAX_TREE_WORKERS, RankRange, Refuse, SwitchName};
pub use ecn::Ecn;
pub use frame::{Addresses, FrameError, Mac, UdpFrame};
pub use header::{Element, Flags, Header, HeaderError, Kind};
pub use ids::{Epoch, FragmentId, JobId, Rank, Time};
pub use part::Part;
pub use train::Train;

/// First UDP port of the switch unless configured (F-3).
pub const DEFAULT_PORT: u16 = 31249;
/// Length of the Ethernet, IPv4, UDP and Tally headers. One cache line.
pub const HEADERS_BYTES: usize = frame::UDP_END + header::HEADER_BYTES;
/// Bytes in one unit of payload (F-4).
pub const UNIT_BYTES: usize = 64;
/// Maximum number of units in a payload: 8 KiB.
pub const MAX_UNITS: u8 = 128;
/// Maximum length of a payload in bytes.
pub const MAX_PAYLOAD_BYTES: usize = MAX_UNITS as usize * UNIT_BYTES;
/// Maximum number of workers in a job: the bits of the bitmap.
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
