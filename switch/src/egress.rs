//! One data core's way out: bounded queues for each port, and the engine's frames put into them.
//!
//! A port has a transmit queue for each core, or if its driver has not as many, one that belongs to one
//! core. Frames for a port of another core go there through
//! its inbox ([`handover`](crate::handover)). What does not fit a queue is dropped and counted: waiting
//! would let one slow port stop all others.
//!
//! A port has a [`PortQueue`] of eight classes (C-4). Frames are taken from it, in the order of their
//! turns, to a short stage from which the driver takes them; while nothing waits behind the stage, a
//! frame goes there directly. What the driver does not take stays on the stage, so a frame of the
//! highest class can stand behind [`STAGE_FRAMES`] of lower ones, and behind the descriptors that the
//! driver has filled.
//!
//! A frame that joins a long queue is marked (C-1) if nobody shares it and its sender takes part. A
//! result is marked before it is shared, for all of its ports, if one of them has a long queue. Frames
//! that are sent once more from the ring of results stay as they are.
//!
//! The catch: a core does not see what waits in other cores' queues of a port; each has its part of
//! what may wait. Where it has no queue of its own, it hands over a result that is shared by then, and so
//! not marked for that port.

mod card;
mod replies;

pub use replies::{Elements, HEADS_FRAMES, ReplyCounters};

use crate::handover::{Handover, Outbox};
use crate::messages::PortCounters;
use crate::ports::Tx;
use std::net::Ipv4Addr;
use tally_dpdk::Mbuf;
use tally_engine::queue::{PortQueue, QueueConfig, QueueCounters, class_of, class_of_header};
use tally_engine::{Buffer, DropReason, Egress, Member, PortId, Roster, To};
use tally_wire::frame::{ETHERTYPE_IPV4, UDP_END, group_of, mark};
use tally_wire::header::PRIORITY_AT;
use tally_wire::{Addresses, HEADERS_BYTES, Header, Mac, Time};

/// Frames that a driver is offered at a time.
pub const STAGE_FRAMES: usize = 32;

/// A received frame with exactly its headers and payload: what the engine calls a buffer.
pub struct Frame(pub Mbuf);

impl Buffer for Frame {
    #[inline]
    fn payload(&self) -> &[u8] {
        &self.0.data()[HEADERS_BYTES..]
    }

    #[inline]
    fn payload_mut(&mut self) -> &mut [u8] {
        let frame = self
            .0
            .data_mut()
            .expect("the engine writes only to frames it never shared");
        &mut frame[HEADERS_BYTES..]
    }
}

/// The class of a result that was published: by the priority that is written in it.
#[inline]
fn class_of_published(frame: &[u8]) -> usize {
    class_of(frame[UDP_END + PRIORITY_AT])
}

/// The switch's own address.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// First UDP port.
    pub base_port: u16,
}

enum Way {
    /// This core's own port.
    Own(Box<Line>),
    /// The port of the core with this number.
    Core(usize),
}

/// What waits for one port.
struct Line {
    tx: Tx,
    /// Next to leave, in this order.
    stage: Vec<Mbuf>,
    queue: PortQueue<Mbuf>,
}

impl Line {
    fn new(tx: Tx, config: QueueConfig) -> Self {
        Self {
            tx,
            stage: Vec::with_capacity(STAGE_FRAMES),
            queue: PortQueue::new(config),
        }
    }

    /// Whether the next frame goes to the stage: nothing waits behind it, and it has room.
    #[inline]
    fn is_open(&self) -> bool {
        self.queue.is_empty() && self.stage.len() < STAGE_FRAMES
    }

    /// Joins the queue: the port has more to do than it gets done.
    fn wait(&mut self, class: usize, mut mbuf: Mbuf) {
        let marked = self.queue.is_long(class) && mbuf.data_mut().is_some_and(mark);
        // If its class is full, the queue counts the frame as dropped.
        if self.queue.push(class, mbuf).is_ok() && marked {
            self.queue.count_mark();
        }
    }

