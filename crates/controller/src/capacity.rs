//! `capacity`: the rate of gradients that running switches can sum, from what they count while they
//! sum.
//!
//! Data cores count the cycles of poll iterations that found something to do. If gradients come in
//! at rate r and the cores are busy for a share b of the time, they can take in r / b at least.
//! Results, ordinary traffic and all else that the cores do meanwhile is in b.
//!
//! # The catches
//!
//! * Cores that are not full take fewer frames at a time, and each costs many times the cycles. So
//!   a measurement below [`BUSY_FULL`] is only a lower bound: it counts if it is above what is
//!   known.
//! * One core of several may be full before the others: jobs' fragments are spread over all, other
//!   traffic may not be.

use crate::fleet::{Fleet, Unit};
#[cfg(doc)]
use crate::measured::BUSY_FULL;
use crate::measured::{Capacities, Measured};
use crate::remote::{RemoteError, reach};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tally_program::columns;
use tally_schema::switch::report::{Report, Stage};

/// Share of the cores' time below which a measurement says nothing.
const BUSY_MIN: f64 = 0.05;

/// What a switch did between two reports. `None` if that is too little to tell.
#[must_use]
pub fn measure(before: &Report, now: &Report, unit: Unit) -> Option<Measured> {
    let seconds = now.gauges.seconds - before.gauges.seconds;
    let since = now.since(before);
    let cycles = |of: fn(&tally_schema::switch::report::LoadCounters) -> u64| {
        let cores = since.load.iter();
        cores.map(|it| of(&it.counters)).sum::<u64>() as f64
    };
    let all = cycles(|it| it.cycles.total());
    let idle = cycles(|it| it.cycles[Stage::Idle]);
    let busy = (all - idle) / all.max(1.0);
    let bytes = since.jobs.iter();
    let bytes = bytes.map(|it| it.counters.contributions as f64 * f64::from(it.payload_bytes));
    let rate = bytes.sum::<f64>() * 8.0 / seconds / unit.bits_per_second();
    let is_enough = seconds > 0.0 && busy >= BUSY_MIN && rate > 0.0;
    is_enough.then(|| Measured {
        capacity: rate / busy,
        rate,
        busy,
        cores: since.load.len(),
    })
}

/// What the switches of a fleet show in some time, by their index; the inner `None`: too little
/// load. The outer `None`: without `control`, or the switch does not answer.
///
/// # Errors
/// If one refuses, or is another switch.
pub async fn observe(
    fleet: &Fleet,
    path: &Path,
    time: Duration,
) -> Result<Vec<Option<Option<Measured>>>, RemoteError> {
    let mut switches = Vec::new();
    for (at, reached) in reach(fleet, path).await.into_iter().enumerate() {
        switches.push(match reached {
            None => None,
            Some(Ok(remote)) => Some((remote.report.clone(), remote)),
            Some(Err(RemoteError::Connect { .. })) if fleet.switches[at].capacity == 0.0 => None,
            Some(Err(error)) => return Err(error),
        });
    }
    tokio::time::sleep(time).await;
    let mut all = Vec::new();
    for switch in switches {
        let Some((before, mut remote)) = switch else {
            all.push(None);
            continue;
        };
        remote.look().await?;
        all.push(Some(measure(&before, &remote.report, fleet.unit)));
    }
    Ok(all)
}

/// What is known of each switch now, with what was `known` before.
#[must_use]
pub fn merged(
    fleet: &Fleet,
    observed: &[Option<Option<Measured>>],
    known: Option<&Capacities>,
) -> Capacities {
    let ratio = known.map(|it| it.unit.bits_per_second() / fleet.unit.bits_per_second());
    let mut switches = BTreeMap::new();
    for (switch, observed) in fleet.switches.iter().zip(observed) {
        let known = known.and_then(|it| it.switches.get(&switch.name));
        let known = known.zip(ratio).map(|(it, ratio)| Measured {
            capacity: it.capacity * ratio,
            rate: it.rate * ratio,
            ..*it
        });
        let least = known.map_or(switch.capacity, |it| it.capacity);
        let counts = |it: &Measured| it.is_full() || it.capacity > least;
        if let Some(it) = observed.flatten().filter(counts).or(known) {
            switches.insert(switch.name.clone(), it);
        }
    }
    Capacities {
        unit: fleet.unit,
        switches,
    }
}

