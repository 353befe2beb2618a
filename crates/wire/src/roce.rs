//! RoCEv2 over IPv4: the transport of reliable connections (RC), as NICs speak it.
//!
//! ```text
//!  0         14     34    42    54                      end-4
//!  | Ethernet | IPv4 | UDP | BTH | RETH, AETH or the     | payload, pad | ICRC |
//!  |          | ihl 5| 4791| 12  | immediate, if any     | to 4 bytes   | 4    |
//! ```
//!
//! [`Packet::parse`] takes a whole UDP payload; [`UdpFrame`] parses the headers before it.
//! [`seal`] writes the ICRC of a frame, and [`is_sealed`] checks it.
//!
//! Catches:
//!
//! * The ICRC covers payload and headers, but for what routers change. So a payload that is
//!   replaced needs a new one.
//! * PSNs and numbers of queue pairs have 24 bits. [`Psn`] compares them modulo 2^24.
//! * Only opcodes of RC with payload, their acknowledgements, and CNP are parsed. READ, ATOMIC and
//!   datagrams are [`RoceError::Opcode`].
//!
//! [`UdpFrame`]: crate::UdpFrame

mod icrc;
mod psn;
mod template;
#[cfg(test)]
mod tests;

pub use icrc::{HeaderCrc, Shift, is_sealed, payload_crc, seal};
pub use psn::Psn;
pub use template::ConnectionTemplate;

use crate::field::{be16, be32};
use core::ops::Range;
use thiserror::Error;

/// UDP port of RoCEv2.
pub const PORT: u16 = 4791;
/// Bytes of the base transport header.
pub const BTH_BYTES: usize = 12;
/// Bytes of the extended header of the first packet of an RDMA WRITE.
pub const RETH_BYTES: usize = 16;
/// Bytes of the extended header of an acknowledgement.
pub const AETH_BYTES: usize = 4;
/// Bytes of immediate data.
pub const IMMEDIATE_BYTES: usize = 4;
/// Bytes of the ICRC.
pub const ICRC_BYTES: usize = 4;
/// Bytes of a CNP behind the BTH, all 0.
pub const CNP_BYTES: usize = 16;

const OPCODE_ACK: u8 = 0x11;
const OPCODE_CNP: u8 = 0x81;
const LOW_24: u32 = 0x00ff_ffff;

/// Bytes of the BTH's fields, from its start.
mod field {
    use crate::field::Field;

    pub(super) const OPCODE: usize = 0;
    /// Solicited event, migration state, two bits of pad count, four of version.
    pub(super) const FLAGS: usize = 1;
    pub(super) const PKEY: Field = 2..4;
    /// FECN, BECN, and six reserved bits.
    pub(super) const CONGESTION: usize = 4;
    pub(super) const QP: Field = 4..8;
    /// Request of an acknowledgement, in the highest bit; then the PSN.
    pub(super) const ACK_PSN: Field = 8..12;
}

/// Number of a queue pair, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePair(pub u32);

/// What a message does at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// SEND: into the next posted receive buffer.
    Send,
    /// RDMA WRITE: to an address that the sender names.
    Write,
}

/// Where in its message a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Place {
    /// Whether a message begins here.
    #[inline]
    #[must_use]
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    #[inline]
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A part of a message.
    Message {
        /// What the message does.
        verb: Verb,
        /// Which part.
        place: Place,
        /// Whether it carries immediate data; only the last part may.
        has_immediate: bool,
    },
    /// Acknowledgement, positive or negative, by its AETH.
    Ack,
    /// Congestion notification: the receiver has seen CE.
    Cnp,
}

