//! What the program prints, where it cannot be printed.

#![allow(clippy::unwrap_used)]

use std::process::Command;

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
