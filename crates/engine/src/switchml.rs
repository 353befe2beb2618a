//! One shard of SwitchML's UDP dialect: sums in slots that the workers name, in two sets each.
//!
//! The idea (NSDI'21, section 3; p4lang/p4app-switchML): a worker sends to slots of its own choice,
//! and uses the two sets of a slot in turn. Who sends in one set has the result of the other, so a
//! set's sum can be asked for again until all have moved on, and no state is needed besides. The
//! switch believes its workers in this; what it can tell to be wrong it drops.
//!
//! How it works: frames come as a parsed [`Header`] and a [`Buffer`] with nothing but the elements.
//! The sender's addresses say its session and rank ([`Switchml::admit`]); [`Switchml::handle`] is
//! the table:
//!
//! | the rank's bit in this set | the set | |
//! |---|---|---|
//! | 0 | empty | the buffer becomes the sum: the count starts anew |
//! | 0 | lacks this rank | added; exponents by maximum |
//! | 0 | has this rank, which was in the other set since | dropped, `switchml-set` |
//! | 1 | complete | a duplicate: the result again, to this rank alone |
//! | 1 | lacks others | a duplicate: dropped |
//!
//! Any other contribution sets the rank's bit here and clears it in the other set, which is empty
//! when it has no bits left: its buffer goes back at once. The n-th contribution sends the result
//! to all, with its own job and packet number, to the address and the way from which each rank last
//! sent for this slot: behind other switches, it has several.
//!
//! Each worker is told a MAC address of the switch that no other knows ([`Session::switch_macs`]).
//! A frame counts as the worker's only if it is sent there: any host can forge addresses of other
//! hosts, but cannot guess this one. The first such frame says behind which port the worker is. The
//! same secret from a port by which no frame of that host comes ends the session
//! ([`Switchml::note_conflict`]): it was copied, and nothing tells which of the two is the worker.
//!
//! The accumulator is the buffer of the first contribution. A complete sum is never written again:
//! it may be on its way out for as long as it is here.
//!
//! Contributions wait for the end of the poll iteration ([`Switchml::collect`],
//! [`Switchml::aggregate`]). Those of a set are then added in one pass. The result is what one
//! after another would give.
//!
//! Budget for a set's contributions in an iteration: one line each of the table of hosts, the
//! session, the rank, the slot (both sets) and the ranks' ports for it; the two payloads, one
//! of which was just received. No copy but the sum's own reading and writing, and for a first
//! contribution not that.
//!
//! Catches:
//!
//! * A copy of a frame that the network delays until all workers are a set further cannot be told
//!   from a new contribution, here as in the original. Paths that keep the order of a worker's
//!   frames, and clients that wait longer than their network delays, do not make such copies.
//! * A result stays in its buffer until its workers use the other set, so idle sessions hold a
//!   buffer for each slot that they used. [`SwitchmlConfig::held`] bounds all of them; `room` says
//!   who may still keep one.
//! * Slots are a session's own, and allocated when it is bound, 64 bytes each and 6 for each of its
//!   workers: the one thing that this module allocates after its start.

use crate::buffer::Buffer;
use crate::counters::DropReason;
use crate::roster::PortId;
use std::sync::Arc;
use std::time::Duration;
use tally_kernels::Kernels;
use tally_wire::switchml::{Header, MAX_SLOTS};
use tally_wire::{MAX_WORKERS, Time};

mod batch;
mod bound;
pub mod controller;
mod dialect;
mod hosts;
mod members;
mod room;
mod session;
mod slot;
mod status;

use batch::{Batch, Contribution, Key};
use bound::{Bound, Shard, Worker};
pub use dialect::{COPY_BYTES_MAX, Command, Elements, Metrics, STOCK_FRAMES, SwitchmlDialect};
use hosts::Hosts;
pub use members::{Members, Whereabouts};
use room::Room;
pub use session::{
    Arrival, Destination, HostAddress, Replies, Route, Session, SessionId, SwitchmlConfig,
};
use slot::{NO_ROW, Sender, Slot};
pub use status::{
    Conflict, RankCounters, RankStatus, SessionCounters, SessionStatus, SwitchmlCounters,
    SwitchmlUse,
};

