//! What control payloads say of a job's tree of switches (PROTOCOL.md, "Trees").
//!
//! A job with a tree has up to 4096 workers, with *global* ranks. A switch and its members number
//! each other by *local* ranks. These fields are zero in all other jobs.

use super::{ControlError, LeaveCode, Payload, Reason, Role};
use crate::field::{Field, be16, be32};
use crate::ids::Rank;
use core::fmt;

/// Maximum number of workers of a job with a tree.
pub const MAX_TREE_WORKERS: u16 = 4096;
/// Maximum number of bytes of a switch's name in a frame.
const NAME_BYTES: usize = 64;

/// Bytes of JOIN's fields.
pub(super) mod join {
    use crate::field::Field;

    pub(in super::super) const READY: usize = 61;
    pub(in super::super) const FIRST: Field = 72..74;
    pub(in super::super) const TOTAL: Field = 74..76;
    pub(in super::super) const RANKS: Field = 76..78;
    pub(in super::super) const AWAITED: Field = 78..82;
    pub(in super::super) const PS_MISSING: usize = 82;
    pub(in super::super) const SLOWEST: Field = 84..86;
    pub(in super::super) const END: usize = SLOWEST.end;
}

/// Bytes of ACCEPT's fields.
pub(super) mod accept {
    use crate::field::Field;

    pub(in super::super) const SLOWEST: Field = 52..54;
    /// [`IN_TREE`](super::IN_TREE), `HAS_BEHIND`, `PS_ELSEWHERE`, `HAS_RUN`.
    pub(in super::super) const FLAGS: usize = 97;
    pub(in super::super) const LOCAL: usize = 98;
    pub(in super::super) const HOSTS: usize = 99;
    pub(in super::super) const FIRST: Field = 100..102;
    pub(in super::super) const TOTAL: Field = 102..104;
    pub(in super::super) const ELSEWHERE: Field = 104..108;
    pub(in super::super) const END: usize = ELSEWHERE.end;
    pub(in super::super) const HAS_BEHIND: u8 = 2;
    pub(in super::super) const PS_ELSEWHERE: u8 = 4;
    pub(in super::super) const HAS_RUN: u8 = 8;
}

/// Bytes that REFUSE and a switch's LEAVE have in common.
pub(super) mod concern {
    use crate::field::Field;

    pub(in super::super) const BEHIND: Field = 28..32;
    pub(in super::super) const RANKS: Field = 40..44;
    pub(in super::super) const NAME: Field = 48..112;
    pub(in super::super) const WHOLE: u8 = 2;
}

/// Bytes of REFUSE's fields.
pub(super) mod refuse {
    /// [`IN_TREE`](super::IN_TREE), `WHOLE`.
    pub(in super::super) const FLAGS: usize = 18;
}

/// Bytes of LEAVE's fields.
pub(super) mod leave {
    use crate::field::Field;

    pub(in super::super) const ROLE: usize = 17;
    /// [`IN_TREE`](super::IN_TREE), `WHOLE`.
    pub(in super::super) const FLAGS: usize = 18;
    /// Of a switch.
    pub(in super::super) const REASON: usize = 19;
    /// Of a switch.
    pub(in super::super) const ALLOWED: Field = 20..24;
    /// Of a switch.
    pub(in super::super) const FOUND: Field = 24..28;
    /// Of a worker.
    pub(in super::super) const BEHIND: Field = 40..44;
    /// Of a worker.
    pub(in super::super) const RANK: Field = 44..46;
}

/// Flag: the fields of the tree are given.
const IN_TREE: u8 = 1;

fn put16(b: &mut Payload, at: Field, value: u16) {
    b[at].copy_from_slice(&value.to_be_bytes());
}

/// Global ranks `first..end`; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RankRange {
    first: u16,
    end: u16,
}

impl RankRange {
    /// The ranks `first..end`; `None` if there are none, or if one is above 4095.
    #[must_use]
    pub const fn new(first: u16, end: u16) -> Option<Self> {
        if first < end && end <= MAX_TREE_WORKERS {
            Some(Self { first, end })
        } else {
            None
        }
    }

    /// The one rank; `None` if it is above 4095.
    #[must_use]
    pub const fn one(rank: u16) -> Option<Self> {
        Self::new(rank, rank.saturating_add(1))
    }

    /// The first rank.
    #[must_use]
    pub const fn first(self) -> u16 {
        self.first
    }

    /// One past the last rank.
    #[must_use]
    pub const fn end(self) -> u16 {
        self.end
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.end - self.first
    }

