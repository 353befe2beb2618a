//! The switch appliance: DPDK ports around the aggregation engine.
//!
//! Read in this order: [`config`] is what the operator says; [`run`] builds ports, threads and
//! channels from it and tears them down; [`datapath`] is one data core's poll loop, which drives a
//! [`tally_engine::core`] on DPDK ([`platform`]); [`card`] is the thread that has an FPGA card;
//! [`control`] is the thread that admits members and answers the statistics socket; they command
//! the data cores over the [`bus`]; [`report`] adds up what all of them counted.
//!
//! Threads own what they use. A [queue](queues) of a port belongs to one data core; a fragment
//! belongs to one data core, by its UDP port. Where the two are different cores, the frame is
//! handed over through a bounded ring. Nothing on the data path waits.

pub mod api;
pub mod board;
pub mod bus;
pub mod capture;
pub mod card;
pub mod control;
pub mod control_queue;
pub mod datapath;
pub mod drain;
pub mod events;
pub mod fabric;
pub mod handover;
pub mod init;
pub mod load;
pub mod machine;
pub mod messages;
pub mod monitor;
pub mod plane;
pub mod platform;
pub mod pools;
pub mod ports;
pub mod queues;
pub mod report;
pub mod run;
pub mod switchml;
pub mod telemetry;
pub mod watch;
pub mod watchdog;

pub use tally_schema::switch::config;
pub use tally_telemetry as log;
