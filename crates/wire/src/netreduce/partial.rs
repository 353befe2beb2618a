//! Sums between the switches of a tree of a ring (`docs/NETREDUCE.md`, section 4).
//!
//! ```text
//!  0     4   5     6     7        8     12     16       20     24   26      28   36
//!  | TNP1 | 0 | kind | leaf | element | ring | epoch | message | bytes | mtu | packet | tag | elements ... | ICRC
//! ```
//!
//! One datagram is one packet of a message: PARTIAL to the root, TOTAL back. Fields are big-endian,
//! elements little-endian. The ICRC is computed as RoCEv2's, over all but byte 4.

use super::{Element, GRANULE_BYTES, RING_HEADER_BYTES, RingEpoch, RingId, RingSecret};
use crate::field::{Field, be16, be32, be64};
use core::net::Ipv4Addr;
use core::ops::RangeInclusive;
use siphasher::sip::SipHasher24;
use thiserror::Error;

/// The UDP port to which switches send PARTIAL and TOTAL.
pub const PARTIAL_PORT: u16 = 4792;
/// Bytes of their header.
pub const PARTIAL_HEADER_BYTES: usize = 36;
/// Path MTUs of rings.
const MTUS: RangeInclusive<u16> = 256..=4096;
/// What no ring header begins with, in a tag's input.
const LABEL: u8 = 0xff;
const MAGIC: u32 = u32::from_be_bytes(*b"TNP1");

mod at {
    use super::Field;

    pub(super) const MAGIC: Field = 0..4;
    pub(super) const RESERVED: usize = 4;
    pub(super) const KIND: usize = 5;
    pub(super) const LEAF: usize = 6;
    pub(super) const ELEMENT: usize = 7;
    pub(super) const RING: Field = 8..12;
    pub(super) const EPOCH: Field = 12..16;
    pub(super) const MESSAGE: Field = 16..20;
    pub(super) const BYTES: Field = 20..24;
    pub(super) const MTU: Field = 24..26;
    pub(super) const PACKET: Field = 26..28;
    pub(super) const TAG: Field = 28..36;
}

/// Which way a sum goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PartialKind {
    /// The sum of a leaf's members, to the root.
    Partial = 1,
    /// The sum of all members, to a leaf.
    Total = 2,
}

/// The header of PARTIAL and TOTAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialHeader {
    /// Which way it goes.
    pub kind: PartialKind,
    /// Number of the leaf that sends or receives it.
    pub leaf: u8,
    /// Type of the elements.
    pub element: Element,
    /// The ring.
    pub ring: RingId,
    /// Its set of connections.
    pub epoch: RingEpoch,
    /// Number of the message.
    pub message: u32,
    /// Bytes of the message's elements.
    pub bytes: u32,
    /// Payload bytes of the message's packets but the last: header and elements.
    pub mtu: u16,
    /// Which packet of the message, from 0.
    pub packet: u16,
}

/// Error: bytes are no header of PARTIAL or TOTAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum PartialError {
    /// Shorter than a header, or not one.
    #[error("no header of a partial sum")]
    Magic,
    /// Wrong tag.
    #[error("wrong tag of a partial sum")]
    Tag,
    /// A field is out of range.
    #[error("a field of a partial sum is out of range")]
    Field,
}

/// The ring that a datagram names, before its tag is checked.
#[inline]
#[must_use]
pub fn ring_of_partial(datagram: &[u8]) -> Option<RingId> {
    let b: &[u8; PARTIAL_HEADER_BYTES] = datagram.first_chunk()?;
    (be32(b, at::MAGIC) == MAGIC).then(|| RingId(be32(b, at::RING)))
}

