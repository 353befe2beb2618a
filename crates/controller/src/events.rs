//! What a controller that runs says: one line for each event.

use crate::changes::Reason;
use crate::outcome::JobOutcome;
use crate::watch::Change;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An event.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Another controller works.
    Standby {
        /// What that one holds.
        holds: String,
    },
    /// This controller works from now on.
    Leader {
        /// What it holds.
        holds: String,
    },
    /// State cannot be read. Switches keep their roles.
    StoreLost {
        /// Why.
        error: String,
    },
    /// State can be read again.
    StoreBack,
    /// A switch or link is lost, or back.
    Seen {
        /// `switch-down`, `switch-dead`, `switch-up`, `link-down` or `link-up`.
        change: &'static str,
        /// Its name, or those of the two ends of a link.
        names: Vec<String>,
        /// The same in words.
        text: String,
    },
    /// The fleet has changed, and is used.
    Fleet {
        /// Number of its jobs.
        jobs: usize,
    },
    /// The fleet cannot be used. The last good one stays.
    FleetRefused {
        /// Why.
        error: String,
    },
    /// A new plan.
    Plan {
        /// Why it was made.
        reason: String,
        /// Jobs.
        jobs: usize,
        /// Names of the jobs that have another tree, or their first one.
        moved: Vec<String>,
        /// Time to plan.
        ms: f64,
    },
    /// A job is left as it is.
    Waits {
        /// Its name.
        job: String,
        /// Why.
        why: String,
    },
    /// Switches have been changed, and report the plan.
    Changed {
        /// Number of changes.
        changes: usize,
        /// Jobs that changed.
        jobs: Vec<ChangedJob>,
        /// Time from the first event that led to it.
        ms: f64,
    },
    /// Something failed.
    Error {
        /// What.
        error: String,
        /// When it is tried again.
        retry_ms: u64,
    },
    /// A signal ends the controller.
    Ends,
}

/// A job that changed.
#[derive(Clone, Debug, Serialize)]
pub struct ChangedJob {
    /// Its name.
    pub name: String,
    /// How.
    pub reason: Reason,
    /// Why.
    pub why: String,
}

impl ChangedJob {
    /// Those of an outcome that changed.
    #[must_use]
    pub fn of(jobs: Vec<JobOutcome>) -> Vec<Self> {
        let changed = jobs.into_iter().filter(|it| it.reason != Reason::Same);
        let changed = changed.map(|it| Self {
            name: it.name,
            reason: it.reason,
            why: it.why,
        });
        changed.collect()
    }
}

impl From<&Change> for Event {
    fn from(change: &Change) -> Self {
        let (kind, names) = match change {
            Change::SwitchDown { switch, .. } => ("switch-down", vec![switch.clone()]),
            Change::SwitchDead { switch } => ("switch-dead", vec![switch.clone()]),
            Change::SwitchUp { switch } => ("switch-up", vec![switch.clone()]),
            Change::LinkDown { between, .. } => ("link-down", between.to_vec()),
            Change::LinkUp { between } => ("link-up", between.to_vec()),
        };
        Self::Seen {
            change: kind,
            names,
            text: change.to_string(),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standby { holds } => write!(f, "standby: another controller holds {holds}"),
            Self::Leader { holds } => write!(f, "leader: holds {holds}"),
            Self::StoreLost { error } => write!(f, "no changes: {error}"),
            Self::StoreBack => f.write_str("state can be read again"),
            Self::Seen { text, .. } => f.write_str(text),
            Self::Fleet { jobs } => write!(f, "fleet: read again, {jobs} jobs"),
            Self::FleetRefused { error } => {
                write!(f, "fleet: refused, the last good one stays: {error}")
            }
            Self::Plan {
                reason,
                jobs,
                moved,
                ms,
            } => {
                let moved = match &moved[..] {
                    [] => "none".to_owned(),
                    names => names.join(", "),
                };
                write!(
                    f,
                    "plan: {jobs} jobs, other trees: {moved}; {ms:.0} ms; because: {reason}"
                )
            }
            Self::Waits { job, why } => write!(f, "job {job} waits: {why}"),
            Self::Changed { changes, jobs, ms } => {
                let job = |it: &ChangedJob| format!("job {} {}: {}", it.name, it.reason, it.why);
                let jobs: Vec<_> = jobs.iter().map(job).collect();
                write!(
                    f,
                    "switches: {changes} changes made {ms:.0} ms after the event: {}",
                    jobs.join("; ")
                )
            }
            Self::Error { error, retry_ms } => {
                write!(f, "error: {error}; next try in {retry_ms} ms")
            }
            Self::Ends => f.write_str("ends: switches keep their roles"),
        }
    }
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// Since 1970, in milliseconds.
    time_ms: u128,
    #[serde(flatten)]
    event: &'a Event,
}

/// Where events go: standard output.
#[derive(Clone, Copy, Debug)]
pub struct Events {
    /// Whether they are JSON.
    pub is_json: bool,
}

impl Events {
    /// Says what happened. A reader that has gone is no reason to end.
    pub fn say(self, event: &Event) {
        let text = if self.is_json {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let time_ms = now.unwrap_or_default().as_millis();
            // Types of ours, which have no map with other keys than text.
            serde_json::to_string(&Line { time_ms, event }).expect("an event of ours is JSON")
        } else {
            event.to_string().replace('\n', " ")
        };
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}

/// In milliseconds, with fractions.
#[must_use]
pub fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}
