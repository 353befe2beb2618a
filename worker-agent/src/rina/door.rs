//! Where a member lets its predecessor in: the listener, and connections that have proven nothing.

use super::connection::Connection;
use super::identity::{Identity, nonce};
use super::wire::{self, Header, Hello, Kind, NONCE_BYTES, Nonce};
use crate::log::Level;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};
use tally_local::{Class, Failure};

/// For the other side to prove the key.
const GREETING_WITHIN: Duration = Duration::from_secs(3);
/// Connections at a time that have proven nothing.
const STRANGERS_MAX: usize = 16;
/// Between two attempts to listen.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// Between two lines of the log about refused connections.
const REFUSALS_EVERY: Duration = Duration::from_secs(1);

/// A connection that was accepted and has proven nothing.
struct Stranger {
    connection: Connection,
    challenge: Nonce,
}

pub(super) struct Door {
    listener: Option<TcpListener>,
    listen_at: Instant,
    strangers: Vec<Stranger>,
    refusal_logged: Option<Instant>,
    /// What is in the way of the predecessor.
    pub(super) problem: Option<String>,
}

impl Door {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            listener: None,
            listen_at: now,
            strangers: Vec::new(),
            refusal_logged: None,
            problem: None,
        }
    }

    /// Closes the listener and what has proven nothing.
    pub(super) fn shut(&mut self) {
        self.listener = None;
        self.strangers.clear();
    }

    /// Takes what has come; whether there was something, and the predecessor, if it has proven
    /// that it is.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        id: &Identity,
        epoll: &Epoll,
    ) -> Result<(bool, Option<Connection>), Failure> {
        let mut is_busy = self.accept(now, id, epoll)?;
        let mut predecessor = None;
        let mut at = 0;
        while at < self.strangers.len() {
            is_busy |= self.strangers[at].connection.turn(now);
            let Some(outcome) = self.strangers[at].validate(now, id) else {
                self.strangers[at].connection.watch(epoll);
                at += 1;
                continue;
            };
            is_busy = true;
            let stranger = self.strangers.remove(at);
            match outcome {
                Ok((nonce, hello)) => {
                    let welcomed = self.answer(now, id, stranger, &nonce, &hello);
                    predecessor = welcomed.or(predecessor);
                }
                Err(why) => self.log_refusal(now, id, stranger.connection.peer, &why),
            }
        }
        Ok((is_busy, predecessor))
    }

    fn accept(&mut self, now: Instant, id: &Identity, epoll: &Epoll) -> Result<bool, Failure> {
        if self.listener.is_none() && now >= self.listen_at {
            self.listen_at = now + RETRY_EVERY;
            let at = id.members[id.member].address;
            match listen(at) {
                Ok(listener) => {
                    // Without it the listener is looked at every 50 ms.
                    let _ = epoll.add(listener.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0));
                    self.listener = Some(listener);
                }
                // The last job's member may be about to leave.
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    self.problem = Some(format!("cannot listen at {at}: {error}"));
                }
                Err(error) => {
                    let hint = "`jobs[].rina` must have an address of this host for its rank";
                    let text = format!("cannot listen at {at}: {error}; {hint}");
                    return Err(Failure::new(Class::Link, text));
                }
            }
        }
        let Some(listener) = &self.listener else {
            return Ok(false);
        };
        let mut is_busy = false;
        // Strangers that come without end keep the member from nothing else.
        for _ in 0..STRANGERS_MAX {
            let Ok((stream, peer)) = listener.accept() else {
                break;
            };
            is_busy = true;
            if self.strangers.len() >= STRANGERS_MAX {
                // The oldest has had its time.
                self.strangers.remove(0);
            }
            let (Ok(mut connection), Ok(challenge)) = (Connection::new(stream, peer, now), nonce())
            else {
                continue;
            };
            let header = Header::new(Kind::Challenge, NONCE_BYTES);
            connection.push(now, &header, &challenge);
            self.strangers.push(Stranger {
                connection,
                challenge,
            });
        }
        Ok(is_busy)
    }

    fn log_refusal(&mut self, now: Instant, id: &Identity, peer: SocketAddr, why: &str) {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= REFUSALS_EVERY;
        if self.refusal_logged.is_none_or(is_due) {
            self.refusal_logged = Some(now);
            let what = format_args!("refused a connection from {peer}: it {why}");
            id.say(Level::Warn, what);
        }
    }

    /// Welcomes the predecessor, or says why it is not the one.
    fn answer(
        &mut self,
        now: Instant,
        id: &Identity,
        stranger: Stranger,
        nonce: &Nonce,
        hello: &Hello,
    ) -> Option<Connection> {
        let Stranger {
            mut connection,
            challenge,
        } = stranger;
        let from = id.predecessor();
        let own = id.words(id.member);
        let wanted = Hello {
            job: id.job,
            from: from as u16,
            to: id.member as u16,
            plan: id.plan,
        };
        let problem = match hello {
            _ if *hello == wanted => None,
            _ if hello.job != id.job => Some(format!(
                "{own} takes part in job {}, not {}",
                id.job, hello.job
            )),
            _ if (hello.from, hello.to) == (wanted.from, wanted.to) => Some(format!(
                "{own} has another plan of job {}: `rina`, `ranks_per_host` and `payload_bytes` must be alike at all \
                 agents",
                id.job
            )),
            _ => Some(format!(
                "{own} expects member {} and not member {}, which looks for member {}: `rina` must be alike at all \
                 agents",
                wanted.from, hello.from, hello.to
            )),
        };
        let nonces = [&challenge, nonce];
        let (kind, body) = match &problem {
            None => (Kind::Welcome, Vec::new()),
            Some(text) => (Kind::Refusal, text.clone().into_bytes()),
        };
        let body = wire::seal(&id.key, kind, nonces, body);
        connection.push(now, &Header::new(kind, body.len()), &body);
        connection.turn(now);
        if let Some(text) = problem {
            self.log_refusal(now, id, connection.peer, &format!("is not the one: {text}"));
            self.problem = Some(text);
            connection.shut_down();
            return None;
        }
        if let Ok(Some(header)) = connection.peek() {
            connection.consume(&header);
        }
        connection.is_greeting = false;
        connection.received_at = now;
        self.problem = None;
        Some(connection)
    }
}

impl Stranger {
    /// What it has proven, or why it is to go; none if that has not been decided.
    fn validate(&mut self, now: Instant, id: &Identity) -> Option<Result<(Nonce, Hello), String>> {
        let Self {
            connection,
            challenge,
        } = self;
        let waited = now.saturating_duration_since(connection.queued_at);
        Some(match connection.peek() {
            Ok(None) if waited <= GREETING_WITHIN => return None,
            Ok(None) => Err("has said nothing".to_owned()),
            Ok(Some(header)) if header.kind != Kind::Hello => {
                Err("did not begin with a hello".into())
            }
            Ok(Some(header)) => wire::open_hello(&id.key, challenge, connection.body(&header))
                .ok_or_else(|| format!("has not proven the key of job {}", id.job)),
            Err(ended) => Err(ended.to_string()),
        })
    }
}

fn listen(at: SocketAddrV4) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
