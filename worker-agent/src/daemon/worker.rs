//! One worker of a job: the processes that it is, and their communicator.
//!
//! A worker is one rank, or all ranks of this host (ADR 43). Each turn takes what the processes
//! have submitted and what has come from the network, and tells the processes what is done. When
//! there is nothing, the thread sleeps until either has something. While the network is busy the
//! processes' sockets are polled every 20 µs, and not in every turn.
//!
//! The session begins to join when all ranks of the host have come. A collective is submitted to it
//! when all of them have submitted it, with the sum of their elements as the contribution.

mod end;
mod thread;

use super::communicator::{Communicator, End};
use super::failure::{cause, set_of};
use super::gather::{Brought, Gather};
use super::rank::{InRegion, LocalRank, PendingProcess, Task, collective};
use super::rina::RinaSession;
use super::ring::RingSession;
use super::status::count;
use crate::config::{AgentRing, SwitchAddress};
use crate::link::{Link, LinkError};
use crate::log::Level;
#[cfg(feature = "dpdk")]
use crate::session::Sent;
use crate::session::{CollectiveKind, Refused, Session, SessionReport, SessionState, Ticket};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tally_endpoint::Hint;
#[cfg(feature = "dpdk")]
use tally_endpoint::nic::Demand;
use tally_local::{Awaited, Class, Failure, Request};
use tally_schema::agent::status::ranks_text;
pub(super) use thread::Mailbox;
#[cfg(feature = "dpdk")]
pub(super) use thread::crashed;

/// Between two looks at processes' sockets, while the network is busy.
pub(super) const LOOK_EVERY: Duration = Duration::from_micros(20);
/// Requests taken at a time from each process.
const REQUESTS_MAX: usize = 64;
/// How long to wait at most before looking at the stop flag again.
pub(super) const IDLE_MAX: Duration = Duration::from_millis(50);
/// The same while ranks of the host are missing: the next one to come wakes nothing.
const INCOMPLETE_MAX: Duration = Duration::from_millis(5);
/// For telling the others that we leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A set of sockets to watch.
pub(super) fn watch() -> Result<Epoll, LinkError> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
        .map_err(|why| LinkError::system("watching the processes' sockets", why))
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// There was something to do.
    Busy,
    /// There was nothing.
    Idle,
    /// There will not be anything any more.
    Over,
}

/// What a turn does with what there is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// It sends: its link is its own.
    Alone,
    /// It leaves it to [`Worker::send`]: others share its link, and there is an order.
    #[cfg(feature = "dpdk")]
    Ordered,
}

impl Service {
    fn turn(self, communicator: &mut dyn Communicator) -> Result<bool, End> {
        match self {
            Self::Alone => communicator.turn(),
            #[cfg(feature = "dpdk")]
            Self::Ordered => communicator.receive(),
        }
    }
}

/// What a worker's communicator is opened from.
pub(super) enum CommunicatorConfig {
    /// A link to the switch of a job.
    Link(Box<dyn Link>),
    /// A ring of RoCEv2 hosts.
    Ring(AgentRing),
    /// A ring of racks and hosts, and a link to the rack's switch, if that sums.
    Rina(Option<Box<dyn Link>>),
}

/// Processes that take part in a job as one worker.
pub(super) struct Worker {
    task: Task,
    /// None once the communicator is open.
    config: Option<CommunicatorConfig>,
    communicator: Option<Box<dyn Communicator>>,
    /// In the order of ranks; those that have come.
    ranks: Vec<Option<LocalRank>>,
    /// All processes' sockets.
    sockets: Epoll,
    gather: Gather,
    /// The processes' tickets, by the session's.
    tickets: HashMap<u64, Vec<u64>>,
    began: Instant,
    state: Option<SessionState>,
    state_words: String,
    /// What the switch refused, as the log said last.
    hint: Option<Hint>,
    /// When the others are told that we leave, by then.
    leave_by: Option<Instant>,
}

