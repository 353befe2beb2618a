//! Over the kernel's UDP: one socket for everything that is unicast, and one for the job's group.
//!
//! Batches go through `sendmmsg` and `recvmmsg`. Datagrams of one length to one port are handed over as one
//! long one, which the kernel cuts up behind its network stack (`UDP_SEGMENT`), as far as it can: the
//! stack's cost is then one for many. Datagrams leave with ECT(0), and the kernel hands us
//! the type of service of each that comes, for its ECN (C-1). The catch: a datagram that the kernel does not
//! take (no route, no neighbour, no memory) is lost like any other, but the reason is kept, to be
//! told when joining fails.

use super::{Link, LinkError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, IpMembershipRequest, MsgFlags,
    MultiHeaders, SockFlag, SockType, SockaddrIn, bind, recvmmsg, sendmmsg, sendmsg, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeSpec;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;
use tally_endpoint::{Ecn, Transmit, datagram_bytes};
use tally_wire::MAX_UNITS;

/// Datagrams in one system call.
const BATCH: usize = 64;
/// Bytes that the kernel may keep for us, each way and socket.
const SOCKET_BYTES: usize = 8 << 20;
/// Type of service of what we send: no class, ECT(0).
const TOS: i32 = Ecn::Ect0 as i32;
/// Bytes that the kernel takes at a time, to cut up: the longest UDP datagram.
const SEGMENTED_BYTES_MAX: usize = 65_507;

/// UDP sockets towards one switch.
pub struct UdpLink {
    unicast: UdpSocket,
    group: Option<OwnedFd>,
    switch: Ipv4Addr,
    buffer_bytes: usize,
    out: Vec<u8>,
    /// What is in `out`, one behind the other.
    out_lengths: Vec<(usize, u16)>,
    /// Whether the kernel cuts up.
    segments: bool,
    out_addresses: Vec<Option<SockaddrIn>>,
    out_headers: MultiHeaders<SockaddrIn>,
    inward: Vec<u8>,
    in_lengths: Vec<Option<(usize, Ecn)>>,
    in_headers: MultiHeaders<SockaddrIn>,
    refused: Option<Errno>,
}

/// A group to listen to.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Its address.
    pub address: Ipv4Addr,
    /// The UDP port that results go to.
    pub port: u16,
}

impl UdpLink {
    /// Opens the sockets, at `local` and for `group`, for datagrams of up to `units` units of
    /// elements; `None` for any.
    ///
    /// # Errors
    /// If the kernel does not let us.
    pub fn open(
        local: SocketAddrV4,
        switch: Ipv4Addr,
        group: Option<Group>,
        units: Option<u8>,
    ) -> Result<Self, LinkError> {
        let unicast = UdpSocket::bind(local)
            .map_err(|e| LinkError::system(format!("cannot bind {local}"), e))?;
        enlarge(&unicast);
        setsockopt(&unicast, sockopt::Ipv4Tos, &TOS)
            .and_then(|()| setsockopt(&unicast, sockopt::IpRecvTos, &true))
            .map_err(|e| LinkError::system("cannot use ECN", e))?;
        let group = group
            .map(|g| {
                listen(g, *local.ip()).map_err(|e| {
                    let what = format!(
                        "cannot listen to {}:{} at {}",
                        g.address,
                        g.port,
                        local.ip()
                    );
                    LinkError::system(what, e)
                })
            })
            .transpose()?;
        let buffer_bytes = datagram_bytes(units.unwrap_or(MAX_UNITS)).next_multiple_of(64);
        Ok(Self {
            unicast,
            group,
            switch,
            buffer_bytes,
            out: vec![0; BATCH * buffer_bytes],
            out_lengths: Vec::with_capacity(BATCH),
            segments: true,
            out_addresses: Vec::with_capacity(BATCH),
            out_headers: MultiHeaders::preallocate(BATCH, None),
            inward: vec![0; BATCH * buffer_bytes],
            in_lengths: Vec::with_capacity(BATCH),
            in_headers: in_headers(),
            refused: None,
        })
    }

    /// How many of what leaves, from `first` on, the kernel may get as one.
    fn alike(&self, first: usize) -> usize {
        let of = self.out_lengths[first];
        let most = SEGMENTED_BYTES_MAX / of.0.max(1);
        let same = self.out_lengths[first..].iter().take(most);
        same.take_while(|&&other| other == of).count()
    }

    /// How many, from `first` on, must go one by one before there are some that need not.
    fn singles(&self, first: usize) -> usize {
        let all = first..self.out_lengths.len();
        if self.segments {
            all.take_while(|&at| self.alike(at) == 1).count()
        } else {
            all.len()
        }
    }

