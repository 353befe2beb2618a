//! Running switches of a fleet, each at its control interface.

use crate::fleet::{Fleet, Tls};
use crate::roles::Role;
use std::path::{Path, PathBuf};
use tally_api::client::{Client, ConnectError, Target, TcpTarget, connect, reason};
use tally_api::proto::{self, AddJobRequest, Changed, DrainJobRequest, JobRequest, ReportRequest};
use tally_program::table::plain;
use tally_schema::switch::report::{JobReport, Report};
use tokio::task::JoinSet;
use tonic::{Code, Response, Status};

/// What a switch was asked for, and why it did not do it.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The switch cannot be reached.
    #[error("switch {switch}: {error}")]
    Connect {
        /// The switch.
        switch: String,
        /// Why.
        error: ConnectError,
    },
    /// Another switch than the fleet's is there.
    #[error(
        "switch {switch}: {place} is switch {found}; see `switches[].control` of the fleet and \
         `name` of the switch"
    )]
    Name {
        /// The switch.
        switch: String,
        /// Where it is.
        place: String,
        /// Its name.
        found: String,
    },
    /// Another version of the configuration runs.
    #[error(
        "switch {switch}: {what}: {why}; another controller or operator changes this switch: see \
         that there is one, and run the command again"
    )]
    Version {
        /// The switch.
        switch: String,
        /// What was asked for.
        what: String,
        /// What the switch said.
        why: String,
    },
    /// The switch refuses.
    #[error("switch {switch}: {what}: {why}")]
    Refused {
        /// The switch.
        switch: String,
        /// What was asked for.
        what: String,
        /// What the switch said.
        why: String,
    },
    /// The switch does not answer.
    #[error("switch {switch}: {what}: {why}")]
    Call {
        /// The switch.
        switch: String,
        /// What was asked for.
        what: String,
        /// What the switch said.
        why: String,
    },
}

/// A switch that answers, and what it said last.
#[derive(Debug)]
pub struct Remote {
    name: String,
    client: Client,
    /// Version of the configuration that it runs.
    pub version: u64,
    /// What it does.
    pub report: Report,
}

/// Where a switch takes requests. `None` without `control`.
#[must_use]
pub fn target(fleet: &Fleet, switch: usize, path: &Path) -> Option<Target> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let file = |file: &PathBuf| folder.join(file);
    let switch = &fleet.switches[switch];
    let control = switch.control.as_ref()?;
    if control.contains('/') {
        return Some(Target::Unix(folder.join(control)));
    }
    let Tls {
        certificate,
        key,
        ca,
    } = fleet.tls.as_ref()?;
    Some(Target::Tcp(TcpTarget {
        address: control.clone(),
        certificate: file(certificate),
        key: file(key),
        ca: file(ca),
        name: switch.server_name.clone(),
    }))
}

/// Connects to all switches that have `control`, by their index, and reads what they do. `None` for
/// those that have none.
pub async fn reach(fleet: &Fleet, path: &Path) -> Vec<Option<Result<Remote, RemoteError>>> {
    let mut switches: Vec<_> = fleet.switches.iter().map(|_| None).collect();
    let mut reaching = JoinSet::new();
    for (at, switch) in fleet.switches.iter().enumerate() {
        if let Some(target) = target(fleet, at, path) {
            let name = switch.name.clone();
            reaching.spawn(async move { (at, Remote::open(name, &target).await) });
        }
    }
    while let Some(reached) = reaching.join_next().await {
        // A task ends otherwise only if it panics, which has been told then.
        if let Ok((at, remote)) = reached {
            switches[at] = Some(remote);
        }
    }
    switches
}

impl Remote {
    /// Connects to a switch, and reads what it does.
    ///
    /// # Errors
    /// Why it cannot.
    pub async fn open(name: String, target: &Target) -> Result<Self, RemoteError> {
        let mut client = connect(target)
            .await
            .map_err(|error| RemoteError::Connect {
                switch: name.clone(),
                error,
            })?;
        let (version, report) = read(&name, &mut client).await?;
        if let Some(found) = report.name.as_ref().filter(|it| **it != name) {
            return Err(RemoteError::Name {
                switch: name,
                place: target.to_string(),
                found: plain(found),
            });
        }
        Ok(Self {
            name,
            client,
            version,
            report,
        })
    }

    /// What it does for a job.
    #[must_use]
    pub fn job(&self, id: u16) -> Option<&JobReport> {
        self.report.jobs.iter().find(|it| it.id == id)
    }

