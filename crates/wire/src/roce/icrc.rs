//! The invariant CRC: of headers and payload, without what changes on the way.
//!
//! CRC-32 as Ethernet's, over eight bytes of ones (InfiniBand's local route header), then the frame
//! from IPv4 to the end of the pad, with ones in the type of service, TTL and checksum of IPv4, in
//! the checksum of UDP, and in the byte with FECN and BECN. It is sent with the lowest byte first.

use super::{BTH_BYTES, ICRC_BYTES};
use crate::field::{ipv4, udp};
use crate::frame::{ETHERNET_BYTES, UDP_END};

/// Bytes from IPv4 to the end of the BTH, before which ones are put.
const COPIED: usize = UDP_END - ETHERNET_BYTES + BTH_BYTES;
const ONES: usize = 8;

/// The ICRC of a frame from Ethernet to the end of its pad, which has at least a BTH.
fn icrc(frame: &[u8]) -> [u8; ICRC_BYTES] {
    let (headers, rest) = frame[ETHERNET_BYTES..].split_at(COPIED);
    let mut masked = [0xff; ONES + COPIED];
    masked[ONES..].copy_from_slice(headers);
    let at = |byte: usize| ONES + byte - ETHERNET_BYTES;
    masked[at(ipv4::TOS)] = 0xff;
    masked[at(ipv4::TTL)] = 0xff;
    masked[at(ipv4::CHECKSUM.start)..at(ipv4::CHECKSUM.end)].fill(0xff);
    masked[at(udp::CHECKSUM.start)..at(udp::CHECKSUM.end)].fill(0xff);
    masked[at(UDP_END + super::field::CONGESTION)] = 0xff;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&masked);
    crc.update(rest);
    crc.finalize().to_le_bytes()
}

/// Splits a frame that ends with its ICRC.
fn split(frame: &[u8]) -> Option<(&[u8], [u8; ICRC_BYTES])> {
    let (front, found) = frame.split_last_chunk::<ICRC_BYTES>()?;
    (front.len() >= ETHERNET_BYTES + COPIED).then_some((front, *found))
}

/// Writes the ICRC into the last four bytes of a frame from Ethernet to the ICRC, without VLAN tags
/// and IPv4 options.
///
/// # Panics
/// If the frame is shorter than its headers.
#[inline]
pub fn seal(frame: &mut [u8]) {
    let end = frame.len() - ICRC_BYTES;
    let value = icrc(&frame[..end]);
    frame[end..].copy_from_slice(&value);
}

/// Whether the last four bytes of such a frame are its ICRC.
#[inline]
#[must_use]
pub fn is_sealed(frame: &[u8]) -> bool {
    split(frame).is_some_and(|(front, found)| icrc(front) == found)
}
