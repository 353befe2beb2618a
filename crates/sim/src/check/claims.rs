//! What a frame claims, and what forwarding makes of it: nothing that claims to be the switch's may
//! reach a host through it, and a hostile host may not keep members from their ordinary traffic.
//!
//! Written for the checker alone, from ADR 22: the switch's own parser has no part in it.

use super::findings::{Checker, Findings};
use super::options::fabric::NEAR;
use crate::address::{Place, SwitchId};
use crate::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, GROUP_PREFIX, ip_at, word};
use crate::frame::{Frame, Origin};
use crate::switch::Transit;
use tally_engine::forwarding::Verdict;
use tally_engine::{DropReason, PortId};

/// Tags of all kinds: other hosts than Linux strip more than it does.
const TAGS: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];

/// The first four bytes of the MACs of jobs' groups.
const GROUP_MAC_PREFIX: [u8; 4] = [1, 0, 0x5e, GROUP_PREFIX[1]];

/// What of a switch's a frame claims, behind tags of any kind, VLAN ID and number.
#[must_use]
pub fn claim(frame: &[u8], switch: SwitchId) -> Option<&'static str> {
    if frame.get(6..12)? == switch.mac().0 {
        return Some("its MAC as Ethernet source");
    }
    let mut at = 12;
    while TAGS.contains(&word(frame, at)?) {
        at += 4;
    }
    let ethertype = word(frame, at)?;
    let payload = frame.get(at + 2..)?;
    // 32 groups share a MAC, so the IPv4 destination decides where there is a group's.
    let is_to_group = ethertype == ETHERTYPE_IPV4 && payload.get(16)? >> 4 == 14;
    if frame[..4] == GROUP_MAC_PREFIX && !is_to_group {
        return Some("the MAC of a job's group");
    }
    let is_own_ip = |at| ip_at(payload, at) == Some(switch.ip());
    match ethertype {
        ETHERTYPE_IPV4 if is_own_ip(12) => Some("its IPv4 address as source"),
        ETHERTYPE_IPV4 if payload.get(16..18)? == GROUP_PREFIX => Some("a job's group"),
        ETHERTYPE_ARP if payload.get(8..14)? == switch.mac().0 || is_own_ip(14) => {
            Some("its addresses as ARP sender")
        }
        ETHERTYPE_ARP if word(payload, 6)? != 1 && is_own_ip(24) => {
            Some("its IPv4 address as target of an ARP answer")
        }
        _ => None,
    }
}

/// Looks at a frame that has come to a host of the switch `own`. The hostile host is at the first
/// switch, so that neither lets its claims pass.
pub fn look_at_claims(findings: &Findings, place: Place, frame: &Frame, own: SwitchId) {
    let origin = frame.origin();
    if !matches!(place, Place::Host(_)) || matches!(origin, Origin::Switch(_) | Origin::Planted) {
        return;
    }
    let claimed = claim(frame.bytes(), NEAR).or_else(|| claim(frame.bytes(), own));
    if let Some(claimed) = claimed {
        findings.report(Checker::Forwarding, || {
            format!("a frame of {origin:?} that claims a switch's own ({claimed}) came to {place}")
        });
    }
}

/// Who is where, as a switch sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// The port behind which the hostile host is.
    pub hostile: PortId,
    /// A port that many hosts share, so that none can be told from another.
    pub shared: Option<PortId>,
}

/// Looks at what a switch decided on a whole frame.
///
/// Members bound to the ingress port have sent it themselves, unless the hostile host is there.
pub fn look_at_transit(findings: &Findings, switch: SwitchId, transit: &Transit, sight: Sight) {
    let s = switch.0;
    let Transit {
        ingress,
        verdict,
        destination_port,
        ..
    } = *transit;
    let goes_back = verdict == Ok(Verdict::Forward(ingress));
    findings.require(!goes_back, Checker::Forwarding, || {
        format!("switch {s} sent a frame back to where it came from: {transit:?}")
    });
    let Some(source_port) = transit.source_port else {
        return;
    };
    if ingress == sight.hostile && ingress != source_port {
        // No member joined from there: the hostile host has no key. Answers leave by the same port.
        let stays = matches!(verdict, Err(_) | Ok(Verdict::Answer));
        findings.require(stays, Checker::Forwarding, || {
            format!(
                "switch {s} forwarded a frame in a member's name from another port: {transit:?}"
            )
        });
        return;
    }
    if ingress != source_port {
        return;
    }
    let right = match (verdict, destination_port) {
        // A member's address is not learnt elsewhere.
        (Ok(Verdict::Forward(to)), Some(port)) => to == port,
        (Ok(Verdict::Flood), Some(_)) => false,
        (Ok(Verdict::Local), _) => false,
        (Ok(_), _) => true,
        // No bound member has that address: it is the host's that claimed it last.
        (Err(DropReason::Reflection), None) => true,
        // Another host has repeated the very frame within half a second, before the member was
        // bound (`forwarding/recent.rs`).
        (Err(DropReason::Loop), None) => true,
        // The hostile host may be behind the same port, too, or the destination.
        (Err(_), _) => sight.shared == Some(ingress),
    };
    findings.require(right, Checker::Forwarding, || {
        format!("switch {s} did not forward an ordinary frame of a member as it must: {transit:?}")
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Address, HostId};
    use crate::ethernet::{arp, frame, udp};
    use std::net::Ipv4Addr;
    use tally_wire::Mac;

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 84, 0, 4);

    fn host(n: u16) -> Address {
        Address {
            host: HostId(n),
            udp_port: 9,
        }
    }

    #[test]
    fn claims_are_found_behind_tags_and_ordinary_frames_claim_nothing() {
        let packet = |from, to| udp((from, 9), (to, 9), 0, &[1; 20]);
        let of = |n| (host(n).mac(), host(n).ip());
        let own = (SwitchId(0).mac(), SwitchId(0).ip());
        for (ethertype, payload, claims) in [
            (ETHERTYPE_IPV4, packet(SwitchId(0).ip(), host(2).ip()), true),
            (ETHERTYPE_IPV4, packet(host(1).ip(), GROUP), true),
            (ETHERTYPE_IPV4, packet(host(1).ip(), host(2).ip()), false),
            (
                ETHERTYPE_ARP,
                arp(2, (of(1).0, SwitchId(0).ip()), of(2)),
                true,
            ),
            (
                ETHERTYPE_ARP,
                arp(1, (SwitchId(0).mac(), of(1).1), of(2)),
                true,
            ),
            (ETHERTYPE_ARP, arp(2, of(1), own), true),
            (ETHERTYPE_ARP, arp(1, of(1), own), false),
            (ETHERTYPE_ARP, arp(2, of(1), of(2)), false),
        ] {
            for tags in [&[][..], &[(0x9100, 7)], &[(0x88a8, 0), (0x8100, 0)]] {
                let bytes = frame(host(2).mac(), host(1).mac(), tags, ethertype, &payload);
                assert_eq!(
                    claim(&bytes, NEAR).is_some(),
                    claims,
                    "{tags:x?} {payload:x?}"
                );
            }
        }
        let is_claim = |to, from| claim(&frame(to, from, &[], 0x9000, &[]), NEAR).is_some();
        assert!(is_claim(Mac::BROADCAST, SwitchId(0).mac()));
        assert!(is_claim(Mac::of_group(GROUP), host(1).mac()));
        assert!(!is_claim(Mac([1, 0, 0x5e, 0, 0, 1]), host(1).mac()));
    }
}
