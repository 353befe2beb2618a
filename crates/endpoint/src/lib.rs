//! Worker and parameter-server sessions of the Tally native protocol (`docs/PROTOCOL.md`).
//!
//! Sans-IO: no socket, no clock, no randomness, no logging. Datagrams, moments ([`Time`]) and
//! random numbers are arguments; datagrams to send, deadlines and events are polled for. So the
//! same code runs over UDP, over DPDK, in the simulator and in tests with virtual time.
//!
//! * [`Worker`] takes part in a job: joins, contributes fragments inside a window, repairs losses,
//!   leaves. What it contributes and what becomes of the results is behind the [`Gradients`] trait.
//! * [`Ps`] finishes what the switch could not, for one job.
//! * [`Profile`] measures a job at one worker, and says which of its fragments are how urgent.
//! * [`nic`] orders the sessions that share a NIC.
//! * [`stream`] is the order in which the fragments of a message in block fixed point are sent.
//!
//! # Polling order
//!
//! After every call of a `handle_*` method or a command, in this order:
//!
//! 1. `poll_transmit` until it returns `None`, sending each datagram as it comes;
//! 2. `poll_event` until it returns `None`;
//! 3. `poll_timeout`, and `handle_timeout` when that moment has come.
//!
//! It is not wrong to handle a batch of datagrams before polling; that is how it gets fast.
//!
//! # The catches
//!
//! * The owner of the session must pass only datagrams whose source address is the switch's: data
//!   frames carry no authentication of their own (A-4 is what makes the address trustworthy).
//! * Moments must not go backwards.
//! * Nothing is allocated per frame after start. [`Ps`] allocates payload buffers up to the highest
//!   number in use at once, which is bounded (see there).

pub mod nic;
pub mod stream;

mod control;
mod error;
mod lists;
mod profile;
mod ps;
mod rtt;
mod worker;

use core::time::Duration;
pub use error::{Awaited, Hint, Ranks, Server, ShortName, TreeFailure, WorkerError};
pub use profile::Profile;
pub use ps::{Ps, PsConfig, PsEvent, PsStats};
pub use tally_wire::{Ecn, Time};
pub use worker::{
    CongestionStats, Contribution, Delivery, Event, Gradients, Members, Retransmissions, Slowest,
    Worker, WorkerConfig, WorkerStats,
};

/// Silence of the switch after which a member forgets the MAC of the last ACCEPT.
///
/// Five heartbeats: a switch that restarts with another MAC is found in time for the members to
/// come back.
pub const SWITCH_MAC_FOR: Duration = Duration::from_secs(2);

/// A datagram for the switch, written to the buffer given to `poll_transmit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes of it: Tally header and payload.
    pub len: usize,
    /// UDP port of the switch that it goes to (F-3).
    pub port: u16,
}

/// Bytes that a buffer for datagrams of a job needs, sent or received, when element payloads have
/// `units` units.
#[must_use]
pub const fn datagram_bytes(units: u8) -> usize {
    let elements = units as usize * tally_wire::UNIT_BYTES + tally_wire::auth::TAG_BYTES;
    let control = tally_wire::control::CONTROL_BYTES;
    tally_wire::header::HEADER_BYTES
        + if elements > control {
            elements
        } else {
            control
        }
}
