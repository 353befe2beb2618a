//! `tally-load`: a load generator and sink for a switch, as one DPDK process that simulates the
//! workers of any number of jobs and their parameter servers; and files with which Pktgen-DPDK does
//! so.
//!
//! # How it works
//!
//! [`plan`] reads the switch's own configuration and assigns members to ports. There is no other
//! way to name an address, and the generator sends nothing but ARP before the switch has answered
//! with the configured address. [`rig`] is DPDK: memory, ports, frames that need only new headers.
//! [`members`] are real sessions that join and leave; [`flow`] tracks which fragments of a job are
//! in flight and when they were due; [`run`] is the loop. [`pattern`] makes contributions whose
//! sums are known, [`faults`] injects loss and reordering, [`measure`] and [`live`] count and show.
//! [`command`] and [`report`] are `tally-load run`.
//!
//! [`capture`] writes a job's contributions as files that a program replays in a loop, with the
//! configuration of the switch that sums them; [`pktgen`] is `tally-load pktgen`.

pub mod args;
pub mod capture;
pub mod command;
pub mod faults;
pub mod flow;
pub mod live;
pub mod measure;
pub mod members;
pub mod pattern;
pub mod pktgen;
pub mod plan;
pub mod report;
pub mod rig;
pub mod run;
