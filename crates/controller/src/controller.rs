//! `run`: the controller that works on its own.
//!
//! A pass looks at all switches, says what came and went, plans again if the fleet is another one,
//! and changes the jobs that may change. Nothing is kept but the last plan: what switches report is
//! where each pass begins, so another controller continues where this one ends.

mod log;

use crate::apply::{self, ApplyError, Wanted, Work};
use crate::document::Document;
use crate::fleet::Fleet;
use crate::moves::{self, Ground, State, Verdict};
use crate::remote::{self, Look, Remote};
use crate::roles::{self, JobTree, Refusal};
use crate::tiers;
use crate::watch::{Change, Pair, Seen, Watch, pair};
use log::{Event, Log};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_config::ConfigError;
use tally_planner::check::check;
use tally_planner::{Algorithm, Plan, Problem, Shape, plan, replan_holding, rules};
use tally_schema::switch::report::{FabricLinkReport, JobPhase};

/// A signal is seen this late.
const TICK: Duration = Duration::from_millis(20);
/// Longest pause after the same error again and again.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long idle jobs that move may take to stay idle.
const DRAIN: Duration = Duration::from_millis(500);

/// How the controller works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The fleet's file.
    pub fleet: PathBuf,
    /// Time between two looks.
    pub interval: Duration,
    /// What is missing for this time is down.
    pub dead_after: Duration,
    /// The file of the lock that the working controller holds.
    pub lock: PathBuf,
    /// Whether events are JSON.
    pub is_json: bool,
}

/// Why the controller ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The fleet's file does not fit at the start.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The lock cannot be had.
    #[error("{}: {error}", path.display())]
    Lock {
        /// Its file.
        path: PathBuf,
        /// The kernel's reason.
        error: std::io::Error,
    },
}

/// Works until `stop`.
///
/// # Errors
/// Why it cannot begin.
pub async fn run(options: &Options, stop: &AtomicBool) -> Result<(), RunError> {
    let file = File::load(&options.fleet)?;
    let mut log = Log::new(options.is_json);
    let Some(_lock) = leader(options, stop, &mut log).await? else {
        return Ok(());
    };
    log.say(&Event::new("leader", "this controller works".to_owned()));
    let mut controller = Controller {
        options,
        stop,
        log,
        start: Instant::now(),
        watch: Watch::new(options.dead_after, options.interval),
        file,
        planned: None,
        placed: BTreeMap::new(),
        lost: None,
        pause: Pause::default(),
    };
    while !stop.load(Ordering::Relaxed) {
        let next = Instant::now() + options.interval;
        controller.pass().await;
        rest(next, stop).await;
    }
    Ok(())
}

/// Waits for the lock. `None`: stopped.
async fn leader(
    options: &Options,
    stop: &AtomicBool,
    log: &mut Log,
) -> Result<Option<crate::lock::Lock>, RunError> {
    let wrong = |error| RunError::Lock {
        path: options.lock.clone(),
        error,
    };
    let mut file = crate::lock::open(&options.lock).map_err(wrong)?;
    let mut is_said = false;
    while !stop.load(Ordering::Relaxed) {
        file = match crate::lock::take(file).map_err(wrong)? {
            Ok(lock) => return Ok(Some(lock)),
            Err(file) => file,
        };
        if !is_said {
            is_said = true;
            let path = options.lock.display();
            let text = format!("another controller works, which has locked {path}");
            log.say(&Event::new("standby", text));
        }
        rest(Instant::now() + options.interval, stop).await;
    }
    Ok(None)
}

async fn rest(until: Instant, stop: &AtomicBool) {
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        tokio::time::sleep(left.min(TICK)).await;
    }
}

/// The fleet's file, as it was read last.
struct File {
    fleet: Fleet,
    bytes: Vec<Option<Vec<u8>>>,
}

impl File {
    fn load(path: &Path) -> Result<Self, ConfigError> {
        let (known, _) = Fleet::load_with_keys(path)?;
        let bytes = Self::bytes(path, &known);
        // Read after these bytes: what is written meanwhile differs from them in the next pass.
        let (fleet, _) = Fleet::load_with_keys(path)?;
        apply::check_keys(&fleet, path)?;
        apply::check_file(&fleet, &BTreeSet::new(), path)?;
        Ok(Self { fleet, bytes })
    }

