//! Plans as text.

use crate::document::{Document, PlannedJob, PlannedShare};
use crate::fleet::Fleet;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tally_program::columns;

/// A rate as people write it.
#[must_use]
pub fn rate(rate: f64) -> String {
    format!("{rate:.4}")
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |it| format!("{it:.3} s"))
}

/// One line for each plan.
#[must_use]
pub fn comparison(plans: &[Document]) -> String {
    let mut table = columns!["algorithm" left, "level" right, "bound" right, "gap" right];
    for plan in plans {
        let bound = plan.bound.map_or_else(|| "-".to_owned(), rate);
        let gap = plan.bound.map_or_else(
            || "-".to_owned(),
            |bound| {
                let gap = (1.0 - plan.level / bound).max(0.0) * 100.0;
                let cut_off = if plan.cut_off { ", cut off" } else { "" };
                format!("{gap:.2} %{cut_off}")
            },
        );
        table.row([plan.algorithm.clone(), rate(plan.level), bound, gap]);
    }
    table.to_string()
}

/// A plan whole: rates, then who sums what.
#[must_use]
pub fn plan(plan: &Document) -> String {
    let version = plan
        .version
        .map_or_else(String::new, |it| format!("plan {it}, "));
    let mut text = format!(
        "{version}{}: {} {}\n\n",
        plan.algorithm,
        rate(plan.level),
        plan.unit
    );
    let mut table =
        columns!["job" left, "rate" right, "all-reduce" right, "shares" right, "bound by" left];
    for job in &plan.jobs {
        let binding = match &job.binding {
            Some(binding) => binding.clone(),
            None if job.shares.is_empty() => "no parameter server in reach".to_owned(),
            None => "-".to_owned(),
        };
        table.row([
            job.name.clone(),
            rate(job.rate),
            seconds(job.seconds),
            job.shares.len().to_string(),
            binding,
        ]);
    }
    text += &table.to_string();
    for job in &plan.jobs {
        text += &assignment(job);
    }
    text
}

/// Who sums what of a job.
fn assignment(job: &PlannedJob) -> String {
    let mut text = String::new();
    for share in &job.shares {
        let part = share.fraction * 100.0;
        let _ = writeln!(text, "\n{}: {part:.1} % to {}", job.name, share.server);
        text += &tree(share);
    }
    text
}

/// A line for each node that sums, in the order of the streams.
fn tree(share: &PlannedShare) -> String {
    let mut order: Vec<&str> = Vec::new();
    let mut into: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for stream in &share.streams {
        if !order.contains(&stream.to.as_str()) {
            order.push(&stream.to);
        }
        into.entry(&stream.to).or_default().push(&stream.from);
    }
    let mut text = String::new();
    for to in order {
        let from = into[to].join(", ");
        if to == share.server {
            let _ = writeln!(text, "  {to} completes {from}");
            continue;
        }
        let next = share.streams.iter().find(|it| it.from == to);
        let next = next.map_or_else(String::new, |it| {
            let via = it.via.iter().filter(|name| *name != to);
            let via: Vec<_> = via.map(String::as_str).collect();
            if via.is_empty() {
                format!(", to {}", it.to)
            } else {
                format!(", by {} to {}", via.join(", "), it.to)
            }
        });
        let _ = writeln!(text, "  {to} sums {from}{next}");
    }
    text
}

/// What changes from one plan to the next one.
#[must_use]
pub fn moves(before: &Document, after: &Document, moved: &[&String]) -> String {
    let mut table = columns!["job" left, "change" left, "rate" right, "before" right];
    for job in &after.jobs {
        let then = before.jobs.iter().find(|it| it.name == job.name);
        let change = match then {
            None => "begins",
            Some(_) if moved.contains(&&job.name) => "moves",
            Some(_) => "stays",
        };
        let before = then.map_or_else(|| "-".to_owned(), |it| rate(it.rate));
        table.row([job.name.clone(), change.to_owned(), rate(job.rate), before]);
    }
    table.to_string()
}

/// What there is: switches, links, hosts and parameter servers.
#[must_use]
pub fn topology(fleet: &Fleet) -> String {
    let mut switches = columns!["switch" left, "capacity" right, "cores" right, "control" left];
    for it in &fleet.switches {
        let control = it.control.clone().unwrap_or_else(|| "-".to_owned());
        let cores = it.cores.to_string();
        switches.row([it.name.clone(), rate(it.capacity), cores, control]);
    }
    let mut links = columns!["link" left, "rate" right];
    for it in &fleet.links {
        links.row([it.between.join(" - "), rate(it.rate)]);
    }
    let mut text = format!("{switches}\n{links}");
    let mut devices = columns!["host or server" left, "switch" left, "rate" right];
    for it in fleet.hosts.iter().chain(&fleet.servers) {
        devices.row([it.name.clone(), it.switch.clone(), rate(it.rate)]);
    }
    let _ = write!(text, "\n{devices}");
    let _ = writeln!(text, "\nrates in {}", fleet.unit);
    text
}

/// Jobs, with what the plan has for them.
#[must_use]
pub fn jobs(fleet: &Fleet, plan: Option<&Document>) -> String {
    let mut table = columns![
        "job" left, "number" right, "workers" right, "bytes" right, "rate" right,
        "all-reduce" right, "bound by" left
    ];
    for job in &fleet.jobs {
        let planned = plan.and_then(|plan| plan.jobs.iter().find(|it| it.name == job.name));
        let binding = match planned {
            None => "no plan yet".to_owned(),
            Some(it) => it.binding.clone().unwrap_or_else(|| "-".to_owned()),
        };
        table.row([
            job.name.clone(),
            job.id.map_or_else(|| "-".to_owned(), |it| it.to_string()),
            job.workers.len().to_string(),
            job.bytes.to_string(),
            planned.map_or_else(|| "-".to_owned(), |it| rate(it.rate)),
            seconds(planned.and_then(|it| it.seconds)),
            binding,
        ]);
    }
    let version = plan.and_then(|plan| plan.version);
    let version = version.map_or_else(|| "no plan yet".to_owned(), |it| format!("plan {it}"));
    format!("{table}\n{version}, rates in {}\n", fleet.unit)
}
