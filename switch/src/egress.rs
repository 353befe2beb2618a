//! One data core's way out: a bounded queue for each port, and the engine's frames put into them.
//!
//! A port's transmit queue belongs to one core. Frames for a port of another core go there through
//! its inbox ([`Handover`]). What does not fit a queue is dropped and counted: waiting
//! would let one slow port stop all others.

use crate::messages::{Handover, Outbox, PortCounters, QUEUE_FRAMES};
use std::net::Ipv4Addr;
use tally_dpdk::{Mbuf, TxQueue};
use tally_engine::{Buffer, DropReason, Egress, Member, PortId, Roster, To};
use tally_wire::frame::group_of;
use tally_wire::{Addresses, HEADERS_BYTES, Header, Mac, Time};

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
    Queue(TxQueue, Vec<Mbuf>),
    /// The port of the core with this number.
    Core(usize),
}

/// The way out of one data core.
pub struct Ports {
    own: Own,
    ways: Vec<Way>,
    outbox: Outbox,
    /// By port.
    pub counters: Vec<PortCounters>,
    /// Frames that are done with, given back in bulk.
    done: Vec<Mbuf>,
    /// Frames dropped on the way out, by reason.
    pub handover_full: u64,
    /// Nanoseconds from a fragment's first contribution to its result.
    pub residence_ns: hdrhistogram::Histogram<u64>,
    /// The moment of the burst at hand.
    pub now: Time,
}

impl Ports {
    /// `queues` has this core's transmit queue for each port, or the core that has it.
    #[must_use]
    pub fn new(own: Own, queues: Vec<Result<TxQueue, usize>>, outbox: Outbox) -> Self {
        let ways: Vec<_> = queues
            .into_iter()
            .map(|queue| match queue {
                Ok(queue) => Way::Queue(queue, Vec::with_capacity(QUEUE_FRAMES)),
                Err(core) => Way::Core(core),
            })
            .collect();
        Self {
            own,
            counters: vec![PortCounters::default(); ways.len()],
            ways,
            outbox,
            done: Vec::with_capacity(256),
            handover_full: 0,
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

    /// Puts a frame into a port's queue; drops and counts it if that is full.
    #[inline]
    pub fn enqueue(&mut self, port: PortId, mbuf: Mbuf) {
        let at = usize::from(port.0);
        match &mut self.ways[at] {
            Way::Queue(_, queue) if queue.len() < QUEUE_FRAMES => queue.push(mbuf),
            Way::Queue(..) => self.counters[at].tx_dropped += 1,
            Way::Core(core) => {
                if !self.outbox.send(*core, Handover::Egress(port, mbuf)) {
                    self.handover_full += 1;
                }
            }
        }
    }

    /// Sends a frame on all ports but the one it came from.
    pub fn flood(&mut self, ingress: PortId, mbuf: &Mbuf) {
        for at in (0..self.ways.len()).filter(|&at| at != usize::from(ingress.0)) {
            self.counters[at].flooded += 1;
            self.enqueue(PortId(at as u16), mbuf.share());
        }
    }

    /// Offers what waits to the ports, and says whether anything left.
    pub fn flush(&mut self) -> bool {
        let mut progress = false;
        for (way, counters) in self.ways.iter_mut().zip(&mut self.counters) {
            let Way::Queue(tx, queue) = way else { continue };
            if queue.is_empty() {
                continue;
            }
            let bytes = |queue: &[Mbuf]| queue.iter().map(|m| m.len() as u64).sum::<u64>();
            let before = bytes(queue);
            let sent = tx.burst(queue);
            counters.tx_frames += sent as u64;
            counters.tx_bytes += before - bytes(queue);
            progress |= sent > 0;
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
    pub fn hand_over(
        &mut self,
        core: usize,
        ingress: PortId,
        mbuf: Mbuf,
    ) -> Result<(), DropReason> {
        if self.outbox.send(core, Handover::Ingress(ingress, mbuf)) {
            Ok(())
        } else {
            Err(DropReason::HandoverFull)
        }
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
        let len = tally_wire::frame::UDP_END + datagram.len();
        let header = Header::parse(datagram).map_err(DropReason::from)?;
        let frame = mbuf.append(len).ok_or(DropReason::NoBuffer)?;
        tally_wire::frame::emit(frame, &self.address(to), &header);
        frame[tally_wire::frame::UDP_END..].copy_from_slice(datagram);
        self.enqueue(to.port, mbuf);
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
            Self::write_headers(&mut mbuf, &self.address(member), header);
            self.enqueue(member.port, mbuf);
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
        // Not one by one: after the first, each would be a locked instruction.
        let shares = mbuf.share_many(roster.ports.len() as u16);
        for (&port, share) in roster.ports.iter().zip(shares) {
            self.enqueue(port, share);
        }
        if let Some(born) = born {
            let nanos = self.now.since(born).as_nanos() as u64;
            self.residence_ns.saturating_record(nanos.max(1));
        }
        Frame(mbuf)
    }

    #[inline]
    fn republish(&mut self, roster: &Roster, to: tally_wire::Rank, frame: &Frame) {
        if let Some(member) = roster.member(to) {
            self.enqueue(member.port, frame.0.share());
        }
    }

    #[inline]
    fn discard(&mut self, Frame(mbuf): Frame) {
        self.recycle(mbuf);
    }
}