impl Opcode {
    /// The number on the wire.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Message {
                verb,
                place,
                has_immediate,
            } => {
                let verb = match verb {
                    Verb::Send => 0,
                    Verb::Write => 6,
                };
                let place = match place {
                    Place::First => 0,
                    Place::Middle => 1,
                    Place::Last => 2,
                    Place::Only => 4,
                };
                verb + place + has_immediate as u8
            }
            Self::Ack => OPCODE_ACK,
            Self::Cnp => OPCODE_CNP,
        }
    }

    #[inline(always)]
    const fn from_bits(bits: u8) -> Option<Self> {
        let verb = match bits {
            0..=5 => Verb::Send,
            6..=11 => Verb::Write,
            OPCODE_ACK => return Some(Self::Ack),
            OPCODE_CNP => return Some(Self::Cnp),
            _ => return None,
        };
        let place = match bits % 6 {
            0 => Place::First,
            1 => Place::Middle,
            2 | 3 => Place::Last,
            _ => Place::Only,
        };
        Some(Self::Message {
            verb,
            place,
            has_immediate: matches!(bits % 6, 3 | 5),
        })
    }

    /// Bytes between the BTH and the payload.
    #[inline]
    #[must_use]
    pub const fn extended_bytes(self) -> usize {
        match self {
            Self::Message {
                verb,
                place,
                has_immediate,
            } => {
                let reth = matches!(verb, Verb::Write) && place.begins();
                reth as usize * RETH_BYTES + has_immediate as usize * IMMEDIATE_BYTES
            }
            Self::Ack => AETH_BYTES,
            Self::Cnp => CNP_BYTES,
        }
    }
}

/// Base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Type of the packet.
    pub opcode: Opcode,
    /// The receiver raises an event for it.
    pub is_solicited: bool,
    /// State of path migration; NICs set it.
    pub is_migrated: bool,
    /// Bytes behind the payload that fill it to a multiple of four, 0 to 3.
    pub pad: u8,
    /// Partition.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification; a CNP has it.
    pub becn: bool,
    /// Queue pair of the receiver.
    pub qp: QueuePair,
    /// AckReq: the responder acknowledges it at once.
    pub ack_requested: bool,
    /// Serial number.
    pub psn: Psn,
}

impl Bth {
    /// Parses the first 12 bytes of a UDP payload.
    ///
    /// # Errors
    /// [`RoceError::Truncated`], [`RoceError::Version`], or [`RoceError::Opcode`].
    #[inline(always)]
    pub fn parse(datagram: &[u8]) -> Result<Self, RoceError> {
        let Some(b) = datagram.first_chunk::<BTH_BYTES>() else {
            return Err(RoceError::Truncated);
        };
        let flags = b[field::FLAGS];
        if flags & 0x0f != 0 {
            return Err(RoceError::Version);
        }
        let opcode = Opcode::from_bits(b[field::OPCODE]).ok_or(RoceError::Opcode)?;
        let last = be32(b, field::ACK_PSN);
        Ok(Self {
            opcode,
            is_solicited: flags & 0x80 != 0,
            is_migrated: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            pkey: be16(b, field::PKEY),
            fecn: b[field::CONGESTION] & 0x80 != 0,
            becn: b[field::CONGESTION] & 0x40 != 0,
            qp: QueuePair(be32(b, field::QP) & LOW_24),
            ack_requested: last >> 31 != 0,
            psn: Psn::new(last),
        })
    }

    /// The header as it is sent. Reserved bits are 0.
    #[must_use]
    pub fn emit(&self) -> [u8; BTH_BYTES] {
        let mut b = [0; BTH_BYTES];
        b[field::OPCODE] = self.opcode.bits();
        b[field::FLAGS] = u8::from(self.is_solicited) << 7
            | u8::from(self.is_migrated) << 6
            | (self.pad & 3) << 4;
        b[field::PKEY].copy_from_slice(&self.pkey.to_be_bytes());
        b[field::QP].copy_from_slice(&(self.qp.0 & LOW_24).to_be_bytes());
        b[field::CONGESTION] = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        let last = u32::from(self.ack_requested) << 31 | self.psn.get();
        b[field::ACK_PSN].copy_from_slice(&last.to_be_bytes());
        b
    }
}

/// RDMA extended transport header: where a WRITE goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address in the receiver's memory.
    pub address: u64,
    /// Key of that memory.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub bytes: u32,
}

impl Reth {
    /// Reads its 16 bytes.
    #[must_use]
    pub fn parse(b: &[u8; RETH_BYTES]) -> Self {
        Self {
            address: crate::field::be64(b, 0..8),
            rkey: be32(b, 8..12),
            bytes: be32(b, 12..16),
        }
    }

    /// Its 16 bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; RETH_BYTES] {
        let mut b = [0; RETH_BYTES];
        b[0..8].copy_from_slice(&self.address.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..16].copy_from_slice(&self.bytes.to_be_bytes());
        b
    }
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All up to its PSN have arrived. The five bits of credits are not interpreted.
    Ack(u8),
    /// The receiver has no buffer; send again after the time of this code.
    NotReady(u8),
    /// The packet of its PSN has not arrived, but a later one has.
    SequenceError,
    /// The connection ends: invalid request, remote access or remote operational error, by code.
    Fatal(u8),
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// Messages that the receiver has completed, modulo 2^24.
    pub messages: u32,
}

