//! One ring: its connections, and what becomes of their packets.
//!
//! A PSN finds its message by the PSN of each message's first packet, which a connection notes, and
//! its slot by the distance.
//!
//! Message k is freed when all members have sent in message k + N: then all have received k (N-9).
//! So at most 2 N messages are live. A leaf of a tree knows that by the first total of message
//! k + N. Its members may have received all of a message of which it has had no total, so at most
//! 3 N messages are live (N-18).

use super::messages::{Messages, Shape};
use super::release::{CachedSum, Held, Shifts, fold, leave, release_all, send_all, write_headers};
use super::uplink::{ELEMENTS_AT, Uplink};
use super::{NetreduceCounters, RingConfig, RingCounters, RingRole, RingStatus};
use crate::context::Context;
use crate::frame::{Frame, Platform};
use crate::{DropReason, PortId};
use std::ops::Range;
use tally_kernels::Kernels;
use tally_wire::frame::UDP_END;
use tally_wire::netreduce::{
    Channel, PartialHeader, PartialKind, RING_HEADER_BYTES, RingEpoch, RingHeader,
};
use tally_wire::roce::{BTH_BYTES, HeaderCrc, ICRC_BYTES, Place, Psn, QueuePair, is_sealed};
use tally_wire::{Mac, Rank, SwitchName, Time};

/// A packet of a message, as a connection sends it.
pub(super) struct Arrived<F> {
    pub(super) frame: F,
    pub(super) place: Place,
    pub(super) psn: Psn,
    /// Where in the datagram the payload is.
    pub(super) payload: Range<usize>,
    /// What the headers are in the ICRC, if the shift by its elements was known.
    pub(super) headers: Option<HeaderCrc>,
    pub(super) channel: Channel,
    /// From where it came.
    pub(super) port: PortId,
    pub(super) mac: Mac,
    /// By which port it leaves, if that is known yet.
    pub(super) egress: Option<PortId>,
}

/// A connection from one member to the next.
#[derive(Clone, Copy)]
struct Connection {
    qp: QueuePair,
    port: PortId,
    mac: Mac,
    /// The message that it begins next, and the PSN of that.
    next: u32,
    end: Psn,
}

/// A ring on the core that serves it.
pub(super) struct Ring<F> {
    pub(super) config: RingConfig,
    kernels: Kernels,
    /// The class of its packets at ports.
    class: usize,
    epoch: Option<RingEpoch>,
    /// Its state was freed because its members fell silent; a newer epoch begins it again.
    has_expired: bool,
    connections: Box<[Option<Connection>]>,
    messages: Messages<F>,
    /// The first rank whose packets are summed here.
    first: u8,
    /// The way to the root, at a leaf of a tree.
    uplink: Option<Uplink>,
    /// By message number modulo the live messages, and rank: the PSN of the first packet.
    starts: Box<[Psn]>,
    shifts: Shifts,
    counters: RingCounters,
    /// When its last packet came.
    last: Time,
}

/// Where in its connection a packet is.
enum Position {
    /// Of a message whose state was freed.
    Freed,
    /// A packet of a live message.
    Live(u32, u32),
    /// The first packet of the next message.
    Next,
    /// Behind that: its first packet was lost before the switch (N-8).
    Ahead,
}

impl<F: Frame> Ring<F> {
    pub(super) fn new(config: RingConfig, kernels: Kernels, class: usize) -> Self {
        let members = config.members.len();
        let (live, contributors) = (config.live_messages(), config.contributors());
        let uplink = match &config.role {
            RingRole::Leaf { number, root, .. } => Some(Uplink::new(*number, *root)),
            RingRole::Alone | RingRole::Root { .. } => None,
        };
        Self {
            first: config.ranks().start,
            uplink,
            epoch: None,
            has_expired: false,
            connections: vec![None; members].into(),
            messages: Messages::new(contributors, live, config.message_packets),
            starts: vec![Psn::default(); live as usize * members].into(),
            shifts: Shifts::default(),
            counters: RingCounters::default(),
            last: Time(0),
            kernels,
            class,
            config,
        }
    }

    pub(super) const fn last(&self) -> Time {
        self.last
    }

