//! Communicator: sums the collectives of one worker, in a job of Tally's protocol ([`Session`]), in
//! a ring of RoCEv2 hosts ([`RingSession`](super::ring::RingSession)), or in a ring of racks and
//! hosts ([`RinaSession`](super::rina::RinaSession)).

use super::failure::cause;
use super::rank::InRegion;
use super::status::words;
use crate::error::AgentError;
#[cfg(feature = "dpdk")]
use crate::session::Sent;
use crate::session::{
    Collective, Done, Parts, Refused, Session, SessionReport, SessionState, Ticket,
};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tally_endpoint::Hint;
#[cfg(feature = "dpdk")]
use tally_endpoint::nic::Demand;
use tally_local::{Awaited, Failure};
use tally_wire::Key;

/// Why a worker is served no longer.
pub(super) enum End {
    /// All processes wanted to leave, and have.
    Left,
    /// Its session has failed.
    Failed(AgentError),
    /// A process has ended without a word.
    Closed(usize),
    /// A process does not keep to the interface.
    Misbehaved(usize, Failure),
    /// The ranks of this host do not come together.
    Apart(Failure),
    /// The agent is to stop.
    Stopped,
}

/// Sums the collectives of one worker. Its owner drives it, as it drives a [`Session`].
pub(super) trait Communicator {
    /// Takes a collective on the memory of each rank of this host; that of the root is first.
    fn submit(&mut self, collective: Collective, parts: Vec<InRegion>) -> Result<Ticket, Refused>;
    /// Does what there is to do; says whether there was something.
    fn turn(&mut self) -> Result<bool, End>;
    /// As `turn`, but sends nothing over a link that others share.
    #[cfg(feature = "dpdk")]
    fn receive(&mut self) -> Result<bool, End> {
        self.turn()
    }
    /// What it has to send now over such a link; `None`: nothing.
    #[cfg(feature = "dpdk")]
    fn demand(&self) -> Option<Demand> {
        None
    }
    /// Sends up to `most` datagrams over such a link.
    #[cfg(feature = "dpdk")]
    fn send(&mut self, most: usize) -> Result<Sent, End> {
        let _ = most;
        Ok(Sent {
            frames: 0,
            has_room: true,
        })
    }
    /// Waits until there may be something to do, for `most` at the longest, or until `wake` can be
    /// read.
    fn wait_or(&mut self, most: Duration, wake: BorrowedFd<'_>) -> Result<(), End>;
    /// How long there is nothing to do on account of time, up to `most`.
    #[cfg(feature = "dpdk")]
    fn idle_for(&self, most: Duration) -> Duration;
    /// The next collective that is done.
    fn done(&mut self) -> Option<Done>;
    /// Leaves once all that was submitted is done.
    fn finish(&mut self);
    /// Leaves now: the agent is to stop.
    fn interrupt(&mut self);
    /// Leaves now: a process cannot continue.
    fn give_up(&mut self);
    /// Has another key.
    fn set_key(&mut self, key: Key);
    /// What it is doing.
    fn state(&self) -> SessionState;
    /// The same in words, of a worker that is `parts` ranks.
    fn words(&self, parts: u16) -> String;
    /// What the switch refused last.
    fn hint(&self) -> Option<Hint>;
    /// What its oldest collective waits for, of a worker that is `parts` ranks.
    fn awaited(&self, parts: u16) -> Option<Awaited>;
    /// Counters.
    fn report(&self) -> SessionReport;

    /// Whether all that was submitted is done, and it was left.
    fn is_finished(&self) -> bool {
        self.state() == SessionState::Finished
    }
}

impl Communicator for Session {
    fn submit(&mut self, collective: Collective, parts: Vec<InRegion>) -> Result<Ticket, Refused> {
        Self::submit(self, collective, Box::new(Parts::new(parts)))
    }

    fn turn(&mut self) -> Result<bool, End> {
        Self::turn(self).map_err(End::Failed)
    }

    #[cfg(feature = "dpdk")]
    fn receive(&mut self) -> Result<bool, End> {
        Self::receive(self).map_err(End::Failed)
    }

    #[cfg(feature = "dpdk")]
    fn demand(&self) -> Option<Demand> {
        Self::demand(self)
    }

    #[cfg(feature = "dpdk")]
    fn send(&mut self, most: usize) -> Result<Sent, End> {
        Self::send(self, most).map_err(End::Failed)
    }

    fn wait_or(&mut self, most: Duration, wake: BorrowedFd<'_>) -> Result<(), End> {
        Self::wait_or(self, most, Some(wake)).map_err(End::Failed)
    }

    #[cfg(feature = "dpdk")]
    fn idle_for(&self, most: Duration) -> Duration {
        Self::idle_for(self, most)
    }

    fn done(&mut self) -> Option<Done> {
        Self::done(self)
    }

    fn finish(&mut self) {
        Self::finish(self);
    }

    fn interrupt(&mut self) {
        Self::interrupt(self);
    }

    fn give_up(&mut self) {
        Self::give_up(self);
    }

    fn set_key(&mut self, key: Key) {
        Self::set_key(self, key);
    }

    fn state(&self) -> SessionState {
        Self::state(self)
    }

    fn words(&self, parts: u16) -> String {
        words(Self::state(self), parts)
    }

    fn hint(&self) -> Option<Hint> {
        Self::hint(self)
    }

    fn awaited(&self, parts: u16) -> Option<Awaited> {
        let stall = self.stall()?;
        Some(cause(Some(stall), parts))
    }

    fn report(&self) -> SessionReport {
        Self::report(self)
    }
}
