//! The payload of a frame behind VLAN tags and LLC/SNAP headers.
//!
//! A receiver may strip them without configuration: Linux takes a frame with any number of priority
//! tags (VLAN ID 0) as untagged. So a switch that protects an address looks behind all of them.
//! [`inside`] walks 802.1Q, 802.1ad and the older tags of stacked VLANs (0x9100, 0x9200, 0x9300)
//! with any VLAN ID, and LLC/SNAP headers of ethertypes (RFC 1042, 802.1H).
//!
//! Catches: a stack deeper than [`ENCAPSULATIONS_MAX`] is an error, so nothing hides below it.
//! Tunnels that a receiver must be configured for (PPPoE, MPLS, IP in IP, VXLAN) are not opened.

use crate::frame::{ETHERNET_BYTES, ETHERTYPE_IPV4};
use thiserror::Error;

/// Ethertypes of VLAN tags: 802.1Q, 802.1ad, and older ones of stacked tags.
pub const ETHERTYPES_TAG: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];
/// Maximum number of tags and SNAP headers in one frame.
///
/// Networks use two; the bound limits the cost of a frame.
pub const ENCAPSULATIONS_MAX: usize = 16;
/// Bytes of a VLAN tag.
const TAG_BYTES: usize = 4;
/// Maximum 802.3 length; a larger value in the field is an ethertype.
const LENGTH_MAX: u16 = 1535;
/// LLC and SNAP headers: two service access points, control, organisation.
const LLC_SNAP_BYTES: usize = 6;
/// Organisation codes before an ethertype: RFC 1042's and 802.1H's.
const LLC_SNAP: [[u8; LLC_SNAP_BYTES]; 2] = [[0xaa, 0xaa, 3, 0, 0, 0], [0xaa, 0xaa, 3, 0, 0, 0xf8]];

/// The innermost ethertype of a frame and where its payload begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    /// The ethertype, or the 802.3 length of a frame without SNAP.
    pub ethertype: u16,
    /// Offset of the payload in the frame.
    pub at: usize,
}

impl Inside {
    /// Whether the payload is behind a tag or a SNAP header.
    #[inline]
    #[must_use]
    pub const fn is_encapsulated(self) -> bool {
        self.at != ETHERNET_BYTES
    }
}

/// Error: the payload of a frame cannot be located.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncapsulationError {
    /// The frame ends within a header.
    #[error("truncated headers")]
    Truncated,
    /// The frame has more than [`ENCAPSULATIONS_MAX`] tags and SNAP headers.
    #[error("more than {ENCAPSULATIONS_MAX} VLAN tags")]
    TooDeep,
}

/// Walks to the payload of `frame`, which starts at Ethernet.
///
/// # Errors
/// If the frame ends before its payload begins, or its stack of tags is too deep.
#[inline]
pub fn inside(frame: &[u8]) -> Result<Inside, EncapsulationError> {
    let ethertype = ethertype_before(frame, ETHERNET_BYTES)?;
    // Fast path: nearly all frames are untagged IPv4.
    let is_plain = ethertype == ETHERTYPE_IPV4
        || ethertype > LENGTH_MAX && !ETHERTYPES_TAG.contains(&ethertype);
    if is_plain {
        let at = ETHERNET_BYTES;
        return Ok(Inside { ethertype, at });
    }
    walk(frame, ethertype)
}

fn walk(frame: &[u8], mut ethertype: u16) -> Result<Inside, EncapsulationError> {
    let mut at = ETHERNET_BYTES;
    for _ in 0..=ENCAPSULATIONS_MAX {
        let bytes = if ETHERTYPES_TAG.contains(&ethertype) {
            TAG_BYTES
        } else if ethertype <= LENGTH_MAX && is_snap(frame, at) {
            LLC_SNAP_BYTES + 2
        } else {
            return Ok(Inside { ethertype, at });
        };
        at += bytes;
        ethertype = ethertype_before(frame, at)?;
    }
    Err(EncapsulationError::TooDeep)
}

fn is_snap(frame: &[u8], at: usize) -> bool {
    let header = frame.get(at..at + LLC_SNAP_BYTES);
    header.is_some_and(|header| LLC_SNAP.iter().any(|snap| snap == header))
}