    /// Whether a sum waits for members.
    pub(super) const fn waits(&self) -> bool {
        self.messages.waits()
    }

    pub(super) const fn held(&self) -> u64 {
        self.messages.held()
    }

    /// Where the PSN of a message's first packet is.
    #[inline]
    fn start(&self, message: u32, rank: u8) -> usize {
        let live = self.config.live_messages();
        (message % live) as usize * self.config.members.len() + usize::from(rank)
    }

    pub(super) fn status(&self) -> RingStatus {
        let fastest = self.connections.iter().flatten().map(|it| it.next).max();
        let oldest = fastest.and_then(|end| self.messages.awaited(end));
        let missing = oldest.unwrap_or(0) << self.first;
        RingStatus {
            id: self.config.id,
            members: self.config.members.clone(),
            role: self.config.role.clone(),
            epoch: self.epoch.filter(|_| !self.has_expired),
            awaits_root: oldest == Some(0),
            missing: (0..64)
                .filter(|&rank| missing & Rank(rank).bit() != 0)
                .collect(),
            counters: RingCounters {
                held: self.held(),
                awaited: u64::from(missing.count_ones()),
                ..self.counters
            },
        }
    }

    /// Takes a data packet of a member to the next one.
    pub(super) fn receive<P: Platform<Frame = F>>(
        &mut self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
        rank: u8,
        mut arrived: Arrived<F>,
    ) -> Result<(), DropReason> {
        let header = match arrived.begins() {
            true => Some(self.header(rank, &arrived)?),
            false => None,
        };
        let is_newer = |header: RingHeader| self.epoch.is_none_or(|it| header.epoch.is_after(it));
        let connection = self.connections[usize::from(rank)]
            // A queue pair that is made anew may have its number again.
            .filter(|it| it.qp == arrived.channel.qp && !header.is_some_and(is_newer));
        let connection = match (connection, header) {
            (Some(connection), _) => connection,
            (None, Some(header)) => self.connect(context, counters, rank, &header, &arrived)?,
            (None, None) => return Err(DropReason::NetreduceUnknown),
        };
        let may_come = (context.forwarding).may_come(connection.port, arrived.port);
        if !may_come || connection.mac != arrived.mac {
            return Err(DropReason::NetreducePort);
        }
        let position = self.locate(rank, &connection, arrived.psn);
        let (message, slot) = match position {
            Position::Freed => {
                counters.copies_passed += 1;
                return self.pass(context, arrived);
            }
            Position::Ahead => {
                counters.ahead_passed += 1;
                super::release::put_out_of_reach(&mut arrived.frame);
                return self.pass(context, arrived);
            }
            Position::Live(message, slot) => (message, slot),
            Position::Next => {
                let header = header.ok_or(DropReason::NetreduceHeader)?;
                self.begin(context, rank, &header, &arrived)?;
                (connection.next, 0)
            }
        };
        self.last = context.now;
        let header = header.as_ref();
        let elements_at = self.check(message, slot, header, &arrived)?;
        let at = (message, slot as usize, elements_at);
        if self.messages.kept(message, at.1).is_some() {
            return self.send_again(context, counters, at, header, arrived);
        }
        self.hold(context, counters, rank, at, header, arrived)
    }

    /// Sends a packet with its own elements.
    fn pass<P: Platform<Frame = F>>(
        &self,
        context: &mut Context<P>,
        mut arrived: Arrived<F>,
    ) -> Result<(), DropReason> {
        let bytes = (arrived.frame.data_mut()).expect("made exclusive when it came");
        super::release::mark_released(bytes);
        let (port, egress) = (arrived.port, arrived.egress);
        leave(context, self.class, arrived.frame, (port, egress));
        Ok(())
    }

    /// Checks the ICRC of a packet in a frame without padding.
    #[inline]
    pub(super) fn check_icrc(
        &self,
        frame: &[u8],
        place: Place,
        payload_bytes: usize,
    ) -> Result<Option<HeaderCrc>, DropReason> {
        let header_bytes = if place.begins() { RING_HEADER_BYTES } else { 0 };
        let elements = payload_bytes.saturating_sub(header_bytes);
        let checked = match self.shifts.known(elements) {
            Some(shift) => HeaderCrc::of_sealed(frame, shift).map(Some),
            None => is_sealed(frame).then_some(None),
        };
        checked.ok_or(DropReason::NetreduceIcrc)
    }

