//! Over the kernel's UDP: one socket for everything that is unicast, and one for the job's group.
//!
//! Datagrams of one length to one port are handed over as one long one, which the kernel segments
//! below its network stack (`UDP_SEGMENT`) where it can: the stack's cost is then one for many. In
//! the same way we receive many as one (`UDP_GRO`). Datagrams leave with ECT(0), and the kernel
//! says the ECN bits of each that comes (C-1).
//!
//! The catch: a datagram that the kernel does not take (no route, no neighbour, no memory) is lost
//! like any other, but the reason is kept for the error when joining fails.

use super::{Link, LinkError};
use crate::config::WorkerConfig;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::socket::{
    AddressFamily, IpMembershipRequest, SockFlag, SockType, SockaddrIn, bind, getsockopt,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;
use tally_endpoint::{Ecn, Transmit, datagram_bytes};
use tally_wire::MAX_UNITS;
use tally_wire::frame::group_of;

/// Datagrams made before they are sent, at most.
const BATCH: usize = 64;
/// Received in one system call: each may be many.
const BATCH_IN: usize = 8;
/// Room for what is received as one.
const IN_BYTES: usize = 1 << 16;
/// Bytes that the kernel may keep for us, each way and socket.
pub(crate) const SOCKET_BYTES: usize = 8 << 20;
/// Bytes that the kernel takes at a time, to cut up: the longest UDP datagram.
const SEGMENTED_BYTES_MAX: usize = 65_507;

/// UDP sockets towards one switch.
pub struct UdpLink {
    unicast: Socket,
    group: Option<Socket>,
    switch: Ipv4Addr,
    buffer_bytes: usize,
    /// Datagrams made before they are sent: whole trains of the longest, so that none is sent
    /// alone.
    batch: usize,
    out: Vec<u8>,
    /// What is in `out`, one behind the other: bytes and port.
    out_lengths: Vec<(usize, u16)>,
    inward: Vec<u8>,
    refused: Option<io::Error>,
}

/// A socket, and what the kernel can do with it.
struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
}

/// A group to listen to.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Its address.
    pub address: Ipv4Addr,
    /// The UDP port that results go to.
    pub port: u16,
}

impl Group {
    /// Where the results of a worker's job go.
    #[must_use]
    pub const fn of(config: &WorkerConfig) -> Self {
        Self {
            address: group_of(config.job.job_id()),
            port: config.switch.port,
        }
    }
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
            .and_then(Socket::new)
            .map_err(|e| LinkError::system(format!("cannot bind {local}"), e))?;
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
        let longest = datagram_bytes(units.unwrap_or(MAX_UNITS));
        let buffer_bytes = longest.next_multiple_of(64);
        let train = (SEGMENTED_BYTES_MAX / longest).min(BATCH);
        Ok(Self {
            unicast,
            group,
            switch,
            buffer_bytes,
            batch: BATCH / train * train,
            out: vec![0; BATCH * buffer_bytes],
            out_lengths: Vec::with_capacity(BATCH),
            inward: vec![0; BATCH_IN * IN_BYTES],
            refused: None,
        })
    }

    /// How many of what leaves, from `first` on, the kernel may get as one.
    fn alike(&self, first: usize) -> usize {
        let of = self.out_lengths[first];
        let most = SEGMENTED_BYTES_MAX / of.0.max(1);
        let most = most.clamp(1, self.unicast.state.max_gso_segments());
        let same = self.out_lengths[first..].iter().take(most);
        same.take_while(|&&other| other == of).count()
    }
}

