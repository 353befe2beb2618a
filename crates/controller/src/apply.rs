//! `apply`: makes running switches follow a plan.
//!
//! [`prepare`] reads all switches and refuses what they cannot do. [`Work::carry_out`] makes the
//! changes of [`changes`] one after the other, each for the version of the configuration that was
//! read, and reads all switches again. A job of which a switch refuses a change is left as it is
//! then, and the others are changed. An error may leave it half done: the same command then does
//! the rest.

use crate::changes::{self, Action, Change, JobChange, Roles};
use crate::fleet::Fleet;
use crate::outcome::{JobOutcome, MadeChange, Outcome, Sums, WorkerOutcome, why};
use crate::remote::{self, Remote, RemoteError, reach};
use crate::roles::{self, JobTree, Refusal, Role};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};
use tally_config::ConfigError;
use tally_planner::{JobPlan, Node, Plan, Problem};
use tally_schema::switch::report::JobPhase;

/// Time between two looks at jobs that end.
const LOOK: Duration = Duration::from_millis(100);
/// A switch may give a report of this age. Afterwards it has the changes made before.
const STALE: Duration = Duration::from_millis(30);

/// How to apply a plan.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long jobs whose trees change may take to end.
    pub drain: Duration,
    /// Whether jobs that still run then are ended.
    pub end_running: bool,
}

/// Why switches do not follow the plan.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The fleet's file lacks what is needed to apply a plan.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The plan asks for what Tally's switches cannot do.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A switch does not answer, or refuses, before anything is changed.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A job of that number is not the fleet's.
    #[error(
        "job {job}: switch {switch} has the number {id} for a job of tenant {tenant}; give the job \
         another number"
    )]
    Tenant {
        /// The job.
        job: String,
        /// The switch.
        switch: String,
        /// The number.
        id: u16,
        /// The tenant.
        tenant: String,
    },
    /// A job that runs on.
    #[error(
        "job {job}: still {phase} at switch {switch} after {seconds} s ({joined} of {members} \
         members); stop its workers, give it more time with --drain, or end it with --end-running"
    )]
    Runs {
        /// The job.
        job: String,
        /// A switch at which it runs.
        switch: String,
        /// What it does there.
        phase: JobPhase,
        /// Members that have joined.
        joined: u32,
        /// Members.
        members: usize,
        /// How long it was waited for.
        seconds: f64,
    },
    /// A job that is left drained.
    #[error("{error}\n{undo}: call `tallyctl job drain {id} --undo` there")]
    Drained {
        /// Why the changes are not made.
        error: Box<ApplyError>,
        /// Why the drain is not undone.
        undo: RemoteError,
        /// Number of the job.
        id: u16,
    },
    /// Switches refuse changes of some jobs. Those of all others are made.
    #[error("{why}; {done} of {all} changes are made: run the command again for the rest")]
    Incomplete {
        /// What they say.
        why: String,
        /// Changes made.
        done: usize,
        /// Changes of the whole list.
        all: usize,
    },
    /// A switch does not answer, or others change it, after some changes.
    #[error("{error}; {done} of {all} changes are made: run the command again for the rest")]
    Stopped {
        /// What happened.
        error: RemoteError,
        /// Changes made.
        done: usize,
        /// Changes of the whole list.
        all: usize,
    },
    /// Switches report something else at the end.
    #[error("switches do not report the plan after all changes were made:\n{0}")]
    Differs(String),
}

impl ApplyError {
    /// Whether no tree has been changed.
    #[must_use]
    pub const fn is_before_changes(&self) -> bool {
        !matches!(
            self,
            Self::Incomplete { .. }
                | Self::Stopped { .. }
                | Self::Drained { .. }
                | Self::Differs(_)
        )
    }
}

/// What is to be done for a job.
pub(crate) struct Wanted {
    /// Index in the fleet; `None` if it is not in the fleet any more.
    pub(crate) job: Option<usize>,
    /// Whether it is removed where it must be without waiting for its end.
    pub(crate) is_ended: bool,
    pub(crate) name: String,
    pub(crate) id: u16,
    pub(crate) tree: JobTree,
    /// Switches that sum another number of streams than planned: how many, and the plan's.
    pub(crate) differing: Vec<(usize, usize, usize)>,
}

