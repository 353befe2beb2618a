//! Ordinary traffic over leaves and spines: it reaches every host, nothing loops, and a spine that
//! dies is routed around.
//!
//! Uses the release programs (`cargo build --release`). Needs root, for network namespaces; without
//! it, it is skipped, loudly.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tally_schema::switch::report::Report;
use tally_testkit::cluster::Network;
use tally_testkit::fabric::{Fabric, FabricSpec, HostRole, Shape, SwitchId};

const LEAVES: usize = 3;
/// How long links may take to live, with all switches on few CPUs.
const LIVE_PATIENCE: Duration = Duration::from_secs(20);
/// Time between two pings.
const PING_EVERY: Duration = Duration::from_millis(20);

/// Two spines and three leaves with so many hosts each, all links alive.
fn fabric(guests: usize, loop_guard: bool) -> Option<Fabric> {
    if Network::for_this_user() != Network::Namespaces {
        let _ = writeln!(std::io::stderr(), "SKIPPED: network namespaces need root");
        return None;
    }
    let spec = FabricSpec {
        shape: Shape {
            spines: 2,
            leaves: LEAVES,
            workers: 1,
        },
        jobs: 0,
        guests,
        programs: programs(),
        ..FabricSpec::default()
    };
    let mut fabric = Fabric::new(spec).unwrap();
    for switch in fabric.plan().switches() {
        start(&mut fabric, switch, loop_guard);
    }
    wait_for_links(&fabric, |_| true);
    Some(fabric)
}

/// A switch whose own frames on hosts' ports are the loop guard's, or none: then what is flooded is
/// the hosts'.
fn start(fabric: &mut Fabric, switch: SwitchId, loop_guard: bool) {
    let mut config = fabric.switch_config(switch);
    config.loop_guard = loop_guard;
    config.lldp = false;
    fabric.start_switch_with(switch, &config).unwrap();
}

