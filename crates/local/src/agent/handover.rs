//! A listener that goes from one agent to another.

use super::Listener;
use crate::error::LocalError;
use crate::lock;
use crate::socket::Seqpacket;
use crate::succession::Succession;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// What accompanies the listening socket on its way to a successor, and what does the lock.
const SOCKET: &str = "socket";
const LOCK: &str = "lock";

impl Listener {
    /// Sends the listening socket and its lock to the agent that will take this one's place. Both
    /// listen until one is dropped or [resigns](Self::resign).
    ///
    /// # Errors
    /// If the other has ended.
    pub fn hand_over(&self, to: &Succession) -> Result<(), LocalError> {
        to.notify(SOCKET, Some(self.socket.as_fd()))?;
        to.notify(LOCK, Some(self.lock_file.as_fd()))
    }

    /// Listens at `path` in place of the agent that [hands it over](Self::hand_over) within `most`.
    /// Until it [signs](Self::sign), the other may continue.
    ///
    /// # Errors
    /// If it does not, or the socket is not there any more.
    pub fn inherit(path: &Path, from: &Succession, most: Duration) -> Result<Self, LocalError> {
        let problem = |problem: String| LocalError::Listen {
            path: path.to_owned(),
            problem,
        };
        let expect = |what: &str| match from.receive(most)? {
            (text, Some(descriptor)) if text == what => Ok(descriptor),
            (text, _) => Err(problem(format!(
                "the agent before gave {text:?} in place of its {what}; run one release of Tally, or restart the agent"
            ))),
        };
        let (socket, lock) = (expect(SOCKET)?, File::from(expect(LOCK)?));
        let found = fs::symlink_metadata(path).map_err(|why| problem(why.to_string()))?;
        Ok(Self {
            socket: Seqpacket::of(socket),
            path: path.to_owned(),
            lock_file: lock,
            file: (found.dev(), found.ino()),
            silent: VecDeque::new(),
            has_resigned: false,
            owns_file: false,
        })
    }

    /// Accepts no new connections, which are another agent's from now on. Those accepted before
    /// still come from [`next`](Self::next).
    pub fn resign(&mut self) {
        self.has_resigned = true;
        self.owns_file = false;
    }

    /// The process that serves the socket is this one from now on: the socket file goes with it,
    /// and those who find its lock held read its number.
    ///
    /// # Errors
    /// If the lock cannot be written.
    pub fn sign(&mut self) -> Result<(), LocalError> {
        self.owns_file = true;
        lock::sign(&mut self.lock_file).map_err(|why| LocalError::Listen {
            path: self.path.clone(),
            problem: why.to_string(),
        })
    }
}
