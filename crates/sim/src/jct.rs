//! Job completion times: training jobs that share one switch, policy beside policy.
pub mod breakdown;
pub mod feed;
pub mod models;
pub mod run;
pub mod training;
