//! How the members of a job stand, for reports.

use super::Job;
use crate::roster::Member;
use std::time::Duration;
use tally_wire::{FragmentId, Part, Rank, Time};

/// One member of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its rank; [`Rank::PS`] of a parameter server.
    pub rank: Rank,
    /// Which of the parameter servers it is.
    pub part: Part,
    /// Where it is.
    pub member: Member,
    /// Time since its last heartbeat.
    pub silent: Duration,
    /// Whether it has left.
    pub left: bool,
    /// The first fragment of the epoch that it has not contributed to, as it said last (J-10).
    pub sent: Option<FragmentId>,
    /// Fragments that it is behind the worker that has contributed most.
    pub behind: u32,
    /// Thousandths of its time in which it awaits results (J-11).
    pub awaiting: u16,
}

impl Job {
    /// Units of a payload, once its first worker has joined; 0 before.
    pub(in crate::registry) fn payload_units(&self) -> u8 {
        self.agreed.map_or(0, |agreed| agreed.units)
    }

    /// The members that have joined, the parameter servers last. Fixed members do not join.
    pub(in crate::registry) fn member_status(&self, now: Time) -> Vec<MemberStatus> {
        let sent = self.memberships().filter_map(|(_, it)| it.sent);
        let most = sent.reduce(|a, b| if a.ahead_of(b) >= 0 { a } else { b });
        let status = |(rank, part, it): (Rank, Part, &super::Membership)| MemberStatus {
            rank,
            part,
            member: it.member,
            silent: now.since(it.heard),
            left: self.left & rank.bit() != 0,
            sent: it.sent,
            behind: (most.zip(it.sent)).map_or(0, |(most, sent)| most.ahead_of(sent).max(0) as u32),
            awaiting: it.awaiting,
        };
        let workers = self.memberships().filter(|(rank, _)| rank.is_worker());
        let workers = workers.map(|(rank, it)| (rank, Part::ONLY, it));
        let servers = self.served_parts().map(|(part, it)| (Rank::PS, part, it));
        workers.chain(servers).map(status).collect()
    }
}
