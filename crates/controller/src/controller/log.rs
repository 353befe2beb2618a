//! What the controller says: a line for each event.

use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::SystemTime;

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Its kind: `leader`, `standby`, `file`, `fleet`, `switch`, `plan`, `waits`, `changes` or
    /// `error`.
    pub event: &'static str,
    /// What happened.
    pub text: String,
    /// Of changes: from the loss that they mend, or from their beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub milliseconds: Option<f64>,
}

impl Event {
    /// Of a kind.
    #[must_use]
    pub const fn new(event: &'static str, text: String) -> Self {
        Self {
            event,
            text,
            milliseconds: None,
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    time: f64,
    #[serde(flatten)]
    event: &'a Event,
}

/// Standard output.
pub struct Log {
    is_json: bool,
    /// What `say_once` has said.
    said: BTreeSet<String>,
}

impl Log {
    /// In words, or as lines of JSON.
    #[must_use]
    pub const fn new(is_json: bool) -> Self {
        Self {
            is_json,
            said: BTreeSet::new(),
        }
    }

    /// Says it.
    pub fn say(&mut self, event: &Event) {
        let mut out = std::io::stdout().lock();
        // Without a reader the controller works all the same.
        let _ = if self.is_json {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let time = since.unwrap_or_default().as_secs_f64();
            let line = serde_json::to_string(&Line { time, event });
            writeln!(out, "{}", line.unwrap_or_default())
        } else {
            writeln!(out, "{}: {}", event.event, event.text)
        };
        let _ = out.flush();
    }

    /// What was said once is said again.
    pub fn forget(&mut self) {
        self.said.clear();
    }

    /// Says it if it has not been said.
    pub fn say_once(&mut self, event: &'static str, text: &str) {
        if self.said.insert(text.to_owned()) {
            self.say(&Event::new(event, text.to_owned()));
        }
    }
}
