//! Superframes: TCP segments or UDP datagrams of one flow as one long frame.
//!
//! A kernel with segmentation offload carries such a frame, up to 64 KiB long with its headers
//! once, and has it cut where it becomes frames of a wire. A [`Superframe`] is what the headers say
//! of one, checked; [`write_headers`](Superframe::write_headers) makes the headers of each frame
//! that it is cut into ([ADR 32](../../../docs/adr/0032-superframes.md)).
//!
//! What differs from frame to frame is what Linux makes of it (`tcp_gso_segment`,
//! `__udp_gso_segment`, `inet_gso_segment`): lengths, checksums, the IPv4 identification, TCP's
//! sequence number; FIN and PSH stay with the last frame, CWR with the first.
//!
//! Catches: IPv4 fragments, IPv6 extension headers, tunnels and more than two VLAN tags are no
//! superframes here.

use crate::field::be16;
use crate::frame::{ETHERNET_BYTES, ETHERTYPE_IPV4, internet_checksum};
use core::ops::Range;

/// Bytes of the headers at most: Ethernet, two VLAN tags, IPv4 and TCP with all their options.
pub const SUPERFRAME_HEADERS_BYTES_MAX: usize = ETHERNET_BYTES + 2 * TAG_BYTES + 60 + 60;
/// Frames that one superframe may become: 64 KiB in segments of 128 bytes.
pub const SUPERFRAME_SEGMENTS_MAX: usize = 512;

const TAG_BYTES: usize = 4;
const TAGS_MAX: usize = 2;
/// 802.1Q and 802.1ad.
const ETHERTYPES_TAG: [u16; 2] = [0x8100, 0x88a8];
const ETHERTYPE_IPV6: u16 = 0x86dd;
const IPV4_BYTES_MIN: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const TCP_BYTES_MIN: usize = 20;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where TCP's flags are in its header, and what they are.
const TCP_FLAGS: usize = 13;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// What is one after the other in a superframe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// TCP segments over IPv4.
    Tcp4,
    /// TCP segments over IPv6.
    Tcp6,
    /// UDP datagrams over either.
    Udp,
}

/// A checked description of a superframe; its offsets are within its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superframe {
    ip_at: usize,
    transport_at: usize,
    payload_at: usize,
    payload_bytes: usize,
    segment_bytes: usize,
    is_ipv6: bool,
    is_udp: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?.first_chunk()?;
    Some(u16::from_be_bytes(*two))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

impl Superframe {
    /// What the headers say of a frame of `bytes` that begins with `head`, which has all of them,
    /// to be cut into payloads of `segment_bytes`. `None` if it is no superframe of TCP or UDP, or
    /// its lengths contradict each other, or it would become no frame or more than
    /// [`SUPERFRAME_SEGMENTS_MAX`].
    #[must_use]
    pub fn parse(head: &[u8], bytes: usize, segment_bytes: u16) -> Option<Self> {
        let mut ip_at = ETHERNET_BYTES;
        let mut ethertype = word(head, ip_at - 2)?;
        for _ in 0..TAGS_MAX {
            if !ETHERTYPES_TAG.contains(&ethertype) {
                break;
            }
            ip_at += TAG_BYTES;
            ethertype = word(head, ip_at - 2)?;
        }
        let packet_bytes = bytes.checked_sub(ip_at)?;
        let ip = head.get(ip_at..)?;
        let (protocol, ip_bytes, is_ipv6) = match ethertype {
            ETHERTYPE_IPV4 => {
                let header: &[u8; IPV4_BYTES_MIN] = ip.first_chunk()?;
                let header_bytes = usize::from(header[0] & 0xf) * 4;
                let is_fragment = be16(header, 6..8) & 0x3fff != 0;
                if header[0] >> 4 != 4
                    || header_bytes < IPV4_BYTES_MIN
                    || usize::from(be16(header, 2..4)) != packet_bytes
                    || is_fragment
                {
                    return None;
                }
                (header[9], header_bytes, false)
            }
            ETHERTYPE_IPV6 => {
                let header: &[u8; IPV6_BYTES] = ip.first_chunk()?;
                if header[0] >> 4 != 6
                    || usize::from(be16(header, 4..6)) + IPV6_BYTES != packet_bytes
                {
                    return None;
                }
                (header[6], IPV6_BYTES, true)
            }
            _ => return None,
        };
        let transport = ip.get(ip_bytes..)?;
        let transport_bytes = match protocol {
            UDP => {
                let length = word(transport, 4)?;
                if usize::from(length) + ip_bytes != packet_bytes {
                    return None;
                }
                UDP_BYTES
            }
            TCP => {
                let header_bytes = usize::from(transport.get(12)? >> 4) * 4;
                if header_bytes < TCP_BYTES_MIN {
                    return None;
                }
                header_bytes
            }
            _ => return None,
        };
        if transport.len() < transport_bytes {
            return None;
        }
        let transport_at = ip_at + ip_bytes;
        let payload_at = transport_at + transport_bytes;
        let payload_bytes = bytes.checked_sub(payload_at)?;
        let it = Self {
            ip_at,
            transport_at,
            payload_at,
            payload_bytes,
            segment_bytes: usize::from(segment_bytes),
            is_ipv6,
            is_udp: protocol == UDP,
        };
        let can_be_cut = payload_bytes > 0 && segment_bytes > 0;
        (can_be_cut && it.segments() <= SUPERFRAME_SEGMENTS_MAX).then_some(it)
    }

