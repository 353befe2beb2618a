//! The Tally header: 22 bytes behind UDP (PROTOCOL.md, section 2).
//!
//! [`Header::parse`] accepts exactly the headers that the section allows. So its callers never see
//! a reserved bit, a flag on the wrong type, or a bitmap that contradicts the rank. It does not
//! check the tag: [`EpochSecret::verifies`](crate::EpochSecret::verifies) does.

use crate::ecn::Ecn;
use crate::field::{be16, be32, be64};
use crate::ids::{AuthTag, Epoch, FragmentId, JobId, Rank, TAG_BYTES};
use crate::{MAX_UNITS, UNIT_BYTES};
use thiserror::Error;

/// Bytes of the header on the wire.
pub const HEADER_BYTES: usize = 22;
/// The only protocol version of this crate.
pub const VERSION: u8 = 2;
/// Units in a control payload.
pub const CONTROL_UNITS: u8 = 2;

/// Bytes of the header's fields, from its start.
pub mod field {
    use core::ops::Range;

    /// Version in the high four bits, [`Kind`](super::Kind) in the low ones.
    pub const VERSION_KIND: usize = 0;
    /// [`Flags`](super::Flags).
    pub const FLAGS: usize = 1;
    /// Priority.
    pub const PRIORITY: usize = 2;
    /// Four reserved bits, and [`Element`](super::Element).
    pub const ELEMENT: usize = 3;
    /// Job.
    pub const JOB: Range<usize> = 4..6;
    /// Epoch.
    pub const EPOCH: Range<usize> = 6..8;
    /// Fragment.
    pub const FRAGMENT: Range<usize> = 8..12;
    /// Rank.
    pub const RANK: usize = 12;
    /// Units of payload.
    pub const UNITS: usize = 13;
    /// Bitmap of ranks, or the tag of a type that has no bitmap.
    pub const BITMAP_OR_TAG: Range<usize> = 14..22;
}

const _: () = assert!(field::BITMAP_OR_TAG.end == HEADER_BYTES);

/// Type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Admission request of a worker or the PS, and its heartbeat.
    Join = 1,
    /// The switch's answer to a good JOIN or LEAVE.
    Accept = 2,
    /// The switch's refusal of a JOIN or LEAVE, or report of a job's failure.
    Refuse = 3,
    /// A member leaves the job.
    Leave = 4,
    /// One worker's contribution.
    Data = 5,
    /// The complete sum.
    Result = 6,
    /// A partial sum, for the PS.
    Partial = 7,
    /// The PS requests the switch's partial sum.
    Remind = 8,
    /// The switch has no partial sum.
    NotHere = 9,
    /// The switch or the PS requests one worker's contribution.
    Nack = 10,
    /// A worker requests a missing result.
    Probe = 11,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Join,
        Self::Accept,
        Self::Refuse,
        Self::Leave,
        Self::Data,
        Self::Result,
        Self::Partial,
        Self::Remind,
        Self::NotHere,
        Self::Nack,
        Self::Probe,
    ];

    #[inline]
    const fn from_bits(bits: u8) -> Option<Self> {
        if bits >= 1 && bits as usize <= Self::ALL.len() {
            Some(Self::ALL[bits as usize - 1])
        } else {
            None
        }
    }

    /// The flags that the section allows on this kind.
    #[inline]
    const fn allowed_flags(self) -> u8 {
        match self {
            // OVERFLOW and COLLISION: of child switches only (TR-7), which the roster knows.
            Self::Data | Self::Partial => {
                Flags::RESEND.0 | Flags::OVERFLOW.0 | Flags::MARKED.0 | Flags::COLLISION.0
            }
            Self::Result => {
                Flags::OVERFLOW.0 | Flags::FROM_PS.0 | Flags::MARKED.0 | Flags::COLLISION.0
            }
            Self::NotHere => Flags::FINISHED.0,
            _ => 0,
        }
    }

    /// Whether frames of this kind carry elements of the vector.
    #[inline]
    #[must_use]
    pub const fn has_elements(self) -> bool {
        matches!(self, Self::Data | Self::Result | Self::Partial)
    }

    /// Whether frames of this kind have a tag.
    #[inline]
    #[must_use]
    pub const fn has_tag(self) -> bool {
        matches!(
            self,
            Self::Result | Self::Partial | Self::Remind | Self::NotHere | Self::Nack | Self::Probe
        )
    }

    /// Whether the tag is in the header, in the bitmap's field.
    #[inline]
    const fn has_tag_in_header(self) -> bool {
        self.has_tag() && !matches!(self, Self::Partial)
    }

    /// Bytes behind the payload: the tag of a PARTIAL, else 0.
    ///
    /// PARTIAL has its bitmap in the header field where other types have the tag.
    #[inline]
    #[must_use]
    pub const fn trailer_bytes(self) -> usize {
        if matches!(self, Self::Partial) {
            TAG_BYTES
        } else {
            0
        }
    }

    /// Whether frames of this kind carry an authenticated control payload.
    #[inline]
    #[must_use]
    pub const fn is_control(self) -> bool {
        matches!(self, Self::Join | Self::Accept | Self::Refuse | Self::Leave)
    }
}

