//! What the rounds add up to: rows, targets, the table.

use super::setting::{Contender, Order, Setting};
use super::turn::Measured;
use super::{OVERSUBSCRIPTION, Parameters};
use serde::Serialize;
use std::fmt::Write as _;
use tally_report::{Spread, Target};
use tally_testkit::cluster::Cpus;

/// Deviation of a leaf's uplink bytes from 1/n of its workers' bytes.
const DEVIATION_TARGET: f64 = 0.05;
/// Time of Gloo's ring by the tree's.
const RING_TARGET: f64 = 3.0;
/// Time of one switch by the tree's.
const SINGLE_TARGET: f64 = 0.9;

/// One contender in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub setting: Setting,
    pub contender: Contender,
    /// The time that the busiest link needs for the payload.
    pub bound_seconds: f64,
    /// Medians of the rounds.
    pub seconds: Option<Spread>,
    /// Bits of the vector by the median.
    pub goodput_gbit_per_s: Option<f64>,
    /// The bound by the time.
    pub of_bound: Option<Spread>,
    /// Its time by the tree's in the same round.
    pub to_tree: Option<Spread>,
    /// Why there is no value.
    pub missing: Option<String>,
}

/// What one leaf sent up in the tree's turns.
#[derive(Clone, Debug, Serialize)]
pub struct LeafRow {
    pub setting: Setting,
    pub leaf: String,
    pub from_workers: Option<Spread>,
    pub up: Option<Spread>,
    /// Bytes up by bytes from workers.
    pub share: Option<Spread>,
    /// That share by 1/n.
    pub to_target: Option<Spread>,
}

/// The contenders of a setting.
pub fn rows(setting: Setting, measured: &Measured) -> Vec<Row> {
    let tree = measured.seconds.first().map(|(_, seconds)| &seconds[..]);
    let row = |contender: Contender, seconds: &[f64], missing: Option<String>| {
        let bound = setting.bound_seconds(contender);
        let of_bound: Vec<_> = seconds.iter().map(|it| bound / it).collect();
        let pairs = seconds.iter().zip(tree.unwrap_or_default());
        let to_tree: Vec<_> = pairs.map(|(theirs, ours)| theirs / ours).collect();
        let seconds = Spread::of(seconds);
        Row {
            setting,
            contender,
            bound_seconds: bound,
            seconds,
            goodput_gbit_per_s: seconds.map(|it| setting.bits() / it.median / 1e9),
            of_bound: Spread::of(&of_bound),
            to_tree: Spread::of(&to_tree),
            missing,
        }
    };
    let ran = measured.seconds.iter();
    let ran = ran.map(|(contender, seconds)| row(*contender, seconds, None));
    let missing = measured.missing.iter();
    let missing = missing.map(|(contender, why)| row(*contender, &[], Some(why.clone())));
    ran.chain(missing).collect()
}

/// The leaves of a setting.
pub fn leaves(setting: Setting, measured: &Measured) -> Vec<LeafRow> {
    let n = setting.shape.workers as f64;
    let leaf = |leaf: usize| {
        let rounds = || measured.uplinks.iter().map(|round| &round[leaf]);
        let shares: Vec<_> = rounds().map(|it| it.share()).collect();
        let to_target: Vec<_> = shares.iter().map(|share| share * n).collect();
        let from: Vec<_> = rounds().map(|it| it.from_workers as f64).collect();
        let up: Vec<_> = rounds().map(|it| it.up as f64).collect();
        LeafRow {
            setting,
            leaf: rounds()
                .next()
                .map_or_else(String::new, |it| it.leaf.clone()),
            from_workers: Spread::of(&from),
            up: Spread::of(&up),
            share: Spread::of(&shares),
            to_target: Spread::of(&to_target),
        }
    };
    (0..measured.uplinks.first().map_or(0, Vec::len))
        .map(leaf)
        .collect()
}