/// Waits until the links between those switches that run are as they should be.
fn wait_for_links(fabric: &Fabric, runs: impl Fn(SwitchId) -> bool) {
    let plan = fabric.plan();
    let start = Instant::now();
    let is_good = |switch| {
        let report = fabric.switch_report(switch).unwrap();
        let mut links = report.fabric.iter();
        links.all(|link| link.alive == runs(plan.find(&link.switch).unwrap()))
    };
    while !plan.switches().filter(|it| runs(*it)).all(is_good) {
        let waited = start.elapsed();
        assert!(
            waited < LIVE_PATIENCE,
            "links are not alive after {waited:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The host behind a leaf.
fn host(fabric: &Fabric, leaf: usize) -> usize {
    let hosts = fabric.plan().hosts_of(fabric.plan().leaf(leaf));
    let mut guests = hosts.filter(|(_, host)| host.role == HostRole::Guest(0));
    guests.next().unwrap().0
}

fn on_host(fabric: &Fabric, leaf: usize, words: &[&str]) -> Command {
    let prefix = fabric.host_prefix(host(fabric, leaf));
    let mut all = prefix
        .iter()
        .map(String::as_str)
        .chain(words.iter().copied());
    let mut command = Command::new(all.next().unwrap());
    command
        .args(all)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn address(fabric: &Fabric, leaf: usize) -> String {
    fabric.plan().hosts()[host(fabric, leaf)].ip.to_string()
}

/// Output of a command that must succeed.
#[track_caller]
fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{error}");
    text
}

#[track_caller]
fn all_reach_all(fabric: &Fabric) {
    for from in 0..LEAVES {
        for to in (0..LEAVES).filter(|&to| to != from) {
            let to = address(fabric, to);
            output(on_host(
                fabric,
                from,
                &["ping", "-c", "2", "-i", "0.1", "-W", "2", &to],
            ));
        }
    }
}

/// Frames flooded to each port of each switch that runs, by names.
fn flooded(fabric: &Fabric) -> BTreeMap<(String, String), u64> {
    let plan = fabric.plan();
    let of = |switch| {
        let report: Option<Report> = fabric.switch_report(switch).ok();
        let name = plan.name(switch);
        let ports = report.into_iter().flat_map(|report| report.ports);
        ports.map(move |port| ((name.clone(), port.name), port.counters.flooded))
    };
    plan.switches().flat_map(of).collect()
}

/// Broadcasts of one host pass each link of one tree once, and no other.
fn broadcasts_pass_each_link_of_one_tree_once(fabric: &Fabric) {
    const BURST: u64 = 200;
    let before = flooded(fabric);
    let count = BURST.to_string();
    let words = [
        "ping",
        "-b",
        "-q",
        "-c",
        &count,
        "-i",
        "0.001",
        "-W",
        "0.1",
        "10.84.255.255",
    ];
    // No host answers, which it calls a failure.
    let sent = on_host(fabric, 0, &words).output().unwrap();
    let text = String::from_utf8_lossy(&sent.stdout);
    assert!(
        text.contains(&format!("{BURST} packets transmitted")),
        "{text}"
    );
    std::thread::sleep(Duration::from_millis(200));
    let after = flooded(fabric);
    let new: BTreeMap<_, _> = after
        .iter()
        .map(|(port, n)| (port, n - before[port]))
        .collect();
    let by = |switch: &str, port: &str| new[&(switch.to_owned(), port.to_owned())];
    let elected: Vec<_> = ["spine1", "spine2"]
        .into_iter()
        .filter(|spine| by("leaf1", &format!("{spine}-0")) > 0)
        .collect();
    let [spine] = elected[..] else {
        panic!("one spine is elected: {new:?}");
    };
    let mut expected = BTreeMap::from([(("leaf1".to_owned(), format!("{spine}-0")), BURST)]);
    for leaf in 2..=LEAVES {
        expected.insert((spine.to_owned(), format!("leaf{leaf}-0")), BURST);
        expected.insert((format!("leaf{leaf}"), format!("guest0-leaf{leaf}")), BURST);
    }
    let new: BTreeMap<_, _> = new.into_iter().filter(|(_, n)| *n > 0).collect();
    let expected: BTreeMap<_, _> = expected.iter().map(|(port, n)| (port, *n)).collect();
    assert_eq!(new, expected);
}

fn tcp_passes(fabric: &Fabric) {
    let mut server = on_host(fabric, 2, &["iperf3", "-s", "-1"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let to = address(fabric, 2);
    let words = ["iperf3", "-c", &to, "-t", "1", "-P", "4", "-f", "m"];
    let text = output(on_host(fabric, 0, &words));
    server.wait().unwrap();
    let sum = text
        .lines()
        .rfind(|line| line.contains("SUM") && line.contains("receiver"));
    println!("iperf3: {}", sum.unwrap());
}

#[test]
fn hosts_of_all_leaves_reach_each_other_and_no_broadcast_loops() {
    let _alone = alone();
    let Some(fabric) = fabric(1, false) else {
        return;
    };
    all_reach_all(&fabric);
    tcp_passes(&fabric);
    broadcasts_pass_each_link_of_one_tree_once(&fabric);
    // The leaves have told the spines of all hosts, also those that never saw a frame of them.
    for spine in fabric
        .plan()
        .switches()
        .filter(|it| fabric.plan().is_spine(*it))
    {
        let report = fabric.switch_report(spine).unwrap();
        let known: Vec<_> = report
            .ports
            .iter()
            .map(|port| port.addresses.addresses)
            .collect();
        assert_eq!(known, [1; LEAVES], "{}", fabric.plan().name(spine));
    }
}

/// Pings that run, of which each that is answered is a line.
fn pings(fabric: &Fabric, to: usize, seconds: u32) -> Child {
    let count = (seconds * 50).to_string();
    let to = address(fabric, to);
    on_host(
        fabric,
        0,
        &["ping", "-i", "0.02", "-c", &count, "-W", "1", &to],
    )
    .spawn()
    .unwrap()
}

/// The longest time without an answer.
fn longest_gap(pings: Child) -> Duration {
    let output = pings.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |line: &str| {
        line.split_once("icmp_seq=")?
            .1
            .split_once(' ')?
            .0
            .parse()
            .ok()
    };
    let answered: Vec<u32> = text.lines().filter_map(number).collect();
    assert!(answered.len() > 50, "{text}");
    assert!(!text.contains("DUP!"), "{text}");
    let gaps = answered
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]));
    PING_EVERY * gaps.max().unwrap().saturating_sub(1)
}

#[test]
fn traffic_resumes_in_less_than_a_second_when_a_spine_dies() {
    let _alone = alone();
    let Some(mut fabric) = fabric(1, false) else {
        return;
    };
    all_reach_all(&fabric);
    let spines: Vec<_> = fabric.plan().switches().take(2).collect();
    for &spine in &spines {
        let name = fabric.plan().name(spine);
        let running = [pings(&fabric, 1, 4), pings(&fabric, 2, 4)];
        std::thread::sleep(Duration::from_millis(1500));
        fabric.kill_switch(spine).unwrap();
        for pings in running {
            let gap = longest_gap(pings);
            println!("{name} killed: no answer for {gap:?}");
            assert!(
                gap < Duration::from_secs(1),
                "{name} killed: no answer for {gap:?}"
            );
        }
        wait_for_links(&fabric, |switch| switch != spine);
        all_reach_all(&fabric);
        broadcasts_pass_each_link_of_one_tree_once(&fabric);
        // It comes back, and nothing is lost for as long.
        let running = pings(&fabric, 1, 4);
        start(&mut fabric, spine, false);
        let gap = longest_gap(running);
        println!("{name} back: no answer for {gap:?}");
        assert!(
            gap < Duration::from_secs(1),
            "{name} back: no answer for {gap:?}"
        );
        wait_for_links(&fabric, |_| true);
        all_reach_all(&fabric);
    }
    broadcasts_pass_each_link_of_one_tree_once(&fabric);
}

/// Two hosts that are bridges, behind different leaves, with a cable between them: each flood comes
/// back by it, and no switch sees more of the loop than its own probes.
#[test]
fn a_cable_between_hosts_ports_of_two_leaves_is_blocked() {
    let _alone = alone();
    let Some(fabric) = fabric(2, true) else {
        return;
    };
    all_reach_all(&fabric);
    let plan = fabric.plan();
    let wires = fabric.namespaces().unwrap();
    let leaves = [plan.leaf(0), plan.leaf(1)];
    let bridges = leaves.map(|leaf| {
        let mut hosts = plan.hosts_of(leaf);
        hosts
            .find(|(_, host)| host.role == HostRole::Guest(1))
            .unwrap()
            .0
    });
    let [a, b] = bridges.map(|host| wires.host_name(host));
    let ip = |words: &str| {
        let status = Command::new("ip").args(words.split(' ')).status();
        assert!(status.unwrap().success(), "ip {words}");
    };
    for name in [a, b] {
        ip(&format!("-n {name} link add bridge type bridge"));
        ip(&format!("-n {name} link set eth0 master bridge"));
        ip(&format!("-n {name} link set bridge up"));
    }
    ip(&format!(
        "link add cable netns {a} type veth peer name cable netns {b}"
    ));
    for name in [a, b] {
        ip(&format!("-n {name} link set cable master bridge"));
        ip(&format!("-n {name} link set cable up"));
    }
    let is_blocked = || {
        let reports = leaves.map(|leaf| fabric.switch_report(leaf).unwrap());
        let mut ports = reports.iter().flat_map(|report| &report.ports);
        ports.any(|port| port.name.starts_with("guest1") && port.link.loop_blocked == 1)
    };
    let start = Instant::now();
    while !is_blocked() {
        // A flood goes round until then, as far as the floods of a moment ago let it.
        let to = address(&fabric, 2);
        let words = ["ping", "-c", "1", "-W", "1", &to];
        let _ = on_host(&fabric, 0, &words).output().unwrap();
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "no port is blocked"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("blocked after {:?}", start.elapsed());
    let links = leaves.map(|leaf| fabric.switch_report(leaf).unwrap().fabric);
    assert!(links.iter().flatten().all(|link| link.alive), "{links:?}");
    std::thread::sleep(Duration::from_millis(500));
    let floods = || flooded(&fabric).into_values().max().unwrap();
    let before = floods();
    std::thread::sleep(Duration::from_secs(2));
    // Probes of all ports of hosts, each second.
    assert!(
        floods() - before < 100,
        "{} floods in 2 s",
        floods() - before
    );
    all_reach_all(&fabric);
}
