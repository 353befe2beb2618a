//! Rina for the processes of a host: a ring of racks whose switch sums, and of single hosts.
//!
//! `tally_rina` has the plan and the state machines. Here are the elements, the TCP connections
//! between members, and the session of a rack's job.
//!
//! | file | story |
//! |---|---|
//! | `wire.rs` | messages between members, and the proof of the job's key |
//! | `connection.rs` | a nonblocking TCP connection that carries messages |
//! | `link.rs` | the connections of a member: how a ring forms, is watched, and ends |
//! | `content.rs` | elements of a collective, as they pass round the ring |
//! | `pass.rs` | one all-reduce of the ring: its state machine, pieces, and sums |
//! | `session.rs` | collectives one after the other; ring, rack, and timeouts together |

mod connection;
mod content;
mod link;
mod pass;
mod session;
mod wire;

pub(crate) use session::{Rina, RinaError, Setting};
