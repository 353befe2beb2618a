//! `key_file`: a key in a file of its own, beside or apart from the configuration.
//!
//! Before a document is read into a type, each member `key_file` of an object becomes the member
//! `key` with the digits of that file; so does `NAME_key_file` become `NAME_key`. A type has keys
//! only, and both spellings work for it.
//!
//! A path that is not absolute is that of a credential of the service manager
//! (`$CREDENTIALS_DIRECTORY`), or else relative to the configuration's folder.

use crate::{ConfigError, owner};
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What follows the name of a key to name its file.
const SUFFIX: &str = "_file";
/// Longest file: a key has 128 digits.
const BYTES_MAX: u64 = 4096;
/// What others than the owner may do to a file, of which nothing is allowed.
const OTHERS: u32 = 0o077;

/// Whether a member names the file of a key.
fn key_of(name: &str) -> Option<&str> {
    let key = name.strip_suffix(SUFFIX)?;
    (key == "key" || key.ends_with("_key") || key.starts_with("key_")).then_some(key)
}

/// Puts keys in place of their files, in all of a document.
pub(crate) fn resolve(config: &Path, document: &mut OwnedValue) -> Result<(), ConfigError> {
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let folders = Folders {
        config,
        credentials: credentials.as_deref(),
    };
    folders.visit(document, "")
}

/// Takes the names of keys' files out of a document. Nothing is read.
pub(crate) fn remove(value: &mut OwnedValue) {
    if let Some(list) = value.as_array_mut() {
        list.iter_mut().for_each(remove);
    }
    if let Some(object) = value.as_object_mut() {
        object.retain(|name, value| key_of(name).is_none() || value.as_str().is_none());
        object.iter_mut().for_each(|(_, value)| remove(value));
    }
}

struct Folders<'a> {
    config: &'a Path,
    credentials: Option<&'a Path>,
}

impl Folders<'_> {
    fn visit(&self, value: &mut OwnedValue, at: &str) -> Result<(), ConfigError> {
        if let Some(list) = value.as_array_mut() {
            for (i, value) in list.iter_mut().enumerate() {
                self.visit(value, &format!("{at}[{i}]"))?;
            }
        }
        let Some(object) = value.as_object_mut() else {
            return Ok(());
        };
        let join = |name: &str| match at {
            "" => name.to_owned(),
            at => format!("{at}.{name}"),
        };
        let files: Vec<_> = object
            .iter()
            .filter_map(|(name, value)| {
                let key = key_of(name)?.to_owned();
                Some((name.clone(), key, value.as_str()?.to_owned()))
            })
            .collect();
        for (name, key, file) in files {
            let bad = |problem: String| ConfigError::Content {
                path: self.config.to_owned(),
                key: join(&name),
                problem,
            };
            if object.contains_key(key.as_str()) {
                return Err(bad(format!(
                    "found beside `{key}`, expected one of the two"
                )));
            }
            let digits = self.read(&file).map_err(bad)?;
            object.remove(name.as_str());
            object.insert(key, digits.into());
        }
        for (name, value) in object.iter_mut() {
            self.visit(value, &join(name))?;
        }
        Ok(())
    }

    /// The digits in a file, or why there are none.
    fn read(&self, file: &str) -> Result<String, String> {
        if file.is_empty() {
            return Err("found an empty path, expected that of a file with the key".into());
        }
        if let Some(folder) = self.credentials.filter(|_| !file.starts_with('/')) {
            let credential = folder.join(file);
            if credential.exists() {
                // The service manager keeps others out by the folder; an access list for our user
                // shows as bits of a group.
                return read(&credential, 0o007);
            }
        }
        let folder = self.config.parent().unwrap_or(Path::new("."));
        read(&folder.join(file), OTHERS).map_err(|problem| match self.credentials {
            Some(credentials) if !file.starts_with('/') => {
                format!(
                    "{problem}; no credential of that name in {}",
                    credentials.display()
                )
            }
            _ => problem,
        })
    }
}

