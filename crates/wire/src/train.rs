//! Header template: parses a frame by comparison with an earlier one.
//!
//! A worker's frames have the same headers except for fragment, priority and, where they have one,
//! the tag. [`Train::header_of`] detects that in one comparison of the 64 bytes, and saves parsing
//! them field by field. It accepts only frames that [`UdpFrame::parse`](crate::UdpFrame::parse) and
//! [`Header::parse`] accept, and returns the same header.

use crate::auth::AuthTag;
use crate::field::{Field, be32, ipv4, udp};
use crate::frame::UDP_END;
use crate::header::{Header, field};
use crate::ids::FragmentId;
use crate::template::{self, Template, Words, blank, words};
use crate::{HEADERS_BYTES, UNIT_BYTES};

/// Bytes in a frame of the two fields that may differ.
const PRIORITY: usize = UDP_END + field::PRIORITY;
const FRAGMENT: Field = UDP_END + field::FRAGMENT.start..UDP_END + field::FRAGMENT.end;

const _: () = assert!(HEADERS_BYTES == template::BYTES);

/// Bits of the headers that must be equal.
///
/// These are all that a parser reads, except those of the two fields.
const MASK: Words = {
    let mut mask = [0xff_u8; HEADERS_BYTES];
    // Ignored: differentiated services (not ECN), identification, don't-fragment, time to live,
    // checksum.
    mask[ipv4::TOS] = 0x03;
    blank(&mut mask, ipv4::ID);
    mask[ipv4::FRAGMENT.start] = 0x3f;
    mask[ipv4::TTL] = 0;
    blank(&mut mask, ipv4::CHECKSUM);
    // Ignored: the UDP checksum, which may have any value (F-2).
    blank(&mut mask, udp::CHECKSUM);
    mask[PRIORITY] = 0;
    blank(&mut mask, FRAGMENT);
    words(&mask)
};

/// As [`MASK`], for frames with a tag in place of the bitmap.
const MASK_TAGGED: Words = {
    let mut mask = MASK;
    let mut bytes = [0xff; HEADERS_BYTES];
    blank(
        &mut bytes,
        HEADERS_BYTES - crate::auth::TAG_BYTES..HEADERS_BYTES,
    );
    let keep = words(&bytes);
    let mut i = 0;
    while i < mask.len() {
        mask[i] &= keep[i];
        i += 1;
    }
    mask
};

/// A header template: the headers of a parsed frame.
#[derive(Clone, Copy, Debug)]
pub struct Train {
    template: Template,
    header: Header,
    /// Bytes of the headers and the payload.
    frame_bytes: usize,
}

impl Train {
    /// Creates the template from `frame`, which was parsed to `header`.
    #[inline]
    #[must_use]
    pub const fn new(frame: &[u8; HEADERS_BYTES], header: Header) -> Self {
        let mask = if header.kind.has_tag() {
            MASK_TAGGED
        } else {
            MASK
        };
        Self {
            template: Template::new(frame, mask),
            header,
            frame_bytes: HEADERS_BYTES + header.units as usize * UNIT_BYTES,
        }
    }

    /// Fragment and priority of `frame`, if it matches the template.
    ///
    /// It matches if all other fields that a parser reads are equal.
    ///
    /// `None` means that the frame must be parsed.
    #[inline]
    #[must_use]
    pub fn follows(&self, frame: &[u8]) -> Option<(FragmentId, u8)> {
        let headers = frame.first_chunk::<HEADERS_BYTES>()?;
        if !self.template.matches(headers) || frame.len() < self.frame_bytes {
            return None;
        }
        let fragment = FragmentId(be32(headers, FRAGMENT));
        Some((fragment, headers[PRIORITY]))
    }

    /// The header of such a frame without a tag.
    #[inline]
    #[must_use]
    pub const fn header(&self, fragment: FragmentId, priority: u8) -> Header {
        Header {
            fragment,
            priority,
            ..self.header
        }
    }

