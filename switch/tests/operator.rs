//! What an operator and the service manager see of the program: exit codes, checks, readiness.

#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const HEAD: &str = r#""address": {"mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254"}"#;
const PORTS: &str = r#""ports": [{"device": "net_null0"}]"#;

struct Place(tempfile::TempDir);

impl Place {
    fn new(members: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("switch.json"),
            format!("{{{HEAD}, {members}}}"),
        )
        .unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tally-switch"));
        command
            .arg("--config")
            .arg(self.path("switch.json"))
            .args(arguments)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC");
        command
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        ended(self.command(arguments).output().unwrap())
    }
}

fn ended(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn the_version_names_the_build() {
    let switch = Command::new(env!("CARGO_BIN_EXE_tally-switch"));
    let (code, said, _) = ended({ switch }.arg("--version").output().unwrap());
    let want = format!("tally-switch {}\n", tally_program::VERSION);
    assert_eq!((code, said), (Some(0), want));
}

#[test]
fn man_pages_and_completions_are_made_without_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let mut switch = Command::new(env!("CARGO_BIN_EXE_tally-switch"));
    let output = switch
        .arg("__documents")
        .arg(folder.path())
        .output()
        .unwrap();
    assert_eq!(ended(output), (Some(0), String::new(), String::new()));
    let page = std::fs::read_to_string(folder.path().join("tally-switch.1")).unwrap();
    assert!(page.contains("Exit codes:"), "{page}");
}

