//! A nonblocking TCP connection that carries messages.

use super::wire::{BODY_MAX, HEADER_BYTES, Header};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Instant;

/// Bytes that are read ahead at most, and one message.
const INPUT_MAX: usize = 4 * BODY_MAX;
const READ_BYTES: usize = BODY_MAX + HEADER_BYTES;
/// Output beyond which nothing more should be queued.
const OUTPUT_MAX: usize = 4 * BODY_MAX;

/// Why a connection has ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// By the other side.
    Closed,
    /// By an error.
    Io(io::Error),
    /// By a message that is none.
    Malformed,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("closed the connection"),
            Self::Io(error) => write!(f, "lost the connection ({error})"),
            Self::Malformed => f.write_str("sent a message of another protocol or version"),
        }
    }
}

pub(super) struct Connection {
    stream: TcpStream,
    pub(super) peer: SocketAddr,
    input: Vec<u8>,
    /// Bytes of it that were consumed.
    read: usize,
    output: Vec<u8>,
    /// Bytes of it that were sent.
    sent: usize,
    /// The other side has not proven the key yet.
    pub(super) is_greeting: bool,
    /// When bytes came last, and when a message was queued last.
    pub(super) received_at: Instant,
    pub(super) queued_at: Instant,
    ended: Option<Ended>,
    /// What the epoll set has.
    watched: EpollFlags,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            peer,
            input: Vec::new(),
            read: 0,
            output: Vec::new(),
            sent: 0,
            is_greeting: true,
            received_at: now,
            queued_at: now,
            ended: None,
            watched: EpollFlags::empty(),
        })
    }

    /// Queues a message.
    pub(super) fn push(&mut self, now: Instant, header: &Header, body: &[u8]) {
        debug_assert_eq!(header.bytes, body.len());
        self.output.extend_from_slice(&header.emit());
        self.output.extend_from_slice(body);
        self.queued_at = now;
    }

    /// Whether more should be queued.
    pub(super) fn has_room(&self) -> bool {
        self.output.len() - self.sent < OUTPUT_MAX
    }

    /// Whether all that was queued was sent, or cannot be.
    pub(super) fn is_flushed(&self) -> bool {
        self.output.is_empty() || self.ended.is_some()
    }

    /// Says that no more follows, once all was sent.
    pub(super) fn shut_down(&self) {
        // It may be over.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Sends and receives what can be; whether there was something.
    pub(super) fn turn(&mut self, now: Instant) -> bool {
        let (sent, received) = (self.flush(), self.fill(now));
        sent || received
    }

    fn flush(&mut self) -> bool {
        let mut is_busy = false;
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => break,
                Ok(count) => {
                    self.sent += count;
                    is_busy = true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Its last words may be there to be read.
                Err(_) => self.sent = self.output.len(),
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
        is_busy
    }

    fn fill(&mut self, now: Instant) -> bool {
        let mut is_busy = false;
        while self.wants_input() {
            if self.read > 0 {
                self.input.drain(..self.read);
                self.read = 0;
            }
            let at = self.input.len();
            self.input.resize(at + READ_BYTES, 0);
            let got = self.stream.read(&mut self.input[at..]);
            self.input
                .truncate(at + got.as_ref().map_or(0, |count| *count));
            match got {
                Ok(0) => self.ended = Some(Ended::Closed),
                Ok(_) => {
                    self.received_at = now;
                    is_busy = true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => self.ended = Some(Ended::Io(error)),
            }
        }
        is_busy
    }

    fn wants_input(&self) -> bool {
        self.ended.is_none() && self.input.len() - self.read < INPUT_MAX
    }

    /// Whether messages wait that were not consumed, and no more are read.
    pub(super) fn is_full(&self) -> bool {
        self.ended.is_none() && !self.wants_input()
    }

    /// The header of the next message, if it is there whole. The end comes after all messages.
    pub(super) fn peek(&mut self) -> Result<Option<Header>, Ended> {
        let rest = &self.input[self.read..];
        if let Some(head) = rest.first_chunk() {
            let Some(header) = Header::parse(head, self.is_greeting) else {
                return Err(Ended::Malformed);
            };
            if rest.len() >= HEADER_BYTES + header.bytes {
                return Ok(Some(header));
            }
        }
        self.ended.take().map_or(Ok(None), |ended| {
            self.ended = Some(Ended::Closed);
            Err(ended)
        })
    }

    /// The body of the message that [`peek`](Self::peek) gave.
    pub(super) fn body(&self, header: &Header) -> &[u8] {
        let at = self.read + HEADER_BYTES;
        &self.input[at..at + header.bytes]
    }

    /// Forgets the message that [`peek`](Self::peek) gave.
    pub(super) fn consume(&mut self, header: &Header) {
        self.read += HEADER_BYTES + header.bytes;
    }

    /// Forgets all that has come; whether the other side has ended.
    pub(super) fn discard(&mut self) -> bool {
        self.read = self.input.len();
        self.ended.is_some()
    }

    /// Has the set wake for what there is to wait for.
    pub(super) fn watch(&mut self, epoll: &Epoll) {
        let mut wanted = EpollFlags::empty();
        wanted.set(EpollFlags::EPOLLIN, self.wants_input());
        let has_output = !self.output.is_empty() && self.ended.is_none();
        wanted.set(EpollFlags::EPOLLOUT, has_output);
        if wanted == self.watched {
            return;
        }
        let mut event = EpollEvent::new(wanted, 0);
        let fd = self.stream.as_fd();
        // Without it the connection is looked at every 50 ms. One that is in the set would wake for
        // its end, again and again.
        let _ = match (self.watched.is_empty(), wanted.is_empty()) {
            (true, _) => epoll.add(fd, event),
            (false, true) => epoll.delete(fd),
            (false, false) => epoll.modify(fd, &mut event),
        };
        self.watched = wanted;
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Kind;
    use super::*;
    use std::net::TcpListener;
    use std::time::Duration;

    fn pair() -> (Connection, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, from) = listener.accept().unwrap();
        let now = Instant::now();
        let mut both = [a, b].map(|it| Connection::new(it, from, now).unwrap());
        both.iter_mut().for_each(|it| it.is_greeting = false);
        both.into()
    }

    /// Turns both until `b` has a message or the end.
    fn next(a: &mut Connection, b: &mut Connection) -> Result<Header, Ended> {
        let begin = Instant::now();
        loop {
            a.turn(begin);
            b.turn(begin);
            if let Some(header) = b.peek()? {
                return Ok(header);
            }
            assert!(begin.elapsed() < Duration::from_secs(10));
        }
    }

    #[test]
    fn messages_come_in_order_and_the_end_behind_them() {
        let (mut a, mut b) = pair();
        let now = Instant::now();
        for number in 0..100 {
            let body = vec![number as u8; BODY_MAX];
            let header = Header {
                segment: number,
                ..Header::new(Kind::Piece, body.len())
            };
            a.push(now, &header, &body);
        }
        assert!(!a.has_room());
        for number in 0..100 {
            let header = next(&mut a, &mut b).unwrap();
            assert_eq!(header.segment, number);
            assert!(b.body(&header).iter().all(|byte| *byte == number as u8));
            b.consume(&header);
        }
        assert!(a.is_flushed() && a.has_room());
        drop(a);
        let (mut other, _) = pair();
        assert!(matches!(next(&mut other, &mut b), Err(Ended::Closed)));
        assert!(matches!(b.peek(), Err(Ended::Closed)));
    }

    #[test]
    fn input_is_bounded() {
        let (mut a, mut b) = pair();
        let now = Instant::now();
        let header = Header::new(Kind::Piece, BODY_MAX);
        for _ in 0..400 {
            a.push(now, &header, &[0; BODY_MAX]);
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(100) {
            a.turn(now);
            b.turn(now);
        }
        assert!(b.is_full() && b.input.len() <= INPUT_MAX + READ_BYTES);
    }

    #[test]
    fn another_protocol_is_noticed() {
        let (a, mut b) = pair();
        (&a.stream).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let (mut other, _) = pair();
        assert!(matches!(next(&mut other, &mut b), Err(Ended::Malformed)));
    }
}
