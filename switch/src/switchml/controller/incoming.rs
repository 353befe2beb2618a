//! Connections, and how the desk learns of their beginning and end.
//!
//! tonic says nothing about a connection's end. But it takes any stream of connections and drops each when it is
//! done with it, however that comes about. So what is handed to it here is a socket with an owner's mark,
//! whose drop is the message.

use super::{CONNECTIONS_MAX, Line, Message};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tally_engine::switchml::controller::ConnectionId;
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

    /// None if there are too many: then it is closed at once.
    fn connection(&self, stream: TcpStream, peer: SocketAddr) -> Option<Connection> {
        let open = self.line.open.fetch_add(1, Ordering::Relaxed);
        let mark = Mark {
            connection: ConnectionId(self.line.next.fetch_add(1, Ordering::Relaxed)),
            line: self.line.clone(),
        };
        if open >= CONNECTIONS_MAX {
            return None;
        }
        // Answers are small, and somebody waits for each.
        let _ = stream.set_nodelay(true);
        let _ = self.line.queue.send(Message::Opened {
            connection: mark.connection,
            listen: self.number,
            peer,
        });
        Some(Connection { stream, mark })
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
}

/// Tells the desk of the end.
struct Mark {
    connection: ConnectionId,
    line: Line,
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.line.open.fetch_sub(1, Ordering::Relaxed);
        // The desk ends before the connections when the switch stops.
        let _ = self.line.queue.send(Message::Closed(self.connection));
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionId;

    fn connect_info(&self) -> ConnectionId {
        self.mark.connection
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
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
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
