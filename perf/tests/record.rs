//! Every recorded result can be read, and says what it was measured of and on.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use tally_perf::record::Record;

#[test]
fn every_record_parses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut records = 0;
    for entry in fs::read_dir(root.join("record")).unwrap() {
        let path = entry.unwrap().path();
        // README.md and HISTORY.md.
        if path.extension().is_some_and(|e| e == "md") {
            continue;
        }
        let record = Record::read(&path).unwrap_or_else(|error| panic!("{error:#}"));
        record
            .check()
            .unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
        // The simulator's comparison is a command of another program. What follows the command is a
        // part of what it measures.
        let command = record.command.split('-').next().unwrap_or_default();
        let source = root.join(format!("src/commands/{command}.rs"));
        assert!(
            source.exists() || record.command == "jct",
            "{}: no command {}",
            path.display(),
            record.command
        );
        records += 1;
    }
    println!("{records} records");
    assert!(Record::newest(&root.join("record")).unwrap().len() <= records);
}

#[test]
fn a_file_that_is_no_record_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("2026-11-21-datapath.json");
    let read = |text: &str| {
        fs::write(&path, text).unwrap();
        Record::read(&path)
    };
    let whole = r#"{"machine":{"cpu":"x","cores":2,"virtual_machine":true},"commit":"0123456",
        "parameters":{},"results":[1],"targets":[]}"#;
    read(whole).unwrap().check().unwrap();
    for (part, instead) in [
        ("0123456", "0123456-dirty"),
        ("0123456", "unknown"),
        ("[1]", "[]"),
    ] {
        let record = read(&whole.replace(part, instead)).unwrap();
        assert!(record.check().is_err(), "{instead}");
    }
    for broken in ["", "[]", "{", &whole.replace("\"commit\"", "\"version\"")] {
        assert!(read(broken).is_err(), "{broken}");
    }
}
