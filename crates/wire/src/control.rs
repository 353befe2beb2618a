//! Payloads of JOIN, ACCEPT, REFUSE and LEAVE (PROTOCOL.md, section 4).
//!
//! Each is 128 bytes. The last 16 are a truncated HMAC-SHA-256 under the job's key over the Tally
//! header and the other 112. Two steps keep an unauthenticated field from being used:
//! [`Key::verify`] over the whole datagram first, `parse` of the payload second. [`Key::seal`] is
//! the last step of emitting.

use crate::field::{Field, be16, be32, be64, ip, mac};
use crate::frame::Mac;
use crate::header::{HEADER_BYTES, Kind};
use crate::ids::{FragmentId, Rank};
use crate::key::MAC_AT;
use crate::part::Part;
use crate::{MAX_UNITS, MAX_WORKERS, all_ranks};
use core::net::Ipv4Addr;
use thiserror::Error;

mod reason;
mod tree;

pub use reason::{LeaveCode, Reason};
pub use tree::{
    Below, Cause, Concern, JoinTree, LeaveTree, MAX_TREE_WORKERS, Place, RankRange, SwitchName,
};

pub use crate::key::{
    CONTROL_BYTES, DATAGRAM_BYTES, KEY_BYTES, Key, KeySyntax, MAC_BYTES, WrappedSecret,
};

/// Error: a field of an authentic control payload is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("control payload out of range")]
pub struct ControlError;

type Payload = [u8; CONTROL_BYTES];

/// Bytes of the fields that all four payloads have.
mod field {
    use crate::field::Field;

    pub(super) const INSTANCE: Field = 0..8;
    pub(super) const CHALLENGE: Field = 8..16;
}

/// Bytes of JOIN's fields.
mod join {
    use crate::field::Field;

    pub(super) const ROLE: usize = 16;
    pub(super) const WORKERS: usize = 17;
    pub(super) const UNITS: usize = 18;
    pub(super) const RUNNING: usize = 19;
    pub(super) const WINDOW: Field = 20..22;
    pub(super) const SHAPE: Field = 24..56;
    pub(super) const SENT: Field = 56..60;
    /// Whether SENT is given.
    pub(super) const HAS_SENT: usize = 60;
    pub(super) const AWAITING: Field = 62..64;
    pub(super) const SALT: Field = 64..72;
    /// Of a PS: its part, and the number of parts.
    pub(super) const PART: usize = super::tree::join::END;
    pub(super) const PARTS: usize = PART + 1;
    /// The bytes of all fields; the others are zero.
    pub(super) const ALL: [Field; 2] = [0..WINDOW.end, SHAPE.start..PARTS + 1];
}

/// Bytes of ACCEPT's fields.
mod accept {
    use crate::field::Field;

    pub(super) const STATE: usize = 16;
    pub(super) const WORKERS: usize = 17;
    pub(super) const UNITS: usize = 18;
    pub(super) const SHARDS: usize = 19;
    pub(super) const BASE_PORT: Field = 20..22;
    pub(super) const WINDOW: Field = 22..24;
    pub(super) const JOINED: Field = 24..32;
    pub(super) const LEFT: Field = 32..40;
    pub(super) const PS: usize = 40;
    pub(super) const SLOWEST: usize = 41;
    pub(super) const AWAITING: Field = 42..44;
    pub(super) const GROUP: Field = 44..48;
    pub(super) const LEAST: Field = 48..52;
    /// Of the first PS that is missing: its part, and the number of parts.
    pub(super) const PART: usize = super::tree::accept::SLOWEST.end;
    pub(super) const PARTS: usize = PART + 1;
    pub(super) const BEHIND: Field = 56..64;
    pub(super) const MAC: Field = 64..70;
    pub(super) const SALT: Field = 72..80;
    pub(super) const WRAPPED: Field = 80..96;
    pub(super) const IS_WRAPPED: usize = 96;
    /// The bytes of all fields; the others are zero.
    pub(super) const ALL: [Field; 2] = [0..MAC.end, SALT.start..super::tree::accept::END];
}

/// Bytes of REFUSE's fields.
mod refuse {
    use crate::field::Field;

