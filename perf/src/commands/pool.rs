//! `tally-perf pool`: throughput of one core by the size of the pool, from L1 to main memory.
//!
//! # What is measured
//!
//! Scarce memory is cache (decision 4 of the design). A fragment's slot is touched once for each
//! worker; the memory touched between two of these times is that of all fragments in flight. So the
//! captures let worker after worker send a whole *turn* of fragments: first all of worker 0, then
//! all of worker 1. Each slot is touched again only after all others of the turn. A turn with the
//! size of a cache is a pool of that size.
//!
//! Two programs do it. `switch` is one core of the real switch, fed as in `datapath`: frames are
//! copied in from captures that no cache holds. `engine` is its pool shard alone, with
//! contributions that are in L1 already. A NIC lies between: it costs the core no copy, and DDIO
//! puts frames into L3.
//!
//! # The catches
//!
//! - Bytes are those of payloads in slots. A frame of the switch also has 64 bytes of headers and
//!   128 of DPDK's own, each slot 64 or more, and the driver reads and writes each frame once. All
//!   of that occupies cache beside the pool, so the knee lies below a cache's size.
//! - On ordinary pages DPDK begins each frame on a page of its own: 1 KiB frames then share a
//!   quarter of a cache's sets, which is the reason to have hugepages.
//! - The first contribution of a fragment is kept, not summed: of 4 workers, three quarters are
//!   summed.

mod engine;

use crate::record::Record;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use simd_json::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use tally_load::capture::Shape;
use tally_report::{Line, Machine, Plot, Report, Spread};
use tally_testkit::replay::{Captures, Cpus, Switch};

/// Pools in KiB: from less than L1 to more than L3.
const POOLS_KIB: [u32; 13] = [
    16,
    32,
    64,
    128,
    256,
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    64 << 10,
    128 << 10,
];
/// Captures of fewer bytes than this are made longer: none should fit a cache.
const CAPTURE_BYTES_MIN: u64 = 160 << 20;
/// Frames of a capture at most; each takes a page or three of memory.
const CAPTURE_FRAMES_MAX: u32 = 400_000;
/// L1d, L2 and L3 where the machine does not say.
const USUAL_BYTES: [(&str, usize); 3] = [("L1d", 32 << 10), ("L2", 1 << 20), ("L3", 32 << 20)];

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Payloads in bytes, separated by commas: powers of two from 64 to 8192
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 8192])]
    payload: Vec<u16>,

    /// Pools in KiB of payload, separated by commas: powers of two
    #[arg(long, value_delimiter = ',', default_values_t = POOLS_KIB)]
    pool: Vec<u32>,

    /// Workers, 2 to 64
    #[arg(long, default_value_t = 4)]
    workers: u8,

    /// Rounds, each over all pools
    #[arg(long, default_value_t = 3)]
    rounds: u32,

    /// Measured seconds of each pool in a round
    #[arg(long, default_value_t = 1)]
    seconds: u32,

    /// The engine alone, no switch
    #[arg(long)]
    no_switch: bool,

    /// File for the plot, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Serialize)]
struct Parameters<'a> {
    workers: u8,
    cpus: Cpus,
    rounds: u32,
    seconds: u32,
    payload_bytes: &'a [u16],
    pool_kib: &'a [u32],
    memory: &'static str,
}

/// One program with one pool.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Row {
    program: String,
    payload_bytes: u16,
    pool_bytes: u64,
    fragments: u32,
    /// Payload that came in, per second of the core's time.
    gbit_per_s: Option<Spread>,
    /// Divided by that with the smallest pool in the same round.
    to_smallest: Option<Spread>,
    /// Why nothing was measured.
    why_not: Option<String>,
}

/// Runs it.
///
/// # Errors
/// If a program does not run, or did anything else than to sum.
pub fn run(args: &Args) -> Result<Report> {
    check(args)?;
    let machine = Machine::detect();
    let switch = match args.no_switch {
        true => None,
        false => Some(Switch::beside_this_program()?),
    };
    let cpus = Cpus::of_this_machine();
    let mut rows = Vec::new();
    for &payload_bytes in &args.payload {
        measure(args, switch.as_ref(), cpus, payload_bytes, &mut rows)?;
    }
    if let Some(path) = &args.plot {
        tally_config::write_whole(path, plot(args.workers, &machine.cache_bytes, &rows).svg())
            .with_context(|| path.display().to_string())?;
    }
    let parameters = Parameters {
        workers: args.workers,
        cpus,
        rounds: args.rounds,
        seconds: args.seconds,
        payload_bytes: &args.payload,
        pool_kib: &args.pool,
        memory: "ordinary pages",
    };
    let table = table(args, cpus, &machine, &rows);
    Report::new(machine, &parameters, &rows, Vec::new(), table)
}

