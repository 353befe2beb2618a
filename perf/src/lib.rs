//! Benchmarks of Tally, and their reports.
//!
//! Performance is judged by ratios: contenders take turns on the same machine, in the same
//! process, over the same memory, and each is divided by its neighbour in the same round. Absolute
//! numbers are reported with the machine that they belong to.

pub mod commands;
pub mod peers;
pub mod rates;
pub mod record;
pub mod roofline;
