//! The table of metrics, and what follows from it: values, lines and documentation.

use super::*;
use crate::switch::report::STATES;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tally_engine::metrics::{Metric, MetricSet, Number, Unit};
use tally_engine::netreduce::NetreduceCounters;
use tally_engine::switchml::SwitchmlCounters;
use tally_engine::{Counters, DropReason};

/// All rows, each with its place in the report.
fn rows() -> Vec<(&'static str, &'static Metric)> {
    let mut rows = Vec::new();
    for group in &TABLE {
        rows.extend(group.metrics.iter().map(|metric| (group.place, metric)));
    }
    rows
}

/// A report in which each value is another one, and none is 0.
fn filled() -> Report {
    let mut report: Report = parse(GOLDEN);
    let mut last = 100;
    let next = &mut || {
        last += 1;
        last
    };
    // First, because these have at most 255.
    report.jobs[0].members.fill(next);
    report.jobs[0].ranks[0].gauges.fill(next);
    report.jobs[0].counters.fill(next);
    report.ports[0].link.fill(next);
    report.gauges.fill(next);
    report.in_use.fill(next);
    report.residence.fill(next);
    let mut counters = Counters::default();
    counters.fill(next);
    let by_name = |(name, n): (&str, u64)| (name.to_owned(), n);
    report.counters = counters.named().into_iter().map(by_name).collect();
    let drops = counters.drops.iter();
    report.drops = drops
        .map(|(reason, n)| by_name((reason.name(), n)))
        .collect();
    report.load[0].counters.fill(next);
    let port = &mut report.ports[0];
    port.counters.fill(next);
    port.rare.fill(next);
    port.addresses.fill(next);
    port.queue.fill(next);
    port.nic.fill(next);
    let switchml = report.switchml.as_mut().unwrap();
    let mut counters = SwitchmlCounters::default();
    counters.fill(next);
    switchml.counters = counters.named().into_iter().map(by_name).collect();
    switchml.in_use.fill(next);
    switchml.limits.fill(next);
    let session = &mut switchml.sessions[0];
    session.gauges.fill(next);
    session.counters.fill(next);
    session.ranks[0].counters.fill(next);
    session.ranks[0].gauges.fill(next);
    let netreduce = report.netreduce.as_mut().unwrap();
    let mut counters = NetreduceCounters::default();
    counters.fill(next);
    netreduce.counters = counters.named().into_iter().map(by_name).collect();
    netreduce.in_use.fill(next);
    netreduce.limits.fill(next);
    netreduce.rings[0].counters.fill(next);
    let card = report.card.as_mut().unwrap();
    card.events.fill(next);
    card.traffic.fill(next);
    card.counts.fill(next);
    report
}

