//! The page: one HTML file that needs nothing else.

use super::Measured;
use super::model::{Inputs, Needs};
use super::published::{FIGURES, Kind};
use crate::record::Record;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tally_report::{Plot, Target};

const TEMPLATE: &str = include_str!("page.html");
const OURS: &str = "#c0392b";
const THEIRS: &str = "#5d7f9e";

/// A bar of a chart: from 0 to `high`, with a notch at `low` where there is a range.
pub(super) struct Bar {
    pub name: String,
    pub low: f64,
    pub high: f64,
    pub is_ours: bool,
}

/// Everything that is on it.
pub(super) struct Page<'a> {
    pub records: &'a BTreeMap<String, Record>,
    pub missing: &'a [&'a str],
    pub measured: &'a Measured,
    pub pool: Option<Plot>,
    pub inputs: &'a Inputs,
    pub core_gbit: f64,
    pub needs: Needs,
}

impl Page<'_> {
    pub(super) fn html(&self) -> String {
        let parts = [
            ("measured", self.days()),
            ("missing", self.missing()),
            ("targets", self.targets()),
            ("ceiling_plot", bars(&self.ceilings(), "%", None)),
            ("core_plot", self.cores()),
            ("pool", self.pool()),
            ("rate_plot", bars(&self.rates(), "Gbit/s", None)),
            ("gain_plot", bars(&self.gains(), "times", Some(1.0))),
            ("core_source", self.core_source()),
            ("inputs", self.fields()),
            ("needs", needs(&self.needs)),
            ("figures", figures()),
        ];
        // One pass, so that what is put in is not searched again.
        let mut out = String::new();
        let mut rest = TEMPLATE;
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, after) = after.split_once("}}").unwrap_or((after, ""));
            out.push_str(before);
            let part = parts.iter().find(|(known, _)| *known == name);
            out.push_str(part.map_or("", |(_, text)| text));
            rest = after;
        }
        out + rest
    }

    fn days(&self) -> String {
        if self.records.is_empty() {
            return "nothing yet".to_owned();
        }
        let one = |record: &Record| {
            let machine = &record.content.machine;
            format!(
                "{} on {} ({}, {} cores{}; commit {})",
                escape(&record.command),
                record.day,
                escape(machine.cpu.as_deref().unwrap_or("unknown processor")),
                machine.cores,
                if machine.virtual_machine {
                    ", virtual"
                } else {
                    ""
                },
                escape(record.content.commit.get(..7).unwrap_or_default())
            )
        };
        self.records
            .values()
            .map(one)
            .collect::<Vec<_>>()
            .join("; ")
    }

    fn missing(&self) -> String {
        if self.missing.is_empty() {
            return String::new();
        }
        format!(
            " <b>Not recorded</b>, and therefore not on this page: {}.",
            self.missing.join(", ")
        )
    }

    fn targets(&self) -> String {
        let mut out = "<table><thead><tr><th>command</th><th>what</th><th class=number>value</th>\
                       <th class=number>target</th><th>how</th></tr></thead><tbody>\n"
            .to_owned();
        let mut rows = 0;
        for record in self.records.values() {
            for target in &record.content.targets {
                if target.value.is_none() && self.is_measured_elsewhere(record, &target.name) {
                    continue;
                }
                rows += 1;
                let (class, value) = verdict(target);
                let _ = writeln!(
                    out,
                    "<tr><td>{}</td><td>{}</td><td class=\"number {class}\">{value}</td>\
                     <td class=number>{}</td><td class=small>{}</td></tr>",
                    escape(&record.command),
                    escape(&target.name.replace('_', " ")),
                    target.target,
                    escape(&target.how)
                );
            }
        }
        if rows == 0 {
            return "<p>No record has a target.</p>".to_owned();
        }
        out + "</tbody></table>"
    }

    /// Whether another part of the same command has that target, and has measured it or stands before.
    fn is_measured_elsewhere(&self, here: &Record, name: &str) -> bool {
        let parts = self
            .records
            .values()
            .filter(|other| other.whole() == here.whole() && other.command != here.command);
        parts
            .flat_map(|part| part.content.targets.iter().map(move |it| (part, it)))
            .filter(|(_, target)| target.name == name)
            .any(|(part, target)| target.value.is_some() || part.command < here.command)
    }

    fn ceilings(&self) -> Vec<Bar> {
        let mut bars: Vec<_> = published(Kind::Ceiling)
            .map(|bar| Bar {
                low: bar.low * 100.0,
                high: bar.high * 100.0,
                ..bar
            })
            .collect();
        bars.extend([256, 1024, 8192].map(|payload| {
            let share = super::ceiling(payload) * 100.0;
            Bar {
                name: format!("Tally: {payload} B payload"),
                low: share,
                high: share,
                is_ours: true,
            }
        }));
        bars
    }

    fn cores(&self) -> String {
        let of_core = &self.measured.of_core;
        if of_core.is_empty() {
            return "<p>No record of <code>datapath</code>.</p>".to_owned();
        }
        let rows: Vec<_> = of_core
            .iter()
            .map(|core| Bar {
                name: format!("one core, {} B, {}", core.payload_bytes, core.element),
                low: core.gbit_per_s,
                high: core.gbit_per_s,
                is_ours: true,
            })
            .collect();
        bars(&rows, "Gbit/s of frames", Some(100.0))
    }

    fn pool(&self) -> String {
        self.pool.as_ref().map_or_else(
            || "<h2>The pool and the cache</h2><p>No record of <code>pool</code>.</p>".to_owned(),
            |plot| {
                format!(
                    "<h2>The pool and the cache</h2>{}<p class=small>On a server, memory is plentiful and cache is \
                     not: this is why Tally keeps its pool small and preempts, as switches with scarce SRAM do. \
                     ATP had 20,000 aggregators of 248 B (4.7 MiB).</p>",
                    plot.svg()
                )
            },
        )
    }

    fn rates(&self) -> Vec<Bar> {
        let mut bars: Vec<_> = published(Kind::Rate).collect();
        bars.extend(self.ours("Gbit/s"));
        bars
    }

    fn gains(&self) -> Vec<Bar> {
        let mut bars: Vec<_> = published(Kind::Gain).collect();
        bars.extend(self.ours("ratio"));
        bars
    }

    /// What was measured of whole jobs: `allreduce`, `training`, and simulated completion times.
    fn ours(&self, unit: &str) -> Vec<Bar> {
        let of_jobs = self
            .records
            .values()
            .filter(|record| ["allreduce", "jct", "training"].contains(&record.whole()));
        of_jobs
            .flat_map(|record| {
                record
                    .content
                    .targets
                    .iter()
                    .map(move |target| (record, target))
            })
            .filter(|(_, target)| target.unit == unit)
            .filter_map(|(record, target)| {
                let value = target.value?;
                Some(Bar {
                    name: format!(
                        "Tally, {}: {}",
                        record.whole(),
                        target.name.replace('_', " ")
                    ),
                    low: value,
                    high: value,
                    is_ours: true,
                })
            })
            .collect()
    }

    fn core_source(&self) -> String {
        if self.inputs.core_gbit.is_some() {
            return "which was given on the command line".to_owned();
        }
        match self.measured.core_of_model() {
            Some(core) => format!(
                "which was measured here over virtual ports ({} B, {})",
                core.payload_bytes, core.element
            ),
            None => "which is one too, for want of a record of <code>datapath</code>".to_owned(),
        }
    }

    fn fields(&self) -> String {
        let mut out = String::new();
        for (name, what, value) in self.inputs.fields(self.core_gbit) {
            let value = (value * 100.0).round() / 100.0;
            let _ = writeln!(
                out,
                "<label>{what} <input name={name} type=number min=0 step=any value={value}></label>"
            );
        }
        out
    }
}

