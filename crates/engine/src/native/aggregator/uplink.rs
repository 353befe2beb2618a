//! A node of a tree towards its parent: what is a worker's part there (TR-1 to TR-6).
//!
//! The node's sum goes up as DATA, and stays in the ring until its result comes down. The parent
//! asks for it by NACK, and the node asks for the result by PROBE, each time that a member does:
//! there are no timers here.

use super::probe::Asked;
use super::{Aggregator, Counts, Job, find, key_of};
use crate::buffer::{Buffer, Egress, To};
use crate::counters::{Counters, DropReason};
use crate::native::aggregator::out::clear;
use crate::native::ring::ResultState;
use crate::roster::Member;
use tally_wire::{AuthTag, Element, Flags, Header, Kind, Rank, Time};

impl<B> Job<B> {
    /// Whether a RESULT or NACK is the parent's: no member, and no other switch, may send it.
    pub(super) fn is_of_parent(&self, from: &Member, header: &Header) -> bool {
        let is_parents = match header.kind {
            Kind::Result => header.rank == Rank::SWITCH,
            Kind::Nack => true,
            _ => false,
        };
        is_parents
            && self
                .roster
                .uplink
                .is_some_and(|uplink| uplink.parent == *from)
    }

    /// TR-7: OVERFLOW and COLLISION are of sums, which only a child switch sends as DATA.
    #[inline]
    pub(super) fn allows_flags(&self, header: &Header) -> bool {
        let of_sums = Flags::OVERFLOW.with(Flags::COLLISION);
        header.flags.0 & of_sums.0 == 0 || self.roster.switches & header.rank.bit() != 0
    }

    /// Whether a NACK to this rank is to a worker, or from the parent to the node.
    #[inline]
    pub(super) fn has_rank(&self, is_parents: bool, rank: Rank) -> bool {
        if is_parents {
            self.roster.uplink.is_some_and(|uplink| uplink.rank == rank)
        } else {
            self.all & rank.bit() != 0
        }
    }
}

impl<B> Job<B> {
    /// The header with which a kept frame of the fragment of `asked` goes to the parent: a sum with
    /// RESEND, a result to be made one of the node's.
    fn kept_header(&self, asked: &Header) -> Option<Header> {
        let uplink = self.roster.uplink?;
        let note = self.ring.noted(asked.fragment)?;
        Some(Header {
            kind: Kind::Data,
            flags: Flags(note.flags.0 & !Flags::FROM_PS.0).with(Flags::RESEND),
            priority: note.priority,
            element: note.element,
            rank: uplink.rank,
            units: self.roster.units,
            bitmap: uplink.rank.bit(),
            tag: AuthTag::NONE,
            ..*asked
        })
    }

    /// Sends a copy of the kept sum to the parent.
    fn sum_up_again(
        &mut self,
        header: &Header,
        counters: &mut Counters,
        egress: &mut impl Egress<B>,
    ) where
        B: Buffer,
    {
        if let ResultState::SentUp(frame) = self.ring.state(header.fragment) {
            counters.sums_up_again += 1;
            self.counts.again_up += 1;
            egress.copy_up(&self.roster, header, frame);
        }
    }

    /// Sends a copy of the final result to the parent, as a worker's (S-4).
    fn result_up(&self, header: &Header, frame: &B, egress: &mut impl Egress<B>)
    where
        B: Buffer,
    {
        let Some(uplink) = self.roster.uplink else {
            return;
        };
        let of_sums = Flags::OVERFLOW.with(Flags::MARKED).with(Flags::COLLISION);
        let header = self.roster.secret.seal(Header {
            kind: Kind::Result,
            flags: Flags(header.flags.0 & of_sums.0),
            rank: uplink.rank,
            bitmap: 0,
            ..*header
        });
        egress.copy_up(&self.roster, &header, frame);
    }
}

impl<B: Buffer> Aggregator<B> {
    /// TR-2: the parent has the result.
    pub(super) fn result_of_parent(
        &mut self,
        now: Time,
        place: usize,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) {
        if let Some(job) = self.jobs[place].as_mut()
            && let Some(sent) = job.ring.sent_once(header.fragment)
        {
            job.sum_times.sample(sent, now);
        }
        self.publish_final(place, header, buffer, egress, |counters, job| {
            job.results_down += 1;
            &mut counters.results_down
        });
    }

