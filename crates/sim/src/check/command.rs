//! The command line of `tally-sim check`.

use super::{Outcome, Totals, describe, run, run_many};
use anyhow::Result;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Instant;
use tally_report::{Machine, Report, Target};

/// Records of a trace that are kept for a failing seed.
const TAIL_RECORDS: usize = 60;
/// Records that `--trace` keeps: all, for any run that people would read.
const TRACE_RECORDS: usize = 5_000_000;

/// What to check.
#[derive(clap::Args)]
pub struct Args {
    /// Number of seeds.
    #[arg(long, default_value_t = 500)]
    seeds: u64,

    /// The only seed; its options are printed.
    #[arg(long)]
    seed: Option<u64>,

    /// First seed.
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// Number of threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,

    /// No stop at the first seed that fails.
    #[arg(long)]
    keep_going: bool,

    /// The events of the seed, printed.
    #[arg(long, requires = "seed")]
    trace: bool,
}

#[derive(Serialize)]
struct Parameters {
    first: u64,
    seeds: u64,
    threads: usize,
}

#[derive(Serialize)]
struct Found {
    seed: u64,
    checker: String,
    text: String,
    options: String,
}

#[derive(Serialize)]
struct Results {
    seeds_run: u64,
    incarnations: u64,
    incidents: u64,
    worker_fragments: u64,
    summed_in_switch: u64,
    summed_in_groups: u64,
    switchml_results: u64,
    worlds_with_rings: u64,
    ring_all_reduces: u64,
    ring_epochs: u64,
    ring_sums: u64,
    ring_sums_again: u64,
    ring_trees: u64,
    ring_partials_again: u64,
    collectives: u64,
    worlds_with_card: u64,
    card_moves: u64,
    card_failovers: u64,
    card_results: u64,
    card_hostile_frames: u64,
    whole_frames: u64,
    whole_frames_forwarded: u64,
    worlds_of_two_switches: u64,
    trunk_frames: u64,
    worlds_of_trees: u64,
    worlds_with_loops: u64,
    events: u64,
    simulated_s: u64,
    wall_s: f64,
    failed: Vec<Found>,
}

