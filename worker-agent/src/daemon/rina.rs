//! The collectives of a worker, summed in a ring of racks and hosts (Rina).

use super::communicator::{Communicator, End};
use super::failure::failure_in_rack;
use super::rank::{InRegion, Task};
use crate::error::AgentError;
use crate::link::Link;
use crate::rina::{Rina, RinaError, Setting};
use crate::session::{Collective, Done, Parts, Refused, SessionReport, SessionState, Ticket};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use tally_endpoint::Hint;
use tally_local::{Awaited, Class, Failure};
use tally_wire::Key;

/// What the ring of a task is opened from, if it has one.
pub(super) fn setting(task: &Task) -> Option<Setting<'_>> {
    task.rina.as_ref().map(|rina| Setting {
        config: &task.config,
        rina,
        parts: task.parts,
        log: task.log,
        name: &task.name,
    })
}

pub(super) struct RinaSession {
    ring: Rina,
    /// The first host of its rack, and ranks of each host.
    rack: (u16, u16),
}

impl RinaSession {
    /// Begins to join the ring.
    pub(super) fn open(task: &Task, switch: Option<Box<dyn Link>>) -> Result<Self, AgentError> {
        let Some(setting) = setting(task) else {
            unreachable!("a task with racks");
        };
        let rack = (setting.first_host(), task.parts);
        let ring = Rina::open(&setting, switch)?;
        Ok(Self { ring, rack })
    }

    /// Ends the ring, and has the others hear why.
    fn fail(&mut self, error: RinaError) -> End {
        let failure = match error {
            RinaError::Ring(failure) => failure,
            RinaError::Rack(error) => {
                let (first, parts) = self.rack;
                failure_in_rack(&error, first, parts)
            }
        };
        self.ring.close(Some(&failure));
        End::Apart(failure)
    }

    fn leave(&mut self, why: &str) {
        let (words, own) = self.ring.own_words();
        let text = format!("{words} left the job: {why}; start the job again at all ranks");
        let (class, ranks) = (Class::Member, own.set());
        self.ring.close(Some(&Failure { class, ranks, text }));
    }
}

impl Communicator for RinaSession {
    fn submit(&mut self, collective: Collective, parts: Vec<InRegion>) -> Result<Ticket, Refused> {
        self.ring.submit(collective, Box::new(Parts::new(parts)))
    }

    fn turn(&mut self) -> Result<bool, End> {
        self.ring.turn().map_err(|error| self.fail(error))
    }

    fn wait_or(&mut self, most: Duration, wake: BorrowedFd<'_>) -> Result<(), End> {
        let waited = self.ring.wait_or(most, wake);
        waited.map_err(|error| self.fail(error))
    }

    #[cfg(feature = "dpdk")]
    fn idle_for(&self, most: Duration) -> Duration {
        most
    }

    fn done(&mut self) -> Option<Done> {
        self.ring.done()
    }

    fn finish(&mut self) {
        self.ring.finish();
    }

    fn interrupt(&mut self) {
        self.leave("its agent was stopped");
    }

    fn give_up(&mut self) {
        self.leave("one of its processes has ended or has failed, see its agent's log");
    }

    fn set_key(&mut self, key: Key) {
        self.ring.set_key(key);
    }

    fn state(&self) -> SessionState {
        self.ring.state()
    }

    fn words(&self, _: u16) -> String {
        match self.ring.state() {
            SessionState::Joining(_) => "waiting for the other hosts of the ring".into(),
            SessionState::Running { .. } => {
                format!("running in a ring of {} members", self.ring.members())
            }
            SessionState::Finished => "left".into(),
            SessionState::Failed => "failed".into(),
        }
    }

    fn hint(&self) -> Option<Hint> {
        None
    }

    fn awaited(&self, _: u16) -> Option<Awaited> {
        let Failure { ranks, text, .. } = self.ring.awaited(Instant::now())?;
        Some(Awaited { ranks, text })
    }

    fn report(&self) -> SessionReport {
        self.ring.report()
    }
}
