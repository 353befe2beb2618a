//! What the rounds add up to: rows, targets, the table and the plots.

use super::cases::{Case, Contender, name};
use super::run::{Latency, Run};
use super::{Args, Parameters};
use serde::Serialize;
use std::fmt::Write as _;
use tally_report::{Line, Plot, Spread, Target};
use tally_testkit::cluster::{Cpus, Network};

/// Percent of loss, and the least ratio of goodput at it.
const RATIO_TARGETS: [(f64, f64); 4] = [(0.1, 0.97), (1.0, 0.85), (3.0, 0.6), (10.0, 0.2)];
/// Frames sent again by frames lost, at any rate.
const AGAIN_TARGET: f64 = 3.0;
/// Round trips of the 99th percentile at this percentage of loss.
const P99_TARGET: (f64, f64) = (0.1, 5.0);
/// What the targets are for.
const TARGET_WORKERS: u8 = 8;
const TARGET_MBIT: u32 = 1000;

/// One contender on one network under one kind of loss.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub network: Network,
    pub contender: Contender,
    pub case: Case,
    pub payload_bytes: u16,
    pub goodput_gbit_per_s: Option<Spread>,
    /// Goodput by that of the same round without loss.
    pub to_lossless: Option<Spread>,
    /// Frames with payload that were lost.
    pub lost: Option<Spread>,
    /// Frames with payload that were sent again.
    pub again: Option<Spread>,
    /// Their ratio, of the rounds that lost any.
    pub again_by_lost: Option<Spread>,
    /// The round trip in microseconds, by which latencies are divided.
    pub round_trip_us: Option<Spread>,
    /// 99th percentile in round trips.
    pub p99: Option<Spread>,
    /// Maximum in round trips.
    pub max: Option<Spread>,
    /// Every round.
    pub runs: Vec<Run>,
    /// Why there is no value.
    pub missing: Option<String>,
    /// The runs without loss of the same rounds: goodput and round trip.
    #[serde(skip)]
    bases: Vec<(f64, Option<Latency>)>,
}

impl Row {
    pub fn new(args: &Args, network: Network, contender: Contender, case: Case) -> Self {
        Self {
            network,
            contender,
            case,
            payload_bytes: args.payload_bytes(network),
            goodput_gbit_per_s: None,
            to_lossless: None,
            lost: None,
            again: None,
            again_by_lost: None,
            round_trip_us: None,
            p99: None,
            max: None,
            runs: Vec::new(),
            missing: contender.missing(),
            bases: Vec::new(),
        }
    }

    /// A run, and the one without loss of its round.
    pub fn add(&mut self, run: Run, base: &Run) {
        self.bases.push((base.goodput_gbit_per_s, base.latency));
        self.runs.push(run);
    }

    /// Fills in the medians.
    pub fn conclude(&mut self) {
        let of = |figure: &dyn Fn(&Run) -> f64| {
            Spread::of(&self.runs.iter().map(figure).collect::<Vec<_>>())
        };
        let pairs = || self.runs.iter().zip(&self.bases);
        let in_round_trips = |of: fn(&Latency) -> f64| {
            let latencies = pairs().filter_map(|(run, (_, base))| {
                Some(of(run.latency.as_ref()?) / base.as_ref()?.p50_us)
            });
            Spread::of(&latencies.collect::<Vec<_>>())
        };
        let ratios: Vec<_> = pairs()
            .map(|(run, (goodput, _))| run.goodput_gbit_per_s / goodput)
            .collect();
        let losing = self.runs.iter().filter(|run| run.lost > 0);
        let again_by_lost: Vec<_> = losing
            .map(|run| run.again.sum() as f64 / run.lost as f64)
            .collect();
        let round_trips: Vec<_> = pairs()
            .filter_map(|(_, (_, base))| Some(base.as_ref()?.p50_us))
            .collect();
        let goodput = of(&|run| run.goodput_gbit_per_s);
        let (lost, again) = (
            of(&|run| run.lost as f64),
            of(&|run| run.again.sum() as f64),
        );
        let (p99, max) = (in_round_trips(|l| l.p99_us), in_round_trips(|l| l.max_us));
        self.goodput_gbit_per_s = goodput;
        self.to_lossless = Spread::of(&ratios);
        (self.lost, self.again) = (lost, again);
        self.again_by_lost = Spread::of(&again_by_lost);
        self.round_trip_us = Spread::of(&round_trips);
        (self.p99, self.max) = (p99, max);
    }

    fn is(&self, network: Network, contender: Contender, percent: f64) -> bool {
        (self.network, self.contender, self.case) == (network, contender, Case::Rate { percent })
    }
}

