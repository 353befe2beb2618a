//! Payloads of JOIN, ACCEPT, REFUSE and LEAVE (PROTOCOL.md, section 4).
//!
//! Each is 128 bytes. The last 16 are a truncated HMAC-SHA-256 under the job's key over the Tally
//! header and the other 112. Two steps keep an unauthenticated field from being used:
//! [`Key::verify`] over the whole datagram first, `parse` of the payload second. [`Key::seal`] is
//! the last step of emitting.

use crate::auth::{EpochSecret, SECRET_LABEL, derivation};
use crate::frame::Mac;
use crate::header::{CONTROL_UNITS, HEADER_BYTES};
use crate::ids::{Epoch, FragmentId, JobId, Rank};
use crate::{MAX_UNITS, MAX_WORKERS, UNIT_BYTES, all_ranks};
use core::fmt;
use core::net::Ipv4Addr;
use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;
use thiserror::Error;

/// Bytes of a control payload.
pub const CONTROL_BYTES: usize = CONTROL_UNITS as usize * UNIT_BYTES;
/// Bytes of a control datagram: header and payload.
pub const DATAGRAM_BYTES: usize = HEADER_BYTES + CONTROL_BYTES;
/// Bytes of the truncated HMAC at the end.
pub const MAC_BYTES: usize = 16;
/// Offset of the HMAC in the payload.
const MAC_AT: usize = CONTROL_BYTES - MAC_BYTES;
/// Minimum and maximum length of a key in bytes.
pub const KEY_BYTES: core::ops::RangeInclusive<usize> = 16..=64;

/// A job's key. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    bytes: [u8; 64],
    len: usize,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.len)
    }
}

/// Error: the text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a key: 16 to 64 bytes written as 32 to 128 hexadecimal digits")]
pub struct KeySyntax;

impl core::str::FromStr for Key {
    type Err = KeySyntax;

    fn from_str(s: &str) -> Result<Self, KeySyntax> {
        let digits = s.as_bytes();
        let len = digits.len() / 2;
        if !digits.len().is_multiple_of(2) || !KEY_BYTES.contains(&len) {
            return Err(KeySyntax);
        }
        let mut bytes = [0; 64];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16).ok_or(KeySyntax);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Self { bytes, len })
    }
}

impl Key {
    /// Creates a key from its bytes.
    ///
    /// # Errors
    /// If `bytes` has fewer than 16 or more than 64.
    pub fn new(key: &[u8]) -> Result<Self, KeySyntax> {
        if !KEY_BYTES.contains(&key.len()) {
            return Err(KeySyntax);
        }
        let mut bytes = [0; 64];
        bytes[..key.len()].copy_from_slice(key);
        Ok(Self {
            bytes,
            len: key.len(),
        })
    }

    fn over(&self, datagram: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.bytes[..self.len])
            .expect("HMAC takes keys of any length");
        mac.update(&datagram[..HEADER_BYTES + MAC_AT]);
        mac
    }

    /// The secret of an epoch of the job with this key.
    #[must_use]
    pub fn epoch_secret(&self, job: JobId, epoch: Epoch, salt: u64) -> EpochSecret {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.bytes[..self.len])
            .expect("HMAC takes keys of any length");
        mac.update(SECRET_LABEL);
        mac.update(&derivation(job, epoch, salt));
        let digest = mac.finalize().into_bytes();
        let mut secret = [0; 16];
        secret.copy_from_slice(&digest[..16]);
        EpochSecret::new(secret)
    }

    /// Writes the HMAC to the end of a control datagram (header and payload).
    ///
    /// # Panics
    /// If `datagram` is shorter than [`DATAGRAM_BYTES`].
    pub fn seal(&self, datagram: &mut [u8]) {
        let tag = self.over(datagram).finalize().into_bytes();
        datagram[HEADER_BYTES + MAC_AT..DATAGRAM_BYTES].copy_from_slice(&tag[..MAC_BYTES]);
    }

    /// Whether the HMAC at the end of a control datagram is right.
    ///
    /// Takes constant time.
    #[must_use]
    pub fn verify(&self, datagram: &[u8]) -> bool {
        datagram.len() == DATAGRAM_BYTES
            && self
                .over(datagram)
                .verify_truncated_left(&datagram[HEADER_BYTES + MAC_AT..])
                .is_ok()
    }
}

