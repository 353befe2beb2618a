//! The root of a ring's tree: it sums what leaves send, and answers each with the total.
//!
//! It is a ring whose members are the leaves. A frame with a partial sum is held; when all leaves'
//! are there, the same frames go back with the total in place of their elements. A partial sum that
//! comes again is answered with the total that is kept.
//!
//! Message k is freed when all leaves have sent some of message k + N. Then all members have begun
//! k + N, and so received k: all leaves have had all totals of k, since their members' packets left
//! with them. So at most 2 N messages are live (N-18).

use super::messages::{Messages, Shape};
use super::release::{Held, Shifts, release_all};
use super::uplink::ELEMENTS_AT;
use super::{NetreduceCounters, RingConfig, RingCounters, RingStatus};
use crate::context::Context;
use crate::frame::{Frame, Platform};
use crate::{DropReason, PortId};
use tally_kernels::Kernels;
use tally_wire::field::{ethernet, ipv4, udp};
use tally_wire::frame::UDP_END;
use tally_wire::netreduce::{PartialHeader, PartialKind, RingEpoch};
use tally_wire::roce::{HeaderCrc, ICRC_BYTES, is_sealed};
use tally_wire::{Time, UdpFrame};

/// The root of a ring on the core that serves it.
pub(super) struct Root<F> {
    pub(super) config: RingConfig,
    kernels: Kernels,
    class: usize,
    leaves: usize,
    epoch: Option<RingEpoch>,
    has_expired: bool,
    messages: Messages<F>,
    /// Behind the last message of which something came.
    end: u32,
    shifts: Shifts,
    counters: RingCounters,
    last: Time,
}

impl<F: Frame> Root<F> {
    pub(super) fn new(config: RingConfig, kernels: Kernels, class: usize) -> Self {
        let leaves = config.contributors();
        let (live, packets) = (config.live_messages(), config.message_packets);
        Self {
            kernels,
            class,
            leaves,
            epoch: None,
            has_expired: false,
            messages: Messages::new(leaves, live, packets),
            end: 0,
            shifts: Shifts::default(),
            counters: RingCounters::default(),
            last: Time(0),
            config,
        }
    }

    pub(super) const fn last(&self) -> Time {
        self.last
    }

    pub(super) const fn waits(&self) -> bool {
        self.messages.waits()
    }

    pub(super) const fn held(&self) -> u64 {
        self.messages.held()
    }

    pub(super) fn status(&self) -> RingStatus {
        let missing = self.messages.awaited(self.end).unwrap_or(0);
        RingStatus {
            id: self.config.id,
            members: self.config.members.clone(),
            role: self.config.role.clone(),
            epoch: self.epoch.filter(|_| !self.has_expired),
            missing: (0..64).filter(|leaf| missing & (1 << leaf) != 0).collect(),
            awaits_root: false,
            counters: RingCounters {
                held: self.held(),
                awaited: u64::from(missing.count_ones()),
                ..self.counters
            },
        }
    }

    /// Takes a partial sum that came by this port, in an exclusive frame without padding.
    pub(super) fn receive<P: Platform<Frame = F>>(
        &mut self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
        header: &PartialHeader,
        (port, mut frame, headers): (PortId, F, UdpFrame),
    ) -> Result<(), DropReason> {
        let (message, slot) = (header.message, usize::from(header.packet));
        let leaf = usize::from(header.leaf);
        let shape = Shape::of_partial(header);
        if header.kind != PartialKind::Partial || leaf >= self.leaves {
            return Err(DropReason::NetreduceHeader);
        }
        let is_whole = frame.data().len() == ELEMENTS_AT + header.elements() + ICRC_BYTES;
        if !is_whole || shape.packets > self.config.message_packets {
            return Err(DropReason::NetreduceShape);
        }
        if !is_sealed(frame.data()) {
            return Err(DropReason::NetreduceIcrc);
        }
        if self.epoch != Some(header.epoch) || self.has_expired {
            let is_newer = self.epoch.is_none_or(|it| header.epoch.is_after(it));
            if !is_newer {
                return Err(DropReason::NetreduceEpoch);
            }
            self.free_all(context);
            self.epoch = Some(header.epoch);
            self.has_expired = false;
            counters.epochs += 1;
        }
        if message < self.messages.base() {
            return Err(DropReason::Duplicate);
        }
        if message == u32::MAX {
            return Err(DropReason::NetreduceWindow);
        }
        let have_all_begun = self.messages.begin(message, leaf, shape)?;
        self.end = self.end.max(message + 1);
        self.last = context.now;
        let window = u32::from(self.config.window_messages);
        if have_all_begun && let Some(received) = message.checked_sub(window) {
            self.counters.messages += self.messages.free_through(context, received);
        }
        let is_done = self.messages.kept(message, slot).is_some();
        if !is_done {
            self.messages.lacks(message, slot, leaf)?;
        }
        self.turn_back(&mut frame, header, &headers);
        let shift = self.shifts.by(header.elements());
        let mut held = Held {
            headers: HeaderCrc::of(frame.data(), shift),
            frame,
            elements_at: ELEMENTS_AT as u16,
            port,
            egress: Some(port),
        };
        if let Some(kept) = self.messages.kept(message, slot) {
            held.write(kept.elements(), kept.crc);
            counters.sums_again += 1;
            context.ports.forward(port, self.class, held.frame);
            return Ok(());
        }
        counters.contributions += 1;
        if self.messages.hold(message, slot, leaf, held) {
            let how = (self.kernels, shape.element);
            let row = self.messages.row(message, slot);
            let kept = release_all(context, counters, how, self.class, row);
            self.messages.keep(message, slot, kept);
            self.counters.sums += 1;
            self.counters.sum_bytes += header.elements() as u64;
        }
        Ok(())
    }

    /// Makes the headers of a leaf's partial sum those of the total for that leaf.
    fn turn_back(&self, frame: &mut F, header: &PartialHeader, headers: &UdpFrame) {
        let bytes = frame.data_mut().expect("made exclusive when it came");
        let from = &headers.addresses;
        bytes[ethernet::DST].copy_from_slice(&from.src_mac.0);
        bytes[ethernet::SRC].copy_from_slice(&from.dst_mac.0);
        bytes[ipv4::SRC].copy_from_slice(&from.dst_ip.octets());
        bytes[ipv4::DST].copy_from_slice(&from.src_ip.octets());
        bytes[udp::SRC_PORT].copy_from_slice(&from.dst_port.to_be_bytes());
        bytes[udp::DST_PORT].copy_from_slice(&from.src_port.to_be_bytes());
        bytes[udp::CHECKSUM].fill(0);
        let total = PartialHeader {
            kind: PartialKind::Total,
            ..*header
        };
        let total = total.emit(&self.config.secret, (from.dst_ip, from.src_ip));
        bytes[UDP_END..ELEMENTS_AT].copy_from_slice(&total);
    }

    pub(super) fn free_all<P: Platform<Frame = F>>(&mut self, context: &mut Context<P>) {
        self.messages.free_all(context);
        self.end = 0;
    }

    /// Gives up an epoch whose leaves fell silent (N-12).
    pub(super) fn expire<P: Platform<Frame = F>>(&mut self, context: &mut Context<P>) {
        self.free_all(context);
        self.has_expired = true;
    }
}
