//! The command line of `tally-sim jct`.

use super::leaf_spine::{self, OfScheme};
use super::run::Outcome;
use super::summary::{OfPoint, table, targets};
use super::sweep::{CONTENDERS, Contender, Measured, Point, all, quick, sweep};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use tally_engine::PolicyName;
use tally_report::{Line, Machine, Plot, Report};

/// What sizes and computation are divided by: docs/JCT.md says why.
const SCALE: u64 = 16;
/// The same of `--quick`.
const SCALE_QUICK: u64 = 128;

/// What to compare.
#[derive(clap::Args)]
pub struct Args {
    /// Three points and one seed at a larger scale: proves sums, without targets for times.
    #[arg(long)]
    quick: bool,

    /// Folder for plots, as SVG.
    #[arg(long)]
    out: Option<PathBuf>,

    /// Name of a point, or of an axis, to run in place of all; may be repeated.
    #[arg(long = "point")]
    points: Vec<String>,

    /// Policy to run, in place of all; may be repeated.
    #[arg(long = "policy")]
    policies: Vec<PolicyName>,

    /// Number of seeds, from 1.
    #[arg(long, default_value_t = 3)]
    seeds: u64,

    /// The only seed.
    #[arg(long)]
    seed: Option<u64>,

    /// Divisor of sizes and computation: 16 unless given, 128 with `--quick`.
    #[arg(long)]
    scale: Option<u64>,

    /// Slots that a fragment may be in, for all policies: 1, 2, 4 or 8. Unless given, the switch's
    /// default of each policy: esa 8, the others 1 as in their papers; and esa-1 and fcfs-8.
    #[arg(long)]
    ways: Option<u32>,

    /// Number of threads; unless given, one for each core.
    #[arg(long)]
    threads: Option<usize>,

    /// A breakdown of every run: where time and fragments went.
    #[arg(long)]
    explain: bool,
}

#[derive(Serialize)]
struct Parameters<'a> {
    scale: u64,
    ways: Option<u32>,
    seeds: &'a [u64],
    threads: usize,
}

#[derive(Serialize)]
struct Results {
    points: Vec<OfPoint>,
    leaf_spine: Vec<OfScheme>,
    runs: usize,
    wall_s: f64,
    /// Real time of the slowest run at the default point.
    default_run_wall_s: f64,
}

/// Compares, and prints what came of it.
///
/// # Errors
/// When a run fails: a wrong sum, a job that does not end, a lost frame. Or when plots cannot be
/// written.
pub fn run_args(args: &Args, json: bool) -> Result<ExitCode> {
    let started = Instant::now();
    let scale = args
        .scale
        .unwrap_or(if args.quick { SCALE_QUICK } else { SCALE });
    ensure!(scale > 0, "a scale of 0");
    ensure!(
        args.ways.is_none_or(|ways| [1, 2, 4, 8].contains(&ways)),
        "ways: 1, 2, 4 or 8"
    );
    let seeds: Vec<u64> = match args.seed {
        Some(seed) => vec![seed],
        None if args.quick => vec![1],
        None => (1..=args.seeds.max(1)).collect(),
    };
    let points = chosen(args, scale)?;
    let contenders = contenders(args);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores);
    if args.explain {
        return explain(&points, &contenders, &seeds);
    }
    let told = |point: &Point, outcome: &Outcome| {
        if !args.quick {
            eprintln!(
                "{} {} seed {}: {:.2} ms, {:.1} s",
                point.name,
                outcome.policy,
                outcome.seed,
                outcome.jct_ms(),
                outcome.wall_s
            );
        }
    };
    let (fabric, points): (Vec<_>, Vec<_>) = points
        .into_iter()
        .partition(|p| p.scenario.fabric.is_some());
    let measured = sweep(points, &contenders, &seeds, threads, &told)?;
    let schemes = sweep(fabric, of_fabric(&contenders), &seeds, threads, &told)?;
    let runs = |all: &[Measured]| {
        all.iter()
            .flat_map(|m| &m.outcomes)
            .map(Vec::len)
            .sum::<usize>()
    };
    let count = runs(&measured) + runs(&schemes);
    let points: Vec<_> = measured.into_iter().map(OfPoint::new).collect();
    let schemes = leaf_spine::schemes(schemes);
    if let Some(out) = &args.out {
        plots(&points, out)?;
    }
    let default_run = points
        .iter()
        .filter(|p| p.point == "default")
        .flat_map(|p| p.policies.iter().flat_map(|p| &p.runs))
        .map(|run| run.wall_s)
        .fold(0.0, f64::max);
    let wall_s = started.elapsed().as_secs_f64();
    let text = format!(
        "scale 1/{scale}, ways {}, seeds {seeds:?}, every sum right\n\n{}{}\n{count} runs in {wall_s:.0} s on {threads} threads; \
         the slowest at the default point took {default_run:.1} s\n",
        args.ways
            .map_or("as each policy has".to_owned(), |ways| ways.to_string()),
        table(&points),
        leaf_spine::table(&schemes)
    );
    let parameters = Parameters {
        scale,
        ways: args.ways,
        seeds: &seeds,
        threads,
    };
    let mut targets = targets(&points, !args.quick);
    targets.extend(leaf_spine::targets(&schemes, !args.quick));
    let results = Results {
        points,
        leaf_spine: schemes,
        runs: count,
        wall_s,
        default_run_wall_s: default_run,
    };
    Report::new(Machine::detect(), &parameters, &results, targets, text)?.print(json)?;
    Ok(ExitCode::SUCCESS)
}