pub fn targets(args: &Args, rows: &[Row]) -> Vec<Target> {
    let mut targets = Vec::new();
    for network in [Network::Memif, Network::Namespaces] {
        for contender in Contender::ALL.into_iter().filter(|c| c.is_tally()) {
            let of = format!("{}_{}", name(&contender), name(&network));
            let reason = not_measured(args, network);
            let mut target =
                |name: String, unit, limit, is_least, value: Option<f64>, how: &str| {
                    let reason = reason.or(value.is_none().then_some("not asked for"));
                    targets.push(match (reason, value) {
                        (Some(reason), _) => Target::not_measured(&name, unit, limit, reason),
                        (_, Some(value)) if is_least => {
                            Target::at_least(&name, value, unit, limit, how)
                        }
                        (_, value) => {
                            Target::at_most(&name, value.unwrap_or_default(), unit, limit, how)
                        }
                    });
                };
            let find = |percent| rows.iter().find(|row| row.is(network, contender, percent));
            for (percent, limit) in RATIO_TARGETS {
                let ratio = find(percent).and_then(|row| row.to_lossless);
                target(
                    format!("goodput_{of}_{percent}"),
                    "ratio",
                    limit,
                    true,
                    ratio.map(|ratio| ratio.median),
                    "goodput to that without loss in the same round, median of the rounds",
                );
            }
            let again = rows.iter().filter(|row| {
                let is_rate = matches!(row.case, Case::Rate { .. });
                (row.network, row.contender) == (network, contender) && is_rate
            });
            let again = again.filter_map(|row| Some(row.again_by_lost?.median));
            target(
                format!("sent_again_{of}"),
                "ratio",
                AGAIN_TARGET,
                false,
                again.reduce(f64::max),
                "payload sent again by payload lost, median of the rounds, at the worst rate",
            );
            let (percent, limit) = P99_TARGET;
            let p99 = find(percent).and_then(|row| row.p99);
            target(
                format!("p99_{of}_{percent}"),
                "round trips",
                limit,
                false,
                p99.map(|p99| p99.median),
                "99th percentile of a fragment at the slowest worker, median of the rounds",
            );
        }
    }
    targets
}

/// Why a network's targets are not judged.
fn not_measured(args: &Args, network: Network) -> Option<&'static str> {
    if args.quick {
        return Some("--quick says nothing of speed");
    }
    if args.workers != TARGET_WORKERS {
        return Some("the target is for 8 workers");
    }
    (network == Network::Namespaces && args.rate_mbit != TARGET_MBIT)
        .then_some("the target is for links of 1000 Mbit/s")
}

pub(super) fn table(args: &Args, parameters: &Parameters, rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "all-reduce of {} f32 ({:.1} MB) by {} workers; {} rounds, medians with least \
         and most\n\
         latencies in round trips, which are the median latency without loss in the same round",
        args.elements,
        args.elements as f64 * 4e-6,
        args.workers,
        args.rounds,
    );
    let mut before = None;
    for row in rows {
        if before != Some((row.network, row.contender)) {
            if before.is_none_or(|(network, _)| network != row.network) {
                out += &heading(args, parameters, row);
            }
            before = Some((row.network, row.contender));
            out.push('\n');
        }
        let _ = write!(
            out,
            "{:<18} {:<27} ",
            row.contender.describe(),
            row.case.describe()
        );
        if let Some(reason) = &row.missing {
            let _ = writeln!(out, "{}", reason.lines().next().unwrap_or_default());
            continue;
        }
        let spread = |spread: Option<Spread>, digits: usize| {
            spread.map_or("-".to_owned(), |Spread { median, min, max }| {
                format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
            })
        };
        let median = |spread: Option<Spread>, digits: usize| {
            spread.map_or("-".to_owned(), |s| format!("{:.digits$}", s.median))
        };
        let _ = writeln!(
            out,
            "{:>19} {:>17} {:>7} {:>8} {:>18} {:>17} {:>8}",
            spread(row.goodput_gbit_per_s, 3),
            spread(row.to_lossless, 2),
            median(row.lost, 0),
            median(row.again, 0),
            spread(row.again_by_lost, 1),
            spread(row.p99, 1),
            median(row.max, 0),
        );
    }
    out + "\nEXACT: every bit of Tally's sums at every worker; the others checked theirs.\n"
}

fn heading(args: &Args, parameters: &Parameters, row: &Row) -> String {
    let is_wired = row.network == Network::Namespaces;
    let cpus = if is_wired {
        &parameters.cpus_links
    } else {
        &parameters.cpus_memif
    };
    let links = if is_wired {
        format!(
            ", {} Mbit/s, MTU {}",
            parameters.rate_mbit, parameters.mtu_links
        )
    } else {
        String::new()
    };
    format!(
        "\n{}{links}, payload {} B, window {}; switch on CPU {}, all others on CPU {}\n\
         {:<18} {:<27} {:>19} {:>17} {:>7} {:>8} {:>18} {:>17} {:>8}\n",
        row.network.describe(),
        row.payload_bytes,
        args.window(row.network),
        Cpus::list(&cpus.switch),
        Cpus::list(&cpus.hosts),
        "contender",
        "loss",
        "Gbit/s",
        "to lossless",
        "lost",
        "again",
        "again/lost",
        "p99",
        "max",
    )
}

