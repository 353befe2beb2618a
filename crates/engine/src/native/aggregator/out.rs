//! What leaves a slot: a result, a partial for the PS, or nothing.
//!
//! [`Out`] sends for one job. A slot ends in one of four ways: it is complete ([`complete`]), it is
//! evicted ([`Out::evict`]), it follows what the PS already has ([`follow`]), or what it holds is
//! discarded ([`clear`]).

use super::Job;
use crate::buffer::{Buffer, Egress, To};
use crate::counters::{Counters, DropReason};
use crate::native::held::Arena;
use crate::native::policy::Completion;
use crate::native::slot::Slot;
use crate::roster::Roster;
use tally_wire::{AuthTag, Flags, FragmentId, Header, Kind, Rank, Time};

/// The way out for frames of one job.
pub(super) struct Out<'a, E> {
    pub(super) roster: &'a Roster,
    pub(super) counters: &'a mut Counters,
    pub(super) egress: &'a mut E,
}

impl<E> Out<'_, E> {
    pub(super) fn drop<B: Buffer>(&mut self, reason: DropReason, buffer: B)
    where
        E: Egress<B>,
    {
        self.counters.drop(reason);
        self.egress.discard(buffer);
    }

    /// A contribution that cannot be summed here becomes a PARTIAL of one.
    pub(super) fn send_to_ps<B: Buffer>(&mut self, header: &Header, why: Flags, buffer: B)
    where
        E: Egress<B>,
    {
        self.counters.partials += 1;
        let partial = Header {
            kind: Kind::Partial,
            flags: header.flags.with(why),
            rank: Rank::SWITCH,
            bitmap: header.bitmap,
            ..*header
        };
        let partial = self.roster.secret.seal(partial);
        self.egress.send(self.roster, To::Ps, &partial, buffer);
    }

    /// The slot's partial leaves to the PS, in as many frames as it takes, and the slot is free.
    /// Each says `why`, and has the flags that any part of the slot had.
    pub(super) fn evict<B: Buffer>(&mut self, slot: &mut Slot<B>, arena: &mut Arena<B>, why: Flags)
    where
        E: Egress<B>,
    {
        let Some(key) = slot.key else { return };
        let header = Header {
            kind: Kind::Partial,
            flags: why.with(slot.flags),
            priority: slot.priority,
            element: slot.element,
            job: key.job,
            epoch: key.epoch,
            fragment: key.fragment,
            rank: Rank::SWITCH,
            units: self.roster.units,
            bitmap: 0,
            tag: AuthTag::NONE,
        };
        let mut sent = 0;
        if let Some(sum) = slot.sum.take() {
            let bitmap = if slot.element.is_ordered() {
                tally_wire::all_ranks(slot.folded)
            } else {
                slot.bitmap
            };
            sent |= bitmap;
            self.counters.partials += 1;
            let header = self.roster.secret.seal(Header { bitmap, ..header });
            self.egress.send(self.roster, To::Ps, &header, sum);
        }
        while let Some((rank, held)) = arena.take_first_if(&mut slot.held, |_| true) {
            assert_eq!(sent & rank.bit(), 0);
            sent |= rank.bit();
            self.counters.partials += 1;
            let header = self.roster.secret.seal(Header {
                bitmap: rank.bit(),
                ..header
            });
            self.egress.send(self.roster, To::Ps, &header, held);
        }
        // A slot that waits for the PS (`fcfs`) has sent its sum before.
        assert!(sent == slot.bitmap || sent == 0);
        *slot = Slot::free();
    }
}

/// What the slot has goes to the PS once it is all that is missing there (S-8).
#[cold]
pub(super) fn follow<B: Buffer>(
    slot: &mut Slot<B>,
    job: &mut Job<B>,
    arena: &mut Arena<B>,
    fragment: FragmentId,
    counters: &mut Counters,
    egress: &mut impl Egress<B>,
) {
    if slot.bitmap | job.sent_to_ps.ranks(fragment) != job.all {
        return;
    }
    counters.followed += 1;
    job.sent_to_ps.add(fragment, slot.bitmap);
    let mut out = Out {
        roster: &job.roster,
        counters,
        egress,
    };
    out.evict(slot, arena, Flags::NONE);
    job.slots -= 1;
}

/// All contributions are in.
#[inline]
pub(super) fn complete<B: Buffer>(
    slot: &mut Slot<B>,
    job: &mut Job<B>,
    counters: &mut Counters,
    egress: &mut impl Egress<B>,
) {
    let (Some(key), Some(sum)) = (slot.key, slot.sum.take()) else {
        return;
    };
    let header = Header {
        kind: Kind::Result,
        flags: slot.flags,
        priority: slot.priority,
        element: slot.element,
        job: key.job,
        epoch: key.epoch,
        fragment: key.fragment,
        rank: Rank::SWITCH,
        units: job.roster.units,
        bitmap: 0,
        tag: AuthTag::NONE,
    };
    match job.completion {
        Completion::Result => {
            counters.results += 1;
            job.counts.results += 1;
            counters.overflows += u64::from(slot.flags.has(Flags::OVERFLOW));
            let header = job.roster.secret.seal(header);
            let frame = egress.publish(&job.roster, &header, sum, Some(slot.born));
            if let Some(displaced) = job.ring.keep(key.fragment, frame) {
                egress.discard(displaced);
            }
            *slot = Slot::free();
            job.slots -= 1;
        }
        Completion::Up => {
            send_up(job, &header, sum, Some(slot.born), counters, egress);
            *slot = Slot::free();
            job.slots -= 1;
        }
        Completion::ToPsAndHold => {
            counters.partials += 1;
            let header = Header {
                kind: Kind::Partial,
                bitmap: job.all,
                ..header
            };
            let header = job.roster.secret.seal(header);
            job.sent_to_ps.add(key.fragment, job.all);
            egress.send(&job.roster, To::Ps, &header, sum);
        }
    }
}

/// TR-1: the node's sum goes to the parent, and stays in the ring until the result comes. `header`
/// is of the sum; it leaves as DATA.
pub(super) fn send_up<B: Buffer>(
    job: &mut Job<B>,
    header: &Header,
    sum: B,
    born: Option<Time>,
    counters: &mut Counters,
    egress: &mut impl Egress<B>,
) {
    let Some(uplink) = job.roster.uplink else {
        return egress.discard(sum);
    };
    counters.sums_up += 1;
    job.counts.sums_up += 1;
    let header = Header {
        kind: Kind::Data,
        flags: Flags(header.flags.0 & !Flags::FROM_PS.0),
        rank: uplink.rank,
        bitmap: uplink.rank.bit(),
        tag: AuthTag::NONE,
        ..*header
    };
    let frame = egress.send_up(&job.roster, &header, sum, born);
    if let Some(displaced) = job.ring.keep_sum(&header, born.unwrap_or_default(), frame) {
        egress.discard(displaced);
    }
}

/// Gives up what a slot holds.
pub(super) fn clear<B: Buffer>(
    slot: &mut Slot<B>,
    arena: &mut Arena<B>,
    egress: &mut impl Egress<B>,
) {
    if let Some(sum) = slot.sum.take() {
        egress.discard(sum);
    }
    while let Some((_, held)) = arena.take_first_if(&mut slot.held, |_| true) {
        egress.discard(held);
    }
    *slot = Slot::free();
}
