//! The TCP connections of one member: from its predecessor, and to its successor.
//!
//! A member listens at its own address and connects to its successor's. Both prove that they have
//! the job's key. When both connections are there, member 0 sends a token round the ring twice: the
//! first round says that all are connected, the second that the ring has *formed*. Until then a
//! connection that is lost is made again, and takes the other one with it, so that no two members
//! are of different incarnations. After that a connection that is lost is the ring's end.
//!
//! Elements pass to the successor only. Heartbeats and last words pass both ways.
//!
//! # The catches
//!
//! * What comes for a pass that has not begun here stays in the connection: the predecessor waits.
//!   Then nothing is heard of it, and it is not taken for silent.
//! * A connection is closed some time after the last words were sent: a reset would drop them.

use super::connection::{Connection, Ended};
use super::wire::{self, Header, Hello, Kind, NONCE_BYTES, Nonce, PlanHash};
use crate::log::{Level, Log};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, socket};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::time::{Duration, Instant};
use tally_local::{Class, Failure, Ranks};
use tally_wire::Key;

/// For the other side to prove the key, or to take a connection.
const GREETING_WITHIN: Duration = Duration::from_secs(3);
/// Connections at a time that have proven nothing.
const STRANGERS_MAX: usize = 16;
/// Between two attempts to listen or to connect.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// Between two lines of the log about refused connections.
const REFUSALS_EVERY: Duration = Duration::from_secs(1);
/// Bytes of last words.
const WORDS_MAX: usize = 2048;
/// Between two heartbeats.
const ALIVE_EVERY: Duration = Duration::from_millis(250);

/// A member, as the others know it.
#[derive(Clone, Debug)]
pub(crate) struct MemberName {
    /// Where its agent listens.
    pub(crate) address: SocketAddrV4,
    /// Its first rank, and one past the last.
    pub(crate) ranks: (u16, u16),
}

impl MemberName {
    /// Its ranks, as errors have them.
    pub(crate) fn set(&self) -> Ranks {
        Ranks::of_range(self.ranks.0, self.ranks.1)
    }
}

/// What a member knows of its ring.
pub(crate) struct Identity {
    pub(crate) job: u16,
    pub(crate) key: Key,
    pub(crate) plan: PlanHash,
    /// Which member this is.
    pub(crate) member: usize,
    pub(crate) members: Vec<MemberName>,
    pub(crate) join: Duration,
    pub(crate) stall: Duration,
    pub(crate) log: Log,
    /// Job and rank, for the log.
    pub(crate) name: String,
}

impl Identity {
    pub(crate) const fn successor(&self) -> usize {
        (self.member + 1) % self.members.len()
    }

    pub(crate) const fn predecessor(&self) -> usize {
        (self.member + self.members.len() - 1) % self.members.len()
    }

    /// A member in words.
    pub(crate) fn words(&self, member: usize) -> String {
        let MemberName { address, ranks } = &self.members[member];
        match ranks.1 - ranks.0 {
            1 => format!("member {member} (rank {}, {address})", ranks.0),
            _ => format!(
                "member {member} (ranks {} to {}, {address})",
                ranks.0,
                ranks.1 - 1
            ),
        }
    }

    fn say(&self, level: Level, what: impl std::fmt::Display) {
        let name = &self.name;
        self.log.say(level, format_args!("{name}: {what}"));
    }

    /// A failure on account of a member.
    pub(crate) fn failure(&self, class: Class, member: usize, what: &str) -> Failure {
        Failure {
            class,
            ranks: self.members[member].set(),
            text: format!("{} {what}", self.words(member)),
        }
    }
}

/// A connection that was accepted and has proven nothing.
struct Stranger {
    connection: Connection,
    challenge: Nonce,
}

/// The way to the successor.
enum Successor {
    /// Nothing, until it is time to try again.
    Resting(Instant),
    /// TCP's handshake.
    Connecting(TcpStream),
    /// Proofs are exchanged; ours is sent with this challenge's answer.
    Greeting(Box<Connection>, Option<(Nonce, Nonce)>),
    Ready(Box<Connection>),
}

