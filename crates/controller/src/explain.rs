//! Why a job is not faster: what binds, and what one more of it would bring.
//!
//! Each answer is a plan of the changed fleet, not an estimate. Tried is what is full on the job's
//! own ways.

use crate::fleet::Fleet;
use crate::names;
use std::collections::BTreeSet;
use tally_planner::check::{limit, loads};
use tally_planner::{Algorithm, Error, Link, Options, Plan, Problem, Resource, plan};

/// A resource is full from this part of its rate on.
const FULL: f64 = 1.0 - 1e-6;
/// A gain below this part of the rate is none.
const GAIN: f64 = 1e-6;

/// A change of the fleet, and what it brings.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// In words.
    pub what: String,
    /// Rate of the job with it.
    pub rate: f64,
    /// Lowest rate per weight of all jobs with it.
    pub level: f64,
}

/// Why a job has the rate that it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The plan as the fleet is.
    pub plan: Plan,
    /// Full resources on the job's ways, in words.
    pub full: Vec<String>,
    /// What makes it faster, the best first.
    pub changes: Vec<Change>,
}

/// Explains the rate of a job, by its index.
///
/// # Errors
/// As for [`plan`].
pub fn explain(
    fleet: &Fleet,
    problem: &Problem,
    job: usize,
    options: &Options,
) -> Result<Explanation, Error> {
    let before = plan(problem, Algorithm::Tally, options)?;
    let full = full(problem, &before, job);
    let mut changes = Vec::new();
    for (what, changed) in changed(fleet, problem, job, &full) {
        let after = plan(&changed, Algorithm::Tally, options)?;
        let rate = after.jobs[job].rate;
        if rate > before.jobs[job].rate * (1.0 + GAIN) {
            let level = crate::document::level(&changed, &after);
            changes.push(Change { what, rate, level });
        }
    }
    changes.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    let topology = &problem.topology;
    let full = full.into_iter().map(|it| names::resource(topology, it));
    Ok(Explanation {
        full: full.collect(),
        plan: before,
        changes,
    })
}

/// Full resources that the job's trees pass.
fn full(problem: &Problem, plan: &Plan, job: usize) -> BTreeSet<Resource> {
    let mut alone = plan.clone();
    for (at, other) in alone.jobs.iter_mut().enumerate() {
        if at != job {
            other.shares.clear();
        }
    }
    let passed = loads(problem, &alone);
    let all = loads(problem, plan).into_iter();
    let all = all.filter(|(resource, _)| passed.get(resource).is_some_and(|&load| load > 0.0));
    all.filter(|&(resource, load)| load >= limit(problem, resource) * FULL)
        .map(|(resource, _)| resource)
        .collect()
}

/// The fleets that have one more of something that is full.
fn changed(
    fleet: &Fleet,
    problem: &Problem,
    job: usize,
    full: &BTreeSet<Resource>,
) -> Vec<(String, Problem)> {
    let topology = &problem.topology;
    let name = |switch: usize| &topology.switches[switch].name;
    let mut changes = Vec::new();
    let mut change = |what: String, apply: &dyn Fn(&mut Problem)| {
        let mut changed = problem.clone();
        apply(&mut changed);
        if !changes.iter().any(|(other, _)| *other == what) {
            changes.push((what, changed));
        }
    };
    let mut again = BTreeSet::new();
    for &resource in full {
        match resource {
            Resource::Capacity(at) => {
                let more = topology.switches[at].capacity / f64::from(fleet.switches[at].cores);
                change(format!("one more core at {}", name(at)), &|it| {
                    it.topology.switches[at].capacity += more;
                });
                again.insert(at);
            }
            Resource::Forward(at) | Resource::Backward(at) => {
                let link = &topology.links[at];
                let what = format!("a second link {} - {}", name(link.a), name(link.b));
                change(what, &|it| it.topology.links[at].rate *= 2.0);
                again.extend([link.a, link.b]);
            }
            Resource::HostOut(_) | Resource::HostIn(_) => {
                let what = format!("second cables of all hosts of {}", problem.jobs[job].name);
                change(what, &|it| {
                    for &host in &problem.jobs[job].workers {
                        it.topology.hosts[host].rate *= 2.0;
                    }
                });
            }
            Resource::ServerIn(at) | Resource::ServerOut(at) => {
                let server = &topology.servers[at];
                let what = format!("one more parameter server like {}", server.name);
                change(what, &|it| it.topology.servers.push(server.clone()));
            }
        }
    }
    for at in again {
        if let Some(links) = links_of_one_like(problem, at) {
            let what = format!("one more switch like {}", name(at));
            change(what, &|it| {
                it.topology.switches.push(topology.switches[at].clone());
                it.topology.links.extend(links.iter().cloned());
            });
        }
    }
    changes
}

/// The links of another switch like this one. A switch with hosts or servers has none like it: more
/// of those would be needed, too.
fn links_of_one_like(problem: &Problem, switch: usize) -> Option<Vec<Link>> {
    let topology = &problem.topology;
    let mut devices = topology.hosts.iter().chain(&topology.servers);
    if devices.any(|device| device.switch == switch) {
        return None;
    }
    let new = topology.switches.len();
    let links = topology.links.iter().filter_map(|link| {
        let other = match switch {
            at if at == link.a => link.b,
            at if at == link.b => link.a,
            _ => return None,
        };
        let (a, b) = (new, other);
        Some(Link { a, b, ..*link })
    });
    Some(links.collect())
}

/// As text, with the rates' unit.
#[must_use]
pub fn text(fleet: &Fleet, problem: &Problem, job: usize, explanation: &Explanation) -> String {
    use crate::show::rate;
    let (name, unit) = (&problem.jobs[job].name, fleet.unit);
    let planned = &explanation.plan.jobs[job];
    let mut text = format!("{name}: {} {unit}\n", rate(planned.rate));
    if planned.shares.is_empty() {
        return text + "no parameter server is in reach of all its workers\n";
    }
    if let Some(binding) = planned.binding {
        let binding = names::resource(&problem.topology, binding);
        text += &format!(
            "bound by {binding}: one {unit} more of it adds {} to the slowest jobs, per weight\n",
            rate(planned.marginal)
        );
    }
    text += &format!("full on its ways: {}\n\n", explanation.full.join(", "));
    if explanation.changes.is_empty() {
        return text + "No single core, link, switch or parameter server makes it faster.\n";
    }
    let mut table = tally_program::columns!["with" left, "rate" right, "gain" right, "level" right];
    for change in &explanation.changes {
        let gain = (change.rate / planned.rate - 1.0) * 100.0;
        table.row([
            change.what.clone(),
            rate(change.rate),
            format!("{gain:.1} %"),
            rate(change.level),
        ]);
    }
    text + &table.to_string()
}
