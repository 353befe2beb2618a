//! The parameter server's session for one job: it finishes what the switch could not (section 7).
//!
//! It joins and stays, over as many incarnations as the workers open; a new epoch makes it forget
//! the old one (J-5). Partials are merged per fragment; what stays incomplete is asked for, in
//! rounds that get twice as long each time: first REMIND to the switch, then REMIND again and NACK
//! to every missing worker (P-3). When to ask first is learnt from how asking goes. The repeated
//! REMIND is needed: a missing worker's contribution may have opened a new slot in the switch after
//! the first, and its answer to NACK would be dropped there as a duplicate.
//!
//! Memory: at most `4 · window` fragments (rounded up to a power of two) of one payload each, and
//! of one payload for each worker while f32 fragments wait for their turn. Each of several servers
//! needs its share of that (P-6).

mod demand;
mod interface;
mod table;
mod timeout;

use crate::control::Control;
use crate::error::{Hint, Ranks};
use crate::{SWITCH_MAC_FOR, Transmit};
use core::time::Duration;
pub use interface::{PsConfig, PsEvent, PsStats};
use std::collections::VecDeque;
use table::{Asked, Merged, ROUNDS, State, Table};
use tally_kernels::Kernels;
use tally_wire::control::{LeaveCode, Reason, Role, State as JobState};
use tally_wire::header::HEADER_BYTES;
use tally_wire::{
    Accept, AuthTag, Ecn, Element, Epoch, Flags, FragmentId, Header, JobId, Join, Key, Kind, Leave,
    Mac, Part, Rank, Refuse, Time, UNIT_BYTES, all_ranks,
};
use timeout::{PERIOD_MAX, PERIOD_MIN, Timeout};

/// Between JOINs while the job does not run.
const EAGER: Duration = Duration::from_millis(50);
/// Period of JOIN as a heartbeat. J-1 allows 500 ms; a busy machine may be late.
const ALIVE: Duration = Duration::from_millis(400);
/// How long LEAVE is repeated without an answer.
const LEAVE_FOR: Duration = Duration::from_millis(300);
/// How often the time doubles for which a PROBE does not make the PS ask again.
const PROBE_DOUBLINGS: u8 = 12;
/// The last round comes at the longest period.
const _: () = assert!(PERIOD_MIN.as_nanos() << (ROUNDS - 1) >= PERIOD_MAX.as_nanos());

enum Phase {
    Serving,
    Leaving { until: Time },
    Closed,
}

/// A parameter server's session. See the [crate's documentation](crate) for the polling order.
pub struct Ps {
    port: u16,
    part: Part,
    control: Control,
    kernels: Kernels,
    phase: Phase,
    accepted: Option<Accept>,
    /// There is one from the first ACCEPT that names a payload on.
    table: Option<Table>,
    /// Slots with something pending.
    queue: VecDeque<usize>,
    timeout: Timeout,
    next_control: Time,
    /// The last ACCEPT.
    last_accept: Time,
    /// The membership is static: no JOIN, no LEAVE.
    is_seated: bool,
    hint: Option<Hint>,
    events: VecDeque<PsEvent>,
    stats: PsStats,
}

impl Ps {
    /// A session that starts to join at once.
    ///
    /// # Panics
    /// If the instance is 0.
    #[must_use]
    pub fn new(now: Time, config: PsConfig, kernels: Kernels) -> Self {
        assert!(config.instance != 0);
        Self {
            port: config.port,
            part: config.part,
            control: Control {
                key: config.key,
                next_key: None,
                job: config.job,
                rank: Rank::PS,
                instance: config.instance,
                challenge: 0,
                epoch: Epoch(0),
                salt: 0,
                secret: None,
            },
            kernels,
            phase: Phase::Serving,
            accepted: None,
            table: None,
            queue: VecDeque::new(),
            timeout: Timeout::new(),
            next_control: now,
            last_accept: now,
            is_seated: false,
            hint: None,
            events: VecDeque::with_capacity(8),
            stats: PsStats::default(),
        }
    }

    /// A session for a job whose members are fixed in the switch's configuration: there is no JOIN,
    /// and the job runs from the start without end. `accept` is what the switch would say in
    /// `epoch`.
    ///
    /// # Panics
    /// If the instance is 0.
    #[must_use]
    pub fn seated(
        now: Time,
        config: PsConfig,
        kernels: Kernels,
        epoch: Epoch,
        accept: Accept,
    ) -> Self {
        let mut ps = Self::new(now, config, kernels);
        ps.handle_accept(now, epoch, accept);
        ps.is_seated = true;
        ps.next_control = Time(u64::MAX);
        ps
    }

