//! The command line of `tally-controller`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tally_planner::{Algorithm, Options};
use tally_program::exit::{self, Exit};

/// How it may end.
const EXITS: [Exit; 5] = [
    Exit::Done,
    Exit::Failure,
    Exit::Usage,
    Exit::File,
    Exit::System,
];

/// Plans which switches sum for which jobs of a fleet, and applies plans.
///
/// A fleet is a file: switches, links, hosts, parameter servers and jobs, by names. `apply` and
/// `run` change switches; besides them only `capacity` and `status` connect to them.
#[derive(Clone, Debug, Parser)]
#[command(name = "tally-controller", version = tally_program::VERSION, after_help = exit::help(&EXITS))]
pub struct Arguments {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Plans all jobs: trees, routes, rates, and what binds
    Plan(PlanArguments),
    /// Checks a plan: that it sums each gradient once and overloads nothing
    Check {
        /// The fleet
        fleet: PathBuf,
        /// The plan: what `plan --json` printed
        plan: PathBuf,
    },
    /// Makes running switches follow a plan
    Apply(ApplyArguments),
    /// Watches switches, links and the fleet; plans again and applies after each change
    Run(RunArguments),
    /// Measures what running switches can sum, from what they count while jobs run
    Capacity {
        /// The fleet, with `switches[].control`
        fleet: PathBuf,
        /// How long to look
        #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
        seconds: Duration,
        /// Writes what was measured to the file that `measured` of the fleet names
        #[arg(long)]
        write: bool,
        /// Prints one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Shows what running switches do for the jobs of a fleet, beside a plan
    Status {
        /// The fleet
        fleet: PathBuf,
        /// The plan: what `plan --json` printed
        plan: Option<PathBuf>,
        /// Prints one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Says what binds a job, and what one more core, link, switch or parameter server would bring
    Explain {
        /// The job
        job: String,
        /// Where the fleet is
        #[command(flatten)]
        source: Source,
    },
    /// Draws a fleet with the loads of a plan, as SVG
    Picture {
        /// Where the fleet is
        #[command(flatten)]
        source: Source,
        /// The plan: what `plan --json` printed; by default the one that `plan` makes
        #[arg(long, value_name = "FILE")]
        plan: Option<PathBuf>,
        /// The file to write; `-` is standard output
        #[arg(long, value_name = "FILE", default_value = "-")]
        output: PathBuf,
    },
    /// Prints a worked example as a file
    Example {
        /// Which
        name: Example,
    },
    /// Prints the JSON Schema of a fleet's file
    Schema,
}

/// Where the fleet is.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Source {
    /// The fleet's file
    pub fleet: Option<PathBuf>,
    /// A worked example in place of a file
    #[arg(long, value_name = "NAME")]
    pub example: Option<Example>,
}

/// Options of `plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArguments {
    /// Where the fleet is
    #[command(flatten)]
    pub source: Source,

    /// Algorithms, separated by commas; docs/PLANNING.md describes them
    ///
    /// By default tally; for an example, those that its paper compares, and tally.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = algorithm)]
    pub algorithm: Vec<Algorithm>,

    /// The plan that runs, what `plan --json` printed: jobs move only where they must
    #[arg(long, value_name = "FILE", conflicts_with_all = ["algorithm", "example"])]
    pub before: Option<PathBuf>,

    /// Most trees of a job in a plan of tally
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub trees: Option<u16>,

    /// Seed of the algorithms that round at random
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,

    /// Prints one JSON document: the plan, or a list of plans if there are several algorithms
    #[arg(long)]
    pub json: bool,
}

impl PlanArguments {
    /// For the planner.
    #[must_use]
    pub fn options(&self) -> Options {
        let all = Options::default();
        Options {
            seed: self.seed,
            trees: self.trees.map_or(all.trees, usize::from),
            ..all
        }
    }
}

/// Options of `apply`.
#[derive(Clone, Debug, Args)]
pub struct ApplyArguments {
    /// The fleet, with `switches[].control`, and `id` and `key_file` of its jobs
    pub fleet: PathBuf,

    /// The plan: what `plan --trees 1 --json` printed
    pub plan: PathBuf,

    /// Shows the changes without making them
    #[arg(long)]
    pub dry_run: bool,

    /// Time for running jobs to end before their trees change, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub drain: Duration,

    /// Ends jobs that still run after that time
    #[arg(long)]
    pub end_running: bool,

    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Options of `run`.
///
/// SIGINT and SIGTERM end it. Switches keep the roles that they have then.
#[derive(Clone, Debug, Args)]
pub struct RunArguments {
    /// The fleet, with `control` of all switches, and `id` and `key_file` of all jobs
    ///
    /// The file is read again when it changes. A job that is taken out of it is removed from the
    /// switches when it is idle.
    pub fleet: PathBuf,

    /// Time between two looks at all switches, in milliseconds
    #[arg(long, value_name = "MS", default_value = "250", value_parser = milliseconds)]
    pub interval: Duration,

    /// Time without an answer after which a switch is down, in milliseconds; for links without a
    /// hello, too. At least two intervals
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = milliseconds)]
    pub dead_after: Duration,

    /// Lock of the one controller that works; others with the same file wait as standby
    ///
    /// By default the fleet's file with `.lock` at its end.
    #[arg(long, value_name = "FILE")]
    pub lock: Option<PathBuf>,

    /// Plan that is followed: read at the start, and written before each change of switches
    ///
    /// By default the fleet's file with `.plan` at its end.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,

    /// Prints events as JSON, one a line
    #[arg(long)]
    pub json: bool,
}

impl RunArguments {
    /// The file of the lock.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.lock.clone().unwrap_or_else(|| self.beside(".lock"))
    }

    /// The plan's file.
    #[must_use]
    pub fn plan(&self) -> PathBuf {
        self.plan.clone().unwrap_or_else(|| self.beside(".plan"))
    }

    fn beside(&self, end: &str) -> PathBuf {
        let mut path = self.fleet.clone().into_os_string();
        path.push(end);
        path.into()
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds: Option<u64> = text.parse().ok();
    let milliseconds = milliseconds.filter(|it| (10..=600_000).contains(it));
    let milliseconds = milliseconds.map(Duration::from_millis);
    milliseconds.ok_or_else(|| "expected a number of milliseconds from 10 to 600000".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let allowed = || "expected a number of seconds from 0 to 86400".to_owned();
    let seconds: f64 = text.parse().map_err(|_| allowed())?;
    if (0.0..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(allowed())
    }
}

/// A worked example of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// GRID, figure 1: three switches, eight workers, one parameter server
    GridFig1,
    /// InArt, figure 1: two switches, six workers, two parameter servers
    InartFig1,
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    name.parse().map_err(|_| {
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        format!("expected one of {names}")
    })
}
