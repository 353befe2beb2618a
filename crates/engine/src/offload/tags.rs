//! Which port a frame is of, on its way between switch and card.
//!
//! The two share one link, so a frame says in a MAC address where it came from or where it goes:
//! the address that both sides know anyway, so that no byte is added and the payload stays where it
//! is in the card's beats.
//!
//! | frame | address | is |
//! |---|---|---|
//! | to the card | destination, the switch's own before | `02:54:43:00` and the port it came in on |
//! | made by the card | source, the switch's own before | `02:54:43:01` and the ports it leaves on, bit p for port p |
//! | neither | destination | `02:54:43:02` and a number: a probe, which the card sends back as it is |
//!
//! What the card does not know comes back as it went, tag included.

use crate::PortId;
use tally_wire::Mac;

/// Ports that a card can tell apart.
pub const PORTS: u16 = 16;
/// Ethertype of probes: the first one for local experiments (IEEE 802).
pub const PROBE_ETHERTYPE: u16 = 0x88b5;

const PORT: u8 = 0;
const MASK: u8 = 1;
const PROBE: u8 = 2;

const fn tag(kind: u8, number: u16) -> Mac {
    let [high, low] = number.to_be_bytes();
    Mac([0x02, 0x54, 0x43, kind, high, low])
}

fn number(mac: Mac, kind: u8) -> Option<u16> {
    let Mac([.., high, low]) = mac;
    let number = u16::from_be_bytes([high, low]);
    (mac == tag(kind, number)).then_some(number)
}

/// The destination of a frame to the card that came in on this port.
#[must_use]
pub const fn port_mac(port: PortId) -> Mac {
    tag(PORT, port.0)
}

/// The port that such a destination names. 0xffff is none.
#[must_use]
pub fn port_of(destination: Mac) -> Option<PortId> {
    number(destination, PORT)
        .filter(|&port| port != u16::MAX)
        .map(PortId)
}

/// The source of a frame that is to leave on these ports.
#[must_use]
pub const fn mask_mac(mask: u16) -> Mac {
    tag(MASK, mask)
}

/// The ports that such a source names, bit p for port p.
#[must_use]
pub fn mask_of(source: Mac) -> Option<u16> {
    number(source, MASK)
}

/// The destination of a probe.
#[must_use]
pub const fn probe_mac(number: u16) -> Mac {
    tag(PROBE, number)
}

/// The number of the probe with this destination.
#[must_use]
pub fn probe_of(destination: Mac) -> Option<u16> {
    number(destination, PROBE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_told_apart() {
        for n in [0, 1, 15, 16, 255, 256, 0xfffe] {
            assert_eq!(port_of(port_mac(PortId(n))), Some(PortId(n)));
            assert_eq!(mask_of(mask_mac(n)), Some(n));
            assert_eq!(probe_of(probe_mac(n)), Some(n));
            assert_eq!(mask_of(port_mac(PortId(n))), None);
            assert_eq!(probe_of(mask_mac(n)), None);
            assert_eq!(port_of(probe_mac(n)), None);
        }
        assert_eq!(port_mac(PortId(0x0102)).to_string(), "02:54:43:00:01:02");
        assert_eq!(mask_mac(0x8001).to_string(), "02:54:43:01:80:01");
        assert_eq!(port_of(port_mac(PortId(0xffff))), None);
        assert_eq!(mask_of(mask_mac(0xffff)), Some(0xffff));
    }

    #[test]
    fn other_addresses_are_no_tags() {
        let near = [0x02, 0x54, 0x43, 0, 0, 1];
        for byte in 0..3 {
            let mut mac = near;
            mac[byte] ^= 1;
            assert_eq!(port_of(Mac(mac)), None);
        }
        for mac in [Mac::BROADCAST, Mac([0; 6])] {
            assert!(port_of(mac).is_none() && mask_of(mac).is_none() && probe_of(mac).is_none());
        }
    }
}
