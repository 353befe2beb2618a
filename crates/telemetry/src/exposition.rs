//! Families as OpenMetrics text, and as Prometheus' older text format.
//!
//! `prometheus-client` writes OpenMetrics 1.0. The older format, which `promtool check metrics` and
//! scrapers without OpenMetrics read, differs in the names of counters' comments, and has neither
//! units nor an end.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use tally_engine::metrics::{Kind, Metric, Unit as OurUnit};
use tally_schema::metrics::{Family, Histogram, Point, Value};

/// In front of all names.
const PREFIX: &str = "tally";

/// The families as OpenMetrics 1.0.
#[must_use]
pub fn openmetrics(families: Vec<Family>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Families(families)));
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut out, &registry);
    out
}

/// OpenMetrics text in the older format, version 0.0.4.
#[must_use]
pub fn prometheus(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    let mut help = "";
    for line in openmetrics.lines() {
        match line
            .split_once(' ')
            .map(|(hash, rest)| (hash, rest.split_once(' ')))
        {
            Some(("#", Some(("HELP", rest)))) => help = rest,
            Some(("#", Some(("TYPE", rest)))) => {
                let (name, kind) = rest.rsplit_once(' ').unwrap_or((rest, "untyped"));
                let suffix = if kind == "counter" { "_total" } else { "" };
                let text = help.split_once(' ').map_or("", |(_, text)| text);
                out.push_str(&format!(
                    "# HELP {name}{suffix} {text}\n# TYPE {name}{suffix} {kind}\n"
                ));
            }
            Some(("#", _)) => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for Family { metric, points } in &self.0 {
            let (name, unit) = name_and_unit(metric);
            let help = metric.help.replace('\\', "\\\\").replace('\n', " ");
            let kind = match (points.first().map(|point| &point.value), metric.kind) {
                (Some(Value::Histogram(_)), _) => MetricType::Histogram,
                (_, Kind::Counter) => MetricType::Counter,
                (_, Kind::Gauge) => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, &help, unit.as_ref(), kind)?;
            for Point { labels, value } in points {
                if labels.is_empty() {
                    encode(&mut family, metric.kind, value)?;
                } else {
                    encode(&mut family.encode_family(labels)?, metric.kind, value)?;
                }
            }
        }
        Ok(())
    }
}

fn encode(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> Result<(), fmt::Error> {
    match (kind, value) {
        (_, Value::Histogram(histogram)) => {
            let (sum, count, buckets) = buckets(histogram);
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
        (Kind::Counter, Value::Integer(n)) => encoder.encode_counter::<NoLabelSet, _, u64>(n, None),
        (Kind::Counter, Value::Real(x)) => encoder.encode_counter::<NoLabelSet, _, u64>(x, None),
        // An i64 to the library.
        (Kind::Gauge, Value::Integer(n)) => {
            encoder.encode_gauge(&i64::try_from(*n).unwrap_or(i64::MAX))
        }
        (Kind::Gauge, Value::Real(x)) => encoder.encode_gauge(x),
    }
}

/// Sum, number and buckets in seconds; the last bucket has no bound.
fn buckets(histogram: &Histogram) -> (f64, u64, Vec<(f64, u64)>) {
    let bounds = histogram.bounds_us.iter().map(|us| us / 1e6);
    let bounds = bounds.chain([f64::INFINITY]);
    let buckets = bounds.zip(histogram.counts.iter().copied()).collect();
    (histogram.sum_us / 1e6, histogram.count(), buckets)
}

/// The library adds the unit to the name again.
fn name_and_unit(metric: &Metric) -> (&'static str, Option<Unit>) {
    let unit = match metric.unit {
        OurUnit::None => return (metric.name, None),
        OurUnit::Bytes => Unit::Bytes,
        OurUnit::Seconds => Unit::Seconds,
        other => Unit::Other(other.name().to_owned()),
    };
    let suffix = metric.unit.name();
    let name = metric.name.strip_suffix(suffix).unwrap_or(metric.name);
    (name.trim_end_matches('_'), Some(unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_engine::metrics::Total;
    use tally_schema::metrics::{Families as Builder, state};

    const FRAMES: Metric = Metric {
        name: "dropped_frames",
        key: "drops",
        kind: Kind::Counter,
        total: Total::Sum,
        unit: OurUnit::Frames,
        scale: 1.0,
        help: "Frames dropped, by reason.",
        set: &["port"],
        by: None,
    };
    const TIME: Metric = Metric {
        name: "residence_seconds",
        key: "r",
        unit: OurUnit::Seconds,
        ..state("residence_seconds", "r", "Residence \\ of.", &[], None)
    };
    const UP: Metric = state("up_ratio", "up", "Up.", &[], None);

    #[test]
    fn both_formats_have_names_units_labels_and_buckets() {
        let mut families = Builder::default();
        families.one(&FRAMES, &["a\"\\\nb".into()], 3u64);
        families.one(&FRAMES, &["c".into()], u64::MAX);
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        histogram.record(1.0, 4);
        histogram.record(1.5, 1);
        histogram.record(9.0, 2);
        families.push(&TIME, Vec::new(), Value::Histogram(histogram));
        families.push(&UP, Vec::new(), Value::Real(0.5));
        let text = openmetrics(families.into_vec());
        assert_eq!(
            text,
            "# HELP tally_dropped_frames Frames dropped, by reason.\n\
             # TYPE tally_dropped_frames counter\n\
             # UNIT tally_dropped_frames frames\n\
             tally_dropped_frames_total{port=\"a\\\"\\\\\\nb\"} 3\n\
             tally_dropped_frames_total{port=\"c\"} 18446744073709551615\n\
             # HELP tally_residence_seconds Residence \\\\ of.\n\
             # TYPE tally_residence_seconds histogram\n\
             # UNIT tally_residence_seconds seconds\n\
             tally_residence_seconds_sum 0.0000235\n\
             tally_residence_seconds_count 7\n\
             tally_residence_seconds_bucket{le=\"0.000001\"} 4\n\
             tally_residence_seconds_bucket{le=\"0.000002\"} 5\n\
             tally_residence_seconds_bucket{le=\"+Inf\"} 7\n\
             # HELP tally_up_ratio Up.\n\
             # TYPE tally_up_ratio gauge\n\
             tally_up_ratio 0.5\n\
             # EOF\n"
        );
        let text = prometheus(&text);
        assert!(text.starts_with(
            "# HELP tally_dropped_frames_total Frames dropped, by reason.\n\
             # TYPE tally_dropped_frames_total counter\n\
             tally_dropped_frames_total{port="
        ));
        assert!(text.contains("# TYPE tally_residence_seconds histogram\n"));
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"));
    }
}