    /// What is in it.
    #[must_use]
    pub const fn kind(&self) -> Segments {
        match (self.is_udp, self.is_ipv6) {
            (true, _) => Segments::Udp,
            (false, false) => Segments::Tcp4,
            (false, true) => Segments::Tcp6,
        }
    }

    /// Bytes of the headers.
    #[must_use]
    pub const fn headers_bytes(&self) -> usize {
        self.payload_at
    }

    /// Where the TCP or UDP header begins.
    #[must_use]
    pub const fn transport_at(&self) -> usize {
        self.transport_at
    }

    /// Where the checksum is in the TCP or UDP header.
    #[must_use]
    pub const fn checksum_offset(&self) -> usize {
        if self.is_udp { 6 } else { 16 }
    }

    /// Bytes of the payload of each frame but the last.
    #[must_use]
    pub const fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// The number of frames that it becomes.
    #[must_use]
    pub const fn segments(&self) -> usize {
        self.payload_bytes.div_ceil(self.segment_bytes)
    }

    /// Whether the sender says that it has reduced its congestion window, which the first frame
    /// alone is to say (`head` begins with the headers).
    #[must_use]
    pub fn has_cwr(&self, head: &[u8]) -> bool {
        let flags = head.get(self.transport_at + TCP_FLAGS);
        !self.is_udp && flags.is_some_and(|flags| flags & CWR != 0)
    }

    /// The payload of a frame, as a part of the superframe's. Empty beyond the last frame.
    #[must_use]
    pub fn payload_of(&self, index: usize) -> Range<usize> {
        let end = self.payload_bytes;
        let from = (index * self.segment_bytes).min(end);
        from..(from + self.segment_bytes).min(end)
    }

    /// The sum of the pseudo header of a TCP segment or UDP datagram of so many bytes, header
    /// included, in `ip`'s packet: not complemented, as kernels leave it in the field of a checksum
    /// that is open.
    fn pseudo_sum(&self, ip: &[u8], bytes: usize) -> u16 {
        let addresses = if self.is_ipv6 { 8..40 } else { 12..20 };
        let protocol = u16::from(if self.is_udp { UDP } else { TCP });
        // Of a superframe the length may be beyond 16 bits only by what parse() refuses.
        let words = [
            u64::from(!internet_checksum(&ip[addresses])),
            u64::from(protocol),
            bytes as u64,
        ];
        let mut sum: u64 = words.iter().sum();
        for _ in 0..2 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// Puts into the headers of the whole superframe, which `head` begins with, the open checksum
    /// that a kernel expects there: the sum of the pseudo header.
    ///
    /// # Panics
    /// If `head` has fewer than [`headers_bytes`](Self::headers_bytes).
    pub fn open_checksum(&self, head: &mut [u8]) {
        let bytes = self.payload_at - self.transport_at + self.payload_bytes;
        let sum = self.pseudo_sum(&head[self.ip_at..self.transport_at], bytes);
        put(head, self.transport_at + self.checksum_offset(), sum);
    }

    /// Writes the headers of the frame at `index` to the start of `frame`, which has its payload
    /// behind them already. `head` begins with the superframe's headers.
    ///
    /// # Panics
    /// If `head` or `frame` is shorter than the headers.
    pub fn write_headers(&self, head: &[u8], index: usize, frame: &mut [u8]) {
        let Self {
            ip_at,
            transport_at,
            payload_at,
            ..
        } = *self;
        frame[..payload_at].copy_from_slice(&head[..payload_at]);
        let packet_bytes = frame.len() - ip_at;
        let (headers, transport) = frame.split_at_mut(transport_at);
        let ip = &mut headers[ip_at..];
        if self.is_ipv6 {
            put(ip, 4, (packet_bytes - IPV6_BYTES) as u16);
        } else {
            let identification = u16::from_be_bytes([ip[4], ip[5]]);
            put(ip, 2, packet_bytes as u16);
            put(ip, 4, identification.wrapping_add(index as u16));
            put(ip, 10, 0);
            let checksum = internet_checksum(ip);
            put(ip, 10, checksum);
        }
        let bytes = transport.len();
        if self.is_udp {
            put(transport, 4, bytes as u16);
        } else if let Some(number) = transport.get_mut(4..8)
            && let Some(&first) = number.first_chunk()
        {
            let before = (index * self.segment_bytes) as u32;
            let number_here = u32::from_be_bytes(first).wrapping_add(before);
            number.copy_from_slice(&number_here.to_be_bytes());
            if index > 0 {
                transport[TCP_FLAGS] &= !CWR;
            }
            if index + 1 < self.segments() {
                transport[TCP_FLAGS] &= !(FIN | PSH);
            }
        }
        let at = self.checksum_offset();
        put(transport, at, self.pseudo_sum(ip, bytes));
        let checksum = match internet_checksum(transport) {
            // Zero says that a UDP datagram has none.
            0 if self.is_udp => u16::MAX,
            checksum => checksum,
        };
        put(transport, at, checksum);
    }
}

#[cfg(test)]
mod tests;
