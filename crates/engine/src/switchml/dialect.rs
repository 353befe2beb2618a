//! SwitchML as a dialect: its frames, its replies, and its hosts among those of the switch.
//!
//! It claims its UDP ports at the switch's IPv4 address, at any MAC: the destination MAC is each
//! worker's secret. Checksums are not looked at: the published clients leave them to a NIC, so a
//! frame that went through none has wrong ones. The slot says whose shard a frame is.
//!
//! Fast path: a port's frames mostly come from one worker. The flow cache remembers the headers of
//! the last contribution and who sent it. Frames that repeat those headers are admitted for the
//! rest of the second. Then one frame takes the slow path, which notices where its sender is.
//!
//! Contributions wait in the pool for the end of the poll iteration, and are summed set by set.
//!
//! Each reply has headers of its own, 52 bytes. A short sum ([`COPY_BYTES_MAX`]) is copied into
//! each reply but one: the sum's own frame, whose headers are written anew. A longer sum is a
//! second segment that all replies share, or is copied if the port's driver does not send frames of
//! several segments. Replies are made in frames that were just summed, and so in the cache. If they
//! are too few, frames are taken from the pool many at a time.
//!
//! Catch: drivers without multi-segment transmission are `net_af_xdp`, `net_memif` since DPDK
//! 23.03, and NICs whose driver does not announce it. Copies into such a port are counted.

use super::{
    Admission, Arrival, Destination, HostAddress, Members, Origin, Replies, Route, Session,
    SessionId, SessionStatus, Switchml, SwitchmlCounters, SwitchmlUse, Whereabouts,
};
use crate::buffer::Buffer;
use crate::context::Context;
use crate::core::Reply;
use crate::demux::{self, Claim};
use crate::dialect::{Dialect, Next};
use crate::forwarding::Forwarding;
use crate::frame::{Frame, Observed, Platform};
use crate::queue::class_of;
use crate::{DropReason, PortId};
use std::sync::Arc;
use std::time::Duration;
use tally_wire::switchml::{
    FIRST_PORT, HEADERS_BYTES, Header, HeaderTemplate, PORTS, ReplyHeaders,
};
use tally_wire::{Addresses, Mac, Time};

/// Type of service in an IPv4 header, from Ethernet on.
const TOS_AT: usize = 15;
/// Frames that a core has ready for replies, at most.
pub const STOCK_FRAMES: usize = 64;
/// Longest sum that is copied into replies, also where the driver sends several segments.
pub const COPY_BYTES_MAX: usize = 1024;
/// A rank that others have waited for, for so long, is a straggler: many round trips.
const STRAGGLER_AFTER: Duration = Duration::from_millis(10);

/// A received frame with exactly its headers and elements.
///
/// Of a complete sum that is sent in a second segment, the headers have been cut off.
pub struct Elements<F>(pub F);

impl<F: Frame> Buffer for Elements<F> {
    #[inline]
    fn payload(&self) -> &[u8] {
        self.0.elements(HEADERS_BYTES)
    }

    #[inline]
    fn payload_mut(&mut self) -> &mut [u8] {
        self.0
            .elements_mut(HEADERS_BYTES)
            .expect("the engine writes only to frames it never shared")
    }
}

/// The last contribution of a port: frames that repeat its headers are admitted.
struct Flow {
    template: HeaderTemplate,
    origin: Origin,
    /// When its sender was [noticed](SwitchmlDialect::notice). Valid for as long.
    second: u32,
}

/// The second of a time.
#[inline]
const fn second(time: Time) -> u32 {
    (time.0 / 1_000_000_000) as u32
}

/// What control asks.
pub enum Command {
    /// Begin a session, with what all cores know of its workers' ports; says whether there is room.
    Bind(Arc<Session>, Arc<Whereabouts>, Reply<bool>),
    /// End a session.
    Unbind(SessionId, Reply<()>),
    /// Say how sessions are; with a time, also which ranks others have waited for, longer than
    /// that.
    Sessions(Option<Duration>, Reply<Vec<SessionStatus>>),
}

/// What SwitchML did on one core.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// What its pool shard did.
    pub counters: SwitchmlCounters,
    /// What it keeps.
    pub in_use: SwitchmlUse,
    /// The shard's part of each session.
    pub sessions: Vec<SessionStatus>,
}

