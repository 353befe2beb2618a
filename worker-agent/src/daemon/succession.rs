//! An agent that takes another's place while processes are served.
//!
//! The agent starts the program at its own path, which may be a later release by then, and hands it
//! the listening socket and the lock. When the successor has said that it can serve, the agent
//! *retires*: it leaves the parameter server's jobs and new processes to the successor, and serves
//! those that it has until they leave. Then it ends. So no session moves, and no process notices.
//! Why sessions cannot move is in [ADR 34](../../docs/adr/0034-agent-upgrades.md).
//!
//! A retired agent answers for its status at a socket with its process number behind the agent's
//! path; the successor finds it there, and refuses ranks that it still serves.
//!
//! The catch: a DPDK port has one owner. An agent with one is drained instead.

use crate::config::{AgentJob, control_socket_of};
use crate::control::client::Client;
use crate::control::proto::Job;
use crate::error::AgentError;
use nix::unistd::geteuid;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tally_local::{Listener, LocalError, Succession};
use tally_schema::agent::status::Status;

/// The option of a successor, which only an agent gives.
pub const OPTION: &str = "--take-over";
/// For a successor to read its configuration and say that it can serve.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// For the agent before to hand over what it has, and to retire.
const RETIRE_WITHIN: Duration = Duration::from_secs(10);
/// For a retired agent to tell its status.
const STATUS_WITHIN: Duration = Duration::from_millis(300);

const READY: &str = "ready";
const GO: &str = "go";
const VERSION: &str = "version ";

/// What it takes to start this program again.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The program's path when it was started.
    program: PathBuf,
    /// Its arguments.
    arguments: Vec<OsString>,
}

impl Origin {
    /// Of this process, to be asked for at its start: a program that is replaced has no path.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn of_this_process() -> io::Result<Self> {
        Ok(Self {
            program: std::env::current_exe()?,
            arguments: std::env::args_os().skip(1).collect(),
        })
    }

    fn start(&self) -> Result<(Child, Succession), LocalError> {
        let (ours, theirs) = Succession::pair()?;
        let option = (!self.arguments.iter().any(|it| it == OPTION)).then_some(OPTION);
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .args(option)
            .stdin(Stdio::from(theirs))
            // systemd's watchdog is the service's, whichever process that is.
            .env_remove("WATCHDOG_PID")
            .spawn()
            .map_err(|source| LocalError::System {
                what: format!("starting {}", self.program.display()),
                source,
            })?;
        Ok((child, ours))
    }
}

/// A successor that has been started.
pub(super) struct Successor {
    child: Child,
    succession: Succession,
}