    /// Whether the rank is one of them.
    #[must_use]
    pub const fn contains(self, rank: u16) -> bool {
        self.first <= rank && rank < self.end
    }

    /// The ranks, in order.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        self.first..self.end
    }

    /// Reads two numbers; both 0: none.
    fn read(b: &Payload, at: Field) -> Result<Option<Self>, ControlError> {
        match (
            be16(b, at.start..at.start + 2),
            be16(b, at.start + 2..at.end),
        ) {
            (0, 0) => Ok(None),
            (first, end) => Self::new(first, end).map(Some).ok_or(ControlError),
        }
    }

    fn write(range: Option<Self>, b: &mut Payload, at: Field) {
        if let Some(Self { first, end }) = range {
            put16(b, at.start..at.start + 2, first);
            put16(b, at.start + 2..at.end, end);
        }
    }
}

impl fmt::Display for RankRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count() {
            1 => write!(f, "rank {}", self.first),
            _ => write!(f, "ranks {} to {}", self.first, self.end - 1),
        }
    }
}

/// Name of a switch: up to 64 bytes of UTF-8 without control characters. May be empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SwitchName {
    bytes: [u8; NAME_BYTES],
    len: u8,
}

impl SwitchName {
    /// The name, as far as 64 bytes and its first control character go.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; NAME_BYTES];
        let mut len = 0;
        for c in name.chars().take_while(|c| !c.is_control()) {
            let end = len + c.len_utf8();
            let Some(space) = bytes.get_mut(len..end) else {
                break;
            };
            c.encode_utf8(space);
            len = end;
        }
        Self {
            bytes,
            len: len as u8,
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    fn read(b: &Payload, at: Field) -> Result<Self, ControlError> {
        let bytes = &b[at];
        let end = bytes.iter().position(|&byte| byte == 0);
        let (name, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        let text = core::str::from_utf8(name).map_err(|_| ControlError)?;
        let it = Self::new(text);
        if usize::from(it.len) == name.len() && rest.iter().all(|&byte| byte == 0) {
            Ok(it)
        } else {
            Err(ControlError)
        }
    }
}

impl fmt::Display for SwitchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SwitchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// What a switch tells its parent of what is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Below {
    /// Whether all below has joined and confirmed.
    pub ready: bool,
    /// Its first global rank.
    pub first: u16,
    /// Its global ranks, at least one.
    pub ranks: u16,
    /// Workers of the tree.
    pub total: u16,
    /// Ranks below that are missing, or (running) behind.
    pub awaited: Option<RankRange>,
    /// Whether a node below, or the switch itself, misses its PS.
    pub ps_missing: bool,
    /// Global rank of the straggler below; 0 without `sent`.
    pub slowest: u16,
}

/// What JOIN says in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinTree {
    /// Of a worker of a job of more than 64.
    Worker {
        /// Global rank.
        rank: u16,
        /// Workers that it expects, 65..=4096.
        workers: u16,
    },
    /// Of a switch.
    Switch(Below),
}

impl JoinTree {
    pub(super) fn read(b: &Payload, role: Role) -> Result<Option<Self>, ControlError> {
        let flag = |at: usize| match b[at] {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ControlError),
        };
        let zero = |at: Field| b[at].iter().all(|&byte| byte == 0);
        let (first, total) = (be16(b, join::FIRST), be16(b, join::TOTAL));
        if b[join::PS_MISSING + 1] != 0 {
            return Err(ControlError);
        }
        if role == Role::Switch {
            let below = Below {
                ready: flag(join::READY)?,
                first,
                ranks: be16(b, join::RANKS),
                total,
                awaited: RankRange::read(b, join::AWAITED)?,
                ps_missing: flag(join::PS_MISSING)?,
                slowest: be16(b, join::SLOWEST),
            };
            let end = u32::from(first) + u32::from(below.ranks);
            let own = RankRange::new(first, u16::try_from(end).map_err(|_| ControlError)?);
            let fits = own.is_some_and(|own| {
                let inside = |it: RankRange| own.first <= it.first && it.end <= own.end;
                below.awaited.is_none_or(inside)
                    && (below.slowest == 0 || own.contains(below.slowest))
            });
            let fits = fits && total <= MAX_TREE_WORKERS && end <= u32::from(total);
            return if fits {
                Ok(Some(Self::Switch(below)))
            } else {
                Err(ControlError)
            };
        }
        if b[join::READY] != 0 || !zero(join::RANKS.start..join::END) {
            return Err(ControlError);
        }
        match (first, total) {
            (0, 0) => Ok(None),
            (rank, workers @ 65..=MAX_TREE_WORKERS) if rank < workers && role == Role::Worker => {
                Ok(Some(Self::Worker { rank, workers }))
            }
            _ => Err(ControlError),
        }
    }

    pub(super) fn write(&self, b: &mut Payload) {
        match *self {
            Self::Worker { rank, workers } => {
                put16(b, join::FIRST, rank);
                put16(b, join::TOTAL, workers);
            }
            Self::Switch(below) => {
                b[join::READY] = u8::from(below.ready);
                put16(b, join::FIRST, below.first);
                put16(b, join::TOTAL, below.total);
                put16(b, join::RANKS, below.ranks);
                RankRange::write(below.awaited, b, join::AWAITED);
                b[join::PS_MISSING] = u8::from(below.ps_missing);
                put16(b, join::SLOWEST, below.slowest);
            }
        }
    }
}

