//! Lossy wires, and the report of `tally-perf loss`.
//!
//! Uses the release programs (`cargo build --release`). Wires need root; without it their tests say
//! that they are skipped.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::io::Write;
use std::process::Command;
use tally_testkit::cluster::{Links, Namespaces, allowed};

fn skipped_without_root() -> bool {
    if !allowed() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: needs root (network namespaces)"
        );
    }
    !allowed()
}

/// Requests sent, and answers that came, of pings from one host to another.
fn ping(hosts: &Namespaces, bytes: u32) -> (u64, u64) {
    let prefix = hosts.host_prefix(0);
    let mut command = Command::new(&prefix[0]);
    command.args(&prefix[1..]);
    command.args(["ping", "-q", "-i", "0.002", "-W", "1", "-c", "1000"]);
    command.args(["-s", &bytes.to_string(), "10.84.0.2"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said
        .lines()
        .find(|line| line.contains("packets transmitted"));
    let mut numbers = line.unwrap_or_else(|| panic!("{said}")).split(", ");
    let mut number = || {
        let field = numbers.next().unwrap();
        field.split_whitespace().next().unwrap().parse().unwrap()
    };
    (number(), number())
}

#[test]
fn a_wire_loses_its_share_and_counts_every_frame() {
    if skipped_without_root() {
        return;
    }
    let _alone = alone();
    let links = Links {
        mtu: 9000,
        rate_mbit: Some(1000),
    };
    for (bytes, is_long) in [(1000, true), (56, false)] {
        let hosts = Namespaces::lossy(2, links, 0.05).unwrap();
        hosts.bridge().unwrap();
        let (sent, answered) = ping(&hosts, bytes);
        let mut counted = [0; 2];
        for wire in hosts.wire_losses().unwrap() {
            for way in [wire.to_switch, wire.to_host] {
                counted[0] += way.long;
                counted[1] += way.short;
            }
        }
        if !is_long {
            counted.reverse();
        }
        // Request and answer each pass two wires, so that one in five is lost on its way. Hosts
        // send some short packets of their own.
        let lost = sent - answered;
        let own = if is_long { 0 } else { 10 };
        assert!(
            (lost..=lost + own).contains(&counted[0]),
            "{lost}: {counted:?}"
        );
        assert!(counted[1] <= 10, "{counted:?} of {bytes} bytes");
        assert!((100..280).contains(&lost), "{lost} of {sent}");
    }
}

#[test]
fn a_wire_without_loss_loses_nothing() {
    if skipped_without_root() {
        return;
    }
    let _alone = alone();
    let links = Links {
        mtu: 9000,
        rate_mbit: None,
    };
    let hosts = Namespaces::lossy(2, links, 0.0).unwrap();
    hosts.bridge().unwrap();
    assert_eq!(ping(&hosts, 1000), (1000, 1000));
}

/// The report of a quick run.
fn quick(arguments: &[&str]) -> OwnedValue {
    let mut command = Command::new(programs().join("tally-perf"));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    command.args(["loss", "--quick", "--workers", "2", "--json"]);
    let output = command.args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    simd_json::to_owned_value(&mut output.stdout.clone()).unwrap()
}

/// That each contender has its runs at 0 and 3 %, with the frames that it lost and sent again.
#[track_caller]
fn is_whole(report: &OwnedValue, contenders: &[&str]) {
    let rows = report["results"].as_array().unwrap();
    assert_eq!(rows.len(), contenders.len() * 2);
    for (n, row) in rows.iter().enumerate() {
        assert_eq!(row["contender"].as_str(), Some(contenders[n / 2]));
        assert!(row["missing"].is_null(), "{row}");
        let runs = row["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 1);
        assert!(row["goodput_gbit_per_s"]["median"].as_f64() > Some(0.0));
        let lost = runs[0]["lost"].as_u64().unwrap();
        let again = &runs[0]["again"];
        let again = ["contributions", "results"].map(|of| again[of].as_u64().unwrap());
        if n % 2 == 0 {
            assert_eq!(row["case"]["percent"].as_f64(), Some(0.0));
            assert_eq!(lost, 0, "{row}");
            assert_eq!(row["to_lossless"]["median"].as_f64(), Some(1.0));
        } else {
            assert_eq!(row["case"]["percent"].as_f64(), Some(3.0));
            // What is lost must come again.
            assert!(lost > 0 && again[0] + again[1] > 0, "{row}");
        }
    }
    for target in report["targets"].as_array().unwrap() {
        assert!(
            target["met"].is_null(),
            "a quick run judges nothing: {target}"
        );
    }
}

#[test]
fn a_quick_run_over_memif_is_whole() {
    let _alone = alone();
    let report = quick(&["--networks", "memif"]);
    is_whole(&report, &["native", "fixed", "switchml"]);
}

#[test]
fn a_quick_run_over_wires_is_whole() {
    if skipped_without_root() {
        return;
    }
    let _alone = alone();
    let report = quick(&["--networks", "namespaces"]);
    let contenders = ["native", "fixed", "switchml", "gloo-cubic", "gloo-bbr"];
    is_whole(&report, &contenders);
}
