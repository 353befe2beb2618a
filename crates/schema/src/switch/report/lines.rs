//! The report as lines for people: what matters first, then every other metric that is not 0.

use super::{CoreLoad, JobReport, PortReport, PortState, Report};
use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result, Write as _};
use tally_engine::metrics::{Metric, MetricSet, Number};

/// Metrics of a port that are in the table of ports, or in a line of their own.
const SHOWN: [&str; 12] = [
    "rx_frames",
    "rx_bytes",
    "tx_frames",
    "tx_bytes",
    "flooded",
    "handed_over",
    "addresses",
    "ecn_marked",
    "queue_frames_max",
    "tx_dropped_by_class",
    "link_up",
    "loop_blocked",
];

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let cores: Vec<_> = self.cores.iter().map(ToString::to_string).collect();
        writeln!(
            f,
            "up {:.1} s, policy {}, kernel {}, CPU {}, {} of {} slots in use ({} ways, {} KiB), {} held",
            self.gauges.seconds,
            self.policy,
            self.kernel,
            cores.join(" "),
            self.in_use.slots_in_use,
            self.gauges.slots,
            self.ways,
            self.gauges.pool_bytes >> 10,
            self.in_use.held_in_use
        )?;
        self.load.iter().try_for_each(|core| write!(f, "{core}"))?;
        let hit = self.hit_rate * 100.0;
        writeln!(f, "pool         {hit:.2} % of arrivals hit")?;
        writeln!(
            f,
            "{:<12} {:>12} {:>15} {:>12} {:>15} {:>9} {:>9} {:>9} {:>9} {:>7}",
            "port",
            "rx frames",
            "rx bytes",
            "tx frames",
            "tx bytes",
            "addresses",
            "flooded",
            "dropped",
            "marked",
            "waited"
        )?;
        self.ports.iter().try_for_each(|port| write!(f, "{port}"))?;
        // On one core there is nothing to steer.
        for p in self.ports.iter().filter(|_| self.cores.len() > 1) {
            let (name, steering) = (&p.name, p.steering);
            let (rx, tx, handed_over) = (p.rx_queues, p.tx_queues, p.counters.handed_over);
            write!(
                f,
                "{name:<12} steering {steering}, {rx} queues in, {tx} out, {handed_over} frames handed over"
            )?;
            match &p.rules_refused {
                Some(why) => writeln!(f, "; {why}")?,
                None => writeln!(f)?,
            }
        }
        self.ports.iter().try_for_each(|port| port.unusual(f))?;
        self.fabric
            .iter()
            .try_for_each(|link| writeln!(f, "{link}"))?;
        self.jobs.iter().try_for_each(|job| write!(f, "{job}"))?;
        if let Some(switchml) = &self.switchml {
            write!(f, "{switchml}")?;
        }
        if let Some(netreduce) = &self.netreduce {
            write!(f, "{netreduce}")?;
        }
        if let Some(card) = &self.card {
            write!(f, "{card}")?;
        }
        writeln!(f, "counters    {}", list(&self.counters))?;
        let drops = list(&self.drops);
        let drops = if drops.is_empty() { " none" } else { &drops };
        writeln!(f, "drops       {drops}")?;
        let r = &self.residence;
        writeln!(
            f,
            "residence    p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs, max {:.1} µs over {} fragments",
            r.p50_us, r.p99_us, r.p999_us, r.max_us, r.count
        )?;
        match self.frames_missing {
            None => Ok(()),
            Some(0) => writeln!(f, "buffers      all back in their pool"),
            Some(n) => writeln!(f, "buffers      {n} MISSING from their pool"),
        }
    }
}

/// Names with numbers, of those that are not 0.
fn list(map: &BTreeMap<String, u64>) -> String {
    let numbers = map.iter().filter(|&(_, &n)| n > 0);
    numbers.fold(String::new(), |mut line, (name, n)| {
        let _ = write!(line, " {name} {n}");
        line
    })
}

impl Display for CoreLoad {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let c = &self.counters;
        write!(
            f,
            "CPU {:<8} busy {:.1} %, {:.1} frames a burst, {:.1} % of polls empty; cycles a frame:",
            self.cpu,
            self.busy_share * 100.0,
            self.frames_per_burst,
            c.empty_polls as f64 * 100.0 / c.polls.max(1) as f64,
        )?;
        for (stage, cycles) in &self.cycles_per_frame {
            write!(f, " {stage} {cycles:.0}")?;
        }
        let mut line = String::new();
        each_value(c, |metric, label, number| {
            let label = label.map_or(String::new(), |label| format!(" {label}"));
            let _ = write!(line, " {}{label} {number}", metric.key);
        });
        match line.as_str() {
            "" => writeln!(f),
            line => writeln!(f, "\nCPU {:<8}{line}", self.cpu),
        }
    }
}