/// Flag bits of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The frame is retransmitted.
    pub const RESEND: Self = Self(0x01);
    /// An integer element saturated.
    pub const OVERFLOW: Self = Self(0x02);
    /// The PS completed the sum.
    pub const FROM_PS: Self = Self(0x04);
    /// The fragment's result has been sent.
    pub const FINISHED: Self = Self(0x08);
    /// This frame, or one summed into it, met a congested link (C-1).
    pub const MARKED: Self = Self(0x10);
    /// A contribution in it found no slot, or was preempted (C-2).
    pub const COLLISION: Self = Self(0x20);

    /// Whether all bits of `other` are set.
    #[inline]
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets of flags.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// `self` when `on`, else no flag.
    #[inline]
    #[must_use]
    pub const fn when(self, on: bool) -> Self {
        if on { self } else { Self::NONE }
    }
}

/// Type of a payload's elements: their layout and how they are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Element {
    /// No elements.
    #[default]
    None = 0,
    /// Big-endian i32, saturating addition.
    I32 = 1,
    /// Little-endian f32, folded in rank order.
    F32 = 2,
    /// Bytes, maximum.
    Scale = 3,
    /// Little-endian f16, folded in rank order in f32, rounded once.
    F16 = 4,
    /// Little-endian bf16, as `F16`.
    Bf16 = 5,
    /// Big-endian i16, summed exactly, saturated once.
    I16 = 6,
    /// i8, as `I16`.
    I8 = 7,
}

impl Element {
    /// All types that a payload can have, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::I32,
        Self::F32,
        Self::Scale,
        Self::F16,
        Self::Bf16,
        Self::I16,
        Self::I8,
    ];

    /// The type with this number.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::None,
            1 => Self::I32,
            2 => Self::F32,
            3 => Self::Scale,
            4 => Self::F16,
            5 => Self::Bf16,
            6 => Self::I16,
            7 => Self::I8,
            _ => return None,
        })
    }

    /// Whether contributions are combined in rank order only (H-3).
    ///
    /// Those out of order are held unsummed.
    #[inline]
    #[must_use]
    pub const fn is_ordered(self) -> bool {
        matches!(self, Self::F32) || self.is_narrow()
    }

    /// Whether this is a sub-32-bit type (H-3).
    ///
    /// Its sum is computed in a wider type, from all contributions at once.
    #[inline]
    #[must_use]
    pub const fn is_narrow(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::I16 | Self::I8)
    }

    /// Bytes of one element; 1 for `None`.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::I32 | Self::F32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::None | Self::Scale | Self::I8 => 1,
        }
    }

    /// The name in options and reports, as in the table of section 2.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Scale => "scale",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I16 => "i16",
            Self::I8 => "i8",
        }
    }
}

/// Error: the bytes are not a Tally header.
///
/// Each variant is a drop reason of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum HeaderError {
    /// The datagram has fewer than 22 bytes.
    #[error("shorter than the Tally header")]
    Truncated,
    /// The version is not [`VERSION`].
    #[error("unknown version")]
    Version,
    /// The type is 0 or above 11.
    #[error("unknown type")]
    Kind,
    /// A flag that this type does not allow, or a reserved bit, is set.
    #[error("reserved bit set")]
    Reserved,
    /// The element type is unknown, or not allowed for this type.
    #[error("element type does not fit")]
    Element,
    /// The length is not 64 bytes times `units`, or not allowed for the type.
    #[error("payload length does not fit the header")]
    Length,
    /// The rank does not fit the type.
    #[error("rank out of range")]
    Rank,
    /// The bitmap does not fit the type or the rank.
    #[error("bitmap does not fit")]
    Bitmap,
}

