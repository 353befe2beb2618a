//! The messages for which a switch has state: the packets that they hold, and sums.
//!
//! Each slot takes one packet of each contributor. The messages of a number agree in element type,
//! length and path MTU: the first that begins decides, others are refused. At most so many messages
//! are live as there are entries, and message k has entry k modulo their number.

use super::release::{CachedSum, Held};
use crate::DropReason;
use crate::context::Context;
use crate::frame::{Frame, Platform};
use tally_wire::netreduce::{Element, PartialHeader, RING_HEADER_BYTES};
use tally_wire::{Rank, all_ranks};

/// What all messages of a number have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) element: Element,
    /// Bytes of header and elements.
    pub(super) bytes: u32,
    /// Payload bytes of all packets but the last.
    pub(super) mtu: u16,
    pub(super) packets: u16,
}

impl Shape {
    /// That of the message that a partial sum is of.
    pub(super) fn of_partial(header: &PartialHeader) -> Self {
        Self {
            element: header.element,
            bytes: RING_HEADER_BYTES as u32 + header.bytes,
            mtu: header.mtu,
            packets: header.packets().min(u32::from(u16::MAX)) as u16,
        }
    }
}

/// One packet offset of a message.
struct Slot<F> {
    /// Contributors whose packets have come.
    bitmap: u64,
    kept: Option<CachedSum<F>>,
}

struct Message<F> {
    shape: Option<Shape>,
    /// Contributors that have begun it.
    begun: u64,
    slots: Box<[Slot<F>]>,
    /// By slot and contributor.
    held: Box<[Option<Held<F>>]>,
}

/// The live messages of a ring.
pub(super) struct Messages<F> {
    contributors: usize,
    /// The oldest live message.
    base: u32,
    /// By message number modulo the live messages.
    entries: Box<[Message<F>]>,
    /// Packets held, kept sums included, and those of unfinished slots among them.
    held: u64,
    unfinished: u64,
}

impl<F: Frame> Messages<F> {
    /// No message; up to `live` of up to `packets` packets.
    pub(super) fn new(contributors: usize, live: u32, packets: u16) -> Self {
        let slots = usize::from(packets);
        let message = |_| Message {
            shape: None,
            begun: 0,
            slots: (0..slots)
                .map(|_| Slot {
                    bitmap: 0,
                    kept: None,
                })
                .collect(),
            held: (0..slots * contributors).map(|_| None).collect(),
        };
        Self {
            contributors,
            base: 0,
            entries: (0..live).map(message).collect(),
            held: 0,
            unfinished: 0,
        }
    }

    pub(super) const fn base(&self) -> u32 {
        self.base
    }

    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    /// Whether a slot has some packets and no sum.
    pub(super) const fn waits(&self) -> bool {
        self.unfinished > 0
    }

    #[inline]
    fn at(&self, number: u32) -> usize {
        number as usize % self.entries.len()
    }

    /// What a live message is like, if it has begun.
    #[inline]
    pub(super) fn shape(&self, number: u32) -> Option<Shape> {
        self.entries[self.at(number)].shape
    }

    /// A contributor begins a message. Says whether all have.
    pub(super) fn begin(
        &mut self,
        number: u32,
        contributor: usize,
        shape: Shape,
    ) -> Result<bool, DropReason> {
        if number.wrapping_sub(self.base) as usize >= self.entries.len() {
            return Err(DropReason::NetreduceWindow);
        }
        let at = self.at(number);
        let message = &mut self.entries[at];
        if *message.shape.get_or_insert(shape) != shape {
            return Err(DropReason::NetreduceShape);
        }
        message.begun |= bit(contributor);
        Ok(message.begun == all_ranks(self.contributors as u8))
    }

    /// The sum of a slot, if it was made.
    #[inline]
    pub(super) fn kept(&self, number: u32, slot: usize) -> Option<&CachedSum<F>> {
        self.entries[self.at(number)].slots[slot].kept.as_ref()
    }

    /// Whether a slot has its sum, or is free again.
    pub(super) fn is_done(&self, number: u32, slot: usize) -> bool {
        number < self.base || self.kept(number, slot).is_some()
    }

    /// Whether a slot has the packets of all contributors, and no sum.
    pub(super) fn is_full(&self, number: u32, slot: usize) -> bool {
        let found = &self.entries[self.at(number)].slots[slot];
        found.bitmap == all_ranks(self.contributors as u8) && found.kept.is_none()
    }

