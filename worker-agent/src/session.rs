//! A [session](tally_session::Session) on this host: its link to the switch and its clock.
//!
//! [`Session::submit`] takes a buffer and says what to do with it; [`Session::turn`] does what
//! there is to do now; [`Session::done`] gives buffers back with their results in them. There is no
//! thread: the session's owner calls `turn` until it returns false, and then [`Session::wait`].
//!
//! The catch: links are not `Send`, so a session stays on the thread that opened it.

mod report;

use crate::config::{Transport, WorkerConfig};
use crate::doctor;
use crate::error::AgentError;
use crate::link::loss::{Loss, losing};
use crate::link::udp::Group;
use crate::link::{Link, LinkError, open_link};
use crate::report::{self as summary, micros};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
#[cfg(feature = "dpdk")]
use tally_endpoint::nic::Demand;
use tally_endpoint::{Awaited, Event, Hint, Time, WorkerError};
use tally_schema::agent::report::Losses;
use tally_schema::agent::status::Slowest;
use tally_wire::Key;

pub use report::{SessionReport, missing, ranks_of};
pub use tally_session::{
    Collective, CollectiveKind, Done, ELEMENTS_MAX, Elements, Mismatch, NAME_BYTES_MAX, Parts,
    Priority, Refused, SessionState, Ticket,
};

/// How long to wait at most before looking at the stop flag again.
pub(crate) const IDLE_MAX: Duration = Duration::from_millis(50);
/// Batches received in a row before anything else gets its turn.
const RECEIVES_MAX: usize = 32;
/// The part of a result's typical time for which more may gather. Less is too short for a sleep,
/// more would delay others.
const GATHER_DIVISOR: u32 = 16;
const GATHER_MIN: Duration = Duration::from_micros(60);
const GATHER_MAX: Duration = Duration::from_micros(500);

/// What a session has sent.
#[cfg(feature = "dpdk")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) frames: usize,
    /// The link has room for more.
    pub(crate) has_room: bool,
}

/// A worker's session.
pub struct Session {
    job: u16,
    rank: u16,
    workers: u16,
    /// Ranks that this worker is, and each other.
    parts: u16,
    window: u16,
    payload_bytes: u32,
    /// What `link` was opened by.
    transport: Transport,
    link: Box<dyn Link>,
    /// The link is broken for good.
    is_broken: bool,
    clock: Clock,
    session: tally_session::Session,
}

impl Session {
    /// Opens the link that `config` describes, and begins to join.
    ///
    /// # Errors
    /// If there is no link.
    ///
    /// # Panics
    /// If `config` has no rank, or has not passed its check.
    pub fn open(config: &WorkerConfig, loss: Option<Loss>) -> Result<Self, AgentError> {
        let (group, units) = (Some(Group::of(config)), Some(config.units()));
        let link = open_link(&config.transport, config.switch, group, units)?;
        Self::over(losing(link, loss), config, 1)
    }

    /// As [`open`](Self::open), over a link that is open, with buffers of `parts` parts: the
    /// worker is that many ranks.
    ///
    /// # Errors
    /// If the system gives no random number.
    ///
    /// # Panics
    /// As [`open`](Self::open).
    pub fn over(
        link: Box<dyn Link>,
        config: &WorkerConfig,
        parts: u16,
    ) -> Result<Self, AgentError> {
        let job = &config.job;
        let rank = job
            .rank
            .expect("the caller has made sure that there is a rank");
        let clock = Clock::start();
        let worker = worker_of(config, rank, parts)?;
        Ok(Self {
            job: job.id,
            rank,
            workers: job.workers,
            parts,
            window: config.window,
            payload_bytes: config.payload_bytes,
            transport: config.transport.clone(),
            link,
            is_broken: false,
            clock,
            session: tally_session::Session::new(clock.now(), worker, parts, job.priority),
        })
    }

    /// Takes a collective, also while the job has not begun. The results will be in `buffer` in
    /// place of what is there now.
    ///
    /// # Errors
    /// If it makes no sense, or comes after [`finish`](Self::finish) or an error.
    pub fn submit(
        &mut self,
        collective: Collective,
        buffer: Box<dyn Elements>,
    ) -> Result<Ticket, Refused> {
        if self.is_broken {
            return Err(Refused::Over);
        }
        self.session.submit(self.clock.now(), collective, buffer)
    }

    /// Does what there is to do: takes what has come, keeps the timers, sends. Returns false if
    /// there was nothing; then there is time to [`wait`](Self::wait). Nothing happens any more once
    /// the session is over.
    ///
    /// # Errors
    /// What ends the session without all its results. It is returned once.
    pub fn turn(&mut self) -> Result<bool, AgentError> {
        if matches!(self.state(), SessionState::Finished | SessionState::Failed) {
            return Ok(false);
        }
        let progress = |it: &mut Self| {
            let received = it.take_in()?;
            let Self {
                link,
                session,
                clock,
                ..
            } = it;
            let now = clock.now();
            let sent = link.send(&mut |out| session.poll_transmit(now, out))?;
            Ok(it.events(now)? || received || sent > 0)
        };
        progress(self).inspect_err(|_| self.is_broken = true)
    }

