//! Job completion times: training jobs that share one switch, policy beside policy.
//!
//! ESA's paper (arXiv 2201.06398) claims average completion times up to 1.35 times better than
//! ATP's and SwitchML's. Here the four policies run the same jobs, with the same seeds, over a
//! sweep of pool sizes, numbers of jobs, numbers of workers and mixes of models; docs/JCT.md has
//! the scenario, which was fixed before anything was measured.
//!
//! [`models`] and [`training`] say what is computed and when it may be; [`feed`] what is summed,
//! and checks it; [`scenario`] and `setup` what the network is; [`run`] has all of it happen;
//! `bound` says what no policy can beat, and [`breakdown`] where time went; [`sweep`] and
//! [`summary`] make a comparison of many runs.
//! [`leaf_spine`] compares ways to sum over leaves and a spine, and `ring` models rings of hosts.
//! [`command`] is the command line, and [`scale`] another use of the same: very many workers at a
//! time.

mod bound;
pub mod breakdown;
pub mod command;
pub mod feed;
pub mod leaf_spine;
pub mod models;
mod ring;
pub mod run;
pub mod scale;
pub mod scenario;
mod setup;
pub mod summary;
pub mod sweep;
pub mod training;
