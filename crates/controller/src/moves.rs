//! Which jobs may change now, and which wait. Without I/O.
//!
//! A job that runs on a tree that is intact is never ended: a move waits until the job is idle. A
//! job whose tree is broken cannot run, and moves at once.

use crate::changes::{JobChange, Reason, Roles};
use crate::roles::Role;

/// A job as its switches report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Its roles at the switches that answer.
    pub now: Roles,
    /// Whether a member has joined at one of them.
    pub is_busy: bool,
    /// Why its tree is broken.
    pub broken: Option<String>,
}

impl State {
    /// Whether it may run, and does.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.is_busy && self.broken.is_none()
    }
}

/// What a job's tree stands on.
pub trait Ground {
    /// Whether a switch neither answers nor forwards.
    fn is_dead(&self, switch: &str) -> bool;
    /// Whether the link of two switches is down.
    fn is_link_down(&self, a: &str, b: &str) -> bool;
    /// The index of a switch that answers.
    fn answers(&self, switch: &str) -> Option<usize>;
}

/// Why the tree of these roles is broken: a switch or link of it is gone, or a switch that answers
/// does not have the job.
#[must_use]
pub fn broken(now: &Roles, names: &[String], ground: &impl Ground) -> Option<String> {
    now.iter().find_map(|(&at, role)| {
        let others = role.parent().into_iter().chain(role.children());
        others.into_iter().find_map(|other| {
            let here = &names[at];
            if ground.is_dead(other) {
                return Some(format!("switch {other} is dead"));
            }
            if ground.is_link_down(here, other) {
                return Some(format!("link {here} - {other} is down"));
            }
            let lacks = ground
                .answers(other)
                .is_some_and(|it| !now.contains_key(&it));
            lacks.then(|| format!("switch {other} does not have the job"))
        })
    })
}

/// What becomes of a job now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its changes are made. If members of it are there, the job ends only if `ends`.
    Go {
        /// Whether its tree is broken, so that nothing is to be waited for.
        ends: bool,
    },
    /// It is left as it is, for this reason.
    Waits(String),
}

/// Whether a job may change to the roles `wanted`.
#[must_use]
pub fn verdict(
    state: &State,
    wanted: &[(usize, Role)],
    answers: impl Fn(usize) -> bool,
    names: &[String],
) -> Verdict {
    if let Some((at, _)) = wanted.iter().find(|(at, _)| !answers(*at)) {
        return Verdict::Waits(format!("switch {} of its tree does not answer", names[*at]));
    }
    let change = JobChange {
        now: state.now.clone(),
        wanted: wanted.to_vec(),
    };
    match change.reason() {
        Reason::Moves if state.is_held() => {
            Verdict::Waits("it runs; it moves when it is idle".to_owned())
        }
        Reason::Moves => Verdict::Go {
            ends: state.is_busy,
        },
        // What is added or taken away beside a tree that fits ends nothing.
        Reason::Same | Reason::Begins | Reason::Repaired => Verdict::Go { ends: false },
    }
}

#[cfg(test)]
mod tests;