    /// As [`turn`](Self::turn), but sends nothing: what it has to send waits for
    /// [`send`](Self::send).
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    #[cfg(feature = "dpdk")]
    pub(crate) fn receive(&mut self) -> Result<bool, AgentError> {
        if matches!(self.state(), SessionState::Finished | SessionState::Failed) {
            return Ok(false);
        }
        let progress = |it: &mut Self| {
            let received = it.take_in()?;
            Ok(it.events(it.clock.now())? || received)
        };
        progress(self).inspect_err(|_| self.is_broken = true)
    }

    /// What it has to send now; `None`: nothing.
    #[cfg(feature = "dpdk")]
    pub(crate) fn demand(&self) -> Option<Demand> {
        let is_over = matches!(self.state(), SessionState::Finished | SessionState::Failed);
        (!is_over).then(|| self.session.demand(self.clock.now()))?
    }

    /// Sends up to `most` datagrams, as long as the link has room for more.
    ///
    /// # Errors
    /// If the link is broken for good.
    #[cfg(feature = "dpdk")]
    pub(crate) fn send(&mut self, most: usize) -> Result<Sent, AgentError> {
        let Self {
            link,
            session,
            clock,
            ..
        } = self;
        let now = clock.now();
        let mut sent = Sent {
            frames: 0,
            has_room: true,
        };
        let mut is_dry = false;
        while !is_dry && sent.frames < most {
            let before = sent.frames;
            let done = link.send(&mut |out| {
                if sent.frames == most {
                    return None;
                }
                let transmit = session.poll_transmit(now, out);
                is_dry = transmit.is_none();
                sent.frames += usize::from(!is_dry);
                transmit
            });
            if let Err(error) = done {
                self.is_broken = true;
                return Err(error.into());
            }
            sent.has_room = link.has_room();
            // Full; or the link cannot send for this session, and can for others.
            if sent.frames == before {
                break;
            }
        }
        Ok(sent)
    }

    /// Takes what has come, and keeps the timers.
    fn take_in(&mut self) -> Result<bool, AgentError> {
        let now = self.clock.now();
        let received = self.receive_all(now)?;
        let Self { link, session, .. } = self;
        link.pin(session.worker().switch_mac(now));
        if session.poll_timeout().is_some_and(|at| at <= now) {
            session.handle_timeout(now);
        }
        Ok(received > 0)
    }

    /// Takes what has happened; whether there was something.
    fn events(&mut self, now: Time) -> Result<bool, AgentError> {
        let mut has_any = false;
        while let Some(event) = self.session.poll_event(now) {
            has_any = true;
            if let Event::Failed(error) = event {
                return Err(self.error(error));
            }
        }
        Ok(has_any)
    }

    /// Takes all that has come, before the clock says what has not: a worker that was asleep finds
    /// its results waiting and its timers run out. Returns how many datagrams there were.
    fn receive_all(&mut self, now: Time) -> Result<usize, LinkError> {
        let Self { link, session, .. } = self;
        let mut received = 0;
        for _ in 0..RECEIVES_MAX {
            let batch = link.receive(&mut |ecn, datagram| {
                session.handle_datagram(now, ecn, datagram);
            })?;
            received += batch;
            if batch == 0 {
                break;
            }
        }
        Ok(received)
    }

    fn error(&mut self, error: WorkerError) -> AgentError {
        // It is the cause of any other error.
        if let Some(source) = self.session.take_mismatch() {
            let job = self.job;
            return AgentError::Mismatch { job, source };
        }
        let began = self.session.epoch().is_some();
        let obstacle = doctor::obstacle(&self.transport, self.payload_bytes);
        let trouble = obstacle.or_else(|| self.link.trouble());
        let name = |fragment| self.session.name_of(fragment);
        AgentError::of_session(error, self.job, self.rank, began, trouble, name)
    }

    /// Waits until there may be something to do, for `most` at the longest. For calling when
    /// [`turn`](Self::turn) has returned false.
    ///
    /// # Errors
    /// If the link is broken for good.
    pub fn wait(&mut self, most: Duration) -> Result<(), AgentError> {
        self.wait_or(most, None)
    }

