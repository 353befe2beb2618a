use super::*;
use serde::Deserialize;

#[derive(Deserialize, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
struct Config {
    port: u16,
    name: String,
    mode: Mode,
    #[serde(default)]
    jobs: Vec<Job>,
    pin: Option<bool>,
}

#[derive(Deserialize, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
struct Job {
    id: u8,
}

#[derive(Deserialize, Debug, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Esa,
    Fcfs,
}

fn error(text: &str) -> String {
    parse::<Config>("a.json", text.as_bytes())
        .unwrap_err()
        .to_string()
}

#[test]
fn a_good_file_loads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("good.json");
    std::fs::write(
        &path,
        r#"{"port": 1, "name": "x", "mode": "fcfs", "jobs": [{"id": 3}]}"#,
    )
    .unwrap();
    let config: Config = load(&path).unwrap();
    assert_eq!(config.jobs, [Job { id: 3 }]);
    assert_eq!(config.mode, Mode::Fcfs);
    assert_eq!(config.pin, None);
}

#[test]
fn a_missing_file_is_named_once() {
    let error = load::<Config>("/nowhere/x.json").unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("/nowhere/x.json: No such file"), "{text}");
    // A program that prints the chain of errors prints nothing twice.
    assert!(std::error::Error::source(&error).is_none());
}

