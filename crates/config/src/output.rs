//! Files that a program leaves behind: whole, or as they were before.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes the file at `path`: all of `contents`, or nothing.
///
/// They go to a temporary file in the same folder, which takes the place of `path` once the disk
/// has it all. So a disk that is full leaves a report of an earlier run as it was. What is no
/// regular file, such as a pipe or `/dev/stdout`, is written to directly.
///
/// # Errors
/// The kernel's reason, without the path.
pub fn write_whole(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let (path, contents) = (path.as_ref(), contents.as_ref());
    // Through links, which stay; there may be nothing yet.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return File::options().write(true).open(path)?.write_all(contents);
    }
    let (folder, temporary) = beside(path)?;
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(&folder)?.sync_all()
    });
    if written.is_err() {
        // It may not be there; the first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Tries whether [`write_whole`] could write the file at `path`, and leaves nothing behind.
///
/// # Errors
/// The kernel's reason, without the path.
pub fn try_write(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        // Opening a pipe waits for its reader.
        return Ok(());
    }
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let (_, temporary) = beside(path)?;
    File::create(&temporary)?;
    fs::remove_file(&temporary)
}

/// The folder of `path`, and a name in it that no other process uses.
fn beside(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file");
    let name = path.file_name().ok_or_else(none)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    Ok((folder.to_owned(), folder.join(temporary)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    fn names(folder: &Path) -> Vec<OsString> {
        let all = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = all.map(|it| it.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_a_link_to_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("r.json"), folder.path().join("link"));
        write_whole(&path, "one").unwrap();
        symlink(&path, &link).unwrap();
        write_whole(&link, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(folder.path()), ["link", "r.json"]);
        write_whole("/dev/null", "three").unwrap();
        let error = write_whole("/dev/full", "four").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        for bad in ["/nowhere/r.json", "/", "/dev/null/x"] {
            assert!(write_whole(bad, "five").is_err(), "{bad}");
        }
    }

    #[test]
    fn a_trial_says_what_writing_would_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json");
        try_write(&path).unwrap();
        assert!(names(folder.path()).is_empty());
        write_whole(&path, "one").unwrap();
        try_write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        try_write("/dev/stdout").unwrap();
        let error = try_write(folder.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        for bad in ["/nowhere/r.json", "/", "/dev/null/x"] {
            assert!(try_write(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_full_disk_leaves_the_earlier_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "tally-full"])
            .arg(at)
            .stderr(std::process::Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            // Past the harness, which keeps to itself what passing tests say.
            let why = "a disk that is full wants root (mount)";
            let _ = writeln!(io::stderr(), "SKIPPED: {why}");
            return;
        }
        let path = at.join("r.json");
        write_whole(&path, "earlier").unwrap();
        let error = write_whole(&path, vec![b'x'; 1 << 20]).unwrap_err();
        let (left, names) = (fs::read_to_string(&path).unwrap(), names(at));
        assert!(Command::new("umount").arg(at).status().unwrap().success());
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(left, "earlier");
        assert_eq!(names, ["r.json"]);
    }
}