    pub(super) const REASON: usize = 16;
    pub(super) const ABOUT: usize = 17;
    pub(super) const FOUND: Field = 20..24;
    pub(super) const ALLOWED: Field = 24..28;
    pub(super) const BEHIND: Field = 32..40;
    /// The bytes of all fields; the others are zero.
    pub(super) const ALL: [Field; 3] = [
        0..super::tree::refuse::FLAGS + 1,
        FOUND.start..super::tree::concern::RANKS.end,
        super::tree::concern::NAME,
    ];
}

/// Bytes of LEAVE's fields.
mod leave {
    use crate::field::Field;

    pub(super) const CODE: usize = 16;
    pub(super) const FRAGMENT: Field = 20..24;
    pub(super) const BEHIND: Field = 24..32;
    pub(super) const SALT: Field = 32..40;
    /// The bytes of all fields; the others are zero.
    pub(super) const ALL: [Field; 2] =
        [0..super::tree::leave::RANK.end, super::tree::concern::NAME];
}

/// The payload of `datagram`; all bytes outside `fields` must be zero.
fn payload_of<'a>(datagram: &'a [u8], fields: &[Field]) -> Result<&'a Payload, ControlError> {
    let payload: &Payload = datagram
        .get(HEADER_BYTES..)
        .and_then(|p| p.try_into().ok())
        .ok_or(ControlError)?;
    let unused = |at: &usize| !fields.iter().any(|r| r.contains(at));
    if (0..MAC_AT).filter(unused).any(|at| payload[at] != 0) {
        return Err(ControlError);
    }
    Ok(payload)
}

/// Whether a JOIN or LEAVE claims to be of a switch: another key is to be tried.
///
/// The claim is authentic once the datagram is [verified](Key::verify).
#[must_use]
pub fn claims_switch(kind: Kind, datagram: &[u8]) -> bool {
    let at = match kind {
        Kind::Join => join::ROLE,
        Kind::Leave => tree::leave::ROLE,
        _ => return false,
    };
    datagram.get(HEADER_BYTES + at) == Some(&(Role::Switch as u8))
}

fn blank(datagram: &mut [u8]) -> &mut Payload {
    let payload: &mut Payload = datagram[HEADER_BYTES..DATAGRAM_BYTES]
        .as_mut_array()
        .expect("a slice of that length");
    payload.fill(0);
    payload
}

/// Role of a joining member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// A worker.
    Worker = 0,
    /// The parameter server.
    Ps = 1,
    /// A switch, to its parent in the job's tree.
    Switch = 2,
}

/// SHA-256 over the parameters on which all workers of a job must agree.
pub type Shape = [u8; 32];

/// Payload of JOIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// Random number of the member's process; not 0.
    pub instance: u64,
    /// The last challenge given by the switch.
    pub challenge: u64,
    /// Worker or PS.
    pub role: Role,
    /// Workers that the member expects, 1..=64.
    ///
    /// 0 from the PS, from a switch, and from workers of a job of more than 64 (`tree`).
    pub workers: u8,
    /// Units of every element payload, 1..=128.
    ///
    /// 0 from the PS, and from a switch that does not know them yet.
    pub units: u8,
    /// Whether the worker has received ACCEPT(running) for this epoch.
    ///
    /// False from the PS.
    pub running: bool,
    /// Maximum number of unfinished fragments, at least 1; 0 from the PS.
    pub window: u16,
    /// Parameters on which all workers must agree; zeros from the PS.
    pub shape: Shape,
    /// The first fragment that the worker has not contributed to (J-10).
    ///
    /// Only of a running worker; `None` if the worker does not report it.
    pub sent: Option<FragmentId>,
    /// Share of time in which the worker awaits results, in thousandths (J-11).
    ///
    /// 0 without `sent`.
    pub awaiting: u16,
    /// Salt of the header's epoch, from ACCEPT; 0 with epoch 0.
    pub salt: u64,
    /// What a switch says, and a worker of a job of more than 64.
    pub tree: Option<JoinTree>,
    /// Which of its node's parameter servers the PS is; of others [`Part::ONLY`].
    pub part: Part,
}

