//! `tally-perf allreduce`: an all-reduce from end to end, beside the ways without Tally.
//!
//! # What is compared
//!
//! *Shaped*: every host is a network namespace with one link, a veth pair to the middle, shaped by
//! the same token bucket each way for every contender. In the middle is Tally's switch on packet
//! sockets, for the others the kernel's bridge. `gloo` is PyTorch's ring, `mpi` what Open MPI
//! chooses over TCP. A parameter server without aggregation in the network appears twice: `none` is
//! Tally with its policy `none`, in which the switch sends every contribution to the parameter
//! server; `server` is one over Gloo's messages. Each server has one link like every other host.
//!
//! *Unshaped*: all on one machine, each over its fastest transport there: `net_memif` for Tally,
//! the loopback interface for Gloo, shared memory for Open MPI.
//!
//! The contenders take turns. A round is timed inside the programs, from all inputs ready to the
//! last result at the slowest worker. It begins after a barrier with Gloo and Open MPI; with Tally
//! after the end of the previous round, which is a barrier. The first round of a turn warms up and
//! does not count. A ratio divides the medians of one turn; the report has the median of the turns'
//! ratios.
//!
//! # The catches
//!
//! - All programs share the CPUs of the machine: workers, switch, kernel. Tally's switch is pinned
//!   to one of them. On few CPUs they are the limit, not the links.
//! - Every sum of every worker is checked: the peers' in the programs themselves, Tally's in the
//!   last turn against the reference, bit for bit.
//! - The bits of a link are those of Ethernet frames without preamble, check sequence and gap.

mod hosts;

use crate::peers::{Peer, PeerHost, Work};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use tally_engine::PolicyName;
use tally_report::{Machine, Report, Spread, Target};
use tally_testkit::cluster::{Cluster, Cpus, Links, Namespaces, Network, Spec, Timeouts, allowed};
use tally_testkit::reference::{Inputs, Reference};

/// Gloo's time by Tally's at 1 Gbit/s; the limit is 2 (n - 1) / n = 1.75.
const RING_TARGET: f64 = 1.7;
/// A parameter server's time by Tally's.
const SERVER_TARGET: f64 = 6.0;
/// Gloo's time by Tally's without shaping.
const UNSHAPED_TARGET: f64 = 2.0;
/// What the shaped targets are for.
const TARGET_WORKERS: u8 = 8;
const PAYLOAD_BYTES_MAX: u16 = 8192;
/// Windows of Tally's workers: what keeps a shaped link busy, and what stays in the caches.
const WINDOW_SHAPED: u16 = 256;
const WINDOW_UNSHAPED: u16 = 32;

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Numbers of workers, with --ranks-per-host of hosts, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8], value_parser = clap::value_parser!(u8).range(2..=64))]
    workers: Vec<u8>,

    /// Ranks of each host, separated by commas: compare them as workers and as one worker a host,
    /// in place of the contenders
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "beside", value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks_per_host: Vec<u16>,

    /// Elements of the vector, f32
    #[arg(long, default_value_t = 25_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    elements: u64,

    /// Rate of the shaped links, each way, in Mbit/s
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    rate_mbit: u32,

    /// MTUs of the shaped links, 576 to 9000, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [9000], value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: Vec<u16>,

    /// Kind of links [default: both]
    #[arg(long, value_enum)]
    only: Option<Kind>,

    /// Contenders beside Tally, separated by commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    beside: Option<Vec<Contender>>,

    /// Turns of each contender
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,

    /// Measured all-reduces of a turn; one for parameter servers
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Window of a worker of Tally, in fragments [default: 256 on shaped links, 32 without, which
    /// fit the caches]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    window: Option<u16>,

    /// Arithmetic of Tally: fixed or native
    #[arg(long, default_value = "native", value_parser = ["fixed", "native"])]
    arithmetic: String,

    /// No worker on the CPU of Tally's switch
    #[arg(long)]
    apart: bool,

    /// Two workers, a small vector, one turn: a check that it works, not a measurement
    #[arg(long, conflicts_with_all = ["workers", "elements", "turns", "rounds"])]
    quick: bool,

    /// Reference program
    #[arg(long, default_value = "worker-agent/reference/check.py")]
    reference: PathBuf,
}