/// A Tally header as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Type of the frame.
    pub kind: Kind,
    /// Flag bits.
    pub flags: Flags,
    /// 0 lowest to 255 highest.
    pub priority: u8,
    /// Element type of the payload.
    pub element: Element,
    /// The job.
    pub job: JobId,
    /// Incarnation of the job.
    pub epoch: Epoch,
    /// Serial number of the fragment; 0 in control frames.
    pub fragment: FragmentId,
    /// The sender or member that the frame concerns (the table in section 2).
    pub rank: Rank,
    /// Payload length in units of 64 bytes.
    pub units: u8,
    /// DATA and PARTIAL: ranks whose contribution is in the payload; else 0.
    pub bitmap: u64,
    /// The tag; [`AuthTag::NONE`] for types without one.
    pub tag: AuthTag,
}

impl Header {
    /// Length of the payload in bytes.
    #[inline]
    #[must_use]
    pub const fn payload_bytes(&self) -> usize {
        self.units as usize * UNIT_BYTES
    }

    /// Length of the UDP payload of a frame with this header, in bytes.
    #[inline]
    #[must_use]
    pub const fn datagram_bytes(&self) -> usize {
        HEADER_BYTES + self.payload_bytes() + self.kind.trailer_bytes()
    }

    /// The header's first byte: version and type.
    #[inline]
    pub(crate) const fn first_byte(&self) -> u8 {
        VERSION << 4 | self.kind as u8
    }

