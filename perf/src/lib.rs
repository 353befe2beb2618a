//! Benchmarks of Tally: what they measure with, and what they say.
//!
//! Performance is judged by ratios: contenders take turns on the same machine, in the same
//! process, over the same memory, and each is divided by its neighbour in the same round. Absolute
//! numbers are reported with the machine that they belong to.

pub mod cluster;
pub mod commands;
pub mod load;
pub mod peers;
pub mod record;
pub mod reference;
pub mod replay;
pub mod switchml;
