//! Errors, in words for the user who trains.

use crate::collective::Awaited;
use crate::ranks::Ranks;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why the agent does not do what it was asked, by what a process would do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// None of the others.
    Other = 0,
    /// The two sides speak different versions of this interface.
    Version = 1,
    /// The agent has no such job.
    Job = 2,
    /// The job has no such rank.
    Rank = 3,
    /// The agent and the process know different numbers of workers.
    Workers = 4,
    /// Another process has the rank.
    Taken = 5,
    /// The last process of the rank has just ended, and its place is being given up. Try again.
    Leaving = 6,
    /// A limit of the agent.
    Limit = 7,
    /// A message that the agent does not understand, or that asks for the impossible.
    Malformed = 8,
    /// The shared memory cannot be used.
    Memory = 9,
    /// The network cannot be used.
    Link = 10,
    /// The job did not begin.
    Join = 11,
    /// Ranks submitted different collectives.
    Mismatch = 12,
    /// Another member failed.
    Member = 13,
    /// A sum of integers left their range.
    Overflow = 14,
    /// Results stopped coming.
    Silence = 15,
    /// The agent was stopped.
    Stopped = 16,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Other,
        Self::Version,
        Self::Job,
        Self::Rank,
        Self::Workers,
        Self::Taken,
        Self::Leaving,
        Self::Limit,
        Self::Malformed,
        Self::Memory,
        Self::Link,
        Self::Join,
        Self::Mismatch,
        Self::Member,
        Self::Overflow,
        Self::Silence,
        Self::Stopped,
    ];

    /// What a byte stands for; [`Class::Other`] for those of later versions.
    #[must_use]
    pub fn of(byte: u8) -> Self {
        let class = Self::ALL.get(usize::from(byte));
        class.copied().unwrap_or(Self::Other)
    }
}

/// Why the agent does not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of reason.
    pub class: Class,
    /// The ranks that it is about.
    pub ranks: Ranks,
    /// The reason, in words.
    pub text: String,
}

impl Failure {
    /// About no rank.
    pub fn new(class: Class, text: impl Into<String>) -> Self {
        Self {
            class,
            ranks: Ranks::NONE,
            text: text.into(),
        }
    }
}

/// Why something did not work between a process and its agent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// There is no agent at the socket.
    #[error("cannot reach the agent at {}: {source}{}; {}", path.display(), Searched(*after), hint(path, source))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
        /// The time of all attempts.
        after: Duration,
    },
    /// The agent does not take us in.
    #[error("job {job} rank {rank}: the agent at {} refuses: {}", path.display(), failure.text)]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The job.
        job: u16,
        /// Our rank.
        rank: u16,
        /// Why.
        failure: Failure,
    },
    /// The job has failed. All that was submitted and is not done never will be.
    #[error("job {job} rank {rank}: {}", failure.text)]
    Failed {
        /// The job.
        job: u16,
        /// Our rank.
        rank: u16,
        /// Why.
        failure: Failure,
    },
    /// The agent is there no more.
    #[error(
        "job {job} rank {rank}: the agent at {} has ended or dropped us; see its log, and start the job again",
        path.display()
    )]
    Gone {
        /// The socket.
        path: PathBuf,
        /// The job.
        job: u16,
        /// Our rank.
        rank: u16,
    },
    /// It takes longer than it may.
    #[error("job {job} rank {rank}: {what} takes more than {after:?}{}", Because(&awaited.text))]
    Timeout {
        /// The job.
        job: u16,
        /// Our rank.
        rank: u16,
        /// What does.
        what: String,
        /// How long it was waited for.
        after: Duration,
        /// What the agent knows of the cause; without text if it was not asked.
        awaited: Awaited,
    },
    /// The agent said something that makes no sense.
    #[error("job {job} rank {rank}: the agent at {} does not keep to the interface: {what}", path.display())]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// The job.
        job: u16,
        /// Our rank.
        rank: u16,
        /// What.
        what: String,
    },
    /// The caller asks for the impossible.
    #[error("{0}")]
    Argument(String),
    /// The kernel refuses.
    #[error("{what}: {source}")]
    System {
        /// What it was to do.
        what: String,
        /// Its reason.
        source: io::Error,
    },
    /// An agent cannot listen at a socket.
    #[error("cannot listen at {}: {problem}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
}