/// Runs it. The exit code says whether everything held.
///
/// # Errors
/// If the report cannot be printed.
pub fn run_args(args: &Args, json: bool) -> Result<ExitCode> {
    super::quiet_panics();
    let seeds = match args.seed {
        Some(seed) => seed..seed + 1,
        None => args.first..args.first + args.seeds,
    };
    if let Some(seed) = args.seed
        && !json
    {
        println!("seed {seed}\n{}", describe(seed));
    }
    let start = Instant::now();
    let mut totals = Totals::default();
    let (mut ran, mut failed) = (0, Vec::new());
    if args.trace {
        let outcome = run(seeds.start, TRACE_RECORDS);
        print!("{}", outcome.trace.as_deref().unwrap_or_default());
        take(outcome, &mut totals, &mut failed);
        ran = 1;
    } else {
        run_many(seeds.clone(), args.threads.max(1), |outcome| {
            ran += 1;
            take(outcome, &mut totals, &mut failed);
            failed.is_empty() || args.keep_going
        });
    }
    failed.sort_by_key(|outcome| outcome.seed);
    for outcome in &failed {
        explain(outcome, args.trace);
    }
    let results = Results {
        seeds_run: ran,
        incarnations: totals.incarnations,
        incidents: totals.incidents,
        worker_fragments: totals.fragments,
        summed_in_switch: totals.summed,
        summed_in_groups: totals.grouped,
        switchml_results: totals.switchml,
        worlds_with_rings: totals.rings,
        ring_all_reduces: totals.ring_all_reduces,
        ring_epochs: totals.ring_epochs,
        ring_sums: totals.ring_sums,
        ring_sums_again: totals.ring_sums_again,
        ring_trees: totals.ring_trees,
        ring_partials_again: totals.ring_partials_again,
        collectives: totals.collectives,
        worlds_with_card: totals.cards,
        card_moves: totals.moves,
        card_failovers: totals.failovers,
        card_results: totals.card_results,
        card_hostile_frames: totals.card_hostile,
        whole_frames: totals.whole,
        whole_frames_forwarded: totals.forwarded,
        worlds_of_two_switches: totals.fabrics,
        trunk_frames: totals.trunk,
        worlds_of_trees: totals.trees,
        worlds_with_loops: totals.loops,
        events: totals.events,
        simulated_s: totals.simulated_ms / 1000,
        wall_s: start.elapsed().as_secs_f64(),
        failed: failed.iter().filter_map(found).collect(),
    };
    let parameters = Parameters {
        first: seeds.start,
        seeds: seeds.end - seeds.start,
        threads: args.threads,
    };
    let target = Target::at_most(
        "seeds in which something did not hold",
        failed.len() as f64,
        "seeds",
        0.0,
        "every property of crates/sim/src/check/findings.rs, in every seed",
    );
    let machine = Machine::detect();
    Report::new(
        machine,
        &parameters,
        &results,
        vec![target],
        table(&results),
    )?
    .print(json)?;
    Ok(if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn table(results: &Results) -> String {
    format!(
        "{} seeds, {} incarnations of jobs, {} incidents, {} fragments of workers, {} events\n\
         {} contributions summed in switches, {} of them with others of their poll iteration\n\
         {} results of SwitchML, {} collectives of sessions\n\
         {} worlds with rings of RoCE hosts: {} epochs, {} all-reduces of members, {} sums of \
         packets, {} of them sent again; {} rings over trees, {} partial sums again\n\
         {} worlds with a card: {} moves of jobs, {} failovers, {} results of cards, \
         {} hostile frames of cards\n\
         {} whole frames of hostile and ordinary hosts, {} of them forwarded or answered\n\
         {} worlds of two switches, {} frames over their trunks; {} worlds of trees, \
         {} of them with loops\n\
         {} simulated seconds in {:.1} s\n",
        results.seeds_run,
        results.incarnations,
        results.incidents,
        results.worker_fragments,
        results.events,
        results.summed_in_switch,
        results.summed_in_groups,
        results.switchml_results,
        results.collectives,
        results.worlds_with_rings,
        results.ring_epochs,
        results.ring_all_reduces,
        results.ring_sums,
        results.ring_sums_again,
        results.ring_trees,
        results.ring_partials_again,
        results.worlds_with_card,
        results.card_moves,
        results.card_failovers,
        results.card_results,
        results.card_hostile_frames,
        results.whole_frames,
        results.whole_frames_forwarded,
        results.worlds_of_two_switches,
        results.trunk_frames,
        results.worlds_of_trees,
        results.worlds_with_loops,
        results.simulated_s,
        results.wall_s
    )
}

fn take(outcome: Outcome, totals: &mut Totals, failed: &mut Vec<Outcome>) {
    totals.add(&outcome.totals);
    if outcome.finding.is_some() {
        failed.push(outcome);
    }
}

fn found(outcome: &Outcome) -> Option<Found> {
    let finding = outcome.finding.as_ref()?;
    Some(Found {
        seed: outcome.seed,
        checker: format!("{:?}", finding.checker),
        text: finding.text.clone(),
        options: describe(outcome.seed),
    })
}

/// Runs a failing seed again, with a trace, and says everything about it.
fn explain(outcome: &Outcome, traced: bool) {
    let Some(finding) = &outcome.finding else {
        return;
    };
    eprintln!("\nseed {} FAILED: {finding}", outcome.seed);
    eprintln!("{}", describe(outcome.seed));
    if !traced {
        let again = run(outcome.seed, TAIL_RECORDS);
        eprint!("the last events:\n{}", again.trace.unwrap_or_default());
    }
    eprintln!(
        "again: cargo run --profile checked -p tally-sim -- check --seed {} [--trace]",
        outcome.seed
    );
}
