//! Events of the daemons: said with `tracing`, limited, kept, and written by a thread of its own.
//!
//! [`start`] puts a subscriber below `tracing`'s macros. An event's `kind` names what it is; other
//! fields name the objects: `port`, `mac`, `ip`, `job`, `rank`, `reason`. From the macro an event
//! goes through the limits (`limiter.rs`) to the ring of the last [`KEPT`] ([`recent`]) and to the
//! queue of the writer (`queue.rs`), which makes text, JSON or journal fields of it (`writer.rs`).
//!
//! ```
//! use tally_telemetry::{Program, tracing};
//!
//! tally_telemetry::start(Program { name: "example", ..Program::default() });
//! let (job, port) = (7, "p0");
//! tracing::warn!(kind = "refused", reason = "bad-key", job, port, "job {job}: JOIN refused");
//! let last = tally_telemetry::recent().pop().unwrap();
//! assert_eq!(last.fields["port"], "p0");
//! assert_eq!(last.text, "job 7: JOIN refused");
//! ```
//!
//! # The catches
//!
//! * Saying an event never waits for a reader, but takes two locks and allocates. A data core says
//!   none: what happens to frames is counted, and the control thread tells of the growth.
//! * Before [`start`] nothing is said. Events below the level are not even kept.
//! * Events of libraries (`hyper`, `h2`) are those from warnings on.

mod collector;
mod exposition;
pub mod http;
mod journal;
mod limiter;
mod log;
mod queue;
mod ring;
mod writer;

pub use log::{Log, VARIABLE};
pub use ring::KEPT;
pub use tally_schema::event::{Event, Level, LogFormat, LogSection};
pub use tracing;

use std::sync::atomic::Ordering;
use std::time::Duration;
use tally_engine::metrics::{Kind, Metric};
use tally_schema::metrics::{Families, Family, state};

/// Which program speaks, and how.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name, in front of lines of text.
    pub name: &'static str,
    /// How events are written.
    pub format: LogFormat,
    /// The least grave events that are written and kept.
    pub level: Level,
}

impl Default for Program {
    fn default() -> Self {
        Self {
            name: "tally",
            format: LogFormat::Auto,
            level: Level::Info,
        }
    }
}

/// Starts the log of this process. Of several calls the first counts; later ones change format and
/// level.
pub fn start(program: Program) {
    collector::start(program);
}

/// Changes format and level to what the configuration says. A level of the environment stays.
pub fn configure(section: LogSection) {
    let hub = collector::hub();
    hub.set_format(section.format);
    let is_said = std::env::var_os(VARIABLE).is_some_and(|level| !level.is_empty());
    if let (Some(level), false) = (section.level, is_said) {
        hub.set_level(level);
    }
}

/// Says a line of `Info` that has no field but its `kind`.
pub fn line(kind: &'static str, text: impl Into<String>) {
    let text: String = text.into();
    tracing::info!(kind, "{text}");
}

/// The last events, from the oldest to the latest.
#[must_use]
pub fn recent() -> Vec<Event> {
    collector::hub().recent()
}

/// Events that were not written, because the log was not read.
#[must_use]
pub fn dropped() -> u64 {
    collector::hub().queue.dropped_ever()
}

/// Has metrics count events of these kinds from 0, so that the first one is an increase.
pub fn declare(kinds: &[(&str, Level)]) {
    collector::hub().declare(kinds);
}

/// Events left out by the limits.
#[must_use]
pub fn left_out() -> u64 {
    collector::hub().left_out.load(Ordering::Relaxed)
}

const EVENTS: Metric = Metric {
    kind: Kind::Counter,
    ..state(
        "log_events",
        "",
        "Events that the program said, by kind, with those that the limits left out.",
        &["kind", "level"],
        None,
    )
};
const LEFT_OUT: Metric = Metric {
    kind: Kind::Counter,
    ..state(
        "log_limited_events",
        "",
        "Events that the limits of their kind left out.",
        &[],
        None,
    )
};
const DROPPED: Metric = Metric {
    kind: Kind::Counter,
    ..state(
        "log_dropped_events",
        "",
        "Events that were not written because the log was not read.",
        &[],
        None,
    )
};

/// Families of every daemon, for the documentation.
pub const FAMILIES: [Metric; 3] = [EVENTS, LEFT_OUT, DROPPED];

/// What the log counts.
#[must_use]
pub fn families() -> Vec<Family> {
    let mut families = Families::default();
    for ((kind, level), n) in collector::hub().by_kind() {
        families.one(&EVENTS, &[kind, level.to_string()], n);
    }
    families.one(&LEFT_OUT, &[], left_out());
    families.one(&DROPPED, &[], dropped());
    families.into_vec()
}

/// Waits until all events are written, but no longer than `most`: for the end of the process.
pub fn flush(most: Duration) {
    collector::hub().queue.flush(most);
}

/// Says panics in the log, whose other way would be to wait for a full pipe.
pub fn take_panics() {
    std::panic::set_hook(Box::new(|what| {
        let text = what.to_string();
        tracing::error!(kind = "panic", "{text}");
    }));
}
