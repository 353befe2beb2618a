//! NetReduce: the header of a message that a ring of RoCEv2 hosts sends (`docs/NETREDUCE.md`).
//!
//! ```text
//!  0     4       5    6     7 8    12    16      20    24  32
//!  | TNR1 | element | rank | flags | 0 | ring | epoch | message | bytes | tag | elements ...
//! ```
//!
//! The header is the beginning of a message's payload, and so of its first packet. Its tag (N-5)
//! covers all fields and the connection. Multi-byte fields are big-endian, elements little-endian.

mod partial;

pub use partial::{
    PARTIAL_HEADER_BYTES, PARTIAL_PORT, PartialError, PartialHeader, PartialKind, ring_of_partial,
};

use crate::UdpFrame;
use crate::field::{Field, be32, be64};
use crate::roce::QueuePair;
use core::fmt;
use core::net::Ipv4Addr;
use siphasher::sip::SipHasher24;
use thiserror::Error;

/// Bytes of the header.
pub const RING_HEADER_BYTES: usize = 32;
/// DSCP of the packets of rings, unless configured (N-2). Class 3, as RoCE's usual 26.
pub const DEFAULT_DSCP: u8 = 28;
/// The DSCP of the packets that a switch has let go, by that of rings (N-2).
#[must_use]
pub const fn released_dscp(dscp: u8) -> u8 {
    dscp ^ 1
}
/// Minimum and maximum number of members of a ring.
pub const MEMBERS: core::ops::RangeInclusive<usize> = 2..=crate::MAX_WORKERS;
/// A message has a whole number of these bytes of elements.
pub const GRANULE_BYTES: u32 = 4;

const MAGIC: u32 = u32::from_be_bytes(*b"TNR1");
/// Label of the input from which a ring's secret is derived.
pub(crate) const RING_LABEL: &[u8; 17] = b"tally ring secret";

mod at {
    use super::Field;

    pub(super) const MAGIC: Field = 0..4;
    pub(super) const ELEMENT: usize = 4;
    pub(super) const RANK: usize = 5;
    pub(super) const FLAGS: usize = 6;
    pub(super) const RESERVED: usize = 7;
    pub(super) const RING: Field = 8..12;
    pub(super) const EPOCH: Field = 12..16;
    pub(super) const MESSAGE: Field = 16..20;
    pub(super) const BYTES: Field = 20..24;
    pub(super) const TAG: Field = 24..32;
}

const SUMMED: u8 = 0x01;

/// The number of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RingId(pub u32);

impl fmt::Display for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One set of connections of a ring (N-6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RingEpoch(pub u32);

impl RingEpoch {
    /// Whether it is newer than `other`, in serial arithmetic.
    #[inline]
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() > 0
    }
}

/// Type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Element {
    /// 32-bit integers; their sum wraps.
    I32 = 0,
    /// IEEE 754 binary32, added in rank order.
    F32 = 1,
    /// IEEE 754 binary16, added as `f32` in rank order and rounded once.
    F16 = 2,
    /// The upper half of a binary32, added as that.
    Bf16 = 3,
}

impl Element {
    /// All types, by their numbers.
    pub const ALL: [Self; 4] = [Self::I32, Self::F32, Self::F16, Self::Bf16];

    /// Bytes of one.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::I32 | Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// The connection that a header is sent on, which its tag covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// The sender.
    pub source: Ipv4Addr,
    /// The receiver.
    pub destination: Ipv4Addr,
    /// The receiver's queue pair.
    pub qp: QueuePair,
}

impl Channel {
    /// That of a frame to a queue pair.
    #[inline]
    #[must_use]
    pub const fn of(udp: &UdpFrame, qp: QueuePair) -> Self {
        Self {
            source: udp.addresses.src_ip,
            destination: udp.addresses.dst_ip,
            qp,
        }
    }
}

/// What authenticates the headers of a ring (N-5). Never printed, never sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RingSecret {
    k0: u64,
    k1: u64,
}

impl fmt::Debug for RingSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RingSecret")
    }
}