    /// Whether a slot lacks this contributor.
    ///
    /// # Errors
    /// If it has its packet already.
    #[inline]
    pub(super) fn lacks(
        &self,
        number: u32,
        slot: usize,
        contributor: usize,
    ) -> Result<(), DropReason> {
        let found = &self.entries[self.at(number)].slots[slot];
        match found.bitmap & bit(contributor) {
            0 => Ok(()),
            _ => Err(DropReason::Duplicate),
        }
    }

    /// Holds a packet that its slot [lacks](Self::lacks). Says whether the slot has all now.
    #[inline(always)]
    pub(super) fn hold(
        &mut self,
        number: u32,
        slot: usize,
        contributor: usize,
        packet: Held<F>,
    ) -> bool {
        let (at, row) = (self.at(number), slot * self.contributors);
        let entry = &mut self.entries[at];
        let found = &mut entry.slots[slot];
        found.bitmap |= bit(contributor);
        let place = &mut entry.held[row + contributor];
        assert!(place.is_none(), "a slot's bitmap lacks a held packet");
        *place = Some(packet);
        self.held += 1;
        self.unfinished += 1;
        found.bitmap == all_ranks(self.contributors as u8)
    }

    /// The packets of a slot, by contributor.
    #[inline]
    pub(super) fn row(&mut self, number: u32, slot: usize) -> &mut [Option<Held<F>>] {
        let (at, row) = (self.at(number), slot * self.contributors);
        &mut self.entries[at].held[row..row + self.contributors]
    }

    /// Keeps the sum of a slot, all of whose packets have left.
    #[inline]
    pub(super) fn keep(&mut self, number: u32, slot: usize, sum: Option<CachedSum<F>>) {
        let all_left = self.row(number, slot).iter().all(Option::is_none);
        assert!(all_left, "a packet is held behind its sum");
        let contributors = self.contributors as u64;
        self.held -= contributors;
        self.held += u64::from(sum.is_some());
        self.unfinished -= contributors;
        let at = self.at(number);
        self.entries[at].slots[slot].kept = sum;
    }

    /// Contributors that the oldest unfinished slot of the messages before `end` lacks, if there is
    /// one.
    pub(super) fn awaited(&self, end: u32) -> Option<u64> {
        let all = all_ranks(self.contributors as u8);
        let live = (self.base..end).map(|number| &self.entries[self.at(number)]);
        let slots = live.flat_map(|message| {
            let packets = message.shape.map_or(0, |shape| usize::from(shape.packets));
            message.slots[..packets].iter()
        });
        let mut unfinished = slots.filter(|slot| slot.kept.is_none() && slot.bitmap != 0);
        unfinished.next().map(|slot| all & !slot.bitmap)
    }

    /// Frees the messages up to this one; says how many.
    pub(super) fn free_through<P: Platform<Frame = F>>(
        &mut self,
        context: &mut Context<P>,
        number: u32,
    ) -> u64 {
        let mut freed = 0;
        while self.base <= number {
            self.free(context, self.base);
            self.base += 1;
            freed += 1;
        }
        freed
    }

    fn free<P: Platform<Frame = F>>(&mut self, context: &mut Context<P>, number: u32) {
        let at = self.at(number);
        let message = &mut self.entries[at];
        message.begun = 0;
        if message.shape.take().is_none() {
            return;
        }
        for slot in &mut message.slots {
            slot.bitmap = 0;
            if let Some(kept) = slot.kept.take() {
                context.ports.recycle(kept.frame);
                self.held -= 1;
            }
        }
        for held in message.held.iter_mut().filter_map(Option::take) {
            context.ports.recycle(held.frame);
            self.held -= 1;
            self.unfinished -= 1;
        }
    }

    /// Frees all, before another epoch.
    pub(super) fn free_all<P: Platform<Frame = F>>(&mut self, context: &mut Context<P>) {
        for number in self.base..self.base + self.entries.len() as u32 {
            self.free(context, number);
        }
        assert_eq!(
            (self.held, self.unfinished),
            (0, 0),
            "held packets are counted"
        );
        self.base = 0;
    }
}

#[inline]
fn bit(contributor: usize) -> u64 {
    Rank(contributor as u8).bit()
}
