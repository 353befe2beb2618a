//! Jobs whose trees span several switches, as real processes: exact sums with loss and restarts,
//! and errors that name what failed.
//!
//! Uses the release programs (`cargo build --release`). As root in namespaces, else over memif.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tally_schema::switch::config::Config;
use tally_testkit::cluster::{Ended, Network, Program, Timeouts};
use tally_testkit::fabric::{Fabric, FabricSpec, SwitchId};
use tally_testkit::reference::{Inputs, Reference};

const LONG: Duration = Duration::from_secs(60);

fn spec(shape: &str) -> FabricSpec {
    let shape = shape.parse().unwrap();
    FabricSpec {
        shape,
        jobs: shape.spines,
        programs: programs(),
        timeouts: Timeouts {
            join_ms: 30_000,
            stall_ms: 30_000,
            ..Timeouts::default()
        },
        ..FabricSpec::default()
    }
}

fn synthetic(elements: u64, arithmetic: &str) -> Vec<String> {
    let elements = elements.to_string();
    let all = [
        "--synthetic",
        "--elements",
        &elements,
        "--seed",
        "1",
        "--arithmetic",
        arithmetic,
    ];
    all.map(str::to_owned).to_vec()
}

/// What every switch and every program says, for a test that fails.
fn logs(fabric: &Fabric) -> String {
    let mut text = String::new();
    for switch in fabric.plan().switches() {
        text += &format!(
            "--- {}\n{}",
            fabric.plan().name(switch),
            fabric.switch_log(switch)
        );
        match fabric.switch_report(switch) {
            Ok(report) => text += &report.to_string(),
            Err(error) => text += &format!("{error:#}\n"),
        }
    }
    text
}

#[track_caller]
fn all_end_well(fabric: &Fabric, workers: Vec<Program>) {
    for worker in workers {
        if let Err(error) = worker.wait_ok(LONG) {
            panic!("{error:#}\n{}", logs(fabric));
        }
    }
}

#[track_caller]
fn is_exact(fabric: &Fabric, job: usize, elements: u64, arithmetic: &str) {
    let total = fabric.spec().shape.total() as u16;
    let outputs = (0..total).map(|rank| fabric.output(job, rank));
    are_exact(fabric, outputs, elements, arithmetic);
}

/// Outputs of the ranks behind all leaves.
#[track_caller]
fn are_exact(
    fabric: &Fabric,
    outputs: impl Iterator<Item = PathBuf>,
    elements: u64,
    arithmetic: &str,
) {
    let total = fabric.spec().shape.total() as u16;
    let reference = Reference {
        program: project().join("worker-agent/reference/check.py"),
    };
    let inputs = Inputs::Synthetic {
        seed: 1,
        element: "f32",
        elements,
        workers: total,
    };
    let tree = fabric.plan().ranks();
    let verdict = reference
        .check_tree(&tree, arithmetic, 1024, &inputs, outputs)
        .unwrap();
    assert!(verdict.exact, "{}\n{}", verdict.text, logs(fabric));
}

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Namespaces, in which processes end and come back.
fn root_only(spec: FabricSpec) -> Option<Fabric> {
    if Network::for_this_user() != Network::Namespaces {
        let _ = writeln!(std::io::stderr(), "SKIPPED: network namespaces need root");
        return None;
    }
    Some(Fabric::start(spec).unwrap())
}

/// Waits for a worker that must fail, with words in its output.
#[track_caller]
fn fails(fabric: &Fabric, program: Program, words: &[&str]) {
    let Ended { status, log } = program.wait(LONG).unwrap();
    assert!(!status.success(), "it succeeded:\n{log}");
    for word in words {
        assert!(
            log.contains(word),
            "no `{word}` in:\n{log}\n{}",
            logs(fabric)
        );
    }
}

