//! The configuration of a running switch, and how it becomes another.
//!
//! A change or a reload is a candidate: the whole configuration as it would be. It is checked as a
//! file is, then against what runs, and only then applied: whole or not at all. The order matters:
//! what is removed ends on all shards before it loses its place in the pool, and
//! what is added has its place before a member can join it.
//!
//! A reload applies what changed in the file since it was read last. What was changed by request
//! stays, unless the file changed the same object.

use super::Control;
use super::change::Change;
use super::error::ChangeError;
use super::request::{Applied, ControlHandle, Request, Running};
use super::trees;
use crate::log;
use crate::messages::CardNews;
use crate::ports::keeper::{PortChange, PortsHandle};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tally_engine::netreduce::{self, ServedRing};
use tally_engine::registry::TenantConfig;
use tally_engine::{JobConfig, Reply, native};
use tally_schema::switch::config::{
    Changes, Config, Edit, JobSection, PortSection, TenantJob, TenantSection,
};
use tally_wire::JobId;
use tally_wire::netreduce::RingId;

type Answer = Result<Applied, ChangeError>;

/// What the switch runs with, and where it comes from.
pub struct Live {
    /// The file.
    path: Option<PathBuf>,
    /// As the switch was started.
    started: Config,
    /// As the file was read last.
    file: Config,
    /// As it is.
    running: Config,
    version: u64,
    /// Whether the ports' thread is at work on a change.
    is_port_changing: bool,
    /// The jobs that tenants have made.
    of_tenants: BTreeMap<u16, TenantJob>,
    /// To be asked again, when a file has been read.
    handle: ControlHandle,
}

impl Live {
    /// A switch that starts with this configuration.
    #[must_use]
    pub fn new(config: &Config, path: Option<PathBuf>, handle: ControlHandle) -> Self {
        Self {
            path,
            started: config.clone(),
            file: config.clone(),
            running: config.measured(),
            version: 1,
            is_port_changing: false,
            of_tenants: BTreeMap::new(),
            handle,
        }
    }

    /// The configured jobs.
    pub(super) fn jobs(&self) -> &[JobSection] {
        &self.running.jobs
    }

    /// Where the configuration is said to be in errors.
    fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new("configuration"))
    }

    fn applied(&self, changed: Vec<String>, restart: Vec<String>) -> Applied {
        Applied {
            version: self.version,
            changed,
            restart,
        }
    }

    /// Jobs that a card may have, for all that is configured.
    fn eligible(&self) -> std::collections::BTreeSet<JobId> {
        let jobs = self.running.jobs.iter().filter(|job| job.may_be_on_card());
        jobs.map(|job| JobId(job.id)).collect()
    }
}

/// A job, as the registry takes it.
pub(crate) fn job_config(job: &JobSection) -> JobConfig {
    JobConfig {
        id: JobId(job.id),
        key: job.key.clone(),
        previous_key: job.previous_key.clone(),
        workers: job.workers,
        tree: trees::tree_config(job),
        servers: job.parameter_servers,
    }
}

/// A tenant, as the registry takes it.
pub(crate) fn tenant_config(tenant: &TenantSection) -> TenantConfig {
    TenantConfig {
        name: tenant.name.as_str().into(),
        key: tenant.key.clone(),
        previous_key: tenant.previous_key.clone(),
        jobs: tenant.jobs.iter().map(|ids| ids.range()).collect(),
        max_jobs: tenant.max_jobs,
        max_workers: tenant.max_workers,
    }
}

