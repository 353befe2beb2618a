//! What differs between the configuration that a daemon runs with and the one that it reads again.
//!
//! [`AgentConfig::apply`] and [`PsConfig::apply`] take over what a daemon that runs can change, and
//! say what it cannot. Both configurations have passed their check.

use super::{AgentConfig, AgentJob, AgentRing, PsConfig, PsJob};
use std::fmt::Display;

/// What a changed configuration means for a daemon that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// What was taken over, a line each.
    pub applied: Vec<String>,
    /// What differs and takes effect at the next start, a line each.
    pub needs_restart: Vec<String>,
}

impl Changes {
    /// Whether the two configurations are alike.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.needs_restart.is_empty()
    }

    fn value<T: PartialEq + Display>(&mut self, key: &str, old: &mut T, new: T) {
        if *old != new {
            let line = format!("{key}: {old} -> {new}, for processes that come from now on");
            self.applied.push(line);
            *old = new;
        }
    }

    fn restart<T: PartialEq>(&mut self, key: &str, old: &T, new: &T) {
        if old != new {
            self.needs_restart.push(format!(
                "{key}: differs, and takes effect at the next start"
            ));
        }
    }
}

/// A job of a list, as far as changes are concerned.
trait Entry: PartialEq {
    fn id(&self) -> u16;
    /// What is different about it in `new`.
    fn differs(&self, new: &Self) -> Vec<String>;
    fn describe(&self) -> String;
}

impl Entry for AgentJob {
    fn id(&self) -> u16 {
        self.id
    }

    fn differs(&self, new: &Self) -> Vec<String> {
        let mut what = Vec::new();
        if self.key != new.key {
            what.push("new key".to_owned());
        }
        if self.workers != new.workers {
            what.push(format!("workers {} -> {}", self.workers, new.workers));
        }
        let (old, each) = (self.ranks_per_host, new.ranks_per_host);
        if old != each {
            what.push(format!("ranks_per_host {old} -> {each}"));
        }
        if self.priority != new.priority {
            let words = |it: Option<u8>| it.map_or("computed".to_owned(), |it| it.to_string());
            let (old, new) = (words(self.priority), words(new.priority));
            what.push(format!("priority {old} -> {new}"));
        }
        let (old, other) = (self.algorithm, new.algorithm);
        if old != other {
            what.push(format!("algorithm {} -> {}", old.name(), other.name()));
        }
        if self.rina != new.rina {
            what.push("new racks".to_owned());
        }
        what
    }

    fn describe(&self) -> String {
        format!("{} workers", self.workers)
    }
}

impl Entry for AgentRing {
    fn id(&self) -> u16 {
        self.id
    }

    fn differs(&self, new: &Self) -> Vec<String> {
        let mut what = AgentJob::from(self).differs(&AgentJob::from(new));
        let alike = Self {
            key: new.key.clone(),
            workers: new.workers,
            ranks_per_host: new.ranks_per_host,
            ..self.clone()
        };
        if alike != *new {
            what.push("new address, coordinator or messages".to_owned());
        }
        what
    }

    fn describe(&self) -> String {
        AgentJob::from(self).describe()
    }
}

impl Entry for PsJob {
    fn id(&self) -> u16 {
        self.id
    }

    fn differs(&self, new: &Self) -> Vec<String> {
        let key = (self.key != new.key).then(|| "new key".to_owned());
        let (before, after) = ((self.part, self.parts), (new.part, new.parts));
        let part = (before != after).then(|| {
            format!(
                "part {} of {}, was {} of {}",
                after.0, after.1, before.0, before.1
            )
        });
        key.into_iter().chain(part).collect()
    }

    fn describe(&self) -> String {
        "served from now on".into()
    }
}

