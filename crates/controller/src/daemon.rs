//! `run`: the controller that runs on its own.
//!
//! One loop: it looks at all switches and at the fleet, plans if something changed, and makes the
//! changes that switches lack. Nothing of it depends on the loops before but the plan, which is
//! kept in a file or in etcd, and the time since when something is missing. A standby looks as the
//! leader does. So a controller that takes over does what the one before would have done next.
//!
//! A loop never ends the controller: an error is told and tried again.

mod follow;
mod leading;
mod load;
mod look;
mod notify;
mod retry;

pub use leading::{StartError, run};

use crate::apply::{self, Wanted};
use crate::args::RunArguments;
use crate::document::Document;
use crate::events::{Event, Events, ms};
use crate::fleet::Fleet;
use crate::hosts::Answers;
use crate::moves::State;
use crate::remote::Remote;
use crate::store::{Store, StoreError};
use crate::tiers;
use crate::watch::Watch;
use load::Loads;
use retry::{Refused, Retry};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tally_planner::check::check;
use tally_planner::{Options, Plan, Problem, Shape, replan_holding, rules};
use tally_schema::switch::report::JobPhase;

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
    answers: Answers,
    fleet: Fleet,
    /// Where the fleet is, for errors and relative paths.
    path: PathBuf,
    start: Instant,
    watch: Watch,
    loads: Loads,
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
    refused: Refused,
}

impl Daemon {
    fn new(
        arguments: &RunArguments,
        (events, answers): (Events, Answers),
        (fleet, path): (Fleet, PathBuf),
    ) -> Self {
        Self {
            interval: arguments.interval,
            dead_after: arguments.dead_after,
            events,
            answers,
            fleet,
            path,
            start: Instant::now(),
            watch: Watch::new(arguments.dead_after, arguments.interval),
            loads: Loads::new(Duration::from_secs_f64(arguments.load_window)),
            remotes: Vec::new(),
            document: None,
            planned: None,
            is_plan_written: true,
            reasons: Vec::new(),
            due: Instant::now(),
            since: None,
            placed: BTreeMap::new(),
            gone: BTreeMap::new(),
            postponed: BTreeSet::new(),
            said: BTreeMap::new(),
            retry: Retry::default(),
            refused: Refused::default(),
        }
    }

    /// Leads from now on, and continues from the plan of the controller before. Without one that
    /// can be read, jobs that run stay in place still.
    fn begin(&mut self, before: Result<Option<Document>, StoreError>) -> Result<(), StoreError> {
        match before {
            Ok(document) => self.document = document,
            Err(StoreError::Config(error)) => self.events.say(&Event::Error {
                error: format!("{error}; planning without the plan before"),
                retry_ms: 0,
            }),
            Err(error) => return Err(error),
        }
        self.planned = None;
        self.plan_again("the controller begins".to_owned(), Duration::ZERO);
        Ok(())
    }

    /// Looks, and changes nothing: another controller works.
    async fn stand_by(&mut self) {
        self.look().await;
        self.states();
        self.reasons.clear();
        self.since = None;
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
        self.retry.hurry();
        self.refused.hurry();
    }

    /// Looks, plans, and changes switches.
    async fn turn(&mut self, store: &mut Store) {
        if !self.look().await {
            return;
        }
        self.measure_loads(store).await;
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
        let mut fleet = self.with_shown(look::effective(&self.fleet, &self.watch));
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
}
