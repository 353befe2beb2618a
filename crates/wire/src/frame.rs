//! Ethernet, IPv4 and UDP around a Tally header (PROTOCOL.md, section 1).
//!
//! [`UdpFrame::parse`] accepts the frames that F-1 and F-4 allow and returns an error for all
//! others. [`emit`] writes the 64 bytes in front of a payload. Checksums: F-2.

use crate::ecn::Ecn;
use crate::field::{Field, be16, ethernet, ip, ipv4, mac, udp};
use crate::header::Header;
use crate::ids::JobId;
pub use crate::mac::{Mac, MacSyntax};
use core::net::Ipv4Addr;
use thiserror::Error;

/// Bytes of an Ethernet header without VLAN tag.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4_BYTES: usize = 20;
/// Bytes of a UDP header.
pub const UDP_BYTES: usize = 8;
/// Offset of the UDP payload.
pub const UDP_END: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
const _: () = assert!(udp::CHECKSUM.end == UDP_END);

/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethertypes of VLAN tags: 802.1Q, 802.1ad.
pub const ETHERTYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// IPv4 flags and fragment offset of a frame that may not be fragmented.
const DONT_FRAGMENT: u16 = 0x4000;

/// The first bytes of the group address of each job.
pub const GROUP_PREFIX: [u8; 2] = [239, 84];

/// The group address of a job's results.
#[must_use]
pub const fn group_of(job: JobId) -> Ipv4Addr {
    let [high, low] = job.0.to_be_bytes();
    Ipv4Addr::new(GROUP_PREFIX[0], GROUP_PREFIX[1], high, low)
}

/// Error: a frame does not carry a Tally header.
///
/// Each variant is a drop reason of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum FrameError {
    /// The frame ends within its headers.
    #[error("truncated headers")]
    Truncated,
    /// The frame has a VLAN tag.
    #[error("VLAN tag")]
    Vlan,
    /// Neither IPv4 nor VLAN.
    #[error("not IPv4")]
    NotIpv4,
    /// The ethertype is IPv4, the IP version is not 4.
    #[error("IP version")]
    IpVersion,
    /// IPv4 options, or a header length below 20.
    #[error("IPv4 options")]
    IpOptions,
    /// The frame is a fragment of an IPv4 packet.
    #[error("IPv4 fragment")]
    IpFragment,
    /// The IPv4 length does not fit the frame.
    #[error("IPv4 length")]
    IpLength,
    /// The IP protocol is not UDP.
    #[error("not UDP")]
    NotUdp,
    /// The UDP length does not fit the IPv4 length.
    #[error("UDP length")]
    UdpLength,
}

/// Sets ECN CE in `frame`, which begins at Ethernet.
///
/// Returns whether the frame has CE now. Only IPv4 from an ECN-capable sender can have it. The
/// header checksum stays right (RFC 1624).
#[inline]
pub fn mark(frame: &mut [u8]) -> bool {
    let Some(b) = frame.first_chunk_mut::<{ ETHERNET_BYTES + IPV4_BYTES }>() else {
        return false;
    };
    if be16(b, ethernet::ETHERTYPE) != ETHERTYPE_IPV4 || b[ipv4::VERSION_IHL] >> 4 != 4 {
        return false;
    }
    match Ecn::from_tos(b[ipv4::TOS]) {
        Ecn::NotEct => false,
        Ecn::Ce => true,
        Ecn::Ect0 | Ecn::Ect1 => {
            const FIRST_WORD: Field = ipv4::VERSION_IHL..ipv4::TOS + 1;
            let before = be16(b, FIRST_WORD);
            b[ipv4::TOS] |= Ecn::Ce as u8;
            let (checksum, after) = (be16(b, ipv4::CHECKSUM), be16(b, FIRST_WORD));
            let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            b[ipv4::CHECKSUM].copy_from_slice(&(!(sum as u16)).to_be_bytes());
            true
        }
    }
}

/// Source and destination of a UDP datagram on Ethernet.
///
/// Within one cache line: a field that is stored across two is loaded only when it has left the
/// store buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(align(32))]
pub struct Addresses {
    /// Source Ethernet address.
    pub src_mac: Mac,
    /// Destination Ethernet address.
    pub dst_mac: Mac,
    /// Source IPv4 address.
    pub src_ip: Ipv4Addr,
    /// Destination IPv4 address.
    pub dst_ip: Ipv4Addr,
    /// Source UDP port.
    pub src_port: u16,
    /// Destination UDP port.
    pub dst_port: u16,
}

/// A frame that satisfies F-1 and F-4 as far as Ethernet, IPv4 and UDP go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFrame {
    /// Source and destination.
    pub addresses: Addresses,
    /// ECN field of the IPv4 header.
    pub ecn: Ecn,
    /// Bytes behind the UDP header, which is at [`UDP_END`].
    pub datagram_bytes: usize,
}

