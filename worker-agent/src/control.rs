//! The request channel of an agent that runs: gRPC over a Unix socket.
//!
//! [`proto`] has the calls, [`client`] makes them. The agent answers on a thread of its own
//! (`daemon/control.rs`).

pub mod client;
pub mod proto;