/// Error: a field of an authentic control payload is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("control payload out of range")]
pub struct ControlError;

type Payload = [u8; CONTROL_BYTES];

fn u64_at(b: &Payload, at: usize) -> u64 {
    b[at..at + 8].iter().fold(0, |n, &x| n << 8 | u64::from(x))
}

fn u32_at(b: &Payload, at: usize) -> u32 {
    b[at..at + 4].iter().fold(0, |n, &x| n << 8 | u32::from(x))
}

fn u16_at(b: &Payload, at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

/// The payload of `datagram`; all bytes outside `listed` must be zero.
fn payload_of<'a>(
    datagram: &'a [u8],
    listed: &[core::ops::Range<usize>],
) -> Result<&'a Payload, ControlError> {
    let payload: &Payload = datagram
        .get(HEADER_BYTES..)
        .and_then(|p| p.try_into().ok())
        .ok_or(ControlError)?;
    let unlisted = |at: &usize| !listed.iter().any(|r| r.contains(at));
    if (0..MAC_AT).filter(unlisted).any(|at| payload[at] != 0) {
        return Err(ControlError);
    }
    Ok(payload)
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
    /// Workers that the member expects, 1..=64; 0 from the PS.
    pub workers: u8,
    /// Units of every element payload, 1..=128; 0 from the PS.
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
}

