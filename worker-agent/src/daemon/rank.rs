//! One process's session.
//!
//! Each turn takes what the process has submitted and what has come from the network, and tells the
//! process what is done. When there is nothing, the thread sleeps until either has something. While
//! the network is busy the process's socket is polled every 20 µs, and not in every turn.

use super::failure::cause;
use super::status::{Shared, count, words};
use crate::config::{SwitchAddress, WorkerConfig};
use crate::error::AgentError;
use crate::link::loss::Loss;
use crate::log::{Level, Log};
use crate::session::{Collective, CollectiveKind, Elements, Priority, Session, SessionState};
use std::collections::HashMap;
use std::fmt::Display;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_endpoint::Hint;
use tally_local::{
    Class, Failure, Limits, Operation, Peer, PendingPeer, Request, Span, Submission,
};
use tally_schema::agent::status::Done;
use tally_session::{Arithmetic, Dtype};

/// Between two looks at processes' sockets, while the network is busy.
pub(super) const LOOK_EVERY: Duration = Duration::from_micros(20);
/// Requests taken at a time.
const REQUESTS_MAX: usize = 64;
/// How long to wait at most before looking at the stop flag again.
pub(super) const IDLE_MAX: Duration = Duration::from_millis(50);
/// For telling the others that we leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A process that is admitted and not served yet.
pub(super) struct PendingProcess {
    pub(super) task: Task,
    pub(super) pending: PendingPeer,
    pub(super) limits: Limits,
}

/// What there is to know of a process and its session.
pub(super) struct Task {
    /// The job and the rank, for the log.
    pub(super) name: String,
    pub(super) config: WorkerConfig,
    pub(super) loss: Option<Loss>,
    pub(super) shared: Arc<Shared>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) log: Log,
}

/// Why a process is served no longer.
enum End {
    /// It wanted to leave, and has.
    Left,
    /// Its session has failed.
    Failed(AgentError),
    /// It has ended without a word.
    Closed,
    /// It does not keep to the interface.
    Misbehaved(Failure),
    /// The agent is to stop.
    Stopped,
}

/// A part of the memory that a process shares with us.
struct InRegion(Span);

impl Elements for InRegion {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.0.read(at, into);
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        self.0.write(at, from);
    }
}

impl PendingProcess {
    /// Serves the process until it has left, on a thread of its own.
    pub(super) fn run(self) {
        let Self {
            task,
            pending,
            limits,
        } = self;
        let (log, name) = (task.log, task.name.clone());
        if catch_unwind(AssertUnwindSafe(|| task.run(pending.accept(limits)))).is_err() {
            crashed(log, &name);
        }
    }
}

pub(super) fn crashed(log: Log, name: &str) {
    log.error(format_args!(
        "{name}: its session crashed, a bug of the agent's"
    ));
}

impl Task {
    fn run(self, peer: Peer) {
        let session = match Session::open(&self.config, self.loss) {
            Ok(session) => session,
            Err(error) => return self.fail(peer, &error),
        };
        let mut rank = Rank::new(self, session, peer);
        let (mut looked, mut is_busy) = (Instant::now(), false);
        loop {
            let now = Instant::now();
            let look = !is_busy || now.saturating_duration_since(looked) >= LOOK_EVERY;
            if look {
                looked = now;
            }
            let turn = rank.turn(now, look);
            is_busy = turn == Turn::Busy;
            let turn = if turn == Turn::Idle {
                rank.wait()
            } else {
                turn
            };
            if turn == Turn::Over {
                return;
            }
        }
    }

    /// There is no session.
    pub(super) fn fail(&self, mut peer: Peer, error: &AgentError) {
        self.say(Level::Error, error);
        peer.fail(&Failure::from(error));
    }

