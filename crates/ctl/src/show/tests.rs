//! What is printed, held against the report that `tally-schema` keeps as an example.

use super::*;
use tally_schema::switch::report::FabricLinkReport;

const GOLDEN: &str = include_str!("../../../schema/golden/switch-report.json");

fn snapshot() -> Snapshot {
    Snapshot {
        version: 4,
        report: simd_json::from_slice(&mut GOLDEN.as_bytes().to_vec()).unwrap(),
        cleared_s: None,
        macs: vec![Mac {
            mac: "02:00:00:00:00:01".into(),
            port: "a".into(),
            age_s: 3,
        }],
        macs_left_out: 2,
    }
}

#[track_caller]
fn shows(part: Part, want: &[&str]) {
    let text = snapshot().text(part);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines, want, "{text}");
}

#[test]
fn jobs_and_members_are_aligned() {
    shows(
        Part::Jobs,
        &[
            "job  phase              epoch  workers  joined  left  ps   card  tenant  old key  waits for  results  payload bytes  tree              below  sums up  uplink bytes  results down",
            "  7  running, draining      3        4       4     1  yes  yes   lab     5 ps     -               31          31744  rank 1 at spine1  leafA       32         35904            30",
        ],
    );
    shows(
        Part::Members,
        &[
            "job  rank  port  mac                ip          udp  silent s  fragment  behind  awaits  state",
            "  7     4  a     02:00:00:00:00:01  10.84.0.1  4000       0.2        41       3    75 %  joined",
        ],
    );
}

#[test]
fn ports_queues_and_addresses_are_aligned() {
    shows(
        Part::Ports,
        &[
            "port  state    Mbit/s  rx frames  rx bytes  tx frames  tx bytes  flooded  dropped  missed  addresses  neighbour",
            "a     blocked  100000          1         2          3         4        5       36      22         12  leaf 3 swp7",
        ],
    );
    let text = snapshot().text(Part::Queues);
    assert!(
        text.contains("a         0        1      14       15\n"),
        "{text}"
    );
    assert!(text.contains("a         7        8\n"), "{text}");
    shows(
        Part::Macs,
        &[
            "mac                port  age s",
            "02:00:00:00:00:01  a         3",
            "2 more addresses are not shown",
        ],
    );
}

#[test]
fn pool_cores_and_drops_are_aligned() {
    let text = snapshot().text(Part::Pool);
    for line in [
        "policy             esa\n",
        "slots in use         5\n",
        "hit rate       75.00 %\n",
        "residence p99  20.2 µs\n",
        "contributions      128\n",
    ] {
        assert!(text.contains(line), "{line}\nin\n{text}");
    }
    shows(
        Part::Cores,
        &[
            "cpu    busy  frames  frames/burst  empty polls  receive  classify  aggregate  send",
            "  2  50.0 %      60           4.0       62.5 %        2         2          4     4",
            "stages in cycles a frame",
        ],
    );
    let text = snapshot().text(Part::Drops);
    assert!(
        text.starts_with("reason       frames  a frame that\nunknown-job       3  "),
        "{text}"
    );
}

#[test]
fn events_have_a_date_and_no_escape_sequence() {
    for (seconds, want) in [
        (0.0, "1970-01-01 00:00:00.000"),
        (951_782_400.5, "2000-02-29 00:00:00.500"),
        (1_795_000_000.25, "2026-11-18 11:06:40.250"),
        (4_107_542_399.0, "2100-02-28 23:59:59.000"),
        (4_107_542_400.0, "2100-03-01 00:00:00.000"),
    ] {
        assert_eq!(parts::utc(seconds), want);
    }
    let mut snapshot = snapshot();
    let event = &mut snapshot.report.events[0];
    event.text = "job 7: \u{1b}[2J".into();
    let text = snapshot.text(Part::Events);
    let want = "2026-11-18 11:06:40.250  warn   lost  job 7: ?[2J\n";
    assert!(text.ends_with(want), "{text}");
    snapshot.report.events.clear();
    assert_eq!(snapshot.text(Part::Events), "no events\n");
}

#[test]
fn parts_that_a_switch_lacks_say_so() {
    let mut snapshot = snapshot();
    snapshot.report.jobs.clear();
    snapshot.report.switchml = None;
    snapshot.report.card = None;
    snapshot.report.drops.clear();
    snapshot.macs.clear();
    for (part, want) in [
        (Part::Jobs, "no jobs"),
        (Part::Members, "no members"),
        (Part::Macs, "no addresses"),
        (Part::Drops, "no frames dropped"),
        (
            Part::Sessions,
            "this switch serves no SwitchML (`switchml` of its configuration)",
        ),
        (
            Part::Card,
            "this switch has no card (`card` of its configuration)",
        ),
    ] {
        assert_eq!(snapshot.text(part), format!("{want}\n"));
    }
}

#[test]
fn counters_since_a_clear_say_so_and_gauges_do_not() {
    let mut snapshot = snapshot();
    snapshot.cleared_s = Some(61.4);
    let note = "counted since 61 s ago, when counters were cleared (--total: since the start)\n";
    assert!(snapshot.text(Part::Ports).ends_with(note));
    assert!(!snapshot.text(Part::Members).contains("cleared"));
}

#[test]
fn json_is_one_line_of_the_part() {
    use clap::ValueEnum as _;
    use simd_json::prelude::*;
    let snapshot = snapshot();
    for part in Part::value_variants() {
        let text = snapshot.json(*part);
        assert_eq!(text.matches('\n').count(), 1, "{part:?}: {text}");
        simd_json::to_owned_value(&mut text.into_bytes()).unwrap();
    }
    let mut text = snapshot.json(Part::Members).into_bytes();
    let members = simd_json::to_owned_value(&mut text).unwrap();
    assert_eq!(members[0]["job"].as_u64(), Some(7));
    assert_eq!(members[0]["port"].as_str(), Some("a"));
    let mut text = snapshot.json(Part::Pool).into_bytes();
    let pool = simd_json::to_owned_value(&mut text).unwrap();
    assert_eq!(pool["slots_in_use"].as_u64(), Some(5));
    assert_eq!(pool["policy"].as_str(), Some("esa"));
}

#[test]
fn hostile_names_reach_no_terminal() {
    let mut snapshot = snapshot();
    snapshot.report.ports[0].name = "\u{1b}[31mred".into();
    for part in [Part::All, Part::Ports, Part::Queues] {
        let text = snapshot.text(part);
        assert!(
            !text.contains('\u{1b}') && text.contains("?[31mred"),
            "{text}"
        );
    }
}

#[test]
fn links_to_other_switches_are_aligned() {
    shows(Part::Fabric, &["no links to other switches"]);
    let mut snapshot = snapshot();
    let link = |port: &str, problem: Option<&str>| FabricLinkReport {
        port: port.into(),
        switch: "spine1".into(),
        up: true,
        alive: problem.is_none(),
        alive_s: 12.7,
        reach: 3,
        problem: problem.map(str::to_owned),
        ..FabricLinkReport::default()
    };
    snapshot.report.fabric = vec![link("up1", None), link("up2", Some("switch `spine2`"))];
    let text = snapshot.text(Part::Fabric);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "port  leads  switch  alive s  deaths  lost  wrong  reaches  found",
            "up1   up     spine1       13       0     0      0        3  -",
            "up2   up     spine1     dead       0     0      0        3  switch `spine2`",
        ],
        "{text}"
    );
    assert!(
        snapshot
            .json(Part::Fabric)
            .starts_with(r#"[{"port":"up1","switch":"spine1""#)
    );
}
