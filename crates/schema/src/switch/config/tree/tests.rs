use super::*;

const KEY: &str = "00112233445566778899aabbccddeeff";

/// Links to all switches that a job's section names, and a port for each.
fn links(name: &str, job: &str) -> (String, String) {
    let mut links = Vec::new();
    for (key, up) in [("\"parent\": \"", true), ("\"switch\": \"", false)] {
        for part in job.split(key).skip(1) {
            let other = part.split('"').next().unwrap();
            if other != name && !links.iter().any(|(it, _)| *it == other) {
                links.push((other, up));
            }
        }
    }
    links.push(("unrelated", false));
    let ports: Vec<_> = (0..links.len())
        .map(|n| format!("{{ \"device\": \"net_null{n}\" }}"))
        .collect();
    let links = links.iter().enumerate().map(|(n, (other, up))| {
        format!("{{ \"port\": {n}, \"switch\": \"{other}\", \"up\": {up} }}")
    });
    (links.collect::<Vec<_>>().join(", "), ports.join(", "))
}

/// A file with one job, whose section has `job`, and links to all switches that it names.
fn config(name: &str, job: &str) -> Result<Config, String> {
    let (links, ports) = links(name, job);
    config_with(name, job, &links, &ports)
}

fn config_with(name: &str, job: &str, links: &str, ports: &str) -> Result<Config, String> {
    let text = format!(
        r#"{{ "name": "{name}",
              "address": {{ "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254" }},
              "ports": [ {ports} ],
              "fabric": {{ "key": "9f1c7be02d5a4638a1b47c90e6d3f258", "links": [ {links} ] }},
              "jobs": [ {{ "id": 7, "key": "{KEY}", {job} }} ] }}"#
    );
    let path = PathBuf::from(format!("{name}.json"));
    let config: Config = tally_config::parse(&path, text.as_bytes()).map_err(|e| e.to_string())?;
    config.check(&path).map_err(|e| e.to_string())?;
    Ok(config)
}

fn good(name: &str, job: &str) -> (PathBuf, Config) {
    (
        PathBuf::from(format!("{name}.json")),
        config(name, job).unwrap(),
    )
}

const ROOT: &str = r#""workers": 1, "tree": { "total": 8, "children": [
    { "switch": "spine", "ranks": 5 }, { "switch": "leafC", "ranks": 2 } ] }"#;
const SPINE: &str = r#""workers": 0, "tree": { "total": 8, "first": 1, "parent": "root", "rank": 1,
    "children": [ { "switch": "leafA", "ranks": 3 }, { "switch": "leafB", "ranks": 2 } ] }"#;
const LEAF_A: &str =
    r#""workers": 3, "tree": { "total": 8, "first": 1, "parent": "spine", "rank": 0 }"#;
const LEAF_B: &str =
    r#""workers": 2, "tree": { "total": 8, "first": 4, "parent": "spine", "rank": 1 }"#;
const LEAF_C: &str =
    r#""workers": 2, "tree": { "total": 8, "first": 6, "parent": "root", "rank": 2 }"#;

fn fabric() -> Vec<(PathBuf, Config)> {
    let files = [
        ("root", ROOT),
        ("spine", SPINE),
        ("leafA", LEAF_A),
        ("leafB", LEAF_B),
        ("leafC", LEAF_C),
    ];
    files.map(|(name, job)| good(name, job)).into()
}

/// The faults of `fabric` in which the file of one switch is another.
#[track_caller]
fn faults(name: &str, from: &str, to: &str) -> String {
    let mut files = fabric();
    let sections = [ROOT, SPINE, LEAF_A, LEAF_B, LEAF_C];
    let at = files
        .iter()
        .position(|it| it.1.name.as_deref() == Some(name));
    let at = at.unwrap();
    assert!(sections[at].contains(from), "`{from}` is not in {name}");
    files[at] = good(name, &sections[at].replacen(from, to, 1));
    let faults: Vec<_> = check_trees(&files)
        .iter()
        .map(ToString::to_string)
        .collect();
    faults.join("\n")
}