impl RingSecret {
    pub(crate) const fn new(bytes: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            k0: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            k1: u64::from_le_bytes([i, j, k, l, m, n, o, p]),
        }
    }

    /// The tag of a header, of which the first 24 bytes are given.
    fn tag(&self, fields: &[u8], channel: &Channel) -> [u8; 8] {
        let mut message = [0; 32];
        message[..20].copy_from_slice(&fields[at::ELEMENT..at::BYTES.end]);
        message[20..24].copy_from_slice(&channel.source.octets());
        message[24..28].copy_from_slice(&channel.destination.octets());
        message[28..].copy_from_slice(&channel.qp.0.to_be_bytes());
        SipHasher24::new_with_keys(self.k0, self.k1)
            .hash(&message)
            .to_be_bytes()
    }
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingHeader {
    /// Type of the elements.
    pub element: Element,
    /// Rank of the sender.
    pub rank: u8,
    /// Whether the switch has summed the message's first packet.
    pub is_summed: bool,
    /// The ring.
    pub ring: RingId,
    /// Its set of connections.
    pub epoch: RingEpoch,
    /// Number of the message in the epoch, from 0.
    pub message: u32,
    /// Bytes of the message's elements, a multiple of [`GRANULE_BYTES`].
    pub bytes: u32,
}

/// Error: bytes are no header of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum RingHeaderError {
    /// Shorter than a header.
    #[error("truncated ring header")]
    Truncated,
    /// No ring header begins here.
    #[error("not a ring header")]
    Magic,
    /// A reserved byte or flag is set.
    #[error("reserved bits in a ring header")]
    Reserved,
    /// The element type is unknown.
    #[error("unknown element type in a ring header")]
    Element,
    /// The length is 0, or no multiple of four.
    #[error("length of a ring message is no positive multiple of 4")]
    Length,
    /// The tag is not the header's.
    #[error("wrong tag of a ring header")]
    Tag,
}

/// The number of the ring that a message's payload names, before its tag is checked.
#[inline]
#[must_use]
pub fn ring_of(payload: &[u8]) -> Option<RingId> {
    let b: &[u8; RING_HEADER_BYTES] = payload.first_chunk()?;
    (be32(b, at::MAGIC) == MAGIC).then(|| RingId(be32(b, at::RING)))
}

impl RingHeader {
    /// Parses the beginning of a message's payload, and checks its tag.
    ///
    /// # Errors
    /// [`RingHeaderError`].
    pub fn parse(
        payload: &[u8],
        secret: &RingSecret,
        channel: &Channel,
    ) -> Result<Self, RingHeaderError> {
        let b: &[u8; RING_HEADER_BYTES] =
            payload.first_chunk().ok_or(RingHeaderError::Truncated)?;
        if be32(b, at::MAGIC) != MAGIC {
            return Err(RingHeaderError::Magic);
        }
        if secret.tag(b, channel) != be64(b, at::TAG).to_be_bytes() {
            return Err(RingHeaderError::Tag);
        }
        if b[at::FLAGS] & !SUMMED != 0 || b[at::RESERVED] != 0 {
            return Err(RingHeaderError::Reserved);
        }
        let element = Element::ALL.get(usize::from(b[at::ELEMENT]));
        let bytes = be32(b, at::BYTES);
        if bytes == 0 || !bytes.is_multiple_of(GRANULE_BYTES) {
            return Err(RingHeaderError::Length);
        }
        Ok(Self {
            element: *element.ok_or(RingHeaderError::Element)?,
            rank: b[at::RANK],
            is_summed: b[at::FLAGS] & SUMMED != 0,
            ring: RingId(be32(b, at::RING)),
            epoch: RingEpoch(be32(b, at::EPOCH)),
            message: be32(b, at::MESSAGE),
            bytes,
        })
    }

    /// The header as it is sent on a connection.
    #[must_use]
    pub fn emit(&self, secret: &RingSecret, channel: &Channel) -> [u8; RING_HEADER_BYTES] {
        let mut b = [0; RING_HEADER_BYTES];
        b[at::MAGIC].copy_from_slice(&MAGIC.to_be_bytes());
        b[at::ELEMENT] = self.element as u8;
        b[at::RANK] = self.rank;
        b[at::FLAGS] = if self.is_summed { SUMMED } else { 0 };
        b[at::RING].copy_from_slice(&self.ring.0.to_be_bytes());
        b[at::EPOCH].copy_from_slice(&self.epoch.0.to_be_bytes());
        b[at::MESSAGE].copy_from_slice(&self.message.to_be_bytes());
        b[at::BYTES].copy_from_slice(&self.bytes.to_be_bytes());
        let tag = secret.tag(&b, channel);
        b[at::TAG].copy_from_slice(&tag);
        b
    }

