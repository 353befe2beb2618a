//! Over a UDP socket. The kernel takes answers only from where we send to.
//!
//! The switch tells each worker an Ethernet address of its own, which ARP does not say. So it is
//! entered among the kernel's neighbours, with `ip` of iproute2, for which it takes root: as many
//! sockets of one host and network namespace as serve one session at a time.

use super::{Link, Peer};
use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;
use tally_wire::Mac;
use tally_wire::switchml::{FIRST_PORT, HEADER_BYTES, Size};

/// Bytes that the kernel may keep for us, as far as it does.
const SOCKET_BYTES: usize = 4 << 20;

/// A socket.
pub struct KernelLink {
    own: Ipv4Addr,
    interface: String,
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl KernelLink {
    /// At this address of an interface, at any port.
    ///
    /// # Errors
    /// If the kernel does not let us.
    pub fn open(own: Ipv4Addr, interface: &str) -> Result<Self> {
        let socket = bind(own)?;
        let buffer = vec![0; HEADER_BYTES + Size::B8192.payload_bytes()];
        Ok(Self {
            own,
            interface: interface.to_owned(),
            socket,
            buffer,
        })
    }

    fn wait_for(&self, what: PollFlags, timeout: Option<Duration>) -> io::Result<()> {
        let mut fds = [PollFd::new(self.socket.as_fd(), what)];
        match ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

fn bind(own: Ipv4Addr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((own, 0)).with_context(|| format!("cannot bind {own}"))?;
    socket.set_nonblocking(true)?;
    // As root beyond the system's limit. Less is slower, and not wrong.
    if setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BYTES).is_err() {
        let _ = setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BYTES);
    }
    Ok(socket)
}

/// The Ethernet address of an interface.
///
/// # Errors
/// If there is no such interface, or it has none.
pub fn mac_of(interface: &str) -> Result<Mac> {
    let path = format!("/sys/class/net/{interface}/address");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let text = text.trim();
    match text.parse() {
        Ok(mac) => Ok(mac),
        Err(_) => bail!("{path}: {text:?} is no Ethernet address"),
    }
}

impl Link for KernelLink {
    fn turn_to(&mut self, switch: Peer, _: Size) -> Result<()> {
        // The old one is there until the new one is bound, so it gets another port.
        self.socket = bind(self.own)?;
        let (ip, mac) = (switch.ip.to_string(), switch.mac.to_string());
        let entry = [
            "neigh",
            "replace",
            &ip,
            "lladdr",
            &mac,
            "dev",
            &self.interface,
        ];
        let entered = Command::new("ip")
            .args(entry)
            .args(["nud", "permanent"])
            .output();
        let entered = entered.context("cannot run `ip` of iproute2")?;
        if !entered.status.success() {
            let why = String::from_utf8_lossy(&entered.stderr);
            bail!("cannot enter {ip} at {mac} as a neighbour: {}", why.trim());
        }
        self.socket
            .connect((switch.ip, FIRST_PORT))
            .with_context(|| format!("no way to {}", switch.ip))
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> Result<usize> {
        let mut sent = 0;
        while let Some(bytes) = fill(&mut self.buffer) {
            loop {
                match self.socket.send(&self.buffer[..bytes]) {
                    Ok(_) => break,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        self.wait_for(PollFlags::POLLOUT, None)?;
                    }
                    // Like any that is lost on its way. What an ICMP message said belongs to an
                    // earlier one.
                    Err(_) => break,
                }
            }
            sent += 1;
        }
        Ok(sent)
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let mut received = 0;
        loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(bytes) => {
                    take(&self.buffer[..bytes]);
                    received += 1;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(received),
                // An ICMP message: the switch is not there, or not there yet.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::ConnectionRefused
                            | ErrorKind::HostUnreachable
                            | ErrorKind::NetworkUnreachable
                            | ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(e).context("receiving"),
            }
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.wait_for(PollFlags::POLLIN, Some(timeout))
            .context("waiting")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_have_addresses_or_say_so() {
        assert_eq!(mac_of("lo").unwrap(), Mac([0; 6]));
        assert!(mac_of("no-such-interface").is_err());
    }
}
