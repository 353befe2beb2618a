//! One process's session, on a thread of its own.
//!
//! Each turn of the loop takes what the process has submitted and what has come from the network, and tells the
//! process what is done; when there is nothing, it sleeps until either has something. While the network is
//! busy the process's socket is looked at every 20 µs, and not in every turn.

use super::Log;
use super::status::{Shared, words};
use crate::config::WorkerConfig;
use crate::error::AgentError;
use crate::link::loss::Loss;
use crate::session::{Collective, CollectiveKind, Elements, Session, SessionState};
use crate::tensors::Dtype;
use crate::vector::Arithmetic;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_local::{Class, Failure, Operation, Peer, Request, Span, Submission};

/// Between two looks at the process's socket, while the network is busy.
const LOOK_EVERY: Duration = Duration::from_micros(20);
/// Requests taken at a time.
const REQUESTS_MAX: usize = 64;
/// How long to wait at most before looking at the stop flag again.
const IDLE_MAX: Duration = Duration::from_millis(50);
/// For telling the others that we leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What a process's thread has.
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

impl Elements for Span {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        Self::read(self, at, into);
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        Self::write(self, at, from);
    }
}

impl Task {
    pub(super) fn run(self, mut peer: Peer) {
        match Session::open(&self.config, self.loss) {
            Ok(session) => self.serve_and_leave(session, peer),
            Err(error) => {
                self.say(&error.to_string());
                peer.fail(&Failure::from(&error));
            }
        }
    }

    fn say(&self, what: &str) {
        (self.log)(&format!("{}: {what}", self.name));
    }

    fn serve_and_leave(&self, mut session: Session, mut peer: Peer) {
        let end = self.serve(&mut session, &mut peer);
        self.shared.leave();
        match &end {
            End::Left => {
                peer.finished();
                self.say("left");
            }
            End::Failed(error) => {
                self.say(&error.to_string());
                peer.fail(&Failure::from(error));
            }
            End::Closed => self.say("the process ended without leaving the job"),
            End::Misbehaved(failure) => {
                self.say(&failure.text);
                peer.fail(failure);
            }
            End::Stopped => {
                let text =
                    "the agent was stopped; when it is back, start the job again at all ranks";
                peer.fail(&Failure::new(Class::Stopped, text));
            }
        }
        // The process need not wait for what follows.
        drop(peer);
        match end {
            End::Left | End::Failed(_) => return,
            End::Closed | End::Misbehaved(_) => session.give_up(),
            End::Stopped => session.interrupt(),
        }
        let deadline = Instant::now() + LEAVE_WITHIN;
        while Instant::now() < deadline && !session.is_finished() {
            match session.turn() {
                Ok(true) => {}
                Ok(false) if session.wait(IDLE_MAX).is_ok() => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    fn serve(&self, session: &mut Session, peer: &mut Peer) -> End {
        let mut tickets = HashMap::new();
        let mut looked = Instant::now();
        let mut state = None;
        let mut state_words = String::new();
        let (mut is_busy, mut finishing, mut is_there) = (false, false, true);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return End::Stopped;
            }
            let now = Instant::now();
            let look = !is_busy || now.saturating_duration_since(looked) >= LOOK_EVERY;
            is_busy = false;
            if look && is_there {
                looked = now;
                for _ in 0..REQUESTS_MAX {
                    let request = match peer.receive() {
                        Ok(Some(request)) => request,
                        Ok(None) => break,
                        Err(failure) => return End::Misbehaved(failure),
                    };
                    is_busy = true;
                    match request {
                        Request::Submit {
                            ticket,
                            submission,
                            span,
                        } => match session.submit(collective(submission), Box::new(span)) {
                            Ok(ours) => drop(tickets.insert(ours.0, ticket)),
                            Err(why) => {
                                let why = Failure::new(Class::Malformed, why.to_string());
                                return End::Misbehaved(why);
                            }
                        },
                        Request::Finish => {
                            finishing = true;
                            session.finish();
                        }
                        // All that it wanted to be done can be done without it.
                        Request::Closed if finishing => {
                            is_there = false;
                            break;
                        }
                        Request::Closed => return End::Closed,
                    }
                }
            }
            match session.turn() {
                Ok(busy) => is_busy |= busy,
                Err(error) => return End::Failed(error),
            }
            while let Some(done) = session.done() {
                // Nothing of ours is in its memory any more when the process hears of it.
                drop(done.buffer);
                if let Some(ticket) = tickets.remove(&done.ticket.0) {
                    peer.complete(ticket);
                }
            }
            if session.is_finished() {
                return End::Left;
            }
            if state != Some(session.state()) {
                state = Some(session.state());
                state_words = words(session.state());
                if state != Some(SessionState::Joining(None)) {
                    self.say(&state_words);
                }
            }
            self.shared.look(now, session, &state_words);
            let wake = is_there.then(|| peer.as_fd());
            if !is_busy && let Err(error) = session.wait_or(IDLE_MAX, wake) {
                return End::Failed(error);
            }
        }
    }
}

/// What the session calls it.
fn collective(submission: Submission) -> Collective {
    use tally_local::{Arithmetic as A, Dtype as D};
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
        priority: submission.priority,
    }
}
