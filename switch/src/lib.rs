//! The switch appliance: DPDK ports around the aggregation engine.
//!
//! Read in this order: [`config`] is what the operator says; [`run`] builds ports, threads and
//! channels from it and tears them down; [`datapath`] is one data core's poll loop, which drives a
//! [`tally_engine::core`] on DPDK ([`platform`]); [`card`] is the thread that has an FPGA card;
//! [`control`] is the thread that admits members and answers the statistics socket; they command the
//! data cores over the [`bus`]; [`report`] is what all of it looked like.
//!
//! Threads own what they use. A port belongs to one data core, for receiving and sending; a fragment
//! belongs to one data core, by its UDP port. Where the two are different cores, the frame is handed
//! over through a bounded channel. Nothing on the data path waits for anything.

pub mod bus;
pub mod card;
pub mod config;
pub mod control;
pub mod control_queue;
pub mod datapath;
pub mod drain;
pub mod handover;
pub mod load;
pub mod log;
pub mod messages;
pub mod plane;
pub mod platform;
pub mod pools;
pub mod ports;
pub mod report;
pub mod run;
pub mod switchml;
pub mod watch;