fn published(kind: Kind) -> impl Iterator<Item = Bar> {
    let of_kind = FIGURES.iter().filter(move |figure| figure.kind == kind);
    of_kind.map(|figure| Bar {
        name: format!("{}: {}", figure.system, figure.what),
        low: figure.low,
        high: figure.high,
        is_ours: false,
    })
}

fn verdict(target: &Target) -> (&'static str, String) {
    let class = match target.met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "none",
    };
    let value = target.value.map_or_else(
        || "–".to_owned(),
        |value| format!("{} {}", round(value), escape(&target.unit)),
    );
    (class, value)
}

fn needs(needs: &Needs) -> String {
    let tally = [
        needs.cores,
        needs.nics,
        needs.servers,
        needs.watts,
        needs.cost,
    ];
    let row = |name: &str, numbers: &[Option<f64>]| {
        let cells: String = numbers
            .iter()
            .map(|n| n.map_or_else(|| "–".to_owned(), |n| n.to_string()))
            .map(|n| format!("<td class=number>{n}</td>"))
            .collect();
        format!("<tr><td>{name}</td>{cells}</tr>")
    };
    let other = |watts, cost| [None, None, None, Some(watts), Some(cost)];
    row("Tally", &tally.map(Some))
        + &row(
            "Tofino switch",
            &other(needs.tofino_watts, needs.tofino_cost),
        )
        + &row(
            "ordinary switch and FPGA cards",
            &other(needs.fpga_watts, needs.fpga_cost),
        )
}

