//! `tally-perf fabric`: an all-reduce over a tree of switches, beside one switch and Gloo's ring.
//!
//! # What is compared
//!
//! Every host and every switch is a network namespace of one machine. Links are veth pairs, shaped
//! by the same token bucket each way: those of hosts to one rate, those between leaves and spines
//! to another. All contenders have the same links.
//!
//! - `tree`: a job whose tree has one spine as its root; its sums use one link of each leaf.
//! - `single`: a job of as many workers on one switch, with the same links of hosts.
//! - `ring`, `ring-spread`: Gloo's ring over TCP. The kernel's bridges are in place of the switches
//!   and use the links of one spine, as the tree does.
//! - `ring-switched`, `ring-switched-spread`: the same through Tally's switches, as ordinary
//!   frames. They spread the ring's flows over all spines.
//!
//! The ranks of `ring` follow each other leaf by leaf: one flow of the ring leaves each leaf, which
//! is the best order. The ranks of `spread` go around the leaves: every flow leaves its leaf, as
//! for a scheduler that does not know the racks.
//!
//! The contenders take turns. A round of each is some all-reduces in one run of its programs, timed
//! as by `allreduce`; the first warms up and does not count. Ratios divide medians of one round;
//! the report has the median of the rounds' ratios.
//!
//! # Bounds
//!
//! The bound of a contender is the time that its busiest link needs for the payload alone. For a
//! vector of V bits, n workers, w behind each leaf, links of rate h and u, and s spines in use:
//! V / h for one switch, V / min(h, u) for the tree, 2 (n - 1) / n V / min(h, u) for the ring, and
//! 2 (n - 1) / n V / min(h, s u / w) for the spread ring if its flows were spread evenly.
//!
//! # The catches
//!
//! - All programs share the CPUs of the machine. Where these are the limit and not the links, no
//!   contender reaches its bound: take a lower `--rate`. Ratios are those of links only where the
//!   share of the bound is high.
//! - A fabric of two spines has twice the uplinks that one job uses.

mod setting;
mod summary;
mod turn;

use crate::peers::Peer;
use anyhow::{Result, ensure};
use serde::Serialize;
use setting::{Contender, Setting};
use std::path::PathBuf;
use summary::{LeafRow, Row};
use tally_report::{Machine, Report};
use tally_testkit::cluster::{Cpus, Links, allowed};
use tally_testkit::fabric::Shape;
use turn::Bench;

/// Workers behind a leaf by uplinks of the hosts' rate, which the targets of rings are for.
const OVERSUBSCRIPTION: u32 = 4;

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Shapes of the fabric: spines x leaves x workers behind each leaf, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "SxLxW", default_values_t = shapes(&["2x4x2", "2x4x4"]))]
    shape: Vec<Shape>,

    /// Rate of each host's link, each way, in Mbit/s
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(4..))]
    rate: u32,

    /// Rates of each link between switches, each way, in Mbit/s, separated by commas [default: the
    /// hosts' rate, and a quarter of what the workers behind a leaf send]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    uplink_rate: Option<Vec<u32>>,

    /// Elements of the vector, f32
    #[arg(long, default_value_t = 1_250_000, value_parser = clap::value_parser!(u64).range(1..))]
    elements: u64,

    /// Rounds, in each of which all contenders run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Measured all-reduces of each contender in a round
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,

    /// Contenders beside the tree, separated by commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    beside: Option<Vec<Contender>>,

    /// MTU of all links
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1242..=9000))]
    mtu: u16,

    /// Window of a worker of Tally, in fragments; a longer one makes the queues of slow links
    /// longer than timeouts
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    window: u16,

    /// A fabric of 2x2x2, a small vector, one round: a check that it works, not a measurement
    #[arg(long, conflicts_with_all = ["shape", "uplink_rate", "elements", "rounds", "repeat"])]
    quick: bool,

    /// Reference program
    #[arg(long, default_value = "worker-agent/reference/check.py")]
    reference: PathBuf,
}

