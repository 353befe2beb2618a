//! `tally-perf plot`: the plots in the docs that are made of records alone.
//!
//! It measures nothing: it reads the newest records (`perf/record/`) and writes `docs/plots/`. A
//! test holds that the committed plots are what it writes.

use crate::commands::pool;
use crate::record::Record;
use anyhow::{Context, Result};
use serde::Serialize;
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tally_report::{Bar, Bars, Machine, Report};

/// The setting that is drawn: shaped links with this MTU.
const MTU: u64 = 9000;
/// What is compared, by its name in records, in words, with its colour.
const CONTENDERS: [(&str, &str, &str); 2] = [
    ("tally", "Tally", "#c0392b"),
    ("gloo", "Gloo's ring", "#5d7f9e"),
];

/// What is written.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Folder of the records
    #[arg(long, value_name = "FOLDER", default_value = "perf/record")]
    records: PathBuf,

    /// Folder of the plots
    #[arg(long, value_name = "FOLDER", default_value = "docs/plots")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Written {
    plots: Vec<PathBuf>,
}

/// Runs it.
///
/// # Errors
/// If a record is missing or cannot be read, or a plot cannot be written.
pub fn run(args: &Args) -> Result<Report> {
    let records = Record::newest(&args.records)?;
    let mut plots = Vec::new();
    let pool = records.get("pool").and_then(pool::plot_of);
    let pool = pool.context("no record of pool")?.svg();
    for (name, svg) in [("allreduce.svg", allreduce(&records)?), ("pool.svg", pool)] {
        let path = args.out.join(name);
        tally_config::write_whole(&path, svg).with_context(|| path.display().to_string())?;
        plots.push(path);
    }
    let names: Vec<_> = plots
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let table = format!("written: {}\n", names.join(", "));
    let parameters = args.records.display().to_string();
    Report::new(
        Machine::detect(),
        &parameters,
        &Written { plots },
        Vec::new(),
        table,
    )
}

/// The time of an all-reduce by the number of workers, Tally beside Gloo.
fn allreduce(records: &BTreeMap<String, Record>) -> Result<String> {
    let mut parts: Vec<_> = records.values().collect();
    parts.retain(|record| record.whole() == "allreduce");
    // Rows of later days replace those of earlier ones.
    parts.sort_by_key(|record| &record.day);
    let mut bars = BTreeMap::new();
    let mut work = None;
    for record in parts {
        for row in record.rows() {
            if let Some((workers, place, bar)) = bar(row) {
                bars.insert((workers, place), bar);
                work = Some(&record.content.parameters);
            }
        }
    }
    let parameter = |name: &str| work?.get(name)?.cast_f64();
    let bytes = parameter("elements").map(|elements| elements * 4.0);
    let rate = parameter("rate_mbit").map(|mbit| mbit * 1e6);
    let (bytes, rate) = bytes
        .zip(rate)
        .context("no record of allreduce on shaped links")?;
    let mut groups: BTreeMap<u64, Vec<Bar>> = BTreeMap::new();
    for ((workers, _), bar) in bars {
        groups.entry(workers).or_default().push(bar);
    }
    let seconds = bytes * 8.0 / rate;
    let chart = Bars {
        title: format!(
            "All-reduce of {:.0} MB of f32, links of {} Gbit/s, MTU {MTU}",
            bytes / 1e6,
            rate / 1e9
        ),
        mark: Some((seconds, format!("{seconds} s: the link's rate"))),
        groups: groups.into_values().collect(),
    };
    Ok(chart.svg())
}

/// Workers, place among the contenders, and bar of a row; none if it is not drawn.
fn bar(row: &OwnedValue) -> Option<(u64, usize, Bar)> {
    let setting = row.get("setting")?;
    let is_drawn = setting.get("links")?.get_u64("mtu")? == MTU;
    let workers = setting.get_u64("workers").filter(|_| is_drawn)?;
    let contender = row.get_str("contender")?;
    let place = CONTENDERS
        .iter()
        .position(|(name, ..)| *name == contender)?;
    let (_, name, colour) = CONTENDERS[place];
    let [median, low, high] =
        ["median", "min", "max"].map(|name| row.get("seconds")?.get(name)?.cast_f64());
    let (median, low, high) = (median?, low?, high?);
    let bar = Bar {
        name: format!("{workers} workers, {name}"),
        range: (low, high),
        value: format!("{median:.2} s ({low:.2}–{high:.2})"),
        colour,
    };
    Some((workers, place, bar))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_committed_plots_are_those_of_the_records() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folder = tempfile::tempdir().unwrap();
        let args = Args {
            records: root.join("perf/record"),
            out: folder.path().to_owned(),
        };
        run(&args).unwrap();
        let mut plots = 0;
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            let committed = root.join("docs/plots").join(entry.file_name());
            let [made, kept] = [entry.path(), committed].map(|path| std::fs::read(path).unwrap());
            assert!(made == kept, "{:?}: run tally-perf plot", entry.file_name());
            plots += 1;
        }
        assert_eq!(plots, 2);
    }

    #[test]
    fn the_newest_record_of_a_setting_is_drawn_and_none_is_an_error() {
        assert!(allreduce(&BTreeMap::new()).is_err());
        let folder = tempfile::tempdir().unwrap();
        let record = |day: &str, part: &str, seconds: f64| {
            let text = format!(
                r#"{{"machine":{{"cpu":"x","cores":2,"virtual_machine":true}},"commit":"0123456",
                "parameters":{{"elements":25000000,"rate_mbit":1000}},"targets":[],"results":[
                {{"setting":{{"workers":8,"links":{{"mtu":9000}}}},"contender":"tally",
                "seconds":{{"median":{seconds},"min":{seconds},"max":{seconds}}}}}]}}"#
            );
            let name = format!("{day}-allreduce-{part}.json");
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        record("2026-11-21", "shaped-8", 2.5);
        record("2026-11-22", "quick", 1.25);
        let svg = allreduce(&Record::newest(folder.path()).unwrap()).unwrap();
        assert!(
            svg.contains("1.25 s (") && !svg.contains("2.50 s ("),
            "{svg}"
        );
        assert!(svg.contains(">0.8 s: the link"));
    }
}
