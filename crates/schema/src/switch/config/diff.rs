//! What differs between two configurations: what a running switch applies, what needs a restart.
//!
//! Applied while the switch runs are jobs (but for `fixed`), tenants, `netreduce.rings`,
//! `member_timeout_ms` and `card.jobs`. Everything else needs a restart: it has memory, threads or
//! devices behind it. Such a key is found by comparing the files' JSON, so a section that is new is
//! not forgotten here.

use super::{CardJobs, Config, JobSection, RingSection, TenantSection};
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::collections::BTreeSet;
use std::fmt;

/// Longest value that is shown.
const SHOWN_MAX: usize = 60;

/// What differs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Jobs.
    pub jobs: Vec<Edit<JobSection>>,
    /// Tenants.
    pub tenants: Vec<Edit<TenantSection>>,
    /// Rings, if the switch has NetReduce.
    pub rings: Vec<Edit<RingSection>>,
    /// How long a member may be silent.
    pub member_timeout_ms: Option<u64>,
    /// Jobs that a card may have.
    pub card_jobs: Option<CardJobs>,
    /// What needs a restart.
    pub restart: Vec<Restart>,
}

/// What happened to one of a list.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit<T> {
    /// It is new.
    Add(T),
    /// It is another.
    Set {
        /// As it was.
        before: T,
        /// As it is.
        after: T,
    },
    /// It is gone.
    Remove(T),
}

/// A key whose new value needs a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Its path, as in `pool.slots`.
    pub key: String,
    /// Its value in the first configuration.
    pub before: String,
    /// Its value in the second.
    pub after: String,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, before, after } = self;
        write!(f, "{key}: running with {before}, found {after}")
    }
}

impl Changes {
    /// Whether a running switch has nothing to apply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && self.tenants.is_empty()
            && self.rings.is_empty()
            && self.member_timeout_ms.is_none()
            && self.card_jobs.is_none()
    }

    /// What a running switch applies, for people: one line each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.jobs.iter().map(job_line).collect();
        lines.extend(self.tenants.iter().map(tenant_line));
        lines.extend(self.rings.iter().map(ring_line));
        if let Some(after) = self.member_timeout_ms {
            lines.push(format!("member_timeout_ms: set to {after}"));
        }
        if self.card_jobs.is_some() {
            lines.push("card.jobs: set".into());
        }
        lines
    }
}

/// Values of one field that differ, as `name 1 to 2`.
fn differs<T: PartialEq + fmt::Debug>(name: &str, before: &T, after: &T) -> Option<String> {
    let text = |value: &T| {
        let text = format!("{value:?}");
        match text.strip_prefix("Some(") {
            Some(inner) => inner.trim_end_matches(')').to_owned(),
            None => text.replace("None", "none"),
        }
    };
    (before != after).then(|| format!("{name} {} to {}", text(before), text(after)))
}

/// What happened to the keys; they are secrets.
fn keys_differ<T>(
    before: &T,
    after: &T,
    of: impl Fn(&T) -> [Option<&tally_wire::Key>; 2],
) -> Option<String> {
    let ([key, previous], [new_key, new_previous]) = (of(before), of(after));
    Some(match (key == new_key, previous == new_previous) {
        (true, true) => return None,
        (false, _) if new_previous == key => "key rotated, the one before stays valid".into(),
        (false, _) => "key replaced".into(),
        (true, false) if new_previous.is_none() => "previous key retired".into(),
        (true, false) => "previous key set".into(),
    })
}

fn job_line(edit: &Edit<JobSection>) -> String {
    match edit {
        Edit::Add(job) => match &job.tree {
            None => format!("job {}: added, {} workers", job.id, job.workers),
            Some(tree) => format!("job {}: added, {}", job.id, tree.describe(job.workers)),
        },
        Edit::Remove(job) => format!("job {}: removed", job.id),
        Edit::Set { before, after } => {
            let keys =
                |job: &JobSection| [Some(&job.key), job.previous_key.as_ref()].map(|k| k.cloned());
            let parts = [
                keys_differ(&keys(before), &keys(after), |k| {
                    [k[0].as_ref(), k[1].as_ref()]
                }),
                differs("workers", &before.workers, &after.workers),
                differs(
                    "parameter_servers",
                    &before.parameter_servers,
                    &after.parameter_servers,
                ),
                (before.tree != after.tree).then(|| match &after.tree {
                    None => "taken out of its tree".to_owned(),
                    Some(tree) => tree.describe(after.workers),
                }),
                differs("min_slots", &before.min_slots, &after.min_slots),
                differs("max_slots", &before.max_slots, &after.max_slots),
            ];
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            format!("job {}: {}", after.id, parts.join(", "))
        }
    }
}