#[test]
fn a_tree_of_three_levels_has_no_faults() {
    let files = fabric();
    assert!(check_trees(&files).is_empty());
    let root = &files[0].1.jobs[0];
    assert_eq!((root.members(), root.covered()), (3, 8));
    let spine = &files[1].1.jobs[0];
    let tree = spine.tree.as_ref().unwrap();
    let placed: Vec<_> = tree
        .placed(spine.workers)
        .map(|(_, rank, first)| (rank, first))
        .collect();
    assert_eq!(placed, [(0, 1), (1, 4)]);
    assert_eq!(
        tree.describe(0),
        "0 workers and 2 switches, ranks 1 to 5 of 8, rank 1 at root"
    );
    // It is written as it is read.
    for (path, config) in files {
        let text = simd_json::to_string(&config).unwrap();
        let again: Config = tally_config::parse(&path, text.as_bytes()).unwrap();
        assert_eq!(again, config);
    }
}

#[test]
fn what_one_file_contradicts_names_key_found_and_allowed() {
    for (section, from, to, words) in [
        (
            ROOT,
            "\"total\": 8",
            "\"total\": 9",
            ["tree.total", "found 9", "8"],
        ),
        (
            ROOT,
            "\"total\": 8",
            "\"total\": 0",
            ["tree.total", "found 0", "4096"],
        ),
        (
            ROOT,
            "\"total\": 8",
            "\"total\": 8, \"first\": 1",
            ["tree.first", "found 1", "root"],
        ),
        (
            ROOT,
            "\"total\": 8",
            "\"total\": 8, \"rank\": 1",
            ["tree.rank", "found 1", "root"],
        ),
        (
            ROOT,
            "leafC",
            "spine",
            ["children[1].switch", "`spine` a second time", "once"],
        ),
        (
            ROOT,
            "leafC",
            "me",
            ["children[1].switch", "`me`, this switch", "another"],
        ),
        (
            ROOT,
            "\"ranks\": 2",
            "\"ranks\": 0",
            ["children[1].ranks", "found 0", "4096"],
        ),
        (
            ROOT,
            "\"workers\": 1",
            "\"workers\": 63",
            ["jobs[0].workers", "65 members", "64"],
        ),
        (
            SPINE,
            "\"rank\": 1",
            "\"rank\": 64",
            ["tree.rank", "found 64", "0 to 63"],
        ),
        (
            SPINE,
            ", \"rank\": 1",
            "",
            ["tree.rank", "found none", "0 to 63"],
        ),
        (
            SPINE,
            "\"first\": 1",
            "\"first\": 4",
            ["tree.first", "4, of 5 ranks", "at most 3"],
        ),
        (
            SPINE,
            "\"root\"",
            "\"me\"",
            ["tree.parent", "`me`, this switch", "another"],
        ),
        (
            SPINE,
            "\"leafA\"",
            "\"root\"",
            ["children[0].switch", "`root` a second", "once"],
        ),
        (
            LEAF_A,
            "\"workers\": 3",
            "\"workers\": 0",
            ["jobs[0].workers", "0 members", "1 to 64"],
        ),
        (
            LEAF_A,
            "\"parent\"",
            "\"above\"",
            ["tree.above", "above", "expected"],
        ),
        (LEAF_A, "\"total\": 8, ", "", ["tree", "total", "missing"]),
    ] {
        assert!(section.contains(from), "`{from}` is not in {section}");
        let error = config("me", &section.replacen(from, to, 1)).expect_err(to);
        for word in words.iter().chain(&["me.json"]) {
            assert!(error.contains(word), "`{error}` does not name `{word}`");
        }
    }
    let (links, ports) = links("spine", SPINE);
    for (from, to, words) in [
        (
            "\"root\"",
            "\"other\"",
            ["tree.parent", "`root`, without a link", "up true: other"],
        ),
        (
            "\"up\": true",
            "\"up\": false",
            ["tree.parent", "`root`, without a link", "up true: none"],
        ),
        (
            "\"leafB\"",
            "\"other\"",
            [
                "children[1].switch",
                "`leafB`, without a link",
                "leafA, other",
            ],
        ),
    ] {
        let error = config_with("spine", SPINE, &links.replacen(from, to, 1), &ports).unwrap_err();
        for word in words {
            assert!(error.contains(word), "`{error}` does not name `{word}`");
        }
    }
    let nameless = Config {
        name: None,
        ..good("leafA", LEAF_A).1
    };
    let error = nameless.check(Path::new("x.json")).unwrap_err().to_string();
    assert!(
        error.contains("x.json") && error.contains("name"),
        "{error}"
    );
}