/// With links shaped or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Links of a given rate
    Shaped,
    /// The fastest transport of each on one machine
    Unshaped,
}

/// Who sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Contender {
    /// Tally
    Tally,
    /// Tally with its policy `none`
    None,
    /// Gloo's ring
    Gloo,
    /// A parameter server over Gloo
    Server,
    /// Open MPI
    Mpi,
}

impl Contender {
    fn peer(self) -> Option<Peer> {
        match self {
            Self::Tally | Self::None => None,
            Self::Gloo => Some(Peer::GlooRing),
            Self::Server => Some(Peer::GlooServer),
            Self::Mpi => Some(Peer::OpenMpi),
        }
    }

    fn is_server(self) -> bool {
        matches!(self, Self::None | Self::Server)
    }

    fn describe(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (Self::Tally, Kind::Shaped) => "Tally, UDP and packet sockets",
            (Self::Tally, Kind::Unshaped) => "Tally, net_memif",
            (Self::None, _) => "Tally, policy none: a PS",
            (Self::Gloo, Kind::Shaped) => "Gloo, ring over TCP",
            (Self::Gloo, Kind::Unshaped) => "Gloo, ring over loopback",
            (Self::Server, _) => "Gloo, a PS",
            (Self::Mpi, Kind::Shaped) => "Open MPI over TCP",
            (Self::Mpi, Kind::Unshaped) => "Open MPI, shared memory",
        }
    }
}

/// Under what conditions all contenders sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Setting {
    kind: Kind,
    workers: u8,
    /// None when not shaped.
    links: Option<Links>,
    /// Of Tally's frames.
    payload_bytes: u16,
    /// Fragments that a worker of Tally may have unfinished.
    window: u16,
}

/// One contender in one setting.
#[derive(Clone, Debug, Serialize)]
struct Row {
    setting: Setting,
    contender: Contender,
    /// Medians of the turns.
    seconds: Option<Spread>,
    /// Bits of the vector by the median.
    goodput_gbit_per_s: Option<f64>,
    /// Its time by Tally's in the same turn.
    to_tally: Option<Spread>,
    /// Why there is no value.
    missing: Option<String>,
}

#[derive(Serialize)]
struct Parameters<'a> {
    elements: u64,
    rate_mbit: u32,
    turns: u32,
    rounds: u32,
    arithmetic: &'a str,
    /// The version of PyTorch whose Gloo this is.
    torch: Option<String>,
    cpus: Cpus,
}

/// Runs it.
///
/// # Errors
/// If a contender does not run, or a sum is wrong.
pub fn run(args: &Args) -> Result<Report> {
    ensure!(allowed(), "this needs root, for network namespaces");
    let mut args = args.clone();
    if args.quick {
        (args.workers, args.elements) = (vec![2], 250_000);
        (args.turns, args.rounds) = (1, 2);
    }
    if !args.ranks_per_host.is_empty() {
        return hosts::run(&args);
    }
    let bench = Bench {
        folder: tempfile::Builder::new()
            .prefix(&format!("tally-{}-peers-", std::process::id()))
            .tempdir()
            .context("temporary folder")?,
        args,
    };
    let args = &bench.args;
    let mut rows = Vec::new();
    let wanted = |kind| args.only.is_none_or(|only| only == kind);
    for &workers in &args.workers {
        if wanted(Kind::Shaped) {
            for &mtu in &args.mtu {
                let links = Links {
                    mtu,
                    rate_mbit: Some(args.rate_mbit),
                };
                let setting = Setting {
                    kind: Kind::Shaped,
                    workers,
                    links: Some(links),
                    payload_bytes: links.payload_bytes(),
                    window: args.window.unwrap_or(WINDOW_SHAPED),
                };
                bench.measure(setting, &mut rows)?;
            }
        }
        if wanted(Kind::Unshaped) {
            let setting = Setting {
                kind: Kind::Unshaped,
                workers,
                links: None,
                payload_bytes: PAYLOAD_BYTES_MAX,
                window: args.window.unwrap_or(WINDOW_UNSHAPED),
            };
            bench.measure(setting, &mut rows)?;
        }
    }
    let mut cpus = Cpus::of_this_machine(1)?;
    cpus.share();
    let parameters = Parameters {
        elements: args.elements,
        rate_mbit: args.rate_mbit,
        turns: args.turns,
        rounds: args.rounds,
        arithmetic: &args.arithmetic,
        torch: Peer::GlooRing.find().ok().map(|found| found.version),
        cpus: cpus.clone(),
    };
    let table = bench.table(&cpus, &rows);
    Report::new(
        Machine::detect(),
        &parameters,
        &rows,
        bench.targets(&rows),
        table,
    )
}

