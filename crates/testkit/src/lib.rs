//! Test support: real processes on one machine, for end-to-end tests, benchmarks and the
//! demonstration.
//!
//! - [`cluster`] makes a network and starts a switch, workers, parameter servers and agents on it;
//!   [`interactive`] gives it to a program in another language.
//! - [`fabric`] makes a network of several switches, and runs jobs whose trees span them.
//! - [`planned`] carries out a plan of `crates/planner`, and measures its rate.
//! - [`racks`] makes racks with and without Tally, with an agent on each host.
//! - [`mod@reference`] compares sums with a program that shares no code with Tally.
//! - [`replay`] feeds captures to `tally-switch` and `dpdk-testpmd` in a loop.
//! - [`switchml`] is a SwitchML client of our own; [`switchml_worker`] is its command line.
//!
//! The end-to-end tests of the project are this package's tests. Nothing here is part of an
//! installation.

pub mod cluster;
pub mod device;
pub mod fabric;
pub mod interactive;
pub mod losses;
pub mod planned;
pub mod racks;
pub mod reference;
pub mod replay;
pub mod ring_worker;
pub mod switchml;
pub mod switchml_worker;
