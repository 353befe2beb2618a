//! Whole Ethernet frames of simulated hosts: what they are made of, and what Linux takes of them.
//!
//! Written for the simulator alone: the switch's own parser of tags has no part in it, so that a
//! mistake in that one is not made here too.

use crate::address::{Address, Destination, HostId, SwitchId};
use std::net::Ipv4Addr;
use std::ops::Range;
use tally_wire::{JobId, Mac};

const ADDRESSES_BYTES: usize = 12;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// The first two bytes of all groups of jobs.
pub const GROUP_PREFIX: [u8; 2] = [239, 84];
/// Of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Of the tags that Linux strips.
const TAGS_STRIPPED: [u16; 2] = [0x8100, 0x88a8];

/// A VLAN tag: its ethertype, and priority and VLAN ID.
pub type Tag = (u16, u16);

/// A frame of at least 60 bytes.
#[must_use]
pub fn frame(to: Mac, from: Mac, tags: &[Tag], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// An IPv4 packet with a UDP datagram. Nothing that is simulated reads its checksums.
#[must_use]
pub fn udp(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), tos: u8, datagram: &[u8]) -> Vec<u8> {
    let udp_bytes = (UDP_BYTES + datagram.len()) as u16;
    let [high, low] = (IPV4_BYTES as u16 + udp_bytes).to_be_bytes();
    let mut packet = vec![0x45, tos, high, low, 0, 0, 0x40, 0, 64, PROTOCOL_UDP, 0, 0];
    packet.extend([from.0.octets(), to.0.octets()].concat());
    for word in [from.1, to.1, udp_bytes, 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(datagram);
    packet
}

/// An ARP request (1) or answer (2).
#[must_use]
pub fn arp(operation: u8, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, operation];
    for (mac, ip) in [sender, target] {
        arp.extend(mac.0);
        arp.extend(ip.octets());
    }
    arp
}

/// The 16 bits at `at`.
#[must_use]
pub fn word(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The IPv4 address at `at`.
#[must_use]
pub fn ip_at(frame: &[u8], at: usize) -> Option<Ipv4Addr> {
    let bytes: &[u8; 4] = frame.get(at..)?.first_chunk()?;
    Some((*bytes).into())
}

/// A datagram that a host takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The switch whose IPv4 address it is from.
    pub from: SwitchId,
    /// The sessions that get it.
    pub to: Destination,
    /// Where it lies in the frame.
    pub at: Range<usize>,
}

/// What a host takes of a frame, as Linux does.
///
/// All tags with VLAN ID 0 are stripped. The frame must be to the host's MAC or a group's, and the
/// packet to the host's IPv4 address or a job's group. Only a datagram from a switch's IPv4 address
/// is for sessions.
#[must_use]
pub fn receive(frame: &[u8], host: HostId) -> Option<Received> {
    let own = Address { host, udp_port: 0 };
    let is_to_group = frame.first()? & 1 == 1;
    if !is_to_group && frame.get(..6)? != own.mac().0 {
        return None;
    }
    let mut at = ADDRESSES_BYTES;
    while TAGS_STRIPPED.contains(&word(frame, at)?) && word(frame, at + 2)? & 0xfff == 0 {
        at += 4;
    }
    let packet = at + 2;
    let is_ipv4 = word(frame, at)? == ETHERTYPE_IPV4 && frame.get(packet)? >> 4 == 4;
    let header_bytes = usize::from(frame.get(packet)? & 0xf) * 4;
    let is_whole = word(frame, packet + 6)? & 0x3fff == 0;
    if !is_ipv4 || header_bytes < IPV4_BYTES || !is_whole || *frame.get(packet + 9)? != PROTOCOL_UDP
    {
        return None;
    }
    let from = SwitchId::of_ip(ip_at(frame, packet + 12)?)?;
    let datagram = packet + header_bytes;
    let udp_port = word(frame, datagram + 2)?;
    let end = datagram + usize::from(word(frame, datagram + 4)?);
    let at = datagram + UDP_BYTES..end;
    frame.get(at.clone())?;
    let ip = ip_at(frame, packet + 16)?;
    let [a, b, high, low] = ip.octets();
    let to = if ip == own.ip() {
        Destination::Member(Address { host, udp_port })
    } else if [a, b] == GROUP_PREFIX {
        Destination::Group(JobId(u16::from_be_bytes([high, low])))
    } else {
        return None;
    };
    Some(Received { from, to, at })
}

#[cfg(test)]
mod tests {
    use super::*;
    const SWITCH: SwitchId = SwitchId(1);

    const HOST: HostId = HostId(3);
    const OWN: Address = Address {
        host: HOST,
        udp_port: 40_000,
    };

    fn from_switch(to: (Ipv4Addr, u16), mac: Mac, tags: &[Tag]) -> Vec<u8> {
        let packet = udp((SWITCH.ip(), 31_249), to, 0, &[7; 30]);
        frame(mac, SWITCH.mac(), tags, ETHERTYPE_IPV4, &packet)
    }

    #[test]
    fn a_host_strips_priority_tags_and_no_others() {
        let to = (OWN.ip(), 40_000);
        for (tags, taken) in [
            (&[][..], true),
            (&[(0x8100, 0)], true),
            (&[(0x88a8, 0xe000), (0x8100, 0), (0x8100, 0x2000)], true),
            (&[(0x8100, 5)], false),
            (&[(0x9100, 0)], false),
            (&[(0x8100, 0), (0x9100, 0)], false),
        ] {
            let bytes = from_switch(to, OWN.mac(), tags);
            let received = receive(&bytes, HOST);
            let expected = taken.then(|| {
                let at = 42 + 4 * tags.len();
                Received {
                    from: SWITCH,
                    to: Destination::Member(OWN),
                    at: at..at + 30,
                }
            });
            assert_eq!(received, expected, "{tags:x?}");
        }
    }

    #[test]
    fn a_host_takes_its_groups_from_any_mac_and_only_what_the_switch_sends() {
        let group = (Ipv4Addr::new(239, 84, 1, 2), 9);
        let others = Address {
            host: HostId(4),
            udp_port: 0,
        };
        for (mac, taken) in [
            (OWN.mac(), true),
            (Mac::BROADCAST, true),
            (others.mac(), false),
        ] {
            let received = receive(&from_switch(group, mac, &[]), HOST);
            let expected = taken.then_some(Received {
                from: SWITCH,
                to: Destination::Group(JobId(0x102)),
                at: 42..72,
            });
            assert_eq!(received, expected);
        }
        let packet = udp((others.ip(), 1), (OWN.ip(), 2), 0, &[7; 30]);
        let bytes = frame(OWN.mac(), others.mac(), &[], ETHERTYPE_IPV4, &packet);
        assert_eq!(receive(&bytes, HOST), None);
        let whole = from_switch(group, OWN.mac(), &[]);
        for len in 0..72 {
            assert_eq!(receive(&whole[..len], HOST), None, "{len}");
        }
    }
}