/// What was reached.
pub fn targets(rows: &[Row], uplinks: &[LeafRow], quick: bool) -> Vec<Target> {
    let mut targets = vec![deviation(uplinks)];
    for row in rows {
        let (setting, contender) = (row.setting, row.contender);
        let oversubscription = setting.oversubscription(1);
        let links = format!(
            "{}_{}_{}",
            setting.shape, setting.host_mbit, setting.uplink_mbit
        );
        let tree = rows.iter().find(|it| {
            it.setting == setting && it.contender == Contender::Tree && it.seconds.is_some()
        });
        let bound = tree.map_or(f64::NAN, |tree| row.bound_seconds / tree.bound_seconds);
        let (name, least, how) = match contender.ring() {
            Some((_, order)) if oversubscription == f64::from(OVERSUBSCRIPTION) => {
                let ranks = match order {
                    Order::Packed => "ranks leaf by leaf",
                    Order::Spread => "ranks around the leaves",
                };
                let how = format!(
                    "time of {} ({ranks}), to the tree's at {oversubscription}:1; the links bound \
                     it at {bound:.2}",
                    contender.describe()
                );
                (
                    format!("{}_to_tree_{links}", name(contender)),
                    RING_TARGET,
                    how,
                )
            }
            None if contender == Contender::Single && setting.uplink_mbit >= setting.host_mbit => {
                let how = "time of one switch with all workers, to the tree's; median of the \
                           rounds";
                (
                    format!("single_to_tree_{links}"),
                    SINGLE_TARGET,
                    how.to_owned(),
                )
            }
            _ => continue,
        };
        targets.push(match row.to_tree {
            _ if quick => {
                Target::not_measured(&name, "ratio", least, "--quick says nothing of speed")
            }
            Some(ratio) => Target::at_least(&name, ratio.median, "ratio", least, &how),
            None => {
                let reason = row.missing.as_deref().unwrap_or("not asked for");
                Target::not_measured(&name, "ratio", least, reason)
            }
        });
    }
    targets
}

fn deviation(uplinks: &[LeafRow]) -> Target {
    let (name, unit) = ("uplink_bytes_off_1_by_n", "ratio");
    let all = uplinks.iter().filter_map(|leaf| leaf.to_target);
    let off = |it: Spread| (it.min - 1.0).abs().max((it.max - 1.0).abs());
    match all.map(off).reduce(f64::max) {
        Some(worst) => Target::at_most(
            name,
            worst,
            unit,
            DEVIATION_TARGET,
            "deviation of a leaf's uplink bytes from 1/n of its n workers' bytes, by that, at the \
             worst leaf of all rounds",
        ),
        None => Target::not_measured(name, unit, DEVIATION_TARGET, "no tree ran"),
    }
}

fn name(contender: Contender) -> &'static str {
    match contender {
        Contender::Tree => "tree",
        Contender::Single => "single",
        Contender::Ring => "ring",
        Contender::RingSpread => "ring_spread",
        Contender::RingSwitched => "ring_switched",
        Contender::RingSwitchedSpread => "ring_switched_spread",
    }
}

/// For people.
pub fn table(parameters: &Parameters, rows: &[Row], uplinks: &[LeafRow]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{} rounds of {} all-reduces of each; medians with least and most\n\
         switches of the tree in turn on CPU {}, one switch on CPU {}, all others on CPU {}\n\
         bound: the time that the busiest link needs for the payload",
        parameters.rounds,
        parameters.repeat,
        Cpus::list(&parameters.cpus_switches),
        Cpus::list(&parameters.cpus_single),
        Cpus::list(&parameters.cpus_hosts),
    );
    let mut before = None;
    for row in rows {
        if before != Some(row.setting) {
            if let Some(setting) = before {
                out += &leaf_table(setting, uplinks);
            }
            before = Some(row.setting);
            out += &heading(row.setting);
        }
        let _ = write!(out, "{:<30} ", row.contender.describe());
        let spread = |spread: Option<Spread>| {
            spread.map_or("-".to_owned(), |Spread { median, min, max }| {
                format!("{median:.3} ({min:.3}-{max:.3})")
            })
        };
        let _ = match &row.missing {
            Some(why) => writeln!(out, "{why}"),
            None => writeln!(
                out,
                "{:>9.3} {:>21} {:>8.3} {:>20} {:>21}",
                row.bound_seconds,
                spread(row.seconds),
                row.goodput_gbit_per_s.unwrap_or_default(),
                spread(row.of_bound),
                spread(row.to_tree)
            ),
        };
    }
    if let Some(setting) = before {
        out += &leaf_table(setting, uplinks);
    }
    out + "\nEXACT: every bit of Tally's sums at every worker; Gloo's processes checked theirs.\n"
}

