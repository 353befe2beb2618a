//! One shard of the aggregator pool: the data path's state machine.
//!
//! A frame comes in through [`Aggregator::handle`] as a parsed header and its buffer. It is checked
//! against the roster of its job ([`admit`](Aggregator::admit)), and then is a contribution, a result,
//! a PROBE, a REMIND or a NACK ([`handle_admitted`](Aggregator::handle_admitted)). Section 6 of PROTOCOL.md is the specification; the requirement's number
//! stands at the code that fulfils it.
//!
//! Budget for a contribution: one line of the job's ring, one line of the slot, the two payloads.

use crate::buffer::{Buffer, Egress, To};
use crate::counters::{Counters, DropReason};
use crate::native::elsewhere::Elsewhere;
use crate::native::held::{Arena, Owner};
use crate::native::policy::{Completion, Placement, Policy, Resend};
use crate::native::pool::{Limits, PoolConfig};
use crate::native::ring::{Ring, Standing};
use crate::native::slot::{Slot, SlotKey};
use crate::planted::{self, Bug};
use crate::roster::{Member, Roster};
use std::ops::Range;
use tally_kernels::Kernels;
use tally_wire::{AuthTag, Element, Flags, FragmentId, Header, JobId, Kind, Rank, Time};

mod group;
mod hand_over;
mod probe;
mod room;

/// Most jobs that run at a time.
pub const MAX_JOBS: usize = 255;

/// A frame's right to be handled: what [`Aggregator::admit`] says of it, and
/// [`Aggregator::still_admits`] of frames like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Place of its job.
    pub(crate) place: u8,
    /// The rosters that it was checked against.
    rosters: u64,
}

struct Job<B> {
    roster: Roster,
    all: u64,
    placement: Placement,
    ring: Ring<B>,
    elsewhere: Elsewhere,
    limits: Limits,
    /// Whose what it holds out of order is.
    owner: Owner,
    /// Slots that it holds.
    slots: u32,
    /// The newest fragment that DATA or a result of it was of, in this shard.
    newest: Option<FragmentId>,
    /// Contributions that came, whatever became of them.
    arrivals: u64,
}

impl<B> Job<B> {
    /// DATA or a result of this fragment is here.
    #[inline]
    fn has_reached(&mut self, fragment: FragmentId) {
        if self
            .newest
            .is_none_or(|newest| fragment.ahead_of(newest) > 0)
        {
            self.newest = Some(fragment);
        }
    }

    /// Whether the fragment has its result for certain, although this switch need not have seen it
    /// (S-5): who sends fragment f has all results up to f − window (W-2).
    fn is_past(&self, fragment: FragmentId, window: u16) -> bool {
        self.newest
            .is_some_and(|newest| newest.ahead_of(fragment) >= i32::from(window))
    }
}

/// One shard: slots, rings and rosters of all running jobs.
pub struct Aggregator<B> {
    config: PoolConfig,
    shift: u32,
    kernels: Kernels,
    policy: &'static dyn Policy,
    slots: Box<[Slot<B>]>,
    /// By slot, of the key that it had last: says where a look is worth it. A set's tags are side by side, so
    /// more ways cost no more lines of the cache.
    tags: Box<[u32]>,
    arena: Arena<B>,
    /// Place in `jobs` plus one, by job number; 0 for jobs that do not run.
    index: Box<[u8]>,
    jobs: Vec<Option<Job<B>>>,
    /// How often a roster has changed.
    rosters: u64,
    counters: Counters,
}

