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
//! Folds of narrow elements (f16, bf16, i16, i8) have no row `slot`: they are made once, of all
//! payloads. In `pair` a fold widens, adds and narrows for a single contribution, of zeros.
//!
//! # Working sets
//!
//! The working set is the payload bytes of all frames, accumulators included: half of L1d, half
//! of L2, and beyond every cache (four times L3, at least 64 MiB). Frames lie one after another,
//! each payload behind the 64 bytes that its headers take, and are visited in order; large sets
//! are gone through from where the last contender stopped, so that nobody finds what another has
//! just fetched. A slot of 8 payloads that does not fit the working set leaves its cell empty.
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
//! * `copy_from_slice` is whatever the C library picked for this CPU. From a few KiB on, glibc
//!   may copy with `rep movsb`, which need not read the destination; a sum must.
//!
//! # Where a copy wins, and why
//!
//! * In L1 a copy is one load and one store per vector, and a core of today stores one vector per
//!   cycle. A sum of big-endian integers also has three byte shuffles, of which Zen 5 makes two
//!   per cycle, so it cannot keep up; a sum of floats can, once a payload is long enough to hide
//!   the call. `fused` writes a seventh as often as `memcpy` does, and passes it with floats.
//! * Out of cache the winner is who has more lines on their way. A sum has more instructions per
//!   line than a copy, so fewer lines fit the core's window; `fused` has fewer of them than
//!   `slot`. That is inferred from these ratios, not from counters. Prefetching within the payload
//!   was tried and did not help: what is missing is the next frame of the burst, which the kernel
//!   does not know and the run loop does.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use serde::Serialize;
use tally_kernels::{Backend, Kernels};

use tally_report::{Machine, Report, Spread, Target};

/// What the kernels are measured with.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Time to measure for, in all. Preparing the memory comes on top.
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,

    /// Rounds in which the contenders take turns.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,

    /// Measure only what has all of these words: a row, an operation, a working set, or a payload
    /// size in bytes, as in `slot,sum_i32,L2,1024`.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
}

impl Args {
    fn wants(&self, (op, row, set, payload_bytes): (Op, Row, &str, usize)) -> bool {
        let words = [op.name(), row.name(), set, &payload_bytes.to_string()];
        self.only.iter().all(|word| words.contains(&word.as_str()))
    }
}

/// Payload sizes, as on the wire.
const PAYLOAD_BYTES: [usize; 6] = [256, 512, 1024, 2048, 4096, 8192];

/// Contributions that are added to a slot: 8 workers, of which the first gives its frame.
const CONTRIBUTIONS: usize = 7;

/// What lies before each payload in its frame.
const HEADER_BYTES: usize = 64;

/// No sum should be slower than a copy.
const TARGET_MEMCPY_RATIO: f64 = 1.0;

/// A backend should be worth having.
const TARGET_SCALAR_RATIO: f64 = 4.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    SumI32,
    SumF32,
    FoldF16,
    FoldBf16,
    FoldI16,
    FoldI8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Row {
    Slot,
    Fused,
    Pair,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Memcpy,
    Backend(Backend),
}

impl Contender {
    const fn name(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy",
            Self::Backend(backend) => backend.name(),
        }
    }
}

impl Serialize for Contender {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Op {
    const ALL: [Self; 6] = [
        Self::SumI32,
        Self::SumF32,
        Self::FoldF16,
        Self::FoldBf16,
        Self::FoldI16,
        Self::FoldI8,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::SumI32 => "sum_i32",
            Self::SumF32 => "sum_f32",
            Self::FoldF16 => "fold_f16",
            Self::FoldBf16 => "fold_bf16",
            Self::FoldI16 => "fold_i16",
            Self::FoldI8 => "fold_i8",
        }
    }

    /// Of narrow elements.
    const fn is_fold(self) -> bool {
        !matches!(self, Self::SumI32 | Self::SumF32)
    }

    /// Narrow elements are not summed one by one.
    fn rows(self) -> impl Iterator<Item = Row> {
        let rows = Row::ALL.into_iter();
        rows.filter(move |row| !self.is_fold() || *row != Row::Slot)
    }
}

impl Row {
    const ALL: [Self; 3] = [Self::Slot, Self::Fused, Self::Pair];

