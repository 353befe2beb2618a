//! One shard of SwitchML's UDP dialect: sums in slots that the workers name, in two sets each.
//!
//! The idea (NSDI'21, section 3; p4lang/p4app-switchML): a worker sends to slots of its own choice, and uses
//! the two sets of a slot in turn. Who sends in one set has the result of the other, so a set's sum can be
//! asked for again until all have moved on, and no state is needed besides. The switch believes its workers
//! in this; what it can tell to be wrong it drops.
//!
//! How it works: frames come as a parsed [`Header`] and a [`Buffer`] with nothing but the elements. The sender's
//! addresses say its session and rank ([`Switchml::admit`]); [`Switchml::handle`] is the table:
//!
//! | the rank's bit in this set | the set | |
//! |---|---|---|
//! | 0 | empty | the buffer becomes the sum: the count starts anew |
//! | 0 | lacks this rank | added; exponents by maximum |
//! | 0 | has this rank, which was in the other set since | dropped, `switchml-set` |
//! | 1 | complete | a duplicate: the result again, to this rank alone |
//! | 1 | lacks others | a duplicate: dropped |
//!
//! What is not dropped sets the rank's bit here and clears it in the other set, which is empty when it has
//! no bits left: its buffer goes back at once. The n-th contribution sends the result to all, with its own
//! job and packet number, to the address from which each rank last sent for this slot.
//!
//! Each worker is told a MAC address of the switch that no other knows ([`Session::switch_macs`]). A frame counts
//! as the worker's only if it is sent there: addresses of stations can be forged by any host, this one cannot be
//! guessed. The first such frame says behind which port the worker is. A second port with the same secret ends
//! the session: somebody has copied it, and nothing tells which of the two is the worker.
//!
//! The accumulator is the buffer of the first contribution. A complete sum is never written again: it may be on
//! its way out for as long as it is here.
//!
//! Contributions wait for the end of the poll iteration ([`Switchml::collect`], [`Switchml::settle`]). Those of a
//! set are then added in one pass. The result is what one after another would give.
//!
//! Budget for a set's contributions in an iteration: one line each of the table of stations, the session, the rank, the slot (both
//! sets) and the ranks' UDP ports for it; the two payloads, one of which was just received. No copy but the
//! sum's own reading and writing, and for a first contribution not that.
//!
//! Catches:
//!
//! * A copy of a frame that the network delays until all workers are a set further cannot be told from
//!   a new contribution, here as in the original. Paths that keep the order of a worker's frames, and
//!   clients that wait longer than their network delays, do not make such copies.
//! * A result rests in its buffer for as long as nobody goes on, so sessions that do nothing hold a buffer for
//!   each slot that they used. [`SwitchmlConfig::held`] bounds all of them; `room` says who may still keep one.
//! * Slots are a session's own, and allocated when it is bound, 64 bytes each and 4 for each of its workers: the
//!   one thing that this module allocates after its start.

use crate::buffer::Buffer;
use crate::counters::DropReason;
use crate::roster::PortId;
use std::sync::Arc;
use std::time::Duration;
use tally_kernels::Kernels;
use tally_wire::switchml::{Header, MAX_SLOTS, Size};
use tally_wire::{MAX_WORKERS, Mac, Time};

mod batch;
pub mod controller;
mod dialect;
mod members;
mod room;
mod session;
mod slot;
mod stations;
mod status;

use batch::{Batch, Contribution, Key, ROW, Row};
pub use dialect::{COPY_BYTES_MAX, Command, Elements, Metrics, STOCK_FRAMES, SwitchmlDialect};
pub use members::{Members, Whereabouts};
use room::Room;
pub use session::{
    Arrival, Destination, Replies, Route, Session, SessionId, Station, SwitchmlConfig,
};
use slot::{NO_ROW, Sender, Slot, Ticks};
use stations::Stations;
pub use status::{Conflict, Forged, RankStatus, SessionStatus, SwitchmlCounters};

/// A worker's place in a shard: what [`Switchml::admit`] says of its frame. Good until a session is bound
/// or unbound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    changes: u32,
    place: u16,
    rank: u8,
}

impl Seat {
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
    seat: Seat,
    /// A contribution, of which the header is to be replaced.
    first: Contribution,
}