#[test]
fn what_files_contradict_names_both_switches() {
    for (name, from, to, words) in [
        (
            "spine",
            r#""first": 1, "parent": "root", "rank": 1,"#,
            "",
            vec![
                "spine.json",
                "tree.parent",
                "none at `root` and none at `spine`",
            ],
        ),
        (
            "leafA",
            "\"rank\": 0",
            "\"rank\": 1",
            vec!["leafA.json", "found 1", "0, its place at `spine`"],
        ),
        (
            "leafB",
            "\"first\": 4",
            "\"first\": 3",
            vec!["leafB.json", "found 3", "4, its place at `spine`"],
        ),
        (
            "leafB",
            "\"workers\": 2",
            "\"workers\": 3",
            vec!["leafB.json", "found 3 workers", "2, its ranks"],
        ),
        (
            "leafB",
            "\"total\": 8",
            "\"total\": 9",
            vec!["leafB.json", "found 9", "8, as at `root`"],
        ),
        (
            "leafB",
            "\"spine\"",
            "\"leafA\"",
            vec![
                "leafB.json",
                "`leafA`, whose children lack `leafB`",
                "spine.json",
                "has parent `leafA`",
            ],
        ),
        (
            "leafB",
            "\"spine\"",
            "\"lost\"",
            vec!["leafB.json", "`lost`, which has no tree", "`spine`"],
        ),
        (
            "spine",
            "\"leafB\"",
            "\"leafX\"",
            vec![
                "spine.json",
                "`leafX`, which has no tree",
                "whose file is given",
            ],
        ),
    ] {
        // The totals of the second root do not fit one file, so they are set to.
        let to = to.to_owned();
        let found = if to.is_empty() {
            let mut files = fabric();
            let tree = r#""workers": 0, "tree": { "total": 5, "children": [ { "switch": "leafA",
                "ranks": 3 }, { "switch": "leafB", "ranks": 2 } ] }"#;
            files[1] = good("spine", tree);
            let faults: Vec<_> = check_trees(&files)
                .iter()
                .map(ToString::to_string)
                .collect();
            faults.join("\n")
        } else {
            faults(name, from, &to)
        };
        for word in words {
            assert!(found.contains(word), "`{found}` does not name `{word}`");
        }
    }
    let mut files = fabric();
    files[3].1.jobs[0].key = "ff".repeat(16).parse().unwrap();
    let found = check_trees(&files)[0].to_string();
    assert!(
        found.contains("leafB.json") && found.contains("that of `root`"),
        "{found}"
    );
    assert!(!found.contains("ffff"), "{found}");
}

#[test]
fn a_loop_is_found_with_a_root_and_without() {
    let above = |parent: &str, child: &str| {
        format!(
            r#""workers": 1, "tree": {{ "total": 8, "first": 1, "parent": "{parent}", "rank": 1,
               "children": [ {{ "switch": "{child}", "ranks": 1 }} ] }}"#
        )
    };
    let three = [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")];
    let mut files: Vec<_> = three
        .map(|(name, parent, child)| good(name, &above(parent, child)))
        .into();
    let found = check_trees(&files)[0].to_string();
    assert!(found.contains("a parent at each of a, b, c"), "{found}");
    files.push(good("root", r#""workers": 8, "tree": { "total": 8 }"#));
    let found: Vec<_> = check_trees(&files)
        .iter()
        .map(ToString::to_string)
        .collect();
    let loops = found.iter().filter(|it| it.contains("a loop above `"));
    assert_eq!(loops.count(), 3, "{found:?}");
}
