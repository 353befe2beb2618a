//! How a worker ends, and what its processes, the log and the other workers hear of it.

use super::{LEAVE_WITHIN, Turn, Worker, numbers};
use crate::daemon::communicator::End;
use crate::daemon::failure::{failure_of, set_of};
use crate::log::Level;
use std::time::Instant;
use tally_local::{Class, Failure, Peer};

impl Worker {
    pub(super) fn end(&mut self, now: Instant, end: End) -> Turn {
        for rank in self.ranks.iter().flatten() {
            rank.shared.leave();
        }
        if let Some(communicator) = &self.communicator
            && self.task.log.says(Level::Debug)
        {
            self.task.say(Level::Debug, numbers(&communicator.report()));
        }
        // What processes hear of is not written any more.
        let is_over = match (&mut self.communicator, &end) {
            (None, _) | (_, End::Left | End::Failed(_)) => true,
            (Some(communicator), End::Closed(_) | End::Misbehaved(..) | End::Apart(_)) => {
                communicator.give_up();
                false
            }
            (Some(communicator), End::Stopped) => {
                communicator.interrupt();
                false
            }
        };
        self.notify(&end);
        if is_over {
            return Turn::Over;
        }
        self.leave_by = Some(now + LEAVE_WITHIN);
        Turn::Busy
    }

    /// Says to the processes and the log why it ends.
    fn notify(&mut self, end: &End) {
        let parts = self.task.parts;
        let failure = match end {
            End::Left => {
                for mut peer in self.take_peers() {
                    peer.finished();
                }
                return self.task.say(Level::Info, "left");
            }
            End::Failed(error) => {
                let failure = failure_of(error, parts);
                match parts {
                    1 => self.task.say(Level::Error, error),
                    _ => self.task.say(Level::Error, &failure.text),
                }
                failure
            }
            End::Apart(failure) => {
                self.task.say(Level::Error, &failure.text);
                failure.clone()
            }
            End::Closed(index) => {
                let text = format!("{} ended without leaving the job", self.name_of(*index));
                self.task.say(Level::Error, &text);
                // It hears no more.
                self.take_peer(*index);
                self.failure_of_member(*index, &text)
            }
            End::Misbehaved(index, failure) => {
                let text = match parts {
                    1 => failure.text.clone(),
                    _ => format!("{}: {}", self.name_of(*index), failure.text),
                };
                self.task.say(Level::Error, &text);
                if let Some(mut peer) = self.take_peer(*index) {
                    peer.fail(failure);
                }
                self.failure_of_member(*index, &text)
            }
            End::Stopped => {
                let text =
                    "the agent was stopped; when it is back, start the job again at all ranks";
                Failure::new(Class::Stopped, text)
            }
        };
        for mut peer in self.take_peers() {
            peer.fail(&failure);
        }
    }

    fn take_peer(&mut self, index: usize) -> Option<Peer> {
        self.ranks.get_mut(index)?.as_mut()?.peer.take()
    }

    fn take_peers(&mut self) -> Vec<Peer> {
        let ranks = self.ranks.iter_mut().flatten();
        ranks.filter_map(|it| it.peer.take()).collect()
    }

    /// The process of the rank at `index`, as the log and the others of its host know it.
    fn name_of(&self, index: usize) -> String {
        match self.ranks.get(index) {
            Some(Some(it)) if self.task.parts > 1 => {
                format!("rank {} (process {} of this host)", it.rank, it.pid)
            }
            _ => "the process".into(),
        }
    }

    /// What the others of its host hear of the rank at `index`.
    fn failure_of_member(&self, index: usize, text: &str) -> Failure {
        Failure {
            class: Class::Member,
            ranks: set_of(&[self.task.first + index as u16]),
            text: format!(
                "{text}; see what that one's log says, and start the job again at all ranks"
            ),
        }
    }
}
