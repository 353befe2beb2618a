//! What can go wrong, by what a script would do about it.

use crate::control::client::ControlError;
use crate::link::LinkError;
use crate::tensors::TensorError;
use std::path::PathBuf;
use tally_config::ConfigError;
use tally_endpoint::WorkerError;
use tally_local::LocalError;
use tally_program::Exit;
use tally_session::Mismatch;
use tally_verbs::{Cause, MemberError};
use tally_wire::control::{LeaveCode, Reason};
use thiserror::Error;

/// Why the agent failed. [`AgentError::exit_code`] tells the classes apart.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Options contradict each other or the configuration, or the environment says what cannot be.
    #[error("{0}")]
    Options(String),
    /// Tensors cannot be read or written.
    #[error(transparent)]
    Tensors(#[from] TensorError),
    /// The report cannot be written.
    #[error("{}: {source}", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no link to the switch.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The agent's own socket cannot be used.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The running agent did not do what was asked.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// No controller told the host its place in a job.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// Processes have not left in time. The agent stays drained.
    #[error(
        "{left} processes have not left; the agent refuses new ones (`tally-agent drain --cancel` ends that)"
    )]
    Drain {
        /// How many.
        left: u32,
    },
    /// No randomness for the session's instance.
    #[error("the system gives no random number: {0}")]
    Random(getrandom::Error),
    /// The job did not begin for us.
    #[error("cannot join job {job} as rank {rank}: {source}{}", Also(.trouble))]
    Join {
        /// The job.
        job: u16,
        /// Our rank.
        rank: u16,
        /// Why.
        source: WorkerError,
        /// What the link says about it.
        trouble: Option<String>,
    },
    /// An i32 sum does not exist.
    #[error("job {job} failed: {source}{}", In(.tensors))]
    Overflow {
        /// The job.
        job: u16,
        /// Where.
        source: WorkerError,
        /// Names of the tensors with elements in that fragment.
        tensors: Option<String>,
    },
    /// The job has failed, and not because of us.
    #[error("job {job} failed: {source}")]
    Job {
        /// The job.
        job: u16,
        /// Why.
        source: WorkerError,
    },
    /// The ranks do not bring the same collectives.
    #[error("job {job} failed: {source}")]
    Mismatch {
        /// The job.
        job: u16,
        /// Who brings what.
        source: Box<Mismatch>,
    },
    /// No results come any more.
    #[error("job {job} failed: {}{source}{}", WaitingFor(.tensors), Also(.trouble))]
    Silence {
        /// The job.
        job: u16,
        /// Why.
        source: WorkerError,
        /// Names of what was waited for.
        tensors: Option<String>,
        /// What the link says about it.
        trouble: Option<String>,
    },
    /// A ring of RoCEv2 hosts has ended.
    #[error(transparent)]
    Ring(#[from] MemberError),
    /// SIGINT or SIGTERM.
    #[error("interrupted; the other workers have been told")]
    Interrupted,
}

/// Why a host does not know its place in a job.
#[derive(Debug, Error)]
pub enum ControllerError {
    /// A controller refuses, and would again.
    #[error("the controller at {address} refuses: {why}")]
    Refused {
        /// Its address.
        address: String,
        /// Why.
        why: String,
    },
    /// A controller's answer cannot be used.
    #[error("the controller answers: {0}")]
    Answer(String),
    /// None has answered, or switches were not ready, in time.
    #[error("no place in {seconds} s: {problem}")]
    NoAnswer {
        /// The last problem.
        problem: String,
        /// How long it was tried.
        seconds: f64,
    },
}

struct Also<'a>(&'a Option<String>);

impl std::fmt::Display for Also<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_ref().map_or(Ok(()), |t| write!(f, " ({t})"))
    }
}

struct WaitingFor<'a>(&'a Option<String>);

