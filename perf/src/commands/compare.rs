//! `tally-perf compare`: a page with what was measured here beside what others published of
//! hardware.
//!
//! It measures nothing: it reads the newest record of each command (`perf/record/`) and writes one
//! HTML page that needs no other file: plots, a model of what serves a rack, the measured targets,
//! published figures with their sources, and on one line what has no value.
//!
//! # The catches
//!
//! - The model is arithmetic over assumptions. Every one is an option here and a field on the page.
//! - The rate of a core is that of the record's machine over virtual ports, whose driver copies
//!   every frame on that core. A NIC does not, but has other costs; nothing here knows them.

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
use std::path::PathBuf;
use tally_report::{Machine, Report};
use tally_wire::HEADERS_BYTES;

/// The commands whose records belong on the page.
const COMMANDS: [&str; 9] = [
    "allreduce",
    "cores",
    "datapath",
    "jct",
    "kernels",
    "latency",
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
    /// Page to write
    #[arg(long, value_name = "FILE", default_value = "compare.html")]
    out: PathBuf,

    /// Folder of the records
    #[arg(long, value_name = "FOLDER", default_value = "perf/record")]
    records: PathBuf,

    #[command(flatten)]
    inputs: model::Inputs,
}

/// Rate of one core of the switch.
#[derive(Clone, Debug, Serialize)]
struct OfCore {
    payload_bytes: u64,
    element: String,
    gbit_per_s: f64,
}

impl OfCore {
    fn all(records: &BTreeMap<String, Record>) -> Vec<Self> {
        let rows = records.get("datapath").into_iter().flat_map(Record::rows);
        let of_core = rows.filter_map(|row| {
            (row.get_str("program")? == "switch").then_some(())?;
            Some(Self {
                payload_bytes: row.get_u64("payload_bytes")?,
                element: row.get_str("element")?.to_owned(),
                gbit_per_s: row.get("gbit_per_s")?.cast_f64()?,
            })
        });
        of_core.collect()
    }

    fn is_of_model(&self) -> bool {
        (self.payload_bytes, self.element.as_str()) == MODEL_OF
    }
}

#[derive(Serialize)]
struct Results<'a> {
    page: &'a PathBuf,
    records: Vec<String>,
    missing: Vec<&'a str>,
    of_core: Vec<OfCore>,
    needs: model::Needs,
}

/// Runs it.
///
/// # Errors
/// If a record cannot be read, an input makes no sense, or the page cannot be written.
pub fn run(args: &Args) -> Result<Report> {
    let records = Record::newest(&args.records)?;
    let of_core = OfCore::all(&records);
    let of_model = of_core.iter().find(|core| core.is_of_model());
    let core_source = match (args.inputs.core_gbit, of_model) {
        (Some(_), _) => "given on the command line",
        (None, Some(_)) => "measured here over virtual ports (1024 B, i32)",
        (None, None) => "one too, without a record of datapath",
    };
    let recorded = of_model.map_or(CORE_GBIT_UNKNOWN, |core| core.gbit_per_s);
    let core_gbit = args.inputs.core_gbit.unwrap_or(recorded);
    let inputs = model::Inputs {
        core_gbit: Some(core_gbit),
        ..args.inputs.clone()
    };
    if let Some(wrong) = inputs.wrong() {
        bail!("{wrong} makes no sense");
    }
    let is_recorded = |command| records.values().any(|record| record.whole() == command);
    let missing = COMMANDS
        .into_iter()
        .filter(|&command| !is_recorded(command));
    let page = Page {
        records: &records,
        missing: missing.collect(),
        of_core: &of_core,
        pool: records.get("pool").and_then(pool::plot_of),
        fields: inputs.fields(),
        core_source,
    };
    tally_config::write_whole(&args.out, page.html())
        .with_context(|| args.out.display().to_string())?;
    let names = records
        .values()
        .map(|record| format!("{}-{}", record.day, record.command));
    let results = Results {
        page: &args.out,
        records: names.collect(),
        missing: page.missing,
        of_core: of_core.clone(),
        needs: inputs.needs(core_gbit),
    };
    let table = table(&results, core_gbit);
    Report::new(Machine::detect(), &inputs, &results, Vec::new(), table)
}

/// Payload's share of a link, with Tally's frames.
fn ceiling(payload_bytes: u32) -> f64 {
    let payload = f64::from(payload_bytes);
    payload / (payload + HEADERS_BYTES as f64 + ON_WIRE_BYTES)
}

fn table(results: &Results, core_gbit: f64) -> String {
    let model::Needs {
        gbit,
        cores,
        nics,
        servers,
        watts,
        cost,
    } = results.needs;
    format!(
        "records  {}\nmissing  {}\n\nfor {gbit} Gbit/s of gradients, at {core_gbit:.0} Gbit/s a core: {cores} cores, \
         {nics} NICs, {servers} servers, {watts} W, cost {cost}\n\nwritten: {}\n",
        results.records.join(", "),
        results.missing.join(", "),
        results.page.display()
    )
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
        assert!(page.contains("x &lt;y&gt;") && page.contains("<b>Not recorded:</b> cores, jct"));
        assert!(page.contains("<b>Not measured:</b> gloo neither (allreduce)."));
        for target in ["gloo shaped", "gloo unshaped"] {
            let rows = page.matches(&format!("<td>{target}</td>")).count();
            assert_eq!(rows, 1, "{target}: one part measured it");
        }
        let bars = page.matches("Tally, allreduce: gloo").count();
        assert_eq!(bars, 2, "of both parts");
        let [pictures, measured] = ["<svg", "<td>gloo shaped"].map(|it| page.find(it).unwrap());
        assert!(pictures < measured, "pictures first");
        assert!(!page.contains("{{") && !page.contains("src=") && !page.contains("href="));
        let report = run(&line(&["--core-gbit", "160"])).unwrap();
        assert!(report.to_string().contains(": 25 cores"), "{report}");
        assert!(run(&line(&["--core-gbit", "0"])).is_err());
    }
}
