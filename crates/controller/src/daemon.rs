//! `run`: the controller that runs on its own.
//!
//! One loop: it looks at all switches and at the fleet's file, plans if something changed, and
//! makes the changes that switches lack. Nothing of it depends on the loops before but the plan,
//! which is in a file, and the time since when something is missing. So a controller that takes
//! over does what the one before would have done next.
//!
//! A loop never ends the controller: an error is told and tried again.

mod look;

use crate::apply::{self, ApplyError, Wanted, Work};
use crate::args::RunArguments;
use crate::document::Document;
use crate::events::{ChangedJob, Event, Events, ms};
use crate::fleet::Fleet;
use crate::moves::{self, State, Verdict};
use crate::remote::Remote;
use crate::roles::{self, JobTree};
use crate::store::{Store, StoreError};
use crate::tiers;
use crate::watch::Watch;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_planner::check::check;
use tally_planner::{Options, Plan, Problem, Shape, replan_holding, rules};
use tally_schema::switch::report::JobPhase;
use tokio::time::{sleep, timeout};

/// Why a controller does not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Where the fleet is.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Time limits that do not fit.
    #[error(
        "--dead-after: found {} ms, expected at least two intervals ({} ms)",
        found.as_millis(), least.as_millis()
    )]
    DeadAfter {
        /// The value.
        found: Duration,
        /// The least one.
        least: Duration,
    },
}

/// Longest time between two tries of what fails.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// Time limit of all changes of a loop.
const PASS: Duration = Duration::from_secs(10);
/// How often signals and the lock are looked at.
const NAP: Duration = Duration::from_millis(20);

/// Works until a signal comes; as standby while another controller does.
///
/// # Errors
/// What cannot be used at the start.
pub async fn run(arguments: &RunArguments, stop: &AtomicBool) -> Result<(), StartError> {
    let (found, least) = (arguments.dead_after, arguments.interval * 2);
    if found < least {
        return Err(StartError::DeadAfter { found, least });
    }
    let events = Events {
        is_json: arguments.json,
    };
    let mut store = Store::open(&arguments.fleet, arguments.names()).await?;
    let mut leading = Leading::default();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        leading.turn(arguments, events, &mut store).await;
        while !stop.load(Ordering::Relaxed) && start.elapsed() < arguments.interval {
            let left = arguments.interval.saturating_sub(start.elapsed());
            sleep(NAP.min(left)).await;
        }
    }
    store.resign().await;
    events.say(&Event::Ends);
    Ok(())
}

/// Whether this controller works.
#[derive(Default)]
struct Leading {
    daemon: Option<Daemon>,
    /// The term, as it was told: `None` in it is standby.
    term: Option<Option<i64>>,
    /// Whether state is to be read as if it was another's.
    is_new: bool,
    /// Why state cannot be read, as it was told.
    lost: Option<String>,
}

impl Leading {
    async fn turn(&mut self, arguments: &RunArguments, events: Events, store: &mut Store) {
        let lead = store.lead().await;
        if let Ok(term) = lead
            && self.term != Some(term)
        {
            let holds = store.lead_name();
            if term.is_some() {
                events.say(&Event::Leader { holds });
                self.is_new = true;
            } else {
                events.say(&Event::Standby { holds });
                self.daemon = None;
            }
            self.term = Some(term);
        }
        let done = match lead {
            Ok(Some(_)) => self.lead(arguments, events, store).await,
            Ok(None) => Ok(()),
            Err(error) => {
                // Switches are watched, and not changed.
                if let Some(daemon) = &mut self.daemon {
                    daemon.look().await;
                }
                Err(error)
            }
        };
        match (done, self.lost.take()) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => events.say(&Event::StoreBack),
            (Err(error), lost) => {
                let error = error.to_string();
                if lost.as_ref() != Some(&error) {
                    events.say(&Event::StoreLost {
                        error: error.clone(),
                    });
                }
                self.lost = Some(error);
            }
        }
    }

    /// One loop of the controller that works.
    async fn lead(
        &mut self,
        arguments: &RunArguments,
        events: Events,
        store: &mut Store,
    ) -> Result<(), StoreError> {
        if self.is_new {
            store.again();
        }
        let read = store.fleet().await?;
        match (&mut self.daemon, read) {
            (Some(daemon), Some(Ok(fleet))) => {
                if self.is_new {
                    daemon.follow_from(store.plan().await)?;
                }
                daemon.have(fleet);
                self.is_new = false;
            }
            (None, Some(Ok(fleet))) => {
                let path = store.path().to_owned();
                let mut daemon = Daemon::new(arguments, events, (fleet, path));
                daemon.follow_from(store.plan().await)?;
                self.daemon = Some(daemon);
                self.is_new = false;
            }
            (None, Some(Err(error))) => return Err(error.into()),
            (Some(_), Some(Err(error))) => events.say(&Event::FleetRefused {
                error: error.to_string(),
            }),
            (_, None) => {}
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.turn(store).await;
        }
        Ok(())
    }
}

