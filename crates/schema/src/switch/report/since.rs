//! What a report counts since an earlier one.
//!
//! The table says which figures are counters. Both reports become JSON, each counter gets the
//! earlier value taken off at its place, and the result is read again. Shares that follow from
//! counters are worked out anew.

use super::{Report, TABLE};
use simd_json::prelude::*;
use simd_json::{OwnedValue, StaticNode};
use tally_engine::metrics::{Kind, Metric};

/// Keys by which two lists' entries are the same thing.
const NAMES: [&str; 5] = ["name", "id", "cpu", "rank", "mac"];

impl Report {
    /// This report with its counters as they have grown since `earlier`, one of the same switch.
    /// Gauges, and the residence, are as they are.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (Ok(mut now), Ok(before)) = (
            simd_json::serde::to_owned_value(self),
            simd_json::serde::to_owned_value(earlier),
        ) else {
            return self.clone();
        };
        for group in &TABLE {
            // The quantiles beside it are those of all fragments.
            if group.place == "residence" {
                continue;
            }
            let place: Vec<_> = group
                .place
                .split('.')
                .filter(|key| !key.is_empty())
                .collect();
            let counters = group
                .metrics
                .iter()
                .filter(|metric| metric.kind == Kind::Counter);
            take_off_at(&mut now, &before, &place, &counters.collect::<Vec<_>>());
        }
        let mut since: Self =
            simd_json::serde::from_owned_value(now).unwrap_or_else(|_| self.clone());
        since.derive();
        since
    }

    /// Works out what follows from counters.
    fn derive(&mut self) {
        let counter = |name: &str| self.counters.get(name).copied().unwrap_or_default();
        let added = counter("contributions");
        let all = added + counter("collisions") + counter("held_full");
        self.hit_rate = if all == 0 {
            1.0
        } else {
            added as f64 / all as f64
        };
        for core in &mut self.load {
            *core = super::CoreLoad::new(core.cpu, core.counters);
        }
        for port in &mut self.ports {
            port.tx_dropped = port.queue.dropped_total();
        }
        self.drops.retain(|_, frames| *frames > 0);
    }
}

/// Takes counters off at the place that these keys lead to.
fn take_off_at(now: &mut OwnedValue, before: &OwnedValue, place: &[&str], counters: &[&Metric]) {
    let Some((&key, rest)) = place.split_first() else {
        for metric in counters {
            if let (Some(now), Some(before)) = (now.get_mut(metric.key), before.get(metric.key)) {
                take_off(now, before);
            }
        }
        return;
    };
    let (key, is_list) = key
        .strip_suffix("[]")
        .map_or((key, false), |key| (key, true));
    let (Some(now), Some(before)) = (now.get_mut(key), before.get(key)) else {
        return;
    };
    if !is_list {
        return take_off_at(now, before, rest, counters);
    }
    let (Some(now), Some(before)) = (now.as_array_mut(), before.as_array()) else {
        return;
    };
    for (at, entry) in now.iter_mut().enumerate() {
        // Lists without names are in the order of ranks.
        let name = NAMES.into_iter().find(|&name| entry.contains_key(name));
        let same = match name {
            Some(name) => before.iter().find(|it| it.get(name) == entry.get(name)),
            None => before.get(at),
        };
        if let Some(same) = same {
            take_off_at(entry, same, rest, counters);
        }
    }
}

/// Of a number, or of each in a list or by name. A smaller one has begun anew.
fn take_off(now: &mut OwnedValue, before: &OwnedValue) {
    if let (Some(n), Some(m)) = (now.as_u64(), before.as_u64()) {
        if n >= m {
            *now = OwnedValue::Static(StaticNode::U64(n - m));
        }
    } else if let (Some(now), Some(before)) = (now.as_array_mut(), before.as_array()) {
        now.iter_mut()
            .zip(before.iter())
            .for_each(|(now, before)| take_off(now, before));
    } else if let (Some(now), Some(before)) = (now.as_object_mut(), before.as_object()) {
        for (name, now) in now.iter_mut() {
            if let Some(before) = before.get(name) {
                take_off(now, before);
            }
        }
    }
}
