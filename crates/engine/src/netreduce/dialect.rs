//! NetReduce as a dialect: the ring of a packet, and the core that serves it.
//!
//! It claims RoCEv2's UDP port between other hosts. Packets without a DSCP of rings and of other
//! services than RC are ordinary traffic; so are acknowledgements. The ring DSCP is reserved (N-2):
//! a data packet of no known connection of a ring is dropped, between all addresses. Its message
//! may have begun with sums, before its ring was removed or the switch restarted, and its receiver
//! would take it for one. What the switch lets go has another DSCP, with which other switches of
//! the fabric forward it.
//!
//! A ring is served by one core. All cores know its connections ([`Connections`]): whichever
//! receives a packet hands it over. While no link dies, that is one core for each connection.
//!
//! Fast path: a port's packets mostly come from one member. The flow cache remembers the headers of
//! the last one, and what was found out by them. It holds until its connection or a ring changes.
//! The way out is looked up once for a burst.

use super::ring::{Arrived, Ring};
use super::root::Root;
use super::{Connections, NetreduceCounters, RingRole, RingStatus, ServedRing};
use crate::context::Context;
use crate::core::Reply;
use crate::demux::{Arrival, Claim};
use crate::dialect::{Dialect, Next};
use crate::forwarding::Verdict;
use crate::frame::{Frame, Platform};
use crate::metrics;
use crate::queue::class_of;
use crate::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tally_kernels::Kernels;
use tally_wire::field::ipv4;
use tally_wire::frame::UDP_END;
use tally_wire::netreduce::{
    Channel, PARTIAL_PORT, PartialHeader, RingEpoch, RingHeader, RingId, RingSecret, released_dscp,
    ring_of, ring_of_partial,
};
use tally_wire::roce::{ConnectionTemplate, PORT, Packet, Place, QueuePair};
use tally_wire::{Mac, Time, UdpFrame};

/// Opcodes of reliable connections, and the one of them that carries no data.
const RC_OPCODES: std::ops::Range<u8> = 0..0x20;
const ACK: u8 = 0x11;
/// Silence after which a ring that waits for members is given up (N-12). NICs have given up by
/// then: their longest usual retry takes seconds.
pub const SILENCE: Duration = Duration::from_secs(60);
/// How often rings are looked at.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// What control asks.
pub enum Command {
    /// Serve a ring; one with its number is replaced, and begins anew, if it differs.
    Bind(Box<ServedRing>),
    /// End a ring.
    Unbind(RingId),
    /// Say how the rings of this core are.
    Rings(Reply<Vec<RingStatus>>),
}

metrics! {
    /// What rings hold now.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct NetreduceUse, labels [] {
        /// Packets held by rings, kept sums included.
        pub held_in_use: u64 = gauge "netreduce_held_frames" in Frames;
    }
}

/// What NetReduce did on one core.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// What it did.
    pub counters: NetreduceCounters,
    /// What it keeps.
    pub in_use: NetreduceUse,
    /// The rings of this core.
    pub rings: Vec<RingStatus>,
}

/// One connection of a ring, as a core that receives its packets knows it.
struct Route {
    ring: RingId,
    secret: RingSecret,
    /// The core that serves the ring.
    core: usize,
    rank: u8,
    connections: Arc<Connections>,
}

impl Route {
    /// Whether its connection has this queue pair.
    fn has(&self, qp: QueuePair) -> bool {
        let known = self.connections.get(self.rank);
        known.is_some_and(|(_, known)| known == qp)
    }
}

/// The last data packet of a port: those like it are of the same connection.
struct Flow {
    template: ConnectionTemplate,
    ring: RingId,
    /// The core that serves the ring, and the ring's index if that is this one.
    core: usize,
    at: usize,
    rank: u8,
    channel: Channel,
    mac: Mac,
    /// Where the connection is known, and as what.
    connections: Arc<Connections>,
    connection: (RingEpoch, QueuePair),
}

impl Flow {
    /// That of a frame with a packet of a ring; `None` if it is shorter than any other.
    fn new(
        frame: &[u8],
        route: &Route,
        at: Result<usize, usize>,
        channel: Channel,
        mac: Mac,
    ) -> Option<Self> {
        Some(Self {
            template: ConnectionTemplate::new(frame)?,
            ring: route.ring,
            core: route.core,
            at: at.unwrap_or(usize::MAX),
            rank: route.rank,
            channel,
            mac,
            connections: Arc::clone(&route.connections),
            connection: route.connections.get(route.rank)?,
        })
    }