    /// The job that is served.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.control.job
    }

    /// The fragments that it completes.
    #[must_use]
    pub fn part(&self) -> Part {
        self.part
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &PsStats {
        &self.stats
    }

    /// Has another key from the moment on when the switch has it; the epoch that runs continues.
    pub fn set_key(&mut self, key: Key) {
        self.control.set_key(key);
    }

    /// The switch's MAC of the last ACCEPT, which takes the place of ARP's.
    ///
    /// `None` before the first ACCEPT, and [`SWITCH_MAC_FOR`] after the last one.
    #[must_use]
    pub fn switch_mac(&self, now: Time) -> Option<Mac> {
        let accept = self.accepted.as_ref()?;
        (now.since(self.last_accept) < SWITCH_MAC_FOR).then_some(accept.mac)
    }

    /// Leaves the job.
    pub fn leave(&mut self, now: Time) {
        if matches!(self.phase, Phase::Serving) {
            self.next_control = now;
            self.phase = Phase::Leaving {
                until: now.after(LEAVE_FOR),
            };
            if self.accepted.is_none() || self.is_seated {
                self.close();
            }
        }
    }

    /// Whether nothing more will be sent or happen.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    fn close(&mut self) {
        self.phase = Phase::Closed;
        self.events.push_back(PsEvent::Left);
    }

    // --- what comes in ---------------------------------------------------------------------

    /// Takes a datagram (Tally header and payload) that came from the switch's address, and what
    /// its IP header said of congestion.
    pub fn handle_datagram(&mut self, now: Time, ecn: Ecn, datagram: &[u8]) {
        let Ok(header) = Header::parse(datagram).map(|header| header.received_with(ecn)) else {
            self.stats.foreign += 1;
            return;
        };
        if header.job != self.control.job {
            self.stats.foreign += 1;
            return;
        }
        if self.is_closed() {
            self.stats.late += 1;
            return;
        }
        match header.kind {
            Kind::Accept => match self.control.accept(&header, datagram) {
                Some(accept) => self.handle_accept(now, header.epoch, accept),
                None => self.stats.unauthentic += 1,
            },
            Kind::Refuse => match self.control.refuse(&header, datagram) {
                Some(refuse) => self.handle_refuse(now, &refuse),
                None => self.stats.unauthentic += 1,
            },
            Kind::Partial | Kind::NotHere | Kind::Probe => {
                if header.epoch != self.control.epoch || header.epoch == Epoch(0) {
                    self.stats.late += 1;
                } else if !self.control.verifies(&header) {
                    self.stats.unauthentic += 1;
                } else {
                    let payload = &datagram[HEADER_BYTES..][..header.payload_bytes()];
                    self.handle_fragment(now, &header, payload);
                }
            }
            Kind::Join | Kind::Leave | Kind::Data | Kind::Result | Kind::Remind | Kind::Nack => {
                self.stats.foreign += 1;
            }
        }
    }

    fn handle_fragment(&mut self, now: Time, header: &Header, payload: &[u8]) {
        let Some((table, accept)) = self.table.as_mut().zip(self.accepted.as_ref()) else {
            self.stats.late += 1;
            return;
        };
        let all = all_ranks(accept.workers);
        let sized = header.kind != Kind::Partial || payload.len() == table.payload_bytes();
        if header.bitmap & !all != 0 || !sized || !self.part.has(header.fragment) {
            self.stats.foreign += 1;
            return;
        }
        let known = table.find(header.fragment);
        let found = if header.kind == Kind::NotHere {
            known
        } else {
            let (element, priority) = (header.element, header.priority);
            table.find_or_take(now, header.fragment, element, priority)
        };
        let Some(slot) = found else {
            self.stats.late += 1;
            return;
        };
        match header.kind {
            Kind::Partial => self.handle_partial(now, slot, header, payload, all),
            Kind::NotHere => self.handle_not_here(now, slot, header.flags.has(Flags::FINISHED)),
            _ => self.handle_probe(now, slot, known.is_none(), all),
        }
    }

    fn handle_partial(
        &mut self,
        now: Time,
        slot: usize,
        header: &Header,
        payload: &[u8],
        all: u64,
    ) {
        let Some(table) = &mut self.table else { return };
        let entry = &mut table.entries[slot];
        if entry.element == Element::None {
            // A PROBE was here first.
            entry.element = header.element;
        }
        // H-3
        let is_part =
            header.element.is_narrow() && !header.bitmap.is_power_of_two() && header.bitmap != all;
        if entry.element != header.element || is_part {
            self.stats.foreign += 1;
            return;
        }
        self.stats.partials += 1;
        if entry.state == State::Done {
            // P-2
            self.stats.duplicates += 1;
            if header.flags.has(Flags::RESEND) && !entry.pending.result {
                self.stats.results_resent += 1;
                entry.pending.result = true;
                self.enqueue(slot);
            }
            return;
        }
        let merged = table.merge(slot, header.bitmap, payload);
        match merged {
            Merged::New => {}
            Merged::Duplicate => self.stats.duplicates += 1,
            Merged::Overlap { missing } => {
                self.stats.overlaps += 1;
                table.entries[slot].pending.nack |= missing;
                self.enqueue(slot);
                return;
            }
        }
        let entry = &mut table.entries[slot];
        entry.overflow |= header.flags.has(Flags::OVERFLOW);
        entry.congestion = entry.congestion.with(congestion_of(header));
        entry.priority = entry.priority.max(header.priority);
        if !header.flags.has(Flags::RESEND) && entry.asked.was_too_early() {
            self.timeout.too_early(now, entry.born);
        }
        // What has come need not be asked for.
        entry.pending.nack &= !entry.have;
        if entry.have == all {
            match entry.asked {
                Asked { times: 0, .. } if header.flags.has(Flags::RESEND) => {
                    self.timeout.asked_by_worker(now, entry.born);
                }
                Asked { times: 0, .. } => self.timeout.whole(now, entry.born),
                Asked {
                    times: 1,
                    nothing: false,
                    ..
                } => self.timeout.enough(now, entry.born, entry.armed),
                _ => {}
            }
            self.stats.results += 1;
            table.complete(slot);
            self.stats.overflows += u64::from(table.entries[slot].overflow);
            self.enqueue(slot);
            return;
        }
        // A worker that retransmits what is here waits as we do, and an answer to NACK may have
        // been lost.
        let in_vain = merged == Merged::Duplicate && header.flags.has(Flags::RESEND);
        let waited = now.since(entry.armed) >= self.timeout.period(0);
        if in_vain
            && waited
            && entry.asked.nothing
            && let Some(round) = table.lists.list_of(slot)
        {
            self.ask(now, slot, round, all);
        }
    }

    /// The switch, and after the first round the workers that are missing, for a fragment in this
    /// round.
    fn ask(&mut self, now: Time, slot: usize, round: usize, all: u64) {
        let Some(table) = &mut self.table else { return };
        let entry = &mut table.entries[slot];
        entry.armed = now;
        entry.asked.times = entry.asked.times.saturating_add(1);
        entry.pending.remind = true;
        if round > 0 {
            entry.pending.nack |= all & !entry.have;
        }
        table.lists.remove(slot);
        table.lists.push((round + 1).min(ROUNDS - 1), slot);
        self.enqueue(slot);
    }

    /// P-4: a worker misses the result of a fragment of which the switch has nothing but notes that
    /// it came here.
    fn handle_probe(&mut self, now: Time, slot: usize, is_new: bool, all: u64) {
        self.stats.probes += 1;
        let Some(table) = &mut self.table else { return };
        let entry = &mut table.entries[slot];
        if entry.state == State::Done {
            if !entry.pending.result {
                self.stats.results_resent += 1;
                entry.pending.result = true;
                self.enqueue(slot);
            }
            return;
        }
        // Several workers miss the same result at the same time. They have waited, each for its
        // RTO; a straggler may let them wait for longer.
        let backoff = PERIOD_MIN * (1 << entry.asked.times.min(PROBE_DOUBLINGS));
        let was_asked = now.since(entry.armed) < backoff.min(self.timeout.period(0));
        if is_new || !was_asked {
            let round = table.lists.list_of(slot).unwrap_or(0).max(1);
            self.ask(now, slot, round, all);
        }
    }

    fn handle_not_here(&mut self, now: Time, slot: usize, finished: bool) {
        let Some((table, accept)) = self.table.as_mut().zip(self.accepted.as_ref()) else {
            return;
        };
        self.stats.not_here += 1;
        let entry = &mut table.entries[slot];
        if entry.state != State::Collecting {
            return;
        }
        if finished {
            self.stats.forgotten += 1;
            // All contributions were there.
            if entry.asked.times == 1 {
                self.timeout.enough(now, entry.born, entry.armed);
            }
            table.free(slot);
            return;
        }
        entry.asked.nothing = entry.asked.times > 0;
        // In later rounds the workers have been asked along with the switch.
        if entry.asked.nothing && table.lists.list_of(slot) == Some(1) {
            entry.pending.nack |= all_ranks(accept.workers) & !entry.have;
            entry.armed = now;
            table.lists.remove(slot);
            table.lists.push(2, slot);
            self.enqueue(slot);
        }
    }

    fn enqueue(&mut self, slot: usize) {
        if let Some(table) = &mut self.table
            && !table.entries[slot].queued
        {
            table.entries[slot].queued = true;
            self.queue.push_back(slot);
        }
    }

    fn handle_accept(&mut self, now: Time, epoch: Epoch, accept: Accept) {
        if matches!(self.phase, Phase::Leaving { .. }) {
            return self.close();
        }
        let before = self.accepted.as_ref().map(|a| a.state);
        let renewed = (epoch, accept.salt) != (self.control.epoch, self.control.salt);
        self.hint = None;
        self.control.enter(epoch, &accept);
        if renewed {
            // J-5
            self.forget();
            self.next_control = now;
        }
        self.accepted = Some(accept);
        self.last_accept = now;
        let payload_bytes = usize::from(accept.units) * UNIT_BYTES;
        let slots = table::slots(accept.window, self.part);
        let fits = |t: &Table| t.payload_bytes() == payload_bytes && t.slots() == slots;
        if payload_bytes > 0 && !self.table.as_ref().is_some_and(fits) {
            self.queue.clear();
            self.queue.reserve(slots);
            self.table = Some(Table::new(
                accept.window,
                payload_bytes,
                self.kernels,
                self.part,
            ));
        }
        if before != Some(accept.state) || renewed {
            if accept.state == JobState::Running && !renewed {
                self.next_control = self.next_control.max(now.after(ALIVE));
            }
            self.events.push_back(match accept.state {
                JobState::Waiting => PsEvent::Joined { part: self.part },
                JobState::Running => PsEvent::Running {
                    epoch,
                    workers: accept.workers,
                },
                JobState::Ended => PsEvent::Ended { epoch },
            });
        }
    }

    fn handle_refuse(&mut self, now: Time, refuse: &Refuse) {
        let hint = match refuse.reason {
            Reason::UnknownJob => Hint::UnknownJob,
            // The switch does not have the next key yet, or has lost the one before.
            Reason::BadMac if self.control.next_key.is_some() => return,
            Reason::BadMac => Hint::BadKey,
            Reason::RankTaken => Hint::RankTaken,
            Reason::Draining => Hint::Draining,
            Reason::TenantJobs => Hint::TenantJobs(refuse.found, refuse.allowed),
            Reason::TenantWorkers => Hint::TenantWorkers(refuse.found, refuse.allowed),
            Reason::Parent => Hint::of_parent(refuse),
            Reason::Parts => Hint::Parts(refuse.found, refuse.allowed),
            Reason::Challenge => {
                if self.control.challenge != refuse.challenge {
                    self.control.challenge = refuse.challenge;
                    self.next_control = now;
                }
                return;
            }
            reason => {
                if matches!(self.phase, Phase::Leaving { .. }) {
                    return self.close();
                }
                if self.control.epoch != Epoch(0) {
                    self.events.push_back(PsEvent::Aborted {
                        reason,
                        rank: refuse.about,
                        behind: Ranks(refuse.behind),
                    });
                }
                self.control.exit();
                self.accepted = None;
                self.forget();
                return;
            }
        };
        if self.hint != Some(hint) {
            self.hint = Some(hint);
            self.events.push_back(PsEvent::Refused(hint));
        }
    }

    fn forget(&mut self) {
        if let Some(table) = &mut self.table {
            for slot in 0..table.slots() {
                table.free(slot);
                table.entries[slot].queued = false;
            }
        }
        self.queue.clear();
    }

    // --- what goes out ---------------------------------------------------------------------

    /// Writes the next datagram to `out`, if there is one to send now.
    ///
    /// # Panics
    /// If `out` is shorter than [`datagram_bytes`](crate::datagram_bytes) of the units of the
    /// job, which is never more than that of [`MAX_UNITS`](tally_wire::MAX_UNITS).
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        if self.is_closed() {
            return None;
        }
        if self.next_control <= now {
            return Some(self.transmit_control(now, out));
        }
        loop {
            let &slot = self.queue.front()?;
            match self.transmit_pending(slot, out) {
                Some(transmit) => return Some(transmit),
                None => {
                    self.queue.pop_front();
                    if let Some(table) = &mut self.table {
                        table.entries[slot].queued = false;
                    }
                }
            }
        }
    }

    fn transmit_control(&mut self, now: Time, out: &mut [u8]) -> Transmit {
        let (instance, challenge) = (self.control.instance, self.control.challenge);
        let len = if matches!(self.phase, Phase::Leaving { .. }) {
            self.next_control = now.after(EAGER);
            let leave = Leave {
                instance,
                challenge,
                code: LeaveCode::Finished,
                fragment: FragmentId(0),
                behind: 0,
                salt: self.control.salt,
                tree: None,
            };
            self.control.emit_leave(&leave, out)
        } else {
            let state = self.accepted.as_ref().map(|a| a.state);
            let running = state == Some(JobState::Running);
            let eager = self.control.apart(EAGER, now);
            self.next_control = now.after(if running { ALIVE } else { eager });
            let join = Join {
                instance,
                challenge,
                role: Role::Ps,
                workers: 0,
                units: 0,
                running: false,
                window: 0,
                shape: [0; 32],
                sent: None,
                awaiting: 0,
                salt: self.control.salt,
                tree: None,
                part: self.part,
            };
            self.control.emit_join(&join, out)
        };
        Transmit {
            len,
            port: self.port,
        }
    }

    /// One of the frames that the fragment in `slot` has to send.
    fn transmit_pending(&mut self, slot: usize, out: &mut [u8]) -> Option<Transmit> {
        let table = self.table.as_mut()?;
        let accept = self.accepted.as_ref()?;
        let entry = &mut table.entries[slot];
        let mut header = Header {
            kind: Kind::Remind,
            flags: Flags::NONE,
            priority: entry.priority,
            element: Element::None,
            job: self.control.job,
            epoch: self.control.epoch,
            fragment: entry.fragment,
            rank: Rank::PS,
            units: 0,
            bitmap: 0,
            tag: AuthTag::NONE,
        };
        if entry.pending.remind {
            entry.pending.remind = false;
            self.stats.reminds += 1;
        } else if entry.pending.nack != 0 {
            let rank = Rank(entry.pending.nack.trailing_zeros() as u8);
            entry.pending.nack &= !rank.bit();
            header.kind = Kind::Nack;
            header.rank = rank;
            self.stats.nacks += 1;
        } else if entry.pending.result {
            entry.pending.result = false;
            header.kind = Kind::Result;
            header.flags = Flags::FROM_PS
                .with(Flags::OVERFLOW.when(entry.overflow))
                .with(entry.congestion);
            header.element = entry.element;
            let sum = entry.result()?;
            header.units = (sum.len() / UNIT_BYTES) as u8;
            out[HEADER_BYTES..][..sum.len()].copy_from_slice(sum);
        } else {
            return None;
        }
        self.control.seal(header).emit(out);
        Some(Transmit {
            len: HEADER_BYTES + header.payload_bytes(),
            port: accept.base_port + (header.fragment.0 % u32::from(accept.shards)) as u16,
        })
    }

    // --- time ------------------------------------------------------------------------------

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called, unless something else
    /// happens first.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let control = match self.phase {
            Phase::Closed => return None,
            Phase::Serving => self.next_control,
            Phase::Leaving { until } => self.next_control.min(until),
        };
        let round = |round| {
            let table = self.table.as_ref()?;
            let entry = &table.entries[table.lists.head(round)?];
            Some(entry.armed.after(self.timeout.period(round as u32)))
        };
        (0..ROUNDS).filter_map(round).chain([control]).min()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Phase::Leaving { until } = self.phase
            && until <= now
        {
            self.close();
        }
        let Some(accept) = &self.accepted else { return };
        let all = all_ranks(accept.workers);
        // From the last round down, so that no fragment passes two rounds at once.
        for round in (0..ROUNDS).rev() {
            let period = self.timeout.period(round as u32);
            while let Some(table) = &self.table
                && let Some(slot) = table.lists.head(round)
                && table.entries[slot].armed.after(period) <= now
            {
                self.ask(now, slot, round, all);
            }
        }
    }

    /// The next thing that the caller may want to know.
    pub fn poll_event(&mut self) -> Option<PsEvent> {
        self.events.pop_front()
    }
}

/// What the header says of congestion (C-1, C-2).
fn congestion_of(header: &Header) -> Flags {
    let flag = |flag: Flags| flag.when(header.flags.has(flag));
    flag(Flags::MARKED).with(flag(Flags::COLLISION))
}

#[cfg(test)]
mod tests;
