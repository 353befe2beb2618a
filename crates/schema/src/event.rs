//! Events: what happened, when, to which object; and what the log writes of them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// How much an event matters.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something has failed.
    Error,
    /// Something is not as it should be; the program keeps running.
    Warn,
    /// What happens.
    #[default]
    Info,
    /// What happens, for those who look for a fault.
    Debug,
}

impl Level {
    /// All levels, the gravest first.
    pub const ALL: [Self; 4] = [Self::Error, Self::Warn, Self::Info, Self::Debug];

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }

    /// The priority of syslog(3).
    #[must_use]
    pub const fn priority(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warn => 4,
            Self::Info => 6,
            Self::Debug => 7,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|level| level.name() == name);
        found.ok_or_else(|| format!("found `{name}`, expected error, warn, info or debug"))
    }
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its number since the program's start, from 1: a gap means events that are no longer kept.
    pub number: u64,
    /// Seconds since 1970, UTC.
    pub time: f64,
    /// How much it matters.
    pub level: Level,
    /// Which events are counted and limited together; empty for lines without limit.
    pub kind: String,
    /// The sentence for people.
    pub text: String,
    /// What the sentence says, for programs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// How the log writes events.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Fields to the journal if standard error is the journal's, else lines of text.
    #[default]
    Auto,
    /// Lines of text on standard error.
    Text,
    /// One JSON object a line on standard error.
    Json,
    /// Fields to the socket of systemd's journal.
    Journal,
}

/// What the log writes, and how.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// How events are written.
    pub format: LogFormat,
    /// The least grave events that are written; by default `info`. The
    /// environment's `TALLY_LOG` overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
}

impl LogSection {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Where a daemon serves its metrics and its page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricsSection {
    /// Address and TCP port of the HTTP listener. Each client that reaches it may read everything.
    pub listen: SocketAddr,
    /// Names in the `Host` header of requests, beside IP addresses and `localhost`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{names, parse, round_trip};

    #[test]
    fn levels_are_in_order_and_others_are_refused() {
        assert_eq!(names(Level::ALL), ["error", "warn", "info", "debug"]);
        assert!(Level::ALL.is_sorted());
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
        }
        for bad in ["verbose", "INFO", "info ", "3", ""] {
            let error = Level::from_str(bad).unwrap_err();
            assert_eq!(
                error,
                format!("found `{bad}`, expected error, warn, info or debug")
            );
        }
    }

    #[test]
    fn an_event_has_the_keys_that_tools_rely_on() {
        let event: Event = round_trip(
            r#"{"number": 3, "time": 1.5, "level": "warn", "kind": "refused", "text": "a b",
                "fields": {"port": "p0"}}"#,
        );
        assert_eq!(event.fields["port"], "p0");
        let section: LogSection = parse(r#"{"format": "journal", "level": "debug"}"#);
        assert_eq!(section.level, Some(Level::Debug));
        assert_eq!(parse::<LogSection>("{}"), LogSection::default());
    }
}
