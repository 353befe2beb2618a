//! ARP and ICMP echo replies of the switch, and ARP requests of members.
//!
//! Replies reuse the request's bytes.

use crate::frame::{
    ETHERNET_BYTES, ETHERTYPE_ARP, ETHERTYPE_IPV4, IPV4_BYTES, Mac, internet_checksum,
};
use core::net::Ipv4Addr;

const ARP_BYTES: usize = 28;
const ICMP_BYTES: usize = 8;
/// ARP's hardware and protocol types and lengths: Ethernet and IPv4.
const ARP_ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Shortest Ethernet frame without its check sequence.
pub const FRAME_BYTES_MIN: usize = 60;

/// ARP request of the host at `own_ip` for the MAC of `wanted`.
#[must_use]
pub fn arp_request(own_mac: Mac, own_ip: Ipv4Addr, wanted: Ipv4Addr) -> [u8; FRAME_BYTES_MIN] {
    let mut frame = [0; FRAME_BYTES_MIN];
    frame[0..6].copy_from_slice(&Mac::BROADCAST.0);
    frame[6..12].copy_from_slice(&own_mac.0);
    frame[12..14].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
    frame[14..20].copy_from_slice(&ARP_ETHERNET_IPV4);
    frame[20..22].copy_from_slice(&[0, 1]);
    frame[22..28].copy_from_slice(&own_mac.0);
    frame[28..32].copy_from_slice(&own_ip.octets());
    frame[38..42].copy_from_slice(&wanted.octets());
    frame
}

/// The MAC of `sender` in an ARP request or reply, if `sender` sent the frame.
///
/// Never a group address.
#[must_use]
pub fn arp_sender(frame: &[u8], sender: Ipv4Addr) -> Option<Mac> {
    let b = frame.first_chunk::<{ ETHERNET_BYTES + ARP_BYTES }>()?;
    let is_arp = b[12..14] == ETHERTYPE_ARP.to_be_bytes() && b[14..20] == ARP_ETHERNET_IPV4;
    let mac = Mac([b[22], b[23], b[24], b[25], b[26], b[27]]);
    (is_arp && b[28..32] == sender.octets() && !mac.is_group()).then_some(mac)
}

/// Turns an ARP request for `own_ip`, in `frame`, into the reply.
///
/// Returns whether it did. It leaves any other frame unchanged, also gratuitous requests and probes
/// for other addresses.
pub fn answer_arp(frame: &mut [u8], own_mac: Mac, own_ip: Ipv4Addr) -> bool {
    let Some(b) = frame.first_chunk_mut::<{ ETHERNET_BYTES + ARP_BYTES }>() else {
        return false;
    };
    let is_request = b[12..14] == ETHERTYPE_ARP.to_be_bytes()
        && b[14..20] == ARP_ETHERNET_IPV4
        && b[20..22] == [0, 1]
        && b[38..42] == own_ip.octets();
    // A sender with a group address, or with the switch's, cannot receive an answer.
    if !is_request || b[22] & 1 == 1 || b[28..32] == own_ip.octets() {
        return false;
    }
    b.copy_within(22..32, 32);
    b.copy_within(22..28, 0);
    b[6..12].copy_from_slice(&own_mac.0);
    b[20..22].copy_from_slice(&[0, 2]);
    b[22..28].copy_from_slice(&own_mac.0);
    b[28..32].copy_from_slice(&own_ip.octets());
    true
}