#[inline]
fn ethertype_before(frame: &[u8], at: usize) -> Result<u16, EncapsulationError> {
    match frame.get(at - 2..at) {
        Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
        _ => Err(EncapsulationError::Truncated),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// A frame with these bytes behind its addresses.
    fn frame(parts: &[&[u8]]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        parts.iter().for_each(|part| frame.extend_from_slice(part));
        frame
    }

    const IPV4: &[u8] = &[8, 0, 0x45, 0];
    const SNAP: &[u8] = &[0, 60, 0xaa, 0xaa, 3, 0, 0, 0];
    const BRIDGED: &[u8] = &[0, 60, 0xaa, 0xaa, 3, 0, 0, 0xf8];

    fn ipv4_at(at: usize) -> Result<Inside, EncapsulationError> {
        Ok(Inside {
            ethertype: 0x0800,
            at,
        })
    }

    #[test]
    fn plain_frames_are_what_they_say() {
        assert_eq!(inside(&frame(&[IPV4])), ipv4_at(14));
        assert!(!inside(&frame(&[IPV4])).unwrap().is_encapsulated());
        let arp = inside(&frame(&[&[8, 6]])).unwrap();
        assert_eq!((arp.ethertype, arp.at), (0x0806, 14));
    }

    #[test]
    fn every_tag_and_snap_header_is_looked_behind_in_any_order() {
        for tpid in ETHERTYPES_TAG {
            let [high, low] = tpid.to_be_bytes();
            for tci in [[0, 0], [0xe0, 0], [0, 5], [0xff, 0xff]] {
                let tag = [high, low, tci[0], tci[1]];
                let f = frame(&[&tag, IPV4]);
                assert_eq!(inside(&f), ipv4_at(18), "{tpid:#06x}");
                assert!(inside(&f).unwrap().is_encapsulated());
                assert_eq!(inside(&frame(&[&tag, &tag, SNAP, IPV4])), ipv4_at(30));
                assert_eq!(inside(&frame(&[BRIDGED, &tag, IPV4])), ipv4_at(26));
            }
        }
        assert_eq!(inside(&frame(&[SNAP, IPV4])), ipv4_at(22));
    }

    #[test]
    fn a_stack_as_deep_as_allowed_is_walked_and_a_deeper_one_is_an_error() {
        let tags = |n: usize| [0x81, 0, 0, 0].repeat(n);
        let deepest = frame(&[&tags(ENCAPSULATIONS_MAX), IPV4]);
        assert_eq!(inside(&deepest), ipv4_at(14 + 4 * ENCAPSULATIONS_MAX));
        for n in [ENCAPSULATIONS_MAX + 1, 300, 2000] {
            let deeper = frame(&[&tags(n), IPV4]);
            assert_eq!(inside(&deeper), Err(EncapsulationError::TooDeep), "{n}");
        }
    }

    #[test]
    fn llc_without_snap_and_lengths_are_left_as_they_are() {
        // Spanning tree; NetWare's frames without LLC; a SNAP header of another organisation.
        for llc in [
            &[0, 38, 0x42, 0x42, 3, 0, 0, 0][..],
            &[5, 0xff, 0xff, 0xff, 0, 0],
            &[0, 38, 0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0],
        ] {
            let found = inside(&frame(&[llc])).unwrap();
            assert_eq!(found.at, 14);
            assert!(found.ethertype <= LENGTH_MAX);
        }
    }

    #[test]
    fn a_frame_that_ends_in_a_header_is_truncated() {
        let whole = frame(&[&[0x81, 0, 0, 0], &[0x88, 0xa8, 0, 0], SNAP, &[8, 0]]);
        assert_eq!(inside(&whole), ipv4_at(whole.len()));
        for len in 0..whole.len() {
            let found = inside(&whole[..len]);
            // Cut within its LLC header, a frame has a length and no SNAP.
            let is_llc = (22..28).contains(&len);
            assert!(
                found == Err(EncapsulationError::Truncated) || is_llc,
                "{len}: {found:?}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_the_payload_lies_in_the_frame(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80),
            tags in 0usize..20,
        ) {
            let f = frame(&[&[0x88, 0xa8, 0, 1].repeat(tags), &bytes]);
            if let Ok(found) = inside(&f) {
                proptest::prop_assert!(found.at <= f.len());
            }
        }
    }
}