fn heading(setting: Setting) -> String {
    let shape = setting.shape;
    format!(
        "\n{} spines, {} leaves, {} workers behind each: {} workers; {} f32 ({:.1} MB)\n\
         hosts' links {} Mbit/s, each uplink {} Mbit/s ({}:1 by one uplink of a leaf, {}:1 by all), \
         MTU {}, payload {} B, window {}\n\
         {:<30} {:>9} {:>21} {:>8} {:>20} {:>21}\n",
        shape.spines,
        shape.leaves,
        shape.workers,
        shape.total(),
        setting.elements,
        setting.elements as f64 * 4e-6,
        setting.host_mbit,
        setting.uplink_mbit,
        setting.oversubscription(1),
        setting.oversubscription(shape.spines),
        setting.mtu,
        setting.payload_bytes,
        setting.window,
        "contender",
        "bound, s",
        "seconds",
        "Gbit/s",
        "share of bound",
        "to the tree",
    )
}

fn leaf_table(setting: Setting, uplinks: &[LeafRow]) -> String {
    let mut out = String::new();
    for leaf in uplinks.iter().filter(|leaf| leaf.setting == setting) {
        if let (Some(from), Some(up), Some(share)) = (leaf.from_workers, leaf.up, leaf.share) {
            let _ = writeln!(
                out,
                "{}: {:.1} MB from workers, {:.1} MB up: {:.2} % ({:.2}-{:.2}), 1/n is {:.2} %",
                leaf.leaf,
                from.median / 1e6,
                up.median / 1e6,
                share.median * 100.0,
                share.min * 100.0,
                share.max * 100.0,
                100.0 / setting.shape.workers as f64
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::setting::tests::setting;
    use super::*;
    use tally_testkit::fabric::Uplink;

    fn measured(tree: [f64; 2], single: [f64; 2], ring: [f64; 2], up: u64) -> Measured {
        let uplink = Uplink {
            leaf: "leaf1".to_owned(),
            from_workers: 4000,
            up,
        };
        Measured {
            seconds: vec![
                (Contender::Tree, tree.to_vec()),
                (Contender::Single, single.to_vec()),
                (Contender::RingSpread, ring.to_vec()),
            ],
            missing: vec![(Contender::Ring, "no torch".to_owned())],
            uplinks: vec![vec![uplink.clone()], vec![Uplink { up: 1000, ..uplink }]],
        }
    }

    fn met(targets: &[Target], name: &str) -> Option<bool> {
        let target = targets.iter().find(|target| target.name == name);
        target.unwrap_or_else(|| panic!("{name}: {targets:?}")).met
    }

    #[test]
    fn ratios_divide_within_a_round_and_say_what_bounds_them() {
        let setting = setting("2x4x4", 1000, 1000);
        // The machine is half as fast in the second round.
        let measured = measured([1.25, 2.5], [1.25, 2.0], [5.0, 10.0], 1040);
        let rows = rows(setting, &measured);
        let ratio = rows[2].to_tree.unwrap();
        assert_eq!((ratio.min, ratio.max), (4.0, 4.0));
        assert_eq!(rows[0].of_bound.unwrap().max, 0.8);
        let leaves = leaves(setting, &measured);
        let targets = targets(&rows, &leaves, false);
        assert_eq!(met(&targets, "uplink_bytes_off_1_by_n"), Some(true));
        assert_eq!(met(&targets, "single_to_tree_2x4x4_1000_1000"), Some(true));
        assert_eq!(met(&targets, "ring_to_tree_2x4x4_1000_1000"), None);
        let spread = "ring_spread_to_tree_2x4x4_1000_1000";
        assert_eq!(met(&targets, spread), Some(true));
        let target = targets.iter().find(|target| target.name == spread).unwrap();
        assert!(target.how.contains("bound it at 7.50"), "{}", target.how);
    }

    #[test]
    fn targets_are_missed_and_left_out_where_they_do_not_hold() {
        let even = setting("2x4x4", 1000, 1000);
        let slow = measured([1.25, 1.25], [1.0, 1.0], [3.0, 3.0], 1060);
        let leaves = leaves(even, &slow);
        let missed = targets(&rows(even, &slow), &leaves, false);
        assert_eq!(met(&missed, "uplink_bytes_off_1_by_n"), Some(false));
        assert_eq!(met(&missed, "single_to_tree_2x4x4_1000_1000"), Some(false));
        let quick = targets(&rows(even, &slow), &leaves, true);
        assert_eq!(met(&quick, "single_to_tree_2x4x4_1000_1000"), None);
        // Slower uplinks are no fair comparison with one switch, and these are not 4:1.
        let other = setting("2x4x2", 1000, 100);
        assert_eq!(targets(&rows(other, &slow), &leaves, false).len(), 1);
    }
}
