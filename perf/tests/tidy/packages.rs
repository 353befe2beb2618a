//! Packages: what each may use, and where `unsafe` may be.

use std::fs;
use std::process::Command;

use super::files::{self, read, root, sources};

/// Packages from the top; each may use those after it.
pub const ORDER: [&str; 31] = [
    "perf",
    "crates/testkit",
    "crates/controller",
    "crates/load",
    "crates/ctl",
    "switch",
    "fpga-bridge/card",
    "fpga-bridge",
    "worker-agent",
    "worker-agent/c",
    "crates/sim",
    "crates/planner",
    "crates/report",
    "crates/telemetry",
    "crates/schema",
    "crates/program",
    "crates/api",
    "crates/config",
    "crates/engine",
    "crates/session",
    "crates/endpoint",
    "crates/packet",
    "crates/verbs",
    "crates/local",
    "crates/dpdk",
    "crates/dpdk-sys",
    "crates/frame",
    "crates/kernels",
    "crates/roce",
    "crates/rina",
    "crates/wire",
];

/// Packages that see no socket, clock, random source or log.
const SANS_IO: [&str; 9] = [
    "crates/planner",
    "crates/engine",
    "crates/session",
    "crates/endpoint",
    "crates/frame",
    "crates/kernels",
    "crates/roce",
    "crates/rina",
    "crates/wire",
];

/// What would bring one in.
const IO: [&str; 14] = [
    "std::net::Udp",
    "std::net::Tcp",
    "std::os::unix::net",
    "std::fs",
    "std::io",
    "std::thread",
    "std::process",
    "Instant::now",
    "SystemTime",
    "getrandom",
    "println!",
    "eprintln!",
    "log::",
    "tracing::",
];

fn package_name(folder: &str) -> String {
    let manifest = read(&root().join(folder).join("Cargo.toml"));
    let line = manifest
        .lines()
        .find(|line| line.starts_with("name = "))
        .unwrap();
    line.split('"').nth(1).unwrap().to_owned()
}

/// A manifest's dependencies without those of its tests.
fn dependencies(folder: &str) -> Vec<String> {
    let manifest = read(&root().join(folder).join("Cargo.toml"));
    let mut names = Vec::new();
    let mut in_dependencies = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies]") && !line.contains("dev-");
        } else if in_dependencies {
            names.extend(line.split(['.', ' ', '=']).next().map(str::to_owned));
        }
    }
    names
}

#[test]
fn dependencies_point_down() {
    let names: Vec<_> = ORDER.iter().map(|folder| package_name(folder)).collect();
    for (at, folder) in ORDER.iter().enumerate() {
        for dependency in dependencies(folder) {
            if let Some(other) = names.iter().position(|name| *name == dependency) {
                assert!(
                    other > at,
                    "{folder} uses {}, which is above it",
                    ORDER[other]
                );
            }
        }
    }
}

#[test]
fn every_package_has_its_place() {
    let manifest = read(&root().join("Cargo.toml"));
    assert!(manifest.contains("\"crates/*\""));
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let entry = entry.unwrap();
        if entry.path().join("Cargo.toml").exists() {
            let folder = format!("crates/{}", entry.file_name().to_string_lossy());
            assert!(
                ORDER.contains(&folder.as_str()),
                "{folder} is not in the order"
            );
        }
    }
}

#[test]
fn sans_io_means_it() {
    for folder in SANS_IO {
        for file in sources(folder) {
            if files::is_test(&file) {
                continue;
            }
            // Unit tests at the end of a file may do what they like.
            let text = read(&file);
            let code = text.split("#[cfg(test)]").next().unwrap();
            for (n, line) in code.lines().enumerate() {
                if line.trim_start().starts_with("//") {
                    continue;
                }
                for word in IO {
                    assert!(!line.contains(word), "{}:{}: {word}", file.display(), n + 1);
                }
            }
        }
    }
}

#[test]
fn unsafe_stays_where_it_may_be() {
    let manifest = read(&root().join("Cargo.toml"));
    assert!(manifest.contains("unsafe_code = \"forbid\""));
    for folder in ORDER {
        let own_table = [
            "crates/dpdk",
            "crates/dpdk-sys",
            "crates/packet",
            "crates/local",
            "crates/verbs",
            "worker-agent/c",
        ];
        if own_table.contains(&folder) {
            continue;
        }
        // These have a table of their own, too, and `unsafe` in one place only.
        let place = match folder {
            "crates/kernels" => "arch",
            "fpga-bridge" => "bar.rs",
            "fpga-bridge/card" => "ffi.rs",
            _ => {
                let own = read(&root().join(folder).join("Cargo.toml"));
                assert!(own.contains("[lints]\nworkspace = true"), "{folder}");
                continue;
            }
        };
        for file in sources(folder) {
            if !file.components().any(|part| part.as_os_str() == place) {
                let code = read(&file);
                assert!(!code.contains("unsafe {"), "{}", file.display());
                assert!(!code.contains("unsafe fn"), "{}", file.display());
            }
        }
    }
}

/// Bugs planted on purpose are patches of the simulator's, and nowhere else.
#[test]
fn no_bug_is_planted_in_the_sources() {
    for folder in ORDER {
        for file in sources(folder) {
            let source = read(&file);
            let mut lines = source.lines().map(str::trim_start);
            let planted =
                lines.find(|line| line.ends_with("mod planted;") || line.contains("planted::is("));
            assert_eq!(planted, None, "{}", file.display());
        }
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        assert!(!manifest.contains("planted"), "{folder}");
    }
}

/// What runs with random input has all assertions and overflow checks.
#[test]
fn the_simulator_and_the_fuzz_targets_have_all_checks_on() {
    for (manifest, profile) in [("Cargo.toml", "checked"), ("fuzz/Cargo.toml", "release")] {
        let manifest = read(&root().join(manifest));
        let (_, rest) = manifest
            .split_once(&format!("[profile.{profile}]\n"))
            .unwrap_or_else(|| panic!("no profile {profile}"));
        let settings = rest.split("\n[").next().unwrap_or_default();
        for setting in ["debug-assertions = true", "overflow-checks = true"] {
            assert!(settings.contains(setting), "{profile}: {setting}");
        }
    }
}

/// What a package's dependencies are built with, "name version [features]".
fn built_with(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args([
        "tree",
        "--locked",
        "--prefix",
        "none",
        "--format",
        "{p} [{f}]",
    ]);
    let output = command
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    // A package of ours has its folder in the line.
    let others = text.lines().filter(|line| !line.contains(" (/"));
    others.map(|line| line.replace(" (*)", "")).collect()
}

/// A feature that only another program or a test asks for would build all of this twice.
#[test]
fn programs_and_tests_share_builds() {
    let programs = [
        "tally-switch",
        "tally-load",
        "tally-ctl",
        "tally-controller",
        "tally-c",
        "tally-agent",
    ];
    let installed = programs.iter().flat_map(|name| ["--package", name]);
    let installed: Vec<_> = ["--edges", "normal"].into_iter().chain(installed).collect();
    let all = built_with(&["--workspace", "--edges", "normal,dev"]);
    let mut alone = built_with(&installed);
    assert!(alone.len() > 100, "{alone:?}");
    alone.retain(|line| !all.contains(line));
    assert!(alone.is_empty(), "built once more: {alone:?}");
}
