//! Agent and parameter server as services: the manager hears when they serve, live and stop.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const WAIT_MAX: Duration = Duration::from_secs(60);
const JOB: &str = r#"{"id": 7, "key": "1f2e3d4c5b6a79880011223344556677""#;

/// What a program tells the service manager.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        let wait = Some(Duration::from_millis(100));
        socket.set_read_timeout(wait).unwrap();
        let heard = Vec::new();
        Self { socket, heard }
    }

    /// Takes what has come; says whether there was something.
    fn take(&mut self) -> bool {
        let mut bytes = [0; 1024];
        let Ok(n) = self.socket.recv(&mut bytes) else {
            return false;
        };
        let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
        self.heard.extend(text.lines().map(str::to_owned));
        true
    }

    /// Waits until it has heard a line that begins so `n` times.
    #[track_caller]
    fn wait_for(&mut self, line: &str, n: usize, program: &mut Child) {
        let deadline = Instant::now() + WAIT_MAX;
        while self.heard.iter().filter(|it| it.starts_with(line)).count() < n {
            assert!(Instant::now() < deadline, "{line}: {:?}", self.heard);
            if !self.take() {
                assert!(program.try_wait().unwrap().is_none(), "it has ended");
            }
        }
    }
}

/// Starts a program with this configuration, and expects what `Type=notify` and `WatchdogSec=` of
/// its unit need.
#[track_caller]
fn is_a_service(command: &str, config: &str, status: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let file = path("config.json");
    let socket = path("agent.sock").display().to_string();
    std::fs::write(&file, config.replace("SOCKET", &socket)).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let mut manager = Manager::at(&path("notify"));
    let mut program = Command::new(env!("CARGO_BIN_EXE_tally-agent"))
        .args([command, "--config"])
        .arg(&file)
        .env("NOTIFY_SOCKET", path("notify"))
        .env("WATCHDOG_USEC", "500000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    manager.wait_for("READY=1", 1, &mut program);
    manager.wait_for(&format!("STATUS={status}"), 1, &mut program);
    manager.wait_for("WATCHDOG=1", 3, &mut program);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(program.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let ended = program.wait().unwrap();
    while manager.take() {}
    let stopped = manager.heard.iter().any(|it| it == "STOPPING=1");
    assert!(stopped, "{:?}", manager.heard);
    assert_eq!(ended.code(), Some(0));
    let ready = manager.heard.iter().filter(|it| *it == "READY=1");
    assert_eq!(ready.count(), 1, "{:?}", manager.heard);
}

#[test]
fn the_service_manager_hears_of_an_agent() {
    let config = format!(
        r#"{{"socket": "SOCKET", "switch": {{"address": "127.1.7.254"}},
            "transport": {{"type": "udp", "bind": "127.1.7.1"}}, "memory_mib": 64,
            "jobs": [{JOB}, "workers": 2}}]}}"#
    );
    is_a_service("serve", &config, "listening at ");
}

/// It serves before it has joined: a switch that comes late must not make systemd give it up.
#[test]
fn the_service_manager_hears_of_a_parameter_server() {
    let config = format!(
        r#"{{"switch": {{"address": "127.1.8.254"}}, "jobs": [{JOB}}}],
            "transport": {{"type": "udp", "bind": "127.1.8.1:0"}}}}"#
    );
    is_a_service("ps", &config, "serving 1 jobs");
}