impl PartialHeader {
    /// Parses the beginning of a datagram from `source` to `destination`, and checks its tag.
    ///
    /// # Errors
    /// [`PartialError`].
    pub fn parse(
        datagram: &[u8],
        secret: &RingSecret,
        (source, destination): (Ipv4Addr, Ipv4Addr),
    ) -> Result<Self, PartialError> {
        let b: &[u8; PARTIAL_HEADER_BYTES] = datagram.first_chunk().ok_or(PartialError::Magic)?;
        if be32(b, at::MAGIC) != MAGIC {
            return Err(PartialError::Magic);
        }
        if tag(secret, b, source, destination) != be64(b, at::TAG).to_be_bytes() {
            return Err(PartialError::Tag);
        }
        let kind = match b[at::KIND] {
            1 => PartialKind::Partial,
            2 => PartialKind::Total,
            _ => return Err(PartialError::Field),
        };
        let element = Element::ALL.get(usize::from(b[at::ELEMENT]));
        let header = Self {
            kind,
            leaf: b[at::LEAF],
            element: *element.ok_or(PartialError::Field)?,
            ring: RingId(be32(b, at::RING)),
            epoch: RingEpoch(be32(b, at::EPOCH)),
            message: be32(b, at::MESSAGE),
            bytes: be32(b, at::BYTES),
            mtu: be16(b, at::MTU),
            packet: be16(b, at::PACKET),
        };
        let in_range = b[at::RESERVED] == 0
            && header.bytes != 0
            && header.bytes.is_multiple_of(GRANULE_BYTES)
            && u32::from(header.packet) < header.packets();
        match in_range {
            true => Ok(header),
            false => Err(PartialError::Field),
        }
    }

    /// The header as it is sent from `source` to `destination`.
    #[must_use]
    pub fn emit(
        &self,
        secret: &RingSecret,
        (source, destination): (Ipv4Addr, Ipv4Addr),
    ) -> [u8; PARTIAL_HEADER_BYTES] {
        let mut b = [0; PARTIAL_HEADER_BYTES];
        b[at::MAGIC].copy_from_slice(&MAGIC.to_be_bytes());
        b[at::KIND] = self.kind as u8;
        b[at::LEAF] = self.leaf;
        b[at::ELEMENT] = self.element as u8;
        b[at::RING].copy_from_slice(&self.ring.0.to_be_bytes());
        b[at::EPOCH].copy_from_slice(&self.epoch.0.to_be_bytes());
        b[at::MESSAGE].copy_from_slice(&self.message.to_be_bytes());
        b[at::BYTES].copy_from_slice(&self.bytes.to_be_bytes());
        b[at::MTU].copy_from_slice(&self.mtu.to_be_bytes());
        b[at::PACKET].copy_from_slice(&self.packet.to_be_bytes());
        let tag = tag(secret, &b, source, destination);
        b[at::TAG].copy_from_slice(&tag);
        b
    }

    /// Packets of the message; 0 if its path MTU is none of RoCEv2. A message of one packet may be
    /// of any length up to the largest.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        let all = RING_HEADER_BYTES as u64 + self.bytes as u64;
        let (mtu, least, most) = (self.mtu, *MTUS.start(), *MTUS.end());
        if all == mtu as u64 && mtu <= most {
            return 1;
        }
        if mtu < least || mtu > most || !mtu.is_power_of_two() || all < mtu as u64 {
            return 0;
        }
        let packets = all.div_ceil(mtu as u64);
        if packets > 1 << 16 { 0 } else { packets as u32 }
    }

    /// Bytes of the elements in this packet.
    #[must_use]
    pub const fn elements(&self) -> usize {
        let mtu = self.mtu as u64;
        let all = RING_HEADER_BYTES as u64 + self.bytes as u64;
        let begin = self.packet as u64 * mtu;
        let left = all - begin;
        let payload = if left < mtu { left } else { mtu };
        let header = if self.packet == 0 {
            RING_HEADER_BYTES
        } else {
            0
        };
        payload as usize - header
    }
}

