//! One process: the worker that it is, or is one of, and how far it is.

use super::status::Shared;
use crate::config::{AgentRing, JobRina, WorkerConfig};
use crate::link::loss::Loss;
use crate::log::{Level, Log};
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tally_local::{Limits, Operation, Peer, PendingPeer, Span, Submission};
use tally_schema::agent::status::Done;
use tally_session::{Arithmetic, Collective, CollectiveKind, Dtype, Elements, Priority};

/// What there is to know of a worker.
#[derive(Clone)]
pub(super) struct Task {
    /// The job, and the rank or ranks, for the log.
    pub(super) name: String,
    pub(super) config: WorkerConfig,
    /// The ring of RoCEv2 hosts that sums, in place of the job.
    pub(super) ring: Option<AgentRing>,
    /// Racks and hosts, if a ring of them sums the job.
    pub(super) rina: Option<JobRina>,
    /// The first rank that it is, and how many.
    pub(super) first: u16,
    pub(super) parts: u16,
    pub(super) loss: Option<Loss>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) log: Log,
}

impl Task {
    pub(super) fn say(&self, level: Level, what: impl Display) {
        self.log.say(level, format_args!("{}: {what}", self.name));
    }

    /// Whether its collectives are those of a session with the switch.
    pub(super) const fn is_by_switch(&self) -> bool {
        self.ring.is_none() && self.rina.is_none()
    }

    /// Ranks of the job.
    pub(super) fn ranks(&self) -> u16 {
        self.config.job.workers * self.parts
    }
}

/// A process that is admitted and not served yet.
pub(super) struct PendingProcess {
    /// The worker that it is, or is one of.
    pub(super) task: Task,
    /// Its rank.
    pub(super) rank: u16,
    pub(super) shared: Arc<Shared>,
    pub(super) pending: PendingPeer,
    pub(super) limits: Limits,
}

/// A process that takes part in a job.
pub(super) struct LocalRank {
    pub(super) rank: u16,
    pub(super) pid: i32,
    pub(super) shared: Arc<Shared>,
    /// Until it has gone, or need not wait for us.
    pub(super) peer: Option<Peer>,
    pub(super) done: Done,
    /// Collectives that are submitted and not done.
    pub(super) under_way: usize,
    /// It submits nothing more.
    pub(super) is_finishing: bool,
}

impl LocalRank {
    pub(super) fn new(process: PendingProcess) -> Self {
        Self {
            rank: process.rank,
            pid: process.pending.pid(),
            shared: process.shared,
            peer: Some(process.pending.accept(process.limits)),
            done: Done::default(),
            under_way: 0,
            is_finishing: false,
        }
    }
}

/// A part of the memory that a process shares with us.
pub(super) struct InRegion(pub(super) Span);

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

/// What the session calls it.
pub(super) fn collective(submission: Submission) -> Collective {
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
