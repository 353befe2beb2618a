//! `tally-perf cores`: throughput of several data cores, beside that of one.
//!
//! # What is compared
//!
//! In every round, one after the other, under the load that [`replay`](tally_testkit::replay)
//! describes:
//!
//! * one switch with one data core, the yardstick;
//! * one switch with 2, 4, … data cores. Each of the eight ports has a queue for each core, into
//!   which the contributions to the fragments of its shard are replayed, as flow rules of a NIC
//!   would steer them;
//! * beside each, the same number of switches with one data core each, at the same time. They share
//!   only the machine: their loss against linear scaling is the machine's, the loss of the one
//!   switch against them is ours;
//! * without steering: ports with one queue each. All but one in n frames belong to the shard of
//!   another core and are handed over, results too. There the workers of a job have their ports on
//!   one core, because nothing else would keep replayed workers in step; beside it is the same with
//!   steering.
//!
//! Every core has the same load and the same memory as the yardstick.
//!
//! # The catches
//!
//! - Seconds are the CPU time of the data cores' threads, on average, as for `datapath`. Where all
//!   CPUs are data cores, the control thread and this program share one of them; they sleep nearly
//!   always.
//! - The CPUs of a machine are not independent: they share a last level of cache, memory, power,
//!   and on many machines whole cores (SMT). The rows of separate switches show how much that is.
//! - A core without steering that waits for another one spins, and that counts as its time.

use crate::rates;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use tally_load::capture::Shape;
use tally_report::{Machine, Report, Spread, Target};
use tally_testkit::replay::{Captures, Rate, Running, Switch, WORKERS};

/// Share of linear that the largest number of cores should reach.
const TARGET_SHARE: f64 = 0.9;

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Payloads in bytes, separated by commas: multiples of 64 up to 8192
    #[arg(long, value_delimiter = ',', default_values_t = [1024])]
    payload: Vec<u16>,

    /// Upper bound of data cores, a power of two [default: the number of CPUs]
    #[arg(long)]
    max: Option<usize>,

    /// Rounds in which the cases take turns
    #[arg(long, default_value_t = 5)]
    rounds: u32,

    /// Measured seconds of each case in a round
    #[arg(long, default_value_t = 2)]
    seconds: u32,

    /// Fragments of each shard after which a worker's fragment numbers jump
    #[arg(long, default_value_t = 64)]
    run_fragments: u16,

    /// The tally-switch to measure [default: the one beside this program]
    #[arg(long, value_name = "PROGRAM")]
    switch: Option<PathBuf>,
}

#[derive(Serialize)]
struct Parameters<'a> {
    ports: u8,
    element: &'static str,
    payload_bytes: &'a [u16],
    rounds: u32,
    seconds: u32,
    run_fragments: u16,
    /// CPUs of the data cores: the first of them for fewer.
    data_cpus: &'a [usize],
    /// CPU of the control thread, by number of data cores.
    control_cpus: Vec<(usize, usize)>,
}

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One switch, a queue for each core on each port.
    Steered,
    /// As many switches as cores.
    Separate,
    /// One switch, one queue on each port; as many jobs as cores.
    Handover,
    /// As many jobs as cores, and a queue for each core on each port.
    SteeredJobs,
}

/// One case at one payload.
#[derive(Clone, Debug, Serialize)]
struct Row {
    case: &'static str,
    cores: usize,
    payload_bytes: u16,
    jobs: u8,
    frames_per_s: Spread,
    gbit_per_s: f64,
    cpu_share: f64,
    /// Frames per second, to those of one core in the same round times the cores.
    to_linear: Spread,
    /// To those of as many separate switches in the same round.
    to_separate: Option<Spread>,
    /// To those with steering and the same jobs in the same round.
    to_steered: Option<Spread>,
}

/// Runs it.
///
/// # Errors
/// If a switch does not run, or did anything else than to sum.
pub fn run(args: &Args) -> Result<Report> {
    let bench = Bench::new(args)?;
    let mut rows = Vec::new();
    for &payload_bytes in &args.payload {
        bench.measure(payload_bytes, &mut rows)?;
    }
    let parameters = Parameters {
        ports: WORKERS,
        element: "i32",
        payload_bytes: &args.payload,
        rounds: args.rounds,
        seconds: args.seconds,
        run_fragments: args.run_fragments,
        data_cpus: &bench.cpus[..bench.max()],
        control_cpus: bench
            .counts
            .iter()
            .map(|&n| (n, bench.control(n)))
            .collect(),
    };
    let targets = args.payload.iter().map(|&bytes| bench.target(bytes, &rows));
    let targets = targets.collect();
    let table = bench.table(&rows);
    Report::new(Machine::detect(), &parameters, &rows, targets, table)
}