    /// Whether its connection is still the ring's.
    #[inline]
    fn is_current(&self) -> bool {
        self.connections.get(self.rank) == Some(self.connection)
    }

    /// The packet in a frame, and its datagram's bytes, if it is of the connection.
    #[inline(always)]
    fn packet_of(&self, frame: &impl Frame) -> Option<(Place, Packet, usize)> {
        if frame.wire_frames() > 1 || !frame.is_contiguous() {
            return None;
        }
        let (packet, datagram_bytes) = self.template.packet_of(frame.data())?;
        let place = packet.place()?;
        if place.begins() {
            let payload = UDP_END + packet.payload.start..UDP_END + packet.payload.end;
            // Two rings may have the same hosts.
            if ring_of(&frame.data()[payload]) != Some(self.ring) {
                return None;
            }
        }
        Some((place, packet, datagram_bytes))
    }

    /// Gives packets of the connection to another core; returns the first frame that is none.
    fn hand_over<P: Platform>(
        &self,
        context: &mut Context<P>,
        port: PortId,
        frames: &mut impl Iterator<Item = P::Frame>,
    ) -> Option<P::Frame> {
        for frame in frames {
            if self.packet_of(&frame).is_none() {
                return Some(frame);
            }
            context.ports.hand_over(self.core, port, frame);
        }
        None
    }

    /// Takes a packet of the connection. Returns a frame that is none, or that may have to be
    /// dropped or flooded.
    #[inline(never)]
    fn take<P: Platform>(
        &self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
        ring: &mut Ring<P::Frame>,
        (port, egress): (PortId, &mut Option<PortId>),
        mut frame: P::Frame,
    ) -> Option<P::Frame> {
        let Some((place, packet, datagram_bytes)) = self.packet_of(&frame) else {
            return Some(frame);
        };
        // It has its length only if it is not shared.
        if frame.has_bad_checksum() || !frame.set_len(UDP_END + datagram_bytes) {
            return Some(frame);
        }
        let Ok(headers) = ring.check_icrc(frame.data(), place, packet.payload.len()) else {
            return Some(frame);
        };
        if egress.is_none() {
            *egress = (context.forwarding).forwards_again(context.now, port, frame.data());
        }
        if egress.is_none() {
            return Some(frame);
        }
        let arrived = Arrived {
            frame,
            place,
            psn: packet.bth.psn,
            payload: packet.payload,
            headers,
            channel: self.channel,
            port,
            mac: self.mac,
            egress: *egress,
        };
        if let Err(reason) = ring.receive(context, counters, self.rank, arrived) {
            context.count_drop(reason);
        }
        None
    }
}

/// A ring with a tree, as a core knows it that receives its partial sums and totals.
struct Tree {
    secret: RingSecret,
    /// The core that serves the ring.
    core: usize,
}

/// NetReduce on one core.
pub struct NetreduceDialect<P: Platform> {
    /// Types of service without ECN: of rings' packets, and of those that a switch has let go.
    tos: u8,
    released_tos: u8,
    kernels: Kernels,
    /// By source and destination: the connections of all rings, those of other cores too.
    routes: HashMap<(Ipv4Addr, Ipv4Addr), Vec<Route>>,
    /// The rings of this core with members, by number.
    rings: Vec<Ring<P::Frame>>,
    /// The rings of this core of which the switch is the root.
    roots: Vec<Root<P::Frame>>,
    /// The rings with trees, those of other cores too.
    trees: HashMap<RingId, Tree>,
    /// By port.
    flows: Vec<Option<Flow>>,
    counters: NetreduceCounters,
    /// When rings are looked at next.
    check_at: Option<Time>,
}

impl<P: Platform> NetreduceDialect<P> {
    /// With these rings, whose packets have this DSCP; `core` of `cores`.
    #[must_use]
    pub fn new(
        dscp: u8,
        kernels: Kernels,
        (core, cores): (usize, u16),
        rings: impl IntoIterator<Item = ServedRing>,
    ) -> Self {
        let mut dialect = Self {
            tos: dscp << 2,
            released_tos: released_dscp(dscp) << 2,
            kernels,
            routes: HashMap::new(),
            rings: Vec::new(),
            roots: Vec::new(),
            trees: HashMap::new(),
            flows: Vec::new(),
            counters: NetreduceCounters::default(),
            check_at: None,
        };
        for ring in rings {
            dialect.add(ring, core, cores, Time(0));
        }
        dialect
    }