impl Join {
    /// Reads a verified control datagram.
    ///
    /// # Errors
    /// A field out of range.
    pub fn parse(datagram: &[u8]) -> Result<Self, ControlError> {
        let b = payload_of(datagram, &join::ALL)?;
        let role = match b[join::ROLE] {
            0 => Role::Worker,
            1 => Role::Ps,
            2 => Role::Switch,
            _ => return Err(ControlError),
        };
        let join = Self {
            instance: be64(b, field::INSTANCE),
            challenge: be64(b, field::CHALLENGE),
            role,
            workers: b[join::WORKERS],
            units: b[join::UNITS],
            running: match b[join::RUNNING] {
                0 => false,
                1 => true,
                _ => return Err(ControlError),
            },
            window: be16(b, join::WINDOW),
            shape: *b[join::SHAPE].as_array().ok_or(ControlError)?,
            sent: match (b[join::HAS_SENT], be32(b, join::SENT)) {
                (0, 0) => None,
                (1, sent) => Some(FragmentId(sent)),
                _ => return Err(ControlError),
            },
            awaiting: be16(b, join::AWAITING),
            salt: be64(b, join::SALT),
            tree: JoinTree::read(b, role)?,
            part: match (b[join::PART], b[join::PARTS]) {
                (0, 0) => Part::ONLY,
                (index, count) => Part::new(index, count).ok_or(ControlError)?,
            },
        };
        let fits = match role {
            Role::Worker | Role::Switch => {
                let workers = match join.tree {
                    None => 1..=MAX_WORKERS,
                    Some(_) => 0..=0,
                };
                workers.contains(&usize::from(join.workers))
                    && join.units <= MAX_UNITS
                    && (join.units >= 1 || role == Role::Switch)
                    && join.window >= 1
            }
            Role::Ps => {
                join.units == 0 && !join.running && join.window == 0 && join.shape == [0; 32]
            }
        };
        let fits = fits
            && (join.running || join.sent.is_none())
            && (join.sent.is_some() || join.awaiting == 0)
            && join.awaiting <= ALL_THE_TIME
            && (role == Role::Ps || (b[join::PART], b[join::PARTS]) == (0, 0));
        if fits && join.instance != 0 {
            Ok(join)
        } else {
            Err(ControlError)
        }
    }

    /// Writes the payload behind the header in `datagram`.
    ///
    /// [`Key::seal`] must follow.
    ///
    /// # Panics
    /// If `datagram` is shorter than [`DATAGRAM_BYTES`].
    pub fn emit(&self, datagram: &mut [u8]) {
        let b = blank(datagram);
        b[field::INSTANCE].copy_from_slice(&self.instance.to_be_bytes());
        b[field::CHALLENGE].copy_from_slice(&self.challenge.to_be_bytes());
        b[join::ROLE] = self.role as u8;
        b[join::WORKERS] = self.workers;
        b[join::UNITS] = self.units;
        b[join::RUNNING] = u8::from(self.running);
        b[join::WINDOW].copy_from_slice(&self.window.to_be_bytes());
        b[join::SHAPE].copy_from_slice(&self.shape);
        if let Some(sent) = self.sent {
            b[join::SENT].copy_from_slice(&sent.0.to_be_bytes());
            b[join::HAS_SENT] = 1;
            b[join::AWAITING].copy_from_slice(&self.awaiting.to_be_bytes());
        }
        b[join::SALT].copy_from_slice(&self.salt.to_be_bytes());
        if let Some(tree) = &self.tree {
            tree.write(b);
        }
        // The only server says 0, 0.
        if self.part != Part::ONLY {
            (b[join::PART], b[join::PARTS]) = (self.part.index(), self.part.count());
        }
    }
}

/// Phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Waiting for members.
    Waiting = 0,
    /// All members have joined.
    Running = 1,
    /// All workers have left.
    Ended = 2,
}

/// `awaiting` of a worker that awaits results all the time: 1000 thousandths.
const ALL_THE_TIME: u16 = 1000;