/// What a plan needs of the fleet's file: numbers of jobs, and addresses of their switches.
///
/// # Errors
/// What is missing.
pub(crate) fn check_file(
    fleet: &Fleet,
    passed: &BTreeSet<usize>,
    path: &Path,
) -> Result<(), ConfigError> {
    for (at, job) in fleet.jobs.iter().enumerate() {
        if job.id.is_none() {
            let allowed = "the number of the job at the switches, 0 to 65535";
            return Err(ConfigError::value(
                path,
                format!("jobs[{at}].id"),
                "none",
                allowed,
            ));
        }
    }
    for &at in passed {
        let switch = &fleet.switches[at];
        if switch.control.is_none() {
            let key = format!("switches[{at}].control");
            let found = format!("none for {}", switch.name);
            let allowed = "a Unix socket or HOST:PORT, because streams of the plan pass it";
            return Err(ConfigError::value(path, key, found, allowed));
        }
    }
    Ok(())
}

/// That all jobs have keys, without which no switch takes them.
///
/// # Errors
/// The first job without.
pub(crate) fn check_keys(fleet: &Fleet, path: &Path) -> Result<(), ConfigError> {
    let Some(at) = fleet.jobs.iter().position(|it| it.key.is_none()) else {
        return Ok(());
    };
    let key = format!("jobs[{at}].key");
    let allowed = "the key of the job, or `key_file` with the name of a file that has it";
    Err(ConfigError::value(path, key, "none", allowed))
}

/// The trees of all jobs of a fleet.
///
/// # Errors
/// What the switches cannot do.
pub(crate) fn wanted(
    fleet: &Fleet,
    problem: &Problem,
    plan: &Plan,
    switches: &[Option<Remote>],
) -> Result<Vec<Wanted>, Refusal> {
    let links = |at: usize| {
        let remote = switches[at].as_ref();
        remote.map_or(&[][..], |it| &it.report.fabric[..])
    };
    let mut all = Vec::new();
    for (at, job) in fleet.jobs.iter().enumerate() {
        let (problem_job, planned) = (&problem.jobs[at], &plan.jobs[at]);
        let servers = job.parameter_servers;
        let tree = roles::tree(&problem.topology, problem_job, planned, servers, links)?;
        all.push(tree);
    }
    roles::check_capacity(problem, plan, &all)?;
    let jobs = plan.jobs.iter().zip(all).enumerate();
    let wanted = jobs.map(|(at, (planned, tree))| Wanted::of(fleet, at, planned, tree));
    Ok(wanted.collect())
}

impl Wanted {
    /// A job that is not in the fleet any more, and goes everywhere.
    pub(crate) fn gone(name: String, id: u16, is_ended: bool) -> Self {
        Self {
            job: None,
            is_ended,
            name,
            id,
            tree: JobTree::default(),
            differing: Vec::new(),
        }
    }

    /// Whether switches report its tree.
    pub(crate) fn is_made(&self, switches: &[Option<Remote>]) -> bool {
        let roles: Roles = self.tree.roles.iter().cloned().collect();
        !roles.is_empty() && now(switches, self.id) == roles
    }

    /// A job of the fleet, by its index.
    pub(crate) fn of(fleet: &Fleet, at: usize, planned: &JobPlan, tree: JobTree) -> Self {
        let job = &fleet.jobs[at];
        Self {
            job: Some(at),
            is_ended: false,
            name: job.name.clone(),
            id: job.id.unwrap_or_default(),
            differing: differing(planned, &tree),
            tree,
        }
    }
}

/// The roles that switches report for a job.
pub(crate) fn now(switches: &[Option<Remote>], id: u16) -> Roles {
    let switches = switches.iter().enumerate();
    let reported = switches.filter_map(|(at, remote)| {
        let report = remote.as_ref()?.job(id)?;
        Some((at, Role::reported(report)))
    });
    reported.collect()
}

/// Switches that sum another number of streams than planned.
fn differing(planned: &JobPlan, tree: &JobTree) -> Vec<(usize, usize, usize)> {
    let mut sums = BTreeMap::<usize, (usize, usize)>::new();
    for &(at, streams) in &tree.sums {
        sums.entry(at).or_default().0 = streams;
    }
    for share in &planned.shares {
        for stream in &share.tree.streams {
            if let Node::Switch(at) = stream.to {
                sums.entry(at).or_default().1 += 1;
            }
        }
    }
    let sums = sums.into_iter().filter(|(_, (now, then))| now != then);
    sums.map(|(at, (now, then))| (at, now, then)).collect()
}