    /// The file, and that of measured capacities.
    fn bytes(path: &Path, fleet: &Fleet) -> Vec<Option<Vec<u8>>> {
        let measured = fleet.measured_file(path);
        let files = [Some(path.to_owned()), measured].into_iter().flatten();
        files.map(|file| std::fs::read(file).ok()).collect()
    }
}

/// The plan that runs, and for which fleet it was made.
struct Planned {
    fleet: Fleet,
    problem: Problem,
    plan: Plan,
    document: Document,
    /// Names of jobs that would move if they did not run.
    waiting: Vec<String>,
    /// What was said of jobs that wait, by their names.
    said: BTreeMap<String, String>,
}

/// The same error again and again is tried less and less often.
#[derive(Default)]
struct Pause {
    error: String,
    time: Duration,
    until: Option<Instant>,
}

impl Pause {
    /// Whether it is a new error.
    fn after(&mut self, error: &str, interval: Duration) -> bool {
        let is_new = self.error != error;
        self.time = if is_new {
            interval
        } else {
            (self.time * 2).min(PAUSE_MAX)
        };
        error.clone_into(&mut self.error);
        self.until = Some(Instant::now() + self.time);
        is_new
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }
}

struct Controller<'a> {
    options: &'a Options,
    stop: &'a AtomicBool,
    log: Log,
    start: Instant,
    watch: Watch,
    file: File,
    planned: Option<Planned>,
    /// Jobs that this controller has seen in the file: number and name.
    placed: BTreeMap<u16, String>,
    /// When the last thing was lost whose jobs have not moved yet.
    lost: Option<Instant>,
    pause: Pause,
}