/// The ranks that have contributed least (J-10), and the straggler (J-11).
///
/// As the workers have reported to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The smallest `sent`: all earlier fragments have all contributions.
    pub least: FragmentId,
    /// The ranks that have not contributed to `least`; at least one, but in a tree.
    pub ranks: u64,
    /// The straggler: the rank with the smallest `awaiting`; 0 in a tree ([`Place::slowest`]).
    pub slowest: Rank,
    /// `awaiting` of that rank, in thousandths.
    pub awaiting: u16,
}

/// Payload of ACCEPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The member's instance, echoed.
    pub instance: u64,
    /// Challenge for the member's next JOIN or LEAVE.
    pub challenge: u64,
    /// Phase of the job.
    pub state: State,
    /// Workers of the job, 1..=64.
    pub workers: u8,
    /// Units of every element payload; 0 before the first worker's JOIN.
    pub units: u8,
    /// Number of UDP ports of the switch for fragments, at least 1.
    pub shards: u8,
    /// The first of these ports.
    pub base_port: u16,
    /// Largest window that the switch serves, in fragments.
    pub window: u16,
    /// Ranks that have joined.
    pub joined: u64,
    /// Ranks that have left.
    pub left: u64,
    /// The first part whose PS has not joined this epoch.
    pub missing_ps: Option<Part>,
    /// Multicast group of results.
    pub group: Ipv4Addr,
    /// The ranks that are behind, once all workers have reported `sent`.
    pub behind: Option<Behind>,
    /// The switch's MAC, to which members send.
    pub mac: Mac,
    /// Salt of the header's epoch; 0 with epoch 0.
    pub salt: u64,
    /// The epoch's secret for a member whose key it is not derived from (K-3).
    pub wrapped: Option<WrappedSecret>,
    /// Where the member is in the job's tree, if it has one.
    pub place: Option<Place>,
}

