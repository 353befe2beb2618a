//! Why a job ended somewhere in its tree of switches.

use core::fmt;
use core::time::Duration;
use tally_wire::control::{Concern, LeaveCode, Reason};

/// A job that ended in its tree of switches, for a reason that may be far from this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeFailure {
    /// The reason.
    pub reason: Reason,
    /// Value found (see [`Reason`]).
    pub found: u32,
    /// Value allowed (see [`Reason`]).
    pub allowed: u32,
    /// The global ranks and the switch that it concerns.
    pub concern: Concern,
    /// The fragment that overflowed, counted from the start of the job.
    pub fragment: Option<u64>,
    /// Whether this worker is one of those that have not contributed.
    pub ours: bool,
}

impl TreeFailure {
    /// The code with which a member left, for MEMBER_FAILED.
    #[must_use]
    pub fn code(&self) -> Option<LeaveCode> {
        match self.reason {
            Reason::MemberFailed => LeaveCode::from_number(self.found),
            _ => None,
        }
    }
}

impl fmt::Display for TreeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.concern.switch.as_str();
        let whole = self.concern.whole;
        match (self.reason, self.concern.ranks) {
            (Reason::MemberLost, ranks) => {
                let silent = Duration::from_millis(self.found.into());
                match ranks {
                    Some(ranks) if whole => {
                        write!(f, "{ranks} lost: switch {name:?} silent for {silent:?}")
                    }
                    Some(ranks) => {
                        write!(f, "{ranks} lost: silent for {silent:?} at switch {name:?}")
                    }
                    None => write!(f, "switch {name:?} lost: silent for {silent:?}"),
                }
            }
            (Reason::MemberFailed, Some(ranks)) => {
                if let Some(behind) = self.concern.behind {
                    let verb = if behind.count() == 1 { "has" } else { "have" };
                    let for_us = if self.ours { " for us" } else { "" };
                    return write!(
                        f,
                        "{ranks} gave up waiting{for_us}: {behind} {verb} not contributed"
                    );
                }
                let why = super::Left(self.code());
                write!(f, "{ranks} left the job{why}, at switch {name:?}")
            }
            (Reason::Removed, _) => write!(f, "the job was removed from switch {name:?}"),
            (Reason::BadRank, Some(ranks)) => write!(
                f,
                "rank {} is none of switch {name:?}, which has {ranks} of {}",
                self.found, self.allowed
            ),
            (Reason::Payload, Some(ranks)) => write!(
                f,
                "payloads of {} bytes do not fit: {ranks} of the job ({name:?}) has {} bytes",
                self.found * 64,
                self.allowed * 64
            ),
            (Reason::Shape, Some(ranks)) => write!(
                f,
                "{ranks} ({name:?}) has another payload size, another `ranks_per_host` or another version of sessions than we do: run one release of Tally with the same values at all ranks"
            ),
            (Reason::StaleEpoch, _) => {
                write!(
                    f,
                    "the job has started anew without switch {name:?} and what is below it"
                )
            }
            (reason, Some(ranks)) => {
                write!(f, "{ranks} ended the job ({reason:?}), at switch {name:?}")
            }
            (reason, None) => write!(f, "switch {name:?} ended the job ({reason:?})"),
        }
    }
}
