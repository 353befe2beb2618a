//! A card as the table in docs/FPGA.md has it, row by row: what each memory of the pipeline keeps, and
//! nothing of the engine. It shows that the table is right, and with one [`Mistake`] in it that the scripts find
//! mistakes.

use super::card::{Card, Counts, Own, Shape, hash_of};
use super::reference::{Fate, MASK, NO_PORT, classify, mac_at, port_of, shows, tag};
use tally_bridge::registers::COUNTERS;
use tally_card::{Flaw, Gaps};
use tally_engine::{DropReason, Member, Roster};
use tally_wire::frame::{emit, group_of};
use tally_wire::{Addresses, Element, FragmentId, Header, Kind, Mac, Rank};

macro_rules! mistakes {
    ($($name:ident,)+) => {
        /// One thing done wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mistake { $($name,)+ }

        impl Mistake {
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
        }
    };
}

mistakes! {
    EpochIgnored,
    MemberPortIgnored,
    MemberUdpPortIgnored,
    ShardIgnored,
    UnitsIgnored,
    ResultBitmapIgnored,
    NackRankIgnored,
    PaddingKept,
    OldTaken,
    OldOffByOne,
    RingOfAnother,
    ResendToAllPorts,
    StuckEarly,
    StuckGrowIgnored,
    DuplicateAdded,
    SplitForgotten,
    SplitResendDropped,
    ElementIgnored,
    PriorityLast,
    PriorityMissed,
    EqualPreempts,
    NoHalving,
    NoteOfVictimLost,
    NoteOfAnother,
    PastIgnored,
    PastOffByOne,
    NewestOfDataOnly,
    NewestGoesBack,
    OrderIgnored,
    OutOfTurnNotSplit,
    NeverFollows,
    OverflowLost,
    MarkLost,
    CollisionFlagLost,
    ResendFlagLost,
    ResultOfPsLeavesSlot,
    ResultOfPsNotKept,
    FromPsLost,
    RemindLeavesSlot,
    RemindNotNoted,
    FinishedLost,
    NackToPs,
    NanPayloadKept,
    SubnormalsFlushed,
    WrapNotSerial,
    SaturationOnlyUp,
    ReloadForgetsSlots,
    UnloadLeavesSlots,
    UnloadLeavesRing,
    UnloadLeavesNotes,
    GroupPortsOld,
}

struct Slot {
    place: usize,
    fragment: FragmentId,
    bitmap: u64,
    grew: u16,
    priority: u8,
    element: Element,
    folded: u8,
    overflow: bool,
    marked: bool,
    split: bool,
    sum: Vec<u8>,
}

struct Job {
    roster: Roster,
    ports: u16,
    newest: Option<FragmentId>,
    newest_result: Option<FragmentId>,
}

#[derive(Clone, Default)]
struct Kept {
    used: bool,
    fragment: u32,
    frame: Vec<u8>,
}

/// The card.
pub struct Table {
    mistake: Option<Mistake>,
    own: Option<Own>,
    shape: Shape,
    now: u16,
    slots: Vec<Option<Slot>>,
    jobs: Vec<Option<Job>>,
    /// By place and fragment.
    ring: Vec<Vec<Kept>>,
    notes: Vec<Vec<(u32, u64)>>,
    counts: Counts,
    sent: Vec<Vec<u8>>,
}

enum Standing {
    Finished,
    Old,
    Open,
}

impl Table {
    pub fn new(shape: Shape, mistake: Option<Mistake>) -> Self {
        let ring = shape.ring as usize;
        let jobs = usize::from(shape.jobs);
        Self {
            mistake,
            own: None,
            shape,
            now: 0,
            slots: (0..shape.slots).map(|_| None).collect(),
            jobs: (0..jobs).map(|_| None).collect(),
            ring: vec![vec![Kept::default(); ring]; jobs],
            notes: vec![vec![(0, 0); ring]; jobs],
            counts: vec![0; COUNTERS.len()],
            sent: Vec::new(),
        }
    }