/// Where a member is in the tree of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The member's local rank.
    pub local: Rank,
    /// Hosts among the switch's members: they have the first local ranks.
    pub hosts: u8,
    /// Global rank of local rank 0.
    pub first: u16,
    /// Workers of the tree.
    pub total: u16,
    /// Ranks that are no hosts of this switch and are missing, or (running) behind.
    pub elsewhere: Option<RankRange>,
    /// Whether another node of the tree misses its PS.
    pub ps_elsewhere: bool,
    /// Whether the epoch runs, or has run.
    pub has_run: bool,
    /// Global rank of the straggler; 0 without `behind`.
    pub slowest: u16,
}

impl Place {
    /// The place, and whether [`Accept::behind`](super::Accept::behind) is given also when its
    /// fields are zero.
    pub(super) fn read(b: &Payload) -> Result<(Option<Self>, bool), ControlError> {
        let flags = b[accept::FLAGS];
        if flags & IN_TREE == 0 {
            let rest = b[accept::FLAGS..accept::END].iter();
            let zero = rest.chain(&b[accept::SLOWEST]).all(|&byte| byte == 0);
            return if zero {
                Ok((None, false))
            } else {
                Err(ControlError)
            };
        }
        let place = Self {
            local: Rank(b[accept::LOCAL]),
            hosts: b[accept::HOSTS],
            first: be16(b, accept::FIRST),
            total: be16(b, accept::TOTAL),
            elsewhere: RankRange::read(b, accept::ELSEWHERE)?,
            ps_elsewhere: flags & accept::PS_ELSEWHERE != 0,
            has_run: flags & accept::HAS_RUN != 0,
            slowest: be16(b, accept::SLOWEST),
        };
        let known = IN_TREE | accept::HAS_BEHIND | accept::PS_ELSEWHERE | accept::HAS_RUN;
        let end = u32::from(place.first) + u32::from(place.hosts);
        let fits = flags & !known == 0
            && place.local.is_worker()
            && place.hosts <= 64
            && (1..=MAX_TREE_WORKERS).contains(&place.total)
            && place.first < MAX_TREE_WORKERS
            && end <= u32::from(place.total)
            && (place.elsewhere).is_none_or(|it| it.end <= place.total)
            && place.slowest < place.total;
        if fits {
            Ok((Some(place), flags & accept::HAS_BEHIND != 0))
        } else {
            Err(ControlError)
        }
    }

    pub(super) fn write(&self, b: &mut Payload, has_behind: bool) {
        let flags = [
            (true, IN_TREE),
            (has_behind, accept::HAS_BEHIND),
            (self.ps_elsewhere, accept::PS_ELSEWHERE),
            (self.has_run, accept::HAS_RUN),
        ];
        let set = flags.into_iter().filter(|(is_set, _)| *is_set);
        b[accept::FLAGS] = set.fold(0, |all, (_, flag)| all | flag);
        b[accept::LOCAL] = self.local.0;
        b[accept::HOSTS] = self.hosts;
        put16(b, accept::FIRST, self.first);
        put16(b, accept::TOTAL, self.total);
        RankRange::write(self.elsewhere, b, accept::ELSEWHERE);
        put16(b, accept::SLOWEST, self.slowest);
    }
}

/// The ranks and the switch that a reason concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concern {
    /// Global ranks, if it concerns any.
    pub ranks: Option<RankRange>,
    /// The switch that has these ranks.
    pub switch: SwitchName,
    /// Whether it concerns the switch itself, with all that is below it.
    pub whole: bool,
    /// Stragglers, for MEMBER_FAILED with code 4.
    pub behind: Option<RankRange>,
}

