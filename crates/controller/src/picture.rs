//! A fleet as a picture (SVG): switches in levels above their hosts, cables with their load.

use crate::fleet::Unit;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tally_planner::check::{limit, loads};
use tally_planner::{Plan, Problem, Resource, Topology};

/// Distances of places, in pixels.
const COLUMN: f64 = 130.0;
const LEVEL: f64 = 110.0;
const MARGIN: f64 = 70.0;
/// Hosts that one switch shows by name; more are a number.
const HOSTS_SHOWN: usize = 8;
const HOST_LINE: f64 = 15.0;
/// A link without a rate.
const DOWN: &str = " stroke-dasharray=\"4 4\"";
/// Colours of cables, by the part of their rate that is used, and what they mean.
const COLOURS: [(f64, &str, &str); 4] = [
    (0.99, "#c62828", "full"),
    (0.6, "#ef8f1f", "60 % or more"),
    (f64::MIN_POSITIVE, "#2e7d32", "used"),
    (f64::NEG_INFINITY, "#aaaaaa", "unused"),
];

/// Draws a topology, with the loads of a plan on it.
#[must_use]
pub fn svg(problem: &Problem, plan: Option<&Plan>, unit: Unit) -> String {
    let topology = &problem.topology;
    let levels = levels(topology);
    let drawing = Drawing {
        problem,
        unit,
        places: places(&levels),
        highest: levels.iter().copied().max().unwrap_or(0),
        levels,
        loads: plan.map(|plan| loads(problem, plan)).unwrap_or_default(),
    };
    let switches = 0..topology.switches.len();
    let wide = drawing.places.iter().copied().fold(0.0, f64::max);
    let width = (2.0 * MARGIN + wide * COLUMN).max(450.0);
    let lowest = switches.clone().map(|at| {
        let lines = devices(topology, at).len();
        drawing.y(at) + MARGIN + lines as f64 * HOST_LINE
    });
    let height = lowest.fold(MARGIN, f64::max);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for at in 0..topology.links.len() {
        drawing.link(&mut out, at);
    }
    for at in switches {
        drawing.switch(&mut out, at);
        drawing.devices(&mut out, at);
    }
    legend(&mut out, height - 12.0);
    out + "</svg>\n"
}

/// Where everything is.
struct Drawing<'a> {
    problem: &'a Problem,
    unit: Unit,
    levels: Vec<usize>,
    places: Vec<f64>,
    highest: usize,
    loads: BTreeMap<Resource, f64>,
}

impl Drawing<'_> {
    fn x(&self, switch: usize) -> f64 {
        MARGIN + self.places[switch] * COLUMN
    }

    fn y(&self, switch: usize) -> f64 {
        MARGIN + (self.highest - self.levels[switch]) as f64 * LEVEL
    }

    /// The part of a resource that is used.
    fn used(&self, resource: Resource) -> f64 {
        let all = limit(self.problem, resource);
        let load = self.loads.get(&resource).copied().unwrap_or(0.0);
        if all > 0.0 { load / all } else { 0.0 }
    }

    fn link(&self, out: &mut String, at: usize) {
        let topology = &self.problem.topology;
        let link = &topology.links[at];
        let (a, b) = (link.a, link.b);
        let (there, back) = (
            self.used(Resource::Forward(at)),
            self.used(Resource::Backward(at)),
        );
        // Past the switches between two of one level.
        let apart = (self.places[a] - self.places[b]).abs();
        let is_past = self.levels[a] == self.levels[b] && apart > 1.0;
        let bend = if is_past { apart * 45.0 } else { 0.0 };
        let title = format!(
            "{} - {}: {} {} each way, {:.0} % and {:.0} % used",
            topology.switches[a].name,
            topology.switches[b].name,
            link.rate,
            self.unit,
            there * 100.0,
            back * 100.0
        );
        let _ = writeln!(
            out,
            "<path d=\"M{:.0} {:.0} Q{:.0} {:.0} {:.0} {:.0}\" fill=\"none\" stroke=\"{}\" \
             stroke-width=\"2\"{}><title>{}</title></path>",
            self.x(a),
            self.y(a),
            f64::midpoint(self.x(a), self.x(b)),
            f64::midpoint(self.y(a), self.y(b)) - bend,
            self.x(b),
            self.y(b),
            colour(there.max(back)),
            if link.rate > 0.0 { "" } else { DOWN },
            escaped(&title)
        );
    }

    fn switch(&self, out: &mut String, at: usize) {
        let switch = &self.problem.topology.switches[at];
        let used = self.used(Resource::Capacity(at)) * 100.0;
        let (x, y) = (self.x(at), self.y(at));
        let (fill, sums) = if switch.capacity > 0.0 {
            ("#e8f0fb", format!("sums {used:.0} %"))
        } else {
            ("#eeeeee", "forwards".to_owned())
        };
        let title = format!(
            "{}: sums {} {}, {used:.0} % used",
            switch.name, switch.capacity, self.unit
        );
        let _ = writeln!(
            out,
            "<g><title>{}</title><rect x=\"{:.0}\" y=\"{:.0}\" width=\"100\" height=\"34\" \
             rx=\"5\" fill=\"{fill}\" stroke=\"#333\"/>\
             <text x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>\
             <text x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"middle\" font-size=\"10\">{sums}</text></g>",
            escaped(&title),
            x - 50.0,
            y - 17.0,
            y - 2.0,
            escaped(&switch.name),
            y + 12.0
        );
    }

    /// Below their switch, or above one that has links below.
    fn devices(&self, out: &mut String, at: usize) {
        let x = self.x(at);
        for (nth, line) in devices(&self.problem.topology, at).iter().enumerate() {
            let nth = nth as f64 * HOST_LINE;
            let y = if self.levels[at] > 0 {
                self.y(at) - 24.0 - nth
            } else {
                self.y(at) + 32.0 + nth
            };
            let _ = writeln!(
                out,
                "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"middle\" font-size=\"11\" \
                 fill=\"#555\">{}</text>",
                escaped(line)
            );
        }
    }
}

