//! Attempts to connect to an agent: which are repeated, for how long, and what a user is told
//! meanwhile.

use crate::error::{Class, LocalError};
use crate::socket::Seqpacket;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Between two attempts to connect.
pub(crate) const RETRY_EVERY: Duration = Duration::from_millis(20);
/// Between two reports of [`Retry::is_due`].
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(2);
/// The longest search for an agent that is not there.
pub const SEARCH_MAX: Duration = Duration::from_secs(10);
/// The longest wait for an agent that is there: to give up the place of a process that has ended,
/// and to answer.
pub const PLACE_MAX: Duration = Duration::from_secs(30);

/// An attempt to connect that failed, and will be repeated.
#[derive(Debug)]
#[non_exhaustive]
pub struct Retry<'a> {
    /// Why it failed.
    pub error: &'a LocalError,
    /// Time left for further attempts.
    pub left: Duration,
    /// Whether a user should be told now: every 2 s, and not before the first 2 s are over.
    pub is_due: bool,
}

impl fmt::Display for Retry<'_> {
    /// One line without its end, for a log or standard error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            LocalError::Connect { path, source, .. } if is_absent(source) => {
                let why = source.to_string();
                let (why, _) = why.split_once(" (os error").unwrap_or((&why, ""));
                write!(f, "no agent at {} ({why})", path.display())?;
            }
            LocalError::Timeout { job, rank, .. } => write!(
                f,
                "job {job} rank {rank}: the agent accepted the connection and does not answer"
            )?,
            other => write!(f, "{other}")?,
        }
        let seconds = self.left.as_secs_f64().round().max(1.0);
        write!(f, "; retrying, {seconds} s left")
    }
}

/// Whether there is no agent, rather than no right to use it.
fn is_absent(source: &io::Error) -> bool {
    matches!(
        source.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// How long attempts to connect are repeated after an error.
pub(crate) fn patience(error: &LocalError) -> Duration {
    match error {
        LocalError::Connect { .. } | LocalError::Gone { .. } => SEARCH_MAX,
        _ => PLACE_MAX,
    }
}

/// Whether it may be otherwise in a moment.
pub(crate) fn may_pass(error: &LocalError) -> bool {
    match error {
        LocalError::Connect { source, .. } => matches!(
            source.kind(),
            io::ErrorKind::NotFound
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
        ),
        LocalError::Refused { failure, .. } => failure.class == Class::Leaving,
        // An agent that ends just now, perhaps to start again.
        LocalError::Gone { .. } => true,
        _ => false,
    }
}

pub(crate) fn reach(path: &Path) -> Result<Seqpacket, LocalError> {
    let connect = || {
        let socket = Seqpacket::new()?;
        socket.connect(path)?;
        Ok(socket)
    };
    connect().map_err(|source| {
        let path = path.to_owned();
        LocalError::Connect {
            path,
            source,
            after: Duration::ZERO,
        }
    })
}
