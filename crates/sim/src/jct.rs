//! Job completion times: training jobs that share one switch, policy beside policy.
//!
//! ESA's paper (arXiv 2201.06398) claims average completion times up to 1.35 times better than
//! ATP's and SwitchML's. Here the four policies run the same jobs, with the same seeds, over a
//! sweep of pool sizes, numbers of jobs, numbers of workers and mixes of models; docs/JCT.md has
//! the scenario, which was fixed before anything was measured.
//!
//! [`models`] and [`training`] say what is computed and when it may be; [`feed`] what is summed,
//! and checks it; [`run`] puts them on a simulated network; [`breakdown`] says where time went;
//! [`sweep`] and [`summary`] make a comparison of many runs. [`command`] is the command line, and
//! [`scale`] another use of the same: very many workers at a time.

pub mod breakdown;
pub mod command;
pub mod feed;
pub mod models;
pub mod run;
pub mod scale;
pub mod summary;
pub mod sweep;
pub mod training;
