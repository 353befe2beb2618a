//! `tally-perf kernels`: how fast payloads are summed, beside `memcpy` of the same bytes.
//!
//! # What is compared
//!
//! A copy is the least that anything can do with a payload, so `memcpy` is the yardstick: the C
//! library's, reached by `copy_from_slice` with a length that the compiler does not know. Each
//! row replaces one call by another and leaves the rest as it is: same memory, same order, same
//! process, turns taken in every round.
//!
//! | row | model | per payload byte, a sum touches | and `memcpy` |
//! |---|---|---|---|
//! | `slot` | a switch with 8 workers: the first frame is the accumulator, the other 7 are added one by one as they arrive | reads it, reads and writes the slot, which is hot | reads it, writes the slot |
//! | `fused` | the same frames, all 7 there at once, added in one pass | reads it, reads and writes 1/7 of the slot | as in `slot`: 7 copies |
//! | `pair` | one frame into one accumulator, neither seen before | reads both, writes one | reads one, writes one |
//!
//! `slot` is what the data path does and is the main row. `pair` is the sum without the help of a
//! hot accumulator: it reads two streams where a copy reads one.
//!
//! Folds of sub-32-bit types (f16, bf16, i16, i8) have no row `slot`: they are made once, of all
//! payloads. In `pair` a fold widens, adds and narrows for a single contribution, of zeros.
//!
//! # Working sets
//!
//! The working set is the payload bytes of all frames, accumulators included: half of L1d, half of
//! L2, and beyond every cache (four times L3, at least 64 MiB). Frames lie one after another, each
//! payload behind the 64 bytes that its headers take, and are visited in order; large sets are
//! visited from where the last contender stopped, so that no contender finds lines in the cache
//! that another has just fetched. A slot of 8 payloads that does not fit the working set leaves its
//! cell empty.
//!
//! # The catches
//!
//! * Throughput counts the payload bytes that were summed, 8 bits each: 7 of a slot's 8 payloads.
//! * A round's ratio divides neighbours in time; the reported ratio is the median of the rounds'.
//!   That takes out a noisy machine's drift, not its noise: see the spread.
//! * The scalar row is the plain loop as LLVM compiles it for the target's baseline, which on
//!   x86-64 includes SSE2. LLVM vectorises both sums with it, that of floats well.
//! * Values are chosen so that nothing saturates and nothing becomes subnormal or a NaN. Sums that
//!   do saturate take a second pass.
//! * Memory is of ordinary pages. A switch on huge pages misses the TLB less.
//! * `copy_from_slice` is the variant that the C library picks for this CPU. From a few KiB on,
//!   glibc may copy with `rep movsb`, which need not read the destination; a sum must.
//!
//! # Where a copy wins, and why
//!
//! * In L1 a copy is one load and one store per vector, and a core of today stores one vector per
//!   cycle. A sum of big-endian integers also has three byte shuffles, of which Zen 5 makes two
//!   per cycle, so it cannot keep up; a sum of floats can, once a payload is long enough to hide
//!   the call. `fused` writes a seventh as often as `memcpy` does, and passes it with floats.
//! * Out of cache the winner has more cache lines in flight. A sum has more instructions per
//!   line than a copy, so fewer lines fit the core's window; `fused` has fewer of them than
//!   `slot`. That is inferred from these ratios, not from counters. Prefetching within the payload
//!   does not help: the missing lines are those of the next frame of the burst, which the run loop
//!   knows and the kernel does not.

mod arena;
mod cases;
mod summary;
mod turns;

use anyhow::{Result, ensure};
use arena::{Arena, HEADER_BYTES};
use cases::{CONTRIBUTIONS, Contender, Op, PAYLOAD_BYTES, Row, WorkingSet};
use serde::Serialize;
use std::time::Duration;
use summary::Measured;
use tally_kernels::Backend;
use tally_report::{Machine, Report};

/// What the kernels are measured with.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Measured seconds in total, without those that prepare the memory
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,

    /// Rounds in which the contenders take turns
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,

    /// Cells to measure: those with all of these words, each a row, an operation, a working set or
    /// a payload size in bytes, as in `slot,sum_i32,L2,1024` [default: all]
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
}

impl Args {
    fn wants(&self, (op, row, set, payload_bytes): (Op, Row, &str, usize)) -> bool {
        let words = [op.name(), row.name(), set, &payload_bytes.to_string()];
        self.only.iter().all(|word| words.contains(&word.as_str()))
    }
}

#[derive(Serialize)]
struct Parameters<'a> {
    seconds: f64,
    rounds: usize,
    only: &'a [String],
    payload_bytes: [usize; 6],
    contributions: usize,
    header_bytes: usize,
    working_sets: &'a [WorkingSet],
    rows: Vec<(&'static str, &'static str)>,
    best_backend: &'static str,
}

/// Measures every cell and reports.
///
/// # Errors
///
/// When the arguments make no sense, when a sum saturated although it must not, or when the
/// report cannot be made.
pub fn run(args: &Args) -> Result<Report> {
    ensure!(
        args.seconds > 0.0 && args.seconds.is_finite(),
        "--seconds must be positive"
    );
    ensure!(args.rounds > 0, "--rounds must be positive");
    let machine = Machine::detect();
    let working_sets = WorkingSet::all(&machine);
    let contenders: Vec<Contender> = std::iter::once(Contender::Memcpy)
        .chain(Backend::available().map(Contender::Backend))
        .collect();

    let mut cells = Vec::new();
    for op in Op::ALL {
        for working_set in &working_sets {
            for row in op.rows() {
                cells.extend(
                    PAYLOAD_BYTES
                        .into_iter()
                        .filter(|bytes| args.wants((op, row, working_set.name, *bytes)))
                        .map(|payload_bytes| (op, row, working_set, payload_bytes)),
                );
            }
        }
    }
    ensure!(!cells.is_empty(), "--only leaves nothing to measure");
    let turns = cells.len() * contenders.len() * args.rounds;
    let turn = Duration::from_secs_f64(args.seconds / turns as f64);

    let mut results = Vec::new();
    for (op, row, working_set, payload_bytes) in cells {
        let Some(mut arena) = Arena::new(op, row, payload_bytes, working_set.bytes) else {
            continue;
        };
        let samples = turns::measure(&mut arena, op, row, &contenders, args.rounds, turn)?;
        for (contender, (gbit_per_s, ratio_to_memcpy)) in contenders.iter().zip(samples) {
            results.push(Measured {
                op,
                row,
                working_set: working_set.name,
                payload_bytes,
                contender: *contender,
                gbit_per_s,
                ratio_to_memcpy,
            });
        }
    }

    let parameters = Parameters {
        seconds: args.seconds,
        rounds: args.rounds,
        only: &args.only,
        payload_bytes: PAYLOAD_BYTES,
        contributions: CONTRIBUTIONS,
        header_bytes: HEADER_BYTES,
        working_sets: &working_sets,
        rows: Row::ALL.map(|row| (row.name(), row.meaning())).to_vec(),
        best_backend: Backend::best().name(),
    };
    let table = summary::table(&results, &contenders, &working_sets);
    Report::new(
        machine,
        &parameters,
        &results,
        summary::targets(&results, &working_sets),
        table,
    )
}
