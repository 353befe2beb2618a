//! A leaf's way to the root of its ring: partial sums, sent again until the total comes.
//!
//! A slot's partial sum is in the packet of the leaf's first member, which is held until then. So
//! what waits is a list of slots. Which of them have had their total, the messages know.

use super::messages::{Messages, Shape};
use super::{NetreduceCounters, RingConfig};
use crate::DropReason;
use crate::context::Context;
use crate::frame::{Frame, Platform};
use std::collections::VecDeque;
use std::time::Duration;
use tally_wire::frame::{UDP_END, emit_udp};
use tally_wire::netreduce::{
    PARTIAL_HEADER_BYTES, PARTIAL_PORT, PartialHeader, PartialKind, RING_HEADER_BYTES, RingEpoch,
};
use tally_wire::roce::{ICRC_BYTES, seal};
use tally_wire::{Addresses, SwitchName, Time};

/// Time without a total after which a partial sum is sent again. It doubles each time: a member of
/// another leaf may be late.
const REPEAT_AFTER: Duration = Duration::from_millis(4);
/// Times that it doubles: up to 256 ms.
const DOUBLINGS: u32 = 6;

/// Where the elements of a partial sum or a total begin in its frame.
pub(super) const ELEMENTS_AT: usize = UDP_END + PARTIAL_HEADER_BYTES;

/// A slot that has no total yet.
struct Waiting {
    message: u32,
    slot: u16,
    /// How often its partial sum was sent, and when it is sent again.
    sent: u32,
    due: Time,
}

/// The way to the root.
pub(super) struct Uplink {
    leaf: u8,
    root: SwitchName,
    /// In the order in which they were filled.
    waiting: VecDeque<Waiting>,
    /// When the first of them is due, or before.
    due: Option<Time>,
}

impl Uplink {
    pub(super) const fn new(leaf: u8, root: SwitchName) -> Self {
        Self {
            leaf,
            root,
            waiting: VecDeque::new(),
            due: None,
        }
    }

    pub(super) const fn leaf(&self) -> u8 {
        self.leaf
    }

    pub(super) const fn root(&self) -> &SwitchName {
        &self.root
    }

    /// When partial sums are sent again, if any wait.
    #[inline]
    pub(super) const fn due(&self) -> Option<Time> {
        self.due
    }

    /// Another epoch begins.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.due = None;
    }

    /// Sends the partial sum of a slot that was filled just now.
    pub(super) fn send<P: Platform>(
        &mut self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
        ring: (&RingConfig, RingEpoch, usize),
        messages: &mut Messages<P::Frame>,
        (message, slot): (u32, usize),
    ) {
        while let Some(first) = self.waiting.front()
            && messages.is_done(first.message, first.slot.into())
        {
            self.waiting.pop_front();
        }
        let due = context.now.after(REPEAT_AFTER);
        self.waiting.push_back(Waiting {
            message,
            slot: slot as u16,
            sent: 1,
            due,
        });
        self.due = self.due.or(Some(due));
        counters.partials += 1;
        if let Err(reason) = self.emit(context, ring, messages, (message, slot)) {
            context.count_drop(reason);
        }
    }

    /// Sends again what is due.
    pub(super) fn repeat<P: Platform>(
        &mut self,
        context: &mut Context<P>,
        counters: &mut NetreduceCounters,
        ring: (&RingConfig, RingEpoch, usize),
        messages: &mut Messages<P::Frame>,
    ) {
        let now = context.now;
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain_mut(|it| {
            let slot = usize::from(it.slot);
            if messages.is_done(it.message, slot) {
                return false;
            }
            if it.due <= now {
                it.due = now.after(REPEAT_AFTER * (1 << it.sent.min(DOUBLINGS)));
                it.sent += 1;
                counters.partials_again += 1;
                if let Err(reason) = self.emit(context, ring, messages, (it.message, slot)) {
                    context.count_drop(reason);
                }
            }
            true
        });
        self.due = waiting.iter().map(|it| it.due).min();
        self.waiting = waiting;
    }

    /// Sends a partial sum by one of the links to the root.
    fn emit<P: Platform>(
        &self,
        context: &mut Context<P>,
        (config, epoch, class): (&RingConfig, RingEpoch, usize),
        messages: &mut Messages<P::Frame>,
        (message, slot): (u32, usize),
    ) -> Result<(), DropReason> {
        let Shape {
            element,
            bytes,
            mtu,
            ..
        } = messages.shape(message).ok_or(DropReason::NetreduceShape)?;
        let partial = (messages.row(message, slot)[0].as_ref()).expect("held until its total");
        let forwarding = &context.forwarding;
        let links = context.parents.links(&self.root);
        let links = links.filter(|(port, _)| forwarding.is_live(*port));
        let all = links.clone().count().max(1);
        let nth = (message as usize).wrapping_add(slot) % all;
        let (port, root) = links.clone().nth(nth).ok_or(DropReason::NetreduceNoRoute)?;
        let header = PartialHeader {
            kind: PartialKind::Partial,
            leaf: self.leaf,
            element,
            ring: config.id,
            epoch,
            message,
            bytes: bytes - RING_HEADER_BYTES as u32,
            mtu,
            packet: slot as u16,
        };
        let addresses = Addresses {
            src_mac: context.address.mac,
            dst_mac: root.mac,
            src_ip: context.address.ip,
            dst_ip: root.ip,
            src_port: PARTIAL_PORT,
            dst_port: PARTIAL_PORT,
        };
        let elements = partial.elements();
        let datagram = PARTIAL_HEADER_BYTES + elements.len() + ICRC_BYTES;
        let mut frame = context.platform.alloc().ok_or(DropReason::NoBuffer)?;
        let out = frame
            .append(UDP_END + datagram)
            .ok_or(DropReason::NoBuffer)?;
        emit_udp(out, &addresses, datagram);
        let way = (addresses.src_ip, addresses.dst_ip);
        let (head, rest) = out[UDP_END..].split_at_mut(PARTIAL_HEADER_BYTES);
        head.copy_from_slice(&header.emit(&config.secret, way));
        rest[..elements.len()].copy_from_slice(elements);
        seal(out);
        context.ports.forward(port, class, frame);
        Ok(())
    }
}
