//! Whole clusters of real processes: a fault ends in a clear error and in bounded time, and other
//! traffic over the switch continues.
//!
//! Uses the release programs (`cargo build --release`). As root in namespaces, else over memif;
//! what needs a kernel on the hosts is skipped, loudly, without root.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tally_engine::PolicyName;
use tally_testkit::cluster::{Cluster, Ended, Network, Process, Program, Spec, Timeouts};
use tally_testkit::reference::{Inputs, Reference};

/// Says so past the harness, which keeps what a passing test prints.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn spec(workers: u8) -> Spec {
    let timeouts = Timeouts {
        join_ms: 3000,
        stall_ms: 3000,
        ..Timeouts::default()
    };
    Spec {
        jobs: vec![workers],
        programs: programs(),
        timeouts,
        ..Spec::default()
    }
}

/// For jobs that must end well, however long the machine lets them, or what is started again, wait.
const PATIENT: Timeouts = Timeouts {
    join_ms: 60_000,
    stall_ms: 60_000,
    linger_ms: 2000,
};

fn gradients(rank: u8) -> Vec<String> {
    let file = project().join(format!(
        "worker-agent/gradients/digits/step40/rank{rank}.safetensors"
    ));
    ["--input".into(), file.display().to_string()].to_vec()
}

fn synthetic(elements: &str) -> Vec<String> {
    ["--synthetic", "--elements", elements, "--seed", "1"]
        .map(str::to_owned)
        .to_vec()
}

/// Waits for a program that must fail, soon, with words in its output.
#[track_caller]
fn fails(program: Program, words: &[&str]) {
    let Ended { status, log } = program.wait(Duration::from_secs(20)).unwrap();
    assert!(!status.success(), "it succeeded:\n{log}");
    for word in words {
        assert!(log.contains(word), "no `{word}` in:\n{log}");
    }
}

/// Waits until the job is in its middle.
fn in_the_middle(cluster: &Cluster) {
    cluster
        .wait_for_results(1000, Duration::from_secs(20))
        .unwrap();
}

#[test]
fn a_missing_worker_is_named() {
    let _alone = alone();
    let cluster = Cluster::start(spec(3)).unwrap();
    let workers: Vec<_> = [0, 1]
        .map(|r| cluster.start_worker(0, r, gradients(r)).unwrap())
        .into();
    for worker in workers {
        fails(worker, &["rank 2"]);
    }
    assert!(!cluster.output(0, 0).exists());
}

#[test]
fn a_wrong_key_is_named() {
    let _alone = alone();
    let worker_key = Some("00112233445566778899aabbccdd0bad".parse().unwrap());
    let cluster = Cluster::start(Spec {
        worker_key,
        ..spec(1)
    })
    .unwrap();
    fails(cluster.start_worker(0, 0, gradients(0)).unwrap(), &["key"]);
}

#[test]
fn tensors_of_another_shape_are_named() {
    let _alone = alone();
    let cluster = Cluster::start(spec(2)).unwrap();
    let first = cluster.start_worker(0, 0, gradients(0)).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let second = cluster.start_worker(0, 1, synthetic("1000")).unwrap();
    fails(second, &["rank 0"]);
    fails(first, &["rank 1"]);
}

#[test]
fn a_switch_that_dies_ends_the_workers_without_output() {
    let _alone = alone();
    let mut cluster = Cluster::start(spec(2)).unwrap();
    let workers = cluster.start_workers(0, |_| synthetic("100M")).unwrap();
    in_the_middle(&cluster);
    cluster.kill_switch().unwrap();
    for worker in workers {
        fails(worker, &["switch"]);
    }
    assert!(!cluster.output(0, 0).exists() && !cluster.output(0, 1).exists());
}

