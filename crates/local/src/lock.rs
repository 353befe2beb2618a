//! The lock beside an agent's socket, and who may put what into its folder.
//!
//! An agent may run as root with its socket in a folder such as `/tmp`, in which any user makes
//! files. So the lock is no link, has one name, and is ours; and no other user can replace the
//! socket.

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Mode of the lock file: a user who can open it can hold it.
const MODE: u32 = 0o600;

/// The lock of the agent that listens at `path`, with its process's number inside.
///
/// # Errors
/// In words: another agent holds it, or it is not a file of ours alone.
pub(crate) fn lock(path: &Path) -> Result<File, String> {
    folder(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let beside = path.with_file_name(name);
    let failed = |why: io::Error| format!("{}: {why}", beside.display());
    let opened = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        // A pipe of somebody's may not block us.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&beside);
    let mut file = match opened {
        Err(why) if why.raw_os_error() == Some(libc::ELOOP) => {
            return Err(format!(
                "{} is a symbolic link, expected a lock file; remove it",
                beside.display()
            ));
        }
        opened => opened.map_err(failed)?,
    };
    let found = file.metadata().map_err(failed)?;
    ours_alone(&beside, &found)?;
    if found.mode() & 0o7777 != MODE {
        file.set_permissions(Permissions::from_mode(MODE))
            .map_err(failed)?;
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            // Only for the words.
            let _ = (&file).take(20).read_to_string(&mut owner);
            let owner = owner.trim();
            return Err(format!(
                "another agent serves it (process {owner}); stop that one, or give this one a `socket` of its own"
            ));
        }
        Err(TryLockError::Error(why)) => return Err(failed(why)),
    }
    sign(&mut file).map_err(failed)?;
    Ok(file)
}

/// Writes this process's number into its lock.
pub(crate) fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// That the lock is a file that only we could have made. It is emptied: a second name could be that
/// of any file of ours.
fn ours_alone(path: &Path, found: &Metadata) -> Result<(), String> {
    let path = path.display();
    if !found.is_file() {
        return Err(format!(
            "{path} is no regular file, expected a lock file; remove it"
        ));
    }
    if found.uid() != our_user() {
        return Err(format!(
            "{path} belongs to user {}, expected user {}, who runs this agent; remove it",
            found.uid(),
            our_user()
        ));
    }
    if found.nlink() != 1 {
        return Err(format!(
            "{path} has {} names (hard links), expected one; remove it",
            found.nlink()
        ));
    }
    Ok(())
}

/// Checks that only we, root and users whom the folder's owner trusts can replace the socket at
/// `path`.
fn folder(path: &Path) -> Result<(), String> {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = parent.map_or_else(|| PathBuf::from("."), Path::to_owned);
    let found = fs::metadata(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let folder = folder.display();
    if ![0, our_user()].contains(&found.uid()) {
        return Err(format!(
            "the folder {folder} belongs to user {}, who could replace the socket; expected root or user {}, who runs \
             this agent",
            found.uid(),
            our_user()
        ));
    }
    let mode = found.mode() & 0o7777;
    if mode & 0o002 != 0 && mode & libc::S_ISVTX == 0 {
        return Err(format!(
            "the folder {folder} has mode {mode:04o}, so that every user could replace the socket (chmod o-w {folder})"
        ));
    }
    Ok(())
}

fn our_user() -> u32 {
    // SAFETY: no pointers.
    unsafe { libc::geteuid() }
}

/// Makes way for a socket at `path`: removes that of an agent that ended without removing it.
///
/// # Errors
/// In words, if something else is there, or it cannot be removed.
pub(crate) fn make_way(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            fs::remove_file(path).map_err(|why| why.to_string())
        }
        Ok(_) => Err("there is a file that is no socket; remove it, or choose another path".into()),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::fs::{chown, symlink};

    const OTHER_USER: u32 = 65534;

    fn refused(socket: &Path, why: &str) {
        let error = lock(socket).unwrap_err();
        assert!(error.contains(why), "{error}: {why}");
    }

    #[test]
    fn a_lock_is_a_file_of_ours_that_no_other_user_can_open() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a");
        let beside = folder.path().join("a.lock");
        let mode = || fs::metadata(&beside).unwrap().mode() & 0o7777;
        let held = lock(&socket).unwrap();
        assert_eq!(mode(), 0o600);
        refused(&socket, "another agent serves it");
        drop(held);
        // Of an agent that left it open to others.
        fs::set_permissions(&beside, Permissions::from_mode(0o666)).unwrap();
        drop(lock(&socket).unwrap());
        assert_eq!(mode(), 0o600);
        fs::remove_file(&beside).unwrap();

        let precious = folder.path().join("precious");
        fs::write(&precious, "words").unwrap();
        symlink(&precious, &beside).unwrap();
        refused(&socket, "is a symbolic link");
        fs::remove_file(&beside).unwrap();
        symlink(folder.path().join("nothing"), &beside).unwrap();
        refused(&socket, "is a symbolic link");
        assert!(!folder.path().join("nothing").exists());
        fs::remove_file(&beside).unwrap();
        fs::hard_link(&precious, &beside).unwrap();
        refused(&socket, "has 2 names");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "words");
        fs::remove_file(&beside).unwrap();
        fs::create_dir(&beside).unwrap();
        refused(&socket, "a.lock");
        fs::remove_dir(&beside).unwrap();
        let name = std::ffi::CString::new(beside.to_str().unwrap()).unwrap();
        // SAFETY: a string that ends with zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
        refused(&socket, "is no regular file");
    }

    #[test]
    fn a_lock_of_another_user_and_a_folder_of_theirs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a");
        let beside = folder.path().join("a.lock");
        let open = |mode| fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        open(0o777);
        refused(
            &socket,
            "has mode 0777, so that every user could replace the socket",
        );
        open(0o1777);
        drop(lock(&socket).unwrap());
        open(0o755);
        if our_user() != 0 {
            // Past the harness, which keeps to itself what passing tests say.
            let why = "another user's lock needs root";
            let _ = writeln!(io::stderr(), "SKIPPED: {why}");
            return;
        }
        chown(&beside, Some(OTHER_USER), None).unwrap();
        refused(&socket, "belongs to user 65534, expected user 0");
        fs::remove_file(&beside).unwrap();
        chown(folder.path(), Some(OTHER_USER), None).unwrap();
        refused(
            &socket,
            "belongs to user 65534, who could replace the socket",
        );
    }
}