#[test]
fn a_tree_of_two_levels_sums_exactly_and_is_shown() {
    let _alone = alone();
    let fabric = Fabric::start(spec("1x2x2")).unwrap();
    for arithmetic in ["fixed", "native"] {
        let workers = fabric
            .start_workers(0, |_| synthetic(20_000, arithmetic))
            .unwrap();
        all_end_well(&fabric, workers);
        is_exact(&fabric, 0, 20_000, arithmetic);
    }
    let tree = |name: &str| {
        let switch = fabric.plan().find(name).unwrap();
        let report = fabric.switch_report(switch).unwrap();
        report.jobs[0].tree.clone().unwrap()
    };
    let root = tree("spine1");
    assert_eq!(
        (root.place(), root.total, root.ranks),
        ("root".to_owned(), 4, 4)
    );
    let children = root
        .children
        .iter()
        .map(|it| (it.switch.as_str(), it.rank, it.first, it.ranks));
    assert_eq!(
        children.collect::<Vec<_>>(),
        [("leaf1", 0, 0, 2), ("leaf2", 1, 2, 2)]
    );
    let leaf = tree("leaf2");
    assert_eq!(
        (leaf.place(), leaf.first, leaf.hosts),
        ("rank 1 at spine1".to_owned(), 2, 2)
    );
    assert_eq!(leaf.parent.unwrap().port.as_deref(), Some("spine1-0"));
    // What went up is one stream of two workers', beside control and hellos.
    let switch = fabric.plan().find("leaf2").unwrap();
    let counters = fabric.switch_report(switch).unwrap().counters;
    let (sums, contributions) = (counters["sums_up"], counters["contributions"]);
    assert!(
        sums > 0 && sums <= contributions / 2,
        "{sums} of {contributions}"
    );
}

#[test]
fn a_missing_worker_of_another_leaf_is_named_by_its_global_rank() {
    let _alone = alone();
    let mut spec = spec("1x2x2");
    spec.timeouts.join_ms = 5000;
    let fabric = Fabric::start(spec).unwrap();
    let start = |rank| {
        fabric
            .start_worker(0, rank, synthetic(1000, "fixed"))
            .unwrap()
    };
    let workers = [0, 1, 2].map(start);
    for worker in workers {
        fails(&fabric, worker, &["rank 3"]);
    }
}