    /// Publishes the final result of a fragment that has none, and keeps it; says whether it did.
    /// `header` has its tag. `counter` counts it.
    fn publish_final(
        &mut self,
        place: usize,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
        counter: impl for<'a> FnOnce(&'a mut Counters, &mut Counts) -> &'a mut u64,
    ) {
        let Some(job) = self.jobs[place].as_mut() else {
            return egress.discard(buffer);
        };
        if let ResultState::Finished(_) | ResultState::Old = job.ring.state(header.fragment) {
            self.counters.drop(DropReason::Late);
            return egress.discard(buffer);
        }
        job.has_reached(header.fragment);
        let set = job.placement.set(header.fragment.0 >> self.shift);
        if let Some(at) = find(&self.slots, &self.tags, &set, key_of(header)) {
            clear(&mut self.slots[at], &mut self.arena, egress);
            job.slots -= 1;
        }
        *counter(&mut self.counters, &mut job.counts) += 1;
        job.counts.results += 1;
        self.counters.overflows += u64::from(header.flags.has(Flags::OVERFLOW));
        let frame = egress.publish(&job.roster, header, buffer, None);
        if let Some(displaced) = job.ring.keep_noted(header, frame) {
            egress.discard(displaced);
        }
    }

    /// TR-6: a worker or child of a node with a parent has the final result. The parent gets it
    /// too: it may have restarted.
    pub(super) fn result_of_worker(
        &mut self,
        place: usize,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) {
        let Some(job) = self.jobs[place].as_mut() else {
            return egress.discard(buffer);
        };
        let flags = Flags(header.flags.0 & !Flags::FROM_PS.0);
        let state = job.ring.state(header.fragment);
        if matches!(state, ResultState::Open | ResultState::SentUp(_)) {
            job.result_up(&Header { flags, ..*header }, &buffer, egress);
            job.counts.again_up += 1;
            self.counters.results_up += 1;
        }
        let header = job.roster.secret.seal(Header {
            rank: Rank::SWITCH,
            flags,
            ..*header
        });
        self.publish_final(place, &header, buffer, egress, |counters, _| {
            &mut counters.results_from_workers
        });
    }

    /// TR-3, TR-4: a member misses the result of a fragment that was sent up. `buffer` is its
    /// frame.
    pub(super) fn probe_up(
        &mut self,
        now: Time,
        place: usize,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) {
        let job = self.jobs[place].as_mut();
        let Some((job, uplink)) = job.and_then(|job| job.roster.uplink.map(|it| (job, it))) else {
            return egress.discard(buffer);
        };
        if !job.ring.probe_is_due(header.fragment, now) {
            return egress.discard(buffer);
        }
        self.counters.probes_up += 1;
        let probe = job.roster.secret.seal(Header {
            kind: Kind::Probe,
            flags: Flags::NONE,
            element: Element::None,
            rank: uplink.rank,
            units: 0,
            bitmap: 0,
            ..*header
        });
        egress.send(&job.roster, To::Parent, &probe, buffer);
    }

    /// TR-5: the parent misses the node's sum, or no other child can send it the result.
    pub(super) fn nack_of_parent(
        &mut self,
        now: Time,
        place: usize,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) {
        self.counters.nacks_down += 1;
        let Some(job) = self.jobs[place].as_mut() else {
            return egress.discard(buffer);
        };
        let kept = job.kept_header(header);
        let sent = job.ring.repeat_is_due(header.fragment, now);
        match (job.ring.state(header.fragment), kept) {
            (ResultState::Open, _) => {
                let from = job.next_asked;
                if let Asked::Rank(asked) = self.ask_for(place, from, header, buffer, egress)
                    && let Some(job) = self.jobs[place].as_mut()
                {
                    job.next_asked = Rank(asked.0 + 1);
                }
                return;
            }
            (ResultState::Finished(frame), Some(kept)) => {
                self.counters.results_up += 1;
                job.result_up(&kept, frame, egress);
                job.counts.again_up += 1;
            }
            (ResultState::SentUp(frame), Some(kept)) => {
                // A frame with a reference in a queue is most probably in flight. A driver may keep
                // one that has left, though: so only the first time.
                let is_queued = egress.is_queued(frame);
                let is_asked = job.ring.ask(header.fragment);
                // Each child that misses the result makes the parent send a NACK. One
                // retransmission in flight serves them all.
                let is_due = sent.is_some_and(|sent| !job.sum_times.is_in_flight(sent, now));
                if is_due && (is_asked || !is_queued) {
                    job.sum_up_again(&kept, &mut self.counters, egress);
                    job.ring.sent_again(header.fragment, now);
                }
            }
            _ => self.counters.drop(DropReason::Late),
        }
        egress.discard(buffer);
    }
}
