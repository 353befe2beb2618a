//! The bus from control threads to the data cores: one way to command all of them, and to wait.

use crate::messages::CoreCommand;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::time::{Duration, Instant};
use tally_engine::Reply;

/// The data cores, for threads that command them.
#[derive(Clone)]
pub struct Bus(Vec<Sender<CoreCommand>>);

/// Answers under way, one of each data core, in their order.
pub struct Answers<T>(Vec<Receiver<T>>);

impl Bus {
    /// A bus to these cores.
    #[must_use]
    pub fn new(cores: Vec<Sender<CoreCommand>>) -> Self {
        Self(cores)
    }

    /// Gives a command to each core; the last one first, so that all others have it by then. A core
    /// that has ended receives nothing.
    pub fn send<C: Into<CoreCommand>>(&self, command: impl Fn() -> C) {
        for core in self.0.iter().rev() {
            let _ = core.send(command().into());
        }
    }

    /// Gives a command to the first core.
    pub fn send_first(&self, command: impl Into<CoreCommand>) {
        if let Some(core) = self.0.first() {
            let _ = core.send(command.into());
        }
    }

    /// Gives a command that has an answer to one core; the answer, or `None` if that core has not
    /// answered by then.
    pub fn ask_one<T, C>(
        &self,
        core: usize,
        timeout: Duration,
        command: impl FnOnce(Reply<T>) -> C,
    ) -> Option<T>
    where
        T: Send + 'static,
        C: Into<CoreCommand>,
    {
        let (answer, answered) = bounded(1);
        let reply = Box::new(move |value| {
            // The asker may have stopped waiting.
            let _ = answer.send(value);
        });
        self.0.get(core)?.send(command(reply).into()).ok()?;
        answered.recv_timeout(timeout).ok()
    }

    /// Gives a command that has an answer to each core.
    #[must_use]
    pub fn ask<T, C>(&self, command: impl Fn(Reply<T>) -> C) -> Answers<T>
    where
        T: Send + 'static,
        C: Into<CoreCommand>,
    {
        let ask = |core: &Sender<CoreCommand>| {
            let (answer, answered) = bounded(1);
            let reply = Box::new(move |value| {
                // The asker may have stopped waiting.
                let _ = answer.send(value);
            });
            // A core that has ended drops the command, and the answer never comes.
            let _ = core.send(command(reply).into());
            answered
        };
        Answers(self.0.iter().map(ask).collect())
    }
}

impl<T> Answers<T> {
    /// Waits for all; each answer, or `None` of a core that has not answered by then.
    pub fn wait(self, timeout: Duration) -> impl Iterator<Item = Option<T>> {
        self.wait_until(Instant::now() + timeout)
    }

    /// As [`wait`](Self::wait).
    pub fn wait_until(self, deadline: Instant) -> impl Iterator<Item = Option<T>> {
        let answers = self.0.into_iter();
        answers.map(move |answer| answer.recv_deadline(deadline).ok())
    }

    /// The answers that are there.
    pub fn ready(self) -> impl Iterator<Item = Option<T>> {
        self.0.into_iter().map(|answer| answer.try_recv().ok())
    }
}
