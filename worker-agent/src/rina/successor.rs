//! The way to the successor: TCP's handshake, then that of the key.

use super::connection::Connection;
use super::identity::{Identity, nonce};
use super::wire::{self, Header, Hello, Kind, Nonce};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, socket};
use std::io;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};
use tally_local::{Class, Failure};

/// For the other side to take a connection and to prove the key.
const GREETING_WITHIN: Duration = Duration::from_secs(3);
/// Between two attempts to connect.
pub(super) const RETRY_EVERY: Duration = Duration::from_millis(100);

/// The way to the successor.
pub(super) enum Stage {
    /// Nothing, until it is time to try again.
    Resting(Instant),
    /// TCP's handshake.
    Connecting(TcpStream),
    /// Proofs are exchanged; ours is sent with this challenge's answer.
    Greeting(Box<Connection>, Option<(Nonce, Nonce)>),
    Ready(Box<Connection>),
}

/// Why a step has failed.
enum Problem {
    /// It is tried again.
    Words(String),
    /// The successor does not want this member.
    Refused(Failure),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Words(error.to_string())
    }
}

impl From<&str> for Problem {
    fn from(words: &str) -> Self {
        Self::Words(words.into())
    }
}

pub(super) struct Successor {
    pub(super) stage: Stage,
    /// Since when it connects or greets.
    since: Instant,
    /// What is in the way.
    pub(super) problem: Option<String>,
}

impl Successor {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            stage: Stage::Resting(now),
            since: now,
            problem: None,
        }
    }

    /// The connection, once both sides have proven the key.
    pub(super) fn ready(&mut self) -> Option<&mut Connection> {
        match &mut self.stage {
            Stage::Ready(connection) => Some(connection),
            _ => None,
        }
    }

    pub(super) const fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready(_))
    }

    /// Drops the connection, if it is ready; there will be another one.
    pub(super) fn part(&mut self, now: Instant) {
        if self.is_ready() {
            self.stage = Stage::Resting(now + RETRY_EVERY);
        }
    }

    /// Does the next step to a connection; whether there was one.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        id: &Identity,
        epoll: &Epoll,
    ) -> Result<bool, Failure> {
        if self.is_ready() {
            return Ok(false);
        }
        let rest = Stage::Resting(now + RETRY_EVERY);
        let stage = std::mem::replace(&mut self.stage, rest);
        match self.step(now, id, epoll, stage) {
            Ok((stage, is_busy)) => {
                self.stage = stage;
                if self.is_ready() {
                    self.problem = None;
                }
                Ok(is_busy)
            }
            Err(Problem::Words(words)) => {
                self.problem = Some(words);
                Ok(true)
            }
            Err(Problem::Refused(failure)) => Err(failure),
        }
    }

    fn step(
        &mut self,
        now: Instant,
        id: &Identity,
        epoll: &Epoll,
        stage: Stage,
    ) -> Result<(Stage, bool), Problem> {
        let waited = now.saturating_duration_since(self.since);
        match stage {
            Stage::Resting(until) if now >= until => {
                self.since = now;
                let stream = begin_connect(id.members[id.successor()].address)?;
                // Without it the connection is looked at every 50 ms.
                let _ = epoll.add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLOUT, 0));
                Ok((Stage::Connecting(stream), true))
            }
            Stage::Connecting(stream) => {
                if let Some(error) = stream.take_error()? {
                    return Err(error.into());
                }
                match stream.peer_addr() {
                    Ok(peer) => {
                        let _ = epoll.delete(stream.as_fd());
                        let connection = Connection::new(stream, peer, now)?;
                        Ok((Stage::Greeting(Box::new(connection), None), true))
                    }
                    Err(_) if waited > GREETING_WITHIN => Err("did not take the connection".into()),
                    Err(_) => Ok((Stage::Connecting(stream), false)),
                }
            }
            Stage::Greeting(mut connection, sent) => {
                connection.turn(now);
                let header = match connection.peek() {
                    Ok(Some(header)) => header,
                    Ok(None) if waited <= GREETING_WITHIN => {
                        connection.watch(epoll);
                        return Ok((Stage::Greeting(connection, sent), false));
                    }
                    Ok(None) => return Err("took the connection and says nothing".into()),
                    Err(ended) => {
                        let hint = "see that agent's log, and whether both have the same key";
                        let words = format!("{ended} before its welcome; {hint}");
                        return Err(Problem::Words(words));
                    }
                };
                Ok((greet(now, id, connection, sent, &header)?, true))
            }
            other => Ok((other, false)),
        }
    }
}

/// Answers the successor's challenge, or checks its welcome.
fn greet(
    now: Instant,
    id: &Identity,
    mut connection: Box<Connection>,
    sent: Option<(Nonce, Nonce)>,
    header: &Header,
) -> Result<Stage, Problem> {
    let body = connection.body(header);
    match (header.kind, sent) {
        (Kind::Challenge, None) => {
            let challenge = body.try_into();
            let challenge: Nonce = challenge.map_err(|_| Problem::from("sent no challenge"))?;
            let own = nonce().map_err(|why| Problem::Words(why.to_string()))?;
            let hello = Hello {
                job: id.job,
                from: id.member as u16,
                to: id.successor() as u16,
                plan: id.plan,
            };
            let body = wire::seal_hello(&id.key, &challenge, &own, &hello);
            connection.consume(header);
            connection.push(now, &Header::new(Kind::Hello, body.len()), &body);
            Ok(Stage::Greeting(connection, Some((challenge, own))))
        }
        (kind @ (Kind::Welcome | Kind::Refusal), Some((challenge, own))) => {
            let text = wire::open(&id.key, kind, [&challenge, &own], body);
            let text = text.ok_or(Problem::from("has not proven the job's key"))?;
            if kind == Kind::Refusal {
                let text = String::from_utf8_lossy(text).into_owned();
                return Err(Problem::Refused(Failure::new(Class::Join, text)));
            }
            connection.consume(header);
            connection.is_greeting = false;
            Ok(Stage::Ready(connection))
        }
        _ => Err("does not keep to the protocol".into()),
    }
}

fn begin_connect(to: SocketAddrV4) -> io::Result<TcpStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    let [a, b, c, d] = to.ip().octets();
    let address = SockaddrIn::new(a, b, c, d, to.port());
    match connect(socket.as_raw_fd(), &address) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}
