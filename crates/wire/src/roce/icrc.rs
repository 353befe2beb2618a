//! The invariant CRC: of headers and payload, without what changes on the way.
//!
//! CRC-32 as Ethernet's, over eight bytes of ones (InfiniBand's local route header), then the frame
//! from IPv4 to the end of the pad, with ones in the type of service, TTL and checksum of IPv4, in
//! the checksum of UDP, and in the byte with FECN and BECN. It is sent with the lowest byte first.
//!
//! A CRC is linear: that of headers and payload is the headers' CRC, shifted by the length of the
//! payload, plus the payload's CRC. So packets with one payload and different headers share the
//! pass over the payload, and a payload that is replaced needs none over the headers
//! ([`HeaderCrc`]).

use super::{BTH_BYTES, ICRC_BYTES};
use crate::field::{ipv4, udp};
use crate::frame::{ETHERNET_BYTES, UDP_END};

/// Bytes from IPv4 to the end of the BTH, before which ones are put.
const COPIED: usize = UDP_END - ETHERNET_BYTES + BTH_BYTES;
const ONES: usize = 8;
/// Where the ones are put in a frame: over what is before IPv4.
const ONES_AT: usize = ETHERNET_BYTES - ONES;
/// Bits that count as ones, from there on.
const MASK: [u8; ONES + COPIED] = {
    let mut mask = [0; ONES + COPIED];
    let fields = [
        ONES_AT..ETHERNET_BYTES,
        ipv4::TOS..ipv4::TOS + 1,
        ipv4::TTL..ipv4::TTL + 1,
        ipv4::CHECKSUM,
        udp::CHECKSUM,
        UDP_END + super::field::CONGESTION..UDP_END + super::field::CONGESTION + 1,
    ];
    let mut i = 0;
    while i < fields.len() {
        let mut at = fields[i].start;
        while at < fields[i].end {
            mask[at - ONES_AT] = 0xff;
            at += 1;
        }
        i += 1;
    }
    mask
};
/// The polynomial of CRC-32 without its highest term, lowest term in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The CRC of a frame from Ethernet to `end`, masked as the ICRC wants it.
#[inline]
fn masked(frame: &[u8]) -> crc32fast::Hasher {
    let (headers, rest) = frame[ONES_AT..].split_at(ONES + COPIED);
    // In one pass: bytes written one by one and read together wait for the store buffer.
    let mut masked = MASK;
    for (masked, byte) in masked.iter_mut().zip(headers) {
        *masked |= byte;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&masked);
    if !rest.is_empty() {
        crc.update(rest);
    }
    crc
}

