use super::*;
use crate::config::PortSection;
use std::fs::write;

const ADDRESS: &str = r#""address": {"mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254"}"#;

fn examined(members: &str) -> Examined {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(&file, format!("{{{ADDRESS}, {members}}}")).unwrap();
    examine(file.path(), None)
}

fn is_bad(examined: &Examined, check: &str, words: &str) -> bool {
    let checks = &examined.diagnosis.checks;
    checks
        .iter()
        .any(|it| it.verdict == Verdict::Bad && it.check == check && it.found.contains(words))
}

#[test]
fn all_faults_of_file_and_machine_are_there_at_once_and_each_has_a_fix() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none/s.sock");
    let found = examined(&format!(
        r#""cores": [4000], "control_core": 4001, "window": 0, "colour": "red",
           "ports": [{{"device": "0000:ff:1f.7"}}, {{"device": "packet0,iface=tally-none", "mtu": 9}},
                     {{"device": "net_memif0,role=server,socket=/nowhere/m.sock,socket-abstract=no", "mtu": 9000}}],
           "stats_socket": "{}""#,
        socket.display()
    ));
    assert!(!found.is_usable);
    for (check, words) in [
        ("configuration", "colour: unknown field"),
        ("configuration", "window: found 0"),
        ("configuration", "ports[1].mtu: found 9"),
        ("cpus", "cores[0]: found CPU 4000, expected one of "),
        ("cpus", "control_core: found CPU 4001"),
        ("port", "this machine has no PCI device 0000:ff:1f.7"),
        ("port", "no interface `tally-none`"),
        ("port", "bsize is 2048, and `mtu` 9000 needs 9026"),
        ("port", "/nowhere"),
        ("socket", "none: No such file"),
    ] {
        assert!(is_bad(&found, check, words), "{words}: {}", found.diagnosis);
    }
    let bad = |it: &&Check| it.verdict == Verdict::Bad;
    for check in found.diagnosis.checks.iter().filter(bad) {
        assert!(
            check.fix.as_ref().is_some_and(|fix| !fix.is_empty()),
            "{check:?}"
        );
    }
}

#[test]
fn a_switch_that_can_start_has_nothing_bad() {
    let folder = tempfile::tempdir().unwrap();
    let cpu = cpus_allowed().unwrap()[0];
    let found = examined(&format!(
        r#""cores": [{cpu}], "ports": [{{"device": "net_null0"}},
           {{"device": "net_memif0,role=server,socket={0}/m.sock,socket-abstract=no"}}],
           "stats_socket": "{0}/s.sock""#,
        folder.path().display()
    ));
    assert!(
        found.is_usable && found.diagnosis.is_good(),
        "{}",
        found.diagnosis
    );
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_missing_cpu_is_named_with_those_that_there_are() {
    let text = format!(r#"{{{ADDRESS}, "cores": [4000], "ports": [{{"device": "net_null0"}}]}}"#);
    let config: Config = tally_config::parse("s.json", text.as_bytes()).unwrap();
    let why = check_cpus(&config).unwrap_err();
    assert!(
        why.starts_with("cores[0]: found CPU 4000, expected one of "),
        "{why}"
    );
}

#[test]
fn loopback_shows_what_an_interface_says() {
    let section = PortSection {
        mtu: 9000,
        ..PortSection::new("packet0,iface=lo")
    };
    let checks = port::examine(&section, MemoryKind::NoHuge);
    let mtu = checks.iter().find(|it| it.found.contains("has MTU 65536"));
    assert!(
        mtu.is_some_and(|it| it.verdict == Verdict::Warning),
        "{checks:?}"
    );
}