    /// Sends datagrams one by one, from `first` on, which is `at` bytes into the buffer; says how many.
    fn send_each(&mut self, first: usize, mut at: usize) -> Result<usize, Errno> {
        let lengths = &self.out_lengths[first..first + self.singles(first)];
        self.out_addresses.clear();
        let mut slices = Vec::with_capacity(lengths.len());
        for &(len, port) in lengths {
            slices.push([IoSlice::new(&self.out[at..at + len])]);
            let to = SocketAddrV4::new(self.switch, port);
            self.out_addresses.push(Some(to.into()));
            at += len;
        }
        let fd = self.unicast.as_raw_fd();
        let (headers, to) = (&mut self.out_headers, &self.out_addresses);
        sendmmsg(fd, headers, &slices, to, [], MsgFlags::empty())?;
        Ok(slices.len())
    }

    fn receive_from(
        &mut self,
        fd: RawFd,
        take: &mut dyn FnMut(Ecn, &[u8]),
    ) -> Result<usize, LinkError> {
        self.in_lengths.clear();
        let mut without_tos = false;
        {
            let mut slices: Vec<_> = self
                .inward
                .chunks_exact_mut(self.buffer_bytes)
                .map(|b| [IoSliceMut::new(b)])
                .collect();
            let flags = MsgFlags::MSG_DONTWAIT;
            match recvmmsg(fd, &mut self.in_headers, &mut slices, flags, None) {
                Ok(messages) => {
                    for m in messages {
                        // whoever else writes to us is not heard.
                        let known = m.address.is_some_and(|a: SockaddrIn| a.ip() == self.switch);
                        let whole = !m.flags.contains(MsgFlags::MSG_TRUNC);
                        let tos = m.cmsgs().ok().and_then(|mut all| all.find_map(tos_of));
                        without_tos |= tos.is_none();
                        let ecn = tos.map_or(Ecn::NotEct, Ecn::from_tos);
                        let taken = (known && whole).then_some((m.bytes, ecn));
                        self.in_lengths.push(taken);
                    }
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                // What an ICMP message said about something that was sent.
                Err(e @ (Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH)) => {
                    self.refused = Some(e);
                }
                Err(e) => return Err(LinkError::system("receiving", e)),
            }
        }
        if without_tos {
            // The kernel has written to the header that there is no room for any, which it would
            // believe the next time.
            self.in_headers = in_headers();
        }
        let buffers = self.inward.chunks_exact(self.buffer_bytes);
        for (length, buffer) in self.in_lengths.iter().zip(buffers) {
            if let Some((length, ecn)) = length {
                take(*ecn, &buffer[..*length]);
            }
        }
        Ok(self.in_lengths.len())
    }
}

/// Room for the addresses and the type of service of a batch.
fn in_headers() -> MultiHeaders<SockaddrIn> {
    MultiHeaders::preallocate(BATCH, Some(nix::cmsg_space!(u8)))
}

fn tos_of(message: ControlMessageOwned) -> Option<u8> {
    match message {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
        _ => None,
    }
}

fn enlarge(socket: &impl AsFd) {
    // As root beyond the system's limit; else as far as it goes. Losses are repaired, so that
    // less is slower and not wrong.
    if setsockopt(socket, sockopt::RcvBufForce, &SOCKET_BYTES).is_err() {
        let _ = setsockopt(socket, sockopt::RcvBuf, &SOCKET_BYTES);
    }
    if setsockopt(socket, sockopt::SndBufForce, &SOCKET_BYTES).is_err() {
        let _ = setsockopt(socket, sockopt::SndBuf, &SOCKET_BYTES);
    }
}

fn listen(group: Group, interface: Ipv4Addr) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    // Workers of other jobs may run on this host.
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    enlarge(&fd);
    setsockopt(&fd, sockopt::IpRecvTos, &true)?;
    let at = SockaddrIn::from(SocketAddrV4::new(group.address, group.port));
    bind(fd.as_raw_fd(), &at)?;
    let membership = IpMembershipRequest::new(group.address, Some(interface));
    setsockopt(&fd, sockopt::IpAddMembership, &membership)?;
    Ok(fd)
}

