//! Every command of docs/TUTORIAL.md, as it is there.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn the_tutorial_ends_with_a_sum() {
    let _alone = common::alone();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorial-test");
    let programs = common::programs().canonicalize().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let start = Instant::now();
    let output = Command::new(script).env("PATH", path).output().unwrap();
    if output.status.code() == Some(77) {
        // Past the harness, which keeps to itself what passing tests say.
        let why = "SKIPPED: the tutorial needs root (network namespaces)";
        let _ = writeln!(std::io::stderr(), "{why}");
        return;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert!(start.elapsed() < Duration::from_secs(20), "{said}");
}
