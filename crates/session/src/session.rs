//! A worker that takes collectives one after the other.
//!
//! Several collectives may be in flight at once. They travel one behind the other, so that a small
//! one does not wait for the round trip of the one before. All ranks must submit the same ones in
//! the same order; each begins with a *descriptor*, from which every rank learns what all others
//! bring. Elements follow it without waiting, but no buffer is given back before all have been
//! found to agree. If they do not, the session fails at every rank with a [`Mismatch`], which names
//! the ranks that differ.
//!
//! # Priorities
//!
//! A collective's priority is that of its place in the model, from what the session measures (C-5).
//! It sees when collectives come and when all that came are done, and no more:
//!
//! * Results are awaited while anything is in flight.
//! * Its user computes from the moment when nothing is in flight any more until it submits the next
//!   collective, and further, while results are awaited, if *more follow*: DDP submits its buckets
//!   in the middle of the backward pass, and waits for none before the last. So the optimizer,
//!   loading data, forward and backward pass are all computation.
//! * A step is over when nothing is in flight and no more follow.
//!
//! What a user does not say is taken for a step of its own, such as the sum of a metric: what it
//! adds to the time of results awaited is true, and the ratio is one of sums over steps, however
//! they are cut.
//!
//! # The catches
//!
//! * Sums are made in place, and a contribution that was lost is read from the buffer again: no
//!   other process may write to a buffer until it comes back. When the session fails, the contents
//!   of its buffers are undefined.
//! * In block fixed point an infinity or a NaN makes NaN of its whole fragment, at every rank. Sums
//!   as f32 or in the elements' own type keep both where they are.
//! * Block fixed point needs a round trip for its scales before its elements, and what is submitted
//!   behind it waits for that, too: a few large collectives are faster than many small ones.
//! * A rank that lives and does not submit what the others wait for is named, but only where the
//!   stall timeout is longer than a second and a half: ranks say how far they are with their
//!   heartbeats (J-10).

use crate::collective::{Collective, Done, Elements, Priority, Refused, Ticket};
use crate::descriptor::Mismatch;
use crate::stream::Stream;
use hdrhistogram::Histogram;
use sha2::{Digest, Sha256};
use std::time::Duration;
use tally_endpoint::nic::Demand;
use tally_endpoint::{Ecn, Event, Members, Profile, Time, Transmit, Worker, WorkerConfig};
use tally_wire::control::Shape;
use tally_wire::{Key, UNIT_BYTES};

/// How long a rank that has found a mismatch stays, for others to find it as well (D-5). They ask
/// for a descriptor that they lost within the longest timeout, 250 ms.
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
    /// The session has ended with an error.
    Failed,
}

/// A worker's session.
pub struct Session {
    workers: u16,
    /// Ranks of each worker.
    parts: u16,
    /// Of collectives without one of their own; else a profile's.
    priority: Option<u8>,
    worker: Worker,
    stream: Stream,
    state: SessionState,
    profile: Option<Profile>,
    /// Training steps, if they are known.
    steps: Option<u64>,
    /// More of the same step follow the last that was submitted.
    more_follow: bool,
    finishing: bool,
    /// When to leave after a mismatch, and whether we do.
    leave_at: Option<Time>,
    is_leaving: bool,
    epoch: Option<u16>,
    done: u64,
    done_bytes: u64,
    priorities: Option<(u8, u8)>,
}

impl Session {
    /// A session that begins to join `now`, with buffers of `parts` parts. `priority` takes the
    /// place of a profile's.
    ///
    /// # Panics
    /// If `config` does not have the [`shape`] of sessions, or counts its fragments from another
    /// number than 0.
    #[must_use]
    pub fn new(now: Time, config: WorkerConfig, parts: u16, priority: Option<u8>) -> Self {
        let payload_bytes = usize::from(config.units) * UNIT_BYTES;
        assert_eq!(config.shape, shape(payload_bytes as u32, parts));
        assert_eq!(config.first_fragment, 0);
        let (rank, workers) = (config.rank, config.workers);
        Self {
            workers,
            parts,
            priority,
            stream: Stream::new(rank, workers, config.window, payload_bytes),
            worker: Worker::new(now, config),
            state: SessionState::Joining(None),
            profile: None,
            steps: None,
            more_follow: false,
            finishing: false,
            leave_at: None,
            is_leaving: false,
            epoch: None,
            done: 0,
            done_bytes: 0,
            priorities: None,
        }
    }

    /// Takes a collective, also while the job has not begun. The results will be in `buffer` in
    /// place of what is there now.
    ///
    /// # Errors
    /// If it makes no sense, or comes after [`finish`](Self::finish) or an error.
    ///
    /// # Panics
    /// If the buffer does not have the session's number of parts.
    pub fn submit(
        &mut self,
        now: Time,
        collective: Collective,
        buffer: Box<dyn Elements>,
    ) -> Result<Ticket, Refused> {
        assert_eq!(buffer.parts(), usize::from(self.parts));
        collective.check(buffer.bytes(), self.workers * self.parts)?;
        if self.finishing || self.is_over() {
            return Err(Refused::Over);
        }
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
        if let Some(profile) = &mut self.profile {
            profile.submits(fragments);
            self.worker.expect(profile.fragments_total());
        }
        self.worker.submit(now, fragments, priority);
        Ok(ticket)
    }