/// What is tried again, and when.
#[derive(Debug, Default)]
struct Retry {
    error: String,
    delay: Duration,
    at: Option<Instant>,
}

impl Retry {
    fn is_due(&self) -> bool {
        self.at.is_none_or(|at| Instant::now() >= at)
    }

    /// The time until the next try: longer each time for the same error.
    fn fail(&mut self, error: &str, interval: Duration) -> Duration {
        self.delay = if self.error == error {
            (self.delay * 2).min(BACK_OFF_MAX)
        } else {
            interval.min(BACK_OFF_MAX)
        };
        error.clone_into(&mut self.error);
        self.at = Some(Instant::now() + self.delay);
        self.delay
    }
}

/// A plan for the fleet as it is.
struct Planned {
    /// What is down has rate or capacity 0.
    fleet: Fleet,
    problem: Problem,
    plan: Plan,
    document: Document,
}

struct Daemon {
    interval: Duration,
    dead_after: Duration,
    events: Events,
    fleet: Fleet,
    /// Where the fleet is, for errors and relative paths.
    path: PathBuf,
    start: Instant,
    watch: Watch,
    /// Switches that have answered in this turn.
    remotes: Vec<Option<Remote>>,
    /// The plan that switches follow, or are about to.
    document: Option<Document>,
    planned: Option<Planned>,
    /// Whether it is kept.
    is_plan_written: bool,
    /// Why a plan is to be made, and when.
    reasons: Vec<String>,
    due: Instant,
    /// When the first event came that has not led to changes yet.
    since: Option<Instant>,
    /// Jobs of the fleet that this process has found or placed at switches, by number.
    placed: BTreeMap<u16, String>,
    /// Those of them that are not in the fleet any more.
    gone: BTreeMap<u16, String>,
    /// Running jobs that a better plan would move.
    postponed: BTreeSet<String>,
    /// What has been said of a job or switch and holds still.
    said: BTreeMap<String, String>,
    retry: Retry,
}

impl Daemon {
    fn new(arguments: &RunArguments, events: Events, (fleet, path): (Fleet, PathBuf)) -> Self {
        Self {
            interval: arguments.interval,
            dead_after: arguments.dead_after,
            events,
            fleet,
            path,
            start: Instant::now(),
            watch: Watch::new(arguments.dead_after, arguments.interval),
            remotes: Vec::new(),
            document: None,
            planned: None,
            is_plan_written: true,
            reasons: vec!["the controller begins".to_owned()],
            due: Instant::now(),
            since: Some(Instant::now()),
            placed: BTreeMap::new(),
            gone: BTreeMap::new(),
            postponed: BTreeSet::new(),
            said: BTreeMap::new(),
            retry: Retry::default(),
        }
    }

