//! The request channel: where it listens, and who may change the running switch.

use super::{Config, ConfigError};
use crate::agent::config::Mode;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The control socket's path by default.
const SOCKET: &str = "/run/tally/switch/control.sock";

/// Where the switch takes requests; without the section, nowhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlSection {
    /// Unix socket for changes.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// Its mode; by default 0660 with a group, and 0600 without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<Mode>,
    /// Group whose members may make changes, beside root and the switch's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Unix socket for users who may only look; without it, there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_socket: Option<PathBuf>,
    /// Mode of that socket: by default any local user may look.
    #[serde(default = "default_read_mode")]
    pub read_socket_mode: Mode,
    /// TCP port for controllers that show a certificate; without it, there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<ControlTcp>,
}

/// A TCP port with mutual TLS.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlTcp {
    /// Address and port.
    pub listen: SocketAddr,
    /// File of the switch's certificate, PEM.
    pub certificate: PathBuf,
    /// File of the certificate's key, PEM, readable by the switch's user alone.
    pub key: PathBuf,
    /// File of the authority whose certificates callers must show, PEM.
    pub client_ca: PathBuf,
}

fn default_socket() -> PathBuf {
    SOCKET.into()
}
const fn default_read_mode() -> Mode {
    Mode(0o666)
}

impl Default for ControlSection {
    fn default() -> Self {
        Self {
            socket: default_socket(),
            socket_mode: None,
            group: None,
            read_socket: None,
            read_socket_mode: default_read_mode(),
            tcp: None,
        }
    }
}

impl ControlSection {
    /// Mode of the control socket.
    #[must_use]
    pub fn mode(&self) -> Mode {
        let default = if self.group.is_some() { 0o660 } else { 0o600 };
        self.socket_mode.unwrap_or(Mode(default))
    }
}

impl Config {
    pub(super) fn check_control(&self, path: &Path) -> Result<(), ConfigError> {
        let Some(control) = &self.control else {
            return Ok(());
        };
        let sockets = [
            ("control.socket", Some(&control.socket)),
            ("control.read_socket", control.read_socket.as_ref()),
        ];
        let mut taken: Vec<&Path> = self.stats_socket.iter().map(PathBuf::as_path).collect();
        for (key, socket) in sockets {
            let Some(socket) = socket else { continue };
            let found = format!("`{}`", socket.display());
            if socket.file_name().is_none() {
                return Err(ConfigError::value(path, key, found, "a path of a socket"));
            }
            if taken.contains(&socket.as_path()) {
                let found = format!("{found} a second time");
                return Err(ConfigError::value(path, key, found, "a path of its own"));
            }
            taken.push(socket);
        }
        if control.group.as_deref() == Some("") {
            let allowed = "the name of a group";
            return Err(ConfigError::value(path, "control.group", "``", allowed));
        }
        Ok(())
    }
}