    /// What it did.
    #[must_use]
    pub fn counters(&self) -> &NetreduceCounters {
        &self.counters
    }

    fn bind(&mut self, context: &mut Context<P>, ring: ServedRing) {
        let configs = self.rings.iter().map(|ring| &ring.config);
        let mut configs = configs.chain(self.roots.iter().map(|root| &root.config));
        if configs.any(|config| *config == ring.config) {
            return;
        }
        self.unbind(context, ring.config.id);
        self.add(ring, context.core, context.cores, context.now);
    }

    /// Remembers the connection of a packet from this port.
    fn remember(&mut self, port: PortId, flow: Option<Flow>) {
        let at = usize::from(port.0);
        if at >= self.flows.len() {
            self.flows.resize_with(at + 1, || None);
        }
        self.flows[at] = flow;
    }

    /// Adds a ring whose number no other has.
    fn add(&mut self, ring: ServedRing, core: usize, cores: u16, now: Time) {
        self.flows.clear();
        let ServedRing {
            config,
            connections,
        } = ring;
        let serving = config.core(cores);
        let members = config.members.len();
        for rank in config.ranks() {
            let source = config.members[usize::from(rank)];
            let destination = config.members[(usize::from(rank) + 1) % members];
            let routes = self.routes.entry((source, destination)).or_default();
            routes.push(Route {
                ring: config.id,
                secret: config.secret,
                core: serving,
                rank,
                connections: Arc::clone(&connections),
            });
        }
        if config.role != RingRole::Alone {
            let secret = config.secret;
            let tree = Tree {
                secret,
                core: serving,
            };
            self.trees.insert(config.id, tree);
        }
        if serving == core {
            let at = self.ring_at(config.id).unwrap_or_else(|at| at);
            let class = class_of(self.tos);
            match config.role {
                RingRole::Root { .. } => {
                    self.roots.push(Root::new(config, self.kernels, class));
                }
                RingRole::Alone | RingRole::Leaf { .. } => {
                    let ring = Ring::new(config, self.kernels, class);
                    self.rings.insert(at, ring);
                }
            }
            self.check_at = self.check_at.or(Some(now.after(CHECK_EVERY)));
        }
    }

    fn unbind(&mut self, context: &mut Context<P>, id: RingId) {
        self.flows.clear();
        self.routes.retain(|_, routes| {
            routes.retain(|route| route.ring != id);
            !routes.is_empty()
        });
        self.trees.remove(&id);
        if let Ok(at) = self.ring_at(id) {
            self.rings.remove(at).free_all(context);
        }
        if let Some(at) = self.roots.iter().position(|root| root.config.id == id) {
            self.roots.remove(at).free_all(context);
        }
        if self.rings.is_empty() && self.roots.is_empty() {
            self.check_at = None;
        }
    }

    fn statuses(&self) -> Vec<RingStatus> {
        let rings = self.rings.iter().map(Ring::status);
        rings.chain(self.roots.iter().map(Root::status)).collect()
    }

    fn ring_at(&self, id: RingId) -> Result<usize, usize> {
        self.rings.binary_search_by_key(&id, |ring| ring.config.id)
    }

    /// The connection of a data packet with the ring DSCP.
    fn route(
        &self,
        packet: &Packet,
        datagram: &[u8],
        channel: &Channel,
    ) -> Result<&Route, DropReason> {
        let routes = self.routes.get(&(channel.source, channel.destination));
        let routes = routes.ok_or(DropReason::NetreduceUnknown)?;
        let known = routes.iter().position(|it| it.has(packet.bth.qp));
        let begins = packet.place().is_some_and(Place::begins);
        let found = match (known, begins) {
            (Some(at), false) => at,
            (None, false) => return Err(DropReason::NetreduceUnknown),
            (_, true) => {
                let payload = &datagram[packet.payload.clone()];
                let ring = ring_of(payload).ok_or(DropReason::NetreduceHeader)?;
                let named = routes.iter().position(|it| it.ring == ring);
                let named = named.ok_or(DropReason::NetreduceHeader)?;
                if known != Some(named) {
                    Self::learn(routes, named, known, payload, channel)?;
                }
                named
            }
        };
        Ok(&routes[found])
    }

