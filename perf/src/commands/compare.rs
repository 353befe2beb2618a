//! `tally-perf compare`: what was measured here, beside what others published of hardware.
//!
//! Nothing is measured by it: it reads the newest record of each command (`perf/record/`), says which
//! are missing, and writes one HTML page that needs nothing else: plots, published figures with their
//! sources, what is comparable and what is not, and a model of what serves a rack.
//!
//! # The catches
//!
//! - The model is arithmetic over assumptions. Every one is an option here and a field on the page.
//! - The rate of a core is that of the record's machine over virtual ports, whose driver copies every
//!   frame on that core. A NIC does not, but has other costs; nothing here knows them.

mod model;
mod page;
mod published;

use crate::commands::pool;
use crate::record::Record;
use anyhow::{Context, Result, bail};
use page::Page;
use serde::Serialize;
use simd_json::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use tally_report::{Machine, Report};
use tally_wire::HEADERS_BYTES;

/// The commands whose records belong on the page.
const COMMANDS: [&str; 10] = [
    "allreduce",
    "cores",
    "datapath",
    "jct",
    "kernels",
    "latency",
    "load",
    "policies",
    "pool",
    "training",
];
/// Frame check sequence, preamble, gap.
const ON_WIRE_BYTES: f64 = 24.0;
/// What the model takes for a core if nothing was recorded, in Gbit/s.
const CORE_GBIT_UNKNOWN: f64 = 100.0;
/// The payload and the element type whose rate the model takes.
const MODEL_OF: (u64, &str) = (1024, "i32");

/// What is written.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The page
    #[arg(long, value_name = "FILE", default_value = "compare.html")]
    out: PathBuf,

    /// Where the records are
    #[arg(long, value_name = "FOLDER", default_value = "perf/record")]
    records: PathBuf,

    #[command(flatten)]
    inputs: model::Inputs,
}

/// What one core of the switch did.
#[derive(Clone, Debug, Serialize)]
struct OfCore {
    payload_bytes: u64,
    element: String,
    gbit_per_s: f64,
}

/// What records say that the page needs by name.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    of_core: Vec<OfCore>,
}

impl Measured {
    fn of(records: &BTreeMap<String, Record>) -> Self {
        let rows = records.get("datapath").into_iter().flat_map(Record::rows);
        let of_core = rows.filter_map(|row| {
            (row.get_str("program")? == "switch").then_some(())?;
            Some(OfCore {
                payload_bytes: row.get_u64("payload_bytes")?,
                element: row.get_str("element")?.to_owned(),
                gbit_per_s: row.get("gbit_per_s")?.cast_f64()?,
            })
        });
        Self {
            of_core: of_core.collect(),
        }
    }

    fn core_of_model(&self) -> Option<&OfCore> {
        self.of_core
            .iter()
            .find(|core| (core.payload_bytes, core.element.as_str()) == MODEL_OF)
    }
}

#[derive(Serialize)]
struct Results<'a> {
    page: &'a PathBuf,
    records: Vec<String>,
    missing: Vec<&'a str>,
    measured: &'a Measured,
    core_gbit: f64,
    needs: model::Needs,
}

/// Runs it.
///
/// # Errors
/// If a record cannot be read, an input makes no sense, or the page cannot be written.
pub fn run(args: &Args) -> Result<Report> {
    let records = Record::newest(&args.records)?;
    let measured = Measured::of(&records);
    let of_model = measured.core_of_model().map(|core| core.gbit_per_s);
    let core_gbit = args
        .inputs
        .core_gbit
        .or(of_model)
        .unwrap_or(CORE_GBIT_UNKNOWN);
    if let Some(wrong) = args.inputs.wrong(core_gbit) {
        bail!("{wrong} makes no sense");
    }
    let missing: Vec<_> = COMMANDS
        .into_iter()
        .filter(|command| !records.values().any(|record| record.whole() == *command))
        .collect();
    let needs = args.inputs.needs(core_gbit);
    let page = Page {
        records: &records,
        missing: &missing,
        measured: &measured,
        pool: records.get("pool").and_then(pool::plot_of),
        inputs: &args.inputs,
        core_gbit,
        needs,
    };
    tally_config::write_whole(&args.out, page.html())
        .with_context(|| args.out.display().to_string())?;
    let results = Results {
        page: &args.out,
        records: records
            .values()
            .map(|record| format!("{}-{}", record.day, record.command))
            .collect(),
        missing,
        measured: &measured,
        core_gbit,
        needs,
    };
    let table = table(&results);
    Report::new(Machine::detect(), &args.inputs, &results, Vec::new(), table)
}

