//! Sums of packets, and packets that leave with a sum.
//!
//! Cost of a slot of n packets: one pass of the kernels over n payloads, n - 1 copies of the sum,
//! and one CRC of the sum. The headers' part of each ICRC is known since the packet came.

use super::NetreduceCounters;
use crate::context::Context;
use crate::forwarding::Verdict;
use crate::frame::{Frame, Platform};
use crate::{DropReason, PortId};
use tally_kernels::Kernels;
use tally_wire::field::{ipv4, udp};
use tally_wire::frame::UDP_END;
use tally_wire::netreduce::{
    Channel, Element, RING_HEADER_BYTES, RingHeader, RingSecret, released_dscp,
};
use tally_wire::roce::{BTH_BYTES, Bth, HeaderCrc, ICRC_BYTES, Shift, payload_crc, seal};

/// Payload lengths that occur in one message: of the first packet, of others, of the last.
const SHIFTS: usize = 3;
/// Why a slot's packets are there.
const ALL_HELD: &str = "the packets of all contributors are held";
/// PSNs by which a packet is ahead of all that its receiver expects: less than half of their range.
const OUT_OF_REACH: u32 = 1 << 22;

/// The shifts of CRCs by recent payload lengths.
#[derive(Default)]
pub(super) struct Shifts {
    kept: Vec<Shift>,
    /// Which one is replaced next.
    oldest: usize,
}

impl Shifts {
    /// That by so many bytes, if it is kept.
    #[inline]
    pub(super) fn known(&self, bytes: usize) -> Option<&Shift> {
        self.kept.iter().find(|shift| shift.bytes() == bytes)
    }

    /// That by so many bytes. To make one takes microseconds: only for packets of a message whose
    /// header was checked.
    pub(super) fn by(&mut self, bytes: usize) -> &Shift {
        let found = self.kept.iter().position(|shift| shift.bytes() == bytes);
        let at = found.unwrap_or_else(|| self.make(bytes));
        &self.kept[at]
    }

    #[cold]
    fn make(&mut self, bytes: usize) -> usize {
        if self.kept.len() < SHIFTS {
            self.kept.push(Shift::new(bytes));
            return self.kept.len() - 1;
        }
        let at = self.oldest;
        self.oldest = (at + 1) % SHIFTS;
        self.kept[at] = Shift::new(bytes);
        at
    }
}

/// A packet with the headers that it leaves with, which waits for its sum.
pub(super) struct Held<F> {
    pub(super) frame: F,
    /// Where its elements begin in the frame.
    pub(super) elements_at: u16,
    /// What its headers are in its ICRC.
    pub(super) headers: HeaderCrc,
    pub(super) port: PortId,
    pub(super) egress: Option<PortId>,
}

impl<F: Frame> Held<F> {
    pub(super) fn elements(&self) -> &[u8] {
        elements(&self.frame, self.elements_at)
    }

    /// Replaces the elements, and writes the ICRC.
    pub(super) fn write(&mut self, sum: &[u8], crc: u32) {
        let bytes = self.frame.data_mut().expect("made exclusive when it came");
        let (at, end) = (usize::from(self.elements_at), bytes.len() - ICRC_BYTES);
        bytes[at..end].copy_from_slice(sum);
        bytes[end..].copy_from_slice(&self.headers.with(crc));
    }
}

/// A sum that was made: a packet that has it, which is read-only.
pub(super) struct CachedSum<F> {
    pub(super) frame: F,
    pub(super) elements_at: u16,
    pub(super) crc: u32,
}

impl<F: Frame> CachedSum<F> {
    pub(super) fn elements(&self) -> &[u8] {
        elements(&self.frame, self.elements_at)
    }
}

