//! All that does not fit a type, and not only the first.
//!
//! serde ends at the first value that does not fit. It is taken out of the document, and the rest
//! is read again, until it fits or what was taken out is missed.

use crate::{ConfigError, content};
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path as KeyPath, Segment};
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::path::Path;

/// Most faults that are looked for in one file.
const FAULTS_MAX: usize = 100;

/// What can be read of the document, with each fault added to `found`.
///
/// # Errors
/// Never; it has the type that its caller's chain needs.
pub(crate) fn read_all<T: DeserializeOwned>(
    path: &Path,
    mut document: OwnedValue,
    found: &mut Vec<ConfigError>,
) -> Result<Option<T>, ConfigError> {
    let mut has_removed = false;
    for _ in 0..FAULTS_MAX {
        let error = match serde_path_to_error::deserialize(document.clone()) {
            Ok(parsed) => return Ok(Some(parsed)),
            Err(error) => error,
        };
        let fault = content(path, &error);
        let is_missing = matches!(&fault, ConfigError::Content { problem, .. }
            if problem.starts_with("missing field"));
        if is_missing {
            // Perhaps what was taken out.
            if !has_removed {
                found.push(fault);
            }
            return Ok(None);
        }
        found.push(fault);
        if !remove(&mut document, error.path()) {
            return Ok(None);
        }
        has_removed = true;
    }
    Ok(None)
}

/// Takes the member at a path out of its object. An element of a list stays: it would give all
/// others behind it another number.
fn remove(document: &mut OwnedValue, path: &KeyPath) -> bool {
    let segments: Vec<_> = path.iter().collect();
    let Some((Segment::Map { key }, above)) = segments.split_last() else {
        return false;
    };
    let mut value = document;
    for segment in above {
        let next = match segment {
            Segment::Seq { index } => value.get_idx_mut(*index),
            Segment::Map { key } => value.get_mut(key.as_str()),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => return false,
        }
    }
    let object = value.as_object_mut();
    object.is_some_and(|object| object.remove(key.as_str()).is_some())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::load_all;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        #[serde(default)]
        port: u16,
        name: String,
        #[serde(default)]
        jobs: Vec<Job>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Job {
        #[serde(default)]
        id: u8,
    }

    fn all(text: &str) -> (Option<Config>, Vec<String>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        let (config, found) = load_all(&file);
        let at = format!("{}: ", file.path().display());
        let words = |error: crate::ConfigError| error.to_string().replace(&at, "");
        (config, found.into_iter().map(words).collect())
    }

    #[test]
    fn every_fault_of_a_file_is_found_in_one_go() {
        let (config, found) = all(
            r#"{"port": 70000, "prot": 1, "name": "x", "jobs": [{"id": 1}, {"id": 300, "x": 2}]}"#,
        );
        assert_eq!(found.len(), 4, "{found:?}");
        for start in ["port: ", "prot: ", "jobs[1].id: ", "jobs[1].x: "] {
            assert!(found.iter().any(|it| it.starts_with(start)), "{found:?}");
        }
        // What is left of it can be looked at further.
        let config = config.unwrap();
        assert_eq!(
            (config.port, config.jobs.len(), config.jobs[0].id),
            (0, 2, 1)
        );
    }

    #[test]
    fn what_was_taken_out_is_not_missed() {
        let (config, found) = all(r#"{"name": 5, "prot": 1}"#);
        assert!(config.is_none());
        assert_eq!(found.len(), 2, "{found:?}");
        let (_, found) = all(r#"{"port": 1}"#);
        assert_eq!(found, ["top level: missing field `name`"]);
        let (_, found) = all(r#"{"name": "", "jobs": ["a", {"id": 300}]}"#);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(all("{").1.len(), 1);
        let (config, found) = all(r#"{"name": "x"}"#);
        assert_eq!((config.unwrap().name.as_str(), found.len()), ("x", 0));
        let (_, found) = load_all::<Config>("/nowhere/x.json");
        assert!(found[0].to_string().contains("No such file"));
    }
}