impl Join {
    /// Reads a verified control datagram.
    ///
    /// # Errors
    /// A field out of range.
    pub fn parse(datagram: &[u8]) -> Result<Self, ControlError> {
        let b = payload_of(datagram, &[0..22, 24..61, 62..72])?;
        let role = match b[16] {
            0 => Role::Worker,
            1 => Role::Ps,
            _ => return Err(ControlError),
        };
        let join = Self {
            instance: u64_at(b, 0),
            challenge: u64_at(b, 8),
            role,
            workers: b[17],
            units: b[18],
            running: match b[19] {
                0 => false,
                1 => true,
                _ => return Err(ControlError),
            },
            window: u16_at(b, 20),
            shape: *b[24..56].as_array().ok_or(ControlError)?,
            sent: match (b[60], u32_at(b, 56)) {
                (0, 0) => None,
                (1, sent) => Some(FragmentId(sent)),
                _ => return Err(ControlError),
            },
            awaiting: u16_at(b, 62),
            salt: u64_at(b, 64),
        };
        let fits = match role {
            Role::Worker => {
                (1..=MAX_WORKERS).contains(&usize::from(join.workers))
                    && (1..=MAX_UNITS).contains(&join.units)
                    && join.window >= 1
            }
            Role::Ps => {
                join.units == 0 && !join.running && join.window == 0 && join.shape == [0; 32]
            }
        };
        let fits = fits
            && (join.running || join.sent.is_none())
            && (join.sent.is_some() || join.awaiting == 0)
            && join.awaiting <= ALL_THE_TIME;
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
        b[0..8].copy_from_slice(&self.instance.to_be_bytes());
        b[8..16].copy_from_slice(&self.challenge.to_be_bytes());
        b[16] = self.role as u8;
        b[17] = self.workers;
        b[18] = self.units;
        b[19] = u8::from(self.running);
        b[20..22].copy_from_slice(&self.window.to_be_bytes());
        b[24..56].copy_from_slice(&self.shape);
        if let Some(sent) = self.sent {
            b[56..60].copy_from_slice(&sent.0.to_be_bytes());
            b[60] = 1;
            b[62..64].copy_from_slice(&self.awaiting.to_be_bytes());
        }
        b[64..72].copy_from_slice(&self.salt.to_be_bytes());
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
    /// The ranks that have not contributed to `least`; at least one.
    pub ranks: u64,
    /// The straggler: the rank with the smallest `awaiting`.
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
    /// Whether the PS has joined this epoch.
    pub ps: bool,
    /// Multicast group of results.
    pub group: Ipv4Addr,
    /// The ranks that are behind, once all workers have reported `sent`.
    pub behind: Option<Behind>,
    /// The switch's MAC, to which members send.
    pub mac: Mac,
    /// Salt of the header's epoch; 0 with epoch 0.
    pub salt: u64,
}

impl Accept {
    /// Reads a verified control datagram.
    ///
    /// # Errors
    /// A field out of range.
    pub fn parse(datagram: &[u8]) -> Result<Self, ControlError> {
        let b = payload_of(datagram, &[0..52, 56..70, 72..80])?;
        let state = match b[16] {
            0 => State::Waiting,
            1 => State::Running,
            2 => State::Ended,
            _ => return Err(ControlError),
        };
        let accept = Self {
            instance: u64_at(b, 0),
            challenge: u64_at(b, 8),
            state,
            workers: b[17],
            units: b[18],
            shards: b[19],
            base_port: u16_at(b, 20),
            window: u16_at(b, 22),
            joined: u64_at(b, 24),
            left: u64_at(b, 32),
            ps: b[40] == 1,
            group: Ipv4Addr::from(u32_at(b, 44)),
            behind: match (u32_at(b, 48), u64_at(b, 56), Rank(b[41]), u16_at(b, 42)) {
                (0, 0, Rank(0), 0) => None,
                (_, 0, ..) => return Err(ControlError),
                (least, ranks, slowest, awaiting) => Some(Behind {
                    least: FragmentId(least),
                    ranks,
                    slowest,
                    awaiting,
                }),
            },
            mac: Mac([b[64], b[65], b[66], b[67], b[68], b[69]]),
            salt: u64_at(b, 72),
        };
        let fits = (1..=MAX_WORKERS).contains(&usize::from(accept.workers))
            && accept.units <= MAX_UNITS
            && accept.shards >= 1
            && accept
                .base_port
                .checked_add(u16::from(accept.shards))
                .is_some()
            && accept.window >= 1
            && b[40] <= 1
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
        b[0..8].copy_from_slice(&self.instance.to_be_bytes());
        b[8..16].copy_from_slice(&self.challenge.to_be_bytes());
        b[16] = self.state as u8;
        b[17] = self.workers;
        b[18] = self.units;
        b[19] = self.shards;
        b[20..22].copy_from_slice(&self.base_port.to_be_bytes());
        b[22..24].copy_from_slice(&self.window.to_be_bytes());
        b[24..32].copy_from_slice(&self.joined.to_be_bytes());
        b[32..40].copy_from_slice(&self.left.to_be_bytes());
        b[40] = u8::from(self.ps);
        b[44..48].copy_from_slice(&self.group.octets());
        b[64..70].copy_from_slice(&self.mac.0);
        b[72..80].copy_from_slice(&self.salt.to_be_bytes());
        if let Some(Behind {
            least,
            ranks,
            slowest,
            awaiting,
        }) = self.behind
        {
            b[41] = slowest.0;
            b[42..44].copy_from_slice(&awaiting.to_be_bytes());
            b[48..52].copy_from_slice(&least.0.to_be_bytes());
            b[56..64].copy_from_slice(&ranks.to_be_bytes());
        }
    }
}

/// Reason of a REFUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// Repeat the request with this challenge.
    Challenge = 1,
    /// No such job. A hint: not authenticated.
    UnknownJob = 2,
    /// Not under the job's key. A hint: not authenticated.
    BadMac = 3,
    /// Rank `found`, but the job has `allowed` workers.
    BadRank = 4,
    /// The member expects `found` workers, the job has `allowed`.
    Workers = 5,
    /// Payloads of `found` units, the job has `allowed`.
    Payload = 6,
    /// The shape differs from that of the rank named.
    Shape = 7,
    /// The rank is bound to another live instance.
    RankTaken = 8,
    /// The rank named exceeded the member timeout.
    MemberLost = 9,
    /// The rank named left with code `found`.
    MemberFailed = 10,
    /// The epoch is not, or no longer, the job's.
    StaleEpoch = 11,
    /// Window `found` is above `allowed`: repeat the request with `allowed`.
    Window = 12,
}

