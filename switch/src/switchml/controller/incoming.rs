//! Connections, and how the desk learns of their beginning and end.
//!
//! tonic says nothing about a connection's end. But it takes any stream of connections and drops
//! each when it is done with it, however that comes about. So what is handed to it here is a socket
//! with an owner's mark, whose drop is the message.
//!
//! The socket has a time limit, too: a connection that makes no call in time, for any reason (no
//! HTTP/2, half of its preface, a header without end), fails. Afterwards HTTP/2's pings tell
//! whether anybody is there. Hosts that may not call, or have too many connections, are turned away
//! before anything is read.

use super::{Line, Message};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tally_engine::switchml::controller::{ConnectionId, Refusal};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// After an error that is not one connection's (no more descriptors, no memory).
const PAUSE: Duration = Duration::from_millis(100);

/// The connections to one address.
pub(super) struct Incoming {
    listener: TcpListener,
    /// Which address.
    number: usize,
    line: Line,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(super) fn new(listener: TcpListener, number: usize, line: Line) -> Self {
        Self {
            listener,
            number,
            line,
            pause: None,
        }
    }

    /// Why a host may have no connection more.
    fn check(&self, peer: IpAddr) -> Result<(), Refusal> {
        let limits = &self.line.limits;
        if !limits.allow.is_empty() && !limits.allow.iter().any(|network| network.has(peer)) {
            return Err(Refusal::NotAllowed { peer });
        }
        let open = self
            .line
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let allowed = limits.connections_of_host;
        if open.get(&peer).is_some_and(|&n| n >= allowed) {
            return Err(Refusal::Connections { peer, allowed });
        }
        let allowed = limits.connections;
        if open.values().sum::<usize>() >= allowed {
            return Err(Refusal::AllConnections { allowed });
        }
        Ok(())
    }

    /// None if there are too many: then it is closed at once.
    fn connection(&self, stream: TcpStream, peer: SocketAddr) -> Option<Connection> {
        let host = peer.ip().to_canonical();
        if let Err(why) = self.check(host) {
            let _ = self.line.queue.send(Message::TurnedAway { peer, why });
            return None;
        }
        let mut open = self
            .line
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *open.entry(host).or_default() += 1;
        drop(open);
        let mark = Mark {
            connection: ConnectionId(self.line.next.fetch_add(1, Ordering::Relaxed)),
            host,
            line: self.line.clone(),
        };
        // Answers are small, and a client waits for each.
        let _ = stream.set_nodelay(true);
        let _ = self.line.queue.send(Message::Opened {
            connection: mark.connection,
            listen: self.number,
            peer,
        });
        Some(Connection {
            stream,
            mark,
            has_called: Arc::new(AtomicBool::new(false)),
            limit: Some(Box::pin(tokio::time::sleep(self.line.limits.first_call))),
        })
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
            match ready!(self.listener.poll_accept(cx)) {
                Ok((stream, peer)) => {
                    if let Some(connection) = self.connection(stream, peer) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                // The same error would come again at once.
                Err(_) => self.pause = Some(Box::pin(tokio::time::sleep(PAUSE))),
            }
        }
    }
}

/// One client's connection.
pub(super) struct Connection {
    stream: TcpStream,
    mark: Mark,
    has_called: Arc<AtomicBool>,
    /// Until when it must have called; `None` when it has.
    limit: Option<Pin<Box<Sleep>>>,
}

/// What its calls know of it.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) connection: ConnectionId,
    /// Set by its first call.
    pub(super) has_called: Arc<AtomicBool>,
}

impl Connection {
    /// An error if it has not called in time. Wakes the task then.
    fn check_limit(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(limit) = &mut self.limit else {
            return Ok(());
        };
        if self.has_called.load(Ordering::Relaxed) {
            self.limit = None;
        } else if limit.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

/// Tells the desk of the end.
struct Mark {
    connection: ConnectionId,
    host: IpAddr,
    line: Line,
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut open = self
            .line
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = open.get_mut(&self.host) {
            *n -= 1;
        }
        open.retain(|_, n| *n > 0);
        drop(open);
        // The desk ends before the connections when the switch stops.
        let _ = self.line.queue.send(Message::Closed(self.connection));
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller {
            connection: self.mark.connection,
            has_called: Arc::clone(&self.has_called),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_limit(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_limit(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_limit(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
