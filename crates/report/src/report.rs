//! The envelope: the machine, the commit, the parameters, the results, and the targets, each with
//! the value that was measured or the reason why none was.

use std::fmt;
use std::io::{self, Write};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use simd_json::OwnedValue;
use simd_json::serde::to_owned_value;

use crate::Machine;

/// The outcome of a command. [`Display`](fmt::Display) writes it for people,
/// [`to_json`](Report::to_json) for programs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    machine: Machine,
    commit: String,
    parameters: OwnedValue,
    results: OwnedValue,
    targets: Vec<Target>,
    #[serde(skip)]
    table: String,
}

impl Report {
    /// A report of measurements made just now, on this machine, with the code that is checked
    /// out where the process runs. `table` is what people read in place of `results`.
    ///
    /// # Errors
    ///
    /// When the parameters or the results are nothing that JSON can express.
    pub fn new(
        machine: Machine,
        parameters: &impl Serialize,
        results: &impl Serialize,
        targets: Vec<Target>,
        table: String,
    ) -> Result<Self> {
        Ok(Self {
            machine,
            commit: commit(),
            parameters: to_owned_value(parameters).context("parameters as JSON")?,
            results: to_owned_value(results).context("results as JSON")?,
            targets,
            table,
        })
    }

    /// The targets, met and missed.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Writes it to standard output, as a table or as JSON. A reader that went away (`| head`) is
    /// no error.
    ///
    /// # Errors
    ///
    /// When the serialiser or standard output fails.
    pub fn print(&self, json: bool) -> Result<()> {
        let text = if json {
            self.to_json()? + "\n"
        } else {
            self.to_string()
        };
        match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).context("standard output")
            }
            _ => Ok(()),
        }
    }

    /// Whether a target was measured and missed.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.targets.iter().any(|target| target.met == Some(false))
    }

    /// One JSON object, on one line.
    ///
    /// # Errors
    ///
    /// When the serialiser fails.
    pub fn to_json(&self) -> Result<String> {
        simd_json::to_string(self).context("report as JSON")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        let unknown = || "unknown".to_owned();
        writeln!(f, "cpu     {}", machine.cpu.clone().unwrap_or_else(unknown))?;
        let caches: Vec<_> = machine
            .cache_bytes
            .iter()
            .map(|(name, bytes)| format!("{name} {} KiB", bytes >> 10))
            .collect();
        let virtual_machine = if machine.virtual_machine {
            ", virtual machine"
        } else {
            ""
        };
        writeln!(
            f,
            "        {} cores{virtual_machine}, {}",
            machine.cores,
            caches.join(", ")
        )?;
        writeln!(
            f,
            "kernel  {}",
            machine.kernel.clone().unwrap_or_else(unknown)
        )?;
        writeln!(f, "commit  {}", self.commit)?;
        writeln!(f, "\n{}", self.table.trim_end())?;
        if !self.targets.is_empty() {
            writeln!(f, "\ntargets")?;
        }
        for target in &self.targets {
            writeln!(f, "  {target}")?;
        }
        Ok(())
    }
}

/// A value to reach, and what was reached.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// What is measured; unique within a report.
    pub name: String,
    /// What was measured; `None` when nothing was.
    pub value: Option<f64>,
    /// The unit of `value` and `target`: `ratio`, `Gbit/s`, `us`.
    pub unit: String,
    /// The value to reach.
    pub target: f64,
    /// Whether it was; `None` when nothing was measured.
    pub met: Option<bool>,
    /// How `value` comes from the results and on which side of `target` it should lie; or why
    /// nothing was measured.
    pub how: String,
}

impl Target {
    /// A value that should be `target` or more.
    #[must_use]
    pub fn at_least(name: &str, value: f64, unit: &str, target: f64, how: &str) -> Self {
        Self::measured(
            name,
            value,
            unit,
            target,
            value >= target,
            &format!("at least: {how}"),
        )
    }

    /// A value that should be `target` or less.
    #[must_use]
    pub fn at_most(name: &str, value: f64, unit: &str, target: f64, how: &str) -> Self {
        Self::measured(
            name,
            value,
            unit,
            target,
            value <= target,
            &format!("at most: {how}"),
        )
    }

    /// A target that this run could not measure, and why.
    #[must_use]
    pub fn not_measured(name: &str, unit: &str, target: f64, reason: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: None,
            unit: unit.to_owned(),
            target,
            met: None,
            how: format!("not measured: {reason}"),
        }
    }

    fn measured(name: &str, value: f64, unit: &str, target: f64, met: bool, how: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: Some(value),
            unit: unit.to_owned(),
            target,
            met: Some(met),
            how: how.to_owned(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.met {
            Some(true) => "met   ",
            Some(false) => "MISSED",
            None => "  -   ",
        };
        let value = self
            .value
            .map_or("-".to_owned(), |value| format!("{value:.2}"));
        let Self {
            name,
            unit,
            target,
            how,
            ..
        } = self;
        write!(
            f,
            "{verdict}  {name}: {value} {unit} (target {target}; {how})"
        )
    }
}

/// The commit that is checked out here, with `-dirty` when tracked files differ from it;
/// `unknown` outside of git.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => commit + "-dirty",
    }
}

#[cfg(test)]
mod tests {
    use simd_json::prelude::*;

    use super::*;

    fn report() -> Report {
        let targets = vec![
            Target::at_least("speed", 2.0, "ratio", 1.0, "median"),
            Target::at_most("delay", 9.0, "us", 5.0, "p99"),
            Target::not_measured("link", "Gbit/s", 100.0, "no NIC here"),
        ];
        let table = "a table\n".to_owned();
        Report::new(Machine::detect(), &[("rounds", 3)], &[1.5], targets, table).unwrap()
    }

    #[test]
    fn the_envelope_has_its_five_parts_and_no_more() {
        let mut json = report().to_json().unwrap().into_bytes();
        let value = simd_json::to_owned_value(&mut json).unwrap();
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        assert_eq!(
            keys,
            ["commit", "machine", "parameters", "results", "targets"]
        );
        assert!(value["machine"].get("hostname").is_none());
    }

    #[test]
    fn targets_say_met_missed_or_why_not() {
        let mut json = report().to_json().unwrap().into_bytes();
        let value = simd_json::to_owned_value(&mut json).unwrap();
        let targets = &value["targets"];
        assert_eq!(targets[0]["met"].as_bool(), Some(true));
        assert_eq!(targets[1]["met"].as_bool(), Some(false));
        assert!(targets[2]["met"].is_null() && targets[2]["value"].is_null());
        assert_eq!(
            targets[2]["how"].as_str(),
            Some("not measured: no NIC here")
        );
    }

    #[test]
    fn people_read_the_table_and_the_verdicts() {
        let text = report().to_string();
        for part in [
            "a table",
            "met     speed: 2.00 ratio",
            "MISSED  delay",
            "no NIC here",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}
