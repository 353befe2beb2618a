//! `tally-sim rina`: rings through racks whose switch sums, beside rings and parameter servers.
//!
//! The state machines of `tally-rina` run unchanged over links with a rate and a delay.
//! [`network`] has the links, [`fabric`] the racks. [`rings`] runs Rina, rings and hierarchical
//! rings, [`server`] parameter servers with and without summing switches on the way. [`sweep`] is
//! the deployment sweep of Rina's paper, [`command`] the command line.
//!
//! Catches:
//!
//! * Transfers are segments, cut through at switches. No loss, no congestion control: a link is a
//!   queue without bound.
//! * Hosts and switches take no time to sum.

pub mod command;
pub mod fabric;
pub mod network;
pub mod rings;
pub mod server;
pub mod sweep;
