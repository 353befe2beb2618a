//! Recorded results: what `tally-perf … --json` printed, kept in `perf/record/`.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use tally_report::{Machine, Target};

/// One file.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its day, YYYY-MM-DD.
    pub day: String,
    /// Its command.
    pub command: String,
    /// What it says.
    pub content: Content,
}

/// What a command prints, as far as all have it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Where it was measured.
    pub machine: Machine,
    /// What was measured.
    pub commit: String,
    /// With which parameters.
    pub parameters: OwnedValue,
    /// What came of it.
    pub results: OwnedValue,
    /// What should have.
    pub targets: Vec<Target>,
}

impl Record {
    /// Reads one.
    ///
    /// # Errors
    /// If its name is not `YYYY-MM-DD-COMMAND.json`, or its content not what a command prints.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (day, command) = parse_name(&name)
            .with_context(|| format!("{}: not YYYY-MM-DD-COMMAND.json", path.display()))?;
        let context = || path.display().to_string();
        let mut text = std::fs::read(path).with_context(context)?;
        let content: Content = simd_json::from_slice(&mut text).with_context(context)?;
        Ok(Self {
            day,
            command,
            content,
        })
    }

    /// The newest one of each command in a folder.
    ///
    /// # Errors
    /// If the folder or one of the files cannot be read.
    pub fn newest(folder: &Path) -> Result<BTreeMap<String, Self>> {
        let mut newest: BTreeMap<String, Self> = BTreeMap::new();
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let record = Self::read(&path)?;
            let old = newest.get(&record.command);
            if old.is_none_or(|old| old.day < record.day) {
                newest.insert(record.command.clone(), record);
            }
        }
        Ok(newest)
    }

    /// Checks what makes it worth keeping: that others can know what was measured.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> Result<()> {
        let commit = &self.content.commit;
        ensure!(
            commit.len() >= 7 && commit.chars().all(|c| c.is_ascii_hexdigit()),
            "commit {commit}: measure what is committed, in its repository"
        );
        ensure!(
            self.content.machine.cpu.is_some(),
            "the machine has no processor"
        );
        let results = &self.content.results;
        let is_empty = results.as_array().is_some_and(Vec::is_empty) || results.is_null();
        ensure!(!is_empty, "no results");
        Ok(())
    }

    /// The command whose measurement this is, or is a part of: `allreduce` of `allreduce-shaped`.
    #[must_use]
    pub fn whole(&self) -> &str {
        let command = &self.command;
        command.split_once('-').map_or(command, |(whole, _)| whole)
    }

    /// The rows of results that are a list of objects; none if they are not.
    pub fn rows(&self) -> impl Iterator<Item = &OwnedValue> {
        self.content.results.as_array().into_iter().flatten()
    }
}

fn parse_name(name: &str) -> Option<(String, String)> {
    let stem = name.strip_suffix(".json")?;
    let (day, command) = stem.split_at_checked(11)?;
    let day = day.strip_suffix('-')?;
    let is_day = day.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    let is_command = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (is_day && !command.is_empty() && command.chars().all(is_command))
        .then(|| (day.to_owned(), command.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_day_and_command() {
        let parsed = parse_name("2026-11-21-datapath.json").unwrap();
        assert_eq!(parsed, ("2026-11-21".to_owned(), "datapath".to_owned()));
        for wrong in [
            "datapath.json",
            "2026-11-21.json",
            "2026-11-21-.json",
            "2026-1-21-datapath.json",
            "2026-11-21-Datapath.json",
            "2026-11-21-datapath.txt",
            "2026-11-21-d\u{e4}tapath.json",
        ] {
            assert!(parse_name(wrong).is_none(), "{wrong}");
        }
    }
}