    fn say(&self, level: Level, what: impl Display) {
        self.log.say(level, format_args!("{}: {what}", self.name));
    }
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

/// A process that takes part in a job.
pub(super) struct Rank {
    task: Task,
    session: Session,
    /// Until it has gone, or need not wait for us.
    peer: Option<Peer>,
    /// The process's, by ours, and what it is.
    tickets: HashMap<u64, (u64, Operation)>,
    done: Done,
    finishing: bool,
    state: Option<SessionState>,
    state_words: String,
    /// What the switch refused, as the log said last.
    hint: Option<Hint>,
    /// When the others are told that we leave, by then.
    leave_by: Option<Instant>,
}

impl Rank {
    pub(super) fn new(task: Task, session: Session, peer: Peer) -> Self {
        Self {
            task,
            session,
            peer: Some(peer),
            tickets: HashMap::new(),
            done: Done::default(),
            finishing: false,
            state: None,
            state_words: String::new(),
            hint: None,
            leave_by: None,
        }
    }

    /// Does what there is to do, with a look at the process's socket or without.
    pub(super) fn turn(&mut self, now: Instant, look: bool) -> Turn {
        if let Some(deadline) = self.leave_by {
            if now >= deadline || self.session.is_finished() {
                return Turn::Over;
            }
            return match self.session.turn() {
                Ok(true) => Turn::Busy,
                Ok(false) => Turn::Idle,
                Err(_) => Turn::Over,
            };
        }
        match self.progress(now, look) {
            Ok(true) => Turn::Busy,
            Ok(false) => Turn::Idle,
            Err(end) => self.end(now, end),
        }
    }

    /// How long there is nothing to do on account of time.
    #[cfg(feature = "dpdk")]
    pub(super) fn idle_for(&self) -> Duration {
        self.session.idle_for(IDLE_MAX)
    }

    /// Waits until there may be something to do.
    fn wait(&mut self) -> Turn {
        let wake = self.peer.as_ref().map(AsFd::as_fd);
        match self.session.wait_or(IDLE_MAX, wake) {
            Ok(()) => Turn::Idle,
            Err(_) if self.leave_by.is_some() => Turn::Over,
            Err(error) => self.end(Instant::now(), End::Failed(error)),
        }
    }

    fn end(&mut self, now: Instant, end: End) -> Turn {
        self.task.shared.leave();
        if self.task.log.says(Level::Debug) {
            self.task.say(Level::Debug, numbers(&self.session));
        }
        // The process need not wait for what follows.
        let mut peer = self.peer.take();
        let mut fail = |failure: &Failure| {
            if let Some(peer) = &mut peer {
                peer.fail(failure);
            }
        };
        match &end {
            End::Left => {
                if let Some(peer) = &mut peer {
                    peer.finished();
                }
                self.task.say(Level::Info, "left");
            }
            End::Failed(error) => {
                self.task.say(Level::Error, error);
                fail(&Failure::from(error));
            }
            End::Closed => self
                .task
                .say(Level::Error, "the process ended without leaving the job"),
            End::Misbehaved(failure) => {
                self.task.say(Level::Error, &failure.text);
                fail(failure);
            }
            End::Stopped => {
                let text =
                    "the agent was stopped; when it is back, start the job again at all ranks";
                fail(&Failure::new(Class::Stopped, text));
            }
        }
        match end {
            End::Left | End::Failed(_) => return Turn::Over,
            End::Closed | End::Misbehaved(_) => self.session.give_up(),
            End::Stopped => self.session.interrupt(),
        }
        self.leave_by = Some(now + LEAVE_WITHIN);
        Turn::Busy
    }