impl Accept {
    /// Reads a verified control datagram.
    ///
    /// # Errors
    /// A field out of range.
    pub fn parse(datagram: &[u8]) -> Result<Self, ControlError> {
        let b = payload_of(datagram, &accept::ALL)?;
        let state = match b[accept::STATE] {
            0 => State::Waiting,
            1 => State::Running,
            2 => State::Ended,
            _ => return Err(ControlError),
        };
        let (place, has_behind) = Place::read(b)?;
        let accept = Self {
            instance: be64(b, field::INSTANCE),
            challenge: be64(b, field::CHALLENGE),
            state,
            workers: b[accept::WORKERS],
            units: b[accept::UNITS],
            shards: b[accept::SHARDS],
            base_port: be16(b, accept::BASE_PORT),
            window: be16(b, accept::WINDOW),
            joined: be64(b, accept::JOINED),
            left: be64(b, accept::LEFT),
            missing_ps: match (b[accept::PS], b[accept::PART], b[accept::PARTS]) {
                (1, 0, 0) => None,
                (0, 0, 0) => Some(Part::ONLY),
                // Of one server zeros: as in releases without parts.
                (0, index, count @ 2..) => Some(Part::new(index, count).ok_or(ControlError)?),
                _ => return Err(ControlError),
            },
            group: ip(b, accept::GROUP),
            behind: match (
                be32(b, accept::LEAST),
                be64(b, accept::BEHIND),
                Rank(b[accept::SLOWEST]),
                be16(b, accept::AWAITING),
            ) {
                (0, 0, Rank(0), 0) if !has_behind => None,
                // Without a tree no flag tells: a rank is behind.
                (_, ranks, ..) if !has_behind && (ranks == 0 || place.is_some()) => {
                    return Err(ControlError);
                }
                (least, ranks, slowest, awaiting) => Some(Behind {
                    least: FragmentId(least),
                    ranks,
                    slowest,
                    awaiting,
                }),
            },
            mac: mac(b, accept::MAC),
            salt: be64(b, accept::SALT),
            wrapped: match (b[accept::IS_WRAPPED], b[accept::WRAPPED].as_array()) {
                (0, Some(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])) => None,
                (1, Some(wrapped)) => Some(*wrapped),
                _ => return Err(ControlError),
            },
            place,
        };
        let fits = (1..=MAX_WORKERS).contains(&usize::from(accept.workers))
            && accept.units <= MAX_UNITS
            && accept.shards >= 1
            && accept
                .base_port
                .checked_add(u16::from(accept.shards))
                .is_some()
            && accept.window >= 1
            && accept.group.is_multicast()
            && !accept.mac.is_group()
            && accept.mac != Mac::default()
            && (accept.behind).is_none_or(|it| {
                let all = all_ranks(accept.workers);
                it.ranks & !all == 0
                    && it.slowest.is_worker()
                    && all & it.slowest.bit() != 0
                    && it.awaiting <= ALL_THE_TIME
            });
        if fits { Ok(accept) } else { Err(ControlError) }
    }

    /// Writes the payload behind the header in `datagram`.
    ///
    /// [`Key::seal`] must follow.
    ///
    /// # Panics
    /// If `datagram` is shorter than [`DATAGRAM_BYTES`].
    pub fn emit(&self, datagram: &mut [u8]) {
        let b = blank(datagram);
        b[field::INSTANCE].copy_from_slice(&self.instance.to_be_bytes());
        b[field::CHALLENGE].copy_from_slice(&self.challenge.to_be_bytes());
        b[accept::STATE] = self.state as u8;
        b[accept::WORKERS] = self.workers;
        b[accept::UNITS] = self.units;
        b[accept::SHARDS] = self.shards;
        b[accept::BASE_PORT].copy_from_slice(&self.base_port.to_be_bytes());
        b[accept::WINDOW].copy_from_slice(&self.window.to_be_bytes());
        b[accept::JOINED].copy_from_slice(&self.joined.to_be_bytes());
        b[accept::LEFT].copy_from_slice(&self.left.to_be_bytes());
        match self.missing_ps {
            None => b[accept::PS] = 1,
            Some(Part::ONLY) => {}
            Some(part) => (b[accept::PART], b[accept::PARTS]) = (part.index(), part.count()),
        }
        b[accept::GROUP].copy_from_slice(&self.group.octets());
        b[accept::MAC].copy_from_slice(&self.mac.0);
        b[accept::SALT].copy_from_slice(&self.salt.to_be_bytes());
        if let Some(wrapped) = self.wrapped {
            b[accept::WRAPPED].copy_from_slice(&wrapped);
            b[accept::IS_WRAPPED] = 1;
        }
        if let Some(Behind {
            least,
            ranks,
            slowest,
            awaiting,
        }) = self.behind
        {
            b[accept::SLOWEST] = slowest.0;
            b[accept::AWAITING].copy_from_slice(&awaiting.to_be_bytes());
            b[accept::LEAST].copy_from_slice(&least.0.to_be_bytes());
            b[accept::BEHIND].copy_from_slice(&ranks.to_be_bytes());
        }
        if let Some(place) = &self.place {
            place.write(b, self.behind.is_some());
        }
    }
}

/// Payload of REFUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// The member's instance, echoed.
    pub instance: u64,
    /// The current challenge.
    pub challenge: u64,
    /// The reason.
    pub reason: Reason,
    /// The rank that the reason concerns, if any.
    pub about: Option<Rank>,
    /// Value found (see [`Reason`]).
    pub found: u32,
    /// Value allowed (see [`Reason`]).
    pub allowed: u32,
    /// Stragglers named by a LEAVE with [`LeaveCode::Stalled`]; else 0.
    pub behind: u64,
    /// The ranks and the switch that the reason concerns, in a tree.
    pub concern: Option<Concern>,
}

impl Refuse {
    /// Reads a control datagram, verified unless its reason is a hint.
    ///
    /// # Errors
    /// A field out of range.
    pub fn parse(datagram: &[u8]) -> Result<Self, ControlError> {
        let b = payload_of(datagram, &refuse::ALL)?;
        let reason = Reason::from_number(u32::from(b[refuse::REASON])).ok_or(ControlError)?;
        let about = Rank(b[refuse::ABOUT]);
        if !about.is_worker() && b[refuse::ABOUT] != 255 {
            return Err(ControlError);
        }
        let (found, behind) = (be32(b, refuse::FOUND), be64(b, refuse::BEHIND));
        let stalled = reason == Reason::MemberFailed && found == LeaveCode::Stalled as u32;
        if behind != 0 && !stalled {
            return Err(ControlError);
        }
        Ok(Self {
            instance: be64(b, field::INSTANCE),
            challenge: be64(b, field::CHALLENGE),
            reason,
            about: about.is_worker().then_some(about),
            found,
            allowed: be32(b, refuse::ALLOWED),
            behind,
            concern: Concern::read(b, b[tree::refuse::FLAGS])?,
        })
    }

