//! The place of the switch in the tree of a job, in a report.

use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter, Result};

/// The place of the switch in the tree of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeReport {
    /// Workers of the whole job.
    pub total: u16,
    /// Global rank of the first worker at or below the switch.
    pub first: u16,
    /// Workers at and below the switch.
    pub ranks: u16,
    /// Workers at the switch.
    pub hosts: u8,
    /// The switch above; absent at the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentReport>,
    /// The switches below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildReport>,
}

/// The switch above.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParentReport {
    /// Its name.
    pub switch: String,
    /// Local rank of this switch there.
    pub rank: u8,
    /// The port that leads to it for this job; absent while none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// What it said last of the job: `waiting`, `running` or `ended`; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Time since it was heard; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_s: Option<f64>,
}

/// A switch below.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildReport {
    /// Its name.
    pub switch: String,
    /// Its local rank here.
    pub rank: u8,
    /// Global rank of its first worker.
    pub first: u16,
    /// Workers at and below it.
    pub ranks: u16,
    /// Whether it has joined.
    pub joined: bool,
}

impl TreeReport {
    /// The place, in short: `root` or `rank 1 at spine1`.
    #[must_use]
    pub fn place(&self) -> String {
        self.parent.as_ref().map_or_else(
            || "root".to_owned(),
            |parent| format!("rank {} at {}", parent.rank, parent.switch),
        )
    }

    /// The switches below, in short, with those that have not joined.
    #[must_use]
    pub fn below(&self) -> String {
        let shown = |child: &ChildReport| {
            let missing = if child.joined { "" } else { " (not joined)" };
            format!("{}{missing}", child.switch)
        };
        let children: Vec<_> = self.children.iter().map(shown).collect();
        children.join(", ")
    }
}

/// Its lines below that of its job.
impl Display for TreeReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let last = (u32::from(self.first) + u32::from(self.ranks)).saturating_sub(1);
        write!(
            f,
            "    tree: {}, ranks {} to {last} of {}",
            self.place(),
            self.first,
            self.total
        )?;
        if let Some(parent) = &self.parent {
            let state = parent.state.as_deref().unwrap_or("not asked");
            match &parent.port {
                Some(port) => write!(f, ", by port {port}, says {state}")?,
                None => write!(f, ", no live link leads there, said {state}")?,
            }
        }
        writeln!(f)?;
        for child in &self.children {
            writeln!(
                f,
                "    switch {:<8} {}, rank {} here, ranks {} to {}",
                child.switch,
                if child.joined { "joined" } else { "missing" },
                child.rank,
                child.first,
                (u32::from(child.first) + u32::from(child.ranks)).saturating_sub(1)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{JobPhase, JobReport, Report};

    /// The job of the golden report: three workers and a switch, ranks 4 to 8.
    fn job() -> JobReport {
        let text = include_str!("../../../golden/switch-report.json");
        let report: Report = crate::golden::parse(text);
        report.jobs[0].clone()
    }

    #[test]
    fn what_is_waited_for_has_global_ranks_and_names_of_switches() {
        let mut job = job();
        job.phase = JobPhase::Waiting;
        job.ps = false;
        assert_eq!(job.waits_for(), ["5", "6", "leafA", "ps"]);
        // A switch counts its hosts alone.
        job.members.workers = 3;
        assert_eq!(job.waits_for(), ["5", "6", "leafA", "ps"]);
        job.members.workers = 4;
        job.tree = None;
        assert_eq!(job.waits_for(), ["1", "2", "3", "ps"]);
    }

    #[test]
    fn a_place_is_told_in_short() {
        let mut tree = job().tree.unwrap();
        assert_eq!(tree.place(), "rank 1 at spine1");
        tree.children[0].joined = false;
        assert_eq!(tree.below(), "leafA (not joined)");
        let parent = tree.parent.as_mut().unwrap();
        (parent.port, parent.state) = (None, None);
        let text = tree.to_string();
        assert!(
            text.contains("no live link leads there, said not asked"),
            "{text}"
        );
        tree.parent = None;
        assert_eq!(tree.place(), "root");
    }
}
