//! Where frames go in a fabric of switches, as one data core has it.
//!
//! A port leads to hosts, up to a switch of the tier above, or down to one of the tier below. A
//! frame from above leaves by host ports and downwards only; any other may leave by one link up as
//! well. So a path goes up, then down, and ends: there is no way round.
//!
//! *Places*: what is learnt at any link up is at one place, the first link up of the configuration;
//! what is learnt at any link to one switch below is at the first link to it. Places never change,
//! so no address moves when links die. A [`Table`] says which links serve a place now; control
//! makes it ([`crate::fabric`]), and each core gets it between two poll iterations.
//!
//! *Equal paths*: of several links the one with the highest hash of flow and link is taken. When a
//! link dies, only its flows move.
//!
//! *Floods* leave by the ports that the table names for the ingress port, so that each switch gets
//! one copy.

use crate::{DropReason, PortId};
use std::net::Ipv4Addr;
use tally_wire::Mac;
use tally_wire::field::{be16, ethernet};
use tally_wire::frame::{ETHERNET_BYTES, ETHERTYPE_IPV4};
use tally_wire::neighbour;

/// Links of which one is hashed out for a flow.
type Hops = Box<[(PortId, u64)]>;

/// What a port leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Hosts.
    Hosts,
    /// A switch of the tier above.
    Up,
    /// A switch of the tier below.
    Down,
}

/// One link of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The port.
    pub port: PortId,
    /// Name of the switch at the other end.
    pub switch: String,
    /// Whether that is above.
    pub is_up: bool,
}

/// A switch at the other end of links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedNeighbour {
    /// Its name.
    pub switch: String,
    /// Whether it is above.
    pub is_up: bool,
    /// The ports that lead to it, in the order of the configuration.
    pub ports: Vec<PortId>,
    /// The port at which addresses behind it are learnt.
    pub place: PortId,
}

/// The links of one switch, as they are configured.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    neighbours: Vec<PlannedNeighbour>,
}

impl Plan {
    /// The plan of these links. All links to one switch lead the same way.
    #[must_use]
    pub fn new(links: impl IntoIterator<Item = Link>) -> Self {
        let mut neighbours: Vec<PlannedNeighbour> = Vec::new();
        let mut above = None;
        for link in links {
            let place = match link.is_up {
                true => *above.get_or_insert(link.port),
                false => link.port,
            };
            let known = neighbours.iter_mut().find(|it| it.switch == link.switch);
            match known {
                Some(neighbour) => neighbour.ports.push(link.port),
                None => neighbours.push(PlannedNeighbour {
                    switch: link.switch,
                    is_up: link.is_up,
                    ports: vec![link.port],
                    place,
                }),
            }
        }
        Self { neighbours }
    }

    /// The neighbours, in the order of the configuration.
    #[must_use]
    pub fn neighbours(&self) -> &[PlannedNeighbour] {
        &self.neighbours
    }

    /// All ports that lead to switches.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        self.neighbours
            .iter()
            .flat_map(|it| it.ports.iter().copied())
    }

    /// Whether a port leads to a switch.
    #[must_use]
    pub fn has(&self, port: PortId) -> bool {
        self.ports().any(|it| it == port)
    }

    /// The ports at which addresses behind switches are learnt.
    pub fn places(&self) -> impl Iterator<Item = PortId> + '_ {
        self.neighbours.iter().map(|it| it.place)
    }
}

/// What is known of a neighbour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeighbourState {
    /// Its live links, in the order of the configuration.
    pub live: Vec<PortId>,
    /// Its MAC, as its hello said.
    pub mac: Option<Mac>,
    /// Its IPv4 address, as its hello said.
    pub ip: Option<Ipv4Addr>,
    /// Whether it is one of those by which frames to hosts behind others may go up.
    pub is_equal: bool,
    /// Below: numbers of the neighbours all of whose switches it reaches as well.
    pub covers: Vec<usize>,
    /// Below: these, and the neighbours all of whose switches, at any time, it has reached as well,
    /// which stay when links die.
    pub covered: Vec<usize>,
}

