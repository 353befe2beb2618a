//! Bar charts as SVG: horizontal bars from 0, in groups, with names and values beside them.

use std::fmt::Write;

/// A bar, and a paler one behind it where its value is a range.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Name, left of it. Long ones are wrapped.
    pub name: String,
    /// Least and most: where the bar ends, and the paler one.
    pub range: (f64, f64),
    /// Value in words, right of it.
    pub value: String,
    /// As SVG writes colours.
    pub colour: &'static str,
}

/// A bar chart.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// Above it; none if empty.
    pub title: String,
    /// A value with a dashed line, and its name.
    pub mark: Option<(f64, String)>,
    /// Groups of bars, with a gap between them.
    pub groups: Vec<Vec<Bar>>,
}

/// Width that no character exceeds on average.
const CHARACTER: f64 = 7.2;
const NAME_CHARACTERS: usize = 44;
const BARS: f64 = 330.0;
const LINE: f64 = 16.0;
const GAP: f64 = 8.0;

impl Bars {
    /// The chart as an SVG document, as wide as its names and values need.
    #[must_use]
    pub fn svg(&self) -> String {
        let bars = || self.groups.iter().flatten();
        let width = |text: &str| text.chars().count() as f64 * CHARACTER + GAP;
        let names = bars().flat_map(|bar| wrap(&bar.name));
        let left = names.map(|line| width(&line)).fold(GAP, f64::max) + GAP;
        let mark = self.mark.as_ref();
        // The text of a mark may be right of the last bar.
        let texts = bars().map(|bar| bar.value.as_str());
        let right = texts.chain(mark.map(|(_, name)| name.as_str()));
        let right = right.map(width).fold(0.0, f64::max) + GAP;
        let whole = (left + BARS + right).max(width(&self.title));
        let most = bars().map(|bar| bar.range.1);
        let most = most.chain(mark.map(|(at, _)| *at)).fold(0.0, f64::max);
        let length = |value: f64| value / most.max(f64::MIN_POSITIVE) * BARS;
        let mut out = String::new();
        // Writing to a string cannot fail.
        let mut put = |text: String| {
            let _ = writeln!(out, "{text}");
        };
        let mut top = GAP;
        if !self.title.is_empty() {
            put(text(GAP, top + LINE, "start\" font-size=\"15", &self.title));
            top += 2.0 * LINE;
        }
        let rows = || self.groups.iter().map(|group| group.iter().map(height));
        let bottom = top + rows().map(|rows| rows.sum::<f64>() + GAP).sum::<f64>();
        // Behind the bars and their values.
        if let Some((at, name)) = mark {
            let x = left + length(*at);
            put(format!(
                r##"<line x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}" stroke="#999999" stroke-dasharray="4 3"/>"##
            ));
            put(text(x + 4.0, bottom, "start", name));
        }
        for group in &self.groups {
            for bar in group {
                let middle = top + (height(bar) - GAP) / 2.0;
                for (n, line) in wrap(&bar.name).iter().enumerate() {
                    let y = top + LINE * (n as f64 + 0.8);
                    put(text(left - GAP, y, "end", line));
                }
                let (low, high) = (length(bar.range.0), length(bar.range.1));
                for (width, opacity) in [(high, 0.5), (low, 1.0)] {
                    put(format!(
                        r#"<rect x="{left:.1}" y="{:.1}" width="{width:.1}" height="{LINE}" fill="{}" opacity="{opacity}"/>"#,
                        middle - LINE / 2.0,
                        bar.colour
                    ));
                }
                put(text(
                    left + high + GAP,
                    middle + 0.3 * LINE,
                    "start",
                    &bar.value,
                ));
                top += height(bar);
            }
            top += GAP;
        }
        top = bottom + GAP;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {whole:.0} {top:.0}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"{whole:.0}\" height=\"{top:.0}\" fill=\"white\"/>\n{out}</svg>\n"
        )
    }
}

/// Height of a bar's row: as many lines as its name has, and a gap.
fn height(bar: &Bar) -> f64 {
    LINE * wrap(&bar.name).len() as f64 + GAP
}

fn text(x: f64, y: f64, anchor: &str, text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#)
}

/// A name in lines, of which each but a single long word fits.
fn wrap(name: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in name.split_whitespace() {
        let last = lines.last_mut().filter(|line| {
            line.is_empty() || line.chars().count() + word.chars().count() < NAME_CHARACTERS
        });
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, range: (f64, f64), value: &str) -> Bar {
        Bar {
            name: name.to_owned(),
            range,
            value: value.to_owned(),
            colour: "black",
        }
    }

    /// Left and right end of each text, if its characters are as wide as they can be.
    fn texts(svg: &str) -> Vec<(f64, f64)> {
        let parts = svg.split("<text x=\"").skip(1);
        let extent = |part: &str| {
            let x: f64 = part.split('"').next().unwrap().parse().unwrap();
            let words = part.split('>').nth(1).unwrap().split('<').next().unwrap();
            let width = words.chars().count() as f64 * CHARACTER;
            match part.contains("text-anchor=\"end") {
                true => (x - width, x),
                false => (x, x + width),
            }
        };
        parts.map(extent).collect()
    }

    #[test]
    fn all_of_every_text_is_inside() {
        let long = "average job completion time to that of ATP and of SwitchML, up to, in a shared cluster";
        let word = "w".repeat(80);
        let bars = Bars {
            title: "t".repeat(150),
            mark: Some((4.0, "the rate of the link".repeat(3))),
            groups: vec![
                vec![bar(long, (1.0, 2.0), "1–2 times, or so")],
                vec![bar("zero", (0.0, 0.0), "0"), bar(&word, (4.0, 4.0), "4")],
            ],
        };
        let svg = bars.svg();
        let width = svg.split("viewBox=\"0 0 ").nth(1).unwrap();
        let width: f64 = width.split(' ').next().unwrap().parse().unwrap();
        let texts = texts(&svg);
        assert_eq!(texts.len(), 9, "{svg}");
        for (left, right) in texts {
            assert!(
                left >= 0.0 && right <= width,
                "{left} to {right} of {width}"
            );
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn markup_in_names_is_escaped_and_a_chart_may_be_empty() {
        let bars = |groups| Bars {
            groups,
            ..Bars::default()
        };
        let svg = bars(vec![vec![bar("a < b", (1.0, 2.0), "&")]]).svg();
        assert!(svg.contains(">a &lt; b<") && svg.contains(">&amp;<"));
        assert!(!bars(vec![]).svg().contains("NaN"));
    }
}