    fn errs(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn count(&mut self, name: &str) {
        self.add_to(name, 1);
    }

    fn add_to(&mut self, name: &str, n: usize) {
        let at = COUNTERS.iter().position(|(_, other)| *other == name);
        self.counts[at.unwrap_or_else(|| panic!("no counter {name}"))] += n as u64;
    }

    fn pass(&mut self, frame: &[u8]) {
        self.count("passed");
        self.sent.push(frame.to_vec());
    }

    fn ahead(&self, a: FragmentId, b: FragmentId) -> i64 {
        if self.errs(Mistake::WrapNotSerial) {
            i64::from(a.0) - i64::from(b.0)
        } else {
            i64::from(a.ahead_of(b))
        }
    }

    fn job(&self, place: usize) -> &Job {
        self.jobs[place].as_ref().expect("a loaded place")
    }

    fn admit(&self, from: &Member, header: &Header, shard: u16) -> Result<usize, DropReason> {
        let sender = match header.kind {
            Kind::Data => header.rank,
            Kind::Result if header.rank != Rank::SWITCH => header.rank,
            Kind::Remind | Kind::Nack => Rank::PS,
            _ => return Err(DropReason::NotForSwitch),
        };
        let of = |job: &Option<Job>| job.as_ref().is_some_and(|j| j.roster.job == header.job);
        let place = self
            .jobs
            .iter()
            .position(of)
            .ok_or(DropReason::UnknownJob)?;
        let job = self.job(place);
        let mut member = *job.roster.member(sender).ok_or(DropReason::RankOutOfJob)?;
        if self.errs(Mistake::MemberPortIgnored) {
            member.port = from.port;
        }
        if self.errs(Mistake::MemberUdpPortIgnored) {
            member.udp_port = from.udp_port;
        }
        if member != *from {
            return Err(DropReason::NotMember);
        }
        if header.epoch != job.roster.epoch && !self.errs(Mistake::EpochIgnored) {
            return Err(DropReason::Epoch);
        }
        let shards = u32::from(self.own.expect("set").shards);
        if header.fragment.0 % shards != u32::from(shard) && !self.errs(Mistake::ShardIgnored) {
            return Err(DropReason::Shard);
        }
        let carries = matches!(header.kind, Kind::Data | Kind::Result);
        if carries && header.units != job.roster.units && !self.errs(Mistake::UnitsIgnored) {
            return Err(DropReason::Units);
        }
        let all = job.roster.all();
        if header.kind == Kind::Result
            && header.bitmap != all
            && !self.errs(Mistake::ResultBitmapIgnored)
        {
            return Err(DropReason::Bitmap);
        }
        if header.kind == Kind::Nack
            && header.bitmap & all == 0
            && !self.errs(Mistake::NackRankIgnored)
        {
            return Err(DropReason::RankOutOfJob);
        }
        Ok(place)
    }

    fn ring_at(&self, fragment: FragmentId) -> usize {
        fragment.0 as usize & (self.shape.ring as usize - 1)
    }

    fn standing(&self, place: usize, fragment: FragmentId) -> Standing {
        let kept = &self.ring[place][self.ring_at(fragment)];
        if kept.used && (kept.fragment == fragment.0 || self.errs(Mistake::RingOfAnother)) {
            return Standing::Finished;
        }
        let late = i64::from(self.shape.ring) + i64::from(self.errs(Mistake::OldOffByOne));
        match self.job(place).newest_result {
            Some(newest)
                if self.ahead(newest, fragment) >= late && !self.errs(Mistake::OldTaken) =>
            {
                Standing::Old
            }
            _ => Standing::Open,
        }
    }

    fn ranks(&self, place: usize, fragment: FragmentId) -> u64 {
        let (noted, ranks) = self.notes[place][self.ring_at(fragment)];
        if noted == fragment.0 || self.errs(Mistake::NoteOfAnother) {
            ranks
        } else {
            0
        }
    }

    fn note(&mut self, place: usize, fragment: FragmentId, ranks: u64) {
        let ranks = ranks | self.ranks(place, fragment);
        let at = self.ring_at(fragment);
        self.notes[place][at] = (fragment.0, ranks);
    }

    fn reach(&mut self, place: usize, fragment: FragmentId) {
        let newest = self.job(place).newest;
        if newest.is_none_or(|newest| self.ahead(fragment, newest) > 0)
            || self.errs(Mistake::NewestGoesBack)
        {
            let job = self.jobs[place].as_mut().expect("a loaded place");
            job.newest = Some(fragment);
        }
    }

    fn is_past(&self, slot: &Slot) -> bool {
        let window = i64::from(self.shape.ring / 2) + i64::from(self.errs(Mistake::PastOffByOne));
        self.job(slot.place)
            .newest
            .is_some_and(|newest| self.ahead(newest, slot.fragment) >= window)
            && !self.errs(Mistake::PastIgnored)
    }

    fn frame_to(
        &self,
        mac: Mac,
        ip: std::net::Ipv4Addr,
        port: u16,
        h: &Header,
        p: &[u8],
    ) -> Vec<u8> {
        let own = self.own.expect("set");
        let addresses = Addresses {
            src_mac: own.mac,
            dst_mac: mac,
            src_ip: own.ip,
            dst_ip: ip,
            src_port: own.base_port,
            dst_port: port,
        };
        let mut h = *h;
        if h.check().is_err() {
            // With a mistake. `emit` would not have it.
            h.element = Element::I32;
        }
        let mut frame = vec![0; 64];
        emit(&mut frame, &addresses, &h);
        frame.extend_from_slice(p);
        frame
    }

    fn leave(&mut self, mut frame: Vec<u8>, ports: u16) {
        frame[6..12].copy_from_slice(&tag(MASK, ports).0);
        self.sent.push(frame);
    }

    fn send_to_ps(&mut self, place: usize, header: &Header, payload: &[u8]) {
        let ps = self.job(place).roster.ps;
        let frame = self.frame_to(ps.mac, ps.ip, ps.udp_port, header, payload);
        self.leave(frame, 1 << ps.port.0);
    }

    /// PASS: the arrival goes out as PARTIAL.
    fn pass_on(&mut self, place: usize, header: &Header, why: u8, payload: &[u8]) {
        self.count("partials");
        let mut flags = header.flags.0 | why;
        if self.errs(Mistake::CollisionFlagLost) {
            flags &= !COLLISION;
        }
        let partial = Header {
            kind: Kind::Partial,
            flags: tally_wire::Flags(flags),
            rank: Rank::SWITCH,
            ..*header
        };
        self.send_to_ps(place, &partial, payload);
        self.note(place, header.fragment, header.bitmap);
    }

    /// EVICT: the slot goes out as PARTIAL, and is free.
    fn evict(&mut self, at: usize, mut why: u8) {
        let slot = self.slots[at].take().expect("a taken slot");
        self.count("partials");
        let roster = &self.job(slot.place).roster;
        if self.errs(Mistake::ResendFlagLost) {
            why &= !RESEND;
        }
        let header = Header {
            kind: Kind::Partial,
            flags: tally_wire::Flags(why | self.flags_of(&slot)),
            priority: slot.priority,
            element: slot.element,
            job: roster.job,
            epoch: roster.epoch,
            fragment: slot.fragment,
            rank: Rank::SWITCH,
            units: roster.units,
            bitmap: slot.bitmap,
        };
        self.send_to_ps(slot.place, &header, &slot.sum);
    }

    fn flags_of(&self, slot: &Slot) -> u8 {
        let overflow = slot.overflow && !self.errs(Mistake::OverflowLost);
        let marked = slot.marked && !self.errs(Mistake::MarkLost);
        (u8::from(overflow) * OVERFLOW) | (u8::from(marked) * MARKED)
    }

    fn publish(&mut self, place: usize, header: &Header, payload: &[u8], keep: bool) {
        let job = self.job(place);
        let group = group_of(job.roster.job);
        let base = self.own.expect("set").base_port;
        let ports = job.ports;
        let frame = self.frame_to(Mac::of_group(group), group, base, header, payload);
        self.leave(frame.clone(), ports);
        if !keep {
            return;
        }
        let at = self.ring_at(header.fragment);
        self.ring[place][at] = Kept {
            used: true,
            fragment: header.fragment.0,
            frame,
        };
        let newest = self.job(place).newest_result;
        if newest.is_none_or(|newest| self.ahead(header.fragment, newest) > 0) {
            let job = self.jobs[place].as_mut().expect("a loaded place");
            job.newest_result = Some(header.fragment);
        }
    }

    fn data(&mut self, place: usize, header: &Header, payload: &[u8]) {
        let resend = header.flags.0 & RESEND != 0;
        let fragment = header.fragment;
        match self.standing(place, fragment) {
            Standing::Finished if resend => {
                self.count("results_again");
                let frame = self.ring[place][self.ring_at(fragment)].frame.clone();
                let job = self.job(place);
                let port = job.roster.workers[usize::from(header.rank.0)].port.0;
                let all = self.errs(Mistake::ResendToAllPorts);
                let ports = if all { job.ports } else { 1 << port };
                self.leave(frame, ports);
                return;
            }
            Standing::Finished | Standing::Old => return self.count("late"),
            Standing::Open => {}
        }
        self.reach(place, fragment);
        let at = (hash_of(header.job).wrapping_add(fragment.0) & (self.shape.slots - 1)) as usize;
        let all = self.job(place).roster.all();
        let elsewhere = self.ranks(place, fragment);
        let hit = self.slots[at]
            .as_ref()
            .is_some_and(|slot| slot.place == place && slot.fragment == fragment);
        if hit {
            let now = self.now;
            let stuck = if self.errs(Mistake::StuckEarly) {
                499
            } else {
                500
            };
            let slot = self.slots[at].as_ref().expect("hit");
            if slot.bitmap & header.bitmap != 0 && !self.errs(Mistake::DuplicateAdded) {
                if resend && now.wrapping_sub(slot.grew) >= stuck {
                    let bitmap = slot.bitmap;
                    self.note(place, fragment, bitmap);
                    self.evict(at, RESEND);
                    return self.count("resends_to_ps");
                }
                return self.count("duplicate");
            }
            if slot.split && elsewhere & header.bitmap != 0 {
                if resend && !self.errs(Mistake::SplitResendDropped) {
                    self.count("resends_to_ps");
                    return self.pass_on(place, header, 0, payload);
                }
                return self.count("duplicate");
            }
            if slot.element != header.element && !self.errs(Mistake::ElementIgnored) {
                return self.count("element-mismatch");
            }
            let highest = slot.priority.max(header.priority);
            let priority = match self.mistake {
                Some(Mistake::PriorityLast) => header.priority,
                Some(Mistake::PriorityMissed) => slot.priority,
                _ => highest,
            };
            self.slots[at].as_mut().expect("hit").priority = priority;
        } else {
            if resend {
                self.count("resends_to_ps");
                return self.pass_on(place, header, 0, payload);
            }
            if elsewhere & header.bitmap != 0 {
                return self.count("duplicate");
            }
            if !self.make_room(at, header.priority) {
                self.count("collisions");
                return self.pass_on(place, header, COLLISION, payload);
            }
            // Not what it was above, if the victim's note took its place.
            let elsewhere = self.ranks(place, fragment);
            self.count("slots_taken");
            self.slots[at] = Some(Slot {
                place,
                fragment,
                bitmap: 0,
                grew: self.now,
                priority: header.priority,
                element: header.element,
                folded: 0,
                overflow: false,
                marked: false,
                split: elsewhere != 0 && !self.errs(Mistake::SplitForgotten),
                sum: payload.to_vec(),
            });
        }
        self.add(place, at, header, payload);
        // An eviction has put its ranks there by then.
        let elsewhere = self.ranks(place, fragment);
        let Some(slot) = &self.slots[at] else { return };
        if slot.split {
            if slot.bitmap | elsewhere == all && !self.errs(Mistake::NeverFollows) {
                let bitmap = slot.bitmap;
                self.count("followed");
                self.note(place, fragment, bitmap);
                self.evict(at, 0);
            }
        } else if slot.bitmap == all {
            let slot = self.slots[at].take().expect("looked at");
            self.count("results");
            if slot.overflow {
                self.count("overflows");
            }
            let header = Header {
                kind: Kind::Result,
                flags: tally_wire::Flags(self.flags_of(&slot)),
                priority: slot.priority,
                rank: Rank::SWITCH,
                bitmap: all,
                ..*header
            };
            self.publish(place, &header, &slot.sum, true);
        }
    }

    /// Whether the slot is free now.
    fn make_room(&mut self, at: usize, priority: u8) -> bool {
        let Some(slot) = &self.slots[at] else {
            return true;
        };
        // No job: only with a mistake.
        if self.jobs[slot.place].is_none() || self.is_past(slot) {
            self.slots[at] = None;
            self.count("abandoned");
            return true;
        }
        let yields = priority > slot.priority
            || priority == slot.priority && self.errs(Mistake::EqualPreempts);
        if yields {
            let (owner, fragment, bitmap) = (slot.place, slot.fragment, slot.bitmap);
            self.count("preemptions");
            if !self.errs(Mistake::NoteOfVictimLost) {
                self.note(owner, fragment, bitmap);
            }
            let lost = self.errs(Mistake::CollisionFlagLost);
            self.evict(at, if lost { 0 } else { COLLISION });
            return true;
        }
        if !self.errs(Mistake::NoHalving) {
            self.slots[at].as_mut().expect("taken").priority /= 2;
        }
        false
    }

    fn add(&mut self, place: usize, at: usize, header: &Header, payload: &[u8]) {
        let errs = |mistake| self.mistake == Some(mistake);
        let (nan, flush) = (
            errs(Mistake::NanPayloadKept),
            errs(Mistake::SubnormalsFlushed),
        );
        let only_up = errs(Mistake::SaturationOnlyUp);
        let slot = self.slots[at].as_mut().expect("there is one");
        let ordered = !matches!(header.element, Element::I32 | Element::Scale);
        let turn = if header.element == Element::F32 {
            slot.folded
        } else {
            0
        };
        if ordered && header.rank.0 != turn && self.mistake != Some(Mistake::OrderIgnored) {
            slot.split = self.mistake != Some(Mistake::OutOfTurnNotSplit);
            if slot.bitmap == 0 {
                self.slots[at] = None;
            }
            self.count("held_full");
            return self.pass_on(place, header, 0, payload);
        }
        if slot.bitmap != 0 {
            let sum = &mut slot.sum;
            match header.element {
                Element::I32 => {
                    for (a, b) in sum.chunks_exact_mut(4).zip(payload.chunks_exact(4)) {
                        let a: &mut [u8; 4] = a.try_into().expect("four");
                        let b = i32::from_be_bytes(b.try_into().expect("four"));
                        let (plain, over) = i32::from_be_bytes(*a).overflowing_add(b);
                        let full = i32::from_be_bytes(*a).saturating_add(b);
                        slot.overflow |= over && (!only_up || full > 0);
                        *a = if only_up && full < 0 { plain } else { full }.to_be_bytes();
                    }
                }
                Element::F32 => {
                    for (a, b) in sum.chunks_exact_mut(4).zip(payload.chunks_exact(4)) {
                        let a: &mut [u8; 4] = a.try_into().expect("four");
                        let b = f32::from_le_bytes(b.try_into().expect("four"));
                        let mut c = f32::from_le_bytes(*a) + b;
                        if c.is_nan() && !(nan && b.is_nan()) {
                            c = f32::from_bits(0x7fc0_0000);
                        } else if c.is_nan() {
                            c = b;
                        }
                        if flush && c.is_subnormal() {
                            c = 0.0;
                        }
                        *a = c.to_le_bytes();
                    }
                }
                _ => {
                    for (a, b) in sum.iter_mut().zip(payload) {
                        *a = (*a).max(*b);
                    }
                }
            }
        }
        slot.bitmap |= header.bitmap;
        slot.marked |= header.flags.0 & MARKED != 0;
        slot.folded += u8::from(ordered);
        if self.mistake != Some(Mistake::StuckGrowIgnored) {
            slot.grew = self.now;
        }
        self.count("contributions");
    }

    fn result_of_ps(&mut self, place: usize, header: &Header, payload: &[u8]) {
        if !matches!(self.standing(place, header.fragment), Standing::Open) {
            return self.count("late");
        }
        if !self.errs(Mistake::NewestOfDataOnly) {
            self.reach(place, header.fragment);
        }
        if let Some(at) = self.find(place, header)
            && !self.errs(Mistake::ResultOfPsLeavesSlot)
        {
            self.slots[at] = None;
        }
        self.count("results_from_ps");
        if header.flags.0 & OVERFLOW != 0 {
            self.count("overflows");
        }
        let from_ps = if self.errs(Mistake::FromPsLost) {
            0
        } else {
            FROM_PS
        };
        let header = Header {
            rank: Rank::SWITCH,
            flags: tally_wire::Flags(header.flags.0 | from_ps),
            ..*header
        };
        let keep = !self.errs(Mistake::ResultOfPsNotKept);
        self.publish(place, &header, payload, keep);
    }

    fn find(&self, place: usize, header: &Header) -> Option<usize> {
        let hash = hash_of(header.job);
        let at = (hash.wrapping_add(header.fragment.0) & (self.shape.slots - 1)) as usize;
        let slot = self.slots[at].as_ref()?;
        (slot.place == place && slot.fragment == header.fragment).then_some(at)
    }

    fn remind(&mut self, place: usize, header: &Header) {
        self.count("reminds");
        let open = matches!(self.standing(place, header.fragment), Standing::Open);
        if let Some(at) = self.find(place, header).filter(|_| open) {
            let bitmap = self.slots[at].as_ref().expect("found").bitmap;
            if !self.errs(Mistake::RemindNotNoted) {
                self.note(place, header.fragment, bitmap);
            }
            if self.errs(Mistake::RemindLeavesSlot) {
                return;
            }
            return self.evict(at, 0);
        }
        let finished = !open && !self.errs(Mistake::FinishedLost);
        let answer = Header {
            kind: Kind::NotHere,
            flags: tally_wire::Flags(u8::from(finished) * FINISHED),
            rank: Rank::SWITCH,
            ..*header
        };
        self.send_to_ps(place, &answer, &[]);
    }

    fn take(&mut self, place: usize, header: &Header, payload: &[u8]) {
        match header.kind {
            Kind::Data => self.data(place, header, payload),
            Kind::Result if header.rank == Rank::PS => self.result_of_ps(place, header, payload),
            Kind::Result => self.send_to_ps(place, header, payload),
            Kind::Remind => self.remind(place, header),
            _ => {
                self.count("nacks");
                let roster = &self.job(place).roster;
                let to = match roster.workers.get(usize::from(header.rank.0)) {
                    Some(worker) if !self.errs(Mistake::NackToPs) => *worker,
                    _ => roster.ps,
                };
                let frame = self.frame_to(to.mac, to.ip, to.udp_port, header, &[]);
                self.leave(frame, 1 << to.port.0);
            }
        }
    }

    fn clear_place(&mut self, place: usize) {
        if !self.errs(Mistake::UnloadLeavesSlots) {
            for slot in &mut self.slots {
                if slot.as_ref().is_some_and(|slot| slot.place == place) {
                    *slot = None;
                }
            }
        }
        if !self.errs(Mistake::UnloadLeavesRing) {
            self.ring[place].fill(Kept::default());
        }
        if !self.errs(Mistake::UnloadLeavesNotes) {
            self.notes[place].fill((0, 0));
        }
    }
}

const RESEND: u8 = 0x01;
const OVERFLOW: u8 = 0x02;
const FROM_PS: u8 = 0x04;
const FINISHED: u8 = 0x08;
const MARKED: u8 = 0x10;
const COLLISION: u8 = 0x20;

impl Card for Table {
    fn set_own(&mut self, own: &Own) -> Result<(), String> {
        self.own = Some(*own);
        Ok(())
    }

