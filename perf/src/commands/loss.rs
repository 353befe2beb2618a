//! `tally-perf loss`: the goodput of all-reduces over lossy links.
//!
//! # What is compared
//!
//! Real processes do one all-reduce for each contender, network and loss rate. The contenders are
//! Tally with f32 in rank order (`native`) and in block fixed point (`fixed`), SwitchML's dialect
//! through the same switch with our own client, and Gloo's ring over the kernel's TCP with CUBIC
//! and with BBR. The networks:
//!
//! - `namespaces`: packet sockets and UDP sockets, links shaped to one rate each way. The kernel
//!   drops frames behind the shaper, for all contenders alike
//!   ([`WireLosses`](tally_testkit::cluster::WireLosses)).
//! - `memif`: shared memory between processes. Agents and our SwitchML client drop frames
//!   themselves, by a seed. Gloo cannot run there.
//!
//! A round runs each contender at each rate once. A run's *ratio* is its goodput divided by that of
//! the same contender without loss in the same round. The report has the median of the rounds with
//! least and most.
//!
//! *Patterns* are other faults, for Tally only: bursts, loss in one direction, loss at one worker,
//! a paused worker, a queue that overflows. On both networks the agents inject them.
//!
//! # What is counted
//!
//! - **Goodput**: bits of one worker's vector divided by the time of the slowest worker, from its
//!   first contribution to its last result.
//! - **Lost**: frames with payload that injectors or wires dropped. All have one length except the
//!   last of a tensor, so a ratio of frames is a ratio of bytes.
//! - **Sent again**: frames with payload on the workers' links beyond one contribution and one
//!   result per worker and fragment, plus all frames with payload on the PS's link. The links count
//!   them, so the count does not depend on the protocol's terms. The agents' counts by cause are
//!   beside it. For TCP: segments that the kernel retransmitted.
//! - **Round trip**: the median latency from contribution to result without loss in the same round,
//!   median of the workers. It includes queueing behind the window. p99 and maximum are those of
//!   the worker with the highest.
//!
//! # The catches
//!
//! - Every bit of Tally's results is checked; the others check theirs.
//! - All programs share the CPUs. On `memif` the switch has one of its own, as in `demo`.
//! - The kernel's random numbers have no seed: runs on `namespaces` are not reproducible.
//! - SwitchML's client checks its sums within the measured time. Its ratio means something, its
//!   goodput does not.
//! - A rival that fails, as by a stall or a timeout, has the reason in place of figures; Tally's
//!   failure ends the command, and so does any wrong sum.
//! - Frames that a busy switch or a full socket drops count as lost only under the pattern `queue`.
//!   Elsewhere they are in `lost_elsewhere`, and retransmissions without loss follow from them.

mod cases;
mod counted;
mod run;
mod summary;

use crate::peers::Peer;
use anyhow::{Context, Result, ensure};
use cases::{Case, Contender, Pattern};
use run::{Bench, Run};
use serde::Serialize;
use std::path::PathBuf;
use summary::Row;
use tally_report::{Machine, Report};
use tally_testkit::cluster::{Cpus, Network, allowed};

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Workers
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=64))]
    workers: u8,

    /// Elements of the vector, f32
    #[arg(long, default_value_t = 8_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    elements: u64,

    /// Rates of loss in percent, each way on each link, separated by commas; the bare option means
    /// none
    #[arg(long, num_args = 0.., value_delimiter = ',', default_values_t = [0.1, 0.3, 1.0, 3.0, 10.0])]
    rates: Vec<f64>,

    /// Patterns of loss, separated by commas; the bare option means none
    #[arg(long, value_enum, num_args = 0.., value_delimiter = ',', default_values_t = Pattern::ALL)]
    patterns: Vec<Pattern>,

    /// Networks, separated by commas [default: memif, and namespaces for root]
    #[arg(long, value_enum, value_delimiter = ',')]
    networks: Option<Vec<Network>>,

    /// Contenders, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Contender::ALL)]
    contenders: Vec<Contender>,

    /// Rounds in which all take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Rate of the shaped links, each way, in Mbit/s
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    rate_mbit: u32,

    /// Payload bytes of a fragment on memif, a power of two
    #[arg(long, default_value_t = 1024)]
    payload: u16,

    /// Payload bytes of a fragment on shaped links, a power of two
    #[arg(long, default_value_t = 8192)]
    payload_links: u16,

    /// Window of a worker on memif, in fragments
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    window: u16,

    /// Window of a worker on shaped links, in fragments
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    window_links: u16,

    /// Random seed of the data and of the frames that agents drop
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Folder for the plots `loss-NETWORK.svg`
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,

    /// One round of a small vector without loss and at 3 %: a check that it works, not a
    /// measurement
    #[arg(long, conflicts_with_all = ["elements", "rates", "patterns", "rounds"])]
    quick: bool,

    /// Reference program
    #[arg(long, default_value = "worker-agent/reference/check.py")]
    reference: PathBuf,
}

impl Args {
    fn networks(&self) -> Vec<Network> {
        let default = || match allowed() {
            true => vec![Network::Memif, Network::Namespaces],
            false => vec![Network::Memif],
        };
        self.networks.clone().unwrap_or_else(default)
    }

