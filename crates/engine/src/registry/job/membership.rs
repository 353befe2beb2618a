//! A member that has joined, and when another instance may take its rank over.

use super::Incarnation;
use super::visit::Visit;
use crate::registry::JobConfig;
use crate::roster::Member;
use std::time::Duration;
use tally_wire::control::Below;
use tally_wire::{FragmentId, Key, Time};

/// After this long without a heartbeat another instance may take over a rank that is not in the
/// middle of a job: three times the period of J-1.
pub(super) const TAKEOVER: Duration = Duration::from_millis(1500);

/// A member that has joined.
#[derive(Clone, Debug)]
pub(in crate::registry) struct Membership {
    pub(super) member: Member,
    pub(super) instance: u64,
    pub(super) heard: Time,
    /// The key that it has.
    pub(super) key: Key,
    /// It came to the job without an epoch, and has not been told since that it runs.
    pub(super) fresh: bool,
    /// The round in which it said last that it is in the job's epoch.
    pub(super) round: u64,
    /// The instance that asked for its rank, and for which there was one more confirmation round.
    pub(super) rival: u64,
    /// The first fragment of the epoch that it has not contributed to, as it said last (J-10).
    pub(super) sent: Option<FragmentId>,
    /// How much of its time it awaits results, as it said last (J-11).
    pub(super) awaiting: u16,
    /// It is a child switch.
    pub(super) switch: bool,
    /// All below it has joined and confirmed; true of a worker (TR-24).
    pub(super) ready: bool,
    /// What a child switch said last of what is below it.
    pub(super) below: Option<Below>,
    /// Where a child switch says that it is now, and the round in which it was asked (TR-23).
    pub(super) moving: Option<(Member, u64)>,
}

impl Membership {
    pub(super) fn new(visit: &Visit<'_>, config: &JobConfig) -> Self {
        Self {
            member: visit.from,
            instance: visit.instance,
            heard: visit.now,
            key: visit.key(config).clone(),
            fresh: visit.incarnation == Incarnation::NONE,
            round: 0,
            rival: 0,
            sent: None,
            awaiting: 0,
            switch: visit.by_switch,
            ready: !visit.by_switch,
            below: None,
            moving: None,
        }
    }

    pub(super) fn is(&self, visit: &Visit<'_>) -> bool {
        self.instance == visit.instance
            && self.switch == visit.by_switch
            && (self.switch || self.member == visit.from)
    }

    /// A JOIN that was overtaken, or comes twice, takes nothing back.
    pub(super) fn has_sent(&mut self, sent: FragmentId, awaiting: u16) {
        if self.sent.is_none_or(|before| sent.ahead_of(before) >= 0) {
            (self.sent, self.awaiting) = (Some(sent), awaiting);
        }
    }
}