fn jobs<T: Entry>(name: &str, old: &mut Vec<T>, new: Vec<T>, changes: &mut Changes) {
    for job in &new {
        let id = job.id();
        match old.iter().find(|it| it.id() == id) {
            None => {
                let line = format!("{name} {id}: added, {}", job.describe());
                changes.applied.push(line);
            }
            Some(before) => {
                let what = before.differs(job);
                if !what.is_empty() {
                    changes
                        .applied
                        .push(format!("{name} {id}: {}", what.join(", ")));
                }
            }
        }
    }
    for job in old.iter() {
        if !new.iter().any(|it| it.id() == job.id()) {
            changes
                .applied
                .push(format!("{name} {}: removed", job.id()));
        }
    }
    *old = new;
}

impl AgentConfig {
    /// Takes over from `new` what an agent that runs can change: jobs, and what processes get that
    /// come later. The rest stays as it is, and is named.
    pub fn apply(&mut self, new: Self) -> Changes {
        let mut changes = Changes::default();
        changes.restart("socket", &self.socket, &new.socket);
        changes.restart("access", &self.access, &new.access);
        changes.restart("control", &self.control, &new.control);
        changes.restart("switch", &self.switch, &new.switch);
        changes.restart("transport", &self.transport, &new.transport);
        changes.restart("payload_bytes", &self.payload_bytes, &new.payload_bytes);
        jobs("job", &mut self.jobs, new.jobs, &mut changes);
        jobs("ring", &mut self.rings, new.rings, &mut changes);
        changes.value("window", &mut self.window, new.window);
        changes.value("memory_mib", &mut self.memory_mib, new.memory_mib);
        changes.value("processes", &mut self.processes, new.processes);
        if self.timeouts != new.timeouts {
            let line = "timeouts: changed, for processes that come from now on";
            changes.applied.push(line.into());
            self.timeouts = new.timeouts;
        }
        match (&mut self.ps, new.ps) {
            (Some(old), Some(new)) => match (&mut old.jobs, new.jobs) {
                (Some(old), Some(new)) => jobs("ps.jobs", old, new, &mut changes),
                (old, new) if *old != new => {
                    changes.applied.push("ps.jobs: changed".into());
                    *old = new;
                }
                _ => {}
            },
            (old, new) => changes.restart("ps", old, &new),
        }
        changes
    }
}

impl PsConfig {
    /// Takes over the jobs of `new`. The rest stays as it is, and is named.
    pub fn apply(&mut self, new: Self) -> Changes {
        let mut changes = Changes::default();
        changes.restart("switch", &self.switch, &new.switch);
        changes.restart("transport", &self.transport, &new.transport);
        jobs("job", &mut self.jobs, new.jobs, &mut changes);
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::parse;

    const AGENT: &str = r#"{
        "switch": {"address": "10.84.0.254"},
        "transport": {"type": "udp", "bind": "10.84.0.1"},
        "jobs": [{"id": 7, "key": "000102030405060708090a0b0c0d0e0f", "workers": 4},
                 {"id": 8, "key": "f00102030405060708090a0b0c0d0e0f", "workers": 2}],
        "ps": {"jobs": [{"id": 7, "key": "000102030405060708090a0b0c0d0e0f"}]}
    }"#;

    #[track_caller]
    fn changed(from: &str, to: &str) -> (AgentConfig, Changes) {
        let mut config: AgentConfig = parse(AGENT);
        // `jobs` occurs twice.
        let text = AGENT.replacen(from, to, 1);
        assert!(from.is_empty() || text != AGENT);
        let new: AgentConfig = parse(&text);
        let changes = config.apply(new.clone());
        if changes.needs_restart.is_empty() {
            assert_eq!(config, new, "all of it is taken over");
            assert!(config.apply(new).is_empty(), "and the second time nothing");
        } else {
            // What needs a restart is named again each time.
            assert_eq!(config.apply(new).needs_restart, changes.needs_restart);
        }
        (config, changes)
    }

