//! LLDP: when it is sent by which port, and what neighbours said.

use crate::config::Config;
use std::time::Duration;
use tally_schema::switch::report::NeighbourReport;
use tally_wire::lldp::{self, Announcement, LLDP_BYTES_MAX};
use tally_wire::{Mac, Time};

/// Time from one frame of a port to the next, as 802.1AB has it.
const EVERY: Duration = Duration::from_secs(30);
/// Seconds for which a frame holds: four of them may be lost.
const TTL_S: u16 = 121;
/// Characters of a neighbour's text that are shown.
const TEXT_MAX: usize = 64;

#[derive(Clone, Default)]
struct Port {
    /// When it sends next; `None` while it does not.
    next: Option<Time>,
    neighbour: Option<NeighbourReport>,
    until: Time,
}

/// LLDP of all ports.
pub struct Lldp {
    mac: Mac,
    system: String,
    ports: Vec<Port>,
}

impl Lldp {
    /// Nothing sent or heard.
    pub fn new(config: &Config) -> Self {
        Self {
            mac: config.address.mac,
            system: config.system_name(),
            ports: vec![Port::default(); config.ports_max()],
        }
    }

    /// The frame that a port is to send now; the first as soon as it `sends`.
    pub fn due(&mut self, now: Time, at: usize, sends: bool, name: &str) -> Option<Vec<u8>> {
        let port = self.ports.get_mut(at)?;
        if !sends {
            port.next = None;
            return None;
        }
        if port.next.is_some_and(|next| now < next) {
            return None;
        }
        port.next = Some(now.after(EVERY));
        let what = Announcement {
            mac: self.mac,
            port: name,
            ttl_s: TTL_S,
            system: &self.system,
            description: concat!("tally-switch ", env!("CARGO_PKG_VERSION")),
        };
        let mut buffer = [0; LLDP_BYTES_MAX];
        let bytes = lldp::emit(&mut buffer, &what);
        Some(buffer[..bytes].to_vec())
    }

    /// Who is at the other end of a port, given what came there since the last call.
    pub fn heard(
        &mut self,
        now: Time,
        at: usize,
        frame: Option<&[u8]>,
        is_open: bool,
    ) -> Option<NeighbourReport> {
        let port = self.ports.get_mut(at)?;
        if let Some(found) = frame.and_then(lldp::parse) {
            port.until = now.after(Duration::from_secs(found.ttl_s.into()));
            port.neighbour = Some(NeighbourReport {
                system: text(found.system),
                chassis: (found.chassis_mac())
                    .map_or_else(|| text(found.chassis.1), |mac| mac.to_string()),
                port: match (found.port_mac(), found.port_text()) {
                    (Some(mac), _) => mac.to_string(),
                    (None, Some(name)) => text(name),
                    (None, None) => text(found.port.1),
                },
            });
        }
        if !is_open || now >= port.until {
            port.neighbour = None;
        }
        port.neighbour.clone()
    }
}

/// Visible ASCII characters and blanks of a text from outside.
fn text(bytes: &[u8]) -> String {
    let shown = |&byte: &u8| {
        let c = char::from(byte);
        if c.is_ascii_graphic() || c == ' ' {
            c
        } else {
            '?'
        }
    };
    bytes.iter().take(TEXT_MAX).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AddressConfig, PortSection};

    fn lldp() -> Lldp {
        let address = AddressConfig::new(Mac([2, 0, 0, 0, 0, 9]), [10, 84, 0, 254].into());
        Lldp::new(&Config::new(address, vec![PortSection::new("net_null0")]))
    }

    fn at(s: u64) -> Time {
        Time(s * 1_000_000_000)
    }

    #[test]
    fn a_port_announces_itself_when_it_comes_up_and_every_30_seconds() {
        let mut lldp = lldp();
        let mut sent = |s, sends| lldp.due(at(s), 0, sends, "a").is_some();
        assert!(!sent(0, false));
        let times: Vec<_> = (1..100).filter(|&s| sent(s, true)).collect();
        assert_eq!(times, [1, 31, 61, 91]);
        assert!(!sent(100, false) && sent(101, true));
    }

    #[test]
    fn a_neighbour_is_known_for_as_long_as_it_says_and_its_text_is_harmless() {
        let mut lldp = lldp();
        let mut buffer = [0; LLDP_BYTES_MAX];
        let what = Announcement {
            mac: Mac([2, 0, 0, 0, 0, 7]),
            port: "swp1",
            ttl_s: 10,
            system: "\u{1b}[31mleaf\n",
            description: "",
        };
        let bytes = lldp::emit(&mut buffer, &what);
        let found = lldp.heard(at(1), 0, Some(&buffer[..bytes]), true).unwrap();
        assert_eq!(found.chassis, "02:00:00:00:00:07");
        assert_eq!(
            (found.port.as_str(), found.system.as_str()),
            ("swp1", "?[31mleaf?")
        );
        assert!(lldp.heard(at(10), 0, Some(&[0; 60]), true).is_some());
        assert!(lldp.heard(at(11), 0, None, true).is_none());
        assert!(
            lldp.heard(at(12), 0, Some(&buffer[..bytes]), false)
                .is_none()
        );
    }
}
