//! Connections: who is at the other end, and whether there is a place.
//!
//! A user (of a Unix socket) or host (of TCP) has a number of connections; one more is closed at
//! once, before anything is read. A connection that makes no call in time fails, for any reason: no
//! HTTP/2, half a preface, a TLS handshake without end. Afterwards HTTP/2's pings tell whether it
//! is alive.

use super::socket::{Acceptor, Allowed};
use super::{Caller, Limits};
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// After an error that is not one connection's (no more descriptors, no memory).
const PAUSE: Duration = Duration::from_millis(100);

/// Whose connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Peer {
    User(u32),
    Host(IpAddr),
}

/// Who may come in.
pub(super) struct Gate {
    limits: Limits,
    allowed: Allowed,
    names: Arc<str>,
    open: Arc<Mutex<HashMap<Peer, usize>>>,
}

impl Gate {
    pub(super) fn new(limits: Limits, allowed: Allowed) -> Self {
        Self {
            names: allowed.names().into(),
            limits,
            allowed,
            open: Arc::default(),
        }
    }

    /// A place for a connection of this peer, if there is one.
    fn place(&self, peer: Peer) -> Option<Place> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.get(&peer).copied().unwrap_or_default();
        if own >= self.limits.connections_of_peer || all >= self.limits.connections {
            return None;
        }
        *open.entry(peer).or_default() += 1;
        Some(Place {
            peer,
            open: Arc::clone(&self.open),
        })
    }

    fn connection(&self, stream: Socket) -> Option<Connection> {
        let (peer, rights, name) = match &stream {
            Socket::Unix(stream) => {
                let peer = stream.peer_cred().ok()?;
                let (uid, gid) = (peer.uid(), peer.gid());
                let process = peer
                    .pid()
                    .map_or(String::new(), |pid| format!(", process {pid}"));
                let name = format!("user {uid}{process}");
                (Peer::User(uid), self.allowed.rights(uid, gid), name)
            }
            Socket::Tcp(stream) => {
                // Answers are small, and a client waits for each.
                let _ = stream.set_nodelay(true);
                let address = stream.peer_addr().ok()?;
                let host = address.ip().to_canonical();
                let name = format!("host {host}");
                (Peer::Host(host), self.allowed.of_certificate(), name)
            }
        };
        let place = self.place(peer)?;
        let caller = Caller {
            rights,
            name: name.into(),
            has_called: Arc::new(AtomicBool::new(false)),
            allowed: Arc::clone(&self.names),
        };
        Some(Connection {
            stream,
            _place: place,
            caller,
            limit: Some(Box::pin(tokio::time::sleep(self.limits.first_call))),
        })
    }
}

/// A connection's place, free again when it is dropped.
struct Place {
    peer: Peer,
    open: Arc<Mutex<HashMap<Peer, usize>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = open.get_mut(&self.peer) {
            *n -= 1;
        }
        open.retain(|_, n| *n > 0);
    }
}

/// The connections to one listener.
pub(super) struct Incoming {
    acceptor: Acceptor,
    gate: Gate,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(super) fn new(acceptor: Acceptor, gate: Gate) -> Self {
        Self {
            acceptor,
            gate,
            pause: None,
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let accepted = match &self.acceptor {
                Acceptor::Unix(listener) => {
                    ready!(listener.poll_accept(cx)).map(|(stream, _)| Socket::Unix(stream))
                }
                Acceptor::Tcp(listener) => {
                    ready!(listener.poll_accept(cx)).map(|(stream, _)| Socket::Tcp(stream))
                }
            };
            match accepted {
                Ok(stream) => {
                    if let Some(connection) = self.gate.connection(stream) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                // The same error would come again at once.
                Err(_) => self.pause = Some(Box::pin(tokio::time::sleep(PAUSE))),
            }
        }
    }
}

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// One client's connection.
pub(super) struct Connection {
    stream: Socket,
    _place: Place,
    caller: Caller,
    /// Until when it must have called; `None` when it has.
    limit: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    /// An error if it has not called in time. Wakes the task then.
    fn check_limit(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(limit) = &mut self.limit else {
            return Ok(());
        };
        if self.caller.has_called.load(Ordering::Relaxed) {
            self.limit = None;
        } else if limit.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_limit(cx)?;
        match &mut self.stream {
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_limit(cx)?;
        match &mut self.stream {
            Socket::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Socket::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