impl Control {
    /// Does what is asked.
    pub(super) fn handle_request(&mut self, request: Request) {
        match request {
            Request::Apply {
                expected,
                change,
                reply,
            } if let Some(change) = change.of_port() => self.change_port(expected, change, reply),
            Request::PortsChanged {
                change,
                done,
                file,
                reply,
            } => {
                let mut answer = self.port_changed(change, done);
                if let Some(file) = file {
                    answer = answer.and_then(|ports| self.apply_rest(*file, ports));
                }
                log_answer("change", &answer);
                reply(answer);
            }
            Request::Apply {
                expected,
                change,
                reply,
            } => {
                let answer = self.apply_change(expected, &change);
                log_answer("change", &answer);
                reply(answer);
            }
            Request::Reload { expected, reply } => self.load(expected, reply),
            Request::Loaded {
                file,
                expected,
                reply,
            } => {
                if let Err(why) = self.check_version(expected) {
                    return reply(Err(why));
                }
                let added = file
                    .as_ref()
                    .map_or_else(|_| Vec::new(), |file| self.new_ports(file));
                if let (Ok(file), Some(ports), false) =
                    (&file, self.ports.clone(), added.is_empty())
                    && !self.live.is_port_changing
                    && self.check_file(file).is_ok()
                {
                    return self.add_ports_of(&ports, (**file).clone(), added, reply);
                }
                let answer = file.map_err(ChangeError::File);
                let answer = answer.and_then(|file| self.apply_file(*file));
                log_answer("reload", &answer);
                reply(answer);
            }
            Request::Report(reply) => reply(self.report()),
            Request::Config(reply) => reply(Running {
                version: self.live.version,
                config: self.live.running.clone(),
                path: self.live.path.clone(),
            }),
        }
    }

    /// Reads the file on a thread of its own: this one must not wait for a disk, or for a file that
    /// is a pipe.
    pub(super) fn load(&self, expected: Option<u64>, reply: Reply<Answer>) {
        let Some(path) = self.live.path.clone() else {
            let why = "the switch was started without a file".to_owned();
            return reply(Err(ChangeError::File(why)));
        };
        let handle = self.live.handle.clone();
        let read = move || {
            let file = Config::load(&path).map(Box::new);
            let file = file.map_err(|error| error.to_string());
            // A switch that stops, or is asked too much, drops the answer.
            let _ = handle.send(Request::Loaded {
                file,
                expected,
                reply,
            });
        };
        let thread = std::thread::Builder::new().name("reload".into());
        if let Err(error) = thread.spawn(read) {
            log::line(
                "reload",
                format!("reload: no thread to read the file: {error}"),
            );
        }
    }

    /// Whether the version that a change is made for still runs.
    fn check_version(&self, expected: Option<u64>) -> Result<(), ChangeError> {
        let found = self.live.version;
        match expected {
            Some(expected) if expected != found => Err(ChangeError::Version { expected, found }),
            _ => Ok(()),
        }
    }

    fn apply_change(&mut self, expected: Option<u64>, change: &Change) -> Answer {
        self.check_version(expected)?;
        if let Change::DrainJob(id, draining) = *change {
            return self.drain(id, draining);
        }
        let candidate = change.edit(&self.live.running)?;
        let changed = self.become_candidate(candidate)?;
        Ok(self.live.applied(changed, Vec::new()))
    }

    fn next_version(&mut self) {
        self.live.version += 1;
        let version = &self.shape.config_version;
        version.store(self.live.version, Ordering::Relaxed);
    }

    /// Has the ports' thread make a change, which may take seconds. One at a time.
    fn change_port(&mut self, expected: Option<u64>, change: PortChange, reply: Reply<Answer>) {
        if let Err(why) = self.check_version(expected) {
            return reply(Err(why));
        }
        let Some(ports) = self.ports.clone().filter(|_| !self.live.is_port_changing) else {
            let why = "another change of ports is under way; try again".to_owned();
            return reply(Err(ChangeError::Refused(why)));
        };
        self.live.is_port_changing = true;
        let (handle, asked) = (self.live.handle.clone(), change.clone());
        ports.send(
            change,
            Box::new(move |done| {
                handle.deliver(Request::PortsChanged {
                    change: asked,
                    done,
                    file: None,
                    reply,
                });
            }),
        );
    }

