//! The switch appliance: DPDK ports around the aggregation engine.
//!
//! Read in this order: [`config`] is what the operator says; [`run`] builds ports, threads and
//! channels from it and tears them down; [`datapath`] is one data core's loop, which hands frames to
//! the engine or to [`forwarding`]; [`egress`] is its way out, [`steering`] what goes to a card and
//! [`card`] the thread that has it; [`control`] is the thread beside it that
//! admits members and answers the statistics socket; [`messages`] is what they say to each other;
//! [`report`] is what all of it looked like.
//!
//! Threads own what they use. A port belongs to one data core, for receiving and sending; a fragment
//! belongs to one data core, by its UDP port. Where the two are different cores, the frame is handed
//! over through a bounded channel. Nothing on the data path waits for anything.

pub mod card;
pub mod config;
pub mod control;
pub mod control_queue;
pub mod datapath;
pub mod drain;
pub mod egress;
pub mod forwarding;
pub mod handover;
pub mod load;
pub mod log;
pub mod members;
pub mod messages;
pub mod plane;
pub mod pools;
pub mod ports;
pub mod report;
pub mod run;
pub mod steering;
pub mod switchml;
pub mod watch;