impl LocalError {
    pub(crate) fn system(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        Self::System { what, source }
    }

    /// A timeout, with its cause; any other error as it is.
    pub(crate) fn because(mut self, cause: Awaited) -> Self {
        if let Self::Timeout { awaited, .. } = &mut self {
            *awaited = cause;
        }
        self
    }
}

struct Because<'a>(&'a str);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        if text.is_empty() {
            return Ok(());
        }
        write!(f, ": {text}")
    }
}

struct Searched(Duration);

impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(after) = self;
        if *after < Duration::from_secs(1) {
            return Ok(());
        }
        write!(f, " after {:.0} s", after.as_secs_f64())
    }
}

/// The kinds of errors that bindings to other languages tell apart: the exceptions of the Python
/// package, and the codes of `tally.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// None of the others.
    Other = 1,
    /// An invalid argument; the job continues.
    Argument = 2,
    /// The job was finished or aborted before.
    Closed = 3,
    /// There is no agent at the socket, or this user may not use it.
    Connect = 4,
    /// The agent does not take us in.
    Refused = 5,
    /// The agent is of another version.
    Version = 6,
    /// More than the agent allows, or memory that it cannot use.
    Limit = 7,
    /// The agent cannot use its network.
    Link = 8,
    /// The job did not begin.
    Join = 9,
    /// Ranks brought different collectives.
    Mismatch = 10,
    /// Another rank has failed or gone silent.
    Member = 11,
    /// A sum of integers left their range.
    Overflow = 12,
    /// It takes longer than it may.
    Timeout = 13,
    /// The agent has ended, or makes no sense.
    AgentGone = 14,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Other,
        Self::Argument,
        Self::Closed,
        Self::Connect,
        Self::Refused,
        Self::Version,
        Self::Limit,
        Self::Link,
        Self::Join,
        Self::Mismatch,
        Self::Member,
        Self::Overflow,
        Self::Timeout,
        Self::AgentGone,
    ];
}

/// Why something did not work in a [`Job`](crate::Job).
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The job was finished or aborted before.
    #[error("the job is closed")]
    Closed,
    /// The connection is another process's.
    #[error("this process is a fork of the one that made the job; make one here")]
    Forked,
    /// All else.
    #[error("{}", told(error, at))]
    Local {
        /// What.
        error: LocalError,
        /// The collective that it happened to; empty if it happened to none.
        at: String,
    },
}

impl From<LocalError> for JobError {
    fn from(error: LocalError) -> Self {
        let at = String::new();
        Self::Local { error, at }
    }
}

impl JobError {
    /// The same, at the collective `name`.
    pub(crate) fn at(mut self, name: &str) -> Self {
        if let Self::Local { at, .. } = &mut self {
            name.clone_into(at);
        }
        self
    }

    /// The same, after a wait that was cut into several.
    #[must_use]
    pub fn after(mut self, all: Duration) -> Self {
        if let Self::Local {
            error: LocalError::Timeout { after, .. },
            ..
        } = &mut self
        {
            *after = all;
        }
        self
    }

    /// The same, with what the agent knows of the cause, if time was over.
    pub(crate) fn because(self, cause: Awaited) -> Self {
        match self {
            Self::Local { error, at } => Self::Local {
                error: error.because(cause),
                at,
            },
            other => other,
        }
    }

    /// Whether time was over, and nothing else is wrong: what was waited for can be waited for
    /// again.
    #[must_use]
    pub fn is_late(&self) -> bool {
        let Self::Local { error, .. } = self else {
            return false;
        };
        matches!(error, LocalError::Timeout { .. })
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Closed => Kind::Closed,
            Self::Forked => Kind::Argument,
            Self::Local { error, .. } => error.kind(),
        }
    }

    /// The ranks that it is about; none if it is about none, or they are not known.
    #[must_use]
    pub fn ranks(&self) -> Ranks {
        match self {
            Self::Local {
                error: LocalError::Refused { failure, .. } | LocalError::Failed { failure, .. },
                ..
            } => failure.ranks,
            Self::Local {
                error: LocalError::Timeout { awaited, .. },
                ..
            } => awaited.ranks,
            _ => Ranks::NONE,
        }
    }
}

