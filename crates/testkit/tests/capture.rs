//! `tallyctl capture` at a running switch, read by tshark: frames of a job, dropped frames with
//! their reason, one port; and what a capture costs the job.
//!
//! Uses the release programs (`cargo build --release`) and tshark.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tally_testkit::cluster::{Cluster, HostId, Network, Spec, Timeouts};
use tally_testkit::reference::{Inputs, Reference};

const ELEMENTS: u64 = 2_000_000;

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

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn command(cluster: &Cluster, socket: &str, arguments: &str) -> Command {
    let mut command = Command::new(programs().join("tallyctl"));
    command.env_remove("TALLY_CONTROL");
    command.arg("--socket").arg(cluster.folder().join(socket));
    command.args(arguments.split_whitespace());
    command
}

/// A capture into a file, once it runs.
fn capture(cluster: &Cluster, arguments: &str, file: &Path) -> Child {
    let arguments = format!("capture {arguments} --write {}", file.display());
    let child = command(cluster, "control.sock", &arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !file.metadata().is_ok_and(|it| it.len() > 0) {
        assert!(start.elapsed() < Duration::from_secs(10), "no capture");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

/// How a capture that has its number ends; says what it lost.
#[track_caller]
fn ended(child: Child) -> String {
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{text}");
    text
}

/// What tshark with the project's dissector reads in a file: these fields of each frame.
fn read(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path, mode| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(folder.path(), 0o755);
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        std::fs::copy(from, &to).unwrap();
        open(&to, 0o644);
        to
    };
    let script = copy(&project().join("docs/wireshark/tally.lua"), "tally.lua");
    let file = copy(file, "capture.pcapng");
    // Some builds of Wireshark run no Lua for root.
    let mut tshark = if is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["env", "HOME=/nonexistent", "tshark"]);
        command
    } else {
        Command::new("tshark")
    };
    tshark.arg("-X");
    tshark.arg(format!("lua_script:{}", script.display()));
    tshark.args(["-n", "-T", "fields", "-r"]).arg(file);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |line: &str| line.split('\t').map(str::to_owned).collect();
    text.lines().map(row).collect()
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0)
}

#[test]
fn frames_of_a_job_reach_tshark_and_its_sums_stay_exact() {
    let _alone = alone();
    let cluster = cluster();
    let job = Cluster::job_id(0);
    let file = cluster.folder().join("job.pcapng");
    // More than the job has: it is captured to its end, under load.
    let mut child = capture(&cluster, &format!("--job {job} --seconds 3600"), &file);

    // One at a time, and for those alone who may change the switch.
    let refused = |socket, words: &str| {
        let output = command(&cluster, socket, "capture --write /dev/null").output();
        let output = output.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(words), "{said}");
    };
    refused("control.sock", "another capture runs");
    refused("view.sock", "may look and not change");

    let arguments = |_| {
        let elements = ELEMENTS.to_string();
        ["--synthetic", "--elements", &elements, "--seed", "1"]
            .map(str::to_owned)
            .to_vec()
    };
    for worker in cluster.start_workers(0, arguments).unwrap() {
        worker.wait_ok(Duration::from_secs(60)).unwrap();
    }
    let inputs = Inputs::Synthetic {
        element: "f32",
        seed: 1,
        elements: ELEMENTS,
        workers: 2,
    };
    let reference = Reference {
        program: project().join("worker-agent/reference/check.py"),
    };
    let outputs = (0..2).map(|rank| cluster.output(0, rank));
    let verdict = reference.check("fixed", 1024, &inputs, outputs).unwrap();
    assert!(verdict.exact, "{}", verdict.text);

    // Ending the client ends the capture.
    child.kill().unwrap();
    child.wait().unwrap();
    let last = cluster.folder().join("last.pcapng");
    let start = Instant::now();
    loop {
        let arguments = format!("capture --seconds 0.1 --write {}", last.display());
        if command(&cluster, "control.sock", &arguments)
            .output()
            .unwrap()
            .status
            .success()
        {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "it runs on");
        std::thread::sleep(Duration::from_millis(50));
    }

    let frames = read(
        &file,
        &["tally.type", "tally.job", "frame.len", "frame.cap_len"],
    );
    let count = |kind: &str| frames.iter().filter(|it| it[0] == kind).count();
    // Some may be lost to a full queue, which the client counts.
    assert!(
        count("5") > 100 && count("6") > 100,
        "{} frames",
        frames.len()
    );
    let jobs: BTreeSet<_> = frames.iter().map(|it| it[1].as_str()).collect();
    assert_eq!(jobs, BTreeSet::from([job.to_string().as_str()]));
    let is_cut = |it: &&Vec<String>| it[2] != it[3];
    assert!(frames.iter().filter(is_cut).all(|it| it[3] == "256"));
    assert!(frames.iter().any(|it| is_cut(&it)), "no frame is cut");
}

