//! What each command does.

mod etcd;

use crate::apply::{self, ApplyError};
use crate::args::{
    ApplyArguments, Arguments, Command, Example, PlanArguments, RunArguments, Source,
};
use crate::capacity;
use crate::daemon::{self, StartError};
use crate::document::Document;
use crate::explain;
use crate::fleet::{Fleet, Unit};
use crate::jobs::JobError;
use crate::location::Location;
use crate::remote::RemoteError;
use crate::store::{self, StoreError, Stored};
use crate::{outcome, picture, show, status};
use etcd::stored;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tally_api::client::ConnectError;
use tally_config::ConfigError;
use tally_planner::check::{Fault, check};
use tally_planner::{Algorithm, Options, Plan, Problem, Shape, examples, plan, replan, rules};
use tally_program::Exit;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file does not fit.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no plan.
    #[error(transparent)]
    Planner(#[from] tally_planner::Error),
    /// A plan is wrong.
    #[error("{}: {fault}", path.display())]
    Fault {
        /// The plan's file.
        path: PathBuf,
        /// What is wrong.
        fault: Fault,
    },
    /// A plan of ours is wrong.
    #[error("{algorithm}: the plan is wrong, which is a bug: {fault}")]
    Bug {
        /// Who made it.
        algorithm: String,
        /// What is wrong.
        fault: String,
    },
    /// A job that the fleet does not have.
    #[error("job {found}: not in the fleet, which has {names}")]
    Job {
        /// The name given.
        found: String,
        /// The names there are.
        names: String,
    },
    /// A plan for other jobs.
    #[error("{}: its jobs are {found}; those of the fleet are {expected}", path.display())]
    Jobs {
        /// The plan's file.
        path: PathBuf,
        /// Names in the plan.
        found: String,
        /// Names in the fleet.
        expected: String,
    },
    /// Switches do not follow a plan, and are as they were.
    #[error("{0}; nothing is changed")]
    Unchanged(ApplyError),
    /// Switches do not follow a plan, or do not say whether.
    #[error(transparent)]
    Apply(ApplyError),
    /// Switches report something else than the plan.
    #[error("{}: not all switches report this plan; `apply` makes them", path.display())]
    Differs {
        /// The plan's file.
        path: PathBuf,
    },
    /// A job is not taken.
    #[error(transparent)]
    Stored(#[from] JobError),
    /// The file of a key.
    #[error("{0}")]
    Key(String),
    /// A file in place of etcd.
    #[error("{}: a file, expected etcd://HOST:PORT[,…][/PREFIX]; a fleet in a file is changed there", path.display())]
    NotEtcd {
        /// The file.
        path: PathBuf,
    },
    /// No controller has planned yet.
    #[error("{location}: no plan is kept there; `tally-controller run {location}` makes one")]
    NoPlan {
        /// Where.
        location: String,
    },
    /// Where the fleet is.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A controller that runs does not begin.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The machine gives no runtime.
    #[error("no runtime: {0}")]
    Runtime(io::Error),
    /// What was asked for cannot be written.
    #[error("{path}: {error}")]
    Write {
        /// Where to.
        path: String,
        /// The kernel's reason.
        error: io::Error,
    },
}

impl Failure {
    /// The program's exit code.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Config(ConfigError::Read { .. }) | Self::Write { .. } => Exit::File,
            Self::Config(_) | Self::Job { .. } | Self::Jobs { .. } => Exit::Usage,
            Self::Start(StartError::DeadAfter { .. }) => Exit::Usage,
            Self::Start(StartError::Listen(_) | StartError::Metrics(_)) => Exit::System,
            Self::Start(StartError::Store(error))
            | Self::Store(error)
            | Self::Stored(JobError::Store(error)) => exit_of_store(error),
            Self::NotEtcd { .. } | Self::Key(_) => Exit::Usage,
            Self::Stored(_) | Self::NoPlan { .. } => Exit::Failure,
            Self::Unchanged(error) | Self::Apply(error) => exit_of(error),
            Self::Runtime(_) => Exit::System,
            Self::Planner(_) | Self::Fault { .. } | Self::Bug { .. } | Self::Differs { .. } => {
                Exit::Failure
            }
        }
    }
}

/// The code of an error of switches.
const fn exit_of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::Config(ConfigError::Read { .. }) | StoreError::File { .. } => Exit::File,
        StoreError::Config(_) | StoreError::HalfIdentity => Exit::Usage,
        StoreError::Unreachable { .. } => Exit::System,
        StoreError::Refused { .. } | StoreError::NoFleet { .. } | StoreError::Led => Exit::Failure,
    }
}