/// Goodput to that without loss, against the rate of loss.
pub fn plot(args: &Args, network: Network, rows: &[Row]) -> Plot {
    const COLOURS: [&str; Contender::ALL.len()] =
        ["#c0392b", "#2471a3", "#1e8449", "#7d6608", "#6c3483"];
    let mut lines = Vec::new();
    for (contender, colour) in Contender::ALL.into_iter().zip(COLOURS) {
        let values = args.rates.iter().map(|&percent| {
            let row = rows
                .iter()
                .find(|row| row.is(network, contender, percent))?;
            let Spread { median, min, max } = row.to_lossless?;
            Some((median, min, max))
        });
        let values: Vec<_> = values.collect();
        if values.iter().any(Option::is_some) {
            lines.push(Line {
                name: contender.describe().to_owned(),
                colour,
                values,
            });
        }
    }
    let links = match network {
        Network::Memif => "shared memory".to_owned(),
        Network::Namespaces => format!("links of {} Mbit/s", args.rate_mbit),
    };
    Plot {
        title: format!(
            "What loss leaves of the goodput, {} workers, {links}",
            args.workers
        ),
        x: "percent of frames lost, each way on each link".to_owned(),
        y: "goodput to that without loss".to_owned(),
        places: args
            .rates
            .iter()
            .map(|percent| format!("{percent} %"))
            .collect(),
        is_joined: true,
        marks: Vec::new(),
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::loss::counted::Resent;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(arguments: &[&str]) -> Args {
        Cli::parse_from([&["loss"], arguments].concat()).args
    }

    fn run(goodput_gbit_per_s: f64, lost: u64, contributions: u64, p99_us: f64) -> Run {
        Run {
            round: 1,
            seconds: 1.0,
            goodput_gbit_per_s,
            lost,
            lost_control: 0,
            lost_elsewhere: Some(0),
            again: Resent {
                contributions,
                results: 1,
                ps: 1,
            },
            causes: None,
            latency: Some(Latency {
                p50_us: p99_us / 2.0,
                p99_us,
                max_us: p99_us * 2.0,
            }),
        }
    }

    fn row(args: &Args, percent: f64) -> Row {
        let case = Case::Rate { percent };
        let mut row = Row::new(args, Network::Memif, Contender::Native, case);
        // The machine is half as fast in the second round.
        row.add(run(0.9, 10, 8, 400.0), &run(1.0, 0, 0, 100.0));
        row.add(run(0.4, 10, 38, 400.0), &run(0.5, 0, 0, 200.0));
        row.conclude();
        row
    }

    fn spread(min: f64, max: f64) -> Option<Spread> {
        Some(Spread {
            median: min.midpoint(max),
            min,
            max,
        })
    }

    #[test]
    fn ratios_divide_within_a_round() {
        let row = row(&args(&[]), 1.0);
        assert_eq!(row.to_lossless, spread(0.8, 0.9));
        assert_eq!(row.again_by_lost, spread(1.0, 4.0));
        assert_eq!(row.round_trip_us, spread(50.0, 100.0));
        assert_eq!(row.p99, spread(4.0, 8.0));
        assert_eq!(row.max, spread(8.0, 16.0));
    }

    #[test]
    fn targets_are_judged_where_they_were_measured_as_they_are_meant() {
        let met = |args: &Args, name: &str| {
            let targets = targets(args, &[row(args, 0.1), row(args, 1.0)]);
            let target = targets.into_iter().find(|target| target.name == name);
            target.unwrap().met
        };
        let all = args(&[]);
        assert_eq!(met(&all, "goodput_native_memif_0.1"), Some(false));
        assert_eq!(met(&all, "goodput_native_memif_1"), Some(true));
        assert_eq!(met(&all, "goodput_native_memif_3"), None);
        assert_eq!(met(&all, "sent_again_native_memif"), Some(true));
        assert_eq!(met(&all, "p99_native_memif_0.1"), Some(false));
        assert_eq!(met(&all, "goodput_fixed_memif_1"), None);
        for other in [args(&["--workers", "4"]), args(&["--quick"])] {
            assert_eq!(met(&other, "goodput_native_memif_1"), None);
        }
    }

    #[test]
    fn the_plot_has_a_line_for_each_contender_that_ran() {
        let args = args(&[]);
        let plot = plot(&args, Network::Memif, &[row(&args, 1.0)]);
        assert_eq!(plot.lines.len(), 1);
        let values = &plot.lines[0].values;
        assert_eq!(values.len(), args.rates.len());
        assert_eq!(values.iter().flatten().count(), 1);
    }
}