impl Controller<'_> {
    async fn pass(&mut self) {
        self.read();
        let path = &self.options.fleet;
        let limit = self.options.dead_after / 2;
        let looks = remote::look_at_all(&self.file.fleet, path, limit).await;
        let began = Instant::now();
        let (seen, links) = seen(&self.file.fleet, &looks);
        let now = self.start.elapsed();
        let changes = self.watch.see(now, &seen, &links);
        for change in changes {
            if change.is_loss() {
                self.lost.get_or_insert(began);
            }
            let mut text = change.to_string();
            if let Change::SwitchDown { switch, .. } = &change {
                text += &why(&self.file.fleet, &looks, switch);
            }
            self.log.forget();
            self.log.say(&Event::new("fleet", text));
            self.pause = Pause::default();
        }
        for look in &looks {
            if let Some(Look::Wrong(error)) = look {
                self.log.say_once("switch", &error.to_string());
            }
        }
        let is_settled = self.watch.is_settled(&seen, &links);
        if !is_settled || !self.pause.is_over() || self.stop.load(Ordering::Relaxed) {
            return;
        }
        let switches = looks
            .into_iter()
            .map(|it| it.and_then(Look::remote))
            .collect();
        if let Err(error) = self.work(switches).await {
            let is_new = self.pause.after(&error, self.options.interval);
            if is_new {
                let text = format!("{error}; tried again");
                self.log.say(&Event::new("error", text));
            }
        }
    }

    /// Reads the fleet's file again if it is another one.
    fn read(&mut self) {
        let path = &self.options.fleet;
        let bytes = File::bytes(path, &self.file.fleet);
        if bytes == self.file.bytes {
            return;
        }
        match File::load(path) {
            Ok(file) => {
                self.file = file;
                self.log.forget();
                self.pause = Pause::default();
                let text = format!("{}: read again", path.display());
                self.log.say(&Event::new("file", text));
            }
            Err(error) => {
                let text = format!("{error}; the fleet read before stays");
                self.log.say_once("file", &text);
            }
        }
    }

    /// Plans if it must, and makes the changes that may be made.
    async fn work(&mut self, switches: Vec<Option<Remote>>) -> Result<(), String> {
        let names = self.file.fleet.switches.iter().map(|it| it.name.clone());
        let names: Vec<_> = names.collect();
        let ids = self.file.fleet.jobs.iter().filter_map(|it| it.id);
        let states: Vec<_> = ids.map(|id| self.state(&switches, &names, id)).collect();
        self.replan(&states, &switches)?;
        let Some(planned) = &mut self.planned else {
            return Ok(());
        };
        let answers = |at: usize| switches[at].is_some();
        let watch = &self.watch;
        let mut wanted = Vec::new();
        for (at, tree) in trees(planned, &switches).into_iter().enumerate() {
            let name = &planned.fleet.jobs[at].name;
            let verdict = match &tree {
                Err(refusal) => match waits(&planned.fleet, name, refusal, answers, watch) {
                    Some(why) => Verdict::Waits(why),
                    None => continue,
                },
                Ok(tree) => match moves::verdict(&states[at], &tree.roles, answers, &names) {
                    Verdict::Waits(why) => Verdict::Waits(format!("job {name}: {why}")),
                    verdict @ Verdict::Go { .. } => verdict,
                },
            };
            match (verdict, tree) {
                (Verdict::Go { ends }, Ok(tree)) => {
                    planned.said.remove(name);
                    let mut it = Wanted::of(&planned.fleet, at, &planned.plan.jobs[at], tree);
                    it.is_ended = ends;
                    wanted.push(it);
                }
                (Verdict::Waits(why), _) if planned.said.get(name) != Some(&why) => {
                    self.log.say(&Event::new("waits", why.clone()));
                    planned.said.insert(name.clone(), why);
                }
                _ => {}
            }
        }
        let fleet = planned.fleet.clone();
        for (id, name) in self.gone(&fleet) {
            let state = self.state(&switches, &names, id);
            let mut reports = switches.iter().flatten().filter_map(|it| it.job(id));
            let is_tenants = reports.any(|it| it.tenant.is_some());
            if state.now.is_empty() || is_tenants {
                self.placed.remove(&id);
            } else if state.is_held() {
                let text = format!("job {name}: not in the file any more; it goes when it is idle");
                self.log.say_once("waits", &text);
            } else {
                wanted.push(Wanted::gone(name, id, state.is_busy));
            }
        }
        self.placed.extend(
            wanted
                .iter()
                .filter(|it| it.job.is_some())
                .map(|it| (it.id, it.name.clone())),
        );
        self.make(&fleet, wanted, switches).await
    }

    /// Jobs that were in the file.
    fn gone(&self, fleet: &Fleet) -> Vec<(u16, String)> {
        let is_there = |id: u16| fleet.jobs.iter().any(|it| it.id == Some(id));
        let gone = self.placed.iter().filter(|(id, _)| !is_there(**id));
        gone.map(|(id, name)| (*id, name.clone())).collect()
    }

    async fn make(
        &mut self,
        fleet: &Fleet,
        wanted: Vec<Wanted>,
        switches: Vec<Option<Remote>>,
    ) -> Result<(), String> {
        let work = Work::new(fleet, wanted, switches, Vec::new());
        let mut work = work.map_err(|error| error.to_string())?;
        if work.len() == 0 {
            self.pause = Pause::default();
            self.lost = None;
            return Ok(());
        }
        let began = self.lost.unwrap_or_else(Instant::now);
        let options = apply::Options {
            drain: DRAIN,
            end_running: false,
        };
        let made = work.carry_out(options).await;
        made.map_err(|error: ApplyError| error.to_string())?;
        let milliseconds = began.elapsed().as_secs_f64() * 1e3;
        let text = work.summary();
        let since = match self.lost {
            Some(_) => "after the loss was seen",
            None => "in all",
        };
        let text = format!("{text}; {milliseconds:.0} ms {since}");
        let mut event = Event::new("changes", text);
        event.milliseconds = Some(milliseconds);
        self.log.say(&event);
        self.pause = Pause::default();
        self.lost = None;
        Ok(())
    }

    /// What switches report of a job.
    fn state(&self, switches: &[Option<Remote>], names: &[String], id: u16) -> State {
        let now = apply::now(switches, id);
        let reports = switches.iter().flatten().filter_map(|it| it.job(id));
        let is_busy = reports.into_iter().any(|it| it.phase != JobPhase::Idle);
        let ground = Seeing {
            watch: &self.watch,
            names,
            switches,
        };
        State {
            is_busy,
            broken: moves::broken(&now, names, &ground),
            now,
        }
    }

    /// Plans, if the fleet is another one or a job that was held is idle.
    fn replan(&mut self, states: &[State], switches: &[Option<Remote>]) -> Result<(), String> {
        let mut fleet = effective(&self.file.fleet, &self.watch);
        tiers::learn(&mut fleet, |at| fabric(switches, at));
        let is_held = |name: &str| {
            let at = fleet.jobs.iter().position(|it| it.name == name);
            at.is_some_and(|at| states[at].is_held())
        };
        let why = match &self.planned {
            None => "the first",
            Some(it) if it.fleet != fleet => "the fleet is another one",
            Some(it) if it.waiting.iter().any(|name| !is_held(name)) => {
                "a job that was to move is idle"
            }
            Some(_) => return Ok(()),
        };
        let path = &self.options.fleet;
        let problem = fleet.problem(path).map_err(|error| error.to_string())?;
        let options = tally_planner::Options {
            shape: Shape::Fabric,
            ..tally_planner::Options::default()
        };
        let held = (0..states.len()).filter(|&at| states[at].is_held());
        let held: Vec<_> = held.collect();
        // A plan with a name that is not in the file any more is none to follow.
        let before = self.planned.as_ref().and_then(|it| {
            let plan = it.document.plan(path, &problem.topology).ok()?;
            let names = it.document.jobs.iter().map(|job| job.name.clone());
            Some((plan, names.collect::<Vec<_>>()))
        });
        let name = |at: &usize| fleet.jobs[*at].name.clone();
        let (plan, moved, waiting) = match before {
            None => {
                let plan = plan(&problem, Algorithm::Tally, &options);
                let all = (0..fleet.jobs.len()).collect::<Vec<_>>();
                (plan.map_err(|error| error.to_string())?, all, Vec::new())
            }
            Some((before, names)) => {
                let it = replan_holding(&problem, &before, &names, &held, &options);
                let it = it.map_err(|error| error.to_string())?;
                (it.plan, it.moved, it.held)
            }
        };
        let wrong = |fault: String| format!("the plan is wrong, which is a bug: {fault}");
        check(&problem, &plan).map_err(|fault| wrong(fault.to_string()))?;
        rules::check(&problem, &plan).map_err(|broken| wrong(broken.to_string()))?;
        let document = Document::of(&problem, &plan, fleet.unit);
        let moved: Vec<_> = moved.iter().map(name).collect();
        let moved = match &moved[..] {
            [] => "no job has another tree".to_owned(),
            moved => format!("other trees: {}", moved.join(", ")),
        };
        let level = crate::show::rate(document.level);
        let text = format!("{why}; level {level} {}; {moved}", fleet.unit);
        self.log.say(&Event::new("plan", text));
        self.planned = Some(Planned {
            waiting: waiting.iter().map(name).collect(),
            fleet,
            problem,
            plan,
            document,
            said: BTreeMap::new(),
        });
        Ok(())
    }
}

