//! Sequences of collectives as the fragments of a job (section 9 of `docs/PROTOCOL.md`).
//!
//! A [`Session`] takes part in a job as one of its workers, for as long as it lives.
//! [`Session::submit`] takes a buffer and says what to do with it; [`Session::done`] gives buffers
//! back with their results in them.
//!
//! Sans-IO, as the [`Worker`](tally_endpoint::Worker) inside: datagrams and moments are arguments,
//! and the polling order is that of [`tally_endpoint`]. `worker-agent` drives sessions over its
//! links, `tally-sim` in virtual time.
//!
//! | file | story |
//! |---|---|
//! | `session.rs` | the session: worker, profile, state |
//! | `stream.rs`, `kept.rs` | collectives one behind the other as fragments; results for workers that lost theirs |
//! | `descriptor.rs` | how ranks find that they bring the same |
//! | `payload.rs`, `payload/` | elements from the buffer to payloads, and back |
//! | `collective.rs`, `dtype.rs` | what a session is asked to do |

mod collective;
mod descriptor;
mod dtype;
mod kept;
mod payload;
mod session;
mod stream;

pub use collective::{
    Collective, CollectiveKind, Done, ELEMENTS_MAX, Elements, NAME_BYTES_MAX, Parts, Priority,
    Refused, Ticket,
};
pub use descriptor::{Mismatch, differing};
pub use dtype::{Arithmetic, Dtype};
pub use payload::{Converter, Overflow, PARTS_MAX, Whole};
pub use session::{Session, SessionState, shape};
