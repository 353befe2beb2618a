//! A member's side of the rendezvous.

use super::frame::{self, kind};
use super::{Call, Hello, RendezvousError, RingConfig, Welcome};
use crate::Stop;
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How often to try to connect while rank 0 has not started.
const RETRY: Duration = Duration::from_millis(100);
/// How long one try may take, where nothing answers.
const TRY: Duration = Duration::from_secs(2);
/// Silence after which a host is asked whether it is there, how often, and how many times. A host
/// that is gone is found within 25 s.
const KEEPALIVE: (u32, u32, u32) = (10, 5, 3);

/// Connection of a member to the coordinator.
pub struct Client {
    stream: TcpStream,
    stop: Stop,
}

/// Settings of both ends: no delay, and keepalives that find a dead host.
pub(super) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (idle, interval, count) = KEEPALIVE;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &idle)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &interval)?;
    setsockopt(stream, sockopt::TcpKeepCount, &count)?;
    Ok(())
}

impl Client {
    /// Joins the ring, which may take until its last member has come. Rank 0 may start later.
    ///
    /// # Errors
    /// If the ring does not form within `timeout`, the coordinator refuses, or `stop` is set.
    pub fn join(
        coordinator: SocketAddr,
        ring: &RingConfig,
        hello: &Hello,
        timeout: Duration,
        stop: &Stop,
    ) -> Result<(Self, Welcome), RendezvousError> {
        let deadline = Instant::now() + timeout;
        let stream = loop {
            match TcpStream::connect_timeout(&coordinator, timeout.clamp(RETRY, TRY)) {
                Ok(stream) => break stream,
                Err(_) if stop.is_set() => return Err(RendezvousError::Stopped),
                Err(error) if Instant::now() >= deadline => {
                    return Err(RendezvousError::Connection(error));
                }
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        let prepared = prepare(&stream).and_then(|()| stop.ends(&stream));
        prepared.map_err(RendezvousError::Connection)?;
        // The coordinator has the same timeout, and names the ranks that are missing.
        let limit = timeout.saturating_mul(2).max(RETRY);
        stream
            .set_read_timeout(Some(limit))
            .map_err(RendezvousError::Connection)?;
        let stop = stop.clone();
        let client = Self { stream, stop };
        let body = client.expect(kind::CHALLENGE)?;
        let invalid = || RendezvousError::Connection(frame::invalid("truncated challenge"));
        let challenge = body.try_into().map_err(|_| invalid())?;
        let nonce = frame::nonce().map_err(RendezvousError::Connection)?;
        let hello = frame::seal_hello(ring, &challenge, &nonce, hello);
        client.write(kind::HELLO, &hello)?;
        let body = client.expect(kind::WELCOME)?;
        let welcome = frame::open_welcome(ring, [&challenge, &nonce], &body)
            .ok_or(RendezvousError::Unauthenticated)?;
        client
            .stream
            .set_read_timeout(None)
            .map_err(RendezvousError::Connection)?;
        Ok((client, welcome))
    }

    /// Waits until all members have entered with the same call.
    ///
    /// # Errors
    /// If they differ, or a member has failed or died.
    pub fn enter(&self, call: Call) -> Result<(), RendezvousError> {
        self.enter_as(call, "")
    }

    /// As [`enter`](Self::enter), with a name that must be alike too: its first
    /// [`NAME_BYTES_MAX`](super::NAME_BYTES_MAX) bytes.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    pub fn enter_as(&self, call: Call, name: &str) -> Result<(), RendezvousError> {
        self.write(kind::ENTER, &frame::emit_call(call, name))?;
        self.expect(kind::GO).map(|_| ())
    }

    /// Tells the others why this member has failed.
    pub fn fail(&self, why: &str) {
        // Who does not hear it finds the connection closed.
        let _ = self.write(kind::FAILED, why.as_bytes());
    }

    /// Readable when the ring has failed, while no call is waited for.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Why the ring has failed, when [`descriptor`](Self::descriptor) is readable.
    #[must_use]
    pub fn failure(&self) -> RendezvousError {
        match self.expect(kind::FAILED) {
            Ok(_) => unreachable!("a frame of that type is an error"),
            Err(error) => error,
        }
    }

    fn write(&self, kind: u8, body: &[u8]) -> Result<(), RendezvousError> {
        match frame::write(&self.stream, kind, body) {
            Ok(()) => Ok(()),
            // Why the coordinator has closed it may be there to be read.
            Err(error) => match self.expect(kind::FAILED) {
                Err(failed @ (RendezvousError::Failed(_) | RendezvousError::Stopped)) => {
                    Err(failed)
                }
                _ => Err(RendezvousError::Connection(error)),
            },
        }
    }

    /// The body of the next frame, which must be of this type.
    fn expect(&self, expected: u8) -> Result<Vec<u8>, RendezvousError> {
        let frame = frame::read(&self.stream).map_err(|error| {
            if self.stop.is_set() {
                return RendezvousError::Stopped;
            }
            RendezvousError::Connection(match error.kind() {
                ErrorKind::UnexpectedEof => Error::new(error.kind(), "closed"),
                _ => error,
            })
        })?;
        match frame.kind {
            kind::FAILED => Err(RendezvousError::Failed(
                String::from_utf8_lossy(&frame.body).into_owned(),
            )),
            found if found == expected => Ok(frame.body),
            found => Err(RendezvousError::Unexpected(found)),
        }
    }
}
