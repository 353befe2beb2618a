//! The command line of `tally-controller`.

use crate::location::Location;
use crate::store::{LOCK, Names, PLAN};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tally_planner::{Algorithm, Element, Options, Shape};
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
        /// The fleet: a file, or `etcd://HOST:PORT[,…][/PREFIX]`
        fleet: Location,
        /// The plan: what `plan --json` printed
        plan: PathBuf,
    },
    /// Makes running switches follow a plan
    Apply(ApplyArguments),
    /// Watches switches, links and the fleet; plans again and applies after each change
    Run(RunArguments),
    /// Measures what running switches can sum, from what they count while jobs run
    Capacity {
        /// The fleet, with `switches[].control`: a file, or `etcd://HOST:PORT[,…][/PREFIX]`
        fleet: Location,
        /// How long to look
        #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
        seconds: Duration,
        /// Writes what was measured to the file that `measured` of the fleet names, or to etcd
        #[arg(long)]
        write: bool,
        /// Prints one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Shows what running switches do for the jobs of a fleet, beside a plan
    Status {
        /// The fleet: a file, or `etcd://HOST:PORT[,…][/PREFIX]`
        fleet: Location,
        /// The plan: what `plan --json` printed; for etcd, by default the one that is kept there
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
    /// Shows a fleet, its jobs, or the plan that a controller keeps
    Show {
        /// What
        what: Shown,
        /// The fleet: a file, or `etcd://HOST:PORT[,…][/PREFIX]`
        fleet: Location,
        /// Prints one JSON document, without keys
        #[arg(long)]
        json: bool,
    },
    /// Brings the fleet of a file into etcd
    Import {
        /// The file
        file: PathBuf,
        /// `etcd://HOST:PORT[,…][/PREFIX]`
        to: Location,
        /// Takes out jobs that are not in the file
        #[arg(long)]
        replace: bool,
    },
    /// Prints a fleet of etcd as a file
    Export {
        /// `etcd://HOST:PORT[,…][/PREFIX]`
        from: Location,
        /// With the keys of jobs: to import it again
        #[arg(long)]
        with_keys: bool,
    },
    /// Adds a job to a fleet in etcd; the controller gives it a tree
    Submit(SubmitArguments),
    /// Takes a job out of a fleet in etcd; the controller removes it when it is idle
    Cancel {
        /// `etcd://HOST:PORT[,…][/PREFIX]`
        fleet: Location,
        /// The job
        job: String,
    },
    /// Prints a worked example as a file
    Example {
        /// Which
        name: Example,
    },
    /// Prints the JSON Schema of a fleet's file
    Schema,
}

/// What `show` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shown {
    /// Switches, links, hosts and parameter servers
    Topology,
    /// Jobs, with what the plan has for them
    Jobs,
    /// The plan that switches follow
    Plan,
}

/// Options of `submit`.
#[derive(Clone, Debug, Args)]
pub struct SubmitArguments {
    /// `etcd://HOST:PORT[,…][/PREFIX]`
    pub fleet: Location,

    /// Name of the job
    pub job: String,

    /// Its hosts, separated by commas, in the order of their ranks
    #[arg(long, value_name = "HOST,…", value_delimiter = ',', required = true)]
    pub workers: Vec<String>,

    /// Bytes of an all-reduce: the size of the model's gradients
    #[arg(long, value_name = "BYTES")]
    pub bytes: u64,

    /// Their type: f32, i32, f16 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = element)]
    pub element: Element,

    /// Share of a bottleneck relative to other jobs
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    pub weight: f64,

    /// Its number at the switches; by default the smallest free one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub id: Option<u16>,

    /// File with its key, which only its owner can read; by default a random key is made
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// Slots that it has for certain at each switch
    #[arg(long, value_name = "N")]
    pub min_slots: Option<u32>,

    /// Slots that it has at most at each switch
    #[arg(long, value_name = "N")]
    pub max_slots: Option<u32>,

    /// Its parameter servers at each switch
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub parameter_servers: u8,

    /// Replaces the job of that name
    #[arg(long)]
    pub replace: bool,

