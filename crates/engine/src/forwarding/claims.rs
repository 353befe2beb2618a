//! Claims: frames that a receiver could take for the switch's own.
//!
//! Workers trust the switch's source address, so no port may send with it, in any
//! encapsulation that a host strips. Three things are the switch's alone:
//!
//! * Its addresses: as Ethernet or IPv4 source, as sender of an ARP frame, and as the target of an
//!   ARP answer.
//! * The group addresses of jobs, 239.84.0.0/16, of any protocol and in fragments too: hosts
//!   take a datagram to a group that they listen to from any Ethernet destination. Of 32 groups
//!   with one MAC only one is a job's. So the IPv4 destination decides. The MAC alone counts where
//!   nothing else of the 32 is in the frame.
//! * ICMP errors that quote a datagram to it. Between a host and the switch is no router, and a
//!   host that believes one shortens its frames or gives its socket an error.
//!
//! A packet to the switch's IPv4 address but not to its MAC is dropped as well. No host has that
//! address, and the destination MAC may be a secret: the switch assigns one to each SwitchML
//! worker. A frame to it behind a VLAN tag would be flooded.
//!
//! The UDP ports of jobs need no rule of their own: a datagram is taken for the switch's only with
//! the switch's address, so the same ports between other hosts are ordinary traffic.

use crate::DropReason;
use std::net::Ipv4Addr;
use tally_wire::Mac;
use tally_wire::encapsulation::{EncapsulationError, Inside, inside};
use tally_wire::field::{self, Field, arp, ipv4};
use tally_wire::frame::{ETHERNET_BYTES, ETHERTYPE_ARP, ETHERTYPE_IPV4, GROUP_PREFIX, IPV4_BYTES};

/// The first four bytes of the MACs of jobs' groups.
const GROUP_MAC_PREFIX: [u8; 4] = [1, 0, 0x5e, GROUP_PREFIX[1]];
const PROTOCOL_ICMP: u8 = 1;
/// Destination unreachable, source quench, redirect, time exceeded, parameter problem: messages
/// that quote what they are about.
const ICMP_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
const ICMP_BYTES: usize = 8;
const ARP_BYTES: usize = 28;
const ARP_REQUEST: [u8; 2] = [0, 1];

/// Looks for what only the switch with these addresses may say, and returns what is in the frame.
///
/// # Errors
/// What the frame claims; or that its inside cannot be known.
#[inline]
pub fn check(frame: &[u8], mac: Mac, ip: Ipv4Addr) -> Result<Inside, DropReason> {
    let inside = inside(frame)?;
    let payload = &frame[inside.at..];
    let spoofed = if inside.is_encapsulated() {
        DropReason::SpoofedBehindTag
    } else {
        DropReason::SpoofedSwitch
    };
    let mut group = None;
    match inside.ethertype {
        ETHERTYPE_IPV4 => {
            if let Some(header) = payload.first_chunk() {
                let (source, destination) = addresses(header);
                if source == ip {
                    return Err(spoofed);
                }
                if destination == ip {
                    return Err(DropReason::NotOurMac);
                }
                if destination.octets()[..2] == GROUP_PREFIX {
                    return Err(DropReason::ClaimsGroup);
                }
                if header[ipv4::PROTOCOL - ETHERNET_BYTES] == PROTOCOL_ICMP
                    && is_error_about(payload, ip)
                {
                    return Err(DropReason::ClaimsError);
                }
                group = destination.is_multicast().then_some(destination);
            }
        }
        ETHERTYPE_ARP => {
            if let Some(arp) = payload.first_chunk()
                && claims_arp(arp, mac, ip)
            {
                return Err(spoofed);
            }
        }
        _ => {}
    }
    let is_jobs = frame.starts_with(&GROUP_MAC_PREFIX);
    if is_jobs && group.is_none_or(|group| !frame.starts_with(&Mac::of_group(group).0)) {
        return Err(DropReason::ClaimsGroup);
    }
    Ok(inside)
}

/// A field's bytes in the payload of a frame.
const fn behind_ethernet(field: Field) -> Field {
    field.start - ETHERNET_BYTES..field.end - ETHERNET_BYTES
}

fn addresses(header: &[u8; IPV4_BYTES]) -> (Ipv4Addr, Ipv4Addr) {
    let at = |field| field::ip(header, behind_ethernet(field));
    (at(ipv4::SRC), at(ipv4::DST))
}

/// Whether an ICMP packet is an error about a datagram to `ip`. One in fragments counts as such:
/// what it quotes is in another fragment, and hosts send none.
#[cold]
fn is_error_about(packet: &[u8], ip: Ipv4Addr) -> bool {
    let header_bytes = usize::from(packet[0] & 0xf) * 4;
    let fragment = field::be16(packet, behind_ethernet(ipv4::FRAGMENT)) & 0x3fff;
    let Some(message) = packet.get(header_bytes..) else {
        return false;
    };
    if fragment & 0x1fff != 0
        || !message
            .first()
            .is_some_and(|kind| ICMP_ERRORS.contains(kind))
    {
        return false;
    }
    let quoted = message.get(ICMP_BYTES..).and_then(<[u8]>::first_chunk);
    fragment != 0 || quoted.is_some_and(|quoted| addresses(quoted).1 == ip)
}

/// Whether an ARP frame gives a hardware address for `ip`, or gives `mac` to another address.
fn claims_arp(arp: &[u8; ARP_BYTES], mac: Mac, ip: Ipv4Addr) -> bool {
    let at = |field| &arp[behind_ethernet(field)];
    let is_answer = at(arp::OPERATION) != ARP_REQUEST;
    at(arp::SENDER_MAC) == mac.0
        || at(arp::SENDER_IP) == ip.octets()
        || is_answer && at(arp::TARGET_IP) == ip.octets()
}

impl From<EncapsulationError> for DropReason {
    #[inline]
    fn from(error: EncapsulationError) -> Self {
        match error {
            EncapsulationError::Truncated => Self::Truncated,
            EncapsulationError::TooDeep => Self::TagDepth,
        }
    }
}