impl Link for UdpLink {
    fn send(
        &mut self,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError> {
        self.out_lengths.clear();
        let mut end = 0;
        for _ in 0..BATCH {
            let Some(transmit) = fill(&mut self.out[end..][..self.buffer_bytes]) else {
                break;
            };
            self.out_lengths.push((transmit.len, transmit.port));
            end += transmit.len;
        }
        // The socket blocks, so that the kernel's queue paces us and the whole batch goes.
        let (mut first, mut at) = (0, 0);
        while first < self.out_lengths.len() {
            let alike = if self.segments { self.alike(first) } else { 1 };
            let (len, port) = self.out_lengths[first];
            let sent = if alike > 1 {
                let all = [IoSlice::new(&self.out[at..at + alike * len])];
                let cut = u16::try_from(len).unwrap_or(u16::MAX);
                let to = SockaddrIn::from(SocketAddrV4::new(self.switch, port));
                let cut = [ControlMessage::UdpGsoSegments(&cut)];
                let fd = self.unicast.as_raw_fd();
                sendmsg(fd, &all, &cut, MsgFlags::empty(), Some(&to)).map(|_| alike)
            } else {
                self.send_each(first, at)
            };
            let done = match sent {
                Ok(done) => {
                    self.refused = None;
                    done
                }
                // What it cannot cut up, it may send one by one.
                Err(_) if alike > 1 => {
                    self.segments = false;
                    continue;
                }
                Err(e @ (Errno::EBADF | Errno::EFAULT | Errno::ENOTSOCK | Errno::EINVAL)) => {
                    return Err(LinkError::system("sending", e));
                }
                Err(Errno::EINTR) => self.singles(first),
                Err(e) => {
                    self.refused = Some(e);
                    self.singles(first)
                }
            };
            let lengths = &self.out_lengths[first..first + done];
            at += lengths.iter().map(|(len, _)| len).sum::<usize>();
            first += done;
        }
        Ok(self.out_lengths.len())
    }

    fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
        let mut n = self.receive_from(self.unicast.as_raw_fd(), take)?;
        if let Some(group) = self.group.as_ref().map(AsRawFd::as_raw_fd) {
            n += self.receive_from(group, take)?;
        }
        Ok(n)
    }

    fn wait(&mut self, timeout: Duration, gather: Duration) -> Result<(), LinkError> {
        let fds = [
            Some(self.unicast.as_fd()),
            self.group.as_ref().map(AsFd::as_fd),
        ];
        let fds = fds.into_iter().flatten();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None) {
            Ok(0) | Err(Errno::EINTR) => Ok(()),
            Ok(_) => {
                if !gather.is_zero() {
                    std::thread::sleep(gather.min(timeout));
                }
                Ok(())
            }
            Err(e) => Err(LinkError::system("waiting", e)),
        }
    }

    fn trouble(&self) -> Option<String> {
        let e = self.refused?;
        Some(format!(
            "the last datagram to {} failed: {}",
            self.switch,
            e.desc()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const SWITCH: Ipv4Addr = Ipv4Addr::new(127, 0, 47, 254);
    const HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 47, 1);
    const GROUP: Group = Group {
        address: Ipv4Addr::new(239, 84, 47, 1),
        port: 31_947,
    };

    /// What came, in order: the first byte, and the ECN.
    fn receive(link: &mut UdpLink, n: usize) -> Vec<(u8, Ecn)> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut got = Vec::new();
        while got.len() < n && Instant::now() < deadline {
            link.wait(Duration::from_millis(100), Duration::ZERO)
                .unwrap();
            link.receive(&mut |ecn, datagram| got.push((datagram[0], ecn)))
                .unwrap();
        }
        got
    }

    #[test]
    fn congestion_on_the_way_is_noticed_again_and_again() {
        let mut link =
            UdpLink::open(SocketAddrV4::new(HOST, 0), SWITCH, Some(GROUP), Some(1)).unwrap();
        let switch = UdpSocket::bind((SWITCH, 0)).unwrap();
        let interface = IpMembershipRequest::new(GROUP.address, Some(SWITCH));
        // Sends to the group by way of the loopback interface.
        setsockopt(&switch, sockopt::IpAddMembership, &interface).unwrap();
        let unicast = link.unicast.local_addr().unwrap();
        let group = SocketAddrV4::new(GROUP.address, GROUP.port).into();
        for to in [unicast, group] {
            // More than a batch, so that every header is used more than once.
            let sent: Vec<_> = (0..3 * BATCH as u8)
                .map(|n| (n, Ecn::from_tos(n.wrapping_mul(7) >> 2)))
                .collect();
            for batch in sent.chunks(32) {
                for (n, ecn) in batch {
                    setsockopt(&switch, sockopt::Ipv4Tos, &(*ecn as i32)).unwrap();
                    switch.send_to(&[*n], to).unwrap();
                }
                assert_eq!(receive(&mut link, batch.len()), batch, "to {to}");
            }
        }
    }

    #[test]
    fn what_we_send_can_be_marked() {
        let mut link = UdpLink::open(SocketAddrV4::new(HOST, 0), SWITCH, None, Some(1)).unwrap();
        // Another link stands for the switch.
        let mut switch = UdpLink::open(SocketAddrV4::new(SWITCH, 0), HOST, None, Some(1)).unwrap();
        let port = switch.unicast.local_addr().unwrap().port();
        let mut left = 3;
        let sent = link.send(&mut |out| {
            left -= 1;
            out[0] = left;
            (left > 0).then_some(Transmit { len: 1, port })
        });
        assert_eq!(sent.unwrap(), 2);
        assert_eq!(receive(&mut switch, 2), [(2, Ecn::Ect0), (1, Ecn::Ect0)]);
    }
}
