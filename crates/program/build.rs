//! Puts the commit into the version of release builds.
//!
//! A development build has none: each commit would make all programs anew. `TALLY_COMMIT` in the
//! environment names the commit where there is no git repository, as in a source archive.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TALLY_COMMIT");
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let given = std::env::var("TALLY_COMMIT")
        .ok()
        .filter(|it| !it.is_empty());
    let build = match given {
        Some(commit) => format!("commit {commit}"),
        None if release => commit().map_or("commit unknown".into(), |it| format!("commit {it}")),
        None => "development build".into(),
    };
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=TALLY_VERSION={version} ({build})");
}

/// The commit of the tree, with `-dirty` if files differ from it; `None` without git.
fn commit() -> Option<String> {
    // A source archive may lie in a repository of something else.
    let tree = Path::new("../..").canonicalize().ok()?;
    if Path::new(&git(&["rev-parse", "--show-toplevel"])?)
        .canonicalize()
        .ok()?
        != tree
    {
        return None;
    }
    // Both change with each commit; a path that does not exist would be changed always.
    for file in ["logs/HEAD", "HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&[
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