impl Socket {
    fn new(socket: UdpSocket) -> io::Result<Self> {
        enlarge(&socket);
        let state = UdpSocketState::new((&socket).into())?;
        // It asks for more ancillary data than it has room for: the ECN bits would be cut off.
        setsockopt(&socket, sockopt::ReceiveTimestampns, &false)?;
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &false)?;
        Ok(Self { socket, state })
    }

    /// Sends datagrams of `bytes` to one port, waiting until the kernel has room, so that its queue
    /// paces us.
    fn send(&self, to: SocketAddrV4, contents: &[u8], bytes: usize) -> io::Result<()> {
        let transmit = quinn_udp::Transmit {
            destination: to.into(),
            ecn: Some(EcnCodepoint::Ect0),
            contents,
            segment_size: (contents.len() > bytes).then_some(bytes),
            src_ip: None,
        };
        loop {
            match self.state.try_send((&self.socket).into(), &transmit) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let mut room = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
                    match poll(&mut room, PollTimeout::NONE) {
                        Ok(_) | Err(Errno::EINTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                done => return done,
            }
        }
    }

    /// Lends what has arrived from `switch` to `take`, and says how many datagrams there were.
    fn receive(
        &self,
        switch: Ipv4Addr,
        buffers: &mut [u8],
        take: &mut dyn FnMut(Ecn, &[u8]),
    ) -> io::Result<usize> {
        let mut meta = [RecvMeta::default(); BATCH_IN];
        let messages = {
            let mut rest = &mut buffers[..];
            let mut slices: [_; BATCH_IN] = std::array::from_fn(|_| {
                let (one, others) = std::mem::take(&mut rest).split_at_mut(IN_BYTES);
                rest = others;
                IoSliceMut::new(one)
            });
            let socket = (&self.socket).into();
            self.state.recv(socket, &mut slices, &mut meta)?
        };
        let mut datagrams = 0;
        for (m, buffer) in meta[..messages].iter().zip(buffers.chunks_exact(IN_BYTES)) {
            // datagrams from any other host are ignored.
            let known = m.addr.ip() == IpAddr::V4(switch);
            let ecn = m.ecn.map_or(Ecn::NotEct, |ecn| Ecn::from_tos(ecn as u8));
            for datagram in buffer[..m.len].chunks(m.stride.max(1)) {
                datagrams += 1;
                if known {
                    take(ecn, datagram);
                }
            }
        }
        Ok(datagrams)
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

/// What the kernel would keep for a socket of ours at `local`: bytes to receive and to send.
pub(crate) fn buffer_bytes(local: Ipv4Addr) -> io::Result<(usize, usize)> {
    let socket = UdpSocket::bind((local, 0))?;
    enlarge(&socket);
    // It says twice what was asked for, its own needs included (socket(7)).
    let receive = getsockopt(&socket, sockopt::RcvBuf)? / 2;
    let send = getsockopt(&socket, sockopt::SndBuf)? / 2;
    Ok((receive, send))
}

fn listen(group: Group, interface: Ipv4Addr) -> io::Result<Socket> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    // Workers of other jobs may run on this host.
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    let at = SockaddrIn::from(SocketAddrV4::new(group.address, group.port));
    bind(fd.as_raw_fd(), &at)?;
    let membership = IpMembershipRequest::new(group.address, Some(interface));
    setsockopt(&fd, sockopt::IpAddMembership, &membership)?;
    Socket::new(fd.into())
}

impl Link for UdpLink {
    fn send(
        &mut self,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError> {
        self.out_lengths.clear();
        let mut end = 0;
        for _ in 0..self.batch {
            let Some(transmit) = fill(&mut self.out[end..][..self.buffer_bytes]) else {
                break;
            };
            self.out_lengths.push((transmit.len, transmit.port));
            end += transmit.len;
        }
        let (mut first, mut at) = (0, 0);
        while first < self.out_lengths.len() {
            let alike = self.alike(first);
            let (len, port) = self.out_lengths[first];
            let to = SocketAddrV4::new(self.switch, port);
            let end = at + alike * len;
            match self.unicast.send(to, &self.out[at..end], len) {
                Ok(()) => self.refused = None,
                // What it cannot cut up, it may send one by one.
                Err(_) if alike > self.unicast.state.max_gso_segments() => continue,
                Err(e) => self.refused = Some(e),
            }
            (first, at) = (first + alike, end);
        }
        Ok(self.out_lengths.len())
    }

    fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
        let mut n = 0;
        for socket in std::iter::once(&self.unicast).chain(&self.group) {
            match socket.receive(self.switch, &mut self.inward, take) {
                Ok(datagrams) => n += datagrams,
                Err(e) => match e.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN | Errno::EINTR) => {}
                    // What an ICMP message said about something that was sent.
                    Some(Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => {
                        self.refused = Some(e);
                    }
                    _ => return Err(LinkError::system("receiving", e)),
                },
            }
        }
        Ok(n)
    }

    fn wait(
        &mut self,
        timeout: Duration,
        gather: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError> {
        let sockets = std::iter::once(&self.unicast).chain(&self.group);
        let fds = wake.into_iter().chain(sockets.map(|s| s.socket.as_fd()));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None) {
            Ok(0) | Err(Errno::EINTR) => Ok(()),
            Ok(_) => {
                let woken = wake.is_some() && fds[0].any() == Some(true);
                if !gather.is_zero() && !woken {
                    std::thread::sleep(gather.min(timeout));
                }
                Ok(())
            }
            Err(e) => Err(LinkError::system("waiting", e)),
        }
    }

    fn trouble(&self) -> Option<String> {
        let e = self.refused.as_ref()?;
        let reason = e
            .raw_os_error()
            .map_or_else(|| e.to_string(), |n| Errno::from_raw(n).desc().to_owned());
        Some(format!(
            "the last datagram to {} failed: {reason}",
            self.switch
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
            link.wait(Duration::from_millis(100), Duration::ZERO, None)
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
        let unicast = link.unicast.socket.local_addr().unwrap();
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
        let port = switch.unicast.socket.local_addr().unwrap().port();
        let mut left = 3;
        let sent = link.send(&mut |out| {
            left -= 1;
            out[0] = left;
            (left > 0).then_some(Transmit { len: 1, port })
        });
        assert_eq!(sent.unwrap(), 2);
        assert_eq!(receive(&mut switch, 2), [(2, Ecn::Ect0), (1, Ecn::Ect0)]);
    }

    /// Over loopback what is handed over as one arrives as one.
    #[test]
    fn trains_and_single_datagrams_arrive_one_by_one_and_in_order() {
        let mut link = UdpLink::open(SocketAddrV4::new(HOST, 0), SWITCH, None, Some(128)).unwrap();
        let mut switch =
            UdpLink::open(SocketAddrV4::new(SWITCH, 0), HOST, None, Some(128)).unwrap();
        let port = switch.unicast.socket.local_addr().unwrap().port();
        let lengths = [1, 90, 90, 90, 90, 8214, 1, 8214, 8214, 8214, 300, 1, 1];
        let sent: Vec<_> = (0..200_u8)
            .map(|n| (n, lengths[n as usize / 3 % lengths.len()]))
            .collect();
        let mut all = sent.iter();
        let mut left = sent.len();
        while left > 0 {
            left -= link
                .send(&mut |out| {
                    let &(n, len) = all.next()?;
                    out[..len].fill(n);
                    Some(Transmit { len, port })
                })
                .unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut got = Vec::new();
        while got.len() < sent.len() && Instant::now() < deadline {
            switch
                .wait(Duration::from_millis(100), Duration::ZERO, None)
                .unwrap();
            let arrived = &mut |ecn, datagram: &[u8]| {
                assert_eq!(ecn, Ecn::Ect0);
                assert!(datagram.iter().all(|byte| *byte == datagram[0]));
                got.push((datagram[0], datagram.len()));
            };
            switch.receive(arrived).unwrap();
        }
        assert_eq!(got, sent);
    }
}
