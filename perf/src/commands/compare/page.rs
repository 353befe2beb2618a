//! The page: one HTML file that needs no other.

use super::OfCore;
use super::published::{Kind, figures};
use crate::record::Record;
use std::collections::{BTreeMap, BTreeSet};
use tally_report::{Bar, Bars, Plot};

const TEMPLATE: &str = include_str!("page.html");
const OURS: &str = "#c0392b";
const THEIRS: &str = "#5d7f9e";

/// Everything that is on it.
pub(super) struct Page<'a> {
    pub records: &'a BTreeMap<String, Record>,
    /// Commands without a record.
    pub missing: Vec<&'a str>,
    pub of_core: &'a [OfCore],
    pub pool: Option<Plot>,
    /// Name, question and value of the model's inputs.
    pub fields: Vec<(String, String, f64)>,
    pub core_source: &'a str,
}

impl Page<'_> {
    pub(super) fn html(&self) -> String {
        let none = || "<p>No record.</p>".to_owned();
        let cores = self.cores();
        let parts = [
            ("machines", self.machines()),
            ("ceiling_plot", chart(ceilings(), None)),
            (
                "core_plot",
                if cores.is_empty() {
                    none()
                } else {
                    chart(cores, Some((100.0, "a port")))
                },
            ),
            ("pool_plot", self.pool.as_ref().map_or_else(none, Plot::svg)),
            ("rate_plot", chart(self.beside(Kind::Rate, "Gbit/s"), None)),
            (
                "gain_plot",
                chart(self.beside(Kind::Gain, "ratio"), Some((1.0, "as fast"))),
            ),
            ("core_source", self.core_source.to_owned()),
            ("inputs", self.inputs()),
            ("targets", self.targets()),
            ("unmeasured", self.unmeasured()),
            ("figures", published()),
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

    /// The machines of the records, and which records are of each.
    fn machines(&self) -> String {
        let mut machines: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for record in self.records.values() {
            let machine = &record.content.machine;
            let cpu = escape(machine.cpu.as_deref().unwrap_or("unknown processor"));
            let kind = if machine.virtual_machine {
                ", virtual"
            } else {
                ""
            };
            let of = machines
                .entry(format!("{cpu}, {} cores{kind}", machine.cores))
                .or_default();
            let commit = escape(record.content.commit.get(..7).unwrap_or_default());
            of.push(format!(
                "{} ({}, {commit})",
                escape(&record.command),
                record.day
            ));
        }
        let lines = machines
            .iter()
            .map(|(machine, of)| format!("{machine}: {}", of.join(", ")));
        lines.collect::<Vec<_>>().join("; ")
    }

    fn cores(&self) -> Vec<Bar> {
        let bar = |core: &OfCore| {
            let name = format!("one core, {} B, {}", core.payload_bytes, core.element);
            ours(name, core.gbit_per_s, "Gbit/s of frames")
        };
        self.of_core.iter().map(bar).collect()
    }

    /// Published figures of a kind, and what was measured of whole jobs in that unit.
    fn beside(&self, kind: Kind, unit: &str) -> Vec<Bar> {
        let label = if unit == "ratio" { "times" } else { unit };
        let is_of_jobs =
            |record: &&Record| ["allreduce", "jct", "training"].contains(&record.whole());
        let mut bars = theirs(kind, label);
        for record in self.records.values().filter(is_of_jobs) {
            for target in record
                .content
                .targets
                .iter()
                .filter(|target| target.unit == unit)
            {
                if let Some(value) = target.value {
                    let name = format!("Tally, {}: {}", record.whole(), spaced(&target.name));
                    bars.push(ours(name, value, label));
                }
            }
        }
        bars
    }

    fn inputs(&self) -> String {
        let input = |(name, question, value): &(String, String, f64)| {
            let value = round(*value);
            format!(
                "<label>{question} <input name={name} type=number min=0 step=any value={value}></label>\n"
            )
        };
        self.fields.iter().map(input).collect()
    }

    /// The targets that were measured, a row each.
    fn targets(&self) -> String {
        let mut rows = String::new();
        for record in self.records.values() {
            for target in &record.content.targets {
                let Some(value) = target.value else { continue };
                let class = match target.met {
                    Some(true) => "met",
                    Some(false) => "missed",
                    None => "none",
                };
                rows += &format!(
                    "<tr><td>{}</td><td>{}</td><td class=\"number {class}\">{} {}</td><td class=number>{}</td>\
                     <td class=small>{}</td></tr>\n",
                    escape(&record.command),
                    escape(&spaced(&target.name)),
                    round(value),
                    escape(&target.unit),
                    target.target,
                    escape(&target.how)
                );
            }
        }
        rows
    }

    /// One line: the targets that no record of their command measured, and the commands without a
    /// record.
    fn unmeasured(&self) -> String {
        let [mut measured, mut all] = [BTreeSet::new(), BTreeSet::new()];
        for record in self.records.values() {
            for target in &record.content.targets {
                let name = (record.whole(), target.name.as_str());
                all.insert(name);
                if target.value.is_some() {
                    measured.insert(name);
                }
            }
        }
        let names = all.difference(&measured);
        let names = names.map(|(command, name)| format!("{} ({command})", escape(&spaced(name))));
        let names: Vec<_> = names.collect();
        let line = |what: &str, names: String| match names.is_empty() {
            true => String::new(),
            false => format!("<b>{what}:</b> {names}. "),
        };
        line("Not measured", names.join(", ")) + &line("Not recorded", self.missing.join(", "))
    }
}

fn chart(bars: Vec<Bar>, mark: Option<(f64, &str)>) -> String {
    Bars {
        mark: mark.map(|(at, name)| (at, name.to_owned())),
        groups: vec![bars],
        ..Bars::default()
    }
    .svg()
}

fn ours(name: String, value: f64, unit: &str) -> Bar {
    Bar {
        name,
        range: (value, value),
        value: format!("{} {unit}", round(value)),
        colour: OURS,
    }
}

fn theirs(kind: Kind, unit: &str) -> Vec<Bar> {
    let of_kind = figures().filter(|figure| figure.kind == kind);
    let bars = of_kind.map(|figure| Bar {
        name: format!("{}: {}", figure.system, figure.what),
        range: (figure.low, figure.high),
        value: format!("{} {unit}", range(figure.low, figure.high)),
        colour: THEIRS,
    });
    bars.collect()
}

fn ceilings() -> Vec<Bar> {
    let tally = [256, 1024, 8192].map(|payload| {
        let share = super::ceiling(payload) * 100.0;
        ours(format!("Tally: {payload} B payload"), share, "%")
    });
    let mut bars = theirs(Kind::Ceiling, "%");
    bars.extend(tally);
    bars
}

fn published() -> String {
    let row = |figure: super::published::Figure| {
        let unit = match figure.kind {
            Kind::Ceiling => " % of line rate",
            Kind::Rate => " Gbit/s",
            Kind::Gain => "×",
            Kind::Note => "",
        };
        format!(
            "<tr><td>{}</td><td>{}</td><td class=number>{}{unit}</td><td class=source>{}</td></tr>\n",
            figure.system,
            figure.what,
            range(figure.low, figure.high),
            figure.source
        )
    };
    figures().map(row).collect()
}

fn range(low: f64, high: f64) -> String {
    if low == high {
        round(low)
    } else {
        format!("{}–{}", round(low), round(high))
    }
}

/// As many digits as are worth reading.
fn round(value: f64) -> String {
    let digits: f64 = if value.abs() >= 100.0 { 1.0 } else { 100.0 };
    ((value * digits).round() / digits).to_string()
}

fn spaced(name: &str) -> String {
    name.replace('_', " ")
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
        assert_eq!(range(5.5, 5.5), "5.5");
        assert_eq!(range(14.5, 16.7), "14.5–16.7");
    }
}