#[test]
fn a_worker_that_dies_is_named_to_the_others_and_the_next_job_runs() {
    let _alone = alone();
    let timeouts = Timeouts {
        join_ms: 10_000,
        stall_ms: 10_000,
        ..Timeouts::default()
    };
    let cluster = Cluster::start(Spec {
        timeouts,
        ..spec(3)
    })
    .unwrap();
    let mut workers = cluster.start_workers(0, |_| synthetic("100M")).unwrap();
    in_the_middle(&cluster);
    workers.remove(1).kill().unwrap();
    for worker in workers {
        fails(worker, &["rank 1"]);
    }
    // Everything the dead job held is free: the same job runs again at once.
    for worker in cluster.start_workers(0, gradients).unwrap() {
        worker.wait_ok(Duration::from_secs(20)).unwrap();
    }
    assert_eq!(cluster.switch_report().unwrap().in_use.slots_in_use, 0);
}

fn reference() -> Reference {
    Reference {
        program: project().join("worker-agent/reference/check.py"),
    }
}

/// What all workers of a synthetic job wrote is right, bit for bit.
#[track_caller]
fn synthetic_is_exact(cluster: &Cluster, job: usize, workers: u8, elements: &str) {
    let inputs = Inputs::Synthetic {
        element: "f32",
        seed: 1,
        elements: elements.parse().unwrap(),
        workers: workers.into(),
    };
    let outputs = (0..workers).map(|rank| cluster.output(job, rank));
    let verdict = reference().check("fixed", 1024, &inputs, outputs).unwrap();
    assert!(verdict.exact, "{}", verdict.text);
}

#[test]
fn a_parameter_server_may_die_and_come_back_in_the_middle() {
    let _alone = alone();
    if Network::for_this_user() != Network::Namespaces {
        skipped("needs root (a memif client connects once)");
        return;
    }
    // Few slots and some loss, so that there is work for it.
    let slots = Some(64);
    let mut cluster = Cluster::start(Spec {
        slots,
        loss: 0.02,
        timeouts: PATIENT,
        ..spec(2)
    })
    .unwrap();
    let workers = cluster.start_workers(0, |_| synthetic("4000000")).unwrap();
    in_the_middle(&cluster);
    cluster.restart(Process::Ps).unwrap();
    for worker in workers {
        worker.wait_ok(Duration::from_secs(60)).unwrap();
    }
    synthetic_is_exact(&cluster, 0, 2, "4000000");
}

/// P-6: each of two servers completes the fragments of its part, and the sums are exact also when
/// one of them dies and another comes in its place.
#[test]
fn two_parameter_servers_share_the_fragments_and_one_may_die() {
    let _alone = alone();
    let may_restart = Network::for_this_user() == Network::Namespaces;
    let mut cluster = Cluster::start(Spec {
        parameter_servers: 2,
        policy: PolicyName::None,
        timeouts: PATIENT,
        ..spec(2)
    })
    .unwrap();
    let workers = cluster.start_workers(0, |_| synthetic("8000000")).unwrap();
    in_the_middle(&cluster);
    let job = &cluster.switch_report().unwrap().jobs[0];
    assert_eq!((job.ps, job.parameter_servers), (true, 2));
    let labels: Vec<_> = job.ranks.iter().map(|it| it.label()).collect();
    assert_eq!(labels, ["0", "1", "ps0", "ps1"]);
    if may_restart {
        cluster.restart(Process::Ps).unwrap();
    } else {
        skipped("restart of a PS: needs root (a memif client connects once)");
    }
    for worker in workers {
        worker.wait_ok(Duration::from_secs(60)).unwrap();
    }
    synthetic_is_exact(&cluster, 0, 2, "8000000");
    let parts = cluster.stop_ps(0).unwrap();
    for (part, report) in (0..).zip(&parts) {
        let job = &report.jobs[0];
        assert_eq!((job.part, job.foreign), (Some(part), 0), "{job:?}");
        // The last one counts from its restart on.
        let least = if part == 1 && may_restart { 0 } else { 300 };
        assert!(job.results > least, "part {part} of some 15,000: {job:?}");
    }
}

