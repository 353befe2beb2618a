//! Listeners: Unix sockets with mode and group, and TCP with mutual TLS.
//!
//! A socket is made under another name with its mode and group, and then renamed to its path, so
//! no process connects before they hold. The leftover of a crash is replaced; a socket at which a
//! process answers refuses the start.

use super::Rights;
use nix::unistd::{Gid, Group, Uid, User};
use std::ffi::{CString, OsString};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream};
use std::path::{Path, PathBuf};
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};

/// Bytes of the longest path of a Unix socket, with room for the temporary name.
const PATH_BYTES_MAX: usize = 100;

/// A socket that cannot be listened at.
#[derive(Debug, Error)]
pub enum ListenError {
    /// A process answers there.
    #[error("{}: in use: a process answers there (stop it, or configure another path)", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket is there.
    #[error("{}: not a socket, and not replaced (remove it, or configure another path)", .0.display())]
    NotSocket(PathBuf),
    /// The path is too long for a socket.
    #[error("{}: path of {bytes} bytes, at most {PATH_BYTES_MAX} are allowed", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// The group does not exist.
    #[error("{}: group `{group}` does not exist (groupadd --system {group})", path.display())]
    NoGroup {
        /// The socket's path.
        path: PathBuf,
        /// The group.
        group: String,
    },
    /// The kernel refuses.
    #[error("{what}: {error}")]
    Refused {
        /// The path or address, and what was tried.
        what: String,
        /// Why. Not a source of this error, or a report of the chain would name it twice.
        error: io::Error,
    },
    /// Others than its owner may read the key.
    #[error("{}: mode {mode:04o} lets other users read the key, expected 0600 (chmod 600 {})",
        path.display(), path.display())]
    KeyMode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

/// A Unix socket to listen at.
#[derive(Clone, Debug)]
pub struct UnixSocket {
    /// Where.
    pub path: PathBuf,
    /// Mode of the socket's file.
    pub mode: u32,
    /// Group of the socket's file.
    pub group: Option<String>,
    /// What its peers may do at most.
    pub rights: Rights,
}

/// Files of a TCP listener.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The daemon's certificate, PEM.
    pub certificate: PathBuf,
    /// The key of the certificate, PEM.
    pub key: PathBuf,
    /// The authority whose certificates callers must show, PEM.
    pub client_ca: PathBuf,
}

/// A socket that is bound. Dropped, it is removed.
pub struct Listener {
    bound: Bound,
    allowed: Allowed,
    tls: Option<Pem>,
}

pub(super) struct Pem {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) client_ca: Vec<u8>,
}

/// Which peers of a listener may do what.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    rights: Rights,
    /// Only root, this process's user and the group have connected: the kernel has looked at the
    /// socket's mode.
    by_mode: bool,
    group: Option<(String, Gid)>,
}

impl Allowed {
    /// Rights of a process of that user, whose group is `gid`.
    pub(super) fn rights(&self, uid: u32, gid: u32) -> Rights {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let own = uid.is_root() || uid == Uid::effective();
        if self.rights == Rights::Control && (own || self.by_mode || self.is_member(uid, gid)) {
            Rights::Control
        } else {
            Rights::View
        }
    }

    /// Rights of a host that has shown a certificate.
    pub(super) const fn of_certificate(&self) -> Rights {
        self.rights
    }

    fn is_member(&self, uid: Uid, gid: Gid) -> bool {
        let Some((_, group)) = &self.group else {
            return false;
        };
        if gid == *group {
            return true;
        }
        let Ok(Some(user)) = User::from_uid(uid) else {
            return false;
        };
        let name = CString::new(user.name);
        let groups = name.map(|name| nix::unistd::getgrouplist(&name, user.gid));
        groups.is_ok_and(|groups| groups.is_ok_and(|groups| groups.contains(group)))
    }

    /// Who may make changes, for refusals.
    pub(super) fn names(&self) -> String {
        if self.rights == Rights::View {
            return "peers of the control socket; this one is read-only".into();
        }
        let user = Uid::effective();
        let own = if user.is_root() {
            String::new()
        } else {
            format!(", user {user}")
        };
        match &self.group {
            Some((name, _)) => format!("root{own} and group {name}"),
            None => format!("root{own}; `control.group` would allow a group"),
        }
    }
}

pub(super) enum Bound {
    Unix(StdUnixListener, SocketFile),
    Tcp(StdTcpListener),
}

