//! A small SwitchML client of our own, for tests and benchmarks of the switch.
//!
//! # The idea
//!
//! The published client is sound on a path without loss only, needs a NIC, and sums one way. This
//! one is written from the protocol's table, repairs losses, and runs over the kernel's sockets as
//! well as over DPDK. It shares no code with the switch's engine.
//!
//! # How it works
//!
//! [`client`] is the protocol without I/O: a window of slots in two sets, packets that are sent
//! again until their result is there, and tensors of integers or of floats, which [`quantiser`]
//! turns into integers block by block. [`control`] speaks gRPC with the switch's controller, in the
//! order of the published client. [`link`] carries datagrams. [`worker`] puts these together, and
//! compares every sum with [`inputs`], which know what all ranks bring; it is what a process of
//! `tally-testkit switchml-worker` does.
//!
//! # The catches
//!
//! - One thread, one UDP port. The published client has several of each: several of these clients,
//!   each with slots of its own.
//! - Datagrams go one by one: for tests, not for speed.

pub mod client;
pub mod control;
pub mod inputs;
pub mod link;
pub mod quantiser;
pub mod worker;