/// The digits of the key in a file that only its owner can read.
///
/// # Errors
/// In words: what is wrong with the file.
pub fn read_key(path: &Path) -> Result<String, String> {
    read(path, OTHERS)
}

/// The digits in the file at `path`, if its mode denies `forbidden`.
fn read(path: &Path, forbidden: u32) -> Result<String, String> {
    let shown = path.display();
    let why = |error: io::Error| format!("{shown}: {error}{}", owner::hint(path, &error));
    // Opening a pipe would wait for its writer.
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(nix::libc::O_NONBLOCK);
    let file = options.open(path).map_err(why)?;
    let found = file.metadata().map_err(why)?;
    if !found.is_file() {
        return Err(format!(
            "{shown} is no file, expected one with the key's digits"
        ));
    }
    let mode = found.mode() & 0o7777;
    if mode & forbidden != 0 {
        return Err(format!(
            "{shown}: mode {mode:04o} lets other users read or change the key (owner {}), expected 0600 or 0400 \
             (chmod 600 {shown})",
            owner::name(found.uid())
        ));
    }
    let text = text_of(file).map_err(why)?;
    let digits = text.trim();
    let is_key = (32..=128).contains(&digits.len())
        && digits.len().is_multiple_of(2)
        && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_key {
        // Not what was found: it may be a key of something else.
        return Err(format!(
            "{shown}: no key, expected 32 to 128 hexadecimal digits and nothing else (openssl rand -hex 16 > {shown})"
        ));
    }
    Ok(digits.to_owned())
}

