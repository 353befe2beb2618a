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
//! Budget for a contribution: one line each of the table of stations, the session, the rank, the slot (both
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
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tally_kernels::Kernels;
use tally_wire::switchml::{Header, MAX_SLOTS, Size};
use tally_wire::{MAX_WORKERS, Mac, Time, all_ranks};

pub mod controller;
mod dialect;
mod members;
mod room;
mod slot;
mod stations;
mod status;

pub use dialect::{COPY_BYTES_MAX, Command, Elements, Metrics, STOCK_FRAMES, SwitchmlDialect};
pub use members::{Members, Whereabouts};
use room::Room;
use slot::{Sender, Slot, Ticks};
use stations::Stations;
pub use status::{Conflict, Forged, RankStatus, SessionStatus, SwitchmlCounters};

/// A session, as the controller numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// A worker's host, as it told the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Station {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
}

/// What the data path knows of a session. Immutable; a change is a new session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// Size of all its packets.
    pub size: Size,
    /// Its workers, by rank; 1 to 64.
    pub workers: Vec<Station>,
    /// By rank, the switch's Ethernet address that this worker alone was told: its secret.
    pub switch_macs: Vec<Mac>,
}

impl Session {
    /// The bitmap with all its ranks.
    #[inline]
    #[must_use]
    pub fn all(&self) -> u64 {
        all_ranks(self.workers.len() as u8)
    }
}

/// How large a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchmlConfig {
    /// Most sessions at a time.
    pub sessions: usize,
    /// Slots of a session, in all shards together; at most [`MAX_SLOTS`].
    pub slots: u16,
    /// Buffers that this shard may keep.
    pub held: u32,
    /// Number of shards, a power of two.
    pub shards: u8,
    /// Which of them this is.
    pub shard: u8,
}

/// Where a result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Port of the switch.
    pub port: PortId,
    /// The worker's Ethernet address.
    pub mac: Mac,
    /// The worker's IPv4 address.
    pub ip: Ipv4Addr,
    /// The worker's UDP port.
    pub udp_port: u16,
    /// The UDP port of the switch that the worker sent to.
    pub own_port: u16,
    /// The switch's Ethernet address that the worker was told.
    pub own_mac: Mac,
}

/// Where a frame came from and went to, as its headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its sender.
    pub from: Station,
    /// The Ethernet address that it was sent to.
    pub to: Mac,
}

/// What a frame's arrival says besides its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Port of the switch that it came in on.
    pub port: PortId,
    /// Source UDP port.
    pub udp_port: u16,
    /// Destination UDP port.
    pub own_port: u16,
    /// Type of service of its IPv4 header.
    pub tos: u8,
}

/// The way out.
pub trait Replies<B> {
    /// Send `sum` with `header` to one worker. From the first reply on its bytes are shared, and nobody
    /// writes to them. `tos` is that of the frame that caused it.
    fn reply(&mut self, to: &Destination, header: &Header, tos: u8, sum: &B);

    /// Send `sum` with `header` to all workers of a session.
    fn reply_all(&mut self, to: &[Destination], header: &Header, tos: u8, sum: &B) {
        for to in to {
            self.reply(to, header, tos, sum);
        }
    }

    /// The engine is done with this buffer.
    fn discard(&mut self, buffer: B) {
        drop(buffer);
    }
}

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

/// A rank of a bound session.
#[derive(Clone, Copy, Debug)]
struct Worker {
    station: Station,
    /// The switch's address that it was told.
    own_mac: Mac,
    /// The port that its first frame came in on.
    port: Option<PortId>,
    forged: Forged,
    /// Frames taken or answered, or dropped as duplicates.
    frames: u64,
    last: Time,
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
    /// Empty but while a result leaves.
    destinations: Vec<Destination>,
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
            destinations: Vec::with_capacity(MAX_WORKERS),
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
        self.unbind(session.id, out);
        let Some(place) = self.sessions.iter().position(Option::is_none) else {
            return false;
        };
        self.changes = self.changes.wrapping_add(1);
        let slots = usize::from(self.config.slots).div_ceil(usize::from(self.config.shards));
        let workers = session.workers.iter().zip(&session.switch_macs);
        let workers = workers.map(|(&station, &own_mac)| Worker {
            station,
            own_mac,
            port: None,
            forged: Forged::default(),
            frames: 0,
            last: Time(0),
        });
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
                    .enter(worker.station, place as u16, rank as u8);
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
        if worker.is_none_or(|worker| worker.own_mac != route.to) {
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

    /// Takes one contribution of `seat`, which was given for a frame with this `header` but for its job,
    /// packet number, set and exponents. `buffer` has the elements, as many as the header says.
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
        if let Err((reason, buffer)) = self.take(now, seat, arrival, header, buffer, out) {
            self.counters.drop(reason);
            out.discard(buffer);
        }
    }

