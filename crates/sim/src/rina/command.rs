//! The command line of `tally-sim rina`.

use super::fabric::Shape;
use super::rings::Transfer;
use super::sweep::{Row, Scheme, sweep, targets};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use tally_report::{Line, Machine, Plot, Report};

/// Colours of the schemes' lines.
const COLOURS: [&str; 7] = [
    "#c0392b", "#e67e22", "#7d6608", "#2471a3", "#1e8449", "#6c3483", "#566573",
];
const WORKERS_MAX: usize = 4096;

/// Racks and workers of each, as `8x8`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    racks: usize,
    workers: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed =
            || format!("{text}: must be RACKSxWORKERS, 2x1 to 4096 workers, 64 in a rack");
        let (racks, workers) = text.split_once('x').ok_or_else(allowed)?;
        let number = |text: &str| text.parse().map_err(|_| allowed());
        let (racks, workers) = (number(racks)?, number(workers)?);
        let all = usize::saturating_mul(racks, workers);
        if racks < 2 || !(1..=64).contains(&workers) || all > WORKERS_MAX {
            return Err(allowed());
        }
        Ok(Self { racks, workers })
    }
}

/// What to simulate.
#[derive(clap::Args)]
pub struct Args {
    /// 8x8 and 16 MiB.
    #[arg(long, conflicts_with_all = ["sizes", "mib"])]
    quick: bool,

    /// Racks and workers of each.
    #[arg(long, value_delimiter = ',', default_values = ["8x8", "16x16"])]
    sizes: Vec<Size>,

    /// Size of an all-reduce, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,

    /// Rate of a host's link, in Gbit/s.
    #[arg(long, default_value_t = 100.0)]
    rate_gbit: f64,

    /// Delay of each link, in µs. Between hosts of two racks there are four.
    #[arg(long, default_value_t = 1.0)]
    delay_us: f64,

    /// What the hosts of a rack can send, over what its uplink can.
    #[arg(long, default_value_t = 1.0)]
    oversubscription: f64,

    /// Size of a segment, in KiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    segment_kib: u64,

    /// Window of a worker at its switch or parameter server, in KiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    window_kib: u64,

    /// Folder for a plot of each size, `rina-8x8.svg`.
    #[arg(long)]
    out: Option<PathBuf>,

    /// Number of threads; unless given, one for each core.
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Serialize)]
struct Parameters {
    sizes: Vec<Size>,
    transfer: Transfer,
    rate_gbit: f64,
    delay_us: f64,
    oversubscription: f64,
}

#[derive(Serialize)]
struct Results<'a> {
    rows: &'a [Row],
}

/// Simulates the sweep, and prints a row for each scheme and deployment.
///
/// # Errors
/// When an option is out of its range, or a sum is wrong.
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
    ensure!(
        (1.0..=1000.0).contains(&args.oversubscription),
        "--oversubscription {}: must be from 1 to 1000",
        args.oversubscription
    );
    let (racks, workers) = (8, 8);
    let (sizes, mib) = if args.quick {
        (vec![Size { racks, workers }], 16)
    } else {
        (args.sizes.clone(), args.mib)
    };
    let transfer = Transfer {
        bytes: mib << 20,
        segment_bytes: args.segment_kib << 10,
        window_bytes: args.window_kib << 10,
    };
    let shapes: Vec<_> = sizes.iter().flat_map(|&size| shapes(args, size)).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores);
    let rows = sweep(&shapes, &Scheme::ALL, transfer, threads)?;
    if let Some(out) = &args.out {
        fs::create_dir_all(out).with_context(|| out.display().to_string())?;
        for size in &sizes {
            plot(&rows, *size, mib, out)?;
        }
    }
    let text = format!(
        "{mib} MiB, {} Gbit/s, {} µs each link, segments of {} KiB; every sum exact\n\n{}",
        args.rate_gbit,
        args.delay_us,
        args.segment_kib,
        table(&rows)
    );
    let parameters = Parameters {
        sizes,
        transfer,
        rate_gbit: args.rate_gbit,
        delay_us: args.delay_us,
        oversubscription: args.oversubscription,
    };
    let results = Results { rows: &rows };
    let targets = targets(&rows);
    Report::new(Machine::detect(), &parameters, &results, targets, text)?.print(json)?;
    Ok(ExitCode::SUCCESS)
}

/// Racks replaced one by one, or by eighths; of many, by quarters.
fn shapes(args: &Args, size: Size) -> impl Iterator<Item = Shape> {
    let Size { racks, workers } = size;
    let parts = if racks > 16 { 4 } else { racks.min(8) };
    (0..=parts).map(move |n| Shape {
        racks,
        workers,
        summing: racks * n / parts,
        rate_gbit: args.rate_gbit,
        delay_ns: (args.delay_us * 1e3) as u64,
        oversubscription: args.oversubscription,
    })
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "racks  summing scheme        steps        ms     model  to model  share of link  bytes on link\n",
    );
    for row in rows {
        let size = format!("{}x{}", row.racks, row.workers_per_rack);
        let summing = if row.scheme.sums() {
            row.summing.to_string()
        } else {
            "any".to_owned()
        };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{size:<6} {summing:>7} {:<12} {:>6} {:>9.3} {:>9.3} {:>9.3} {:>14.4} {:>14.3}",
            row.scheme.name(),
            row.steps,
            row.ms,
            row.model_ms,
            row.to_model,
            row.share,
            row.link
        );
    }
    text
}

/// A plot of the times at a size, by the number of racks that sum.
fn plot(rows: &[Row], size: Size, mib: u64, out: &Path) -> Result<()> {
    let Size { racks, workers } = size;
    let of_size: Vec<_> = rows
        .iter()
        .filter(|row| (row.racks, row.workers_per_rack) == (racks, workers))
        .collect();
    let mut places: Vec<_> = of_size.iter().map(|row| row.summing).collect();
    places.sort_unstable();
    places.dedup();
    let line = |(scheme, colour): (&Scheme, &'static str)| Line {
        name: scheme.name().to_owned(),
        colour,
        values: places
            .iter()
            .map(|&summing| {
                let summing = if scheme.sums() { summing } else { 0 };
                let row = of_size
                    .iter()
                    .find(|row| row.scheme == *scheme && row.summing == summing)?;
                Some((row.ms, row.ms, row.ms))
            })
            .collect(),
    };
    let plot = Plot {
        title: format!("All-reduce of {mib} MiB over {racks} racks of {workers}"),
        x: "racks whose switch sums".to_owned(),
        y: "time, ms".to_owned(),
        places: places.iter().map(usize::to_string).collect(),
        is_joined: true,
        marks: Vec::new(),
        lines: Scheme::ALL.iter().zip(COLOURS).map(line).collect(),
    };
    let path = out.join(format!("rina-{racks}x{workers}.svg"));
    fs::write(&path, plot.svg()).with_context(|| path.display().to_string())
}