/// The ICRC of a frame from Ethernet to the end of its pad, which has at least a BTH.
fn icrc(frame: &[u8]) -> [u8; ICRC_BYTES] {
    masked(frame).finalize().to_le_bytes()
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

/// The CRC of a payload that several frames have, for [`HeaderCrc::with`].
#[inline]
#[must_use]
pub fn payload_crc(payload: &[u8]) -> u32 {
    crc32fast::hash(payload)
}

/// What the headers of a frame are in its ICRC: with the CRC of a payload it is the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderCrc(u32);

impl HeaderCrc {
    /// That of a frame whose payload behind the headers has the length of `shift`.
    ///
    /// # Panics
    /// If the frame is shorter than its headers, that payload and the ICRC.
    #[inline]
    #[must_use]
    pub fn of(frame: &[u8], shift: &Shift) -> Self {
        let end = frame.len() - ICRC_BYTES - shift.bytes;
        Self(shift.apply(masked(&frame[..end]).finalize()))
    }

    /// As [`of`](Self::of), if the frame ends with its ICRC.
    #[inline]
    #[must_use]
    pub fn of_sealed(frame: &[u8], shift: &Shift) -> Option<Self> {
        let (front, found) = split(frame)?;
        let payload_at = front.len().checked_sub(shift.bytes)?;
        if payload_at < ETHERNET_BYTES + COPIED {
            return None;
        }
        let headers = Self::of(frame, shift);
        let crc = payload_crc(&front[payload_at..]);
        (headers.with(crc) == found).then_some(headers)
    }

    /// The CRC of the payload of a frame with these headers, which ends with its ICRC.
    ///
    /// # Panics
    /// If the frame is shorter than an ICRC.
    #[inline]
    #[must_use]
    pub fn payload_crc(self, frame: &[u8]) -> u32 {
        let (_, icrc) = split(frame).expect("a frame with its ICRC");
        self.0 ^ u32::from_le_bytes(icrc)
    }

    /// The ICRC of these headers and a payload with this CRC.
    #[inline]
    #[must_use]
    pub const fn with(self, payload_crc: u32) -> [u8; ICRC_BYTES] {
        (self.0 ^ payload_crc).to_le_bytes()
    }
}

/// What a CRC becomes when a number of bytes follow, as tables: 4 KiB.
#[derive(Clone, Debug)]
pub struct Shift {
    bytes: usize,
    tables: [[u32; 256]; 4],
}

impl Shift {
    /// The shift by this many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let by = power(8 * bytes as u64);
        let mut tables = [[0; 256]; 4];
        for (lane, table) in tables.iter_mut().enumerate() {
            for bit in 0..8 {
                let shifted = multiply(by, 1 << (8 * lane + bit));
                for low in 0..1 << bit {
                    table[1 << bit | low] = table[low] ^ shifted;
                }
            }
        }
        Self { bytes, tables }
    }

    /// Bytes that it shifts by.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn apply(&self, crc: u32) -> u32 {
        let [a, b, c, d] = crc.to_le_bytes().map(usize::from);
        let [first, second, third, fourth] = &self.tables;
        first[a] ^ second[b] ^ third[c] ^ fourth[d]
    }
}

/// The product of two polynomials modulo that of the CRC; x^0 is the highest bit.
fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for term in (0..32).rev() {
        if a >> term & 1 != 0 {
            product ^= b;
        }
        let carry = if b & 1 != 0 { POLYNOMIAL } else { 0 };
        b = b >> 1 ^ carry;
    }
    product
}

/// x^n modulo the polynomial.
fn power(mut n: u64) -> u32 {
    let mut result = 1 << 31;
    let mut square = 1 << 30;
    while n > 0 {
        if n & 1 != 0 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        n >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_payload_gives_the_crc_of_the_whole() {
        const LEAST: usize = ETHERNET_BYTES + COPIED;
        let byte = |n: usize| (n * 151 / 8) as u8;
        for headers in [LEAST, LEAST + 1, LEAST + 48] {
            for payload in [0, 1, 4, 64, 255, 1024] {
                let mut whole: std::vec::Vec<u8> =
                    (0..headers + payload + ICRC_BYTES).map(byte).collect();
                let mut shared = whole.clone();
                seal(&mut whole);
                let shift = Shift::new(payload);
                let crc = payload_crc(&shared[headers..headers + payload]);
                let icrc = HeaderCrc::of(&shared, &shift).with(crc);
                assert_eq!(HeaderCrc::of_sealed(&shared, &shift), None);
                shared[headers + payload..].copy_from_slice(&icrc);
                assert_eq!(shared, whole, "{headers} and {payload} bytes");
                let sealed = HeaderCrc::of_sealed(&whole, &shift);
                assert_eq!(sealed, Some(HeaderCrc::of(&shared, &shift)));
            }
        }
    }

    #[test]
    fn a_frame_that_is_shorter_than_headers_and_payload_is_not_sealed() {
        let mut frame = [0x77; ETHERNET_BYTES + COPIED + 64 + ICRC_BYTES];
        seal(&mut frame);
        assert!(HeaderCrc::of_sealed(&frame, &Shift::new(64)).is_some());
        for bytes in [65, frame.len(), 4096] {
            assert_eq!(HeaderCrc::of_sealed(&frame, &Shift::new(bytes)), None);
        }
        assert_eq!(HeaderCrc::of_sealed(&frame[..3], &Shift::new(0)), None);
    }
}
