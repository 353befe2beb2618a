use super::*;

const RING: &str = r#""members": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"],
    "tree": { "root": "spine", "leaves": [
        { "switch": "leafA", "members": 2 }, { "switch": "leafB", "members": 3 } ] }"#;

/// A switch with that section of a ring, and links to the others.
fn config(name: &str, ring: &str) -> Result<Config, String> {
    let links = match name {
        "spine" => [("leafA", false), ("leafB", false)],
        _ => [("spine", true), ("spine2", true)],
    };
    let links = links.iter().enumerate().map(|(n, (other, up))| {
        format!("{{ \"port\": {n}, \"switch\": \"{other}\", \"up\": {up} }}")
    });
    let links: Vec<_> = links.collect();
    let text = format!(
        r#"{{ "name": "{name}",
              "address": {{ "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254" }},
              "ports": [ {{ "device": "net_null0" }}, {{ "device": "net_null1" }} ],
              "fabric": {{ "key": "9f1c7be02d5a4638a1b47c90e6d3f258", "links": [ {} ] }},
              "netreduce": {{ "rings": [
                  {{ "id": 7, "key": "00112233445566778899aabbccddeeff", {ring} }} ] }} }}"#,
        links.join(", ")
    );
    let path = PathBuf::from(format!("{name}.json"));
    let config: Config = tally_config::parse(&path, text.as_bytes()).map_err(|e| e.to_string())?;
    config.check(&path).map_err(|e| e.to_string())?;
    Ok(config)
}

fn ring(config: &Config) -> tally_engine::netreduce::RingConfig {
    config.rings()[0].ring(config.name.as_deref())
}

#[test]
fn each_switch_finds_its_part_by_its_name() {
    let root = SwitchName::new("spine");
    let leaf = |number, ranks| RingRole::Leaf {
        number,
        ranks,
        root,
    };
    let of = |name| ring(&config(name, RING).unwrap());
    assert_eq!(of("leafA").role, leaf(0, 0..2));
    assert_eq!(of("leafB").role, leaf(1, 2..5));
    let leaves = ["leafA", "leafB"].map(SwitchName::new).to_vec();
    assert_eq!(of("spine").role, RingRole::Root { leaves });
    // Three windows of the own members, and two of the leaves.
    assert_eq!(of("leafA").held_max(), 6 * 170 * 2);
    assert_eq!(of("leafB").held_max(), 6 * 170 * 3);
    assert_eq!(of("spine").held_max(), 4 * 170 * 2);
}

#[test]
fn every_mistake_in_a_tree_of_a_ring_is_named() {
    for (name, from, to, words) in [
        (
            "leafA",
            "\"members\": 3",
            "\"members\": 2",
            ["tree.leaves", "4 members of leaves"],
        ),
        (
            "leafA",
            "\"members\": 3",
            "\"members\": 0",
            ["tree.leaves[1].members", "at least 1"],
        ),
        (
            "leafA",
            "\"leafB\"",
            "\"leafA\"",
            ["tree.leaves[1].switch", "leafA a second time"],
        ),
        (
            "leafA",
            "\"leafB\"",
            "\"spine\"",
            ["tree.leaves[1].switch", "spine a second time"],
        ),
        (
            "leafA",
            "\"leafA\"",
            "\"leafC\"",
            ["tree.leaves", "\"leafA\""],
        ),
        (
            "leafA",
            "\"root\": \"spine\"",
            "\"root\": \"spine9\"",
            ["tree.root", "up true"],
        ),
        (
            "spine",
            "\"leafB\"",
            "\"leafC\"",
            ["tree.leaves[1].switch", "up false"],
        ),
        ("leafA", "\"root\"", "\"top\"", ["top", "root"]),
    ] {
        assert!(RING.contains(from), "{from}");
        let error = config(name, &RING.replacen(from, to, 1)).expect_err(to);
        for word in words {
            assert!(error.contains(word), "`{error}` does not name `{word}`");
        }
    }
    let one = r#""members": ["10.0.0.1", "10.0.0.2"],
        "tree": { "root": "spine", "leaves": [ { "switch": "leafA", "members": 2 } ] }"#;
    let error = config("leafA", one).unwrap_err();
    assert!(error.contains("2 to 64 switches"), "{error}");
}

#[test]
fn files_of_all_switches_have_the_same_ring() {
    let file = |name: &str, ring: &str| {
        let path = PathBuf::from(format!("{name}.json"));
        (path, config(name, ring).unwrap())
    };
    let all = |ring: &str| {
        [
            file("spine", RING),
            file("leafA", RING),
            file("leafB", ring),
        ]
    };
    assert!(check_ring_trees(&all(RING)).is_empty());
    let found = |files: &[(PathBuf, Config)]| -> String {
        let faults = check_ring_trees(files);
        faults.iter().map(ToString::to_string).collect()
    };
    let other = RING.replacen("10.0.0.5", "10.0.0.6", 1);
    let text = found(&all(&other));
    for word in ["leafB.json", "netreduce.rings[0]", "`spine`"] {
        assert!(text.contains(word), "{text}");
    }
    let mut files = all(RING);
    files[2].1.netreduce.as_mut().unwrap().rings.clear();
    let text = found(&files);
    assert!(text.contains("`leafB`, whose file has no ring 7"), "{text}");
    let mut files = all(RING);
    files[1].1.netreduce.as_mut().unwrap().dscp = 40;
    let text = found(&files);
    assert!(
        text.contains("leafA.json") && text.contains("netreduce.dscp"),
        "{text}"
    );
    assert!(check_ring_trees(&files[1..2]).is_empty(), "one file alone");
}