/// Payload's share of a link, with Tally's frames.
fn ceiling(payload_bytes: u32) -> f64 {
    let payload = f64::from(payload_bytes);
    payload / (payload + HEADERS_BYTES as f64 + ON_WIRE_BYTES)
}

fn table(results: &Results) -> String {
    let list = |names: Vec<&str>| match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    };
    let model::Needs {
        gbit,
        cores,
        nics,
        servers,
        watts,
        cost,
        ..
    } = results.needs;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "records  {}\nmissing  {}\n\nfor {gbit} Gbit/s of gradients, at {:.0} Gbit/s a core: {cores} cores, {nics} NICs, \
         {servers} servers, {watts} W, cost {cost}\n\nwritten: {}",
        list(results.records.iter().map(String::as_str).collect()),
        list(results.missing.clone()),
        results.core_gbit,
        results.page.display()
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_share_of_a_link_is_arithmetic() {
        assert!((ceiling(1024) - 1024.0 / 1112.0).abs() < 1e-12);
        assert!(ceiling(8192) > 0.98);
    }

    #[test]
    fn the_page_needs_nothing_else_and_says_what_is_missing() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("page.html");
        let record = r#"{"machine":{"cpu":"x <y>","cores":2,"virtual_machine":true},"commit":"0123456",
            "parameters":{},"results":[{"program":"switch","payload_bytes":1024,"element":"i32",
            "gbit_per_s":80.0}],"targets":[]}"#;
        std::fs::write(folder.path().join("2026-11-20-datapath.json"), "broken").unwrap();
        let line = |more: &[&str]| {
            let mut words = vec!["x", "--records", folder.path().to_str().unwrap()];
            words.extend(["--out", out.to_str().unwrap()]);
            words.extend(more);
            Line::parse_from(words).args
        };
        let error = run(&line(&[])).unwrap_err();
        assert!(format!("{error:#}").contains("2026-11-20-datapath.json"));
        std::fs::write(folder.path().join("2026-11-20-datapath.json"), record).unwrap();
        for (part, measured) in [("", "shaped"), ("-rest", "unshaped")] {
            let target = |of: &str| {
                let value = if of == measured { "2.5" } else { "null" };
                format!(
                    r#"{{"name":"gloo_{of}","value":{value},"unit":"ratio","target":2.0,"met":null,"how":"as {of}"}}"#
                )
            };
            let targets = ["shaped", "unshaped", "neither"].map(target).join(",");
            let record = format!(
                r#"{{"machine":{{"cpu":null,"cores":2,"virtual_machine":true}},"commit":"1",
                "parameters":{{}},"results":[],"targets":[{targets}]}}"#
            );
            let name = format!("2026-11-20-allreduce{part}.json");
            std::fs::write(folder.path().join(name), record).unwrap();
        }
        let report = run(&line(&[])).unwrap();
        assert!(
            report.to_string().contains("at 80 Gbit/s a core: 50 cores"),
            "{report}"
        );
        let page = std::fs::read_to_string(&out).unwrap();
        assert!(page.contains("x &lt;y&gt;") && page.contains("Not recorded"));
        for target in ["gloo shaped", "gloo unshaped", "gloo neither"] {
            let rows = page.matches(&format!("<td>{target}</td>")).count();
            assert_eq!(
                rows, 1,
                "{target}: what one part measured, the other need not miss"
            );
        }
        let bars = page.matches("Tally, allreduce: gloo").count();
        assert_eq!(bars, 2, "of both parts");
        assert!(!page.contains("{{") && !page.contains("src=") && !page.contains("href="));
        let report = run(&line(&["--core-gbit", "160"])).unwrap();
        assert!(report.to_string().contains(": 25 cores"), "{report}");
        assert!(run(&line(&["--core-gbit", "0"])).is_err());
    }
}