    /// As [`wait`](Self::wait), but also until `wake` can be read. Over a DPDK port, which has
    /// nothing to wait for, that is noticed within a millisecond.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_or(
        &mut self,
        most: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), AgentError> {
        let until = self.idle_for(most);
        Ok(self.link.wait(until, self.gather(), wake)?)
    }

    /// How long it pays to let results gather: a small part of the time that they take, where they
    /// take long because many are under way.
    fn gather(&self) -> Duration {
        let typical = self.session.worker().typical_latency().unwrap_or_default();
        let part = typical / GATHER_DIVISOR;
        if part < GATHER_MIN {
            Duration::ZERO
        } else {
            part.min(GATHER_MAX)
        }
    }

    /// How long there is nothing to do on account of time, up to `most`.
    pub(crate) fn idle_for(&self, most: Duration) -> Duration {
        let now = self.clock.now();
        let until = self.session.poll_timeout().map(|at| at.since(now));
        until.map_or(most, |until| until.min(most)).min(IDLE_MAX)
    }

    /// The next collective whose results are there, in the order in which they came to be.
    pub fn done(&mut self) -> Option<Done> {
        self.session.done()
    }

    /// Says how many training steps there will be, which priorities follow (C-5). For calling
    /// before the job begins.
    pub fn expect_steps(&mut self, steps: u64) {
        self.session.expect_steps(steps);
    }

    /// Fragments that have their results, and all that were submitted.
    #[must_use]
    pub fn fragments(&self) -> (u64, u64) {
        self.session.fragments()
    }

    /// Losses on purpose, if the link is to lose.
    #[must_use]
    pub fn losses(&self) -> Option<Losses> {
        self.link.losses()
    }

    /// Leaves the job once all that was submitted is done.
    pub fn finish(&mut self) {
        self.session.finish(self.clock.now());
    }

    /// Has another key from the moment on when the switch has it; the job continues.
    pub(crate) fn set_key(&mut self, key: Key) {
        self.session.set_key(key);
    }

    /// What the switch refused last, since it last accepted us.
    pub(crate) fn hint(&self) -> Option<Hint> {
        self.session.worker().hint()
    }

    /// Leaves the job now, because its user was interrupted. The others' error says so; ours comes
    /// from one of the next turns.
    pub fn interrupt(&mut self) {
        self.session.interrupt(self.clock.now());
    }

    /// Leaves the job now, because its user cannot continue, as [`interrupt`](Self::interrupt).
    pub fn give_up(&mut self) {
        self.session.give_up(self.clock.now());
    }

    /// What the oldest collective waits for now, as the error that a timeout would make of it, and
    /// the collective's name.
    pub(crate) fn stall(&self) -> Option<(WorkerError, Option<String>)> {
        let error = self.session.worker().stall(self.clock.now())?;
        let name = match error {
            WorkerError::Stalled { fragment, .. } => self.session.name_of(fragment),
            _ => None,
        };
        Some((error, name))
    }

    /// Whether all that was submitted is done, and the job was left.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state() == SessionState::Finished
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> SessionState {
        if self.is_broken {
            SessionState::Failed
        } else {
            self.session.state()
        }
    }

    /// Counters, as of now.
    #[must_use]
    pub fn report(&self) -> SessionReport {
        let (session, worker) = (&self.session, self.session.worker());
        let stats = worker.stats();
        let (collectives, bytes) = session.fetched();
        SessionReport {
            job: self.job,
            epoch: session.epoch(),
            rank: self.rank * self.parts,
            workers: self.workers * self.parts,
            payload_bytes: self.payload_bytes,
            window: self.window,
            collectives,
            waiting: session.waiting() as u64,
            behind: ranks_of(
                &match worker.awaited() {
                    Awaited::Ranks(ranks) => ranks.iter().map(u16::from).collect::<Vec<_>>(),
                    Awaited::Range(range) => range.iter().collect(),
                    Awaited::NoRank | Awaited::Unknown => Vec::new(),
                },
                self.parts,
            ),
            slowest: worker.slowest().map(|it| Slowest {
                rank: it.rank * self.parts,
                awaiting: f64::from(it.awaiting) / 1000.0,
                ours: f64::from(it.ours) / 1000.0,
            }),
            bytes,
            fragments: stats.fragments,
            from_switch: stats.from_switch,
            from_ps: stats.from_ps,
            retransmissions: summary::retransmissions(stats),
            results_resent: stats.results_resent,
            duplicates: stats.duplicates,
            late: stats.late,
            foreign: stats.foreign,
            priority_min: session.priorities().map(|p| p.0),
            priority_max: session.priorities().map(|p| p.1),
            congestion: summary::congestion(worker.windows(), &stats.congestion),
            latency_us: summary::latency(session.latencies()),
            typical_us: worker.typical_latency().map(micros),
            rto_us: micros(worker.rto()),
        }
    }
}

/// What the endpoint is to know of a session.
fn worker_of(
    config: &WorkerConfig,
    rank: u16,
    parts: u16,
) -> Result<tally_endpoint::WorkerConfig, AgentError> {
    let job = &config.job;
    let (id, key) = (job.job_id(), job.key.clone());
    let shape = tally_session::shape(config.payload_bytes, parts);
    let instance = instance()?;
    let mut session =
        tally_endpoint::WorkerConfig::new(id, key, rank, job.workers, shape, instance);
    session.units = config.units();
    session.window = config.window;
    session.port = config.switch.port;
    session.join_timeout = config.timeouts.join();
    session.stall_timeout = config.timeouts.stall();
    session.linger = config.timeouts.linger();
    Ok(session)
}

/// A random number that names this session (J-1).
pub(crate) fn instance() -> Result<u64, AgentError> {
    loop {
        match getrandom::u64() {
            Ok(0) => {}
            Ok(instance) => return Ok(instance),
            Err(e) => return Err(AgentError::Random(e)),
        }
    }
}

/// The sessions' clock.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Time {
        Time(0).after(self.0.elapsed())
    }
}