fn check(args: &Args) -> Result<()> {
    ensure!(
        args.rounds > 0 && args.seconds > 0,
        "--rounds and --seconds: at least 1"
    );
    ensure!(
        (2..=64).contains(&args.workers),
        "--workers {}: 2 to 64",
        args.workers
    );
    for payload in &args.payload {
        ensure!(
            payload.is_power_of_two() && (64..=8192).contains(payload),
            "--payload {payload}: a power of two from 64 to 8192"
        );
    }
    let least = args.payload.iter().max().map_or(0, |p| 2 * u32::from(*p));
    for pool in &args.pool {
        ensure!(
            pool.is_power_of_two() && (least..=1 << 30).contains(&(pool << 10)) && *pool < 1 << 20,
            "--pool {pool}: KiB, a power of two, two payloads or more, below 1048576"
        );
    }
    ensure!(
        args.pool.is_sorted() && !args.pool.is_empty() && !args.payload.is_empty(),
        "--pool: from small to large; --payload: at least one"
    );
    Ok(())
}

fn shape(args: &Args, payload_bytes: u16, fragments: u32) -> Shape {
    let mut shape = Shape {
        jobs: 1,
        workers: args.workers,
        ports: 1,
        payload_bytes,
        element: "i32",
        run_fragments: fragments,
        turn_fragments: fragments,
        shards: 1,
    };
    while u64::from(shape.frames()) * (shape.frame_bytes() as u64) < CAPTURE_BYTES_MIN {
        shape.run_fragments *= 2;
    }
    shape
}

/// Both programs at all pools with one payload.
fn measure(
    args: &Args,
    switch: Option<&Switch>,
    cpus: Cpus,
    payload_bytes: u16,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let pools: Vec<_> = args
        .pool
        .iter()
        .map(|kib| (kib << 10) / u32::from(payload_bytes))
        .collect();
    let mut switches = vec![Vec::new(); pools.len()];
    let mut engines = vec![Vec::new(); pools.len()];
    core_affinity::set_for_current(core_affinity::CoreId { id: cpus.data });
    for round in 1..=args.rounds {
        for (at, &fragments) in pools.iter().enumerate() {
            eprintln!(
                "payload {payload_bytes} B, pool {} KiB, round {round} of {}",
                args.pool[at], args.rounds
            );
            let bytes_per_s =
                engine::measure(fragments, args.workers, payload_bytes, args.seconds.into())
                    .context("the engine did not only sum")?;
            engines[at].push(bytes_per_s * 8.0 / 1e9);
            let shape = shape(args, payload_bytes, fragments);
            if let Some(switch) = switch
                && shape.frames() <= CAPTURE_FRAMES_MAX
            {
                // One at a time: the largest take more than a gigabyte.
                let captures = Captures::of(shape)?;
                let rate = switch.measure(&captures, cpus, args.seconds)?;
                let bits = f64::from(payload_bytes) * 8.0;
                switches[at].push(rate.frames_per_s * bits / 1e9);
            }
        }
    }
    for (program, samples) in [("switch", switches), ("engine", engines)] {
        if program == "switch" && switch.is_none() {
            continue;
        }
        for (at, of_pool) in samples.iter().enumerate() {
            let ratios: Vec<_> = of_pool
                .iter()
                .zip(&samples[0])
                .map(|(a, b)| a / b)
                .collect();
            let frames = shape(args, payload_bytes, pools[at]).frames();
            rows.push(Row {
                program: program.to_owned(),
                payload_bytes,
                pool_bytes: u64::from(args.pool[at]) << 10,
                fragments: pools[at],
                gbit_per_s: Spread::of(of_pool),
                to_smallest: Spread::of(&ratios),
                why_not: of_pool.is_empty().then(|| {
                    format!(
                        "captures of {frames} frames, of which {CAPTURE_FRAMES_MAX} are the most"
                    )
                }),
            });
        }
    }
    Ok(())
}

/// The plot of a record; none if it has other results.
pub(super) fn plot_of(record: &Record) -> Option<Plot> {
    let workers = record.content.parameters.get_u8("workers")?;
    let rows: Vec<Row> = simd_json::serde::from_owned_value(record.content.results.clone()).ok()?;
    Some(plot(workers, &record.content.machine.cache_bytes, &rows))
}

