//! LLDP frames (IEEE 802.1AB): which switch and which of its ports a link leads to.
//!
//! A frame is a list of TLVs: seven bits of type, nine of length, and a value. The first three are
//! chassis, port and time to live, the last is empty.

use crate::frame::{ETHERNET_BYTES, Mac};
use crate::neighbour::FRAME_BYTES_MIN;

/// Ethertype of LLDP.
pub const ETHERTYPE_LLDP: u16 = 0x88cc;
/// The group of the nearest bridge, which no bridge forwards.
pub const LLDP_MAC: Mac = Mac([1, 0x80, 0xc2, 0, 0, 0x0e]);
/// Bytes of the longest frame that [`emit`] writes.
pub const LLDP_BYTES_MAX: usize = ETHERNET_BYTES + 9 + 3 * (2 + 1 + TEXT_BYTES_MAX) + 4 + 2;
/// Bytes of a text in a TLV at most.
const TEXT_BYTES_MAX: usize = 255;

const END: u8 = 0;
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TTL: u8 = 3;
const SYSTEM_NAME: u8 = 5;
const SYSTEM_DESCRIPTION: u8 = 6;
/// Subtypes of chassis and port.
const CHASSIS_MAC: u8 = 4;
const PORT_MAC: u8 = 3;
const PORT_INTERFACE_NAME: u8 = 5;
const PORT_LOCAL: u8 = 7;

/// What a switch says of itself by one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement<'a> {
    /// The switch's MAC, which is its chassis.
    pub mac: Mac,
    /// The port's name.
    pub port: &'a str,
    /// Seconds for which it holds.
    pub ttl_s: u16,
    /// The switch's name.
    pub system: &'a str,
    /// What it is.
    pub description: &'a str,
}

/// What a neighbour said. Texts are as it sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour<'a> {
    /// Its chassis, by subtype.
    pub chassis: (u8, &'a [u8]),
    /// Its port, by subtype.
    pub port: (u8, &'a [u8]),
    /// Seconds for which it holds; 0: it leaves.
    pub ttl_s: u16,
    /// Its name; empty if it has none.
    pub system: &'a [u8],
}

impl Neighbour<'_> {
    /// The chassis, if it is a MAC.
    #[must_use]
    pub fn chassis_mac(&self) -> Option<Mac> {
        let (CHASSIS_MAC, mac) = self.chassis else {
            return None;
        };
        mac.try_into().ok().map(Mac)
    }

    /// The port, if it is a MAC.
    #[must_use]
    pub fn port_mac(&self) -> Option<Mac> {
        let (PORT_MAC, mac) = self.port else {
            return None;
        };
        mac.try_into().ok().map(Mac)
    }

    /// The port, if it is a text.
    #[must_use]
    pub fn port_text(&self) -> Option<&[u8]> {
        let is_text = [PORT_INTERFACE_NAME, PORT_LOCAL].contains(&self.port.0);
        is_text.then_some(self.port.1)
    }
}

/// Writes a frame, and says how long it is. Texts are cut off at 255 bytes.
pub fn emit(buffer: &mut [u8; LLDP_BYTES_MAX], what: &Announcement) -> usize {
    let mut frame = Writer { buffer, at: 0 };
    frame.bytes(&LLDP_MAC.0);
    frame.bytes(&what.mac.0);
    frame.bytes(&ETHERTYPE_LLDP.to_be_bytes());
    frame.tlv(CHASSIS, Some(CHASSIS_MAC), &what.mac.0);
    frame.tlv(PORT, Some(PORT_INTERFACE_NAME), what.port.as_bytes());
    frame.tlv(TTL, None, &what.ttl_s.to_be_bytes());
    frame.tlv(SYSTEM_NAME, None, what.system.as_bytes());
    frame.tlv(SYSTEM_DESCRIPTION, None, what.description.as_bytes());
    frame.tlv(END, None, &[]);
    let end = frame.at;
    let bytes = end.max(FRAME_BYTES_MIN);
    buffer[end..bytes].fill(0);
    bytes
}

struct Writer<'a> {
    buffer: &'a mut [u8; LLDP_BYTES_MAX],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.buffer[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn tlv(&mut self, kind: u8, subtype: Option<u8>, value: &[u8]) {
        let value = &value[..value.len().min(TEXT_BYTES_MAX)];
        let length = value.len() + usize::from(subtype.is_some());
        self.bytes(&(u16::from(kind) << 9 | length as u16).to_be_bytes());
        if let Some(subtype) = subtype {
            self.bytes(&[subtype]);
        }
        self.bytes(value);
    }
}