impl std::fmt::Display for WaitingFor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.0.as_ref().filter(|t| !t.is_empty());
        names.map_or(Ok(()), |t| write!(f, "waiting for {t}: "))
    }
}

struct In<'a>(&'a Option<String>);

impl std::fmt::Display for In<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.0.as_ref();
        names.map_or(Ok(()), |t| write!(f, ", which has elements of {t}"))
    }
}

impl AgentError {
    /// The session's error, in the agent's words.
    pub(crate) fn of_session(
        source: WorkerError,
        job: u16,
        rank: u16,
        began: bool,
        trouble: Option<String>,
        tensors: impl Fn(u64) -> Option<String>,
    ) -> Self {
        let overflow = Some(LeaveCode::Overflow);
        match source {
            WorkerError::Interrupted => Self::Interrupted,
            WorkerError::Overflow { fragment } => Self::Overflow {
                job,
                source,
                tensors: tensors(fragment),
            },
            WorkerError::MemberFailed { code, fragment, .. } if code == overflow => {
                Self::Overflow {
                    job,
                    tensors: fragment.and_then(tensors),
                    source,
                }
            }
            WorkerError::InTree(it) if it.code() == overflow => Self::Overflow {
                job,
                tensors: it.fragment.and_then(tensors),
                source: WorkerError::InTree(it),
            },
            WorkerError::SwitchSilent { .. }
            | WorkerError::Stalled { .. }
            | WorkerError::GaveUp { .. } => Self::Silence {
                job,
                tensors: match source {
                    WorkerError::Stalled { fragment, .. } => tensors(fragment),
                    WorkerError::GaveUp { fragment, .. } => fragment.and_then(tensors),
                    _ => None,
                },
                source,
                trouble,
            },
            WorkerError::InTree(it) if it.code() == Some(LeaveCode::Stalled) => Self::Silence {
                job,
                tensors: it.fragment.and_then(tensors),
                source: WorkerError::InTree(it),
                trouble,
            },
            WorkerError::InTree(it)
                if matches!(
                    it.reason,
                    Reason::MemberLost
                        | Reason::MemberFailed
                        | Reason::Removed
                        | Reason::StaleEpoch
                ) =>
            {
                Self::Job {
                    job,
                    source: WorkerError::InTree(it),
                }
            }
            WorkerError::MemberLost { .. }
            | WorkerError::MemberFailed { .. }
            | WorkerError::StaleEpoch
            | WorkerError::Removed
            | WorkerError::GivenUp => Self::Job { job, source },
            source if began => Self::Job { job, source },
            source => Self::Join {
                job,
                rank,
                source,
                trouble,
            },
        }
    }

    /// The process's exit code for this class of errors; the command line's help lists them.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        let exit = match self {
            Self::Drain { .. } => Exit::Failure,
            Self::Config(_)
            | Self::Options(_)
            | Self::Controller(ControllerError::Refused { .. })
            | Self::Control(ControlError::Refused(_) | ControlError::Denied(_)) => Exit::Usage,
            Self::Tensors(_) | Self::Report { .. } => Exit::File,
            Self::Link(_)
            | Self::Local(_)
            | Self::Random(_)
            | Self::Control(_)
            | Self::Controller(_) => Exit::System,
            Self::Join { .. } => Exit::Join,
            Self::Job { .. } | Self::Mismatch { .. } => Exit::Job,
            Self::Overflow { .. } => Exit::Overflow,
            Self::Silence { .. } => Exit::Silence,
            Self::Ring(error) => match error.cause {
                Cause::Device(_) | Cause::Listen(..) | Cause::Poll(_) => Exit::System,
                Cause::Join(_) => Exit::Join,
                Cause::Send { .. } | Cause::Receive { .. } => Exit::Silence,
                Cause::Rendezvous(_) | Cause::Message { .. } | Cause::Ended => Exit::Job,
            },
            Self::Interrupted => Exit::Interrupted,
        };
        exit.code()
    }
}