impl Worker {
    /// A worker whose first process has come.
    pub(super) fn new(config: CommunicatorConfig, sockets: Epoll, process: PendingProcess) -> Self {
        let task = process.task.clone();
        let mut worker = Self {
            config: Some(config),
            communicator: None,
            ranks: (0..task.parts).map(|_| None).collect(),
            sockets,
            gather: Gather::new(task.first, task.parts),
            tickets: HashMap::new(),
            began: Instant::now(),
            state: None,
            state_words: String::new(),
            hint: None,
            leave_by: None,
            task,
        };
        worker.admit(process);
        worker
    }

    /// Whether ranks of the host are missing, and can come.
    pub(super) fn is_incomplete(&self) -> bool {
        self.communicator.is_none()
            && self.leave_by.is_none()
            && self.ranks.iter().any(Option::is_none)
    }

    /// Whether it waits for a process of this task.
    #[cfg(feature = "dpdk")]
    pub(super) fn waits_for(&self, task: &Task) -> bool {
        let id = |it: &Task| (it.config.job.id, it.first);
        self.is_incomplete() && id(task) == id(&self.task)
    }

    /// What becomes readable when a process has something to say.
    #[cfg(feature = "dpdk")]
    pub(super) fn sockets(&self) -> std::os::fd::BorrowedFd<'_> {
        self.sockets.0.as_fd()
    }

    /// Takes another process.
    pub(super) fn admit(&mut self, process: PendingProcess) {
        let index = usize::from(process.rank.wrapping_sub(self.task.first));
        let is_same = (process.task.parts, process.task.config.job.workers)
            == (self.task.parts, self.task.config.job.workers);
        let Some(place) = self
            .ranks
            .get_mut(index)
            .filter(|it| is_same && it.is_none())
        else {
            // The job has other values than when the first one came.
            return process.refuse();
        };
        let rank = LocalRank::new(process);
        if let Some(peer) = &rank.peer {
            let readable = EpollEvent::new(EpollFlags::EPOLLIN, index as u64);
            // Without it the process is looked at every 50 ms.
            let _ = self.sockets.add(peer.as_fd(), readable);
        }
        *place = Some(rank);
    }

    /// Does what there is to do, with a look at the processes' sockets or without. What it has to
    /// send leaves as well, or waits for `send`.
    pub(super) fn turn(&mut self, now: Instant, look: bool, service: Service) -> Turn {
        if let Some(deadline) = self.leave_by {
            let Some(communicator) = &mut self.communicator else {
                return Turn::Over;
            };
            if now >= deadline || communicator.is_finished() {
                return Turn::Over;
            }
            return match service.turn(&mut **communicator) {
                Ok(true) => Turn::Busy,
                Ok(false) => Turn::Idle,
                Err(_) => Turn::Over,
            };
        }
        match self.progress(now, look, service) {
            Ok(true) => Turn::Busy,
            Ok(false) => Turn::Idle,
            Err(end) => self.end(now, end),
        }
    }

    /// What it has to send now over the port that it shares; `None`: nothing.
    #[cfg(feature = "dpdk")]
    pub(super) fn demand(&self) -> Option<Demand> {
        self.communicator.as_ref()?.demand()
    }

    /// Sends up to `most` datagrams, as long as the port has room.
    #[cfg(feature = "dpdk")]
    pub(super) fn send(&mut self, now: Instant, most: usize) -> Result<Sent, Turn> {
        let Some(communicator) = &mut self.communicator else {
            return Err(Turn::Idle);
        };
        communicator.send(most).map_err(|end| match self.leave_by {
            Some(_) => Turn::Over,
            None => self.end(now, end),
        })
    }

    /// How long there is nothing to do on account of time.
    #[cfg(feature = "dpdk")]
    pub(super) fn idle_for(&self) -> Duration {
        let communicator = self.communicator.as_ref();
        communicator.map_or(INCOMPLETE_MAX, |it| it.idle_for(IDLE_MAX))
    }

    /// Waits until there may be something to do.
    fn wait(&mut self) -> Turn {
        let Some(communicator) = &mut self.communicator else {
            let most = EpollTimeout::try_from(INCOMPLETE_MAX).unwrap_or(EpollTimeout::ZERO);
            // A signal ends it early.
            let _ = self.sockets.wait(&mut [EpollEvent::empty()], most);
            return Turn::Idle;
        };
        match communicator.wait_or(IDLE_MAX, self.sockets.0.as_fd()) {
            Ok(()) => Turn::Idle,
            Err(_) if self.leave_by.is_some() => Turn::Over,
            Err(end) => self.end(Instant::now(), end),
        }
    }

    /// Whether there was something to do.
    fn progress(&mut self, now: Instant, look: bool, service: Service) -> Result<bool, End> {
        if self.task.stop.load(Ordering::Relaxed) {
            return Err(End::Stopped);
        }
        self.take_key();
        if self.communicator.is_none() {
            self.open(now)?;
        }
        let mut is_busy = look && self.take_requests(now)?;
        self.submit(now)?;
        self.finish();
        let Some(communicator) = &mut self.communicator else {
            return Ok(is_busy);
        };
        is_busy |= service.turn(&mut **communicator)?;
        while let Some(done) = communicator.done() {
            // Nothing of ours is in their memory any more when the processes hear of it.
            drop(done.buffer);
            let Ticket(ticket) = done.ticket;
            let tickets = self.tickets.remove(&ticket).unwrap_or_default();
            for (rank, ticket) in self.ranks.iter_mut().flatten().zip(tickets) {
                count(&mut rank.done, done.collective.kind);
                rank.under_way -= 1;
                if let Some(peer) = &mut rank.peer {
                    peer.complete(ticket);
                }
            }
        }
        if communicator.is_finished() {
            return Err(End::Left);
        }
        self.report(now);
        Ok(is_busy)
    }

    fn take_key(&mut self) {
        let ranks = self.ranks.iter().flatten();
        let keys: Vec<_> = ranks.filter_map(|it| it.shared.take_key()).collect();
        let Some(key) = keys.into_iter().next() else {
            return;
        };
        match &mut self.communicator {
            Some(communicator) => communicator.set_key(key),
            None => self.task.config.job.key = key,
        }
        let what = "the job has a new key; the session takes it as soon as the switch has it";
        self.task.say(Level::Info, what);
    }

    /// Begins the session, once all ranks have come.
    fn open(&mut self, now: Instant) -> Result<(), End> {
        let ranks = (self.task.first..).zip(&self.ranks);
        let missing: Vec<_> = ranks
            .filter(|(_, it)| it.is_none())
            .map(|(rank, _)| rank)
            .collect();
        let Some(config) = self.config.take_if(|_| missing.is_empty()) else {
            let state = format!("waiting for {} of this host", ranks_text(&missing));
            let shared = self.ranks.iter().flatten().map(|it| &it.shared);
            shared.for_each(|it| it.say_state(&state));
            let most = self.task.config.timeouts.join();
            if now.saturating_duration_since(self.began) < most {
                return Ok(());
            }
            let (ranks, names) = (set_of(&missing), ranks_text(&missing));
            let text = format!(
                "{names} of this host did not come within {most:?}: the agent's `ranks_per_host` is {}; start as many \
                 processes here",
                self.task.parts
            );
            let class = Class::Join;
            return Err(End::Apart(Failure { class, ranks, text }));
        };
        let opened: Result<Box<dyn Communicator>, _> = match config {
            CommunicatorConfig::Link(link) => {
                Session::over(link, &self.task.config, self.task.parts)
                    .map(|it| -> Box<dyn Communicator> { Box::new(it) })
            }
            CommunicatorConfig::Ring(ring) => RingSession::start(&self.task, &ring)
                .map(|it| -> Box<dyn Communicator> { Box::new(it) }),
            CommunicatorConfig::Rina(link) => RinaSession::open(&self.task, link)
                .map(|it| -> Box<dyn Communicator> { Box::new(it) }),
        };
        self.communicator = Some(opened.map_err(End::Failed)?);
        self.began = now;
        Ok(())
    }

    /// Submits what all ranks have brought.
    fn submit(&mut self, now: Instant) -> Result<(), End> {
        let Some(communicator) = &mut self.communicator else {
            return Ok(());
        };
        while let Some(all) = self.gather.pop() {
            let mut all = all.map_err(|it| {
                let (class, ranks) = (Class::Mismatch, set_of(&it.ranks));
                let hint = "every rank must submit the same collectives in the same order";
                let text = format!("{}; {hint}", it.text);
                End::Apart(Failure { class, ranks, text })
            })?;
            let tickets = all.iter().map(|it| it.ticket).collect();
            let collective = all[0].collective.clone();
            if let CollectiveKind::Broadcast { root } = collective.kind
                && let Some(root) = root.checked_sub(self.task.first)
                && usize::from(root) < all.len()
            {
                all.swap(0, root.into());
            }
            let parts = all.into_iter().map(|it| InRegion(it.span)).collect();
            let submitted = communicator.submit(collective, parts);
            // It has been checked when it came.
            let Ticket(ticket) = submitted.map_err(|why| {
                End::Misbehaved(0, Failure::new(Class::Malformed, why.to_string()))
            })?;
            self.tickets.insert(ticket, tickets);
        }
        self.check_incomplete(now)
    }

    /// That no rank of the host waits for another for too long, or in vain.
    fn check_incomplete(&self, now: Instant) -> Result<(), End> {
        let Some(incomplete) = self.gather.incomplete() else {
            return Ok(());
        };
        let name = &incomplete.name;
        let left = |rank: &&u16| {
            let it = self.rank(**rank);
            it.is_some_and(|it| it.is_finishing)
        };
        if let Some(rank) = incomplete.missing.iter().find(left) {
            let text =
                format!("rank {rank} has left the job, and other ranks of its host submit {name}");
            let (class, ranks) = (Class::Member, set_of(&[*rank]));
            return Err(End::Apart(Failure { class, ranks, text }));
        }
        let after = now.saturating_duration_since(incomplete.since.max(self.began));
        if after < self.task.config.timeouts.stall() {
            return Ok(());
        }
        let names = ranks_text(&incomplete.missing);
        let text = format!(
            "waiting for {name}: {names} of this host did not submit it within {after:.1?}; see what keeps it, or give it \
             more time with the agents' `timeouts.stall_ms`"
        );
        let (class, ranks) = (Class::Silence, set_of(&incomplete.missing));
        Err(End::Apart(Failure { class, ranks, text }))
    }

    fn rank(&self, rank: u16) -> Option<&LocalRank> {
        let index = rank.checked_sub(self.task.first)?;
        self.ranks.get(usize::from(index))?.as_ref()
    }

    /// Leaves when all ranks have finished; those that finish before the others need not wait.
    fn finish(&mut self) {
        if self.ranks.iter().flatten().all(|it| it.is_finishing) {
            if let Some(communicator) = &mut self.communicator {
                communicator.finish();
            }
            return;
        }
        for rank in self.ranks.iter_mut().flatten() {
            if rank.is_finishing
                && rank.under_way == 0
                && let Some(mut peer) = rank.peer.take()
            {
                peer.finished();
                rank.shared.leave();
            }
        }
    }

    /// Tells the log and the status how it goes.
    fn report(&mut self, now: Instant) {
        let Some(communicator) = &self.communicator else {
            return;
        };
        let state = communicator.state();
        if self.state != Some(state) {
            self.state = Some(state);
            self.state_words = communicator.words(self.task.parts);
            if state != SessionState::Joining(None) {
                self.task.say(Level::Info, &self.state_words);
            }
        }
        if let Some(hint) = communicator.hint()
            && self.hint.replace(hint) != Some(hint)
        {
            let what = refused(hint, self.task.config.switch);
            self.task.say(Level::Warn, what);
        }
        for (i, rank) in self.ranks.iter().flatten().enumerate() {
            let shared = &rank.shared;
            let warnings = shared.look(now, || communicator.report(), &self.state_words, rank.done);
            // They are the session's.
            for warning in warnings.iter().filter(|_| i == 0) {
                self.task.say(Level::Warn, warning);
            }
        }
    }

    /// Whether the processes wanted anything.
    fn take_requests(&mut self, now: Instant) -> Result<bool, End> {
        let mut has_any = false;
        for index in 0..self.ranks.len() {
            for _ in 0..REQUESTS_MAX {
                let Some(Some(rank)) = self.ranks.get_mut(index) else {
                    break;
                };
                let Some(peer) = &mut rank.peer else {
                    break;
                };
                let misbehaved = |failure| End::Misbehaved(index, failure);
                let Some(request) = peer.receive().map_err(misbehaved)? else {
                    break;
                };
                has_any = true;
                self.take(now, index, request)?;
            }
        }
        Ok(has_any)
    }

    /// Does what the process of the rank at `index` wants.
    fn take(&mut self, now: Instant, index: usize, request: Request) -> Result<(), End> {
        let ranks = self.task.ranks();
        let Some(Some(rank)) = self.ranks.get_mut(index) else {
            return Ok(());
        };
        match request {
            Request::Submit {
                ticket,
                submission,
                span,
            } => {
                if self.task.log.says(Level::Debug) {
                    let (bytes, rank) = (span.bytes(), rank.rank);
                    let what = format_args!("rank {rank}: {bytes} bytes: {submission:?}");
                    self.task.say(Level::Debug, what);
                }
                let collective = collective(submission);
                let checked = collective.check(span.bytes(), ranks);
                let checked = checked.and(match rank.is_finishing {
                    true => Err(Refused::Over),
                    false => Ok(()),
                });
                checked.map_err(|why| {
                    End::Misbehaved(index, Failure::new(Class::Malformed, why.to_string()))
                })?;
                rank.under_way += 1;
                let brought = Brought {
                    ticket,
                    collective,
                    span,
                    at: now,
                };
                self.gather.push(index, brought);
            }
            Request::Finish => rank.is_finishing = true,
            Request::Fallback { kind, count } => rank.shared.add_fallback(&kind, count),
            Request::Ask { question } => {
                let awaited = self.awaited(now);
                if let Some(Some(LocalRank {
                    peer: Some(peer), ..
                })) = self.ranks.get_mut(index)
                {
                    peer.notify(question, awaited);
                }
            }
            // All that it wanted to be done can be done without it.
            Request::Closed if rank.is_finishing => rank.peer = None,
            Request::Closed => return Err(End::Closed(index)),
        }
        Ok(())
    }

    /// What the oldest collective waits for: the network, or ranks of this host.
    fn awaited(&self, now: Instant) -> Awaited {
        let parts = self.task.parts;
        if let Some(awaited) = self.communicator.as_ref().and_then(|it| it.awaited(parts)) {
            return awaited;
        }
        let ranks = (self.task.first..).zip(&self.ranks);
        let absent = ranks.filter(|(_, it)| it.is_none());
        let absent: Vec<_> = absent.map(|(rank, _)| rank).collect();
        if !absent.is_empty() {
            let text = format!("{} of this host did not come yet", ranks_text(&absent));
            let ranks = set_of(&absent);
            return Awaited { ranks, text };
        }
        let Some(incomplete) = self.gather.incomplete() else {
            return cause(None, self.task.parts);
        };
        let after = now.saturating_duration_since(incomplete.since);
        Awaited {
            ranks: set_of(&incomplete.missing),
            text: format!(
                "waiting for {}: {} of this host did not submit it for {after:.1?}",
                incomplete.name,
                ranks_text(&incomplete.missing)
            ),
        }
    }
}