/// SwitchML on one core.
pub struct SwitchmlDialect<P: Platform> {
    pool: Switchml<Elements<P::Frame>>,
    /// All members, those of other shards too.
    members: Members,
    /// By port, the sender of its last frame, and the second.
    seen: Vec<Option<(Admission, u32)>>,
    /// By port.
    flows: Vec<Option<Flow>>,
    /// Frames for replies, with any contents.
    stock: Vec<P::Frame>,
    /// By port, whether its driver sends frames of several segments.
    chains: Vec<bool>,
}

impl<P: Platform> SwitchmlDialect<P> {
    /// Without sessions. `chains` says of each port whether its driver sends frames of several
    /// segments.
    #[must_use]
    pub fn new(pool: Switchml<Elements<P::Frame>>, chains: Vec<bool>) -> Self {
        Self {
            pool,
            members: Members::new(chains.len()),
            seen: vec![None; chains.len()],
            flows: chains.iter().map(|_| None).collect(),
            stock: Vec::with_capacity(STOCK_FRAMES),
            chains,
        }
    }

    /// Frames that are ready for replies.
    #[must_use]
    pub fn stock_frames(&self) -> usize {
        self.stock.len()
    }

    /// What its pool shard did.
    #[must_use]
    pub fn counters(&self) -> &SwitchmlCounters {
        self.pool.counters()
    }

    /// From now on nothing is flooded to this port.
    pub fn set_quiet(&mut self, port: PortId) {
        self.members.set_quiet(port);
    }

    /// Notes where a member is. Refuses the frame if the member spoke first behind a port whose
    /// hosts' frames do not come by this one. Its frames come one after the other, so mostly this
    /// is known.
    #[inline]
    fn notice(
        &mut self,
        admission: Admission,
        mac: Mac,
        port: PortId,
        now_s: u32,
        forwarding: &Forwarding,
    ) -> Result<(), DropReason> {
        let seen = Some((admission, now_s));
        let at = usize::from(port.0);
        if self.seen[at] == seen {
            return Ok(());
        }
        let id = self.pool.session_of(admission);
        let known = id.and_then(|id| self.members.spoke(id, admission.rank(), port));
        if let Some(first) = known.filter(|&first| !forwarding.may_come(first, port)) {
            self.pool.note_conflict(admission, [first, port]);
            return Err(DropReason::SwitchmlPort);
        }
        self.seen[at] = seen;
        forwarding.learn(now_s, port, mac);
        Ok(())
    }
}