    /// Writes the payload behind the header in `datagram`.
    ///
    /// [`Key::seal`] must follow, except for hints.
    ///
    /// # Panics
    /// If `datagram` is shorter than [`DATAGRAM_BYTES`].
    pub fn emit(&self, datagram: &mut [u8]) {
        let b = blank(datagram);
        b[field::INSTANCE].copy_from_slice(&self.instance.to_be_bytes());
        b[field::CHALLENGE].copy_from_slice(&self.challenge.to_be_bytes());
        b[refuse::REASON] = self.reason as u8;
        b[refuse::ABOUT] = self.about.map_or(255, |r| r.0);
        b[refuse::FOUND].copy_from_slice(&self.found.to_be_bytes());
        b[refuse::ALLOWED].copy_from_slice(&self.allowed.to_be_bytes());
        b[refuse::BEHIND].copy_from_slice(&self.behind.to_be_bytes());
        if let Some(concern) = &self.concern {
            b[tree::refuse::FLAGS] = concern.write(b);
        }
    }
}

/// Payload of LEAVE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// The member's instance.
    pub instance: u64,
    /// The last challenge given by the switch.
    pub challenge: u64,
    /// The reason.
    pub code: LeaveCode,
    /// The fragment that overflowed, or the first without a result; else 0.
    ///
    /// The first for [`LeaveCode::Overflow`], the second for [`LeaveCode::Stalled`].
    pub fragment: FragmentId,
    /// The ranks known not to have contributed to `fragment`; else 0.
    ///
    /// Only for [`LeaveCode::Stalled`].
    pub behind: u64,
    /// Salt of the header's epoch, from ACCEPT; 0 with epoch 0.
    pub salt: u64,
    /// What a switch says, and a worker in a tree.
    pub tree: Option<LeaveTree>,
}

impl Leave {
    /// Reads a verified control datagram.
    ///
    /// # Errors
    /// A field out of range.
    pub fn parse(datagram: &[u8]) -> Result<Self, ControlError> {
        let b = payload_of(datagram, &leave::ALL)?;
        // There it has other fields.
        let is_switch = b[tree::leave::ROLE] == Role::Switch as u8;
        let leave = Self {
            instance: be64(b, field::INSTANCE),
            challenge: be64(b, field::CHALLENGE),
            code: LeaveCode::from_number(u32::from(b[leave::CODE])).ok_or(ControlError)?,
            fragment: FragmentId(if is_switch {
                0
            } else {
                be32(b, leave::FRAGMENT)
            }),
            behind: if is_switch { 0 } else { be64(b, leave::BEHIND) },
            salt: be64(b, leave::SALT),
            tree: LeaveTree::read(b)?,
        };
        let fits = leave.behind == 0 || leave.code == LeaveCode::Stalled;
        if fits && leave.instance != 0 {
            Ok(leave)
        } else {
            Err(ControlError)
        }
    }

    /// Writes the payload behind the header in `datagram`.
    ///
    /// [`Key::seal`] must follow.
    ///
    /// # Panics
    /// If `datagram` is shorter than [`DATAGRAM_BYTES`].
    pub fn emit(&self, datagram: &mut [u8]) {
        let b = blank(datagram);
        b[field::INSTANCE].copy_from_slice(&self.instance.to_be_bytes());
        b[field::CHALLENGE].copy_from_slice(&self.challenge.to_be_bytes());
        b[leave::CODE] = self.code as u8;
        b[leave::FRAGMENT].copy_from_slice(&self.fragment.0.to_be_bytes());
        b[leave::BEHIND].copy_from_slice(&self.behind.to_be_bytes());
        b[leave::SALT].copy_from_slice(&self.salt.to_be_bytes());
        if let Some(tree) = &self.tree {
            tree.write(b);
        }
    }
}

#[cfg(test)]
mod tests;