    /// Offers what waits to the driver, and says whether anything left.
    fn flush(&mut self, counters: &mut PortCounters) -> bool {
        let bytes = |stage: &[Mbuf]| stage.iter().map(|m| m.len() as u64).sum::<u64>();
        let mut progress = false;
        loop {
            let room = STAGE_FRAMES - self.stage.len();
            self.queue.pop_burst(&mut self.stage, room);
            if self.stage.is_empty() {
                return progress;
            }
            let before = bytes(&self.stage);
            let sent = self.tx.burst(&mut self.stage);
            counters.tx_frames += sent as u64;
            counters.tx_bytes += before - bytes(&self.stage);
            progress |= sent > 0;
            if !self.stage.is_empty() {
                return progress;
            }
        }
    }
}

/// The class of an ordinary frame: its precedence if it is IP (the upper three bits of what was the
/// type of service; C-4), else the lowest. That is where ARP and most logins are: what the guard
/// leaves to a class is plenty for them.
#[inline]
#[must_use]
pub fn class_of_frame(frame: &[u8]) -> usize {
    const ETHERTYPE_IPV6: u16 = 0x86dd;
    let Some(&[high, low, first, second]) = frame.get(12..16).and_then(<[u8]>::first_chunk) else {
        return 0;
    };
    match u16::from_be_bytes([high, low]) {
        ETHERTYPE_IPV4 => class_of(second),
        // Version, then eight bits of traffic class.
        ETHERTYPE_IPV6 => class_of(first << 4),
        _ => 0,
    }
}

/// The way out of one data core.
pub struct Ports {
    own: Own,
    ways: Vec<Way>,
    outbox: Outbox,
    /// Whether a queue of this core's ports may have a frame: nearly never, and then results need
    /// not look at each.
    any_waits: bool,
    /// By port.
    pub counters: Vec<PortCounters>,
    /// By ingress port, frames dropped because they claimed what is another's.
    pub claims: Vec<u64>,
    /// Frames that are done with, given back in bulk.
    done: Vec<Mbuf>,
    /// Frames dropped on their way to another core.
    pub handover_full: u64,
    /// Ordinary frames dropped because their port has a smaller MTU.
    pub frame_too_long: u64,
    /// Replies that were not made because the pool was dry.
    pub no_buffer: u64,
    /// What SwitchML adds to the counters, by port.
    pub replies: Vec<ReplyCounters>,
    /// The port to which nothing is flooded, because a card is behind it.
    card: Option<PortId>,
    /// For SwitchML's replies, if there are any.
    heads: Option<replies::Heads>,
    /// By port, bytes of the longest ordinary frame that may leave by it; at first any.
    pub longest_frame: Vec<usize>,
    /// Nanoseconds from a fragment's first contribution to its result.
    pub residence_ns: hdrhistogram::Histogram<u64>,
    /// The moment of the burst at hand.
    pub now: Time,
}

impl Ports {
    /// `queues` has for each port this core's transmit queue and how much may wait for it, or the core
    /// that sends for this one.
    #[must_use]
    pub fn new(own: Own, queues: Vec<Result<(Tx, QueueConfig), usize>>, outbox: Outbox) -> Self {
        let ways: Vec<_> = queues
            .into_iter()
            .map(|queue| match queue {
                Ok((tx, config)) => Way::Own(Box::new(Line::new(tx, config))),
                Err(core) => Way::Core(core),
            })
            .collect();
        Self {
            own,
            counters: vec![PortCounters::default(); ways.len()],
            claims: vec![0; ways.len()],
            longest_frame: vec![usize::MAX; ways.len()],
            replies: vec![ReplyCounters::default(); ways.len()],
            card: None,
            heads: None,
            no_buffer: 0,
            ways,
            outbox,
            any_waits: false,
            done: Vec::with_capacity(256),
            handover_full: 0,
            frame_too_long: 0,
            // Two digits from 1 ns to 100 s: 32 KiB.
            residence_ns: hdrhistogram::Histogram::new_with_bounds(1, 100_000_000_000, 2)
                .expect("bounds that hdrhistogram takes"),
            now: Time(0),
        }
    }

