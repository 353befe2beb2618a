//! Metric families for OpenMetrics: the rows of the tables of metrics with their values.
//!
//! Values are in base units (seconds, bytes), names have no prefix. A family that no table has is
//! a [`state`]: what a report says in words, as a gauge that is 1 where the words are true.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tally_engine::metrics::{Kind, Label, Metric, MetricSet, Number, Total, Unit};

/// One family: all values of one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The row.
    pub metric: Metric,
    /// The values, each with those of the row's labels.
    pub points: Vec<Point>,
}

/// One value of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: Value,
}

/// A value in the base unit.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of what is counted.
    Integer(u64),
    /// Of what is measured.
    Real(f64),
    /// Of what is measured again and again.
    Histogram(Histogram),
}

/// How many measurements were how large.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Histogram {
    /// The sum of all.
    pub sum_us: f64,
    /// Upper bounds of the buckets.
    pub bounds_us: Vec<f64>,
    /// Measurements in each bucket and in none below, and last those above all bounds.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// Without measurements.
    #[must_use]
    pub fn new(bounds_us: &[f64]) -> Self {
        Self {
            sum_us: 0.0,
            bounds_us: bounds_us.to_vec(),
            counts: vec![0; bounds_us.len() + 1],
        }
    }

    /// Adds `count` measurements of this value.
    pub fn record(&mut self, us: f64, count: u64) {
        let at = self.bounds_us.partition_point(|bound| *bound < us);
        if let Some(bucket) = self.counts.get_mut(at) {
            *bucket += count;
            self.sum_us += us * count as f64;
        }
    }

    /// Measurements of all buckets.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A row of a gauge that belongs to no table.
#[must_use]
pub const fn state(
    name: &'static str,
    key: &'static str,
    help: &'static str,
    set: &'static [&'static str],
    by: Option<&'static Label>,
) -> Metric {
    Metric {
        name,
        key,
        kind: Kind::Gauge,
        total: Total::Max,
        unit: Unit::None,
        scale: 1.0,
        help,
        set,
        by,
    }
}

/// Families in the order in which they were begun.
#[derive(Clone, Debug, Default)]
pub struct Families {
    families: Vec<Family>,
    by_name: BTreeMap<&'static str, usize>,
}

impl Families {
    /// Adds one value.
    pub fn push(&mut self, metric: &Metric, labels: Vec<(&'static str, String)>, value: Value) {
        let at = *self.by_name.entry(metric.name).or_insert_with(|| {
            self.families.push(Family {
                metric: *metric,
                points: Vec::new(),
            });
            self.families.len() - 1
        });
        self.families[at].points.push(Point { labels, value });
    }

    /// Adds a value in the unit of the report.
    pub fn number(&mut self, metric: &Metric, labels: Vec<(&'static str, String)>, number: Number) {
        let value = match number {
            Number::Integer(n) if metric.scale > 1.0 => Value::Real(n as f64 / metric.scale),
            Number::Integer(n) => Value::Integer(n),
            Number::Real(x) => Value::Real(x / metric.scale),
        };
        self.push(metric, labels, value);
    }

    /// Adds all values of a set, with the values of its labels.
    pub fn set(&mut self, labels: &[String], set: &impl MetricSet) {
        set.visit(&mut |metric, own, number| {
            let values = labels.iter().map(String::as_str).chain(own);
            let values = values.map(str::to_owned);
            self.number(metric, metric.labels().zip(values).collect(), number);
        });
    }

    /// Adds a state's values: 1 for the one that is, 0 for the others of its label.
    pub fn state(&mut self, metric: &Metric, labels: &[String], is: &str) {
        for value in metric.by.map_or(&[][..], |label| label.values) {
            let values = labels.iter().map(String::as_str).chain([*value]);
            let values = values.map(str::to_owned);
            let number = Number::Integer(u64::from(*value == is));
            self.number(metric, metric.labels().zip(values).collect(), number);
        }
    }

    /// Adds one value with the values of the metric's labels.
    pub fn one(&mut self, metric: &Metric, labels: &[String], number: impl Into<u64>) {
        let labels = metric.labels().zip(labels.iter().cloned()).collect();
        self.number(metric, labels, Number::Integer(number.into()));
    }

    /// All of them.
    #[must_use]
    pub fn into_vec(self) -> Vec<Family> {
        self.families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_in_the_bucket_of_the_next_bound() {
        let mut histogram = Histogram::new(&[1.0, 2.0, 5.0]);
        for us in [0.5, 1.0, 1.5, 5.0, 6.0] {
            histogram.record(us, 2);
        }
        assert_eq!(histogram.counts, [4, 2, 2, 2]);
        assert!((histogram.sum_us - 28.0).abs() < 1e-9);
        assert_eq!(histogram.count(), 10);
        // One that an older program wrote has none, and takes none.
        let mut none = Histogram::default();
        none.record(1.0, 1);
        assert_eq!(none, Histogram::default());
    }

    #[test]
    fn a_state_is_one_of_its_label() {
        const PHASE: Label = Label {
            name: "phase",
            values: &["idle", "running"],
        };
        const ROW: Metric = state("job_phase", "phase", "Phase.", &["job_id"], Some(&PHASE));
        let mut families = Families::default();
        families.state(&ROW, &["7".into()], "running");
        let [family] = &families.into_vec()[..] else {
            panic!("one family")
        };
        let values: Vec<_> = family
            .points
            .iter()
            .map(|p| (&p.labels[1].1[..], &p.value))
            .collect();
        assert_eq!(
            values,
            [
                ("idle", &Value::Integer(0)),
                ("running", &Value::Integer(1))
            ]
        );
        assert_eq!(family.points[0].labels[0], ("job_id", "7".to_owned()));
    }
}
