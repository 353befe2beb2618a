//! `tally-perf demo`: the main job, from start to proof.
//!
//! Workers all-reduce real gradients, then a larger synthetic tensor, through a real switch. Every
//! worker's result is compared bit for bit with a reference that shares no code with Tally: a
//! Python program that computes the sum from the specification.
//!
//! With `--card` the job is on a simulated FPGA card beside the switch. In a last all-reduce the
//! card is killed: the job resumes in software.
//!
//! With `--dialect netreduce` the workers are a ring of RoCEv2 hosts, with a transport in software.
//!
//! With `--fabric` jobs have trees of switches: each leaf sums its workers, a spine the leaves.
//!
//! With `--racks` some racks have Tally's switch and others do not: a ring of both (Rina).
//!
//! With `--restart` the switch, the parameter server or both are killed and started again in the
//! middle of each synthetic all-reduce, which must be exact all the same.

mod fabric;
mod faults;
mod racks;
mod ring;
mod run;
mod summary;
mod workloads;

use anyhow::{Result, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use faults::{Restart, fits_card};
use run::{Row, run_one};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use tally_engine::PolicyName;
use tally_report::{Machine, Report};
use tally_schema::agent::report::PsReport;
use tally_schema::switch::report::Report as SwitchReport;
use tally_testkit::cluster::{Cluster, Cpus, Network, Spec};
use tally_testkit::fabric::Shape;
use tally_testkit::racks::RackSpec;
use tally_wire::part::is_count;
use workloads::workloads;

/// Time that a run may take, besides a second for each million of elements and worker.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of the demonstration.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Workers, 1 to 64
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,

    /// Elements of the synthetic tensor, with a suffix k, M or G; 0 for none [default: 4M, with
    /// --card, --fabric or --dialect
    /// netreduce 400k]
    #[arg(long, value_parser = parse_count)]
    elements: Option<u64>,

    /// Share of frames that each worker and the parameter server drop on purpose, each way, 0 to
    /// below 0.9
    #[arg(long, default_value_t = 0.0)]
    loss: f64,

    /// Protocol that the workers speak
    #[arg(long, value_enum, default_value = "native",
          conflicts_with_all = ["card", "parameter_servers", "policy", "slots", "payload", "window"])]
    dialect: Dialect,

    /// Parameter servers of the job, with --fabric of each switch, each for a part of the
    /// fragments: 1, 2, 4, 8 or 16
    #[arg(long, default_value_t = 1, value_name = "COUNT", conflicts_with_all = ["card"])]
    parameter_servers: u8,

    /// Policy of the switch
    #[arg(long, default_value_t, value_parser = policies())]
    policy: PolicyName,

    /// Process killed and started again in the middle of each synthetic all-reduce: switch, ps or
    /// both; with --fabric switches by name, as in leaf1,spine2 (needs root)
    #[arg(long, value_name = "WHAT")]
    restart: Option<String>,

    /// Fabric of switches, SPINESxLEAVESxWORKERS behind each leaf, in place of one switch; a job
    /// for each spine, which is the root of its tree; with --dialect netreduce one ring over 2 or
    /// more leaves and the first spine
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["card", "workers", "cores"])]
    fabric: Option<Shape>,

    /// Racks in the order of a ring (Rina), as in tally:2,plain,tally:4: with Tally's switch or
    /// without, and hosts of each [default: 2]; --restart switch kills that of the first one
    /// (needs root)
    #[arg(long, value_name = "RACKS", value_parser = parse_racks,
          conflicts_with_all = ["fabric", "card", "workers", "cores", "parameter_servers", "policy", "slots", "window",
                                "dialect", "network"])]
    racks: Option<RackList>,

    /// A simulated card for the job, killed in the middle of a last all-reduce
    #[arg(long, conflicts_with_all = ["restart"])]
    card: bool,

    /// Slots of the switch, a power of two [default: what its cache holds]
    #[arg(long)]
    slots: Option<u32>,

    /// Data cores of the switch, a power of two
    #[arg(long, default_value_t = 1)]
    cores: usize,

    /// Network between the processes [default: namespaces for root, memif otherwise]
    #[arg(long, value_enum)]
    network: Option<Network>,

    /// Payload of a fragment in bytes, a multiple of 64 up to 8192
    #[arg(long, default_value_t = 1024)]
    payload: u16,

    /// Window of a worker, in fragments [default: 256, with --card 64, with --fabric 128]
    #[arg(long)]
    window: Option<u16>,

    /// Random seed of the synthetic data and the injected loss
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Folder of the real gradients
    #[arg(long, default_value = "worker-agent/gradients")]
    gradients: PathBuf,

    /// Reference program
    #[arg(long, default_value = "worker-agent/reference/check.py")]
    reference: PathBuf,
}

/// The racks of `--racks`.
#[derive(Clone, Debug)]
struct RackList(Vec<RackSpec>);

