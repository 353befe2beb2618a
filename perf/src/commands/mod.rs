//! The commands: one file each, with its `Args` and a `run` that returns a
//! [`Report`](tally_report::Report).

pub mod allreduce;
pub mod bridge;
pub mod card;
pub mod compare;
pub mod cores;
pub mod datapath;
pub mod demo;
pub mod fabric;
pub mod kernels;
pub mod latency;
pub mod loss;
pub mod plan;
pub mod plot;
pub mod policies;
pub mod pool;
pub mod rina;
pub mod roce;
pub mod switchml;
pub mod training;
