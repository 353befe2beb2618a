//! The parts of a report, one function each.

use super::Mac;
use serde::Serialize;
use std::collections::BTreeMap;
use tally_engine::DropReason;
use tally_engine::native::PoolUse;
use tally_program::columns;
use tally_program::table::plain;
use tally_schema::switch::report::{JobReport, Latency, MemberReport, Report, Stage, TreeReport};

/// What stands for a figure that is not known.
const NONE: &str = "-";
/// Ranks that a job's line names.
const RANKS_SHOWN: usize = 8;

/// Every line of the report; a name in it may come from a file.
pub(super) fn all(report: &Report) -> String {
    let text = report.to_string();
    text.lines().map(|line| plain(line) + "\n").collect()
}

pub(super) fn jobs(report: &Report) -> String {
    if report.jobs.is_empty() {
        return "no jobs\n".into();
    }
    let mut table = columns![
        "job" right, "phase" left, "epoch" right, "workers" right, "joined" right, "left" right,
        "ps" left, "card" left, "tenant" left, "old key" left, "waits for" left, "results" right, "payload bytes" right, "tree" left, "below" left, "sums up" right,
        "uplink bytes" right, "results down" right,
    ];
    let yes = |it: bool| if it { "yes" } else { "no" }.to_owned();
    for job in &report.jobs {
        let has_parent = job.tree.as_ref().is_some_and(|tree| tree.parent.is_some());
        let of_parent = |n: u64| {
            if has_parent {
                n.to_string()
            } else {
                NONE.into()
            }
        };
        table.row([
            job.id.to_string(),
            if job.draining {
                format!("{}, draining", job.phase)
            } else {
                job.phase.to_string()
            },
            job.epoch.to_string(),
            job.members.workers.to_string(),
            job.members.joined.to_string(),
            job.members.left.to_string(),
            if job.parameter_servers == 1 {
                yes(job.ps)
            } else {
                job.servers_there()
            },
            yes(job.on_card),
            job.tenant.clone().unwrap_or_else(|| NONE.into()),
            if job.previous_key.is_empty() {
                NONE.into()
            } else {
                job.previous_key.join(" ")
            },
            awaited(job),
            job.counters.results.to_string(),
            job.counters.payload_bytes.to_string(),
            job.tree
                .as_ref()
                .map_or_else(|| NONE.into(), TreeReport::place),
            job.tree
                .as_ref()
                .map_or_else(|| NONE.into(), TreeReport::below),
            of_parent(job.counters.sums_up),
            of_parent(job.counters.uplink_bytes),
            of_parent(job.counters.results_down),
        ]);
    }
    table.to_string()
}

/// The ranks that a job waits for, in short.
pub(crate) fn awaited(job: &JobReport) -> String {
    let ranks = job.waits_for();
    match ranks.as_slice() {
        [] => NONE.into(),
        [ps] if ps == "ps" => "PS".into(),
        [ps] if ps.starts_with("ps") => format!("PS {}", &ps[2..]),
        [one] => format!("rank {one}"),
        few if few.len() <= RANKS_SHOWN => format!("ranks {}", few.join(" ")),
        many => {
            let (first, rest) = many.split_at(RANKS_SHOWN);
            format!("ranks {} and {} more", first.join(" "), rest.len())
        }
    }
}

/// A member with its job, for JSON.
#[derive(Serialize)]
pub(super) struct MemberRow<'a> {
    job: u16,
    #[serde(flatten)]
    member: &'a MemberReport,
}

pub(super) fn member_rows(report: &Report) -> Vec<MemberRow<'_>> {
    let of = |job: &'_ JobReport| job.id;
    let rows = report.jobs.iter().flat_map(|job| {
        let id = of(job);
        job.ranks
            .iter()
            .map(move |member| MemberRow { job: id, member })
    });
    rows.collect()
}

pub(super) fn members(report: &Report) -> String {
    let rows = member_rows(report);
    if rows.is_empty() {
        return "no members\n".into();
    }
    let mut table = columns![
        "job" right, "rank" right, "port" left, "mac" left, "ip" left, "udp" right, "silent s" right,
        "fragment" right, "behind" right, "awaits" right, "state" left,
    ];
    for MemberRow { job, member } in rows {
        let of_worker = |text: String| {
            if member.sent.is_some() {
                text
            } else {
                NONE.into()
            }
        };
        table.row([
            job.to_string(),
            member.label(),
            member.port.clone(),
            member.mac.to_string(),
            member.ip.to_string(),
            member.udp_port.to_string(),
            format!("{:.1}", member.gauges.silent_s),
            member
                .sent
                .map_or_else(|| NONE.into(), |sent| sent.to_string()),
            of_worker(member.gauges.behind.to_string()),
            of_worker(format!("{:.0} %", member.gauges.awaiting * 100.0)),
            if member.left { "left" } else { "joined" }.into(),
        ]);
    }
    table.to_string()
}

