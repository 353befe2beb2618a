//! Line plots as SVG, by hand: a few lines and words need no library.

use std::fmt::Write;

/// A line: a name, a colour, and a value with its least and most at each place.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is.
    pub name: String,
    /// As SVG writes colours.
    pub colour: &'static str,
    /// Median, least, most, for each place of the axis; none where nothing was measured.
    pub values: Vec<Option<(f64, f64, f64)>>,
}

/// A plot. Its places are evenly spaced, its values on a logarithmic scale.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Under the horizontal axis.
    pub x: String,
    /// Beside the vertical axis.
    pub y: String,
    /// At the places of the horizontal axis.
    pub places: Vec<String>,
    /// Whether what is between two places means something.
    pub is_joined: bool,
    /// Words at a place, or between two: where a cache ends.
    pub marks: Vec<(f64, String)>,
    /// The lines; the first is drawn last, and those under it are thicker, so that all are seen.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 750.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 160.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;

impl Plot {
    /// The plot as an SVG document.
    #[must_use]
    pub fn svg(&self) -> String {
        let values = || self.lines.iter().flat_map(|l| l.values.iter().flatten());
        let least = values().map(|v| v.1).fold(f64::MAX, f64::min);
        let most = values().map(|v| v.2).fold(f64::MIN_POSITIVE, f64::max);
        let (low, high) = (least.min(most) * 0.9, most * 1.1);
        let y = |value: f64| {
            let share = (value / low).ln() / (high / low).ln();
            HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        };
        let step = (WIDTH - LEFT - RIGHT) / self.places.len().max(1) as f64;
        let between = |place: f64| LEFT + step * (place + 0.5);
        let x = |place: usize| between(place as f64);
        let mut out = String::new();
        // Writing to a string cannot fail.
        let mut put = |text: String| {
            let _ = writeln!(out, "{text}");
        };
        put(format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">"#
        ));
        put(format!(
            r#"<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#
        ));
        let word = |x: f64, y: f64, anchor: &str, more: &str, text: &str| {
            format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}"{more}>{text}</text>"#)
        };
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        put(word(
            middle,
            22.0,
            "middle",
            r#" font-size="15""#,
            &self.title,
        ));
        put(word(middle, HEIGHT - 16.0, "middle", "", &self.x));
        let turn = format!(r#" transform="rotate(-90 18 {:.1})""#, HEIGHT / 2.0);
        put(word(18.0, HEIGHT / 2.0, "middle", &turn, &self.y));
        for tick in ticks(low, high) {
            let at = y(tick);
            put(format!(
                r##"<line x1="{LEFT}" x2="{:.1}" y1="{at:.1}" y2="{at:.1}" stroke="#dddddd"/>"##,
                WIDTH - RIGHT
            ));
            put(word(LEFT - 6.0, at + 4.0, "end", "", &format!("{tick}")));
        }
        put(format!(
            r#"<rect x="{LEFT}" y="{TOP}" width="{:.1}" height="{:.1}" fill="none" stroke="black"/>"#,
            WIDTH - LEFT - RIGHT,
            HEIGHT - TOP - BOTTOM
        ));
        for (n, place) in self.places.iter().enumerate() {
            put(word(x(n), HEIGHT - BOTTOM + 18.0, "middle", "", place));
        }
        for (place, text) in &self.marks {
            let at = between(*place);
            put(format!(
                r##"<line x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{:.1}" stroke="#888888" stroke-dasharray="4 3"/>"##,
                HEIGHT - BOTTOM
            ));
            put(word(
                at - 4.0,
                HEIGHT - BOTTOM - 8.0,
                "end",
                r##" fill="#555555""##,
                text,
            ));
        }
        for (n, line) in self.lines.iter().enumerate().rev() {
            let radius = 3.0 + 1.2 * n as f64;
            let width = 1.5 + n as f64;
            let colour = line.colour;
            let points: Vec<_> = line.values.iter().enumerate().collect();
            let mut path = String::new();
            for &(at, value) in &points {
                if let Some((median, low, high)) = value {
                    let _ = write!(path, "{:.1},{:.1} ", x(at), y(*median));
                    put(format!(
                        r#"<line x1="{0:.1}" x2="{0:.1}" y1="{1:.1}" y2="{2:.1}" stroke="{colour}"/>"#,
                        x(at),
                        y(*low),
                        y(*high)
                    ));
                    put(format!(
                        r#"<circle cx="{:.1}" cy="{:.1}" r="{radius:.1}" fill="{colour}"/>"#,
                        x(at),
                        y(*median)
                    ));
                }
            }
            if self.is_joined {
                put(format!(
                    r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#,
                    path.trim_end()
                ));
            }
            let at = TOP + 12.0 + 20.0 * n as f64;
            let from = WIDTH - RIGHT + 12.0;
            put(format!(
                r#"<line x1="{from:.1}" x2="{:.1}" y1="{at:.1}" y2="{at:.1}" stroke="{colour}" stroke-width="{width}"/>"#,
                from + 20.0
            ));
            put(word(from + 26.0, at + 4.0, "start", "", &line.name));
        }
        put("</svg>".to_owned());
        out
    }
}

/// 1, 2 and 5 times powers of ten between two numbers.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all = decades.flat_map(|d| {
        // Negative powers by division, so that they print as they are written.
        let power = |digit: f64| {
            if d < 0 {
                digit / 10f64.powi(-d)
            } else {
                digit * 10f64.powi(d)
            }
        };
        [power(1.0), power(2.0), power(5.0)]
    });
    all.filter(|t| (low..=high).contains(t)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_inside() {
        assert_eq!(ticks(0.3, 6.0), [0.5, 1.0, 2.0, 5.0]);
        assert_eq!(ticks(15.0, 120.0), [20.0, 50.0, 100.0]);
    }

    #[test]
    fn every_value_is_inside_the_frame_and_a_gap_is_left_out() {
        let plot = Plot {
            title: "t".to_owned(),
            x: "slots".to_owned(),
            y: "ms".to_owned(),
            places: vec!["a".to_owned(), "b".to_owned()],
            is_joined: true,
            marks: vec![(0.5, "L2".to_owned())],
            lines: vec![Line {
                name: "esa".to_owned(),
                colour: "black",
                values: vec![Some((2.0, 1.0, 4.0)), None],
            }],
        };
        let svg = plot.svg();
        assert_eq!(svg.matches("<circle").count(), 1);
        let cy = svg.split("cy=\"").nth(1).unwrap();
        let cy: f64 = cy.split('"').next().unwrap().parse().unwrap();
        assert!((TOP..HEIGHT - BOTTOM).contains(&cy), "{cy}");
        assert!(svg.contains(">L2</text>"));
        assert!(svg.ends_with("</svg>\n"));
    }
}
