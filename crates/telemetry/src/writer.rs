//! Lines of text, lines of JSON, or fields for the journal.
//!
//! One line is one message and one write, so that those of several processes do not mix. In the
//! journal's standard error a line of text begins with its priority (`<4>`, sd-daemon(3)), and
//! `journalctl -p warning` works also where the journal's socket cannot be reached.

use crate::journal::Journal;
use crate::{Level, LogFormat};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::linux::fs::MetadataExt;
use tally_schema::event::Event;

pub(crate) struct Writer {
    program: &'static str,
    /// A descriptor of its own: the standard library's has a lock, on which others would wait.
    stderr: Option<File>,
    /// Whether standard error is the journal's.
    is_journal: bool,
    journal: Journal,
}

impl Writer {
    pub(crate) fn new(program: &'static str) -> Self {
        let stderr = std::io::stderr().as_fd().try_clone_to_owned();
        Self {
            program,
            stderr: stderr.ok().map(File::from),
            is_journal: is_journal(),
            journal: Journal::default(),
        }
    }

    pub(crate) fn write(&mut self, format: LogFormat, event: &Event) {
        let to_journal = match format {
            LogFormat::Journal => true,
            LogFormat::Auto => self.is_journal,
            LogFormat::Text | LogFormat::Json => false,
        };
        if to_journal && self.journal.send(self.program, event) {
            return;
        }
        let line = match format {
            LogFormat::Json => json(self.program, event),
            _ => text(self.program, self.is_journal, event),
        };
        // A reader that has gone misses it.
        if let Some(stderr) = &mut self.stderr {
            let _ = stderr.write_all(line.as_bytes());
        }
    }
}

fn text(program: &str, for_journal: bool, event: &Event) -> String {
    let text = &event.text;
    if for_journal {
        // Which names the program itself.
        return format!("<{}>{text}\n", event.level.priority());
    }
    // No word before what merely happens. Lines of the kind `error` are an error's chain.
    let word = match event.level {
        Level::Error if event.kind != "error" && event.kind != "panic" => "error: ",
        Level::Warn if event.kind != "log" => "warning: ",
        _ => "",
    };
    format!("{program}: {word}{text}\n")
}

#[derive(Serialize)]
struct Line<'a> {
    program: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

fn json(program: &str, event: &Event) -> String {
    simd_json::to_string(&Line { program, event }).unwrap_or_default() + "\n"
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

    fn event(level: Level, kind: &str) -> Event {
        Event {
            number: 4,
            time: 1.25,
            level,
            kind: kind.into(),
            text: "rank 1 is late".into(),
            fields: [("port".to_owned(), "\"p\"".to_owned())].into(),
        }
    }

    #[test]
    fn a_message_is_one_line_in_each_format() {
        let line = |level| text("tally-agent", false, &event(level, "rank"));
        assert_eq!(line(Level::Info), "tally-agent: rank 1 is late\n");
        assert_eq!(line(Level::Warn), "tally-agent: warning: rank 1 is late\n");
        assert_eq!(line(Level::Error), "tally-agent: error: rank 1 is late\n");
        let line = text("tally-agent", true, &event(Level::Error, ""));
        assert_eq!(line, "<3>rank 1 is late\n");
        let line = json("tally-switch", &event(Level::Warn, "rank"));
        assert_eq!(
            line,
            "{\"program\":\"tally-switch\",\"number\":4,\"time\":1.25,\"level\":\"warn\",\"kind\":\"rank\",\
             \"text\":\"rank 1 is late\",\"fields\":{\"port\":\"\\\"p\\\"\"}}\n"
        );
    }
}
