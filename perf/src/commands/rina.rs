//! `tally-perf rina`: a ring all-reduce through racks of which more and more can sum.
//!
//! # What is compared
//!
//! Every host and every rack's switch is a network namespace of one machine. Links are veth pairs,
//! shaped by a token bucket each way: those of hosts to one rate, the uplink of each rack to
//! another. A bridge joins the uplinks.
//!
//! - `rina-K`: Tally's agents; the first K racks have Tally's switch, the others a bridge.
//! - `ring`: Gloo's ring over TCP, all racks with bridges, rank after rank.
//! - `hierarchy`: over Gloo's messages, a reduce-scatter in each rack, rings of the hosts with the
//!   same place across racks, an all-gather in each rack.
//!
//! The contenders take turns. A round of each is some all-reduces in one run of its programs; the
//! first warms up and does not count. Ratios divide medians of one round; the report has the median
//! of the rounds' ratios.
//!
//! # Bounds
//!
//! The bound of a contender is the time that its busiest link needs for the payload alone (ADR 49).
//! Switches that sum on the way to one parameter server (ATP's deployment) do not run here. Their
//! bound stands for them: the server's link takes a stream of each rack that sums and of each host
//! elsewhere. A real one takes longer, so ratios to it are on its side.
//!
//! # The catch
//!
//! All programs share the CPUs of the machine. Where these are the limit and not the links, no
//! contender reaches its bound: take a lower `--rate`.

mod setting;
mod summary;
mod turn;

use crate::peers::Peer;
use anyhow::{Result, ensure};
use serde::Serialize;
use setting::{Contender, Setting};
use std::path::PathBuf;
use summary::Row;
use tally_report::{Machine, Report};
use tally_testkit::cluster::allowed;
use turn::Bench;

/// All programs of all hosts share one machine.
const HOSTS_MAX: u16 = 64;
/// Hosts of a rack by uplinks of the hosts' rate.
const OVERSUBSCRIPTION: u32 = 4;

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Racks
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    racks: u16,

    /// Hosts of each rack
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=16))]
    hosts: u16,

    /// Racks that have Tally's switch, separated by commas [default: 0 to all]
    #[arg(long, value_delimiter = ',')]
    sums: Option<Vec<u16>>,

    /// Rate of each host's link, each way, in Mbit/s
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(4..))]
    rate: u32,

    /// Rates of each rack's uplink, each way, in Mbit/s, separated by commas [default: what its
    /// hosts send, and a quarter of it]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    uplink_rate: Option<Vec<u32>>,

    /// Elements of the vector, f32, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [25_000, 1_250_000],
        value_parser = clap::value_parser!(u64).range(1024..))]
    elements: Vec<u64>,

    /// Rounds, in each of which all contenders run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Measured all-reduces of each contender in a round
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,

    /// Three racks of two hosts, a small vector, one round: a check that it works, not a
    /// measurement
    #[arg(long, conflicts_with_all = ["racks", "hosts", "sums", "uplink_rate", "elements", "rounds",
        "repeat"])]
    quick: bool,

    /// Reference program
    #[arg(long, default_value = "worker-agent/reference/check.py")]
    reference: PathBuf,
}

impl Args {
    /// The arguments of the run: those of `--quick` in their place.
    fn effective(&self) -> Self {
        let mut args = self.clone();
        if args.quick {
            (args.racks, args.hosts) = (3, 2);
            args.sums = Some(vec![0, 2]);
            args.uplink_rate = Some(vec![args.rate]);
            args.elements = vec![50_000];
            (args.rounds, args.repeat) = (1, 1);
        }
        args
    }

    fn check(&self) -> Result<()> {
        let hosts = self.racks * self.hosts;
        ensure!(
            hosts <= HOSTS_MAX,
            "--racks {} --hosts {}: {hosts} hosts, allowed are up to {HOSTS_MAX}",
            self.racks,
            self.hosts
        );
        Ok(())
    }

    fn settings(&self) -> Vec<Setting> {
        let all = self.rate * u32::from(self.hosts);
        let quarter = (all / OVERSUBSCRIPTION).max(1);
        let rates = self.uplink_rate.clone();
        let rates = rates.unwrap_or_else(|| vec![all, quarter]);
        let setting = |uplink_mbit: u32, elements: u64| Setting {
            racks: self.racks.into(),
            hosts: self.hosts.into(),
            host_mbit: self.rate,
            uplink_mbit,
            elements,
        };
        let of = |uplink: u32| self.elements.iter().map(move |&it| setting(uplink, it));
        rates.into_iter().flat_map(of).collect()
    }

    fn contenders(&self) -> Result<Vec<Contender>> {
        let sums = self.sums.clone();
        let sums = sums.unwrap_or_else(|| (0..=self.racks).collect());
        for it in &sums {
            ensure!(
                *it <= self.racks,
                "--sums {it}: of {} racks at most all can sum",
                self.racks
            );
        }
        let rina = sums.into_iter().map(|it| Contender::Rina(it.into()));
        let peers = [Contender::Ring, Contender::Hierarchy];
        Ok(rina.chain(peers).collect())
    }
}

#[derive(Serialize)]
struct Parameters {
    rounds: u32,
    repeat: u32,
    payload_bytes: u16,
    /// The version of PyTorch whose Gloo this is.
    torch: Option<String>,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
}

/// Runs it.
///
/// # Errors
/// If a contender does not run, or a sum is wrong.
pub fn run(args: &Args) -> Result<Report> {
    ensure!(
        allowed(),
        "tally-perf rina shapes links of network namespaces: run it as root"
    );
    let args = args.effective();
    args.check()?;
    let contenders = args.contenders()?;
    let parameters = Parameters {
        rounds: args.rounds,
        repeat: args.repeat,
        payload_bytes: turn::PAYLOAD_BYTES,
        torch: Peer::GlooRing.find().ok().map(|found| found.version),
    };
    let bench = Bench::new(args.rounds, args.repeat, &args.reference)?;
    let mut rows = Vec::new();
    for setting in args.settings() {
        rows.extend(summary::rows(
            setting,
            &bench.measure(setting, &contenders)?,
        ));
    }
    let targets = summary::targets(&rows, args.quick);
    let table = summary::table(&parameters, &rows);
    let results = Results { rows };
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

    fn parse(arguments: &[&str]) -> Args {
        Cli::parse_from([&["rina"], arguments].concat()).args
    }

    #[test]
    fn uplinks_carry_what_hosts_send_and_a_quarter_of_it() {
        let args = parse(&["--rate", "100", "--elements", "2000"]);
        let rates: Vec<_> = args.settings().iter().map(|it| it.uplink_mbit).collect();
        assert_eq!(rates, [400, 100]);
        assert_eq!(args.contenders().unwrap().len(), 5 + 2);
        assert_eq!(parse(&["--quick"]).effective().settings().len(), 1);
    }

    #[test]
    fn more_hosts_or_racks_than_there_can_be_are_refused() {
        let error = parse(&["--racks", "16", "--hosts", "5"]).check();
        assert_eq!(
            error.unwrap_err().to_string(),
            "--racks 16 --hosts 5: 80 hosts, allowed are up to 64"
        );
        assert!(parse(&["--racks", "16", "--hosts", "4"]).check().is_ok());
        let error = parse(&["--sums", "5"]).contenders().unwrap_err();
        assert_eq!(
            error.to_string(),
            "--sums 5: of 4 racks at most all can sum"
        );
    }
}
