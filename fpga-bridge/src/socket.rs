//! The registers of the simulated card: a Unix socket.

use crate::error::CardError;
use crate::protocol::{BYTES, IN_FLIGHT, Operation, Reply, Request};
use crate::window::{Window, name_of};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a card may take to answer. Far longer than it takes; but the machine that simulates it
/// may have other things to do.
const ANSWER: Duration = Duration::from_millis(250);
/// How long a card that has a driver may take to be rid of it.
const CONNECT: Duration = Duration::from_millis(250);
/// How long to wait before the next try.
const CONNECT_AGAIN: Duration = Duration::from_millis(5);

/// A connection to a register socket ([`crate::protocol`]).
pub struct Socket {
    stream: UnixStream,
    /// What a request that failed has left is nobody's answer.
    has_failed: bool,
    bytes: Vec<u8>,
}

impl Socket {
    /// Connects to the card that listens at `path`.
    ///
    /// # Errors
    /// [`CardError::Connect`] if no card listens there.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, CardError> {
        let path = path.as_ref();
        let stream = connect_in(path, CONNECT).map_err(|source| CardError::Connect {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            stream,
            has_failed: false,
            bytes: Vec::with_capacity(IN_FLIGHT * BYTES),
        })
    }

    /// Sends as many requests as may be on their way, and gives their answers to `take`.
    fn exchange(
        &mut self,
        requests: &[Request],
        mut take: impl FnMut(u32),
    ) -> Result<(), CardError> {
        if self.has_failed {
            return Err(CardError::Closed);
        }
        let outcome = requests
            .chunks(IN_FLIGHT)
            .try_for_each(|some| self.round_trip(some, &mut take));
        // A refused access is an answer like any other, but those behind it have not been read.
        self.has_failed = outcome.is_err();
        outcome
    }

    fn round_trip(
        &mut self,
        requests: &[Request],
        take: &mut impl FnMut(u32),
    ) -> Result<(), CardError> {
        let Some(first) = requests.first() else {
            return Ok(());
        };
        let deadline = Instant::now() + ANSWER;
        self.bytes.clear();
        self.bytes.extend(requests.iter().flat_map(Request::emit));
        self.send(deadline, first)?;
        self.receive(deadline, first)?;
        let mut refused = None;
        for (bytes, request) in self.bytes.as_chunks::<BYTES>().0.iter().zip(requests) {
            match Reply::parse(*bytes, request) {
                Reply::Done(value) => take(value),
                Reply::Refused => {
                    let what = name_of(request.address);
                    refused.get_or_insert(CardError::Refused { what });
                }
                Reply::Nonsense => {
                    let what = name_of(request.address);
                    return Err(CardError::Protocol { what });
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn send(&mut self, deadline: Instant, first: &Request) -> Result<(), CardError> {
        let mut rest = self.bytes.as_slice();
        while !rest.is_empty() {
            let left = left(deadline, first)?;
            self.stream.set_write_timeout(Some(left))?;
            match self.stream.write(rest) {
                Ok(0) => return Err(CardError::Closed),
                Ok(n) => rest = &rest[n..],
                Err(error) => pass(error)?,
            }
        }
        Ok(())
    }

    /// As many bytes as were sent.
    fn receive(&mut self, deadline: Instant, first: &Request) -> Result<(), CardError> {
        let mut rest = self.bytes.as_mut_slice();
        while !rest.is_empty() {
            let left = left(deadline, first)?;
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(rest) {
                Ok(0) => return Err(CardError::Closed),
                Ok(n) => rest = &mut rest[n..],
                Err(error) => pass(error)?,
            }
        }
        Ok(())
    }
}

impl Window for Socket {
    fn read(&mut self, address: u16) -> Result<u32, CardError> {
        let mut value = 0;
        self.exchange(&[read(address)], |it| value = it)?;
        Ok(value)
    }

    fn write(&mut self, address: u16, value: u32) -> Result<(), CardError> {
        self.exchange(&[write((address, value))], |_| {})
    }

    fn write_all(&mut self, writes: &[(u16, u32)]) -> Result<(), CardError> {
        let requests: Vec<_> = writes.iter().copied().map(write).collect();
        self.exchange(&requests, |_| {})
    }

    fn read_all(&mut self, addresses: &[u16], values: &mut Vec<u32>) -> Result<(), CardError> {
        let requests: Vec<_> = addresses.iter().copied().map(read).collect();
        self.exchange(&requests, |value| values.push(value))
    }
}

fn read(address: u16) -> Request {
    Request {
        operation: Operation::Read,
        address,
        value: 0,
    }
}

fn write((address, value): (u16, u32)) -> Request {
    Request {
        operation: Operation::Write,
        address,
        value,
    }
}

/// The time until `deadline`.
fn left(deadline: Instant, first: &Request) -> Result<Duration, CardError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(CardError::Silent {
            what: name_of(first.address),
            after: ANSWER,
        });
    }
    Ok(left)
}

/// What only says that time is over, or that a signal came, is seen at the deadline.
fn pass(error: io::Error) -> Result<(), CardError> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, TimedOut, WouldBlock};
    match error.kind() {
        WouldBlock | TimedOut | Interrupted => Ok(()),
        BrokenPipe | ConnectionReset => Err(CardError::Closed),
        _ => Err(error.into()),
    }
}

/// A stream socket, connected without waiting for room in the listener's queue for longer than
/// `wait`.
fn connect_in(path: &Path, wait: Duration) -> io::Result<UnixStream> {
    let deadline = Instant::now() + wait;
    let address = UnixAddr::new(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    while let Err(errno) = connect(fd.as_raw_fd(), &address) {
        let is_late = Instant::now() >= deadline;
        if is_late || !matches!(errno, nix::Error::EAGAIN | nix::Error::EINTR) {
            return Err(errno.into());
        }
        std::thread::sleep(CONNECT_AGAIN);
    }
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}
