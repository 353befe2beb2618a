//! Why the control thread did not do what it was asked.

use std::time::Duration;
use thiserror::Error;

/// Requests that wait at most.
pub(super) const WAITING_MAX: usize = 64;
/// How long a caller waits for an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a change was not made. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// Another change came first.
    #[error(
        "version {expected} was expected, but {found} runs; look at what changed and try again"
    )]
    Version {
        /// What the caller expected.
        expected: u64,
        /// What runs.
        found: u64,
    },
    /// There is no such object.
    #[error("{0}: not there")]
    NotFound(String),
    /// There is another one of that name.
    #[error("{0}")]
    Conflict(String),
    /// It does not fit the rest, or what runs.
    #[error("{0}")]
    Refused(String),
    /// The file cannot be used.
    #[error("{0}")]
    File(String),
    /// Too much is asked.
    #[error("{WAITING_MAX} requests wait for the control thread; try again")]
    Busy,
    /// The control thread has ended.
    #[error("the switch stops")]
    Stopped,
    /// The control thread did not answer in time; the change may have been made.
    #[error("the control thread did not answer within {} s; ask for the version", TIMEOUT.as_secs())]
    Timeout,
}
