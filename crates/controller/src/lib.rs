//! A fleet's plan: read from files with names, made by `tally-planner`, shown, explained, drawn,
//! and applied to running switches.
//!
//! [`fleet`] is the file that people write. [`document`] is a plan as a file, by the same names, so
//! that it can be reviewed and compared. [`roles`] makes of a plan what each switch does for a job,
//! [`changes`] the order of changes; both without I/O. [`apply`] makes the changes at the switches
//! of [`remote`]; [`capacity`] measures these. [`daemon`] does all that again and again: [`watch`]
//! says what is down, [`moves`] which jobs may change. Definitions: docs/PLANNING.md.

pub mod apply;
pub mod args;
pub mod capacity;
pub mod changes;
pub mod daemon;
pub mod document;
pub mod events;
pub mod explain;
pub mod fleet;
pub mod jobs;
pub mod location;
pub mod lock;
pub mod measured;
pub mod moves;
pub mod names;
pub mod outcome;
pub mod picture;
pub mod remote;
pub mod roles;
pub mod run;
pub mod show;
pub mod status;
pub mod store;
pub mod tiers;
pub mod unit;
pub mod watch;