/// The points that are asked for.
fn chosen(args: &Args, scale: u64) -> Result<Vec<Point>> {
    let mut points = if args.quick {
        quick(scale, args.ways)
    } else {
        all(scale, args.ways)
    };
    points.extend(leaf_spine::points(scale));
    let is_called =
        |point: &Point, name: &String| point.name == *name || point.axes.contains(&name.as_str());
    for name in &args.points {
        let known = || {
            let names: Vec<_> = points.iter().map(|p| p.name.as_str()).collect();
            names.join(", ")
        };
        let found = points.iter().any(|point| is_called(point, name));
        ensure!(found, "no point {name}; there are: {}", known());
    }
    if !args.points.is_empty() {
        points.retain(|point| args.points.iter().any(|name| is_called(point, name)));
    }
    Ok(points)
}

/// What is compared: one width of each policy if `--ways` gives the width, or for a quick run.
fn contenders(args: &Args) -> Vec<Contender> {
    let one_each = args.quick || args.ways.is_some();
    let is_chosen = |it: &Contender| {
        (args.policies.is_empty() || args.policies.contains(&it.policy))
            && !(one_each && it.ways.is_some())
    };
    CONTENDERS.into_iter().filter(is_chosen).collect()
}

/// The policy of switches in a fabric: one is enough, since schemes are compared there.
fn of_fabric(contenders: &[Contender]) -> &[Contender] {
    &contenders[..contenders.len().min(1)]
}

/// Prints what each run did, one after another.
fn explain(points: &[Point], contenders: &[Contender], seeds: &[u64]) -> Result<ExitCode> {
    for point in points {
        let contenders = match point.scenario.fabric {
            Some(_) => of_fabric(contenders),
            None => contenders,
        };
        for contender in contenders {
            for &seed in seeds {
                let outcome = contender.run(&point.scenario, seed)?;
                let written = writeln!(
                    io::stdout(),
                    "{} {} seed {seed}: mean completion time {:.3} ms; {} events in {:.1} s\n{}",
                    point.name,
                    contender.name,
                    outcome.jct_ms(),
                    outcome.events,
                    outcome.wall_s,
                    outcome.breakdown
                );
                // A reader that went away has seen enough.
                if written.is_err() {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

const COLOURS: [&str; 6] = [
    "#c0392b", "#e59866", "#2471a3", "#7fb3d5", "#1e8449", "#7d6608",
];
const AXES: [(&str, &str); 4] = [
    ("slots", "slots of the pool (1 KiB each)"),
    ("jobs", "jobs"),
    ("workers", "workers of each job"),
    ("mix", "mix of models"),
];

/// A plot for each axis of the sweep.
fn plots(points: &[OfPoint], out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    for (axis, label) in AXES {
        let mut at: Vec<_> = points.iter().filter(|p| p.axes.contains(&axis)).collect();
        at.sort_by_key(|p| match axis {
            "slots" => p.scenario.slots as usize,
            "jobs" => p.scenario.jobs,
            "workers" => usize::from(p.scenario.workers[0]),
            _ => 0,
        });
        if at.len() < 2 {
            continue;
        }
        let lines = CONTENDERS.iter().zip(COLOURS).map(|(it, colour)| Line {
            name: it.name.to_owned(),
            colour,
            values: at
                .iter()
                .map(|p| p.named(it.name).map(|p| p.jct_ms))
                .map(|s| s.map(|s| (s.median, s.min, s.max)))
                .collect(),
        });
        let plot = Plot {
            title: format!("Mean job completion time by {axis}"),
            x: label.to_owned(),
            y: "mean job completion time, ms".to_owned(),
            places: at.iter().map(|p| p.scenario.label(axis)).collect(),
            is_joined: axis != "mix",
            marks: Vec::new(),
            lines: lines.collect(),
        };
        let path = out.join(format!("jct-{axis}.svg"));
        fs::write(&path, plot.svg()).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