    fn load(&mut self, place: u8, roster: &Roster) -> Result<(), String> {
        let place = usize::from(place);
        let ports = roster.ports.iter().fold(0, |mask, port| mask | 1 << port.0);
        if self.jobs[place].is_some() && self.errs(Mistake::ReloadForgetsSlots) {
            self.clear_place(place);
        }
        let old = self.errs(Mistake::GroupPortsOld);
        if let Some(job) = &mut self.jobs[place] {
            job.roster = roster.clone();
            job.ports = if old { job.ports } else { ports };
        } else {
            self.jobs[place] = Some(Job {
                roster: roster.clone(),
                ports,
                newest: None,
                newest_result: None,
            });
        }
        Ok(())
    }

    fn unload(&mut self, place: u8) -> Result<(), String> {
        self.jobs[usize::from(place)] = None;
        self.clear_place(place.into());
        Ok(())
    }

    fn offer(&mut self, frame: &[u8], flaw: Flaw) {
        let own = self.own.expect("set");
        self.add_to("frames_in", 1);
        self.add_to("beats_in", frame.len().div_ceil(64));
        if let Some(name) = shows(flaw, frame.len()) {
            return self.count(name);
        }
        if frame.len() > self.shape.frame_max() {
            return self.count("stream-oversize");
        }
        let mut inner = frame.to_vec();
        let port = mac_at(frame, 0).and_then(port_of);
        if port.is_some() {
            inner[..6].copy_from_slice(&own.mac.0);
        }
        match classify(&inner, port.unwrap_or(NO_PORT), &own) {
            Fate::Pass => self.pass(frame),
            Fate::Drop(reason) => self.count(reason.name()),
            Fate::Take(header, from, shard) => match self.admit(&from, &header, shard) {
                Err(DropReason::UnknownJob) => self.pass(frame),
                Err(reason) => self.count(reason.name()),
                Ok(place) => {
                    let end = if self.errs(Mistake::PaddingKept) {
                        inner.len()
                    } else {
                        64 + header.payload_bytes()
                    };
                    self.take(place, &header, &inner[64..end]);
                }
            },
        }
    }

    fn ticks(&mut self, milliseconds: u32) {
        self.now = self.now.wrapping_add(milliseconds as u16);
    }

    fn set_gaps(&mut self, _gaps: Gaps, _seed: u64) {}

    fn settle(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let sent = std::mem::take(&mut self.sent);
        self.add_to("frames_out", sent.len());
        let beats = sent.iter().map(|frame| frame.len().div_ceil(64));
        self.add_to("beats_out", beats.sum());
        Ok(sent)
    }

    fn counters(&mut self) -> Result<Counts, String> {
        Ok(self.counts.clone())
    }

    fn cycles(&self) -> u64 {
        0
    }
}