impl Origin {
    /// Of the frames of a seat that arrive like this one.
    #[inline]
    #[must_use]
    pub const fn new(seat: Seat, arrival: &Arrival) -> Self {
        Self {
            seat,
            first: Contribution::new(seat.rank, arrival),
        }
    }

    /// Whose they are.
    #[inline]
    #[must_use]
    pub const fn seat(&self) -> Seat {
        self.seat
    }
}

/// A rank of a bound session: one line of the cache.
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct Worker {
    /// Where its replies go. The UDP ports are those of its last reply.
    to: Destination,
    /// Whether `to` has the port that its first frame came in on.
    has_port: bool,
    forged: Forged,
    /// Frames taken or answered, or dropped as duplicates.
    frames: u64,
    last: Time,
}

const _: () = assert!(size_of::<Worker>() == 64);

impl Worker {
    const fn new(Station { mac, ip }: Station, own_mac: Mac) -> Self {
        Self {
            to: Destination {
                port: PortId(0),
                mac,
                ip,
                udp_port: 0,
                own_port: 0,
                own_mac,
            },
            has_port: false,
            forged: Forged {
                frames: 0,
                port: None,
            },
            frames: 0,
            last: Time(0),
        }
    }

    const fn station(&self) -> Station {
        Station {
            mac: self.to.mac,
            ip: self.to.ip,
        }
    }

    /// The port that its first frame came in on.
    #[inline]
    fn port(&self) -> Option<PortId> {
        self.has_port.then_some(self.to.port)
    }

    /// Where a reply goes, of a worker that sent from there. Written in place: a copy would be read
    /// in other sizes than it was written, and wait for the store buffer.
    #[inline]
    fn destination(&mut self, sender: Sender) -> &Destination {
        self.to.udp_port = sender.udp_port;
        self.to.own_port = sender.own_port;
        &self.to
    }
}

/// A session and its slots.
struct Bound<B> {
    session: Arc<Session>,
    /// After how many changes it was bound.
    since: u32,
    all: u64,
    payload_bytes: usize,
    /// Buffers that its slots keep.
    kept: u32,
    workers: Box<[Worker]>,
    slots: Box<[Slot<B>]>,
    /// Slots below which all are that ever were in use: clients take the lowest.
    used: usize,
    /// From where each rank last sent, for each slot: ranks side by side.
    senders: Box<[Sender]>,
    conflict: Option<Conflict>,
    contributions: u64,
    results: u64,
    answered: u64,
    duplicates: u64,
}

/// One shard: the slots of all bound sessions.
pub struct Switchml<B> {
    config: SwitchmlConfig,
    shift: u32,
    kernels: Kernels,
    /// Times that a session was bound or unbound.
    changes: u32,
    stations: Stations,
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
    /// If `sessions` is 0 or above 65,535, `slots` is 0 or above [`MAX_SLOTS`], `shards` is no power of two
    /// or `shard` not below it.
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
            stations: Stations::new(config.sessions * MAX_WORKERS),
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

