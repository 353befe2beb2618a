//! JSON configuration files, with errors that a person can act on; and files that are written whole
//! or not at all.
//!
//! [`load`] reads a file into any type that serde can deserialise. On any fault the error's text
//! names the file, then the line and column (syntax) or the key path (content), what was found
//! there, and what is allowed. What a type cannot express, the caller checks afterwards and reports
//! in the same form with [`ConfigError::value`].
//!
//! The file goes through simd-json's document model and not straight into the type: only the
//! model still knows what it found when a type does not fit, and it keeps keys that occur twice,
//! so that they are an error too.
//!
//! The catch: unknown keys are refused only by types with `#[serde(deny_unknown_fields)]`, and
//! inside internally tagged enums (`#[serde(tag = …)]`) the key path ends at the enum.

mod faults;
mod key_file;
mod keys;
mod output;
mod owner;

pub use key_file::read_key;
pub use keys::EXAMPLE_KEY;
pub use output::{try_write, write_whole};

use serde::de::DeserializeOwned;
use simd_json::{ErrorType, OwnedValue};
use std::fmt::Display;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}{}", path.display(), owner::hint(path, error))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why. Not a source of this error, or a report of the chain would name it twice.
        error: std::io::Error,
    },
    /// Others than its owner may read or change a file with keys.
    #[error(
        "{}: mode {mode:04o} lets other users read or change the keys of jobs (owner {owner}), expected 0600 (chmod 600 {})",
        path.display(), path.display()
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// The name of its owner.
        owner: String,
    },
    /// The file is no JSON.
    #[error("{}: {at}not valid JSON: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// `line 3, column 7: `, or nothing where the parser does not know.
        at: String,
        /// What is wrong there.
        problem: String,
    },
    /// A key is missing, unknown or given twice, or its value cannot be used.
    #[error("{}: {key}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The path of keys to it, as in `jobs[1].key`.
        key: String,
        /// What was found and what is allowed.
        problem: String,
    },
}

impl ConfigError {
    /// A value that has the right type, but is impossible: `found` at `key`, where only what
    /// `allowed` says makes sense.
    pub fn value(
        path: impl AsRef<Path>,
        key: impl Into<String>,
        found: impl Display,
        allowed: impl Display,
    ) -> Self {
        Self::Content {
            path: path.as_ref().to_owned(),
            key: key.into(),
            problem: format!("found {found}, expected {allowed}"),
        }
    }
}

/// Reads the JSON file at `path` into a `T`.
///
/// A file with keys of jobs must be readable by its owner alone, and the keys good, unless they are
/// those of examples ([`EXAMPLE_KEY`]).
///
/// # Errors
/// The first thing in the file that does not fit, or its mode.
pub fn load<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<T, ConfigError> {
    let path = path.as_ref();
    let (text, file) = read(path)?;
    parse_file(path, &text, Some(&file), KeyFiles::Read)
}

/// As [`load`], for a reader that needs no keys: `key_file` and its like are not read, and the `T`
/// has no key of theirs.
///
/// # Errors
/// As [`load`].
pub fn load_without_key_files<T: DeserializeOwned>(
    path: impl AsRef<Path>,
) -> Result<T, ConfigError> {
    let path = path.as_ref();
    let (text, file) = read(path)?;
    parse_file(path, &text, Some(&file), KeyFiles::Leave)
}

/// What becomes of members that name files of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyFiles {
    /// The keys take their place.
    Read,
    /// They are taken out.
    Leave,
}

/// The text of a file, and what it is.
fn read(path: &Path) -> Result<(Vec<u8>, Metadata), ConfigError> {
    let mut text = Vec::new();
    let mut read = || {
        let mut file = File::open(path)?;
        file.read_to_end(&mut text)?;
        // Permissions of the open file; the path may lead to another one.
        file.metadata()
    };
    let file = read().map_err(|error| ConfigError::Read {
        path: path.to_owned(),
        error,
    })?;
    Ok((text, file))
}

/// As [`load`], with all that does not fit in place of the first.
///
/// A value that does not fit is taken out, and what is left is read again. So the `T` may lack what
/// the errors name; there is none if it cannot be made without.
#[must_use]
pub fn load_all<T: DeserializeOwned>(path: impl AsRef<Path>) -> (Option<T>, Vec<ConfigError>) {
    let path = path.as_ref();
    let mut found = Vec::new();
    let parsed = read(path).and_then(|(text, file)| {
        let mut document = document(path, &text)?;
        let inside = keys::find(&document);
        found.extend(keys::check_mode(path, &inside, &file).err());
        found.extend(key_file::resolve(path, &mut document).err());
        found.extend(keys::check(path, &keys::find(&document)).err());
        faults::read_all(path, document, &mut found)
    });
    match parsed {
        Ok(parsed) => (parsed, found),
        Err(error) => (None, vec![error]),
    }
}