/// The tag of a header, of which the first 28 bytes are given.
fn tag(secret: &RingSecret, b: &[u8], source: Ipv4Addr, destination: Ipv4Addr) -> [u8; 8] {
    let mut message = [0; 32];
    message[..24].copy_from_slice(&b[at::RESERVED..at::PACKET.end]);
    message[0] ^= LABEL;
    message[24..28].copy_from_slice(&source.octets());
    message[28..].copy_from_slice(&destination.octets());
    SipHasher24::new_with_keys(secret.k0, secret.k1)
        .hash(&message)
        .to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    const WAY: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));

    fn secret() -> RingSecret {
        let key: Key = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
        key.ring_secret(RingId(7))
    }

    fn header() -> PartialHeader {
        PartialHeader {
            kind: PartialKind::Partial,
            leaf: 3,
            element: Element::F32,
            ring: RingId(7),
            epoch: RingEpoch(0x0102_0304),
            message: 9,
            bytes: 1000,
            mtu: 256,
            packet: 4,
        }
    }

    #[test]
    fn parses_what_it_emits() {
        for kind in [PartialKind::Partial, PartialKind::Total] {
            for element in Element::ALL {
                let header = PartialHeader {
                    kind,
                    element,
                    ..header()
                };
                let bytes = header.emit(&secret(), WAY);
                assert_eq!(PartialHeader::parse(&bytes, &secret(), WAY), Ok(header));
                assert_eq!(ring_of_partial(&bytes), Some(RingId(7)));
            }
        }
    }

    #[test]
    fn the_layout_is_that_of_the_specification() {
        let bytes = header().emit(&secret(), WAY);
        assert_eq!(&bytes[..8], b"TNP1\x00\x01\x03\x01");
        assert_eq!(&bytes[8..16], &[0, 0, 0, 7, 1, 2, 3, 4]);
        assert_eq!(&bytes[16..28], &[0, 0, 0, 9, 0, 0, 3, 232, 1, 0, 0, 4]);
    }

    #[test]
    fn packets_have_the_elements_that_the_ring_s_have() {
        let of = |bytes, mtu, packet| {
            let header = PartialHeader {
                bytes,
                mtu,
                packet,
                ..header()
            };
            (header.packets(), header.elements())
        };
        assert_eq!(of(1000, 256, 0), (5, 224));
        assert_eq!(of(1000, 256, 3), (5, 256));
        assert_eq!(of(1000, 256, 4), (5, 8));
        // The only packet of a message.
        assert_eq!(of(4, 36, 0), (1, 4));
        assert_eq!(of(4064, 4096, 0), (1, 4064));
    }

    #[test]
    fn each_bit_is_under_the_tag() {
        let bytes = header().emit(&secret(), WAY);
        for bit in 0..8 * PARTIAL_HEADER_BYTES {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = PartialHeader::parse(&changed, &secret(), WAY);
            let expected = if bit < 32 {
                PartialError::Magic
            } else {
                PartialError::Tag
            };
            assert_eq!(error, Err(expected), "bit {bit}");
        }
        let back = (WAY.1, WAY.0);
        let error = PartialHeader::parse(&bytes, &secret(), back);
        assert_eq!(error, Err(PartialError::Tag));
    }

    /// Members have the ring's key and make tags of messages: none of them is a partial sum's.
    #[test]
    fn a_tag_of_a_message_is_none_of_a_partial_sum() {
        let mut b = [0; PARTIAL_HEADER_BYTES];
        b[at::MAGIC].copy_from_slice(&MAGIC.to_be_bytes());
        let fields: &[u8] = &[0, 1, 3, 1];
        // What the one tag covers, byte by byte where the other one's is.
        let mtu_and_packet = [1, 0, 0, 4];
        let channel = super::super::Channel {
            source: mtu_and_packet.into(),
            destination: WAY.0,
            qp: crate::roce::QueuePair(0),
        };
        let mut ring = [0; 24];
        ring[4..8].copy_from_slice(fields);
        b[4..8].copy_from_slice(fields);
        b[24..28].copy_from_slice(&mtu_and_packet);
        let tag = secret().tag(&ring, &channel);
        b[at::TAG].copy_from_slice(&tag);
        let error = PartialHeader::parse(&b, &secret(), (WAY.0, Ipv4Addr::UNSPECIFIED));
        assert_eq!(error, Err(PartialError::Tag));
    }

    #[test]
    fn a_header_with_a_right_tag_is_still_checked() {
        let cases: [(usize, &[u8]); 9] = [
            (at::RESERVED, &[1]),
            (at::KIND, &[0]),
            (at::KIND, &[3]),
            (at::ELEMENT, &[4]),
            (at::BYTES.start, &[0, 0, 0, 0]),
            (at::BYTES.start, &[0, 0, 0, 6]),
            (at::MTU.start, &[0, 128]),
            (at::MTU.start, &[1, 1]),
            (at::PACKET.start, &[0, 5]),
        ];
        for (at, field) in cases {
            let mut bytes = header().emit(&secret(), WAY);
            bytes[at..at + field.len()].copy_from_slice(field);
            let tag = tag(&secret(), &bytes, WAY.0, WAY.1);
            bytes[at::TAG].copy_from_slice(&tag);
            let error = PartialHeader::parse(&bytes, &secret(), WAY);
            assert_eq!(error, Err(PartialError::Field), "{at} {field:?}");
        }
        let bytes = header().emit(&secret(), WAY);
        let error = PartialHeader::parse(&bytes[..35], &secret(), WAY);
        assert_eq!(error, Err(PartialError::Magic));
    }
}