    /// Ports that a file has behind those that there are.
    fn new_ports(&self, file: &Config) -> Vec<PortSection> {
        let running = &self.live.running.ports;
        match file.ports.split_at_checked(running.len()) {
            Some((same, new)) if same == running => new.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Has the ports of a file added, and then the rest of it applied.
    fn add_ports_of(
        &mut self,
        ports: &PortsHandle,
        file: Config,
        added: Vec<PortSection>,
        reply: Reply<Answer>,
    ) {
        self.live.is_port_changing = true;
        let handle = self.live.handle.clone();
        let change = PortChange::Add(added);
        let asked = change.clone();
        ports.send(
            change,
            Box::new(move |done| {
                handle.deliver(Request::PortsChanged {
                    change: asked,
                    done,
                    file: Some(Box::new(file)),
                    reply,
                });
            }),
        );
    }

    /// Whether all of a file but its ports can be applied.
    fn check_file(&self, file: &Config) -> Result<(), ChangeError> {
        let changes = Config::diff(&self.live.file, file);
        let candidate = self.live.running.with(&changes);
        self.check_candidate(&candidate).map(drop)
    }

    /// Applies the rest of a file whose ports have been added.
    fn apply_rest(&mut self, file: Config, ports: Applied) -> Answer {
        let mut applied = self.apply_file(file)?;
        applied.changed.splice(0..0, ports.changed);
        Ok(applied)
    }

    fn port_changed(&mut self, change: PortChange, done: Result<bool, String>) -> Answer {
        self.live.is_port_changing = false;
        if !done.map_err(ChangeError::Refused)? {
            return Ok(self.live.applied(Vec::new(), Vec::new()));
        }
        self.next_version();
        let lines = match change {
            PortChange::Add(sections) => self.ports_added(&sections),
            PortChange::Up(name) => vec![format!("port {name}: taken up")],
            PortChange::Down(name) => vec![format!("port {name}: taken down")],
        };
        Ok(self.live.applied(lines, Vec::new()))
    }

    /// Notes ports that were added; a file that has them, too, has nothing new.
    fn ports_added(&mut self, sections: &[PortSection]) -> Vec<String> {
        let mut lines = Vec::new();
        for section in sections {
            let live = &mut self.live;
            if !live.running.ports.contains(section) {
                for config in [&mut live.started, &mut live.file, &mut live.running] {
                    config.ports.push(section.clone());
                }
                lines.push(format!(
                    "port {}: added on {}",
                    section.label(),
                    section.device
                ));
            }
        }
        lines
    }

    fn drain(&mut self, id: u16, draining: bool) -> Answer {
        let job = self.registry.status().find(|job| job.id.0 == id);
        let job = job.ok_or_else(|| ChangeError::NotFound(format!("job {id}")))?;
        if job.draining == draining {
            return Ok(self.live.applied(Vec::new(), Vec::new()));
        }
        self.registry.drain(JobId(id), draining);
        self.next_version();
        let line = if draining {
            format!("job {id}: drained: no epoch begins, one that runs continues")
        } else {
            format!("job {id}: begins epochs again")
        };
        Ok(self.live.applied(vec![line], Vec::new()))
    }

    fn apply_file(&mut self, file: Config) -> Answer {
        let changes = Config::diff(&self.live.file, &file);
        let restart = Config::diff(&self.live.started, &file).restart;
        let candidate = self.live.running.with(&changes);
        let changed = self.become_candidate(candidate)?;
        self.live.file = file;
        let restart = restart.iter().map(ToString::to_string).collect();
        Ok(self.live.applied(changed, restart))
    }

    /// Has the switch run with this, whole or not at all; says what is different then.
    fn become_candidate(&mut self, candidate: Config) -> Result<Vec<String>, ChangeError> {
        let changes = self.check_candidate(&candidate)?;
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.apply(&changes, candidate);
        self.next_version();
        Ok(changes.lines())
    }

    /// What would be different, if it can be.
    fn check_candidate(&self, candidate: &Config) -> Result<Changes, ChangeError> {
        let changes = Config::diff(&self.live.running, candidate);
        if let Some(restart) = changes.restart.first() {
            let why = format!("{restart}: needs a restart");
            return Err(ChangeError::Refused(why));
        }
        if changes.is_empty() {
            return Ok(changes);
        }
        let checked = candidate.check(self.live.path());
        checked.map_err(|error| ChangeError::Refused(error.to_string()))?;
        // A configuration has nothing that JSON cannot say.
        let document = simd_json::serde::to_owned_value(candidate).unwrap_or_default();
        let checked = tally_config::check_keys(self.live.path(), &document);
        checked.map_err(|error| ChangeError::Refused(error.to_string()))?;
        for edit in &changes.jobs {
            if let Edit::Add(job) | Edit::Set { after: job, .. } = edit {
                let checked = self.registry.check(&job_config(job));
                checked.map_err(|error| ChangeError::Refused(error.to_string()))?;
            }
        }
        Ok(changes)
    }

    /// Applies changes that have been checked.
    fn apply(&mut self, changes: &Changes, candidate: Config) {
        let now = self.now();
        let mut actions = Vec::new();
        for edit in &changes.jobs {
            if let Edit::Remove(job) = edit {
                actions.append(&mut self.registry.remove(now, JobId(job.id)));
            }
        }
        for edit in &changes.tenants {
            actions.append(&mut match edit {
                Edit::Remove(tenant) => self.registry.remove_tenant(now, &tenant.name),
                Edit::Add(tenant) | Edit::Set { after: tenant, .. } => {
                    self.registry.set_tenant(now, tenant_config(tenant))
                }
            });
        }
        self.carry_out(actions);
        self.live.running = candidate;
        self.configure_pools();
        for edit in &changes.jobs {
            if let Edit::Add(job) | Edit::Set { after: job, .. } = edit
                && let Err(error) = self.registry.set(job_config(job))
            {
                // It was checked, and nothing has come between.
                log::line("change", error.to_string());
            }
        }
        for edit in &changes.rings {
            match edit {
                Edit::Remove(ring) => {
                    let id = RingId(ring.id);
                    self.bus.send(|| netreduce::Command::Unbind(id));
                }
                Edit::Add(ring) | Edit::Set { after: ring, .. } => {
                    let ring = ring.ring(self.live.running.name.as_deref());
                    let ring = ServedRing::from(ring);
                    (self.bus).send(|| netreduce::Command::Bind(Box::new(ring.clone())));
                }
            }
        }
        if let Some(timeout) = changes.member_timeout_ms {
            self.registry
                .set_member_timeout(Duration::from_millis(timeout));
        }
        self.notify_card(|| CardNews::Jobs {
            jobs: changes.card_jobs.clone(),
            eligible: self.live.eligible(),
        });
    }

    /// A tenant's job is there, or has other workers.
    pub(super) fn create(&mut self, id: JobId, workers: u8) {
        let job = TenantJob { id: id.0, workers };
        if self.live.of_tenants.insert(id.0, job) != Some(job) {
            self.configure_pools();
        }
    }

    /// A tenant's job is gone.
    pub(super) fn forget(&mut self, id: JobId) {
        if self.live.of_tenants.remove(&id.0).is_some() {
            self.configure_pools();
        }
    }

    /// Tells all shards which jobs there are, and what each may have.
    fn configure_pools(&self) {
        let of_tenants: Vec<_> = self.live.of_tenants.values().copied().collect();
        let jobs: Arc<[_]> = self.live.running.pool_jobs(&of_tenants).into();
        self.bus
            .send(|| native::Command::Configure(Arc::clone(&jobs)));
    }
}

/// What came of it, for the log.
fn log_answer(kind: &'static str, answer: &Answer) {
    match answer {
        Err(error) => log::line(kind, format!("{kind}: nothing applied: {error}")),
        Ok(applied) => {
            let version = applied.version;
            if applied.changed.is_empty() {
                log::line(kind, format!("{kind}: version {version}: nothing to apply"));
            }
            for line in &applied.changed {
                log::line(kind, format!("{kind}: version {version}: {line}"));
            }
            for line in &applied.restart {
                log::line(kind, format!("{kind}: needs a restart: {line}"));
            }
        }
    }
}
