//! A job's session that takes collectives one after the other, for as long as it lives.
//!
//! [`Session::submit`] takes a buffer and says what to do with it; [`Session::turn`] does what there is to do
//! now; [`Session::done`] gives buffers back with their results in them. There is no thread: whoever owns the session
//! calls `turn` until it returns false, and then [`Session::wait`].
//!
//! Several collectives may be under way at once. They travel one behind the other, so that a small one does not
//! wait for the round trip of the one before. All ranks must submit the same ones in the same order; each
//! begins with a *descriptor*, from which every rank learns what all others bring. Elements follow it without
//! waiting, but no buffer is given back before all have been found to agree. If they do not, the session fails
//! at every rank with [`AgentError::Mismatch`], which names the ranks that differ.
//!
//! # Priorities
//!
//! A collective's priority is that of its place in the model, from what the session measures (C-5). It sees when
//! collectives come and when all that came are done, and no more:
//!
//! * Results are awaited while anything is under way.
//! * Its user computes from the moment when nothing is under way any more until it submits the next collective, and
//!   further, while results are awaited, if *more follow*: DDP submits its buckets in the middle of the backward pass,
//!   and waits for none before the last. So the optimizer, loading data, forward and backward pass are all computation.
//! * A step is over when nothing is under way and no more follow.
//!
//! What a user does not say is taken for a step of its own, such as the sum of a metric: what it adds to
//! the time of results awaited is true, and the ratio is one of sums over steps, however they are cut.
//!
//! # The catches
//!
//! * Sums are made in place, and a contribution that was lost is read from the buffer again: nobody else may
//!   write to a buffer until it comes back. When the session fails, what is in its buffers is undefined.
//! * In block fixed point an infinity or a NaN makes NaN of its whole fragment, at every rank. Sums as f32 or
//!   in the elements' own type keep both where they are.
//! * Block fixed point needs a round trip for its scales before its elements, and what is submitted behind it
//!   waits for that, too: a few large collectives are faster than many small ones.
//! * A rank that lives and does not submit what the others wait for is named, but only where the stall timeout is
//!   longer than a second and a half: ranks say how far they are with their signs of life (J-10).
//! * Links are not `Send`: a session stays on the thread that opened it.

mod collective;
mod descriptor;
mod payload;
mod report;
mod stream;

use crate::allreduce::{Clock, IDLE_MAX, gather, receive_all, session_of};
use crate::config::{Transport, WorkerConfig};
use crate::doctor;
use crate::error::AgentError;
use crate::link::Link;
use crate::link::loss::{Loss, losing};
use crate::open_link;
use crate::report::{Congestion, micros};
use sha2::{Digest, Sha256};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tally_endpoint::{Awaited, Event, Members, Profile, Time, Worker, WorkerError};
use tally_wire::control::Shape;

pub use collective::{
    Collective, CollectiveKind, Done, ELEMENTS_MAX, Elements, NAME_BYTES_MAX, Priority, Refused,
    Ticket,
};
pub use descriptor::Mismatch;
pub use report::{SessionReport, Slowest};
use stream::Stream;

/// How long a rank that has found a mismatch stays, for others to find it as well (D-5). They ask for a descriptor
/// that they lost within the longest timeout, 250 ms.
const MISMATCH_LINGER: Duration = Duration::from_millis(600);

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Waiting for the job to begin; with those that are missing, once the switch has said so.
    Joining(Option<Members>),
    /// Taking part.
    Running {
        /// The job's incarnation.
        epoch: u16,
    },
    /// All that was submitted is done, and the job was left.
    Finished,
    /// [`Session::turn`] has returned an error.
    Failed,
}