    /// Takes a partial sum or a total of another switch.
    fn receive_partial(
        &mut self,
        context: &mut Context<P>,
        (port, udp): (PortId, &UdpFrame),
        frame: P::Frame,
    ) -> Result<Next<P::Frame>, DropReason> {
        let datagram = udp.datagram(frame.data());
        let id = ring_of_partial(datagram).ok_or(DropReason::NetreduceHeader)?;
        let tree = self.trees.get(&id).ok_or(DropReason::NetreduceUnknown)?;
        let from = &udp.addresses;
        // Members have the ring's key, too: it must come from a switch.
        if !context.forwarding.is_neighbour(port, from.src_mac) {
            return Err(DropReason::NetreducePort);
        }
        if tree.core != context.core {
            context.ports.hand_over(tree.core, port, frame);
            return Ok(Next::Done);
        }
        let header = PartialHeader::parse(datagram, &tree.secret, (from.src_ip, from.dst_ip))
            .map_err(|_| DropReason::NetreduceHeader)?;
        let mut frame = context.exclusive(frame)?;
        if !frame.set_len(UDP_END + udp.datagram_bytes) {
            return Err(DropReason::Length);
        }
        let counters = &mut self.counters;
        if let Some(root) = self.roots.iter_mut().find(|root| root.config.id == id) {
            root.receive(context, counters, &header, (port, frame, *udp))?;
            return Ok(Next::Done);
        }
        let at = self.rings.binary_search_by_key(&id, |ring| ring.config.id);
        let ring = &mut self.rings[at.map_err(|_| DropReason::NetreduceUnknown)?];
        let root = ring.root().ok_or(DropReason::NetreduceUnknown)?;
        if !context.parents.links(root).any(|(link, _)| link == port) {
            return Err(DropReason::NetreducePort);
        }
        ring.receive_total(context, counters, &header, frame)?;
        Ok(Next::Done)
    }

    /// Remembers the queue pair of a connection whose first message begins.
    #[cold]
    fn learn(
        routes: &[Route],
        named: usize,
        known: Option<usize>,
        payload: &[u8],
        channel: &Channel,
    ) -> Result<(), DropReason> {
        let route = &routes[named];
        let header = RingHeader::parse(payload, &route.secret, channel)
            .map_err(|_| DropReason::NetreduceHeader)?;
        if header.rank != route.rank {
            return Err(DropReason::NetreduceHeader);
        }
        if header.message != 0 {
            return Err(DropReason::NetreduceUnknown);
        }
        let begins = (route.connections).begin(route.rank, header.epoch, channel.qp);
        if !begins {
            return Err(DropReason::NetreduceEpoch);
        }
        // The receiver has given the number of a queue pair that ended to another.
        if let Some(known) = known {
            let ended = &routes[known];
            ended.connections.end(ended.rank, channel.qp);
        }
        Ok(())
    }
}

impl<P: Platform> Dialect<P> for NetreduceDialect<P> {
    type Command = Command;
    type Metrics = Metrics;

    fn claims(&self) -> Vec<Claim> {
        let partials = Claim::Local {
            ports: PARTIAL_PORT..=PARTIAL_PORT,
            any_mac: false,
        };
        vec![Claim::Transit { ports: PORT..=PORT }, partials]
    }

