//! What `apply` does or would do, for people and programs.

use crate::changes::{Action, JobChange, Reason};
use crate::roles::Role;
use serde::Serialize;
use std::fmt::Write as _;
use tally_program::columns;

/// What is done, or would be.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Whether it was only computed.
    pub dry_run: bool,
    /// Jobs, in the order of the fleet's file.
    pub jobs: Vec<JobOutcome>,
    /// Changes in their order.
    pub changes: Vec<MadeChange>,
    /// Names of switches that the fleet has with capacity 0, and that do not answer.
    pub down: Vec<String>,
}

/// A job, and why it changes.
#[derive(Clone, Debug, Serialize)]
pub struct JobOutcome {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u16,
    /// Why it changes.
    pub reason: Reason,
    /// The same in words.
    pub why: String,
    /// Its workers by rank.
    pub workers: Vec<WorkerOutcome>,
    /// Switches that sum another number of streams than planned.
    pub sums: Vec<Sums>,
}

/// A switch that sums another number of streams of a job than planned.
#[derive(Clone, Debug, Serialize)]
pub struct Sums {
    /// Name of the switch.
    pub switch: String,
    /// Streams that it sums.
    pub streams: usize,
    /// Streams that the plan has it sum.
    pub planned: usize,
}

/// Where a worker joins.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerOutcome {
    /// Its name.
    pub name: String,
    /// Its global rank.
    pub rank: u16,
    /// Name of its switch.
    pub switch: String,
}

/// A change of a switch.
#[derive(Clone, Debug, Serialize)]
pub struct MadeChange {
    /// Name of the job.
    pub job: String,
    /// Its number.
    pub id: u16,
    /// Name of the switch.
    pub switch: String,
    /// What is done.
    pub action: Action,
    /// The role that goes or comes.
    pub role: Role,
}

/// Why a job changes, in words.
pub(crate) fn why(change: &JobChange, names: &[String]) -> String {
    let name = |at: usize| &names[at];
    match change.reason() {
        Reason::Same => "its switches report the plan".to_owned(),
        Reason::Begins => "no switch has it".to_owned(),
        Reason::Ends => "it is not in the fleet".to_owned(),
        Reason::Moves => {
            let mut wanted = change.wanted.iter();
            let other = wanted.find_map(|(at, role)| {
                let now = change.now.get(at).filter(|now| *now != role)?;
                Some(format!("{} has: {now}", name(*at)))
            });
            other.unwrap_or_default()
        }
        Reason::Repaired => {
            let wanted = &change.wanted;
            let lacks = wanted.iter().filter(|(at, _)| !change.now.contains_key(at));
            let lacks = lacks.map(|(at, _)| format!("{} lacks it", name(*at)));
            let strays = change.now.keys();
            let strays = strays.filter(|at| wanted.iter().all(|(it, _)| it != *at));
            let strays = strays.map(|at| format!("{} is not in its tree", name(*at)));
            lacks.chain(strays).collect::<Vec<_>>().join(", ")
        }
    }
}

/// What is to be done, for people.
#[must_use]
pub fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    for job in &outcome.jobs {
        let _ = writeln!(text, "job {} {}: {}", job.name, job.reason, job.why);
        let sums = job.sums.iter().filter(|_| job.reason != Reason::Same);
        for it in sums {
            let _ = writeln!(
                text,
                "  {} sums {} of its streams, {} in the plan",
                it.switch, it.streams, it.planned
            );
        }
    }
    for switch in &outcome.down {
        let _ = writeln!(
            text,
            "switch {switch} does not answer, and has capacity 0: left out"
        );
    }
    if !outcome.changes.is_empty() {
        let mut table = columns!["job" left, "change" left, "switch" left, "role" left];
        for change in &outcome.changes {
            table.row([
                change.job.clone(),
                change.action.name().to_owned(),
                change.switch.clone(),
                change.role.to_string(),
            ]);
        }
        let _ = write!(text, "\n{table}");
    }
    text
}

/// How it ended, for people.
#[must_use]
pub fn end(outcome: &Outcome) -> String {
    match (outcome.changes.len(), outcome.dry_run) {
        (0, _) => "nothing to change: all switches report the plan\n".to_owned(),
        (n, true) => format!("\n{n} changes to make; none is made\n"),
        (n, false) => format!("\n{n} changes made: all switches report the plan\n"),
    }
}