struct Bench {
    args: Args,
    /// For the peers' programs.
    folder: tempfile::TempDir,
}

impl Bench {
    fn contenders(&self, kind: Kind) -> Vec<Contender> {
        let all: &[Contender] = match kind {
            Kind::Shaped => &[
                Contender::Tally,
                Contender::Gloo,
                Contender::Mpi,
                Contender::None,
                Contender::Server,
            ],
            Kind::Unshaped => &[Contender::Tally, Contender::Gloo, Contender::Mpi],
        };
        let wanted = |c: &&Contender| {
            let listed = self
                .args
                .beside
                .as_ref()
                .is_none_or(|list| list.contains(c));
            **c == Contender::Tally || listed
        };
        all.iter().filter(wanted).copied().collect()
    }

    fn measure(&self, setting: Setting, rows: &mut Vec<Row>) -> Result<()> {
        let contenders = self.contenders(setting.kind);
        let missing: Vec<_> = contenders
            .iter()
            .map(|c| c.peer().and_then(|peer| peer.find().err()))
            .collect();
        let mut medians = vec![Vec::new(); contenders.len()];
        for turn in 1..=self.args.turns {
            for (at, &contender) in contenders.iter().enumerate() {
                if missing[at].is_some() {
                    continue;
                }
                eprintln!(
                    "{} workers, turn {turn} of {}: {}",
                    setting.workers,
                    self.args.turns,
                    contender.describe(setting.kind)
                );
                let check = turn == self.args.turns;
                let seconds = self
                    .turn(setting, contender, check)
                    .with_context(|| contender.describe(setting.kind))?;
                let spread = Spread::of(&seconds).context("at least one round")?;
                medians[at].push(spread.median);
            }
        }
        let bits = self.args.elements as f64 * 32.0;
        for (at, &contender) in contenders.iter().enumerate() {
            let seconds = Spread::of(&medians[at]);
            let ratios: Vec<_> = medians[at]
                .iter()
                .zip(&medians[0])
                .map(|(theirs, ours)| theirs / ours)
                .collect();
            rows.push(Row {
                setting,
                contender,
                seconds,
                goodput_gbit_per_s: seconds.map(|s| bits / s.median / 1e9),
                to_tally: Spread::of(&ratios),
                missing: missing[at].clone(),
            });
        }
        Ok(())
    }

    /// The seconds of each round that counts.
    fn turn(&self, setting: Setting, contender: Contender, check: bool) -> Result<Vec<f64>> {
        let rounds = if contender.is_server() {
            1
        } else {
            self.args.rounds + 1
        };
        let work = Work {
            workers: setting.workers,
            elements: self.args.elements,
            rounds,
        };
        let patience = self.patience(work, setting);
        let mut seconds = match contender.peer() {
            Some(peer) => {
                let hosts = setting
                    .links
                    .map(|links| Namespaces::new(peer.hosts(setting.workers), links))
                    .transpose()?;
                if let Some(hosts) = &hosts {
                    hosts.bridge()?;
                }
                let hosts = hosts.as_ref().map(PeerHost::all).unwrap_or_default();
                peer.run(&hosts, self.folder.path(), work, patience)?
            }
            None => self.turn_of_tally(setting, contender, work, patience, check)?,
        };
        if !contender.is_server() {
            seconds.remove(0);
        }
        Ok(seconds)
    }