#[test]
fn the_switch_may_die_and_come_back_in_the_middle() {
    let _alone = alone();
    if Network::for_this_user() != Network::Namespaces {
        skipped("needs root (a memif client connects once)");
        return;
    }
    let mut cluster = Cluster::start(Spec {
        timeouts: PATIENT,
        ..spec(2)
    })
    .unwrap();
    let workers = cluster.start_workers(0, |_| synthetic("20000000")).unwrap();
    in_the_middle(&cluster);
    cluster.restart(Process::Switch).unwrap();
    for worker in workers {
        worker.wait_ok(Duration::from_secs(60)).unwrap();
    }
    synthetic_is_exact(&cluster, 0, 2, "20000000");
}

/// All members are silent for the switch at the end of the pause, and none is to blame.
#[test]
fn a_switch_that_stood_still_blames_no_rank() {
    let _alone = alone();
    let cluster = Cluster::start(Spec {
        member_timeout_ms: Some(1000),
        timeouts: PATIENT,
        ..spec(3)
    })
    .unwrap();
    let workers = cluster.start_workers(0, |_| synthetic("20000000")).unwrap();
    in_the_middle(&cluster);
    for _ in 0..3 {
        cluster.signal_switch("STOP").unwrap();
        std::thread::sleep(Duration::from_secs(3));
        cluster.signal_switch("CONT").unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    for worker in workers {
        worker.wait_ok(Duration::from_secs(60)).unwrap();
    }
    synthetic_is_exact(&cluster, 0, 3, "20000000");
}

/// Two jobs of two workers each on few slots, with much patience: what fails, fails for a reason.
fn two_jobs(policy: PolicyName) -> Spec {
    Spec {
        jobs: vec![2, 2],
        policy,
        slots: Some(64),
        timeouts: PATIENT,
        ..spec(2)
    }
}

/// Waits until the switch has a job running.
fn wait_until_it_runs(cluster: &Cluster, job: usize) {
    let start = Instant::now();
    loop {
        let report = cluster.switch_report().unwrap();
        if report.jobs[job].phase == tally_schema::switch::report::JobPhase::Running {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{report}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_worker_that_dies_ends_its_own_job_only() {
    let _alone = alone();
    let cluster = Cluster::start(two_jobs(PolicyName::Esa)).unwrap();
    let mut dying = cluster.start_workers(0, |_| synthetic("100M")).unwrap();
    in_the_middle(&cluster);
    let other = cluster.start_workers(1, |_| synthetic("20000000")).unwrap();
    wait_until_it_runs(&cluster, 1);
    dying.remove(1).kill().unwrap();
    for worker in other {
        worker.wait_ok(Duration::from_secs(60)).unwrap();
    }
    synthetic_is_exact(&cluster, 1, 2, "20000000");
    fails(dying.remove(0), &["rank 1"]);
    assert_eq!(cluster.switch_report().unwrap().in_use.slots_in_use, 0);
}

#[test]
fn a_straggler_delays_its_own_job_only() {
    let _alone = alone();
    for policy in [PolicyName::Esa, PolicyName::Fcfs, PolicyName::Static] {
        let cluster = Cluster::start(Spec {
            // A stopped worker sends no heartbeat.
            member_timeout_ms: Some(60_000),
            ..two_jobs(policy)
        })
        .unwrap();
        let mut delayed = cluster.start_workers(0, |_| synthetic("4000000")).unwrap();
        in_the_middle(&cluster);
        delayed[1].signal("STOP").unwrap();
        // All of the other job, from its start to its end.
        let other = cluster.start_workers(1, |_| synthetic("1000000")).unwrap();
        for worker in other {
            worker.wait_ok(Duration::from_secs(60)).unwrap();
        }
        synthetic_is_exact(&cluster, 1, 2, "1000000");
        assert!(
            delayed[0].is_running().unwrap(),
            "{policy}: it did not wait for the straggler: {}",
            delayed[0].log()
        );
        delayed[1].signal("CONT").unwrap();
        for worker in delayed {
            worker.wait_ok(Duration::from_secs(60)).unwrap();
        }
        synthetic_is_exact(&cluster, 0, 2, "4000000");
        assert_eq!(cluster.switch_report().unwrap().in_use.slots_in_use, 0);
    }
}

#[test]
fn an_interrupted_worker_tells_the_others() {
    let _alone = alone();
    let cluster = Cluster::start(spec(2)).unwrap();
    let mut workers = cluster.start_workers(0, |_| synthetic("100M")).unwrap();
    in_the_middle(&cluster);
    let first = workers.remove(0);
    first.signal("INT").unwrap();
    let ended = first.wait(Duration::from_secs(10)).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.log);
    fails(workers.remove(0), &["rank 0"]);
    assert!(!cluster.output(0, 0).exists() && !cluster.output(0, 1).exists());
}

#[test]
fn hosts_ping_and_stream_through_the_switch_while_it_sums_and_the_dissector_reads_it() {
    let _alone = alone();
    if Network::for_this_user() != Network::Namespaces {
        skipped("needs root (network namespaces)");
        return;
    }
    let cluster = Cluster::start(Spec {
        timeouts: PATIENT,
        ..spec(2)
    })
    .unwrap();
    let capture = cluster.folder().join("capture.pcap");
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {text}{errors}");
        text
    };
    // On the captured link each datagram is a frame of its own: the capture is checked frame by
    // frame.
    for (role, device) in [("host0", "eth0"), ("switch", "port0")] {
        let namespace = format!("tally-{}-{role}", std::process::id());
        run(Command::new("ip")
            .args(["netns", "exec", &namespace, "ethtool", "-K", device])
            .args(["tx-udp-segmentation", "off"]));
    }
    let mut tshark = cluster
        .command_on(cluster.worker_host(0, 0), "tshark")
        .args([
            "-q",
            "-i",
            "eth0",
            "-f",
            "udp portrange 31249-31264",
            "-a",
            "duration:120",
            "-F",
            "pcap",
            "-w",
        ])
        .arg(&capture)
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while std::fs::metadata(&capture).map_or(0, |file| file.len()) == 0 {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "tshark does not begin"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut server = cluster
        .command_on(cluster.ps_host(0, 0), "iperf3")
        .args(["-s", "-1"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let listeners = || {
        run(cluster
            .command_on(cluster.ps_host(0, 0), "ss")
            .args(["-Hltn", "sport = :5201"]))
    };
    while listeners().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "no iperf3");
        std::thread::sleep(Duration::from_millis(20));
    }
    let to_ps = cluster.ip(cluster.ps_host(0, 0)).to_string();
    let mut stream = cluster
        .command_on(cluster.worker_host(0, 1), "iperf3")
        .args(["-c", &to_ps, "-t", "4", "-b", "50M"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Small enough for a capture to hold all of it, with floats, halves and integers.
    for _ in 0..3 {
        for worker in cluster.start_workers(0, gradients).unwrap() {
            worker.wait_ok(Duration::from_secs(20)).unwrap();
        }
    }
    for to in [
        to_ps,
        cluster.ip(cluster.worker_host(0, 1)).to_string(),
        "10.84.0.254".into(),
    ] {
        let text = run(cluster
            .command_on(cluster.worker_host(0, 0), "ping")
            .args(["-c", "3", "-i", "0.2", "-W", "2", &to]));
        assert!(text.contains(" 0% packet loss"), "{text}");
    }
    assert!(
        stream.wait().unwrap().success(),
        "iperf3 through the switch"
    );
    assert!(server.wait().unwrap().success());
    run(Command::new("kill").args(["-INT", &tshark.id().to_string()]));
    tshark.wait().unwrap();
    let inputs = Inputs::Files([0, 1].map(|r| gradients(r).remove(1).into()).into());
    let outputs = [0, 1].map(|rank| cluster.output(0, rank));
    let verdict = reference().check("fixed", 1024, &inputs, outputs).unwrap();
    assert!(verdict.exact, "{}", verdict.text);
    run(Command::new("/usr/bin/python3")
        .arg(project().join("docs/wireshark/test.py"))
        .arg(&capture));
    let report = cluster.switch_report().unwrap();
    // On a busy machine a worker may wait for its CPU, take a contribution for lost, and send it
    // again.
    let unexpected = report.drops.keys().any(|reason| *reason != "duplicate");
    assert!(report.counters["results"] > 0 && !unexpected, "{report}");
}