impl<P: Platform> Dialect<P> for SwitchmlDialect<P> {
    type Command = Command;
    type Metrics = Metrics;

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Local {
            ports: FIRST_PORT..=FIRST_PORT + (PORTS - 1),
            any_mac: true,
        }]
    }

    #[inline(never)]
    fn receive(
        &mut self,
        context: &mut Context<P>,
        arrival: &demux::Arrival,
        mut frame: P::Frame,
    ) -> Result<Next<P::Frame>, DropReason> {
        let Some(udp) = &arrival.udp else {
            return Err(DropReason::UdpPort);
        };
        let (addresses, port) = (&udp.addresses, arrival.port);
        let header = Header::parse(udp.datagram(frame.data()))?;
        let shard = self.pool.shard_of(&header);
        if shard != context.core {
            context.ports.hand_over(shard, port, frame);
            return Ok(Next::Done);
        }
        let from = HostAddress {
            mac: addresses.src_mac,
            ip: addresses.src_ip,
        };
        let to = addresses.dst_mac;
        let admission = self
            .pool
            .admit(&Route { from, to }, &header)
            .inspect_err(|&reason| {
                if reason == DropReason::SwitchmlForged {
                    self.pool.note_forged(from, port);
                }
            })?;
        let now_s = second(context.now);
        self.notice(admission, from.mac, port, now_s, &context.forwarding)?;
        let arrival = Arrival {
            port,
            udp_port: addresses.src_port,
            own_port: addresses.dst_port,
            tos: frame.data()[TOS_AT],
        };
        // Padding would be sent on with the result. Only of a frame that is not shared and has one
        // segment can the length be set.
        let frame_bytes = HEADERS_BYTES + header.size.payload_bytes();
        let origin = Origin::new(admission, &arrival);
        let template = HeaderTemplate::new(frame.data(), header);
        self.flows[usize::from(port.0)] = template.map(|template| Flow {
            template,
            origin,
            second: now_s,
        });
        if !frame.set_len(frame_bytes) {
            return Err(DropReason::Length);
        }
        let now = context.now;
        let mut out = Out {
            context,
            stock: &mut self.stock,
            chains: &self.chains,
        };
        self.pool
            .collect(now, &origin, &header, Elements(frame), &mut out);
        Ok(Next::Done)
    }

    #[inline(always)]
    fn receive_cached(
        &mut self,
        context: &mut Context<P>,
        port: PortId,
        frames: &mut impl Iterator<Item = P::Frame>,
    ) -> Option<P::Frame> {
        let Some(flow) = &self.flows[usize::from(port.0)] else {
            return frames.next();
        };
        if flow.second != second(context.now) || !self.pool.still_admits(flow.origin.admission()) {
            return frames.next();
        }
        let now = context.now;
        let mut out = Out {
            context,
            stock: &mut self.stock,
            chains: &self.chains,
        };
        for mut frame in frames {
            if let Some(header) = flow.template.header_of(frame.data())
                && self.pool.has_slot(&header)
                // Padding, as in `receive`.
                && frame.set_len(flow.template.frame_bytes())
            {
                let elements = Elements(frame);
                self.pool
                    .collect(now, &flow.origin, &header, elements, &mut out);
            } else {
                return Some(frame);
            }
        }
        None
    }

    #[inline]
    fn aggregate(&mut self, context: &mut Context<P>) {
        let now = context.now;
        let mut out = Out {
            context,
            stock: &mut self.stock,
            chains: &self.chains,
        };
        self.pool.aggregate(now, &mut out);
    }

    fn command(&mut self, context: &mut Context<P>, command: Command) {
        let now = context.now;
        let mut out = Out {
            context,
            stock: &mut self.stock,
            chains: &self.chains,
        };
        match command {
            Command::Bind(session, whereabouts, reply) => {
                let bound = self.pool.bind(Arc::clone(&session), &mut out);
                if bound {
                    self.members.bind(&session, whereabouts);
                }
                reply(bound);
            }
            Command::Unbind(id, reply) => {
                self.pool.unbind(id, &mut out);
                self.members.unbind(id);
                if self.pool.is_idle() {
                    P::Frame::free_bulk(&mut self.stock);
                }
                reply(());
            }
            Command::Sessions(age, reply) => reply(self.pool.sessions(now, age)),
        }
    }

    fn metrics(&self, context: &Context<P>) -> Metrics {
        Metrics {
            counters: *self.pool.counters(),
            in_use: SwitchmlUse {
                held_in_use: self.pool.held_in_use(),
            },
            sessions: self.pool.sessions(context.now, Some(STRAGGLER_AFTER)),
        }
    }

    fn answer_arp(&self, frame: &mut [u8], hears: &dyn Fn(PortId) -> bool) -> bool {
        self.members.answer_arp(frame, hears)
    }

    fn port_of(&self, mac: Mac) -> Option<PortId> {
        self.members.port_of(mac)
    }

    fn spare_floods(&self, spared: &mut [bool], is_link: &dyn Fn(PortId) -> bool) {
        self.members.spare_floods(spared, is_link);
    }
}

/// The pool's way out.
struct Out<'a, P: Platform> {
    context: &'a mut Context<P>,
    stock: &'a mut Vec<P::Frame>,
    chains: &'a [bool],
}

/// The elements of a sum, whether or not its headers have been cut off.
#[inline]
fn elements<'a>(sum: &'a impl Frame, header: &Header) -> &'a [u8] {
    let data = sum.data();
    &data[data.len().saturating_sub(header.size.payload_bytes())..]
}