/// Neighbours to which floods go, by where they came from: numbers in the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FloodSets {
    /// From hosts.
    pub from_hosts: Vec<usize>,
    /// From above.
    pub from_above: Vec<usize>,
    /// From each neighbour; not looked at for those above.
    pub from_below: Vec<Vec<usize>>,
}

#[derive(Clone, Copy, Debug)]
struct Port {
    side: Side,
    place: PortId,
    is_live: bool,
    neighbour: usize,
}

/// What one core knows of the fabric.
#[derive(Clone, Debug)]
pub struct Table {
    /// By port, up to the last link; ports beyond are hosts'.
    ports: Box<[Port]>,
    up: Hops,
    /// By neighbour, above or below.
    by_neighbour: Box<[Hops]>,
    /// Addresses of neighbours that are heard.
    addresses: Box<[(Ipv4Addr, Mac)]>,
    /// MACs of neighbours, in order, with their numbers.
    macs: Box<[(u64, usize)]>,
    /// By neighbour, whose place stays when frames come by another's.
    covers: Box<[Box<[usize]>]>,
    /// By neighbour, by which others frames of hosts may come that are known there.
    covered: Box<[Box<[usize]>]>,
    /// By ingress (hosts, above, each neighbour): by port, whether a flood leaves by it.
    floods: Box<[Box<[bool]>]>,
}

const FROM_HOSTS: usize = 0;
const FROM_ABOVE: usize = 1;
const FROM_BELOW: usize = 2;

impl Table {
    /// The table of a plan whose links are all dead.
    #[must_use]
    pub fn dead(plan: &Plan) -> Self {
        let states = vec![NeighbourState::default(); plan.neighbours.len()];
        Self::new(plan, &states, &FloodSets::default(), 0)
    }

    /// The table of what is known of each neighbour. `seed` differs from switch to switch: tiers
    /// that hashed alike would use some links only.
    #[must_use]
    pub fn new(plan: &Plan, states: &[NeighbourState], sets: &FloodSets, seed: u64) -> Self {
        let count = plan.ports().map(|port| usize::from(port.0) + 1).max();
        let host = |at| Port {
            side: Side::Hosts,
            place: PortId(at as u16),
            is_live: true,
            neighbour: usize::MAX,
        };
        let mut ports: Box<[_]> = (0..count.unwrap_or(0)).map(host).collect();
        for (number, (planned, state)) in plan.neighbours.iter().zip(states).enumerate() {
            for port in &planned.ports {
                ports[usize::from(port.0)] = Port {
                    side: if planned.is_up { Side::Up } else { Side::Down },
                    place: planned.place,
                    is_live: state.live.contains(port),
                    neighbour: number,
                };
            }
        }
        let all = || plan.neighbours.iter().zip(states);
        let hop = |port: &PortId| (*port, mix(seed, u64::from(port.0)));
        let up = all().filter(|(planned, state)| planned.is_up && state.is_equal);
        let up = up.flat_map(|(_, state)| state.live.iter().map(hop));
        let known = states.iter().enumerate();
        let known = known.filter_map(|(at, state)| Some((state.mac?.to_u64(), at)));
        let mut macs: Box<[_]> = known.collect();
        let heard = states.iter().filter(|state| !state.live.is_empty());
        let addresses = heard.filter_map(|state| state.ip.zip(state.mac));
        macs.sort_unstable();
        let mask = |to: &[usize]| flood_mask(&ports, states, to);
        let floods = [mask(&sets.from_hosts), mask(&sets.from_above)];
        let below = sets.from_below.iter().map(|to| mask(to));
        Self {
            up: up.collect(),
            by_neighbour: states
                .iter()
                .map(|it| it.live.iter().map(hop).collect())
                .collect(),
            addresses: addresses.collect(),
            macs,
            covers: states.iter().map(|it| it.covers.clone().into()).collect(),
            covered: states.iter().map(|it| it.covered.clone().into()).collect(),
            floods: floods.into_iter().chain(below).collect(),
            ports,
        }
    }

