//! The log as a value that a program hands to its parts, with the level that `TALLY_LOG` asks for.

use crate::collector::hub;
use crate::{Level, Program};
use std::fmt::Display;
use std::time::Duration;

/// The environment's variable.
pub const VARIABLE: &str = "TALLY_LOG";

/// For the last lines to be written, once the program ends.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// Where a program says what happens: the log of the process ([`start`](crate::start)).
#[derive(Clone, Copy, Debug)]
pub struct Log(());

/// The level that the environment asks for.
///
/// # Errors
/// If it is no level, in words.
fn level_of_environment() -> Result<Level, String> {
    let wanted = std::env::var_os(VARIABLE).unwrap_or_default();
    level(&wanted.to_string_lossy())
}

fn level(wanted: &str) -> Result<Level, String> {
    if wanted.is_empty() {
        return Ok(Level::Info);
    }
    wanted.parse().map_err(|why| format!("{VARIABLE}: {why}"))
}

impl Log {
    /// Starts the log of the program `name`, as the environment wants it.
    ///
    /// # Errors
    /// If `TALLY_LOG` is no level, in words.
    pub fn from_environment(name: &'static str) -> Result<Self, String> {
        let level = level_of_environment()?;
        crate::start(Program {
            name,
            level,
            ..Program::default()
        });
        Ok(Self(()))
    }

    /// Whether messages of this level are said.
    #[must_use]
    pub fn says(&self, level: Level) -> bool {
        level <= hub().level()
    }

    /// Says it, if it is to be said. Such lines have no kind and no limit.
    pub fn say(&self, level: Level, what: impl Display) {
        match level {
            Level::Error => tracing::error!("{what}"),
            Level::Warn => tracing::warn!("{what}"),
            Level::Info => tracing::info!("{what}"),
            Level::Debug => tracing::debug!("{what}"),
        }
    }

    /// Waits for what was said to be written, for a second at most.
    pub fn flush(&self) {
        crate::flush(FLUSH_WITHIN);
    }

    /// As [`say`](Self::say), an error.
    pub fn error(&self, what: impl Display) {
        self.say(Level::Error, what);
    }

    /// As [`say`](Self::say), a warning.
    pub fn warn(&self, what: impl Display) {
        self.say(Level::Warn, what);
    }

    /// As [`say`](Self::say), what happens.
    pub fn info(&self, what: impl Display) {
        self.say(Level::Info, what);
    }

    /// As [`say`](Self::say), what happens in detail.
    pub fn debug(&self, what: impl Display) {
        self.say(Level::Debug, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_a_level() {
        assert_eq!(level(""), Ok(Level::Info));
        assert_eq!(level("debug"), Ok(Level::Debug));
        let error = level("verbose").unwrap_err();
        let want = "TALLY_LOG: found `verbose`, expected error, warn, info or debug";
        assert_eq!(error, want);
    }
}
