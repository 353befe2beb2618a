//! Ethernet, IPv4 and UDP around a Tally header (PROTOCOL.md, section 1).
//!
//! [`UdpFrame::parse`] accepts the frames that F-1 and F-4 allow and returns an error for all
//! others. [`emit`] writes the 64 bytes in front of a payload. Checksums: F-2.

use crate::ecn::Ecn;
use crate::header::Header;
use crate::ids::JobId;
use core::fmt;
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

/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethertypes of VLAN tags: 802.1Q, 802.1ad.
pub const ETHERTYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the group bit is set (multicast or broadcast).
    #[inline]
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The address in the low 48 bits, first byte most significant.
    #[inline]
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// The MAC that an IPv4 group maps to (RFC 1112, 6.4).
    #[must_use]
    pub const fn of_group(group: Ipv4Addr) -> Self {
        let [_, b, c, d] = group.octets();
        Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::str::FromStr for Mac {
    type Err = MacSyntax;

    fn from_str(s: &str) -> Result<Self, MacSyntax> {
        let mut mac = [0; 6];
        let mut parts = s.split(':');
        for byte in &mut mac {
            let part = parts.next().ok_or(MacSyntax)?;
            if part.len() != 2 || part.starts_with('+') {
                return Err(MacSyntax);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| MacSyntax)?;
        }
        if parts.next().is_some() {
            Err(MacSyntax)
        } else {
            Ok(Self(mac))
        }
    }
}

/// Error: the text is not an Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not an Ethernet address (six bytes in hexadecimal, as in 02:00:00:00:00:01)")]
pub struct MacSyntax;

/// The group address of a job's results.
#[must_use]
pub const fn group_of(job: JobId) -> Ipv4Addr {
    let [high, low] = job.0.to_be_bytes();
    Ipv4Addr::new(239, 84, high, low)
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
    if b[12..14] != ETHERTYPE_IPV4.to_be_bytes() || b[14] >> 4 != 4 {
        return false;
    }
    match Ecn::from_tos(b[15]) {
        Ecn::NotEct => false,
        Ecn::Ce => true,
        Ecn::Ect0 | Ecn::Ect1 => {
            let word = |b: &[u8; 34], at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
            let before = word(b, 14);
            b[15] |= Ecn::Ce as u8;
            let sum = u32::from(!word(b, 24)) + u32::from(!before) + u32::from(word(b, 14));
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            b[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
            true
        }
    }
}

/// Source and destination of a UDP datagram on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

#[inline]
fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

#[inline]
fn mac_at(b: &[u8; UDP_END], at: usize) -> Mac {
    Mac([b[at], b[at + 1], b[at + 2], b[at + 3], b[at + 4], b[at + 5]])
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
        let ethertype = be16(frame, 12);
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
        if frame[14] >> 4 != 4 {
            return Err(FrameError::IpVersion);
        }
        if frame[14] & 0xf != 5 {
            return Err(FrameError::IpOptions);
        }
        // More-fragments bit or an offset; don't-fragment and the reserved bit are ignored.
        if be16(frame, 20) & 0x3fff != 0 {
            return Err(FrameError::IpFragment);
        }
        if frame[23] != PROTOCOL_UDP {
            return Err(FrameError::NotUdp);
        }
        let ip_bytes = usize::from(be16(frame, 16));
        if ip_bytes < IPV4_BYTES + UDP_BYTES || ip_bytes > frame.len() - ETHERNET_BYTES {
            return Err(FrameError::IpLength);
        }
        let Some(b) = frame.first_chunk::<UDP_END>() else {
            return Err(FrameError::Truncated);
        };
        if usize::from(be16(b, 38)) != ip_bytes - IPV4_BYTES {
            return Err(FrameError::UdpLength);
        }
        Ok(Self {
            addresses: Addresses {
                src_mac: mac_at(b, 6),
                dst_mac: mac_at(b, 0),
                src_ip: Ipv4Addr::new(b[26], b[27], b[28], b[29]),
                dst_ip: Ipv4Addr::new(b[30], b[31], b[32], b[33]),
                src_port: be16(b, 34),
                dst_port: be16(b, 36),
            },
            ecn: Ecn::from_tos(b[15]),
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

/// Writes the 42 bytes in front of a datagram of that length to the start of `out`, as [`emit`] does.
///
/// # Panics
/// If `out` is shorter than [`UDP_END`].
#[inline]
pub fn emit_udp(out: &mut [u8], addresses: &Addresses, datagram_bytes: usize) {
    let b: &mut [u8; UDP_END] = out
        .first_chunk_mut()
        .expect("emit_udp: buffer shorter than the headers");
    let udp_bytes = (UDP_BYTES + datagram_bytes) as u16;
    b[0..6].copy_from_slice(&addresses.dst_mac.0);
    b[6..12].copy_from_slice(&addresses.src_mac.0);
    b[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    b[14..16].copy_from_slice(&[0x45, Ecn::Ect0 as u8]);
    b[16..18].copy_from_slice(&(IPV4_BYTES as u16 + udp_bytes).to_be_bytes());
    b[18..26].copy_from_slice(&[0, 0, 0x40, 0, 64, PROTOCOL_UDP, 0, 0]);
    b[26..30].copy_from_slice(&addresses.src_ip.octets());
    b[30..34].copy_from_slice(&addresses.dst_ip.octets());
    let checksum = internet_checksum(&b[14..34]);
    b[24..26].copy_from_slice(&checksum.to_be_bytes());
    b[34..36].copy_from_slice(&addresses.src_port.to_be_bytes());
    b[36..38].copy_from_slice(&addresses.dst_port.to_be_bytes());
    b[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
    b[40..42].copy_from_slice(&[0, 0]);
}

/// The Internet checksum (RFC 1071) of `bytes`, in host order.
#[inline]
#[must_use]
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    let mut pairs = bytes.chunks_exact(2);
    for pair in &mut pairs {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    if let [last] = pairs.remainder() {
        sum += u32::from(*last) << 8;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests;