impl UdpFrame {
    /// Parses the headers of `frame`, which starts at Ethernet.
    ///
    /// The frame may end in padding.
    ///
    /// # Errors
    /// The first violation of section 1.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, FrameError> {
        if frame.len() < ETHERNET_BYTES {
            return Err(FrameError::Truncated);
        }
        let ethertype = be16(frame, ethernet::ETHERTYPE);
        if ethertype != ETHERTYPE_IPV4 {
            let vlan = ETHERTYPES_VLAN.contains(&ethertype);
            return Err(if vlan {
                FrameError::Vlan
            } else {
                FrameError::NotIpv4
            });
        }
        if frame.len() < ETHERNET_BYTES + IPV4_BYTES {
            return Err(FrameError::Truncated);
        }
        if frame[ipv4::VERSION_IHL] >> 4 != 4 {
            return Err(FrameError::IpVersion);
        }
        if frame[ipv4::VERSION_IHL] & 0xf != 5 {
            return Err(FrameError::IpOptions);
        }
        // More-fragments bit or an offset; don't-fragment and the reserved bit are ignored.
        if be16(frame, ipv4::FRAGMENT) & 0x3fff != 0 {
            return Err(FrameError::IpFragment);
        }
        if frame[ipv4::PROTOCOL] != PROTOCOL_UDP {
            return Err(FrameError::NotUdp);
        }
        let ip_bytes = usize::from(be16(frame, ipv4::LENGTH));
        if ip_bytes < IPV4_BYTES + UDP_BYTES || ip_bytes > frame.len() - ETHERNET_BYTES {
            return Err(FrameError::IpLength);
        }
        let Some(b) = frame.first_chunk::<UDP_END>() else {
            return Err(FrameError::Truncated);
        };
        if usize::from(be16(b, udp::LENGTH)) != ip_bytes - IPV4_BYTES {
            return Err(FrameError::UdpLength);
        }
        Ok(Self {
            addresses: Addresses {
                src_mac: mac(b, ethernet::SRC),
                dst_mac: mac(b, ethernet::DST),
                src_ip: ip(b, ipv4::SRC),
                dst_ip: ip(b, ipv4::DST),
                src_port: be16(b, udp::SRC_PORT),
                dst_port: be16(b, udp::DST_PORT),
            },
            ecn: Ecn::from_tos(b[ipv4::TOS]),
            datagram_bytes: ip_bytes - IPV4_BYTES - UDP_BYTES,
        })
    }

    /// The UDP payload in `frame`, the slice from which this was parsed.
    #[inline]
    #[must_use]
    pub fn datagram<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[UDP_END..UDP_END + self.datagram_bytes]
    }
}

/// Writes all 64 bytes in front of the payload to the start of `out`.
///
/// These are Ethernet, IPv4 (don't fragment, ECT(0), TTL 64, valid checksum), UDP (checksum 0) and
/// the Tally header. The caller writes the bytes behind the payload: [`Header::emit_trailer`].
///
/// # Panics
/// If `out` is shorter than [`crate::HEADERS_BYTES`].
#[inline]
pub fn emit(out: &mut [u8], addresses: &Addresses, header: &Header) {
    let b: &mut [u8; crate::HEADERS_BYTES] = out
        .first_chunk_mut()
        .expect("emit: buffer shorter than the headers");
    emit_udp(b, addresses, header.datagram_bytes());
    header.emit(&mut b[UDP_END..]);
}

/// Writes the 42 bytes in front of a datagram of that length to the start of `out`, as [`emit`]
/// does.
///
/// # Panics
/// If `out` is shorter than [`UDP_END`].
#[inline]
pub fn emit_udp(out: &mut [u8], addresses: &Addresses, datagram_bytes: usize) {
    let b: &mut [u8; UDP_END] = out
        .first_chunk_mut()
        .expect("emit_udp: buffer shorter than the headers");
    let udp_bytes = (UDP_BYTES + datagram_bytes) as u16;
    b[ethernet::DST].copy_from_slice(&addresses.dst_mac.0);
    b[ethernet::SRC].copy_from_slice(&addresses.src_mac.0);
    b[ethernet::ETHERTYPE].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    b[ipv4::VERSION_IHL] = 0x45;
    b[ipv4::TOS] = Ecn::Ect0 as u8;
    b[ipv4::LENGTH].copy_from_slice(&(IPV4_BYTES as u16 + udp_bytes).to_be_bytes());
    b[ipv4::ID].fill(0);
    b[ipv4::FRAGMENT].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    b[ipv4::TTL] = 64;
    b[ipv4::PROTOCOL] = PROTOCOL_UDP;
    b[ipv4::CHECKSUM].fill(0);
    b[ipv4::SRC].copy_from_slice(&addresses.src_ip.octets());
    b[ipv4::DST].copy_from_slice(&addresses.dst_ip.octets());
    let checksum = internet_checksum(&b[ipv4::HEADER]);
    b[ipv4::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
    b[udp::SRC_PORT].copy_from_slice(&addresses.src_port.to_be_bytes());
    b[udp::DST_PORT].copy_from_slice(&addresses.dst_port.to_be_bytes());
    b[udp::LENGTH].copy_from_slice(&udp_bytes.to_be_bytes());
    b[udp::CHECKSUM].fill(0);
}

/// The Internet checksum (RFC 1071) of `bytes`, in host order.
#[inline]
#[must_use]
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    // In the machine's byte order, which the sum does not depend on, and without a carry in the
    // loop: 64 bits hold those of all frames.
    let mut pairs = bytes.chunks_exact(2);
    let sum = |sum: u64, pair: &[u8]| sum + u64::from(u16::from_ne_bytes([pair[0], pair[1]]));
    let mut sum = pairs.by_ref().fold(0, sum);
    if let [last] = pairs.remainder() {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    for _ in 0..3 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::from_be(sum as u16)
}

#[cfg(test)]
mod tests;
