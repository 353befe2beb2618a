//! The switch, without I/O: everything that it decides.
//!
//! * [`core`] is one data core: poll iterations, the order of checks, commands. It gives a frame to
//!   the [`dialect`] that claims it ([`demux`]), and forwards all others ([`forwarding`]). All
//!   leave by [`egress`]. Nanoseconds: no allocation after start, no lock, no clock, no division.
//! * Dialects are [`native`] (Tally's protocol), [`switchml`], [`netreduce`] (rings of RoCEv2
//!   hosts), and [`offload`] (an FPGA card); the list is [`dialects`](mod@dialects).
//! * [`mod@metrics`] is the table of what is counted.
//! * [`registry`] is control: who is a member of which job. It authenticates JOIN and LEAVE,
//!   watches over silence and failure, and hands out a [`Roster`] when a job runs. Microseconds.
//!
//! A driver provides a [`Platform`] with its [`Frame`]s, and runs the core: the switch on DPDK, the
//! simulator in virtual time, tests and the fuzz target on plain memory.
//!
//! Invariants, asserted in production builds where they are cheap:
//!
//! * a slot's bitmap has exactly the ranks whose contributions its buffers hold;
//! * a contribution is in at most one slot, and a fragment with a result has no slot;
//! * every buffer that comes in leaves, is held by a slot or a ring, or is given back, exactly
//!   once.

// So that unit tests can use the test support that integration tests use.
#[cfg(test)]
extern crate self as tally_engine;

pub mod buffer;
pub mod context;
pub mod core;
pub mod counters;
pub mod demux;
pub mod dialect;
pub mod dialects;
pub mod egress;
pub mod fabric;
pub mod forwarding;
pub mod frame;
pub mod guard;
pub mod metrics;
pub mod native;
pub mod netreduce;
pub mod offload;
#[cfg(test)]
#[allow(dead_code, reason = "shared with the integration tests")]
#[path = "../tests/common/plain.rs"]
mod plain;
#[cfg(test)]
#[allow(dead_code, reason = "shared with the integration tests")]
#[path = "../tests/common/platform.rs"]
mod platform;
pub mod queue;
pub mod registry;
pub mod roster;
pub mod switchml;

pub use crate::context::{Context, ControlFrame, ParentAddress, SwitchAddress};
pub use crate::core::{Command, Core, CoreReport, Reply};
pub use buffer::{Buffer, Egress, To};
pub use counters::{Counters, DropReason, Drops, JobCounters};
pub use dialects::{DialectCommand, DialectMetrics, Dialects};
pub use egress::{Handover, Ports, Transmit};
pub use forwarding::{Forwarding, ForwardingConfig};
pub use frame::{Frame, Observed, Platform};
pub use native::admission::Admission;
pub use native::aggregator::Aggregator;
pub use native::batch::{Batch, Contribution};
pub use native::policy::Policy;
pub use native::pool::{Limits, PolicyName, PoolConfig, PoolJob};
pub use registry::{Action, Child, Fabric, JobConfig, Parent, Registry, RegistryConfig, Tree};
pub use roster::{Member, PortId, Roster, Uplink};