/// What switches say, and which links there are.
fn seen<'a>(fleet: &'a Fleet, looks: &'a [Option<Look>]) -> (Vec<Seen<'a>>, Vec<Pair>) {
    let has_control = |name: &str| {
        let mut switches = fleet.switches.iter();
        switches.any(|it| it.name == name && it.control.is_some())
    };
    let mut seen = Vec::new();
    for (switch, look) in fleet.switches.iter().zip(looks) {
        let Some(look) = look else { continue };
        seen.push(Seen {
            name: &switch.name,
            links: match look {
                Look::Answer(remote) => Some(&remote.report.fabric[..]),
                Look::Silent(_) | Look::Wrong(_) => None,
            },
            is_unknown: matches!(look, Look::Wrong(_)),
        });
    }
    let links = fleet.links.iter().map(|it| &it.between);
    let links = links.filter(|[a, b]| has_control(a) && has_control(b));
    let mut links: Vec<_> = links.map(|[a, b]| pair(a, b)).collect();
    links.sort();
    links.dedup();
    (seen, links)
}

/// Why a switch does not answer.
fn why(fleet: &Fleet, looks: &[Option<Look>], switch: &str) -> String {
    let at = fleet.switches.iter().position(|it| it.name == switch);
    match at.and_then(|at| looks[at].as_ref()) {
        Some(Look::Silent(why)) => format!("; {why}"),
        _ => String::new(),
    }
}

/// The links that a switch reports; none if it does not answer.
fn fabric(switches: &[Option<Remote>], at: usize) -> &[FabricLinkReport] {
    let remote = switches[at].as_ref();
    remote.map_or(&[], |it| &it.report.fabric)
}

