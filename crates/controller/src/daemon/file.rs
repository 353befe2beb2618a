//! The files of a controller that runs: its fleet, read again when it changes, and its plan.

use crate::apply::{check_file, check_keys};
use crate::document::Document;
use crate::fleet::Fleet;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tally_config::ConfigError;
use tally_planner::{Algorithm, Plan};

/// The file of a fleet, and what it said when it last could be used.
pub(super) struct FleetFile {
    path: PathBuf,
    bytes: Vec<Option<Vec<u8>>>,
    pub(super) fleet: Fleet,
}

impl FleetFile {
    pub(super) fn load(path: &Path) -> Result<Self, ConfigError> {
        let bytes = bytes(path, &load(path)?);
        // Read after these bytes: what is written meanwhile differs from them in the next look.
        let fleet = load(path)?;
        let path = path.to_owned();
        Ok(Self { path, bytes, fleet })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it again if it has changed: `None` if it has not.
    pub(super) fn read_again(&mut self) -> Option<Result<(), String>> {
        let found = bytes(&self.path, &self.fleet);
        if found == self.bytes {
            return None;
        }
        // What is refused is refused once.
        self.bytes = found;
        let read = Self::load(&self.path).map(|it| *self = it);
        Some(read.map_err(|error| error.to_string()))
    }
}

/// The file, and that of measured capacities.
fn bytes(path: &Path, fleet: &Fleet) -> Vec<Option<Vec<u8>>> {
    let measured = fleet.measured_file(path);
    let files = [Some(path.to_owned()), measured].into_iter().flatten();
    files.map(|file| std::fs::read(file).ok()).collect()
}

/// A fleet with all that it takes to apply any plan.
fn load(path: &Path) -> Result<Fleet, ConfigError> {
    let (fleet, _) = Fleet::load_with_keys(path)?;
    check_file(&fleet, &BTreeSet::new(), path)?;
    check_keys(&fleet, path)?;
    Ok(fleet)
}

/// The plan of a controller before; `None` without.
pub(super) fn plan(path: &Path) -> Result<Option<Document>, ConfigError> {
    if path.exists() {
        tally_config::load(path).map(Some)
    } else {
        Ok(None)
    }
}

/// A plan of no job.
pub(super) fn no_plan() -> Plan {
    Plan {
        algorithm: Algorithm::Tally.name().to_owned(),
        jobs: Vec::new(),
        bound: None,
        cut_off: false,
    }
}

/// Writes a plan: all of it, or nothing.
pub(super) fn write_plan(path: &Path, plan: &Document) -> Result<(), String> {
    let text = serde_json::to_string_pretty(plan).map_err(|error| error.to_string())?;
    tally_config::write_whole(path, text + "\n")
        .map_err(|error| format!("{}: {error}", path.display()))
}