impl<B: Buffer> Aggregator<B> {
    /// An empty shard.
    ///
    /// # Panics
    /// If `slots` or `shards` is no power of two, `ways` is not 1, 2, 4 or 8 or above `slots`, `shard` is
    /// not below `shards`, `window` is 0, or the `limits` contradict each other, the pool or the policy.
    #[must_use]
    pub fn new(config: PoolConfig, kernels: Kernels) -> Self {
        config.check();
        Self {
            shift: config.shards.trailing_zeros(),
            kernels,
            policy: config.policy.policy(),
            slots: (0..config.slots).map(|_| Slot::free()).collect(),
            tags: vec![0; config.slots as usize].into_boxed_slice(),
            arena: Arena::with_minimums(config.held, config.limits.iter().map(|l| l.min_held)),
            index: vec![0; 1 << 16].into_boxed_slice(),
            jobs: Vec::new(),
            rosters: 0,
            counters: Counters::default(),
            config,
        }
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// For drops that the adapter decides on before the engine sees a frame.
    #[inline]
    pub fn count_drop(&mut self, reason: DropReason) {
        self.counters.drop(reason);
    }

    /// Slots taken at this moment. Walks the pool: for reports, not for the data path.
    #[must_use]
    pub fn slots_in_use(&self) -> usize {
        self.holders().count()
    }

    /// Whose the taken slots are, one by one. Walks the pool, for reports and tests.
    pub fn holders(&self) -> impl Iterator<Item = JobId> {
        self.slots.iter().filter_map(|s| Some(s.key?.job))
    }

    /// Slots that a job holds, as its limits are applied to it.
    #[must_use]
    pub fn slots_of(&self, id: JobId) -> u32 {
        let job = room::place(&self.index, id).and_then(|place| self.jobs[place].as_ref());
        job.map_or(0, |job| job.slots)
    }

    /// Contributions held out of order at this moment.
    #[must_use]
    pub fn held_in_use(&self) -> u32 {
        self.arena.in_use()
    }

    /// Starts an epoch of a job, the `index`-th in the configuration. What an earlier epoch held is
    /// given up; a roster of the same epoch and secret only replaces addresses (the PS came back).
    ///
    /// More than [`MAX_JOBS`] jobs at a time: the job is not started, and `false` comes back.
    pub fn bind(&mut self, roster: Roster, index: usize, egress: &mut impl Egress<B>) -> bool {
        let id = roster.job;
        self.rosters += 1;
        if let Some(job) = self.job_mut(id)
            && (job.roster.epoch, job.roster.secret) == (roster.epoch, roster.secret)
        {
            job.roster = roster;
            return true;
        }
        self.unbind(id, egress);
        let place = self
            .jobs
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.jobs.len());
        if place >= MAX_JOBS {
            return false;
        }
        let job = Job {
            all: roster.all(),
            placement: self.policy.placement(id, index, &self.config),
            ring: Ring::new(self.config.ring_fragments(), self.shift),
            elsewhere: Elsewhere::new(self.config.ring_fragments(), self.shift),
            limits: self.config.limits.get(index).copied().unwrap_or_default(),
            owner: self.arena.owner(index),
            slots: 0,
            newest: None,
            arrivals: 0,
            roster,
        };
        if place == self.jobs.len() {
            self.jobs.push(Some(job));
        } else {
            self.jobs[place] = Some(job);
        }
        self.index[usize::from(id.0)] = place as u8 + 1;
        true
    }

    /// Ends a job: every slot and every result that it held is given up.
    pub fn unbind(&mut self, id: JobId, egress: &mut impl Egress<B>) {
        self.rosters += 1;
        let place = usize::from(std::mem::take(&mut self.index[usize::from(id.0)]));
        let Some(mut job) = place.checked_sub(1).and_then(|p| self.jobs[p].take()) else {
            return;
        };
        job.ring.drain().for_each(|frame| egress.discard(frame));
        for slot in &mut self.slots {
            if slot.key.is_some_and(|k| k.job == id) && !planted::is(Bug::SlotLeak) {
                if planted::is(Bug::BufferLeak) {
                    slot.sum = None;
                }
                clear(slot, &mut self.arena, egress);
            }
        }
    }

    #[inline]
    fn job_mut(&mut self, id: JobId) -> Option<&mut Job<B>> {
        let place = usize::from(self.index[usize::from(id.0)]);
        self.jobs.get_mut(place.checked_sub(1)?)?.as_mut()
    }

    /// Takes one frame that is neither JOIN nor LEAVE: `header` parsed from it, `from` where it
    /// came from, `buffer` the frame itself.
    #[inline]
    pub fn handle(
        &mut self,
        now: Time,
        from: &Member,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) {
        match self.admit(from, header) {
            Ok(admission) => self.handle_admitted(now, admission, header, buffer, egress),
            Err(reason) => {
                self.counters.drop(reason);
                egress.discard(buffer);
            }
        }
    }

    /// As [`handle`](Self::handle), of a frame that has been admitted since rosters last changed.
    #[inline]
    pub fn handle_admitted(
        &mut self,
        now: Time,
        admission: Admission,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) {
        debug_assert_eq!(admission.rosters, self.rosters);
        let place = usize::from(admission.place);
        match header.kind {
            Kind::Data => self.contribution(now, place, header, buffer, egress),
            Kind::Result => self.result_of_member(header, buffer, egress),
            Kind::Probe => self.probe(header, buffer, egress),
            Kind::Remind => self.remind(header, buffer, egress),
            Kind::Nack => {
                self.counters.nacks += 1;
                self.forward(To::Worker(header.rank), header, buffer, egress);
            }
            // `admit` lets no other kind through.
            _ => egress.discard(buffer),
        }
    }

