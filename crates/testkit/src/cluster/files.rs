//! Reports, as files of JSON.

use anyhow::{Context, Result};
use std::path::Path;

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let mut text = std::fs::read(path).with_context(|| path.display().to_string())?;
    simd_json::from_slice(&mut text).with_context(|| path.display().to_string())
}
