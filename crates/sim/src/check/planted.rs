//! `tally-sim planted`: bugs planted on purpose, each of which the checkers must find.

use super::findings::Finding;
use super::run_many;
use anyhow::{Result, bail};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Instant;
use tally_report::{Machine, Report, Target};

/// How hard to look.
#[derive(clap::Args)]
pub struct Args {
    /// How many seeds each bug has to show itself in, from 0.
    #[arg(long, default_value_t = 500)]
    seeds: u64,

    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Serialize)]
struct Parameters {
    seeds: u64,
    threads: usize,
}

#[derive(Serialize)]
struct Found {
    bug: String,
    seed: Option<u64>,
    seeds_run: u64,
    checker: Option<String>,
    text: Option<String>,
    wall_s: f64,
}

/// A bug, and the switch that turns it on and off.
struct Planted {
    name: String,
    choose: Box<dyn Fn(bool)>,
}

#[cfg(feature = "planted")]
fn bugs() -> Vec<Planted> {
    use tally_endpoint::planted as endpoint;
    use tally_engine::planted as engine;
    let mut bugs: Vec<Planted> = Vec::new();
    for &bug in engine::Bug::ALL {
        let choose = move |on: bool| engine::choose(on.then_some(bug));
        bugs.push(Planted {
            name: format!("engine {bug:?}"),
            choose: Box::new(choose),
        });
    }
    for &bug in endpoint::Bug::ALL {
        let choose = move |on: bool| endpoint::choose(on.then_some(bug));
        bugs.push(Planted {
            name: format!("endpoint {bug:?}"),
            choose: Box::new(choose),
        });
    }
    bugs
}

#[cfg(not(feature = "planted"))]
fn bugs() -> Vec<Planted> {
    Vec::new()
}

/// Runs it. The exit code says whether every bug was found.
///
/// # Errors
/// If no bugs are planted in this program, or the report cannot be printed.
pub fn run_args(args: &Args, json: bool) -> Result<ExitCode> {
    super::quiet_panics();
    let bugs = bugs();
    if bugs.is_empty() {
        bail!(
            "no bugs are planted in this program; build it with them: \
             cargo run --release -p tally-sim --features planted -- planted"
        );
    }
    let mut found = Vec::new();
    for Planted { name, choose } in bugs {
        let start = Instant::now();
        choose(true);
        let mut first: Option<(u64, Finding)> = None;
        let mut seeds_run = 0;
        run_many(0..args.seeds, args.threads.max(1), |outcome| {
            seeds_run += 1;
            // The other thread may be in the middle of one that finds nothing.
            if first.is_none() {
                first = outcome.finding.map(|finding| (outcome.seed, finding));
            }
            first.is_none()
        });
        choose(false);
        found.push(Found {
            bug: name,
            seed: first.as_ref().map(|(seed, _)| *seed),
            seeds_run,
            checker: first.as_ref().map(|(_, f)| format!("{:?}", f.checker)),
            text: first.map(|(_, f)| f.text),
            wall_s: start.elapsed().as_secs_f64(),
        });
    }
    let table = found.iter().map(|f| {
        let (seed, checker) = (f.seed.map(|s| s.to_string()), f.checker.as_deref());
        format!(
            "{:<28} {:>6} {:<12} {:.1} s\n",
            f.bug,
            seed.as_deref().unwrap_or("-"),
            checker.unwrap_or("NOT FOUND"),
            f.wall_s
        )
    });
    let header = format!("{:<28} {:>6} {:<12}\n", "bug", "seed", "found by");
    let table = header + &table.collect::<String>();
    let missed = found.iter().filter(|f| f.seed.is_none()).count();
    let parameters = Parameters {
        seeds: args.seeds,
        threads: args.threads,
    };
    let target = Target::at_most(
        "planted bugs that were not found",
        missed as f64,
        "bugs",
        0.0,
        "every one, within the seeds",
    );
    let machine = Machine::detect();
    Report::new(machine, &parameters, &found, vec![target], table)?.print(json)?;
    Ok(if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
