//! The one controller that works: the holder of an exclusive lock on a file.
//!
//! The kernel drops the lock when its process ends, however it ends. The file stays.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Opens the file of a lock, which is made if it is not there.
///
/// # Errors
/// The kernel's reason.
pub fn open(path: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
}

/// Takes the lock if no other process has it. Else the file comes back.
///
/// # Errors
/// The kernel's reason.
pub fn take(file: File) -> io::Result<Result<Lock, File>> {
    match file.try_lock() {
        Ok(()) => Ok(Ok(Lock { _file: file })),
        Err(TryLockError::WouldBlock) => Ok(Err(file)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = take(open(&path).unwrap()).unwrap().unwrap();
        let standby = take(open(&path).unwrap()).unwrap().unwrap_err();
        drop(first);
        let second = take(standby).unwrap().unwrap();
        assert!(take(open(&path).unwrap()).unwrap().is_err());
        drop(second);
    }
}