/// A worker's right to be summed, and its place in a shard: what [`Switchml::admit`] says of its
/// frame. Good until a session is bound or unbound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    changes: u32,
    place: u16,
    rank: u8,
}

impl Admission {
    /// The worker's rank in its session.
    #[inline]
    #[must_use]
    pub const fn rank(self) -> u8 {
        self.rank
    }
}

/// Whose a port's contributions are, and how they arrive: what does not vary among them.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    admission: Admission,
    /// A contribution, of which the header is to be replaced.
    first: Contribution,
}

impl Origin {
    /// Of frames that are admitted and arrive like this one.
    #[inline]
    #[must_use]
    pub const fn new(admission: Admission, arrival: &Arrival) -> Self {
        Self {
            admission,
            first: Contribution::new(admission.rank, arrival),
        }
    }

    /// Whose they are.
    #[inline]
    #[must_use]
    pub const fn admission(&self) -> Admission {
        self.admission
    }
}

/// One shard: the slots of all bound sessions.
pub struct Switchml<B> {
    config: SwitchmlConfig,
    shift: u32,
    kernels: Kernels,
    /// Times that a session was bound or unbound.
    changes: u32,
    hosts: Hosts,
    sessions: Vec<Option<Bound<B>>>,
    room: Room,
    /// Contributions of this poll iteration; empty between iterations.
    batch: Batch<B>,
    counters: SwitchmlCounters,
}

