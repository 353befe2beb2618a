//! `status`: what switches do for the jobs of a fleet, beside a plan.

use crate::apply::{ApplyError, Wanted, check_file, switches, wanted};
use crate::fleet::Fleet;
use crate::roles::{self, Role};
use serde::Serialize;
use std::path::Path;
use tally_planner::{Plan, Problem};
use tally_program::columns;
use tally_schema::switch::report::{JobPhase, JobReport};

/// What switches do for all jobs.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Whether all switches report the plan; `None` without a plan.
    pub follows: Option<bool>,
    /// A line for each job and each of its switches.
    pub roles: Vec<RoleStatus>,
    /// Names of switches that do not answer, and need not.
    pub down: Vec<String>,
}

/// What a switch does for a job.
#[derive(Clone, Debug, Serialize)]
pub struct RoleStatus {
    /// Name of the job.
    pub job: String,
    /// Its number.
    pub id: u16,
    /// Name of the switch.
    pub switch: String,
    /// What the plan has; `None` if the switch is not in the tree.
    pub planned: Option<Role>,
    /// What the switch reports; `None` if it does not have the job.
    pub found: Option<Role>,
    /// What the job does there.
    pub phase: Option<JobPhase>,
    /// Whether it begins no epoch.
    pub draining: bool,
    /// Workers and child switches that have joined.
    pub joined: u32,
    /// Workers and child switches.
    pub members: usize,
    /// Ranks, switches and parameter servers that it waits for.
    pub waits_for: Vec<String>,
}

/// Reads the switches.
///
/// # Errors
/// Why it cannot.
pub async fn status(
    (fleet, problem): (&Fleet, &Problem),
    path: &Path,
    plan: Option<&Plan>,
) -> Result<Status, ApplyError> {
    let passed = plan.map(|plan| roles::passed(&problem.topology, plan));
    let passed = passed.unwrap_or_default();
    check_file(fleet, &passed, path)?;
    let (switches, down) = switches(fleet, path, &passed).await?;
    let wanted = plan.map(|plan| wanted(fleet, problem, plan, &switches));
    let wanted = wanted.transpose()?;
    let mut roles = Vec::new();
    for (nth, job) in fleet.jobs.iter().enumerate() {
        let id = job.id.unwrap_or_default();
        for (at, remote) in switches.iter().enumerate() {
            let planned = wanted.as_ref().and_then(|all: &Vec<Wanted>| {
                let roles = &all[nth].tree.roles;
                roles.iter().find(|(it, _)| *it == at)
            });
            let planned = planned.map(|(_, role)| role.clone());
            let report = remote.as_ref().and_then(|it| it.job(id));
            if planned.is_none() && report.is_none() {
                continue;
            }
            roles.push(RoleStatus {
                job: job.name.clone(),
                id,
                switch: fleet.switches[at].name.clone(),
                planned,
                found: report.map(Role::reported),
                phase: report.map(|it| it.phase),
                draining: report.is_some_and(|it| it.draining),
                joined: report.map_or(0, |it| it.members.joined),
                members: report.map_or(0, |it| Role::reported(it).members()),
                waits_for: report.map_or_else(Vec::new, JobReport::waits_for),
            });
        }
    }
    let follows = || roles.iter().all(|it| it.planned == it.found);
    Ok(Status {
        follows: plan.is_some().then(follows),
        roles,
        down,
    })
}

/// The same for people.
#[must_use]
pub fn text(status: &Status) -> String {
    let mut table = columns![
        "job" left, "switch" left, "phase" left, "joined" right, "waits for" left,
        "plan" left, "role" left,
    ];
    for it in &status.roles {
        let plan = match (status.follows, &it.planned) {
            (None, _) => "-".to_owned(),
            (_, planned) if *planned == it.found => "as planned".to_owned(),
            (_, None) => "not in the tree".to_owned(),
            (_, Some(planned)) => format!("expected {planned}"),
        };
        let phase = match it.phase {
            None => "-".to_owned(),
            Some(phase) if it.draining => format!("{phase}, draining"),
            Some(phase) => phase.to_string(),
        };
        let found = it.found.as_ref();
        table.row([
            it.job.clone(),
            it.switch.clone(),
            phase,
            format!("{} of {}", it.joined, it.members),
            match &it.waits_for[..] {
                [] => "-".to_owned(),
                names => names.join(", "),
            },
            plan,
            found.map_or_else(|| "no such job".to_owned(), ToString::to_string),
        ]);
    }
    let mut text = table.to_string();
    for switch in &status.down {
        text += &format!("switch {switch} does not answer, and has capacity 0: left out\n");
    }
    text
}
