//! What others ask of the control thread: changes, a reload, a report.
//!
//! All ways in (SIGHUP, the control socket) end here, in one bounded channel, so changes come one
//! after the other. Each change that changes anything has a version, one above the last. A change
//! twice is no change: it answers with the version that there is.

use super::change::Change;
use super::error::{ChangeError, TIMEOUT, WAITING_MAX};
use crate::ports::keeper::PortChange;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::path::PathBuf;
use tally_engine::Reply;
use tally_schema::switch::config::Config;
use tally_schema::switch::report::Report;

/// What the control thread is asked.
pub enum Request {
    /// Make this change.
    Apply {
        /// Only if this is the version that runs.
        expected: Option<u64>,
        /// Which.
        change: Change,
        /// The version that it made.
        reply: Reply<Result<Applied, ChangeError>>,
    },
    /// Read the configuration file again, and apply what changed in it.
    Reload {
        /// Only if this is the version that runs once the file has been read.
        expected: Option<u64>,
        /// The version that it made.
        reply: Reply<Result<Applied, ChangeError>>,
    },
    /// Say what the switch did.
    Report(Reply<Report>),
    /// Say what it runs with.
    Config(Reply<Running>),
    /// The file has been read, for an earlier [`Reload`](Self::Reload).
    Loaded {
        /// What it says, or why it cannot be used.
        file: Result<Box<Config>, String>,
        /// The version that it is for.
        expected: Option<u64>,
        /// The one that asked.
        reply: Reply<Result<Applied, ChangeError>>,
    },
    /// The ports' thread has made a change, or has not, for an earlier [`Apply`](Self::Apply).
    PortsChanged {
        /// The change.
        change: PortChange,
        /// Whether anything is different, or why it was not made.
        done: Result<bool, String>,
        /// What is to be applied then: the rest of a file.
        file: Option<Box<Config>>,
        /// The one that asked.
        reply: Reply<Result<Applied, ChangeError>>,
    },
}

/// What a switch runs with. It has keys: they are not to be shown.
#[derive(Clone, Debug)]
pub struct Running {
    /// Its version.
    pub version: u64,
    /// Everything; memory is as it was measured at the start.
    pub config: Config,
    /// Where it was read.
    pub path: Option<PathBuf>,
}

/// What a change did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The version that runs now.
    pub version: u64,
    /// What is different now, one line each; none if all was so before.
    pub changed: Vec<String>,
    /// What in the file needs a restart, one line each.
    pub restart: Vec<String>,
}

/// The way to the control thread.
#[derive(Clone)]
pub struct ControlHandle(Sender<Request>);

/// A way to the control thread, and its end there.
#[must_use]
pub fn requests() -> (ControlHandle, Receiver<Request>) {
    let (send, receive) = bounded(WAITING_MAX);
    (ControlHandle(send), receive)
}

impl ControlHandle {
    /// Asks, without waiting.
    ///
    /// # Errors
    /// [`ChangeError::Busy`] or [`ChangeError::Stopped`].
    pub fn send(&self, request: Request) -> Result<(), ChangeError> {
        self.0.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => ChangeError::Busy,
            TrySendError::Disconnected(_) => ChangeError::Stopped,
        })
    }

    /// Asks, as soon as there is room.
    pub(super) fn deliver(&self, request: Request) {
        // A switch that stops drops it.
        let _ = self.0.send(request);
    }

    /// Asks, and waits for the answer. Not for threads that others wait for.
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`ChangeError::Timeout`].
    fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, ChangeError> {
        let (answer, answered) = bounded(1);
        self.send(request(Box::new(move |value| {
            let _ = answer.send(value);
        })))?;
        answered.recv_timeout(TIMEOUT).map_err(|error| match error {
            crossbeam_channel::RecvTimeoutError::Timeout => ChangeError::Timeout,
            crossbeam_channel::RecvTimeoutError::Disconnected => ChangeError::Stopped,
        })
    }

    /// Makes a change, if the version that runs is the expected one.
    ///
    /// # Errors
    /// Why not; nothing has changed.
    pub fn apply(&self, expected: Option<u64>, change: Change) -> Result<Applied, ChangeError> {
        self.ask(|reply| Request::Apply {
            expected,
            change,
            reply,
        })?
    }

    /// Has the switch read its file again.
    ///
    /// # Errors
    /// Why not; nothing has changed.
    pub fn reload(&self) -> Result<Applied, ChangeError> {
        self.ask(|reply| Request::Reload {
            expected: None,
            reply,
        })?
    }

    /// What the switch did.
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`ChangeError::Timeout`].
    pub fn report(&self) -> Result<Report, ChangeError> {
        self.ask(Request::Report)
    }

    /// What the switch runs with.
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`ChangeError::Timeout`].
    pub fn config(&self) -> Result<Running, ChangeError> {
        self.ask(Request::Config)
    }
}