    /// Starts a session; one of the same number ends before. Its stations are in no older session any more.
    ///
    /// As many sessions as configured, a number of workers that is 0 or above 64, or another number of secrets: it
    /// is not started, and `false` comes back.
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
        self.enter_stations();
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
        debug_assert_eq!(bound.kept, 0);
        self.enter_stations();
    }

    /// Who is where, newer sessions above older ones.
    fn enter_stations(&mut self) {
        self.stations.clear();
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
                self.stations
                    .enter(worker.station(), place as u16, rank as u8);
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
    pub fn admit(&self, route: &Route, header: &Header) -> Result<Seat, DropReason> {
        let Some((place, rank)) = self.stations.find(route.from) else {
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
        Ok(Seat {
            changes: self.changes,
            place,
            rank,
        })
    }

    /// The session of a seat.
    #[must_use]
    pub fn session_of(&self, seat: Seat) -> Option<SessionId> {
        let bound = self.sessions.get(usize::from(seat.place))?.as_ref()?;
        Some(bound.session.id)
    }

    /// Another shard knows the worker of this seat behind the first of these ports, and its frame came in on the
    /// second: as if it had come in here on both.
    #[cold]
    pub fn note_conflict(&mut self, seat: Seat, ports: [PortId; 2]) {
        if let Some(Some(bound)) = self.sessions.get_mut(usize::from(seat.place)) {
            let rank = seat.rank;
            bound.conflict.get_or_insert(Conflict { rank, ports });
        }
    }

    /// Notes a frame that was refused as [`DropReason::SwitchmlForged`], for the operator. It changes nothing else.
    #[cold]
    pub fn note_forged(&mut self, from: Station, port: PortId) {
        let place = self.stations.find(from);
        if let Some((place, rank)) = place
            && let Some(Some(bound)) = self.sessions.get_mut(usize::from(place))
            && let Some(worker) = bound.workers.get_mut(usize::from(rank))
        {
            worker.forged.frames += 1;
            worker.forged.port = Some(port);
        }
    }

    /// Whether `seat` is as good as when it was given.
    #[inline]
    #[must_use]
    pub fn still_seats(&self, seat: Seat) -> bool {
        seat.changes == self.changes
    }

    /// Whether a contribution of this slot to this shard would be admitted, given that its sender was.
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
        seat: Seat,
        arrival: &Arrival,
        header: &Header,
        buffer: B,
        out: &mut impl Replies<B>,
    ) {
        self.collect(now, &Origin::new(seat, arrival), header, buffer, out);
        self.settle(now, out);
    }

    /// Takes one contribution. Its seat was given for a frame with this `header` but for its job,
    /// packet number, set, exponents and [slot](Self::has_slot). `buffer` has the elements, as many
    /// as the header says. The contribution waits for [`settle`](Self::settle).
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
            self.settle(now, out);
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
        &Origin { seat, first }: &Origin,
        header: &Header,
        buffer: B,
    ) -> Result<(), (DropReason, B)> {
        let bound = match self.sessions.get_mut(usize::from(seat.place)) {
            Some(Some(bound)) if seat.changes == self.changes => bound,
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
                place: seat.place,
                at,
                set: header.set,
            };
            set.row = self.batch.begin(key, contribution, buffer);
        }
        Ok(())
    }

    /// Ends the poll iteration: sums what has come in.
    #[inline]
    pub fn settle(&mut self, now: Time, out: &mut impl Replies<B>) {
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
                bound.settle(&mut shard, row, out);
            }
        }
        self.batch.clear();
    }

    /// Whether no session is bound.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sessions.iter().all(Option::is_none)
    }

    /// What bound sessions do, and with `age`, which of their ranks others have waited for, longer than that. For
    /// that it walks all slots that were in use: for reports, not for each turn.
    #[must_use]
    pub fn sessions(&self, now: Time, age: Option<Duration>) -> Vec<SessionStatus> {
        let bound = self.sessions.iter().flatten();
        bound.map(|bound| bound.status(now, age)).collect()
    }
}

/// What sessions use of their shard.
struct Shard<'a> {
    now: Time,
    shift: u32,
    number: u8,
    kernels: &'a Kernels,
    room: &'a mut Room,
    counters: &'a mut SwitchmlCounters,
}

impl<B: Buffer> Bound<B> {
    /// Handles the contributions of a row: together if nothing is special about them.
    #[inline]
    fn settle(&mut self, shard: &mut Shard<'_>, row: &mut Row<B>, out: &mut impl Replies<B>) {
        let len = row.len();
        if self.is_plain(row) {
            self.add(shard, row, 0..len, out);
        } else {
            for at in 0..len {
                self.take(shard, row, at, out);
            }
        }
        if let Some(slot) = self.slots.get_mut(usize::from(row.key.at)) {
            slot.sets_mut(row.key.set).0.row = NO_ROW;
        }
    }

    /// Whether each contribution of a row comes from another rank, all of which the sum lacks, and
    /// from the port of that rank.
    #[inline]
    fn is_plain(&mut self, row: &mut Row<B>) -> bool {
        let Some(slot) = self.slots.get_mut(usize::from(row.key.at)) else {
            return false;
        };
        let (set, _) = slot.sets_mut(row.key.set);
        let mut ranks = match set.sum {
            Some(_) => set.bitmap | set.summed,
            None => 0,
        };
        let (mut twice, mut moved) = (0, self.conflict.is_some());
        let len = row.len();
        for contribution in row.part_mut(0..len).0 {
            let bit = bit(contribution.rank());
            twice |= ranks & bit;
            ranks |= bit;
            let worker = self.workers.get(usize::from(contribution.rank()));
            moved |= worker.is_none_or(|w| w.port() != Some(contribution.port()));
        }
        twice == 0 && !moved
    }

