//! What `tally-agent` reads and writes: as a worker, a parameter server and the agent of a host.

pub mod config;
pub mod doctor;
pub mod metrics;
pub mod report;
pub mod status;