fn figures() -> String {
    let mut out =
        "<table><thead><tr><th>system</th><th>what</th><th class=number>figure</th><th>source</th>\
                   </tr></thead><tbody>\n"
            .to_owned();
    for figure in &FIGURES {
        let (factor, unit) = match figure.kind {
            Kind::Ceiling => (100.0, " % of line rate"),
            Kind::Rate => (1.0, " Gbit/s"),
            Kind::Gain => (1.0, "×"),
            Kind::Note => (1.0, ""),
        };
        let (low, high) = (round(figure.low * factor), round(figure.high * factor));
        let value = if low == high {
            low
        } else {
            format!("{low}–{high}")
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=number>{value}{unit}</td><td class=source>{}</td></tr>",
            figure.system, figure.what, figure.source
        );
    }
    out + "</tbody></table>"
}

/// Horizontal bars from 0, with their values written beside them.
fn bars(bars: &[Bar], unit: &str, line: Option<f64>) -> String {
    const WIDTH: f64 = 820.0;
    const LEFT: f64 = 400.0;
    const RIGHT: f64 = 160.0;
    const STEP: f64 = 24.0;
    let most = bars
        .iter()
        .map(|bar| bar.high)
        .chain(line)
        .fold(0.0, f64::max);
    let x = |value: f64| LEFT + value / most.max(f64::MIN_POSITIVE) * (WIDTH - LEFT - RIGHT);
    let height = 10.0 + STEP * bars.len() as f64 + if line.is_some() { 16.0 } else { 0.0 };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n"
    );
    for (n, bar) in bars.iter().enumerate() {
        let top = 4.0 + STEP * n as f64;
        let colour = if bar.is_ours { OURS } else { THEIRS };
        let value = if round(bar.low) == round(bar.high) {
            round(bar.high)
        } else {
            format!("{}–{}", round(bar.low), round(bar.high))
        };
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\
             <rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" opacity=\"0.5\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{value} {unit}</text>",
            LEFT - 8.0,
            top + 13.0,
            escape(&bar.name),
            x(bar.low) - LEFT,
            STEP - 7.0,
            x(bar.low),
            x(bar.high) - x(bar.low),
            STEP - 7.0,
            x(bar.high) + 6.0,
            top + 13.0
        );
    }
    if let Some(line) = line {
        let bottom = height - 14.0;
        let _ = writeln!(
            out,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{bottom:.1}\" stroke=\"#333\" stroke-dasharray=\"4 3\"/>\
             <text x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"middle\" fill=\"#333\">{line}</text>",
            x(line),
            height - 2.0
        );
    }
    out + "</svg>"
}

/// As many digits as are worth reading.
fn round(value: f64) -> String {
    let digits: f64 = if value.abs() >= 100.0 { 1.0 } else { 100.0 };
    ((value * digits).round() / digits).to_string()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_are_worth_reading() {
        assert_eq!(round(0.771_3 * 100.0), "77.13");
        assert_eq!(round(1234.5), "1235");
        assert_eq!(round(5.5), "5.5");
    }

    #[test]
    fn bars_are_inside_their_chart_and_names_are_escaped() {
        let bar = |name: &str, low, high| Bar {
            name: name.to_owned(),
            low,
            high,
            is_ours: true,
        };
        let svg = bars(
            &[bar("a < b", 1.0, 2.0), bar("zero", 0.0, 0.0)],
            "x",
            Some(4.0),
        );
        assert!(svg.contains("a &lt; b") && svg.contains("1–2 x"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(bars(&[], "x", None).ends_with("</svg>"));
    }
}