    /// Takes one contribution of a row: the table.
    #[inline(never)]
    fn take(
        &mut self,
        shard: &mut Shard<'_>,
        row: &mut Row<B>,
        at: usize,
        out: &mut impl Replies<B>,
    ) {
        let key = row.key;
        let (&[contribution], [buffer]) = row.part_mut(at..at + 1) else {
            return;
        };
        let reason = match self.check(shard, key, &contribution, out) {
            Ok(Verdict::Add) => return self.add(shard, row, at..at + 1, out),
            Ok(Verdict::Answered) => None,
            Err(reason) => Some(reason),
        };
        if let Some(reason) = reason {
            shard.counters.drop(reason);
        }
        if let Some(buffer) = buffer.take() {
            out.discard(buffer);
        }
    }

    /// Decides on one contribution, and answers it if it is a duplicate.
    fn check(
        &mut self,
        shard: &mut Shard<'_>,
        key: Key,
        contribution: &Contribution,
        out: &mut impl Replies<B>,
    ) -> Result<Verdict, DropReason> {
        let (arrival, rank) = (contribution.arrival(), contribution.rank());
        let (Some(slot), Some(worker)) = (
            self.slots.get_mut(usize::from(key.at)),
            self.workers.get_mut(usize::from(rank)),
        ) else {
            return Err(DropReason::SwitchmlSlot);
        };
        if !worker.has_port {
            (worker.to.port, worker.has_port) = (arrival.port, true);
        }
        let port = worker.to.port;
        if port != arrival.port && self.conflict.is_none() {
            self.conflict = Some(Conflict {
                rank,
                ports: [port, arrival.port],
            });
        }
        // One of the two is not the worker, and it may be in sums: nothing is summed any more.
        if self.conflict.is_some() {
            return Err(DropReason::SwitchmlPort);
        }
        let (set, _) = slot.sets_mut(key.set);
        if set.bitmap & bit(rank) == 0 {
            // It is in a sum that it has left before it was complete, or that others may still ask
            // for.
            if set.sum.is_some() && set.summed & bit(rank) != 0 {
                self.note(shard.now, key, contribution);
                return Err(DropReason::SwitchmlSet);
            }
            return Ok(Verdict::Add);
        }
        let answer = set.sum.as_ref().filter(|_| set.summed == self.all);
        let Some(sum) = answer else {
            self.duplicates += 1;
            self.note(shard.now, key, contribution);
            return Err(DropReason::Duplicate);
        };
        self.answered += 1;
        shard.counters.answered += 1;
        let header = Header {
            exponents: set.exponents,
            ..shard.header(self.session.size, key, contribution)
        };
        let to = worker.destination(sender(&arrival));
        out.reply(to, &header, arrival.tos, sum);
        self.note(shard.now, key, contribution);
        Ok(Verdict::Answered)
    }

    /// Notes when and from where a rank sent.
    #[inline]
    fn note(&mut self, now: Time, key: Key, contribution: &Contribution) {
        let (rank, count) = (usize::from(contribution.rank()), self.workers.len());
        let at = usize::from(key.at) * count + rank;
        let (Some(worker), Some(last)) = (self.workers.get_mut(rank), self.senders.get_mut(at))
        else {
            return;
        };
        worker.frames += 1;
        worker.last = now;
        let sender = sender(&contribution.arrival());
        // It seldom changes, and a line that is not written need not go back to memory.
        if *last != sender {
            *last = sender;
        }
    }