    #[test]
    fn an_agent_takes_jobs_and_limits_over_and_names_the_rest() {
        let applied = |from: &str, to: &str| {
            let (_, changes) = changed(from, to);
            assert_eq!(changes.needs_restart, [""; 0], "{from}");
            changes.applied
        };
        assert_eq!(applied("", ""), [""; 0]);
        assert_eq!(
            applied(r#""id": 8"#, r#""id": 9"#),
            ["job 9: added, 2 workers", "job 8: removed"]
        );
        assert_eq!(
            applied(r#""workers": 4"#, r#""workers": 5, "priority": 3"#),
            ["job 7: workers 4 -> 5, priority computed -> 3"]
        );
        assert_eq!(applied("f001", "f101"), ["job 8: new key"]);
        let ring = r#"{"id": 9, "key": "000102030405060708090a0b0c0d0e0f", "workers": 2,
            "address": "10.84.0.1", "coordinator": {"address": "10.84.0.1"}}"#;
        assert_eq!(
            applied(r#""jobs""#, &format!(r#""rings": [{ring}], "jobs""#)),
            ["ring 9: added, 2 workers"]
        );
        assert_eq!(
            applied(r#""jobs""#, r#""window": 64, "processes": 3, "jobs""#)[..1],
            ["window: 256 -> 64, for processes that come from now on"]
        );
        assert_eq!(
            applied(
                r#""ps": {"jobs": ["#,
                r#""ps": {"jobs": [{"id": 9, "key": "f00102030405060708090a0b0c0d0e0f"}, "#
            ),
            ["ps.jobs 9: added, served from now on"]
        );
        for (key, from, to) in [
            ("switch", "10.84.0.254", "10.84.0.253"),
            ("transport", "10.84.0.1\"", "10.84.0.2\""),
            ("socket", r#""jobs""#, r#""socket": "/tmp/a", "jobs""#),
            (
                "access",
                r#""jobs""#,
                r#""access": {"mode": "0666"}, "jobs""#,
            ),
            (
                "payload_bytes",
                r#""jobs""#,
                r#""payload_bytes": 64, "jobs""#,
            ),
        ] {
            let text = AGENT.replacen(from, to, 1);
            let mut config: AgentConfig = parse(AGENT);
            let changes = config.apply(parse(&text));
            assert_eq!(changes.applied, [""; 0], "{key}");
            let want = format!("{key}: differs, and takes effect at the next start");
            assert_eq!(changes.needs_restart, [want]);
            assert_eq!(config, parse::<AgentConfig>(AGENT), "{key} is as it was");
        }
    }

    #[test]
    fn what_can_be_changed_is_although_the_rest_needs_a_restart() {
        let (config, changes) = changed(r#""10.84.0.1""#, r#""10.84.0.9""#);
        assert_eq!(changes.needs_restart.len(), 1);
        assert_eq!(config, parse::<AgentConfig>(AGENT));
        let text = AGENT
            .replace("10.84.0.254", "10.84.0.253")
            .replace(r#""id": 8"#, r#""id": 9"#);
        let mut config: AgentConfig = parse(AGENT);
        let changes = config.apply(parse(&text));
        assert_eq!((changes.applied.len(), changes.needs_restart.len()), (2, 1));
        assert_eq!(config.jobs[1].id, 9);
    }

    #[test]
    fn a_parameter_server_takes_jobs_over() {
        let text = |id: u16, key: char| {
            format!(
                r#"{{"switch": {{"address": "10.84.0.254"}},
                    "jobs": [{{"id": {id}, "key": "{key}00102030405060708090a0b0c0d0e0f"}}],
                    "transport": {{"type": "udp", "bind": "10.84.0.1:0"}}}}"#
            )
        };
        let mut config: PsConfig = parse(&text(7, 'f'));
        let changes = config.apply(parse(&text(8, 'f')));
        assert_eq!(
            changes.applied,
            ["job 8: added, served from now on", "job 7: removed"]
        );
        let changes = config.apply(parse(&text(8, 'e')));
        assert_eq!(changes.applied, ["job 8: new key"]);
        let moved = text(8, 'e').replace("10.84.0.1:0", "10.84.0.2:0");
        let changes = config.apply(parse(&moved));
        assert_eq!(changes.applied, [""; 0]);
        assert_eq!(changes.needs_restart.len(), 1);
    }
}
