//! Rina for the processes of a host: a ring of racks whose switch sums, and of single hosts.
//!
//! `tally_rina` has the plan and the state machines. Here are the elements, the TCP connections
//! between members, and the session of a rack's job.
//!
//! | file | story |
//! |---|---|
//! | `wire.rs` | messages between members, and the proof of the job's key |
//! | `connection.rs` | a nonblocking TCP connection that carries messages |
//! | `identity.rs` | what a member knows of its ring, and how errors name members |
//! | `door.rs` | the listener: how a predecessor proves the key |
//! | `successor.rs` | the way to the successor |
//! | `link.rs` | both together: how a ring forms, is watched, and ends |
//! | `content.rs` | elements of a collective, as they pass round the ring |
//! | `pass.rs` | one all-reduce of the ring: its state machine, pieces, and sums |
//! | `setting.rs` | what a ring is opened from: the configuration as the plan has it |
//! | `session.rs` | collectives one after the other; ring, rack, and timeouts together |

mod connection;
mod content;
mod door;
mod identity;
mod link;
mod pass;
mod session;
mod setting;
mod successor;
mod wire;

pub(crate) use session::{Rina, RinaError};
pub(crate) use setting::Setting;
