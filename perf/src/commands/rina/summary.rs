//! What the rounds add up to: rows, targets, the table.

use super::Parameters;
use super::setting::{Contender, Setting};
use super::turn::Measured;
use serde::Serialize;
use std::fmt::Write as _;
use tally_report::{Spread, Target};

/// Time of a parameter server, by its link alone, by Rina's.
const SERVER_TARGET: f64 = 1.5;
/// Time of Gloo's ring by that of Tally's where no rack sums.
const RING_TARGET: f64 = 0.95;
/// Time with one rack less that sums, by that with it.
const GAIN_TARGET: f64 = 1.0;

/// One contender in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub setting: Setting,
    pub contender: Contender,
    /// The time that the busiest link needs for the payload.
    pub bound_seconds: f64,
    /// Medians of the rounds.
    pub seconds: Option<Spread>,
    /// The bound by the time.
    pub of_bound: Option<Spread>,
    /// The time of Gloo's ring in the same round, by its time.
    pub ring_to_it: Option<Spread>,
    /// Of Tally: the time with one rack less that sums, by its time.
    pub gain: Option<Spread>,
    /// Of Tally, while a rack does not sum: the least time of a parameter server there, by its
    /// time.
    pub server_bound_to_it: Option<Spread>,
    /// Why there is no value.
    pub missing: Option<String>,
}

/// The contenders of a setting.
pub fn rows(setting: Setting, measured: &Measured) -> Vec<Row> {
    let find = |contender| {
        let found = measured.seconds.iter().find(|it| it.0 == contender);
        found.map(|(_, seconds)| &seconds[..])
    };
    let by = |theirs: Option<&[f64]>, ours: &[f64]| {
        let ratios: Vec<_> = theirs?.iter().zip(ours).map(|(a, b)| a / b).collect();
        Spread::of(&ratios)
    };
    let row = |contender: Contender, seconds: &[f64], missing: Option<String>| {
        let bound = setting.bound_seconds(contender);
        let of = |bound: f64| by(Some(&vec![bound; seconds.len()]), seconds);
        let sums = match contender {
            Contender::Rina(sums) => Some(sums),
            Contender::Ring | Contender::Hierarchy => None,
        };
        let before = sums.and_then(|sums| sums.checked_sub(1));
        Row {
            setting,
            contender,
            bound_seconds: bound,
            seconds: Spread::of(seconds),
            of_bound: of(bound),
            ring_to_it: by(find(Contender::Ring), seconds),
            gain: before.and_then(|it| by(find(Contender::Rina(it)), seconds)),
            server_bound_to_it: sums
                .filter(|sums| *sums < setting.racks)
                .and_then(|sums| of(setting.server_bound_seconds(sums))),
            missing,
        }
    };
    let ran = measured.seconds.iter();
    let ran = ran.map(|(contender, seconds)| row(*contender, seconds, None));
    let missing = measured.missing.iter();
    let missing = missing.map(|(contender, why)| row(*contender, &[], Some(why.clone())));
    ran.chain(missing).collect()
}

/// What was reached.
pub fn targets(rows: &[Row], quick: bool) -> Vec<Target> {
    let target = |row: &Row, name: &str, ratio: Option<Spread>, least: f64, how: &str| {
        let Setting {
            host_mbit,
            uplink_mbit,
            elements,
            ..
        } = row.setting;
        let links = format!("{host_mbit}_{uplink_mbit}_{elements}");
        let name = format!("{name}_{}_{links}", row.contender).replace('-', "_");
        match ratio {
            _ if quick => {
                Target::not_measured(&name, "ratio", least, "--quick says nothing of speed")
            }
            Some(ratio) => Target::at_least(&name, ratio.median, "ratio", least, how),
            None => Target::not_measured(&name, "ratio", least, "a contender did not run"),
        }
    };
    let mut targets = Vec::new();
    for row in rows {
        let Contender::Rina(sums) = row.contender else {
            continue;
        };
        if sums == 0 {
            let how = "time of Gloo's ring, by that of Tally's ring where no rack sums";
            targets.push(target(row, "ring_to", row.ring_to_it, RING_TARGET, how));
            continue;
        }
        if row.gain.is_some() {
            let how = "time with one rack less that sums, by that with it";
            targets.push(target(row, "gain_of", row.gain, GAIN_TARGET, how));
        }
        if sums < row.setting.racks {
            let (ratio, how) = (
                row.server_bound_to_it,
                "least time of a parameter server by its link alone, by the time",
            );
            targets.push(target(row, "server_to", ratio, SERVER_TARGET, how));
        }
    }
    targets
}

