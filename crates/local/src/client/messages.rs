//! Messages to and from the agent, and the errors that end the connection.

use super::Client;
use crate::collective::{Awaited, Hello};
use crate::error::{Class, Failure, LocalError};
use crate::message::{FromAgent, FromProcess, VERSION};
use crate::socket;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

impl Client {
    /// Sends a message, waiting for room if the agent is behind.
    pub(super) fn say(
        &mut self,
        message: &FromProcess,
        fd: Option<OwnedFd>,
    ) -> Result<(), LocalError> {
        message.emit(&mut self.out);
        let deadline = Instant::now() + self.timeout;
        loop {
            match self.socket.send(&self.out, fd.as_ref().map(AsFd::as_fd)) {
                Ok(()) => return Ok(()),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Err(why) if is_end(&why) => {
                    // Its last words say why.
                    while self.take()? {}
                    return Err(self.gone());
                }
                Err(why) => return Err(LocalError::system("sending to the agent", why)),
            }
            while self.take()? {}
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.late("for the agent to listen", self.timeout));
            }
            self.pause(true, Some(left))?;
        }
    }

    /// Takes messages until `done`.
    pub(super) fn until(
        &mut self,
        what: &str,
        most: Option<Duration>,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), LocalError> {
        let deadline = most.map(|most| Instant::now() + most);
        loop {
            if done(self) {
                return Ok(());
            }
            if self.take()? {
                continue;
            }
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(self.late(what, most.unwrap_or_default()));
            }
            self.pause(false, left)?;
        }
    }

    pub(super) fn pause(&self, to_send: bool, most: Option<Duration>) -> Result<(), LocalError> {
        socket::wait(&[(self.socket.as_fd(), to_send)], most)
            .map(drop)
            .map_err(|why| LocalError::system("waiting for the agent", why))
    }

    /// Takes one message from the agent, if there is one.
    pub(super) fn take(&mut self) -> Result<bool, LocalError> {
        self.check()?;
        let got = match self.socket.receive_bytes(&mut self.room) {
            Ok(got) if got.bytes > 0 => got,
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // The agent had not read all when it ended; what it said before comes after this.
            Err(why) if why.kind() == io::ErrorKind::ConnectionReset => return Ok(true),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Ok(_) | Err(_) => {
                self.is_gone = true;
                return Err(self.gone());
            }
        };
        let message = FromAgent::parse(&self.room[..got.bytes]).filter(|_| !got.cut_off);
        let Some(message) = message else {
            return Err(self.protocol("a message that is none"));
        };
        let welcomed = self.submitted_max > 0;
        match message {
            FromAgent::Welcome {
                version,
                submitted,
                memory_bytes,
                ..
            } if !welcomed => {
                self.memory_bytes_max = memory_bytes;
                if version != VERSION {
                    self.is_gone = true;
                    let text = format!(
                        "it speaks version {version} of the local interface, and this process version {VERSION}: \
                         install both from one release of Tally"
                    );
                    return Err(self.refused(Failure::new(Class::Version, text)));
                }
                if submitted == 0 {
                    return Err(self.protocol("a welcome that lets nothing be submitted"));
                }
                self.submitted_max = submitted as usize;
            }
            FromAgent::Refused(failure) if !welcomed => {
                self.is_gone = true;
                return Err(self.refused(failure));
            }
            FromAgent::Mapped { id } if welcomed => self.answer = Some((id, Ok(()))),
            FromAgent::Unmapped { id, class, text } if welcomed => {
                self.answer = Some((id, Err(Failure::new(class, text))));
            }
            FromAgent::Done { ticket } => {
                if self.under_way.remove(&ticket).is_none() {
                    return Err(self.protocol("a collective done that is not under way"));
                }
                self.ready.push_back(ticket);
            }
            FromAgent::Failed(failure) => {
                self.failure = Some(failure);
                self.check()?;
            }
            FromAgent::Finished if welcomed => self.is_finished = true,
            // A late answer has no waiter.
            FromAgent::Awaited { question, awaited } if question < self.next_question => {
                if let Some(answer) = self.questions.get_mut(&question) {
                    *answer = Some(awaited);
                }
            }
            _ => return Err(self.protocol("a message out of place")),
        }
        Ok(true)
    }

    /// What has ended, stays so.
    pub(super) fn check(&self) -> Result<(), LocalError> {
        let Hello { job, rank, .. } = self.hello;
        match &self.failure {
            Some(failure) => Err(LocalError::Failed {
                job,
                rank,
                failure: failure.clone(),
            }),
            None if self.is_gone => Err(self.gone()),
            None => Ok(()),
        }
    }

    pub(super) fn gone(&self) -> LocalError {
        let Hello { job, rank, .. } = self.hello;
        let path = self.path.clone();
        LocalError::Gone { path, job, rank }
    }

    pub(super) fn late(&self, what: &str, after: Duration) -> LocalError {
        let Hello { job, rank, .. } = self.hello;
        LocalError::Timeout {
            job,
            rank,
            what: what.to_owned(),
            after,
            awaited: Awaited::default(),
        }
    }

    pub(super) fn refused(&self, failure: Failure) -> LocalError {
        let Hello { job, rank, .. } = self.hello;
        LocalError::Refused {
            path: self.path.clone(),
            job,
            rank,
            failure,
        }
    }

    pub(super) fn protocol(&mut self, what: &str) -> LocalError {
        self.is_gone = true;
        let Hello { job, rank, .. } = self.hello;
        LocalError::Protocol {
            path: self.path.clone(),
            job,
            rank,
            what: what.to_owned(),
        }
    }
}

/// Whether an error of the socket means that the agent has closed it.
pub(super) fn is_end(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}
