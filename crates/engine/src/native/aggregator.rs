//! One shard of the aggregator pool: the data path's state machine.
//!
//! A frame comes in through [`Aggregator::handle`] as a parsed header and its buffer. It is checked
//! against the roster of its job ([`admit`](Aggregator::admit)), and then is a contribution, a
//! result, a PROBE, a REMIND or a NACK ([`handle_admitted`](Aggregator::handle_admitted)). Section
//! 6 of PROTOCOL.md is the specification; the requirement's number stands at the code that fulfils
//! it.
//!
//! Budget for a contribution: one line of the job's ring, one line of the slot, the two payloads.

use crate::buffer::{Buffer, Egress, To};
use crate::counters::{Counters, DropReason, JobCounters};
use crate::metrics::MetricSet as _;
use crate::native::admission::{Admission, MAX_JOBS};
use crate::native::held::{Arena, Owner};
use crate::native::policy::{Completion, Placement, Policy};
use crate::native::pool::{Limits, PoolConfig, PoolJob};
use crate::native::ring::Ring;
use crate::native::sent_to_ps::SentToPs;
use crate::native::slot::{Slot, SlotKey};
use crate::native::sum_times::SumTimes;
use crate::roster::{Member, Roster};
use out::clear;
use std::ops::Range;
use tally_kernels::Kernels;
use tally_wire::{FragmentId, HEADERS_BYTES, Header, JobId, Kind, Rank, Time, UNIT_BYTES};

mod allocate;
mod configure;
mod contribution;
mod group;
mod hand_over;
mod out;
mod probe;
mod ps;
mod uplink;

/// What a job did in an epoch.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Contributions that came: summed, forwarded or dropped.
    arrivals: u64,
    /// Results that left for the members.
    results: u64,
    /// Sums that left for the parent.
    sums_up: u64,
    /// Copies of them, and results that left for the parent.
    again_up: u64,
    /// Results that came from the parent.
    results_down: u64,
}

struct Job<B> {
    roster: Roster,
    all: u64,
    /// What happens with a complete sum.
    completion: Completion,
    placement: Placement,
    ring: Ring<B>,
    /// From this node's sums to their results, where it has a parent.
    sum_times: SumTimes,
    sent_to_ps: SentToPs,
    limits: Limits,
    /// Whose what it holds out of order is.
    owner: Owner,
    /// Slots that it holds.
    slots: u32,
    /// The newest fragment that DATA or a result of it was of, in this shard.
    newest: Option<FragmentId>,
    /// Its configured place.
    index: usize,
    /// What it did in this epoch.
    counts: Counts,
    /// The rank that is asked next when the parent asks and nothing says which rank is missing
    /// (TR-5).
    next_asked: Rank,
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

