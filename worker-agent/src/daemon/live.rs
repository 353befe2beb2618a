//! The agent's configuration while it runs: who may change what, and in which version it is.
//!
//! A change comes from the file, read again at SIGHUP or on request, or from a request for one job.
//! Each is checked as a whole file would be, and taken over whole or not at all. Processes that are
//! served keep what they came with.
//!
//! A reload applies what has changed in the file since it was last read. So jobs that requests
//! added stay. Requests and versions are not in the file, and are forgotten with the process.

use crate::config::{AgentConfig, AgentJob, Changes};
use std::path::{Path, PathBuf};
use tally_config::ConfigError;
use thiserror::Error;

/// Why a change is refused. Nothing has changed then.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    /// The file, or what a request asks for, cannot be used.
    #[error("{0}; nothing was changed")]
    Config(#[from] ConfigError),
    /// The configuration is not the one that the request is about.
    #[error(
        "the configuration has version {found}, expected {expected}: it was changed meanwhile; read it again"
    )]
    Version {
        /// The present one.
        found: u64,
        /// That of the request.
        expected: u64,
    },
    /// There is a job of this number already, and it is another one.
    #[error("job {id} is there with other values ({differs}); `job set` changes it")]
    Differs {
        /// The job.
        id: u16,
        /// What would change, in words.
        differs: String,
    },
    /// There is no such job.
    #[error("there is no job {id} (jobs: {known}); `job add` adds it")]
    NoJob {
        /// The job.
        id: u16,
        /// Those that there are.
        known: String,
    },
}

/// A configuration that changes.
pub(super) struct Live {
    path: PathBuf,
    /// As the file was read last.
    file: AgentConfig,
    config: AgentConfig,
    /// Grows by one with each change.
    version: u64,
}

/// A change of one job.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Adds a job; nothing if it is there alike.
    Add(AgentJob),
    /// Gives a job other values.
    Set(AgentJob),
    /// Takes a job away; nothing if it is not there.
    Remove(u16),
}

impl Live {
    pub(super) fn new(path: PathBuf, config: AgentConfig) -> Self {
        Self {
            path,
            file: config.clone(),
            config,
            version: 1,
        }
    }