    /// Adds contributions to a sum that lacks all of their ranks, and sends it if it is complete.
    #[inline]
    fn add(
        &mut self,
        shard: &mut Shard<'_>,
        row: &mut Row<B>,
        part: std::ops::Range<usize>,
        out: &mut impl Replies<B>,
    ) {
        let key = row.key;
        let (contributions, buffers) = row.part_mut(part);
        for contribution in contributions {
            self.note(shard.now, key, contribution);
        }
        let (at, count) = (usize::from(key.at), self.workers.len());
        let (Some(slot), Some(senders), [.., last]) = (
            self.slots.get_mut(at),
            self.senders.get(at * count..(at + 1) * count),
            contributions,
        ) else {
            return;
        };
        let (set, other) = slot.sets_mut(key.set);
        let mut buffers = buffers.iter_mut();
        if set.sum.is_none() {
            self.used = self.used.max(at + 1);
            if !shard.room.keep(&mut self.kept) {
                for buffer in buffers.filter_map(Option::take) {
                    shard.counters.drop(DropReason::SwitchmlHeld);
                    out.discard(buffer);
                }
                return;
            }
            debug_assert_eq!(set.bitmap, 0);
            set.sum = buffers.next().and_then(Option::take);
            set.summed = 0;
            set.since = Ticks::at(shard.now);
            set.exponents = contributions[0].exponents();
        }
        let Some(sum) = &mut set.sum else { return };
        let buffers = buffers.into_slice();
        let mut sources: [&[u8]; ROW] = [&[]; ROW];
        let added = buffers.len();
        for (source, buffer) in sources.iter_mut().zip(buffers.iter().flatten()) {
            *source = buffer.payload();
        }
        shard
            .kernels
            .add_be_i32_many(sum.payload_mut(), &sources[..added]);
        for buffer in buffers.iter_mut().filter_map(Option::take) {
            out.discard(buffer);
        }
        let mut ranks = 0;
        for contribution in contributions {
            ranks |= bit(contribution.rank());
            for (most, exponent) in set.exponents.iter_mut().zip(contribution.exponents()) {
                *most = exponent.max(*most);
            }
        }
        set.bitmap |= ranks;
        set.summed |= ranks;
        self.contributions += contributions.len() as u64;
        shard.counters.contributions += contributions.len() as u64;
        other.bitmap &= !ranks;
        if other.bitmap == 0
            && let Some(sum) = other.sum.take()
        {
            shard.room.free(&mut self.kept);
            out.discard(sum);
        }
        if set.summed == self.all {
            self.results += 1;
            shard.counters.results += 1;
            let result = Header {
                exponents: set.exponents,
                ..shard.header(self.session.size, key, last)
            };
            let all = self.workers.iter_mut().zip(senders);
            let all = all.map(|(worker, &sender)| worker.destination(sender));
            out.reply_all(all, &result, last.arrival().tos, sum);
        }
    }
}

/// What becomes of a contribution that is not dropped.
enum Verdict {
    /// It is to be added.
    Add,
    /// It was a duplicate, and has the result again.
    Answered,
}

impl Shard<'_> {
    /// The header of a contribution.
    #[inline]
    fn header(&self, size: Size, key: Key, contribution: &Contribution) -> Header {
        let slot = key.at << self.shift | u16::from(self.number);
        contribution.header(size, slot, key.set)
    }
}

/// A rank in a bitmap.
#[inline]
const fn bit(rank: u8) -> u64 {
    1 << (rank as usize & (MAX_WORKERS - 1))
}

#[inline]
const fn sender(arrival: &Arrival) -> Sender {
    Sender {
        udp_port: arrival.udp_port,
        own_port: arrival.own_port,
    }
}

impl<B> Bound<B> {
    fn status(&self, now: Time, age: Option<Duration>) -> SessionStatus {
        let ranks = self.workers.iter().map(|worker| RankStatus {
            frames: worker.frames,
            last: worker.has_port.then_some(worker.last),
            port: worker.port(),
            forged: worker.forged,
            lacking: 0,
            longest: Duration::ZERO,
        });
        let mut status = SessionStatus {
            id: self.session.id,
            contributions: self.contributions,
            results: self.results,
            answered: self.answered,
            duplicates: self.duplicates,
            slots_in_use: 0,
            held: self.kept,
            conflict: self.conflict,
            ranks: ranks.collect(),
        };
        let Some(age) = age else { return status };
        for slot in &self.slots[..self.used] {
            let mut unfinished = slot.unfinished(self.all).peekable();
            status.slots_in_use += u32::from(unfinished.peek().is_some());
            for set in unfinished {
                let waiting = set.since.until(now);
                if waiting < age {
                    continue;
                }
                let ranks = status.ranks.iter_mut().enumerate();
                for (_, rank) in ranks.filter(|(rank, _)| set.summed >> rank & 1 == 0) {
                    rank.lacking += 1;
                    rank.longest = rank.longest.max(waiting);
                }
            }
        }
        status
    }
}

#[cfg(test)]
mod tests;
