//! `tally-sim loss`: one job on lossy links, beside the same job without loss.
//!
//! All workers submit one message at the same moment; from then on the workers' links lose frames.
//! [`run`] is one such job with one seed, [`sweep`] many of them, [`command`] the command line.
//! The twin on real links is `tally-perf loss`.
//!
//! Catch: hosts take no time, so that what is measured is the protocol and the links alone.

pub mod command;
pub mod run;
pub mod sweep;