/// How far the ring has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forming {
    /// No token has come, or left member 0.
    Apart,
    /// A token of this round waits for the successor.
    Token(u32),
    /// The first round has passed.
    Passed,
    /// All members take part.
    Formed,
}

pub(crate) struct Link {
    id: Identity,
    epoll: Epoll,
    listener: Option<TcpListener>,
    listen_at: Instant,
    strangers: Vec<Stranger>,
    predecessor: Option<Connection>,
    successor: Successor,
    /// Since when it connects or greets.
    since: Instant,
    forming: Forming,
    began: Instant,
    /// What is in the way of the successor, and of the predecessor.
    problems: [Option<String>; 2],
    refusal_logged: Option<Instant>,
    /// Passes begun, by member, as far as is known.
    passes: Vec<u64>,
    /// Passes of neighbours that have left: predecessor, successor.
    has_left: [Option<u32>; 2],
    /// Since when last words were sent.
    closing: Option<Instant>,
}

impl Link {
    pub(crate) fn open(id: Identity) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            listener: None,
            listen_at: now,
            strangers: Vec::new(),
            predecessor: None,
            successor: Successor::Resting(now),
            since: now,
            forming: Forming::Apart,
            began: now,
            problems: [None, None],
            refusal_logged: None,
            passes: vec![0; id.members.len()],
            has_left: [None, None],
            closing: None,
            id,
        })
    }

    pub(crate) const fn identity(&self) -> &Identity {
        &self.id
    }

    /// Readable when there is something to do.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Also wakes for this one.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) {
        // Without it, it is looked at every 50 ms.
        let _ = self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0));
    }

    pub(crate) fn is_formed(&self) -> bool {
        self.forming == Forming::Formed
    }

    /// Takes another key, for what is not proven yet.
    pub(crate) fn set_key(&mut self, key: Key) {
        self.id.key = key;
    }

    /// What it waits for while the ring has not formed.
    pub(crate) fn obstacle(&self) -> String {
        let [to, from] = &self.problems;
        let successor = !matches!(self.successor, Successor::Ready(_));
        let predecessor = self.predecessor.is_none();
        let mut parts = Vec::new();
        if successor {
            let name = self.id.words(self.id.successor());
            let why = to.as_deref().unwrap_or("no connection yet");
            parts.push(format!("successor {name}: {why}"));
        }
        if predecessor {
            let name = self.id.words(self.id.predecessor());
            let why = from.as_deref().unwrap_or("has not connected");
            parts.push(format!("predecessor {name}: {why}"));
        }
        if parts.is_empty() {
            parts.push("other members are not connected to each other yet".into());
        }
        parts.join("; ")
    }

    /// Does what there is to do; whether there was something.
    pub(crate) fn turn(&mut self, now: Instant) -> Result<bool, Failure> {
        if self.closing.is_some() {
            return Ok(self.linger(now));
        }
        let mut is_busy = false;
        if self.forming != Forming::Formed {
            is_busy |= self.form(now)?;
        }
        for connection in neighbours(&mut self.predecessor, &mut self.successor) {
            is_busy |= connection.turn(now);
        }
        is_busy |= self.hear_successor()?;
        if self.forming == Forming::Formed {
            self.check_silence(now)?;
        }
        self.say_alive(now);
        for connection in neighbours(&mut self.predecessor, &mut self.successor) {
            connection.watch(&self.epoll);
        }
        let strangers = self.strangers.iter_mut().map(|it| &mut it.connection);
        let greeting = match &mut self.successor {
            Successor::Greeting(connection, _) => Some(&mut **connection),
            _ => None,
        };
        strangers.chain(greeting).for_each(|it| it.watch(&self.epoll));
        Ok(is_busy)
    }

    /// Connects, accepts, and passes the token.
    fn form(&mut self, now: Instant) -> Result<bool, Failure> {
        let waited = now.saturating_duration_since(self.began);
        if waited > self.id.join {
            let text = format!(
                "the ring has not formed within {:?}: {}; start all ranks within the agents' `timeouts.join_ms`",
                self.id.join,
                self.obstacle()
            );
            return Err(Failure::new(Class::Join, text));
        }
        let mut is_busy = self.accept(now)?;
        is_busy |= self.greet_strangers(now);
        is_busy |= self.connect(now)?;
        if !matches!(self.successor, Successor::Ready(_)) || self.predecessor.is_none() {
            return Ok(is_busy);
        }
        match (self.forming, self.id.member) {
            (Forming::Apart, 0) => {
                self.send_token(now, 1);
                self.forming = Forming::Passed;
            }
            (Forming::Token(round @ 1), 1..) => {
                self.send_token(now, round);
                self.forming = Forming::Passed;
            }
            (Forming::Token(round @ 2), _) => {
                self.send_token(now, round);
                self.forming = Forming::Formed;
                self.listener = None;
                self.strangers.clear();
                self.id.say(Level::Info, "the ring has formed");
            }
            _ => return Ok(is_busy),
        }
        Ok(true)
    }

    fn send_token(&mut self, now: Instant, round: u32) {
        if let Successor::Ready(connection) = &mut self.successor {
            let header = Header {
                segment: round,
                ..Header::new(Kind::Token, 0)
            };
            connection.push(now, &header, &[]);
        }
    }

    fn accept(&mut self, now: Instant) -> Result<bool, Failure> {
        if self.listener.is_none() && now >= self.listen_at {
            self.listen_at = now + RETRY_EVERY;
            let at = self.id.members[self.id.member].address;
            match listen(at) {
                Ok(listener) => {
                    self.add(listener.as_fd());
                    self.listener = Some(listener);
                }
                // The last job's member may be about to leave.
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    self.problems[1] = Some(format!("cannot listen at {at}: {error}"));
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
        while let Ok((stream, peer)) = listener.accept() {
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

    /// Takes the predecessor from those who have connected.
    fn greet_strangers(&mut self, now: Instant) -> bool {
        let mut is_busy = false;
        let mut at = 0;
        while at < self.strangers.len() {
            is_busy |= self.strangers[at].connection.turn(now);
            let stranger = &mut self.strangers[at];
            let waited = now.saturating_duration_since(stranger.connection.queued_at);
            let outcome = match stranger.connection.peek() {
                Ok(None) if waited > GREETING_WITHIN => Err("has said nothing".to_owned()),
                Ok(None) => {
                    at += 1;
                    continue;
                }
                Ok(Some(header)) => self.judge(at, &header),
                Err(ended) => Err(ended.to_string()),
            };
            is_busy = true;
            let mut stranger = self.strangers.remove(at);
            let peer = stranger.connection.peer;
            match outcome {
                Ok((nonce, hello)) => self.take_predecessor(now, stranger, &nonce, &hello),
                Err(why) => {
                    stranger.connection.discard();
                    self.log_refusal(now, peer, &why);
                }
            }
        }
        is_busy
    }

    fn log_refusal(&mut self, now: Instant, peer: SocketAddr, why: &str) {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= REFUSALS_EVERY;
        if self.refusal_logged.is_none_or(is_due) {
            self.refusal_logged = Some(now);
            let what = format_args!("refused a connection from {peer}: it {why}");
            self.id.say(Level::Warn, what);
        }
    }

    /// What a stranger has proven.
    fn judge(&self, at: usize, header: &Header) -> Result<(Nonce, Hello), String> {
        let Stranger {
            connection,
            challenge,
        } = &self.strangers[at];
        if header.kind != Kind::Hello {
            return Err("did not begin with a hello".into());
        }
        wire::open_hello(&self.id.key, challenge, connection.body(header))
            .ok_or_else(|| format!("has not proven the key of job {}", self.id.job))
    }

    /// Welcomes the predecessor, or says why it is not the one.
    fn take_predecessor(&mut self, now: Instant, stranger: Stranger, nonce: &Nonce, hello: &Hello) {
        let Stranger {
            mut connection,
            challenge,
        } = stranger;
        let (id, from) = (&self.id, self.id.predecessor());
        let own = id.words(id.member);
        let wanted = Hello {
            job: id.job,
            from: from as u16,
            to: id.member as u16,
            plan: id.plan,
        };
        let problem = match hello {
            _ if *hello == wanted => None,
            _ if hello.job != id.job => {
                Some(format!("{own} takes part in job {}, not {}", id.job, hello.job))
            }
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
            self.log_refusal(now, connection.peer, &format!("is not the one: {text}"));
            self.problems[1] = Some(text);
            connection.shut_down();
            return;
        }
        let peek = connection.peek();
        if let Ok(Some(header)) = peek {
            connection.consume(&header);
        }
        connection.is_greeting = false;
        connection.received_at = now;
        if self.predecessor.is_some() {
            // It has begun again.
            self.part();
        }
        self.problems[1] = None;
        self.predecessor = Some(connection);
    }

    /// Drops both connections: the ring has not formed.
    fn part(&mut self) {
        self.predecessor = None;
        if matches!(self.successor, Successor::Ready(_)) {
            self.successor = Successor::Resting(Instant::now() + RETRY_EVERY);
        }
        self.forming = Forming::Apart;
    }

    /// Gets on with the way to the successor.
    fn connect(&mut self, now: Instant) -> Result<bool, Failure> {
        let waited = now.saturating_duration_since(self.since);
        let rest = Successor::Resting(now + RETRY_EVERY);
        let address = self.id.members[self.id.successor()].address;
        match std::mem::replace(&mut self.successor, rest) {
            Successor::Resting(until) if now < until => {
                self.successor = Successor::Resting(until);
                Ok(false)
            }
            Successor::Resting(_) => {
                self.since = now;
                match begin_connect(address) {
                    Ok(stream) => {
                        let event = EpollEvent::new(EpollFlags::EPOLLOUT, 0);
                        let _ = self.epoll.add(stream.as_fd(), event);
                        self.successor = Successor::Connecting(stream);
                    }
                    Err(error) => self.problems[0] = Some(error.to_string()),
                }
                Ok(true)
            }
            Successor::Connecting(stream) => {
                let error = stream.take_error().unwrap_or_else(Some);
                match (error, stream.peer_addr()) {
                    (Some(error), _) => self.problems[0] = Some(error.to_string()),
                    (None, Ok(peer)) => {
                        let _ = self.epoll.delete(stream.as_fd());
                        match Connection::new(stream, peer, now) {
                            Ok(it) => self.successor = Successor::Greeting(Box::new(it), None),
                            Err(error) => self.problems[0] = Some(error.to_string()),
                        }
                        return Ok(true);
                    }
                    (None, Err(_)) if waited > GREETING_WITHIN => {
                        self.problems[0] = Some("did not take the connection".into());
                    }
                    (None, Err(_)) => self.successor = Successor::Connecting(stream),
                }
                Ok(false)
            }
            Successor::Greeting(connection, sent) => self.greet(now, waited, connection, sent),
            ready @ Successor::Ready(_) => {
                self.successor = ready;
                Ok(false)
            }
        }
    }

    /// Answers the successor's challenge and checks its welcome.
    fn greet(
        &mut self,
        now: Instant,
        waited: Duration,
        mut connection: Box<Connection>,
        sent: Option<(Nonce, Nonce)>,
    ) -> Result<bool, Failure> {
        connection.turn(now);
        let header = match connection.peek() {
            Ok(Some(header)) => header,
            Ok(None) if waited <= GREETING_WITHIN => {
                self.successor = Successor::Greeting(connection, sent);
                return Ok(false);
            }
            Ok(None) => {
                self.problems[0] = Some("took the connection and says nothing".into());
                return Ok(true);
            }
            Err(ended) => {
                let hint = "see that agent's log, and whether both have the same key";
                self.problems[0] = Some(format!("{ended} before its welcome; {hint}"));
                return Ok(true);
            }
        };
        let id = &self.id;
        let body = connection.body(&header);
        let next = match (header.kind, sent) {
            (Kind::Challenge, None) => {
                let (Ok(challenge), Ok(own)) = (body.try_into(), nonce()) else {
                    self.problems[0] = Some("sent no challenge".into());
                    return Ok(true);
                };
                let hello = Hello {
                    job: id.job,
                    from: id.member as u16,
                    to: id.successor() as u16,
                    plan: id.plan,
                };
                let body = wire::seal_hello(&id.key, &challenge, &own, &hello);
                connection.push(now, &Header::new(Kind::Hello, body.len()), &body);
                Some((challenge, own))
            }
            (kind @ (Kind::Welcome | Kind::Refusal), Some((challenge, own))) => {
                let Some(text) = wire::open(&id.key, kind, [&challenge, &own], body) else {
                    self.problems[0] = Some("has not proven the job's key".into());
                    return Ok(true);
                };
                if kind == Kind::Refusal {
                    // A part of it that is no text is of no use.
                    let text = String::from_utf8_lossy(text).into_owned();
                    return Err(Failure::new(Class::Join, text));
                }
                connection.consume(&header);
                connection.is_greeting = false;
                self.problems[0] = None;
                self.successor = Successor::Ready(connection);
                return Ok(true);
            }
            _ => {
                self.problems[0] = Some("does not keep to the protocol".into());
                return Ok(true);
            }
        };
        connection.consume(&header);
        self.successor = Successor::Greeting(connection, next);
        Ok(true)
    }

    /// Takes what the successor has sent: heartbeats and last words.
    fn hear_successor(&mut self) -> Result<bool, Failure> {
        let mut is_busy = false;
        loop {
            let Successor::Ready(connection) = &mut self.successor else {
                return Ok(is_busy);
            };
            let header = match connection.peek() {
                Ok(None) => return Ok(is_busy),
                Ok(Some(header)) => header,
                Err(_) if self.has_left[1].is_some() => return Ok(is_busy),
                Err(ended) => return self.lost(1, &ended),
            };
            let body = connection.body(&header).to_vec();
            connection.consume(&header);
            self.hear(1, &header, &body)?;
            is_busy = true;
        }
    }

    /// A message that is about no elements, from the predecessor (0) or the successor (1).
    fn hear(&mut self, from: usize, header: &Header, body: &[u8]) -> Result<(), Failure> {
        match header.kind {
            Kind::Alive => {
                let counts = body.as_chunks::<8>().0.iter();
                for (own, theirs) in self.passes.iter_mut().zip(counts) {
                    *own = (*own).max(u64::from_be_bytes(*theirs));
                }
                Ok(())
            }
            Kind::Left => {
                self.has_left[from] = Some(header.pass);
                Ok(())
            }
            // Its end follows.
            Kind::Failed if self.forming != Forming::Formed => Ok(()),
            Kind::Failed => {
                let class = Class::ALL.get(header.segment as usize);
                let ranks = Ranks::of_range((header.pass >> 16) as u16, header.pass as u16);
                Err(Failure {
                    class: class.copied().unwrap_or(Class::Member),
                    ranks,
                    text: String::from_utf8_lossy(body).into_owned(),
                })
            }
            _ => {
                let what = "does not keep to the protocol: a message that has no place here";
                Err(self.id.failure(Class::Member, self.neighbour(from), what))
            }
        }
    }

    const fn neighbour(&self, at: usize) -> usize {
        match at {
            0 => self.id.predecessor(),
            _ => self.id.successor(),
        }
    }

    /// A neighbour's connection has ended.
    fn lost(&mut self, at: usize, ended: &Ended) -> Result<bool, Failure> {
        if self.forming == Forming::Formed {
            let what = format!(
                "{ended} in the middle of the job: its agent or its host has ended; start the job again at all ranks"
            );
            return Err(self.id.failure(Class::Member, self.neighbour(at), &what));
        }
        self.problems[1 - at] = Some(ended.to_string());
        self.part();
        Ok(true)
    }

    /// The header of the next message with elements, if it is there.
    pub(crate) fn data(&mut self) -> Result<Option<Header>, Failure> {
        loop {
            let Some(connection) = &mut self.predecessor else {
                return Ok(None);
            };
            let header = match connection.peek() {
                Ok(None) => return Ok(None),
                Ok(Some(header)) => header,
                Err(_) if self.has_left[0].is_some() => return Ok(None),
                Err(ended) => {
                    self.lost(0, &ended)?;
                    return Ok(None);
                }
            };
            match (header.kind, self.forming) {
                (Kind::Open | Kind::Piece, Forming::Formed) => return Ok(Some(header)),
                // The token goes on first.
                (Kind::Open | Kind::Piece, Forming::Token(2)) => return Ok(None),
                (Kind::Token, _) => {
                    connection.consume(&header);
                    self.take_token(header.segment)?;
                }
                _ => {
                    let body = connection.body(&header).to_vec();
                    connection.consume(&header);
                    self.hear(0, &header, &body)?;
                }
            }
        }
    }

    fn take_token(&mut self, round: u32) -> Result<(), Failure> {
        let is_first = self.id.member == 0;
        self.forming = match (self.forming, round) {
            // All are connected.
            (Forming::Passed, 1) if is_first => Forming::Token(2),
            (Forming::Apart, 1) if !is_first => Forming::Token(1),
            (Forming::Passed, 2) if !is_first => Forming::Token(2),
            // It has passed all.
            (Forming::Formed, 2) if is_first => Forming::Formed,
            _ => {
                let what = "does not keep to the protocol: a token out of turn";
                let from = self.id.predecessor();
                return Err(self.id.failure(Class::Member, from, what));
            }
        };
        Ok(())
    }

    /// The body of the message that [`data`](Self::data) gave.
    pub(crate) fn body(&self, header: &Header) -> &[u8] {
        self.predecessor.as_ref().map_or(&[], |it| it.body(header))
    }

    /// Forgets the message that [`data`](Self::data) gave.
    pub(crate) fn consume(&mut self, header: &Header) {
        if let Some(connection) = &mut self.predecessor {
            connection.consume(header);
        }
    }

    /// Whether elements for the successor may be queued.
    pub(crate) fn has_room(&self) -> bool {
        matches!(&self.successor, Successor::Ready(connection) if connection.has_room())
    }

    /// Queues a message for the successor.
    pub(crate) fn send(&mut self, now: Instant, header: &Header, body: &[u8]) {
        if let Successor::Ready(connection) = &mut self.successor {
            connection.push(now, header, body);
        }
    }

    /// This member has begun so many passes.
    pub(crate) fn begin(&mut self, passes: u64) {
        self.passes[self.id.member] = passes;
    }

    /// Members that are not known to have begun so many passes.
    pub(crate) fn behind(&self, passes: u64) -> impl Iterator<Item = usize> {
        let counts = self.passes.iter().enumerate();
        counts
            .filter(move |(_, count)| **count < passes)
            .map(|(member, _)| member)
    }

    /// A neighbour that has left and has not begun this pass.
    pub(crate) fn left_before(&self, pass: u32) -> Option<usize> {
        let is_before = |count: u32| count.wrapping_sub(pass).cast_signed() < 0;
        let at = self.has_left.iter().position(|it| it.is_some_and(is_before));
        at.map(|at| self.neighbour(at))
    }

    fn check_silence(&self, now: Instant) -> Result<(), Failure> {
        let silent = |at: Instant| now.saturating_duration_since(at) > self.id.stall;
        let mut both = Vec::new();
        if let Some(connection) = &self.predecessor
            && !connection.is_full()
            && self.has_left[0].is_none()
        {
            both.push((self.id.predecessor(), connection.received_at));
        }
        if let Successor::Ready(connection) = &self.successor
            && self.has_left[1].is_none()
        {
            both.push((self.id.successor(), connection.received_at));
        }
        match both.into_iter().find(|(_, at)| silent(*at)) {
            None => Ok(()),
            Some((member, _)) => {
                let what = format!("has been silent for {:?}", self.id.stall);
                Err(self.id.failure(Class::Silence, member, &what))
            }
        }
    }

    fn say_alive(&mut self, now: Instant) {
        let every = ALIVE_EVERY.min(self.id.stall / 4);
        let mut body: Option<Vec<u8>> = None;
        for connection in neighbours(&mut self.predecessor, &mut self.successor) {
            if connection.has_room()
                && now.saturating_duration_since(connection.queued_at) >= every
            {
                let counts = || self.passes.iter().flat_map(|it| it.to_be_bytes()).collect();
                let body = body.get_or_insert_with(counts);
                connection.push(now, &Header::new(Kind::Alive, body.len()), body);
            }
        }
    }

    /// Says the last words: why the ring has failed, or that this member has all results of so many
    /// passes.
    pub(crate) fn close(&mut self, now: Instant, failed: Option<&Failure>, passes: u32) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(now);
        self.listener = None;
        self.strangers.clear();
        let text = failed.map_or("", |it| &it.text);
        let body = &text[..text.floor_char_boundary(WORDS_MAX)];
        let header = match failed {
            None => Header {
                pass: passes,
                ..Header::new(Kind::Left, 0)
            },
            Some(failure) => {
                let (first, end) = failure.ranks.run().unwrap_or_default();
                Header {
                    pass: u32::from(first) << 16 | u32::from(end),
                    segment: failure.class as u32,
                    ..Header::new(Kind::Failed, body.len())
                }
            }
        };
        for connection in neighbours(&mut self.predecessor, &mut self.successor) {
            connection.push(now, &header, body.as_bytes());
        }
        self.linger(now);
    }

    /// Sends what is queued, and takes what comes, until the others have ended as well.
    fn linger(&mut self, now: Instant) -> bool {
        let mut is_busy = false;
        for connection in neighbours(&mut self.predecessor, &mut self.successor) {
            is_busy |= connection.turn(now);
            connection.discard();
            connection.watch(&self.epoll);
        }
        is_busy
    }

    /// Whether both neighbours have all that was sent, as far as they say; for calling after
    /// [`close`](Self::close).
    pub(crate) fn is_closed(&mut self, now: Instant, most: Duration) -> bool {
        let Some(since) = self.closing else {
            return false;
        };
        let is_late = now.saturating_duration_since(since) >= most;
        let has_ended = neighbours(&mut self.predecessor, &mut self.successor).all(|it| {
            if it.is_flushed() {
                it.shut_down();
            }
            it.discard()
        });
        is_late || has_ended
    }
}

/// Connections whose other side has proven the key.
fn neighbours<'a>(
    predecessor: &'a mut Option<Connection>,
    successor: &'a mut Successor,
) -> impl Iterator<Item = &'a mut Connection> {
    let successor = match successor {
        Successor::Ready(connection) => Some(&mut **connection),
        _ => None,
    };
    predecessor.iter_mut().chain(successor)
}

fn listen(at: SocketAddrV4) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn begin_connect(to: SocketAddrV4) -> io::Result<TcpStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    let [a, b, c, d] = Ipv4Addr::octets(to.ip());
    let address = SockaddrIn::new(a, b, c, d, to.port());
    match connect(socket.as_raw_fd(), &address) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

fn nonce() -> Result<Nonce, getrandom::Error> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce)?;
    Ok(nonce)
}
