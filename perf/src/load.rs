//! A load generator and sink for the switch, as one DPDK process: simulated workers of any number of jobs,
//! and their parameter servers.
//!
//! # How it works
//!
//! [`plan`] reads the switch's own configuration and decides who sits where; there is no other way to name
//! an address, and nothing but ARP is sent before the switch has answered with the address that is
//! configured. [`rig`] is DPDK: memory, ports, frames that need only new headers. [`members`] are real
//! sessions that join and leave; [`flow`] is which fragments of a job are under way and when they were due;
//! [`run`] is the loop. [`pattern`] gives contributions whose sums are known, [`faults`] what goes wrong on
//! purpose, [`measure`] and [`live`] what is seen of it.

pub mod faults;
pub mod flow;
pub mod live;
pub mod measure;
pub mod members;
pub mod pattern;
pub mod plan;
pub mod rig;
pub mod run;