    /// The number of ports.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ways.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// Puts a frame into a port's queue of that class; drops and counts it if that is full.
    #[inline(always)]
    pub fn enqueue(&mut self, port: PortId, class: usize, mbuf: Mbuf) {
        match &mut self.ways[usize::from(port.0)] {
            Way::Own(line) if line.is_open() => line.stage.push(mbuf),
            _ => self.enqueue_behind(port, class, mbuf),
        }
    }

    /// Where a frame cannot go to the stage directly.
    #[inline(never)]
    fn enqueue_behind(&mut self, port: PortId, class: usize, mbuf: Mbuf) {
        match &mut self.ways[usize::from(port.0)] {
            Way::Own(line) => {
                line.wait(class, mbuf);
                self.any_waits = true;
            }
            Way::Core(core) => {
                let handover = Handover::Egress(port, class as u8, mbuf);
                self.handover_full += self.outbox.send(*core, handover);
            }
        }
    }

    /// What the queue of each port saw; of ports of other cores, nothing.
    #[must_use]
    pub fn queue_counters(&self) -> Vec<QueueCounters> {
        let of = |way: &Way| match way {
            Way::Own(line) => *line.queue.counters(),
            Way::Core(_) => QueueCounters::default(),
        };
        self.ways.iter().map(of).collect()
    }

    /// Frames that each port took and could not send; of ports of other cores, none.
    pub fn refused(&self) -> impl Iterator<Item = u64> {
        self.ways.iter().map(|way| match way {
            Way::Own(line) => line.tx.refused(),
            Way::Core(_) => 0,
        })
    }

    /// Whether one of the ports has a long queue for this class, which is counted as a mark there.
    #[inline]
    fn is_long(&mut self, ports: &[PortId], class: usize) -> bool {
        let mut long = false;
        for port in ports {
            if let Way::Own(line) = &mut self.ways[usize::from(port.0)]
                && line.queue.is_long(class)
            {
                line.queue.count_mark();
                long = true;
            }
        }
        long
    }

    /// Sends an ordinary frame on a port, if it is not too long for it: some drivers keep such a frame, and
    /// everything behind it, for ever.
    pub fn forward(&mut self, port: PortId, class: usize, mbuf: Mbuf) {
        if mbuf.len() > self.longest_frame[usize::from(port.0)] {
            self.frame_too_long += 1;
            self.recycle(mbuf);
        } else {
            self.enqueue(port, class, mbuf);
        }
    }

    /// Sends a frame on all ports but the one it came from and those that are `spared`, by port; an empty
    /// slice spares none.
    pub fn flood(&mut self, ingress: PortId, mbuf: &Mbuf, spared: &[bool]) {
        let class = class_of_frame(mbuf.data());
        for at in (0..self.ways.len()).filter(|&at| at != usize::from(ingress.0)) {
            if spared.get(at) == Some(&true) {
                self.replies[at].spared += 1;
                continue;
            }
            if self.card == Some(PortId(at as u16)) {
                continue;
            }
            self.counters[at].flooded += 1;
            self.forward(PortId(at as u16), class, mbuf.share());
        }
    }

    /// Offers what waits to the ports, and says whether anything left.
    pub fn flush(&mut self) -> bool {
        let mut progress = false;
        self.any_waits = false;
        self.handover_full += self.outbox.flush();
        for (way, counters) in self.ways.iter_mut().zip(&mut self.counters) {
            if let Way::Own(line) = way {
                progress |= line.flush(counters);
                self.any_waits |= !line.queue.is_empty();
            }
        }
        self.give_back();
        progress
    }

    /// Gives the frames that are done with back to their pools. After every burst: the next one is
    /// then received into buffers that are still in the cache.
    #[inline]
    pub fn give_back(&mut self) {
        tally_dpdk::free_bulk(&mut self.done);
    }

    /// Hands a frame to the core whose shard it is for.
    pub fn hand_over(&mut self, core: usize, ingress: PortId, mbuf: Mbuf) {
        self.counters[usize::from(ingress.0)].handed_over += 1;
        self.handover_full += self.outbox.send(core, Handover::Ingress(ingress, mbuf));
    }

    /// Whether what is received now might find no room on its way to another core.
    #[inline]
    #[must_use]
    pub fn is_short_of_room(&self) -> bool {
        self.outbox.is_short_of_room()
    }

