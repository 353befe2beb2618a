//! Frames that repeat the headers of the last frame of their port.
//!
//! A worker's frames differ in job, packet number, slot, set and exponents. [`HeaderTemplate`] sees
//! in one comparison of the first 64 bytes that all else is the same. It accepts no frame that
//! [`UdpFrame::parse`](crate::UdpFrame::parse) and [`Header::parse`] would refuse, and reads the
//! same header.

use super::{HEADERS_BYTES, Header, field};
use crate::field::{ipv4, udp};
use crate::frame::UDP_END;
use crate::template::{BYTES, Template, Words, blank, words};

/// The bits that must be the same: all that are read and do not vary.
const MASK: Words = {
    let mut mask = [0; BYTES];
    let mut at = 0;
    while at < UDP_END {
        mask[at] = 0xff;
        at += 1;
    }
    // Identification and the bit "don't fragment"; time to live and checksum.
    blank(&mut mask, ipv4::ID);
    mask[ipv4::FRAGMENT.start] = 0x3f;
    mask[ipv4::TTL] = 0;
    blank(&mut mask, ipv4::CHECKSUM);
    // The UDP checksum.
    blank(&mut mask, udp::CHECKSUM);
    // Kind and size; bit 3 means nothing.
    mask[UDP_END + field::KIND_SIZE] = 0xf7;
    words(&mask)
};

const _: () = assert!(HEADERS_BYTES <= BYTES && BYTES <= HEADERS_BYTES + 128);

/// The headers of a parsed frame, to recognise the frames that repeat them.
#[derive(Clone, Copy, Debug)]
pub struct HeaderTemplate {
    template: Template,
    header: Header,
    frame_bytes: usize,
}

impl HeaderTemplate {
    /// The template of `frame`, which was parsed to `header`; `None` if it is too short to be one.
    #[must_use]
    pub fn new(frame: &[u8], header: Header) -> Option<Self> {
        Some(Self {
            template: Template::new(frame.first_chunk()?, MASK),
            header,
            frame_bytes: HEADERS_BYTES + header.size.payload_bytes(),
        })
    }

    /// Bytes of each frame without padding.
    #[inline]
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// The header of `frame`, if its other headers are those of the template. `None` means only
    /// that the frame must be parsed.
    #[inline]
    #[must_use]
    pub fn header_of(&self, frame: &[u8]) -> Option<Header> {
        let bytes = frame.first_chunk::<BYTES>()?;
        if !self.template.matches(bytes) || frame.len() < self.frame_bytes {
            return None;
        }
        let header = bytes[UDP_END..].first_chunk()?;
        Some(Header::read(self.header.size, header))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FIRST_PORT, Size, emit_request};
    use super::*;
    use crate::{Addresses, Mac, UdpFrame};
    use core::net::Ipv4Addr;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const FIRST: Header = Header {
        size: Size::B128,
        job: 7,
        packet: [1, 2, 3, 4],
        slot: 5,
        set: false,
        exponents: [3, -4],
    };

    fn frame(header: &Header) -> Vec<u8> {
        let addresses = Addresses {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([6, 0, 0, 0, 0, 2]),
            src_ip: Ipv4Addr::new(10, 84, 0, 1),
            dst_ip: Ipv4Addr::new(10, 84, 0, 2),
            src_port: 4000,
            dst_port: FIRST_PORT,
        };
        let mut frame = vec![0xa5; HEADERS_BYTES + header.size.payload_bytes()];
        emit_request(&mut frame, &addresses, header);
        frame
    }

    fn template() -> HeaderTemplate {
        HeaderTemplate::new(&frame(&FIRST), FIRST).unwrap()
    }

    /// All that the switch reads: addresses, type of service and header.
    fn parsed(frame: &[u8]) -> Option<(UdpFrame, u8, Header)> {
        let udp = UdpFrame::parse(frame).ok()?;
        let header = Header::parse(udp.datagram(frame)).ok()?;
        Some((udp, frame[15], header))
    }

    #[test]
    fn the_fields_that_vary_are_read() {
        let header = Header {
            job: 0xfe,
            packet: [0xff, 0, 0xaa, 9],
            slot: 0x3ffe,
            set: true,
            exponents: [-128, 127],
            ..FIRST
        };
        assert_eq!(template().header_of(&frame(&header)), Some(header));
    }

    #[test]
    fn a_frame_that_is_cut_off_is_not_accepted() {
        let mut frame = frame(&FIRST);
        frame.push(0);
        assert!(template().header_of(&frame).is_some(), "padding");
        for bytes in 0..HEADERS_BYTES + 128 {
            assert_eq!(template().header_of(&frame[..bytes]), None, "{bytes}");
        }
        assert!(HeaderTemplate::new(&frame[..63], FIRST).is_none());
    }

    #[test]
    fn each_bit_either_varies_or_must_be_the_same() {
        let good = frame(&FIRST);
        let (udp, tos, _) = parsed(&good).unwrap();
        for bit in 0..HEADERS_BYTES * 8 {
            let mut frame = good.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            let alike = parsed(&frame)
                .filter(|&(u, t, h)| u == udp && t == tos && h.size == FIRST.size)
                .map(|(_, _, header)| header);
            assert_eq!(template().header_of(&frame), alike, "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn what_it_accepts_is_what_parsing_says(
            changes in proptest::collection::vec((0..HEADERS_BYTES, any::<u8>()), 0..6),
            len in 0..400_usize,
        ) {
            let first = frame(&FIRST);
            let mut bytes = first.clone();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes.resize(len, 0);
            if let Some(header) = template().header_of(&bytes) {
                let (udp, tos, _) = parsed(&first).unwrap();
                prop_assert_eq!(parsed(&bytes), Some((udp, tos, header)));
            }
        }
    }
}
