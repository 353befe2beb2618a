//! What a parameter server has to send, for the order of the sessions at a NIC ([`crate::nic`]).

use super::Ps;
use crate::nic::{Demand, octave};
use tally_wire::Time;

impl Ps {
    /// What the session has to send now, for [`NicOrder`](crate::nic::NicOrder); `None`: nothing.
    /// REMIND and NACK count as control frames: a fragment waits for their answers.
    #[must_use]
    pub fn demand(&self, now: Time) -> Option<Demand> {
        if self.is_closed() {
            return None;
        }
        let table = self.table.as_ref();
        let first = self.queue.front();
        let next = first.and_then(|&slot| table?.entries.get(slot));
        let is_due = self.next_control <= now;
        if next.is_none() && !is_due {
            return None;
        }
        let units = self.accepted.as_ref().map_or(1, |a| u64::from(a.units));
        Some(Demand {
            control: is_due || next.is_some_and(|it| it.pending.remind || it.pending.nack != 0),
            priority: next.map_or(0, |it| it.priority),
            work: octave(self.stats.results * units),
            job: self.control.job.0,
        })
    }
}