fn parse_racks(text: &str) -> Result<RackList, String> {
    racks::parse(text).map(RackList)
}

/// A protocol that workers speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Dialect {
    /// Tally's own
    Native,
    /// NetReduce: a ring of RoCEv2 hosts
    Netreduce,
}

impl Args {
    fn elements(&self) -> u64 {
        // What a simulated card, or several switches on few CPUs, do in some seconds.
        let is_slow = self.card || self.fabric.is_some() || self.dialect == Dialect::Netreduce;
        let default = if is_slow { 400_000 } else { 4_000_000 };
        self.elements.unwrap_or(default)
    }

    fn window(&self) -> u16 {
        // More would only wait for a simulated card.
        let default = match (self.card, self.fabric) {
            (true, _) => 64,
            (_, Some(_)) => 128,
            _ => 256,
        };
        self.window.unwrap_or(default)
    }

    fn network(&self) -> Network {
        self.network.unwrap_or_else(Network::for_this_user)
    }

    /// Members of a ring.
    fn members(&self) -> usize {
        self.fabric.map_or(self.workers.into(), Shape::total)
    }

    fn check(&self) -> Result<()> {
        ensure!(
            (0.0..0.9).contains(&self.loss),
            "--loss {}: 0 to below 0.9",
            self.loss
        );
        ensure!(
            self.payload > 0 && self.payload <= 8192 && self.payload.is_multiple_of(64),
            "--payload {}: a multiple of 64 up to 8192",
            self.payload
        );
        ensure!(
            is_count(self.parameter_servers),
            "--parameter-servers {}: 1, 2, 4, 8 or 16",
            self.parameter_servers
        );
        if self.dialect == Dialect::Netreduce {
            let members = self.members();
            ensure!(
                (2..=64).contains(&members),
                "--workers or --fabric: a ring of {members}; it has 2 to 64"
            );
            ensure!(
                self.fabric.is_none_or(|shape| shape.leaves >= 2),
                "--fabric: a ring over several switches needs 2 leaves or more"
            );
            let is_one = self.restart.as_deref().is_none_or(|it| !it.contains(','));
            ensure!(
                self.fabric.is_none() || is_one,
                "--restart: with --dialect netreduce one switch"
            );
            ensure!(
                self.fabric.is_some() || self.restart.as_deref().is_none_or(|it| it == "switch"),
                "--restart {}: with --dialect netreduce only `switch`",
                self.restart.as_deref().unwrap_or_default()
            );
        }
        if let Some(restart) = &self.restart {
            match (self.fabric, &self.racks) {
                (Some(shape), _) => drop(fabric::restarted(restart, shape)?),
                (None, Some(RackList(list))) => drop(racks::restarted(self, list)?),
                (None, None) => drop(Restart::parse(restart)?),
            }
            ensure!(
                self.network().carries_restarts(),
                "--restart: over memif a process connects once in its life, so none can come back; \
                 use --network namespaces, as root"
            );
            ensure!(
                self.elements() > 0,
                "--restart: needs the synthetic all-reduces, which --elements 0 leaves out"
            );
        }
        if self.card {
            ensure!(
                self.policy == PolicyName::Esa,
                "--card: needs --policy esa, the only policy of a card"
            );
            ensure!(
                self.elements() > 0,
                "--card: needs --elements for the all-reduce in which the card is killed"
            );
        }
        Ok(())
    }

    /// What of one switch's cluster is killed. It has been checked.
    fn restart(&self) -> Option<Restart> {
        let restart = self.restart.as_deref().filter(|_| self.fabric.is_none());
        restart.and_then(|it| Restart::parse(it).ok())
    }

    fn spec(&self) -> Spec {
        Spec {
            network: self.network(),
            jobs: vec![self.workers],
            parameter_servers: self.parameter_servers,
            cores: self.cores,
            card: self.card,
            payload_bytes: self.payload,
            window: self.window(),
            policy: self.policy,
            slots: self.slots,
            loss: self.loss,
            loss_seed: self.seed,
            ..Spec::default()
        }
    }
}

/// The policies of the switch.
fn policies() -> impl TypedValueParser<Value = PolicyName> {
    PossibleValuesParser::new(PolicyName::ALL.map(|(name, _)| name))
        .try_map(|name| name.parse::<PolicyName>())
}

/// A number with an optional suffix k, M or G (powers of ten).
fn parse_count(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(|| format!("`{text}`: a whole number, as 17, 250k or 4M"))
}

#[derive(Serialize)]
struct Parameters {
    network: Network,
    cpus: Cpus,
    workers: u8,
    parameter_servers: u8,
    elements: u64,
    loss: f64,
    seed: u64,
    policy: String,
    restart: Option<Restart>,
    card: bool,
    payload_bytes: u16,
    window: u16,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    switch: SwitchReport,
    /// By part.
    ps: Vec<PsReport>,
}

