//! The structure that ARCHITECTURE.md promises, enforced.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Packages from the top; each may use those after it.
const ORDER: [&str; 18] = [
    "perf",
    "switch",
    "fpga-bridge/card",
    "fpga-bridge",
    "worker-agent",
    "worker-agent/c",
    "crates/sim",
    "crates/report",
    "crates/config",
    "crates/engine",
    "crates/endpoint",
    "crates/packet",
    "crates/local",
    "crates/dpdk",
    "crates/dpdk-sys",
    "crates/frame",
    "crates/kernels",
    "crates/wire",
];

/// Packages that see no socket, clock, random source or log.
const SANS_IO: [&str; 5] = [
    "crates/engine",
    "crates/endpoint",
    "crates/frame",
    "crates/kernels",
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

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn package_name(folder: &str) -> String {
    let manifest = read(&root().join(folder).join("Cargo.toml"));
    let line = manifest
        .lines()
        .find(|line| line.starts_with("name = "))
        .unwrap();
    line.split('"').nth(1).unwrap().to_owned()
}

fn rust_files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    rust_files(&root().join(folder).join("src"), &mut files);
    files
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
            if file.file_name().is_some_and(|name| name == "tests.rs") {
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

#[test]
fn no_source_file_tells_more_than_one_story() {
    for folder in ORDER {
        for file in sources(folder) {
            let lines = read(&file).lines().count();
            assert!(lines <= 900, "{}: {lines} lines", file.display());
        }
    }
}

/// Bugs planted on purpose are in the simulator's own build with them, and nowhere else.
#[test]
fn bugs_are_planted_for_the_simulator_only() {
    for folder in ORDER {
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        let mentions = manifest.lines().filter(|line| line.contains("planted"));
        let mentions: Vec<_> = mentions.filter(|line| !line.starts_with('#')).collect();
        let allowed: &[&str] = match folder {
            "crates/sim" => &["planted = [\"tally-engine/planted\", \"tally-endpoint/planted\"]"],
            "crates/engine" | "crates/endpoint" => &["planted = []"],
            _ => &[],
        };
        assert_eq!(mentions, allowed, "{folder}");
        assert!(!manifest.contains("default = [\"planted"), "{folder}");
    }
}