    /// A packet with the headers that it leaves with, when it has its sum.
    #[inline(always)]
    fn prepare(
        &mut self,
        elements_at: u16,
        header: Option<&RingHeader>,
        mut arrived: Arrived<F>,
    ) -> Held<F> {
        let bytes = (arrived.frame.data_mut()).expect("made exclusive when it came");
        let secret = &self.config.secret;
        write_headers(bytes, elements_at, header, secret, &arrived.channel);
        let elements = usize::from(arrived.elements(elements_at));
        let headers = match (header, arrived.headers) {
            (None, Some(headers)) => headers,
            _ => HeaderCrc::of(arrived.frame.data(), self.shifts.by(elements)),
        };
        Held {
            frame: arrived.frame,
            elements_at,
            headers,
            port: arrived.port,
            egress: arrived.egress,
        }
    }

    /// Sends a copy of a packet whose sum was made, with that sum.
    fn send_again<P: Platform<Frame = F>>(
        &mut self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
        (message, slot, elements_at): (u32, usize, u16),
        header: Option<&RingHeader>,
        arrived: Arrived<F>,
    ) -> Result<(), DropReason> {
        let way = (arrived.port, arrived.egress);
        let mut copy = self.prepare(elements_at, header, arrived);
        let kept = self.messages.kept(message, slot);
        let kept = kept.expect("a slot whose sum was made");
        copy.write(kept.elements(), kept.crc);
        counters.sums_again += 1;
        leave(context, self.class, copy.frame, way);
        Ok(())
    }

    /// Holds a contribution, and releases all of its slot if it is the last.
    fn hold<P: Platform<Frame = F>>(
        &mut self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
        rank: u8,
        (message, slot, elements_at): (u32, usize, u16),
        header: Option<&RingHeader>,
        arrived: Arrived<F>,
    ) -> Result<(), DropReason> {
        let own = usize::from(rank - self.first);
        self.messages.lacks(message, slot, own)?;
        let bytes = u64::from(arrived.elements(elements_at));
        let held = self.prepare(elements_at, header, arrived);
        let is_full = self.messages.hold(message, slot, own, held);
        counters.contributions += 1;
        if is_full {
            let shape = self.messages.shape(message);
            let shape = shape.expect("a message that has begun has a shape");
            let how = (self.kernels, shape.element);
            let row = self.messages.row(message, slot);
            if let Some(uplink) = &mut self.uplink {
                fold(how, row);
                let epoch = self.epoch.expect("a packet is held in an epoch");
                let ring = (&self.config, epoch, self.class);
                uplink.send(context, counters, ring, &mut self.messages, (message, slot));
                return Ok(());
            }
            let kept = release_all(context, counters, how, self.class, row);
            self.messages.keep(message, slot, kept);
            self.counters.sums += 1;
            self.counters.sum_bytes += bytes;
        }
        Ok(())
    }

    /// When partial sums are sent to the root again, if any wait.
    #[inline]
    pub(super) fn due(&self) -> Option<Time> {
        self.uplink.as_ref().and_then(Uplink::due)
    }

    /// Sends partial sums to the root again that are due.
    pub(super) fn repeat<P: Platform<Frame = F>>(
        &mut self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
    ) {
        if let (Some(uplink), Some(epoch)) = (&mut self.uplink, self.epoch) {
            let ring = (&self.config, epoch, self.class);
            uplink.repeat(context, counters, ring, &mut self.messages);
        }
    }

    /// The root, if this is a leaf.
    pub(super) fn root(&self) -> Option<&SwitchName> {
        self.uplink.as_ref().map(Uplink::root)
    }

