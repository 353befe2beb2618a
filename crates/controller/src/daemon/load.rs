//! Switches that can sum another rate of gradients than plans have: seen while jobs load them.

use super::Daemon;
use crate::capacity::measure;
use crate::events::Event;
use crate::fleet::Fleet;
use crate::measured::{Capacities, Measured};
use crate::remote::Remote;
use crate::store::Store;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tally_schema::switch::report::Report;

/// Measurements in a row that say so.
const STREAK: usize = 3;
/// Relative difference from what plans have.
const DIFFERENCE: f64 = 0.1;

/// The load of all switches.
pub(super) struct Loads {
    /// Time of one measurement.
    window: Duration,
    switches: BTreeMap<String, Load>,
    /// What switches have shown and the fleet does not have, by name.
    shown: BTreeMap<String, Measured>,
}

struct Load {
    since: Instant,
    before: Report,
    streak: Streak,
}

/// Measurements in a row that are above what plans have, or below.
#[derive(Debug, Default)]
struct Streak(Vec<Measured>);

impl Streak {
    /// Takes the next measurement; `None` if there was too little load. The capacity, when it is
    /// another one for so long.
    fn take(&mut self, next: Option<Measured>, known: f64) -> Option<Measured> {
        // Below full load a measurement is a lower bound.
        let next = next.filter(|it| it.is_full() || it.capacity > known);
        let Some(next) = next.filter(|it| (it.capacity - known).abs() > DIFFERENCE * known) else {
            self.0.clear();
            return None;
        };
        let is_above = next.capacity > known;
        self.0.retain(|it| (it.capacity > known) == is_above);
        self.0.push(next);
        if self.0.len() < STREAK {
            return None;
        }
        let mut all = std::mem::take(&mut self.0);
        all.sort_by(|a, b| a.capacity.total_cmp(&b.capacity));
        Some(all[STREAK / 2])
    }
}

impl Loads {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            window,
            switches: BTreeMap::new(),
            shown: BTreeMap::new(),
        }
    }

    /// Takes what was seen in a loop. Switches with another capacity, by index.
    fn see(&mut self, fleet: &Fleet, remotes: &[Option<Remote>]) -> Vec<(usize, Measured)> {
        let mut others = Vec::new();
        for (at, (switch, remote)) in fleet.switches.iter().zip(remotes).enumerate() {
            let Some(Remote { report, .. }) = remote else {
                self.switches.remove(&switch.name);
                continue;
            };
            let begin = || Load {
                since: Instant::now(),
                before: report.clone(),
                streak: Streak::default(),
            };
            let load = self.switches.entry(switch.name.clone());
            let load = load.or_insert_with(begin);
            if report.gauges.seconds < load.before.gauges.seconds {
                // It has restarted.
                *load = begin();
            }
            if load.since.elapsed() < self.window {
                continue;
            }
            let shown = self.shown.get(&switch.name);
            let known = shown.map_or(switch.capacity, |it| it.capacity);
            let measured = measure(&load.before, report, fleet.unit);
            let other = load.streak.take(measured.filter(|_| known > 0.0), known);
            load.since = Instant::now();
            load.before = report.clone();
            others.extend(other.map(|it| (at, it)));
        }
        others
    }
}

impl Daemon {
    /// Plans again if switches have another capacity for long.
    pub(super) async fn measure_loads(&mut self, store: &mut Store) {
        let others = self.loads.see(&self.fleet, &self.remotes);
        if others.is_empty() {
            return;
        }
        let unit = self.fleet.unit;
        let seconds = self.loads.window.as_secs_f64() * STREAK as f64;
        let mut switches = BTreeMap::new();
        let mut reasons = Vec::new();
        for (at, measured) in others {
            let switch = &self.fleet.switches[at];
            let before = self.loads.shown.get(&switch.name);
            let event = Event::Measured {
                switch: switch.name.clone(),
                planned: before.map_or(switch.capacity, |it| it.capacity),
                capacity: measured.capacity,
                unit: unit.to_string(),
                seconds,
            };
            self.events.say(&event);
            reasons.push(event.to_string());
            switches.insert(switch.name.clone(), measured);
        }
        let shown = Capacities { unit, switches };
        match store.write_measured(&shown).await {
            // The next loop finds another fleet.
            Ok(true) => return,
            // The next leader measures again.
            Ok(false) => {}
            Err(error) => self.events.say(&Event::Error {
                error: error.to_string(),
                retry_ms: 0,
            }),
        }
        self.loads.shown.extend(shown.switches);
        for reason in reasons {
            self.plan_again(reason, Duration::ZERO);
        }
    }

    /// The fleet with the capacities that switches have shown. One that sums nothing by the fleet
    /// sums nothing.
    pub(super) fn with_shown(&self, mut fleet: Fleet) -> Fleet {
        for switch in &mut fleet.switches {
            if let Some(it) = self.loads.shown.get(&switch.name)
                && switch.capacity > 0.0
            {
                switch.capacity = it.capacity;
            }
        }
        fleet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(capacity: f64, busy: f64) -> Option<Measured> {
        Some(Measured {
            capacity,
            rate: capacity * busy,
            busy,
            cores: 1,
        })
    }

    fn after(known: f64, measurements: &[Option<Measured>]) -> Option<f64> {
        let mut streak = Streak::default();
        let found = measurements.iter().map(|it| streak.take(*it, known));
        let found: Vec<_> = found.collect();
        found.last().copied().flatten().map(|it| it.capacity)
    }

    #[test]
    fn three_measurements_in_a_row_are_a_capacity() {
        let full = |capacity| measured(capacity, 0.95);
        assert_eq!(after(10.0, &[full(7.0), full(6.0), full(8.0)]), Some(7.0));
        assert_eq!(
            after(10.0, &[full(12.0), full(14.0), full(13.0)]),
            Some(13.0)
        );
        // Too few; near what is known; both sides of it; a pause between.
        assert_eq!(after(10.0, &[full(7.0), full(7.0)]), None);
        assert_eq!(after(10.0, &[full(9.5), full(9.2), full(10.9)]), None);
        assert_eq!(after(10.0, &[full(7.0), full(13.0), full(7.0)]), None);
        assert_eq!(after(10.0, &[full(7.0), full(7.0), None, full(7.0)]), None);
        // A switch that is not full shows at least so much, and never less.
        let half = |capacity| measured(capacity, 0.5);
        assert_eq!(after(10.0, &[half(7.0), half(7.0), half(7.0)]), None);
        assert_eq!(
            after(10.0, &[half(12.0), half(12.0), half(12.0)]),
            Some(12.0)
        );
    }
}