impl<B: Buffer> Switchml<B> {
    /// A shard without sessions.
    ///
    /// # Panics
    /// If `sessions` is 0 or above 65,535, `slots` is 0 or above [`MAX_SLOTS`], `shards` is no
    /// power of two or `shard` not below it.
    #[must_use]
    pub fn new(config: SwitchmlConfig, kernels: Kernels) -> Self {
        assert!(
            (1..=usize::from(u16::MAX)).contains(&config.sessions),
            "{config:?}"
        );
        assert!((1..=MAX_SLOTS).contains(&config.slots), "{config:?}");
        assert!(config.shards.is_power_of_two(), "{config:?}");
        assert!(config.shard < config.shards, "{config:?}");
        Self {
            shift: config.shards.trailing_zeros(),
            kernels,
            changes: 0,
            hosts: Hosts::new(config.sessions * MAX_WORKERS),
            sessions: (0..config.sessions).map(|_| None).collect(),
            room: Room::new(config.held, config.sessions),
            batch: Batch::new(),
            counters: SwitchmlCounters::default(),
            config,
        }
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> &SwitchmlCounters {
        &self.counters
    }

    /// For drops that the adapter decides on.
    #[inline]
    pub fn count_drop(&mut self, reason: DropReason) {
        self.counters.drop(reason);
    }

    /// Buffers kept at this moment.
    #[must_use]
    pub fn held_in_use(&self) -> u32 {
        self.room.kept()
    }

    /// Starts a session; one of the same number ends before. Its stations are in no older session
    /// any more.
    ///
    /// As many sessions as configured, a number of workers that is 0 or above 64, or another number
    /// of secrets: it is not started, and `false` comes back.
    pub fn bind(&mut self, session: Arc<Session>, out: &mut impl Replies<B>) -> bool {
        if !(1..=MAX_WORKERS).contains(&session.workers.len())
            || session.switch_macs.len() != session.workers.len()
        {
            return false;
        }
        assert!(self.batch.is_empty(), "bound within a poll iteration");
        self.unbind(session.id, out);
        let Some(place) = self.sessions.iter().position(Option::is_none) else {
            return false;
        };
        self.changes = self.changes.wrapping_add(1);
        let slots = usize::from(self.config.slots).div_ceil(usize::from(self.config.shards));
        let workers = session.workers.iter().zip(&session.switch_macs);
        let workers = workers.map(|(&station, &own_mac)| Worker::new(station, own_mac));
        self.sessions[place] = Some(Bound {
            since: self.changes,
            all: session.all(),
            payload_bytes: session.size.payload_bytes(),
            kept: 0,
            used: 0,
            workers: workers.collect(),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            senders: vec![Sender::default(); slots * session.workers.len()].into_boxed_slice(),
            conflict: None,
            contributions: 0,
            results: 0,
            answered: 0,
            duplicates: 0,
            session,
        });
        self.enter_hosts();
        true
    }

    /// Ends a session: every buffer that it kept is given up.
    pub fn unbind(&mut self, id: SessionId, out: &mut impl Replies<B>) {
        assert!(self.batch.is_empty(), "unbound within a poll iteration");
        let is_it = |s: &Option<Bound<B>>| s.as_ref().is_some_and(|s| s.session.id == id);
        let place = self.sessions.iter().position(is_it);
        let Some(mut bound) = place.and_then(|place| self.sessions[place].take()) else {
            return;
        };
        self.changes = self.changes.wrapping_add(1);
        for sum in bound.slots.iter_mut().flat_map(Slot::drain) {
            self.room.free(&mut bound.kept);
            out.discard(sum);
        }
        assert_eq!(bound.kept, 0);
        self.enter_hosts();
    }

    /// Who is where, newer sessions above older ones.
    fn enter_hosts(&mut self) {
        self.hosts.clear();
        let mut places: Vec<_> = (0..self.sessions.len()).collect();
        let age = |place: usize| {
            let bound = self.sessions[place].as_ref();
            bound.map_or(0, |bound| self.changes.wrapping_sub(bound.since))
        };
        places.sort_by_key(|&place| std::cmp::Reverse(age(place)));
        for place in places {
            let bound = self.sessions[place].iter();
            let workers = bound.flat_map(|bound| bound.workers.iter().enumerate());
            for (rank, worker) in workers {
                self.hosts.enter(worker.station(), place as u16, rank as u8);
            }
        }
    }

    /// To which shard a frame belongs.
    #[inline]
    #[must_use]
    pub fn shard_of(&self, header: &Header) -> usize {
        usize::from(header.slot & (u16::from(self.config.shards) - 1))
    }

    /// Whether the sender may say this, and who it is.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn admit(&self, route: &Route, header: &Header) -> Result<Admission, DropReason> {
        let Some((place, rank)) = self.hosts.find(route.from) else {
            return Err(DropReason::SwitchmlStation);
        };
        let Some(Some(bound)) = self.sessions.get(usize::from(place)) else {
            return Err(DropReason::SwitchmlStation);
        };
        let worker = bound.workers.get(usize::from(rank));
        if worker.is_none_or(|worker| worker.to.own_mac != route.to) {
            return Err(DropReason::SwitchmlForged);
        }
        if header.size != bound.session.size {
            return Err(DropReason::SwitchmlSize);
        }
        if header.slot >= self.config.slots {
            return Err(DropReason::SwitchmlSlot);
        }
        if self.shard_of(header) != usize::from(self.config.shard) {
            return Err(DropReason::Shard);
        }
        Ok(Admission {
            changes: self.changes,
            place,
            rank,
        })
    }

    /// The session of the worker that was admitted.
    #[must_use]
    pub fn session_of(&self, admission: Admission) -> Option<SessionId> {
        let bound = self.sessions.get(usize::from(admission.place))?.as_ref()?;
        Some(bound.session.id)
    }

    /// The worker that was admitted spoke first behind the first of these ports, and this frame
    /// came in on the second, which does not lead to hosts behind the first: the session sums
    /// nothing any more.
    #[cold]
    pub fn note_conflict(&mut self, admission: Admission, ports: [PortId; 2]) {
        if let Some(Some(bound)) = self.sessions.get_mut(usize::from(admission.place)) {
            let rank = admission.rank;
            bound.conflict.get_or_insert(Conflict { rank, ports });
        }
    }

    /// Notes a frame that was refused as [`DropReason::SwitchmlForged`], for the operator. It
    /// changes nothing else.
    #[cold]
    pub fn note_forged(&mut self, from: HostAddress, port: PortId) {
        let place = self.hosts.find(from);
        if let Some((place, rank)) = place
            && let Some(Some(bound)) = self.sessions.get_mut(usize::from(place))
            && let Some(worker) = bound.workers.get_mut(usize::from(rank))
        {
            worker.forged += 1;
            worker.forged_from = Some(port);
        }
    }

