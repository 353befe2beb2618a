//! Turns of the contenders over an arena, and their throughput.

use super::arena::Arena;
use super::cases::{CONTRIBUTIONS, Contender, Op, Row};
use anyhow::{Context, Result, bail, ensure};
use std::hint::black_box;
use std::time::{Duration, Instant};
use tally_kernels::Kernels;
use tally_report::Spread;

/// Has every contender take its turn in every round; per contender, Gbit/s and the ratio to
/// `memcpy`, which is the first.
pub fn measure(
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
            // A different one begins each round, so that no contender always follows the same one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use tally_kernels::Backend;

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
}
