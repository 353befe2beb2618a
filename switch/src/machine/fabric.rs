//! What the configurations of all switches of a fabric say of each other.
//!
//! Each file is checked by itself first. Then links must be in the files of both ends, and the
//! trees of jobs and of rings must fit together.

use super::fix;
use crate::config::fabric::check_links;
use crate::config::{Config, check_ring_trees, check_trees};
use std::collections::BTreeSet;
use std::path::PathBuf;
use tally_config::ConfigError;
use tally_schema::doctor::{Check, Diagnosis, Verdict};

/// Looks at the configurations at these paths, which are of all switches of a fabric.
#[must_use]
pub fn examine(paths: &[PathBuf]) -> Diagnosis {
    let mut checks = Vec::new();
    let mut files = Vec::new();
    for path in paths {
        let (config, faults) = Config::load_all(path);
        let is_good = faults.is_empty();
        checks.extend(faults.iter().map(bad));
        files.extend(
            config
                .filter(|_| is_good)
                .map(|config| (path.clone(), config)),
        );
    }
    // What a bad file says of others would only repeat its faults.
    if files.len() == paths.len() {
        let links = check_links(&files);
        checks.extend(links.faults.iter().map(bad));
        let warnings = links.warnings.into_iter();
        checks.extend(warnings.map(|it| Check::warning("fabric", it, "docs/FABRIC.md")));
        checks.extend(check_trees(&files).iter().map(bad));
        checks.extend(check_ring_trees(&files).iter().map(bad));
    }
    let count =
        |checks: &[Check], verdict| checks.iter().filter(|it| it.verdict == verdict).count();
    if count(&checks, Verdict::Bad) == 0 {
        checks.push(Check::good("fabric", summary(&files)));
    }
    Diagnosis {
        bad: count(&checks, Verdict::Bad),
        warnings: count(&checks, Verdict::Warning),
        checks,
    }
}

fn bad(fault: &ConfigError) -> Check {
    let fix = match fault {
        ConfigError::Content { path, .. } => fix(path),
        _ => "docs/OPERATIONS.md has all keys".to_owned(),
    };
    Check::bad("fabric", fault.to_string(), fix)
}

/// What the fabric comes to, in a line.
fn summary(files: &[(PathBuf, Config)]) -> String {
    let links = files
        .iter()
        .map(|(_, config)| config.fabric_links().count());
    let jobs = files.iter().flat_map(|(_, config)| &config.jobs);
    let trees = jobs.filter(|job| job.tree.as_ref().is_some_and(|it| it.parent.is_none()));
    let rings = files.iter().flat_map(|(_, config)| config.rings());
    let rings = rings.filter(|ring| ring.tree.is_some()).map(|ring| ring.id);
    let rings: BTreeSet<_> = rings.collect();
    let mut text = format!(
        "{} switches, {} links between them, {} jobs with trees",
        files.len(),
        links.sum::<usize>() / 2,
        trees.count()
    );
    if !rings.is_empty() {
        text.push_str(&format!(", {} rings with trees", rings.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(name: &str, links: &str, jobs: &str) -> String {
        let number = name.len();
        format!(
            r#"{{ "name": "{name}", "address": {{ "mac": "02:54:41:4c:4c:{number:02}", "ip": "10.84.0.{number}" }},
            "ports": [ {{ "device": "net_null0" }}, {{ "device": "net_null1" }} ],
            "fabric": {{ "key": "9f1c7be02d5a4638a1b47c90e6d3f258", "links": [ {links} ] }},
            "jobs": [ {{ "id": 7, "key": "00112233445566778899aabbccddeeff", {jobs} }} ] }}"#
        )
    }

    #[test]
    fn the_files_of_a_fabric_are_checked_by_themselves_and_against_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let look = |root: &str, leaf: &str| {
            let paths = [("spine.json", root), ("leaf.json", leaf)].map(|(name, text)| {
                let path = folder.path().join(name);
                std::fs::write(&path, text).unwrap();
                let mode = std::fs::Permissions::from_mode(0o600);
                std::fs::set_permissions(&path, mode).unwrap();
                path
            });
            examine(&paths)
        };
        let root = file(
            "spine",
            r#"{ "port": 0, "switch": "leaf", "up": false }"#,
            r#""workers": 0, "tree": { "total": 2, "children": [ { "switch": "leaf", "ranks": 2 } ] }"#,
        );
        let leaf = file(
            "leaf",
            r#"{ "port": 1, "switch": "spine", "up": true }"#,
            r#""workers": 2, "tree": { "total": 2, "parent": "spine", "rank": 0 }"#,
        );
        let found = look(&root, &leaf);
        assert!(found.is_good(), "{found}");
        assert!(
            found
                .to_string()
                .contains("2 switches, 1 links between them, 1 jobs"),
            "{found}"
        );
        for (from, to, words) in [
            (
                "\"up\": true",
                "\"up\": false",
                ["leaf.json", "jobs[0].tree.parent"],
            ),
            (
                "\"workers\": 2",
                "\"workers\": 1",
                ["leaf.json", "jobs[0].workers"],
            ),
            (
                "\"rank\": 0",
                "\"rank\": 1",
                ["leaf.json", "jobs[0].tree.rank"],
            ),
            (
                "02:54:41:4c:4c:04",
                "02:54:41:4c:4c:05",
                ["leaf.json", "address.mac"],
            ),
        ] {
            assert!(leaf.contains(from), "{from}");
            let found = look(&root, &leaf.replacen(from, to, 1));
            assert!(!found.is_good(), "{to}");
            for word in words {
                assert!(found.to_string().contains(word), "{found}");
            }
        }
    }
}