fn text_of(file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::load;
    use serde::Deserialize;
    use std::fs::{Permissions, create_dir, remove_file, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Jobs {
        jobs: Vec<Job>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Job {
        id: u16,
        key: String,
        previous_key: Option<String>,
    }

    const GOOD: &str = "8d1f0a6c2b7e4935a0c1d2e3f4051627";

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new(members: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let text = format!(r#"{{"jobs": [{{"id": 7, {members}}}]}}"#);
            write(folder.path().join("c.json"), text).unwrap();
            Self { folder }
        }

        fn key(&self, name: &str, text: &str, mode: u32) {
            let path = self.folder.path().join(name);
            // One before may be read-only, also for its owner.
            let _ = remove_file(&path);
            write(&path, text).unwrap();
            set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }

        fn load(&self) -> Result<Job, String> {
            let jobs = load::<Jobs>(self.folder.path().join("c.json"));
            let job = jobs.map_err(|e| e.to_string())?.jobs.remove(0);
            assert_eq!(job.id, 7);
            Ok(job)
        }
    }

    #[test]
    fn a_key_may_be_in_a_file_and_the_configuration_then_has_any_mode() {
        let place = Place::new(r#""key_file": "k/7.key", "previous_key_file": "old.key""#);
        set_permissions(
            place.folder.path().join("c.json"),
            Permissions::from_mode(0o644),
        )
        .unwrap();
        create_dir(place.folder.path().join("k")).unwrap();
        place.key("k/7.key", &format!("{GOOD}\n"), 0o400);
        let old = GOOD.replace('8', "9");
        place.key("old.key", &old, 0o600);
        let job = place.load().unwrap();
        assert_eq!((job.key.as_str(), job.previous_key), (GOOD, Some(old)));
    }

    #[test]
    fn what_is_wrong_with_a_key_file_is_named_with_what_to_do() {
        let place = Place::new(r#""key_file": "7.key""#);
        let at = |error: String| error.replace(&*place.folder.path().to_string_lossy(), "DIR");
        let missing = at(place.load().unwrap_err());
        assert!(
            missing.starts_with("DIR/c.json: jobs[0].key_file: DIR/7.key: No such file"),
            "{missing}"
        );
        let we = owner::name(nix::unistd::geteuid().as_raw());
        for mode in [0o644, 0o640, 0o660, 0o602] {
            place.key("7.key", GOOD, mode);
            let want = format!(
                "DIR/c.json: jobs[0].key_file: DIR/7.key: mode {mode:04o} lets other users read or change the key \
                 (owner {we}), expected 0600 or 0400 (chmod 600 DIR/7.key)"
            );
            assert_eq!(at(place.load().unwrap_err()), want);
        }
        for bad in [
            "",
            "no key",
            &GOOD[1..],
            &GOOD[2..],
            &GOOD.repeat(5),
            "g".repeat(32).as_str(),
        ] {
            place.key("7.key", bad, 0o600);
            let error = at(place.load().unwrap_err());
            assert!(
                error.contains("DIR/7.key: no key, expected 32 to 128"),
                "{error}"
            );
        }
        // The key of an HMAC is checked as any other.
        place.key("7.key", &"5a".repeat(16), 0o600);
        let error = place.load().unwrap_err();
        assert!(error.contains("one byte repeated"), "{error}");
        let folder = Place::new(r#""key_file": ".""#);
        assert!(folder.load().unwrap_err().contains("is no file"));
        let pipe = Place::new(r#""key_file": "pipe""#);
        let path = pipe.folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
        assert!(pipe.load().unwrap_err().contains("is no file"));
        let both = Place::new(&format!(r#""key": "{GOOD}", "key_file": "7.key""#));
        let error = both.load().unwrap_err();
        assert!(
            error.contains("found beside `key`, expected one of the two"),
            "{error}"
        );
        let none = Place::new(r#""previous_key": null"#).load().unwrap_err();
        assert!(none.contains("missing field `key` or `key_file`"), "{none}");
    }

    #[test]
    fn credentials_come_first_and_may_show_bits_of_a_group() {
        let place = Place::new(r#""key_file": "7.key""#);
        let credentials = place.folder.path().join("credentials");
        create_dir(&credentials).unwrap();
        let config = place.folder.path().join("c.json");
        let folders = Folders {
            config: &config,
            credentials: Some(&credentials),
        };
        let error = folders.read("7.key").unwrap_err();
        assert!(error.contains("no credential of that name in"), "{error}");
        place.key("7.key", &GOOD.replace('8', "9"), 0o600);
        assert_eq!(folders.read("7.key").unwrap(), GOOD.replace('8', "9"));
        place.key("credentials/7.key", GOOD, 0o440);
        assert_eq!(folders.read("7.key").unwrap(), GOOD);
        place.key("credentials/7.key", GOOD, 0o444);
        assert!(folders.read("7.key").unwrap_err().contains("mode 0444"));
    }

    #[test]
    fn a_reader_without_rights_to_keys_reads_the_rest() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Jobs {
            jobs: Vec<Keyless>,
        }
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keyless {
            id: u16,
        }
        let place = Place::new(r#""key_file": "7.key""#);
        let path = place.folder.path().join("c.json");
        let jobs = crate::load_without_key_files::<Jobs>(&path).unwrap();
        assert_eq!(jobs.jobs[0].id, 7);
        // What is in the file itself is no secret of another one's.
        let inside = Place::new(&format!(r#""key": "{GOOD}""#));
        let path = inside.folder.path().join("c.json");
        set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = crate::load_without_key_files::<Jobs>(&path).unwrap_err();
        assert!(error.to_string().contains("key"), "{error}");
    }

    #[test]
    fn members_that_name_key_files_are_told_from_others() {
        assert_eq!(key_of("key_file"), Some("key"));
        assert_eq!(key_of("previous_key_file"), Some("previous_key"));
        assert_eq!(key_of("key_previous_file"), Some("key_previous"));
        for other in ["file", "monkey_file", "keys_file", "key", "log_file"] {
            assert_eq!(key_of(other), None, "{other}");
        }
    }
}