/// The work: what there is, what is wanted, and the switches.
pub struct Work<'a> {
    fleet: &'a Fleet,
    names: Vec<String>,
    wanted: Vec<Wanted>,
    switches: Vec<Option<Remote>>,
    jobs: Vec<JobChange>,
    changes: Vec<Change>,
    /// The job of each change that was made.
    made: Vec<usize>,
    /// Jobs of which a switch refuses a change. Nothing else is changed for them.
    refused: BTreeMap<usize, RemoteError>,
    /// Switches and jobs that are drained.
    drained: Vec<(usize, usize)>,
    down: Vec<String>,
}

/// Reads all switches, and computes the changes.
///
/// # Errors
/// What the file lacks, why a switch cannot be read, or what the switches cannot do.
pub async fn prepare<'a>(
    (fleet, problem): (&'a Fleet, &Problem),
    path: &Path,
    plan: &Plan,
) -> Result<Work<'a>, ApplyError> {
    for (job, planned) in problem.jobs.iter().zip(&plan.jobs) {
        roles::only_share(job, planned)?;
    }
    let passed = roles::passed(&problem.topology, plan);
    check_file(fleet, &passed, path)?;
    check_keys(fleet, path)?;
    let (switches, down) = switches(fleet, path, &passed).await?;
    let wanted = wanted(fleet, problem, plan, &switches)?;
    Work::new(fleet, wanted, switches, down)
}

/// The switches that answer, and those that are down as the fleet's file says.
pub(crate) async fn switches(
    fleet: &Fleet,
    path: &Path,
    passed: &BTreeSet<usize>,
) -> Result<(Vec<Option<Remote>>, Vec<String>), RemoteError> {
    let mut switches = Vec::new();
    let mut down = Vec::new();
    for (at, reached) in reach(fleet, path).await.into_iter().enumerate() {
        let switch = &fleet.switches[at];
        switches.push(match reached {
            None => None,
            Some(Ok(remote)) => Some(remote),
            Some(Err(RemoteError::Connect { .. }))
                if switch.capacity == 0.0 && !passed.contains(&at) =>
            {
                down.push(switch.name.clone());
                None
            }
            Some(Err(error)) => return Err(error),
        });
    }
    Ok((switches, down))
}

impl<'a> Work<'a> {
    pub(crate) fn new(
        fleet: &'a Fleet,
        wanted: Vec<Wanted>,
        switches: Vec<Option<Remote>>,
        down: Vec<String>,
    ) -> Result<Self, ApplyError> {
        let names: Vec<_> = fleet.switches.iter().map(|it| it.name.clone()).collect();
        let mut jobs = Vec::new();
        for job in &wanted {
            for (at, remote) in switches.iter().enumerate() {
                let Some(report) = remote.as_ref().and_then(|it| it.job(job.id)) else {
                    continue;
                };
                if let Some(tenant) = &report.tenant {
                    return Err(ApplyError::Tenant {
                        job: job.name.clone(),
                        switch: names[at].clone(),
                        id: job.id,
                        tenant: tenant.clone(),
                    });
                }
            }
            jobs.push(JobChange {
                now: now(&switches, job.id),
                wanted: job.tree.roles.clone(),
            });
        }
        Ok(Self {
            fleet,
            changes: changes::changes(&jobs, &names),
            names,
            wanted,
            switches,
            jobs,
            made: Vec::new(),
            refused: BTreeMap::new(),
            drained: Vec::new(),
            down,
        })
    }

    /// Whether nothing is to be changed.
    pub(crate) const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Number of changes made.
    pub(crate) const fn made(&self) -> usize {
        self.made.len()
    }

    /// Jobs of which a switch refused a change, and its words.
    pub(crate) fn refusals(&self) -> Vec<(String, String)> {
        let refused = self.refused.iter();
        let refused = refused.map(|(&job, why)| (self.wanted[job].name.clone(), why.to_string()));
        refused.collect()
    }

    /// The switches, with what they said last.
    pub(crate) fn into_switches(self) -> Vec<Option<Remote>> {
        self.switches
    }

    fn remote(&mut self, switch: usize) -> &mut Remote {
        // Roles are read from those that answer, and wanted of those only.
        self.switches[switch]
            .as_mut()
            .expect("a switch that answers")
    }

