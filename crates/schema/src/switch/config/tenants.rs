//! Tenants: whose workers make jobs by joining them, and how many.

use super::{Config, ConfigError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use tally_wire::Key;

/// Longest name of a tenant.
const NAME_MAX: usize = 64;

/// One tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantSection {
    /// Its name.
    pub name: String,
    /// Its key, which all its jobs have: 32 to 128 hexadecimal digits.
    #[serde(with = "crate::key")]
    #[schemars(with = "crate::key::KeyText")]
    pub key: Key,
    /// Its key before that, while members may still have it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::key::option"
    )]
    #[schemars(with = "Option<crate::key::KeyText>")]
    pub previous_key: Option<Key>,
    /// Numbers that its jobs may have: `"100-199"`, or `"7"`.
    pub jobs: Vec<IdRange>,
    /// Jobs that it has at a time at most.
    #[serde(default = "default_max_jobs")]
    pub max_jobs: u16,
    /// Workers of all its jobs together at most.
    #[serde(default = "default_max_workers")]
    pub max_workers: u16,
    /// Slots of all its jobs together at most, of all shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_slots: Option<u32>,
}

const fn default_max_jobs() -> u16 {
    4
}

const fn default_max_workers() -> u16 {
    64
}

/// A job that a worker of a tenant made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantJob {
    /// Its number.
    pub id: u16,
    /// Its workers.
    pub workers: u8,
}

/// Numbers of jobs, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl schemars::JsonSchema for IdRange {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IdRange".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^[0-9]{1,5}(-[0-9]{1,5})?$"})
    }
}

impl IdRange {
    /// As a range.
    #[must_use]
    pub const fn range(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return self.first.fmt(f);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for IdRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |digits: &str| digits.parse::<u16>().ok();
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!(
                "found `{text}`, expected a job's number (7) or a range of them (100-199), 0 to 65535"
            )),
        }
    }
}

impl Serialize for IdRange {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IdRange {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::deserialize(deserializer)
    }
}

impl TenantSection {
    /// With these jobs, and everything else as it is by default.
    #[must_use]
    pub fn new(name: &str, key: Key, jobs: Vec<IdRange>) -> Self {
        Self {
            name: name.to_owned(),
            key,
            previous_key: None,
            jobs,
            max_jobs: default_max_jobs(),
            max_workers: default_max_workers(),
            max_slots: None,
        }
    }

    /// Whether a job of this number would be its own.
    #[must_use]
    pub fn has(&self, id: u16) -> bool {
        self.jobs.iter().any(|ids| ids.range().contains(&id))
    }

    /// Workers of all its jobs but one of each, at most.
    pub(super) fn others_max(&self) -> u32 {
        let least = self.max_workers.min(64 * self.max_jobs.min(1024));
        u32::from(least.saturating_sub(1))
    }
}

impl Config {
    /// The tenant that has this number.
    #[must_use]
    pub fn tenant_of(&self, id: u16) -> Option<&TenantSection> {
        self.tenants.iter().find(|tenant| tenant.has(id))
    }

    pub(super) fn check_tenants(&self, path: &Path) -> Result<(), ConfigError> {
        let bad = |key: String, found: &dyn fmt::Display, allowed: &str| {
            Err(ConfigError::value(path, key, found, allowed))
        };
        let mut names = BTreeSet::new();
        for (i, tenant) in self.tenants.iter().enumerate() {
            let key = |field: &str| format!("tenants[{i}].{field}");
            let name = &tenant.name;
            if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
                let allowed = format!("1 to {NAME_MAX} bytes without control characters");
                return bad(key("name"), &format!("{name:?}"), &allowed);
            }
            if !names.insert(name) {
                return bad(
                    key("name"),
                    &format!("`{name}` a second time"),
                    "a name of its own",
                );
            }
            if tenant.previous_key.as_ref() == Some(&tenant.key) {
                return bad(key("previous_key"), &"the key itself", "the key before it");
            }
            if tenant.jobs.is_empty() {
                return bad(key("jobs"), &"none", "at least one number or range");
            }
            for (quota, found) in [
                ("max_jobs", tenant.max_jobs),
                ("max_workers", tenant.max_workers),
            ] {
                if found == 0 {
                    return bad(key(quota), &0, "1 or more");
                }
            }
            if tenant.max_slots == Some(0) {
                return bad(
                    key("max_slots"),
                    &0,
                    "1 or more; leave it out for no maximum",
                );
            }
            if let Some(job) = self.jobs.iter().find(|job| tenant.has(job.id)) {
                let found = format!("{}, which is in jobs", job.id);
                return bad(key("jobs"), &found, "numbers of no configured job");
            }
            let ranges = || self.tenants[..i].iter().flat_map(|other| &other.jobs);
            let earlier = |n: usize| ranges().chain(&tenant.jobs[..n]);
            for (n, ids) in tenant.jobs.iter().enumerate() {
                let meets = |other: &&IdRange| other.first <= ids.last && ids.first <= other.last;
                if let Some(other) = earlier(n).find(meets) {
                    let found = format!("{ids}, which meets {other}");
                    return bad(key("jobs"), &found, "each number once, of one tenant");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_written() {
        for text in ["7", "100-199", "0-65535"] {
            assert_eq!(text.parse::<IdRange>().unwrap().to_string(), text);
        }
        assert_eq!("7-7".parse::<IdRange>().unwrap().to_string(), "7");
        for text in ["", "-", "9-7", "65536", "1-", "-1", "a", "1-2-3"] {
            assert!(text.parse::<IdRange>().is_err(), "{text}");
        }
    }
}
