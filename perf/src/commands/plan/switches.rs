//! `tally-perf plan --switches`: GRID's and InArt's worked examples on real switches.
//!
//! Each plan is what the planner returns, and is carried out by `tally_testkit::planned`: processes
//! of `tally-switch` and `tally-agent` in network namespaces, cables and capacities shaped to
//! scale, streams on the plan's routes. All workers all-reduce at once. A rate is the bits of the
//! gradients by the time until the last worker has its last sum; every element is checked.
//!
//! Every cable counts the bytes of gradients that pass it. Their ratio to those of the plan's
//! streams says that the plan is what was carried out.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use tally_planner::{Algorithm, Options, Problem, examples};
use tally_report::{Machine, Report, Spread, Target};
use tally_testkit::planned::{Planned, Scale};

/// Deviation of a measured rate from the planned one.
const DEVIATION_TARGET: f64 = 0.1;
/// Deviation of the bytes that passed a cable from those of the plan's streams.
const CARRIED_TARGET: f64 = 0.05;

/// Options of `--switches`.
#[derive(clap::Args)]
pub struct Args {
    /// Mbit/s of links for each Gbit/s of the example
    #[arg(long, default_value_t = 20.0, requires = "switches")]
    scale: f64,

    /// MiB of gradients
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024), requires = "switches")]
    mib: u64,

    /// Measured rounds of each plan; one more warms up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100), requires = "switches")]
    rounds: u32,

    /// Payload of a frame, a multiple of 64
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u16).range(64..=8192), requires = "switches")]
    payload: u16,

    /// Milliseconds in which a worker sends what it has in flight, at its planned rate
    #[arg(long, default_value_t = 8.5, requires = "switches")]
    window_ms: f64,

    /// Only plans whose name has this: an example, an algorithm, or both as in `grid-fig1 tally`
    #[arg(long, value_name = "TEXT", requires = "switches")]
    only: Option<String>,
}

/// A worked example, and the algorithms that its paper compares, with `tally`.
struct Example {
    name: &'static str,
    problem: fn() -> Problem,
    algorithms: &'static [Algorithm],
}

use Algorithm::{GridExact, InartExact, None as Without, Tally, Tor, TorWhole};

const EXAMPLES: [Example; 2] = [
    Example {
        name: "grid-fig1",
        problem: examples::grid_fig1,
        algorithms: &[Without, Tor, GridExact, Tally],
    },
    Example {
        name: "inart-fig1",
        problem: examples::inart_fig1,
        algorithms: &[Without, TorWhole, InartExact, Tally],
    },
];

#[derive(Serialize)]
struct Parameters {
    mbit_per_gbit: f64,
    gradient_bytes: u64,
    rounds: u32,
    payload_bytes: u16,
    frame_bytes: u64,
    window_ms: f64,
}

/// A plan that was carried out.
#[derive(Serialize)]
struct Row {
    example: &'static str,
    algorithm: &'static str,
    /// Processes of `tally-switch`, with those of parameter servers.
    switches: usize,
    /// Trees of the job.
    shares: usize,
    /// Gbit/s of each worker.
    predicted: f64,
    /// The same, measured, of each round.
    measured: Spread,
    /// Measured by predicted.
    ratio: Spread,
    /// Bytes that passed cables and capacities, by those of the plan's streams: the least and the
    /// most of all.
    carried: (f64, f64),
}

pub fn run(args: &Args, quick: bool) -> Result<Report> {
    ensure!(
        args.payload.is_multiple_of(64),
        "--payload {}: allowed are multiples of 64",
        args.payload
    );
    ensure!(
        args.scale.is_finite() && args.scale > 0.0,
        "--scale {}: allowed are numbers above 0",
        args.scale
    );
    ensure!(
        (0.1..=1000.0).contains(&args.window_ms),
        "--window-ms {}: allowed are 0.1 to 1000",
        args.window_ms
    );
    let own = std::env::current_exe().context("the folder of the programs")?;
    let programs = own.parent().map(PathBuf::from).unwrap_or_default();
    let rounds = if quick { 1 } else { args.rounds };
    let bytes = if quick { 1 << 20 } else { args.mib << 20 };
    let scale = Scale {
        mbit_per_unit: args.scale,
        payload_bytes: args.payload,
        window: Duration::from_secs_f64(args.window_ms / 1e3),
        fragments: bytes / u64::from(args.payload),
        programs,
    };
    let parameters = Parameters {
        mbit_per_gbit: args.scale,
        gradient_bytes: scale.fragments * u64::from(args.payload),
        rounds,
        payload_bytes: args.payload,
        frame_bytes: scale.frame_bytes(),
        window_ms: args.window_ms,
    };
    let mut rows = Vec::new();
    for example in &EXAMPLES {
        for &algorithm in example.algorithms {
            let name = format!("{} {}", example.name, algorithm.name());
            if args.only.as_ref().is_some_and(|only| !name.contains(only)) {
                continue;
            }
            eprintln!("{name}");
            let row = measure(example, algorithm, &scale, rounds);
            rows.push(row.with_context(|| name)?);
        }
    }
    ensure!(!rows.is_empty(), "--only: no such example and algorithm");
    let targets = targets(&rows);
    let table = table(&parameters, &rows);
    Report::new(Machine::detect(), &parameters, &rows, targets, table)
}

