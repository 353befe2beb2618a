use super::*;
use crate::golden::write;
use std::path::{Path, PathBuf};

const KEY: &str = "8d1f0a6c2b7e4935a0c1d2e3f4051627";

/// A switch with ports `p0` to `p7`, and these links.
fn text(name: &str, number: u8, links: &str) -> String {
    let ports: Vec<_> = (0..8)
        .map(|n| format!(r#"{{"name": "p{n}", "device": "net_null{n}"}}"#))
        .collect();
    format!(
        r#"{{"name": "{name}",
            "address": {{"mac": "02:00:00:00:00:0{number}", "ip": "10.84.0.{number}"}},
            "ports": [{}],
            "fabric": {{"key": "{KEY}", "links": [{links}]}}}}"#,
        ports.join(", ")
    )
}

fn parse(text: &str) -> Result<Config, String> {
    let path = Path::new("switch.json");
    let config: Config = tally_config::parse(path, text.as_bytes()).map_err(|e| e.to_string())?;
    config.check(path).map_err(|e| e.to_string())?;
    Ok(config)
}

fn link(port: &str, switch: &str, up: bool) -> String {
    format!(r#"{{"port": {port}, "switch": "{switch}", "up": {up}}}"#)
}

fn leaf(n: u8, spines: &[&str]) -> String {
    let links = spines.iter().enumerate();
    let links: Vec<_> = links
        .map(|(i, spine)| link(&i.to_string(), spine, true))
        .collect();
    text(&format!("leaf{n}"), n, &links.join(", "))
}

fn spine(n: u8, leaves: &[&str]) -> String {
    let links = leaves.iter().enumerate();
    let links: Vec<_> = links
        .map(|(i, leaf)| link(&format!("\"p{i}\""), leaf, false))
        .collect();
    text(&format!("spine{n}"), n + 4, &links.join(", "))
}

/// Two spines and two leaves, with two links between `leaf1` and `spine1`.
fn fabric() -> Vec<String> {
    vec![
        leaf(1, &["spine1", "spine1", "spine2"]),
        leaf(2, &["spine1", "spine2"]),
        spine(1, &["leaf1", "leaf1", "leaf2"]),
        spine(2, &["leaf1", "leaf2"]),
    ]
}

fn findings(files: &[String]) -> LinkFindings {
    let files = files.iter().enumerate().map(|(i, text)| {
        let path = PathBuf::from(format!("{i}.json"));
        let config: Config = tally_config::parse(&path, text.as_bytes()).unwrap();
        (path, config)
    });
    check_links(&files.collect::<Vec<_>>())
}

#[test]
fn links_name_ports_by_number_or_name() {
    let links = [link("4", "s1", true), link("\"p5\"", "s2", true)];
    let config = parse(&text("leaf1", 1, &links.join(", "))).unwrap();
    let found: Vec<(u16, &str)> = config
        .fabric_links()
        .map(|(port, link)| (port.0, link.switch.as_str()))
        .collect();
    assert_eq!(found, [(4, "s1"), (5, "s2")]);
    assert!(config.is_fabric_port(PortId(4)) && !config.is_fabric_port(PortId(3)));
    let fabric = config.fabric.clone().unwrap();
    assert_eq!((fabric.floods_per_s, fabric.has_below()), (100_000, false));
    assert_eq!(parse(&write(&config)).unwrap(), config);
}

#[test]
fn what_is_wrong_with_links_is_named() {
    let good = text("leaf1", 1, &link("4", "spine1", true));
    assert!(parse(&good).is_ok());
    for (from, to, words) in [
        (
            r#""name": "leaf1","#,
            "",
            "name: found none beside `fabric`",
        ),
        (
            r#""port": 4"#,
            r#""port": 8"#,
            "fabric.links[0].port: found 8, expected one of p0, p1",
        ),
        (
            r#""port": 4"#,
            r#""port": "q""#,
            "fabric.links[0].port: found `q`",
        ),
        (
            "spine1",
            "leaf1",
            "fabric.links[0].switch: found `leaf1`, expected the name of another",
        ),
        ("spine1", "", "fabric.links[0].switch: found ``"),
        (
            r#""device": "net_null4""#,
            r#""device": "net_null4", "mtu": 576"#,
            "fabric.links[0].port: found 4 with an MTU of 576, expected a port with an MTU of",
        ),
        (
            r#""links": [{"port": 4, "switch": "spine1", "up": true}]"#,
            r#""links": []"#,
            "found 0",
        ),
        (
            r#""up": true}"#,
            r#""up": true}, {"port": "p4", "switch": "spine2", "up": true}"#,
            "fabric.links[1].port: found `p4` a second time",
        ),
        (
            r#""up": true}"#,
            r#""up": true}, {"port": 5, "switch": "spine1", "up": false}"#,
            "fabric.links[1].up: found false, expected the same for all links to one switch",
        ),
        (
            r#""links""#,
            &format!(r#""previous_key": "{KEY}", "links""#),
            "fabric.previous_key: ",
        ),
        (r#""up": true"#, r#""upp": true"#, "upp"),
    ] {
        assert!(good.contains(from), "`{from}` is not in the example");
        let error = parse(&good.replacen(from, to, 1)).expect_err(to);
        assert!(error.contains(words), "`{error}` does not name `{words}`");
    }
}

#[test]
fn a_fabric_whose_files_agree_has_no_fault() {
    let found = findings(&fabric());
    assert!(found.faults.is_empty(), "{:?}", found.faults);
    let [one, two] = &found.warnings[..] else {
        panic!("{:?}", found.warnings);
    };
    assert!(
        one.contains("2.json: ports p3, p4, p5, p6, p7 are hosts'"),
        "{one}"
    );
    assert!(two.contains("3.json: ports p2,"), "{two}");
    // A tree has one switch at the top: hosts there are reached by all.
    let tree = [
        leaf(1, &["spine1"]),
        leaf(2, &["spine1"]),
        spine(1, &["leaf1", "leaf2"]),
    ];
    let found = findings(&tree);
    assert!(
        found.faults.is_empty() && found.warnings.is_empty(),
        "{found:?}"
    );
    assert!(findings(&[]).faults.is_empty());
}

#[test]
fn contradictions_of_files_are_named() {
    let check = |at: usize, from: &str, to: &str, words: &str| {
        let mut files = fabric();
        assert!(files[at].contains(from), "`{from}` is not in file {at}");
        files[at] = files[at].replacen(from, to, 1);
        let faults: Vec<_> = findings(&files)
            .faults
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(
            faults.iter().any(|it| it.contains(words)),
            "`{words}` in none of {faults:#?}"
        );
    };
    check(
        1,
        "\"leaf2\"",
        "\"leaf1\"",
        "1.json: name: found `leaf1`, as in 0.json",
    );
    check(
        1,
        "02:00:00:00:00:02",
        "02:00:00:00:00:01",
        "address.mac: found 02:00:00:00:00:01",
    );
    check(1, "10.84.0.2", "10.84.0.5", "address.ip: found 10.84.0.5");
    check(
        1,
        KEY,
        "0d1f0a6c2b7e4935a0c1d2e3f4051627",
        "fabric.key: found another key than in",
    );
    check(
        1,
        "\"spine2\"",
        "\"spine3\"",
        "fabric.links[1].switch: found `spine3`, which is in none",
    );
    check(0, "\"spine1\"", "\"spine2\"", "links to `spine");
    check(
        3,
        "\"leaf2\", \"up\": false",
        "\"leaf2\", \"up\": true",
        "up at one end, down at the other",
    );
}

#[test]
fn a_switch_that_is_above_itself_is_found() {
    let ring = [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")];
    let files: Vec<_> = ring
        .iter()
        .zip(1..)
        .map(|((name, up, down), n)| {
            let links = [link("0", up, true), link("1", down, false)];
            text(name, n, &links.join(", "))
        })
        .collect();
    let faults = findings(&files).faults;
    assert_eq!(faults.len(), 1, "{faults:?}");
    let fault = faults[0].to_string();
    assert!(
        fault.contains("0.json: fabric.links: found `a` above or below a loop"),
        "{fault}"
    );
    assert!(fault.contains("look at a, b, c"), "{fault}");
}

/// A hello names 256 switches of the lowest tier.
#[test]
fn more_leaves_than_a_hello_names_are_found() {
    let numbered = |name: &str, n: usize, links: &[String]| {
        let [high, low] = (n as u16).to_be_bytes();
        let text = text(name, 0, &links.join(", "));
        text.replace(
            "02:00:00:00:00:00",
            &format!("02:00:00:00:{high:02x}:{low:02x}"),
        )
        .replace("10.84.0.0", &format!("10.84.{high}.{low}"))
    };
    let fabric = |leaves: usize| {
        let names: Vec<_> = (0..leaves).map(|n| format!("leaf{n:03}")).collect();
        let mut files: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(n, name)| numbered(name, n, &[link("0", &format!("spine{}", n % 2), true)]))
            .collect();
        for spine in 0..2 {
            let below = names.iter().skip(spine).step_by(2);
            let links: Vec<_> = below.map(|leaf| link("0", leaf, false)).collect();
            files.push(numbered(&format!("spine{spine}"), leaves + spine, &links));
        }
        findings(&files)
    };
    assert!(fabric(256).faults.is_empty());
    let faults = fabric(257).faults;
    assert_eq!(faults.len(), 1, "{faults:?}");
    let fault = faults[0].to_string();
    let want = "256.json: fabric.links: found `leaf256`, number 257 of the lowest tier by name, \
                expected at most 256 switches";
    assert!(fault.contains(want), "{fault}");
}