/// Turns an ICMP echo request to `own_ip`, in `frame`, into the reply.
///
/// Returns whether it did. It leaves any other frame unchanged, also fragments and requests with
/// IPv4 options.
pub fn answer_echo(frame: &mut [u8], own_mac: Mac, own_ip: Ipv4Addr) -> bool {
    const ICMP_AT: usize = ETHERNET_BYTES + IPV4_BYTES;
    let len = frame.len();
    if len < ICMP_AT + ICMP_BYTES
        || frame[12..14] != ETHERTYPE_IPV4.to_be_bytes()
        || frame[14] != 0x45
        || u16::from_be_bytes([frame[20], frame[21]]) & 0x3fff != 0
        || frame[23] != 1
        || frame[30..34] != own_ip.octets()
        || frame[ICMP_AT..ICMP_AT + 2] != [8, 0]
        || frame[6] & 1 == 1
    {
        return false;
    }
    let end = ETHERNET_BYTES + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    if end < ICMP_AT + ICMP_BYTES || end > len {
        return false;
    }
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&own_mac.0);
    frame.copy_within(26..30, 30);
    frame[26..30].copy_from_slice(&own_ip.octets());
    frame[22] = 64;
    frame[24..26].fill(0);
    let ip_sum = internet_checksum(&frame[ETHERNET_BYTES..ICMP_AT]);
    frame[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    frame[ICMP_AT] = 0;
    frame[ICMP_AT + 2..ICMP_AT + 4].fill(0);
    let sum = internet_checksum(&frame[ICMP_AT..end]);
    frame[ICMP_AT + 2..ICMP_AT + 4].copy_from_slice(&sum.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
    const IP: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
    const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn arp_request() -> Vec<u8> {
        let mut f = vec![0xff; 6];
        f.extend_from_slice(&HOST);
        f.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        f.extend_from_slice(&HOST);
        f.extend_from_slice(&[10, 84, 0, 1]);
        f.extend_from_slice(&[0; 6]);
        f.extend_from_slice(&IP.octets());
        f
    }

    fn echo_request() -> Vec<u8> {
        let mut f = MAC.0.to_vec();
        f.extend_from_slice(&HOST);
        f.extend_from_slice(&[
            8, 0, 0x45, 0, 0, 33, 1, 2, 0x40, 0, 9, 1, 0, 0, 10, 84, 0, 1,
        ]);
        f.extend_from_slice(&IP.octets());
        f.extend_from_slice(&[8, 0, 0, 0, 0, 7, 0, 1, b'o', b'd', b'd', b'!', b'!']);
        f
    }

    #[test]
    fn arp_is_answered() {
        let mut f = arp_request();
        assert!(answer_arp(&mut f, MAC, IP));
        let mut want = HOST.to_vec();
        want.extend_from_slice(&MAC.0);
        want.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        want.extend_from_slice(&MAC.0);
        want.extend_from_slice(&IP.octets());
        want.extend_from_slice(&HOST);
        want.extend_from_slice(&[10, 84, 0, 1]);
        assert_eq!(f, want);
    }

    #[test]
    fn the_answer_to_our_request_names_who_was_asked_for() {
        let mut f = super::arp_request(Mac(HOST), Ipv4Addr::new(10, 84, 0, 1), IP);
        assert_eq!(f[..42], arp_request()[..]);
        assert_eq!(arp_sender(&f, IP), None, "our own request");
        assert!(answer_arp(&mut f, MAC, IP));
        assert_eq!(arp_sender(&f, IP), Some(MAC));
        assert_eq!(arp_sender(&f, Ipv4Addr::new(10, 84, 0, 9)), None);
        for len in 0..42 {
            assert_eq!(arp_sender(&f[..len], IP), None, "length {len}");
        }
        f[22] |= 1;
        assert_eq!(arp_sender(&f, IP), None, "a group's");
    }

    #[test]
    fn echo_is_answered_with_valid_checksums() {
        let mut f = echo_request();
        assert!(answer_echo(&mut f, MAC, IP));
        assert_eq!(f[0..6], HOST);
        assert_eq!(f[26..30], IP.octets());
        assert_eq!(f[34..36], [0, 0]);
        assert_eq!(f[38..], echo_request()[38..]);
        assert_eq!(internet_checksum(&f[14..34]), 0);
        assert_eq!(internet_checksum(&f[34..]), 0);
    }

    #[test]
    fn truncated_at_every_length_is_left_alone() {
        for whole in [arp_request(), echo_request()] {
            for len in 0..whole.len() {
                let mut f = whole[..len].to_vec();
                assert!(
                    !answer_arp(&mut f, MAC, IP) && !answer_echo(&mut f, MAC, IP),
                    "length {len}"
                );
                assert_eq!(f, whole[..len]);
            }
        }
    }

    #[test]
    fn other_addresses_are_left_alone() {
        let other = Ipv4Addr::new(10, 84, 0, 253);
        assert!(!answer_arp(&mut arp_request(), MAC, other));
        assert!(!answer_echo(&mut echo_request(), MAC, other));
    }

    #[test]
    fn a_sender_that_claims_our_address_gets_nothing() {
        let mut f = arp_request();
        f[28..32].copy_from_slice(&IP.octets());
        assert!(!answer_arp(&mut f, MAC, IP));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut b in prop::collection::vec(any::<u8>(), 0..120), base in 0..3, at in 0usize..60) {
            let mut f = match base { 0 => arp_request(), 1 => echo_request(), _ => Vec::new() };
            f.truncate(at);
            f.append(&mut b);
            answer_arp(&mut f, MAC, IP);
            answer_echo(&mut f, MAC, IP);
        }
    }
}