fn tenant_line(edit: &Edit<TenantSection>) -> String {
    match edit {
        Edit::Add(tenant) => format!("tenant {}: added", tenant.name),
        Edit::Remove(tenant) => format!("tenant {}: removed", tenant.name),
        Edit::Set { before, after } => {
            let keys =
                |of: &TenantSection| [Some(&of.key), of.previous_key.as_ref()].map(|k| k.cloned());
            let ids = |of: &TenantSection| {
                let ids: Vec<_> = of.jobs.iter().map(ToString::to_string).collect();
                ids.join(",")
            };
            let parts = [
                keys_differ(&keys(before), &keys(after), |k| {
                    [k[0].as_ref(), k[1].as_ref()]
                }),
                differs("jobs", &ids(before), &ids(after)),
                differs("max_jobs", &before.max_jobs, &after.max_jobs),
                differs("max_workers", &before.max_workers, &after.max_workers),
                differs("max_slots", &before.max_slots, &after.max_slots),
            ];
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            format!("tenant {}: {}", after.name, parts.join(", "))
        }
    }
}

fn ring_line(edit: &Edit<RingSection>) -> String {
    match edit {
        Edit::Add(ring) => format!("ring {}: added, {} members", ring.id, ring.members.len()),
        Edit::Remove(ring) => format!("ring {}: removed", ring.id),
        Edit::Set { before, after } => {
            let parts = [
                (before.key != after.key).then(|| "key replaced".to_owned()),
                (before.members != after.members)
                    .then(|| format!("{} members", after.members.len())),
                differs(
                    "window_messages",
                    &before.window_messages,
                    &after.window_messages,
                ),
                differs(
                    "message_packets",
                    &before.message_packets,
                    &after.message_packets,
                ),
                (before.tree != after.tree).then(|| "another tree".to_owned()),
            ];
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            format!("ring {}: begins anew: {}", after.id, parts.join(", "))
        }
    }
}

/// What happened to each of a list, by what tells its members apart.
fn edits<T: Clone + PartialEq, K: PartialEq>(
    before: &[T],
    after: &[T],
    key: impl Fn(&T) -> K,
) -> Vec<Edit<T>> {
    let of = |list: &[T], one: &T| list.iter().find(|other| key(other) == key(one)).cloned();
    let mut edits = Vec::new();
    for old in before {
        if of(after, old).is_none() {
            edits.push(Edit::Remove(old.clone()));
        }
    }
    for new in after {
        match of(before, new) {
            None => edits.push(Edit::Add(new.clone())),
            Some(before) if before != *new => edits.push(Edit::Set {
                before,
                after: new.clone(),
            }),
            Some(_) => {}
        }
    }
    edits
}

/// A list with these edits.
fn edited<T: Clone, K: PartialEq>(list: &[T], edits: &[Edit<T>], key: impl Fn(&T) -> K) -> Vec<T> {
    let mut list = list.to_vec();
    for edit in edits {
        let (Edit::Add(one) | Edit::Set { after: one, .. } | Edit::Remove(one)) = edit;
        let at = list.iter().position(|other| key(other) == key(one));
        match (edit, at) {
            (Edit::Remove(_), Some(at)) => drop(list.remove(at)),
            (Edit::Remove(_), None) => {}
            (_, Some(at)) => list[at] = one.clone(),
            (_, None) => list.push(one.clone()),
        }
    }
    list
}

impl Config {
    /// What differs between two configurations.
    #[must_use]
    pub fn diff(before: &Self, after: &Self) -> Changes {
        let is_fixed = |job: &&JobSection| job.fixed.is_some();
        let fixed: BTreeSet<_> = (before.jobs.iter().chain(&after.jobs))
            .filter(is_fixed)
            .map(|job| job.id)
            .collect();
        let live = |config: &Self| {
            let mut jobs = config.jobs.clone();
            jobs.retain(|job| !fixed.contains(&job.id));
            jobs
        };
        let mut restart = Vec::new();
        for id in &fixed {
            let of = |config: &Self| config.jobs.iter().find(|job| job.id == *id).cloned();
            if of(before) != of(after) {
                let text = |job: Option<JobSection>| match job {
                    None => "no such job".into(),
                    Some(job) if job.fixed.is_none() => "no fixed members".into(),
                    Some(_) => "fixed members".into(),
                };
                restart.push(Restart {
                    key: format!("job {id}"),
                    before: text(of(before)),
                    after: text(of(after)),
                });
            }
        }
        restart.extend(before.restarts(after));
        let jobs_of_card = |config: &Self| config.card.as_ref().map(|card| card.jobs.clone());
        let card_jobs = jobs_of_card(after)
            .filter(|jobs| jobs_of_card(before).is_some_and(|before| before != *jobs));
        Changes {
            jobs: edits(&live(before), &live(after), |job| job.id),
            tenants: edits(&before.tenants, &after.tenants, |tenant| {
                tenant.name.clone()
            }),
            rings: match (&before.netreduce, &after.netreduce) {
                (Some(before), Some(after)) => edits(&before.rings, &after.rings, |ring| ring.id),
                // The section comes or goes with a restart.
                _ => Vec::new(),
            },
            member_timeout_ms: (before.member_timeout_ms != after.member_timeout_ms)
                .then_some(after.member_timeout_ms),
            card_jobs,
            restart,
        }
    }