impl Reason {
    const ALL: [Self; 12] = [
        Self::Challenge,
        Self::UnknownJob,
        Self::BadMac,
        Self::BadRank,
        Self::Workers,
        Self::Payload,
        Self::Shape,
        Self::RankTaken,
        Self::MemberLost,
        Self::MemberFailed,
        Self::StaleEpoch,
        Self::Window,
    ];

    /// Whether REFUSE has no valid HMAC, so that a member only stores it (J-8).
    #[must_use]
    pub const fn is_hint(self) -> bool {
        matches!(self, Self::UnknownJob | Self::BadMac)
    }

    /// Whether the member must give up.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !self.is_hint() && !matches!(self, Self::Challenge | Self::RankTaken | Self::Window)
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
}

impl Refuse {
    /// Reads a control datagram, verified unless its reason is a hint.
    ///
    /// # Errors
    /// A field out of range.
    pub fn parse(datagram: &[u8]) -> Result<Self, ControlError> {
        let b = payload_of(datagram, &[0..18, 20..28, 32..40])?;
        let reason = usize::from(b[16])
            .checked_sub(1)
            .and_then(|i| Reason::ALL.get(i))
            .ok_or(ControlError)?;
        let about = Rank(b[17]);
        if !about.is_worker() && b[17] != 255 {
            return Err(ControlError);
        }
        let (found, behind) = (u32_at(b, 20), u64_at(b, 32));
        let stalled = *reason == Reason::MemberFailed && found == LeaveCode::Stalled as u32;
        if behind != 0 && !stalled {
            return Err(ControlError);
        }
        Ok(Self {
            instance: u64_at(b, 0),
            challenge: u64_at(b, 8),
            reason: *reason,
            about: about.is_worker().then_some(about),
            found,
            allowed: u32_at(b, 24),
            behind,
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
        b[0..8].copy_from_slice(&self.instance.to_be_bytes());
        b[8..16].copy_from_slice(&self.challenge.to_be_bytes());
        b[16] = self.reason as u8;
        b[17] = self.about.map_or(255, |r| r.0);
        b[20..24].copy_from_slice(&self.found.to_be_bytes());
        b[24..28].copy_from_slice(&self.allowed.to_be_bytes());
        b[32..40].copy_from_slice(&self.behind.to_be_bytes());
    }
}

/// Code of a LEAVE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LeaveCode {
    /// The member has all its results.
    Finished = 0,
    /// The member failed.
    Failed = 1,
    /// A fragment overflowed.
    Overflow = 2,
    /// The user stopped the member.
    Interrupted = 3,
    /// The stall timeout expired (J-9).
    Stalled = 4,
}

impl LeaveCode {
    /// The code with this number, if there is one.
    #[must_use]
    pub const fn from_number(n: u32) -> Option<Self> {
        Some(match n {
            0 => Self::Finished,
            1 => Self::Failed,
            2 => Self::Overflow,
            3 => Self::Interrupted,
            4 => Self::Stalled,
            _ => return None,
        })
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
}

impl Leave {
    /// Reads a verified control datagram.
    ///
    /// # Errors
    /// A field out of range.
    pub fn parse(datagram: &[u8]) -> Result<Self, ControlError> {
        let b = payload_of(datagram, &[0..17, 20..40])?;
        let leave = Self {
            instance: u64_at(b, 0),
            challenge: u64_at(b, 8),
            code: LeaveCode::from_number(u32::from(b[16])).ok_or(ControlError)?,
            fragment: FragmentId(u32_at(b, 20)),
            behind: u64_at(b, 24),
            salt: u64_at(b, 32),
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
        b[0..8].copy_from_slice(&self.instance.to_be_bytes());
        b[8..16].copy_from_slice(&self.challenge.to_be_bytes());
        b[16] = self.code as u8;
        b[20..24].copy_from_slice(&self.fragment.0.to_be_bytes());
        b[24..32].copy_from_slice(&self.behind.to_be_bytes());
        b[32..40].copy_from_slice(&self.salt.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