#[test]
fn packets_of_a_ring_are_shown_with_their_messages() {
    let _alone = alone();
    let cluster = Cluster::start(Spec {
        jobs: Vec::new(),
        guests: 3,
        ring: true,
        programs: programs(),
        ..Spec::default()
    })
    .unwrap();
    let file = cluster.folder().join("ring.pcapng");
    let mut child = capture(&cluster, "--snaplen 9000 --seconds 3600", &file);
    let arguments = |_| {
        ["--synthetic", "--elements", "60000"]
            .map(str::to_owned)
            .to_vec()
    };
    for member in cluster.start_ring(arguments).unwrap() {
        member.wait_ok(Duration::from_secs(60)).unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let output = Command::new("/usr/bin/python3")
        .arg(project().join("docs/wireshark/test_netreduce.py"))
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

#[test]
fn drops_have_their_reason_and_a_port_is_a_filter() {
    if !is_root() {
        // Past the harness, which keeps what a passing test prints.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: hostile hosts need root (namespaces)"
        );
        return;
    }
    let _alone = alone();
    let cluster = cluster();
    assert!(matches!(Network::for_this_user(), Network::Namespaces));
    let send = |host: HostId| {
        let line = "printf x >/dev/udp/10.84.0.254/31249";
        let mut bash = cluster.command_on(host, "bash");
        assert!(bash.args(["-c", line]).status().unwrap().success());
    };
    let hosts = [0, 1].map(|rank| cluster.worker_host(0, rank));
    let file = cluster.folder().join("drops.pcapng");

    let child = capture(&cluster, "--drops --count 2 --seconds 20", &file);
    hosts.into_iter().for_each(send);
    let said = ended(child);
    assert!(said.starts_with("2 frames captured, 0 lost"), "{said}");
    let fields = [
        "frame.comment",
        "frame.interface_name",
        "frame.packet_flags_direction",
    ];
    let frames = read(&file, &fields);
    assert_eq!(frames.len(), 2, "{frames:?}");
    for frame in &frames {
        assert!(
            frame[0].starts_with("dropped: header-truncated: "),
            "{frame:?}"
        );
        assert!(frame[2].ends_with('1'), "inbound: {frame:?}");
    }
    assert_ne!(frames[0][1], frames[1][1]);

    let port = &frames[1][1];
    let arguments = format!("--port {port} --drops header-truncated --count 1 --seconds 20");
    std::fs::remove_file(&file).unwrap();
    let child = capture(&cluster, &arguments, &file);
    hosts.into_iter().for_each(send);
    ended(child);
    let one = read(&file, &fields);
    assert_eq!((one.len(), &one[0][1]), (1, port), "{one:?}");

    let fails = |arguments: &str, words: &str| {
        let arguments = format!("capture {arguments} --write /dev/null");
        let output = command(&cluster, "control.sock", &arguments)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(words), "{said}");
    };
    fails("--drops no-such", "allowed truncated, ");
    fails("--port no-such", "port no-such: unknown; there are ");
    fails("--seconds 1e9", "allowed 0.1 to 3600");
    fails("--seconds NaN", "allowed 0.1 to 3600");
    fails("--count 0", "allowed 1 to 10000000");
    fails("--snaplen 1", "allowed 14 to 9216");
}
