//! Contributions of one fragment that came together: one look-up and one pass for all of them.
//!
//! [`Aggregator::handle_batch`] does what [`Aggregator::handle_admitted`] of one after another
//! would do, with two differences that only cost less: contributions are added in one pass, and a
//! fragment whose contributions are all in one group needs no slot, so it meets no collision.
//! All other cases (duplicates, a fragment that is split between switch and PS, ranks out of order)
//! are handled one by one.

use super::out::{Out, complete};
use super::{Aggregator, find};
use crate::buffer::{Buffer, Egress};
use crate::native::batch::{Batch, ROW, Rest, Tag};
use crate::native::held::fold_narrow;
use crate::native::policy::Completion;
use crate::native::ring::ResultState;
use crate::native::slot::{Slot, SlotKey};
use tally_kernels::Kernels;
use tally_wire::{AuthTag, Element, Flags, Header, Kind, Time, all_ranks};

/// Most members of a job, so most contributions of a group that are not duplicates.
const MAX_MEMBERS: usize = 64;

/// What contributions of one fragment are together, each rank's once and all of the same element
/// type.
struct Members {
    element: Element,
    len: usize,
    bitmap: u64,
    priority: u8,
    flags: Flags,
    /// Whether they came in the order of their ranks.
    in_order: bool,
}

impl Members {
    /// `None`: it is one only, a rank is there twice, or element types differ.
    #[inline]
    fn of<B>(batch: &Batch<B>, Rest { mut row, mut from }: Rest) -> Option<Self> {
        let first = *batch.tags(Rest { row, from }).first()?;
        // Of all tags, bit by bit: those that any has, and those in which any differs from the
        // first.
        let (mut any, mut different) = (0, 0);
        let (mut len, mut bitmap, mut twice, mut priority) = (0, 0, 0, 0);
        let (mut last, mut disorder) = (first, false);
        loop {
            let tags = batch.tags(Rest { row, from });
            len += tags.len();
            for &tag in tags {
                any |= tag.0;
                different |= tag.0 ^ first.0;
                // Admitted, and so below 64.
                let bit = 1_u64 << (tag.rank().0 & 63);
                twice |= bitmap & bit;
                bitmap |= bit;
                priority = priority.max(u32::from(tag.priority()));
                disorder |= tag < last;
                last = tag;
            }
            let Some(next) = batch.after(row) else { break };
            (row, from) = (next, 0);
        }
        let element = Element::from_bits(first.element())?;
        let is_plain = len > 1 && twice == 0 && Tag(different).element() == 0;
        is_plain.then_some(Self {
            element,
            len,
            bitmap,
            priority: priority as u8,
            flags: Tag(any).flags(),
            in_order: !disorder,
        })
    }
}

impl<B: Buffer> Aggregator<B> {
    /// Takes the contributions of a turn, and leaves the batch empty.
    pub fn handle_batch(&mut self, now: Time, batch: &mut Batch<B>, egress: &mut impl Egress<B>) {
        batch.put_in_order();
        for fragment in 0..batch.fragments() {
            let mut rest = batch.fragment(fragment);
            while let Some(some) = rest
                && !self.merge(now, batch, some, egress)
            {
                self.take_one(now, batch, some, egress);
                rest = batch.rest(some);
            }
        }
        batch.clear();
    }

    /// The ordinary way.
    fn take_one(
        &mut self,
        now: Time,
        batch: &mut Batch<B>,
        first: Rest,
        egress: &mut impl Egress<B>,
    ) {
        let Some(&tag) = batch.tags(first).first() else {
            return;
        };
        let row = batch.row(first.row);
        let place = row.place();
        let (Some(job), Some(buffer), Some(element)) = (
            &self.jobs[place],
            row.take(first.from),
            Element::from_bits(tag.element()),
        ) else {
            return;
        };
        let header = Header {
            kind: Kind::Data,
            flags: tag.flags(),
            priority: tag.priority(),
            element,
            job: job.roster.job,
            epoch: job.roster.epoch,
            fragment: row.fragment,
            rank: tag.rank(),
            units: job.roster.units,
            bitmap: tag.rank().bit(),
            tag: AuthTag::NONE,
        };
        self.contribution(now, place, &header, buffer, egress);
    }

