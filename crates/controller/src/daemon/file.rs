//! The files of a controller that runs: its fleet, read again when it changes, and its plan.

use crate::apply::{check_file, check_keys};
use crate::document::Document;
use crate::fleet::Fleet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tally_config::ConfigError;
use tally_planner::{Algorithm, Plan};

/// What changes when a file is written, or another one takes its place.
type Signature = (u64, u64, i64, i64, u64);

/// The file of a fleet, and what it said when it last could be used.
pub(super) struct FleetFile {
    path: PathBuf,
    signature: Option<Signature>,
    pub(super) fleet: Fleet,
}

impl FleetFile {
    pub(super) fn load(path: &Path) -> Result<Self, ConfigError> {
        // Before it is read: a change meanwhile is found by the next look.
        let signature = signature(path);
        let fleet = load(path)?;
        let path = path.to_owned();
        Ok(Self {
            path,
            signature,
            fleet,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it again if it has changed: `None` if it has not.
    pub(super) fn read_again(&mut self) -> Option<Result<(), String>> {
        let signature = signature(&self.path);
        if signature == self.signature {
            return None;
        }
        self.signature = signature;
        let read = load(&self.path).map(|fleet| self.fleet = fleet);
        Some(read.map_err(|error| error.to_string()))
    }
}

fn signature(path: &Path) -> Option<Signature> {
    let file = std::fs::metadata(path).ok()?;
    let (seconds, nanoseconds) = (file.mtime(), file.mtime_nsec());
    Some((file.dev(), file.ino(), seconds, nanoseconds, file.len()))
}

/// A fleet with all that it takes to apply any plan.
fn load(path: &Path) -> Result<Fleet, ConfigError> {
    let (fleet, _) = Fleet::load_with_keys(path)?;
    let all = (0..fleet.switches.len()).collect();
    check_file(&fleet, &all, path)?;
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
