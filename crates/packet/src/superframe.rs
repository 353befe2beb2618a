//! Headers of superframes: UDP datagrams of one length and with the same headers, as one long
//! frame.
//!
//! A superframe is what the kernel's segmentation offload passes around: the headers once, and
//! behind them the datagrams one after the other. The kernel, a NIC, or we cut it up where it must
//! become frames.

use tally_wire::field::{be16, ethernet, ipv4, udp};
use tally_wire::frame::{ETHERNET_BYTES, ETHERTYPE_IPV4, UDP_END, internet_checksum};
use tally_wire::roce;
use tally_wire::superframe::{Segments, Superframe};

/// Most datagrams in one, as the kernel has it (`UDP_MAX_SEGMENTS`).
pub(crate) const DATAGRAMS_MAX: usize = 64;
/// Most bytes of datagrams in one: what an IPv4 packet can say of its length.
pub(crate) const BYTES_MAX: usize = 65_507;

/// Where IPv4's fields are in a frame without VLAN tag and options.
const IP: usize = ETHERNET_BYTES;
const UDP: usize = IP + 20;
const PROTOCOL_UDP: u8 = 17;
const VERSION_AND_LENGTH: u8 = 0x45;

/// What the kernel says of each frame, and wants to know of it: `struct virtio_net_hdr`, in the
/// machine's byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offload {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) hdr_len: u16,
    pub(crate) gso_size: u16,
    pub(crate) csum_start: u16,
    pub(crate) csum_offset: u16,
}

impl Offload {
    /// A frame like any other.
    pub(crate) const NONE: u8 = 0;
    /// TCP segments over IPv4 (`VIRTIO_NET_HDR_GSO_TCPV4`).
    const TCP4: u8 = 1;
    /// TCP segments over IPv6 (`VIRTIO_NET_HDR_GSO_TCPV6`).
    const TCP6: u8 = 4;
    /// UDP datagrams of one length (`VIRTIO_NET_HDR_GSO_UDP_L4`).
    pub(crate) const UDP: u8 = 5;
    /// Beside TCP: CWR is set, for the first segment alone (`VIRTIO_NET_HDR_GSO_ECN`).
    pub(crate) const ECN: u8 = 0x80;
    /// The transport's checksum is to be finished (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    pub(crate) const CHECKSUM_OPEN: u8 = 1;
    /// Where the checksum is in a UDP header.
    const UDP_CHECKSUM: u16 = 6;

    /// The kernel's number of what is in a superframe.
    pub(crate) const fn kind_of(segments: Segments) -> u8 {
        match segments {
            Segments::Tcp4 => Self::TCP4,
            Segments::Tcp6 => Self::TCP6,
            Segments::Udp => Self::UDP,
        }
    }

    /// Of a superframe that begins with `head`, in which the checksum is open.
    pub(crate) fn of_forwarded(superframe: &Superframe, head: &[u8]) -> Self {
        let ecn = if superframe.has_cwr(head) {
            Self::ECN
        } else {
            0
        };
        Self {
            flags: Self::CHECKSUM_OPEN,
            gso_type: Self::kind_of(superframe.kind()) | ecn,
            hdr_len: superframe.headers_bytes() as u16,
            gso_size: superframe.segment_bytes() as u16,
            csum_start: superframe.transport_at() as u16,
            csum_offset: superframe.checksum_offset() as u16,
        }
    }

    /// Of a superframe of datagrams of `datagram_bytes`.
    pub(crate) fn of_superframe(datagram_bytes: usize) -> Self {
        Self {
            flags: Self::CHECKSUM_OPEN,
            gso_type: Self::UDP,
            hdr_len: UDP_END as u16,
            gso_size: datagram_bytes as u16,
            csum_start: UDP as u16,
            csum_offset: Self::UDP_CHECKSUM,
        }
    }
}