/// The same for people.
#[must_use]
pub fn text(fleet: &Fleet, observed: &[Option<Option<Measured>>]) -> String {
    let mut table = columns![
        "switch" left, "cores" right, "busy" right, "sums" right, "can sum" right,
        "in the file" right, "" left,
    ];
    for (switch, observed) in fleet.switches.iter().zip(observed) {
        let rate = |it: f64| crate::show::rate(it);
        let file = rate(switch.capacity);
        let name = switch.name.clone();
        let none = || "-".to_owned();
        table.row(match observed {
            Some(Some(it)) => [
                name,
                it.cores.to_string(),
                format!("{:.0} %", 100.0 * it.busy),
                rate(it.rate),
                rate(it.capacity),
                file,
                match it.is_full() {
                    true => fleet.unit.to_string(),
                    false => format!("{}; not full: it can sum more", fleet.unit),
                },
            ],
            other => {
                let why = match other {
                    None => "no report",
                    Some(_) => "too little load to tell",
                };
                [name, none(), none(), none(), none(), file, why.to_owned()]
            }
        });
    }
    table.to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tally_schema::switch::report::{CoreLoad, LoadCounters};

    /// After `seconds`, with a core that was busy for a share of them.
    fn report(seconds: f64, busy: &[f64], contributions: u64) -> Report {
        let golden = include_str!("../../schema/golden/switch-report.json");
        let mut report: Report = serde_json::from_str(golden).unwrap();
        report.gauges.seconds = seconds;
        report.load = (busy.iter().enumerate())
            .map(|(cpu, busy)| {
                let mut counters = LoadCounters::default();
                let cycles = seconds * 1e9;
                counters.cycles[Stage::Aggregate] = (cycles * busy) as u64;
                counters.cycles[Stage::Idle] = (cycles * (1.0 - busy)) as u64;
                CoreLoad::new(cpu, counters)
            })
            .collect();
        report.jobs.truncate(1);
        report.jobs[0].payload_bytes = 1000;
        report.jobs[0].counters.contributions = contributions;
        report
    }

    #[test]
    fn what_a_switch_can_sum_is_what_it_sums_in_busy_time() {
        let before = report(10.0, &[0.0, 0.0], 0);
        // 20 s later: 30 s in all, of which the cores were busy for 6 and 3.
        let now = report(30.0, &[0.2, 0.1], 2_000_000);
        let got = measure(&before, &now, Unit::Gigabit).unwrap();
        assert_eq!(got.cores, 2);
        assert!((got.rate - 0.8).abs() < 1e-9, "{got:?}");
        assert!((got.busy - 9.0 / 40.0).abs() < 1e-6, "{got:?}");
        assert!((got.capacity - 0.8 / (9.0 / 40.0)).abs() < 1e-4, "{got:?}");
        let got = measure(&before, &now, Unit::Megabit).unwrap();
        assert!((got.rate - 800.0).abs() < 1e-6, "{got:?}");
    }

    #[test]
    fn a_switch_that_is_not_full_shows_a_lower_bound() {
        let problem = tally_planner::examples::grid_fig1();
        let fleet = Fleet::of(&problem, Unit::Gigabit);
        let name = fleet.switches[0].name.clone();
        let written = fleet.switches[0].capacity;
        let of = |capacity: f64, busy: f64| Measured {
            capacity,
            rate: capacity * busy,
            busy,
            cores: 1,
        };
        let merge = |new: Measured, known: Option<f64>| {
            let known = known.map(|capacity| Capacities {
                unit: Unit::Megabit,
                switches: [(name.clone(), of(capacity * 1e3, 1.0))].into(),
            });
            let mut observed = vec![None; fleet.switches.len()];
            observed[0] = Some(Some(new));
            let merged = merged(&fleet, &observed, known.as_ref());
            merged.switches.get(&name).map(|it| it.capacity)
        };
        assert_eq!(merge(of(written / 2.0, 0.5), None), None);
        assert_eq!(merge(of(written / 2.0, 0.9), None), Some(written / 2.0));
        assert_eq!(merge(of(written * 2.0, 0.5), None), Some(written * 2.0));
        assert_eq!(merge(of(2.0, 0.5), Some(3.0)), Some(3.0));
        assert_eq!(merge(of(2.0, 0.9), Some(3.0)), Some(2.0));
        assert_eq!(merge(of(4.0, 0.5), Some(3.0)), Some(4.0));
    }

    #[test]
    fn too_little_says_nothing() {
        let before = report(10.0, &[0.0], 0);
        let hardly = report(20.0, &[0.02], 100_000);
        assert_eq!(measure(&before, &hardly, Unit::Gigabit), None);
        let other_traffic = report(20.0, &[0.5], 0);
        assert_eq!(measure(&before, &other_traffic, Unit::Gigabit), None);
        assert_eq!(measure(&before, &before, Unit::Gigabit), None);
    }
}