    pub(super) fn config(&self) -> &AgentConfig {
        &self.config
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The configuration's version is that of an agent that this one takes the place of, or later.
    pub(super) fn continue_from(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// Reads the file again, and takes over what can be changed.
    pub(super) fn reload(&mut self, expected: Option<u64>) -> Result<Changes, Refusal> {
        self.expect(expected)?;
        let file = AgentConfig::load(&self.path)?;
        let before = std::mem::replace(&mut self.file, file.clone());
        let jobs = merged(&self.config.jobs, &before.jobs, &file.jobs);
        Ok(self.take_over(AgentConfig { jobs, ..file }))
    }

    /// Changes one job.
    pub(super) fn change(
        &mut self,
        change: Change,
        expected: Option<u64>,
    ) -> Result<Changes, Refusal> {
        self.expect(expected)?;
        let mut new = self.config.clone();
        let jobs = &mut new.jobs;
        match change {
            Change::Add(job) => match jobs.iter().find(|it| it.id == job.id) {
                None => jobs.push(job),
                Some(found) if *found == job => {}
                Some(_) => {
                    let id = job.id;
                    jobs.retain(|it| it.id != id);
                    jobs.push(job);
                    let differs = self.config.clone().apply(new).applied.join(", ");
                    return Err(Refusal::Differs { id, differs });
                }
            },
            Change::Set(job) => {
                let known: Vec<_> = jobs.iter().map(|it| it.id.to_string()).collect();
                let Some(found) = jobs.iter_mut().find(|it| it.id == job.id) else {
                    let (id, known) = (job.id, known.join(", "));
                    return Err(Refusal::NoJob { id, known });
                };
                *found = job;
            }
            Change::Remove(id) => jobs.retain(|it| it.id != id),
        }
        new.check(Path::new("request"))?;
        Ok(self.take_over(new))
    }

    fn take_over(&mut self, new: AgentConfig) -> Changes {
        let changes = self.config.apply(new);
        if !changes.applied.is_empty() {
            self.version += 1;
        }
        changes
    }

    fn expect(&self, expected: Option<u64>) -> Result<(), Refusal> {
        let found = self.version;
        match expected {
            Some(expected) if expected != found => Err(Refusal::Version { found, expected }),
            _ => Ok(()),
        }
    }
}

/// The jobs that there are, with what has changed from `before` to `after`.
fn merged(jobs: &[AgentJob], before: &[AgentJob], after: &[AgentJob]) -> Vec<AgentJob> {
    let of = |list: &[AgentJob], id| list.iter().find(|it| it.id == id).cloned();
    let stays = |job: &&AgentJob| of(before, job.id).is_none() || of(after, job.id).is_some();
    let mut merged: Vec<_> = jobs.iter().filter(stays).cloned().collect();
    for job in after.iter().filter(|it| !before.contains(it)) {
        merged.retain(|it| it.id != job.id);
        merged.push(job.clone());
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    const FILE: &str = r#"{
        "switch": {"address": "10.84.0.254"}, "transport": {"type": "udp", "bind": "10.84.0.1"},
        "jobs": [{"id": 7, "key": "8182838485868788898a8b8c8d8e8f90", "workers": 4}]
    }"#;

    fn write(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }

    fn live(path: &Path) -> Live {
        write(path, FILE);
        Live::new(path.to_owned(), AgentConfig::load(path).unwrap())
    }

    fn job(id: u16, workers: u16) -> AgentJob {
        let key = "9192939495969798999a9b9c9d9e9fa0".parse().unwrap();
        AgentJob::new(id, key, workers)
    }

    #[test]
    fn a_file_is_taken_over_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.json");
        let mut live = live(&path);
        assert!(live.reload(None).unwrap().is_empty());
        assert_eq!(live.version(), 1, "nothing was different");
        let before = live.config().clone();
        for bad in [
            FILE.replace("\"workers\": 4", "\"workers\": 0"),
            FILE.replace("\"jobs\"", "\"jbos\""),
            FILE[..FILE.len() - 9].to_owned(),
            String::new(),
        ] {
            write(&path, &bad);
            let error = live.reload(None).unwrap_err().to_string();
            assert!(error.ends_with("; nothing was changed"), "{error}");
            assert!(error.contains("agent.json"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(live.reload(None).is_err());
        write(&path, FILE);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(live.reload(None).unwrap_err().to_string().contains("0600"));
        assert_eq!((live.config(), live.version()), (&before, 1));
        write(&path, &FILE.replace("\"workers\": 4", "\"workers\": 5"));
        let changes = live.reload(None).unwrap();
        assert_eq!(changes.applied, ["job 7: workers 4 -> 5"]);
        assert_eq!((live.config().jobs[0].workers, live.version()), (5, 2));
        assert!(live.reload(Some(2)).unwrap().is_empty(), "twice in a row");
        assert_eq!(live.version(), 2);
    }

    #[test]
    fn a_reload_applies_what_has_changed_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.json");
        let mut live = live(&path);
        live.change(Change::Add(job(8, 2)), None).unwrap();
        live.change(Change::Set(job(7, 6)), None).unwrap();
        assert!(
            live.reload(None).unwrap().is_empty(),
            "the file is as it was"
        );
        let ids = |live: &Live| {
            live.config()
                .jobs
                .iter()
                .map(|it| it.id)
                .collect::<Vec<_>>()
        };
        assert_eq!((ids(&live), live.config().jobs[0].workers), (vec![7, 8], 6));
        write(&path, &FILE.replace("\"workers\": 4", "\"workers\": 5"));
        let changes = live.reload(None).unwrap();
        assert_eq!(changes.applied, ["job 7: new key, workers 6 -> 5"]);
        write(&path, &FILE.replace("\"id\": 7", "\"id\": 9"));
        let changes = live.reload(None).unwrap();
        assert_eq!(
            changes.applied,
            ["job 9: added, 4 workers", "job 7: removed"]
        );
        assert_eq!(ids(&live), [8, 9]);
    }

    #[test]
    fn each_change_may_come_twice_and_one_of_an_old_version_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let mut live = live(&folder.path().join("agent.json"));
        let change = |live: &mut Live, change, expected| {
            let done = live.change(change, expected);
            done.map(|it| it.applied.join("; "))
                .map_err(|it| it.to_string())
        };
        let add = || Change::Add(job(8, 2));
        assert_eq!(
            change(&mut live, add(), Some(1)),
            Ok("job 8: added, 2 workers".into())
        );
        assert_eq!(change(&mut live, add(), None), Ok(String::new()));
        assert_eq!(live.version(), 2);
        let late = change(&mut live, add(), Some(1)).unwrap_err();
        assert!(late.contains("has version 2, expected 1"), "{late}");
        let differs = change(&mut live, Change::Add(job(8, 3)), None).unwrap_err();
        assert!(differs.contains("workers 2 -> 3"), "{differs}");
        assert!(!differs.contains("9192"), "no key is told: {differs}");
        assert_eq!(
            change(&mut live, Change::Set(job(8, 3)), None),
            Ok("job 8: workers 2 -> 3".into())
        );
        let none = change(&mut live, Change::Set(job(9, 3)), None).unwrap_err();
        assert!(none.contains("there is no job 9 (jobs: 7, 8)"), "{none}");
        for bad in [job(9, 0), job(9, 4097)] {
            let error = change(&mut live, Change::Add(bad), None).unwrap_err();
            assert!(error.contains("expected 1 to 4096"), "{error}");
        }
        for _ in 0..2 {
            change(&mut live, Change::Remove(7), None).unwrap();
            change(&mut live, Change::Remove(8), None).unwrap();
        }
        assert_eq!((live.config().jobs.len(), live.version()), (0, 5));
    }
}
