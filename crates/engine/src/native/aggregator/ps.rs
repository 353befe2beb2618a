//! A fragment that the PS completes: its result, or a worker's copy of it, and REMIND, by which the
//! PS asks for what the switch has.

use super::out::{Out, clear, send_up};
use super::{Aggregator, find, key_of};
use crate::buffer::{Buffer, Egress, To};
use crate::counters::DropReason;
use crate::native::ring::ResultState;
use tally_wire::{Flags, Header, Kind, Rank};

impl<B: Buffer> Aggregator<B> {
    /// S-2, S-4: the PS or a worker has the result.
    pub(super) fn result_of_member(
        &mut self,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) {
        let place = usize::from(self.index[usize::from(header.job.0)]) - 1;
        let Some(job) = self.jobs[place].as_mut() else {
            return;
        };
        let is_from_ps = header.rank == Rank::PS;
        if job.roster.uplink.is_some() && !is_from_ps {
            return self.result_of_worker(place, header, buffer, egress);
        }
        if !matches!(job.ring.state(header.fragment), ResultState::Open) {
            self.counters.drop(DropReason::Late);
            egress.discard(buffer);
            return;
        }
        job.has_reached(header.fragment);
        let set = job.placement.set(header.fragment.0 >> self.shift);
        if let Some(at) = find(&self.slots, &self.tags, &set, key_of(header)) {
            clear(&mut self.slots[at], &mut self.arena, egress);
            job.slots -= 1;
        }
        if is_from_ps {
            self.counters.results_from_ps += 1;
        } else {
            self.counters.results_from_workers += 1;
        }
        if job.roster.uplink.is_some() {
            // TR-1: it is the node's sum, not the result.
            return send_up(job, header, buffer, None, &mut self.counters, egress);
        }
        job.counts.results += 1;
        self.counters.overflows += u64::from(header.flags.has(Flags::OVERFLOW));
        let flags = Flags(header.flags.0 & !Flags::FROM_PS.0);
        let header = job.roster.secret.seal(Header {
            rank: Rank::SWITCH,
            flags: flags.with(Flags::FROM_PS.when(is_from_ps)),
            ..*header
        });
        let frame = egress.publish(&job.roster, &header, buffer, None);
        if let Some(displaced) = job.ring.keep(header.fragment, frame) {
            egress.discard(displaced);
        }
    }

    /// S-3: the PS asks for what is here.
    pub(super) fn remind(&mut self, header: &Header, buffer: B, egress: &mut impl Egress<B>) {
        self.counters.reminds += 1;
        let place = usize::from(self.index[usize::from(header.job.0)]) - 1;
        let Some(job) = self.jobs[place].as_mut() else {
            return;
        };
        let finished = !matches!(job.ring.state(header.fragment), ResultState::Open);
        let set = job.placement.set(header.fragment.0 >> self.shift);
        let has_parts = |at: &usize| {
            let slot = &self.slots[*at];
            !finished && (slot.sum.is_some() || !slot.held.is_empty())
        };
        let at = find(&self.slots, &self.tags, &set, key_of(header)).filter(has_parts);
        let mut out = Out {
            roster: &job.roster,
            counters: &mut self.counters,
            egress,
        };
        if let Some(at) = at {
            job.sent_to_ps.add(header.fragment, self.slots[at].bitmap);
            out.evict(&mut self.slots[at], &mut self.arena, Flags::NONE);
            out.egress.discard(buffer);
            job.slots -= 1;
        } else {
            let answer = Header {
                kind: Kind::NotHere,
                flags: Flags::FINISHED.when(finished),
                rank: Rank::SWITCH,
                ..*header
            };
            let answer = out.roster.secret.seal(answer);
            out.egress.send(out.roster, To::Ps, &answer, buffer);
        }
    }
}
