//! The aggregation engine: everything the switch decides, without I/O.
//!
//! Two halves, as different as their budgets:
//!
//! * [`registry`] is control: who is a member of which job. It authenticates JOIN and LEAVE,
//!   watches over silence and failure, and hands out a [`Roster`] when a job runs. Microseconds.
//! * [`aggregator`] is the data path, one [`Aggregator`] for each shard: it takes one frame at a
//!   time, checks it against the roster, and sums, keeps, preempts, forwards. Nanoseconds: no
//!   allocation after start, no lock, no clock, no division.
//!
//! Policies ([`policy`]) say where a fragment's slot is and what a collision does; each is one file.
//! What leaves waits for its port in a [`queue`] by priority, one for each port.
//!
//! Frames between other hosts are [`forwarding`]'s: the ordinary switch underneath.
//!
//! Besides, [`switchml`]: the data path for clients of another system, which shares with the rest
//! no more than [`Buffer`], ports and drop reasons.
//!
//! How it is used: frames come in as a parsed [`tally_wire::Header`] and a [`Buffer`]; what leaves
//! goes to an [`Egress`]. Both are traits, so that the switch plugs in mbufs and ports, and tests and
//! the simulator plain memory. The accumulator of a slot is the buffer of its first contribution.
//!
//! Invariants, asserted in production builds where they are cheap:
//!
//! * a slot's bitmap has exactly the ranks whose contributions its buffers hold;
//! * a contribution is in at most one slot, and a fragment with a result has no slot;
//! * every buffer that comes in leaves, is held by a slot or a ring, or is given back, exactly once.

// So that unit tests can use the test support that integration tests use.
#[cfg(test)]
extern crate self as tally_engine;

pub mod aggregator;
pub mod batch;
pub mod buffer;
pub mod core;
pub mod counters;
pub mod demux;
pub mod dialect;
pub mod dialects;
pub mod egress;
mod elsewhere;
pub mod forwarding;
pub mod frame;
mod held;
pub mod native;
pub mod offload;
#[cfg(test)]
#[allow(dead_code, reason = "shared with the integration tests")]
#[path = "../tests/common/plain.rs"]
mod plain;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
#[cfg(test)]
#[allow(dead_code, reason = "shared with the integration tests")]
#[path = "../tests/common/platform.rs"]
mod platform;
pub mod policy;
pub mod pool;
pub mod queue;
pub mod registry;
mod ring;
pub mod roster;
mod slot;
pub mod switchml;

pub use crate::core::{Command, Context, ControlFrame, Core, CoreReport, Reply, SwitchAddress};
pub use aggregator::{Admission, Aggregator};
pub use batch::{Batch, Contribution};
pub use buffer::{Buffer, Egress, To};
pub use counters::{Counters, DropReason};
pub use dialects::{DialectCommand, DialectMetrics, Dialects};
pub use egress::{Handover, Ports, Transmit};
pub use forwarding::{Forwarding, ForwardingConfig};
pub use frame::{Frame, Observed, Platform};
pub use policy::{Policy, PolicyName};
pub use pool::{Limits, PoolConfig};
pub use registry::{Action, JobConfig, Registry, RegistryConfig};
pub use roster::{Member, PortId, Roster};
