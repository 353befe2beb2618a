//! The configuration, and the agent on this host.

use super::Check;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;
use tally_config::ConfigError;
use tally_local::LocalError;

/// For an agent to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A path as the shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whether an agent answered at the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IsServed(pub(super) bool);

/// As much of an agent's status as all versions have.
#[derive(serde::Deserialize)]
struct Who {
    version: String,
    pid: u32,
}

pub(super) fn unusable(path: &Path, error: &ConfigError) -> Check {
    let file = path.display();
    let fix = match error {
        ConfigError::Mode { .. } => format!("chmod 600 {}", quoted(path)),
        ConfigError::Read { error, .. } => match error.kind() {
            io::ErrorKind::PermissionDenied => {
                format!("sudo tally-agent doctor --config {}", quoted(path))
            }
            _ => format!("write {file}; `tally-agent serve --help` shows one"),
        },
        _ => format!(
            "correct {file}, then: tally-agent serve --check --config {}",
            quoted(path)
        ),
    };
    Check::bad("configuration", error.to_string(), fix)
}

/// Who may read the keys. If others may, they are those of examples: no other file is loaded.
pub(super) fn keys(path: &Path) -> Check {
    let file = path.display();
    let mode = path.metadata().map_or(0, |it: Metadata| it.mode() & 0o777);
    if mode & 0o077 == 0 {
        return Check::good("keys", format!("only its owner may use {file}"));
    }
    let found = format!(
        "{file} (mode {mode:04o}) has the keys of the documentation's examples, which everyone knows: replace them \
         (openssl rand -hex 16)"
    );
    Check::warning("keys", found, format!("chmod 600 {}", quoted(path)))
}

/// Whether an agent serves the socket, or one could.
pub(super) fn agent(socket: &Path, config: &Path) -> (Check, IsServed) {
    let at = socket.display();
    let start = format!("tally-agent serve --config {}", quoted(config));
    let error = match tally_local::status(socket, ANSWER_WITHIN) {
        Ok(json) => return (who(&json, socket), IsServed(true)),
        Err(error) => error,
    };
    let check = match &error {
        LocalError::Connect { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => no_agent(socket, &start),
            io::ErrorKind::ConnectionRefused
                if socket
                    .symlink_metadata()
                    .is_ok_and(|it| it.file_type().is_socket()) =>
            {
                let found = format!(
                    "{at} is left over from an agent that was killed; a new one replaces it"
                );
                Check::warning("agent", found, start)
            }
            io::ErrorKind::ConnectionRefused => {
                let found = format!("{at} is there, and is no socket: no agent can listen there");
                Check::bad("agent", found, format!("rm {}", quoted(socket)))
            }
            _ => {
                let fix = format!("sudo tally-agent doctor --config {}", quoted(config));
                Check::warning("agent", error.to_string(), fix)
            }
        },
        _ => {
            let found = format!("what serves {at} does not answer: {error}");
            Check::bad("agent", found, "systemctl restart tally-agent")
        }
    };
    (check, IsServed(false))
}

fn who(json: &str, socket: &Path) -> Check {
    let at = socket.display();
    let who: Result<Who, _> = simd_json::serde::from_slice(&mut json.to_owned().into_bytes());
    let ours = env!("CARGO_PKG_VERSION");
    match who {
        Ok(Who { version, pid }) if version == ours => {
            let found = format!("version {version}, process {pid}, answers at {at}");
            Check::good("agent", found)
        }
        Ok(Who { version, pid }) => {
            let found =
                format!("process {pid} at {at} is of version {version}, and this is {ours}");
            Check::warning("agent", found, "systemctl restart tally-agent")
        }
        Err(_) => {
            let found = format!("what serves {at} gives no status of this version");
            Check::bad("agent", found, "systemctl restart tally-agent")
        }
    }
}

/// Nothing is at the socket: an agent must be able to make it.
fn no_agent(socket: &Path, start: &str) -> Check {
    let at = socket.display();
    let folder = match socket.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let shown = folder.display();
    if !folder.is_dir() {
        let found =
            format!("{shown} is no directory, where an agent would make {at} (systemd makes it)");
        let fix = format!("mkdir -p {} && {start}", quoted(folder));
        return Check::bad("agent", found, fix);
    }
    let trial = folder.join(format!(".tally-doctor-{}", std::process::id()));
    match File::create_new(&trial) {
        Ok(_) => {
            // It was ours, a moment ago.
            let _ = std::fs::remove_file(&trial);
            let found = format!("none is running: nothing is at {at}");
            Check::warning("agent", found, start)
        }
        Err(why) => {
            let found = format!("none is running, and this user cannot make {at}: {why}");
            Check::bad("agent", found, format!("sudo {start}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted_for_any_path() {
        for (path, want) in [
            ("/etc/tally/agent.json", "/etc/tally/agent.json"),
            ("my jobs/a.json", "'my jobs/a.json'"),
            ("it's", r"'it'\''s'"),
            ("$(reboot)", "'$(reboot)'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(Path::new(path)), want);
        }
    }
}
