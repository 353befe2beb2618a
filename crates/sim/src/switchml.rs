//! SwitchML's clients in simulated time, as the published ones behave.
//!
//! Packet p goes to slot p modulo the slots in use, and to the slot's two sets in turn. A slot has
//! one packet under way; its result sends the next one. A packet without a result is retransmitted
//! after a fixed timeout. Every result is compared with the sum of what all ranks contribute.

use crate::address::{Address, SwitchId};
use crate::rng::Rng;
use std::sync::Arc;
use std::time::Duration;
use tally_engine::switchml::{HostAddress, Session, SessionId};
use tally_wire::switchml::{FIRST_PORT, HEADERS_BYTES, Header, Size, emit_request};
use tally_wire::{Addresses, Mac, Time, UdpFrame};

/// From a packet to its retransmission: longer than a loaded path takes.
const RTO: Duration = Duration::from_millis(5);

/// What the clients of a session have in common.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The switch that aggregates.
    pub switch: SwitchId,
    /// Members, their secrets and the packet size.
    pub session: Arc<Session>,
    /// Slots that are used.
    pub slots: u16,
    /// Packets of each worker.
    pub packets: u32,
    /// What contributions are made from.
    salt: u64,
}

impl Plan {
    /// A session of these workers, with secrets from `rng`.
    #[must_use]
    pub fn new(
        switch: SwitchId,
        id: SessionId,
        size: Size,
        workers: &[Address],
        slots: u16,
        packets: u32,
        rng: &mut Rng,
    ) -> Self {
        let station = |worker: &Address| HostAddress {
            mac: worker.mac(),
            ip: worker.ip(),
        };
        let secret = |_: &Address| {
            let [a, b, c, d, e, ..] = rng.next().to_be_bytes();
            Mac([6, a, b, c, d, e])
        };
        let session = Session {
            id,
            size,
            workers: workers.iter().map(station).collect(),
            switch_macs: workers.iter().map(secret).collect(),
        };
        Self {
            switch,
            session: Arc::new(session),
            slots,
            packets,
            salt: rng.next(),
        }
    }

    /// An element of a rank's packet.
    fn element(&self, rank: usize, packet: u32, at: usize) -> i32 {
        let mixed = (self.salt ^ u64::from(packet) << 20 ^ (at as u64) << 8 ^ rank as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as i32
    }

    /// Whether these are the sums of all ranks' elements, which wrap.
    fn is_sum(&self, packet: u32, elements: &[u8]) -> bool {
        let (words, rest) = elements.as_chunks::<4>();
        let sum = |at| {
            let ranks = 0..self.session.workers.len();
            ranks.fold(0_i32, |sum, rank| {
                sum.wrapping_add(self.element(rank, packet, at))
            })
        };
        let right = |(at, word): (usize, &[u8; 4])| i32::from_be_bytes(*word) == sum(at);
        rest.is_empty() && words.iter().enumerate().all(right)
    }
}

/// A packet under way in a slot.
#[derive(Clone, Copy, Debug)]
struct Pending {
    packet: u32,
    /// When it is to be sent next.
    due: Time,
}

/// One worker of a session.
pub struct Client {
    plan: Plan,
    rank: usize,
    own: Address,
    /// By slot.
    pending: Vec<Option<Pending>>,
    /// Results so far.
    pub results: u32,
    /// A result that was not the sum.
    pub wrong: Option<String>,
}

impl Client {
    /// A worker that begins now.
    #[must_use]
    pub fn new(now: Time, plan: Plan, rank: usize, own: Address) -> Self {
        let begin = |slot: u16| {
            let packet = u32::from(slot);
            (packet < plan.packets).then_some(Pending { packet, due: now })
        };
        Self {
            pending: (0..plan.slots).map(begin).collect(),
            plan,
            rank,
            own,
            results: 0,
            wrong: None,
        }
    }

    /// Whether it has all results.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.results == self.plan.packets
    }

    fn header(&self, slot: usize, packet: u32) -> Header {
        Header {
            size: self.plan.session.size,
            job: 7,
            packet: packet.to_ne_bytes(),
            slot: slot as u16,
            set: packet / u32::from(self.plan.slots) % 2 == 1,
            exponents: [0; 2],
        }
    }

    /// Writes a frame that is due, from Ethernet on; says how long it is.
    pub fn poll_transmit(&mut self, now: Time, room: &mut [u8]) -> Option<usize> {
        let is_due = |pending: &Option<Pending>| pending.is_some_and(|p| p.due <= now);
        let slot = self.pending.iter().position(is_due)?;
        let packet = self.pending[slot]?.packet;
        let header = self.header(slot, packet);
        let addresses = Addresses {
            src_mac: self.own.mac(),
            dst_mac: self.plan.session.switch_macs[self.rank],
            src_ip: self.own.ip(),
            dst_ip: self.plan.switch.ip(),
            src_port: self.own.udp_port,
            dst_port: FIRST_PORT,
        };
        emit_request(room, &addresses, &header);
        let len = HEADERS_BYTES + header.size.payload_bytes();
        let (words, _) = room[HEADERS_BYTES..len].as_chunks_mut::<4>();
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.plan.element(self.rank, packet, at).to_be_bytes();
        }
        self.pending[slot] = Some(Pending {
            packet,
            due: now.after(RTO),
        });
        Some(len)
    }

    /// Takes a frame that came to its host.
    pub fn handle(&mut self, now: Time, udp: &UdpFrame, frame: &[u8]) {
        let datagram = udp.datagram(frame);
        let is_from_switch = udp.addresses.src_mac == self.plan.session.switch_macs[self.rank]
            && udp.addresses.src_ip == self.plan.switch.ip();
        let Ok(header) = Header::parse(datagram) else {
            return;
        };
        let slot = usize::from(header.slot);
        let Some(Some(pending)) = self.pending.get(slot).copied() else {
            return;
        };
        if !is_from_switch || header != self.header(slot, pending.packet) {
            return;
        }
        if !self.plan.is_sum(pending.packet, &frame[HEADERS_BYTES..]) && self.wrong.is_none() {
            self.wrong = Some(format!(
                "rank {} packet {}: not the sum",
                self.rank, pending.packet
            ));
        }
        self.results += 1;
        let packet = pending.packet + u32::from(self.plan.slots);
        self.pending[slot] = (packet < self.plan.packets).then_some(Pending { packet, due: now });
    }

    /// When something is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.pending.iter().flatten().map(|p| p.due).min()
    }
}
