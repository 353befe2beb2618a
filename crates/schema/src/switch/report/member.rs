//! The members of jobs in a report: where they are, and how far.

use super::{JobPhase, JobReport};
use crate::text;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::net::Ipv4Addr;
use tally_engine::metrics;
use tally_wire::Mac;

/// A rank that awaits results for a share of time smaller by this than another is waited for.
const LAG: f64 = 0.25;

metrics! {
    /// How a member of a job stands.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct MemberGauges, labels ["job_id", "rank"] {
        /// Time since the member's last heartbeat.
        pub silent_s: f64 = gauge "member_silent_seconds" in Seconds;
        /// Share of its time in which the member awaits results, as it says.
        pub awaiting: f64 = gauge "member_awaiting_ratio";
        /// Fragments that the worker is behind the one that has contributed most.
        pub behind: u32 = gauge "member_behind_fragments";
    }
}

/// One member of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its rank in the whole job, or that of the first worker at or below a switch; absent for a
    /// PS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u16>,
    /// Its rank at this switch, in a tree; else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_rank: Option<u8>,
    /// The name of a switch below; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// The part of a PS, if there are several; else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u8>,
    /// The port that it joined from.
    pub port: String,
    /// Its Ethernet address.
    #[serde(with = "text")]
    pub mac: Mac,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Its UDP port.
    pub udp_port: u16,
    /// Whether it has left.
    pub left: bool,
    /// The first fragment that it has not contributed to, as it said last; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<u32>,
    /// How it stands.
    #[serde(flatten)]
    pub gauges: MemberGauges,
}

impl MemberReport {
    /// Its rank in the whole job, the name of a switch below, or `ps`, or of several `ps0`, `ps1`.
    #[must_use]
    pub fn label(&self) -> String {
        match (&self.switch, self.rank, self.part) {
            (Some(switch), ..) => switch.clone(),
            (None, Some(rank), _) => rank.to_string(),
            (None, None, None) => "ps".into(),
            (None, None, Some(part)) => format!("ps{part}"),
        }
    }

    /// Whether it has this rank at the switch.
    fn is_local(&self, rank: u8) -> bool {
        match self.local_rank {
            Some(local) => local == rank,
            None => self.rank == Some(u16::from(rank)),
        }
    }
}

/// Its line below that of its job.
impl Display for MemberReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let MemberGauges {
            silent_s,
            awaiting,
            behind,
        } = self.gauges;
        write!(
            f,
            "    {} {:<4} {:<15} {} on {}, heard {silent_s:.1} s ago",
            if self.switch.is_some() {
                "switch"
            } else {
                "rank"
            },
            self.label(),
            self.ip,
            self.mac,
            self.port
        )?;
        if self.left {
            write!(f, ", left")?;
        }
        if awaiting > 0.0 || behind > 0 {
            let percent = awaiting * 100.0;
            write!(
                f,
                ", awaits {percent:.1} % of its time, {behind} fragments behind"
            )?;
        }
        writeln!(f)
    }
}

impl JobReport {
    /// What a local rank is called: the global rank of a worker, the name of a switch.
    fn name_of(&self, rank: u8) -> String {
        let Some(tree) = &self.tree else {
            return rank.to_string();
        };
        let child = tree.children.iter().find(|child| child.rank == rank);
        child.map_or_else(
            || (u32::from(tree.first) + u32::from(rank)).to_string(),
            |child| child.switch.clone(),
        )
    }

    /// Parameter servers that have not joined.
    fn missing_servers(&self) -> Vec<String> {
        match self.parameter_servers {
            _ if self.ps => Vec::new(),
            1 => vec!["ps".into()],
            parts => {
                let is_there = |part: u8| self.ranks.iter().any(|it| it.part == Some(part));
                let missing = (0..parts).filter(|&part| !is_there(part));
                missing.map(|part| format!("ps{part}")).collect()
            }
        }
    }

    /// The ranks that the job waits for, `ps` among them: those that have not joined, or that
    /// await results for a shorter time than others do (J-11). In a tree, global ranks, and names
    /// of switches below.
    #[must_use]
    pub fn waits_for(&self) -> Vec<String> {
        let is_there = |rank: u8| self.ranks.iter().any(|it| it.is_local(rank));
        match self.phase {
            JobPhase::Idle => Vec::new(),
            JobPhase::Waiting => {
                // In a tree, `workers` has the hosts alone.
                let members = self.tree.as_ref().map_or(self.members.workers, |tree| {
                    tree.hosts.saturating_add(tree.children.len() as u8)
                });
                let missing = (0..members).filter(|&rank| !is_there(rank));
                let missing = missing.map(|rank| self.name_of(rank));
                missing.chain(self.missing_servers()).collect()
            }
            JobPhase::Paused => match &self.missing_servers()[..] {
                // All are there, and one has not confirmed the epoch yet.
                [] => vec!["ps".into()],
                missing => missing.to_vec(),
            },
            JobPhase::Running => {
                let present = || self.ranks.iter().filter(|it| !it.left && it.rank.is_some());
                let awaiting = present().map(|it| it.gauges.awaiting);
                let longest = awaiting.fold(0.0, f64::max);
                let slow = present().filter(|it| it.gauges.awaiting + LAG <= longest);
                slow.map(MemberReport::label).collect()
            }
        }
    }
}
