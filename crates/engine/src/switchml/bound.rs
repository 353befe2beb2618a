//! A bound session: its slots, the table of what becomes of a contribution, and the sums.

use super::batch::{Contribution, Key, ROW, Row};
use super::room::Room;
use super::session::{Arrival, Destination, HostAddress, Replies, Session};
use super::slot::{NO_ROW, Sender, Slot, Ticks};
use super::status::{
    Conflict, RankCounters, RankStatus, SessionCounters, SessionStatus, SwitchmlCounters,
};
use crate::buffer::Buffer;
use crate::counters::DropReason;
use crate::roster::PortId;
use std::sync::Arc;
use std::time::Duration;
use tally_kernels::Kernels;
use tally_wire::switchml::{Header, Size};
use tally_wire::{MAX_WORKERS, Mac, Time};

/// A rank of a bound session: one line of the cache.
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Worker {
    /// Where its replies go. The ports are those of its last reply.
    pub(super) to: Destination,
    /// By which port of the switch its last frame came.
    pub(super) port: PortId,
    /// Frames with its addresses that were not to `own_mac`, and the port of the last.
    pub(super) forged: u64,
    pub(super) forged_from: Option<PortId>,
    /// Frames taken or answered, or dropped as duplicates.
    pub(super) frames: u64,
    pub(super) last: Time,
}

const _: () = assert!(size_of::<Worker>() == 64);

impl Worker {
    pub(super) const fn new(HostAddress { mac, ip }: HostAddress, own_mac: Mac) -> Self {
        Self {
            to: Destination {
                port: PortId(0),
                mac,
                ip,
                udp_port: 0,
                own_port: 0,
                own_mac,
            },
            port: PortId(0),
            forged: 0,
            forged_from: None,
            frames: 0,
            last: Time(0),
        }
    }

    pub(super) const fn station(&self) -> HostAddress {
        HostAddress {
            mac: self.to.mac,
            ip: self.to.ip,
        }
    }

    /// Where a reply goes, of a worker that sent from there. Written in place: a copy would be read
    /// in other sizes than it was written, and wait for the store buffer.
    #[inline]
    pub(super) fn destination(&mut self, sender: Sender) -> &Destination {
        self.to.port = sender.port;
        self.to.udp_port = sender.udp_port;
        self.to.own_port = sender.own_port;
        &self.to
    }
}

/// A session and its slots.
pub(super) struct Bound<B> {
    pub(super) session: Arc<Session>,
    /// After how many changes it was bound.
    pub(super) since: u32,
    pub(super) all: u64,
    pub(super) payload_bytes: usize,
    /// Buffers that its slots keep.
    pub(super) kept: u32,
    pub(super) workers: Box<[Worker]>,
    pub(super) slots: Box<[Slot<B>]>,
    /// Slots below which all are that ever were in use: clients take the lowest.
    pub(super) used: usize,
    /// From where each rank last sent, for each slot: ranks side by side.
    pub(super) senders: Box<[Sender]>,
    pub(super) conflict: Option<Conflict>,
    pub(super) contributions: u64,
    pub(super) results: u64,
    pub(super) answered: u64,
    pub(super) duplicates: u64,
}

/// What sessions use of their shard.
pub(super) struct Shard<'a> {
    pub(super) now: Time,
    pub(super) shift: u32,
    pub(super) number: u8,
    pub(super) kernels: &'a Kernels,
    pub(super) room: &'a mut Room,
    pub(super) counters: &'a mut SwitchmlCounters,
}

impl<B: Buffer> Bound<B> {
    /// Handles the contributions of a row: together if nothing is special about them.
    #[inline]
    pub(super) fn aggregate(
        &mut self,
        shard: &mut Shard<'_>,
        row: &mut Row<B>,
        out: &mut impl Replies<B>,
    ) {
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

    /// Whether each contribution of a row comes from another rank, all of which the sum lacks.
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
        let mut twice = 0;
        let len = row.len();
        for contribution in row.part_mut(0..len).0 {
            let bit = bit(contribution.rank());
            twice |= ranks & bit;
            ranks |= bit;
        }
        twice == 0 && self.conflict.is_none()
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
        // One of the two ports is not the worker's, and it may be in sums: nothing is summed any
        // more.
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
        let sender = sender(&contribution.arrival());
        worker.frames += 1;
        worker.last = now;
        worker.port = sender.port;
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
        port: arrival.port,
        udp_port: arrival.udp_port,
        own_port: arrival.own_port,
    }
}

impl<B> Bound<B> {
    pub(super) fn status(&self, now: Time, age: Option<Duration>) -> SessionStatus {
        let ranks = self.workers.iter().map(|worker| RankStatus {
            counters: RankCounters {
                frames: worker.frames,
                forged: worker.forged,
                ..RankCounters::default()
            },
            last: (worker.frames > 0).then_some(worker.last),
            port: (worker.frames > 0).then_some(worker.port),
            forged_from: worker.forged_from,
        });
        let mut status = SessionStatus {
            id: self.session.id,
            counters: SessionCounters {
                contributions: self.contributions,
                results: self.results,
                answered: self.answered,
                duplicates: self.duplicates,
                slots_in_use: 0,
                held: self.kept,
            },
            conflict: self.conflict,
            ranks: ranks.collect(),
        };
        let Some(age) = age else { return status };
        for slot in &self.slots[..self.used] {
            let mut unfinished = slot.unfinished(self.all).peekable();
            status.counters.slots_in_use += u32::from(unfinished.peek().is_some());
            for set in unfinished {
                let waiting = set.since.until(now);
                if waiting < age {
                    continue;
                }
                let ranks = status.ranks.iter_mut().enumerate();
                for (_, rank) in ranks.filter(|(rank, _)| set.summed >> rank & 1 == 0) {
                    let counters = &mut rank.counters;
                    counters.behind += 1;
                    counters.behind_s = counters.behind_s.max(waiting.as_secs_f64());
                }
            }
        }
        status
    }
}