    /// This configuration with what a running switch applies of these changes.
    #[must_use]
    pub fn with(&self, changes: &Changes) -> Self {
        let mut config = self.clone();
        config.jobs = edited(&self.jobs, &changes.jobs, |job| job.id);
        config.tenants = edited(&self.tenants, &changes.tenants, |tenant| {
            tenant.name.clone()
        });
        if let Some(section) = &mut config.netreduce {
            section.rings = edited(&section.rings, &changes.rings, |ring| ring.id);
        }
        if let Some(timeout) = changes.member_timeout_ms {
            config.member_timeout_ms = timeout;
        }
        if let (Some(card), Some(jobs)) = (&mut config.card, &changes.card_jobs) {
            card.jobs.clone_from(jobs);
        }
        config
    }

    /// What differs and is left out of [`with`](Self::with).
    fn restarts(&self, after: &Self) -> Vec<Restart> {
        let strip = |config: &Self| {
            let mut config = config.clone();
            config.jobs.clear();
            config.tenants.clear();
            config.member_timeout_ms = 0;
            if let Some(section) = &mut config.netreduce {
                section.rings.clear();
            }
            if let Some(card) = &mut config.card {
                card.jobs = CardJobs::Auto;
            }
            // A configuration has nothing that JSON cannot say.
            simd_json::serde::to_owned_value(&config).unwrap_or_default()
        };
        let mut found = Vec::new();
        compare("", Some(&strip(self)), Some(&strip(after)), &mut found);
        found
    }
}

/// Whether the value of a key is not shown.
fn is_secret(name: &str) -> bool {
    ["secret", "key"].iter().any(|end| name.ends_with(end))
}

/// A value without the secrets in it.
fn without_secrets(value: &OwnedValue) -> OwnedValue {
    let mut shown = value.clone();
    if let Some(object) = shown.as_object_mut() {
        object.retain(|name, _| !is_secret(name));
        for value in object.values_mut() {
            *value = without_secrets(value);
        }
    } else if let Some(list) = shown.as_array_mut() {
        for value in list {
            *value = without_secrets(value);
        }
    }
    shown
}

/// Finds the innermost keys whose values differ.
fn compare(
    at: &str,
    before: Option<&OwnedValue>,
    after: Option<&OwnedValue>,
    found: &mut Vec<Restart>,
) {
    if before == after {
        return;
    }
    let objects = before
        .and_then(|v| v.as_object())
        .zip(after.and_then(|v| v.as_object()));
    if let Some((one, two)) = objects {
        let names: BTreeSet<_> = one.keys().chain(two.keys()).collect();
        for name in names {
            let at = if at.is_empty() {
                name.clone()
            } else {
                format!("{at}.{name}")
            };
            compare(&at, one.get(name), two.get(name), found);
        }
        return;
    }
    let arrays = before
        .and_then(|v| v.as_array())
        .zip(after.and_then(|v| v.as_array()));
    if let Some((one, two)) = arrays
        && one.len() == two.len()
        && one.iter().all(|value| value.is_object())
    {
        for (i, (one, two)) in one.iter().zip(two).enumerate() {
            compare(&format!("{at}[{i}]"), Some(one), Some(two), found);
        }
        return;
    }
    let text = |value: Option<&OwnedValue>| {
        let Some(value) = value else {
            return "the default".into();
        };
        let text = if is_secret(at) {
            "another one".into()
        } else {
            without_secrets(value).encode()
        };
        match text.char_indices().nth(SHOWN_MAX) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    };
    found.push(Restart {
        key: at.to_owned(),
        before: text(before),
        after: text(after),
    });
}

#[cfg(test)]
mod tests;
