//! What failed, and when it is tried again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longest time between two tries of what fails.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// Backoff of one thing that fails.
#[derive(Clone, Debug, Default)]
pub(super) struct Retry {
    error: String,
    delay: Duration,
    at: Option<Instant>,
}

impl Retry {
    pub(super) fn is_due(&self) -> bool {
        self.at.is_none_or(|at| Instant::now() >= at)
    }

    /// The time until the next try: longer each time for the same error.
    pub(super) fn fail(&mut self, error: &str, interval: Duration) -> Duration {
        self.delay = if self.error == error {
            (self.delay * 2).min(BACK_OFF_MAX)
        } else {
            interval.min(BACK_OFF_MAX)
        };
        error.clone_into(&mut self.error);
        self.at = Some(Instant::now() + self.delay);
        self.delay
    }

    /// The next try is due: something has changed.
    pub(super) const fn hurry(&mut self) {
        self.at = None;
    }
}

/// Jobs of which a switch refused a change, by name: each has a backoff of its own.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<String, Retry>);

impl Refused {
    /// Whether nothing is tried for a job now.
    pub(super) fn waits(&self, job: &str) -> bool {
        self.0.get(job).is_some_and(|it| !it.is_due())
    }

    /// Why a job has not what the plan has for it.
    pub(super) fn why(&self, job: &str) -> Option<&str> {
        self.0.get(job).map(|it| it.error.as_str())
    }

    /// A change of a job was refused. The time until the next try.
    pub(super) fn fail(&mut self, job: &str, error: &str, interval: Duration) -> Duration {
        let retry = self.0.entry(job.to_owned()).or_default();
        retry.fail(error, interval)
    }

    /// All changes of a job were made.
    pub(super) fn done(&mut self, job: &str) {
        self.0.remove(job);
    }

    /// The next try of each is due.
    pub(super) fn hurry(&mut self) {
        self.0.values_mut().for_each(Retry::hurry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_same_error_is_tried_later_each_time_and_another_one_soon() {
        let mut retry = Retry::default();
        assert!(retry.is_due());
        let delays: Vec<_> = (0..7).map(|_| retry.fail("full", 250 * MS)).collect();
        assert_eq!(delays[..4], [250 * MS, 500 * MS, 1000 * MS, 2000 * MS]);
        assert_eq!(delays[5..], [BACK_OFF_MAX; 2]);
        assert!(!retry.is_due());
        assert_eq!(retry.fail("another", 250 * MS), 250 * MS);
        retry.hurry();
        assert!(retry.is_due());
    }

    #[test]
    fn each_job_has_its_own_backoff() {
        let mut refused = Refused::default();
        for _ in 0..4 {
            refused.fail("a", "full", 250 * MS);
        }
        assert_eq!(refused.fail("b", "full", 250 * MS), 250 * MS);
        assert!(refused.waits("a") && refused.waits("b") && !refused.waits("c"));
        assert_eq!((refused.why("a"), refused.why("c")), (Some("full"), None));
        refused.done("a");
        assert!(!refused.waits("a") && refused.waits("b"));
        refused.hurry();
        assert!(!refused.waits("b"));
    }
}
