//! The command line of `tally-sim loss`.

use super::run::{Pattern, Scenario};
use super::sweep::{Row, sweep};
use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;
use tally_report::{Machine, Report, Target};
use tally_wire::MAX_UNITS;

/// Least share of the goodput without loss, by the loss rate in a million.
pub const SHARES: [(u32, f64); 4] = [(1_000, 0.97), (10_000, 0.85), (30_000, 0.6), (100_000, 0.2)];
/// Most frames with a payload sent again for each lost.
pub const AGAIN: f64 = 3.0;
/// Most of p99 in round trips, at the first rate of [`SHARES`].
pub const P99_TIMES: f64 = 5.0;
/// Fragments of the message, and of `--quick`.
const FRAGMENTS: u64 = 65_536;
const FRAGMENTS_QUICK: u64 = 8192;

/// Types of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Type {
    /// Native floats, folded in rank order
    F32,
    /// Integers, as block fixed point sends them, without the fragments of scales
    Fixed,
}

/// What to simulate.
#[derive(clap::Args)]
pub struct Args {
    /// One seed, 1 and 10 % of loss, 8,192 fragments.
    #[arg(long, conflicts_with_all = ["rates", "seeds", "fragments", "patterns"])]
    quick: bool,

    /// Workers of the job.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=64))]
    workers: u8,

    /// Rate of each link, in Gbit/s.
    #[arg(long, default_value_t = 100.0)]
    rate_gbit: f64,

    /// Delay of each link, one way, in µs.
    #[arg(long, default_value_t = 1.0)]
    delay_us: f64,

    /// Payload bytes of a fragment.
    #[arg(long, default_value_t = 1024)]
    payload: u32,

    /// Window of each worker, in fragments.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    window: u16,

    /// Fragments of the message.
    #[arg(long, default_value_t = FRAGMENTS, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    fragments: u64,

    /// Type of the elements.
    #[arg(long = "type", value_enum, default_value_t = Type::F32)]
    element: Type,

    /// Loss rates of each worker's link, each way, in percent, separated by commas. 0 is always
    /// first.
    #[arg(long, value_delimiter = ',', default_values_t = [0.1, 0.3, 1.0, 3.0, 10.0])]
    rates: Vec<f64>,

    /// Further patterns of loss: bursts, results only, contributions only, one worker only.
    #[arg(long)]
    patterns: bool,

    /// Number of seeds, from 1.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,

    /// Number of threads; unless given, one for each core.
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Serialize)]
struct Parameters {
    scenario: Scenario,
    rates_percent: Vec<f64>,
    seeds: u64,
}

#[derive(Serialize)]
struct Results<'a> {
    rows: &'a [Row],
}

/// Simulates, and prints a row for each rate and pattern.
///
/// # Errors
/// When an option is out of its range, or a run fails: a wrong sum, a job that does not end.
pub fn run_args(args: &Args, json: bool) -> Result<ExitCode> {
    ensure!(
        args.rate_gbit > 0.0 && args.rate_gbit <= 8000.0,
        "--rate-gbit {}: must be above 0 and at most 8000",
        args.rate_gbit
    );
    ensure!(
        (0.0..=1e6).contains(&args.delay_us),
        "--delay-us {}: must be from 0 to 1000000",
        args.delay_us
    );
    let most = u32::from(MAX_UNITS) * 64;
    ensure!(
        (64..=most).contains(&args.payload),
        "--payload {}: must be from 64 to {most}",
        args.payload
    );
    let (rates, seeds, fragments) = if args.quick {
        (vec![1.0, 10.0], 1, FRAGMENTS_QUICK)
    } else {
        (args.rates.clone(), args.seeds, args.fragments)
    };
    for rate in &rates {
        ensure!(
            (0.0..=50.0).contains(rate),
            "--rates {rate}: must be from 0 to 50 percent"
        );
    }
    let scenario = Scenario {
        workers: args.workers,
        rate_gbit: args.rate_gbit,
        delay_ns: (args.delay_us * 1e3) as u64,
        payload_bytes: args.payload,
        window: args.window,
        fragments,
        float: args.element == Type::F32,
    };
    let ppm = |rate: &f64| (rate * 1e4).round() as u32;
    let mut patterns: Vec<_> = rates.iter().map(|r| Pattern::Random(ppm(r))).collect();
    if args.patterns {
        patterns.extend(Pattern::FIXED);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = sweep(&scenario, &patterns, seeds, args.threads.unwrap_or(cores))?;
    let text = format!(
        "{} workers, {} Gbit/s, {} µs each way, {} B, window {}, {} fragments of {}, {seeds} seeds; every sum exact\n\n{}",
        scenario.workers,
        scenario.rate_gbit,
        args.delay_us,
        scenario.payload_bytes,
        scenario.window,
        scenario.fragments,
        if scenario.float { "f32" } else { "i32" },
        table(&rows)
    );
    let parameters = Parameters {
        scenario,
        rates_percent: rates,
        seeds,
    };
    let results = Results { rows: &rows };
    Report::new(
        Machine::detect(),
        &parameters,
        &results,
        targets(&rows),
        text,
    )?
    .print(json)?;
    Ok(ExitCode::SUCCESS)
}

/// The project's targets for the rows that have one.
#[must_use]
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let mut targets = Vec::new();
    for (n, (ppm, share)) in SHARES.into_iter().enumerate() {
        let pattern = Pattern::Random(ppm).to_string();
        let Some(row) = rows.iter().find(|row| row.pattern == pattern) else {
            continue;
        };
        let name = |what| format!("{what} at {pattern}");
        let how = "median of the seeds, of the goodput without loss";
        let value = row.share.median;
        targets.push(Target::at_least(&name("share"), value, "ratio", share, how));
        if let Some(again) = row.again_per_lost {
            let how = "frames with a payload, for each lost";
            targets.push(Target::at_most(
                &name("sent again"),
                again,
                "ratio",
                AGAIN,
                how,
            ));
        }
        if n == 0 {
            let how = "multiples of p50 without loss";
            let value = row.p99_times;
            targets.push(Target::at_most(
                &name("p99"),
                value,
                "ratio",
                P99_TIMES,
                how,
            ));
        }
    }
    targets
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "loss                   Gbit/s share   min   max    lost again/lost timeouts  early  nacks | p50 p99 max, µs      | round trips\n",
    );
    for row in rows {
        let again = row
            .again_per_lost
            .map_or("-".to_owned(), |again| format!("{again:.2}"));
        let f = &row.frames;
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{:<22} {:>6.1} {:>5.3} {:>5.3} {:>5.3} {:>7} {again:>10} {:>8} {:>6} {:>6} | {:>5.1} {:>6.1} {:>6.0} | {:>4.2} {:>5.2} {:>6.1}",
            row.pattern,
            row.goodput_gbit.median,
            row.share.median,
            row.share.min,
            row.share.max,
            f.lost,
            f.probes_timeout,
            f.probes_early,
            f.nacks,
            row.p50_us,
            row.p99_us,
            row.max_us,
            row.p50_times,
            row.p99_times,
            row.max_times,
        );
    }
    text
}