/// 66 workers, of which each leaf has 22: ranks do not fit a bitmap, nor the header (TR-20).
#[test]
fn more_workers_than_a_switch_has_members_sum_exactly() {
    let _alone = alone();
    let Some(fabric) = root_only(spec("1x3x22")) else {
        return;
    };
    let start = |rank| {
        let arguments = synthetic(2000, "fixed");
        fabric.start_worker(0, rank, arguments).unwrap()
    };
    let mut workers = vec![start(0), start(30)];
    for (rank, missing) in [(0, "ranks 1 to 21"), (30, "ranks 22 to 29")] {
        let log = fabric.folder().join(format!("job0-worker{rank}.log"));
        let said = || std::fs::read_to_string(&log).unwrap();
        let until = Instant::now() + LONG;
        while !said().contains(missing) {
            assert!(Instant::now() < until, "no `{missing}` in:\n{}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let leaf = fabric.plan().find("leaf2").unwrap();
    let log = fabric.switch_log(leaf);
    assert!(log.contains("rank 30 (local rank 8) joined"), "{log}");
    workers.extend((1..66).filter(|&rank| rank != 30).map(start));
    all_end_well(&fabric, workers);
    is_exact(&fabric, 0, 2000, "fixed");
    let report = fabric.worker_report(0, 65).unwrap();
    assert_eq!((report.rank, report.workers), (65, 66));
}

#[test]
fn a_leaf_that_dies_ends_the_job_and_is_named() {
    let _alone = alone();
    let mut spec = spec("1x2x2");
    spec.member_timeout_ms = Some(2000);
    let Some(mut fabric) = root_only(spec) else {
        return;
    };
    let mut workers = fabric
        .start_workers(0, |_| synthetic(50_000_000, "fixed"))
        .unwrap();
    let root = fabric.plan().root(0);
    fabric.wait_for_results(root, 100, LONG).unwrap();
    let leaf = fabric.plan().find("leaf2").unwrap();
    fabric.kill_switch(leaf).unwrap();
    drop(workers.split_off(2));
    for worker in workers {
        fails(&fabric, worker, &["leaf2", "ranks 2 to 3"]);
    }
    // Another epoch begins once the leaf is back.
    fabric.start_switch(leaf).unwrap();
    let workers = fabric
        .start_workers(0, |_| synthetic(1000, "fixed"))
        .unwrap();
    all_end_well(&fabric, workers);
    is_exact(&fabric, 0, 1000, "fixed");
}

#[test]
fn a_leaf_and_a_spine_that_restart_lose_no_sum() {
    let _alone = alone();
    let mut spec = spec("1x2x1");
    spec.loss = 0.01;
    let Some(mut fabric) = root_only(spec) else {
        return;
    };
    let workers = fabric
        .start_workers(0, |_| synthetic(400_000, "native"))
        .unwrap();
    let root = fabric.plan().root(0);
    for (name, results) in [("leaf2", 300), ("spine1", 600)] {
        fabric.wait_for_results(root, results, LONG).unwrap();
        let switch = fabric.plan().find(name).unwrap();
        fabric.restart(switch).unwrap();
    }
    all_end_well(&fabric, workers);
    is_exact(&fabric, 0, 400_000, "native");
}

/// Switches that know no job are told of one by request, each its place, and it sums exactly.
#[test]
fn a_tree_is_made_by_request() {
    let _alone = alone();
    let mut fabric = Fabric::new(spec("1x2x2")).unwrap();
    let switches: Vec<_> = fabric.plan().switches().collect();
    for &switch in &switches {
        let mut config = fabric.switch_config(switch);
        config.jobs.clear();
        fabric.start_switch_with(switch, &config).unwrap();
    }
    for &switch in &switches {
        let job = fabric.switch_config(switch).jobs.remove(0);
        let tree = job.tree.unwrap();
        let (id, workers, total) = (job.id, job.workers, tree.total);
        let mut line = format!("job add {id} --workers {workers} --total {total} --key-file -");
        if let (Some(parent), Some(rank)) = (&tree.parent, tree.rank) {
            line += &format!(" --first {} --parent {parent} --rank {rank}", tree.first);
        }
        for child in &tree.children {
            line += &format!(" --child {}={}", child.switch, child.ranks);
        }
        let said = ctl(&fabric, switch, &line, KEY).unwrap();
        assert!(said.contains(&format!("of {total}, ")), "{said}");
        // A place that is there alike is no change, and another one is refused.
        let said = ctl(&fabric, switch, &line, KEY).unwrap();
        assert!(said.starts_with("nothing to change"), "{said}");
        let other = line.replace("--total 4", "--total 5");
        let said = ctl(&fabric, switch, &other, KEY).unwrap_err();
        assert!(said.contains("job 7"), "{said}");
        fabric.start_ps(switch).unwrap();
    }
    for (wrong, word) in [
        ("--total 4 --child moon=3", "moon"),
        ("--total 4 --parent moon --rank 0", "moon"),
        ("--total 70000", "70000"),
        ("--total 4 --child leaf1", "SWITCH=WORKERS"),
        ("--child leaf1=3", "--total"),
        ("--total 4 --parent leaf1", "--rank"),
    ] {
        let line = format!("job add 8 --workers 1 --key-file - {wrong}");
        let said = ctl(&fabric, switches[0], &line, KEY).unwrap_err();
        assert!(said.contains(word), "{wrong}: {said}");
    }
    let workers = fabric.start_workers(0, |_| synthetic(100_000, "fixed"));
    all_end_well(&fabric, workers.unwrap());
    is_exact(&fabric, 0, 100_000, "fixed");
}

/// The same for a ring of RoCEv2 hosts: it sums over leaves and spine, and a spine that does not
/// know it is named.
#[test]
fn a_ring_over_a_tree_is_made_by_request() {
    let _alone = alone();
    let mut fabric = Fabric::new(FabricSpec {
        jobs: 0,
        guests: 2,
        ring: true,
        ..spec("1x2x2")
    })
    .unwrap();
    let switches: Vec<_> = fabric.plan().switches().collect();
    for &switch in &switches {
        let mut config = fabric.switch_config(switch);
        config.netreduce.as_mut().unwrap().rings.clear();
        fabric.start_switch_with(switch, &config).unwrap();
    }
    let ring = fabric.switch_config(switches[0]).rings()[0].clone();
    let members: Vec<_> = ring.members.iter().map(ToString::to_string).collect();
    let members = members.join(",");
    let add = format!("ring add 7 --members {members} --key-file -");
    for (wrong, word) in [
        ("--root spine1", "--leaves"),
        ("--root spine1 --leaves leaf1", "SWITCH=MEMBERS"),
        (
            "--root spine1 --leaves leaf1=2,leaf2=1",
            "3 members of leaves",
        ),
        ("--root spine1 --leaves leaf1=2,moon=2", "moon"),
    ] {
        let said = ctl(&fabric, switches[0], &format!("{add} {wrong}"), KEY).unwrap_err();
        assert!(said.contains(word), "{wrong}: {said}");
    }
    let (root, leaves) = switches.split_first().unwrap();
    let add = format!("{add} --root spine1 --leaves leaf1=2,leaf2=2");
    for &leaf in leaves {
        ctl(&fabric, leaf, &add, KEY).unwrap();
    }
    let programs = fabric.start_ring(|_| {
        let sum = ["--synthetic", "--elements", "100000", "--seed", "1"];
        [&sum[..], &["--retries", "9"]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect()
    });
    let until = Instant::now() + LONG;
    while !ctl(&fabric, leaves[0], "show rings", "")
        .unwrap()
        .contains("the root, spine1")
    {
        assert!(Instant::now() < until, "leaf1 waits for nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    ctl(&fabric, *root, &add, KEY).unwrap();
    all_end_well(&fabric, programs.unwrap());
    let outputs = (0..4).map(|rank| fabric.ring_output(rank));
    are_exact(&fabric, outputs, 100_000, "native");
    let shown = ctl(&fabric, *root, "show rings", "").unwrap();
    assert!(shown.lines().count() == 2, "{shown}");
    ctl(&fabric, *root, "ring remove 7", "").unwrap();
    assert_eq!(
        ctl(&fabric, *root, "show rings", "")
            .unwrap()
            .lines()
            .count(),
        1
    );
}

/// The key of the first job of a fabric.
const KEY: &str = "00112233445566778899aabbccddeeff";

/// What `tallyctl` prints at a switch, or its error.
fn ctl(fabric: &Fabric, switch: SwitchId, line: &str, input: &str) -> Result<String, String> {
    let mut command = Command::new(programs().join("tallyctl"));
    command.arg("--socket").arg(fabric.control_socket(switch));
    command.args(line.split(' ')).stdin(Stdio::piped());
    let streams = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = streams.spawn().unwrap();
    // One that refuses its arguments does not read it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

/// A reload gives a job a child more, then another root; what a running job or a switch cannot
/// take is refused.
#[test]
fn a_reload_changes_the_tree_of_a_job() {
    let _alone = alone();
    let mut fabric = Fabric::new(spec("2x2x1")).unwrap();
    let of = |fabric: &Fabric, name: &str| fabric.plan().find(name).unwrap();
    let [spine1, spine2, leaf1, leaf2] =
        ["spine1", "spine2", "leaf1", "leaf2"].map(|name| of(&fabric, name));
    for switch in [spine1, spine2, leaf1, leaf2] {
        let mut config = fabric.switch_config(switch);
        if let Some(tree) = config.jobs.first_mut().filter(|job| job.id == 7) {
            let tree = tree.tree.as_mut().unwrap();
            tree.total = 1;
            tree.children.truncate(1);
        }
        if switch == leaf2 {
            config.jobs.remove(0);
        }
        fabric.start_switch_with(switch, &config).unwrap();
    }
    for switch in [spine1, spine2, leaf1, leaf2] {
        fabric.start_ps(switch).unwrap();
    }
    let early = fabric.start_worker(0, 0, synthetic(1000, "fixed")).unwrap();
    fails(&fabric, early, &["we expect 2 workers, but the job has 1"]);
    let reload = |fabric: &mut Fabric, switch, change: &dyn Fn(&mut Config), line: &str| {
        let mut config = fabric.switch_config(switch);
        change(&mut config);
        if let Err(error) = fabric.reload_switch(switch, &config, line) {
            panic!("{error:#}\n{}", logs(fabric));
        }
    };
    reload(
        &mut fabric,
        leaf2,
        &|_| (),
        "job 7: added, 1 workers and 0 switches",
    );
    reload(
        &mut fabric,
        leaf1,
        &|_| (),
        "ranks 0 to 0 of 2, rank 0 at spine1",
    );
    reload(
        &mut fabric,
        spine1,
        &|_| (),
        "2 switches, ranks 0 to 1 of 2, root",
    );
    let workers = fabric
        .start_workers(0, |_| synthetic(1_000_000, "fixed"))
        .unwrap();
    fabric.wait_for_results(spine1, 100, LONG).unwrap();
    let moved = |config: &mut Config| {
        let tree = config.jobs[0].tree.as_mut().unwrap();
        tree.parent = Some("spine2".into());
    };
    let line = "nothing applied: job 7: runs, its tree cannot change";
    reload(&mut fabric, leaf1, &moved, line);
    let alone = |config: &mut Config| {
        let fabric = config.fabric.as_mut().unwrap();
        fabric.links.retain(|link| link.switch != "spine2");
        config.jobs.truncate(1);
    };
    reload(&mut fabric, leaf1, &alone, "needs a restart: fabric.links");
    let elsewhere = |config: &mut Config| {
        let tree = config.jobs[0].tree.as_mut().unwrap();
        tree.parent = Some("spine3".into());
    };
    let line = "nothing applied: ";
    reload(&mut fabric, leaf2, &elsewhere, line);
    let log = fabric.switch_log(leaf2);
    assert!(log.contains("jobs[0].tree.parent: found `spine3`"), "{log}");
    reload(&mut fabric, leaf1, &|_| (), "job 8: added");
    all_end_well(&fabric, workers);
    is_exact(&fabric, 0, 1_000_000, "fixed");
    let section = fabric.plan().job_section(0, spine1).unwrap();
    let root = |config: &mut Config| config.jobs.insert(0, section.clone());
    reload(&mut fabric, spine2, &root, "job 7: added");
    reload(
        &mut fabric,
        spine1,
        &|config| config.jobs.clear(),
        "job 7: removed",
    );
    for leaf in [leaf2, leaf1] {
        reload(&mut fabric, leaf, &moved, " at spine2");
    }
    fabric.kill_ps(spine2).unwrap();
    fabric.start_ps_for(spine2, &[0, 1]).unwrap();
    for job in [0, 1] {
        let workers = fabric
            .start_workers(job, |_| synthetic(20_000, "fixed"))
            .unwrap();
        all_end_well(&fabric, workers);
        is_exact(&fabric, job, 20_000, "fixed");
    }
    let report = fabric.switch_report(spine2).unwrap();
    let places = report
        .jobs
        .iter()
        .map(|job| job.tree.clone().unwrap().place());
    assert_eq!(places.collect::<Vec<_>>(), ["root", "root"]);
}
