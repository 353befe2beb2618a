//! `/tally/...` on DPDK's telemetry socket: the switch's report, for `dpdk-telemetry.py`.
//!
//! An answer is a part of the report whose JSON `--stats --json` prints, with the same names; what
//! is nested has a name with `/`. A command of something that there are several of, such as
//! `/tally/jobs`, lists them, and `/tally/jobs,7` shows one. The report is asked of the control
//! thread, so the data cores have no more to do than for any report.

use crate::config::Config;
use crate::control::request::ControlHandle;
use simd_json::OwnedValue;
use simd_json::prelude::*;
use tally_dpdk::{Answer, Eal, Error, Telemetry, Value};

const COMMANDS: [(&str, &str); 5] = [
    (
        "/tally/info",
        "The switch: version, time since its start, totals",
    ),
    (
        "/tally/jobs",
        "Numbers of the jobs. Parameter: a number, for one job",
    ),
    (
        "/tally/ports",
        "Names of the ports. Parameter: a name, for one port",
    ),
    (
        "/tally/cores",
        "CPUs of the data cores. Parameter: a CPU, for its core",
    ),
    ("/tally/drops", "Dropped frames, by reason"),
];

/// Answers from now on, until it is dropped, if the configuration says so.
///
/// # Errors
/// If DPDK does not take a command.
pub fn start(
    eal: &Eal,
    config: &Config,
    handle: &ControlHandle,
) -> Result<Option<Telemetry>, Error> {
    if !config.eal.telemetry {
        return Ok(None);
    }
    let handle = handle.clone();
    let telemetry = Telemetry::register(eal, &COMMANDS, move |command, parameter| {
        let mut json = handle.report().ok()?.json().into_bytes();
        let report = simd_json::to_owned_value(&mut json).ok()?;
        answer(&report, command, parameter)
    });
    telemetry.map(Some)
}

/// What a command answers of a report.
fn answer(report: &OwnedValue, command: &str, parameter: &str) -> Option<Answer> {
    match command {
        "/tally/info" => Some(info(report)),
        "/tally/drops" => Some(values(report.get("drops")?)),
        "/tally/jobs" => part(report.get("jobs")?.as_array()?, "id", parameter),
        "/tally/ports" => part(report.get("ports")?.as_array()?, "name", parameter),
        "/tally/cores" => part(report.get("load")?.as_array()?, "cpu", parameter),
        _ => None,
    }
}

/// What the report says beside its lists and groups.
fn info(report: &OwnedValue) -> Answer {
    let members = report.as_object().into_iter().flat_map(|all| all.iter());
    let mut all = Vec::new();
    for (name, value) in members {
        match value.as_array() {
            Some(list) => all.push((name.clone(), Value::Number(list.len() as u64))),
            None if value.is_object() => {}
            None => flatten(name.clone(), value, &mut all),
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Answer::Values(all)
}

/// The names of a list's elements, which are under `key`, or one of them.
fn part(list: &[OwnedValue], key: &str, parameter: &str) -> Option<Answer> {
    let name = |element: &OwnedValue| match element.get(key) {
        Some(name) => name.as_str().map_or_else(|| name.encode(), str::to_owned),
        None => String::new(),
    };
    if parameter.is_empty() {
        return Some(Answer::Names(list.iter().map(name).collect()));
    }
    let found = list.iter().find(|&element| name(element) == parameter)?;
    Some(values(found))
}

fn values(value: &OwnedValue) -> Answer {
    let mut all = Vec::new();
    flatten(String::new(), value, &mut all);
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Answer::Values(all)
}

/// Adds all values under one name.
fn flatten(name: String, value: &OwnedValue, out: &mut Vec<(String, Value)>) {
    let under = |member: &str| match name.as_str() {
        "" => member.to_owned(),
        name => format!("{name}/{member}"),
    };
    if let Some(members) = value.as_object() {
        for (member, value) in members.iter() {
            flatten(under(member), value, out);
        }
    } else if let Some(list) = value.as_array() {
        for (at, value) in list.iter().enumerate() {
            flatten(under(&at.to_string()), value, out);
        }
    } else if let Some(number) = value.as_u64() {
        out.push((name, Value::Number(number)));
    } else if let Some(text) = value.as_str() {
        out.push((name, Value::Text(text.to_owned())));
    } else if let Some(flag) = value.as_bool() {
        out.push((name, Value::Number(flag.into())));
    } else if !value.is_null() {
        out.push((name, Value::Text(value.encode())));
    }
}
