//! What the programs say on standard error, as much of it as `TALLY_LOG` asks for.
//!
//! One line is one message and one write, so that those of several threads do not mix. Under
//! systemd, whose journal reads standard error, each line begins with its priority (`<4>`,
//! sd-daemon(3)), and `journalctl -p warning` works.
//!
//! Logging never waits for a reader (`queue.rs`); a program that ends calls
//! [`Log::flush`].

mod queue;

use queue::Queue;
use std::fmt::Display;
use std::io::Write;
use std::os::linux::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::Duration;

/// The environment's variable.
pub const VARIABLE: &str = "TALLY_LOG";

/// For the last lines to be written, once the program ends.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something has failed.
    Error,
    /// Something is not as it should be; the agent keeps running.
    Warn,
    /// What happens.
    Info,
    /// What happens, for those who look for a fault.
    Debug,
}

impl Level {
    const ALL: [(&str, Self); 4] = [
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
    ];

    /// That of syslog(3).
    const fn priority(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warn => 4,
            Self::Info => 6,
            Self::Debug => 7,
        }
    }

    /// Before the message; nothing before what merely happens.
    const fn word(self) -> &'static str {
        match self {
            Self::Error => "error: ",
            Self::Warn => "warning: ",
            Self::Info | Self::Debug => "",
        }
    }
}

/// Where a program says what happens.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    program: &'static str,
    most: Level,
    for_journal: bool,
}

impl Log {
    /// For `program`, as the environment wants it.
    ///
    /// # Errors
    /// If `TALLY_LOG` is no level, in words.
    pub fn from_environment(program: &'static str) -> Result<Self, String> {
        let wanted = std::env::var_os(VARIABLE).unwrap_or_default();
        Ok(Self {
            program,
            most: level(&wanted.to_string_lossy())?,
            for_journal: is_journal(),
        })
    }

    /// Whether messages of this level are said.
    #[must_use]
    pub fn says(&self, level: Level) -> bool {
        level <= self.most
    }

    /// Says it, if it is to be said.
    pub fn say(&self, level: Level, what: impl Display) {
        if self.says(level) {
            let line = self.line(level, &what.to_string());
            match self.queue() {
                Some(queue) => queue.push(line),
                // No reader is left, and none to report that to.
                None => drop(std::io::stderr().write_all(line.as_bytes())),
            }
        }
    }

    /// Waits for what was said to be written, for a second at most.
    pub fn flush(&self) {
        if let Some(queue) = self.queue() {
            queue.flush(FLUSH_WITHIN);
        }
    }

    /// That of the process, with a thread that writes what is in it; none if the system gives no
    /// thread.
    fn queue(&self) -> Option<&'static Queue> {
        static QUEUE: Queue = Queue::new();
        static HAS_WRITER: OnceLock<bool> = OnceLock::new();
        let log = *self;
        let dropped = move |n| {
            let what = format!("{n} lines of this log were dropped: it was not read");
            log.line(Level::Warn, &what)
        };
        let start = || {
            let writer = move || QUEUE.write_to(std::io::stderr(), dropped);
            let thread = std::thread::Builder::new().name("log".into());
            thread.spawn(writer).is_ok()
        };
        HAS_WRITER.get_or_init(start).then_some(&QUEUE)
    }

    fn line(&self, level: Level, what: &str) -> String {
        // Names come from elsewhere; a message remains one line.
        let what = what.replace(['\n', '\r'], " ");
        let program = self.program;
        if self.for_journal {
            // Which names the program itself.
            format!("<{}>{what}\n", level.priority())
        } else {
            format!("{program}: {}{what}\n", level.word())
        }
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

fn level(wanted: &str) -> Result<Level, String> {
    if wanted.is_empty() {
        return Ok(Level::Info);
    }
    let found = Level::ALL.iter().find(|(name, _)| *name == wanted);
    found
        .map(|&(_, level)| level)
        .ok_or_else(|| format!("{VARIABLE}: found `{wanted}`, expected error, warn, info or debug"))
}

/// Whether standard error goes to systemd's journal: `JOURNAL_STREAM` is the device and inode that
/// it made.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let ours = std::fs::metadata("/proc/self/fd/2");
    ours.is_ok_and(|it| stream == format!("{}:{}", it.st_dev(), it.st_ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_in_order_and_others_are_refused() {
        assert_eq!(level(""), Ok(Level::Info));
        for (i, (name, of)) in Level::ALL.into_iter().enumerate() {
            assert_eq!(level(name), Ok(of));
            let log = Log {
                program: "p",
                most: of,
                for_journal: false,
            };
            assert!(log.says(Level::Error));
            let said = Level::ALL.iter().filter(|(_, it)| log.says(*it)).count();
            assert_eq!(said, i + 1);
        }
        for bad in ["verbose", "INFO", "info ", "3"] {
            let error = level(bad).unwrap_err();
            let want = format!("TALLY_LOG: found `{bad}`, expected error, warn, info or debug");
            assert_eq!(error, want);
        }
    }

    #[test]
    fn a_message_is_one_line() {
        let mut log = Log {
            program: "tally-agent",
            most: Level::Info,
            for_journal: false,
        };
        let line = log.line(Level::Warn, "rank 1\nis\r\nlate");
        assert_eq!(line, "tally-agent: warning: rank 1 is  late\n");
        assert_eq!(log.line(Level::Info, "left"), "tally-agent: left\n");
        log.for_journal = true;
        assert_eq!(log.line(Level::Error, "gone"), "<3>gone\n");
    }
}
