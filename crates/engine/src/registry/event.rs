//! What happens to members and jobs, as values. The adapter makes lines of the log of them.

use crate::roster::Member;
use std::time::Duration;
use tally_wire::control::{Concern, Reason};
use tally_wire::{Epoch, JobId, Part, Rank};

/// Events that wait for [`Registry::take_events`](super::Registry::take_events) at most. Further
/// ones are lost: an adapter that takes none has no use for them.
pub(super) const EVENTS_MAX: usize = 1024;

/// What happened to a job or to a member of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member has taken a place: a worker's, or that of the PS.
    Joined {
        /// Of this job.
        job: JobId,
        /// As this rank.
        rank: Rank,
        /// Of a PS, its part.
        part: Part,
        /// From there.
        member: Member,
    },
    /// A member said that it left: it has finished, or gives up its place.
    Left {
        /// This job.
        job: JobId,
        /// As this rank.
        rank: Rank,
        /// Of a PS, its part.
        part: Part,
        /// From there.
        member: Member,
    },
    /// A member was silent for too long, and has lost its place.
    Lost {
        /// In this job.
        job: JobId,
        /// As this rank.
        rank: Rank,
        /// Of a PS, its part.
        part: Part,
        /// It was there; not known of a worker that did not come back after a restart.
        member: Option<Member>,
        /// This long.
        silent: Duration,
    },
    /// All members are there.
    Running {
        /// In this job.
        job: JobId,
        /// Its incarnation.
        epoch: Epoch,
        /// Its workers.
        workers: u8,
    },
    /// A PS of a running job is gone. The job resumes when another has come.
    Paused {
        /// This job.
        job: JobId,
        /// Its incarnation.
        epoch: Epoch,
        /// The part without a PS.
        part: Part,
    },
    /// All workers have left, or the epoch has failed.
    Ended {
        /// This job.
        job: JobId,
        /// Its incarnation.
        epoch: Epoch,
        /// Why it failed, and the rank that this is about.
        failure: Option<(Reason, Option<Rank>)>,
        /// In a tree, the global ranks and the switch that the failure concerns.
        concern: Option<Concern>,
    },
    /// A JOIN or LEAVE was refused. Neither those that only had to be said anew with another
    /// challenge, nor those of members that hear how their epoch has ended.
    Refused {
        /// Of this job, which need not exist.
        job: JobId,
        /// As this rank.
        rank: Rank,
        /// Whether that is a local rank; else it is the one of the frame's header (TR-20).
        located: bool,
        /// From there.
        from: Member,
        /// For this reason.
        reason: Reason,
        /// What it brought.
        found: u32,
        /// What it may bring.
        allowed: u32,
    },
}

impl Event {
    /// The job that it happened to.
    #[must_use]
    pub const fn job(&self) -> JobId {
        match self {
            Self::Joined { job, .. }
            | Self::Left { job, .. }
            | Self::Lost { job, .. }
            | Self::Running { job, .. }
            | Self::Paused { job, .. }
            | Self::Ended { job, .. }
            | Self::Refused { job, .. } => *job,
        }
    }
}

/// Events, up to a bound.
#[derive(Debug, Default)]
pub(super) struct Events(Vec<Event>);

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        if self.0.len() < EVENTS_MAX {
            self.0.push(event);
        }
    }

    /// Takes those of a job over.
    pub(super) fn append(&mut self, of_job: &mut Self) {
        of_job.0.drain(..).for_each(|event| self.push(event));
    }

    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.0)
    }
}
