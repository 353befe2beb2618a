//! `tally-load run` against a real switch over memif, as an ordinary user could run it: in both
//! loops, with several jobs, losses and few slots, every fragment gets its result and every sum is
//! right; and what must be refused is refused before anything is sent.
//!
//! Uses the release programs (`cargo build --release`).

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Of an example, and the job's number behind it.
const KEY: &str = "00112233445566778899aabbccdd";

/// A folder with a configuration of so many memif ports.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(ports: usize, jobs: &str, more: &str) -> Self {
        let stage = Self {
            folder: tempfile::Builder::new()
                .prefix("tally-load-")
                .tempdir()
                .unwrap(),
        };
        let socket = stage.file("memif.sock");
        let ports: Vec<_> = (0..ports)
            .map(|at| {
                format!(
                    r#"{{ "name": "p{at}", "device": "net_memif{at},role=server,id={at},socket={},socket-abstract=no,bsize=2048,rsize=10" }}"#,
                    socket.display()
                )
            })
            .collect();
        let config = format!(
            r#"{{ "address": {{ "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254" }},
                 "ports": [{}], "jobs": {jobs}, "stats_socket": "{}" {more} }}"#,
            ports.join(","),
            stage.file("switch.stat").display()
        );
        std::fs::write(stage.config(), config).unwrap();
        stage
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn config(&self) -> PathBuf {
        self.file("switch.json")
    }

    fn switch(&self) -> Switch {
        let log = std::fs::File::create(self.file("switch.log")).unwrap();
        let mut command = Command::new(programs().join("tally-switch"));
        command.arg("--config").arg(self.config()).stderr(log);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let switch = Switch { child };
        let start = Instant::now();
        let runs = || std::fs::read_to_string(self.file("switch.log")).unwrap();
        while !runs().contains("running on CPU") {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", runs());
            std::thread::sleep(Duration::from_millis(20));
        }
        switch
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(programs().join("tally-load"));
        command.args(["run", "--json", "--quiet", "--verify", "--config"]);
        command.arg(self.config()).args(arguments);
        command
    }

    fn load(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// A load that must go well; what it reports.
    #[track_caller]
    fn loaded(&self, arguments: &[&str]) -> OwnedValue {
        let output = self.load(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let mut json = output.stdout;
        let report = simd_json::to_owned_value(&mut json).unwrap();
        let counts = &report["results"]["all"]["counts"];
        assert_eq!(number(counts, "lost"), 0, "{counts}");
        assert_eq!(number(counts, "unasked"), 0, "{counts}");
        report
    }

    #[track_caller]
    fn refuses(&self, arguments: &[&str], words: &[&str]) {
        let start = Instant::now();
        let output = self.load(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty());
        for word in words {
            assert!(errors.contains(word), "no `{word}` in {errors}");
        }
        assert!(start.elapsed() < Duration::from_secs(25), "{errors}");
    }

    /// The switch's phase of a job.
    fn phase(&self, job: usize) -> String {
        let output = Command::new(programs().join("tally-switch"))
            .arg("--json")
            .arg("--stats")
            .arg(self.file("switch.stat"))
            .output()
            .unwrap();
        let report = simd_json::to_owned_value(&mut output.stdout.clone()).unwrap();
        report["jobs"][job]["phase"].as_str().unwrap().to_owned()
    }
}

/// A running switch.
struct Switch {
    child: Child,
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(value: &OwnedValue, key: &str) -> u64 {
    value[key].as_u64().unwrap()
}

fn jobs(workers: &[u8]) -> String {
    let job = |(at, workers): (usize, &u8)| {
        format!(
            r#"{{ "id": {id}, "key": "{KEY}{id:04x}", "workers": {workers} }}"#,
            id = 7 + at
        )
    };
    let jobs: Vec<_> = workers.iter().enumerate().map(job).collect();
    format!("[{}]", jobs.join(","))
}

#[test]
fn the_closed_loop_keeps_a_window_under_way_and_leaves_in_the_end() {
    let _alone = alone();
    let stage = Stage::new(3, &jobs(&[4]), "");
    let _switch = stage.switch();
    let arguments = "--frames 8000 --seconds 3600 --warm-up 0 --window 16";
    let report = stage.loaded(&arguments.split(' ').collect::<Vec<_>>());
    let job = &report["results"]["jobs"][0];
    let counts = &job["counts"];
    let fragments = number(counts, "fragments");
    assert_eq!(
        (number(counts, "frames_sent"), fragments),
        (8000, 2000),
        "{counts}"
    );
    // Four workers on three ports, and the PS on the fourth seat: a result comes on each.
    assert_eq!(number(counts, "results"), 3 * fragments);
    assert!(job["latency_us"]["p50"].cast_f64().unwrap() > 0.0);
    assert_eq!(report["parameters"]["loop_is"].as_str(), Some("closed"));
    assert_eq!(stage.phase(0), "idle", "all have left");
}

#[test]
fn the_open_loop_makes_what_is_due_with_floats_of_two_priorities() {
    let _alone = alone();
    let stage = Stage::new(2, &jobs(&[3]), "");
    let _switch = stage.switch();
    // So slow that a window holds what is due while the machine does something else for a while.
    let arguments = "--seconds 2 --warm-up 0.2 --rate 3kpps --element f32 --payload 256 --priorities 7=0:1,200:3";
    let report = stage.loaded(&arguments.split(' ').collect::<Vec<_>>());
    let job = &report["results"]["jobs"][0];
    let share = job["made_share"].cast_f64().unwrap();
    assert!((0.9..=1.01).contains(&share), "{share}");
    let of = |at: usize| {
        let by = &job["priorities"][at];
        (number(by, "priority"), number(&by["latency_us"], "count"))
    };
    let ((low, lows), (high, highs)) = (of(0), of(1));
    assert_eq!((low, high), (0, 200));
    assert!(
        lows > 300 && highs > 2 * lows && highs < 4 * lows,
        "{lows} {highs}"
    );
    // What waited is in the corrected figure and not in the other.
    let p50 = |of: &str| job[of]["p50"].cast_f64().unwrap();
    assert!(p50("from_first_us") >= p50("latency_us"));
    assert!(p50("latency_us") >= p50("uncorrected_us"));
}

#[test]
fn several_jobs_on_few_slots_with_losses_and_reordering_complete_every_fragment() {
    let _alone = alone();
    for policy in ["esa", "fcfs"] {
        let more = format!(r#", "pool": {{ "policy": "{policy}", "slots": 16 }}"#);
        let stage = Stage::new(3, &jobs(&[3, 2, 1]), &more);
        let _switch = stage.switch();
        let arguments = "--frames 30000 --seconds 3600 --warm-up 0 --loss 0.02 --reorder 0.05 --seed 3 --priorities 0:1,9:1";
        let report = stage.loaded(&arguments.split(' ').collect::<Vec<_>>());
        let results = &report["results"];
        let counts = &results["all"]["counts"];
        for name in ["from_ps", "collided", "frames_again", "nacks"] {
            assert!(number(counts, name) > 0, "{policy}: no {name}: {counts}");
        }
        for name in [
            "lost_on_purpose_sent",
            "lost_on_purpose_received",
            "reordered_on_purpose",
        ] {
            assert!(number(results, name) > 0, "{policy}: no {name}");
        }
        assert!(number(&results["jobs"][0]["ps"], "partials") > 0);
        let fragments = |job: usize| number(&results["jobs"][job]["counts"], "fragments");
        assert_eq!([0, 1, 2].map(fragments), [3333, 5000, 10_000]);
    }
}

#[test]
fn a_count_ends_it_and_one_job_of_several_can_be_chosen() {
    let _alone = alone();
    let stage = Stage::new(1, &jobs(&[2, 2]), "");
    let _switch = stage.switch();
    let start = Instant::now();
    let arguments = [
        "--frames",
        "1001",
        "--job",
        "8",
        "--seconds",
        "3600",
        "--warm-up",
        "0",
    ];
    let report = stage.loaded(&arguments);
    assert!(start.elapsed() < Duration::from_secs(20));
    let all = &report["results"]["jobs"];
    assert_eq!(all.as_array().unwrap().len(), 1);
    assert_eq!(
        number(&all[0]["counts"], "frames_sent"),
        1000,
        "whole fragments"
    );
}

#[test]
fn fixed_members_need_not_join_and_may_be_loaded_again_and_again() {
    let _alone = alone();
    let member = |port, host| {
        format!(
            r#"{{ "port": "p{port}", "mac": "02:84:00:00:00:0{host}", "ip": "10.84.0.{host}", "udp_port": 40000 }}"#
        )
    };
    let jobs = format!(
        r#"[{{ "id": 7, "key": "{KEY}0007", "workers": 2, "fixed": {{ "payload_bytes": 512,
             "workers": [{}, {}], "ps": {} }} }}]"#,
        member(0, 1),
        member(1, 2),
        member(0, 3)
    );
    let stage = Stage::new(2, &jobs, r#", "pool": { "slots": 8, "policy": "esa" }"#);
    let _switch = stage.switch();
    // Each finds where the one before has left the fragment numbers.
    for _ in 0..4 {
        let arguments = "--frames 4000 --seconds 3600 --warm-up 0 --loss 0.01";
        let report = stage.loaded(&arguments.split(' ').collect::<Vec<_>>());
        let counts = &report["results"]["all"]["counts"];
        assert_eq!(number(counts, "fragments"), 2000, "{counts}");
    }
}

