//! Files of programs: configurations with keys, and reports as JSON.

use anyhow::{Context, Result};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Writes a file that only this user reads.
pub(crate) fn write_secret(path: &Path, text: &str) -> Result<()> {
    let mut options = std::fs::File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| path.display().to_string())
}

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let mut text = std::fs::read(path).with_context(|| path.display().to_string())?;
    simd_json::from_slice(&mut text).with_context(|| path.display().to_string())
}
