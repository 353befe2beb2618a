//! What a worker has to send, for the order of the sessions at a NIC ([`crate::nic`]).

use super::{Phase, Worker};
use crate::nic::{Demand, octave};
use tally_wire::Time;

impl Worker {
    /// Notes how many fragments the job will have from its first to its last, if that is known.
    /// Only the order of sessions at this host's NIC depends on it.
    pub const fn expect(&mut self, fragments: Option<u64>) {
        self.total = fragments;
    }

    /// What the session has to send now, for [`NicOrder`](crate::nic::NicOrder); `None`: nothing.
    #[must_use]
    pub fn demand(&self, now: Time) -> Option<Demand> {
        let control = !self.is_closed() && (self.next_control <= now || self.window.has_probes());
        let may_contribute = match self.phase {
            Phase::Running => self.window.has_retransmits() || self.is_open(),
            Phase::Leaving { error: None, .. } => self.is_open(),
            _ => false,
        };
        if !control && !may_contribute && self.asked.is_empty() {
            return None;
        }
        let next = self.window.next();
        let sent = next - self.config.first_fragment;
        let units = u64::from(self.config.units);
        // A job that has more than was expected is one of unknown length.
        let left = self.total.and_then(|total| total.checked_sub(sent));
        let work = match left {
            Some(left @ 1..) => left * units,
            _ => octave(sent * units),
        };
        Some(Demand {
            control,
            priority: self.priority_of(next),
            work,
            job: self.config.job.0,
        })
    }

    /// Whether a fragment is left that the windows allow to send.
    pub(super) fn is_open(&self) -> bool {
        if self.window.next() == self.end || !self.window.may_send() {
            return false;
        }
        let width = u64::from(self.config.window);
        let worth = self.flight.limit(width, self.window.rtt().median());
        self.window.unfinished() < self.congestion.limit().min(worth)
    }

    /// Priority of a fragment that is not sent.
    pub(super) fn priority_of(&self, seq: u64) -> u8 {
        let mut submissions = self.submissions.iter();
        submissions.find(|s| seq < s.end).map_or(0, |s| s.priority)
    }
}
