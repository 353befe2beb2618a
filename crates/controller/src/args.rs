//! The command line of `tally-controller`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tally_planner::{Algorithm, Options, Shape};
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
    /// Works on its own: plans, applies, and plans again when switches, links or jobs change
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

    /// Most trees of a job in a plan of tally; 1: trees that switches can make, for `apply`
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
            shape: match self.trees {
                Some(1) => Shape::Fabric,
                _ => Shape::Any,
            },
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
#[derive(Clone, Debug, Args)]
pub struct RunArguments {
    /// The fleet, with `switches[].control`, and `id` and `key_file` of its jobs; it is read again
    /// when it changes
    pub fleet: PathBuf,

    /// Time between two looks at the switches, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    pub interval: u64,

    /// What is missing for this time is down, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub dead_after: u64,

    /// File that the working controller locks; others wait for it. By default FLEET.lock
    #[arg(long, value_name = "FILE")]
    pub lock: Option<PathBuf>,

    /// Prints events as lines of JSON
    #[arg(long)]
    pub json: bool,
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
