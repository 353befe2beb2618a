//! DATA: one contribution, on its way into a slot (the table of section 6).
//!
//! A contribution whose fragment has a slot joins it. Another takes a slot, or goes to the PS where
//! there is none for it. The slot is then complete, follows the rest of its fragment to the PS, or
//! waits.

use super::out::{Out, complete, follow};
use super::{Aggregator, find, key_of, tag_of};
use crate::buffer::{Buffer, Egress};
use crate::counters::DropReason;
use crate::native::held::{Arena, Owner};
use crate::native::policy::Resend;
use crate::native::ring::ResultState;
use crate::native::slot::Slot;
use std::ops::Range;
use tally_kernels::Kernels;
use tally_wire::{Element, Flags, Header, Time};

impl<B: Buffer> Aggregator<B> {
    /// Takes one admitted contribution.
    #[inline]
    pub(super) fn contribution(
        &mut self,
        now: Time,
        place: usize,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) {
        let Some(job) = self.jobs[place].as_mut() else {
            return;
        };
        job.counts.arrivals += 1;
        match job.ring.state(header.fragment) {
            ResultState::Open => {}
            ResultState::Finished(frame) if header.flags.has(Flags::RESEND) => {
                self.counters.results_again += 1;
                egress.republish(&job.roster, header.rank, frame);
                egress.discard(buffer);
                return;
            }
            ResultState::SentUp(_) if header.flags.has(Flags::RESEND) => {
                // TR-3: its sender waits for the result.
                self.probe_up(now, place, header, buffer, egress);
                return;
            }
            _ => {
                self.counters.drop(DropReason::Late);
                egress.discard(buffer);
                return;
            }
        }
        job.has_reached(header.fragment);
        let set = job.placement.set(header.fragment.0 >> self.shift);
        let at = match find(&self.slots, &self.tags, &set, key_of(header)) {
            Some(at) => self.join_slot(at, place, header, buffer, egress),
            None => self.take_slot(now, place, set, header, buffer, egress),
        };
        if let Some(at) = at {
            self.after_contribution(at, place, header, egress);
        }
    }

    /// Adds a contribution to the slot that its fragment has. `None`: it is not in the slot, and
    /// dropped or on its way to the PS.
    #[inline]
    fn join_slot(
        &mut self,
        at: usize,
        place: usize,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) -> Option<usize> {
        let job = self.jobs[place].as_mut()?;
        let resend = header.flags.has(Flags::RESEND);
        let mut out = Out {
            roster: &job.roster,
            counters: &mut self.counters,
            egress,
        };
        let slot = &mut self.slots[at];
        if resend && self.policy.resend() == Resend::Evict {
            // The arrival follows even when its contribution was just evicted: it asks the PS for
            // the result.
            job.sent_to_ps
                .add(header.fragment, slot.bitmap | header.bitmap);
            out.evict(slot, &mut self.arena, Flags::RESEND);
            out.counters.resends_to_ps += 1;
            out.send_to_ps(header, Flags::NONE, buffer);
            job.slots -= 1;
            return None;
        }
        if slot.bitmap & header.bitmap != 0 {
            out.drop(DropReason::Duplicate, buffer);
            return None;
        }
        if slot.is_split && job.sent_to_ps.ranks(header.fragment) & header.bitmap != 0 {
            if resend {
                // It may have been lost on the way to the PS.
                out.counters.resends_to_ps += 1;
                out.send_to_ps(header, Flags::NONE, buffer);
            } else {
                out.drop(DropReason::Duplicate, buffer);
            }
            return None;
        }
        if slot.element != header.element {
            out.drop(DropReason::ElementMismatch, buffer);
            return None;
        }
        slot.priority = slot.priority.max(header.priority);
        out.add(
            slot,
            &mut self.arena,
            job.owner,
            &self.kernels,
            header,
            buffer,
        );
        Some(at)
    }

    /// Takes a slot for the first contribution of a fragment. `None`: there is none for it, and it
    /// is dropped or on its way to the PS.
    #[inline]
    fn take_slot(
        &mut self,
        now: Time,
        place: usize,
        set: Range<usize>,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) -> Option<usize> {
        let job = self.jobs[place].as_mut()?;
        let resend = header.flags.has(Flags::RESEND);
        let mut out = Out {
            roster: &job.roster,
            counters: &mut self.counters,
            egress,
        };
        let noted = job.sent_to_ps.ranks(header.fragment);
        if resend && (noted != 0 || self.policy.resend() == Resend::Evict) {
            out.counters.resends_to_ps += 1;
            out.send_to_ps(header, Flags::NONE, buffer);
            job.sent_to_ps.add(header.fragment, header.bitmap);
            return None;
        }
        if self.policy.follows_to_ps() && noted & header.bitmap != 0 {
            out.drop(DropReason::Duplicate, buffer);
            return None;
        }
        // A policy that keeps nothing has no set to be full.
        let full = Flags::COLLISION.when(!set.is_empty());
        let room = self.allocate(place, set, header.priority, egress);
        let job = self.jobs[place].as_mut()?;
        let mut out = Out {
            roster: &job.roster,
            counters: &mut self.counters,
            egress,
        };
        let Some(at) = room else {
            out.counters.collisions += u64::from(full == Flags::COLLISION);
            out.counters.resends_to_ps += u64::from(resend);
            out.send_to_ps(header, full, buffer);
            job.sent_to_ps.add(header.fragment, header.bitmap);
            return None;
        };
        let elsewhere = job.sent_to_ps.ranks(header.fragment);
        let slot = &mut self.slots[at];
        let key = key_of(header);
        self.tags[at] = tag_of(key);
        *slot = Slot {
            key: Some(key),
            born: now,
            priority: header.priority,
            element: header.element,
            is_split: elsewhere != 0 && self.policy.follows_to_ps(),
            ..Slot::free()
        };
        out.counters.slots_taken += 1;
        out.add(
            slot,
            &mut self.arena,
            job.owner,
            &self.kernels,
            header,
            buffer,
        );
        // One that could only be held, and found no place to, has gone to the PS.
        job.slots += u32::from(slot.key.is_some());
        Some(at)
    }