    /// Continues from the plan of the controller before. Without one that can be read, jobs that
    /// run stay in place still.
    fn follow_from(
        &mut self,
        before: Result<Option<Document>, StoreError>,
    ) -> Result<(), StoreError> {
        match before {
            Ok(document) => self.document = document,
            Err(StoreError::Config(error)) => self.events.say(&Event::Error {
                error: format!("{error}; planning without the plan before"),
                retry_ms: 0,
            }),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Something has changed: a plan is made after `wait`.
    fn plan_again(&mut self, reason: String, wait: Duration) {
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.due = if self.reasons.is_empty() {
            now + wait
        } else {
            self.due.min(now + wait)
        };
        self.reasons.push(reason);
        self.retry.at = None;
    }

    /// Looks, plans, and changes switches.
    async fn turn(&mut self, store: &mut Store) {
        if !self.look().await {
            return;
        }
        let states = self.states();
        let postponed = std::mem::take(&mut self.postponed);
        for (job, state) in self.fleet.jobs.iter().zip(&states) {
            if postponed.contains(&job.name) && state.is_held() {
                self.postponed.insert(job.name.clone());
            }
        }
        if let Some(job) = postponed.difference(&self.postponed).next() {
            self.plan_again(format!("job {job} is idle"), Duration::ZERO);
        }
        let is_due = self.retry.is_due();
        if is_due && !self.reasons.is_empty() && Instant::now() >= self.due {
            match self.plan(&states) {
                Ok(()) => self.reasons.clear(),
                Err(error) => return self.fail(error),
            }
        }
        if is_due && let Err(error) = self.follow(store, &states).await {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: String) {
        let delay = self.retry.fail(&error, self.interval);
        self.events.say(&Event::Error {
            error,
            retry_ms: delay.as_millis() as u64,
        });
    }

    /// The fleet is another one.
    fn have(&mut self, fleet: Fleet) {
        let jobs = &fleet.jobs;
        self.events.say(&Event::Fleet { jobs: jobs.len() });
        let is_there = |id: &u16| jobs.iter().any(|it| it.id == Some(*id));
        let placed = std::mem::take(&mut self.placed);
        let (stay, gone) = placed.into_iter().partition(|(id, _)| is_there(id));
        self.gone.retain(|id, _| !is_there(id));
        self.placed = stay;
        let gone: BTreeMap<_, _> = gone;
        self.gone.extend(gone);
        // Indices are those of the new fleet.
        self.fleet = fleet;
        self.remotes.clear();
        self.planned = None;
        self.plan_again("the fleet is another one".to_owned(), Duration::ZERO);
    }

    /// All jobs of the fleet as switches report them.
    fn states(&mut self) -> Vec<State> {
        let names = self.names();
        let ground = look::Seeing::new(&self.watch, &names, &self.remotes);
        let jobs = self.fleet.jobs.iter();
        let states = jobs.map(|job| {
            let id = job.id.unwrap_or_default();
            let state = self.state(id, &names, &ground);
            (id, job.name.clone(), state)
        });
        let states: Vec<_> = states.collect();
        let mut found = Vec::new();
        for (id, name, state) in states {
            if !state.now.is_empty() && !self.is_tenants(id) {
                self.placed.insert(id, name);
            }
            found.push(state);
        }
        found
    }

    /// A job as switches report it, by its number.
    fn state(&self, id: u16, names: &[String], ground: &look::Seeing) -> State {
        let reports = self.remotes.iter().flatten();
        let mut reports = reports.filter_map(|it| it.job(id));
        let is_busy = reports.any(|it| it.phase != JobPhase::Idle);
        State::new(apply::now(&self.remotes, id), is_busy, names, ground)
    }

    /// Jobs that are not in the fleet any more, and go now: those that cannot run.
    fn going(&mut self) -> Vec<Wanted> {
        let names = self.names();
        let gone = std::mem::take(&mut self.gone);
        let mut going = Vec::new();
        for (id, name) in gone {
            let ground = look::Seeing::new(&self.watch, &names, &self.remotes);
            let state = self.state(id, &names, &ground);
            let key = format!("job {name}");
            if state.now.is_empty() || self.is_tenants(id) {
                self.said.remove(&key);
                continue;
            }
            if state.is_held() {
                self.wait(
                    &name,
                    "it is not in the fleet any more; it is removed when it is idle",
                );
            } else {
                self.said.remove(&key);
                going.push(Wanted::gone(name.clone(), id, state.is_busy));
            }
            self.gone.insert(id, name);
        }
        going
    }

    /// Whether a switch has that number for a tenant's job.
    fn is_tenants(&self, id: u16) -> bool {
        let mut reports = self.remotes.iter().flatten();
        reports.any(|it| it.job(id).is_some_and(|it| it.tenant.is_some()))
    }

    fn names(&self) -> Vec<String> {
        let switches = self.fleet.switches.iter();
        switches.map(|it| it.name.clone()).collect()
    }

    /// Plans from the plan before. Jobs that run keep their trees while these are possible.
    fn plan(&mut self, states: &[State]) -> Result<(), String> {
        let start = Instant::now();
        let mut fleet = look::effective(&self.fleet, &self.watch);
        tiers::learn(&mut fleet, |at| look::fabric(&self.remotes, at));
        let problem = fleet.problem(&self.path).map_err(|it| it.to_string())?;
        let held = states.iter().enumerate();
        let held = held.filter(|(_, state)| state.is_held());
        let held: Vec<_> = held.map(|(at, _)| at).collect();
        let options = Options {
            shape: Shape::Fabric,
            ..Options::default()
        };
        let before = self.document.as_ref();
        let (names, before) = before.map_or_else(
            || (Vec::new(), Plan::none()),
            |it| it.known(&problem.topology),
        );
        let replanned = replan_holding(&problem, &before, &names, &held, &options)
            .map_err(|error| error.to_string())?;
        let wrong = |fault: String| format!("the plan is wrong, which is a bug: {fault}");
        check(&problem, &replanned.plan).map_err(|fault| wrong(fault.to_string()))?;
        rules::check(&problem, &replanned.plan).map_err(|broken| wrong(broken.to_string()))?;
        let name = |at: &usize| problem.jobs[*at].name.clone();
        self.events.say(&Event::Plan {
            reason: self.reasons.join("; "),
            jobs: problem.jobs.len(),
            moved: replanned.moved.iter().map(name).collect(),
            ms: ms(start.elapsed()),
        });
        for at in &replanned.held {
            let why = "it runs; it moves to a better tree when it is idle";
            self.wait(&name(at), why);
        }
        self.postponed = replanned.held.iter().map(name).collect();
        self.planned = Some(Planned {
            document: Document::of(&problem, &replanned.plan, fleet.unit),
            plan: replanned.plan,
            fleet,
            problem,
        });
        Ok(())
    }

    /// Says once why a job is left as it is.
    fn wait(&mut self, job: &str, why: &str) {
        let key = format!("job {job}");
        // Refusals begin with the job, and so does the line.
        let why = why.strip_prefix(&format!("{key}: ")).unwrap_or(why);
        if self.said.get(&key).is_none_or(|it| it != why) {
            let (job, why) = (job.to_owned(), why.to_owned());
            self.said.insert(key, why.clone());
            self.events.say(&Event::Waits { job, why });
        }
    }

    /// Makes switches follow the plan.
    async fn follow(&mut self, store: &mut Store, states: &[State]) -> Result<(), String> {
        let Some(planned) = self.planned.take() else {
            return Ok(());
        };
        let followed = self.follow_plan(store, &planned, states).await;
        self.planned = Some(planned);
        followed
    }

    async fn follow_plan(
        &mut self,
        store: &mut Store,
        planned: &Planned,
        states: &[State],
    ) -> Result<(), String> {
        let (mut wanted, waits) = self.wanted(planned, states);
        let jobs = planned.fleet.jobs.iter();
        for (at, job) in jobs.enumerate() {
            match waits.get(&at) {
                Some(why) => self.wait(&job.name, why),
                None if self.postponed.contains(&job.name) => {}
                None => _ = self.said.remove(&format!("job {}", job.name)),
            }
        }
        wanted.extend(self.going());
        self.keep_plan(store, planned, &wanted).await?;
        let remotes = std::mem::take(&mut self.remotes);
        let work = Work::new(&planned.fleet, wanted, remotes, Vec::new());
        let mut work = work.map_err(|error| error.to_string())?;
        let changes = work.len();
        let made = if changes == 0 {
            Ok(Ok(()))
        } else {
            self.since.get_or_insert(Instant::now());
            let options = apply::Options {
                drain: Duration::ZERO,
                end_running: false,
            };
            let made = timeout(PASS, work.carry_out(options)).await;
            if made.is_err() {
                // Jobs that are drained and do not change in the next loop would stay so.
                let _ = timeout(PASS, work.undo_drains()).await;
            }
            made
        };
        let outcome = work.outcome(false);
        self.remotes = work.into_switches();
        match made {
            Err(_) => Err(format!("changes: not done within {} s", PASS.as_secs())),
            Ok(Err(ApplyError::Runs { job, .. })) => {
                // It began after the look.
                self.wait(&job, "it runs; it moves when it is idle");
                Ok(())
            }
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(())) => {
                let since = self.since.take();
                self.retry = Retry::default();
                if !self.reasons.is_empty() {
                    // An event of this loop is still to be planned for.
                    self.since = since;
                }
                if changes > 0 {
                    self.events.say(&Event::Changed {
                        changes,
                        jobs: ChangedJob::of(outcome.jobs),
                        ms: since.map_or(0.0, |it| ms(it.elapsed())),
                    });
                }
                Ok(())
            }
        }
    }

    /// The jobs whose roles are to be those of the plan now, and why others wait.
    fn wanted(
        &self,
        planned: &Planned,
        states: &[State],
    ) -> (Vec<Wanted>, BTreeMap<usize, String>) {
        let Planned {
            fleet,
            problem,
            plan,
            ..
        } = planned;
        let links = |at: usize| look::fabric(&self.remotes, at);
        let answers = |at: usize| self.remotes[at].is_some();
        let names = self.names();
        let mut waits = BTreeMap::new();
        let mut ends = BTreeSet::new();
        let mut trees = Vec::new();
        for (at, job) in fleet.jobs.iter().enumerate() {
            let servers = job.parameter_servers;
            let (of, planned) = (&problem.jobs[at], &plan.jobs[at]);
            let passed = roles::passed_of(&problem.topology, planned);
            let silent = passed.into_iter().find(|at| !answers(*at));
            let tree = match silent {
                Some(at) if fleet.switches[at].control.is_none() => {
                    Err(format!("switch {} of its tree has no `control`", names[at]))
                }
                Some(at) => Err(format!("switch {} of its tree does not answer", names[at])),
                None => roles::tree(&problem.topology, of, planned, servers, links)
                    .map_err(|refusal| refusal.to_string()),
            };
            let tree = tree.and_then(|tree| {
                let verdict = moves::verdict(&states[at], &tree.roles, answers, &names);
                match verdict {
                    _ if self.is_tenants(job.id.unwrap_or_default()) => {
                        Err("a tenant's job has its number".to_owned())
                    }
                    Verdict::Waits(why) => Err(why),
                    Verdict::Go { ends: true } => {
                        ends.insert(at);
                        Ok(tree)
                    }
                    Verdict::Go { ends: false } => Ok(tree),
                }
            });
            trees.push(tree.unwrap_or_else(|why| {
                waits.insert(at, why);
                JobTree::default()
            }));
        }
        while let Err(refusal) = roles::check_capacity(problem, plan, &trees) {
            let at = fleet.jobs.iter().position(|it| it.name == refusal.job());
            // It has no roles from now on, so the next refusal is that of another job.
            let Some(at) = at.filter(|it| !waits.contains_key(it)) else {
                break;
            };
            waits.insert(at, refusal.to_string());
            trees[at] = JobTree::default();
        }
        let trees = trees.into_iter().enumerate();
        let wanted = trees.filter(|(at, _)| !waits.contains_key(at));
        let wanted = wanted.map(|(at, tree)| {
            let mut wanted = Wanted::of(fleet, at, &plan.jobs[at], tree);
            wanted.is_ended = ends.contains(&at);
            wanted
        });
        (wanted.collect(), waits)
    }

    /// Keeps the plan of the jobs that follow it now, and of the others the plan before. The next
    /// controller finds in the file what this one began.
    async fn keep_plan(
        &mut self,
        store: &mut Store,
        planned: &Planned,
        wanted: &[Wanted],
    ) -> Result<(), String> {
        let mut document = planned.document.clone();
        let before = self.document.as_ref();
        let jobs = document.jobs.into_iter().filter_map(|job| {
            if wanted.iter().any(|it| it.name == job.name) {
                return Some(job);
            }
            let mut before = before?.jobs.iter();
            before.find(|it| it.name == job.name).cloned()
        });
        document.jobs = jobs.collect();
        if before.is_some_and(|it| it.jobs == document.jobs) && self.is_plan_written {
            return Ok(());
        }
        document.version = Some(before.and_then(|it| it.version).unwrap_or_default() + 1);
        let written = store.write_plan(&document).await;
        self.is_plan_written = written.is_ok();
        if store.must_keep() {
            // What is not kept is not begun.
            written.map_err(|error| error.to_string())?;
            self.document = Some(document);
            return Ok(());
        }
        self.document = Some(document);
        let key = "the plan's file";
        match written.map_err(|error| error.to_string()) {
            Ok(()) => _ = self.said.remove(key),
            Err(error) if self.said.get(key) == Some(&error) => {}
            Err(error) => {
                self.said.insert(key.to_owned(), error.clone());
                let retry_ms = self.interval.as_millis() as u64;
                self.events.say(&Event::Error { error, retry_ms });
            }
        }
        Ok(())
    }
}
