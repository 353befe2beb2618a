//! The order of changes that lead from the roles that switches have to those of a plan. Without
//! I/O.
//!
//! * All removals come before all additions. So at no time a job has roles of two trees, and no
//!   switch needs room for a job that leaves and one that comes.
//! * A job's root is removed first and added last. Only the root opens epochs (PROTOCOL.md, TR-22),
//!   so a job never runs on a part of a tree.
//!
//! A list of changes may end anywhere: what is then there leads to the rest of the same list, or to
//! that of another plan, in the same way.

use crate::roles::Role;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// Roles in one job, by the index of the switch.
pub type Roles = BTreeMap<usize, Role>;

/// A job as it is and as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobChange {
    /// What switches report.
    pub now: Roles,
    /// What the plan has: each role after those below it.
    pub wanted: Vec<(usize, Role)>,
}

/// What is done at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The job is removed.
    Remove,
    /// The job is added.
    Add,
}

impl Action {
    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Remove => "remove",
            Self::Add => "add",
        }
    }
}

/// One change of one switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The job's place in the list.
    pub job: usize,
    /// Index of the switch.
    pub switch: usize,
    /// What is done.
    pub action: Action,
    /// The role that goes or comes.
    pub role: Role,
}

/// Why a job changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// Its switches report what the plan has.
    Same,
    /// No switch has it.
    Begins,
    /// Switches have roles of another tree.
    Moves,
    /// Some switches lack it, or have it though they are not in its tree. The others stay.
    Repaired,
    /// Switches have it, and it has no tree.
    Ends,
}

/// As in `job vision moves`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Same => "stays",
            Self::Begins => "begins",
            Self::Moves => "moves",
            Self::Repaired => "is repaired",
            Self::Ends => "ends",
        })
    }
}

impl JobChange {
    /// Why it changes.
    #[must_use]
    pub fn reason(&self) -> Reason {
        let lacks = |(at, _): &(usize, Role)| !self.now.contains_key(at);
        if self.is_other() {
            Reason::Moves
        } else if self.wanted.is_empty() && !self.now.is_empty() {
            Reason::Ends
        } else if self.now.is_empty() && self.wanted.is_empty() {
            Reason::Same
        } else if self.now.is_empty() {
            Reason::Begins
        } else if self.wanted.iter().any(lacks) || self.now.len() > self.wanted.len() {
            Reason::Repaired
        } else {
            Reason::Same
        }
    }

    /// Whether a switch of the plan's tree has a role of another tree.
    fn is_other(&self) -> bool {
        let mut wanted = self.wanted.iter();
        wanted.any(|(at, role)| self.now.get(at).is_some_and(|now| now != role))
    }

    /// The switches that lose their role: all, if the tree is another one. Else those that are not
    /// in it.
    fn removed(&self) -> Vec<usize> {
        let is_other = self.is_other();
        let is_wanted = |at: usize| self.wanted.iter().any(|(it, _)| *it == at);
        let all = self.now.keys().copied();
        all.filter(|&at| is_other || !is_wanted(at)).collect()
    }

    /// Switches with a role above this one; more than there are in a loop.
    fn depth(&self, names: &[String], switch: usize) -> usize {
        let mut at = switch;
        for depth in 0..=self.now.len() {
            let parent = self.now.get(&at).and_then(Role::parent);
            let parent = parent.and_then(|name| names.iter().position(|it| it == name));
            match parent.filter(|it| self.now.contains_key(it)) {
                Some(parent) => at = parent,
                None => return depth,
            }
        }
        self.now.len()
    }
}

/// The changes in their order. `names` are those of all switches.
#[must_use]
pub fn changes(jobs: &[JobChange], names: &[String]) -> Vec<Change> {
    let mut changes = Vec::new();
    for (job, change) in jobs.iter().enumerate() {
        let mut removed = change.removed();
        // Roots first, also one without a tree.
        removed.sort_by_key(|&at| {
            let is_below = change.now[&at].parent().is_some();
            (is_below, change.depth(names, at), Reverse(at))
        });
        changes.extend(removed.into_iter().map(|switch| Change {
            job,
            switch,
            action: Action::Remove,
            role: change.now[&switch].clone(),
        }));
    }
    for (job, change) in jobs.iter().enumerate() {
        let removed = change.removed();
        let stays = |at: &usize| change.now.contains_key(at) && !removed.contains(at);
        let added = change.wanted.iter().filter(|(at, _)| !stays(at));
        changes.extend(added.map(|(switch, role)| Change {
            job,
            switch: *switch,
            action: Action::Add,
            role: role.clone(),
        }));
    }
    changes
}

#[cfg(test)]
mod tests;