/// A worker's session.
pub struct Session {
    job: u16,
    rank: u8,
    workers: u8,
    window: u16,
    payload_bytes: u32,
    /// Of collectives without one of their own; else a profile's.
    priority: Option<u8>,
    /// What `link` was opened by.
    transport: Transport,
    link: Box<dyn Link>,
    clock: Clock,
    worker: Worker,
    stream: Stream,
    state: SessionState,
    profile: Option<Profile>,
    /// More of the same step follow the last that was submitted.
    more_follow: bool,
    finishing: bool,
    /// When to leave, after a mismatch.
    leave_at: Option<Time>,
    epoch: Option<u16>,
    done: u64,
    done_bytes: u64,
    priorities: Option<(u8, u8)>,
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
        let (group, units) = (Some(config.group()), Some(config.units()));
        let link = open_link(&config.transport, config.switch, group, units)?;
        Self::over(losing(link, loss), config)
    }

    /// As [`open`](Self::open), over a link that is open.
    ///
    /// # Errors
    /// If the system gives no random number.
    ///
    /// # Panics
    /// As [`open`](Self::open).
    pub fn over(link: Box<dyn Link>, config: &WorkerConfig) -> Result<Self, AgentError> {
        let job = &config.job;
        let rank = job
            .rank
            .expect("the caller has made sure that there is a rank");
        let session = session_of(config, rank, shape(config.payload_bytes))?;
        let clock = Clock::start();
        let payload_bytes = config.payload_bytes as usize;
        Ok(Self {
            job: job.id,
            rank,
            workers: job.workers,
            window: config.window,
            payload_bytes: config.payload_bytes,
            priority: job.priority,
            transport: config.transport.clone(),
            link,
            clock,
            worker: Worker::new(clock.now(), session),
            stream: Stream::new(rank, job.workers, config.window, payload_bytes),
            state: SessionState::Joining(None),
            profile: None,
            more_follow: false,
            finishing: false,
            leave_at: None,
            epoch: None,
            done: 0,
            done_bytes: 0,
            priorities: None,
        })
    }

    /// Takes a collective, also while the job has not begun. The results will be in `buffer` in place of what is
    /// there now.
    ///
    /// # Errors
    /// If it makes no sense, or comes after [`finish`](Self::finish) or an error.
    pub fn submit(
        &mut self,
        collective: Collective,
        buffer: Box<dyn Elements>,
    ) -> Result<Ticket, Refused> {
        collective.check(buffer.bytes(), self.workers)?;
        if self.finishing || self.is_over() {
            return Err(Refused::Over);
        }
        let now = self.clock.now();
        if let Some(profile) = &mut self.profile {
            if collective.more_follow {
                profile.compute_begins(now);
            } else {
                profile.compute_ends(now);
            }
            profile.communication_begins(now);
        }
        self.more_follow = collective.more_follow;
        let priority = match (collective.priority, self.priority) {
            (Priority::Fixed(own), _) => own,
            (Priority::Place { .. }, Some(configured)) => configured,
            (Priority::Place { index, of }, None) => {
                let unknown = Profile::new(now, None);
                let profile = self.profile.as_ref().unwrap_or(&unknown);
                profile.priority(u32::from(index), u32::from(of))
            }
        };
        let (least, most) = self.priorities.unwrap_or((priority, priority));
        self.priorities = Some((least.min(priority), most.max(priority)));
        let (ticket, fragments) = self.stream.push(now, collective, buffer);
        self.worker.submit(now, fragments, priority);
        Ok(ticket)
    }

    /// Does what there is to do: takes what has come, keeps the timers, sends. Returns false if there was nothing;
    /// then there is time to [`wait`](Self::wait). Nothing happens any more once the session is over.
    ///
    /// # Errors
    /// Whatever ends the session without all its results. It is returned once.
    pub fn turn(&mut self) -> Result<bool, AgentError> {
        if self.is_over() {
            return Ok(false);
        }
        match self.progress() {
            Ok(busy) => Ok(busy),
            Err(error) => {
                self.state = SessionState::Failed;
                Err(error)
            }
        }
    }

    fn progress(&mut self) -> Result<bool, AgentError> {
        let Self {
            link,
            worker,
            stream,
            clock,
            ..
        } = self;
        let now = clock.now();
        stream.at(now);
        let received = receive_all(&mut **link, &mut |ecn, datagram| {
            worker.handle_datagram(now, ecn, datagram, stream);
        })?;
        link.pin(worker.switch_mac(now));
        if stream.mismatch().is_some() {
            let at = *self.leave_at.get_or_insert(now.after(MISMATCH_LINGER));
            if at <= now {
                worker.give_up(now);
            }
        }
        if worker.poll_timeout().is_some_and(|at| at <= now) {
            worker.handle_timeout(now);
        }
        let now = clock.now();
        let sent = link.send(&mut |out| worker.poll_transmit(now, out, stream))?;
        let mut busy = received > 0 || sent > 0;
        while let Some(event) = self.worker.poll_event() {
            busy = true;
            self.handle(now, event)?;
        }
        Ok(busy)
    }

    fn handle(&mut self, now: Time, event: Event) -> Result<(), AgentError> {
        match event {
            Event::Waiting(members) => self.state = SessionState::Joining(Some(members)),
            Event::Running { epoch } => {
                self.epoch = Some(epoch.0);
                self.state = SessionState::Running { epoch: epoch.0 };
                let mut profile = Profile::new(now, None);
                let is_waiting = self.stream.waiting() > 0;
                if is_waiting {
                    profile.communication_begins(now);
                }
                if !is_waiting || self.more_follow {
                    profile.compute_begins(now);
                }
                self.profile = Some(profile);
            }
            Event::Delivered => {
                if let Some(profile) = &mut self.profile {
                    profile.communication_ends(now);
                    if !self.more_follow {
                        profile.step_ended(now);
                        profile.compute_begins(now);
                    }
                }
            }
            Event::Finished => self.state = SessionState::Finished,
            Event::Failed(error) => return Err(self.error(error)),
        }
        Ok(())
    }

    fn error(&mut self, error: WorkerError) -> AgentError {
        // Whatever else came of it.
        if let Some(source) = self.stream.take_mismatch() {
            let job = self.job;
            return AgentError::Mismatch { job, source };
        }
        let began = self.epoch.is_some();
        let obstacle = doctor::obstacle(&self.transport, self.payload_bytes);
        let trouble = obstacle.or_else(|| self.link.trouble());
        let name = |fragment| self.stream.name_of(fragment);
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

    /// As [`wait`](Self::wait), but also until `wake` can be read. Over a DPDK port, which has nothing to wait
    /// for, that is noticed within a millisecond.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_or(
        &mut self,
        most: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), AgentError> {
        let until = self.idle_for(most);
        Ok(self.link.wait(until, gather(&self.worker), wake)?)
    }

    /// How long there is nothing to do on account of time, up to `most`.
    pub(crate) fn idle_for(&self, most: Duration) -> Duration {
        let now = self.clock.now();
        let next = [self.worker.poll_timeout(), self.leave_at];
        let until = next.into_iter().flatten().map(|at| at.since(now)).min();
        until.map_or(most, |until| until.min(most)).min(IDLE_MAX)
    }

    /// The next collective whose results are there, in the order in which they came to be.
    pub fn done(&mut self) -> Option<Done> {
        let done = self.stream.pop_done()?;
        self.done += 1;
        self.done_bytes += done.buffer.bytes() as u64;
        Some(done)
    }

    /// Leaves the job once all that was submitted is done.
    pub fn finish(&mut self) {
        if !self.finishing && !self.is_over() {
            self.finishing = true;
            self.worker.finish(self.clock.now());
        }
    }

    /// Leaves the job now, because its user was interrupted. The others' error says so; ours comes from one of the
    /// next turns.
    pub fn interrupt(&mut self) {
        self.worker.interrupt(self.clock.now());
    }

    /// Leaves the job now, because its user cannot go on, as [`interrupt`](Self::interrupt).
    pub fn give_up(&mut self) {
        self.worker.give_up(self.clock.now());
    }

    /// What the oldest collective waits for now, as the error that a timeout would make of it, and the collective's name.
    pub(crate) fn stall(&self) -> Option<(WorkerError, Option<String>)> {
        let error = self.worker.stall(self.clock.now())?;
        let name = match error {
            WorkerError::Stalled { fragment, .. } => self.stream.name_of(fragment),
            _ => None,
        };
        Some((error, name))
    }

    /// Whether all that was submitted is done, and the job was left.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state == SessionState::Finished
    }

    fn is_over(&self) -> bool {
        matches!(self.state, SessionState::Finished | SessionState::Failed)
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> SessionState {
        self.state
    }

    /// Counters, as of now.
    #[must_use]
    pub fn report(&self) -> SessionReport {
        let stats = self.worker.stats();
        SessionReport {
            job: self.job,
            epoch: self.epoch,
            rank: self.rank,
            workers: self.workers,
            payload_bytes: self.payload_bytes,
            window: self.window,
            collectives: self.done,
            waiting: self.stream.waiting() as u64,
            behind: match self.worker.awaited() {
                Awaited::Ranks(ranks) => ranks.iter().collect(),
                Awaited::Nobody | Awaited::Unknown => Vec::new(),
            },
            slowest: self.worker.slowest().map(|it| Slowest {
                rank: it.rank.0,
                awaiting: f64::from(it.awaiting) / 1000.0,
                ours: f64::from(it.ours) / 1000.0,
            }),
            bytes: self.done_bytes,
            fragments: stats.fragments,
            from_switch: stats.from_switch,
            from_ps: stats.from_ps,
            retransmissions: stats.into(),
            results_resent: stats.results_resent,
            duplicates: stats.duplicates,
            late: stats.late,
            foreign: stats.foreign,
            priority_min: self.priorities.map(|p| p.0),
            priority_max: self.priorities.map(|p| p.1),
            congestion: Congestion::new(self.worker.windows(), &stats.congestion),
            latency_us: (&self.stream.latency_ns).into(),
            typical_us: self.worker.typical_latency().map(micros),
            rto_us: micros(self.worker.rto()),
        }
    }
}

/// What all sessions of a job must agree on (D-1); never that of a worker that sums one vector.
fn shape(payload_bytes: u32) -> Shape {
    let mut hash = Sha256::new();
    hash.update("tally session 1");
    hash.update(payload_bytes.to_le_bytes());
    hash.finalize().into()
}
