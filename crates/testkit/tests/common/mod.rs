//! What the tests that start real programs share.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The machine has few CPUs: one switch at a time. Held while a test's programs run.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of the release programs.
pub fn programs() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
            PathBuf::from,
        )
        .join("release");
    assert!(
        folder.join("tally-agent").exists(),
        "first: cargo build --release"
    );
    folder
}