fn measure(example: &Example, algorithm: Algorithm, scale: &Scale, rounds: u32) -> Result<Row> {
    let problem = (example.problem)();
    let plan = tally_planner::plan(&problem, algorithm, &Options::default())?;
    let [job] = &plan.jobs[..] else {
        anyhow::bail!("the example has one job");
    };
    let planned = Planned::start(&problem, &plan, scale.clone())?;
    let all = planned.rounds(rounds + 1)?;
    let carried = planned.carried(rounds + 1)?;
    let carried = carried.iter().map(|(_, ratio)| *ratio);
    let bits = planned.layout().fragments[0] as f64 * f64::from(scale.payload_bytes) * 8.0;
    let unit = scale.mbit_per_unit * 1e6;
    let rates = all[1..].iter().map(|it| bits / it.seconds[0] / unit);
    let rates: Vec<_> = rates.collect();
    let ratios: Vec<_> = rates.iter().map(|rate| rate / job.rate).collect();
    let spread = |of: &[f64]| Spread::of(of).context("at least one round");
    Ok(Row {
        example: example.name,
        algorithm: algorithm.name(),
        switches: planned.switches(),
        shares: planned.layout().parts.len(),
        predicted: job.rate,
        measured: spread(&rates)?,
        ratio: spread(&ratios)?,
        carried: carried.fold((f64::INFINITY, 0.0), |(least, most), it| {
            (least.min(it), most.max(it))
        }),
    })
}

fn targets(rows: &[Row]) -> Vec<Target> {
    let mut targets = Vec::new();
    for row in rows {
        let name = format!("{}_{}_deviation", row.example, row.algorithm);
        let value = (row.ratio.median - 1.0).abs();
        let how = "of the measured from the predicted rate";
        targets.push(Target::at_most(
            &name,
            value,
            "ratio",
            DEVIATION_TARGET,
            how,
        ));
    }
    for example in &EXAMPLES {
        let own: Vec<_> = rows
            .iter()
            .filter(|it| it.example == example.name)
            .collect();
        let pairs = || own.iter().flat_map(|a| own.iter().map(move |b| (a, b)));
        let slower = pairs().filter(|(a, b)| a.predicted < b.predicted);
        let wrong = slower.filter(|(a, b)| a.measured.median >= b.measured.median);
        let name = format!("{}_order", example.name);
        let how = "pairs of algorithms in another order than predicted";
        if own.len() > 1 {
            let wrong = wrong.count() as f64;
            targets.push(Target::at_most(&name, wrong, "pairs", 0.0, how));
        }
    }
    let off = rows.iter().flat_map(|it| [it.carried.0, it.carried.1]);
    let off = off.map(|it| (it - 1.0).abs()).fold(0.0, f64::max);
    let how = "of bytes on any cable from those of the plan's streams";
    targets.push(Target::at_most(
        "carried",
        off,
        "ratio",
        CARRIED_TARGET,
        how,
    ));
    targets
}

fn table(parameters: &Parameters, rows: &[Row]) -> String {
    let Parameters {
        mbit_per_gbit,
        gradient_bytes,
        rounds,
        payload_bytes,
        frame_bytes,
        window_ms,
    } = parameters;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "all-reduce of {:.1} MB of i32 at every worker, {rounds} rounds, every element checked\n\
         {mbit_per_gbit} Mbit/s of payload for each Gbit/s; frames of {frame_bytes} bytes with {payload_bytes} of payload; \
         windows of {window_ms} ms\n",
        *gradient_bytes as f64 / 1e6,
    );
    let _ = writeln!(
        out,
        "{:<11} {:<12} {:>8} {:>6} {:>10} {:>26} {:>7} {:>14}",
        "example",
        "algorithm",
        "switches",
        "shares",
        "predicted",
        "measured, Gbit/s",
        "ratio",
        "bytes carried"
    );
    for row in rows {
        let Spread { median, min, max } = row.measured;
        let measured = format!("{median:.4} ({min:.4}..{max:.4})");
        let carried = format!("{:.3}..{:.3}", row.carried.0, row.carried.1);
        let _ = writeln!(
            out,
            "{:<11} {:<12} {:>8} {:>6} {:>10.4} {measured:>26} {:>7.3} {carried:>14}",
            row.example, row.algorithm, row.switches, row.shares, row.predicted, row.ratio.median
        );
    }
    out
}