    /// Whether the sender may say this (A-1, A-8, H-2).
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn admit(&self, from: &Member, header: &Header) -> Result<Admission, DropReason> {
        let sender = match header.kind {
            Kind::Data | Kind::Probe => header.rank,
            Kind::Result if header.rank != Rank::SWITCH => header.rank,
            Kind::Remind | Kind::Nack => Rank::PS,
            _ => return Err(DropReason::NotForSwitch),
        };
        let place = usize::from(self.index[usize::from(header.job.0)]).wrapping_sub(1);
        let job = match self.jobs.get(place) {
            Some(Some(job)) => job,
            _ => return Err(DropReason::UnknownJob),
        };
        let member = job.roster.member(sender).ok_or(DropReason::RankOutOfJob)?;
        if member != from {
            return Err(DropReason::NotMember);
        }
        if header.epoch != job.roster.epoch {
            return Err(DropReason::Epoch);
        }
        if !self.is_of_this_shard(header.fragment) {
            return Err(DropReason::Shard);
        }
        if header.kind.has_elements() && header.units != job.roster.units {
            return Err(DropReason::Units);
        }
        match header.kind {
            Kind::Nack if job.all & header.rank.bit() == 0 => Err(DropReason::RankOutOfJob),
            _ if !job.roster.secret.verifies(header) && !planted::is(Bug::TagUnchecked) => {
                Err(DropReason::AuthTag)
            }
            _ => Ok(Admission {
                place: place as u8,
                rosters: self.rosters,
            }),
        }
    }

    /// Whether `admit` would say the same of another frame of DATA, from the same sender and with the same
    /// header but for this fragment and any priority. A tag is of one fragment: frames that have one are
    /// admitted one by one.
    #[inline]
    #[must_use]
    pub fn still_admits(&self, admission: Admission, fragment: FragmentId) -> bool {
        (admission.rosters == self.rosters || planted::is(Bug::StaleAdmission))
            && self.is_of_this_shard(fragment)
    }

    #[inline]
    fn is_of_this_shard(&self, fragment: FragmentId) -> bool {
        fragment.0 & (u32::from(self.config.shards) - 1) == u32::from(self.config.shard)
    }