    /// Sends what the slot has, if the contribution was the last that it or the PS waited for.
    #[inline]
    fn after_contribution(
        &mut self,
        at: usize,
        place: usize,
        header: &Header,
        egress: &mut impl Egress<B>,
    ) {
        let Some(job) = self.jobs[place].as_mut() else {
            return;
        };
        let slot = &mut self.slots[at];
        if slot.bitmap & header.bitmap == 0 {
            // There was no room to hold it out of its turn.
            job.sent_to_ps.add(header.fragment, header.bitmap);
            slot.is_split = slot.key.is_some() && self.policy.follows_to_ps();
        }
        if slot.is_split {
            follow(
                slot,
                job,
                &mut self.arena,
                header.fragment,
                &mut self.counters,
                egress,
            );
        } else if slot.bitmap == job.all {
            if slot.element.is_narrow()
                && let Some(sum) = &mut slot.sum
            {
                let (held, kernels) = (&mut slot.held, &self.kernels);
                let saturated = self
                    .arena
                    .fold_narrow(held, slot.element, sum, kernels, egress);
                slot.flags = slot.flags.with(Flags::OVERFLOW.when(saturated));
            }
            assert!(slot.held.is_empty() && slot.sum.is_some());
            complete(slot, job, &mut self.counters, egress);
        }
    }
}

impl<E> Out<'_, E> {
    /// Adds a contribution of a rank that is not in the slot (S-1).
    #[inline]
    pub(super) fn add<B: Buffer>(
        &mut self,
        slot: &mut Slot<B>,
        arena: &mut Arena<B>,
        owner: Owner,
        kernels: &Kernels,
        header: &Header,
        buffer: B,
    ) where
        E: Egress<B>,
    {
        if slot.element.is_ordered() {
            let is_narrow = slot.element.is_narrow();
            let turn = if is_narrow { 0 } else { slot.folded };
            if header.rank.0 != turn {
                match arena.insert(&mut slot.held, owner, header.rank, buffer) {
                    Ok(()) => {
                        slot.bitmap |= header.bitmap;
                        slot.flags = slot.flags.with(of_sum(header));
                        self.counters.contributions += 1;
                    }
                    Err(buffer) => {
                        self.counters.held_full += 1;
                        self.send_to_ps(header, Flags::NONE, buffer);
                        if slot.bitmap == 0 {
                            *slot = Slot::free();
                        }
                    }
                }
                return;
            }
            self.fold(slot, kernels, buffer);
            while !is_narrow
                && let Some((_, next)) =
                    arena.take_first_if(&mut slot.held, |rank| rank.0 == slot.folded)
            {
                self.fold(slot, kernels, next);
            }
        } else {
            match &mut slot.sum {
                None => slot.sum = Some(buffer),
                Some(sum) => {
                    match slot.element {
                        Element::I32 => {
                            let saturated = kernels.sum_i32(sum.payload_mut(), buffer.payload());
                            slot.flags = slot.flags.with(Flags::OVERFLOW.when(saturated));
                        }
                        _ => kernels.max_u8(sum.payload_mut(), buffer.payload()),
                    }
                    self.egress.discard(buffer);
                }
            }
        }
        slot.bitmap |= header.bitmap;
        slot.flags = slot.flags.with(of_sum(header));
        self.counters.contributions += 1;
    }

    /// The next rank in order.
    #[inline]
    pub(super) fn fold<B: Buffer>(&mut self, slot: &mut Slot<B>, kernels: &Kernels, buffer: B)
    where
        E: Egress<B>,
    {
        match &mut slot.sum {
            None => slot.sum = Some(buffer),
            Some(sum) => {
                kernels.sum_f32(sum.payload_mut(), buffer.payload());
                self.egress.discard(buffer);
            }
        }
        slot.folded += 1;
    }
}

/// The flags that a sum has from this contribution: MARKED (C-1), and a child switch's own (TR-7).
#[inline]
fn of_sum(header: &Header) -> Flags {
    Flags(header.flags.0 & !Flags::RESEND.0)
}
