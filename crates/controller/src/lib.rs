//! A fleet's plan: read from files with names, made by `tally-planner`, shown, explained and drawn.
//!
//! [`fleet`] is the file that people write. [`document`] is a plan as a file, by the same names, so
//! that it can be reviewed and compared. Definitions: docs/PLANNING.md.

pub mod args;
pub mod document;
pub mod explain;
pub mod fleet;
pub mod names;
pub mod picture;
pub mod run;
pub mod show;
