//! The UDP dialect of SwitchML (NSDI'21; p4lang/p4app-switchML).
//!
//! Its header is ten bytes between UDP and elements:
//!
//! ```text
//!  0        14         34    42     43    44       48            50          52
//!  | Ethernet | IPv4    | UDP | kind | job | packet | set, slot   | exponents | elements, i32 BE
//!  |          | ihl 5   |     | size |     | opaque | bit 15, 14  | two i8    |
//! ```
//!
//! [`Header::parse`] takes a whole UDP payload; [`UdpFrame`] parses the headers before it.
//! [`ReplyHeaders`] writes all 52 bytes in front of a sum, and [`emit_request`] those in front of a
//! contribution, as the published clients write them.
//!
//! Catches:
//!
//! * Published clients leave the IPv4 checksum 0, and the UDP checksum a sum of the pseudo header
//!   only, for a NIC to complete. A receiver that drops bad checksums loses their frames.
//! * The packet number is in its sender's byte order. It is echoed and not interpreted.
//! * The published clients use 256 and 1024 bytes; their enumeration also names 128 and 512. The
//!   larger sizes are extensions: a session agrees on one size before its first frame, so a client
//!   that did not ask for them never receives them.
//! * Elements begin at byte 52 of the frame, so they are aligned to four bytes only.
//!
//! [`UdpFrame`]: crate::UdpFrame

mod flow;

pub use flow::HeaderTemplate;

use crate::ecn::Ecn;
use crate::field::{Field, be16, be32, ethernet, ipv4, udp};
use crate::frame::{
    Addresses, ETHERTYPE_IPV4, IPV4_BYTES, PROTOCOL_UDP, UDP_BYTES, UDP_END, emit_udp,
    internet_checksum,
};
use core::net::Ipv4Addr;
use thiserror::Error;

/// First UDP port of SwitchML.
pub const FIRST_PORT: u16 = 0xbee0;
/// Number of UDP ports of SwitchML. Clients use the first one.
pub const PORTS: u16 = 16;
/// Bytes of the header, exponents included.
pub const HEADER_BYTES: usize = 10;
/// Bytes in front of the elements.
pub const HEADERS_BYTES: usize = UDP_END + HEADER_BYTES;
/// Number of slots that the header can name, in each of the two sets.
pub const MAX_SLOTS: u16 = 1 << 14;
/// Bytes of an element.
pub const ELEMENT_BYTES: usize = 4;

const KIND_UDP: u8 = 1;
const TTL: u8 = 64;
const SET_BIT: u16 = 1 << 15;

/// Bytes of the header's fields, from its start.
mod field {
    use crate::field::Field;

    /// Packet type in the high four bits, size in the low three.
    pub(super) const KIND_SIZE: usize = 0;
    pub(super) const JOB: usize = 1;
    pub(super) const PACKET: Field = 2..6;
    /// Set in bit 15, slot in the low 14.
    pub(super) const SET_SLOT: Field = 6..8;
    pub(super) const EXPONENTS: [usize; 2] = [8, 9];
}

const _: () = assert!(HEADERS_BYTES == 52);
const _: () = assert!(FIRST_PORT.is_multiple_of(PORTS) && PORTS.is_power_of_two());

/// Whether a UDP port of the switch is one of SwitchML's.
#[inline]
#[must_use]
pub const fn is_port(port: u16) -> bool {
    port & !(PORTS - 1) == FIRST_PORT
}

/// Number of elements in each packet of a session.
///
/// The discriminants are the codes on the wire; up to 1024 bytes also those of the controller's
/// `PacketSize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Size {
    /// 32 elements.
    B128 = 0,
    /// 64 elements, the default of the published clients.
    B256 = 1,
    /// 128 elements.
    B512 = 2,
    /// 256 elements.
    B1024 = 3,
    /// 512 elements; an extension.
    B2048 = 4,
    /// 1024 elements; an extension.
    B4096 = 5,
    /// 2048 elements; an extension. Fits frames of 9000 bytes.
    B8192 = 6,
}

