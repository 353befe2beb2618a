//! Keys of jobs in a configuration file: who may read them, and whether they are any good.
//!
//! Every text at a JSON key `key` or `previous_key` is a key of the job whose number is beside it,
//! at `id`. A key is as good as the mode of its file: with it any host can join the job, and end
//! it. Keys that the documentation shows are known to everyone, so files with no others may have
//! any mode: the examples can be run as they are.

use crate::{ConfigError, owner};
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// How the keys of examples begin; two bytes of any value follow.
pub const EXAMPLE_KEY: &str = "00112233445566778899aabbccdd";
const EXAMPLE_DIGITS: usize = EXAMPLE_KEY.len() + 4;
/// What others than the owner may do to a file, of which nothing is allowed.
const OTHERS: u32 = 0o077;

/// A key in a file.
pub(crate) struct FoundKey {
    /// Where it is, as in `jobs[1].key`.
    at: String,
    job: Option<u64>,
    /// In lower case.
    digits: String,
}

/// All keys of a document.
pub(crate) fn find(document: &OwnedValue) -> Vec<FoundKey> {
    let mut found = Vec::new();
    visit(document, "", &mut found);
    found
}

fn is_key(name: &str) -> bool {
    name == "key" || name == "previous_key"
}

fn visit(value: &OwnedValue, at: &str, found: &mut Vec<FoundKey>) {
    if let Some(list) = value.as_array() {
        for (i, value) in list.iter().enumerate() {
            visit(value, &format!("{at}[{i}]"), found);
        }
    }
    let Some(object) = value.as_object() else {
        return;
    };
    for (name, value) in object.iter() {
        let at = match at {
            "" => name.clone(),
            at => format!("{at}.{name}"),
        };
        match value.as_str() {
            // Others are no keys of jobs, such as paths.
            Some(digits) if is_key(name) && digits.bytes().all(|d| d.is_ascii_hexdigit()) => found
                .push(FoundKey {
                    at,
                    job: object.get("id").and_then(|id| id.as_u64()),
                    digits: digits.to_ascii_lowercase(),
                }),
            _ => visit(value, &at, found),
        }
    }
}

impl FoundKey {
    fn is_example(&self) -> bool {
        self.digits.len() == EXAMPLE_DIGITS && self.digits.starts_with(EXAMPLE_KEY)
    }

    fn is_one_byte_repeated(&self) -> bool {
        let bytes = self.digits.as_bytes();
        bytes.len() >= 2 && bytes.chunks(2).all(|byte| *byte == bytes[..2])
    }

    /// What an HMAC makes of it: zeros at the end change nothing.
    fn effective(&self) -> &str {
        let mut digits = &self.digits[..];
        while let Some(shorter) = digits.strip_suffix("00")
            && shorter.len().is_multiple_of(2)
        {
            digits = shorter;
        }
        digits
    }

    fn of_job(&self) -> String {
        self.job
            .map_or_else(|| "the job".into(), |job| format!("job {job}"))
    }

    fn bad(&self, path: &Path, problem: String) -> ConfigError {
        ConfigError::Content {
            path: path.to_owned(),
            key: self.at.clone(),
            problem,
        }
    }
}

/// That each job has a key of its own that cannot be guessed.
pub(crate) fn check(path: &Path, keys: &[FoundKey]) -> Result<(), ConfigError> {
    for (i, key) in keys.iter().enumerate() {
        if key.is_one_byte_repeated() {
            let (job, byte) = (key.of_job(), &key.digits[..2]);
            return Err(key.bad(
                path,
                format!("the key of {job} is one byte repeated ({byte}), expected random digits (openssl rand -hex 16)"),
            ));
        }
        // A job that is there twice is another mistake.
        let same = |other: &&FoundKey| {
            other.effective() == key.effective() && (key.job.is_none() || other.job != key.job)
        };
        if let Some(other) = keys[..i].iter().find(same) {
            let (one, two) = (other.of_job(), key.of_job());
            return Err(key.bad(
                path,
                format!("{one} and {two} have the same key, expected a key of its own for each job (openssl rand -hex 16)"),
            ));
        }
    }
    Ok(())
}

/// That the file's mode keeps the keys that are in it.
pub(crate) fn check_mode(
    path: &Path,
    inside: &[FoundKey],
    file: &Metadata,
) -> Result<(), ConfigError> {
    let mode = file.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 && !inside.iter().all(FoundKey::is_example) {
        let path = path.to_owned();
        let owner = owner::name(file.uid());
        return Err(ConfigError::Mode { path, mode, owner });
    }
    Ok(())
}