fn exit_of(error: &ApplyError) -> Exit {
    match error {
        ApplyError::Config(_) => Exit::Usage,
        ApplyError::Drained { error, .. } => exit_of(error),
        ApplyError::Remote(error) | ApplyError::Stopped { error, .. } => match error {
            RemoteError::Connect {
                error: ConnectError::File { .. },
                ..
            } => Exit::File,
            RemoteError::Connect { .. } => Exit::System,
            RemoteError::Name { .. }
            | RemoteError::Version { .. }
            | RemoteError::Refused { .. }
            | RemoteError::Call { .. } => Exit::Failure,
        },
        _ => Exit::Failure,
    }
}

/// Does what was asked.
///
/// # Errors
/// Why it cannot.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Plan(arguments) => run_plan(arguments),
        Command::Check { fleet, plan } => run_check(fleet, plan),
        Command::Apply(arguments) => run_apply(arguments),
        Command::Run(arguments) => run_daemon(arguments),
        Command::Capacity {
            fleet,
            seconds,
            write,
            json,
        } => run_capacity(fleet, *seconds, *write, *json),
        Command::Status { fleet, plan, json } => run_status(fleet, plan.as_deref(), *json),
        Command::Explain { job, source } => run_explain(job, source),
        Command::Picture {
            source,
            plan,
            output,
        } => run_picture(source, plan.as_deref(), output),
        Command::Show { what, fleet, json } => etcd::show(*what, fleet, *json),
        Command::Import { file, to, replace } => etcd::import(file, to, *replace),
        Command::Export { from, with_keys } => etcd::export(from, *with_keys),
        Command::Submit(arguments) => etcd::submit(arguments),
        Command::Cancel { fleet, job } => etcd::cancel(fleet, job),
        Command::Example { name } => {
            let (fleet, _) = example(*name);
            print(&json(&fleet))
        }
        Command::Schema => {
            let title = "Fleet of tally-controller";
            print(&tally_schema::json_schema::of::<Fleet>(title))
        }
    }
}

fn run_plan(arguments: &PlanArguments) -> Result<(), Failure> {
    if arguments.dry_run {
        return run_dry(arguments);
    }
    let (fleet, problem) = load(&arguments.source)?;
    let options = arguments.options();
    if let Some(before) = &arguments.before {
        return run_replan(&fleet, &problem, before, &options, arguments.json);
    }
    let algorithms = match (&arguments.algorithm[..], arguments.source.example) {
        ([], None) => vec![Algorithm::Tally],
        ([], Some(example)) => compared(example),
        (given, _) => given.to_vec(),
    };
    let mut plans = Vec::new();
    for algorithm in algorithms {
        let plan = plan(&problem, algorithm, &options)?;
        plans.push(Document::of(
            &problem,
            &checked(&problem, plan, options.shape)?,
            fleet.unit,
        ));
    }
    if arguments.json {
        return match &plans[..] {
            [one] => print(&json(one)),
            all => print(&json(&all)),
        };
    }
    let mut text = String::new();
    if plans.len() > 1 {
        text += &show::comparison(&plans);
        text += "\n";
    }
    let all: Vec<_> = plans.iter().map(show::plan).collect();
    print(&(text + &all.join("\n")))
}

/// Plans from a plan that runs, and says what moves.
fn run_replan(
    fleet: &Fleet,
    problem: &Problem,
    before: &Path,
    options: &Options,
    is_json: bool,
) -> Result<(), Failure> {
    let (document, running) = Document::load(before, &problem.topology)?;
    let names: Vec<_> = document.jobs.iter().map(|it| it.name.clone()).collect();
    let replanned = replan(problem, &running, &names, options)?;
    let plan = checked(problem, replanned.plan, options.shape)?;
    let new = Document::of(problem, &plan, fleet.unit);
    if is_json {
        return print(&json(&new));
    }
    let moved: Vec<_> = replanned
        .moved
        .iter()
        .map(|&at| &problem.jobs[at].name)
        .collect();
    let gone = names
        .iter()
        .filter(|name| !problem.jobs.iter().any(|job| job.name == **name));
    let mut text = show::moves(&document, &new, &moved);
    for name in gone {
        text += &format!("{name} ends\n");
    }
    print(&format!("{text}\n{}", show::plan(&new)))
}