    /// Parses a whole UDP payload: its header, and the tag behind a PARTIAL.
    ///
    /// # Errors
    /// The first requirement of section 2 (H-1, H-2, H-3, F-4) that the bytes violate.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<Self, HeaderError> {
        let header = Self::parse_fields(datagram)?;
        if header.kind != Kind::Partial {
            return Ok(header);
        }
        let trailer = datagram
            .split_last_chunk::<TAG_BYTES>()
            .filter(|(front, _)| front.len() == HEADER_BYTES + header.payload_bytes());
        let (_, tag) = trailer.ok_or(HeaderError::Length)?;
        Ok(Self {
            tag: AuthTag(u64::from_be_bytes(*tag)),
            ..header
        })
    }

    /// Parses a header from a card, which leaves tags to the switch.
    ///
    /// As [`parse`](Self::parse), but a PARTIAL has no tag behind its payload.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_untagged(datagram: &[u8]) -> Result<Self, HeaderError> {
        let header = Self::parse_fields(datagram)?;
        if datagram.len() == HEADER_BYTES + header.payload_bytes() {
            Ok(Self {
                tag: AuthTag::NONE,
                ..header
            })
        } else {
            Err(HeaderError::Length)
        }
    }

    /// Parses everything but the tag behind the payload of a PARTIAL.
    #[inline]
    fn parse_fields(datagram: &[u8]) -> Result<Self, HeaderError> {
        let Some((b, payload)) = datagram.split_first_chunk::<HEADER_BYTES>() else {
            return Err(HeaderError::Truncated);
        };
        if b[field::VERSION_KIND] >> 4 != VERSION {
            return Err(HeaderError::Version);
        }
        let kind = Kind::from_bits(b[field::VERSION_KIND] & 0xf).ok_or(HeaderError::Kind)?;
        let (flags, element) = (b[field::FLAGS], b[field::ELEMENT]);
        if flags & !kind.allowed_flags() != 0 || element & 0xf0 != 0 {
            return Err(HeaderError::Reserved);
        }
        let element = Element::from_bits(element).ok_or(HeaderError::Element)?;
        let last = be64(b, field::BITMAP_OR_TAG);
        let (bitmap, tag) = if kind.has_tag_in_header() {
            (0, AuthTag(last))
        } else {
            (last, AuthTag::NONE)
        };
        let header = Self {
            kind,
            flags: Flags(flags),
            priority: b[field::PRIORITY],
            element,
            job: JobId(be16(b, field::JOB)),
            epoch: Epoch(be16(b, field::EPOCH)),
            fragment: FragmentId(be32(b, field::FRAGMENT)),
            rank: Rank(b[field::RANK]),
            units: b[field::UNITS],
            bitmap,
            tag,
        };
        header.check()?;
        if kind != Kind::Partial && payload.len() != header.payload_bytes() {
            return Err(HeaderError::Length);
        }
        Ok(header)
    }

    /// Checks the requirements of section 2 that relate fields to one another.
    ///
    /// # Errors
    /// The first one violated.
    #[inline]
    pub const fn check(&self) -> Result<(), HeaderError> {
        if self.kind.has_elements() == matches!(self.element, Element::None) {
            return Err(HeaderError::Element);
        }
        let length_fits = if self.kind.has_elements() {
            self.units >= 1 && self.units <= MAX_UNITS
        } else if self.kind.is_control() {
            self.units == CONTROL_UNITS
        } else {
            self.units == 0
        };
        if !length_fits {
            return Err(HeaderError::Length);
        }
        let worker = self.rank.is_worker();
        let rank_fits = match self.kind {
            Kind::Join | Kind::Accept | Kind::Refuse | Kind::Leave => {
                worker || self.rank.0 == Rank::PS.0
            }
            Kind::Data | Kind::Nack | Kind::Probe => worker,
            Kind::Result => worker || self.rank.0 == Rank::PS.0 || self.rank.0 == Rank::SWITCH.0,
            Kind::Partial | Kind::NotHere => self.rank.0 == Rank::SWITCH.0,
            Kind::Remind => self.rank.0 == Rank::PS.0,
        };
        if !rank_fits {
            return Err(HeaderError::Rank);
        }
        let bitmap_fits = match self.kind {
            Kind::Data => self.bitmap == self.rank.bit(),
            Kind::Partial => {
                self.bitmap != 0
                    && (!self.element.is_ordered()
                        || self.bitmap.is_power_of_two()
                        || is_prefix(self.bitmap))
            }
            _ => self.bitmap == 0,
        };
        if !bitmap_fits {
            return Err(HeaderError::Bitmap);
        }
        Ok(())
    }

    /// The header, with MARKED if its frame arrived with CE in `ecn` (C-1).
    #[inline]
    #[must_use]
    pub const fn received_with(self, ecn: Ecn) -> Self {
        if matches!(ecn, Ecn::Ce) && self.kind.has_elements() {
            Self {
                flags: self.flags.with(Flags::MARKED),
                ..self
            }
        } else {
            self
        }
    }

    /// Writes the header to the first 22 bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`HEADER_BYTES`]. With debug assertions, also if
    /// [`parse`](Self::parse) would refuse the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        debug_assert!(
            self.check().is_ok(),
            "emitting {self:?}: {:?}",
            self.check()
        );
        let b: &mut [u8; HEADER_BYTES] = out
            .first_chunk_mut()
            .expect("emit: buffer shorter than the Tally header");
        b[field::VERSION_KIND] = self.first_byte();
        b[field::FLAGS] = self.flags.0;
        b[field::PRIORITY] = self.priority;
        b[field::ELEMENT] = self.element as u8;
        b[field::JOB].copy_from_slice(&self.job.0.to_be_bytes());
        b[field::EPOCH].copy_from_slice(&self.epoch.0.to_be_bytes());
        b[field::FRAGMENT].copy_from_slice(&self.fragment.0.to_be_bytes());
        b[field::RANK] = self.rank.0;
        b[field::UNITS] = self.units;
        let last = if self.kind.has_tag_in_header() {
            self.tag.0
        } else {
            self.bitmap
        };
        b[field::BITMAP_OR_TAG].copy_from_slice(&last.to_be_bytes());
    }

    /// Writes the bytes behind the payload to the start of `out`.
    ///
    /// They are the tag of a PARTIAL, else none.
    ///
    /// # Panics
    /// If `out` is shorter than [`Kind::trailer_bytes`].
    #[inline]
    pub fn emit_trailer(&self, out: &mut [u8]) {
        if self.kind.trailer_bytes() > 0 {
            out[..TAG_BYTES].copy_from_slice(&self.tag.0.to_be_bytes());
        }
    }
}

/// Whether the set bits are ranks 0..=k without a gap; true for 0.
#[inline]
#[must_use]
pub const fn is_prefix(bitmap: u64) -> bool {
    bitmap & bitmap.wrapping_add(1) == 0
}

#[cfg(test)]
mod tests;