    /// DATA: the table of section 6.
    #[inline]
    fn contribution(
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
        job.arrivals += 1;
        let resend = header.flags.has(Flags::RESEND);
        match job.ring.standing(header.fragment) {
            Standing::Open => {}
            Standing::Finished(frame) if resend => {
                self.counters.results_again += 1;
                egress.republish(&job.roster, header.rank, frame);
                egress.discard(buffer);
                return;
            }
            _ => {
                self.counters.drop(DropReason::Late);
                egress.discard(buffer);
                return;
            }
        }
        job.has_reached(header.fragment);
        let key = key_of(header);
        let set = job.placement.set(header.fragment.0 >> self.shift);
        let mut out = Out {
            roster: &job.roster,
            counters: &mut self.counters,
            egress,
        };
        let at = if let Some(at) = find(&self.slots, &self.tags, &set, key) {
            let slot = &mut self.slots[at];
            if resend && self.policy.resend() == Resend::Evict {
                // The arrival follows even when its contribution was just evicted: it asks the PS
                // for the result.
                job.elsewhere
                    .add(header.fragment, slot.bitmap | header.bitmap);
                out.evict(slot, &mut self.arena, Flags::RESEND);
                out.counters.resends_to_ps += 1;
                out.send_to_ps(header, Flags::NONE, buffer);
                job.slots -= 1;
                return;
            }
            if slot.bitmap & header.bitmap != 0 && !planted::is(Bug::DoubleCount) {
                out.drop(DropReason::Duplicate, buffer);
                return;
            }
            if slot.is_split && job.elsewhere.ranks(header.fragment) & header.bitmap != 0 {
                if resend {
                    // It may have been lost on the way to the PS.
                    out.counters.resends_to_ps += 1;
                    out.send_to_ps(header, Flags::NONE, buffer);
                } else {
                    out.drop(DropReason::Duplicate, buffer);
                }
                return;
            }
            if slot.element != header.element {
                out.drop(DropReason::ElementMismatch, buffer);
                return;
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
            at
        } else {
            let noted = job.elsewhere.ranks(header.fragment);
            if resend && (noted != 0 || self.policy.resend() == Resend::Evict) {
                out.counters.resends_to_ps += 1;
                out.send_to_ps(header, Flags::NONE, buffer);
                job.elsewhere.add(header.fragment, header.bitmap);
                return;
            }
            if self.policy.follows_to_ps() && noted & header.bitmap != 0 {
                out.drop(DropReason::Duplicate, buffer);
                return;
            }
            // A policy that keeps nothing has no set to be full.
            let full = Flags::COLLISION.when(!set.is_empty());
            let room = self.room(place, set, header.priority, egress);
            let Some(job) = self.jobs[place].as_mut() else {
                return;
            };
            let mut out = Out {
                roster: &job.roster,
                counters: &mut self.counters,
                egress,
            };
            let Some(at) = room else {
                out.counters.collisions += u64::from(full == Flags::COLLISION);
                out.counters.resends_to_ps += u64::from(resend);
                out.send_to_ps(header, full, buffer);
                job.elsewhere.add(header.fragment, header.bitmap);
                return;
            };
            let elsewhere = job.elsewhere.ranks(header.fragment);
            let slot = &mut self.slots[at];
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
            at
        };
        let Some(job) = self.jobs[place].as_mut() else {
            return;
        };
        let slot = &mut self.slots[at];
        if slot.bitmap & header.bitmap == 0 {
            // There was no room to hold it out of its turn.
            job.elsewhere.add(header.fragment, header.bitmap);
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
        } else if slot.bitmap == job.all
            || planted::is(Bug::EarlyResult)
                && (job.all & !slot.bitmap).count_ones() == 1
                && slot.held.is_empty()
                && slot.sum.is_some()
        {
            if slot.element.is_narrow()
                && let Some(sum) = &mut slot.sum
            {
                let (held, kernels) = (&mut slot.held, &self.kernels);
                let saturated = self
                    .arena
                    .fold_narrow(held, slot.element, sum, kernels, egress);
                slot.flags = slot.flags.with(Flags::OVERFLOW.when(saturated));
            }
            debug_assert!(slot.held.is_empty() && slot.sum.is_some());
            complete(
                slot,
                job,
                self.policy.completion(),
                &mut self.counters,
                egress,
            );
        }
    }

    /// S-2, S-4: the PS or a worker has the result.
    fn result_of_member(&mut self, header: &Header, buffer: B, egress: &mut impl Egress<B>) {
        let place = usize::from(self.index[usize::from(header.job.0)]) - 1;
        let Some(job) = self.jobs[place].as_mut() else {
            return;
        };
        if !matches!(job.ring.standing(header.fragment), Standing::Open) {
            self.counters.drop(DropReason::Late);
            egress.discard(buffer);
            return;
        }
        job.has_reached(header.fragment);
        let set = job.placement.set(header.fragment.0 >> self.shift);
        let anyone = Some(set.start).filter(|_| planted::is(Bug::WrongDeallocation));
        if let Some(at) = find(&self.slots, &self.tags, &set, key_of(header)).or(anyone) {
            clear(&mut self.slots[at], &mut self.arena, egress);
            job.slots -= 1;
        }
        let is_from_ps = header.rank == Rank::PS;
        if is_from_ps {
            self.counters.results_from_ps += 1;
        } else {
            self.counters.results_from_workers += 1;
        }
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
    fn remind(&mut self, header: &Header, buffer: B, egress: &mut impl Egress<B>) {
        self.counters.reminds += 1;
        let place = usize::from(self.index[usize::from(header.job.0)]) - 1;
        let Some(job) = self.jobs[place].as_mut() else {
            return;
        };
        let finished = !matches!(job.ring.standing(header.fragment), Standing::Open);
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
            job.elsewhere.add(header.fragment, self.slots[at].bitmap);
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

    /// S-4: as it is, to somebody else.
    fn forward(&mut self, to: To, header: &Header, buffer: B, egress: &mut impl Egress<B>) {
        let place = usize::from(self.index[usize::from(header.job.0)]) - 1;
        if let Some(job) = self.jobs[place].as_ref() {
            egress.send(&job.roster, to, header, buffer);
        }
    }
}

/// The way out for frames of one job.
struct Out<'a, E> {
    roster: &'a Roster,
    counters: &'a mut Counters,
    egress: &'a mut E,
}

impl<E> Out<'_, E> {
    fn drop<B: Buffer>(&mut self, reason: DropReason, buffer: B)
    where
        E: Egress<B>,
    {
        self.counters.drop(reason);
        self.egress.discard(buffer);
    }

    /// A contribution that cannot be summed here becomes a PARTIAL of one.
    fn send_to_ps<B: Buffer>(&mut self, header: &Header, why: Flags, buffer: B)
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

    /// Adds a contribution of a rank that is not in the slot (S-1).
    #[inline]
    fn add<B: Buffer>(
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
            if header.rank.0 != turn && (is_narrow || !planted::is(Bug::ArrivalOrder)) {
                match arena.insert(&mut slot.held, owner, header.rank, buffer) {
                    Ok(()) => {
                        slot.bitmap |= header.bitmap;
                        slot.flags = slot.flags.with(marked(header));
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
        slot.flags = slot.flags.with(marked(header));
        self.counters.contributions += 1;
    }

    /// The next rank in order.
    #[inline]
    fn fold<B: Buffer>(&mut self, slot: &mut Slot<B>, kernels: &Kernels, buffer: B)
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

    /// The slot's partial leaves to the PS, in as many frames as it takes, and the slot is free. Each
    /// says `why`, and that it is MARKED if any part of the slot was.
    fn evict<B: Buffer>(&mut self, slot: &mut Slot<B>, arena: &mut Arena<B>, why: Flags)
    where
        E: Egress<B>,
    {
        let Some(key) = slot.key else { return };
        let header = Header {
            kind: Kind::Partial,
            flags: why.with(Flags::MARKED.when(slot.flags.has(Flags::MARKED))),
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
            let flags = why.with(slot.flags);
            let header = self.roster.secret.seal(Header {
                bitmap,
                flags,
                ..header
            });
            self.egress.send(self.roster, To::Ps, &header, sum);
        }
        while let Some((rank, held)) = arena.take_first_if(&mut slot.held, |_| true) {
            debug_assert_eq!(sent & rank.bit(), 0);
            sent |= rank.bit();
            self.counters.partials += 1;
            let header = self.roster.secret.seal(Header {
                bitmap: rank.bit(),
                ..header
            });
            self.egress.send(self.roster, To::Ps, &header, held);
        }
        // A slot that waits for the PS (`fcfs`) has sent its sum before.
        debug_assert!(sent == slot.bitmap || sent == 0);
        *slot = Slot::free();
    }
}

#[inline]
fn key_of(header: &Header) -> SlotKey {
    SlotKey {
        job: header.job,
        epoch: header.epoch,
        fragment: header.fragment,
    }
}

/// What tells most keys of a set apart.
#[inline]
fn tag_of(key: SlotKey) -> u32 {
    key.fragment.0 ^ u32::from(key.job.0) << 16
}

/// The slot of the set that has this key.
#[inline]
fn find<B>(slots: &[Slot<B>], tags: &[u32], set: &Range<usize>, key: SlotKey) -> Option<usize> {
    let tag = tag_of(key);
    let likely = set.clone().zip(&tags[set.clone()]);
    likely
        .filter(|&(_, &other)| other == tag)
        .map(|(at, _)| at)
        .find(|&at| slots[at].key == Some(key))
}

/// MARKED if the frame is (C-1).
#[inline]
fn marked(header: &Header) -> Flags {
    Flags::MARKED.when(header.flags.has(Flags::MARKED))
}

/// What the slot has goes to the PS once it is all that is missing there (S-8).
#[cold]
fn follow<B: Buffer>(
    slot: &mut Slot<B>,
    job: &mut Job<B>,
    arena: &mut Arena<B>,
    fragment: FragmentId,
    counters: &mut Counters,
    egress: &mut impl Egress<B>,
) {
    if slot.bitmap | job.elsewhere.ranks(fragment) != job.all {
        return;
    }
    counters.followed += 1;
    job.elsewhere.add(fragment, slot.bitmap);
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
fn complete<B: Buffer>(
    slot: &mut Slot<B>,
    job: &mut Job<B>,
    completion: Completion,
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
    match completion {
        Completion::Result => {
            counters.results += 1;
            counters.overflows += u64::from(slot.flags.has(Flags::OVERFLOW));
            let header = job.roster.secret.seal(header);
            let frame = egress.publish(&job.roster, &header, sum, Some(slot.born));
            if let Some(displaced) = job.ring.keep(key.fragment, frame) {
                egress.discard(displaced);
            }
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
            job.elsewhere.add(key.fragment, job.all);
            egress.send(&job.roster, To::Ps, &header, sum);
        }
    }
}

/// Gives up what a slot holds.
fn clear<B: Buffer>(slot: &mut Slot<B>, arena: &mut Arena<B>, egress: &mut impl Egress<B>) {
    if let Some(sum) = slot.sum.take() {
        egress.discard(sum);
    }
    while let Some((_, held)) = arena.take_first_if(&mut slot.held, |_| true) {
        egress.discard(held);
    }
    *slot = Slot::free();
}

#[cfg(test)]
mod tests;