/// What a controller would do now, from the plan that it keeps.
fn run_dry(arguments: &PlanArguments) -> Result<(), Failure> {
    // An example has no plan that is kept: clap refuses it.
    let location = arguments.source.fleet.as_ref().expect("a fleet");
    let Stored { fleet, problem } = stored(location, true)?;
    let kept = etcd::kept_plan(location)?;
    let (names, running) = match &kept {
        Some(document) => document.known(&problem.topology),
        None => (Vec::new(), Plan::none()),
    };
    let options = Options {
        shape: Shape::Fabric,
        ..Options::default()
    };
    let replanned = replan(&problem, &running, &names, &options)?;
    let plan = checked(&problem, replanned.plan, options.shape)?;
    let new = Document::of(&problem, &plan, fleet.unit);
    let prepared = apply::prepare((&fleet, &problem), location.path(), &plan);
    let outcome = runtime()?.block_on(prepared).map_err(failed)?.outcome(true);
    if arguments.json {
        return print(&json(&outcome));
    }
    let moved = replanned.moved.iter();
    let moved: Vec<_> = moved.map(|&at| &problem.jobs[at].name).collect();
    let moves = match &kept {
        Some(before) => show::moves(before, &new, &moved) + "\n",
        None => String::new(),
    };
    print(&format!("{moves}{}", outcome::text(&outcome)))
}

fn run_check(fleet: &Location, path: &Path) -> Result<(), Failure> {
    let Stored { fleet, problem } = stored(fleet, false)?;
    let (document, plan) = plan_of(path, &problem)?;
    check(&problem, &plan).map_err(|fault| Failure::Fault {
        path: path.to_owned(),
        fault,
    })?;
    print(&format!(
        "{} jobs, {} {}: feasible\n",
        document.jobs.len(),
        show::rate(document.level),
        fleet.unit
    ))
}

fn run_apply(arguments: &ApplyArguments) -> Result<(), Failure> {
    let path = arguments.fleet.path();
    let Stored { fleet, problem } = stored(&arguments.fleet, true)?;
    let plan = feasible(&arguments.plan, &problem)?;
    let runtime = runtime()?;
    let prepared = runtime.block_on(apply::prepare((&fleet, &problem), path, &plan));
    let mut work = prepared.map_err(failed)?;
    let outcome = work.outcome(arguments.dry_run);
    if !arguments.json {
        print(&outcome::text(&outcome))?;
    }
    if !arguments.dry_run {
        let options = apply::Options {
            drain: arguments.drain,
            end_running: arguments.end_running,
        };
        runtime.block_on(work.carry_out(options)).map_err(failed)?;
    }
    if arguments.json {
        print(&json(&outcome))
    } else {
        print(&outcome::end(&outcome))
    }
}

fn failed(error: ApplyError) -> Failure {
    match error {
        ApplyError::Config(error) => Failure::Config(error),
        error if error.is_before_changes() => Failure::Unchanged(error),
        error => Failure::Apply(error),
    }
}

fn run_daemon(arguments: &RunArguments) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends it at once.
        let second = signal_hook::flag::register_conditional_shutdown;
        second(signal, Exit::Interrupted.code().into(), Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(Failure::Runtime)?;
    }
    Ok(runtime()?.block_on(daemon::run(arguments, &stop))?)
}

fn run_capacity(
    location: &Location,
    time: Duration,
    write: bool,
    is_json: bool,
) -> Result<(), Failure> {
    let path = location.path();
    let runtime = runtime()?;
    let (fleet, known) = runtime.block_on(store::load_to_measure(location))?;
    let file = match location {
        Location::File(_) => fleet.measured_file(path),
        Location::Etcd(_) => None,
    };
    if write && file.is_none() && matches!(location, Location::File(_)) {
        let allowed = "a file for what is measured, because of --write";
        return Err(ConfigError::value(path, "measured", "none", allowed).into());
    }
    let observed = runtime.block_on(capacity::observe(&fleet, path, time));
    let observed = observed.map_err(|error| Failure::Apply(error.into()))?;
    let merged = capacity::merged(&fleet, &observed, known.as_ref());
    if is_json {
        print(&json(&merged))?;
    } else {
        print(&capacity::text(&fleet, &observed))?;
    }
    match (location, file) {
        (Location::Etcd(at), _) if write => {
            Ok(runtime.block_on(store::write_measured(at, &merged))?)
        }
        (Location::File(_), Some(file)) if write => tally_config::write_whole(&file, json(&merged))
            .map_err(|error| Failure::Write {
                path: file.display().to_string(),
                error,
            }),
        _ => Ok(()),
    }
}