    const fn name(self) -> &'static str {
        match self {
            Self::Slot => "slot",
            Self::Fused => "fused",
            Self::Pair => "pair",
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::Slot => "7 contributions into one slot, one by one; memcpy: 7 copies into it",
            Self::Fused => "7 contributions into one slot, in one pass; memcpy: 7 copies into it",
            Self::Pair => "one contribution into one slot, both cold; memcpy: one copy",
        }
    }

    const fn contributions(self) -> usize {
        match self {
            Self::Slot | Self::Fused => CONTRIBUTIONS,
            Self::Pair => 1,
        }
    }
}

/// The size of what is gone through again and again.
#[derive(Clone, Debug, Serialize)]
struct WorkingSet {
    name: &'static str,
    bytes: usize,
}

impl WorkingSet {
    fn all(machine: &Machine) -> [Self; 3] {
        const MIB: usize = 1 << 20;
        [
            Self {
                name: "L1",
                bytes: machine.cache("L1d", 32 << 10) / 2,
            },
            Self {
                name: "L2",
                bytes: machine.cache("L2", MIB) / 2,
            },
            Self {
                name: "memory",
                bytes: (4 * machine.cache("L3", 16 * MIB)).max(64 * MIB),
            },
        ]
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

/// One contender's throughput in one cell.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    op: Op,
    row: Row,
    working_set: &'static str,
    payload_bytes: usize,
    contender: Contender,
    /// Payload bits summed (or copied) per nanosecond.
    gbit_per_s: Spread,
    /// To `memcpy` in the same round.
    ratio_to_memcpy: Spread,
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
        let samples = measure(&mut arena, op, row, &contenders, args.rounds, turn)?;
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
    let table = table(&results, &contenders, &working_sets);
    Report::new(
        machine,
        &parameters,
        &results,
        targets(&results, &working_sets),
        table,
    )
}

/// Frames in memory: groups of an accumulator and its contributions.
struct Arena {
    memory: Vec<u8>,
    start: usize,
    payload_bytes: usize,
    contributions: usize,
    groups: usize,
    /// The group that is next.
    cursor: usize,
}

impl Arena {
    /// `None` when not even one group fits.
    fn new(op: Op, row: Row, payload_bytes: usize, working_set_bytes: usize) -> Option<Self> {
        const LINE: usize = 64;
        let contributions = row.contributions();
        let groups = working_set_bytes / (payload_bytes * (1 + contributions));
        if groups == 0 {
            return None;
        }
        let frame_bytes = HEADER_BYTES + payload_bytes;
        let mut memory = vec![0; groups * (1 + contributions) * frame_bytes + LINE];
        let start = memory.as_ptr().addr().next_multiple_of(LINE) - memory.as_ptr().addr();
        for (i, frame) in memory[start..].chunks_exact_mut(frame_bytes).enumerate() {
            let frame_in_group = i % (1 + contributions);
            for (j, element) in frame[HEADER_BYTES..]
                .as_chunks_mut()
                .0
                .iter_mut()
                .enumerate()
            {
                // A pair's sums would leave a narrow type's range after a few visits.
                if row != Row::Pair || !op.is_fold() {
                    *element = op.element(frame_in_group, j);
                }
            }
        }
        Some(Self {
            memory,
            start,
            payload_bytes,
            contributions,
            groups,
            cursor: 0,
        })
    }

