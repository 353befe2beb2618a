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
        let mut drawing = Drawing {
            low: least.min(most) * 0.9,
            high: most * 1.1,
            step: (WIDTH - LEFT - RIGHT) / self.places.len().max(1) as f64,
            out: String::new(),
        };
        drawing.put(&format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">"#
        ));
        drawing.put(&format!(
            r#"<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#
        ));
        drawing.axes(self);
        for (place, text) in &self.marks {
            drawing.mark(*place, text);
        }
        for (n, line) in self.lines.iter().enumerate().rev() {
            drawing.line(n, line, self.is_joined);
            drawing.legend(n, line);
        }
        drawing.put("</svg>");
        drawing.out
    }
}

/// Width of the `n`-th line.
fn stroke(n: usize) -> f64 {
    1.5 + n as f64
}

/// A document being written, and the scales of its axes.
struct Drawing {
    low: f64,
    high: f64,
    /// Between two places.
    step: f64,
    out: String,
}

impl Drawing {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// Words, with more attributes.
    fn word(&mut self, (x, y): (f64, f64), anchor: &str, more: &str, text: &str) {
        self.put(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}"{more}>{text}</text>"#
        ));
    }

    /// Where a place is, or a point between two.
    fn x(&self, place: f64) -> f64 {
        LEFT + self.step * (place + 0.5)
    }

    /// Where a value is.
    fn y(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    /// Title, names of the axes, grid, frame and places.
    fn axes(&mut self, plot: &Plot) {
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let large = r#" font-size="15""#;
        self.word((middle, 22.0), "middle", large, &plot.title);
        self.word((middle, HEIGHT - 16.0), "middle", "", &plot.x);
        let rotated = format!(r#" transform="rotate(-90 18 {:.1})""#, HEIGHT / 2.0);
        self.word((18.0, HEIGHT / 2.0), "middle", &rotated, &plot.y);
        for tick in ticks(self.low, self.high) {
            let at = self.y(tick);
            self.put(&format!(
                r##"<line x1="{LEFT}" x2="{:.1}" y1="{at:.1}" y2="{at:.1}" stroke="#dddddd"/>"##,
                WIDTH - RIGHT
            ));
            self.word((LEFT - 6.0, at + 4.0), "end", "", &format!("{tick}"));
        }
        self.put(&format!(
            r#"<rect x="{LEFT}" y="{TOP}" width="{:.1}" height="{:.1}" fill="none" stroke="black"/>"#,
            WIDTH - LEFT - RIGHT,
            HEIGHT - TOP - BOTTOM
        ));
        for (n, place) in plot.places.iter().enumerate() {
            self.word(
                (self.x(n as f64), HEIGHT - BOTTOM + 18.0),
                "middle",
                "",
                place,
            );
        }
    }

    /// A vertical line with words beside it.
    fn mark(&mut self, place: f64, text: &str) {
        let at = self.x(place);
        self.put(&format!(
            r##"<line x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{:.1}" stroke="#888888" stroke-dasharray="4 3"/>"##,
            HEIGHT - BOTTOM
        ));
        let grey = r##" fill="#555555""##;
        self.word((at - 4.0, HEIGHT - BOTTOM - 8.0), "end", grey, text);
    }

    /// The points of the `n`-th line with their spreads, and what joins them.
    fn line(&mut self, n: usize, line: &Line, is_joined: bool) {
        let radius = 3.0 + 1.2 * n as f64;
        let colour = line.colour;
        let mut path = String::new();
        for (place, value) in line.values.iter().enumerate() {
            let Some((median, low, high)) = *value else {
                continue;
            };
            let (x, y) = (self.x(place as f64), self.y(median));
            // Writing to a string cannot fail.
            let _ = write!(path, "{x:.1},{y:.1} ");
            self.put(&format!(
                r#"<line x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}" stroke="{colour}"/>"#,
                self.y(low),
                self.y(high)
            ));
            self.put(&format!(
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius:.1}" fill="{colour}"/>"#
            ));
        }
        if is_joined {
            let width = stroke(n);
            self.put(&format!(
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#,
                path.trim_end()
            ));
        }
    }

    /// The name of the `n`-th line beside the frame.
    fn legend(&mut self, n: usize, line: &Line) {
        let (colour, width) = (line.colour, stroke(n));
        let at = TOP + 12.0 + 20.0 * n as f64;
        let from = WIDTH - RIGHT + 12.0;
        self.put(&format!(
            r#"<line x1="{from:.1}" x2="{:.1}" y1="{at:.1}" y2="{at:.1}" stroke="{colour}" stroke-width="{width}"/>"#,
            from + 20.0
        ));
        self.word((from + 26.0, at + 4.0), "start", "", &line.name);
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
