//! Files of the repository, without build outputs and recorded measurements.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold no text of ours: build outputs, records, inputs of tests.
const SKIPPED: [&str; 8] = [
    "target",
    "record",
    "corpus",
    "artifacts",
    "seeds",
    "gradients",
    "__pycache__",
    "regressions",
];

/// The repository's root: the nearest folder above this package that has a `Cargo.lock`.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package.ancestors().find(|f| f.join("Cargo.lock").exists());
    root.unwrap().to_owned()
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A path as this test names it: from the repository's root.
pub fn name(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// All files below a folder, in order of their names.
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(folder, &mut files);
    files.sort();
    files
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with('.') || path.is_symlink() {
            continue;
        } else if !path.is_dir() {
            out.push(path);
        } else if !SKIPPED.contains(&name) {
            collect(&path, out);
        }
    }
}

/// The Rust sources of a package, with its unit tests.
pub fn sources(folder: &str) -> Vec<PathBuf> {
    let mut files = below(&root().join(folder).join("src"));
    files.retain(|file| file.extension().is_some_and(|e| e == "rs"));
    files
}

/// Whether a file of a package's `src` has only tests in it.
pub fn is_test(path: &Path) -> bool {
    let mut parts = path.components().map(|part| part.as_os_str());
    parts.any(|part| part == "tests" || part == "tests.rs")
}