/// Whether a frame of `bytes` that begins with `head` may be a part of a superframe: UDP over IPv4,
/// in one fragment, without options, padding and checksum, and its headers in one piece. RoCEv2
/// may not: where the kernel cuts a superframe it counts up IPv4's identification, which the ICRC
/// covers.
pub(crate) fn may_join(head: &[u8], bytes: usize) -> bool {
    let Some(h) = head.first_chunk::<UDP_END>() else {
        return false;
    };
    be16(h, ethernet::ETHERTYPE) == ETHERTYPE_IPV4
        && h[ipv4::VERSION_IHL] == VERSION_AND_LENGTH
        && usize::from(be16(h, ipv4::LENGTH)) == bytes - IP
        && be16(h, ipv4::FRAGMENT) & 0x3fff == 0
        && h[ipv4::PROTOCOL] == PROTOCOL_UDP
        && usize::from(be16(h, udp::LENGTH)) == bytes - UDP
        && be16(h, udp::CHECKSUM) == 0
        && be16(h, udp::DST_PORT) != roce::PORT
        && bytes > UDP_END
}

/// Whether a frame that begins with `next` continues the superframe of one as long that begins with
/// `first`, which may join one.
pub(crate) fn continues(first: &[u8], next: &[u8]) -> bool {
    match (
        first.first_chunk::<UDP_END>(),
        next.first_chunk::<UDP_END>(),
    ) {
        (Some(first), Some(next)) => first == next,
        _ => false,
    }
}