/// What is in an LLDP frame. A frame that was cut off behind its first three TLVs is good.
#[must_use]
pub fn parse(frame: &[u8]) -> Option<Neighbour<'_>> {
    if frame.get(12..ETHERNET_BYTES)? != ETHERTYPE_LLDP.to_be_bytes() {
        return None;
    }
    let mut rest = frame.get(ETHERNET_BYTES..)?;
    let mut next = || {
        let (head, behind) = rest.split_first_chunk()?;
        let head = u16::from_be_bytes(*head);
        let (value, behind) = behind.split_at_checked(usize::from(head & 0x1ff))?;
        rest = behind;
        Some(((head >> 9) as u8, value))
    };
    let with_subtype = |(kind, value): (u8, &'_ [u8]), wanted| {
        let (&subtype, id) = value.split_first()?;
        (kind == wanted && !id.is_empty()).then_some(subtype)
    };
    let chassis = next()?;
    let chassis = (with_subtype(chassis, CHASSIS)?, &chassis.1[1..]);
    let port = next()?;
    let port = (with_subtype(port, PORT)?, &port.1[1..]);
    let (TTL, ttl) = next()? else { return None };
    let ttl_s = u16::from_be_bytes(*ttl.first_chunk()?);
    let mut system = &[][..];
    while let Some((kind, value)) = next() {
        match kind {
            END => break,
            SYSTEM_NAME => system = value,
            _ => {}
        }
    }
    Some(Neighbour {
        chassis,
        port,
        ttl_s,
        system,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    const OWN: Announcement = Announcement {
        mac: Mac([2, 0x54, 0x41, 0x4c, 0x4c, 0x59]),
        port: "a",
        ttl_s: 120,
        system: "rack 7",
        description: "tally-switch",
    };

    fn emitted(what: &Announcement) -> (usize, [u8; LLDP_BYTES_MAX]) {
        let mut buffer = [0xa5; LLDP_BYTES_MAX];
        (emit(&mut buffer, what), buffer)
    }

    #[test]
    fn what_is_emitted_is_parsed() {
        let (n, frame) = emitted(&OWN);
        let found = parse(&frame[..n]).unwrap();
        assert_eq!(found.chassis_mac(), Some(OWN.mac));
        assert_eq!(found.port_text(), Some(&b"a"[..]));
        assert_eq!((found.ttl_s, found.system), (120, &b"rack 7"[..]));
        assert_eq!(frame[..6], LLDP_MAC.0);
    }

    #[test]
    fn the_bytes_are_those_of_802_1ab() {
        let (n, frame) = emitted(&OWN);
        let expected = [
            &[1, 0x80, 0xc2, 0, 0, 0x0e, 2, 0x54, 0x41, 0x4c, 0x4c, 0x59][..],
            &[0x88, 0xcc, 2, 7, 4, 2, 0x54, 0x41, 0x4c, 0x4c, 0x59],
            &[4, 2, 5, b'a', 6, 2, 0, 120, 10, 6],
            b"rack 7",
            &[12, 12],
            b"tally-switch",
            // The end, and padding to the shortest frame.
            &[0; 7],
        ];
        assert_eq!(frame[..n], expected.concat());
    }

    #[test]
    fn the_longest_texts_fit_and_short_frames_are_padded_with_zeros() {
        let long = String::from_utf8(std::vec![b'x'; 1000]).unwrap();
        let what = Announcement {
            port: &long,
            system: &long,
            description: &long,
            ..OWN
        };
        let (n, frame) = emitted(&what);
        let found = parse(&frame[..n]).unwrap();
        assert_eq!(found.port.1.len(), 255);
        assert_eq!(found.system.len(), 255);
        let short = Announcement {
            port: "",
            system: "",
            description: "",
            ..OWN
        };
        let (n, frame) = emitted(&short);
        assert_eq!(n, FRAME_BYTES_MIN);
        assert_eq!(frame[40..60], [0; 20]);
    }

    #[test]
    fn what_is_cut_off_or_out_of_order_is_none() {
        let (n, frame) = emitted(&OWN);
        for cut in 0..31 {
            assert_eq!(parse(&frame[..cut]), None, "{cut} bytes");
        }
        for cut in 31..n {
            assert!(parse(&frame[..cut]).is_some(), "{cut} bytes");
        }
        let mut swapped = frame;
        swapped[14] = 4;
        assert_eq!(parse(&swapped[..n]), None);
        let mut other = frame;
        other[13] = 0xcd;
        assert_eq!(parse(&other[..n]), None);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let framed = [&[0; 12][..], &[0x88, 0xcc], &bytes].concat();
            let _ = parse(&framed);
        }
    }
}