    /// A generous bound: a hundredth of the links' rate, or 0.1 Gbit/s where there is none.
    fn patience(&self, work: Work, setting: Setting) -> Duration {
        let mbit = setting.links.and_then(|links| links.rate_mbit);
        let bits = work.elements as f64 * 32.0 * f64::from(work.rounds);
        let rate = mbit.map_or(1e8, |mbit| f64::from(mbit) * 1e4);
        Duration::from_secs(60) + Duration::from_secs_f64(bits / rate)
    }

    fn turn_of_tally(
        &self,
        setting: Setting,
        contender: Contender,
        work: Work,
        patience: Duration,
        check: bool,
    ) -> Result<Vec<f64>> {
        let window = setting.window;
        let spec = Spec {
            network: match setting.kind {
                Kind::Shaped => Network::Namespaces,
                Kind::Unshaped => Network::Memif,
            },
            jobs: vec![setting.workers],
            share_cpus: !self.args.apart,
            mtu: setting.links.map(|links| links.mtu),
            rate_mbit: setting.links.and_then(|links| links.rate_mbit),
            payload_bytes: setting.payload_bytes,
            window,
            policy: if contender == Contender::None {
                PolicyName::None
            } else {
                PolicyName::Esa
            },
            // A job alone: room for its whole window.
            slots: Some(u32::from(window).next_power_of_two() * 2),
            timeouts: Timeouts {
                join_ms: 30_000,
                stall_ms: 30_000,
                ..Timeouts::default()
            },
            ..Spec::default()
        };
        let mut cluster = Cluster::start(spec)?;
        cluster.set_outputs(check);
        let seed = 1;
        let arithmetic = &self.args.arithmetic;
        let workers = cluster.start_workers(0, |_| {
            [
                "--arithmetic",
                arithmetic,
                "--synthetic",
                "--seed",
                &seed.to_string(),
                "--elements",
                &work.elements.to_string(),
                "--repeat",
                &work.rounds.to_string(),
            ]
            .map(str::to_owned)
            .to_vec()
        })?;
        for worker in workers {
            worker.wait_ok(patience)?;
        }
        let mut seconds = vec![0.0_f64; work.rounds as usize];
        for rank in 0..setting.workers {
            let report = cluster.worker_report(0, rank)?;
            ensure!(
                report.round_seconds.len() == seconds.len(),
                "worker {rank} reports {} rounds",
                report.round_seconds.len()
            );
            for (all, one) in seconds.iter_mut().zip(report.round_seconds) {
                *all = all.max(one);
            }
        }
        cluster.stop_ps(0)?;
        cluster.stop_switch()?;
        if check {
            let inputs = Inputs::Synthetic {
                seed,
                element: "f32",
                elements: work.elements,
                workers: setting.workers.into(),
            };
            let reference = Reference {
                program: self.args.reference.clone(),
            };
            let outputs = (0..setting.workers).map(|rank| cluster.output(0, rank));
            let verdict = reference.check(arithmetic, setting.payload_bytes, &inputs, outputs)?;
            ensure!(verdict.exact, "a wrong sum: {}", verdict.text);
        }
        Ok(seconds)
    }

