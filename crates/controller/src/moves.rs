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
    /// The switch or link of its tree that is gone.
    pub lost: Option<String>,
    /// The switch of its tree that answers and does not have the job.
    pub lacking: Option<String>,
}

impl State {
    /// Of these roles, by the indices of `names`.
    #[must_use]
    pub fn new(now: Roles, is_busy: bool, names: &[String], ground: &impl Ground) -> Self {
        let lost = find(&now, names, |here, other| {
            if ground.is_dead(other) {
                return Some(format!("switch {other} is dead"));
            }
            let is_down = ground.is_link_down(here, other);
            is_down.then(|| format!("link {here} - {other} is down"))
        });
        let lacking = find(&now, names, |_, other| {
            let at = ground.answers(other)?;
            let lacks = !now.contains_key(&at);
            lacks.then(|| format!("switch {other} does not have the job"))
        });
        Self {
            now,
            is_busy,
            lost,
            lacking,
        }
    }

    /// Whether it runs, or will when a switch that came back has the job again.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.is_busy && self.lost.is_none()
    }

    /// Why no job can run on its tree.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.lost.as_deref().or(self.lacking.as_deref())
    }
}

/// What is wrong with a neighbour in the tree: the first one.
fn find(
    now: &Roles,
    names: &[String],
    wrong: impl Fn(&str, &str) -> Option<String>,
) -> Option<String> {
    now.iter().find_map(|(&at, role)| {
        let mut others = role.parent().into_iter().chain(role.children());
        others.find_map(|other| wrong(&names[at], other))
    })
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
        Reason::Moves if state.is_busy && state.broken().is_none() => {
            Verdict::Waits("it runs; it moves when it is idle".to_owned())
        }
        Reason::Moves => Verdict::Go {
            ends: state.is_busy,
        },
        // What is added or taken away beside a tree that fits ends nothing.
        Reason::Same | Reason::Begins | Reason::Repaired | Reason::Ends => {
            Verdict::Go { ends: false }
        }
    }
}

#[cfg(test)]
mod tests;
