//! A card as the table in docs/FPGA.md has it, row by row: what each memory of the pipeline keeps,
//! and nothing of the engine. It shows that the table is right, and with one [`Mistake`] in it that
//! the scripts find mistakes.

use super::card::{Card, Counts, Own, Shape, hash_of};
use super::checks::{Fate, classify};
use super::reference::{NO_PORT, flaw_of, mac_at, write_headers};
use tally_bridge::registers::COUNTERS;
use tally_card::{Flaw, Gaps};
use tally_engine::offload::tags::{mask_mac, port_of};
use tally_engine::{DropReason, Member, Roster};
use tally_wire::frame::{emit, group_of};
use tally_wire::{Addresses, AuthTag, Element, FragmentId, Header, Kind, Mac, Rank};

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
    NackRankIgnored,
    ChildIgnored,
    ChildFlagsRefused,
    ChildFlagsLost,
    ChildFlagsOfFirst,
    ChildFlagsOfLast,
    PaddingKept,
    OldTaken,
    OldOffByOne,
    RingOfAnother,
    ResendToAllPorts,
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
    TagRequired,
    TagForwarded,
    TrailerInLength,
    BitmapInResult,
    WorkerResultToPs,
    WorkerResultFromPs,
    WorkerResultKeepsFlag,
    WorkerResultNotKept,
    WorkerResultUncounted,
    ResendAlwaysToPs,
    ResendNeverToPs,
    ResendCollisionUncounted,
    ResendCollisionNotNoted,
    ProbeUncounted,
    ProbeRingIgnored,
    ProbeOldAnswered,
    ProbeToAllPorts,
    ProbeOfAnotherSlot,
    ProbeAsksAsker,
    ProbeAsksLowest,
    ProbeAsksAbove,
    ProbeNeverWraps,
    ProbeIgnoresSlot,
    ProbeIgnoresNote,
    ProbeToPsFirst,
    ProbeAloneDropped,
    ProbeReaches,
    ProbeNackToAsker,
    ProbeNackOfAsker,
    ProbeNackPriorityLost,
    ProbeOfSwitch,
}