#[test]
fn every_row_has_its_values_in_the_report() {
    let report = filled();
    let samples = report.samples();
    let has = |metric: &Metric| {
        samples
            .iter()
            .filter(|s| s.metric.name == metric.name)
            .count()
    };
    for (_, metric) in rows() {
        let values = match metric.by {
            Some(label) if !label.values.is_empty() => label.values.len(),
            Some(_) => 2,
            None => 1,
        };
        assert_eq!(has(metric), values, "{}", metric.name);
    }
    assert!(samples.iter().all(|sample| !sample.value.is_zero()));
    let named = |sample: &Sample| (sample.metric.name, sample.labels.clone());
    let names: BTreeSet<_> = samples.iter().map(named).collect();
    assert_eq!(names.len(), samples.len(), "no value twice");
    for sample in &samples {
        let labels: Vec<_> = sample.labels.iter().map(|&(name, _)| name).collect();
        assert!(sample.metric.labels().eq(labels), "{sample:?}");
    }

    let value = |name: &str, labels: &[(&'static str, &str)]| {
        let labels: Vec<_> = labels.iter().map(|&(k, v)| (k, v.to_owned())).collect();
        let mut found = samples.iter();
        let found = found.find(|s| s.metric.name == name && s.labels == labels);
        found.unwrap_or_else(|| panic!("{name} {labels:?}")).value
    };
    let late = Number::Integer(report.drops["late"]);
    assert_eq!(value("dropped_frames", &[("reason", "late")]), late);
    let class = Number::Integer(report.ports[0].queue.tx_dropped_by_class[7]);
    let labels = [("port", "a"), ("class", "7")];
    assert_eq!(value("port_tx_dropped_frames", &labels), class);
    let rank = &report.switchml.as_ref().unwrap().sessions[0].ranks[0];
    let labels = [("session", "00000000000000aa"), ("rank", "0")];
    let behind = Number::Integer(rank.counters.behind.into());
    assert_eq!(value("switchml_rank_awaited_sums", &labels), behind);
}

/// A struct of metrics that the table leaves out would be counted, and shown nowhere.
#[test]
fn every_set_of_metrics_is_in_the_table() {
    fn sources(folder: &Path, out: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.ends_with("schema/src/controller.rs") {
                // A controller has rows of its own.
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut text = String::new();
    for folder in ["crates/engine/src", "crates/schema/src", "switch/src"] {
        sources(&root().join(folder), &mut text);
    }
    let lines = text.lines().map(str::trim_start);
    let declared =
        lines.filter(|line| line.starts_with("pub struct ") && line.contains(", labels ["));
    let declared: Vec<_> = declared.collect();
    assert_eq!(declared.len(), TABLE.len(), "{declared:#?}");
}

#[test]
fn names_are_fit_for_openmetrics() {
    let is_snake = |name: &str| {
        let mut chars = name.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase())
            && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let mut names = BTreeSet::new();
    for (_, metric) in rows() {
        let name = metric.name;
        assert!(names.insert(name), "{name} twice");
        assert!(is_snake(name), "{name}");
        for suffix in ["_total", "_created", "_info", "_count", "_sum", "_bucket"] {
            assert!(
                !name.ends_with(suffix),
                "{name}: {suffix} is the exporter's"
            );
        }
        let units = [Unit::Frames, Unit::Bytes, Unit::Seconds, Unit::Cycles];
        let unit = units
            .into_iter()
            .find(|unit| name.ends_with(&format!("_{}", unit.name())));
        assert_eq!(unit.unwrap_or(Unit::None), metric.unit, "{name}");
        let labels: Vec<_> = metric.labels().collect();
        assert!(
            labels.iter().all(|label| is_snake(label)),
            "{name}: {labels:?}"
        );
        let distinct: BTreeSet<_> = labels.iter().collect();
        assert_eq!(distinct.len(), labels.len(), "{name}: {labels:?}");
        let help = metric.help;
        assert!(help.ends_with('.') && help.len() > 8, "{name}: {help}");
        assert!(metric.scale >= 1.0, "{name}");
    }
}

/// A metric that is not 0 and not shown would be found by no reader of a running switch's table.
#[test]
fn the_lines_have_every_metric_that_is_not_zero() {
    let report = filled();
    let text = report.to_string();
    let number = |word: &str| word.parse::<f64>().ok();
    let split = |c: char| !c.is_ascii_digit() && c != '.';
    let numbers: Vec<_> = (text.split(split))
        .filter_map(|word| number(word.trim_end_matches('.')))
        .collect();
    for sample in report.samples() {
        let shown = match sample.value {
            // In KiB.
            Number::Integer(n) if sample.metric.key == "pool_bytes" => (n >> 10) as f64,
            Number::Integer(n) => n as f64,
            // In per cent.
            Number::Real(x) if sample.metric.name.ends_with("_ratio") => x * 100.0,
            Number::Real(x) => x,
        };
        let found = numbers.iter().any(|n| (n - shown).abs() < 1e-9);
        assert!(found, "{sample:?} is not in\n{text}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The tables of OPERATIONS.md, each between a line that names it and one that ends it.
fn generated(text: &str) -> String {
    let mut tables = [("metrics", String::new()), ("drop reasons", String::new())];
    tables[0].1 += "| in the report | metric | kind | labels | counts |\n|---|---|---|---|---|\n";
    for (place, metric) in rows() {
        let dot = if place.is_empty() { "" } else { "." };
        let labels: Vec<_> = metric.labels().map(|label| format!("`{label}`")).collect();
        tables[0].1 += &format!(
            "| `{place}{dot}{}` | `{}` | {} | {} | {} |\n",
            metric.key,
            metric.name,
            metric.kind.name(),
            labels.join(", "),
            metric.help
        );
    }
    for metric in &STATES {
        let labels: Vec<_> = metric.labels().map(|label| format!("`{label}`")).collect();
        let kind = if metric.name == "residence_seconds" {
            "histogram"
        } else {
            metric.kind.name()
        };
        tables[0].1 += &format!(
            "| `{}` | `{}` | {kind} | {} | {} |\n",
            metric.key,
            metric.name,
            labels.join(", "),
            metric.help
        );
    }
    tables[1].1 += "| reason | the frame |\n|---|---|\n";
    for reason in DropReason::ALL {
        tables[1].1 += &format!("| `{}` | {} |\n", reason.name(), reason.help());
    }
    let mut text = text.to_owned();
    for (name, table) in tables {
        let (begin, end) = (format!("<!-- {name}: generated -->\n"), "<!-- end -->\n");
        let from = text.find(&begin).unwrap_or_else(|| panic!("no `{begin}`")) + begin.len();
        let to = from + text[from..].find(end).unwrap();
        text.replace_range(from..to, &format!("\n{table}\n"));
    }
    text
}

#[test]
fn the_tables_of_operations_md_are_those_of_the_code() {
    let path = root().join("docs/OPERATIONS.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let generated = generated(&text);
    if std::env::var_os("TALLY_WRITE_DOCS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    assert!(
        text == generated,
        "docs/OPERATIONS.md differs from the table of metrics; run \
         `TALLY_WRITE_DOCS=1 cargo test -p tally-schema operations_md` and look at its diff"
    );
}