    /// Reads what it does, in any version of the configuration.
    ///
    /// # Errors
    /// Why it cannot.
    pub async fn look(&mut self) -> Result<(), RemoteError> {
        (self.version, self.report) = read(&self.name, &mut self.client).await?;
        Ok(())
    }

    /// Reads what it does. The version stays the one that is expected.
    ///
    /// # Errors
    /// Why it cannot. Another version than the expected one is an error.
    pub async fn refresh(&mut self) -> Result<(), RemoteError> {
        let (version, report) = read(&self.name, &mut self.client).await?;
        if version != self.version {
            return Err(RemoteError::Version {
                switch: self.name.clone(),
                what: "report".to_owned(),
                why: format!("version {} was expected, but {version} runs", self.version),
            });
        }
        self.report = report;
        Ok(())
    }

    /// Adds a job.
    ///
    /// # Errors
    /// Why the switch does not.
    pub async fn add(&mut self, job: &str, message: proto::Job) -> Result<(), RemoteError> {
        let what = format!("job {job} ({}) is not added", message.id);
        let request = AddJobRequest {
            job: Some(message),
            expected_version: Some(self.version),
        };
        let answer = self.client.control.add_job(request).await;
        self.changed(what, answer)
    }

    /// Removes a job.
    ///
    /// # Errors
    /// Why the switch does not.
    pub async fn remove(&mut self, job: &str, id: u16) -> Result<(), RemoteError> {
        let request = JobRequest {
            id: id.into(),
            expected_version: Some(self.version),
        };
        let answer = self.client.control.remove_job(request).await;
        self.changed(format!("job {job} ({id}) is not removed"), answer)
    }

    /// Has a job begin no epoch.
    ///
    /// # Errors
    /// Why the switch does not.
    pub async fn drain(&mut self, job: &str, id: u16) -> Result<(), RemoteError> {
        let request = DrainJobRequest {
            id: id.into(),
            undo: false,
            expected_version: Some(self.version),
        };
        let answer = self.client.control.drain_job(request).await;
        self.changed(format!("job {job} ({id}) is not drained"), answer)
    }

    /// Has a job begin epochs again, in any version of the configuration.
    ///
    /// # Errors
    /// Why the switch does not.
    pub async fn undo_drain(&mut self, job: &str, id: u16) -> Result<(), RemoteError> {
        let request = DrainJobRequest {
            id: id.into(),
            undo: true,
            expected_version: None,
        };
        let answer = self.client.control.drain_job(request).await;
        self.changed(format!("job {job} ({id}) is still drained"), answer)
    }

    fn changed(
        &mut self,
        what: String,
        answer: Result<Response<Changed>, Status>,
    ) -> Result<(), RemoteError> {
        match answer {
            Ok(answer) => {
                self.version = answer.into_inner().version;
                Ok(())
            }
            Err(status) => Err(failed(&self.name, what, &status)),
        }
    }
}

async fn read(name: &str, client: &mut Client) -> Result<(u64, Report), RemoteError> {
    let what = || "report".to_owned();
    let request = ReportRequest { since_clear: false };
    let answer = client.view.report(request).await;
    let answer = answer.map_err(|status| failed(name, what(), &status))?;
    let answer = answer.into_inner();
    let report = serde_json::from_str(&answer.json);
    let report = report.map_err(|error| RemoteError::Call {
        switch: name.to_owned(),
        what: what(),
        why: format!("not a report of this version of tally-controller: {error}"),
    })?;
    Ok((answer.version, report))
}

fn failed(switch: &str, what: String, status: &Status) -> RemoteError {
    let (switch, why) = (switch.to_owned(), plain(&reason(status)));
    match status.code() {
        Code::Aborted => RemoteError::Version { switch, what, why },
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
            RemoteError::Call { switch, what, why }
        }
        _ => RemoteError::Refused { switch, what, why },
    }
}

/// A role as a request has it.
#[must_use]
pub fn message(role: &Role) -> proto::Job {
    proto::Job {
        workers: role.workers.into(),
        parameter_servers: Some(role.parameter_servers.into()),
        tree: role.tree.as_ref().map(|tree| proto::Tree {
            total: tree.total.into(),
            first: tree.first.into(),
            parent: tree.parent.as_ref().map(|it| it.switch.clone()),
            rank: tree.parent.as_ref().map(|it| it.rank.into()),
            children: tree
                .children
                .iter()
                .map(|it| proto::Child {
                    switch: it.switch.clone(),
                    ranks: it.ranks.into(),
                })
                .collect(),
        }),
        ..proto::Job::default()
    }
}