impl<P: Platform> Out<'_, P> {
    /// A frame of that length with any contents; `None` if the pool is exhausted.
    #[inline]
    fn frame(&mut self, bytes: usize) -> Option<P::Frame> {
        let mut found = self.stock.pop();
        if found.as_mut().is_some_and(|frame| frame.set_len(bytes)) {
            return found;
        }
        self.fresh(found, bytes)
    }

    /// As [`frame`](Self::frame), instead of one that is not there or too small.
    #[cold]
    fn fresh(&mut self, found: Option<P::Frame>, bytes: usize) -> Option<P::Frame> {
        if let Some(frame) = found {
            self.context.ports.recycle(frame);
        }
        let platform = &self.context.platform;
        if self.stock.is_empty() {
            platform.alloc_bulk(self.stock, STOCK_FRAMES / 2);
        }
        let mut frame = self.stock.pop().or_else(|| platform.alloc())?;
        frame.set_len(bytes).then_some(frame)
    }

    /// A reply with a copy of the sum.
    #[inline(always)]
    fn copied(
        &mut self,
        headers: &ReplyHeaders,
        addresses: &Addresses,
        elements: &[u8],
    ) -> Option<P::Frame> {
        let mut frame = self.frame(HEADERS_BYTES + elements.len())?;
        let bytes = frame.data_mut()?;
        headers.write(bytes, addresses);
        bytes[HEADERS_BYTES..].copy_from_slice(elements);
        Some(frame)
    }

    /// A reply with a reference to the sum.
    #[inline(always)]
    fn chained(
        &mut self,
        headers: &ReplyHeaders,
        addresses: &Addresses,
        sum: Option<P::Frame>,
    ) -> Option<P::Frame> {
        let mut head = self.frame(HEADERS_BYTES)?;
        headers.write(head.data_mut()?, addresses);
        P::Frame::chain(head, sum?)
    }

    #[inline(always)]
    fn addresses_to(&self, to: &Destination) -> Addresses {
        Addresses {
            src_mac: to.own_mac,
            dst_mac: to.mac,
            src_ip: self.context.address.ip,
            dst_ip: to.ip,
            src_port: to.own_port,
            dst_port: to.udp_port,
        }
    }

    #[inline(always)]
    fn reply_by(
        &mut self,
        to: &Destination,
        headers: &ReplyHeaders,
        class: usize,
        elements: &[u8],
        share: impl FnOnce() -> Option<P::Frame>,
    ) {
        let addresses = self.addresses_to(to);
        let at = usize::from(to.port.0);
        let frame = if elements.len() <= COPY_BYTES_MAX {
            self.copied(headers, &addresses, elements)
        } else if self.chains[at] {
            self.chained(headers, &addresses, share())
        } else {
            self.context.ports.rare[at].replies_copied += 1;
            self.copied(headers, &addresses, elements)
        };
        match frame {
            // A size that this port does not carry: its worker hears nothing, as from any switch.
            Some(frame) => {
                let context = &mut *self.context;
                context.platform.observe(Observed::Answered(&frame));
                context.ports.forward(to.port, class, frame);
            }
            None => self.context.ports.no_buffer += 1,
        }
    }
}

impl<P: Platform> Replies<Elements<P::Frame>> for Out<'_, P> {
    fn reply(
        &mut self,
        to: &Destination,
        header: &Header,
        tos: u8,
        Elements(sum): &Elements<P::Frame>,
    ) {
        let headers = ReplyHeaders::new(header);
        let elements = elements(sum, header);
        self.reply_by(to, &headers, class_of(tos), elements, || Some(sum.share()));
    }

    #[inline]
    fn reply_all<'a>(
        &mut self,
        mut to: impl Iterator<Item = &'a Destination>,
        header: &Header,
        tos: u8,
        Elements(sum): &mut Elements<P::Frame>,
    ) {
        let headers = ReplyHeaders::new(header);
        let class = class_of(tos);
        if header.size.payload_bytes() > COPY_BYTES_MAX {
            // Where the headers end, the second segment begins. It is not shared yet.
            sum.adj(HEADERS_BYTES);
            let elements = elements(sum, header);
            // Not one by one: after the first, each would be a locked instruction. Ports that take
            // copies leave some.
            let mut shares = sum.share_many(to.size_hint().0 as u16);
            for to in to {
                self.reply_by(to, &headers, class, elements, || shares.next());
            }
            return;
        }
        // One worker has the sum itself, the others have copies.
        if let Some(to) = to.next()
            && let Some(bytes) = sum.data_mut()
        {
            headers.write(bytes, &self.addresses_to(to));
            let context = &mut *self.context;
            context.platform.observe(Observed::Answered(sum));
            context.ports.forward(to.port, class, sum.share());
        }
        let elements = elements(sum, header);
        for to in to {
            self.reply_by(to, &headers, class, elements, || None);
        }
    }

    /// Frames that are done with are stock for replies.
    #[inline]
    fn discard(&mut self, Elements(frame): Elements<P::Frame>) {
        if self.stock.len() < STOCK_FRAMES && frame.is_unique() && frame.is_contiguous() {
            self.stock.push(frame);
        } else {
            self.context.ports.recycle(frame);
        }
    }
}
