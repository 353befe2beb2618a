//! `tally-sim scale`: how large a simulation may be. Many jobs of a small model, on one switch, or
//! one job on a tree of switches; esa.

mod tree;

use super::models::Model;
use super::run::{Scenario, run};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fs;
use std::process::ExitCode;
use tally_engine::PolicyName;
use tally_report::{Machine, Report, Target};

/// How much to simulate.
#[derive(clap::Args)]
pub struct Args {
    /// Workers, over all jobs.
    #[arg(long, default_value_t = 1024)]
    workers: usize,

    /// Jobs.
    #[arg(long, default_value_t = 100)]
    jobs: usize,

    /// Slots of the pool.
    #[arg(long, default_value_t = 4096)]
    slots: u32,

    /// Iterations of each job.
    #[arg(long, default_value_t = 5)]
    iterations: u32,

    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Levels of switches; from 2 on, one job on a tree of them.
    #[arg(long, default_value_t = 1)]
    levels: u32,

    /// Members of each switch of a tree.
    #[arg(long, default_value_t = 16)]
    fan_in: u16,

    /// Fragments of each worker of a tree.
    #[arg(long, default_value_t = 64)]
    fragments: u64,
}

#[derive(Serialize)]
struct Results {
    simulated_ms: f64,
    wall_s: f64,
    events: u64,
    events_per_s: f64,
    peak_memory_bytes: u64,
    jct_ms: f64,
    from_ps: f64,
}

/// Simulates, and says what it took.
///
/// # Errors
/// When a sum is wrong or a job does not end.
pub fn run_args(args: &Args, json: bool) -> Result<ExitCode> {
    if args.levels > 1 {
        return tree::run_args(args, json);
    }
    let per_job = args.workers / args.jobs.max(1);
    let more = args.workers % args.jobs.max(1);
    ensure!(
        (1..=64).contains(&(per_job + usize::from(more > 0))) && args.jobs <= 255 && per_job > 0,
        "1 to 255 jobs of 1 to 64 workers"
    );
    ensure!(args.slots.is_power_of_two(), "slots: a power of two");
    let scenario = Scenario {
        mix: vec![Model::Small],
        jobs: args.jobs,
        workers: (0..args.jobs)
            .map(|job| (per_job + usize::from(job < more)) as u8)
            .collect(),
        slots: args.slots,
        ways: None,
        window: 256,
        scale: 8,
        iterations: args.iterations,
        unknown_lengths: false,
        shared_nic: None,
        colocated_ps: false,
        stalls: None,
        fabric: None,
    };
    let outcome = run(&scenario, PolicyName::Esa, args.seed)?;
    let results = Results {
        simulated_ms: outcome.simulated_ms,
        wall_s: outcome.wall_s,
        events: outcome.events,
        events_per_s: outcome.events as f64 / outcome.wall_s,
        peak_memory_bytes: peak_memory_bytes()?,
        jct_ms: outcome.jct_ms(),
        from_ps: outcome.from_ps,
    };
    let gib = results.peak_memory_bytes as f64 / f64::from(1 << 30);
    let table = format!(
        "{} workers in {} jobs, {} slots, esa, seed {}: every sum right\n\
         simulated {:.1} ms in {:.1} s: {} events, {:.1} million a second; {gib:.2} GiB at most\n\
         mean completion time {:.2} ms, {:.1} % of results by parameter servers\n",
        args.workers,
        args.jobs,
        args.slots,
        args.seed,
        results.simulated_ms,
        results.wall_s,
        results.events,
        results.events_per_s / 1e6,
        results.jct_ms,
        100.0 * results.from_ps
    );
    let targets = vec![
        Target::at_most("wall time", results.wall_s, "s", 600.0, "one thread"),
        Target::at_most("peak memory", gib, "GiB", 8.0, "VmHWM of the process"),
    ];
    let report = Report::new(Machine::detect(), &scenario, &results, targets, table)?;
    report.print(json)?;
    Ok(if report.is_missed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The most memory that this process has had, as Linux counts it.
fn peak_memory_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map(|kib| kib << 10)
        .context("no VmHWM in /proc/self/status")
}
