//! A worker's thread, over the kernel's UDP, and how its processes get there.

use super::{CommunicatorConfig, LOOK_EVERY, Service, Turn, Worker, watch};
use crate::daemon::rank::PendingProcess;
use crate::daemon::rina::setting;
use crate::error::AgentError;
use crate::link::LinkError;
use crate::link::loss::losing;
use crate::link::open_link;
use crate::link::udp::Group;
use crate::log::{Level, Log};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tally_local::{Class, Failure};

/// Processes for a worker whose thread runs, until it takes no more.
pub(in crate::daemon) struct Mailbox(Mutex<Option<Vec<PendingProcess>>>);

impl Mailbox {
    pub(in crate::daemon) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Vec::new()))))
    }

    /// Takes a process, or gives it back: the worker takes no more.
    pub(in crate::daemon) fn put(&self, process: PendingProcess) -> Option<PendingProcess> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(processes) => {
                processes.push(process);
                None
            }
            None => Some(process),
        }
    }

    fn take(&self) -> Vec<PendingProcess> {
        let mut processes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        processes.as_mut().map(mem::take).unwrap_or_default()
    }

    fn close(&self) -> Vec<PendingProcess> {
        let mut processes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        processes.take().unwrap_or_default()
    }
}

/// Closes a mailbox however its worker ends.
struct Closing<'a>(&'a Mailbox);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close().into_iter().for_each(PendingProcess::refuse);
    }
}

impl PendingProcess {
    /// Serves the worker that this process is the first of, until all have left, on a thread of its
    /// own.
    pub(in crate::daemon) fn run(self, mailbox: &Mailbox) {
        let (log, name) = (self.task.log, self.task.name.clone());
        let _closing = Closing(mailbox);
        if catch_unwind(AssertUnwindSafe(|| self.serve(mailbox))).is_err() {
            crashed(log, &name);
        }
    }

    fn serve(self, mailbox: &Mailbox) {
        let (communicator, sockets) = match self.communicator().and_then(|it| Ok((it, watch()?))) {
            Ok(opened) => opened,
            Err(error) => return self.fail(&error.into()),
        };
        let mut worker = Worker::new(communicator, sockets, self);
        let (mut looked, mut is_busy) = (Instant::now(), false);
        loop {
            let now = Instant::now();
            if worker.is_incomplete() {
                for process in mailbox.take() {
                    worker.admit(process);
                }
            }
            let look = !is_busy || now.saturating_duration_since(looked) >= LOOK_EVERY;
            if look {
                looked = now;
            }
            let turn = worker.turn(now, look, Service::Alone);
            is_busy = turn == Turn::Busy;
            let turn = if turn == Turn::Idle {
                worker.wait()
            } else {
                turn
            };
            if turn == Turn::Over {
                return;
            }
        }
    }

    /// Its ring, or a link to its switch.
    fn communicator(&self) -> Result<CommunicatorConfig, LinkError> {
        if let Some(ring) = &self.task.ring {
            return Ok(CommunicatorConfig::Ring(ring.clone()));
        }
        if !setting(&self.task).is_none_or(|it| it.sums()) {
            return Ok(CommunicatorConfig::Rina(None));
        }
        let config = &self.task.config;
        let (group, units) = (Some(Group::of(config)), Some(config.units()));
        let link = open_link(&config.transport, config.switch, group, units)?;
        let link = losing(link, self.task.loss);
        Ok(match self.task.rina {
            Some(_) => CommunicatorConfig::Rina(Some(link)),
            None => CommunicatorConfig::Link(link),
        })
    }

    /// There is no session.
    pub(in crate::daemon) fn fail(self, error: &AgentError) {
        self.task.say(Level::Error, error);
        self.pending.accept(self.limits).fail(&Failure::from(error));
    }

    /// Sends it away, as its worker is ending.
    pub(super) fn refuse(self) {
        let text = "the last processes of this host are leaving the job; try again";
        self.pending.refuse(Failure::new(Class::Leaving, text));
    }
}

pub(in crate::daemon) fn crashed(log: Log, name: &str) {
    log.error(format_args!(
        "{name}: its session crashed, a bug of the agent's"
    ));
}