    /// Visits `groups` groups in order, from where the last visit stopped.
    #[inline(always)]
    fn visit<const K: usize>(&mut self, groups: usize, mut f: impl FnMut(&mut [u8], [&[u8]; K])) {
        assert_eq!(K, self.contributions);
        let frame_bytes = HEADER_BYTES + self.payload_bytes;
        let memory = &mut self.memory[self.start..];
        let mut left = groups;
        while left > 0 {
            let run = left.min(self.groups - self.cursor);
            let from = self.cursor * (1 + K) * frame_bytes;
            for group in memory[from..]
                .chunks_exact_mut((1 + K) * frame_bytes)
                .take(run)
            {
                let (first, rest) = group.split_at_mut(frame_bytes);
                let mut contributions: [&[u8]; K] = [&[]; K];
                for (k, frame) in rest.chunks_exact(frame_bytes).enumerate() {
                    contributions[k] = &frame[HEADER_BYTES..];
                }
                f(&mut first[HEADER_BYTES..], contributions);
            }
            left -= run;
            self.cursor = (self.cursor + run) % self.groups;
        }
    }
}

impl Op {
    /// Values of which each slot's contributions cancel, and those of a pair stay small, so that
    /// sums neither saturate nor grow however often they are made. Four bytes of them.
    fn element(self, frame_in_group: usize, index: usize) -> [u8; 4] {
        let pair = 1 + frame_in_group.saturating_sub(1) / 2 * (index % 7);
        let value = match frame_in_group {
            0 | CONTRIBUTIONS => 0,
            frame if frame.is_multiple_of(2) => -(pair as i32),
            _ => pair as i32,
        };
        let twice = |[a, b]: [u8; 2]| [a, b, a, b];
        match self {
            Self::SumI32 => value.to_be_bytes(),
            Self::SumF32 => (value as f32).to_le_bytes(),
            Self::FoldF16 => twice(f16::from_f32(value as f32).to_le_bytes()),
            Self::FoldBf16 => twice(bf16::from_f32(value as f32).to_le_bytes()),
            Self::FoldI16 => twice((value as i16).to_be_bytes()),
            Self::FoldI8 => [value as u8; 4],
        }
    }
}

/// Has every contender take its turn in every round; per contender, Gbit/s and the ratio to
/// `memcpy`, which is the first.
fn measure(
    arena: &mut Arena,
    op: Op,
    row: Row,
    contenders: &[Contender],
    rounds: usize,
    turn: Duration,
) -> Result<Vec<(Spread, Spread)>> {
    let group_bytes = arena.payload_bytes * arena.contributions;
    // How many groups fill a turn; finding out also warms memory, caches and clock.
    let mut groups = Vec::new();
    for contender in contenders {
        let mut count = 16;
        loop {
            let elapsed = take_turn(arena, op, row, *contender, count)?;
            if elapsed >= turn / 4 {
                let scale = turn.as_secs_f64() / elapsed.as_secs_f64();
                groups.push(((count as f64 * scale) as usize).max(1));
                break;
            }
            count *= 2;
        }
    }

    let mut samples = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..rounds {
        for i in 0..contenders.len() {
            // A different one begins each round, so that nobody always follows the same other.
            let i = (i + round) % contenders.len();
            let elapsed = take_turn(arena, op, row, contenders[i], groups[i])?;
            let bits = (8 * group_bytes * groups[i]) as f64;
            samples[i].push(bits / elapsed.as_secs_f64() / 1e9);
        }
    }

    let spreads = samples.iter().map(|own| {
        let ratios: Vec<f64> = own
            .iter()
            .zip(&samples[0])
            .map(|(own, memcpy)| own / memcpy)
            .collect();
        Some((Spread::of(own)?, Spread::of(&ratios)?))
    });
    spreads.collect::<Option<_>>().context("no rounds")
}

/// Visits `groups` groups and says how long that took.
fn take_turn(
    arena: &mut Arena,
    op: Op,
    row: Row,
    contender: Contender,
    groups: usize,
) -> Result<Duration> {
    match row {
        Row::Slot => one_by_one::<CONTRIBUTIONS>(arena, op, contender, groups),
        Row::Pair => one_by_one::<1>(arena, op, contender, groups),
        Row::Fused => in_one_pass(arena, op, contender, groups),
    }
}

fn one_by_one<const K: usize>(
    arena: &mut Arena,
    op: Op,
    contender: Contender,
    groups: usize,
) -> Result<Duration> {
    let kernels = match contender {
        Contender::Memcpy => return Ok(copies::<K>(arena, groups)),
        Contender::Backend(backend) => Kernels::new(backend)?,
    };
    let mut saturated = false;
    let start = Instant::now();
    match op {
        Op::SumI32 => arena.visit::<K>(groups, |slot, contributions| {
            for contribution in contributions {
                saturated |= kernels.sum_i32(slot, contribution);
            }
        }),
        Op::SumF32 => arena.visit::<K>(groups, |slot, contributions| {
            for contribution in contributions {
                kernels.sum_f32(slot, contribution);
            }
        }),
        _ => return fold::<K>(arena, op, kernels, groups),
    }
    let elapsed = start.elapsed();
    ensure!(!saturated, "sums of values chosen not to saturate did");
    Ok(elapsed)
}

fn in_one_pass(arena: &mut Arena, op: Op, contender: Contender, groups: usize) -> Result<Duration> {
    let kernels = match contender {
        Contender::Memcpy => return Ok(copies::<CONTRIBUTIONS>(arena, groups)),
        Contender::Backend(backend) => Kernels::new(backend)?,
    };
    let mut saturated = false;
    let start = Instant::now();
    match op {
        Op::SumI32 => arena.visit::<CONTRIBUTIONS>(groups, |slot, contributions| {
            saturated |= kernels.sum_i32_many(slot, &contributions);
        }),
        Op::SumF32 => arena.visit::<CONTRIBUTIONS>(groups, |slot, contributions| {
            kernels.sum_f32_many(slot, &contributions);
        }),
        _ => return fold::<CONTRIBUTIONS>(arena, op, kernels, groups),
    }
    let elapsed = start.elapsed();
    ensure!(!saturated, "sums of values chosen not to saturate did");
    Ok(elapsed)
}

fn fold<const K: usize>(
    arena: &mut Arena,
    op: Op,
    kernels: Kernels,
    groups: usize,
) -> Result<Duration> {
    let mut saturated = false;
    let start = Instant::now();
    match op {
        Op::FoldF16 => arena.visit::<K>(groups, |slot, contributions| {
            kernels.fold_f16(slot, &contributions);
        }),
        Op::FoldBf16 => arena.visit::<K>(groups, |slot, contributions| {
            kernels.fold_bf16(slot, &contributions);
        }),
        Op::FoldI16 => arena.visit::<K>(groups, |slot, contributions| {
            saturated |= kernels.fold_i16(slot, &contributions);
        }),
        Op::FoldI8 => arena.visit::<K>(groups, |slot, contributions| {
            saturated |= kernels.fold_i8(slot, &contributions);
        }),
        Op::SumI32 | Op::SumF32 => bail!("{} is no fold", op.name()),
    }
    let elapsed = start.elapsed();
    ensure!(!saturated, "sums of values chosen not to saturate did");
    Ok(elapsed)
}

fn copies<const K: usize>(arena: &mut Arena, groups: usize) -> Duration {
    let start = Instant::now();
    arena.visit::<K>(groups, |slot, contributions| {
        for contribution in contributions {
            slot.copy_from_slice(contribution);
            // Else a copy that the next one covers could be left out.
            black_box(&mut *slot);
        }
    });
    start.elapsed()
}

/// A row's lowest ratio over the payload sizes, and the size that has it.
fn lowest(
    results: &[Measured],
    (op, row, working_set): (Op, Row, &str),
    ratio: impl Fn(&Measured) -> Option<f64>,
) -> Option<(f64, usize)> {
    results
        .iter()
        .filter(|m| m.op == op && m.row == row && m.working_set == working_set)
        .filter_map(|m| Some((ratio(m)?, m.payload_bytes)))
        .min_by(|a, b| a.0.total_cmp(&b.0))
}

fn targets(results: &[Measured], working_sets: &[WorkingSet]) -> Vec<Target> {
    let best = Contender::Backend(Backend::best());
    let to_memcpy = |m: &Measured| (m.contender == best).then_some(m.ratio_to_memcpy.median);
    let to_scalar = |m: &Measured| {
        let scalar = results.iter().find(|other| {
            other.contender == Contender::Backend(Backend::Scalar)
                && (other.op, other.row) == (m.op, m.row)
                && (other.working_set, other.payload_bytes) == (m.working_set, m.payload_bytes)
        })?;
        (m.contender == best).then_some(m.gbit_per_s.median / scalar.gbit_per_s.median)
    };

    let mut targets = Vec::new();
    let mut push = |name: String, lowest: Option<(f64, usize)>, goal: f64, what: &str| {
        targets.push(match lowest {
            Some((value, bytes)) => {
                let how = format!("{what}; lowest over payload sizes, at {bytes} B");
                Target::at_least(&name, value, "ratio", goal, &how)
            }
            None => Target::not_measured(&name, "ratio", goal, "left out, or no payload size fits"),
        });
    };
    for op in Op::ALL {
        for row in op.rows() {
            for set in working_sets {
                let lowest = lowest(results, (op, row, set.name), to_memcpy);
                let name = format!("{} {} {}: best/memcpy", row.name(), op.name(), set.name);
                push(
                    name,
                    lowest,
                    TARGET_MEMCPY_RATIO,
                    "median of the rounds' ratios",
                );
            }
        }
    }
    for op in Op::ALL {
        for row in op.rows() {
            let lowest = lowest(results, (op, row, "L2"), to_scalar);
            let name = format!("{} {} L2: best/scalar", row.name(), op.name());
            push(name, lowest, TARGET_SCALAR_RATIO, "ratio of medians");
        }
    }
    targets
}

/// For people: a block per operation, working set and row; a line per payload size.
fn table(results: &[Measured], contenders: &[Contender], working_sets: &[WorkingSet]) -> String {
    let mut text =
        "Gbit/s of payload: median (min-max) over the rounds; x: ratio to memcpy\n".to_owned();
    for op in Op::ALL {
        for set in working_sets {
            for row in Row::ALL {
                let block = |m: &&Measured| (m.op, m.row, m.working_set) == (op, row, set.name);
                if !results.iter().any(|m| block(&m)) {
                    continue;
                }
                let _ = writeln!(
                    text,
                    "\n{} {} in {} ({} KiB): {}",
                    row.name(),
                    op.name(),
                    set.name,
                    set.bytes >> 10,
                    row.meaning()
                );
                let _ = write!(text, "{:>9}", "payload B");
                for contender in contenders {
                    let name = contender.name();
                    let _ = write!(text, "  {name:>24}");
                }
                let _ = writeln!(text);
                for payload_bytes in PAYLOAD_BYTES {
                    let cell: Vec<_> = results
                        .iter()
                        .filter(block)
                        .filter(|m| m.payload_bytes == payload_bytes)
                        .collect();
                    let _ = write!(text, "{payload_bytes:>9}");
                    if cell.is_empty() {
                        let _ = write!(text, "  not measured");
                    }
                    for m in cell {
                        let Spread { median, min, max } = m.gbit_per_s;
                        let ratio = m.ratio_to_memcpy.median;
                        let numbers = format!("{median:.0} ({min:.0}-{max:.0}) x{ratio:.2}");
                        let _ = write!(text, "  {numbers:>24}");
                    }
                    let _ = writeln!(text);
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contributions_of_a_slot_cancel() {
        for index in 0..64 {
            let sum: i32 = (0..=CONTRIBUTIONS)
                .map(|frame| i32::from_be_bytes(Op::SumI32.element(frame, index)))
                .sum();
            assert_eq!(sum, 0, "element {index}");
        }
        assert_ne!(
            Op::SumI32.element(1, 0),
            [0; 4],
            "a pair's contribution is not zero"
        );
    }

    #[test]
    fn every_payload_of_an_arena_is_aligned_and_visited_in_turn() {
        let mut arena = Arena::new(Op::SumI32, Row::Slot, 256, 3 * 8 * 256).unwrap();
        assert_eq!(arena.groups, 3);
        let mut seen = Vec::new();
        arena.visit::<CONTRIBUTIONS>(4, |slot, contributions| {
            assert!(slot.as_ptr().addr().is_multiple_of(64));
            assert!(
                contributions
                    .iter()
                    .all(|c| c.as_ptr().addr().is_multiple_of(64))
            );
            assert!(contributions.iter().all(|c| c.len() == 256));
            seen.push(slot.as_ptr().addr());
        });
        assert_eq!(seen[0], seen[3]);
        assert_eq!(arena.cursor, 1);
    }

    #[test]
    fn a_working_set_too_small_for_a_slot_is_no_arena() {
        assert!(Arena::new(Op::SumF32, Row::Slot, 8192, 24 << 10).is_none());
        assert!(Arena::new(Op::SumF32, Row::Pair, 8192, 24 << 10).is_some());
    }

    #[test]
    fn a_short_cell_measures_every_contender() {
        let contenders = [Contender::Memcpy, Contender::Backend(Backend::Scalar)];
        for op in Op::ALL {
            for row in op.rows() {
                let mut arena = Arena::new(op, row, 256, 16 << 10).unwrap();
                let turn = Duration::from_micros(50);
                let spreads = measure(&mut arena, op, row, &contenders, 3, turn).unwrap();
                assert_eq!(spreads.len(), 2);
                assert_eq!(spreads[0].1.median, 1.0, "memcpy is its own measure");
                assert!(spreads[1].0.min > 0.0);
            }
        }
    }

    #[test]
    fn a_missing_cell_is_a_target_not_measured() {
        let sets = [WorkingSet {
            name: "L2",
            bytes: 1,
        }];
        let targets = targets(&[], &sets);
        // Two of three rows for each of four folds.
        assert_eq!(targets.len(), 2 * (2 * 3 + 4 * 2));
        assert!(
            targets
                .iter()
                .all(|t| t.met.is_none() && t.how.contains("left out, or no payload size fits"))
        );
    }
}
