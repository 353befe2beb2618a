//! The packet socket of one interface.

use crate::Error;
use crate::superframe::Offload;
use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Bytes that may wait for us, as the kernel counts them: twice what they are, and more.
const RECEIVE_BYTES: libc::c_int = 16 << 20;
/// Bytes that the kernel may have of ours, waiting for the interface. It is out of reach of
/// priorities and marks, so it is no more than bridges the time between two turns: 4 ms at 1
/// Gbit/s.
const SEND_BYTES: libc::c_int = 512 << 10;

pub(crate) struct Socket {
    fd: OwnedFd,
    index: u32,
}

impl Socket {
    pub(crate) fn open(interface: &str) -> Result<Self, Error> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // No protocol, so that nothing arrives before the socket is bound to its interface.
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(system("opening a packet socket"));
        }
        // SAFETY: a new file descriptor, which only we own.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let index = index_of(&fd, interface)?;
        let socket = Self {
            fd,
            index: index.cast_unsigned(),
        };
        let one = 1;
        socket.set(
            libc::SOL_PACKET,
            libc::PACKET_VNET_HDR,
            &one,
            "PACKET_VNET_HDR",
        )?;
        socket.set(
            libc::SOL_PACKET,
            libc::PACKET_AUXDATA,
            &one,
            "PACKET_AUXDATA",
        )?;
        let what = "PACKET_IGNORE_OUTGOING";
        socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &one, what)?;
        // Beyond the system's limit as root, else as far as it goes.
        for (forced, asked, bytes) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BYTES),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BYTES),
        ] {
            if socket.set(libc::SOL_SOCKET, forced, &bytes, "").is_err() {
                socket.set(libc::SOL_SOCKET, asked, &bytes, "socket buffers")?;
            }
        }
        // SAFETY: all fields are numbers.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: an address of that many bytes.
        if unsafe { libc::bind(socket.fd(), (&raw const address).cast(), bytes) } != 0 {
            return Err(system("binding to the interface"));
        }
        // SAFETY: all fields are numbers.
        let mut everything: libc::packet_mreq = unsafe { mem::zeroed() };
        everything.mr_ifindex = index as i32;
        everything.mr_type = libc::PACKET_MR_PROMISC as u16;
        let what = "receiving what is for others";
        socket.set(
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            &everything,
            what,
        )?;
        Ok(socket)
    }

    fn set<T>(
        &self,
        level: libc::c_int,
        name: libc::c_int,
        value: &T,
        what: &'static str,
    ) -> Result<(), Error> {
        let bytes = size_of::<T>() as libc::socklen_t;
        // SAFETY: a value of that many bytes, which the kernel reads.
        let ret =
            unsafe { libc::setsockopt(self.fd(), level, name, ptr::from_ref(value).cast(), bytes) };
        if ret == 0 { Ok(()) } else { Err(system(what)) }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn interface_index(&self) -> u32 {
        self.index
    }

    /// Frames that the kernel dropped since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        let mut stats = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut bytes = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: room for as many bytes as it says, which the kernel writes to.
        let ret = unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut bytes,
            )
        };
        if ret == 0 { stats.tp_drops.into() } else { 0 }
    }
}

