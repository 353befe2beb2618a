//! What a worker waits for: the errors of its timeouts, and what they would be now.

use super::{Phase, Worker};
use crate::error::{Ranks, WorkerError};
use core::time::Duration;
use tally_wire::Time;

/// Without a word for this long while running, the switch is called silent: three heartbeats had no
/// answer.
const SILENT: Duration = Duration::from_millis(1500);

impl Worker {
    /// What the oldest fragment without a result waits for now, as the error that a timeout at
    /// `now` would make of it; `None` if the worker waits for nothing. The times are those waited
    /// so far.
    #[must_use]
    pub fn stall(&self, now: Time) -> Option<WorkerError> {
        match self.phase {
            Phase::Joining => Some(self.not_started(tenths(now.since(self.started)))),
            Phase::Running if !self.delivered => {
                let silent = now.since(self.last_heard);
                if silent >= SILENT {
                    let (after, hint) = (tenths(silent), self.hint);
                    return Some(WorkerError::SwitchSilent { after, hint });
                }
                Some(self.stalled(tenths(now.since(self.last_progress))))
            }
            _ => None,
        }
    }

    /// The error of a worker that has had no result for `after`, if the switch is silent. It may
    /// have answered a heartbeat since its last result.
    pub(super) fn switch_silent(&self, now: Time, after: Duration) -> Option<WorkerError> {
        let (silent, hint) = (now.since(self.last_heard), self.hint);
        if silent < SILENT.min(after) {
            return None;
        }
        let after = if silent < after {
            tenths(silent)
        } else {
            after
        };
        Some(WorkerError::SwitchSilent { after, hint })
    }

    pub(super) fn stalled(&self, after: Duration) -> WorkerError {
        WorkerError::Stalled {
            after,
            fragment: self.window.base(),
            awaited: self.awaited(),
            missing_ps: self.members().and_then(|it| it.missing_ps),
        }
    }

    pub(super) fn not_started(&self, after: Duration) -> WorkerError {
        match self.members() {
            None => WorkerError::NoAnswer {
                after,
                hint: self.hint,
            },
            Some(members) => {
                // Not those that came and gave up waiting, as we do now, unless no other is to
                // blame.
                let never = members.missing & !self.came;
                let others = never != 0 || members.missing_ps.is_some() || members.range.is_some();
                WorkerError::NotStarted {
                    after,
                    missing: Ranks(if others { never } else { members.missing }),
                    range: members.range,
                    missing_ps: members.missing_ps,
                    hint: self.hint,
                }
            }
        }
    }
}

/// A time for people, in tenths of a second.
fn tenths(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64 / 100 * 100)
}
