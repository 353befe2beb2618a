//! Exit codes of all programs: one table.
//!
//! A script may rely on them. Each program uses those that can happen to it.

use std::error::Error;
use std::process::ExitCode;
use tally_config::ConfigError;

/// Why a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It did what it was asked.
    Done = 0,
    /// It failed, or a check found something bad.
    Failure = 1,
    /// The command line or the configuration cannot be used.
    Usage = 2,
    /// A file cannot be read or written.
    File = 3,
    /// The machine refuses: network, device, memory, socket.
    System = 4,
    /// The switch did not admit the member.
    Join = 5,
    /// Another member failed the job.
    Job = 6,
    /// A sum of integers overflowed.
    Overflow = 7,
    /// Results stopped.
    Silence = 8,
    /// SIGINT or SIGTERM ended it early.
    Interrupted = 130,
}

impl Exit {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Done,
        Self::Failure,
        Self::Usage,
        Self::File,
        Self::System,
        Self::Join,
        Self::Job,
        Self::Overflow,
        Self::Silence,
        Self::Interrupted,
    ];

    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What it means, in words.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failure => "failed, or a check found something bad",
            Self::Usage => "the command line or the configuration cannot be used",
            Self::File => "tensors, a report or another file cannot be read or written",
            Self::System => "the network, a device, memory or a socket cannot be used",
            Self::Join => "the switch did not let us join, or members are missing",
            Self::Job => {
                "the job failed because of another member, or ranks bring different tensors"
            }
            Self::Overflow => "a sum of integers overflowed",
            Self::Silence => "results stopped coming",
            Self::Interrupted => "interrupted; the other workers have been told",
        }
    }
}

/// The code for an error of which nothing else is known: [`Exit::Usage`] if a configuration caused
/// it, else [`Exit::Failure`].
#[must_use]
pub fn of(error: &(dyn Error + 'static)) -> Exit {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<ConfigError>() {
            return Exit::Usage;
        }
        cause = error.source();
    }
    Exit::Failure
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The lines of `--help` about these codes.
#[must_use]
pub fn help(codes: &[Exit]) -> String {
    let line = |exit: &Exit| format!("\n  {:<4} {}", exit.code(), exit.meaning());
    format!("Exit codes:{}", codes.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::path::Path;

    #[test]
    fn each_code_has_one_meaning_and_scripts_find_it_unchanged() {
        let codes = Exit::ALL.map(Exit::code);
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]);
        let text = help(&[Exit::Done, Exit::Interrupted]);
        let want = "Exit codes:\n  0    done\n  130  interrupted; the other workers have been told";
        assert_eq!(text, want);
    }

    /// `TALLY_WRITE_DOCS=1` writes the table.
    #[test]
    fn operations_md_has_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/OPERATIONS.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (begin, end) = ("<!-- exit codes: generated -->\n\n", "\n<!-- end -->");
        let at = text.find(begin).unwrap() + begin.len();
        let until = at + text[at..].find(end).unwrap();
        let mut table = "| code | means |\n|---|---|\n".to_owned();
        for exit in Exit::ALL {
            table += &format!("| {} | {} |\n", exit.code(), exit.meaning());
        }
        if std::env::var_os("TALLY_WRITE_DOCS").is_some() {
            std::fs::write(&path, [&text[..at], &table, &text[until..]].concat()).unwrap();
        } else {
            assert_eq!(&text[at..until], table, "run with TALLY_WRITE_DOCS=1");
        }
    }
}