    fn targets(&self, rows: &[Row]) -> Vec<Target> {
        let find = |kind, workers, contender| {
            rows.iter().find(|row| {
                let jumbo = row.setting.links.is_none_or(|links| links.mtu == 9000);
                (row.setting.kind, row.setting.workers, row.contender) == (kind, workers, contender)
                    && jumbo
            })
        };
        let target = |kind, workers: u8, contender, least: f64, how: &str| {
            let name = match contender {
                Contender::Gloo => "gloo",
                Contender::None => "ps_none",
                Contender::Server => "ps_gloo",
                Contender::Mpi => "mpi",
                Contender::Tally => "tally",
            };
            let kind_name = match kind {
                Kind::Shaped => "shaped",
                Kind::Unshaped => "unshaped",
            };
            let name = format!("{name}_to_tally_{kind_name}_{workers}");
            let row = find(kind, workers, contender);
            match row.and_then(|row| row.to_tally) {
                _ if kind == Kind::Shaped && self.args.rate_mbit != 1000 => {
                    let reason = "the target is for links of 1000 Mbit/s";
                    Target::not_measured(&name, "ratio", least, reason)
                }
                Some(ratio) => Target::at_least(&name, ratio.median, "ratio", least, how),
                None => {
                    let reason = row.and_then(|row| row.missing.clone());
                    let reason = reason.unwrap_or_else(|| "not asked for".to_owned());
                    Target::not_measured(&name, "ratio", least, &reason)
                }
            }
        };
        let mut targets = vec![
            target(
                Kind::Shaped,
                TARGET_WORKERS,
                Contender::Gloo,
                RING_TARGET,
                "time of Gloo's ring, to Tally's; MTU 9000; median of the turns",
            ),
            target(
                Kind::Shaped,
                TARGET_WORKERS,
                Contender::None,
                SERVER_TARGET,
                "time of Tally's own parameter server without aggregation in the switch, to Tally's",
            ),
            target(
                Kind::Shaped,
                TARGET_WORKERS,
                Contender::Server,
                SERVER_TARGET,
                "time of a parameter server over Gloo, to Tally's",
            ),
        ];
        for workers in [2, 4, 8] {
            targets.push(target(
                Kind::Unshaped,
                workers,
                Contender::Gloo,
                UNSHAPED_TARGET,
                "time of Gloo's ring over loopback, to Tally's over memif; median of the turns",
            ));
        }
        targets
    }

    fn table(&self, cpus: &Cpus, rows: &[Row]) -> String {
        let args = &self.args;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "all-reduce of {} f32 ({:.1} MB); {} turns of {} rounds; median of the turns' medians, ratios \
             with least and most\neverybody on CPU {}, Tally's switch on CPU {} of them; Tally sums as {}",
            args.elements,
            args.elements as f64 * 4e-6,
            args.turns,
            args.rounds,
            Cpus::list(&cpus.hosts),
            Cpus::list(&cpus.switch),
            args.arithmetic,
        );
        let mut before = None;
        for row in rows {
            if before != Some(row.setting) {
                before = Some(row.setting);
                let links = match row.setting.links {
                    Some(links) => format!(
                        "links of {} Mbit/s, MTU {}",
                        links.rate_mbit.unwrap_or_default(),
                        links.mtu
                    ),
                    None => "not shaped".into(),
                };
                let _ = writeln!(
                    out,
                    "\n{} workers, {links}, Tally's payload {} B, window {}\n{:<34} {:>9} {:>9} {:>9} {:>9}  to Tally",
                    row.setting.workers,
                    row.setting.payload_bytes,
                    row.setting.window,
                    "contender",
                    "seconds",
                    "least",
                    "most",
                    "Gbit/s"
                );
            }
            let name = row.contender.describe(row.setting.kind);
            let _ = match (row.seconds, row.to_tally, &row.missing) {
                (Some(s), Some(r), _) => writeln!(
                    out,
                    "{name:<34} {:>9.4} {:>9.4} {:>9.4} {:>9.3}  {:.2} ({:.2}-{:.2})",
                    s.median,
                    s.min,
                    s.max,
                    row.goodput_gbit_per_s.unwrap_or_default(),
                    r.median,
                    r.min,
                    r.max
                ),
                (_, _, reason) => {
                    let reason = reason.as_deref().unwrap_or("not measured");
                    writeln!(out, "{name:<34} {reason}")
                }
            };
        }
        out
    }
}