    /// What is to be done.
    #[must_use]
    pub fn outcome(&self, dry_run: bool) -> Outcome {
        let jobs = self.wanted.iter().zip(&self.jobs).map(|(job, change)| {
            let workers = job.tree.workers.iter().map(|it| WorkerOutcome {
                name: self.fleet.hosts[it.host].name.clone(),
                rank: it.rank,
                switch: self.names[it.switch].clone(),
            });
            let sums = job.differing.iter();
            let sums = sums.map(|&(at, streams, planned)| Sums {
                switch: self.names[at].clone(),
                streams,
                planned,
            });
            JobOutcome {
                name: job.name.clone(),
                id: job.id,
                reason: change.reason(),
                why: why(change, &self.names),
                workers: workers.collect(),
                sums: sums.collect(),
            }
        });
        let changes = self.changes.iter().map(|change| MadeChange {
            job: self.wanted[change.job].name.clone(),
            id: self.wanted[change.job].id,
            switch: self.names[change.switch].clone(),
            action: change.action,
            role: change.role.clone(),
        });
        Outcome {
            dry_run,
            jobs: jobs.collect(),
            changes: changes.collect(),
            down: self.down.clone(),
        }
    }

    /// Makes the changes, and verifies that all switches report the plan.
    ///
    /// # Errors
    /// Why they do not.
    pub async fn carry_out(&mut self, options: Options) -> Result<(), ApplyError> {
        if self.changes.is_empty() {
            // That is what they have just reported.
            return Ok(());
        }
        self.drain(options).await?;
        self.make().await?;
        self.verify().await?;
        if self.refused.is_empty() {
            return Ok(());
        }
        let why: Vec<_> = self.refused.values().map(ToString::to_string).collect();
        let error = ApplyError::Incomplete {
            why: why.join("; "),
            done: self.made.len(),
            all: self.changes.len(),
        };
        // Those of refused jobs, all others have changed.
        Err(self.undo_drains_after(error).await)
    }

    /// A job that is refused is left as it is, and the others continue.
    fn refuse(&mut self, job: usize, error: RemoteError) -> Result<(), RemoteError> {
        if !matches!(error, RemoteError::Refused { .. }) {
            return Err(error);
        }
        self.refused.entry(job).or_insert(error);
        Ok(())
    }