    /// Takes a total of the root, in an exclusive frame without padding: releases the packets of
    /// its slot with it.
    pub(super) fn receive_total<P: Platform<Frame = F>>(
        &mut self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
        header: &PartialHeader,
        frame: F,
    ) -> Result<(), DropReason> {
        let (message, slot) = (header.message, usize::from(header.packet));
        let leaf = self.uplink.as_ref().map(Uplink::leaf);
        if header.kind != PartialKind::Total || leaf != Some(header.leaf) {
            return Err(DropReason::NetreduceHeader);
        }
        if self.epoch != Some(header.epoch) || self.has_expired {
            return Err(DropReason::NetreduceEpoch);
        }
        let age = message.wrapping_sub(self.messages.base());
        if age >= self.config.live_messages() {
            return Err(DropReason::Duplicate);
        }
        let elements = header.elements();
        let is_whole = frame.data().len() == ELEMENTS_AT + elements + ICRC_BYTES;
        if !is_whole || self.messages.shape(message) != Some(Shape::of_partial(header)) {
            return Err(DropReason::NetreduceShape);
        }
        let is_full = self.messages.is_full(message, slot);
        if !is_full {
            return Err(DropReason::Duplicate);
        }
        let shift = self.shifts.by(elements);
        let headers = HeaderCrc::of_sealed(frame.data(), shift);
        let headers = headers.ok_or(DropReason::NetreduceIcrc)?;
        let crc = headers.payload_crc(frame.data());
        let total = CachedSum {
            frame,
            elements_at: ELEMENTS_AT as u16,
            crc,
        };
        let row = self.messages.row(message, slot);
        send_all(context, counters, self.class, &total, row);
        self.messages.keep(message, slot, Some(total));
        counters.sums += 1;
        self.counters.sums += 1;
        self.counters.sum_bytes += elements as u64;
        let window = u32::from(self.config.window_messages);
        if let Some(received) = message.checked_sub(window) {
            self.counters.messages += self.messages.free_through(context, received);
        }
        Ok(())
    }

    /// Where a PSN is.
    fn locate(&self, rank: u8, connection: &Connection, psn: Psn) -> Position {
        if psn == connection.end {
            return Position::Next;
        }
        if connection.end.is_before(psn) {
            return Position::Ahead;
        }
        for number in (self.messages.base()..connection.next).rev() {
            let shape = self.messages.shape(number);
            let packets = shape.map_or(0, |shape| u32::from(shape.packets));
            let offset = psn.since(self.starts[self.start(number, rank)]);
            if offset < packets {
                return Position::Live(number, offset);
            }
        }
        Position::Freed
    }

    /// Begins a connection, and an epoch if it is newer (N-6).
    fn connect<P: Platform<Frame = F>>(
        &mut self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
        rank: u8,
        header: &RingHeader,
        arrived: &Arrived<F>,
    ) -> Result<Connection, DropReason> {
        let is_newer = self.epoch.is_none_or(|it| header.epoch.is_after(it));
        if !is_newer {
            let is_free = self.connections[usize::from(rank)].is_none();
            if self.epoch != Some(header.epoch) || !is_free || self.has_expired {
                return Err(DropReason::NetreduceEpoch);
            }
        }
        if header.message != 0 {
            return Err(DropReason::NetreduceUnknown);
        }
        if is_newer {
            self.free_all(context);
            self.epoch = Some(header.epoch);
            self.has_expired = false;
            counters.epochs += 1;
        }
        let connection = Connection {
            qp: arrived.channel.qp,
            port: arrived.port,
            mac: arrived.mac,
            next: 0,
            end: arrived.psn,
        };
        self.connections[usize::from(rank)] = Some(connection);
        Ok(connection)
    }

    /// The header of a packet that begins a message.
    fn header(&self, rank: u8, arrived: &Arrived<F>) -> Result<RingHeader, DropReason> {
        let header = RingHeader::parse(arrived.payload(), &self.config.secret, &arrived.channel)
            .map_err(|_| DropReason::NetreduceHeader)?;
        if header.ring != self.config.id || header.rank != rank || header.is_summed {
            return Err(DropReason::NetreduceHeader);
        }
        Ok(header)
    }