/// Why the switch refuses a JOIN, from where, and what to do.
fn refused(hint: Hint, switch: SwitchAddress) -> String {
    let SwitchAddress { address, port } = switch;
    let advice = match hint {
        Hint::UnknownJob => "add the job to the switch, or correct its number here",
        Hint::BadKey => "compare the job's key in the switch's configuration and in the agent's",
        Hint::RankTaken => {
            "end that process, or wait until the switch has missed it for some seconds"
        }
        _ => "see the switch's log",
    };
    format!("JOIN refused at {address}:{port}: {hint}; {advice}; trying again")
}

/// What a session has done.
fn numbers(r: &SessionReport) -> String {
    let again = &r.retransmissions;
    format!(
        "{} collectives of {} bytes; {} fragments, {} results from the switch, {} from the parameter server; sent \
         again: {} at a timeout, {} early, {} asked for; {} duplicates, {} late, {} foreign; rounds: {}, {} marked, \
         {} collided",
        r.collectives,
        r.bytes,
        r.fragments,
        r.from_switch,
        r.from_ps,
        again.timeout,
        again.early,
        again.nack,
        r.duplicates,
        r.late,
        r.foreign,
        r.congestion.rounds,
        r.congestion.rounds_marked,
        r.congestion.rounds_collided,
    )
}