/// An error's words, with the collective, if they do not name it anyway, in backquotes as all names
/// of collectives: a short name may well be part of another word.
fn told(error: &LocalError, at: &str) -> String {
    let mut text = error.to_string();
    if !at.is_empty() && !text.contains(&format!("`{at}`")) {
        text.push_str(&format!(" (at `{at}`)"));
    }
    text
}

impl LocalError {
    fn kind(&self) -> Kind {
        let failure = match self {
            Self::Refused { failure, .. } | Self::Failed { failure, .. } => failure,
            Self::Connect { .. } => return Kind::Connect,
            Self::Gone { .. } | Self::Protocol { .. } => return Kind::AgentGone,
            Self::Timeout { .. } => return Kind::Timeout,
            Self::Argument(_) => return Kind::Argument,
            Self::System { .. } | Self::Listen { .. } => return Kind::Other,
        };
        match failure.class {
            Class::Version => Kind::Version,
            Class::Job | Class::Rank | Class::Workers | Class::Taken | Class::Leaving => {
                Kind::Refused
            }
            Class::Limit | Class::Memory => Kind::Limit,
            Class::Link => Kind::Link,
            Class::Join => Kind::Join,
            Class::Mismatch => Kind::Mismatch,
            Class::Member => Kind::Member,
            Class::Overflow => Kind::Overflow,
            Class::Silence => Kind::Timeout,
            Class::Stopped => Kind::AgentGone,
            Class::Malformed | Class::Other => Kind::Other,
        }
    }
}

/// What to do about a socket that cannot be connected to.
fn hint(path: &Path, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::PermissionDenied => permission_hint(path),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "start it with `systemctl start tally-agent`, \
              or `tally-agent serve` with this socket; `tally-agent doctor` says what keeps it from running"
            .into(),
        _ => "see `tally-agent doctor`".into(),
    }
}

fn permission_hint(path: &Path) -> String {
    // SAFETY: it has no arguments, and cannot fail.
    let user = unsafe { libc::geteuid() };
    let Ok(found) = path.metadata() else {
        return format!(
            "user {user} may not enter a folder of this path; give the agent a `socket` where its users may"
        );
    };
    let (gid, mode) = (found.gid(), found.mode() & 0o777);
    let group = group_name(gid).unwrap_or_else(|| gid.to_string());
    let what =
        format!("user {user} may not write to it: its group is {group}, and its mode {mode:04o}");
    if gid == 0 {
        return format!(
            "{what}; set `access.group` in the agent's configuration to a group of its users, and `systemctl restart \
             tally-agent`"
        );
    }
    format!("{what}; `usermod -aG {group} USER` as root, and log in again")
}

/// The name of a group of `/etc/group`.
fn group_name(gid: u32) -> Option<String> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    let line = groups
        .lines()
        .find(|line| line.split(':').nth(2) == Some(&gid.to_string()))?;
    line.split(':').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_their_bytes() {
        for byte in 0..=u8::MAX {
            let class = Class::of(byte);
            assert!(class as u8 == byte || class == Class::Other, "{byte}");
        }
        for (at, class) in Class::ALL.iter().enumerate() {
            assert_eq!(*class as usize, at);
        }
    }

    #[test]
    fn the_collective_is_named_among_words_that_share_its_letters() {
        let failure = |text: &str| Failure::new(Class::Limit, text.to_owned());
        let error = |text: &str| LocalError::Refused {
            path: "/tmp/w/agent.sock".into(),
            job: 7,
            rank: 0,
            failure: failure(text),
        };
        let named = |text: &str| JobError::from(error(text)).at("w").to_string();
        let words = "job 7 rank 0: the agent at /tmp/w/agent.sock refuses: ";
        assert_eq!(named("no"), format!("{words}no (at `w`)"));
        assert_eq!(named("not `w`"), format!("{words}not `w`"));
    }
}