    /// Prints the job as JSON, with its key
    #[arg(long)]
    pub json: bool,
}

fn element(text: &str) -> Result<Element, String> {
    match text {
        "f32" => Ok(Element::F32),
        "i32" => Ok(Element::I32),
        "f16" => Ok(Element::F16),
        "bf16" => Ok(Element::Bf16),
        _ => Err("expected f32, i32, f16 or bf16".to_owned()),
    }
}

/// Where the fleet is.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Source {
    /// The fleet: a file, or `etcd://HOST:PORT[,…][/PREFIX]`
    pub fleet: Option<Location>,
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

    /// From the plan that a controller keeps: shows which jobs would move, and the changes of
    /// switches
    #[arg(long, conflicts_with_all = ["algorithm", "example", "before", "trees"])]
    pub dry_run: bool,

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
    /// The fleet, with `switches[].control`, and `id` and `key_file` of its jobs; or
    /// `etcd://HOST:PORT[,…][/PREFIX]`
    pub fleet: Location,

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
    /// The fleet: a file, or `etcd://HOST:PORT[,…][/PREFIX]`
    ///
    /// All switches need `control`, all jobs `id` and a key. The fleet is read again when it
    /// changes. A job that is taken out of it is removed from the switches when it is idle.
    pub fleet: Location,

    /// Time between two looks at all switches, in milliseconds
    #[arg(long, value_name = "MS", default_value = "250", value_parser = milliseconds)]
    pub interval: Duration,

    /// Time without an answer after which a switch is down, in milliseconds; for links without a
    /// hello, too. At least two intervals
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = milliseconds)]
    pub dead_after: Duration,

    /// For a fleet in a file: lock of the one controller that works; others wait as standby
    ///
    /// By default the fleet's file with `.lock` at its end.
    #[arg(long, value_name = "FILE")]
    pub lock: Option<PathBuf>,

    /// For a fleet in a file: plan that is followed, written before each change of switches
    ///
    /// By default the fleet's file with `.plan` at its end.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,

    /// For a fleet in etcd: time after which another controller takes over from one that says
    /// nothing, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub lease: u64,

    /// For a fleet in etcd: name of this controller, by default HOST:PID
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Time of one measurement of the switches' load, in seconds. After three that agree on another
    /// capacity than the plan's, a plan is made with that
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = window)]
    pub load_window: f64,

    /// Address and port of metrics over HTTP (OpenMetrics). Everyone who reaches it may read them
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,

    /// Where hosts ask for their places in jobs
    #[command(flatten)]
    pub hosts: ListenArguments,

    /// Prints events as JSON, one a line
    #[arg(long)]
    pub json: bool,
}

/// A TCP port with mutual TLS.
#[derive(Clone, Debug, Args)]
pub struct ListenArguments {
    /// Address and port at which hosts ask for their places in jobs (`tally-agent join`)
    #[arg(long, value_name = "ADDRESS:PORT", requires_all = ["certificate", "key", "client_ca"])]
    pub listen: Option<SocketAddr>,

    /// Certificate of this controller for hosts, PEM
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub certificate: Option<PathBuf>,

    /// Key of the certificate, PEM; no other user may read it
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub key: Option<PathBuf>,

    /// Authority of the hosts' certificates, PEM. A host's certificate has its name in the fleet as
    /// DNS name
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub client_ca: Option<PathBuf>,
}

impl RunArguments {
    /// Names of files and of this controller.
    #[must_use]
    pub fn names(&self) -> Names {
        let own = || {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
            let host = host.unwrap_or_default();
            format!("{}:{}", host.trim_end(), std::process::id())
        };
        Names {
            lock: self.lock.clone().unwrap_or_else(|| self.fleet.beside(LOCK)),
            plan: self.plan.clone().unwrap_or_else(|| self.fleet.beside(PLAN)),
            controller: self.name.clone().unwrap_or_else(own),
            lease: Duration::from_secs(self.lease),
        }
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

fn window(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|it| (0.1..=3600.0).contains(it));
    number.ok_or_else(|| "expected 0.1 to 3600 seconds".to_owned())
}
