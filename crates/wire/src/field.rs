//! Byte ranges of header fields, and reads of big-endian fields.
//!
//! Each header's layout is one module of constants: its ranges are the only place with numbers.
//! A single byte is a `usize`, a longer field a [`Field`].
//!
//! The ranges of Ethernet, IPv4 and UDP count from the start of a frame, without VLAN tags and
//! without IPv4 options, as F-1 allows them.

use crate::mac::Mac;
use core::net::Ipv4Addr;

/// The bytes of a field.
pub type Field = core::ops::Range<usize>;

/// Ethernet.
pub mod ethernet {
    use super::Field;

    /// Destination.
    pub const DST: Field = 0..6;
    /// Source.
    pub const SRC: Field = 6..12;
    /// Ethertype, or the length of an 802.3 frame.
    pub const ETHERTYPE: Field = 12..14;
}

/// IPv4 behind Ethernet.
pub mod ipv4 {
    use super::Field;

    /// The header without options.
    pub const HEADER: Field = 14..34;
    /// Version, and the length of the header in words.
    pub const VERSION_IHL: usize = 14;
    /// Differentiated services and ECN.
    pub const TOS: usize = 15;
    /// Bytes of header and payload.
    pub const LENGTH: Field = 16..18;
    /// Identification.
    pub const ID: Field = 18..20;
    /// Flags and fragment offset.
    pub const FRAGMENT: Field = 20..22;
    /// Time to live.
    pub const TTL: usize = 22;
    /// Protocol of the payload.
    pub const PROTOCOL: usize = 23;
    /// Checksum of the header.
    pub const CHECKSUM: Field = 24..26;
    /// Source.
    pub const SRC: Field = 26..30;
    /// Destination.
    pub const DST: Field = 30..34;
}

/// UDP behind IPv4.
pub mod udp {
    use super::Field;

    /// Source port.
    pub const SRC_PORT: Field = 34..36;
    /// Destination port.
    pub const DST_PORT: Field = 36..38;
    /// Bytes of header and payload.
    pub const LENGTH: Field = 38..40;
    /// Checksum of pseudo header, header and payload.
    pub const CHECKSUM: Field = 40..42;
}

/// ARP for IPv4 behind Ethernet.
pub mod arp {
    use super::Field;

    /// Hardware and protocol types and lengths.
    pub const TYPES: Field = 14..20;
    /// Request or reply.
    pub const OPERATION: Field = 20..22;
    /// MAC of the sender.
    pub const SENDER_MAC: Field = 22..28;
    /// IPv4 address of the sender.
    pub const SENDER_IP: Field = 28..32;
    /// MAC and IPv4 address of the sender.
    pub const SENDER: Field = 22..32;
    /// MAC and IPv4 address of the target.
    pub const TARGET: Field = 32..42;
    /// IPv4 address of the target.
    pub const TARGET_IP: Field = 38..42;
}

/// ICMP echo behind IPv4.
pub mod icmp {
    use super::Field;

    /// Type and code.
    pub const TYPE_CODE: Field = 34..36;
    /// Checksum of the message.
    pub const CHECKSUM: Field = 36..38;
    /// End of the echo header.
    pub const END: usize = 42;
}

const _: () = assert!(ipv4::HEADER.end == udp::SRC_PORT.start);

/// The value of a field of two bytes.
///
/// # Panics
/// If `bytes` ends before the field, as the functions below do, or the field is longer.
#[inline(always)]
#[must_use]
pub fn be16(bytes: &[u8], field: Field) -> u16 {
    u16::from_be_bytes(array(bytes, field))
}

/// The value of a field of four bytes.
///
/// # Panics
/// As [`be16`].
#[inline(always)]
#[must_use]
pub fn be32(bytes: &[u8], field: Field) -> u32 {
    u32::from_be_bytes(array(bytes, field))
}

/// The value of a field of eight bytes.
///
/// # Panics
/// As [`be16`].
#[inline(always)]
#[must_use]
pub fn be64(bytes: &[u8], field: Field) -> u64 {
    u64::from_be_bytes(array(bytes, field))
}

/// The MAC in a field of six bytes.
///
/// # Panics
/// As [`be16`].
#[inline(always)]
#[must_use]
pub fn mac(bytes: &[u8], field: Field) -> Mac {
    Mac(array(bytes, field))
}

/// The IPv4 address in a field of four bytes.
///
/// # Panics
/// As [`be16`].
#[inline(always)]
#[must_use]
pub fn ip(bytes: &[u8], field: Field) -> Ipv4Addr {
    Ipv4Addr::from_bits(be32(bytes, field))
}

#[inline(always)]
fn array<const N: usize>(bytes: &[u8], field: Field) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[field]);
    array
}
