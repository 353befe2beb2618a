//! ARP and ICMP echo replies of the switch, and ARP requests of members.
//!
//! Replies reuse the request's bytes.

use crate::field::{arp, be16, ethernet, icmp, ipv4, mac};
use crate::frame::{ETHERNET_BYTES, ETHERTYPE_ARP, ETHERTYPE_IPV4, Mac, internet_checksum};
use core::net::Ipv4Addr;

/// ARP's hardware and protocol types and lengths: Ethernet and IPv4.
const ARP_ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: [u8; 2] = [0, 1];
const ARP_REPLY: [u8; 2] = [0, 2];
const PROTOCOL_ICMP: u8 = 1;
/// ICMP types with their code 0.
const ECHO_REQUEST: [u8; 2] = [8, 0];
const ECHO_REPLY: [u8; 2] = [0, 0];

/// Shortest Ethernet frame without its check sequence.
pub const FRAME_BYTES_MIN: usize = 60;

/// ARP request of the host at `own_ip` for the MAC of `wanted`.
#[must_use]
pub fn arp_request(own_mac: Mac, own_ip: Ipv4Addr, wanted: Ipv4Addr) -> [u8; FRAME_BYTES_MIN] {
    let mut frame = [0; FRAME_BYTES_MIN];
    frame[ethernet::DST].copy_from_slice(&Mac::BROADCAST.0);
    frame[ethernet::SRC].copy_from_slice(&own_mac.0);
    frame[ethernet::ETHERTYPE].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
    frame[arp::TYPES].copy_from_slice(&ARP_ETHERNET_IPV4);
    frame[arp::OPERATION].copy_from_slice(&ARP_REQUEST);
    frame[arp::SENDER_MAC].copy_from_slice(&own_mac.0);
    frame[arp::SENDER_IP].copy_from_slice(&own_ip.octets());
    frame[arp::TARGET_IP].copy_from_slice(&wanted.octets());
    frame
}

/// The MAC of `sender` in an ARP request or reply, if `sender` sent the frame.
///
/// Never a group address.
#[must_use]
pub fn arp_sender(frame: &[u8], sender: Ipv4Addr) -> Option<Mac> {
    let b = frame.first_chunk::<{ arp::TARGET.end }>()?;
    let is_arp =
        be16(b, ethernet::ETHERTYPE) == ETHERTYPE_ARP && b[arp::TYPES] == ARP_ETHERNET_IPV4;
    let mac = mac(b, arp::SENDER_MAC);
    (is_arp && b[arp::SENDER_IP] == sender.octets() && !mac.is_group()).then_some(mac)
}

/// Turns an ARP request for `own_ip`, in `frame`, into the reply.
///
/// Returns whether it did. It leaves any other frame unchanged, also gratuitous requests and probes
/// for other addresses.
pub fn answer_arp(frame: &mut [u8], own_mac: Mac, own_ip: Ipv4Addr) -> bool {
    let Some(b) = frame.first_chunk_mut::<{ arp::TARGET.end }>() else {
        return false;
    };
    let is_request = be16(b, ethernet::ETHERTYPE) == ETHERTYPE_ARP
        && b[arp::TYPES] == ARP_ETHERNET_IPV4
        && b[arp::OPERATION] == ARP_REQUEST
        && b[arp::TARGET_IP] == own_ip.octets();
    // A sender with a group address, or with the switch's, cannot receive an answer.
    if !is_request || mac(b, arp::SENDER_MAC).is_group() || b[arp::SENDER_IP] == own_ip.octets() {
        return false;
    }
    b.copy_within(arp::SENDER, arp::TARGET.start);
    b.copy_within(arp::SENDER_MAC, ethernet::DST.start);
    b[ethernet::SRC].copy_from_slice(&own_mac.0);
    b[arp::OPERATION].copy_from_slice(&ARP_REPLY);
    b[arp::SENDER_MAC].copy_from_slice(&own_mac.0);
    b[arp::SENDER_IP].copy_from_slice(&own_ip.octets());
    true
}

/// Turns an ICMP echo request to `own_ip`, in `frame`, into the reply.
///
/// Returns whether it did. It leaves any other frame unchanged, also fragments and requests with
/// IPv4 options.
pub fn answer_echo(frame: &mut [u8], own_mac: Mac, own_ip: Ipv4Addr) -> bool {
    let len = frame.len();
    if len < icmp::END
        || be16(frame, ethernet::ETHERTYPE) != ETHERTYPE_IPV4
        || frame[ipv4::VERSION_IHL] != 0x45
        || be16(frame, ipv4::FRAGMENT) & 0x3fff != 0
        || frame[ipv4::PROTOCOL] != PROTOCOL_ICMP
        || frame[ipv4::DST] != own_ip.octets()
        || frame[icmp::TYPE_CODE] != ECHO_REQUEST
        || mac(frame, ethernet::SRC).is_group()
    {
        return false;
    }
    let end = ETHERNET_BYTES + usize::from(be16(frame, ipv4::LENGTH));
    if end < icmp::END || end > len {
        return false;
    }
    frame.copy_within(ethernet::SRC, ethernet::DST.start);
    frame[ethernet::SRC].copy_from_slice(&own_mac.0);
    frame.copy_within(ipv4::SRC, ipv4::DST.start);
    frame[ipv4::SRC].copy_from_slice(&own_ip.octets());
    frame[ipv4::TTL] = 64;
    frame[ipv4::CHECKSUM].fill(0);
    let ip_sum = internet_checksum(&frame[ipv4::HEADER]);
    frame[ipv4::CHECKSUM].copy_from_slice(&ip_sum.to_be_bytes());
    frame[icmp::TYPE_CODE].copy_from_slice(&ECHO_REPLY);
    frame[icmp::CHECKSUM].fill(0);
    let sum = internet_checksum(&frame[ipv4::HEADER.end..end]);
    frame[icmp::CHECKSUM].copy_from_slice(&sum.to_be_bytes());
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