/// The tree of each job, or why it has none. Trees with which a switch would sum more than it can
/// are none.
fn trees(planned: &Planned, switches: &[Option<Remote>]) -> Vec<Result<JobTree, Refusal>> {
    let links = |at: usize| fabric(switches, at);
    let Planned {
        fleet,
        problem,
        plan,
        ..
    } = planned;
    let jobs = problem.jobs.iter().zip(&plan.jobs).zip(&fleet.jobs);
    let mut trees: Vec<_> = jobs
        .map(|((job, planned), spec)| {
            roles::only_share(job, planned)?;
            roles::tree(
                &problem.topology,
                job,
                planned,
                spec.parameter_servers,
                links,
            )
        })
        .collect();
    let none = JobTree {
        roles: Vec::new(),
        workers: Vec::new(),
        sums: Vec::new(),
    };
    let all: Vec<_> = trees
        .iter()
        .map(|it| it.as_ref().unwrap_or(&none).clone())
        .collect();
    if let Err(refusal) = roles::check_capacity(problem, plan, &all) {
        let Refusal::Capacity { job, .. } = &refusal else {
            return trees;
        };
        if let Some(at) = problem.jobs.iter().position(|it| it.name == *job) {
            trees[at] = Err(refusal);
        }
    }
    trees
}

/// Why a job has no tree now. `None`: because of a switch that may answer again before it is down.
fn waits(
    fleet: &Fleet,
    job: &str,
    refusal: &Refusal,
    answers: impl Fn(usize) -> bool,
    watch: &Watch,
) -> Option<String> {
    if let Refusal::Link { switch, .. } = refusal
        && let Some(at) = fleet.switches.iter().position(|it| it.name == *switch)
        && !answers(at)
    {
        if fleet.switches[at].control.is_none() {
            let text = format!("job {job}: switch {switch} of its tree has no `control`");
            return Some(text);
        }
        let text = format!("job {job}: switch {switch} of its tree does not answer");
        return watch.is_down(switch).then_some(text);
    }
    Some(refusal.to_string())
}

/// The fleet without what is down.
fn effective(fleet: &Fleet, watch: &Watch) -> Fleet {
    let mut fleet = fleet.clone();
    for switch in &mut fleet.switches {
        if watch.is_down(&switch.name) {
            switch.capacity = 0.0;
        }
    }
    for link in &mut fleet.links {
        let [a, b] = &link.between;
        if watch.is_dead(a) || watch.is_dead(b) || watch.is_link_down(&pair(a, b)) {
            link.rate = 0.0;
        }
    }
    fleet
}

/// What a job's tree stands on, as it was seen.
struct Seeing<'a> {
    watch: &'a Watch,
    names: &'a [String],
    switches: &'a [Option<Remote>],
}

impl Ground for Seeing<'_> {
    fn is_dead(&self, switch: &str) -> bool {
        self.watch.is_dead(switch)
    }

    fn is_link_down(&self, a: &str, b: &str) -> bool {
        self.watch.is_link_down(&pair(a, b))
    }

    fn answers(&self, switch: &str) -> Option<usize> {
        let at = self.names.iter().position(|it| it == switch)?;
        self.switches[at].is_some().then_some(at)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_job_waits_without_a_word_only_for_a_switch_that_may_answer_soon() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/fleet.json");
        let (mut fleet, _) = Fleet::load(&path).unwrap();
        let refusal = Refusal::Link {
            job: "vision".to_owned(),
            switch: "leaf1".to_owned(),
            other: "spine1".to_owned(),
            way: "",
            links: "none".to_owned(),
        };
        let limit = Duration::from_secs(1);
        let mut watch = Watch::new(limit, limit);
        let why = |fleet: &Fleet, answers: bool, watch: &Watch| {
            waits(fleet, "vision", &refusal, |_| answers, watch)
        };
        assert_eq!(why(&fleet, false, &watch), None);
        assert_eq!(why(&fleet, true, &watch), Some(refusal.to_string()));
        let silent = [Seen {
            name: "leaf1",
            links: None,
            is_unknown: false,
        }];
        for seconds in 1..4 {
            watch.see(limit * seconds, &silent, &[]);
        }
        let text = why(&fleet, false, &watch).unwrap();
        assert_eq!(text, "job vision: switch leaf1 of its tree does not answer");
        fleet.switches[0].control = None;
        let text = why(&fleet, false, &Watch::new(limit, limit)).unwrap();
        assert!(text.ends_with("has no `control`"), "{text}");
    }
}