    /// Takes all of these contributions, or says `false` and has not touched anything: then the
    /// first of them goes the ordinary way, after which the others may have a slot to go to.
    #[inline]
    fn merge(
        &mut self,
        now: Time,
        batch: &mut Batch<B>,
        rest: Rest,
        egress: &mut impl Egress<B>,
    ) -> bool {
        let Some(members) = Members::of(batch, rest) else {
            return false;
        };
        let row = batch.row(rest.row);
        let (place, fragment) = (row.place(), row.fragment);
        let Some(job) = self.jobs[place].as_mut() else {
            return false;
        };
        let key = SlotKey {
            job: job.roster.job,
            epoch: job.roster.epoch,
            fragment,
        };
        if !matches!(job.ring.state(fragment), ResultState::Open)
            || job.sent_to_ps.ranks(fragment) != 0
        {
            return false;
        }
        let set = job.placement.set(fragment.0 >> self.shift);
        let completion = job.completion;
        let found = find(&self.slots, &self.tags, &set, key);
        let mut whole = Slot::free();
        let slot = match found {
            Some(at) => &mut self.slots[at],
            None if members.bitmap == job.all
                && completion != Completion::ToPsAndHold
                && !set.is_empty() =>
            {
                whole.key = Some(key);
                whole.born = now;
                whole.element = members.element;
                &mut whole
            }
            None => return false,
        };
        if slot.element != members.element
            || slot.bitmap & members.bitmap != 0
            || slot.is_split
            || !in_turn(slot, &members, job.all)
        {
            return false;
        }
        job.has_reached(fragment);
        job.counts.arrivals += members.len as u64;
        slot.priority = slot.priority.max(members.priority);
        slot.flags = slot.flags.with(members.flags);
        if slot.element.is_ordered() && !members.in_order {
            batch.sort(rest);
        }
        let mut out = Out {
            roster: &job.roster,
            counters: &mut self.counters,
            egress,
        };
        out.add_all(slot, &self.kernels, batch, rest);
        slot.bitmap |= members.bitmap;
        slot.folded += members.len as u8;
        out.counters.contributions += members.len as u64;
        out.counters.grouped += members.len as u64;
        while slot.element.is_ordered()
            && let Some((_, next)) = self
                .arena
                .take_first_if(&mut slot.held, |rank| rank.0 == slot.folded)
        {
            out.fold(slot, &self.kernels, next);
        }
        if slot.bitmap == job.all {
            // As if it had been in a slot of the pool: completion takes one from the job.
            job.slots += u32::from(found.is_none());
            complete(slot, job, &mut self.counters, egress);
        }
        true
    }
}

/// Whether the slot can take them all at once: for ordered elements, if they are the next ones, for
/// narrow ones if they are all.
#[inline]
fn in_turn<B>(slot: &Slot<B>, members: &Members, all: u64) -> bool {
    match slot.element {
        Element::I32 => true,
        Element::F32 => {
            let next = all_ranks(members.len as u8).checked_shl(slot.folded.into());
            next == Some(members.bitmap)
        }
        Element::Scale | Element::None => false,
        _ => members.bitmap == all,
    }
}

/// Payloads of contributions that have not been taken out.
struct Payloads<'a, const N: usize> {
    payloads: [&'a [u8]; N],
    len: usize,
}

impl<'a, const N: usize> Payloads<'a, N> {
    const NONE: Self = Self {
        payloads: [&[]; N],
        len: 0,
    };

    #[inline(always)]
    fn add<B: Buffer>(&mut self, buffers: &'a [Option<B>]) {
        let places = &mut self.payloads[self.len..];
        for (place, buffer) in places.iter_mut().zip(buffers) {
            if let Some(buffer) = buffer {
                *place = buffer.payload();
            }
        }
        self.len += buffers.len();
    }

    #[inline(always)]
    fn get(&self) -> &[&'a [u8]] {
        &self.payloads[..self.len]
    }
}

impl<E> Out<'_, E> {
    /// Adds the contributions, which are in turn.
    #[inline]
    fn add_all<B: Buffer>(
        &mut self,
        slot: &mut Slot<B>,
        kernels: &Kernels,
        batch: &mut Batch<B>,
        mut rest: Rest,
    ) where
        E: Egress<B>,
    {
        if slot.sum.is_none() {
            slot.sum = batch.row(rest.row).take(rest.from);
            rest.from += 1;
        }
        let Some(sum) = &mut slot.sum else { return };
        if slot.element.is_narrow() {
            let mut payloads = Payloads::<MAX_MEMBERS>::NONE;
            for buffers in batch.buffers(rest) {
                payloads.add(buffers);
            }
            let (element, sum) = (slot.element, sum.payload_mut());
            let saturated = fold_narrow(kernels, element, sum, payloads.get());
            slot.flags = slot.flags.with(Flags::OVERFLOW.when(saturated));
        }
        let Rest { mut row, mut from } = rest;
        loop {
            let mut payloads = Payloads::<ROW>::NONE;
            payloads.add(batch.row(row).buffers(from));
            match slot.element {
                Element::F32 => kernels.sum_f32_many(sum.payload_mut(), payloads.get()),
                Element::I32 => {
                    let saturated = kernels.sum_i32_many(sum.payload_mut(), payloads.get());
                    slot.flags = slot.flags.with(Flags::OVERFLOW.when(saturated));
                }
                _ => {}
            }
            for buffer in batch.row(row).buffers_mut(from) {
                if let Some(buffer) = buffer.take() {
                    self.egress.discard(buffer);
                }
            }
            let Some(next) = batch.after(row) else { break };
            (row, from) = (next, 0);
        }
    }
}