    /// Bytes of the whole message: this header and its elements.
    #[must_use]
    pub const fn message_bytes(&self) -> u64 {
        RING_HEADER_BYTES as u64 + self.bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use std::vec::Vec;

    fn channel() -> Channel {
        Channel {
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 0, 2),
            qp: QueuePair(0x12_3456),
        }
    }

    fn secret() -> RingSecret {
        let key: Key = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
        key.ring_secret(RingId(7))
    }

    fn header() -> RingHeader {
        RingHeader {
            element: Element::Bf16,
            rank: 3,
            is_summed: false,
            ring: RingId(7),
            epoch: RingEpoch(0x0102_0304),
            message: 9,
            bytes: 4096,
        }
    }

    #[test]
    fn parses_what_it_emits() {
        for element in Element::ALL {
            for is_summed in [false, true] {
                let header = RingHeader {
                    element,
                    is_summed,
                    ..header()
                };
                let bytes = header.emit(&secret(), &channel());
                assert_eq!(RingHeader::parse(&bytes, &secret(), &channel()), Ok(header));
                assert_eq!(ring_of(&bytes), Some(RingId(7)));
            }
        }
    }

    #[test]
    fn the_layout_is_that_of_the_specification() {
        let bytes = header().emit(&secret(), &channel());
        assert_eq!(&bytes[..8], b"TNR1\x03\x03\x00\x00");
        assert_eq!(&bytes[8..16], &[0, 0, 0, 7, 1, 2, 3, 4]);
        assert_eq!(&bytes[16..24], &[0, 0, 0, 9, 0, 0, 16, 0]);
    }

    #[test]
    fn each_bit_of_header_and_connection_is_under_the_tag() {
        let bytes = header().emit(&secret(), &channel());
        for bit in 0..8 * RING_HEADER_BYTES {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = RingHeader::parse(&changed, &secret(), &channel());
            let expected = if bit < 32 {
                RingHeaderError::Magic
            } else {
                RingHeaderError::Tag
            };
            assert_eq!(error, Err(expected), "bit {bit}");
        }
        let other = Ipv4Addr::new(10, 0, 0, 3);
        let channels = [
            Channel {
                source: other,
                ..channel()
            },
            Channel {
                destination: other,
                ..channel()
            },
            Channel {
                qp: QueuePair(0x12_3457),
                ..channel()
            },
        ];
        for channel in channels {
            let error = RingHeader::parse(&bytes, &secret(), &channel);
            assert_eq!(error, Err(RingHeaderError::Tag));
        }
        let key: Key = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
        let of_another = key.ring_secret(RingId(8));
        let error = RingHeader::parse(&bytes, &of_another, &channel());
        assert_eq!(error, Err(RingHeaderError::Tag));
    }

    #[test]
    fn a_header_with_a_right_tag_is_still_checked() {
        let resealed = |at: usize, byte: u8| -> Vec<u8> {
            let mut bytes = header().emit(&secret(), &channel());
            bytes[at] = byte;
            let tag = secret().tag(&bytes, &channel());
            bytes[at::TAG].copy_from_slice(&tag);
            bytes.to_vec()
        };
        for (at, byte, expected) in [
            (at::ELEMENT, 4, RingHeaderError::Element),
            (at::FLAGS, 2, RingHeaderError::Reserved),
            (at::RESERVED, 1, RingHeaderError::Reserved),
            (23, 2, RingHeaderError::Length),
            (22, 0, RingHeaderError::Length),
        ] {
            let error = RingHeader::parse(&resealed(at, byte), &secret(), &channel());
            assert_eq!(error, Err(expected), "byte {at}");
        }
        let bytes = header().emit(&secret(), &channel());
        let error = RingHeader::parse(&bytes[..31], &secret(), &channel());
        assert_eq!(error, Err(RingHeaderError::Truncated));
    }

    #[test]
    fn epochs_are_compared_in_serial_arithmetic() {
        assert!(RingEpoch(1).is_after(RingEpoch(0)));
        assert!(RingEpoch(0).is_after(RingEpoch(u32::MAX)));
        assert!(!RingEpoch(5).is_after(RingEpoch(5)));
        assert!(!RingEpoch(u32::MAX).is_after(RingEpoch(0)));
    }
}
