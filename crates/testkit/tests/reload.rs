//! A switch whose configuration changes while it runs: real processes, and sums that stay exact.
//!
//! Uses the release programs (`cargo build --release`), and network namespaces; skipped, loudly,
//! without root.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use tally_schema::switch::config::{IdRange, TenantSection};
use tally_schema::switch::report::JobPhase;
use tally_testkit::cluster::{Cluster, Ended, Network, Program, Spec, Timeouts};
use tally_testkit::reference::{Inputs, Reference};
use tally_wire::Key;

const PATIENCE: Duration = Duration::from_secs(60);
/// Rate of each link.
const RATE_MBIT: u32 = 50;
/// Elements for seconds of sums.
const LONG: &str = "2000k";
const SHORT: &str = "20k";

fn key(digits: &str) -> Key {
    digits.parse().unwrap()
}

fn synthetic(elements: &str) -> Vec<String> {
    ["--synthetic", "--elements", elements, "--seed", "1"]
        .map(str::to_owned)
        .to_vec()
}

#[track_caller]
fn is_exact(cluster: &Cluster, job: usize, workers: u8, elements: &str) {
    let thousands: u64 = elements.trim_end_matches('k').parse().unwrap();
    let inputs = Inputs::Synthetic {
        element: "f32",
        seed: 1,
        elements: thousands * 1000,
        workers: workers.into(),
    };
    let program =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../worker-agent/reference/check.py");
    let outputs = (0..workers).map(|rank| cluster.output(job, rank));
    let verdict = Reference { program }.check("fixed", 1024, &inputs, outputs);
    let verdict = verdict.unwrap();
    assert!(verdict.exact, "{}", verdict.text);
}

fn all_end_well(workers: Vec<Program>) {
    for worker in workers {
        worker.wait_ok(PATIENCE).unwrap();
    }
}

#[track_caller]
fn fails(program: Program, word: &str) {
    let Ended { status, log } = program.wait(PATIENCE).unwrap();
    assert!(!status.success(), "it succeeded:\n{log}");
    assert!(log.contains(word), "no `{word}` in:\n{log}");
}

/// A cluster of jobs with so many workers; none, without root.
fn cluster(jobs: Vec<u8>, test: &str) -> Option<Cluster> {
    if Network::for_this_user() != Network::Namespaces {
        let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: needs root");
        return None;
    }
    let spec = Spec {
        jobs,
        programs: programs(),
        // Sums last seconds on any machine.
        rate_mbit: Some(RATE_MBIT),
        timeouts: Timeouts {
            join_ms: 30_000,
            stall_ms: 30_000,
            ..Timeouts::default()
        },
        ..Spec::default()
    };
    Some(Cluster::new(spec).unwrap())
}