/// A question about the interface of this name; `None` if no interface can have it.
pub(crate) fn request_of(interface: &str) -> Option<libc::ifreq> {
    // SAFETY: all fields are numbers.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    let name = interface.as_bytes();
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains(&0) {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    Some(request)
}

/// Asks the kernel about an interface.
pub(crate) fn ask(
    socket: &OwnedFd,
    question: libc::c_ulong,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // The C libraries differ in the type.
    let question = question as libc::Ioctl;
    // SAFETY: a request with a name that ends with zero, which the kernel fills in.
    if unsafe { libc::ioctl(socket.as_raw_fd(), question, ptr::from_mut(request)) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The number of an interface. if_nametoindex(3) would open a socket of its own, and tell any error
/// as a missing interface.
pub(crate) fn index_of(socket: &OwnedFd, interface: &str) -> Result<libc::c_int, Error> {
    let missing = || Error::NoInterface(interface.escape_default().to_string());
    let mut request = request_of(interface).ok_or_else(missing)?;
    match ask(socket, libc::SIOCGIFINDEX as libc::c_ulong, &mut request) {
        // SAFETY: the kernel has written the number.
        Ok(()) => Ok(unsafe { request.ifr_ifru.ifru_ifindex }),
        Err(why) if why.raw_os_error() == Some(libc::ENODEV) => Err(missing()),
        Err(why) => Err(refused("looking up the interface", why)),
    }
}

pub(crate) fn system(what: &'static str) -> Error {
    refused(what, io::Error::last_os_error())
}

fn refused(what: &'static str, source: io::Error) -> Error {
    if source.raw_os_error() != Some(libc::EMFILE) {
        return Error::System { what, source };
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for what the kernel says. It does not fail for a limit that there is.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let limit = limit.rlim_cur;
    Error::NoDescriptors { what, limit }
}

/// An epoll instance.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> Result<Self, Error> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(system("epoll"));
        }
        // SAFETY: a new file descriptor, which only we own.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Says `number` when there is something to receive from the socket.
    pub(crate) fn add(&self, socket: &Socket, number: usize) -> Result<(), Error> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: number as u64,
        };
        let (epoll, fd) = (self.0.as_raw_fd(), socket.fd());
        // SAFETY: an event that the kernel copies.
        let ret = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if ret == 0 {
            Ok(())
        } else {
            Err(system("epoll"))
        }
    }

    /// Says nothing of the socket from now on.
    pub(crate) fn remove(&self, socket: &Socket) {
        let (epoll, fd) = (self.0.as_raw_fd(), socket.fd());
        // SAFETY: no event is needed for it.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) };
    }

    /// Fills in the sockets that have something, after waiting for the first one; none after a
    /// signal. `events` has room for one at least.
    pub(crate) fn wait(
        &self,
        events: &mut Vec<libc::epoll_event>,
        most: Duration,
    ) -> io::Result<()> {
        let most = libc::timespec {
            tv_sec: most.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(most.subsec_nanos()),
        };
        events.clear();
        // SAFETY: room for as many events as the capacity says, a time, and no signal mask.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0.as_raw_fd(),
                events.spare_capacity_mut().as_mut_ptr(),
                events.capacity() as libc::c_int,
                &raw const most,
                ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        };
        let Ok(n) = usize::try_from(n) else {
            let why = io::Error::last_os_error();
            let is_signal = why.kind() == io::ErrorKind::Interrupted;
            return if is_signal { Ok(()) } else { Err(why) };
        };
        // SAFETY: as many have been written.
        unsafe { events.set_len(n) };
        Ok(())
    }
}

/// A message of nothing yet.
pub(crate) fn no_message() -> libc::mmsghdr {
    // SAFETY: numbers and pointers, and zero is none.
    unsafe { mem::zeroed() }
}

/// What the kernel wants to know, or says, of a frame, as a part of its message.
pub(crate) fn offload_part(offload: &mut Offload) -> libc::iovec {
    libc::iovec {
        iov_base: ptr::from_mut(offload).cast(),
        iov_len: size_of::<Offload>(),
    }
}

/// Bytes to be written to, as a part of a message.
pub(crate) fn part(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

/// Bytes to be read, as a part of a message.
pub(crate) fn part_to_send(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// Points messages at their parts, which follow each other in `parts`, the same number for each.
/// They must not move until the system call has returned.
pub(crate) fn point(
    messages: &mut [libc::mmsghdr],
    parts: &mut [libc::iovec],
    numbers: impl Iterator<Item = usize>,
) {
    let mut rest = parts;
    for (message, number) in messages.iter_mut().zip(numbers) {
        let (these, others) = rest.split_at_mut(number);
        message.msg_hdr.msg_iov = these.as_mut_ptr();
        message.msg_hdr.msg_iovlen = these.len();
        rest = others;
    }
}

/// Major and minor number of the kernel.
pub(crate) fn kernel_release() -> Option<(u32, u32)> {
    // SAFETY: arrays of characters.
    let mut names: libc::utsname = unsafe { mem::zeroed() };
    // SAFETY: room for what is written.
    if unsafe { libc::uname(&raw mut names) } != 0 {
        return None;
    }
    // SAFETY: the kernel ends it with zero.
    let release = unsafe { CStr::from_ptr(names.release.as_ptr()) };
    let mut numbers = release.to_str().ok()?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