pub(super) fn ports(report: &Report) -> String {
    let mut table = columns![
        "port" left, "state" left, "Mbit/s" right, "rx frames" right, "rx bytes" right,
        "tx frames" right, "tx bytes" right, "flooded" right, "dropped" right, "missed" right,
        "addresses" right, "neighbour" left,
    ];
    for port in &report.ports {
        let speed = port.speed_mbps.map(|speed| speed.to_string());
        let neighbour = port.neighbour.as_ref().map(|it| {
            let name = if it.system.is_empty() {
                &it.chassis
            } else {
                &it.system
            };
            format!("{name} {}", it.port)
        });
        table.row([
            port.name.clone(),
            port.state.to_string(),
            speed.unwrap_or_else(|| NONE.into()),
            port.counters.rx_frames.to_string(),
            port.counters.rx_bytes.to_string(),
            port.counters.tx_frames.to_string(),
            port.counters.tx_bytes.to_string(),
            port.counters.flooded.to_string(),
            port.tx_dropped.to_string(),
            port.nic.nic_rx_missed.to_string(),
            port.addresses.addresses.to_string(),
            neighbour.unwrap_or_else(|| NONE.into()),
        ]);
    }
    table.to_string()
}

pub(super) fn fabric(report: &Report) -> String {
    if report.fabric.is_empty() {
        return "no links to other switches\n".into();
    }
    let mut table = columns![
        "port" left, "leads" left, "switch" left, "alive s" right, "deaths" right, "lost" right,
        "wrong" right, "reaches" right, "found" left,
    ];
    for link in &report.fabric {
        table.row([
            link.port.clone(),
            if link.up { "up" } else { "down" }.to_owned(),
            link.switch.clone(),
            if link.alive {
                format!("{:.0}", link.alive_s)
            } else {
                "dead".into()
            },
            link.deaths.to_string(),
            link.frames_lost.to_string(),
            link.wrong.to_string(),
            link.reach.to_string(),
            link.problem.clone().unwrap_or_else(|| NONE.into()),
        ]);
    }
    table.to_string()
}

pub(super) fn macs(macs: &[Mac], left_out: u32) -> String {
    if macs.is_empty() {
        return "no addresses\n".into();
    }
    let mut table = columns!["mac" left, "port" left, "age s" right];
    for mac in macs {
        table.row([mac.mac.clone(), mac.port.clone(), mac.age_s.to_string()]);
    }
    let mut text = table.to_string();
    if left_out > 0 {
        text += &format!("{left_out} more addresses are not shown\n");
    }
    text
}

pub(super) fn queues(report: &Report) -> String {
    let mut table = columns![
        "port" left, "class" right, "dropped" right, "marked" right, "longest" right,
    ];
    for port in &report.ports {
        let classes = port.queue.tx_dropped_by_class.iter().enumerate();
        // Marks and length are those of the port; its first line has them.
        for (class, dropped) in classes.filter(|&(class, &n)| class == 0 || n > 0) {
            let of_port = |n: String| if class == 0 { n } else { String::new() };
            table.row([
                port.name.clone(),
                class.to_string(),
                dropped.to_string(),
                of_port(port.queue.ecn_marked.to_string()),
                of_port(port.queue.queue_frames_max.to_string()),
            ]);
        }
    }
    table.to_string()
}

/// The pool, for JSON.
#[derive(Serialize)]
pub(super) struct PoolView<'a> {
    policy: String,
    kernel: String,
    slots: u32,
    ways: u32,
    pool_bytes: u64,
    #[serde(flatten)]
    in_use: PoolUse,
    hit_rate: f64,
    counters: &'a BTreeMap<String, u64>,
    residence: &'a Latency,
}

impl<'a> PoolView<'a> {
    pub(super) fn new(r: &'a Report) -> Self {
        Self {
            policy: r.policy.to_string(),
            kernel: r.kernel.to_string(),
            slots: r.gauges.slots,
            ways: r.ways,
            pool_bytes: r.gauges.pool_bytes,
            in_use: r.in_use,
            hit_rate: r.hit_rate,
            counters: &r.counters,
            residence: &r.residence,
        }
    }
}

