//! What is said of a change, and files of keys.

use super::*;

fn changed() -> Changed {
    Changed {
        version: 5,
        changed: true,
        changes: vec!["job 7 added".into()],
        needs_restart: vec!["pool.slots: 64 to 128".into()],
    }
}

#[test]
fn a_change_says_what_became_of_it() {
    let want = "job 7 added\nconfiguration version 5\nneeds a restart: pool.slots: 64 to 128\n";
    assert_eq!(lines(&changed()), want);
    let none = Changed {
        version: 5,
        ..Changed::default()
    };
    assert_eq!(lines(&none), "nothing to change, configuration version 5\n");
    let want = r#"{"version":5,"changed":true,"changes":["job 7 added"],"needs_restart":["pool.slots: 64 to 128"]}"#;
    assert_eq!(json(&changed()), format!("{want}\n"));
}

#[test]
fn keys_come_from_files_that_others_cannot_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let refused = || read_key(&path).unwrap_err().to_string();
    assert!(refused().contains("No such file"), "{}", refused());
    std::fs::write(&path, " 00112233445566778899aabbccddeeff\n").unwrap();
    let mode =
        |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o640);
    let why = refused();
    assert!(
        why.contains("mode 0640") && why.contains("chmod 600") && !why.contains("0011"),
        "{why}"
    );
    mode(0o600);
    assert_eq!(read_key(&path).unwrap(), "00112233445566778899aabbccddeeff");
    std::fs::write(&path, "\n").unwrap();
    assert!(refused().contains("empty"), "{}", refused());
    assert_eq!(
        read_key(&path).unwrap_err().exit(),
        tally_program::Exit::Usage
    );
}