    /// Done with a frame: it goes back to its pool with others.
    #[inline]
    pub fn recycle(&mut self, mbuf: Mbuf) {
        if self.done.len() == self.done.capacity() {
            self.give_back();
        }
        self.done.push(mbuf);
    }

    fn address(&self, to: &Member) -> Addresses {
        Addresses {
            src_mac: self.own.mac,
            dst_mac: to.mac,
            src_ip: self.own.ip,
            dst_ip: to.ip,
            src_port: self.own.base_port,
            dst_port: to.udp_port,
        }
    }

    /// Sends a control datagram in a fresh frame.
    pub fn send_datagram(
        &mut self,
        pool: &tally_dpdk::Mempool,
        to: &Member,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        let mut mbuf = pool.alloc().ok_or(DropReason::NoBuffer)?;
        let len = UDP_END + datagram.len();
        let header = Header::parse(datagram).map_err(DropReason::from)?;
        let frame = mbuf.append(len).ok_or(DropReason::NoBuffer)?;
        tally_wire::frame::emit(frame, &self.address(to), &header);
        frame[UDP_END..].copy_from_slice(datagram);
        self.enqueue(to.port, class_of_header(&header), mbuf);
        Ok(())
    }

    fn write_headers(mbuf: &mut Mbuf, addresses: &Addresses, header: &Header) {
        let frame = mbuf
            .data_mut()
            .expect("the engine sends only frames it never shared");
        tally_wire::frame::emit(frame, addresses, header);
    }
}

impl Egress<Frame> for Ports {
    #[inline]
    fn send(&mut self, roster: &Roster, to: To, header: &Header, Frame(mut mbuf): Frame) {
        let member = match to {
            To::Ps => Some(&roster.ps),
            To::Worker(rank) => roster.member(rank),
        };
        if let Some(member) = member {
            let trailer = header.kind.trailer_bytes();
            if trailer > 0 {
                let payload_end = HEADERS_BYTES + header.payload_bytes();
                // It fits: `units` leaves room for it in the MTU, and buffers hold the MTU.
                if !mbuf.set_len(payload_end + trailer) {
                    self.no_buffer += 1;
                    return self.recycle(mbuf);
                }
                let frame = mbuf.data_mut().expect("it could be resized");
                header.emit_trailer(&mut frame[payload_end..]);
            }
            Self::write_headers(&mut mbuf, &self.address(member), header);
            self.enqueue(member.port, class_of_header(header), mbuf);
        }
    }

    #[inline]
    fn publish(
        &mut self,
        roster: &Roster,
        header: &Header,
        Frame(mut mbuf): Frame,
        born: Option<Time>,
    ) -> Frame {
        let group = group_of(roster.job);
        let addresses = Addresses {
            src_mac: self.own.mac,
            dst_mac: Mac::of_group(group),
            src_ip: self.own.ip,
            dst_ip: group,
            src_port: self.own.base_port,
            dst_port: self.own.base_port,
        };
        Self::write_headers(&mut mbuf, &addresses, header);
        let class = class_of_header(header);
        if self.any_waits
            && self.is_long(&roster.ports, class)
            && let Some(frame) = mbuf.data_mut()
        {
            mark(frame);
        }
        // Not one by one: after the first, each would be a locked instruction.
        let mut shares = mbuf.share_many(roster.ports.len() as u16);
        for &port in &roster.ports {
            let Some(share) = shares.next() else { break };
            self.enqueue(port, class, share);
        }
        drop(shares);
        if let Some(born) = born {
            let nanos = self.now.since(born).as_nanos() as u64;
            self.residence_ns.saturating_record(nanos.max(1));
        }
        Frame(mbuf)
    }

    #[inline]
    fn republish(&mut self, roster: &Roster, to: tally_wire::Rank, frame: &Frame) {
        if let Some(member) = roster.member(to) {
            let mbuf = frame.0.share();
            self.enqueue(member.port, class_of_published(mbuf.data()), mbuf);
        }
    }

    #[inline]
    fn discard(&mut self, Frame(mbuf): Frame) {
        self.recycle(mbuf);
    }
}