/// Runs it.
///
/// # Errors
/// If anything could not be run. A wrong sum is no error of the run: it is in the report.
pub fn run(args: &Args) -> Result<Report> {
    args.check()?;
    if args.dialect == Dialect::Netreduce {
        return ring::run(args);
    }
    if let Some(shape) = args.fabric {
        return fabric::run(args, shape);
    }
    if let Some(RackList(list)) = &args.racks {
        return racks::run(args, list);
    }
    let network = args.network();
    let workloads = workloads(args)?;
    eprintln!(
        "starting a switch and a parameter server ({})",
        network.describe()
    );
    let mut cluster = Cluster::start(args.spec())?;
    if args.card {
        eprintln!("starting a simulated card");
        cluster.start_card()?;
        let card = cluster.switch_report()?.card.unwrap_or_default();
        fits_card(args, &card)?;
    }
    let cpus = cluster.cpus().clone();
    let mut rows = Vec::new();
    for workload in &workloads {
        eprintln!(
            "{} workers all-reduce: {} ({})",
            args.workers, workload.name, workload.arithmetic
        );
        rows.push(run_one(args, &mut cluster, workload)?);
    }
    // The PS first: while it says goodbye, the switch must answer.
    let ps = cluster.stop_ps(0)?;
    let switch = cluster.stop_switch()?;
    let table = summary::table(args, (network, &cpus), &rows, &switch, &ps);
    let targets = summary::targets(&rows, &switch);
    let parameters = Parameters {
        network,
        cpus,
        workers: args.workers,
        parameter_servers: args.parameter_servers,
        elements: args.elements(),
        loss: args.loss,
        seed: args.seed,
        policy: args.policy.to_string(),
        restart: args.restart(),
        card: args.card,
        payload_bytes: args.payload,
        window: args.window(),
    };
    Report::new(
        Machine::detect(),
        &parameters,
        &Results { rows, switch, ps },
        targets,
        table,
    )
}

#[cfg(test)]
mod tests {
    use super::{Args, parse_count};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn options_that_do_not_fit_together_are_refused_with_what_to_do() {
        let check = |line: &str| {
            let Line { args } = Line::parse_from(format!("demo {line}").split_whitespace());
            args.check().map_err(|error| error.to_string())
        };
        for good in [
            "",
            "--loss 0.89",
            "--parameter-servers 2",
            "--card --network memif",
            "--dialect netreduce --loss 0.01 --restart switch --network namespaces",
            "--restart both --network namespaces",
            "--dialect netreduce --fabric 1x2x2 --restart leaf1 --network namespaces",
            "--fabric 2x2x2 --restart leaf2,spine1 --network namespaces",
            "--fabric 2x2x2 --parameter-servers 2",
            "--racks plain,tally:3 --restart switch --loss 0.01",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, words) in [
            ("--loss 0.9", "below 0.9"),
            ("--parameter-servers 3", "1, 2, 4, 8 or 16"),
            (
                "--dialect netreduce --workers 1",
                "a ring of 1; it has 2 to 64",
            ),
            ("--dialect netreduce --fabric 1x4x24", "a ring of 96"),
            ("--dialect netreduce --fabric 1x1x4", "2 leaves or more"),
            (
                "--dialect netreduce --fabric 1x2x2 --restart leaf1,spine1 --network namespaces",
                "one switch",
            ),
            (
                "--dialect netreduce --fabric 1x2x2 --restart switch --network namespaces",
                "spine1, leaf1, leaf2",
            ),
            (
                "--dialect netreduce --restart ps --network namespaces",
                "only `switch`",
            ),
            ("--payload 100", "multiple of 64"),
            ("--restart ps --network memif", "--network namespaces"),
            (
                "--restart ps --network namespaces --elements 0",
                "--elements 0",
            ),
            ("--card --policy fcfs", "--policy esa"),
            ("--card --elements 0", "needs --elements"),
            ("--restart leaf1 --network namespaces", "switch, ps or both"),
            ("--racks tally --restart ps", "only `switch`"),
            ("--racks plain --restart switch", "no rack"),
            (
                "--fabric 2x2x2 --restart leaf3 --network namespaces",
                "spine1, spine2, leaf1, leaf2",
            ),
            (
                "--fabric 2x2x2 --restart leaf1 --network memif",
                "--network namespaces",
            ),
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn counts() {
        assert_eq!(parse_count("4M"), Ok(4_000_000));
        assert_eq!(parse_count("250k"), Ok(250_000));
        assert_eq!(parse_count("17"), Ok(17));
        for bad in [
            "",
            "M",
            "-1",
            "1.5M",
            "4MM",
            "99999999999999999999",
            "99999999999G",
        ] {
            assert!(parse_count(bad).is_err(), "{bad}");
        }
    }
}
