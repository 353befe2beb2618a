//! What `tally-switch` reads and writes.

pub mod config;
pub mod report;