impl Size {
    /// All sizes, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::B128,
        Self::B256,
        Self::B512,
        Self::B1024,
        Self::B2048,
        Self::B4096,
        Self::B8192,
    ];

    /// Length of all elements in bytes.
    #[inline]
    #[must_use]
    pub const fn payload_bytes(self) -> usize {
        128 << self as u8
    }

    /// Number of elements.
    #[inline]
    #[must_use]
    pub const fn elements(self) -> usize {
        self.payload_bytes() / ELEMENT_BYTES
    }

    /// The code on the wire.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The size with this code.
    #[inline]
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::B128),
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            6 => Some(Self::B8192),
            _ => None,
        }
    }
}

/// Error: the datagram is not a SwitchML packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum HeaderError {
    /// The datagram is shorter than the header.
    #[error("truncated SwitchML header")]
    Truncated,
    /// The packet type is not that of UDP.
    #[error("unknown SwitchML type")]
    Kind,
    /// No size has this code.
    #[error("unknown SwitchML packet size")]
    Size,
    /// The number of elements differs from the size.
    #[error("SwitchML payload length does not fit the packet size")]
    Length,
}

/// A SwitchML header as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Number of elements that follow.
    pub size: Size,
    /// Low byte of the client's job number. Echoed.
    pub job: u8,
    /// The client's packet number, in wire order. Echoed.
    pub packet: [u8; 4],
    /// Slot, below [`MAX_SLOTS`].
    pub slot: u16,
    /// Index of the slot's set, 0 or 1.
    pub set: bool,
    /// Exponents of two later blocks; in a reply the maximum of all workers'.
    pub exponents: [i8; 2],
}

impl Header {
    /// Parses the header at the start of `datagram`, a whole UDP payload.
    ///
    /// Bit 3 of the first byte and bit 14 of the slot's field have no meaning and are ignored.
    ///
    /// # Errors
    /// The first violation.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<Self, HeaderError> {
        let Some((b, elements)) = datagram.split_first_chunk::<HEADER_BYTES>() else {
            return Err(HeaderError::Truncated);
        };
        if b[field::KIND_SIZE] >> 4 != KIND_UDP {
            return Err(HeaderError::Kind);
        }
        let size = Size::from_code(b[field::KIND_SIZE] & 7).ok_or(HeaderError::Size)?;
        if elements.len() != size.payload_bytes() {
            return Err(HeaderError::Length);
        }
        Ok(Self::read(size, b))
    }

    /// The fields of a header whose kind and size have been checked.
    #[inline]
    fn read(size: Size, b: &[u8; HEADER_BYTES]) -> Self {
        let place = be16(b, field::SET_SLOT);
        Self {
            size,
            job: b[field::JOB],
            packet: be32(b, field::PACKET).to_be_bytes(),
            slot: place & (MAX_SLOTS - 1),
            set: place & SET_BIT != 0,
            exponents: field::EXPONENTS.map(|at| b[at].cast_signed()),
        }
    }

    /// Writes the header to the first ten bytes of `out`; unused bits are 0.
    ///
    /// # Panics
    /// If `out` is shorter than [`HEADER_BYTES`]. With debug assertions, also if `slot` is not
    /// below [`MAX_SLOTS`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        debug_assert!(self.slot < MAX_SLOTS, "emitting {self:?}");
        let b: &mut [u8; HEADER_BYTES] = out
            .first_chunk_mut()
            .expect("emit: buffer shorter than the SwitchML header");
        let set = if self.set { SET_BIT } else { 0 };
        b[field::KIND_SIZE] = KIND_UDP << 4 | self.size.code();
        b[field::JOB] = self.job;
        b[field::PACKET].copy_from_slice(&self.packet);
        b[field::SET_SLOT].copy_from_slice(&(self.slot & (MAX_SLOTS - 1) | set).to_be_bytes());
        for (at, exponent) in field::EXPONENTS.into_iter().zip(self.exponents) {
            b[at] = exponent.cast_unsigned();
        }
    }
}

/// From the ethertype up to the IPv4 checksum.
const MIDDLE: Field = ethernet::ETHERTYPE.start..ipv4::CHECKSUM.start;
/// From the UDP length to the end.
const END: Field = udp::LENGTH.start..HEADERS_BYTES;

/// The headers of one result's replies: what all of them have in common.
///
/// All 52 bytes in front of a sum are Ethernet, IPv4 (don't fragment, TTL 64, valid checksum), UDP
/// (checksum 0) and the SwitchML header.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHeaders {
    /// The bytes of [`MIDDLE`].
    middle: [u8; MIDDLE.end - MIDDLE.start],
    /// The bytes of [`END`].
    end: [u8; END.end - END.start],
    /// Sum of the IPv4 header's constant words.
    sum: u32,
}

