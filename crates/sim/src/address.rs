//! Numbers and addresses: of hosts, switches and sessions, and of the ends of their cables.

use std::fmt;
use std::net::Ipv4Addr;
use tally_engine::{Member, PortId};
use tally_wire::{Addresses, JobId, Mac};

/// A host, by number. Numbers from the top stand for [switches](SwitchId::host).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub u16);

/// A switch of the world, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SwitchId(pub u16);

/// Switches that a world may have.
pub const SWITCHES_MAX: u16 = 1024;

impl SwitchId {
    /// The host number that stands for its own addresses.
    #[must_use]
    pub const fn host(self) -> HostId {
        HostId(u16::MAX - self.0)
    }

    /// The switch that this host number stands for.
    #[must_use]
    pub const fn of_host(host: HostId) -> Option<Self> {
        let number = u16::MAX - host.0;
        if number < SWITCHES_MAX {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The switch with this IPv4 address.
    #[must_use]
    pub fn of_ip(ip: Ipv4Addr) -> Option<Self> {
        let switch = Self::of_host(Address::at(ip, 0).host)?;
        (switch.ip() == ip).then_some(switch)
    }

    /// Its MAC.
    #[must_use]
    pub const fn mac(self) -> Mac {
        let [high, low] = (0x4c59 - self.0).to_be_bytes();
        Mac([2, 0x54, 0x41, 0x4c, high, low])
    }

    /// Its IPv4 address.
    #[must_use]
    pub const fn ip(self) -> Ipv4Addr {
        let [high, low] = self.host().0.to_be_bytes();
        Ipv4Addr::new(10, 0, high, low)
    }
}

/// An ordinary switch of the world, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BridgeId(pub u16);

/// A session of the world, by number. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub u32);

/// A host's address with a UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whose; also says MAC and IPv4 address.
    pub host: HostId,
    /// UDP port.
    pub udp_port: u16,
}

impl Address {
    /// The Ethernet address.
    #[must_use]
    pub const fn mac(self) -> Mac {
        let [high, low] = self.host.0.to_be_bytes();
        match SwitchId::of_host(self.host) {
            Some(switch) => switch.mac(),
            None => Mac([2, 0, 0, 0, high, low]),
        }
    }

    /// The IPv4 address.
    #[must_use]
    pub const fn ip(self) -> Ipv4Addr {
        let [high, low] = self.host.0.to_be_bytes();
        Ipv4Addr::new(10, 0, high, low)
    }

    /// What the switch makes of a frame from this address that came in on `port`.
    #[must_use]
    pub const fn member(self, port: PortId) -> Member {
        Member {
            port,
            mac: self.mac(),
            ip: self.ip(),
            udp_port: self.udp_port,
        }
    }

    /// The address of a member.
    #[must_use]
    pub const fn of(member: &Member) -> Self {
        Self::at(member.ip, member.udp_port)
    }

    /// The address with this IPv4 address, which says whose it is.
    #[must_use]
    pub const fn at(ip: Ipv4Addr, udp_port: u16) -> Self {
        let [_, _, high, low] = ip.octets();
        Self {
            host: HostId(u16::from_be_bytes([high, low])),
            udp_port,
        }
    }

    /// The headers of a datagram from here to a switch.
    #[must_use]
    pub const fn to_switch(self, switch: SwitchId, udp_port: u16) -> Addresses {
        Addresses {
            src_mac: self.mac(),
            dst_mac: switch.mac(),
            src_ip: self.ip(),
            dst_ip: switch.ip(),
            src_port: self.udp_port,
            dst_port: udp_port,
        }
    }

    /// The headers of a datagram from a switch to here.
    #[must_use]
    pub const fn from_switch(self, switch: SwitchId, udp_port: u16) -> Addresses {
        Addresses {
            src_mac: switch.mac(),
            dst_mac: self.mac(),
            src_ip: switch.ip(),
            dst_ip: self.ip(),
            src_port: udp_port,
            dst_port: self.udp_port,
        }
    }
}

/// The sessions that a host gives a datagram to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One member.
    Member(Address),
    /// The workers of a job.
    Group(JobId),
}

/// A switch of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// Of Tally.
    Switch(SwitchId),
    /// An ordinary one.
    Bridge(BridgeId),
}

impl Node {
    /// A port of it, as the other end of a cable.
    pub(crate) const fn port(self, port: PortId) -> Peer {
        match self {
            Self::Switch(switch) => Peer::Switch(switch, port),
            Self::Bridge(bridge) => Peer::Bridge(bridge, port),
        }
    }
}

impl From<SwitchId> for Node {
    fn from(switch: SwitchId) -> Self {
        Self::Switch(switch)
    }
}

impl From<BridgeId> for Node {
    fn from(bridge: BridgeId) -> Self {
        Self::Bridge(bridge)
    }
}

/// The other end of a port's cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A host.
    Host(HostId),
    /// A port of a switch.
    Switch(SwitchId, PortId),
    /// A port of an ordinary switch.
    Bridge(BridgeId, PortId),
    /// The card of this switch.
    Card(SwitchId),
}

/// Where a frame has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A switch, at this port.
    Switch(SwitchId, PortId),
    /// An ordinary switch, at this port.
    Bridge(BridgeId, PortId),
    /// A host.
    Host(HostId),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(switch, port) => write!(f, "switch {} port {}", switch.0, port.0),
            Self::Bridge(bridge, port) => write!(f, "bridge {} port {}", bridge.0, port.0),
            Self::Host(host) => write!(f, "host {}", host.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_the_roster() {
        for host in [0, 1, 255, 256, 65_534, 65_535] {
            let address = Address {
                host: HostId(host),
                udp_port: host ^ 0x55,
            };
            assert_eq!(Address::of(&address.member(PortId(3))), address);
        }
    }
}