fn run_status(location: &Location, plan: Option<&Path>, is_json: bool) -> Result<(), Failure> {
    let Stored { fleet, problem } = stored(location, false)?;
    let planned = plan.map(|it| feasible(it, &problem)).transpose()?;
    let read = status::status((&fleet, &problem), location.path(), planned.as_ref());
    let found = runtime()?.block_on(read).map_err(Failure::Apply)?;
    if is_json {
        print(&json(&found))?;
    } else {
        print(&status::text(&found))?;
    }
    match plan {
        Some(path) if found.follows == Some(false) => Err(Failure::Differs {
            path: path.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// A plan's file that passes the check.
fn feasible(path: &Path, problem: &Problem) -> Result<Plan, Failure> {
    let (_, plan) = plan_of(path, problem)?;
    match check(problem, &plan) {
        Ok(()) => Ok(plan),
        Err(fault) => Err(Failure::Fault {
            path: path.to_owned(),
            fault,
        }),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(Failure::Runtime)
}

fn run_explain(job: &str, source: &Source) -> Result<(), Failure> {
    let (fleet, problem) = load(source)?;
    let at = problem.jobs.iter().position(|it| it.name == job);
    let at = at.ok_or_else(|| Failure::Job {
        found: job.to_owned(),
        names: names_of(&problem),
    })?;
    let explanation = explain::explain(&fleet, &problem, at, &Options::default())?;
    print(&explain::text(&fleet, &problem, at, &explanation))
}

fn run_picture(source: &Source, path: Option<&Path>, output: &Path) -> Result<(), Failure> {
    let (fleet, problem) = load(source)?;
    let plan = match path {
        Some(path) => plan_of(path, &problem)?.1,
        None => plan(&problem, Algorithm::Tally, &Options::default())?,
    };
    let svg = picture::svg(&problem, Some(&plan), fleet.unit);
    if output == Path::new("-") {
        return print(&svg);
    }
    tally_config::write_whole(output, svg).map_err(|error| Failure::Write {
        path: output.display().to_string(),
        error,
    })
}

/// A plan's file, for these jobs.
fn plan_of(path: &Path, problem: &Problem) -> Result<(Document, Plan), Failure> {
    let (document, plan) = Document::load(path, &problem.topology)?;
    let found: Vec<_> = document.jobs.iter().map(|it| it.name.as_str()).collect();
    let expected: Vec<_> = problem.jobs.iter().map(|it| it.name.as_str()).collect();
    if found != expected {
        return Err(Failure::Jobs {
            path: path.to_owned(),
            found: found.join(", "),
            expected: expected.join(", "),
        });
    }
    Ok((document, plan))
}

fn names_of(problem: &Problem) -> String {
    let names: Vec<_> = problem.jobs.iter().map(|it| it.name.as_str()).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

fn load(source: &Source) -> Result<(Fleet, Problem), Failure> {
    match (&source.fleet, source.example) {
        (Some(location), _) => {
            let Stored { fleet, problem } = stored(location, false)?;
            Ok((fleet, problem))
        }
        (None, Some(name)) => Ok(example(name)),
        (None, None) => unreachable!("clap asks for one of them"),
    }
}

fn example(name: Example) -> (Fleet, Problem) {
    let problem = match name {
        Example::GridFig1 => examples::grid_fig1(),
        Example::InartFig1 => examples::inart_fig1(),
    };
    (Fleet::of(&problem, Unit::Gigabit), problem)
}

/// What an example's paper compares, and ours.
fn compared(example: Example) -> Vec<Algorithm> {
    let theirs = match example {
        Example::GridFig1 => [Algorithm::Tor, Algorithm::GridExact],
        Example::InartFig1 => [Algorithm::TorWhole, Algorithm::InartExact],
    };
    [Algorithm::None]
        .into_iter()
        .chain(theirs)
        .chain([Algorithm::Tally])
        .collect()
}

/// No plan leaves without its check.
fn checked(problem: &Problem, plan: Plan, shape: Shape) -> Result<Plan, Failure> {
    let feasible = check(problem, &plan).map_err(|fault| fault.to_string());
    let is_for_switches = plan.algorithm == Algorithm::Tally.name() && shape == Shape::Fabric;
    let obeys = feasible.and_then(|()| match is_for_switches {
        true => rules::check(problem, &plan).map_err(|broken| broken.to_string()),
        false => Ok(()),
    });
    match obeys {
        Ok(()) => Ok(plan),
        Err(fault) => Err(Failure::Bug {
            algorithm: plan.algorithm,
            fault,
        }),
    }
}

fn json(value: &impl serde::Serialize) -> String {
    // Types of ours, which have no map with other keys than text.
    let text = serde_json::to_string_pretty(value);
    text.expect("a value of ours is JSON") + "\n"
}

/// Prints. A reader that has gone is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Write {
            path: "standard output".to_owned(),
            error,
        }),
        _ => Ok(()),
    }
}