/// Gives a packet the DSCP of those that the switch has let go. The ICRC does not cover it.
#[inline]
pub(super) fn mark_released(bytes: &mut [u8]) {
    let (tos, ecn) = (bytes[ipv4::TOS], bytes[ipv4::TOS] & 3);
    let released = released_dscp(tos >> 2) << 2 | ecn;
    bytes[ipv4::TOS] = released;
    // RFC 1624. The high byte of the word stays.
    let [high, low] = [bytes[ipv4::CHECKSUM.start], bytes[ipv4::CHECKSUM.start + 1]];
    let old = u32::from(!u16::from_be_bytes([high, low]));
    let sum = old + u32::from(!u16::from(tos)) + u32::from(released);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    bytes[ipv4::CHECKSUM].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Writes what changes in the headers of a packet that leaves with a sum. A packet that begins its
/// message has a ring header.
pub(super) fn write_headers(
    bytes: &mut [u8],
    elements_at: u16,
    header: Option<&RingHeader>,
    secret: &RingSecret,
    channel: &Channel,
) {
    mark_released(bytes);
    // The ICRC takes its place; 0 says that there is none (RFC 768).
    bytes[udp::CHECKSUM].fill(0);
    if let Some(header) = header {
        let header = RingHeader {
            is_summed: true,
            ..*header
        };
        let at = usize::from(elements_at) - RING_HEADER_BYTES;
        bytes[at..at + RING_HEADER_BYTES].copy_from_slice(&header.emit(secret, channel));
    }
}

/// Advances the PSN of a packet that is not summed, so that its receiver answers NAK and never
/// takes it: delayed until the packets before it have come, it would be the next one.
pub(super) fn put_out_of_reach(frame: &mut impl Frame) {
    let bytes = frame.data_mut().expect("made exclusive when it came");
    let at = UDP_END..UDP_END + BTH_BYTES;
    let mut bth = Bth::parse(&bytes[at.clone()]).expect("a packet of a message");
    bth.psn = bth.psn.after(OUT_OF_REACH);
    bytes[at].copy_from_slice(&bth.emit());
    bytes[udp::CHECKSUM].fill(0);
    seal(bytes);
}

fn elements(frame: &impl Frame, at: u16) -> &[u8] {
    let data = frame.data();
    &data[usize::from(at)..data.len() - ICRC_BYTES]
}

/// Adds the elements of all to those of the first, in the order of ranks.
fn sum(kernels: Kernels, element: Element, sum: &mut [u8], others: &[&[u8]]) {
    match element {
        Element::I32 => kernels.add_le_i32_many(sum, others),
        Element::F32 => kernels.sum_f32_many(sum, others),
        Element::F16 => kernels.fold_f16(sum, others),
        Element::Bf16 => kernels.fold_bf16(sum, others),
    }
}

/// Adds the elements of a slot's packets to those of the first.
#[inline]
pub(super) fn fold<F: Frame>(
    (kernels, element): (Kernels, Element),
    packets: &mut [Option<Held<F>>],
) {
    const NONE: &[u8] = &[];
    let Some((first, others)) = packets.split_first_mut() else {
        return;
    };
    let mut sources = [NONE; tally_wire::MAX_WORKERS];
    for (source, other) in sources.iter_mut().zip(others.iter()) {
        *source = other.as_ref().expect(ALL_HELD).elements();
    }
    let first = first.as_mut().expect(ALL_HELD);
    let bytes = first.frame.data_mut().expect("made exclusive when it came");
    let (at, end) = (usize::from(first.elements_at), bytes.len() - ICRC_BYTES);
    sum(
        kernels,
        element,
        &mut bytes[at..end],
        &sources[..others.len()],
    );
}

/// Sums the packets of a slot, one of each contributor, and sends all of them with the sum; returns
/// what is kept of it.
pub(super) fn release_all<P: Platform>(
    context: &mut Context<P>,
    counters: &mut NetreduceCounters,
    how: (Kernels, Element),
    class: usize,
    packets: &mut [Option<Held<P::Frame>>],
) -> Option<CachedSum<P::Frame>> {
    fold(how, packets);
    let (first, others) = packets.split_first_mut()?;
    let mut first = first.take().expect(ALL_HELD);
    let crc = payload_crc(first.elements());
    let bytes = first.frame.data_mut().expect("made exclusive when it came");
    let end = bytes.len() - ICRC_BYTES;
    bytes[end..].copy_from_slice(&first.headers.with(crc));
    counters.sums += 1;
    let elements_at = first.elements_at;
    let live = (first.egress).filter(|&egress| context.forwarding.is_live(egress));
    let frame = match live {
        Some(egress) => {
            counters.released += 1;
            context.ports.forward_shared(egress, class, first.frame)
        }
        None => {
            let kept = first.frame.share();
            if seek(context, class, first.frame, first.port) {
                counters.released += 1;
            }
            kept
        }
    };
    let kept = CachedSum {
        frame,
        elements_at,
        crc,
    };
    send_all(context, counters, class, &kept, others);
    Some(kept)
}

/// Sends packets with a sum.
pub(super) fn send_all<P: Platform>(
    context: &mut Context<P>,
    counters: &mut NetreduceCounters,
    class: usize,
    sum: &CachedSum<P::Frame>,
    packets: &mut [Option<Held<P::Frame>>],
) {
    for packet in packets {
        let mut packet = packet.take().expect(ALL_HELD);
        packet.write(sum.elements(), sum.crc);
        let (port, egress) = (packet.port, packet.egress);
        if leave(context, class, packet.frame, (port, egress)) {
            counters.released += 1;
        }
    }
}

/// Sends a packet that came by `port`. When it came, its receiver may not have been heard yet, and
/// the link to its receiver may have died since; to an unknown receiver it is flooded, as any
/// frame. Says whether it left.
#[inline]
pub(super) fn leave<P: Platform>(
    context: &mut Context<P>,
    class: usize,
    frame: P::Frame,
    (port, egress): (PortId, Option<PortId>),
) -> bool {
    match egress.filter(|&egress| context.forwarding.is_live(egress)) {
        Some(egress) => {
            context.ports.forward(egress, class, frame);
            true
        }
        None => seek(context, class, frame, port),
    }
}

#[cold]
fn seek<P: Platform>(
    context: &mut Context<P>,
    class: usize,
    frame: P::Frame,
    port: PortId,
) -> bool {
    // A shared frame is only read: it is no ARP request, which would be answered in place.
    let mut headers = [0; UDP_END];
    headers.copy_from_slice(&frame.data()[..UDP_END]);
    let forwarding = &context.forwarding;
    match forwarding.classify_transit(context.now, port, &mut headers, &()) {
        Ok(Verdict::Forward(egress)) => context.ports.forward(egress, class, frame),
        Ok(Verdict::Flood) => {
            let is_closed =
                |to| forwarding.ports().is_closed(to) || !forwarding.may_flood(port, to);
            context.ports.flood(port, frame, &[], is_closed);
        }
        _ => {
            context.count_drop(DropReason::NetreduceNoRoute);
            context.ports.recycle(frame);
            return false;
        }
    }
    true
}
