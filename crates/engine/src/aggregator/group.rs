//! Contributions of one fragment that came together: one look-up and one pass for all of them.
//!
//! [`Aggregator::handle_batch`] does what [`Aggregator::handle_admitted`] of one after another would do,
//! with two differences that only cost less: contributions are added in one pass, and a fragment
//! whose contributions are all in one group needs no slot, so it meets no collision.
//! Whatever is not the usual case (duplicates, a fragment that has come apart, ranks out of turn)
//! goes the ordinary way one by one.

use super::{Aggregator, Out, complete, find};
use crate::batch::{Arrival, Batch, NONE};
use crate::buffer::{Buffer, Egress};
use crate::held::fold_narrow;
use crate::planted::{self, Bug};
use crate::policy::Completion;
use crate::ring::Standing;
use crate::slot::{Slot, SlotKey};
use tally_kernels::{Kernels, MAX_FUSED};
use tally_wire::{Element, Flags, Header, Kind, Time};

/// Most members of a job, so most contributions of a group that are not duplicates.
const MAX_MEMBERS: usize = 64;

/// A group's contributions in the order of their ranks, each of them once. Numbers are wide, so that
/// each is in a register of its own.
struct Members {
    /// Places in the batch.
    order: [u16; MAX_MEMBERS],
    len: usize,
    bitmap: u64,
    priority: u32,
    flags: u32,
    lowest: u32,
    highest: u32,
}

impl Members {
    /// `None`: a rank is there twice, or elements differ.
    #[inline]
    fn of<B>(batch: &Batch<B>, first: u16) -> Option<Self> {
        let head = batch.arrivals[usize::from(first)].tag;
        let mut order = [NONE; MAX_MEMBERS];
        let (mut len, mut bitmap, mut priority, mut flags) = (0, 0, 0, 0);
        let mut lowest = u32::from(head.rank().0);
        let mut highest = lowest;
        let mut at = first;
        while at != NONE {
            let arrival = &batch.arrivals[usize::from(at)];
            let tag = arrival.tag;
            let rank = u32::from(tag.rank().0);
            let bit = tag.rank().bit();
            let is_twice = bitmap & bit != 0 && !planted::is(Bug::GroupTwice);
            if is_twice || tag.element() != head.element() {
                return None;
            }
            let mut place = len;
            if rank < highest && !planted::is(Bug::GroupOrder) {
                let after = |at: u16| batch.arrivals[usize::from(at)].tag.rank() > tag.rank();
                while place > 0 && after(order[place - 1]) {
                    order[place] = order[place - 1];
                    place -= 1;
                }
            }
            order[place] = at;
            len += 1;
            bitmap |= bit;
            priority = u32::from(tag.priority()).max(priority);
            flags |= u32::from(tag.flags().0);
            lowest = lowest.min(rank);
            highest = highest.max(rank);
            at = arrival.next;
        }
        Some(Self {
            order,
            len,
            bitmap,
            priority,
            flags,
            lowest,
            highest,
        })
    }

    #[inline]
    fn order(&self) -> &[u16] {
        &self.order[..self.len]
    }
}

impl<B: Buffer> Aggregator<B> {
    /// Takes the contributions of a turn, and leaves the batch empty.
    pub fn handle_batch(&mut self, now: Time, batch: &mut Batch<B>, egress: &mut impl Egress<B>) {
        batch.put_in_order();
        for at in 0..batch.groups.len() {
            let group = batch.groups[at];
            let place = usize::from(group.place);
            let mut first = group.first;
            while first != NONE {
                let next = batch.arrivals[usize::from(first)].next;
                if next != NONE && self.merge(now, place, batch, first, egress) {
                    break;
                }
                self.take_one(now, place, &mut batch.arrivals[usize::from(first)], egress);
                first = next;
            }
        }
        batch.clear();
    }

    /// The ordinary way.
    fn take_one(
        &mut self,
        now: Time,
        place: usize,
        arrival: &mut Arrival<B>,
        egress: &mut impl Egress<B>,
    ) {
        let tag = arrival.tag;
        let (Some(job), Some(buffer), Some(element)) = (
            &self.jobs[place],
            arrival.buffer.take(),
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
            fragment: tag.fragment(),
            rank: tag.rank(),
            units: job.roster.units,
            bitmap: tag.rank().bit(),
        };
        self.contribution(now, place, &header, buffer, egress);
    }

