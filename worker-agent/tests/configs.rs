//! Every example of an agent's configuration is good.

#![allow(clippy::unwrap_used)]

use std::path::Path;
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