struct Slot {
    place: usize,
    fragment: FragmentId,
    bitmap: u64,
    priority: u8,
    element: Element,
    folded: u8,
    overflow: bool,
    marked: bool,
    /// OVERFLOW and COLLISION of child switches.
    of_children: u8,
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
struct CachedResult {
    used: bool,
    fragment: u32,
    frame: Vec<u8>,
}

/// The card.
pub struct Table {
    mistake: Option<Mistake>,
    own: Option<Own>,
    shape: Shape,
    slots: Vec<Option<Slot>>,
    jobs: Vec<Option<Job>>,
    /// By place and fragment.
    ring: Vec<Vec<CachedResult>>,
    notes: Vec<Vec<(u32, u64)>>,
    counts: Counts,
    sent: Vec<Vec<u8>>,
}

enum ResultState {
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
            slots: (0..shape.slots).map(|_| None).collect(),
            jobs: (0..jobs).map(|_| None).collect(),
            ring: vec![vec![CachedResult::default(); ring]; jobs],
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
            Kind::Data | Kind::Probe => header.rank,
            Kind::Result => header.rank,
            Kind::Remind | Kind::Nack => Rank::PS,
            _ => return Err(DropReason::NotForSwitch),
        };
        let of = |job: &Option<Job>| job.as_ref().is_some_and(|j| j.roster.job == header.job);
        let place = self
            .jobs
            .iter()
            .position(of)
            .ok_or(DropReason::UnknownJob)?;
        // No job of the card has a parent.
        if sender == Rank::SWITCH {
            return Err(DropReason::NotForSwitch);
        }
        let job = self.job(place);
        let mut member = *job
            .roster
            .sender(sender, header.fragment)
            .ok_or(DropReason::RankOutOfJob)?;
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
        // TR-7.
        if header.kind == Kind::Data && header.flags.0 & OF_SUMS != 0 {
            let is_child = job.roster.switches & header.rank.bit() != 0;
            if !is_child && !self.errs(Mistake::ChildIgnored)
                || self.errs(Mistake::ChildFlagsRefused)
            {
                return Err(DropReason::Reserved);
            }
        }
        if header.kind == Kind::Nack
            && job.roster.all() & header.rank.bit() == 0
            && !self.errs(Mistake::NackRankIgnored)
        {
            return Err(DropReason::RankOutOfJob);
        }
        Ok(place)
    }

    fn ring_at(&self, fragment: FragmentId) -> usize {
        fragment.0 as usize & (self.shape.ring as usize - 1)
    }

    fn state(&self, place: usize, fragment: FragmentId) -> ResultState {
        let kept = &self.ring[place][self.ring_at(fragment)];
        if kept.used && (kept.fragment == fragment.0 || self.errs(Mistake::RingOfAnother)) {
            return ResultState::Finished;
        }
        let late = i64::from(self.shape.ring) + i64::from(self.errs(Mistake::OldOffByOne));
        match self.job(place).newest_result {
            Some(newest)
                if self.ahead(newest, fragment) >= late && !self.errs(Mistake::OldTaken) =>
            {
                ResultState::Old
            }
            _ => ResultState::Open,
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
        if h.kind != Kind::Partial {
            h.bitmap = 0;
        }
        if h.check().is_err() {
            // With a mistake. `emit` would not have it.
            h.element = Element::I32;
        }
        let mut frame = vec![0; 64];
        if self.errs(Mistake::TrailerInLength) {
            emit(&mut frame, &addresses, &h);
        } else {
            write_headers(&mut frame, &addresses, &h);
        }
        let last = match h.kind {
            Kind::Nack if self.errs(Mistake::TagForwarded) => h.tag.0,
            Kind::Result if self.errs(Mistake::BitmapInResult) => 1,
            _ => u64::from_be_bytes(*frame[56..].first_chunk().expect("64 bytes")),
        };
        frame[56..64].copy_from_slice(&last.to_be_bytes());
        frame.extend_from_slice(p);
        frame
    }

    fn leave(&mut self, mut frame: Vec<u8>, ports: u16) {
        frame[6..12].copy_from_slice(&mask_mac(ports).0);
        self.sent.push(frame);
    }

    fn to_ps(&self, place: usize, header: &Header, payload: &[u8]) -> Vec<u8> {
        let ps = self.job(place).roster.servers[0];
        self.frame_to(ps.mac, ps.ip, ps.udp_port, header, payload)
    }

    fn send_to_ps(&mut self, place: usize, header: &Header, payload: &[u8]) {
        let frame = self.to_ps(place, header, payload);
        self.leave(frame, 1 << self.job(place).roster.servers[0].port.0);
    }

    /// PASS: the arrival goes out as PARTIAL.
    fn pass_on(&mut self, place: usize, header: &Header, why: u8, payload: &[u8]) {
        self.count("partials");
        let mut flags = header.flags.0 | why;
        if self.errs(Mistake::ResendFlagLost) {
            flags &= !RESEND;
        }
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
    fn evict(&mut self, at: usize, why: u8) {
        let slot = self.slots[at].take().expect("a taken slot");
        self.count("partials");
        let roster = &self.job(slot.place).roster;
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
            tag: AuthTag::NONE,
        };
        self.send_to_ps(slot.place, &header, &slot.sum);
    }

    fn flags_of(&self, slot: &Slot) -> u8 {
        let overflow = slot.overflow && !self.errs(Mistake::OverflowLost);
        let marked = slot.marked && !self.errs(Mistake::MarkLost);
        (u8::from(overflow) * OVERFLOW) | (u8::from(marked) * MARKED) | slot.of_children
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
        self.ring[place][at] = CachedResult {
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

    /// AGAIN: the RESULT from the ring, on the port of the one that asks.
    fn again(&mut self, place: usize, header: &Header, to_all: Mistake) {
        self.count("results_again");
        let at = self.ring_at(header.fragment);
        let frame = self.ring[place][at].frame.clone();
        let job = self.job(place);
        let port = job.roster.workers[usize::from(header.rank.0)].port.0;
        let ports = if self.errs(to_all) {
            job.ports
        } else {
            1 << port
        };
        self.leave(frame, ports);
    }

    fn data(&mut self, place: usize, header: &Header, payload: &[u8]) {
        let resend = header.flags.0 & RESEND != 0;
        let fragment = header.fragment;
        match self.state(place, fragment) {
            ResultState::Finished if resend => {
                return self.again(place, header, Mistake::ResendToAllPorts);
            }
            ResultState::Finished | ResultState::Old => return self.count("late"),
            ResultState::Open => {}
        }
        self.reach(place, fragment);
        let at = (hash_of(header.job).wrapping_add(fragment.0) & (self.shape.slots - 1)) as usize;
        let all = self.job(place).roster.all();
        let elsewhere = self.ranks(place, fragment);
        let hit = self.slots[at]
            .as_ref()
            .is_some_and(|slot| slot.place == place && slot.fragment == fragment);
        if hit {
            let slot = self.slots[at].as_ref().expect("hit");
            if slot.bitmap & header.bitmap != 0 && !self.errs(Mistake::DuplicateAdded) {
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
            let noted = elsewhere != 0 && !self.errs(Mistake::ResendNeverToPs);
            if resend && (noted || self.errs(Mistake::ResendAlwaysToPs)) {
                self.count("resends_to_ps");
                return self.pass_on(place, header, 0, payload);
            }
            if elsewhere & header.bitmap != 0 {
                return self.count("duplicate");
            }
            if !self.make_room(at, header.priority) {
                self.count("collisions");
                if resend && !self.errs(Mistake::ResendCollisionUncounted) {
                    self.count("resends_to_ps");
                }
                let notes = self.notes[place].clone();
                self.pass_on(place, header, COLLISION, payload);
                if resend && self.errs(Mistake::ResendCollisionNotNoted) {
                    self.notes[place] = notes;
                }
                return;
            }
            // Not what it was above, if the victim's note took its place.
            let elsewhere = self.ranks(place, fragment);
            self.count("slots_taken");
            self.slots[at] = Some(Slot {
                place,
                fragment,
                bitmap: 0,
                priority: header.priority,
                element: header.element,
                folded: 0,
                overflow: false,
                marked: false,
                of_children: 0,
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
            if self.flags_of(&slot) & OVERFLOW != 0 {
                self.count("overflows");
            }
            let header = Header {
                kind: Kind::Result,
                flags: tally_wire::Flags(self.flags_of(&slot)),
                priority: slot.priority,
                rank: Rank::SWITCH,
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
        let of_child = header.flags.0 & OF_SUMS;
        let is_first = slot.bitmap == 0;
        match self.mistake {
            Some(Mistake::ChildFlagsLost) => {}
            Some(Mistake::ChildFlagsOfFirst) if !is_first => {}
            Some(Mistake::ChildFlagsOfLast) => slot.of_children = of_child,
            _ => slot.of_children |= of_child,
        }
        slot.bitmap |= header.bitmap;
        slot.marked |= header.flags.0 & MARKED != 0;
        slot.folded += u8::from(ordered);
        self.count("contributions");
    }

    /// From the PS or from a worker.
    fn result(&mut self, place: usize, header: &Header, payload: &[u8]) {
        let of_ps = header.rank == Rank::PS;
        if !of_ps && self.errs(Mistake::WorkerResultToPs) {
            return self.send_to_ps(place, header, payload);
        }
        if !matches!(self.state(place, header.fragment), ResultState::Open) {
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
        if of_ps {
            self.count("results_from_ps");
        } else if !self.errs(Mistake::WorkerResultUncounted) {
            self.count("results_from_workers");
        }
        if header.flags.0 & OVERFLOW != 0 {
            self.count("overflows");
        }
        let cleared = match of_ps || self.errs(Mistake::WorkerResultKeepsFlag) {
            true => header.flags.0,
            false => header.flags.0 & !FROM_PS,
        };
        let from_ps = match of_ps {
            true => !self.errs(Mistake::FromPsLost),
            false => self.errs(Mistake::WorkerResultFromPs),
        };
        let header = Header {
            rank: Rank::SWITCH,
            flags: tally_wire::Flags(cleared | (u8::from(from_ps) * FROM_PS)),
            ..*header
        };
        let keep = !self.errs(match of_ps {
            true => Mistake::ResultOfPsNotKept,
            false => Mistake::WorkerResultNotKept,
        });
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
        let open = matches!(self.state(place, header.fragment), ResultState::Open);
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

    /// S-7, in its order.
    fn probe(&mut self, place: usize, header: &Header) {
        if !self.errs(Mistake::ProbeUncounted) {
            self.count("probes");
        }
        match self.state(place, header.fragment) {
            ResultState::Finished if !self.errs(Mistake::ProbeRingIgnored) => {
                return self.again(place, header, Mistake::ProbeToAllPorts);
            }
            ResultState::Old if !self.errs(Mistake::ProbeOldAnswered) => return self.count("late"),
            _ => {}
        }
        if self.errs(Mistake::ProbeReaches) {
            self.reach(place, header.fragment);
        }
        let noted = self.ranks(place, header.fragment);
        let here = if self.errs(Mistake::ProbeOfAnotherSlot) {
            let hash = hash_of(header.job).wrapping_add(header.fragment.0);
            let at = (hash & (self.shape.slots - 1)) as usize;
            self.slots[at].as_ref()
        } else {
            self.find(place, header)
                .and_then(|at| self.slots[at].as_ref())
        };
        let missing = here.map_or(0, |slot| {
            let in_slot = match self.mistake {
                Some(Mistake::ProbeIgnoresSlot) => 0,
                _ => slot.bitmap,
            };
            let noted = match self.mistake {
                Some(Mistake::ProbeIgnoresNote) => 0,
                _ => noted,
            };
            self.job(place).roster.all() & !(in_slot | noted)
        });
        let to_ps = missing == 0 || self.errs(Mistake::ProbeToPsFirst);
        if noted != 0 && to_ps {
            let rank = match self.mistake {
                Some(Mistake::ProbeOfSwitch) => Rank::SWITCH,
                _ => header.rank,
            };
            let mut frame = self.to_ps(place, header, &[]);
            frame[54] = rank.0;
            return self.leave(frame, 1 << self.job(place).roster.servers[0].port.0);
        }
        if missing == 0 && self.errs(Mistake::ProbeAloneDropped) {
            return;
        }
        self.count("probe_nacks");
        let rank = self.asked(missing, header.rank.0);
        let nack = Header {
            kind: Kind::Nack,
            rank: match self.mistake {
                Some(Mistake::ProbeNackOfAsker) => header.rank,
                _ => Rank(rank),
            },
            priority: match self.mistake {
                Some(Mistake::ProbeNackPriorityLost) => 0,
                _ => header.priority,
            },
            ..*header
        };
        let to = match self.mistake {
            Some(Mistake::ProbeNackToAsker) => header.rank.0,
            _ => rank,
        };
        let worker = self.job(place).roster.workers[usize::from(to)];
        let frame = self.frame_to(worker.mac, worker.ip, worker.udp_port, &nack, &[]);
        self.leave(frame, 1 << worker.port.0);
    }

    /// The rank that is asked for its contribution: the asker, or the next that is missing.
    fn asked(&self, missing: u64, asker: u8) -> u8 {
        let from = match self.mistake {
            Some(Mistake::ProbeAsksAsker) => return asker,
            Some(Mistake::ProbeAsksLowest) => 0,
            Some(Mistake::ProbeAsksAbove) => asker + 1,
            _ => asker,
        };
        let above = (from..64).find(|rank| missing >> rank & 1 != 0);
        let any = (0..64).find(|rank| missing >> rank & 1 != 0);
        let wrapped = any.filter(|_| !self.errs(Mistake::ProbeNeverWraps));
        above.or(wrapped).unwrap_or(asker)
    }

    fn take(&mut self, place: usize, header: &Header, payload: &[u8]) {
        match header.kind {
            Kind::Data => self.data(place, header, payload),
            Kind::Result => self.result(place, header, payload),
            Kind::Remind => self.remind(place, header),
            Kind::Probe => self.probe(place, header),
            _ => {
                self.count("nacks");
                let roster = &self.job(place).roster;
                let to = match roster.workers.get(usize::from(header.rank.0)) {
                    Some(worker) if !self.errs(Mistake::NackToPs) => *worker,
                    _ => roster.servers[0],
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
            self.ring[place].fill(CachedResult::default());
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
const OF_SUMS: u8 = OVERFLOW | COLLISION;

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
        if let Some(name) = flaw_of(flaw, frame.len(), &self.shape) {
            return self.count(name);
        }
        let mut inner = frame.to_vec();
        let port = mac_at(frame, 0).and_then(port_of);
        if port.is_some() {
            inner[..6].copy_from_slice(&own.mac.0);
        }
        match classify(&inner, port.unwrap_or(NO_PORT), &own) {
            Fate::Pass => self.pass(frame),
            Fate::Drop(reason) => self.count(reason.name()),
            Fate::Take(header, ..) if header.tag.0 != 0 && self.errs(Mistake::TagRequired) => {
                self.count("bitmap");
            }
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

    fn set_gaps(&mut self, _gaps: Gaps, _seed: u64) {}

    fn drain(&mut self) -> Result<Vec<Vec<u8>>, String> {
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
