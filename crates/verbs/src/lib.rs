//! Rings of RoCEv2 hosts that the switch sums (NetReduce), on the NICs' own transport.
//!
//! [`Member`] is a member of a ring: it finds the others by TCP ([`rendezvous`]), connects a queue
//! pair to its successor and one to its predecessor, and sums tensors in place. What is sent and
//! received when is [`tally_roce::ring`]'s; the NIC reads and writes the tensor itself, without a
//! copy. [`Device`], [`Memory`], [`CompletionQueue`] and [`QueuePair`] are libibverbs as owned
//! values.
//!
//! Catches:
//!
//! * libibverbs is loaded when a device is opened. Programs build and start without it.
//! * A NIC retransmits for seconds only. So members meet in a barrier before each all-reduce.
//! * After an error a member is of no more use: the members connect anew, in a new epoch.

mod device;
mod library;
mod member;
mod queue;
pub mod rendezvous;
mod stop;
pub mod sys;

pub use device::{Device, Memory, Region};
pub use member::{Cause, Config, Member, MemberError};
pub use queue::{Completion, CompletionQueue, Failed, Peer, QueuePair};
pub use stop::Stop;
pub use tally_wire::netreduce::{Element, RingEpoch, RingId};

use std::net::Ipv4Addr;
use thiserror::Error;

/// Error of libibverbs or a device.
#[derive(Debug, Error)]
pub enum VerbsError {
    /// There is no libibverbs.
    #[error("libibverbs.so.1 is not installed: {0}")]
    NoLibrary(String),
    /// No device has the address.
    #[error(
        "no RoCE device has the IPv4 address {address}; devices found: {}",
        if devices.is_empty() { "none" } else { devices }
    )]
    NoDevice {
        /// The address.
        address: Ipv4Addr,
        /// Names of the devices that there are.
        devices: String,
    },
    /// A call failed.
    #[error("{call}: {source}")]
    Device {
        /// The function.
        call: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

/// Error of a call that sets `errno`.
fn last_error(call: &'static str) -> VerbsError {
    VerbsError::Device {
        call,
        source: std::io::Error::last_os_error(),
    }
}
