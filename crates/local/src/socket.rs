//! Sockets of whole messages, with file descriptors: what the standard library does not have.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Processes that may wait to be accepted.
const BACKLOG: libc::c_int = 128;
/// Room for one file descriptor. The kernel's alignment makes it room for two.
const CONTROL_BYTES: usize = 24;

/// Whether descriptors may come with messages, since Linux 6.16 (asm-generic/socket.h).
const SO_PASSRIGHTS: libc::c_int = 83;

/// A Unix socket of type `SOCK_SEQPACKET` that never blocks.
#[derive(Debug)]
pub(crate) struct Seqpacket(Arc<OwnedFd>);

/// Sees whether a process still holds its connection, without holding it too.
#[derive(Clone, Debug)]
pub struct Presence(Weak<OwnedFd>);

impl Presence {
    /// Whether the connection has ended: the process is gone or has closed it, or the agent has.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let Some(fd) = self.0.upgrade() else {
            return true;
        };
        let mut polled = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: one entry, which lives on.
        let found = unsafe { libc::poll(&raw mut polled, 1, 0) };
        found > 0 && polled.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
    }
}

/// A message that was received.
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// It was longer than the room for it.
    pub(crate) cut_off: bool,
    pub(crate) fd: Option<OwnedFd>,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Seqpacket {
    pub(crate) fn new() -> io::Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers.
        let fd = own(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
        Ok(Self(Arc::new(fd)))
    }

    /// Two that are connected.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let mut fds = [0; 2];
        // SAFETY: room for two.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
        let [a, b] = fds;
        Ok((Self(Arc::new(own(a)?)), Self(Arc::new(own(b)?))))
    }

    /// A socket that another process made, of this type.
    pub(crate) fn of(descriptor: OwnedFd) -> Self {
        Self(Arc::new(descriptor))
    }

    pub(crate) fn connect(&self, path: &Path) -> io::Result<()> {
        let (address, bytes) = address_of(path)?;
        // SAFETY: an address of that many bytes.
        check(unsafe { libc::connect(self.raw(), (&raw const address).cast(), bytes) })
    }

    /// Listens at `path`, which nothing may be at. Until the caller says otherwise, only the owner
    /// can connect.
    pub(crate) fn listen(&self, path: &Path) -> io::Result<()> {
        let (address, bytes) = address_of(path)?;
        // The socket file gets its mode from the socket.
        // SAFETY: no pointers.
        check(unsafe { libc::fchmod(self.raw(), 0o600) })?;
        // SAFETY: an address of that many bytes.
        check(unsafe { libc::bind(self.raw(), (&raw const address).cast(), bytes) })?;
        // SAFETY: no pointers.
        check(unsafe { libc::listen(self.raw(), BACKLOG) })
    }

    pub(crate) fn accept(&self) -> io::Result<Self> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the address is not asked for.
        let fd = unsafe { libc::accept4(self.raw(), ptr::null_mut(), ptr::null_mut(), flags) };
        own(fd).map(|fd| Self(Arc::new(fd)))
    }

    /// Whether the other side may send descriptors, which otherwise fails there with `EPERM`. A
    /// listening socket's connections begin as it is. The last reference to a file that is dropped
    /// closes it, which can take as long as its sender likes: a TCP socket with `SO_LINGER`, or a
    /// file of a file system of the sender's own. So a thread that others depend on lets none come.
    /// Kernels before Linux 6.16 let all come, and this does nothing.
    pub(crate) fn pass_descriptors(&self, may: bool) {
        let value = libc::c_int::from(may);
        let bytes = size_of::<libc::c_int>() as libc::socklen_t;
        let value = (&raw const value).cast();
        // SAFETY: a number of that many bytes.
        unsafe {
            libc::setsockopt(self.raw(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, bytes);
        }
    }

    /// Sends one message, with `fd` if there is one.
    pub(crate) fn send(&self, message: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut part = libc::iovec {
            iov_base: message.as_ptr().cast_mut().cast(),
            iov_len: message.len(),
        };
        let mut control = Control([0; CONTROL_BYTES]);
        // SAFETY: all fields are numbers or pointers, which may be null.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if let Some(fd) = fd {
            let bytes = size_of::<RawFd>() as libc::c_uint;
            header.msg_control = (&raw mut control).cast();
            // SAFETY: no pointers.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
            // SAFETY: the control buffer is aligned for a header, and has room for it and one
            // descriptor.
            unsafe {
                let at = libc::CMSG_FIRSTHDR(&raw const header);
                (*at).cmsg_level = libc::SOL_SOCKET;
                (*at).cmsg_type = libc::SCM_RIGHTS;
                (*at).cmsg_len = libc::CMSG_LEN(bytes) as usize;
                libc::CMSG_DATA(at).cast::<RawFd>().write(fd.as_raw_fd());
            }
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the header points at a message, which the kernel reads, and at a control buffer;
        // both live on.
        let sent = unsafe { libc::sendmsg(self.raw(), &raw const header, flags) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Receives one message. No bytes: the other side has closed, as empty messages are never sent.
    pub(crate) fn receive(&self, room: &mut [u8]) -> io::Result<Received> {
        self.receive_into(room, true)
    }

    /// As [`receive`](Self::receive), but descriptors that come with it never become ours. Even to
    /// close one may never end, if it belongs to a file system of the sender's own.
    pub(crate) fn receive_bytes(&self, room: &mut [u8]) -> io::Result<Received> {
        self.receive_into(room, false)
    }

    fn receive_into(&self, room: &mut [u8], take_fd: bool) -> io::Result<Received> {
        let mut part = libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        let mut control = Control([0; CONTROL_BYTES]);
        // SAFETY: all fields are numbers or pointers, which may be null.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if take_fd {
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = CONTROL_BYTES;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the header points at room that is ours, and that lives on.
        let got = unsafe { libc::recvmsg(self.raw(), &raw mut header, flags) };
        let bytes = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        let mut fds = descriptors(&header).into_iter();
        // File descriptors beside the first are closed.
        let fd = fds.next();
        let cut_off = header.msg_flags & libc::MSG_TRUNC != 0;
        Ok(Received { bytes, cut_off, fd })
    }

    /// Shuts down both sides, also for other processes that have its descriptor. What was sent can
    /// still be received.
    pub(crate) fn shut_down(&self) {
        // It fails if there is no other side any more.
        // SAFETY: no pointers.
        unsafe {
            libc::shutdown(self.raw(), libc::SHUT_RDWR);
        }
    }

    pub(crate) fn credentials(&self) -> io::Result<Credentials> {
        let mut it = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        self.option(libc::SO_PEERCRED, &mut it)?;
        let (pid, uid) = (it.pid, it.uid);
        Ok(Credentials { pid, uid })
    }

    /// What becomes readable when the process that connected ends; none if this kernel, or the
    /// process's being in another PID namespace, does not give it.
    pub(crate) fn process(&self) -> Option<OwnedFd> {
        let mut fd: RawFd = -1;
        // Linux 6.5.
        if self.option(libc::SO_PEERPIDFD, &mut fd).is_ok() {
            return own(fd).ok();
        }
        let pid = self.credentials().ok().filter(|it| it.pid > 0)?.pid;
        // While the socket lives, the number is most likely still that process's.
        // SAFETY: no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        own(RawFd::try_from(fd).ok()?).ok()
    }

    fn option<T>(&self, name: libc::c_int, value: &mut T) -> io::Result<()> {
        let mut bytes = size_of::<T>() as libc::socklen_t;
        let value = ptr::from_mut(value).cast();
        // SAFETY: room of that many bytes, which is for numbers.
        let ret =
            unsafe { libc::getsockopt(self.raw(), libc::SOL_SOCKET, name, value, &raw mut bytes) };
        check(ret)
    }

    /// What knows of this connection's end.
    pub(crate) fn presence(&self) -> Presence {
        Presence(Arc::downgrade(&self.0))
    }

    fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Seqpacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The descriptors that came with a message, all of them, so that none is lost.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the header is as the kernel has filled it in, and so is its control buffer, which
    // lives on. Each descriptor in it is new, and only ours.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            if ((*at).cmsg_level, (*at).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*at).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(at).cast::<RawFd>();
                for n in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(n).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    fds
}

/// Waits until one of `fds` has something to receive or has ended, or until there is room to send
/// where that is wanted, but not longer than `most`. Says of each whether it has come to that.
pub(crate) fn wait(
    fds: &[(BorrowedFd<'_>, bool)],
    most: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|(fd, to_send)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: if *to_send {
                libc::POLLIN | libc::POLLOUT
            } else {
                libc::POLLIN
            },
            revents: 0,
        })
        .collect();
    let most = most.map(|most| libc::timespec {
        tv_sec: libc::time_t::try_from(most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: most.subsec_nanos().into(),
    });
    let most = most.as_ref().map_or(ptr::null(), ptr::from_ref);
    let n = polled.len() as libc::nfds_t;
    // SAFETY: the slice's own length, and a time that outlives the call.
    let ret = unsafe { libc::ppoll(polled.as_mut_ptr(), n, most, ptr::null()) };
    if let Err(why) = check(ret) {
        // A signal is as good as a timeout.
        return if why.kind() == io::ErrorKind::Interrupted {
            Ok(vec![false; fds.len()])
        } else {
            Err(why)
        };
    }
    Ok(polled.iter().map(|it| it.revents != 0).collect())
}

/// What can be read as soon as one of `fds` can be, or has ended. It keeps none of them open.
pub(crate) fn either(fds: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let epoll = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    for fd in fds {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let (at, fd) = (epoll.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: an event that the kernel copies.
        check(unsafe { libc::epoll_ctl(at, libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
    }
    Ok(epoll)
}

fn address_of(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all fields are numbers.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = path.as_os_str().as_bytes();
    let most = address.sun_path.len() - 1;
    if path.is_empty() || path.len() > most || path.contains(&0) {
        let text = format!("a socket's path has 1 to {most} bytes, none of them 0");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let bytes = mem::offset_of!(libc::sockaddr_un, sun_path) + path.len() + 1;
    Ok((address, bytes as libc::socklen_t))
}

fn own(fd: RawFd) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: a new file descriptor, which only we own.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(ret: libc::c_int) -> io::Result<()> {
    if ret < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn messages_stay_whole_and_descriptors_with_them() {
        let (a, b) = Seqpacket::pair().unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        a.send(b"one", None).unwrap();
        a.send(b"two, longer", Some(reader.as_fd())).unwrap();
        a.send(b"three", Some(reader.as_fd())).unwrap();
        let mut room = [0; 6];
        let got = b.receive(&mut room).unwrap();
        assert_eq!(
            (got.bytes, got.cut_off, got.fd.is_some()),
            (3, false, false)
        );
        let got = b.receive(&mut room).unwrap();
        assert_eq!((got.bytes, got.cut_off, got.fd.is_some()), (6, true, true));
        let got = b.receive_bytes(&mut room).unwrap();
        assert_eq!(
            (got.bytes, got.cut_off, got.fd.is_some()),
            (5, false, false)
        );
        let nothing = b.receive(&mut room).err().unwrap();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(b.receive(&mut room).unwrap().bytes, 0);
    }

    #[test]
    fn what_was_said_before_the_end_is_heard() {
        let (a, b) = Seqpacket::pair().unwrap();
        a.send(b"last words", None).unwrap();
        a.shut_down();
        let mut room = [0; 16];
        assert_eq!(b.receive(&mut room).unwrap().bytes, 10);
        assert_eq!(b.receive(&mut room).unwrap().bytes, 0);
        let why = b.send(b"?", None).err().unwrap();
        assert_eq!(why.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn either_of_two_is_enough() {
        let (a, b) = Seqpacket::pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let both = either(&[b.as_fd(), reader.as_fd()]).unwrap();
        let can_be_read = || wait(&[(both.as_fd(), false)], Some(Duration::ZERO)).unwrap()[0];
        assert!(!can_be_read());
        a.send(b"now", None).unwrap();
        assert!(can_be_read());
        b.receive(&mut [0; 8]).unwrap();
        assert!(!can_be_read());
        drop(writer);
        assert!(can_be_read());
    }

    #[test]
    fn an_end_is_seen_by_who_only_watches() {
        for closes_this_side in [false, true] {
            let (a, b) = Seqpacket::pair().unwrap();
            let presence = b.presence();
            a.send(b"unread", None).unwrap();
            assert!(!presence.is_over());
            drop(if closes_this_side { b } else { a });
            assert!(presence.is_over());
        }
    }

    #[test]
    fn the_other_side_is_known() {
        let (a, b) = Seqpacket::pair().unwrap();
        let pid = std::process::id() as i32;
        assert_eq!(a.credentials().unwrap().pid, pid);
        let process = b.process().expect("a pidfd");
        let ready = wait(&[(process.as_fd(), false), (a.as_fd(), true)], None).unwrap();
        assert_eq!(ready, [false, true], "we live, and may send");
    }
}
