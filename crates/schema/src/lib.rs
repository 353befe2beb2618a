//! Shapes of configurations and reports: what Tally's programs read and write as JSON.
//!
//! Every type goes both ways, so that a program's own tests, its neighbours and the tools around it
//! share one definition. Programs fill reports in from what they know; nothing here needs DPDK.
//!
//! | module | program |
//! |---|---|
//! | [`agent`] | `tally-agent` |
//! | [`controller`] | `tally-controller` |
//! | [`switch`] | `tally-switch` |
//! | [`event`], [`metrics`] | all daemons |

pub mod agent;
pub mod controller;
pub use agent::doctor;
pub mod event;
mod hex;
pub mod json_schema;
pub mod key;
pub mod metrics;
pub mod switch;
mod text;

#[cfg(test)]
mod golden;