    /// Turns an ARP request for a neighbour into its answer, and says so. A flood goes up by one
    /// link, so a request from below would reach one switch above and not the others.
    pub(super) fn answer_arp(&self, frame: &mut [u8]) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.any(|&(ip, mac)| neighbour::answer_arp(frame, mac, ip))
    }

    #[inline]
    fn port(&self, port: PortId) -> Option<&Port> {
        self.ports.get(usize::from(port.0))
    }

    /// What a port leads to.
    #[must_use]
    pub fn side(&self, port: PortId) -> Side {
        self.port(port).map_or(Side::Hosts, |it| it.side)
    }

    /// The place of a port: itself if it is hosts'.
    #[inline]
    #[must_use]
    pub fn place(&self, port: PortId) -> PortId {
        self.port(port).map_or(port, |it| it.place)
    }

    /// Whether frames of a host that is known at the port `known` may come by `port`, alive or not:
    /// both lead to the same place, or to switches below, and all hosts behind the second are or
    /// were behind the first as well.
    #[inline]
    #[must_use]
    pub fn may_come(&self, known: PortId, port: PortId) -> bool {
        known == port || self.is_detour(known, port)
    }

    #[cold]
    fn is_detour(&self, known: PortId, port: PortId) -> bool {
        let Some((known, port)) = self.port(known).zip(self.port(port)) else {
            return false;
        };
        match (known.side, port.side) {
            (Side::Up, Side::Up) => true,
            (Side::Down, Side::Down) => {
                known.neighbour == port.neighbour
                    || self.covered[known.neighbour].contains(&port.neighbour)
            }
            _ => false,
        }
    }

    /// The other ports at which a host may be known whose frames come by this one.
    pub fn beside(&self, port: PortId) -> impl Iterator<Item = PortId> + '_ {
        let links = (0..self.ports.len()).map(|at| PortId(at as u16));
        links.filter(move |&known| known != port && self.may_come(known, port))
    }

    /// Whether a port leads to hosts, or to a switch that is heard.
    #[inline]
    #[must_use]
    pub fn is_live(&self, port: PortId) -> bool {
        self.port(port).is_none_or(|it| it.is_live)
    }

    /// The neighbour with this MAC.
    fn neighbour(&self, mac: Mac) -> Option<usize> {
        let at = self
            .macs
            .binary_search_by_key(&mac.to_u64(), |(known, _)| *known);
        at.ok().map(|at| self.macs[at].1)
    }

    /// Whether a neighbour has this MAC.
    #[must_use]
    pub fn is_switch(&self, mac: Mac) -> bool {
        self.neighbour(mac).is_some()
    }

    /// Whether the neighbour at this port has this MAC.
    #[must_use]
    pub fn is_neighbour(&self, port: PortId, mac: Mac) -> bool {
        let at = self.port(port).filter(|it| it.side != Side::Hosts);
        at.is_some_and(|it| self.neighbour(mac) == Some(it.neighbour))
    }

    /// Whether addresses are learnt at a port from frames of this source.
    ///
    /// Not those of neighbours, which hellos name. Nor of hosts at the place of a neighbour that
    /// reaches all switches that this one reaches: they are reached by both, and stay.
    #[must_use]
    pub fn learns(&self, port: PortId, source: Mac, known: impl Fn() -> Option<PortId>) -> bool {
        if self.is_switch(source) {
            return false;
        }
        if self.side(port) != Side::Down {
            return true;
        }
        let place = self.place(port);
        let Some(old) = known().filter(|old| *old != place) else {
            return true;
        };
        let by = self.port(port).map(|it| it.neighbour);
        let stays = self.port(old).zip(by).is_some_and(|(it, by)| {
            it.side == Side::Down
                && !self.by_neighbour[it.neighbour].is_empty()
                && (it.neighbour == by || self.covers[it.neighbour].contains(&by))
        });
        !stays
    }

    /// The port by which a frame from `ingress` to a host at `place` leaves, or to a neighbour;
    /// `None`: it is flooded.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn route(
        &self,
        ingress: PortId,
        place: Option<PortId>,
        frame: &[u8],
    ) -> Result<Option<PortId>, DropReason> {
        let destination = Mac(*frame.first_chunk().ok_or(DropReason::Truncated)?);
        let neighbour = self.neighbour(destination);
        let (to, hops, is_only_way) = match (neighbour, place) {
            (Some(number), _) => {
                let planned = self.ports.iter().find(|it| it.neighbour == number);
                (planned, &self.by_neighbour[number], true)
            }
            (None, None) => return Ok(None),
            (None, Some(place)) => match self.port(place) {
                Some(to) if to.side == Side::Up => (Some(to), &self.up, true),
                // Another switch below may reach it.
                Some(to) if to.side == Side::Down => {
                    (Some(to), &self.by_neighbour[to.neighbour], false)
                }
                _ => return Ok(Some(place)),
            },
        };
        let from = self.port(ingress).filter(|it| it.side != Side::Hosts);
        let is_back = from.zip(to).is_some_and(|(from, to)| {
            from.neighbour == to.neighbour || (from.side, to.side) == (Side::Up, Side::Up)
        });
        if is_back {
            return Err(DropReason::Reflection);
        }
        match choose(hops, frame) {
            None if is_only_way => Err(DropReason::FabricLink),
            port => Ok(port),
        }
    }

    /// Whether a flood from `ingress` leaves by `egress`.
    #[must_use]
    pub fn may_flood(&self, ingress: PortId, egress: PortId) -> bool {
        let from = match self.port(ingress) {
            None => FROM_HOSTS,
            Some(it) => match it.side {
                Side::Hosts => FROM_HOSTS,
                Side::Up => FROM_ABOVE,
                Side::Down => FROM_BELOW + it.neighbour,
            },
        };
        let Some(Port { side, .. }) = self.port(egress) else {
            return true;
        };
        let mask = self.floods.get(from);
        *side == Side::Hosts || mask.is_some_and(|mask| mask[usize::from(egress.0)])
    }
}