impl Aeth {
    /// Reads its 4 bytes.
    ///
    /// # Errors
    /// [`RoceError::Syndrome`]: a reserved one.
    pub fn parse(b: [u8; AETH_BYTES]) -> Result<Self, RoceError> {
        let low = b[0] & 0x1f;
        let syndrome = match b[0] >> 5 {
            0 => Syndrome::Ack(low),
            1 => Syndrome::NotReady(low),
            3 if low == 0 => Syndrome::SequenceError,
            3 if low <= 4 => Syndrome::Fatal(low),
            _ => return Err(RoceError::Syndrome),
        };
        Ok(Self {
            syndrome,
            messages: u32::from_be_bytes(b) & LOW_24,
        })
    }

    /// Its 4 bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; AETH_BYTES] {
        let high = match self.syndrome {
            Syndrome::Ack(credits) => credits & 0x1f,
            Syndrome::NotReady(timer) => 1 << 5 | timer & 0x1f,
            Syndrome::SequenceError => 3 << 5,
            Syndrome::Fatal(code) => 3 << 5 | code & 0x1f,
        };
        (u32::from(high) << 24 | self.messages & LOW_24).to_be_bytes()
    }
}

/// Error: a datagram is no packet of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum RoceError {
    /// Shorter than its headers and the ICRC.
    #[error("truncated RoCE headers")]
    Truncated,
    /// The version of the transport is not 0.
    #[error("unknown version of the RoCE transport")]
    Version,
    /// Neither a message of RC, nor its acknowledgement, nor a CNP.
    #[error("opcode is no message of a reliable connection")]
    Opcode,
    /// The pad is longer than the payload, or the whole no multiple of four.
    #[error("pad does not fit the payload")]
    Pad,
    /// The syndrome of an acknowledgement is reserved.
    #[error("reserved syndrome")]
    Syndrome,
}

/// A parsed packet: its headers, and where in the datagram the rest is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The base transport header.
    pub bth: Bth,
    /// The payload, without pad.
    pub payload: Range<usize>,
}

impl Packet {
    /// Parses a whole UDP payload. The ICRC is not checked, since it covers the headers before.
    ///
    /// # Errors
    /// All but [`RoceError::Syndrome`].
    #[inline(always)]
    pub fn parse(datagram: &[u8]) -> Result<Self, RoceError> {
        let bth = Bth::parse(datagram)?;
        let start = BTH_BYTES + bth.opcode.extended_bytes();
        let Some(end) = datagram.len().checked_sub(ICRC_BYTES) else {
            return Err(RoceError::Truncated);
        };
        let Some(padded) = end.checked_sub(start) else {
            return Err(RoceError::Truncated);
        };
        let pad = usize::from(bth.pad);
        if pad > padded || !padded.is_multiple_of(4) {
            return Err(RoceError::Pad);
        }
        Ok(Self {
            bth,
            payload: start..end - pad,
        })
    }

    /// Where in its message it is; `None` if it is of none.
    #[inline]
    #[must_use]
    pub const fn place(&self) -> Option<Place> {
        match self.bth.opcode {
            Opcode::Message { place, .. } => Some(place),
            Opcode::Ack | Opcode::Cnp => None,
        }
    }

    /// The header of a WRITE that begins here.
    #[must_use]
    pub fn reth(&self, datagram: &[u8]) -> Option<Reth> {
        match self.bth.opcode {
            Opcode::Message {
                verb: Verb::Write,
                place,
                ..
            } if place.begins() => datagram.get(BTH_BYTES..)?.first_chunk().map(Reth::parse),
            _ => None,
        }
    }

    /// What an acknowledgement says.
    ///
    /// # Errors
    /// [`RoceError::Syndrome`]; [`RoceError::Opcode`] if it is no acknowledgement.
    pub fn aeth(&self, datagram: &[u8]) -> Result<Aeth, RoceError> {
        if self.bth.opcode != Opcode::Ack {
            return Err(RoceError::Opcode);
        }
        let bytes = datagram.get(BTH_BYTES..).and_then(<[u8]>::first_chunk);
        Aeth::parse(*bytes.ok_or(RoceError::Truncated)?)
    }
}
