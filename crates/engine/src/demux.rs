//! The one table from a frame to its dialect. What no dialect claims is ordinary forwarding.

use crate::PortId;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use tally_wire::UdpFrame;
use tally_wire::field::{self, ethernet, ipv4, udp};
use tally_wire::frame::{ETHERNET_BYTES, ETHERTYPE_IPV4, PROTOCOL_UDP, UDP_END};
use thiserror::Error;

/// The index of a dialect in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialectId(pub u8);

/// Frames that a dialect is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// UDP datagrams to the switch's IPv4 address.
    Local {
        /// Destination UDP ports.
        ports: RangeInclusive<u16>,
        /// Whether any destination MAC will do. Such frames are given before checksums are looked
        /// at, and are never forwarded.
        any_mac: bool,
    },
    /// UDP datagrams between other hosts. The dialect gives back what is ordinary traffic
    /// ([`Next::Forward`](crate::dialect::Next::Forward)).
    Transit {
        /// Destination UDP ports.
        ports: RangeInclusive<u16>,
    },
    /// Frames of an ethertype, before MAC learning.
    Ethertype(u16),
    /// All that comes in on a port.
    Port(PortId),
    /// Frames of jobs that were moved to the dialect, which the jobs' dialect passes on.
    Jobs,
}

/// Where a frame came from.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The ingress port.
    pub port: PortId,
    /// Its headers, if it was claimed by them.
    pub udp: Option<UdpFrame>,
}

/// Two dialects claim the same frames.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("two dialects claim the same frames: {0:?} and {1:?}")]
pub struct Overlap(pub Claim, pub Claim);

/// A range of UDP ports.
#[derive(Clone, Debug)]
struct Range {
    ports: RangeInclusive<u16>,
    any_mac: bool,
    id: DialectId,
}

/// The table.
#[derive(Clone, Debug, Default)]
pub struct Demux {
    ip: Option<Ipv4Addr>,
    local: Vec<Range>,
    any_mac: bool,
    transit: Vec<Range>,
    ethertypes: Vec<(u16, DialectId)>,
    ports: Vec<(PortId, DialectId)>,
    jobs: Option<DialectId>,
}

/// What the first headers of a frame say, without a check of their lengths.
#[derive(Clone, Copy)]
struct Peek {
    ip: Ipv4Addr,
    udp_port: u16,
}

fn peek(frame: &[u8]) -> Option<Peek> {
    let b = frame.first_chunk::<UDP_END>()?;
    let is_udp =
        field::be16(b, ethernet::ETHERTYPE) == ETHERTYPE_IPV4 && b[ipv4::PROTOCOL] == PROTOCOL_UDP;
    is_udp.then(|| Peek {
        ip: field::ip(b, ipv4::DST),
        udp_port: field::be16(b, udp::DST_PORT),
    })
}

fn overlap(a: &Claim, b: &Claim) -> bool {
    let meet = |a: &RangeInclusive<u16>, b: &RangeInclusive<u16>| {
        a.start() <= b.end() && b.start() <= a.end()
    };
    match (a, b) {
        (Claim::Local { ports: a, .. }, Claim::Local { ports: b, .. })
        | (Claim::Transit { ports: a }, Claim::Transit { ports: b }) => meet(a, b),
        (Claim::Ethertype(a), Claim::Ethertype(b)) => a == b,
        (Claim::Ethertype(a), Claim::Local { .. } | Claim::Transit { .. })
        | (Claim::Local { .. } | Claim::Transit { .. }, Claim::Ethertype(a)) => {
            *a == ETHERTYPE_IPV4
        }
        (Claim::Port(a), Claim::Port(b)) => a == b,
        (Claim::Jobs, Claim::Jobs) => true,
        _ => false,
    }
}

impl Demux {
    /// The table of these claims, for a switch with this IPv4 address.
    ///
    /// # Errors
    /// If two claims overlap.
    pub fn new(ip: Ipv4Addr, claims: Vec<(DialectId, Claim)>) -> Result<Self, Overlap> {
        for (at, (_, claim)) in claims.iter().enumerate() {
            if let Some((_, other)) = claims[..at].iter().find(|(_, other)| overlap(claim, other)) {
                return Err(Overlap(other.clone(), claim.clone()));
            }
        }
        let mut table = Self {
            ip: Some(ip),
            ..Self::default()
        };
        for (id, claim) in claims {
            match claim {
                Claim::Local { ports, any_mac } => {
                    table.any_mac |= any_mac;
                    table.local.push(Range { ports, any_mac, id });
                }
                Claim::Transit { ports } => table.transit.push(Range {
                    ports,
                    any_mac: true,
                    id,
                }),
                Claim::Ethertype(ethertype) => table.ethertypes.push((ethertype, id)),
                Claim::Port(port) => table.ports.push((port, id)),
                Claim::Jobs => table.jobs = Some(id),
            }
        }
        Ok(table)
    }

    /// The dialect that has the whole port.
    #[inline]
    #[must_use]
    pub fn port(&self, port: PortId) -> Option<DialectId> {
        let claim = self.ports.iter().find(|(claimed, _)| *claimed == port);
        claim.map(|&(_, id)| id)
    }

    /// The dialect that serves moved jobs.
    #[must_use]
    pub fn jobs(&self) -> Option<DialectId> {
        self.jobs
    }

    /// The dialect of a datagram to the switch's IPv4 address and MAC, and whether checksums are
    /// its own business.
    #[inline]
    #[must_use]
    pub fn local(&self, udp_port: u16) -> Option<(DialectId, bool)> {
        let range = self
            .local
            .iter()
            .find(|range| range.ports.contains(&udp_port));
        range.map(|range| (range.id, range.any_mac))
    }

    /// The dialect of a frame that is not to the switch's MAC.
    #[inline]
    #[must_use]
    pub fn transit(&self, frame: &[u8]) -> Option<DialectId> {
        if !self.any_mac && self.transit.is_empty() {
            return None;
        }
        let peek = peek(frame)?;
        let ranges = if Some(peek.ip) == self.ip {
            &self.local
        } else {
            &self.transit
        };
        let range = ranges
            .iter()
            .find(|range| range.any_mac && range.ports.contains(&peek.udp_port))?;
        Some(range.id)
    }

    /// The dialect of the frame's ethertype.
    #[inline]
    #[must_use]
    pub fn ethertype(&self, frame: &[u8]) -> Option<DialectId> {
        if self.ethertypes.is_empty() {
            return None;
        }
        let header = frame.first_chunk::<ETHERNET_BYTES>()?;
        let found = field::be16(header, ethernet::ETHERTYPE);
        let claim = self
            .ethertypes
            .iter()
            .find(|(ethertype, _)| *ethertype == found);
        claim.map(|&(_, id)| id)
    }
}

#[cfg(test)]
mod tests;