impl ReplyHeaders {
    /// The headers of a result with this header.
    #[inline]
    #[must_use]
    pub fn new(header: &Header) -> Self {
        let udp_bytes = (UDP_BYTES + HEADER_BYTES + header.size.payload_bytes()) as u16;
        let ip_bytes = IPV4_BYTES as u16 + udp_bytes;
        let [ethertype, high] = ETHERTYPE_IPV4.to_be_bytes();
        let [len, low] = ip_bytes.to_be_bytes();
        let tos = Ecn::NotEct as u8;
        let middle = [
            ethertype,
            high,
            0x45,
            tos,
            len,
            low,
            0,
            0,
            0x40,
            0,
            TTL,
            PROTOCOL_UDP,
        ];
        let mut end = [0; END.end - END.start];
        end[..udp::LENGTH.len()].copy_from_slice(&udp_bytes.to_be_bytes());
        header.emit(&mut end[UDP_END - END.start..]);
        let constant = 0x4500 + 0x4000 + (u32::from(TTL) << 8) + u32::from(PROTOCOL_UDP);
        Self {
            middle,
            end,
            sum: constant + u32::from(ip_bytes),
        }
    }

    /// Writes the headers of the reply to one worker to the first 52 bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`HEADERS_BYTES`].
    #[inline(always)]
    pub fn write(&self, out: &mut [u8], addresses: &Addresses) {
        let b: &mut [u8; HEADERS_BYTES] = out
            .first_chunk_mut()
            .expect("emit: buffer shorter than the headers");
        b[ethernet::DST].copy_from_slice(&addresses.dst_mac.0);
        b[ethernet::SRC].copy_from_slice(&addresses.src_mac.0);
        b[MIDDLE].copy_from_slice(&self.middle);
        // Not read back from what was written: such a load waits for the store buffer.
        let sum = self.sum + ip_words(addresses.src_ip) + ip_words(addresses.dst_ip);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        b[ipv4::CHECKSUM].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        b[ipv4::SRC].copy_from_slice(&addresses.src_ip.octets());
        b[ipv4::DST].copy_from_slice(&addresses.dst_ip.octets());
        b[udp::SRC_PORT].copy_from_slice(&addresses.src_port.to_be_bytes());
        b[udp::DST_PORT].copy_from_slice(&addresses.dst_port.to_be_bytes());
        b[END].copy_from_slice(&self.end);
    }
}

/// Writes the headers of a single reply to the first 52 bytes of `out`: see [`ReplyHeaders`].
///
/// # Panics
/// If `out` is shorter than [`HEADERS_BYTES`].
#[inline]
pub fn emit_reply(out: &mut [u8], addresses: &Addresses, header: &Header) {
    ReplyHeaders::new(header).write(out, addresses);
}

/// Sum of the two words of an address.
#[inline]
const fn ip_words(ip: Ipv4Addr) -> u32 {
    (ip.to_bits() >> 16) + (ip.to_bits() & 0xffff)
}

/// Writes all 52 bytes in front of a contribution, as the published clients do.
///
/// TTL is 128, the IPv4 checksum 0, and the UDP checksum a sum of the pseudo header, which a NIC
/// completes.
///
/// # Panics
/// If `out` is shorter than [`HEADERS_BYTES`].
pub fn emit_request(out: &mut [u8], addresses: &Addresses, header: &Header) {
    let b: &mut [u8; HEADERS_BYTES] = out
        .first_chunk_mut()
        .expect("emit: buffer shorter than the headers");
    emit_udp(b, addresses, HEADER_BYTES + header.size.payload_bytes());
    b[ipv4::TOS] = Ecn::NotEct as u8;
    b[ipv4::TTL] = 128;
    b[ipv4::CHECKSUM].fill(0);
    header.emit(&mut b[UDP_END..]);
    let mut pseudo = [0; 12];
    pseudo[..8].copy_from_slice(&b[ipv4::SRC.start..ipv4::DST.end]);
    pseudo[9] = PROTOCOL_UDP;
    pseudo[10..].copy_from_slice(&b[udp::LENGTH]);
    let sum = !internet_checksum(&pseudo);
    b[udp::CHECKSUM].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests;