fn plot(workers: u8, cache_bytes: &BTreeMap<String, usize>, rows: &[Row]) -> Plot {
    const COLOURS: [&str; 6] = [
        "#c0392b", "#2471a3", "#1e8449", "#7d6608", "#6c3483", "#5d6d7e",
    ];
    let mut pools: Vec<_> = rows.iter().map(|row| row.pool_bytes).collect();
    pools.sort_unstable();
    pools.dedup();
    let mut names: Vec<_> = rows
        .iter()
        .map(|row| (row.program.clone(), row.payload_bytes))
        .collect();
    names.dedup();
    let line = |((program, payload_bytes), colour): ((String, u16), &&'static str)| {
        let of_pool = |pool: &u64| {
            let row = rows.iter().find(|row| {
                (&row.program, row.payload_bytes, row.pool_bytes)
                    == (&program, payload_bytes, *pool)
            });
            row.and_then(|row| row.gbit_per_s)
                .map(|s| (s.median, s.min, s.max))
        };
        Line {
            values: pools.iter().map(of_pool).collect(),
            name: format!("{program}, {payload_bytes} B"),
            colour,
        }
    };
    let marks = USUAL_BYTES.iter().filter_map(|&(name, usual)| {
        let bytes = cache_bytes.get(name).copied().unwrap_or(usual);
        Some((
            place(&pools, bytes as f64)?,
            format!("{name} {}", kib(bytes as u64 >> 10)),
        ))
    });
    Plot {
        title: format!("One core's goodput by the size of the pool, {workers} workers"),
        x: "payload bytes in slots at a time".to_owned(),
        y: "Gbit/s of payload".to_owned(),
        places: pools.iter().map(|&bytes| kib(bytes >> 10)).collect(),
        is_joined: true,
        marks: marks.collect(),
        lines: names
            .into_iter()
            .zip(COLOURS.iter().cycle())
            .map(line)
            .collect(),
    }
}

/// Where a size lies among those that were measured; none outside of them.
fn place(pools: &[u64], size: f64) -> Option<f64> {
    let at = pools
        .windows(2)
        .position(|pair| (pair[0] as f64..=pair[1] as f64).contains(&size))?;
    let (low, high) = (pools[at] as f64, pools[at + 1] as f64);
    Some(at as f64 + (size / low).ln() / (high / low).ln())
}

fn kib(n: u64) -> String {
    if n >= 1 << 10 {
        format!("{}M", n >> 10)
    } else {
        format!("{n}K")
    }
}

fn table(args: &Args, cpus: Cpus, machine: &Machine, rows: &[Row]) -> String {
    let mut out = format!(
        "{} workers, i32, ordinary pages; CPU {} for the core of switch and engine in turn, CPU {} for the \
         control thread\n{} rounds of {} s; median of the rounds, with least and most\n",
        args.workers, cpus.data, cpus.control, args.rounds, args.seconds
    );
    let caches = USUAL_BYTES.map(|(name, _)| match machine.cache_bytes.get(name) {
        Some(bytes) => format!("{name} {}", kib((bytes >> 10) as u64)),
        None => format!("{name} unknown"),
    });
    let _ = writeln!(
        out,
        "{}\n\n{:<8} {:>7} {:>9} {:>9}  {:<22} to the smallest pool",
        caches.join(", "),
        "program",
        "payload",
        "pool",
        "fragments",
        "Gbit/s of payload"
    );
    for row in rows {
        let spread = |spread: Option<Spread>, digits: usize| {
            spread.map_or("-".to_owned(), |s| {
                format!(
                    "{:.digits$} ({:.digits$}-{:.digits$})",
                    s.median, s.min, s.max
                )
            })
        };
        let _ = writeln!(
            out,
            "{:<8} {:>7} {:>9} {:>9}  {:<22} {}",
            row.program,
            row.payload_bytes,
            kib(row.pool_bytes >> 10),
            row.fragments,
            spread(row.gbit_per_s, 1),
            row.why_not
                .clone()
                .unwrap_or_else(|| spread(row.to_smallest, 2))
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_marked_where_they_are_among_the_pools() {
        assert_eq!(place(&[16, 64, 256], 16.0), Some(0.0));
        assert_eq!(place(&[16, 64, 256], 32.0), Some(0.5));
        assert_eq!(place(&[16, 64, 256], 256.0), Some(2.0));
        assert_eq!(place(&[16, 64, 256], 8.0), None);
        assert_eq!(place(&[16], 16.0), None);
    }

    #[test]
    fn the_engine_only_sums_at_each_size_of_the_pool() {
        for (fragments, workers) in [(2, 2), (32, 4), (1024, 64)] {
            let rate = engine::measure(fragments, workers, 64, 0.001);
            assert!(rate.is_some_and(|rate| rate > 0.0), "{fragments} {workers}");
        }
    }
}