    /// What it did in this epoch, in the terms of reports.
    fn counted(&self) -> JobCounters {
        let payload = u64::from(self.roster.units) * UNIT_BYTES as u64;
        JobCounters {
            contributions: self.counts.arrivals,
            results: self.counts.results,
            payload_bytes: self.counts.results * payload,
            sums_up: self.counts.sums_up,
            uplink_bytes: (self.counts.sums_up + self.counts.again_up)
                * (HEADERS_BYTES as u64 + payload),
            results_down: self.counts.results_down,
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
    /// As it was at first: `places` has the jobs as they are.
    config: PoolConfig,
    /// Configured jobs. A job keeps its place as long as it is configured.
    places: Box<[Option<PoolJob>]>,
    shift: u32,
    kernels: Kernels,
    policy: &'static dyn Policy,
    slots: Box<[Slot<B>]>,
    /// By slot, of the key that it had last: says where a look is worth it. A set's tags are side
    /// by side, so more ways cost no more lines of the cache.
    tags: Box<[u32]>,
    arena: Arena<B>,
    /// Place in `jobs` plus one, by job number; 0 for jobs that do not run.
    index: Box<[u8]>,
    jobs: Vec<Option<Job<B>>>,
    /// How often a roster has changed.
    rosters: u64,
    counters: Counters,
    /// What jobs did in epochs that have ended, by place.
    ended: Box<[JobCounters]>,
}

impl<B: Buffer> Aggregator<B> {
    /// An empty shard.
    ///
    /// # Panics
    /// If `slots` or `shards` is no power of two, `ways` is not 1, 2, 4 or 8 or above `slots`,
    /// `shard` is not below `shards`, `window` is 0, `jobs` has an id twice, or the jobs' limits
    /// contradict each other, the pool or the policy.
    #[must_use]
    pub fn new(config: PoolConfig, kernels: Kernels) -> Self {
        config.check();
        let policy = config.policy.policy();
        let mut places: Box<[_]> = vec![None; config.places()].into_boxed_slice();
        for (place, job) in places.iter_mut().zip(&config.jobs) {
            *place = Some(*job);
        }
        Self {
            shift: config.shards.trailing_zeros(),
            kernels,
            policy,
            slots: (0..config.slots).map(|_| Slot::free()).collect(),
            tags: vec![0; config.slots as usize].into_boxed_slice(),
            arena: Arena::with_minimums(config.held, configure::minimums(&places)),
            ended: vec![JobCounters::default(); places.len()].into_boxed_slice(),
            places,
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

    /// What it did for each configured job so far.
    pub fn job_counters(&self) -> impl Iterator<Item = (JobId, JobCounters)> {
        let configured = self.places.iter().zip(&self.ended);
        configured.filter_map(|(place, ended)| {
            let (id, mut all) = ((*place)?.id, *ended);
            let running = allocate::place(&self.index, id);
            if let Some(job) = running.and_then(|at| self.jobs[at].as_ref()) {
                all.add(&job.counted());
            }
            Some((id, all))
        })
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
        let job = allocate::place(&self.index, id).and_then(|place| self.jobs[place].as_ref());
        job.map_or(0, |job| job.slots)
    }

    /// Contributions held out of order at this moment.
    #[must_use]
    pub fn held_in_use(&self) -> u32 {
        self.arena.in_use()
    }

    /// Starts an epoch of a job. What an earlier epoch held is given up; a roster of the same epoch
    /// and secret only replaces addresses (the PS came back).
    ///
    /// More than [`MAX_JOBS`] jobs at a time: the job is not started, and `false` comes back.
    ///
    /// # Panics
    /// If the job is not configured. Control configures a job in all pools before the registry
    /// binds it. Serving it without its limits would break those of others; dropping its frames
    /// would let its workers time out without a reason.
    pub fn bind(&mut self, roster: Roster, egress: &mut impl Egress<B>) -> bool {
        let id = roster.job;
        self.rosters += 1;
        if let Some(job) = self.job_mut(id)
            && (job.roster.epoch, job.roster.secret) == (roster.epoch, roster.secret)
            && job.roster.uplink.is_some() == roster.uplink.is_some()
        {
            job.roster = roster;
            return true;
        }
        let configured = self.configured(id);
        let (index, limits) =
            configured.unwrap_or_else(|| panic!("job {}: bound but not configured", id.0));
        self.unbind(id, egress);
        let place = self
            .jobs
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.jobs.len());
        if place >= MAX_JOBS {
            return false;
        }
        let ring = Ring::new(self.config.ring_fragments(), self.shift);
        let has_uplink = roster.uplink.is_some();
        let job = Job {
            all: roster.all(),
            completion: match self.policy.completion() {
                Completion::Result if has_uplink => Completion::Up,
                completion => completion,
            },
            placement: self.policy.placement(id, index, &self.config),
            ring: if has_uplink { ring.with_notes() } else { ring },
            sum_times: SumTimes::new(),
            sent_to_ps: SentToPs::new(self.config.ring_fragments(), self.shift),
            limits,
            owner: self.arena.owner(index),
            slots: 0,
            newest: None,
            index,
            counts: Counts::default(),
            next_asked: Rank(0),
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
        self.ended[job.index].add(&job.counted());
        job.ring.drain().for_each(|frame| egress.discard(frame));
        for slot in &mut self.slots {
            if slot.key.is_some_and(|k| k.job == id) {
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
            Kind::Result if header.rank == Rank::SWITCH => {
                self.result_of_parent(now, place, header, buffer, egress);
            }
            Kind::Nack if admission.is_parents => {
                self.nack_of_parent(now, place, header, buffer, egress);
            }
            Kind::Result => self.result_of_member(header, buffer, egress),
            Kind::Probe => self.probe(now, header, buffer, egress),
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
        match header.kind {
            Kind::Data | Kind::Result | Kind::Probe | Kind::Remind | Kind::Nack => {}
            _ => return Err(DropReason::NotForSwitch),
        }
        let place = usize::from(self.index[usize::from(header.job.0)]).wrapping_sub(1);
        let job = match self.jobs.get(place) {
            Some(Some(job)) => job,
            _ => return Err(DropReason::UnknownJob),
        };
        let is_parents = job.is_of_parent(from, header);
        let sender = match header.kind {
            Kind::Nack if is_parents => None,
            Kind::Remind | Kind::Nack => Some(Rank::PS),
            Kind::Result if header.rank == Rank::SWITCH => None,
            _ => Some(header.rank),
        };
        if let Some(sender) = sender {
            let member = job.roster.sender(sender, header.fragment);
            let member = member.ok_or(DropReason::RankOutOfJob)?;
            if member != from {
                return Err(DropReason::NotMember);
            }
        } else if !is_parents {
            let is_root = job.roster.uplink.is_none();
            return Err(if is_root {
                DropReason::NotForSwitch
            } else {
                DropReason::NotMember
            });
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
            Kind::Data if !job.allows_flags(header) => Err(DropReason::Reserved),
            Kind::Nack if !job.has_rank(is_parents, header.rank) => Err(DropReason::RankOutOfJob),
            _ if !job.roster.secret.verifies(header) => Err(DropReason::AuthTag),
            _ => Ok(Admission {
                place: place as u8,
                is_parents,
                rosters: self.rosters,
            }),
        }
    }

    /// Whether `admit` would say the same of another frame of DATA, from the same sender and with
    /// the same header but for this fragment and any priority. A tag is of one fragment: frames
    /// that have one are admitted one by one.
    #[inline]
    #[must_use]
    pub fn still_admits(&self, admission: Admission, fragment: FragmentId) -> bool {
        admission.rosters == self.rosters && self.is_of_this_shard(fragment)
    }

    /// The shard for a RESULT or NACK of the parent, which may come at the UDP port of any (TR-8).
    ///
    /// # Errors
    /// If it is of no job's parent.
    pub fn shard_of_parents(&self, from: &Member, header: &Header) -> Result<usize, DropReason> {
        let place = usize::from(self.index[usize::from(header.job.0)]).wrapping_sub(1);
        match self.jobs.get(place) {
            Some(Some(job)) if job.is_of_parent(from, header) => {
                Ok((header.fragment.0 & (u32::from(self.config.shards) - 1)) as usize)
            }
            Some(Some(_)) => Err(DropReason::NotMember),
            _ => Err(DropReason::UnknownJob),
        }
    }

    #[inline]
    fn is_of_this_shard(&self, fragment: FragmentId) -> bool {
        fragment.0 & (u32::from(self.config.shards) - 1) == u32::from(self.config.shard)
    }

    /// S-4: unchanged, to another member.
    fn forward(&mut self, to: To, header: &Header, buffer: B, egress: &mut impl Egress<B>) {
        let place = usize::from(self.index[usize::from(header.job.0)]) - 1;
        if let Some(job) = self.jobs[place].as_ref() {
            egress.send(&job.roster, to, header, buffer);
        }
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

#[cfg(test)]
mod tests;