fn shapes(names: &[&str]) -> Vec<Shape> {
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

impl Args {
    /// The arguments of the run: those of `--quick` in their place.
    fn effective(&self) -> Self {
        let mut args = self.clone();
        if args.quick {
            args.shape = shapes(&["2x2x2"]);
            args.uplink_rate = Some(vec![args.rate]);
            args.elements = 250_000;
            (args.rounds, args.repeat) = (1, 1);
        }
        args
    }

    fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for &shape in &self.shape {
            let quarter = self.rate * shape.workers as u32 / OVERSUBSCRIPTION;
            let mut rates = self.uplink_rate.clone();
            let rates = rates.get_or_insert_with(|| vec![self.rate, quarter]);
            rates.dedup();
            settings.extend(rates.iter().map(|&uplink_mbit| {
                Setting {
                    shape,
                    host_mbit: self.rate,
                    uplink_mbit,
                    mtu: self.mtu,
                    payload_bytes: Links {
                        mtu: self.mtu,
                        rate_mbit: None,
                    }
                    .payload_bytes(),
                    window: self.window,
                    elements: self.elements,
                }
            }));
        }
        settings
    }

    fn contenders(&self) -> Vec<Contender> {
        let listed = |c: &Contender| self.beside.as_ref().is_none_or(|list| list.contains(c));
        let wanted = |c: &Contender| *c == Contender::Tree || listed(c);
        Contender::ALL.into_iter().filter(wanted).collect()
    }
}

#[derive(Serialize)]
struct Parameters {
    rounds: u32,
    repeat: u32,
    /// The version of PyTorch whose Gloo this is.
    torch: Option<String>,
    /// Workers, parameter servers and Gloo's processes.
    cpus_hosts: Vec<usize>,
    /// The switches, one to each in turn.
    cpus_switches: Vec<usize>,
    /// The switch of `single`.
    cpus_single: Vec<usize>,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    uplinks: Vec<LeafRow>,
}

/// Runs it.
///
/// # Errors
/// If a contender does not run, or a sum is wrong.
pub fn run(args: &Args) -> Result<Report> {
    ensure!(
        allowed(),
        "tally-perf fabric shapes links of network namespaces: run it as root"
    );
    let args = args.effective();
    for shape in &args.shape {
        // One switch takes no more, and is a contender.
        ensure!(
            shape.total() <= 64,
            "--shape {shape}: {} workers, allowed are up to 64",
            shape.total()
        );
    }
    let mut cpus = Cpus::of_this_machine(1)?;
    cpus.share();
    let parameters = Parameters {
        rounds: args.rounds,
        repeat: args.repeat,
        torch: Peer::GlooRing.find().ok().map(|found| found.version),
        cpus_hosts: cpus.hosts.clone(),
        cpus_switches: cpus.hosts,
        cpus_single: cpus.switch,
    };
    let bench = Bench::new(args.rounds, args.repeat, &args.reference)?;
    let mut results = Results {
        rows: Vec::new(),
        uplinks: Vec::new(),
    };
    for setting in args.settings() {
        let measured = bench.measure(setting, &args.contenders())?;
        results.rows.extend(summary::rows(setting, &measured));
        results.uplinks.extend(summary::leaves(setting, &measured));
    }
    let targets = summary::targets(&results.rows, &results.uplinks, args.quick);
    let table = summary::table(&parameters, &results.rows, &results.uplinks);
    Report::new(Machine::detect(), &parameters, &results, targets, table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn settings(arguments: &[&str]) -> Vec<(String, u32, u32)> {
        let args = Cli::parse_from([&["fabric"], arguments].concat()).args;
        let of = |it: Setting| (it.shape.to_string(), it.host_mbit, it.uplink_mbit);
        args.effective().settings().into_iter().map(of).collect()
    }

    #[test]
    fn each_shape_has_uplinks_as_fast_as_hosts_and_uplinks_of_four_to_one() {
        let of = |shape: &str, host, uplink| (shape.to_owned(), host, uplink);
        let expected = [
            of("2x4x2", 100, 100),
            of("2x4x2", 100, 50),
            of("2x4x4", 100, 100),
        ];
        assert_eq!(settings(&["--rate", "100"]), expected);
        let expected = [of("2x4x8", 100, 100), of("2x4x8", 100, 200)];
        assert_eq!(settings(&["--shape", "2x4x8"]), expected);
        let one = ["--shape", "1x2x3", "--uplink-rate", "10"];
        assert_eq!(settings(&one), [of("1x2x3", 100, 10)]);
        assert_eq!(settings(&["--quick"]), [of("2x2x2", 100, 100)]);
    }

    #[test]
    fn the_tree_always_runs_and_others_as_asked_for() {
        let args = Cli::parse_from(["fabric", "--beside", "ring-spread"]).args;
        let expected = [Contender::Tree, Contender::RingSpread];
        assert_eq!(args.contenders(), expected);
        let all = Cli::parse_from(["fabric"]).args.contenders();
        assert_eq!(all, Contender::ALL);
    }
}