#[test]
fn a_configuration_that_cannot_be_used_is_code_2_and_check_names_all_faults() {
    let place = Place::new(&format!(r#"{PORTS}, "window": 0, "colour": "red""#));
    let (code, _, log) = place.run(&[]);
    assert_eq!(code, Some(2), "{log}");
    let (code, said, _) = place.run(&["--check"]);
    assert_eq!(code, Some(2));
    for words in ["window: found 0", "colour: unknown field"] {
        assert!(said.contains(words), "{said}");
    }
    let (code, json, _) = place.run(&["--check", "--json"]);
    assert_eq!(code, Some(2));
    let found: tally_schema::doctor::Diagnosis =
        simd_json::from_slice(&mut json.into_bytes()).unwrap();
    assert!(found.bad >= 2);
}

/// The example of a fabric: two spines, four leaves, two jobs with different roots.
#[test]
fn the_files_of_the_example_s_fabric_fit_together() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/fabric");
    let files = ["leaf1", "leaf2", "leaf3", "leaf4", "spine1", "spine2"];
    let files = files.map(|name| folder.join(format!("switch-{name}.json")));
    let check = |files: &[PathBuf]| {
        let mut switch = Command::new(env!("CARGO_BIN_EXE_tally-switch"));
        ended(switch.arg("--check").args(files).output().unwrap())
    };
    let (code, said, _) = check(&files);
    assert_eq!(code, Some(0), "{said}");
    let want = "6 switches, 8 links between them, 2 jobs with trees";
    assert!(said.contains(want) && !said.contains("warning"), "{said}");
    // Each of them is needed.
    for at in 0..files.len() {
        let mut some = files.to_vec();
        some.remove(at);
        let (code, said, _) = check(&some);
        assert_ne!(code, Some(0), "without file {at}: {said}");
    }
}

#[test]
fn a_machine_that_cannot_do_it_is_code_1_of_a_check_and_4_of_a_start() {
    let place = Place::new(&format!(r#"{PORTS}, "cores": [4000]"#));
    let (code, said, _) = place.run(&["--check"]);
    assert_eq!(code, Some(1), "{said}");
    let (code, _, log) = place.run(&[]);
    assert_eq!(code, Some(4), "{log}");
    // Before DPDK says anything.
    let want = "tally-switch: cores[0]: found CPU 4000, expected one of ";
    assert!(log.starts_with(want) && log.lines().count() == 1, "{log}");
}

#[test]
fn no_errno_is_told_twice() {
    let place = Place::new(r#""ports": [{"device": "packet0,iface=tally-none"}]"#);
    let (code, _, log) = place.run(&[]);
    assert_eq!(code, Some(4), "{log}");
    assert_eq!(log.matches("tally-none` in").count(), 1, "{log}");
    let place = Place::new(&format!(r#"{PORTS}, "stats_socket": "/nowhere/s.sock""#));
    let (code, _, log) = place.run(&[]);
    assert_eq!(code, Some(4), "{log}");
    assert_eq!(log.matches("os error 2").count(), 1, "{log}");
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_the_switch_runs() {
    let place = Place::new(PORTS);
    let (code, said, log) = place.run(&["--report", "/nowhere/r.json"]);
    assert_eq!((code, said.as_str()), (Some(3), ""), "{log}");
    assert!(
        log.contains("/nowhere/r.json: the report cannot be written"),
        "{log}"
    );
}

/// What the program tells the service manager.
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

    /// Waits until it has heard that line `n` times.
    fn wait_for(&mut self, line: &str, n: usize, child: &mut Child) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.heard.iter().filter(|it| *it == line).count() < n {
            assert!(Instant::now() < deadline, "{line}: {:?}", self.heard);
            let mut bytes = [0; 1024];
            match self.socket.recv(&mut bytes) {
                Ok(n) => {
                    let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                    self.heard.extend(text.lines().map(str::to_owned));
                }
                Err(_) => assert!(child.try_wait().unwrap().is_none(), "it has ended"),
            }
        }
    }
}

#[test]
fn the_service_manager_hears_of_start_life_and_stop() {
    let place = Place::new(PORTS);
    let mut manager = Manager::at(&place.path("notify"));
    let mut child = place
        .command(&[])
        .env("NOTIFY_SOCKET", place.path("notify"))
        .env("WATCHDOG_USEC", "500000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    manager.wait_for("READY=1", 1, &mut child);
    let status = |it: &String| it.starts_with("STATUS=running on CPU");
    assert!(manager.heard.iter().any(status), "{:?}", manager.heard);
    manager.wait_for("WATCHDOG=1", 3, &mut child);
    let pid = child.id().to_string();
    let signalled = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(signalled.unwrap().success());
    // A child that has ended is no fault here.
    let ended = child.wait().unwrap();
    let mut bytes = [0; 1024];
    while let Ok(n) = manager.socket.recv(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
        manager.heard.extend(text.lines().map(str::to_owned));
    }
    assert!(
        manager.heard.contains(&"STOPPING=1".to_owned()),
        "{:?}",
        manager.heard
    );
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn init_writes_files_once_and_doctor_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut switch = Command::new(env!("CARGO_BIN_EXE_tally-switch"));
        ended(
            switch
                .args(arguments)
                .current_dir(&folder)
                .output()
                .unwrap(),
        )
    };
    let options = "init --port net_null0 --port net_null1 --host 10.84.0.1 --host 10.84.0.2 --address 10.84.0.254";
    let options: Vec<_> = options.split(' ').collect();
    let (code, said, log) = run(&options);
    assert_eq!(code, Some(0), "{log}");
    assert!(
        said.contains("wrote switch.json, ps.json, agent-1.json"),
        "{said}"
    );
    let (code, _, log) = run(&options);
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("switch.json: File exists"), "{log}");
    let (code, said, _) = run(&["doctor", "--config", "switch.json"]);
    // The folder of the socket is there if a package is installed.
    assert!(code == Some(0) || said.contains("/run/tally"), "{said}");
    assert!(said.starts_with("good     configuration"), "{said}");
    let (code, said, _) = run(&["schema", "agent"]);
    assert!(
        code == Some(0) && said.contains("Configuration of tally-agent serve"),
        "{said}"
    );
    assert_eq!(run(&["schema", "job"]).0, Some(2));
    assert_eq!(
        run(&["init", "--port", "a", "--address", "10.84.0.254"]).0,
        Some(2)
    );
    assert_eq!(
        run(&["--config", "switch.json", "schema", "agent"]).0,
        Some(2)
    );
}

/// What DPDK's own client answers to these commands, a line of JSON each.
fn telemetry(place: &Place, commands: &str) -> Vec<String> {
    let mut client = Command::new("dpdk-telemetry.py")
        .args(["-f", "tally"])
        .env("RUNTIME_DIRECTORY", place.0.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = client.stdin.take().unwrap();
    // One that finds no socket has ended.
    let _ = std::io::Write::write_all(&mut input, commands.as_bytes());
    drop(input);
    let (_, said, _) = ended(client.wait_with_output().unwrap());
    said.lines().map(str::to_owned).collect()
}

#[test]
fn dpdk_s_own_client_reads_the_report() {
    if !Path::new("/usr/bin/dpdk-telemetry.py").exists() {
        // Past the harness, which keeps what a passing test prints.
        let skipped = b"SKIPPED: no dpdk-telemetry.py (Debian's package dpdk)\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), skipped);
        return;
    }
    let job = r#"{"id": 7, "workers": 2, "key": "6f1c0b1d5e0f4c5c9d2f8a7b3e4d5c6b"}"#;
    let place = Place::new(&format!(
        r#"{PORTS}, "eal": {{"telemetry": true}}, "jobs": [{job}]"#
    ));
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(place.path("switch.json"), private).unwrap();
    let mut child = place
        .command(&[])
        .env("RUNTIME_DIRECTORY", place.0.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let commands = "/tally/jobs\n/tally/jobs,7\n/tally/ports\n/tally/ports,net_null0\n/tally/cores\n\
                    /tally/drops\n/tally/info\n/tally/jobs,8\n/ethdev/list\n";
    let deadline = Instant::now() + Duration::from_secs(30);
    let said = loop {
        let said = telemetry(&place, commands);
        // Its commands are there once the switch runs.
        if said.len() == 9 && said[0].contains('[') {
            break said;
        }
        assert!(Instant::now() < deadline, "{said:?}");
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(100));
    };
    let is_like = |at: usize, words: &[&str]| {
        let line: &String = &said[at];
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    };
    is_like(0, &[r#"{"/tally/jobs": ["7"]}"#]);
    is_like(1, &[r#""workers": 2"#]);
    is_like(2, &[r#"["net_null0"]"#]);
    is_like(3, &[r#""name": "net_null0""#, r#""rx_frames": "#]);
    is_like(5, &[r#"{"/tally/drops": {"#]);
    is_like(
        6,
        &[r#""version": "#, r#""config_version": 1"#, r#""ports": 1"#],
    );
    is_like(7, &["null"]);
    is_like(8, &["[0]"]);
    let cpu = said[4].split('"').nth(3).unwrap();
    let core = telemetry(&place, &format!("/tally/cores,{cpu}\n"));
    assert!(core[0].contains(r#""busy_turns": "#), "{core:?}");
    let pid = child.id().to_string();
    let signalled = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(signalled.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
