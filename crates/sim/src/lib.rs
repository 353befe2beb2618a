//! The whole system in simulated time.
//!
//! The production code runs unchanged: [`tally_engine`]'s cores and registry in a [`switch`],
//! [`tally_endpoint`]'s workers and parameter servers on [`host`]s, [`tally_session`]'s sessions of
//! [`collectives`], with [`link`]s that delay, lose, copy and reorder between them. Frames are real
//! bytes from Ethernet on. Time is a number, and everything random comes from one seed: what
//! happened once happens again.
//!
//! The core is [`world`], which says how to use it; its parts are a file each. The idea is that of
//! TigerBeetle's VOPR and of FoundationDB's simulation.
//!
//! Catches:
//!
//! * Processing takes no time, but for the registry's (`control_delay`), poll iterations of the
//!   switch's cores ([`switch::PollConfig`]; `check` draws them, `jct` has none), and what
//!   `Host::ahead` keeps back: all other time is spent on links.
//! * Payloads are real and small; what they stand for on the wire may be larger
//!   ([`world::WorldConfig::nominal_payload_bytes`]).
//! * A damaged frame is a lost one: Ethernet's check sequence sees to that. Frames that no receiver
//!   may believe are sent on purpose instead, from hosts that are no members.

pub mod address;
pub mod bridge;
pub mod check;
pub mod collectives;
pub mod ethernet;
pub mod events;
pub mod fabric;
pub mod frame;
pub mod host;
pub mod jct;
pub mod link;
pub mod loss;
pub mod oracle;
mod parallel;
pub mod port;
pub mod rina;
pub mod ring;
pub mod rng;
pub mod switch;
pub mod switchml;
pub mod trace;
pub mod tree;
pub mod world;
