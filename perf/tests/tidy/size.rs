//! Product code: no file over 700 lines, no function over 100.

use std::path::Path;

use super::files;
use super::finding::{Finding, check};
use super::packages::ORDER;
use super::rust::{Parts, item_length};

const FILE: usize = 700;
const FUNCTION: usize = 100;

/// Product code that is not Rust.
const OTHERS: [(&str, &str); 3] = [
    ("worker-agent/python/python", "py"),
    ("worker-agent/python/src", "rs"),
    ("fpga-bridge/rtl", "sv"),
];

#[test]
fn no_source_file_tells_more_than_one_story() {
    let mut files: Vec<_> = ORDER
        .iter()
        .flat_map(|folder| files::sources(folder))
        .collect();
    for (folder, extension) in OTHERS {
        let mut others = files::below(&files::root().join(folder));
        others.retain(|file| file.extension().is_some_and(|e| e == extension));
        files.extend(others);
    }
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !files::is_test(file)) {
        let lines = files::read(file).lines().count();
        if lines > FILE {
            found.push(Finding::new(file, 0, format!("{lines} lines")));
        }
    }
    check("file", &found);
}

#[test]
fn no_function_is_longer_than_a_screen_or_two() {
    let mut found = Vec::new();
    for folder in ORDER {
        for file in files::sources(folder) {
            if !files::is_test(&file) {
                let code = Parts::new(&files::read(&file)).product_code();
                functions(&file, &code, &mut found);
            }
        }
    }
    check("function", &found);
}

fn functions(file: &Path, code: &str, found: &mut Vec<Finding>) {
    for (at, _) in code.match_indices("fn ") {
        let before = code[..at].chars().next_back();
        let rest = &code[at + 3..];
        let name = rest
            .split(|char: char| !char.is_alphanumeric() && char != '_')
            .next()
            .unwrap();
        if name.is_empty() || before.is_some_and(char::is_alphanumeric) {
            continue;
        }
        let lines = code[at..at + 3 + item_length(rest)].lines().count();
        if lines > FUNCTION {
            let line = code[..at].lines().count();
            found.push(Finding::new(file, line, format!("{name}: {lines} lines")));
        }
    }
}
