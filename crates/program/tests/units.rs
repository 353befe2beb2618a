//! The units of systemd in `configs/`.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs")
}

/// Paths and texts of all units.
fn units() -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(configs()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let units = paths.filter(|path| path.extension().is_some_and(|it| it == "service"));
    let mut units: Vec<_> = units
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .collect();
    units.sort();
    units
}

fn value<'a>(unit: &'a str, key: &str) -> Option<&'a str> {
    unit.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

#[test]
fn each_unit_waits_is_watched_and_starts_again() {
    let units = units();
    assert_eq!(units.len(), 3);
    for (path, unit) in &units {
        for (key, want) in [
            ("Type", "notify"),
            ("StartLimitIntervalSec", "0"),
            ("Restart", "always"),
            ("RestartPreventExitStatus", "2"),
            ("User", "tally"),
            ("NoNewPrivileges", "yes"),
            ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ] {
            assert_eq!(value(unit, key), Some(want), "{}: {key}", path.display());
        }
        let seconds: u32 = value(unit, "WatchdogSec").unwrap().parse().unwrap();
        assert!((5..=60).contains(&seconds));
    }
}

/// The group of the units is the one that may open the NICs, and its members reach the agent.
#[test]
fn one_group_has_the_programs_the_nics_and_the_agent_s_socket() {
    for (path, unit) in &units() {
        assert_eq!(value(unit, "Group"), Some("tally"), "{}", path.display());
        // Others pass the folder; the socket's own mode says who connects.
        let mode = value(unit, "RuntimeDirectoryMode");
        assert_eq!(mode, Some("0755"), "{}", path.display());
    }
    let rules = std::fs::read_to_string(configs().join("60-tally-vfio.rules")).unwrap();
    let rules: Vec<_> = rules.lines().filter(|it| !it.starts_with('#')).collect();
    let [rule] = rules[..] else {
        panic!("{rules:?}");
    };
    // Not the container device /dev/vfio/vfio, which is everybody's by the kernel's own mode.
    for part in [
        "SUBSYSTEM==\"vfio\"",
        "KERNEL!=\"vfio\"",
        "GROUP=\"tally\"",
        "MODE=\"0660\"",
    ] {
        assert!(rule.split(", ").any(|it| it == part), "{part} in {rule}");
    }
    let agent = std::fs::read_to_string(configs().join("agent-udp.json")).unwrap();
    assert!(agent.contains(r#""access": { "mode": "0660" }"#), "{agent}");
}

#[test]
fn a_stop_of_one_program_removes_no_other_s_folder() {
    let mut folders = Vec::new();
    for (_, unit) in &units() {
        let folder = value(unit, "RuntimeDirectory").unwrap();
        // systemd removes the innermost one.
        assert!(folder.starts_with("tally/"), "{folder}");
        assert!(!folders.contains(&folder.to_owned()), "{folder}");
        folders.push(folder.to_owned());
    }
    // Where the examples have their sockets.
    for (config, folder) in [
        ("agent-udp", "tally/agent"),
        ("switch-appliance", "tally/switch"),
    ] {
        let text = std::fs::read_to_string(configs().join(format!("{config}.json"))).unwrap();
        assert!(text.contains(&format!("\"/run/{folder}/")), "{config}");
        assert!(folders.contains(&folder.to_owned()));
    }
}

#[test]
fn each_unit_is_exposed_to_less_than_three_of_ten() {
    for (path, _) in &units() {
        let analysed = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=29"])
            .arg(path)
            .output();
        let Ok(analysed) = analysed else {
            // Past the harness, which keeps to itself what passing tests say.
            let why = "SKIPPED: exposure of units: no systemd-analyze (Debian: systemd)";
            let _ = writeln!(std::io::stderr(), "{why}");
            return;
        };
        let text = String::from_utf8_lossy(&analysed.stdout);
        let last = text.lines().last().unwrap_or_default();
        assert!(analysed.status.success(), "{}: {last}", path.display());
        assert!(last.contains("Overall exposure level"), "{text}");
    }
}
