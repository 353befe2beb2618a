//! Who owns a file, for errors.

use nix::unistd::{Uid, User};
use std::fmt::Write;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The name of a user, or the number of one without a name.
pub(crate) fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// What to do about a file that cannot be read: whose it is, if that is the reason.
pub(crate) fn hint(path: &Path, error: &io::Error) -> String {
    let mut hint = String::new();
    if error.kind() != io::ErrorKind::PermissionDenied {
        return hint;
    }
    let we = name(nix::unistd::geteuid().as_raw());
    // Formatting into a string does not fail.
    let _ = match std::fs::metadata(path) {
        Ok(file) => write!(
            hint,
            ": owner {}, mode {:04o}, and this is user {we} (chown {we} {})",
            name(file.uid()),
            file.mode() & 0o7777,
            path.display()
        ),
        Err(_) => write!(hint, ": user {we} may not enter its folder"),
    };
    hint
}