    /// Whether there was something to do.
    fn progress(&mut self, now: Instant, look: bool) -> Result<bool, End> {
        if self.task.stop.load(Ordering::Relaxed) {
            return Err(End::Stopped);
        }
        if let Some(key) = self.task.shared.take_key() {
            self.session.set_key(key);
            let what = "the job has a new key; the session takes it as soon as the switch has it";
            self.task.say(Level::Info, what);
        }
        let mut is_busy = look && self.take_requests()?;
        is_busy |= self.session.turn().map_err(End::Failed)?;
        while let Some(done) = self.session.done() {
            // Nothing of ours is in its memory any more when the process hears of it.
            drop(done.buffer);
            if let Some((ticket, operation)) = self.tickets.remove(&done.ticket.0) {
                count(&mut self.done, operation);
                if let Some(peer) = &mut self.peer {
                    peer.complete(ticket);
                }
            }
        }
        if self.session.is_finished() {
            return Err(End::Left);
        }
        let state = self.session.state();
        if self.state != Some(state) {
            self.state = Some(state);
            self.state_words = words(state);
            if state != SessionState::Joining(None) {
                self.task.say(Level::Info, &self.state_words);
            }
        }
        if let Some(hint) = self.session.hint()
            && self.hint.replace(hint) != Some(hint)
        {
            let what = refused(hint, self.task.config.switch);
            self.task.say(Level::Warn, what);
        }
        let shared = &self.task.shared;
        for warning in shared.look(now, &self.session, &self.state_words, self.done) {
            self.task.say(Level::Warn, warning);
        }
        Ok(is_busy)
    }

    /// Whether the process wanted anything.
    fn take_requests(&mut self) -> Result<bool, End> {
        for n in 0..REQUESTS_MAX {
            let Some(peer) = &mut self.peer else {
                return Ok(n > 0);
            };
            match peer.receive().map_err(End::Misbehaved)? {
                Some(Request::Submit {
                    ticket,
                    submission,
                    span,
                }) => {
                    if self.task.log.says(Level::Debug) {
                        let bytes = span.bytes();
                        let what = format_args!("{bytes} bytes: {submission:?}");
                        self.task.say(Level::Debug, what);
                    }
                    let operation = submission.operation;
                    let buffer = Box::new(InRegion(span));
                    let submitted = self.session.submit(collective(submission), buffer);
                    let ours = submitted.map_err(|why| {
                        End::Misbehaved(Failure::new(Class::Malformed, why.to_string()))
                    })?;
                    self.tickets.insert(ours.0, (ticket, operation));
                }
                Some(Request::Finish) => {
                    self.finishing = true;
                    self.session.finish();
                }
                Some(Request::Fallback { kind, count }) => {
                    self.task.shared.add_fallback(&kind, count);
                }
                Some(Request::Ask { question }) => {
                    peer.notify(question, cause(self.session.stall()));
                }
                // All that it wanted to be done can be done without it.
                Some(Request::Closed) if self.finishing => self.peer = None,
                Some(Request::Closed) => return Err(End::Closed),
                None => return Ok(n > 0),
            }
        }
        Ok(true)
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
fn numbers(session: &Session) -> String {
    let r = session.report();
    let again = r.retransmissions;
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

/// What the session calls it.
fn collective(submission: Submission) -> Collective {
    use tally_local::{Arithmetic as A, Dtype as D, Priority as P};
    Collective {
        kind: match submission.operation {
            Operation::Sum => CollectiveKind::Sum,
            Operation::Mean => CollectiveKind::Mean,
            Operation::Broadcast { root } => CollectiveKind::Broadcast { root },
            Operation::Barrier => CollectiveKind::Barrier,
        },
        dtype: match submission.dtype {
            D::F32 => Dtype::F32,
            D::F16 => Dtype::F16,
            D::Bf16 => Dtype::Bf16,
            D::I32 => Dtype::I32,
            D::I16 => Dtype::I16,
            D::I8 => Dtype::I8,
        },
        arithmetic: match submission.arithmetic {
            A::Fixed => Arithmetic::Fixed,
            A::Native => Arithmetic::Native,
            A::Own => Arithmetic::Own,
        },
        name: submission.name,
        priority: match submission.priority {
            P::Fixed(priority) => Priority::Fixed(priority),
            P::Place { index, of } => Priority::Place { index, of },
        },
        more_follow: submission.more_follow,
    }
}