/// As [`load`], for the text of a file; `path` is only for errors.
///
/// # Errors
/// As for [`load`], without those of reading and of the mode.
pub fn parse<T: DeserializeOwned>(path: impl AsRef<Path>, text: &[u8]) -> Result<T, ConfigError> {
    parse_file(path.as_ref(), text, None, KeyFiles::Read)
}

/// That each job in `document` has a key of its own that cannot be guessed, as a file is held to;
/// `path` is only for errors.
///
/// # Errors
/// The first key that is not good.
pub fn check_keys(path: impl AsRef<Path>, document: &OwnedValue) -> Result<(), ConfigError> {
    keys::check(path.as_ref(), &keys::find(document))
}

fn parse_file<T: DeserializeOwned>(
    path: &Path,
    text: &[u8],
    file: Option<&Metadata>,
    key_files: KeyFiles,
) -> Result<T, ConfigError> {
    let mut document = document(path, text)?;
    let inside = keys::find(&document);
    match key_files {
        KeyFiles::Leave => key_file::remove(&mut document),
        KeyFiles::Read if file.is_some() => key_file::resolve(path, &mut document)?,
        KeyFiles::Read => {}
    }
    let keys = keys::find(&document);
    let parsed =
        serde_path_to_error::deserialize(document).map_err(|error| content(path, &error))?;
    keys::check(path, &keys)?;
    if let Some(file) = file {
        keys::check_mode(path, &inside, file)?;
    }
    Ok(parsed)
}

fn document(path: &Path, text: &[u8]) -> Result<OwnedValue, ConfigError> {
    simd_json::to_owned_value(&mut text.to_vec()).map_err(|error| {
        let (at, problem) = explain_syntax(text, &error);
        ConfigError::Syntax {
            path: path.to_owned(),
            at,
            problem,
        }
    })
}

fn content(path: &Path, error: &serde_path_to_error::Error<simd_json::Error>) -> ConfigError {
    let key = match error.path().to_string().as_str() {
        "." => "top level".to_owned(),
        key => key.to_owned(),
    };
    ConfigError::Content {
        path: path.to_owned(),
        key,
        problem: explain_content(error.inner()),
    }
}

/// Where the syntax breaks, and how.
fn explain_syntax(text: &[u8], error: &simd_json::Error) -> (String, String) {
    if let Err(utf8) = std::str::from_utf8(text) {
        return (position(text, utf8.valid_up_to()), "not UTF-8".into());
    }
    if text.trim_ascii().is_empty() {
        return (String::new(), "the file is empty".into());
    }
    let problem = match error.error() {
        ErrorType::Syntax | ErrorType::Eof | ErrorType::UnterminatedString => {
            "a string, list or object that begins here or earlier is not closed".into()
        }
        ErrorType::InternalError | ErrorType::TrailingData => {
            "brackets do not match, or something follows the end".into()
        }
        ErrorType::ExpectedObjectKey | ErrorType::ExpectedObjectContent => {
            "expected a key in double quotes (no comment, no comma after the last entry)".into()
        }
        other => {
            // The names are English: `ExpectedArrayComma`.
            let mut words = String::new();
            for c in format!("{other:?}").chars() {
                if c.is_uppercase() && !words.is_empty() {
                    words.push(' ');
                }
                words.push(c.to_ascii_lowercase());
            }
            words
        }
    };
    match (error.error(), error.character()) {
        // Counted from the start of an unknown string.
        (ErrorType::InvalidEscape | ErrorType::InvalidUnicodeCodepoint, _) | (_, None) => {
            (String::new(), problem)
        }
        (_, Some(c)) => (
            position(text, error.index()),
            format!("{problem}, found '{c}'"),
        ),
    }
}

fn position(text: &[u8], index: usize) -> String {
    let before = &text[..index.min(text.len())];
    let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
    let column = 1 + before.iter().rev().take_while(|&&b| b != b'\n').count();
    format!("line {line}, column {column}: ")
}

/// serde's own words, with Rust's types put in the reader's.
fn explain_content(error: &simd_json::Error) -> String {
    match error.error() {
        ErrorType::Serde(text) => RUST_TYPES
            .iter()
            .find_map(|(rust, words)| {
                if text == "missing field `key`" {
                    return Some("missing field `key` or `key_file`".to_owned());
                }
                let head = text.strip_suffix(&format!("expected {rust}"))?;
                Some(format!("{head}expected {words}"))
            })
            .unwrap_or_else(|| text.clone()),
        ErrorType::Unexpected(_, Some(found)) => format!(
            "found {}, expected an object, or a name in double quotes where one is to be chosen",
            format!("{found:?}").to_lowercase()
        ),
        other => format!("{other:?}"),
    }
}

const RUST_TYPES: [(&str, &str); 7] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number, 0 or more"),
    ("usize", "a whole number, 0 or more"),
    ("f64", "a number"),
    ("a boolean", "true or false"),
];

#[cfg(test)]
mod tests;
