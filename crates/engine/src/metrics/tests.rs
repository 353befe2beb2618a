use super::*;
use crate::egress::{PortCounters, RareCounters};
use crate::forwarding::PortAddresses;
use crate::native::PoolUse;
use crate::offload::CardTraffic;
use crate::queue::QueueCounters;
use crate::switchml::{RankCounters, SessionCounters, SwitchmlCounters, SwitchmlUse};
use crate::{Counters, DropReason, Drops};

/// Every value with its row and label.
fn values(set: &impl MetricSet) -> Vec<(&'static Metric, Option<String>, u64)> {
    let mut all = Vec::new();
    set.visit(&mut |metric, label, number| {
        let n = match number {
            Number::Integer(n) => n,
            Number::Real(x) => x as u64,
        };
        all.push((metric, label.map(str::to_owned), n));
    });
    all
}

fn adds<T: MetricSet + Default + Clone + PartialEq + std::fmt::Debug>() {
    let filled = |first: u64, step: u64| {
        let (mut set, mut next) = (T::default(), first);
        set.fill(&mut || {
            next += step;
            next
        });
        set
    };
    // No two values of either have the same sum or are the same.
    let (a, b) = (filled(1, 3), filled(1000, 7));
    let mut sum = a.clone();
    sum.add(&b);
    let parts = values(&a).into_iter().zip(values(&b));
    let expected: Vec<_> = parts
        .map(|((metric, label, a), (_, _, b))| match metric.total {
            Total::Sum => (metric, label, a + b),
            Total::Max => (metric, label, a.max(b)),
        })
        .collect();
    assert_eq!(values(&sum), expected);

    let mut from_zero = T::default();
    assert!(values(&from_zero).iter().all(|&(_, _, n)| n == 0));
    from_zero.add(&a);
    assert_eq!(from_zero, a);

    // Every field has a value of its own: all that `fill` set is different, and nothing else
    // exists.
    let mut numbers: Vec<_> = values(&a).into_iter().map(|(_, _, n)| n).collect();
    let count = numbers.len();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
    assert!(count >= T::TABLE.len() && !T::TABLE.is_empty());
}

#[test]
fn the_sum_over_cores_has_every_field_of_every_set() {
    adds::<Counters>();
    adds::<Drops>();
    adds::<PoolUse>();
    adds::<PortCounters>();
    adds::<RareCounters>();
    adds::<PortAddresses>();
    adds::<QueueCounters>();
    adds::<CardTraffic>();
    adds::<SwitchmlCounters>();
    adds::<SwitchmlUse>();
    adds::<SessionCounters>();
    adds::<RankCounters>();
    adds::<Option<CardTraffic>>();
}

#[test]
fn the_sum_of_several_cores_has_the_longest_queue_of_one() {
    let of = |n| QueueCounters {
        ecn_marked: n,
        queue_frames_max: n as u32,
        ..QueueCounters::default()
    };
    let mut sum = of(5);
    sum.add(&of(9));
    sum.add(&of(7));
    assert_eq!((sum.ecn_marked, sum.queue_frames_max), (21, 9));
}

#[test]
fn unknown_values_and_names_of_the_data_add_as_they_come() {
    let mut silent: Option<f64> = None;
    silent.combine(&Some(2.0), Total::Max);
    silent.combine(&None, Total::Max);
    silent.combine(&Some(1.0), Total::Max);
    assert_eq!(silent, Some(2.0));

    let map = |entries: &[(&str, u64)]| -> std::collections::BTreeMap<String, u64> {
        entries.iter().map(|&(k, n)| (k.to_owned(), n)).collect()
    };
    let mut counts = map(&[("a", 1), ("b", 2)]);
    counts.combine(&map(&[("b", 3), ("c", 4)]), Total::Sum);
    assert_eq!(counts, map(&[("a", 1), ("b", 5), ("c", 4)]));
}

#[test]
fn every_drop_reason_has_its_own_counter_name_and_help() {
    let mut drops = Drops::default();
    for (n, &reason) in DropReason::ALL.iter().enumerate() {
        drops[reason] = n as u64 + 1;
    }
    let mut seen = Vec::new();
    drops.visit(&mut |metric, label, number| {
        assert_eq!(metric.name, "dropped_frames");
        seen.push((label.unwrap().to_owned(), number));
    });
    let expected = DropReason::ALL.iter().zip(1..);
    let expected: Vec<_> = expected
        .map(|(reason, n)| (reason.name().to_owned(), Number::Integer(n)))
        .collect();
    assert_eq!(seen, expected);
    let mut names: Vec<_> = DropReason::NAMES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), DropReason::ALL.len());
    for reason in DropReason::ALL {
        let help = reason.help();
        assert!(help.len() > 15 && help.ends_with('.'), "{reason:?}: {help}");
    }
}
