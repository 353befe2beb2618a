//! A fleet in a file, read again when it changes; its plan, and the lock of the controller that
//! works, in files beside it.

use super::StoreError;
use crate::apply::{check_file, check_keys};
use crate::document::Document;
use crate::fleet::Fleet;
use crate::lock::{self, Lock};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use tally_config::ConfigError;

/// The files.
pub struct Files {
    path: PathBuf,
    lock_path: PathBuf,
    plan_path: PathBuf,
    /// The lock's file, open and not locked by this process.
    open: Option<File>,
    held: Option<Lock>,
    /// What was read, for the fleet that it had.
    bytes: Vec<Option<Vec<u8>>>,
    fleet: Fleet,
    is_new: bool,
}

impl Files {
    pub(super) fn open(path: &Path, lock: PathBuf, plan: PathBuf) -> Result<Self, StoreError> {
        let (bytes, fleet) = read(path)?;
        let open = lock::open(&lock).map_err(|error| StoreError::File {
            path: lock.clone(),
            error,
        })?;
        Ok(Self {
            path: path.to_owned(),
            lock_path: lock,
            plan_path: plan,
            open: Some(open),
            held: None,
            bytes,
            fleet,
            is_new: true,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn lock_path(&self) -> &Path {
        &self.lock_path
    }

    pub(super) fn lead(&mut self) -> Result<bool, StoreError> {
        let Some(file) = self.open.take() else {
            return Ok(self.held.is_some());
        };
        match lock::take(file) {
            Ok(Ok(lock)) => self.held = Some(lock),
            Ok(Err(file)) => self.open = Some(file),
            Err(error) => {
                self.open = lock::open(&self.lock_path).ok();
                let path = self.lock_path.clone();
                return Err(StoreError::File { path, error });
            }
        }
        Ok(self.held.is_some())
    }

    pub(super) fn resign(&mut self) {
        self.held = None;
    }

    pub(super) const fn again(&mut self) {
        self.is_new = true;
    }

    pub(super) fn fleet(&mut self) -> Option<Result<Fleet, ConfigError>> {
        if std::mem::take(&mut self.is_new) {
            return Some(Ok(self.fleet.clone()));
        }
        let found = bytes(&self.path, &self.fleet);
        if found == self.bytes {
            return None;
        }
        // What is refused is refused once.
        self.bytes = found;
        Some(read(&self.path).map(|(bytes, fleet)| {
            (self.bytes, self.fleet) = (bytes, fleet.clone());
            fleet
        }))
    }

    pub(super) fn plan(&self) -> Result<Option<Document>, ConfigError> {
        plan(&self.plan_path)
    }

    /// Writes a plan: all of it, or nothing.
    pub(super) fn write_plan(&self, plan: &Document) -> Result<(), StoreError> {
        // Types of ours, which have no map with other keys than text.
        let text = serde_json::to_string_pretty(plan).expect("a plan is JSON");
        tally_config::write_whole(&self.plan_path, text + "\n").map_err(|error| StoreError::File {
            path: self.plan_path.clone(),
            error,
        })
    }
}

/// The plan of a file; `None` without.
pub(super) fn plan(path: &Path) -> Result<Option<Document>, ConfigError> {
    if path.exists() {
        tally_config::load(path).map(Some)
    } else {
        Ok(None)
    }
}

/// A fleet, and the bytes from which it was read.
fn read(path: &Path) -> Result<(Vec<Option<Vec<u8>>>, Fleet), ConfigError> {
    let (known, _) = Fleet::load_with_keys(path)?;
    let bytes = bytes(path, &known);
    // Read after these bytes: what is written meanwhile differs from them in the next look.
    let (fleet, _) = Fleet::load_with_keys(path)?;
    Ok((bytes, checked(fleet, path)?))
}

/// The file, and that of measured capacities.
fn bytes(path: &Path, fleet: &Fleet) -> Vec<Option<Vec<u8>>> {
    let measured = fleet.measured_file(path);
    let files = [Some(path.to_owned()), measured].into_iter().flatten();
    files.map(|file| std::fs::read(file).ok()).collect()
}

/// A fleet with all that it takes to apply any plan.
pub(crate) fn checked(fleet: Fleet, path: &Path) -> Result<Fleet, ConfigError> {
    check_file(&fleet, &BTreeSet::new(), path)?;
    check_keys(&fleet, path)?;
    Ok(fleet)
}