#[test]
fn jobs_come_and_go_and_keys_rotate_while_others_sum() {
    let _alone = alone();
    let Some(mut cluster) = cluster(vec![2, 1], "jobs and keys") else {
        return;
    };
    let both = cluster.switch_config();
    let mut one = both.clone();
    one.jobs.truncate(1);
    cluster.start_switch_with(&one).unwrap();
    cluster.start_ps(0).unwrap();
    cluster.start_ps(1).unwrap();
    let mut workers = cluster.start_workers(0, |_| synthetic(LONG)).unwrap();
    cluster.wait_for_results(200, PATIENCE).unwrap();
    // It sums for as long as the changes take.
    workers[0].signal("STOP").unwrap();
    // A job more, twice in a row.
    cluster.reload_switch(&both, "job 8: added").unwrap();
    cluster
        .reload_switch(&both, "version 2: nothing to apply")
        .unwrap();
    // A file that cannot be used changes nothing.
    let mut bad = both.clone();
    bad.jobs[1].id = bad.jobs[0].id;
    bad.jobs[0].workers = 0;
    cluster
        .reload_switch(&bad, "reload: nothing applied")
        .unwrap();
    // Nor does one that is good but for a job that runs, and a part needs a restart.
    let mut resized = both.clone();
    resized.jobs[0].workers = 3;
    resized.jobs.remove(1);
    cluster
        .reload_switch(&resized, "runs, its number of workers cannot change")
        .unwrap();
    let mut wider = both.clone();
    wider.window = 128;
    cluster
        .reload_switch(&wider, "needs a restart: window")
        .unwrap();
    // The key rotates while the job sums; the new job runs meanwhile.
    let mut rotated = both.clone();
    let new = key("00112233445566778899aabbccdd0abc");
    rotated.jobs[0].previous_key = Some(std::mem::replace(&mut rotated.jobs[0].key, new.clone()));
    cluster
        .reload_switch(&rotated, "job 7: key rotated")
        .unwrap();
    for worker in &mut workers {
        assert!(
            worker.is_running().unwrap(),
            "it sums while the switch changes"
        );
    }
    workers[0].signal("CONT").unwrap();
    all_end_well(cluster.start_workers(1, |_| synthetic(SHORT)).unwrap());
    is_exact(&cluster, 1, 1, SHORT);
    all_end_well(workers);
    is_exact(&cluster, 0, 2, LONG);
    // One worker has the new key, the other and the PS the one before.
    let old = cluster.start_worker(0, 0, synthetic(SHORT)).unwrap();
    cluster.set_worker_key(Some(new));
    let with_new = cluster.start_worker(0, 1, synthetic(SHORT)).unwrap();
    all_end_well(vec![old, with_new]);
    is_exact(&cluster, 0, 2, SHORT);
    // A running job is removed.
    let workers = cluster.start_workers(0, |_| synthetic(LONG)).unwrap();
    let results = cluster.switch_report().unwrap().counters["results"];
    cluster.wait_for_results(results + 200, PATIENCE).unwrap();
    workers[0].signal("STOP").unwrap();
    let mut without = rotated.clone();
    without.jobs.remove(0);
    cluster.reload_switch(&without, "job 7: removed").unwrap();
    workers[0].signal("CONT").unwrap();
    for worker in workers {
        fails(worker, "the job was removed from the switch");
    }
    // And comes back.
    cluster.reload_switch(&rotated, "job 7: added").unwrap();
    all_end_well(cluster.start_workers(0, |_| synthetic(SHORT)).unwrap());
    is_exact(&cluster, 0, 2, SHORT);
    let report = cluster.stop_switch().unwrap();
    assert_eq!(report.frames_missing, Some(0));
}

#[test]
fn a_tenant_trains_on_a_switch_that_knows_no_job() {
    let _alone = alone();
    let Some(mut cluster) = cluster(vec![2], "tenants") else {
        return;
    };
    let mut config = cluster.switch_config();
    let job = config.jobs.remove(0);
    let empty = config.clone();
    config.tenants.push(TenantSection {
        name: "lab".into(),
        key: job.key,
        previous_key: None,
        jobs: vec![IdRange { first: 7, last: 9 }],
        max_jobs: 1,
        max_workers: 2,
        max_slots: Some(64),
    });
    cluster.start_switch_with(&empty).unwrap();
    cluster.start_ps(0).unwrap();
    cluster.reload_switch(&config, "tenant lab: added").unwrap();
    for _ in 0..2 {
        all_end_well(cluster.start_workers(0, |_| synthetic(SHORT)).unwrap());
        is_exact(&cluster, 0, 2, SHORT);
    }
    let report = cluster.switch_report().unwrap();
    let [job] = &report.jobs[..] else {
        panic!("{report}")
    };
    assert_eq!(
        (job.id, job.phase, job.members.workers),
        (7, JobPhase::Idle, 2)
    );
    config.tenants[0].max_workers = 1;
    cluster
        .reload_switch(&config, "max_workers 2 to 1")
        .unwrap();
    let workers = cluster.start_workers(0, |_| synthetic(SHORT)).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    cluster
        .reload_switch(&empty, "tenant lab: removed")
        .unwrap();
    drop(workers);
    assert!(cluster.switch_report().unwrap().jobs.is_empty());
    assert_eq!(cluster.stop_switch().unwrap().frames_missing, Some(0));
}