impl Concern {
    pub(super) fn read(b: &Payload, flags: u8) -> Result<Option<Self>, ControlError> {
        let concern = Self {
            ranks: RankRange::read(b, concern::RANKS)?,
            switch: SwitchName::read(b, concern::NAME)?,
            whole: flags & concern::WHOLE != 0,
            behind: RankRange::read(b, concern::BEHIND)?,
        };
        let is_empty = concern.ranks.is_none()
            && concern.switch.len == 0
            && !concern.whole
            && concern.behind.is_none();
        match flags & !concern::WHOLE {
            0 if is_empty => Ok(None),
            IN_TREE => Ok(Some(concern)),
            _ => Err(ControlError),
        }
    }

    /// Writes all but the flags, which it returns.
    pub(super) fn write(&self, b: &mut Payload) -> u8 {
        RankRange::write(self.ranks, b, concern::RANKS);
        RankRange::write(self.behind, b, concern::BEHIND);
        b[concern::NAME].copy_from_slice(&self.switch.bytes);
        IN_TREE | if self.whole { concern::WHOLE } else { 0 }
    }
}

/// Why a job failed below a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The reason that its members get; a final one.
    pub reason: Reason,
    /// Value found (see [`Reason`]).
    pub found: u32,
    /// Value allowed (see [`Reason`]).
    pub allowed: u32,
    /// Whom it concerns.
    pub concern: Concern,
}

/// What LEAVE says in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveTree {
    /// Of a worker.
    Worker {
        /// Global rank, in a job of more than 64 workers; else 0.
        rank: u16,
        /// Ranks elsewhere that are known not to have contributed.
        ///
        /// Only for [`LeaveCode::Stalled`].
        behind: Option<RankRange>,
    },
    /// Of a switch; with the cause if the job failed below it.
    Switch(Option<Cause>),
}

impl LeaveTree {
    pub(super) fn read(b: &Payload) -> Result<Option<Self>, ControlError> {
        let flags = b[leave::FLAGS];
        let zero = |at: Field| b[at].iter().all(|&byte| byte == 0);
        match b[leave::ROLE] {
            0 => {
                let (rank, behind) = (be16(b, leave::RANK), RankRange::read(b, leave::BEHIND)?);
                let stalled = u32::from(b[super::leave::CODE]) == LeaveCode::Stalled as u32;
                let fits = b[leave::REASON] == 0
                    && zero(concern::NAME)
                    && rank < MAX_TREE_WORKERS
                    && (stalled || behind.is_none());
                match flags {
                    0 if fits && rank == 0 && behind.is_none() => Ok(None),
                    IN_TREE if fits => Ok(Some(Self::Worker { rank, behind })),
                    _ => Err(ControlError),
                }
            }
            2 if zero(leave::RANK) => {
                let Some(concern) = Concern::read(b, flags)? else {
                    let rest = [b[leave::REASON]]
                        .into_iter()
                        .chain(b[20..28].iter().copied());
                    return if rest.into_iter().all(|byte| byte == 0) {
                        Ok(Some(Self::Switch(None)))
                    } else {
                        Err(ControlError)
                    };
                };
                let reason = Reason::from_number(u32::from(b[leave::REASON]));
                let reason = reason.filter(|it| it.is_final()).ok_or(ControlError)?;
                Ok(Some(Self::Switch(Some(Cause {
                    reason,
                    found: be32(b, leave::FOUND),
                    allowed: be32(b, leave::ALLOWED),
                    concern,
                }))))
            }
            _ => Err(ControlError),
        }
    }

    pub(super) fn write(&self, b: &mut Payload) {
        match self {
            Self::Worker { rank, behind } => {
                b[leave::FLAGS] = IN_TREE;
                put16(b, leave::RANK, *rank);
                RankRange::write(*behind, b, leave::BEHIND);
            }
            Self::Switch(cause) => {
                b[leave::ROLE] = Role::Switch as u8;
                if let Some(cause) = cause {
                    b[leave::FLAGS] = cause.concern.write(b);
                    b[leave::REASON] = cause.reason as u8;
                    b[leave::FOUND].copy_from_slice(&cause.found.to_be_bytes());
                    b[leave::ALLOWED].copy_from_slice(&cause.allowed.to_be_bytes());
                }
            }
        }
    }
}