/// Without the `munmap` of `dpdk-sys` each of these loads crashed the switch one time out of three;
/// with one that waited for 10 ms, and not for the burst, one of thirty on a busy machine.
#[test]
fn a_switch_that_never_rests_survives_that_its_peers_go() {
    let _alone = alone();
    let stage = Stage::new(8, &jobs(&[8]), r#", "idle": "spin""#);
    let mut switch = stage.switch();
    for n in 1..=6 {
        stage.loaded(&["--seconds", "0.1", "--warm-up", "0"]);
        std::thread::sleep(Duration::from_millis(200));
        let ended = switch.child.try_wait().unwrap();
        assert!(ended.is_none(), "after {n} loads: {ended:?}");
    }
}

/// A switch with a control socket, and a fleet of it that says it sums next to nothing.
fn stage_of_a_fleet(folder: &Path, jobs_of_fleet: &str) -> (Stage, PathBuf) {
    let socket = folder.join("control.sock");
    let control = format!(
        r#", "name": "leaf", "control": {{ "socket": "{}" }}"#,
        socket.display()
    );
    let stage = Stage::new(3, &jobs(&[2]), &control);
    let host = |name| format!(r#"{{ "name": "{name}", "switch": "leaf", "rate": 1000000 }}"#);
    let fleet = format!(
        r#"{{ "unit": "Mbit/s", "measured": "measured.json", "hosts": [{}, {}], "servers": [{}],
             "switches": [{{ "name": "leaf", "capacity": 1, "control": "{}" }}],
             "jobs": [{jobs_of_fleet}] }}"#,
        host("a"),
        host("b"),
        host("ps"),
        socket.display()
    );
    let file = stage.file("fleet.json");
    std::fs::write(&file, fleet).unwrap();
    (stage, file)
}