    /// Handles a datagram from the switch.
    pub fn handle_datagram(&mut self, now: Time, ecn: Ecn, datagram: &[u8]) {
        self.stream.at(now);
        self.worker
            .handle_datagram(now, ecn, datagram, &mut self.stream);
        if self.leave_at.is_none() && self.stream.mismatch().is_some() {
            self.leave_at = Some(now.after(MISMATCH_LINGER));
        }
        self.finish_if_done(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let leave_at = self.leave_at.filter(|_| !self.is_leaving);
        let next = [self.worker.poll_timeout(), leave_at];
        next.into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if !self.is_leaving && self.leave_at.is_some_and(|at| at <= now) {
            self.is_leaving = true;
            self.worker.give_up(now);
        }
        if self.worker.poll_timeout().is_some_and(|at| at <= now) {
            self.worker.handle_timeout(now);
        }
    }

    /// Writes the next datagram to send.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        self.worker.poll_transmit(now, out, &mut self.stream)
    }

    /// What it has to send now, for the order of the sessions that share a NIC; `None`: nothing.
    #[must_use]
    pub fn demand(&self, now: Time) -> Option<Demand> {
        self.worker.demand(now)
    }

    /// What has happened. After a failure, [`take_mismatch`](Self::take_mismatch) says whether that
    /// was the reason.
    pub fn poll_event(&mut self, now: Time) -> Option<Event> {
        let event = self.worker.poll_event()?;
        match event {
            Event::Waiting(members) => self.state = SessionState::Joining(Some(members)),
            Event::Running { epoch } => {
                self.epoch = Some(epoch.0);
                self.state = SessionState::Running { epoch: epoch.0 };
                let mut profile = Profile::new(now, self.steps);
                profile.submits(self.stream.end());
                self.worker.expect(profile.fragments_total());
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
            Event::Failed(_) => self.state = SessionState::Failed,
        }
        Some(event)
    }

    /// The next collective whose results are there, in the order in which they came to be.
    pub fn done(&mut self) -> Option<Done> {
        let done = self.stream.pop_done()?;
        self.done += 1;
        self.done_bytes += done.buffer.bytes() as u64;
        Some(done)
    }

    /// Says how many training steps there will be, which priorities follow (C-5). For calling
    /// before the job begins.
    pub fn expect_steps(&mut self, steps: u64) {
        self.steps = Some(steps);
    }

    /// Leaves the job once all that was submitted is done.
    pub fn finish(&mut self, now: Time) {
        if !self.finishing && !self.is_over() {
            self.finishing = true;
            self.finish_if_done(now);
        }
    }

    /// Not before all descriptors have been found to agree: after a mismatch we leave in another
    /// way (D-5).
    fn finish_if_done(&mut self, now: Time) {
        if self.finishing && self.stream.is_empty() {
            self.worker.finish(now);
        }
    }

    /// Has another key from the moment on when the switch has it; the job continues.
    pub fn set_key(&mut self, key: Key) {
        self.worker.set_key(key);
    }

    /// Leaves the job now, because its user was interrupted. The others' error says so; ours is an
    /// event.
    pub fn interrupt(&mut self, now: Time) {
        self.worker.interrupt(now);
    }

    /// Leaves the job now, because its user cannot continue, as [`interrupt`](Self::interrupt).
    pub fn give_up(&mut self, now: Time) {
        self.worker.give_up(now);
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> SessionState {
        self.state
    }

    fn is_over(&self) -> bool {
        matches!(self.state, SessionState::Finished | SessionState::Failed)
    }

    /// Which collective the ranks do not agree on, if that is why the session fails. The caller's
    /// then.
    pub fn take_mismatch(&mut self) -> Option<Box<Mismatch>> {
        self.stream.take_mismatch()
    }

    /// The name of the collective that a fragment is of.
    #[must_use]
    pub fn name_of(&self, fragment: u64) -> Option<String> {
        self.stream.name_of(fragment)
    }

    /// The protocol's side of it.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The job's incarnation, once it runs.
    #[must_use]
    pub fn epoch(&self) -> Option<u16> {
        self.epoch
    }

    /// Collectives that were submitted and are not done.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.stream.waiting()
    }

    /// Collectives whose buffers have been fetched, and the bytes of these.
    #[must_use]
    pub fn fetched(&self) -> (u64, u64) {
        (self.done, self.done_bytes)
    }

    /// Fragments that have their results, and all that were submitted.
    #[must_use]
    pub fn fragments(&self) -> (u64, u64) {
        (self.worker.delivered(), self.stream.end())
    }

    /// The lowest and the highest priority that a collective had.
    #[must_use]
    pub fn priorities(&self) -> Option<(u8, u8)> {
        self.priorities
    }

    /// Times from a contribution to its result, in nanoseconds.
    #[must_use]
    pub fn latencies(&self) -> &Histogram<u64> {
        self.stream.latencies()
    }
}

/// What all members of a job must agree on when they join (D-1): with `parts` ranks each.
#[must_use]
pub fn shape(payload_bytes: u32, parts: u16) -> Shape {
    let mut hash = Sha256::new();
    hash.update("tally session 1");
    hash.update(payload_bytes.to_le_bytes());
    if parts > 1 {
        hash.update(parts.to_le_bytes());
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::shape;
    use std::collections::BTreeSet;

    #[test]
    fn members_that_differ_in_payload_or_ranks_a_host_have_other_shapes() {
        let settings = [(1024, 1), (1024, 2), (1024, 3), (1408, 1), (1408, 2)];
        let shapes: BTreeSet<_> = settings.map(|(p, n)| shape(p, n)).into();
        assert_eq!(shapes.len(), settings.len());
    }
}
