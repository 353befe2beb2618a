//! Leftovers of killed runs, found by the process id in their names.

use std::path::Path;

/// First part of the name of everything that a cluster makes, before the process id.
pub(crate) const PREFIX: &str = "tally-";

/// Whether this is the name of a cluster's namespace or folder whose process is gone.
pub(super) fn is_leftover(name: &str) -> bool {
    let id = name
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists())
}

/// Removes the folders of runs whose process is gone, as far as this user may.
pub(crate) fn remove_leftover_folders() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        if is_leftover(&entry.file_name().to_string_lossy()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