    /// Begins the next message of a connection with its first packet.
    fn begin<P: Platform<Frame = F>>(
        &mut self,
        context: &mut Context<P>,
        rank: u8,
        header: &RingHeader,
        arrived: &Arrived<F>,
    ) -> Result<(), DropReason> {
        let connection = self.connections[usize::from(rank)].expect("a connection that was found");
        if Some(header.epoch) != self.epoch || header.message != connection.next {
            return Err(DropReason::NetreduceHeader);
        }
        let number = header.message;
        // Message numbers do not wrap (N-6).
        if number == u32::MAX {
            return Err(DropReason::NetreduceWindow);
        }
        let shape = Self::shape(header, arrived, self.config.message_packets)?;
        let own = usize::from(rank - self.first);
        let have_all_begun = self.messages.begin(number, own, shape)?;
        let start = self.start(number, rank);
        self.starts[start] = arrived.psn;
        self.connections[usize::from(rank)] = Some(Connection {
            next: number + 1,
            end: arrived.psn.after(u32::from(shape.packets)),
            ..connection
        });
        let window = u32::from(self.config.window_messages);
        let is_leaf = self.uplink.is_some();
        if !is_leaf
            && have_all_begun
            && let Some(received) = number.checked_sub(window)
        {
            self.counters.messages += self.messages.free_through(context, received);
        }
        Ok(())
    }

    /// The shape of the message that this packet begins.
    fn shape(
        header: &RingHeader,
        arrived: &Arrived<F>,
        packets_max: u16,
    ) -> Result<Shape, DropReason> {
        let payload = arrived.payload().len() as u64;
        let bytes = header.message_bytes();
        let is_only = arrived.place == Place::Only;
        let fits = if is_only {
            payload == bytes
        } else {
            payload < bytes && payload.is_power_of_two() && (256..=4096).contains(&payload)
        };
        let packets = if is_only { 1 } else { bytes.div_ceil(payload) };
        if !fits || payload > 4096 || packets > u64::from(packets_max) {
            return Err(DropReason::NetreduceShape);
        }
        Ok(Shape {
            element: header.element,
            bytes: bytes as u32,
            mtu: payload as u16,
            packets: packets as u16,
        })
    }

    /// Checks a packet of a live message; says where its elements begin in the frame.
    fn check(
        &self,
        message: u32,
        slot: u32,
        header: Option<&RingHeader>,
        arrived: &Arrived<F>,
    ) -> Result<u16, DropReason> {
        let shape = self.messages.shape(message);
        let shape = shape.ok_or(DropReason::NetreduceShape)?;
        let is_last = slot + 1 == u32::from(shape.packets);
        let place = match (slot == 0, is_last) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, false) => Place::Middle,
            (false, true) => Place::Last,
        };
        let bytes = if is_last {
            shape.bytes - slot * u32::from(shape.mtu)
        } else {
            u32::from(shape.mtu)
        };
        let payload = arrived.payload().len();
        if arrived.place != place || payload as u64 != u64::from(bytes) {
            return Err(DropReason::NetreduceShape);
        }
        let mut at = UDP_END + arrived.payload.start;
        if let Some(header) = header {
            if Some(header.epoch) != self.epoch || header.message != message {
                return Err(DropReason::NetreduceHeader);
            }
            at += RING_HEADER_BYTES;
        }
        Ok(at as u16)
    }

    /// Frees all state but the epoch.
    pub(super) fn free_all<P: Platform<Frame = F>>(&mut self, context: &mut Context<P>) {
        self.messages.free_all(context);
        self.connections.fill(None);
        if let Some(uplink) = &mut self.uplink {
            uplink.clear();
        }
    }

    /// Gives up an epoch whose members fell silent (N-12).
    pub(super) fn expire<P: Platform<Frame = F>>(&mut self, context: &mut Context<P>) {
        self.free_all(context);
        self.has_expired = true;
    }
}

impl<F: Frame> Arrived<F> {
    pub(super) fn begins(&self) -> bool {
        self.place.begins()
    }

    /// Bytes of its elements, which begin there in the frame.
    fn elements(&self, at: u16) -> u16 {
        (UDP_END + self.payload.end) as u16 - at
    }

    /// The payload of the packet.
    pub(super) fn payload(&self) -> &[u8] {
        let payload = &self.payload;
        debug_assert!(payload.start >= BTH_BYTES);
        &self.frame.data()[UDP_END + payload.start..UDP_END + payload.end]
    }
}
