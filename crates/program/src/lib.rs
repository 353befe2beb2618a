//! What all programs of Tally share.
//!
//! | module | has |
//! |---|---|
//! | [`exit`] | the one table of exit codes |
//! | [`service`] | readiness and the watchdog of systemd |
//! | [`documents`] | man pages and completions, made from the command line's own description |
//! | [`errors`] | the words of an error and of what caused it, each once |
//! | [`table`] | tables of aligned columns |

pub mod documents;
pub mod errors;
pub mod exit;
pub mod service;
pub mod table;

pub use exit::Exit;

/// The version with the commit that it was built from: `0.1.0 (commit b791fb7a12c3)`.
pub const VERSION: &str = env!("TALLY_VERSION");