pub(super) fn pool(r: &Report) -> String {
    let mut table = columns!["pool" left, "value" right];
    let mut row = |name: &str, value: String| table.row([name.into(), value]);
    row("policy", r.policy.to_string());
    row("kernel", r.kernel.to_string());
    row("slots", r.gauges.slots.to_string());
    row("slots in use", r.in_use.slots_in_use.to_string());
    row("held frames", r.in_use.held_in_use.to_string());
    row("ways", r.ways.to_string());
    row("KiB", (r.gauges.pool_bytes >> 10).to_string());
    row("hit rate", format!("{:.2} %", r.hit_rate * 100.0));
    let of = &r.residence;
    for (name, us) in [("p50", of.p50_us), ("p99", of.p99_us), ("max", of.max_us)] {
        row(&format!("residence {name}"), format!("{us:.1} µs"));
    }
    for (name, n) in r.counters.iter().filter(|&(_, &n)| n > 0) {
        row(name, n.to_string());
    }
    table.to_string()
}

pub(super) fn cores(report: &Report) -> String {
    let mut table = columns![
        "cpu" right, "busy" right, "frames" right, "frames/burst" right, "empty polls" right,
        "receive" right, "classify" right, "aggregate" right, "send" right,
    ];
    for core in &report.load {
        let c = &core.counters;
        let cycles = |stage| {
            let cycles = core.cycles_per_frame.get(&stage).copied();
            format!("{:.0}", cycles.unwrap_or_default())
        };
        table.row([
            core.cpu.to_string(),
            format!("{:.1} %", core.busy_share * 100.0),
            c.frames.to_string(),
            format!("{:.1}", core.frames_per_burst),
            format!(
                "{:.1} %",
                c.empty_polls as f64 * 100.0 / c.polls.max(1) as f64
            ),
            cycles(Stage::Receive),
            cycles(Stage::Classify),
            cycles(Stage::Aggregate),
            cycles(Stage::Send),
        ]);
    }
    format!("{table}stages in cycles a frame\n")
}

pub(super) fn drops(report: &Report) -> String {
    let mut dropped: Vec<_> = report.drops.iter().filter(|&(_, &n)| n > 0).collect();
    if dropped.is_empty() {
        return "no frames dropped\n".into();
    }
    dropped.sort_by_key(|&(name, &n)| (std::cmp::Reverse(n), name));
    let mut table = columns!["reason" left, "frames" right, "a frame that" left];
    for (name, n) in dropped {
        let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
        let help = reason.map_or(NONE, |reason| reason.help());
        let first = help.split_inclusive(". ").next().unwrap_or(help);
        let first = first.trim_end().trim_end_matches('.');
        let mut words = first.chars();
        let lower = words
            .next()
            .map(|c| c.to_lowercase().chain(words).collect());
        table.row([name.clone(), n.to_string(), lower.unwrap_or_default()]);
    }
    table.to_string()
}

pub(super) fn events(report: &Report) -> String {
    if report.events.is_empty() {
        return "no events\n".into();
    }
    let mut table = columns!["time (UTC)" left, "level" left, "kind" left, "event" left];
    for event in &report.events {
        table.row([
            utc(event.time),
            event.level.to_string(),
            event.kind.clone(),
            event.text.clone(),
        ]);
    }
    table.to_string()
}

/// Seconds since 1970 as a date and a time of day, by the calendar that repeats in 400 years.
pub(super) fn utc(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (days, second) = (whole / 86_400, whole % 86_400);
    // Years begin in March, so that the day of a leap year is the last one.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let calendar = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(calendar <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let millis = ((seconds.max(0.0) - whole as f64) * 1000.0) as u64;
    format!(
        "{year:04}-{calendar:02}-{of_month:02} {hour:02}:{minute:02}:{:02}.{millis:03}",
        second % 60
    )
}

pub(super) fn rings(report: &Report) -> String {
    let Some(netreduce) = &report.netreduce else {
        return "no netreduce\n".into();
    };
    let mut table = columns![
        "ring" right, "members" right, "epoch" right, "messages" right, "sums" right,
        "bytes" right, "held" right, "waits for" left,
    ];
    for ring in &netreduce.rings {
        table.row([
            ring.id.to_string(),
            ring.members.len().to_string(),
            ring.epoch.map_or_else(|| NONE.into(), |it| it.to_string()),
            ring.counters.messages.to_string(),
            ring.counters.sums.to_string(),
            ring.counters.sum_bytes.to_string(),
            ring.counters.held.to_string(),
            ring.waits_for().unwrap_or_else(|| NONE.into()),
        ]);
    }
    table.to_string()
}

pub(super) fn sessions(report: &Report) -> String {
    match &report.switchml {
        None => "this switch serves no SwitchML (`switchml` of its configuration)\n".into(),
        Some(switchml) => switchml.to_string(),
    }
}

pub(super) fn card(report: &Report) -> String {
    match &report.card {
        None => "this switch has no card (`card` of its configuration)\n".into(),
        Some(card) => card
            .to_string()
            .lines()
            .map(|line| plain(line) + "\n")
            .collect(),
    }
}
