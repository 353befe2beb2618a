//! What a member knows of its ring, and how errors name members.

use super::wire::{NONCE_BYTES, Nonce, PlanHash};
use crate::log::{Level, Log};
use std::net::SocketAddrV4;
use std::time::Duration;
use tally_local::{Class, Failure, Ranks};
use tally_wire::Key;

/// A member, as the others know it.
#[derive(Clone, Debug)]
pub(crate) struct MemberName {
    /// Where its agent listens.
    pub(crate) address: SocketAddrV4,
    /// Its first rank, and one past the last.
    pub(crate) ranks: (u16, u16),
}

impl MemberName {
    /// Its ranks, as errors have them.
    pub(crate) fn set(&self) -> Ranks {
        Ranks::of_range(self.ranks.0, self.ranks.1)
    }
}

/// What a member knows of its ring.
pub(crate) struct Identity {
    pub(crate) job: u16,
    pub(crate) key: Key,
    pub(crate) plan: PlanHash,
    /// Which member this is.
    pub(crate) member: usize,
    pub(crate) members: Vec<MemberName>,
    pub(crate) join: Duration,
    pub(crate) stall: Duration,
    pub(crate) log: Log,
    /// Job and rank, for the log.
    pub(crate) name: String,
}

impl Identity {
    pub(crate) const fn successor(&self) -> usize {
        (self.member + 1) % self.members.len()
    }

    pub(crate) const fn predecessor(&self) -> usize {
        (self.member + self.members.len() - 1) % self.members.len()
    }

    /// A member in words.
    pub(crate) fn words(&self, member: usize) -> String {
        let MemberName { address, ranks } = &self.members[member];
        match ranks.1 - ranks.0 {
            1 => format!("member {member} (rank {}, {address})", ranks.0),
            _ => format!(
                "member {member} (ranks {} to {}, {address})",
                ranks.0,
                ranks.1 - 1
            ),
        }
    }

    pub(super) fn say(&self, level: Level, what: impl std::fmt::Display) {
        let name = &self.name;
        self.log.say(level, format_args!("{name}: {what}"));
    }

    /// A failure on account of a member.
    pub(crate) fn failure(&self, class: Class, member: usize, what: &str) -> Failure {
        Failure {
            class,
            ranks: self.members[member].set(),
            text: format!("{} {what}", self.words(member)),
        }
    }
}

pub(super) fn nonce() -> Result<Nonce, getrandom::Error> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce)?;
    Ok(nonce)
}
