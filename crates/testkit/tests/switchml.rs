//! Whole SwitchML jobs of real processes: our own client's workers, the real switch, its
//! controller, in namespaces on both drivers and over memif. Every worker checks every sum, and all
//! must have the same bits.
//!
//! Uses the release programs (`cargo build --release`). What needs network namespaces is skipped,
//! loudly, without root.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::io::Write;
use std::time::{Duration, Instant};
use tally_testkit::cluster::{Cluster, Driver, Network, Program, Spec};
use tally_testkit::switchml::worker::Outcome;

const PATIENCE: Duration = Duration::from_secs(60);

/// Says so past the harness, which keeps what a passing test prints.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

fn has_namespaces() -> bool {
    let has = Network::for_this_user() == Network::Namespaces;
    if !has {
        skipped("needs root (network namespaces)");
    }
    has
}

fn spec(switchml: &[u8]) -> Spec {
    Spec {
        jobs: Vec::new(),
        switchml: switchml.to_vec(),
        programs: programs(),
        ..Spec::default()
    }
}

/// The first workers of a job sum, with these arguments.
#[track_caller]
fn sum(cluster: &Cluster, job: usize, workers: u8, arguments: &[&str]) -> Vec<Vec<Outcome>> {
    let started = cluster.start_switchml(job, workers, arguments).unwrap();
    finish(cluster, job, started)
}

#[track_caller]
fn finish(cluster: &Cluster, job: usize, workers: Vec<Program>) -> Vec<Vec<Outcome>> {
    let finished = cluster.finish_switchml(job, workers, PATIENCE);
    finished.unwrap_or_else(|error| panic!("{error:#}"))
}

/// Both sizes that the published clients use and both types, as sessions that follow each other.
const ALL: [&str; 8] = [
    "--size",
    "256,1024",
    "--element",
    "i32,f32",
    "--elements",
    "50001",
    "--tensors",
    "2",
];

#[track_caller]
fn all_were_summed(outcomes: &[Vec<Outcome>], workers: u8) {
    assert_eq!(outcomes.len(), 4);
    for session in outcomes {
        assert_eq!(session.len(), usize::from(workers));
        assert!(session.iter().all(|outcome| outcome.workers == workers));
    }
}

/// The switch's pool is whole at its end, or it says that it is not.
#[track_caller]
fn stop(mut cluster: Cluster) {
    cluster.stop_switch().unwrap();
}

fn every_size_and_type(driver: Driver) {
    let cluster = Cluster::start(Spec {
        driver,
        ..spec(&[8])
    })
    .unwrap();
    for workers in [2, 4, 8] {
        all_were_summed(&sum(&cluster, 0, workers, &ALL), workers);
    }
    stop(cluster);
}

#[test]
fn every_size_and_type_of_2_4_and_8_workers_in_namespaces() {
    let _alone = alone();
    if has_namespaces() {
        every_size_and_type(Driver::Packet);
    }
}

#[test]
fn every_size_and_type_of_2_4_and_8_workers_on_net_af_packet() {
    let _alone = alone();
    if has_namespaces() {
        every_size_and_type(Driver::AfPacket);
    }
}

#[test]
fn every_size_and_type_of_2_4_and_8_workers_on_memif() {
    let _alone = alone();
    // A memif client connects once in the life of the process at either end.
    for workers in [2, 4, 8] {
        let network = Network::Memif;
        let cluster = Cluster::start(Spec {
            network,
            ..spec(&[workers])
        })
        .unwrap();
        all_were_summed(&sum(&cluster, 0, workers, &ALL), workers);
        stop(cluster);
    }
}

#[test]
fn losses_are_repaired() {
    let _alone = alone();
    let cluster = Cluster::start(spec(&[4])).unwrap();
    let arguments = [
        "--loss",
        "0.03",
        "--size",
        "256,1024",
        "--element",
        "f32,i32",
        "--elements",
        "30000",
    ];
    for session in sum(&cluster, 0, 4, &arguments) {
        for outcome in session {
            assert!(outcome.lost > 0 && outcome.sent_again > 0, "{outcome:?}");
        }
    }
    stop(cluster);
}

#[test]
fn jumbo_packets_are_summed() {
    let _alone = alone();
    let mtu = Some(9000);
    let cluster = Cluster::start(Spec { mtu, ..spec(&[2]) }).unwrap();
    let arguments = [
        "--size",
        "2048,4096,8192",
        "--element",
        "f32",
        "--elements",
        "300000",
        "--window",
        "16",
    ];
    sum(&cluster, 0, 2, &arguments);
    stop(cluster);
}

