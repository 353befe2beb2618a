//! What is reported of the measurements: targets and a table.

use super::cases::{Contender, Op, PAYLOAD_BYTES, Row, WorkingSet};
use serde::Serialize;
use std::fmt::Write as _;
use tally_kernels::Backend;
use tally_report::{Spread, Target};

/// No sum should be slower than a copy.
const TARGET_MEMCPY_RATIO: f64 = 1.0;

/// A backend should be worth having.
const TARGET_SCALAR_RATIO: f64 = 4.0;

/// One contender's throughput in one cell.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub op: Op,
    pub row: Row,
    pub working_set: &'static str,
    pub payload_bytes: usize,
    pub contender: Contender,
    /// Payload bits summed (or copied) per nanosecond.
    pub gbit_per_s: Spread,
    /// To `memcpy` in the same round.
    pub ratio_to_memcpy: Spread,
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

pub fn targets(results: &[Measured], working_sets: &[WorkingSet]) -> Vec<Target> {
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
pub fn table(
    results: &[Measured],
    contenders: &[Contender],
    working_sets: &[WorkingSet],
) -> String {
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