    fn payload_bytes(&self, network: Network) -> u16 {
        match network {
            Network::Memif => self.payload,
            Network::Namespaces => self.payload_links,
        }
    }

    fn window(&self, network: Network) -> u16 {
        match network {
            Network::Memif => self.window,
            Network::Namespaces => self.window_links,
        }
    }

    fn check(&self) -> Result<()> {
        for &rate in &self.rates {
            ensure!(
                rate > 0.0 && rate <= 50.0,
                "--rates {rate}: above 0 up to 50 percent; a run without loss is always there"
            );
        }
        for payload in [self.payload, self.payload_links] {
            // Shorter frames are not told from control frames on a wire.
            ensure!(
                payload.is_power_of_two() && (512..=8192).contains(&payload),
                "payload of {payload} B: a power of two from 512 to 8192"
            );
        }
        ensure!(
            allowed() || !self.networks().contains(&Network::Namespaces),
            "--networks namespaces needs root"
        );
        Ok(())
    }

    /// What a contender goes through on a network, first of all the run without loss.
    fn cases(&self, contender: Contender, network: Network) -> Vec<Case> {
        let rates = self.rates.iter().map(|&percent| Case::Rate { percent });
        let patterns = self.patterns.iter().copied();
        let patterns = patterns.filter(|pattern| pattern.is_for(contender, network));
        [Case::Rate { percent: 0.0 }]
            .into_iter()
            .chain(rates)
            .chain(patterns.map(|pattern| Case::Pattern { pattern }))
            .collect()
    }
}

#[derive(Serialize)]
struct Parameters<'a> {
    workers: u8,
    elements: u64,
    networks: &'a [Network],
    rounds: u32,
    rate_mbit: u32,
    mtu_links: u16,
    payload_bytes: u16,
    payload_bytes_links: u16,
    window: u16,
    window_links: u16,
    seed: u64,
    queue_bytes: u32,
    cpus_memif: Cpus,
    cpus_links: Cpus,
    /// The version of PyTorch whose Gloo this is.
    torch: Option<String>,
    quick: bool,
}

/// Runs it.
///
/// # Errors
/// If a contender does not run, or a sum is wrong.
pub fn run(args: &Args) -> Result<Report> {
    let mut args = args.clone();
    if args.quick {
        (args.elements, args.rounds) = (200_000, 1);
        (args.rates, args.patterns) = (vec![3.0], Vec::new());
    }
    args.check()?;
    let networks = args.networks();
    let rows = measure(&args, &networks)?;
    if let Some(folder) = &args.plots {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        for &network in &networks {
            let path = folder.join(format!("loss-{}.svg", cases::name(&network)));
            std::fs::write(&path, summary::plot(&args, network, &rows).svg())
                .with_context(|| path.display().to_string())?;
        }
    }
    let cpus_memif = Cpus::of_this_machine(1)?;
    let mut cpus_links = cpus_memif.clone();
    cpus_links.share();
    let parameters = Parameters {
        workers: args.workers,
        elements: args.elements,
        networks: &networks,
        rounds: args.rounds,
        rate_mbit: args.rate_mbit,
        mtu_links: run::MTU,
        payload_bytes: args.payload,
        payload_bytes_links: args.payload_links,
        window: args.window,
        window_links: args.window_links,
        seed: args.seed,
        queue_bytes: run::QUEUE_BYTES,
        cpus_memif,
        cpus_links,
        torch: Peer::GlooRing.find().ok().map(|found| found.version),
        quick: args.quick,
    };
    let table = summary::table(&args, &parameters, &rows);
    let targets = summary::targets(&args, &rows);
    Report::new(Machine::detect(), &parameters, &rows, targets, table)
}

/// All runs, round by round.
fn measure(args: &Args, networks: &[Network]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &network in networks {
        let contenders = args.contenders.iter().copied();
        for contender in contenders.filter(|contender| contender.is_on(network)) {
            for case in args.cases(contender, network) {
                rows.push(Row::new(args, network, contender, case));
            }
        }
    }
    let mut bench = Bench::new(args)?;
    for round in 1..=args.rounds {
        let mut lossless: Option<Run> = None;
        for row in &mut rows {
            if row.case.is_lossless() {
                lossless = None;
            }
            if row.missing.is_some() {
                continue;
            }
            eprintln!(
                "round {round} of {}: {}, {}, {}",
                args.rounds,
                cases::name(&row.network),
                cases::name(&row.contender),
                row.case.describe()
            );
            let run = match bench.run(row.network, row.contender, row.case, round) {
                Ok(run) => run,
                Err(error) if row.contender.may_fail(&error) => {
                    row.missing = Some(format!("{error:#}"));
                    continue;
                }
                Err(error) => {
                    let what = format!("{}, {}", row.contender.describe(), row.case.describe());
                    return Err(error.context(what));
                }
            };
            if row.case.is_lossless() {
                lossless = Some(run.clone());
            }
            match &lossless {
                Some(base) => row.add(run, base),
                None => row.missing = Some("its run without loss failed".to_owned()),
            }
        }
    }
    rows.iter_mut().for_each(Row::conclude);
    Ok(rows)
}
