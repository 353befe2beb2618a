//! A place that breaks a rule.

use std::path::Path;

use super::files;

/// A place that breaks a rule.
pub struct Finding {
    path: String,
    /// 0: the whole file.
    line: usize,
    what: String,
}

impl Finding {
    pub fn new(path: &Path, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: files::name(path),
            line,
            what: what.into(),
        }
    }
}

/// Fails with all findings, if there is one.
pub fn check(rule: &str, found: &[Finding]) {
    let mut report = String::new();
    for Finding { path, line, what } in found {
        report += &format!("{path}:{line}: {what}\n");
    }
    assert!(report.is_empty(), "rule `{rule}`:\n{report}");
}