/// For people.
pub fn table(parameters: &Parameters, rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{} rounds of {} all-reduces of each; medians with least and most; all programs share the \
         CPUs\nbound: the time that the busiest link needs for the payload",
        parameters.rounds, parameters.repeat,
    );
    let mut before = None;
    for row in rows {
        let setting = row.setting;
        if before != Some(setting) {
            before = Some(setting);
            let _ = writeln!(
                out,
                "\n{} racks of {} hosts; {} f32 ({:.1} MB); hosts' links {} Mbit/s, each uplink {} \
                 Mbit/s\n{:<22} {:>9} {:>21} {:>20} {:>20} {:>20} {:>20}",
                setting.racks,
                setting.hosts,
                setting.elements,
                setting.elements as f64 * 4e-6,
                setting.host_mbit,
                setting.uplink_mbit,
                "contender",
                "bound, s",
                "seconds",
                "share of bound",
                "ring / it",
                "a rack less / it",
                "server's bound / it",
            );
        }
        let spread = |spread: Option<Spread>| {
            spread.map_or("-".to_owned(), |Spread { median, min, max }| {
                format!("{median:.3} ({min:.3}-{max:.3})")
            })
        };
        let _ = match &row.missing {
            Some(why) => writeln!(out, "{:<22} {why}", row.contender.describe()),
            None => writeln!(
                out,
                "{:<22} {:>9.4} {:>21} {:>20} {:>20} {:>20} {:>20}",
                row.contender.describe(),
                row.bound_seconds,
                spread(row.seconds),
                spread(row.of_bound),
                spread(row.ring_to_it),
                spread(row.gain),
                spread(row.server_bound_to_it),
            ),
        };
    }
    out + "\nEXACT: every bit of Tally's sums at every worker; Gloo's processes checked theirs.\n"
}

#[cfg(test)]
mod tests {
    use super::super::setting::tests::setting;
    use super::*;

    fn measured(sums: &[(usize, f64)], ring: f64) -> Measured {
        let rina = sums
            .iter()
            .map(|&(sums, it)| (Contender::Rina(sums), vec![it, 2.0 * it]));
        // The machine is half as fast in the second round.
        let ring = (Contender::Ring, vec![ring, 2.0 * ring]);
        Measured {
            seconds: rina.chain([ring]).collect(),
            missing: vec![(Contender::Hierarchy, "no torch".to_owned())],
        }
    }

    fn met(targets: &[Target], name: &str) -> Option<bool> {
        let target = targets.iter().find(|target| target.name.starts_with(name));
        target.unwrap_or_else(|| panic!("{name}: {targets:?}")).met
    }

    #[test]
    fn ratios_divide_within_a_round_and_targets_say_which_are_missed() {
        let setting = setting(1000, 4000);
        let all = [(0, 2.0), (1, 4.0), (3, 1.0), (4, 1.0)];
        let rows = rows(setting, &measured(&all, 1.9));
        let ratio = rows[0].ring_to_it.unwrap();
        assert_eq!((ratio.min, ratio.max), (0.95, 0.95));
        assert_eq!(rows[1].gain.unwrap().median, 0.5);
        // With two racks that sum it did not run.
        assert!(rows[2].gain.is_none());
        let targets = targets(&rows, false);
        assert_eq!(met(&targets, "ring_to_rina_0"), Some(true));
        assert_eq!(met(&targets, "gain_of_rina_1"), Some(false));
        assert_eq!(met(&targets, "gain_of_rina_4"), Some(true));
        assert_eq!(met(&targets, "server_to_rina_1"), Some(true));
        assert_eq!(met(&targets, "server_to_rina_3"), Some(true));
        assert_eq!(targets.len(), 5, "{targets:?}");
        let quick = super::targets(&rows, true);
        assert_eq!(met(&quick, "gain_of_rina_1"), None);
    }
}