/// The daemon's half of a listener, in a runtime.
pub(super) enum Acceptor {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Bound {
    /// In the runtime that is entered.
    pub(super) fn accept(&self) -> io::Result<Acceptor> {
        Ok(match self {
            Self::Unix(listener, _) => {
                Acceptor::Unix(UnixListener::from_std(listener.try_clone()?)?)
            }
            Self::Tcp(listener) => Acceptor::Tcp(TcpListener::from_std(listener.try_clone()?)?),
        })
    }
}

impl Listener {
    /// Listens at a path.
    ///
    /// # Errors
    /// If the path is taken, or cannot be made with its mode and group.
    pub fn unix(socket: &UnixSocket) -> Result<Self, ListenError> {
        let UnixSocket {
            path, mode, group, ..
        } = socket;
        let refused = |what: &str, error: io::Error| ListenError::Refused {
            what: format!("{}: {what}", path.display()),
            error,
        };
        let bytes = path.as_os_str().len();
        if bytes > PATH_BYTES_MAX {
            let path = path.clone();
            return Err(ListenError::TooLong { path, bytes });
        }
        let group = match group {
            None => None,
            Some(name) => {
                let found = Group::from_name(name).map_err(|e| refused("group", e.into()))?;
                let found = found.ok_or_else(|| ListenError::NoGroup {
                    path: path.clone(),
                    group: name.clone(),
                })?;
                Some((name.clone(), found.gid))
            }
        };
        check_free(path)?;
        if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
            fs::create_dir(folder)
                .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755)))
                .map_err(|error| refused("cannot make its folder", error))?;
        }
        let mut temporary = OsString::from(path);
        temporary.push("~");
        let temporary = PathBuf::from(temporary);
        let _ = fs::remove_file(&temporary);
        let listener = StdUnixListener::bind(&temporary)
            .map_err(|error| refused("cannot listen there", error))?;
        let file = (|| {
            if let Some((_, gid)) = &group {
                std::os::unix::fs::chown(&temporary, None, Some(gid.as_raw()))?;
            }
            fs::set_permissions(&temporary, Permissions::from_mode(*mode))?;
            listener.set_nonblocking(true)?;
            fs::rename(&temporary, path)?;
            SocketFile::new(path)
        })();
        let file = file.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            refused("cannot set its mode and group", error)
        })?;
        let allowed = Allowed {
            rights: socket.rights,
            by_mode: mode & 0o007 == 0 && (group.is_some() || mode & 0o070 == 0),
            group,
        };
        Ok(Self {
            bound: Bound::Unix(listener, file),
            allowed,
            tls: None,
        })
    }

    /// Listens at a TCP address for peers that show a certificate of the authority.
    ///
    /// # Errors
    /// If the address is taken, a file cannot be read, or others may read the key.
    pub fn tcp(address: SocketAddr, tls: &Tls) -> Result<Self, ListenError> {
        let read = |path: &Path| {
            fs::read(path).map_err(|error| ListenError::Refused {
                what: path.display().to_string(),
                error,
            })
        };
        let pem = Pem {
            certificate: read(&tls.certificate)?,
            key: read(&tls.key)?,
            client_ca: read(&tls.client_ca)?,
        };
        let mode = fs::metadata(&tls.key).map_or(0, |found| found.mode() & 0o7777);
        if mode & 0o077 != 0 {
            let path = tls.key.clone();
            return Err(ListenError::KeyMode { path, mode });
        }
        let refused = |error| ListenError::Refused {
            what: format!("cannot listen at {address}"),
            error,
        };
        let listener = StdTcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let allowed = Allowed {
            rights: Rights::Control,
            by_mode: false,
            group: None,
        };
        Ok(Self {
            bound: Bound::Tcp(listener),
            allowed,
            tls: Some(pem),
        })
    }

    /// Where it listens, for the log; with the port that the kernel chose, if it was to.
    #[must_use]
    pub fn place(&self) -> String {
        match &self.bound {
            Bound::Unix(_, file) => file.path.display().to_string(),
            Bound::Tcp(listener) => {
                (listener.local_addr()).map_or_else(|_| "TCP".into(), |address| address.to_string())
            }
        }
    }

    pub(super) fn into_parts(self) -> (Bound, Allowed, Option<Pem>) {
        (self.bound, self.allowed, self.tls)
    }
}

/// That no process answers at `path`, and nothing but a socket is there.
fn check_free(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NotSocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // Also if it does not let this process in, or has no place for it now.
        _ => Err(ListenError::InUse(path.to_owned())),
    }
}

/// A socket's file, which is removed with this, unless another process has replaced it.
pub(super) struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            id: (found.dev(), found.ino()),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