/// Mbit/s of gradients that a load of two workers brought.
fn sums(load: Child) -> f64 {
    let mut report = load.wait_with_output().unwrap().stdout;
    let report = simd_json::to_owned_value(&mut report).unwrap();
    let fragments = report["results"]["all"]["fragments_per_s"].cast_f64();
    2.0 * fragments.unwrap() * 1024.0 * 8.0 / 1e6
}

/// A controller that runs measures a loaded switch three times, keeps that, and plans with it.
#[test]
fn a_controller_that_runs_learns_what_a_switch_can_sum() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (stage, file) = stage_of_a_fleet(folder.path(), "");
    let _switch = stage.switch();
    let measured = stage.file("measured.json");
    let none = r#"{ "unit": "Mbit/s", "switches": {} }"#;
    std::fs::write(&measured, none).unwrap();
    let mut load = stage.command(&["--seconds", "8", "--warm-up", "0.5"]);
    let load = load.stdout(Stdio::piped()).spawn().unwrap();
    let mut command = Command::new(programs().join("tally-controller"));
    command
        .arg("run")
        .arg(&file)
        .args(["--json", "--load-window", "0.8"]);
    let mut controller = command.stdout(Stdio::piped()).spawn().unwrap();
    let shown = || std::fs::read_to_string(&measured).unwrap();
    let start = Instant::now();
    while !shown().contains("leaf") && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let sums = sums(load);
    // It reads its file again.
    std::thread::sleep(Duration::from_secs(1));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(controller.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let mut events = String::new();
    controller
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut events)
        .unwrap();
    assert!(controller.wait().unwrap().success());
    let shown = simd_json::to_owned_value(&mut shown().into_bytes()).unwrap();
    let rate = shown["switches"]["leaf"]["rate"].cast_f64().unwrap();
    assert!((0.5..2.0).contains(&(rate / sums)), "{sums}: {shown}");
    let (_, after) = events
        .split_once(r#""event":"measured","switch":"leaf","planned":1.0"#)
        .unwrap();
    assert!(after.contains(r#""event":"fleet""#), "{events}");
    assert!(after.contains(r#""event":"plan""#), "{events}");
}

/// `tally-controller capacity` sees what the load says that the switch sums, and a plan has it.
#[test]
fn a_full_switch_shows_what_it_can_sum() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let job = r#"{ "name": "job", "workers": ["a", "b"], "bytes": 1000 }"#;
    let (stage, file) = stage_of_a_fleet(folder.path(), job);
    let _switch = stage.switch();
    let controller = |arguments: &[&str]| {
        let mut command = Command::new(programs().join("tally-controller"));
        let command = command.arg(arguments[0]).arg(&file).args(&arguments[1..]);
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        simd_json::to_owned_value(&mut output.stdout.clone()).unwrap()
    };
    let mut load = stage.command(&["--seconds", "6", "--warm-up", "0.5"]);
    let load = load.stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let measured = controller(&["capacity", "--seconds", "2", "--write", "--json"]);
    let sums = sums(load);
    let leaf = &measured["switches"]["leaf"];
    let [rate, capacity, busy] =
        ["rate", "capacity", "busy"].map(|it| leaf[it].cast_f64().unwrap());
    assert!((0.5..2.0).contains(&(rate / sums)), "{sums}: {measured}");
    assert!(
        (capacity - rate / busy).abs() < 1e-6 * capacity,
        "{measured}"
    );
    // Two streams are summed at this rate; the cables have more.
    let plan = controller(&["plan", "--algorithm", "switchml", "--json"]);
    let level = plan["level"].cast_f64().unwrap();
    assert!((level - capacity / 2.0).abs() < 1e-3 * capacity, "{plan}");
}

#[test]
fn an_interrupt_ends_it_in_order() {
    let _alone = alone();
    let stage = Stage::new(1, &jobs(&[2]), "");
    let _switch = stage.switch();
    let mut command = stage.command(&["--seconds", "60"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while stage.phase(0) != "running" {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let mut output = child.wait_with_output().unwrap();
    assert!(output.status.success() && start.elapsed() < Duration::from_secs(30));
    let report = simd_json::to_owned_value(&mut output.stdout).unwrap();
    assert_eq!(report["results"]["interrupted"].as_bool(), Some(true));
    assert_eq!(stage.phase(0), "idle", "all have left");
}

#[test]
fn a_switch_with_another_address_gets_nothing_but_arp() {
    let _alone = alone();
    let stage = Stage::new(1, &jobs(&[1]), "");
    let _switch = stage.switch();
    let other = stage.file("other.json");
    let text = std::fs::read_to_string(stage.config()).unwrap();
    std::fs::write(&other, text.replace("4c:4c:59", "4c:4c:58")).unwrap();
    let output = Command::new(programs().join("tally-load"))
        .args(["run", "--quiet", "--config"])
        .arg(&other)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    assert!(errors.contains("02:54:41:4c:4c:59"), "{errors}");
    // No member asked to join.
    assert_eq!(stage.phase(0), "idle");
}

#[test]
fn a_wrong_key_and_a_missing_ps_are_named() {
    let _alone = alone();
    let stage = Stage::new(1, &jobs(&[1]), "");
    {
        let _switch = stage.switch();
        let good = std::fs::read_to_string(stage.config()).unwrap();
        let bad = good.replace(&format!("{KEY}0007"), &format!("{KEY}0bad"));
        std::fs::write(stage.config(), bad).unwrap();
        stage.refuses(&[], &["job 7", "key"]);
        std::fs::write(stage.config(), good).unwrap();
    }
    let _switch = stage.switch();
    stage.refuses(&["--external-ps"], &["job 7", "parameter server"]);
}

#[test]
fn round_trips_are_measured_at_shares_of_the_highest_rate() {
    let _alone = alone();
    let output = Command::new(programs().join("tally-perf"))
        .args([
            "latency",
            "--json",
            "--no-macswap",
            "--workers",
            "2",
            "--payload",
            "256",
        ])
        .args(["--rounds", "1", "--seconds", "1", "--load", "10,50"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report = simd_json::to_owned_value(&mut output.stdout.clone()).unwrap();
    let rows = &report["results"]["rows"];
    assert_eq!(rows.as_array().unwrap().len(), 2);
    for (at, share) in [(0, 0.1), (1, 0.5)] {
        let figure = |name: &str| rows[at][name]["median"].cast_f64().unwrap();
        assert_eq!(rows[at]["program"].as_str(), Some("switch"));
        let asked = share * figure("highest_frames_per_s") * figure("made_share");
        let ratio = figure("frames_per_s") / asked;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
        assert!(figure("p50_us") > 0.0 && figure("p50_us") <= figure("p999_us"));
        assert!(figure("residence_p50_us") > 0.0);
    }
}

#[test]
fn what_has_no_bounds_or_no_job_is_refused_before_anything_is_opened() {
    let stage = Stage::new(1, &jobs(&[1]), "");
    for (arguments, words) in [
        (&["--seconds", "0"][..], &["--seconds 0"][..]),
        (&["--seconds", "3601"], &["--seconds", "3600"]),
        (&["--seconds", "inf"], &["--seconds"]),
        (&["--frames", "0"], &["--frames 0"]),
        (&["--warm-up", "-1"], &["-1"]),
        (&["--loss", "0.6"], &["--loss", "0.5"]),
        (&["--reorder", "NaN"], &["--reorder"]),
        (&["--job", "9"], &["--job 9", "7"]),
        (&["--rate", "10"], &["10", "Mpps"]),
        (&["--window", "0"], &["--window"]),
        (&["--payload", "100"], &["--payload"]),
        (&["--port", "q=net_null0"], &["no port `q`"]),
        (&["--priorities", "300"], &["300"]),
    ] {
        stage.refuses(arguments, words);
    }
    // Without a switch there is nothing to load.
    stage.refuses(&[], &["port p0"]);
}
