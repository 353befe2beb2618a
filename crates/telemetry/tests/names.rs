//! Each series that an alert rule or the dashboard names is a row of the tables of metrics.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tally_engine::metrics::{Kind, Metric};
use tally_schema::agent::metrics::{agent_rows, ps_rows};
use tally_schema::controller::controller_rows;
use tally_schema::switch::report::{STATES, TABLE};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn rows() -> Vec<&'static Metric> {
    let switch = TABLE.iter().flat_map(|group| group.metrics);
    let states = STATES.iter().chain(&tally_telemetry::FAMILIES);
    switch
        .chain(states)
        .chain(agent_rows())
        .chain(ps_rows())
        .chain(controller_rows())
        .collect()
}

fn series() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for row in rows() {
        let name = format!("tally_{}", row.name);
        match row.kind {
            Kind::Counter => all.insert(format!("{name}_total")),
            Kind::Gauge => all.insert(name.clone()),
        };
        if row.name == "residence_seconds" {
            all.extend(["bucket", "sum", "count"].map(|suffix| format!("{name}_{suffix}")));
        }
    }
    all
}

/// The words that begin with `tally_`.
fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c));
    words.filter(|word| word.starts_with("tally_")).collect()
}

#[test]
fn rules_and_dashboard_name_series_that_there_are() {
    let series = series();
    for path in [
        "configs/prometheus/tally.rules.yml",
        "configs/prometheus/tally.test.yml",
        "configs/grafana/tally.json",
    ] {
        let text = read(path);
        let names = names(&text);
        assert!(names.len() > 10, "{path}");
        for name in names {
            assert!(series.contains(name), "{path}: no series is called {name}");
        }
    }
}

#[test]
fn no_two_programs_have_a_series_in_common() {
    let names: Vec<_> = rows().iter().map(|row| row.name).collect();
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
}

#[test]
fn monitoring_md_has_the_rows_of_all_but_switches() {
    let mut table = "| series | kind | labels | counts |\n|---|---|---|---|\n".to_owned();
    let all = agent_rows().into_iter().chain(ps_rows());
    for row in all.chain(controller_rows()) {
        let suffix = if row.kind == Kind::Counter {
            "_total"
        } else {
            ""
        };
        let labels: Vec<_> = row.labels().map(|label| format!("`{label}`")).collect();
        table += &format!(
            "| `tally_{}{suffix}` | {} | {} | {} |\n",
            row.name,
            row.kind.name(),
            labels.join(", "),
            row.help
        );
    }
    let path = root().join("docs/MONITORING.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let begin = "<!-- agent metrics: generated -->\n";
    let (before, rest) = text.split_once(begin).unwrap();
    let (_, after) = rest.split_once("<!-- end -->").unwrap();
    let generated = format!("{before}{begin}\n{table}\n<!-- end -->{after}");
    if std::env::var_os("TALLY_WRITE_DOCS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    assert!(
        text == generated,
        "docs/MONITORING.md differs; run `TALLY_WRITE_DOCS=1 cargo test -p tally-telemetry --test names`"
    );
}