    /// Whether the worker would still be admitted.
    #[inline]
    #[must_use]
    pub fn still_admits(&self, admission: Admission) -> bool {
        admission.changes == self.changes
    }

    /// Whether a contribution of this slot to this shard would be admitted, given that its sender
    /// was.
    #[inline]
    #[must_use]
    pub fn has_slot(&self, header: &Header) -> bool {
        header.slot < self.config.slots && self.shard_of(header) == usize::from(self.config.shard)
    }

    /// Takes one contribution and settles: [`collect`](Self::collect), for callers without batches.
    #[inline]
    pub fn handle(
        &mut self,
        now: Time,
        admission: Admission,
        arrival: &Arrival,
        header: &Header,
        buffer: B,
        out: &mut impl Replies<B>,
    ) {
        self.collect(now, &Origin::new(admission, arrival), header, buffer, out);
        self.aggregate(now, out);
    }

    /// Takes one contribution. Its admission was given for a frame with this `header` but for its
    /// job, packet number, set, exponents and [slot](Self::has_slot). `buffer` has the number of
    /// elements that the header says. The contribution waits for [`aggregate`](Self::aggregate).
    #[inline(always)]
    pub fn collect(
        &mut self,
        now: Time,
        origin: &Origin,
        header: &Header,
        buffer: B,
        out: &mut impl Replies<B>,
    ) {
        if self.batch.is_full() {
            self.aggregate(now, out);
        }
        if let Err((reason, buffer)) = self.join(origin, header, buffer) {
            self.counters.drop(reason);
            out.discard(buffer);
        }
    }

    /// Lets a contribution join the row of its set, or begin one; the batch is not full.
    #[inline(always)]
    fn join(
        &mut self,
        &Origin { admission, first }: &Origin,
        header: &Header,
        buffer: B,
    ) -> Result<(), (DropReason, B)> {
        let bound = match self.sessions.get_mut(usize::from(admission.place)) {
            Some(Some(bound)) if admission.changes == self.changes => bound,
            _ => return Err((DropReason::SwitchmlStation, buffer)),
        };
        // A sum of elements that are not as many would not be one.
        if buffer.payload().len() != bound.payload_bytes {
            return Err((DropReason::Length, buffer));
        }
        let at = header.slot >> self.shift;
        let Some(slot) = bound.slots.get_mut(usize::from(at)) else {
            return Err((DropReason::SwitchmlSlot, buffer));
        };
        let contribution = first.with(header);
        let (set, other) = slot.sets_mut(header.set);
        if let Err(buffer) = self.batch.push(set.row, contribution, buffer) {
            // What comes for the other set from now on is handled after this.
            other.row = NO_ROW;
            let key = Key {
                place: admission.place,
                at,
                set: header.set,
            };
            set.row = self.batch.begin(key, contribution, buffer);
        }
        Ok(())
    }

    /// Ends the poll iteration: sums what has come in.
    #[inline]
    pub fn aggregate(&mut self, now: Time, out: &mut impl Replies<B>) {
        let mut shard = Shard {
            now,
            shift: self.shift,
            number: self.config.shard,
            kernels: &self.kernels,
            room: &mut self.room,
            counters: &mut self.counters,
        };
        for row in self.batch.rows_mut() {
            // It was there when the row began, and sessions end only between poll iterations.
            if let Some(Some(bound)) = self.sessions.get_mut(usize::from(row.key.place)) {
                bound.aggregate(&mut shard, row, out);
            }
        }
        self.batch.clear();
    }

    /// Whether no session is bound.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sessions.iter().all(Option::is_none)
    }

    /// What bound sessions do, and with `age`, which of their ranks others have waited for, longer
    /// than that. For that it walks all slots that were in use: for reports, not for each turn.
    #[must_use]
    pub fn sessions(&self, now: Time, age: Option<Duration>) -> Vec<SessionStatus> {
        let bound = self.sessions.iter().flatten();
        bound.map(|bound| bound.status(now, age)).collect()
    }
}

#[cfg(test)]
mod tests;
