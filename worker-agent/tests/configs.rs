//! Every example of an agent's configuration is good.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use tally_agent::config::{AgentConfig, PsConfig, WorkerConfig};

#[test]
fn every_example_is_good() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    let (mut workers, mut servers, mut agents) = (0, 0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".json") {
            continue;
        }
        if name.starts_with("worker") {
            WorkerConfig::load(&path).unwrap_or_else(|e| panic!("{e}"));
            workers += 1;
        } else if name.starts_with("ps") {
            PsConfig::load(&path).unwrap_or_else(|e| panic!("{e}"));
            servers += 1;
        } else if name.starts_with("agent") {
            AgentConfig::load(&path).unwrap_or_else(|e| panic!("{e}"));
            agents += 1;
        } else {
            assert!(
                name.starts_with("switch"),
                "{name}: whose configuration is it?"
            );
        }
    }
    assert!(workers >= 2 && servers >= 1 && agents >= 2);
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let ended = Command::new(env!("CARGO_BIN_EXE_tally-agent"))
        .args(["doctor", "--json", "--config", "/nowhere/agent.json"])
        .stdout(full.unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.contains("standard output: No space left"), "{said}");
}