    /// Has jobs that lose roles begin no epoch, and waits until they do not run.
    async fn drain(&mut self, options: Options) -> Result<(), ApplyError> {
        let removed = self.changes.iter().filter(|it| it.action == Action::Remove);
        let removed = removed.filter(|it| !self.wanted[it.job].is_ended);
        let removed: Vec<_> = removed.cloned().collect();
        if removed.is_empty() {
            return Ok(());
        }
        match self.drain_all(&removed, options).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.undo_drains_after(error).await),
        }
    }

    /// Has drained jobs begin epochs again, if none of the changes made is theirs.
    pub(crate) async fn undo_drains(&mut self) -> Vec<(u16, RemoteError)> {
        let mut errors = Vec::new();
        for (switch, job) in std::mem::take(&mut self.drained) {
            if self.made.contains(&job) {
                continue;
            }
            let (name, id) = (self.wanted[job].name.clone(), self.wanted[job].id);
            if let Err(undo) = self.remote(switch).undo_drain(&name, id).await {
                errors.push((id, undo));
            }
        }
        errors
    }

    async fn undo_drains_after(&mut self, error: ApplyError) -> ApplyError {
        let errors = self.undo_drains().await.into_iter();
        errors.fold(error, |error, (id, undo)| ApplyError::Drained {
            error: Box::new(error),
            undo,
            id,
        })
    }

    async fn drain_all(&mut self, removed: &[Change], options: Options) -> Result<(), ApplyError> {
        let roots = removed.iter().filter(|it| it.role.parent().is_none());
        for &Change { job, switch, .. } in roots {
            let (name, id) = (self.wanted[job].name.clone(), self.wanted[job].id);
            let was_draining = self.remote(switch).job(id).is_some_and(|it| it.draining);
            match self.remote(switch).drain(&name, id).await {
                Ok(()) if was_draining => {}
                Ok(()) => self.drained.push((switch, job)),
                Err(error) => self.refuse(job, error)?,
            }
        }
        let start = Instant::now();
        tokio::time::sleep(STALE).await;
        loop {
            let Some(error) = self.running(removed, options.drain).await? else {
                return Ok(());
            };
            if start.elapsed() >= options.drain {
                return if options.end_running {
                    Ok(())
                } else {
                    Err(error)
                };
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A job that is to be removed somewhere and still runs there.
    async fn running(
        &mut self,
        removed: &[Change],
        waited: Duration,
    ) -> Result<Option<ApplyError>, ApplyError> {
        for &Change { job, switch, .. } in removed {
            if self.refused.contains_key(&job) {
                continue;
            }
            let (name, id) = (self.wanted[job].name.clone(), self.wanted[job].id);
            let at = self.names[switch].clone();
            let remote = self.remote(switch);
            remote.refresh().await?;
            let report = remote.job(id);
            if let Some(report) = report.filter(|it| it.phase != JobPhase::Idle) {
                return Ok(Some(ApplyError::Runs {
                    job: name,
                    switch: at,
                    phase: report.phase,
                    joined: report.members.joined,
                    members: Role::reported(report).members(),
                    seconds: waited.as_secs_f64(),
                }));
            }
        }
        Ok(None)
    }

    /// Makes all changes but those of jobs that are refused.
    async fn make(&mut self) -> Result<(), ApplyError> {
        let changes = self.changes.clone();
        let all = changes.len();
        let mut is_adding = false;
        for change in &changes {
            if self.refused.contains_key(&change.job) {
                continue;
            }
            let is_first = change.action == Action::Add && !is_adding;
            is_adding |= is_first;
            // Another controller may have begun to add another tree.
            let looked = if is_first {
                self.refresh().await
            } else {
                Ok(())
            };
            let made = match looked {
                Ok(()) => self.change(change).await,
                Err(error) => Err(error),
            };
            match made {
                Ok(()) => self.made.push(change.job),
                Err(error) => {
                    if let Err(error) = self.refuse(change.job, error) {
                        let done = self.made.len();
                        let error = ApplyError::Stopped { error, done, all };
                        return Err(self.undo_drains_after(error).await);
                    }
                }
            }
        }
        Ok(())
    }

    async fn change(&mut self, change: &Change) -> Result<(), RemoteError> {
        let Wanted { job, name, id, .. } = &self.wanted[change.job];
        let (job, name, id) = (*job, name.clone(), *id);
        match change.action {
            Action::Remove => self.remote(change.switch).remove(&name, id).await,
            Action::Add => {
                // Nothing is added for a job that is not in the fleet.
                let job = &self.fleet.jobs[job.expect("a job of the fleet")];
                let mut message = remote::message(&change.role);
                message.id = id.into();
                message.key = job.key.as_ref().map(digits).unwrap_or_default();
                (message.min_slots, message.max_slots) = (job.min_slots, job.max_slots);
                self.remote(change.switch).add(&name, message).await
            }
        }
    }

    /// Reads all switches, none of which may have been changed by others.
    async fn refresh(&mut self) -> Result<(), RemoteError> {
        tokio::time::sleep(STALE).await;
        for remote in self.switches.iter_mut().flatten() {
            remote.refresh().await?;
        }
        Ok(())
    }

    /// That all switches report the plan.
    async fn verify(&mut self) -> Result<(), ApplyError> {
        let (done, all) = (self.made.len(), self.changes.len());
        let looked = self.refresh().await;
        looked.map_err(|error| ApplyError::Stopped { error, done, all })?;
        let mut text = String::new();
        for (at, job) in self.wanted.iter().enumerate() {
            if self.refused.contains_key(&at) {
                continue;
            }
            for (at, remote) in self.switches.iter().enumerate() {
                let Some(remote) = remote else { continue };
                let found = remote.job(job.id).map(Role::reported);
                let wanted = job.tree.roles.iter().find(|(it, _)| *it == at);
                let wanted = wanted.map(|(_, role)| role);
                if found.as_ref() != wanted {
                    let (job, switch) = (&job.name, &self.names[at]);
                    let found = shown(found.as_ref());
                    let wanted = shown(wanted);
                    let _ = writeln!(
                        text,
                        "  job {job}: switch {switch}: found {found}; expected {wanted}"
                    );
                }
            }
        }
        if text.is_empty() {
            Ok(())
        } else {
            Err(ApplyError::Differs(text.trim_end().to_owned()))
        }
    }
}

fn shown(role: Option<&Role>) -> String {
    role.map_or_else(|| "no such job".to_owned(), ToString::to_string)
}

/// A key in hexadecimal digits.
pub(crate) fn digits(key: &tally_wire::Key) -> String {
    key.as_bytes()
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect()
}