    #[inline(never)]
    fn receive(
        &mut self,
        context: &mut Context<P>,
        arrival: &Arrival,
        frame: P::Frame,
    ) -> Result<Next<P::Frame>, DropReason> {
        let Some(udp) = &arrival.udp else {
            return Ok(Next::Forward(frame));
        };
        if udp.addresses.dst_port == PARTIAL_PORT {
            return self.receive_partial(context, (arrival.port, udp), frame);
        }
        let bytes = frame.data();
        let tos = bytes[ipv4::TOS] & !3;
        if tos != self.tos && tos != self.released_tos {
            return Ok(Next::Forward(frame));
        }
        let datagram = udp.datagram(bytes);
        if !(datagram.first()).is_some_and(|&it| RC_OPCODES.contains(&it) && it != ACK) {
            return Ok(Next::Forward(frame));
        }
        if tos == self.released_tos {
            return match context.forwarding.is_link(arrival.port) {
                true => Ok(Next::Forward(frame)),
                false => Err(DropReason::NetreduceReleased),
            };
        }
        let packet = Packet::parse(datagram).map_err(|_| DropReason::NetreduceUnknown)?;
        let place = packet.place().ok_or(DropReason::NetreduceUnknown)?;
        let channel = Channel::of(udp, packet.bth.qp);
        let route = self.route(&packet, datagram, &channel)?;
        let (core, rank) = (route.core, route.rank);
        let at = self.ring_at(route.ring);
        let flow = Flow::new(bytes, route, at, channel, udp.addresses.src_mac);
        if core != context.core {
            self.remember(arrival.port, flow);
            context.ports.hand_over(core, arrival.port, frame);
            return Ok(Next::Done);
        }
        let at = at.map_err(|_| DropReason::NetreduceUnknown)?;
        if frame.has_bad_checksum() {
            return Err(DropReason::Checksum);
        }
        let mut frame = context.exclusive(frame)?;
        // Padding of short frames.
        if !frame.set_len(UDP_END + udp.datagram_bytes) {
            return Err(DropReason::Length);
        }
        // It covers the headers too: a changed PSN would be another offset.
        let headers = self.rings[at].check_icrc(frame.data(), place, packet.payload.len())?;
        let bytes = frame.data_mut().ok_or(DropReason::NoBuffer)?;
        let verdict =
            (context.forwarding).classify_transit(context.now, arrival.port, bytes, &())?;
        let egress = match verdict {
            Verdict::Forward(egress) => Some(egress),
            Verdict::Flood | Verdict::Local | Verdict::Answer => None,
        };
        self.remember(arrival.port, flow);
        let arrived = Arrived {
            frame,
            place,
            psn: packet.bth.psn,
            payload: packet.payload,
            headers,
            channel,
            port: arrival.port,
            mac: udp.addresses.src_mac,
            egress,
        };
        self.rings[at].receive(context, &mut self.counters, rank, arrived)?;
        Ok(Next::Done)
    }

    #[inline(always)]
    fn receive_cached(
        &mut self,
        context: &mut Context<P>,
        port: PortId,
        frames: &mut impl Iterator<Item = P::Frame>,
    ) -> Option<P::Frame> {
        let flow = self.flows.get(usize::from(port.0)).and_then(Option::as_ref);
        let Some(flow) = flow.filter(|flow| flow.is_current()) else {
            return frames.next();
        };
        if flow.core != context.core {
            return flow.hand_over(context, port, frames);
        }
        let Some(ring) = self.rings.get_mut(flow.at) else {
            return frames.next();
        };
        let mut egress = None;
        for frame in frames {
            if let Some(frame) = flow.take(
                context,
                &mut self.counters,
                ring,
                (port, &mut egress),
                frame,
            ) {
                return Some(frame);
            }
        }
        None
    }

    fn command(&mut self, context: &mut Context<P>, command: Command) {
        match command {
            Command::Bind(config) => self.bind(context, *config),
            Command::Unbind(id) => self.unbind(context, id),
            Command::Rings(reply) => reply(self.statuses()),
        }
    }

    fn metrics(&self, _: &Context<P>) -> Metrics {
        Metrics {
            counters: self.counters,
            in_use: NetreduceUse {
                held_in_use: self.rings.iter().map(Ring::held).sum::<u64>()
                    + self.roots.iter().map(Root::held).sum::<u64>(),
            },
            rings: self.statuses(),
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        if self.trees.is_empty() {
            return self.check_at;
        }
        let repeats = self.rings.iter().filter_map(Ring::due);
        repeats.chain(self.check_at).min()
    }

    fn handle_timeout(&mut self, context: &mut Context<P>) {
        for ring in &mut self.rings {
            ring.repeat(context, &mut self.counters);
        }
        if self.check_at.is_none_or(|at| context.now < at) {
            return;
        }
        self.check_at = Some(context.now.after(CHECK_EVERY));
        let now = context.now;
        let is_silent = |last: Time| last.after(SILENCE) <= now;
        for ring in &mut self.rings {
            if ring.waits() && is_silent(ring.last()) {
                ring.expire(context);
                self.counters.expired += 1;
            }
        }
        for root in &mut self.roots {
            if root.waits() && is_silent(root.last()) {
                root.expire(context);
                self.counters.expired += 1;
            }
        }
    }
}