/// What is at a switch, a line each.
fn devices(topology: &Topology, switch: usize) -> Vec<String> {
    let at = |device: &&tally_planner::Host| device.switch == switch;
    let servers = topology.servers.iter().filter(at);
    let hosts: Vec<_> = topology.hosts.iter().filter(at).collect();
    let mut lines: Vec<_> = servers.map(|it| format!("PS {}", it.name)).collect();
    if hosts.len() > HOSTS_SHOWN {
        lines.push(format!("{} hosts", hosts.len()));
    } else {
        lines.extend(hosts.iter().map(|it| it.name.clone()));
    }
    lines
}

/// Hops from the next switch with hosts.
fn levels(topology: &Topology) -> Vec<usize> {
    let mut levels = vec![usize::MAX; topology.switches.len()];
    for host in &topology.hosts {
        levels[host.switch] = 0;
    }
    for _ in 0..topology.switches.len() {
        for link in &topology.links {
            for (from, to) in [(link.a, link.b), (link.b, link.a)] {
                levels[to] = levels[to].min(levels[from].saturating_add(1));
            }
        }
    }
    for level in &mut levels {
        if *level == usize::MAX {
            *level = 0;
        }
    }
    levels
}

/// Columns: each level is in the middle.
fn places(levels: &[usize]) -> Vec<f64> {
    let count = |level: usize| levels.iter().filter(|&&it| it == level).count();
    let widest = levels.iter().map(|&level| count(level)).max().unwrap_or(0);
    let mut placed = vec![0; levels.iter().max().map_or(0, |highest| highest + 1)];
    let place = |&level: &usize| {
        let free = (widest - count(level)) as f64 / 2.0;
        let nth = placed[level];
        placed[level] += 1;
        free + f64::from(nth)
    };
    levels.iter().map(place).collect()
}

/// Of a cable that is used so far.
fn colour(load: f64) -> &'static str {
    let found = COLOURS.iter().find(|(from, ..)| load >= *from);
    found.map_or("black", |(_, colour, _)| colour)
}

/// What the colours mean.
fn legend(out: &mut String, y: f64) {
    for (nth, (_, colour, meaning)) in COLOURS.iter().enumerate() {
        let x = 20.0 + nth as f64 * 105.0;
        let _ = writeln!(
            out,
            "<line x1=\"{x:.0}\" y1=\"{y:.0}\" x2=\"{:.0}\" y2=\"{y:.0}\" stroke=\"{colour}\" \
             stroke-width=\"3\"/><text x=\"{:.0}\" y=\"{:.0}\" font-size=\"10\">{meaning}</text>",
            x + 18.0,
            x + 23.0,
            y + 3.0
        );
    }
}

/// As text of XML.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}
