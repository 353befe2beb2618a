//! One datagram being answered, and why a job refuses it.

use super::Incarnation;
use crate::registry::event::{Event, Events};
use crate::registry::{Action, JobConfig, Refusals, RegistryConfig};
use crate::roster::Member;
use tally_wire::control::{Concern, DATAGRAM_BYTES, Reason};
use tally_wire::header::CONTROL_UNITS;
use tally_wire::{
    AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Key, Kind, Rank, Refuse, Time,
};

/// One datagram being answered.
pub(in crate::registry) struct Visit<'a> {
    pub(in crate::registry) config: &'a RegistryConfig,
    pub(in crate::registry) now: Time,
    pub(in crate::registry) from: Member,
    /// Local rank at this switch.
    pub(in crate::registry) rank: Rank,
    /// The rank in the frame's header.
    pub(in crate::registry) wire_rank: Rank,
    /// It is of a child switch, under the switch key.
    pub(in crate::registry) by_switch: bool,
    /// `rank` is a local rank, not that of the header.
    pub(in crate::registry) located: bool,
    pub(in crate::registry) incarnation: Incarnation,
    pub(in crate::registry) instance: u64,
    /// The one under which it is sealed, if it is one of the job's.
    pub(in crate::registry) key: Option<&'a Key>,
    pub(in crate::registry) refusals: &'a mut Refusals,
    pub(in crate::registry) actions: Vec<Action>,
    /// Refusals; what happens to the job is with the job.
    pub(in crate::registry) events: Events,
}

impl Visit<'_> {
    /// The key that answers are sealed under: the member's.
    pub(super) fn key<'b>(&'b self, config: &'b JobConfig) -> &'b Key {
        self.key.unwrap_or(&config.key)
    }

    /// A refusal that cannot be authenticated.
    pub(in crate::registry) fn hint(&mut self, job: JobId, reason: Reason) {
        if !self.refusals.take(self.now) {
            return;
        }
        self.events.push(Event::Refused {
            job,
            rank: self.wire_rank,
            located: self.located,
            from: self.from,
            reason,
            found: 0,
            allowed: 0,
        });
        let refuse = Refuse {
            instance: self.instance,
            challenge: 0,
            reason,
            about: None,
            found: 0,
            allowed: 0,
            behind: 0,
            concern: None,
        };
        let mut datagram = Box::new([0; DATAGRAM_BYTES]);
        control_header(Kind::Refuse, job, Epoch(0), self.wire_rank).emit(&mut *datagram);
        refuse.emit(&mut *datagram);
        self.actions.push(Action::Send(self.from, datagram));
    }
}

/// Why a job refuses, with the numbers that belong to it.
#[derive(Clone, Copy, Debug)]
pub(in crate::registry) struct Refusal {
    pub(in crate::registry) reason: Reason,
    pub(super) about: Option<Rank>,
    pub(super) found: u32,
    pub(super) allowed: u32,
    pub(super) behind: u64,
    /// In a tree, once it is known who is concerned.
    pub(super) concern: Option<Concern>,
}

impl Refusal {
    pub(in crate::registry) fn new(reason: Reason) -> Self {
        Self {
            reason,
            about: None,
            found: 0,
            allowed: 0,
            behind: 0,
            concern: None,
        }
    }

    pub(in crate::registry) fn numbers(
        reason: Reason,
        found: impl Into<u32>,
        allowed: impl Into<u32>,
    ) -> Self {
        Self {
            found: found.into(),
            allowed: allowed.into(),
            ..Self::new(reason)
        }
    }

    pub(super) fn about(self, rank: Rank) -> Self {
        Self {
            about: Some(rank),
            ..self
        }
    }
}

pub(in crate::registry) fn control_header(
    kind: Kind,
    job: JobId,
    epoch: Epoch,
    rank: Rank,
) -> Header {
    Header {
        kind,
        flags: Flags::NONE,
        priority: 0,
        element: Element::None,
        job,
        epoch,
        fragment: FragmentId(0),
        rank,
        units: CONTROL_UNITS,
        bitmap: 0,
        tag: AuthTag::NONE,
    }
}