struct Bench<'a> {
    args: &'a Args,
    cpus: Vec<usize>,
    /// Numbers of data cores: 1, 2, 4, …
    counts: Vec<usize>,
    switch: Switch,
}

impl<'a> Bench<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        ensure!(
            args.rounds > 0 && args.seconds > 0,
            "--rounds and --seconds: at least 1"
        );
        let run = args.run_fragments;
        ensure!(
            run.is_power_of_two() && (32..=1024).contains(&run),
            "--run-fragments {run}: a power of two from 32 to 1024"
        );
        for payload in &args.payload {
            ensure!(
                (64..=8192).contains(payload) && payload.is_multiple_of(64),
                "--payload {payload}: a multiple of 64 up to 8192"
            );
        }
        let ids = core_affinity::get_core_ids().unwrap_or_default();
        let cpus: Vec<_> = ids.iter().map(|cpu| cpu.id).collect();
        let available = cpus.len().min(tally_switch::config::MAX_CORES);
        ensure!(
            available > 0,
            "this program may run on no CPU that it knows"
        );
        let most = args.max.unwrap_or(1 << available.ilog2());
        ensure!(
            most.is_power_of_two() && most <= available,
            "--max {most}: a power of two, up to the {available} CPUs that this program may use"
        );
        let counts = (0..=most.ilog2()).map(|n| 1 << n).collect();
        let switch = match &args.switch {
            Some(program) => Switch::at(program)?,
            None => Switch::beside_this_program()?,
        };
        Ok(Self {
            args,
            cpus,
            counts,
            switch,
        })
    }

    /// Data cores at most.
    fn max(&self) -> usize {
        self.counts.last().copied().unwrap_or(1)
    }

    /// The CPU of the control thread beside that many data cores: a free one, if there is one.
    fn control(&self, cores: usize) -> usize {
        self.cpus[cores.min(self.cpus.len() - 1)]
    }

    /// All cases but the yardstick, with the number of cores. Without steering the number of cores
    /// is limited so that a job has two workers.
    fn cases(&self) -> Vec<(Kind, usize)> {
        let several = self.counts.iter().skip(1);
        let mut cases: Vec<_> = several
            .flat_map(|&cores| [(Kind::Steered, cores), (Kind::Separate, cores)])
            .collect();
        let unsteered = self
            .counts
            .iter()
            .rfind(|&&cores| cores <= usize::from(WORKERS) / 2);
        if let Some(&cores) = unsteered.filter(|&&cores| cores > 1) {
            cases.extend([(Kind::SteeredJobs, cores), (Kind::Handover, cores)]);
        }
        cases
    }

    /// All cases at one payload.
    fn measure(&self, payload_bytes: u16, rows: &mut Vec<Row>) -> Result<()> {
        let captures = |shards: u16, jobs: u8, is_steered: bool| {
            let shape = Shape {
                workers: WORKERS,
                jobs,
                ports: WORKERS,
                payload_bytes,
                element: "i32",
                run_fragments: u32::from(self.args.run_fragments) * u32::from(shards),
                turn_fragments: 1,
                shards,
            };
            if is_steered {
                Captures::steered(shape)
            } else {
                Captures::of(shape)
            }
        };
        let single = captures(1, 1, true)?;
        let mut cases = Vec::new();
        for (kind, cores) in self.cases() {
            let captures = match kind {
                Kind::Steered => captures(cores as u16, 1, true),
                Kind::Separate => captures(1, 1, true),
                Kind::SteeredJobs => captures(cores as u16, cores as u8, true),
                Kind::Handover => captures(cores as u16, cores as u8, false),
            }?;
            cases.push((kind, cores, captures, Vec::new()));
        }
        let mut alone = Vec::new();
        for round in 1..=self.args.rounds {
            eprintln!(
                "payload {payload_bytes} B, round {round} of {}",
                self.args.rounds
            );
            alone.push(self.rate(Kind::Steered, 1, &single)?);
            for (kind, cores, captures, rates) in &mut cases {
                rates.push(self.rate(*kind, *cores, captures)?);
            }
        }
        let of = |kind: Kind, cores: usize| {
            let found = cases.iter().find(|case| (case.0, case.1) == (kind, cores));
            found.map(|case| case.3.as_slice())
        };
        rows.extend(row("one switch", 1, &single, &alone, &alone, None, None));
        for (kind, cores, captures, rates) in &cases {
            let separate = of(Kind::Separate, *cores);
            let steered = of(Kind::SteeredJobs, *cores);
            let (name, separate, steered) = match kind {
                Kind::Steered => ("one switch", separate, None),
                Kind::Separate => ("separate switches", None, None),
                Kind::SteeredJobs => ("one switch", separate, None),
                Kind::Handover => ("no steering", separate, steered),
            };
            rows.extend(row(
                name, *cores, captures, rates, &alone, separate, steered,
            ));
        }
        Ok(())
    }

    fn rate(&self, kind: Kind, cores: usize, captures: &Captures) -> Result<Rate> {
        let (cpus, control) = (&self.cpus[..cores], self.control(cores));
        let switches = match kind {
            Kind::Separate => cpus
                .iter()
                .map(|&cpu| self.switch.replay(captures, &[cpu], control))
                .collect::<Result<_>>()?,
            _ => vec![self.switch.replay(captures, cpus, control)?],
        };
        Running::measure(switches, self.args.seconds)
    }

    fn target(&self, payload_bytes: u16, rows: &[Row]) -> Target {
        let most = self.max();
        let name = format!("share_of_linear_{most}_cores_{payload_bytes}");
        let of_target = |row: &&Row| {
            row.payload_bytes == payload_bytes && row.cores == most && row.case == "one switch"
        };
        match rows.iter().find(of_target) {
            Some(row) if most > 1 => Target::at_least(
                &name,
                row.to_linear.median,
                "ratio",
                TARGET_SHARE,
                "frames per second, to those of one core times the cores; median of the rounds",
            ),
            _ => Target::not_measured(&name, "ratio", TARGET_SHARE, "one core"),
        }
    }

    fn table(&self, rows: &[Row]) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{WORKERS} workers on {WORKERS} ports, i32; data cores on CPU {:?}, the first of them for fewer",
            &self.cpus[..self.max()]
        );
        for &cores in &self.counts {
            let control = self.control(cores);
            let shared = if self.cpus[..cores].contains(&control) {
                ", which it shares with a data core, as does this program"
            } else {
                ""
            };
            let _ = writeln!(
                out,
                "{cores} data cores: control thread on CPU {control}{shared}"
            );
        }
        let _ = writeln!(
            out,
            "{} rounds of {} s; median of the rounds, ratios with least and most\n\n\
             {:<18} {:>5} {:>5} {:>7} {:>8} {:>8} {:>6}  {:<19}  {:<19}  to steered",
            self.args.rounds,
            self.args.seconds,
            "case",
            "cores",
            "jobs",
            "payload",
            "Mframe/s",
            "Gbit/s",
            "of CPU",
            "to linear",
            "to separate"
        );
        for row in rows {
            let _ = writeln!(
                out,
                "{:<18} {:>5} {:>5} {:>7} {:>8.2} {:>8.1} {:>5.0}%  {:<19}  {:<19}  {}",
                row.case,
                row.cores,
                row.jobs,
                row.payload_bytes,
                row.frames_per_s.median / 1e6,
                row.gbit_per_s,
                row.cpu_share * 100.0,
                rates::shown(Some(row.to_linear)),
                rates::shown(row.to_separate),
                rates::shown(row.to_steered)
            );
        }
        if !rows.iter().any(|row| row.case == "no steering") {
            out.push_str("no row without steering: that needs two data cores\n");
        }
        out
    }
}

fn row(
    case: &'static str,
    cores: usize,
    captures: &Captures,
    rates: &[Rate],
    alone: &[Rate],
    separate: Option<&[Rate]>,
    steered: Option<&[Rate]>,
) -> Option<Row> {
    let spread = |values: &mut dyn Iterator<Item = f64>| Spread::of(&values.collect::<Vec<_>>());
    let ratio = |base: &[Rate], times: usize| {
        let rounds = rates.iter().zip(base);
        spread(
            &mut rounds.map(|(ours, base)| ours.frames_per_s / (base.frames_per_s * times as f64)),
        )
    };
    let frames_per_s = rates::frames_per_s(rates)?;
    Some(Row {
        case,
        cores,
        payload_bytes: captures.shape.payload_bytes,
        jobs: captures.shape.jobs,
        frames_per_s,
        gbit_per_s: frames_per_s.median * captures.shape.frame_bytes() as f64 * 8.0 / 1e9,
        cpu_share: rates::cpu_share(rates)?,
        to_linear: ratio(alone, cores)?,
        to_separate: separate.and_then(|base| ratio(base, 1)),
        to_steered: steered.and_then(|base| ratio(base, 1)),
    })
}