#[test]
fn two_jobs_at_once_are_two_sessions() {
    let _alone = alone();
    let cluster = Cluster::start(spec(&[3, 2])).unwrap();
    let arguments = |element| ["--element", element, "--elements", "200000", "--seed", "9"];
    let first = cluster.start_switchml(0, 3, &arguments("i32")).unwrap();
    let second = cluster.start_switchml(1, 2, &arguments("f32")).unwrap();
    let sessions =
        [finish(&cluster, 0, first), finish(&cluster, 1, second)].map(|o| o[0][0].session);
    assert_ne!(sessions[0], sessions[1]);
    stop(cluster);
}

#[track_caller]
fn wait_for_results(cluster: &Cluster, results: u64) {
    let start = Instant::now();
    loop {
        let report = cluster.switch_report().unwrap();
        let switchml = report.switchml.unwrap();
        let found: u64 = switchml
            .sessions
            .iter()
            .map(|session| session.counters.results)
            .sum();
        if found >= results {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{switchml}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_job_that_is_killed_is_started_anew() {
    let _alone = alone();
    if !has_namespaces() {
        return;
    }
    let cluster = Cluster::start(spec(&[3])).unwrap();
    let long = ["--elements", "10000000"];
    for worker in cluster.start_switchml(0, 3, &long).unwrap() {
        // All of them, one after the other, in the middle.
        wait_for_results(&cluster, 500);
        worker.kill().unwrap();
    }
    sum(&cluster, 0, 3, &["--element", "f32"]);
    let report = cluster.switch_report().unwrap();
    let sessions = report.switchml.unwrap().sessions;
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    stop(cluster);
}

#[test]
fn a_worker_that_dies_leaves_others_with_an_error_and_shows_in_the_report() {
    let _alone = alone();
    if !has_namespaces() {
        return;
    }
    let cluster = Cluster::start(spec(&[2])).unwrap();
    let long = ["--elements", "10000000", "--stall-ms", "2000"];
    let mut workers = cluster.start_switchml(0, 2, &long).unwrap();
    wait_for_results(&cluster, 500);
    workers.remove(1).kill().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let report = cluster.switch_report().unwrap();
    let sessions = report.switchml.unwrap().sessions;
    let [session] = &sessions[..] else {
        panic!("{sessions:?}");
    };
    assert_eq!(session.ranks[0].counters.behind, 0, "{session}");
    assert!(session.ranks[1].counters.behind > 0, "{session}");
    assert!(session.ranks[1].counters.behind_s > 1.0, "{session}");
    let ended = workers.remove(0).wait(PATIENCE).unwrap();
    assert!(!ended.status.success());
    assert!(ended.log.contains("no result"), "{}", ended.log);
    stop(cluster);
}

#[test]
fn a_native_job_and_a_session_share_a_switch() {
    let _alone = alone();
    let spec = Spec {
        jobs: vec![2],
        ..spec(&[2])
    };
    let cluster = Cluster::start(spec).unwrap();
    let arguments = ["--synthetic", "--elements", "4000000", "--seed", "1"];
    let native = cluster
        .start_workers(0, |_| arguments.map(str::to_owned).to_vec())
        .unwrap();
    let session = cluster
        .start_switchml(0, 2, &["--element", "f32", "--elements", "500000"])
        .unwrap();
    finish(&cluster, 0, session);
    for worker in native {
        worker.wait_ok(PATIENCE).unwrap();
    }
    let inputs = tally_testkit::reference::Inputs::Synthetic {
        element: "f32",
        seed: 1,
        elements: 4_000_000,
        workers: 2,
    };
    let reference = tally_testkit::reference::Reference {
        program: std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../worker-agent/reference/check.py"),
    };
    let outputs = (0..2).map(|rank| cluster.output(0, rank));
    let verdict = reference.check("fixed", 1024, &inputs, outputs).unwrap();
    assert!(verdict.exact, "{}", verdict.text);
    let report = cluster.switch_report().unwrap();
    let switchml = report.switchml.as_ref().unwrap();
    assert!(
        report.counters["results"] > 0 && switchml.counters["results"] > 0,
        "{report}"
    );
    stop(cluster);
}