impl Successor {
    /// Starts it, and hands the socket over.
    ///
    /// # Errors
    /// If it does not start. Nothing has changed then.
    pub(super) fn start(
        origin: &Origin,
        listener: &Listener,
        version: u64,
    ) -> Result<Self, LocalError> {
        let (child, succession) = origin.start()?;
        let mut successor = Self { child, succession };
        let handed = listener.hand_over(&successor.succession).and_then(|()| {
            let text = format!("{VERSION}{version}");
            successor.succession.notify(&text, None)
        });
        match handed {
            Ok(()) => Ok(successor),
            Err(error) => {
                successor.end();
                Err(error)
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it can serve.
    ///
    /// # Errors
    /// In words, if it cannot. It has ended then.
    pub(super) fn prepare(mut self) -> Result<Self, String> {
        match self.succession.receive(READY_WITHIN) {
            Ok((text, _)) if text == READY => Ok(self),
            Ok((problem, _)) => {
                self.end();
                Err(problem)
            }
            Err(error) => {
                self.end();
                Err(format!(
                    "the program did not say that it can serve ({error}); see the log"
                ))
            }
        }
    }

    /// Lets it serve.
    pub(super) fn go(&self) -> Result<(), LocalError> {
        self.succession.notify(GO, None)
    }

    fn end(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The agent that this one takes the place of.
pub(super) struct Predecessor(Succession);

impl Predecessor {
    /// That at standard input, with its listener and the version of its configuration.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn at_stdin(socket: &Path) -> Result<(Self, Listener, u64), AgentError> {
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        let stdin = stdin.map_err(|source| LocalError::System {
            what: "standard input".into(),
            source,
        })?;
        let succession = Succession::of(stdin);
        let listener = Listener::inherit(socket, &succession, RETIRE_WITHIN)?;
        let (text, _) = succession.receive(RETIRE_WITHIN)?;
        let version = text.strip_prefix(VERSION).and_then(|it| it.parse().ok());
        let version = version.ok_or_else(|| {
            AgentError::Options(format!("the agent before said {text:?}, not its version"))
        })?;
        Ok((Self(succession), listener, version))
    }

    /// Says that this agent cannot serve.
    pub(super) fn fail(&self, error: &AgentError) {
        // If it has ended, there is none to tell.
        let _ = self.0.notify(&error.to_string(), None);
    }

    /// Says that this agent can serve, and waits until the other has retired, or is gone.
    ///
    /// # Errors
    /// If it does neither: it serves on.
    pub(super) fn replace(self) -> Result<(), AgentError> {
        self.0.notify(READY, None)?;
        match self.0.receive(RETIRE_WITHIN) {
            Ok((text, _)) if text == GO => Ok(()),
            Err(LocalError::System { source, .. })
                if source.kind() == io::ErrorKind::UnexpectedEof =>
            {
                Ok(())
            }
            Ok((text, _)) => Err(AgentError::Options(format!(
                "the agent before said {text:?} in place of `{GO}`"
            ))),
            Err(error) => Err(error.into()),
        }
    }
}

/// Path of the socket of an agent that has retired.
pub(super) fn retired_socket(socket: &Path, pid: u32) -> PathBuf {
    let mut name = socket.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{pid}"));
    socket.with_file_name(name)
}

/// Removes the lock of a socket that only this process could have used.
pub(super) fn remove_lock(socket: &Path) {
    let mut name = socket.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    // It is litter and no harm.
    let _ = std::fs::remove_file(socket.with_file_name(name));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Agents that have retired and still serve processes, by their sockets.
#[derive(Clone, Debug, Default)]
pub(super) struct Retired(Vec<PathBuf>);

impl Retired {
    /// Those of `socket`, of our own user.
    pub(super) fn of(socket: &Path) -> Self {
        let folder = socket.parent().filter(|it| !it.as_os_str().is_empty());
        let entries = std::fs::read_dir(folder.unwrap_or(Path::new(".")));
        let mut prefix = socket.file_name().unwrap_or_default().to_owned();
        prefix.push(".");
        let is_one = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().as_bytes();
            let pid = name.strip_prefix(prefix.as_bytes()).unwrap_or_default();
            let found = std::fs::symlink_metadata(path);
            !pid.is_empty()
                && pid.iter().all(u8::is_ascii_digit)
                && found
                    .is_ok_and(|it| it.file_type().is_socket() && it.uid() == geteuid().as_raw())
        };
        let paths = entries.into_iter().flatten().flatten().map(|it| it.path());
        Self(paths.filter(is_one).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Says these jobs, which may have new keys, to those that serve some of them. Does not wait:
    /// a retired agent may be stopped.
    pub(super) fn take_jobs(self, jobs: Vec<AgentJob>) {
        if self.is_empty() {
            return;
        }
        let say = move || {
            for socket in &self.0 {
                let Ok(mut agent) = Client::connect(&control_socket_of(socket)) else {
                    continue;
                };
                for job in &jobs {
                    let job = Job {
                        id: job.id.into(),
                        key: hex(job.key.as_bytes()),
                        workers: job.workers.into(),
                        priority: job.priority.map(u32::from),
                        ranks_per_host: Some(job.ranks_per_host.into()),
                    };
                    // It refuses a job that it never had.
                    let _ = agent.set_job(job, None);
                }
            }
        };
        // Without a thread the sessions keep their keys, which the switch may still have.
        let _ = std::thread::Builder::new().name("keys".into()).spawn(say);
    }

    /// What they say. Forgets those that have ended.
    pub(super) fn statuses(&mut self) -> Vec<Status> {
        let mut statuses = Vec::new();
        self.0
            .retain(|path| match tally_local::status(path, STATUS_WITHIN) {
                Ok(json) => {
                    let status = tally_config::parse(path, json.as_bytes());
                    statuses.extend(status.ok());
                    true
                }
                Err(LocalError::Connect { source, .. })
                    if source.kind() == io::ErrorKind::ConnectionRefused =>
                {
                    // Of one that was killed.
                    let _ = std::fs::remove_file(path);
                    remove_lock(path);
                    false
                }
                Err(LocalError::Connect { source, .. }) => source.kind() != io::ErrorKind::NotFound,
                Err(_) => true,
            });
        statuses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_sockets_of_agents_before_are_asked() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        assert!(Retired::of(&socket).is_empty());
        let path = |name: &str| folder.path().join(name);
        let ended = UnixListener::bind(path("agent.sock.12")).unwrap();
        for name in [
            "agent.sock",
            "agent.sock.control",
            "agent.sock.",
            "agent.sock.1x",
            "other.12",
        ] {
            drop(UnixListener::bind(path(name)).unwrap());
        }
        std::fs::write(path("agent.sock.13"), "no socket").unwrap();
        std::fs::write(path("agent.sock.12.lock"), "12").unwrap();
        let mut retired = Retired::of(&socket);
        assert_eq!(retired.0, [path("agent.sock.12")]);
        drop(ended);
        // It is a socket of another type: one that does not answer, and stays.
        assert!(retired.statuses().is_empty());
        assert_eq!(retired_socket(&socket, 12), path("agent.sock.12"));
    }
}
