//! One link of the fabric: whether it lives, and which hellos count.

use super::{ECHOES, PATIENCE};
use crate::PortId;
use std::fmt;
use tally_wire::fabric::Stamp;
use tally_wire::{Mac, Time};

/// Why what comes by a link is not what is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No frame of the fabric, or sealed under another key.
    Key,
    /// Another switch sends it.
    Name(String),
    /// The other end leads the same way: up or not.
    Direction(bool),
    /// A MAC that no neighbour can have.
    Mac(Mac),
    /// The switch above has this tier, and this one that.
    Tier(u8, u8),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str(
                "a frame that is not sealed under `fabric.key`; give both switches the same key",
            ),
            Self::Name(name) => write!(f, "switch `{name}`; look at the cable and `fabric.links`"),
            Self::Direction(true) => f.write_str("`up` at both ends; one is `\"up\": false`"),
            Self::Direction(false) => f.write_str("down at both ends; one is `\"up\": true`"),
            Self::Mac(mac) => write!(f, "MAC {mac}, which is this switch's or a group's"),
            Self::Tier(its, own) => write!(
                f,
                "tier {its} above tier {own}; check the files of all switches together"
            ),
        }
    }
}

/// One link.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) port: PortId,
    /// Number in the plan.
    pub(super) neighbour: usize,
    pub(super) has_carrier: bool,
    /// Frames sent.
    sent: u64,
    /// The neighbour's last frame that counted.
    last: Stamp,
    /// When it came.
    last_at: Time,
    /// The last own hello that the neighbour named.
    echoed: u64,
    /// Lives until then.
    until: Option<Time>,
    pub(super) since: Option<Time>,
    pub(super) lost: u64,
    pub(super) deaths: u64,
    pub(super) wrong: u64,
    pub(super) problem: Option<Problem>,
}

impl Link {
    pub(super) fn new(port: PortId, neighbour: usize) -> Self {
        Self {
            port,
            neighbour,
            has_carrier: true,
            sent: 0,
            last: Stamp::default(),
            last_at: Time(0),
            echoed: 0,
            until: None,
            since: None,
            lost: 0,
            deaths: 0,
            wrong: 0,
            problem: None,
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.until.is_some()
    }

    pub(super) fn is_silent(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    pub(super) fn dies_at(&self) -> Option<Time> {
        self.until
    }

    /// The stamp of the next frame.
    pub(super) fn stamp(&mut self, session: u64) -> Stamp {
        self.sent += 1;
        Stamp {
            session,
            count: self.sent,
        }
    }

    /// What a hello names as heard.
    pub(super) fn heard(&self) -> Stamp {
        self.last
    }

    /// Whether a frame with this stamp counts: it is newer than the last of its run, or of a new
    /// run while the last one is not heard.
    pub(super) fn accept(&mut self, now: Time, stamp: Stamp) -> bool {
        let is_heard = self.last.session != 0 && now < self.last_at.after(PATIENCE);
        if stamp.session == self.last.session {
            if stamp.count <= self.last.count {
                return false;
            }
            self.lost += stamp.count - self.last.count - 1;
        } else if is_heard || stamp.session == 0 {
            return false;
        }
        self.last = stamp;
        self.last_at = now;
        true
    }

    /// Whether a neighbour that names this hello as heard hears this run now.
    pub(super) fn is_echo(&mut self, session: u64, heard: Stamp) -> bool {
        let is_recent = heard.count <= self.sent && self.sent - heard.count < ECHOES;
        let is_good = heard.session == session && is_recent && heard.count >= self.echoed;
        if is_good {
            self.echoed = heard.count;
        }
        is_good
    }

    /// Lives on; says whether it was dead.
    pub(super) fn confirm(&mut self, now: Time) -> bool {
        self.problem = None;
        self.has_carrier = true;
        let was_dead = self.until.replace(now.after(PATIENCE)).is_none();
        if was_dead {
            self.since = Some(now);
        }
        was_dead
    }

    /// Dies; says whether it had lived.
    pub(super) fn end(&mut self) -> bool {
        let was_live = self.until.take().is_some();
        self.deaths += u64::from(was_live);
        was_live
    }
}