/// Calls `f` with the values that are not 0.
fn each_value(set: &impl MetricSet, mut f: impl FnMut(&'static Metric, Option<&str>, Number)) {
    set.visit(&mut |metric, label, number| {
        if !number.is_zero() {
            f(metric, label, number);
        }
    });
}

impl PortReport {
    /// A line for each metric that is not in the table of ports, and not 0.
    fn unusual(&self, f: &mut Formatter<'_>) -> Result {
        let mut lines = String::new();
        if self.state != PortState::Up {
            let (up, blocked) = (self.link.link_up, self.link.loop_blocked);
            let (name, state) = (&self.name, self.state);
            let _ = writeln!(
                lines,
                "{name:<12} is {state} (link_up {up}, loop_blocked {blocked})"
            );
        }
        if let Some(at) = &self.neighbour {
            let (name, system, port) = (&self.name, &at.system, &at.port);
            let _ = writeln!(
                lines,
                "{name:<12} is linked to port {port} of {} {system}",
                at.chassis
            );
        }
        let mut line = |metric: &Metric, label: Option<&str>, number| {
            if !SHOWN.contains(&metric.key) {
                let (port, key, help) = (&self.name, metric.key, metric.help);
                let label = label.map_or(String::new(), |label| format!(" {label}"));
                let _ = writeln!(lines, "{port:<12} {key}{label} {number}: {help}");
            }
        };
        each_value(&self.counters, &mut line);
        each_value(&self.rare, &mut line);
        each_value(&self.addresses, &mut line);
        each_value(&self.queue, &mut line);
        each_value(&self.link, &mut line);
        each_value(&self.nic, &mut line);
        if self.tx_dropped > 0 {
            let classes = self.queue.tx_dropped_by_class;
            let classes: Vec<_> = classes.iter().map(u64::to_string).collect();
            let classes = classes.join(" ");
            let _ = writeln!(
                lines,
                "{:<12} dropped by class, 0 to 7: {classes}",
                self.name
            );
        }
        f.write_str(&lines)
    }
}

/// Its line in the table of ports.
impl Display for PortReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(
            f,
            "{:<12} {:>12} {:>15} {:>12} {:>15} {:>9} {:>9} {:>9} {:>9} {:>7}",
            self.name,
            self.counters.rx_frames,
            self.counters.rx_bytes,
            self.counters.tx_frames,
            self.counters.tx_bytes,
            self.addresses.addresses,
            self.counters.flooded,
            self.tx_dropped,
            self.queue.ecn_marked,
            self.queue.queue_frames_max
        )
    }
}

impl JobReport {
    /// How many of its parameter servers there are, of how many: `1 of 2`.
    #[must_use]
    pub fn servers_there(&self) -> String {
        let there = self.ranks.iter().filter(|it| it.part.is_some()).count();
        format!("{there} of {}", self.parameter_servers)
    }

    fn servers_line(&self) -> String {
        match (self.parameter_servers, self.ps) {
            (1, true) => "with PS".into(),
            (1, false) => "no PS".into(),
            _ => format!("{} PSs", self.servers_there()),
        }
    }
}

impl Display for JobReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(
            f,
            "job {:<8} {}, epoch {}, {} of {} workers, {} left, {}{}",
            self.id,
            self.phase,
            self.epoch,
            self.members.joined,
            self.members.workers,
            self.members.left,
            self.servers_line(),
            if self.on_card { ", on the card" } else { "" }
        )?;
        if self.draining {
            writeln!(f, "    draining: begins no epoch")?;
        }
        if let Some(tree) = &self.tree {
            write!(f, "{tree}")?;
        }
        if let Some(tenant) = &self.tenant {
            writeln!(f, "    of tenant {tenant}")?;
        }
        if !self.previous_key.is_empty() {
            let ranks = self.previous_key.join(" ");
            writeln!(f, "    with its previous key: {ranks}")?;
        }
        let mut line = String::new();
        each_value(&self.counters, |metric, _, number| {
            let _ = write!(line, " {} {number}", metric.key);
        });
        if !line.is_empty() {
            writeln!(f, "    counters{line}")?;
        }
        self.ranks.iter().try_for_each(|rank| write!(f, "{rank}"))
    }
}
