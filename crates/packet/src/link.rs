//! The links of interfaces: whether they exist, and whether the other end is there.

use crate::Error;
use crate::socket::{ask, index_of, request_of, system};
use std::os::fd::{FromRawFd, OwnedFd};

/// An interface as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Its number. An interface that is deleted and made again has another one.
    pub index: u32,
    /// Whether it was set up (`ip link set up`).
    pub is_up: bool,
    /// Whether the other end is there.
    pub has_carrier: bool,
}

/// What the kernel is asked with.
pub struct Links(OwnedFd);

impl Links {
    /// For the interfaces of this thread's network namespace.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new() -> Result<Self, Error> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if fd < 0 {
            return Err(system("opening a socket to ask for links"));
        }
        // SAFETY: a new file descriptor, which only we own.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The interface of this name; `None` if there is none.
    #[must_use]
    pub fn state(&self, interface: &str) -> Option<LinkState> {
        let index = index_of(&self.0, interface).ok()?;
        let mut request = request_of(interface)?;
        ask(&self.0, libc::SIOCGIFFLAGS as libc::c_ulong, &mut request).ok()?;
        // SAFETY: the kernel has written the flags.
        let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        Some(LinkState {
            index: index.cast_unsigned(),
            is_up: flags & libc::IFF_UP != 0,
            has_carrier: flags & libc::IFF_RUNNING != 0,
        })
    }
}
