//! The program as a user calls it: examples, files, errors, and plans that follow one another.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The fleet of configs/, which the examples of the docs use.
fn fleet() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/fleet.json")
}

fn call(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tally-controller"));
    command.args(arguments).output().unwrap()
}

#[track_caller]
fn prints(arguments: &[&str]) -> String {
    let output = call(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    assert_eq!(error, "");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fails(arguments: &[&str], code: i32, words: &[&str]) {
    let output = call(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert!(output.stdout.is_empty());
}

/// A changed copy of the fleet.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn changed(&self, from: &str, to: &str) -> String {
        let text = std::fs::read_to_string(fleet()).unwrap();
        assert!(text.contains(from), "{from}");
        self.write("changed.json", &text.replacen(from, to, 1))
    }
}

#[test]
fn worked_examples_have_the_papers_rates_and_assignments() {
    let text = prints(&["plan", "--example", "grid-fig1"]);
    for line in [
        "none        1.0000",
        "tor         2.4375",
        "grid-exact  3.0000",
        "S1 sums W1, W2, W3, by S3 to PS1",
        "S2 sums W4, W5, W6, by S3 to PS1",
        "S3 sums W7, W8, to PS1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = prints(&["plan", "--example", "inart-fig1"]);
    for line in [
        "none         1.3333",
        "tor-whole    2.0000",
        "inart-exact  2.6667",
        "V1 sums W1, W2, W3, W4, by V2 to PS2",
        "V2 sums W2, W3, W5, W6, by V1 to PS1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn an_example_is_a_file_that_has_the_same_plan() {
    let folder = Folder::new();
    for name in ["grid-fig1", "inart-fig1"] {
        let file = folder.write("fleet.json", &prints(&["example", name]));
        let algorithm = ["--algorithm", "tally", "--json"];
        let of_file = prints(&[&["plan", &file], &algorithm[..]].concat());
        let of_example = prints(&[&["plan", "--example", name], &algorithm[..]].concat());
        assert_eq!(of_file, of_example);
    }
}

#[test]
fn a_plan_is_a_file_that_can_be_checked() {
    let folder = Folder::new();
    let fleet = fleet().to_str().unwrap().to_owned();
    let plan = prints(&["plan", &fleet, "--json"]);
    let file = folder.write("plan.json", &plan);
    assert!(prints(&["check", &fleet, &file]).contains("2 jobs, 8.3333 Gbit/s: feasible"));
    // More than there is.
    let rate = plan.lines().find(|line| line.contains("\"rate\"")).unwrap();
    let more = folder.write("more.json", &plan.replacen(rate, "\"rate\": 25.0,", 1));
    fails(&["check", &fleet, &more], 1, &["more.json", "exceeds"]);
    // A worker whose gradients go nowhere.
    let lost = plan.replacen("\"from\": \"host1\"", "\"from\": \"host2\"", 1);
    let lost = folder.write("lost.json", &lost);
    fails(&["check", &fleet, &lost], 1, &["job 0"]);
    // A cable that is not there.
    let other = plan.replacen("\"from\": \"host1\"", "\"from\": \"host12\"", 1);
    let other = folder.write("other.json", &other);
    fails(
        &["check", &fleet, &other],
        2,
        &["other.json: jobs[0].shares[0].streams[", "a cable"],
    );
    // Another fleet's.
    let grid = folder.write("grid.json", &prints(&["example", "grid-fig1"]));
    fails(&["check", &grid, &file], 2, &["the fleet's file"]);
}

#[test]
fn what_does_not_fit_is_named_with_its_place() {
    let folder = Folder::new();
    for (from, to, words) in [
        ("\"Gbit/s\"", "\"Gb\"", ["unit", "Gbit/s"]),
        (
            "\"name\": \"leaf2\"",
            "\"name\": \"leaf1\"",
            ["switches[1].name", "once more"],
        ),
        (
            "\"name\": \"leaf2\"",
            "\"name\": \"a b\"",
            ["switches[1].name", "spaces"],
        ),
        (
            "\"name\": \"host1\"",
            "\"name\": \"leaf1\"",
            ["hosts[0].name", "once more"],
        ),
        (
            "\"switch\": \"leaf1\"",
            "\"switch\": \"leaf9\"",
            ["hosts[0].switch", "`leaf9`"],
        ),
        (
            "[\"leaf1\", \"spine1\"]",
            "[\"leaf1\", \"ps1\"]",
            ["links[0].between[1]", "`ps1`"],
        ),
        (
            "[\"leaf1\", \"spine1\"]",
            "[\"leaf1\", \"leaf1\"]",
            ["links[0].between", "two switches"],
        ),
        (
            "[\"leaf1\", \"spine2\"]",
            "[\"spine1\", \"leaf1\"]",
            ["links[1].between", "the sum of their rates"],
        ),
        (
            "\"capacity\": 40",
            "\"capacity\": -1",
            ["switches[0].capacity", "from 0"],
        ),
        (
            "\"cores\": 2",
            "\"cores\": 0",
            ["switches[0].cores", "1 or more"],
        ),
        (
            "\"weight\": 2",
            "\"weight\": 0",
            ["jobs[1].weight", "0.000001"],
        ),
        (
            "\"workers\": [\"host1\", \"host2\"",
            "\"workers\": [\"host1\", \"host1\"",
            ["jobs[0].workers[1]", "once"],
        ),
        (
            "\"workers\": [\"host1\"",
            "\"workers\": [\"ps1\"",
            ["jobs[0].workers[0]", "`ps1`"],
        ),
        (
            "\"from\": \"leaf1\"",
            "\"from\": \"leaf9\"",
            ["background.cables[0]", "`leaf9`"],
        ),
        (
            "\"name\": \"language\"",
            "\"name\": \"vision\"",
            ["jobs[1].name", "once more"],
        ),
        ("\"bf16\"", "\"f64\"", ["jobs[1].element", "f64"]),
        ("\"results\"", "\"result\"", ["result", "expected"]),
    ] {
        let file = folder.changed(from, to);
        fails(
            &["plan", &file],
            2,
            &[&["changed.json"], &words[..]].concat(),
        );
    }
    fails(&["plan", "/none/fleet.json"], 3, &["/none/fleet.json"]);
    fails(&["plan"], 2, &["FLEET", "--example"]);
    let fleet = fleet().to_str().unwrap().to_owned();
    fails(&["plan", &fleet, "--algorithm", "best"], 2, &["r-inart"]);
    fails(
        &["explain", "absent", &fleet],
        2,
        &["absent", "vision, language"],
    );
}

#[test]
fn jobs_that_need_not_move_stay_when_a_switch_dies() {
    let folder = Folder::new();
    let file = folder.write("fleet.json", FOUR_LEAVES);
    let running = folder.write("plan.json", &prints(&["plan", &file, "--json"]));
    // Nothing has changed.
    let text = prints(&["plan", &file, "--before", &running]);
    assert!(
        text.contains("left   stays") && text.contains("right  stays"),
        "{text}"
    );
    // The leaf of one job's hosts sums no more.
    let dead = FOUR_LEAVES.replacen(
        "\"name\": \"leaf4\", \"capacity\": 10",
        "\"name\": \"leaf4\", \"capacity\": 0",
        1,
    );
    let file = folder.write("dead.json", &dead);
    let text = prints(&["plan", &file, "--before", &running]);
    assert!(
        text.contains("left   stays") && text.contains("right  moves"),
        "{text}"
    );
    assert!(!text.contains("leaf4 sums"), "{text}");
    // A job ends, another begins.
    let file = folder.write(
        "new.json",
        &FOUR_LEAVES.replacen("\"name\": \"right\"", "\"name\": \"new\"", 1),
    );
    let text = prints(&["plan", &file, "--before", &running]);
    for words in ["left  stays", "new   begins", "right ends"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// Two jobs on leaves of their own.
const FOUR_LEAVES: &str = r#"{
    "unit": "Gbit/s",
    "switches": [
        {"name": "leaf1", "capacity": 10}, {"name": "leaf2", "capacity": 10},
        {"name": "leaf3", "capacity": 10}, {"name": "leaf4", "capacity": 10},
        {"name": "spine", "capacity": 100}
    ],
    "links": [
        {"between": ["leaf1", "spine"], "rate": 10}, {"between": ["leaf2", "spine"], "rate": 10},
        {"between": ["leaf3", "spine"], "rate": 10}, {"between": ["leaf4", "spine"], "rate": 10}
    ],
    "hosts": [
        {"name": "a1", "switch": "leaf1", "rate": 10}, {"name": "a2", "switch": "leaf1", "rate": 10},
        {"name": "b1", "switch": "leaf2", "rate": 10}, {"name": "b2", "switch": "leaf2", "rate": 10},
        {"name": "c1", "switch": "leaf3", "rate": 10}, {"name": "c2", "switch": "leaf3", "rate": 10},
        {"name": "d1", "switch": "leaf4", "rate": 10}, {"name": "d2", "switch": "leaf4", "rate": 10}
    ],
    "servers": [
        {"name": "ps1", "switch": "spine", "rate": 10}, {"name": "ps2", "switch": "spine", "rate": 10}
    ],
    "jobs": [
        {"name": "left", "workers": ["a1", "a2", "b1", "b2"], "bytes": 1000000},
        {"name": "right", "workers": ["c1", "c2", "d1", "d2"], "bytes": 1000000}
    ]
}"#;

/// What `explain` says of a core is what a plan with that core has.
#[test]
fn an_explanation_holds_in_a_plan_of_the_changed_fleet() {
    let folder = Folder::new();
    let file = folder.write("grid.json", &prints(&["example", "grid-fig1"]));
    let text = prints(&["explain", "job", &file]);
    assert!(text.contains("bound by summation at S1"), "{text}");
    let line = text
        .lines()
        .find(|line| line.starts_with("one more core at S1"))
        .unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    let (rate, gain) = (words[5], words[6]);
    assert_eq!((rate, gain), ("4.3636", "39.1"));
    let more = std::fs::read_to_string(&file).unwrap();
    let more = more.replacen("\"capacity\": 9.0", "\"capacity\": 18.0", 1);
    let more = folder.write("more.json", &more);
    let plan = prints(&["plan", &more]);
    assert!(
        plan.starts_with(&format!("tally: {rate} Gbit/s\n")),
        "{plan}"
    );
    // Half of the capacity is one of two cores.
    let two = std::fs::read_to_string(&file)
        .unwrap()
        .replacen("\"cores\": 1", "\"cores\": 2", 1);
    let two = folder.write("two.json", &two);
    let text = prints(&["explain", "job", &two]);
    assert!(!text.contains("4.3636"), "{text}");
    // Any job of a fleet has an answer.
    for job in ["vision", "language"] {
        let text = prints(&["explain", job, fleet().to_str().unwrap()]);
        assert!(
            text.contains("bound by ") && text.contains("gain"),
            "{text}"
        );
    }
}

#[test]
fn a_job_without_a_parameter_server_in_reach_is_told() {
    let folder = Folder::new();
    let file = folder.write(
        "cut.json",
        &FOUR_LEAVES.replacen(
            "\"between\": [\"leaf1\", \"spine\"], \"rate\": 10",
            "\"between\": [\"leaf1\", \"spine\"], \"rate\": 0",
            1,
        ),
    );
    let text = prints(&["plan", &file]);
    assert!(text.contains("no parameter server in reach"), "{text}");
    let text = prints(&["explain", "left", &file]);
    assert!(text.contains("no parameter server is in reach"), "{text}");
}

#[test]
fn a_picture_has_every_name_and_no_markup_of_a_name() {
    let folder = Folder::new();
    let hostile = FOUR_LEAVES.replace("leaf1", "<script>&\\\"");
    let file = folder.write("fleet.json", &hostile);
    let picture = folder.0.path().join("fleet.svg");
    prints(&["picture", &file, "--output", picture.to_str().unwrap()]);
    let text = std::fs::read_to_string(&picture).unwrap();
    assert_eq!(text, prints(&["picture", &file]));
    assert!(!text.contains("<script") && text.contains("&lt;script&gt;&amp;&quot;"));
    for name in ["leaf2", "spine", "PS ps1", "a1", "d2"] {
        assert!(text.contains(&format!(">{name}</text>")), "{name}: {text}");
    }
    // What opens is closed.
    for tag in ["svg", "g", "text", "title", "path"] {
        let count = |what: String| text.matches(&what).count();
        let opened = count(format!("<{tag} ")) + count(format!("<{tag}>"));
        assert!(opened > 0 && opened == count(format!("</{tag}>")), "{tag}");
    }
    fails(
        &["picture", &file, "--output", "/none/x.svg"],
        3,
        &["/none/x.svg"],
    );
}

#[test]
fn the_schema_takes_the_fleet_of_configs_and_names_all_of_its_keys() {
    let schema = prints(&["schema"]);
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    let text = std::fs::read_to_string(fleet()).unwrap();
    let fleet: serde_json::Value = serde_json::from_str(&text).unwrap();
    for key in fleet.as_object().unwrap().keys() {
        assert!(schema["properties"][key].is_object(), "{key}");
    }
    let elements = schema["$defs"]["Job"]["properties"]["element"]["enum"]
        .as_array()
        .unwrap();
    let folder = Folder::new();
    for element in elements {
        let file = folder.changed("\"bf16\"", &element.to_string());
        prints(&["plan", &file]);
    }
}

/// The fleet of configs/ with keys of jobs beside it, and its plan of one tree for each job.
fn to_apply(folder: &Folder, from: &str, to: &str) -> [String; 2] {
    let fleet = folder.changed(from, to);
    for (name, key) in [
        ("vision", "9f8e7d6c5b4a39281706f5e4d3c2b1a0"),
        ("language", OTHER),
    ] {
        let path = folder.write(&format!("{name}.key"), key);
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path, mode).unwrap();
    }
    let plan = prints(&["plan", &fleet, "--trees", "1", "--json"]);
    [fleet, folder.write("plan.json", &plan)]
}

const OTHER: &str = "1a2b3c4d5e6f708192a3b4c5d6e7f809";

#[test]
fn what_was_measured_takes_the_place_of_what_is_written() {
    let folder = Folder::new();
    let fleet = folder.changed(
        r#""results": true"#,
        r#""measured": "it.json", "results": true"#,
    );
    let level = |fleet: &str| {
        let plan = prints(&["plan", fleet, "--json"]);
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        plan["level"].as_f64().unwrap()
    };
    let words = ["measured", "it.json", "capacity", "--write` makes it"];
    fails(&["plan", &fleet], 2, &words);
    let file = |capacity: &str| {
        let switches = ["leaf1", "leaf2", "leaf3", "spine1", "spine2"].map(|it| {
            format!(r#""{it}": {{"capacity": {capacity}, "rate": 1, "busy": 1, "cores": 1}}"#)
        });
        format!(
            r#"{{"unit": "Mbit/s", "switches": {{{}}}}}"#,
            switches.join(",")
        )
    };
    folder.write("it.json", &file("40000"));
    let before = level(&self::fleet().display().to_string());
    assert_eq!(level(&fleet), before);
    folder.write("it.json", &file("1000"));
    assert!(level(&fleet) < 0.9 * before, "{}", level(&fleet));
    folder.write("it.json", &file("0"));
    fails(
        &["plan", &fleet],
        2,
        &["switches.leaf1.capacity", "a rate above 0"],
    );
    // Without a place to write to.
    let fleet = self::fleet().display().to_string();
    fails(
        &["capacity", &fleet, "--write"],
        2,
        &["measured", "--write"],
    );
}

#[test]
fn what_applying_a_plan_needs_is_named_with_its_place() {
    let folder = Folder::new();
    for (from, to, words) in [
        ("\"id\": 7, ", "", ["jobs[0].id", "number of the job"]),
        (
            "\"key_file\": \"vision.key\", ",
            "",
            ["jobs[0].key", "`key_file`"],
        ),
        ("vision.key", "none.key", ["jobs[0].key_file", "none.key"]),
        (
            ", \"control\": \"spine1.example:31300\"",
            "",
            ["switches[3].control", "spine1"],
        ),
    ] {
        let [fleet, plan] = to_apply(&folder, from, to);
        fails(&["apply", &fleet, &plan], 2, &words);
    }
    for (from, to, words) in [
        ("\"id\": 8", "\"id\": 7", ["jobs[1].id", "7 once more"]),
        (
            "leaf2.example:31300",
            "leaf1.example:31300",
            ["switches[0].control", "an address of its own"],
        ),
        (
            "leaf2.example:31300",
            "leaf2.sock",
            ["switches[1].control", "HOST:PORT"],
        ),
        ("\"tls\": {", "\"tls\": {\"x\": 1, ", ["tls", "x"]),
        (
            "\"id\": 7",
            "\"id\": 7, \"parameter_servers\": 3",
            ["jobs[0].parameter_servers", "16"],
        ),
    ] {
        fails(&["plan", &folder.changed(from, to)], 2, &words);
    }
}

#[test]
fn a_plan_that_cannot_be_applied_is_refused_without_a_switch() {
    let folder = Folder::new();
    let [fleet, plan] = to_apply(&folder, "leaf1.example:31300", "./leaf1.sock");
    // No switch is at the socket; certificates are missing at the others.
    let output = call(&["apply", &fleet, &plan]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(3 | 4)), "{error}");
    assert!(error.contains("switch ") && error.contains("nothing is changed"));
    let shares = prints(&["plan", &fleet, "--json"]);
    let shares = folder.write("shares.json", &shares);
    let words = [
        "job vision",
        "shares, expected 1",
        "--trees 1",
        "nothing is changed",
    ];
    fails(&["apply", &fleet, &shares], 1, &words);
    fails(&["apply", &fleet, &plan, "--drain=-1"], 2, &["86400"]);
    fails(
        &["status", &fleet, "/none/plan.json"],
        3,
        &["/none/plan.json"],
    );
}

#[test]
fn a_controller_that_runs_refuses_what_it_cannot_watch() {
    let folder = Folder::new();
    let fleet = folder.changed("\"", "\"");
    let limits = ["run", &fleet, "--interval", "300", "--dead-after", "500"];
    let words = ["--dead-after", "500 ms", "two intervals (600 ms)"];
    fails(&limits, 2, &words);
    // The examples' files of keys are not beside it.
    fails(&["run", &fleet], 2, &["vision.key", "No such file"]);
    fails(&["run", &format!("{fleet}.none")], 3, &["No such file"]);
    fails(&["run", &fleet, "--interval", "1"], 2, &["10 to 600000"]);
}
