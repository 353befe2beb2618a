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
use super::door::Door;
use super::identity::Identity;
use super::successor::{Stage, Successor};
use super::wire::{Header, Kind};
use crate::log::Level;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};
use tally_local::{Class, Failure, Ranks};
use tally_wire::Key;

/// Bytes of last words.
const WORDS_MAX: usize = 2048;
/// Between two heartbeats.
const ALIVE_EVERY: Duration = Duration::from_millis(250);
/// The same if a member has begun a pass.
const NEWS_EVERY: Duration = Duration::from_millis(20);

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
    door: Door,
    predecessor: Option<Connection>,
    successor: Successor,
    forming: Forming,
    began: Instant,
    /// Passes begun, by member, as far as is known.
    passes: Vec<u64>,
    /// They have changed since the last heartbeat to the predecessor, and to the successor.
    has_news: [bool; 2],
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
            door: Door::new(now),
            predecessor: None,
            successor: Successor::new(now),
            forming: Forming::Apart,
            began: now,
            has_news: [false, false],
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

    /// Takes another key, for proofs that follow.
    pub(crate) fn set_key(&mut self, key: Key) {
        self.id.key = key;
    }

    /// What it waits for while the ring has not formed.
    pub(crate) fn obstacle(&self) -> String {
        let mut parts = Vec::new();
        if !self.successor.is_ready() {
            let name = self.id.words(self.id.successor());
            let why = self
                .successor
                .problem
                .as_deref()
                .unwrap_or("no connection yet");
            parts.push(format!("successor {name}: {why}"));
        }
        if self.predecessor.is_none() {
            let name = self.id.words(self.id.predecessor());
            let why = self.door.problem.as_deref().unwrap_or("has not connected");
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
        is_busy |= self.receive_from_successor()?;
        if self.forming == Forming::Formed {
            self.check_silence(now)?;
        }
        self.say_alive(now);
        for connection in neighbours(&mut self.predecessor, &mut self.successor) {
            connection.watch(&self.epoll);
        }
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
        let (mut is_busy, predecessor) = self.door.turn(now, &self.id, &self.epoll)?;
        if let Some(predecessor) = predecessor {
            if self.predecessor.is_some() {
                // It has begun again.
                self.part(now);
            }
            self.predecessor = Some(predecessor);
        }
        is_busy |= self.successor.turn(now, &self.id, &self.epoll)?;
        if !self.successor.is_ready() || self.predecessor.is_none() {
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
                self.door.shut();
                self.id.say(Level::Info, "the ring has formed");
            }
            _ => return Ok(is_busy),
        }
        Ok(true)
    }

    fn send_token(&mut self, now: Instant, round: u32) {
        if let Some(connection) = self.successor.ready() {
            let header = Header {
                segment: round,
                ..Header::new(Kind::Token, 0)
            };
            connection.push(now, &header, &[]);
        }
    }

    /// Drops both connections: the ring has not formed.
    fn part(&mut self, now: Instant) {
        self.predecessor = None;
        self.successor.part(now);
        self.forming = Forming::Apart;
    }

    /// Takes what the successor has sent: heartbeats and last words.
    fn receive_from_successor(&mut self) -> Result<bool, Failure> {
        let mut is_busy = false;
        loop {
            let Some(connection) = self.successor.ready() else {
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
            self.receive_control(1, &header, &body)?;
            is_busy = true;
        }
    }

    /// A message that is about no elements, from the predecessor (0) or the successor (1).
    fn receive_control(
        &mut self,
        from: usize,
        header: &Header,
        body: &[u8],
    ) -> Result<(), Failure> {
        match header.kind {
            Kind::Alive => {
                let counts = body.as_chunks::<8>().0.iter();
                for (own, theirs) in self.passes.iter_mut().zip(counts) {
                    let theirs = u64::from_be_bytes(*theirs);
                    if theirs > *own {
                        *own = theirs;
                        self.has_news = [true, true];
                    }
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
        let problem = match at {
            0 => &mut self.door.problem,
            _ => &mut self.successor.problem,
        };
        *problem = Some(ended.to_string());
        self.part(Instant::now());
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
                // The token is passed on first.
                (Kind::Open | Kind::Piece, Forming::Token(2)) => return Ok(None),
                (Kind::Token, _) => {
                    connection.consume(&header);
                    self.take_token(header.segment)?;
                }
                _ => {
                    let body = connection.body(&header).to_vec();
                    connection.consume(&header);
                    self.receive_control(0, &header, &body)?;
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
        matches!(&self.successor.stage, Stage::Ready(connection) if connection.has_room())
    }

    /// Queues a message for the successor.
    pub(crate) fn send(&mut self, now: Instant, header: &Header, body: &[u8]) {
        if let Some(connection) = self.successor.ready() {
            connection.push(now, header, body);
        }
    }

    /// This member has begun this number of passes.
    pub(crate) fn begin(&mut self, passes: u64) {
        let own = &mut self.passes[self.id.member];
        if passes > *own {
            *own = passes;
            self.has_news = [true, true];
        }
    }

    /// Members that are not known to have begun this number of passes.
    pub(crate) fn behind(&self, passes: u64) -> impl Iterator<Item = usize> {
        let counts = self.passes.iter().enumerate();
        counts
            .filter(move |(_, count)| **count < passes)
            .map(|(member, _)| member)
    }

    /// A neighbour that has left and has not begun this pass.
    pub(crate) fn left_before(&self, pass: u32) -> Option<usize> {
        let is_before = |count: u32| count.wrapping_sub(pass).cast_signed() < 0;
        let at = self
            .has_left
            .iter()
            .position(|it| it.is_some_and(is_before));
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
        if let Stage::Ready(connection) = &self.successor.stage
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
        let most = ALIVE_EVERY.min(self.id.stall / 4);
        let mut body: Option<Vec<u8>> = None;
        let both = [self.predecessor.as_mut(), self.successor.ready()];
        for (connection, has_news) in both.into_iter().zip(&mut self.has_news) {
            let Some(connection) = connection else {
                continue;
            };
            let every = if *has_news {
                NEWS_EVERY.min(most)
            } else {
                most
            };
            let after = now.saturating_duration_since(connection.queued_at);
            if connection.has_room() && after >= every {
                *has_news = false;
                let counts = || self.passes.iter().flat_map(|it| it.to_be_bytes()).collect();
                let body = body.get_or_insert_with(counts);
                connection.push(now, &Header::new(Kind::Alive, body.len()), body);
            }
        }
    }

    /// Says the last words: why the ring has failed, or that this member has all results of its
    /// passes, of which this is the number.
    pub(crate) fn close(&mut self, now: Instant, failed: Option<&Failure>, passes: u32) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(now);
        self.door.shut();
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
    predecessor.iter_mut().chain(successor.ready())
}