    /// Length of each frame without padding, in bytes.
    #[inline]
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// The header of `frame`, if it matches: see [`follows`](Self::follows).
    #[inline]
    #[must_use]
    pub fn header_of(&self, frame: &[u8]) -> Option<Header> {
        let (fragment, priority) = self.follows(frame)?;
        let tag = match frame.first_chunk::<HEADERS_BYTES>()?.last_chunk() {
            Some(tag) if self.header.kind.has_tag() => AuthTag(u64::from_be_bytes(*tag)),
            _ => AuthTag::NONE,
        };
        Some(Header {
            priority,
            fragment,
            tag,
            ..self.header
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addresses, Element, Epoch, Flags, JobId, Kind, Mac, Rank, UdpFrame};
    use core::net::Ipv4Addr;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn frame(fragment: u32, priority: u8) -> (Vec<u8>, Header) {
        let header = Header {
            kind: Kind::Data,
            flags: Flags::NONE,
            priority,
            element: Element::I32,
            job: JobId(7),
            epoch: Epoch(3),
            fragment: FragmentId(fragment),
            rank: Rank(2),
            units: 1,
            bitmap: Rank(2).bit(),
            tag: AuthTag::NONE,
        };
        let addresses = Addresses {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src_ip: Ipv4Addr::new(10, 84, 0, 1),
            dst_ip: Ipv4Addr::new(10, 84, 0, 2),
            src_port: 40_000,
            dst_port: 31_249,
        };
        let mut frame = vec![0xa5; HEADERS_BYTES + 64];
        crate::frame::emit(&mut frame, &addresses, &header);
        (frame, header)
    }

    fn train() -> Train {
        let (frame, header) = frame(5, 9);
        Train::new(frame.first_chunk().unwrap(), header)
    }

    #[test]
    fn fragment_and_priority_may_differ_and_are_read() {
        let (frame, header) = frame(0xfedc_ba98, 77);
        assert_eq!(train().header_of(&frame), Some(header));
    }

    #[test]
    fn a_payload_that_is_cut_off_is_not_like_one_that_is_whole() {
        let (mut frame, _) = frame(6, 9);
        frame.push(0);
        assert!(train().header_of(&frame).is_some(), "padding");
        assert_eq!(train().header_of(&frame[..127]), None);
        assert_eq!(train().header_of(&frame[..63]), None);
    }

    #[test]
    fn any_other_bit_that_is_read_makes_a_difference() {
        let (good, header) = frame(5, 9);
        let parsed = |frame: &[u8]| {
            let udp = UdpFrame::parse(frame).ok()?;
            Some((udp, Header::parse(udp.datagram(frame)).ok()?))
        };
        let of_good = parsed(&good).unwrap();
        for bit in 0..HEADERS_BYTES * 8 {
            let mut frame = good.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            let alike = parsed(&frame).filter(|(udp, found)| {
                let fields = Header {
                    fragment: header.fragment,
                    priority: header.priority,
                    ..*found
                };
                (*udp, fields) == of_good
            });
            let header = alike.map(|(_, header)| header);
            assert_eq!(train().header_of(&frame), header, "bit {bit}");
        }
    }

    #[test]
    fn results_differ_in_their_tags_too() {
        let result = |fragment, tag| {
            let (mut bytes, header) = frame(fragment, 9);
            let header = Header {
                kind: Kind::Result,
                rank: Rank::SWITCH,
                bitmap: 0,
                tag: AuthTag(tag),
                ..header
            };
            header.emit(&mut bytes[UDP_END..]);
            (bytes, header)
        };
        let (first, header) = result(5, 17);
        let train = Train::new(first.first_chunk().unwrap(), header);
        let (second, header) = result(6, 0xfeff_0102_0304_0506);
        assert_eq!(train.header_of(&second), Some(header));
    }

    proptest! {
        #[test]
        fn what_it_accepts_is_what_parsing_says(
            changes in proptest::collection::vec((0..HEADERS_BYTES, any::<u8>()), 0..6),
            len in 0..200_usize,
        ) {
            let (mut bytes, _) = frame(5, 9);
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes.resize(len, 0);
            if let Some(header) = train().header_of(&bytes) {
                let udp = UdpFrame::parse(&bytes).unwrap();
                prop_assert_eq!(Header::parse(udp.datagram(&bytes)), Ok(header));
                let (first, _) = frame(5, 9);
                prop_assert_eq!(udp, UdpFrame::parse(&first).unwrap());
            }
        }
    }
}