/// The headers of a superframe of so many bytes of datagrams, from those of one of its frames.
pub(crate) fn joined(frame: &[u8; UDP_END], bytes: usize) -> [u8; UDP_END] {
    let mut h = *frame;
    set_lengths(&mut h, bytes);
    // The sum of the pseudo header, to which the datagrams' is added where they are cut.
    let mut sum = u32::from(PROTOCOL_UDP) + (bytes + UDP_END - UDP) as u32;
    for pair in h[ipv4::SRC.start..ipv4::DST.end].as_chunks::<2>().0 {
        sum += u32::from(u16::from_be_bytes(*pair));
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    h[udp::CHECKSUM].copy_from_slice(&(sum as u16).to_be_bytes());
    h
}

/// The headers of a frame with a datagram of so many bytes, from those of a superframe: without UDP
/// checksum, which IPv4 allows.
pub(crate) fn cut(superframe: &[u8; UDP_END], bytes: usize) -> [u8; UDP_END] {
    let mut h = *superframe;
    set_lengths(&mut h, bytes);
    h[udp::CHECKSUM].fill(0);
    h
}

fn set_lengths(h: &mut [u8; UDP_END], bytes: usize) {
    let ip = (UDP_END - IP + bytes) as u16;
    let udp = (UDP_END - UDP + bytes) as u16;
    h[ipv4::LENGTH].copy_from_slice(&ip.to_be_bytes());
    h[ipv4::CHECKSUM].fill(0);
    let checksum = internet_checksum(&h[ipv4::HEADER]);
    h[ipv4::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
    h[udp::LENGTH].copy_from_slice(&udp.to_be_bytes());
}

/// Finishes the transport's checksum, which the sender's kernel has left to a NIC. A UDP datagram
/// over IPv4 does without one if it `may_omit` it.
pub(crate) fn finish_checksum(frame: &mut [u8], offload: &Offload, may_omit: bool) {
    let start = usize::from(offload.csum_start);
    let at = start + usize::from(offload.csum_offset);
    if at + 2 > frame.len() {
        return;
    }
    let is_udp = offload.csum_offset == Offload::UDP_CHECKSUM;
    if may_omit && is_udp && frame.get(ethernet::ETHERTYPE) == Some(&ETHERTYPE_IPV4.to_be_bytes()) {
        // None is as good, and costs nothing.
        frame[at..at + 2].fill(0);
        return;
    }
    let checksum = match internet_checksum(&frame[start..]) {
        0 if is_udp => u16::MAX,
        checksum => checksum,
    };
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn frame(bytes: usize) -> Vec<u8> {
        let mut f = vec![0x77; UDP_END + bytes];
        f[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        f[14..26].copy_from_slice(&[0x45, 2, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        f[26..34].copy_from_slice(&[10, 84, 0, 1, 239, 84, 0, 7]);
        f[34..42].copy_from_slice(&[0x7a, 0x11, 0x7a, 0x12, 0, 0, 0, 0]);
        let h = cut(f.first_chunk().unwrap(), bytes);
        f[..UDP_END].copy_from_slice(&h);
        f
    }

    #[test]
    fn what_is_joined_and_cut_is_as_before() {
        let f = frame(100);
        assert!(may_join(&f, f.len()));
        assert_eq!(internet_checksum(&f[14..34]), 0);
        let head: &[u8; UDP_END] = f.first_chunk().unwrap();
        let whole = joined(head, 700);
        assert_eq!(whole[16..18], (728_u16).to_be_bytes());
        assert_eq!(whole[38..40], (708_u16).to_be_bytes());
        assert_eq!(internet_checksum(&whole[14..34]), 0);
        assert_eq!(cut(&whole, 100), *head);
    }

    #[test]
    fn packets_of_roce_travel_one_by_one() {
        let mut f = frame(100);
        f[udp::DST_PORT].copy_from_slice(&roce::PORT.to_be_bytes());
        assert!(!may_join(&f, f.len()));
    }

    #[test]
    fn the_open_checksum_is_that_of_the_pseudo_header() {
        // As a receiver checks it: pseudo header, UDP header and data sum up to zero once what is
        // open is finished.
        let f = frame(6);
        let whole = joined(f.first_chunk().unwrap(), 6);
        let mut tcp = whole.to_vec();
        tcp.extend([1, 2, 3, 4, 5, 6]);
        let offload = Offload {
            csum_start: 34,
            csum_offset: 6,
            ..Offload::default()
        };
        // Not IPv4 by its type, so that the checksum is not left out.
        tcp[12] = 0x86;
        finish_checksum(&mut tcp, &offload, true);
        let mut pseudo = tcp[26..34].to_vec();
        pseudo.extend([0, 17, 0, 14]);
        pseudo.extend(&tcp[34..]);
        assert_eq!(internet_checksum(&pseudo), 0);
    }

    #[test]
    fn what_differs_stays_apart() {
        let f = frame(100);
        for at in 0..UDP_END {
            let mut other = f.clone();
            other[at] ^= 0x10;
            assert!(!continues(&f, &other), "byte {at}");
        }
        let mut other = f.clone();
        other[UDP_END] ^= 1;
        assert!(continues(&f, &other));
        assert!(!continues(&f, &f[..UDP_END - 1]));
        assert!(!continues(&f, &frame(101)), "another length of IPv4");
        for at in [12, 14, 17, 20, 23, 39, 41] {
            let mut other = f.clone();
            other[at] ^= 0x21;
            assert!(!may_join(&other, other.len()), "byte {at}");
        }
        assert!(!may_join(&f, UDP_END));
        assert!(!may_join(&f, f.len() - 1));
        assert!(!may_join(&f, f.len() + 1), "padded");
        // In several segments: the headers have to be in the first one.
        assert!(may_join(&f[..UDP_END + 10], f.len()));
        assert!(may_join(&f[..UDP_END], f.len()));
        assert!(!may_join(&f[..UDP_END - 1], f.len()));
    }

    #[test]
    fn open_checksums_of_tcp_are_finished_and_hostile_places_are_left_alone() {
        let mut f = frame(40);
        let offload = |csum_start, csum_offset| Offload {
            csum_start,
            csum_offset,
            ..Offload::default()
        };
        f[34 + 16..34 + 18].copy_from_slice(&[0x12, 0x34]);
        finish_checksum(&mut f, &offload(34, 16), true);
        assert_ne!(f[50..52], [0x12, 0x34]);
        assert_ne!(f[50..52], [0, 0]);
        let before = f.clone();
        finish_checksum(&mut f, &offload(34, 1000), true);
        finish_checksum(&mut f, &offload(u16::MAX, u16::MAX), true);
        assert_eq!(f, before);
        finish_checksum(&mut f, &offload(34, 6), true);
        assert_eq!(f[40..42], [0, 0]);
    }
}