/// By port, whether it is the first live link of one of the neighbours `to`.
fn flood_mask(ports: &[Port], states: &[NeighbourState], to: &[usize]) -> Box<[bool]> {
    let mut mask: Box<[bool]> = ports.iter().map(|_| false).collect();
    let first = to.iter().filter_map(|&at| states.get(at)?.live.first());
    for port in first {
        if let Some(floods) = mask.get_mut(usize::from(port.0)) {
            *floods = true;
        }
    }
    mask
}

/// The link of a flow: that with the highest hash of both.
#[inline]
fn choose(hops: &[(PortId, u64)], frame: &[u8]) -> Option<PortId> {
    match hops {
        [] => None,
        [(port, _)] => Some(*port),
        hops => {
            let flow = flow_hash(frame);
            let best = hops.iter().max_by_key(|(_, salt)| mix(flow, *salt));
            best.map(|(port, _)| *port)
        }
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 29
}

/// A hash of a frame's flow: MACs, and of IP also addresses, protocol and ports. A packet in
/// fragments is one flow without ports.
fn flow_hash(frame: &[u8]) -> u64 {
    const TAGS: [u16; 2] = [0x8100, 0x88a8];
    const IPV6: u16 = 0x86dd;
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    let fold = |hash, bytes: &[u8]| {
        let words = bytes.chunks(8);
        words.fold(hash, |hash, word| {
            mix(hash, word.iter().fold(0, |n, &b| n << 8 | u64::from(b)))
        })
    };
    let mut hash = fold(1, &frame[..frame.len().min(ethernet::ETHERTYPE.start)]);
    let mut at = ETHERNET_BYTES;
    let kind = |at: usize| frame.get(at - 2..at).map(|kind| be16(kind, 0..2));
    while at < ETHERNET_BYTES + 8 && kind(at).is_some_and(|kind| TAGS.contains(&kind)) {
        at += 4;
    }
    let packet = frame.get(at..).unwrap_or_default();
    let (addresses, protocol, ports) = match (kind(at), packet) {
        (Some(ETHERTYPE_IPV4), [first, ..]) if packet.len() >= 20 => {
            let is_fragment = be16(packet, 6..8) & 0x3fff != 0;
            let ports = if is_fragment {
                packet.len()
            } else {
                usize::from(first & 15) * 4
            };
            (12..20, packet[9], ports)
        }
        (Some(IPV6), _) if packet.len() >= 40 => (8..40, packet[6], 40),
        _ => return hash,
    };
    hash = mix(fold(hash, &packet[addresses]), u64::from(protocol));
    if [TCP, UDP].contains(&protocol)
        && let Some(ports) = packet.get(ports..ports + 4)
    {
        hash = fold(hash, ports);
    }
    hash
}
