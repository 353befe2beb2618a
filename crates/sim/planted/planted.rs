//! The planted bug that this process has. Part of the copy of the sources that `run` builds.

use std::sync::OnceLock;

/// Whether `TALLY_PLANTED` names this bug.
pub(crate) fn is(bug: &str) -> bool {
    static CHOSEN: OnceLock<String> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("TALLY_PLANTED").unwrap_or_default()) == bug
}
