//! What `tally-agent doctor` found.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It works, but slower or less safely than it could, or it is not known whether it does.
    Warning,
    /// It does not work.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at, in a word.
    pub check: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do: a command for the shell, or what to change in which file.
    pub fix: Option<String>,
}

impl Check {
    /// One that is as it should be.
    pub fn good(check: &str, found: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            verdict: Verdict::Good,
            found: found.into(),
            fix: None,
        }
    }

    /// One that works, with what to do.
    pub fn warning(check: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            verdict: Verdict::Warning,
            found: found.into(),
            fix: Some(fix.into()),
        }
    }

    /// One that does not work, with what to do.
    pub fn bad(check: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Bad,
            ..Self::warning(check, found, fix)
        }
    }
}

/// All that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// What was looked at, in order.
    pub checks: Vec<Check>,
    /// How many are bad.
    pub bad: usize,
    /// How many are warnings.
    pub warnings: usize,
}

impl Diagnosis {
    /// Whether nothing is bad.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.bad == 0
    }

    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // It is numbers and words, which JSON has.
        simd_json::serde::to_string_pretty(self).unwrap_or_default()
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for it in &self.checks {
            let verdict = match it.verdict {
                Verdict::Good => "good",
                Verdict::Warning => "warning",
                Verdict::Bad => "bad",
            };
            writeln!(f, "{verdict:<8} {:<14} {}", it.check, it.found)?;
            if let Some(fix) = &it.fix {
                writeln!(f, "{:<8} {:<14} -> {fix}", "", "")?;
            }
        }
        match (self.bad, self.warnings) {
            (0, 0) => writeln!(f, "all is well"),
            (bad, warnings) => writeln!(f, "{bad} bad, {warnings} warnings"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::round_trip;

    #[test]
    fn a_diagnosis_has_the_keys_that_tools_rely_on() {
        let diagnosis: Diagnosis = round_trip(include_str!("../../golden/diagnosis.json"));
        let verdicts: Vec<_> = diagnosis.checks.iter().map(|it| it.verdict).collect();
        assert_eq!(verdicts, [Verdict::Good, Verdict::Warning, Verdict::Bad]);
        assert!(!diagnosis.is_good());
        assert!(diagnosis.to_string().ends_with("1 bad, 1 warnings\n"));
    }
}
