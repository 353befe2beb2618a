//! The screen: one line of the switch, then jobs, ports, cores and drops.

use super::{JobRate, PortRate, Rates, Screen};
use crate::show::awaited;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table};
use tally_program::table::plain;

/// Columns of the bar of a core's load.
const BAR: usize = 20;
/// Share of a core's time from which it is shown as busy, and as saturated.
const BUSY: f64 = 0.7;
const SATURATED: f64 = 0.9;

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let rows = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]);
    let [head, body] = rows.areas(frame.area());
    frame.render_widget(headline(screen), head);
    let Some(rates) = &screen.rates else { return };
    // A line of names, and a title.
    let height = |entries: usize| Constraint::Max(entries.max(1) as u16 + 2);
    let parts = Layout::vertical([
        height(rates.jobs.len()),
        height(rates.ports.len()),
        Constraint::Max(rates.cores.len() as u16 + 1),
        Constraint::Min(0),
    ]);
    let [jobs, ports, cores, drops] = parts.areas(body);
    self::jobs(frame, jobs, &rates.jobs);
    self::ports(frame, ports, &rates.ports);
    self::cores(frame, cores, rates);
    self::drops(frame, drops, rates);
}

fn headline(screen: &Screen) -> Paragraph<'static> {
    let first = match &screen.rates {
        None => Line::from("tally-switch"),
        Some(rates) => {
            let r = &rates.report;
            Line::from(format!(
                "tally-switch {}  up {:.0} s  configuration version {}  {} of {} slots in use  {:.1} % of arrivals hit",
                plain(&r.version),
                r.gauges.seconds,
                rates.version,
                r.in_use.slots_in_use,
                r.gauges.slots,
                r.hit_rate * 100.0
            ))
        }
    };
    let second = match &screen.failure {
        Some(why) => Line::from(plain(why)).fg(Color::Red),
        None => Line::from("q: end").dim(),
    };
    Paragraph::new(vec![first, second])
}

fn title(name: &'static str) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(name)
}

/// A table's line of names.
fn head<const N: usize>(names: [&'static str; N]) -> Row<'static> {
    Row::new(names.map(Cell::from)).style(Style::new().dim())
}

fn jobs(frame: &mut Frame<'_>, area: Rect, jobs: &[JobRate]) {
    let rows = jobs.iter().map(|rate| {
        let job = &rate.job;
        let waits = awaited(job);
        let waits = if waits == "-" {
            Cell::from(waits)
        } else {
            Cell::from(waits).fg(Color::Yellow)
        };
        let goodput = rate.bits_per_s.map_or_else(|| "-".into(), bits);
        Row::new([
            Cell::from(format!("{:>5}", job.id)),
            Cell::from(job.phase.to_string()),
            Cell::from(format!("{}/{}", job.members.joined, job.members.workers)),
            Cell::from(format!("{goodput:>11}")),
            waits,
        ])
    });
    let widths = [
        Constraint::Length(5),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(11),
        Constraint::Min(9),
    ];
    let names = ["  job", "phase", "workers", "    goodput", "waits for"];
    let table = Table::new(rows, widths)
        .header(head(names))
        .block(title("jobs"));
    frame.render_widget(table, area);
}

fn ports(frame: &mut Frame<'_>, area: Rect, ports: &[PortRate]) {
    let rows = ports.iter().map(|port| {
        let dropped = Cell::from(format!("{:>10}", amount(port.dropped_per_s)));
        Row::new([
            Cell::from(plain(&port.name)),
            Cell::from(format!("{:>11}", bits(port.rx_bits_per_s))),
            Cell::from(format!("{:>10}", amount(port.rx_frames_per_s))),
            Cell::from(format!("{:>11}", bits(port.tx_bits_per_s))),
            Cell::from(format!("{:>10}", amount(port.tx_frames_per_s))),
            if port.dropped_per_s > 0.0 {
                dropped.fg(Color::Red)
            } else {
                dropped
            },
        ])
    });
    let widths = [
        Constraint::Max(24),
        Constraint::Length(11),
        Constraint::Length(10),
        Constraint::Length(11),
        Constraint::Length(10),
        Constraint::Length(10),
    ];
    let names = [
        "port",
        "         rx",
        "  frames/s",
        "         tx",
        "  frames/s",
        " dropped/s",
    ];
    let table = Table::new(rows, widths)
        .header(head(names))
        .block(title("ports"));
    frame.render_widget(table, area);
}

fn cores(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let lines = rates.cores.iter().map(|&(cpu, busy)| {
        let full = (busy.clamp(0.0, 1.0) * BAR as f64).round() as usize;
        let colour = match busy {
            busy if busy >= SATURATED => Color::Red,
            busy if busy >= BUSY => Color::Yellow,
            _ => Color::Green,
        };
        Line::from(vec![
            Span::from(format!("CPU {cpu:<4} ")),
            Span::from("█".repeat(full)).fg(colour),
            Span::from("░".repeat(BAR - full)).dim(),
            Span::from(format!(" {:>5.1} % busy", busy * 100.0)),
        ])
    });
    let lines: Vec<_> = lines.collect();
    frame.render_widget(Paragraph::new(lines).block(title("data cores")), area);
}

fn drops(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let lines: Vec<_> = (rates.drops.iter())
        .map(|(reason, per_s)| Line::from(format!("{:>10} {}", amount(*per_s), plain(reason))))
        .collect();
    let lines = if lines.is_empty() {
        vec![Line::from("none").dim()]
    } else {
        lines
    };
    frame.render_widget(
        Paragraph::new(lines).block(title("frames dropped in a second")),
        area,
    );
}

/// Bits in a second, in the unit that fits.
fn bits(per_s: f64) -> String {
    match per_s {
        x if x >= 1e9 => format!("{:.2} Gbit/s", x / 1e9),
        x if x >= 1e6 => format!("{:.1} Mbit/s", x / 1e6),
        x if x >= 1e3 => format!("{:.1} kbit/s", x / 1e3),
        x => format!("{x:.0} bit/s"),
    }
}

/// A number of things in a second.
fn amount(per_s: f64) -> String {
    match per_s {
        x if x >= 1e6 => format!("{:.2} M", x / 1e6),
        x if x >= 1e4 => format!("{:.1} k", x / 1e3),
        x => format!("{x:.0}"),
    }
}