#[test]
fn unknown_keys_list_the_known_ones() {
    assert_eq!(
        error(r#"{"port": 1, "prot": 2}"#),
        "a.json: prot: unknown field `prot`, expected one of `port`, `name`, `mode`, `jobs`, `pin`"
    );
    assert_eq!(
        error(r#"{"port":1,"name":"","mode":"esa","jobs":[{"id":1},{"di":1}]}"#),
        "a.json: jobs[1].di: unknown field `di`, expected `id`"
    );
}

#[test]
fn wrong_types_say_what_was_found_and_what_is_allowed() {
    for (value, problem) in [
        (
            r#""x""#,
            "invalid type: string \"x\", expected a whole number from 0 to 65535",
        ),
        (
            "70000",
            "invalid value: integer `70000`, expected a whole number from 0 to 65535",
        ),
        (
            "-1",
            "invalid value: integer `-1`, expected a whole number from 0 to 65535",
        ),
        (
            "1.5",
            "invalid type: floating point `1.5`, expected a whole number from 0 to 65535",
        ),
    ] {
        let text = format!(r#"{{"port":{value},"name":"","mode":"esa"}}"#);
        assert_eq!(error(&text), format!("a.json: port: {problem}"));
    }
    assert_eq!(
        error(r#"{"port":1,"name":"","mode":"esa","pin":"x"}"#),
        "a.json: pin: invalid type: string \"x\", expected true or false"
    );
    assert_eq!(
        error(r#"{"port":1,"name":"","mode":"ESA"}"#),
        "a.json: mode: unknown variant `ESA`, expected `esa` or `fcfs`"
    );
    assert!(error(r#"{"port":1,"name":"","mode":5}"#).contains("mode: found u64, expected"));
    assert!(
        error(r#"{"port":1,"name":"","mode":"esa","jobs":["a"]}"#)
            .contains("jobs[0]: found string, expected an object")
    );
}

#[test]
fn missing_and_repeated_keys_are_named() {
    assert_eq!(
        error(r#"{"port":1,"mode":"esa"}"#),
        "a.json: top level: missing field `name`"
    );
    assert_eq!(
        error(r#"{"port":1,"name":"","mode":"esa","jobs":[{}]}"#),
        "a.json: jobs[0]: missing field `id`"
    );
    assert_eq!(
        error(r#"{"port":1,"name":"","mode":"esa","port":2}"#),
        "a.json: top level: duplicate field `port`"
    );
}

#[test]
fn syntax_errors_have_a_position() {
    assert_eq!(
        error("{\n  \"port\": 1,\n}"),
        "a.json: line 3, column 1: not valid JSON: expected a key in double quotes \
         (no comment, no comma after the last entry), found '}'"
    );
    assert_eq!(
        error("{\"port\" 1}"),
        "a.json: line 1, column 9: not valid JSON: expected object colon, found '1'"
    );
    assert!(error("{// no\n}").contains("line 1, column 2: not valid JSON: expected a key"));
    assert_eq!(error(" \n"), "a.json: not valid JSON: the file is empty");
    for cut in ["{", "[1,2", "{\"port\": \"abc}", "{\"port\": 1} x"] {
        assert!(error(cut).contains("not valid JSON"), "{cut}");
    }
    let text = parse::<Config>("a.json", b"{\n\xff}")
        .unwrap_err()
        .to_string();
    assert_eq!(text, "a.json: line 2, column 1: not valid JSON: not UTF-8");
}

#[test]
fn impossible_values_read_like_the_others() {
    let text = ConfigError::value("a.json", "jobs[0].workers", 65, "1 to 64").to_string();
    assert_eq!(text, "a.json: jobs[0].workers: found 65, expected 1 to 64");
}

#[test]
fn every_truncation_is_an_error_and_never_a_panic() {
    let whole = r#"{"port":1,"name":"é\n","mode":"esa","jobs":[{"id":1}],"pin":true}"#;
    assert!(parse::<Config>("a.json", whole.as_bytes()).is_ok());
    for len in 0..whole.len() {
        let result = parse::<Config>("a.json", &whole.as_bytes()[..len]);
        assert!(result.is_err(), "length {len}");
    }
}

mod keys {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[derive(Debug, Deserialize)]
    struct Jobs {
        jobs: Vec<Job>,
    }

    #[derive(Debug, Deserialize)]
    struct Job {
        id: u16,
        key: String,
    }

    const GOOD: &str = "8d1f0a6c2b7e4935a0c1d2e3f4051627";

    fn text(keys: &[&str]) -> String {
        let job = |(i, key)| format!(r#"{{"id": {}, "key": "{key}"}}"#, 7 + i);
        let jobs: Vec<_> = keys.iter().enumerate().map(job).collect();
        format!(r#"{{"jobs": [{}]}}"#, jobs.join(", "))
    }

    #[track_caller]
    fn refused(keys: &[&str], want: &str) {
        let error = parse::<Jobs>("c.json", text(keys).as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), want);
    }

    #[test]
    fn each_job_has_a_good_key_of_its_own() {
        let other = GOOD.replace('8', "9");
        let jobs: Jobs = parse("c.json", text(&[GOOD, &other]).as_bytes()).unwrap();
        assert_eq!((jobs.jobs[1].id, &jobs.jobs[1].key), (8, &other));
        let shared = "c.json: jobs[2].key: job 7 and job 9 have the same key, expected a key of its own for each job \
                      (openssl rand -hex 16)";
        let upper = GOOD.to_uppercase();
        // Zeros at the end do not change an HMAC.
        for same in [GOOD, &upper, &format!("{GOOD}00"), &format!("{upper}0000")] {
            refused(&[GOOD, &other, same], shared);
        }
        for byte in ["00", "ff", "5a"] {
            let want = format!(
                "c.json: jobs[1].key: the key of job 8 is one byte repeated ({byte}), expected random digits (openssl \
                 rand -hex 16)"
            );
            refused(&[GOOD, &byte.repeat(16)], &want);
        }
    }

    #[test]
    fn a_file_with_keys_is_its_owner_s_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let at = file.path().display();
        let load = |keys: &[&str], mode| {
            let set = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            set(0o600);
            std::fs::write(&file, text(keys)).unwrap();
            set(mode);
            load::<Jobs>(&file).map(drop).map_err(|e| e.to_string())
        };
        let example = |last: &str| format!("{EXAMPLE_KEY}{last}");
        for mode in [0o600, 0o400, 0o700] {
            assert_eq!(load(&[GOOD], mode), Ok(()));
        }
        for mode in [0o604, 0o602, 0o640, 0o620, 0o644, 0o666, 0o601] {
            let owner = owner::name(nix::unistd::geteuid().as_raw());
            let want = format!(
                "{at}: mode {mode:04o} lets other users read or change the keys of jobs (owner {owner}), expected 0600 (chmod 600 {at})"
            );
            assert_eq!(load(&[GOOD], mode), Err(want.clone()));
            assert_eq!(load(&[&example("eeff"), GOOD], mode), Err(want));
            assert_eq!(load(&[&example("eeff"), &example("0007")], mode), Ok(()));
            // What begins as an example, and is a key.
            assert!(load(&[&example("eeff00")], mode).is_err());
        }
        // What is in the file is told first.
        assert!(
            load(&[GOOD, GOOD], 0o644)
                .unwrap_err()
                .contains("the same key")
        );
    }
}