    #[inline]
    fn take(
        &mut self,
        now: Time,
        seat: Seat,
        arrival: &Arrival,
        header: &Header,
        buffer: B,
        out: &mut impl Replies<B>,
    ) -> Result<(), (DropReason, B)> {
        let rank = usize::from(seat.rank);
        let bit = 1u64 << (rank & (MAX_WORKERS - 1));
        let bound = match self.sessions.get_mut(usize::from(seat.place)) {
            Some(Some(bound)) if seat.changes == self.changes => bound,
            _ => return Err((DropReason::SwitchmlStation, buffer)),
        };
        // A sum of elements that are not as many would not be one.
        if buffer.payload().len() != bound.payload_bytes {
            return Err((DropReason::Length, buffer));
        }
        let at = usize::from(header.slot) >> self.shift;
        let count = bound.workers.len();
        let (Some(slot), Some(senders), Some(worker)) = (
            bound.slots.get_mut(at),
            bound.senders.get_mut(at * count..(at + 1) * count),
            bound.workers.get_mut(rank),
        ) else {
            return Err((DropReason::SwitchmlSlot, buffer));
        };
        let port = *worker.port.get_or_insert(arrival.port);
        if port != arrival.port && bound.conflict.is_none() {
            bound.conflict = Some(Conflict {
                rank: seat.rank,
                ports: [port, arrival.port],
            });
        }
        // One of the two is not the worker, and it may be in sums by now: nothing is summed any more.
        if bound.conflict.is_some() {
            return Err((DropReason::SwitchmlPort, buffer));
        }
        worker.frames += 1;
        worker.last = now;
        let sender = Sender {
            udp_port: arrival.udp_port,
            own_port: arrival.own_port,
        };
        // It seldom changes, and a line that is not written need not go back to memory.
        if senders[rank] != sender {
            senders[rank] = sender;
        }

        let (set, other) = slot.sets_mut(header.set);
        if set.bitmap & bit != 0 {
            let Some(sum) = set.sum.as_ref().filter(|_| set.summed == bound.all) else {
                bound.duplicates += 1;
                return Err((DropReason::Duplicate, buffer));
            };
            bound.answered += 1;
            self.counters.answered += 1;
            let answer = Header {
                exponents: set.exponents,
                ..*header
            };
            let to = destination(worker, sender);
            out.reply(&to, &answer, arrival.tos, sum);
            out.discard(buffer);
            return Ok(());
        }
        match &mut set.sum {
            None => {
                bound.used = bound.used.max(at + 1);
                if !self.room.keep(&mut bound.kept) {
                    return Err((DropReason::SwitchmlHeld, buffer));
                }
                debug_assert_eq!(set.bitmap, 0);
                set.sum = Some(buffer);
                set.summed = 0;
                set.since = Ticks::at(now);
                set.exponents = header.exponents;
            }
            // It is in a sum that it has left before it was complete, or that others may still ask for.
            Some(_) if set.summed & bit != 0 => return Err((DropReason::SwitchmlSet, buffer)),
            Some(sum) => {
                self.kernels.add_be_i32(sum.payload_mut(), buffer.payload());
                out.discard(buffer);
                for (most, exponent) in set.exponents.iter_mut().zip(header.exponents) {
                    *most = exponent.max(*most);
                }
            }
        }
        set.bitmap |= bit;
        set.summed |= bit;
        bound.contributions += 1;
        self.counters.contributions += 1;
        other.bitmap &= !bit;
        if other.bitmap == 0
            && let Some(sum) = other.sum.take()
        {
            self.room.free(&mut bound.kept);
            out.discard(sum);
        }
        if set.summed == bound.all
            && let Some(sum) = &set.sum
        {
            bound.results += 1;
            self.counters.results += 1;
            let result = Header {
                exponents: set.exponents,
                ..*header
            };
            let all = bound.workers.iter().zip(&*senders);
            self.destinations
                .extend(all.map(|(worker, &sender)| destination(worker, sender)));
            out.reply_all(&self.destinations, &result, arrival.tos, sum);
            self.destinations.clear();
        }
        Ok(())
    }

    /// What bound sessions do, and with `age`, which of their ranks others have waited for, longer than that. For
    /// that it walks all slots that were in use: for reports, not for each turn.
    #[must_use]
    pub fn sessions(&self, now: Time, age: Option<Duration>) -> Vec<SessionStatus> {
        let bound = self.sessions.iter().flatten();
        bound.map(|bound| bound.status(now, age)).collect()
    }
}

impl<B> Bound<B> {
    fn status(&self, now: Time, age: Option<Duration>) -> SessionStatus {
        let ranks = self.workers.iter().map(|worker| RankStatus {
            frames: worker.frames,
            last: worker.port.map(|_| worker.last),
            port: worker.port,
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

/// Where a worker is that sent from there.
#[inline]
fn destination(worker: &Worker, sender: Sender) -> Destination {
    Destination {
        // Whoever is answered has a port.
        port: worker.port.unwrap_or_default(),
        mac: worker.station.mac,
        ip: worker.station.ip,
        udp_port: sender.udp_port,
        own_port: sender.own_port,
        own_mac: worker.own_mac,
    }
}

#[cfg(test)]
mod tests;
