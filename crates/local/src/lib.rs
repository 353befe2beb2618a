//! Between a training process and the agent on its host.
//!
//! # How it works
//!
//! The process ([`Client`]) connects to the agent's Unix socket and says which job and rank it is.
//! It makes memory that both share ([`Region`]), puts tensors there, and submits collectives on
//! parts of it. The agent ([`Listener`], [`Peer`]) reads the elements out of that memory ([`Span`])
//! into the payloads that it sends, and writes results over them: there is no copy between the
//! process's buffer and the packets but the one that makes them. [`Job`] is a client for several
//! threads, which bindings to other languages are made of.
//!
//! The socket is one of whole messages (`SOCK_SEQPACKET`): none is half read, a file descriptor
//! belongs to its message, and the end of either side is noticed at once. A submission is one
//! message, its completion another.
//!
//! # Guarantees against a hostile other side
//!
//! Neither side can make the other crash, hang, or read or write outside of a region.
//!
//! * All that is decided upon comes in messages, which are copies; the shared memory holds elements
//!   alone, of which every pattern of bits is one. So nothing can change between its check and its
//!   use.
//! * The memory cannot shrink behind our back (which would end us with SIGBUS): the agent takes
//!   only a memfd of ordinary pages that is sealed against it and is as long as it is said to be. A
//!   file of another kind, such as one whose reads hang, has no seals, and is not even looked at.
//! * The process pays for its regions in every case: the agent seals them against holes
//!   (`F_SEAL_FUTURE_WRITE`) and then refuses a region that is not populated, so that it never
//!   allocates a page of one.
//! * Each span is checked against its region once, when it is submitted, and each access against
//!   the span.
//! * The agent never waits for a process: what a process does not read is kept, up to a bound, and
//!   then it is cut off. All else that a process can ask for has a bound too ([`Limits`]).
//! * A message that is wrong ends the connection with words.
//!
//! # The catches
//!
//! * A forked child keeps the socket open. The agent also watches the process itself (pidfd) where
//!   the kernel gives it one, and so notices that it has ended while its children live on.
//! * A memfd is one region of one agent: after the agent's seal no other can map it.
//! * A page that is swapped out after the process and its memory cgroup are gone is charged to the
//!   agent when it is swapped in. The agent drops regions of a process that has ended when their
//!   collectives are over.
//! * To close a descriptor that a process has sent, or to seal it, can take as long as that process
//!   likes. So only a
//!   [`Peer`] takes any, once the process is let in: give each a thread, which then hangs for that
//!   process alone. Before Linux 6.16 (`SO_PASSRIGHTS`) a descriptor that comes with the first
//!   message can hold up the [`Listener`] too.
//! * Regions that overlap, or a tensor that is written while it is summed, give wrong sums, and
//!   nothing worse.

mod agent;
mod client;
mod collective;
mod connect;
mod error;
mod fallback;
mod job;
mod lock;
mod memory;
mod message;
mod ranks;
mod socket;
mod status;
mod succession;
#[cfg(test)]
mod tests;

pub use agent::{Access, Caller, Limits, Listener, Peer, PendingPeer, Request, StatusClient};
pub use client::Client;
pub use collective::{
    Arithmetic, Awaited, Dtype, Hello, Operation, Priority, Submission, WORKERS_MAX,
};
pub use connect::{PLACE_MAX, Retry, SEARCH_MAX};
pub use error::{Class, Failure, JobError, Kind, LocalError};
pub use fallback::{Fallbacks, KIND_BYTES_MAX, KINDS_MAX, OTHER_KIND};
pub use job::{Block, Job};
pub use memory::{Region, SharedMemory, Span};
pub use message::{MESSAGE_BYTES_MAX, NAME_BYTES_MAX, VERSION};
pub use ranks::Ranks;
pub use socket::Presence;
pub use status::status;
pub use succession::{Succession, TEXT_BYTES_MAX};