    /// Takes all contributions from `first` on, or says `false` and has not touched anything: then the
    /// first of them goes the ordinary way, after which the others may have a slot to go to.
    fn merge(
        &mut self,
        now: Time,
        place: usize,
        batch: &mut Batch<B>,
        first: u16,
        egress: &mut impl Egress<B>,
    ) -> bool {
        let Some(members) = Members::of(batch, first) else {
            return false;
        };
        let tag = batch.arrivals[usize::from(first)].tag;
        let (fragment, Some(element)) = (tag.fragment(), Element::from_bits(tag.element())) else {
            return false;
        };
        let Some(job) = self.jobs[place].as_mut() else {
            return false;
        };
        let key = SlotKey {
            job: job.roster.job,
            epoch: job.roster.epoch,
            fragment,
        };
        if !matches!(job.ring.standing(fragment), Standing::Open)
            || job.elsewhere.ranks(fragment) != 0
        {
            return false;
        }
        let set = job.placement.set(fragment.0 >> self.shift);
        let completion = self.policy.completion();
        let found = find(&self.slots, &self.tags, &set, key);
        let mut whole = Slot::free();
        let slot = match found {
            Some(at) => &mut self.slots[at],
            None if members.bitmap == job.all
                && completion == Completion::Result
                && !set.is_empty() =>
            {
                whole.key = Some(key);
                whole.born = now;
                whole.element = element;
                &mut whole
            }
            None => return false,
        };
        if slot.element != element
            || slot.bitmap & members.bitmap != 0 && !planted::is(Bug::GroupOver)
            || slot.is_split
            || !in_turn(slot, &members, job.all)
        {
            return false;
        }
        job.has_reached(fragment);
        slot.grew = now;
        slot.priority = slot.priority.max(members.priority as u8);
        slot.flags = slot.flags.with(Flags(members.flags as u8));
        let mut out = Out {
            roster: &job.roster,
            counters: &mut self.counters,
            egress,
        };
        out.add_all(slot, &self.kernels, batch, &members);
        while slot.element.is_ordered()
            && !planted::is(Bug::GroupHeld)
            && let Some((_, next)) = self
                .arena
                .take_first_if(&mut slot.held, |rank| rank.0 == slot.folded)
        {
            out.fold(slot, &self.kernels, next);
        }
        if slot.bitmap == job.all {
            // As if it had been in a slot of the pool: completion takes one from the job.
            if !planted::is(Bug::WholeUncounted) {
                job.slots += u32::from(found.is_none());
            }
            complete(slot, job, completion, &mut self.counters, egress);
        }
        true
    }
}

/// Whether the slot can take them all at once: for ordered elements, if they are the next ones, for narrow
/// ones if they are all.
#[inline]
fn in_turn<B>(slot: &Slot<B>, members: &Members, all: u64) -> bool {
    match slot.element {
        Element::I32 => true,
        Element::F32 => {
            members.lowest == u32::from(slot.folded)
                && (members.highest - members.lowest) as usize + 1 == members.len
        }
        Element::Scale | Element::None => false,
        _ => members.bitmap == all,
    }
}

/// Payloads of up to `N` contributions.
struct Payloads<'a, const N: usize> {
    payloads: [&'a [u8]; N],
    len: usize,
}

impl<'a, const N: usize> Payloads<'a, N> {
    #[inline(always)]
    fn of<B: Buffer>(batch: &'a Batch<B>, order: &[u16]) -> Self {
        let mut payloads: [&[u8]; N] = [&[]; N];
        for (payload, &at) in payloads.iter_mut().zip(order) {
            if let Some(buffer) = &batch.arrivals[usize::from(at)].buffer {
                *payload = buffer.payload();
            }
        }
        Self {
            payloads,
            len: order.len(),
        }
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
        members: &Members,
    ) where
        E: Egress<B>,
    {
        let mut order = members.order();
        if slot.sum.is_none()
            && let Some((&first, rest)) = order.split_first()
        {
            slot.sum = batch.arrivals[usize::from(first)].buffer.take();
            order = rest;
        }
        let Some(sum) = &mut slot.sum else { return };
        if slot.element.is_narrow() {
            let payloads = Payloads::<MAX_MEMBERS>::of(batch, order);
            let (element, sum) = (slot.element, sum.payload_mut());
            let saturated = fold_narrow(kernels, element, sum, payloads.get());
            slot.flags = slot.flags.with(Flags::OVERFLOW.when(saturated));
        }
        for part in order.chunks(MAX_FUSED) {
            let payloads = Payloads::<MAX_FUSED>::of(batch, part);
            match slot.element {
                Element::F32 => kernels.sum_f32_many(sum.payload_mut(), payloads.get()),
                Element::I32 => {
                    let saturated = kernels.sum_i32_many(sum.payload_mut(), payloads.get());
                    slot.flags = slot.flags.with(Flags::OVERFLOW.when(saturated));
                }
                _ => {}
            }
            for &at in part {
                if let Some(buffer) = batch.arrivals[usize::from(at)].buffer.take() {
                    self.egress.discard(buffer);
                }
            }
        }
        slot.bitmap |= members.bitmap;
        slot.folded += members.len as u8;
        self.counters.contributions += members.len as u64;
        self.counters.grouped += members.len as u64;
    }
}
