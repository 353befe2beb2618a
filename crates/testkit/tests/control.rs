//! `tallyctl` at a running switch: an operator sees what it does and changes it, another user may
//! only look, and the live view runs in a terminal.
//!
//! Uses the release programs (`cargo build --release`).

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tally_testkit::cluster::{Cluster, Spec, Timeouts};

const KEYS: [&str; 3] = [
    "6f1c0b1d5e0f4c5c9d2f8a7b3e4d5c6b",
    "1a2b3c4d5e6f708192a3b4c5d6e7f809",
    "9f8e7d6c5b4a39281706f5e4d3c2b1a0",
];

fn cluster() -> Cluster {
    let timeouts = Timeouts {
        join_ms: 60_000,
        stall_ms: 60_000,
        linger_ms: 2000,
    };
    let spec = Spec {
        jobs: vec![2],
        programs: programs(),
        timeouts,
        ..Spec::default()
    };
    Cluster::start(spec).unwrap()
}

fn run(mut command: Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that does not read its input is no error.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// What `tallyctl` prints, which must end well.
#[track_caller]
fn ctl(cluster: &Cluster, arguments: &str, input: &str) -> String {
    let output = run(command(cluster, "control.sock", arguments), input);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tallyctl {arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code and error of one that must fail.
#[track_caller]
fn fails(command: Command, input: &str) -> (i32, String) {
    let output = run(command, input);
    assert!(!output.status.success(), "it succeeded");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let error = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), error)
}

fn command(cluster: &Cluster, socket: &str, arguments: &str) -> Command {
    let mut command = Command::new(programs().join("tallyctl"));
    command.env_remove("TALLY_CONTROL");
    command.arg("--socket").arg(cluster.folder().join(socket));
    command.args(arguments.split_whitespace());
    command
}

fn json(text: String) -> OwnedValue {
    simd_json::to_owned_value(&mut text.into_bytes()).unwrap()
}

fn skipped(why: &str) {
    // Past the harness, which keeps what a passing test prints.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

#[test]
fn an_operator_sees_and_changes_a_running_switch() {
    let _alone = alone();
    let cluster = cluster();
    let job = Cluster::job_id(0);
    let arguments = ["--synthetic", "--elements", "40M", "--seed", "1"].map(str::to_owned);
    let workers: Vec<_> = (0..2)
        .map(|rank| cluster.start_worker(0, rank, arguments.to_vec()).unwrap())
        .collect();
    cluster
        .wait_for_results(1000, Duration::from_secs(60))
        .unwrap();
    // The job lasts as long as this takes.
    workers[0].signal("STOP").unwrap();

    // Seen.
    for part in
        "all jobs members ports macs queues pool cores drops events sessions card".split(' ')
    {
        assert!(
            !ctl(&cluster, &format!("show {part}"), "").is_empty(),
            "{part}"
        );
        json(ctl(&cluster, &format!("show {part} --json"), ""));
    }
    let jobs = ctl(&cluster, "show jobs", "");
    assert!(jobs.contains("running"), "{jobs}");
    let members = json(ctl(&cluster, "show members --json", ""));
    let members = members.as_array().unwrap();
    assert_eq!(members.len(), 3, "{members:?}");
    assert_eq!(members[1]["rank"].as_u64(), Some(1));
    assert!(
        members[1]["silent_s"].cast_f64().unwrap() < 5.0,
        "{members:?}"
    );
    let macs = json(ctl(&cluster, "show macs --json", ""));
    assert!(macs.is_array(), "{macs:?}");

    // Changed, each step twice.
    let add = "job add 900 --workers 2 --key-file -";
    assert!(ctl(&cluster, add, KEYS[0]).ends_with("configuration version 2\n"));
    let twice = ctl(&cluster, add, KEYS[0]);
    assert_eq!(twice, "nothing to change, configuration version 2\n");
    assert!(ctl(&cluster, "show jobs", "").contains("900"));
    for (n, change) in [
        (3, "job set 900 --workers 3 --max-slots 16"),
        (4, "job set 900 --max-slots default"),
        (5, "job drain 900"),
        (6, "job drain 900 --undo"),
        (7, "key rotate 900 --key-file -"),
        (8, "key retire 900"),
        (
            9,
            "tenant add lab --jobs 1000-1099 --max-jobs 1 --key-file -",
        ),
        (10, "tenant set lab --jobs 1000-1199 --max-jobs 2"),
        (11, "tenant remove lab"),
        (12, "job remove 900"),
    ] {
        let key = KEYS[if change.starts_with("tenant") { 2 } else { 1 }];
        let said = ctl(&cluster, change, key);
        assert!(
            said.ends_with(&format!("configuration version {n}\n")),
            "{change}: {said}"
        );
        let twice = ctl(&cluster, change, key);
        assert!(twice.starts_with("nothing to change"), "{change}: {twice}");
    }
    let at = |arguments: &str| command(&cluster, "control.sock", arguments);
    let (code, why) = fails(at(&format!("job remove {job} --expect 11")), "");
    assert!(
        code == 1 && why.contains("version 11 was expected, but 12 runs"),
        "{why}"
    );
    let (code, why) = fails(at("job set 900 --workers 2"), "");
    assert!(code == 1 && why.contains("job 900: not there"), "{why}");
    let (code, why) = fails(at(add), "0123");
    assert!(
        code == 2 && why.contains("32 to 128 hexadecimal digits"),
        "{why}"
    );
    let (code, why) = fails(at(add), &"ab".repeat(16));
    assert!(code == 2 && why.contains("one byte repeated"), "{why}");
    let (code, why) = fails(at("job add 900 --workers 65 --key-file -"), KEYS[0]);
    assert!(code == 2 && why.contains("1 to 64"), "{why}");
    assert!(ctl(&cluster, "reload", "").starts_with("nothing to change"));
    let (code, why) = fails(at("reload --expect 9999"), "");
    assert!(
        code == 1 && why.contains("version 9999 was expected"),
        "{why}"
    );
    assert!(ctl(&cluster, "show events", "").contains("job 900"));

    // Cleared.
    let frames = |arguments: &str| {
        let ports = json(ctl(&cluster, arguments, ""));
        ports[0]["rx_frames"].as_u64().unwrap()
    };
    ctl(&cluster, "clear", "");
    let (since, total) = (
        frames("show ports --json"),
        frames("show ports --json --total"),
    );
    assert!(since < total, "{since} of {total}");
    assert!(ctl(&cluster, "show ports", "").contains("when counters were cleared"));

    // A reader that goes away ends it.
    let mut watch = at("show cores --watch 0.1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(watch.stdout.take());
    assert!(watch.wait().unwrap().success());

    // None of it touched the job that runs.
    assert!(ctl(&cluster, "show jobs", "").contains("running"));
    workers[0].signal("CONT").unwrap();
    for worker in workers {
        worker.wait_ok(Duration::from_secs(120)).unwrap();
    }

    let ports = json(ctl(&cluster, "show ports --json", ""));
    let port = ports[0]["name"].as_str().unwrap();
    assert!(ctl(&cluster, &format!("port down {port}"), "").contains(port));
    assert!(ctl(&cluster, "show ports", "").contains("disabled"));
    let twice = ctl(&cluster, &format!("port down {port}"), "");
    assert!(twice.starts_with("nothing to change"), "{twice}");
    ctl(&cluster, &format!("port up {port}"), "");
    assert!(!ctl(&cluster, "show ports", "").contains("disabled"));
    let (code, why) = fails(at("port down no-such-port"), "");
    assert!(code != 0 && why.contains("no-such-port"), "{why}");
}

#[test]
fn another_user_may_look_and_hostile_clients_cost_nothing() {
    let _alone = alone();
    let cluster = cluster();
    let view = cluster.folder().join("view.sock");
    let many: Vec<_> = (0..1000)
        .map_while(|_| UnixStream::connect(&view).ok())
        .collect();
    let mut garbage = UnixStream::connect(&view);
    if let Ok(stream) = &mut garbage {
        let _ = stream.write_all(&[0xff; 65536]);
    }
    let jobs = ctl(&cluster, "show jobs", "");
    assert!(jobs.contains("idle") || jobs.contains("waiting"), "{jobs}");
    drop((many, garbage));

    let (code, why) = fails(command(&cluster, "none.sock", "show jobs"), "");
    assert!(code == 4 && why.contains("does not exist"), "{why}");
    let (code, why) = fails(command(&cluster, "view.sock", "job remove 1"), "");
    assert!(
        code == 1 && why.contains("may look and not change"),
        "{why}"
    );

    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0);
    if !is_root {
        skipped("another user needs root (setpriv)");
        return;
    }
    std::fs::set_permissions(cluster.folder(), Permissions::from_mode(0o755)).unwrap();
    let program = tempfile::tempdir().unwrap();
    std::fs::set_permissions(program.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = program.path().join("tallyctl");
    std::fs::copy(programs().join("tallyctl"), &copy).unwrap();
    let as_other = |socket: &str, arguments: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command
            .arg(&copy)
            .arg("--socket")
            .arg(cluster.folder().join(socket));
        command.args(arguments.split_whitespace());
        command
    };
    let output = run(as_other("view.sock", "show jobs"), "");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (code, why) = fails(as_other("view.sock", "clear"), "");
    assert!(code == 1 && why.contains("user 65534"), "{why}");
    let (code, why) = fails(as_other("control.sock", "show jobs"), "");
    assert!(
        code == 4 && why.contains("permission denied") && why.contains("mode 0600"),
        "{why}"
    );
    // A control socket that lets everyone in shows, and changes for those alone who may.
    let control = cluster.folder().join("control.sock");
    std::fs::set_permissions(control, Permissions::from_mode(0o666)).unwrap();
    let output = run(as_other("control.sock", "show jobs"), "");
    assert!(output.status.success());
    let _ = fails(as_other("control.sock", "show nothing"), "");
}

#[test]
fn the_live_view_runs_in_a_terminal_and_nowhere_else() {
    let _alone = alone();
    let cluster = cluster();
    let (code, why) = fails(command(&cluster, "control.sock", "top"), "");
    assert!(code == 2 && why.contains("needs a terminal"), "{why}");
    let (program, socket) = (
        programs().join("tallyctl"),
        cluster.folder().join("control.sock"),
    );
    let line = format!(
        "stty rows 40 cols 120; {} --socket {} top --interval 0.2",
        program.display(),
        socket.display()
    );
    let mut script = Command::new("script");
    script
        .args(["-qec", &line, "/dev/null"])
        .env("TERM", "xterm");
    let mut terminal = script
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    keys.write_all(b"q").unwrap();
    let begin = Instant::now();
    let output = terminal.wait_with_output().unwrap();
    drop(keys);
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert!(output.status.success(), "{:?}", output.status);
    let screen = String::from_utf8_lossy(&output.stdout);
    for part in ["tally-switch", "jobs", "ports", "worker1", "CPU"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
}
