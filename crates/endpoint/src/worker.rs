//! A worker's session: one incarnation of one job, from JOIN to LEAVE.
//!
//! The session moves through four phases. *Joining* repeats JOIN until the switch says that the
//! job runs (J-1). *Running* sends every fragment that was submitted once, inside the window,
//! probes those that seem lost and retransmits what a NACK asks for; JOIN now is a heartbeat.
//! *Leaving* repeats LEAVE until the switch lets go (J-7). *Closed* says nothing any more. What a
//! fragment contains is the business of the caller's [`Gradients`].

mod awaiting;
mod congestion;
mod demand;
mod flight;
mod interface;
mod membership;
mod place;
mod stall;
mod window;

use crate::control::Control;
use crate::error::{Awaited, Hint, Ranks, WorkerError};
use crate::{SWITCH_MAC_FOR, Transmit};
use awaiting::Awaiting;
pub use congestion::CongestionStats;
use congestion::{Congestion, in_flight};
use core::time::Duration;
use flight::Flight;
pub use interface::{
    Contribution, Delivery, Event, Gradients, Members, Retransmissions, Slowest, WorkerConfig,
    WorkerStats,
};
use membership::{header_rank, members};
use place::Global;
use std::collections::VecDeque;
use tally_wire::control::{Behind, LeaveCode};
use tally_wire::header::HEADER_BYTES;
use tally_wire::{
    Accept, AuthTag, Ecn, Element, Epoch, EpochSecret, Flags, FragmentId, Header, Key, Kind,
    MAX_TREE_WORKERS, Mac, Rank, RankRange, Time, UNIT_BYTES,
};
use window::{Asked, Cause, Taken, Window};

/// Between JOINs while the job waits for members, and between LEAVEs (J-1, J-7).
const EAGER: Duration = Duration::from_millis(50);
/// Period of JOIN as a heartbeat. J-1 allows 500 ms; a busy machine may be late.
const ALIVE: Duration = Duration::from_millis(400);
/// The switch's word on who is behind is as old as two heartbeats, or three if one is lost. So it
/// is about the fragment that we wait for, once we have waited this long when the switch says it
/// (J-10).
const SETTLED: Duration = Duration::from_secs(1);
/// A call that comes later after its time than this one means that this worker stood still (a
/// stopped process, a suspended guest). That time counts neither as silence of the switch nor as a
/// stall of the job.
const LATE: Duration = Duration::from_secs(1);
enum Phase {
    Joining,
    Running,
    /// With the error to end with, if any, and when to stop trying.
    Leaving {
        code: LeaveCode,
        fragment: FragmentId,
        behind: Ranks,
        /// The same of ranks elsewhere in a tree.
        elsewhere: Option<RankRange>,
        error: Option<WorkerError>,
        until: Time,
    },
    Closed,
}

/// A run of fragments of one priority.
struct Submission {
    end: u64,
    priority: u8,
}

/// A worker's session. See the [crate's documentation](crate) for the polling order.
pub struct Worker {
    config: WorkerConfig,
    control: Control,
    /// Our rank at our switch; the global one in a job without a tree.
    local: Rank,
    phase: Phase,
    window: Window,
    congestion: Congestion,
    flight: Flight,
    submissions: VecDeque<Submission>,
    /// One past the last fragment that was submitted.
    end: u64,
    /// Fragments of the whole job, if known.
    total: Option<u64>,
    /// No more will be submitted.
    finishing: bool,
    /// All that was submitted has been delivered, and said so.
    delivered: bool,
    /// Results that the PS asked for.
    asked: VecDeque<u64>,
    events: VecDeque<Event>,
    accepted: Option<Accept>,
    /// Ranks that had joined at some time, also those that gave up waiting.
    came: u64,
    /// When the switch said last who is behind.
    told: Option<(Time, Behind)>,
    awaiting: Awaiting,
    hint: Option<Hint>,
    started: Time,
    /// The last call.
    observed: Time,
    next_control: Time,
    last_heard: Time,
    /// The last result, or submission after all were delivered.
    last_progress: Time,
    stats: WorkerStats,
}

impl Worker {
    /// A session that starts to join at once.
    ///
    /// # Panics
    /// If the configuration's numbers are out of the ranges that it documents.
    #[must_use]
    pub fn new(now: Time, config: WorkerConfig) -> Self {
        assert!((1..=MAX_TREE_WORKERS).contains(&config.workers) && config.rank < config.workers);
        assert!((1..=tally_wire::MAX_UNITS).contains(&config.units));
        assert!(config.window >= 1 && config.instance != 0);
        Self {
            control: Control {
                key: config.key.clone(),
                next_key: None,
                job: config.job,
                rank: header_rank(&config),
                instance: config.instance,
                challenge: 0,
                epoch: Epoch(0),
                salt: 0,
                secret: None,
            },
            local: header_rank(&config),
            phase: Phase::Joining,
            window: Window::new(config.first_fragment, config.window),
            congestion: Congestion::new(in_flight(config.window)),
            flight: Flight::default(),
            submissions: VecDeque::with_capacity(8),
            end: config.first_fragment,
            total: None,
            finishing: false,
            delivered: true,
            asked: VecDeque::with_capacity(usize::from(config.window)),
            events: VecDeque::with_capacity(8),
            accepted: None,
            came: 0,
            told: None,
            awaiting: Awaiting::new(now),
            hint: None,
            started: now,
            observed: now,
            next_control: now,
            last_heard: now,
            last_progress: now,
            stats: WorkerStats::default(),
            config,
        }
    }

    /// Appends `fragments` fragments to the stream, to be sent with `priority` (255 first).
    /// Several messages may follow one another; all workers must submit the same ones.
    ///
    /// # Panics
    /// After [`finish`](Self::finish).
    pub fn submit(&mut self, now: Time, fragments: u64, priority: u8) {
        assert!(!self.finishing, "submit after finish");
        if fragments == 0 {
            return;
        }
        if self.delivered {
            self.delivered = false;
            self.awaiting.begins(now);
            self.last_progress = now;
        }
        self.end += fragments;
        self.submissions.push_back(Submission {
            end: self.end,
            priority,
        });
    }

    /// Leaves the job once everything that was submitted has its result.
    pub fn finish(&mut self, now: Time) {
        self.finishing = true;
        self.leave_if_done(now);
    }

    /// Leaves the job now, because the user of the session was interrupted.
    pub fn interrupt(&mut self, now: Time) {
        self.leave_with(now, LeaveCode::Interrupted, 0, WorkerError::Interrupted);
    }

    /// Leaves the job now, because the user of the session ends it.
    pub fn give_up(&mut self, now: Time) {
        self.leave_with(now, LeaveCode::Failed, 0, WorkerError::GivenUp);
    }

    /// Has another key from the moment on when the switch has it; the epoch that runs continues.
    pub fn set_key(&mut self, key: Key) {
        self.control.set_key(key);
    }

    /// What the switch refused last, since it last accepted us.
    #[must_use]
    pub fn hint(&self) -> Option<Hint> {
        self.hint
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &WorkerStats {
        &self.stats
    }

    /// Typical time (lower quartile) from a contribution to its result, once one was measured.
    #[must_use]
    pub fn typical_latency(&self) -> Option<Duration> {
        self.window.rtt().typical()
    }

    /// How long a contribution waits for its result before it is sent again.
    #[must_use]
    pub fn rto(&self) -> Duration {
        self.window.rto()
    }

    /// The link window and the aggregation window, in fragments (C-3).
    #[must_use]
    pub fn windows(&self) -> (u32, u32) {
        self.congestion.windows()
    }

    /// Fragments of the job, from its first, that have results without a gap.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.window.base() - self.config.first_fragment
    }

    /// Whether nothing more will be sent or happen.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// The secret of the epoch, once the switch has given one.
    #[must_use]
    pub fn secret(&self) -> Option<EpochSecret> {
        self.control.secret
    }

    /// The switch's MAC of the last ACCEPT, which takes the place of ARP's.
    ///
    /// `None` before the first ACCEPT, and after [`SWITCH_MAC_FOR`] without an authentic frame from
    /// the switch.
    #[must_use]
    pub fn switch_mac(&self, now: Time) -> Option<Mac> {
        let accept = self.accepted.as_ref()?;
        (now.since(self.last_heard) < SWITCH_MAC_FOR).then_some(accept.mac)
    }

    /// Who takes part, once the switch has said so.
    #[must_use]
    pub fn members(&self) -> Option<Members> {
        self.accepted.as_ref().map(members)
    }

    /// Whom the oldest fragment without a result waits for; known about a second after the last
    /// result.
    #[must_use]
    pub fn awaited(&self) -> Awaited {
        let waits = matches!(self.phase, Phase::Running) && !self.delivered;
        let Some((at, behind)) = self.told.filter(|_| waits) else {
            return Awaited::Unknown;
        };
        if at.since(self.last_progress) < SETTLED {
            return Awaited::Unknown;
        }
        let oldest = FragmentId(self.window.base() as u32);
        if behind.least.ahead_of(oldest) > 0 {
            return Awaited::NoRank;
        }
        match self.stragglers(&behind) {
            // Of us it has heard nothing new.
            it if it.is_empty() => Awaited::Unknown,
            Global {
                range: Some(range), ..
            } => Awaited::Range(range),
            Global { ranks, .. } => Awaited::Ranks(ranks),
        }
    }

    /// Global ranks of the others that have not contributed.
    fn stragglers(&self, behind: &Behind) -> Global {
        let place = self.accepted.as_ref().and_then(|accept| accept.place);
        let elsewhere = place.and_then(|place| place.elsewhere);
        Global::of(place, behind.ranks & !self.local.bit(), elsewhere)
    }

    /// Who is slowest, as the switch said last (J-11); once all have said how long they wait.
    #[must_use]
    pub fn slowest(&self) -> Option<Slowest> {
        let (_, behind) = self.told.filter(|_| matches!(self.phase, Phase::Running))?;
        Some(Slowest {
            rank: (self.accepted.as_ref())
                .and_then(|accept| accept.place)
                .map_or(u16::from(behind.slowest.0), |place| place.slowest),
            awaiting: behind.awaiting,
            ours: self.awaiting.share(),
        })
    }

    // --- what comes in ---------------------------------------------------------------------

    /// Takes a datagram (Tally header and payload) that came from the switch's address, and what
    /// its IP header said of congestion.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        ecn: Ecn,
        datagram: &[u8],
        io: &mut impl Gradients,
    ) {
        self.observe(now);
        let Ok(header) = Header::parse(datagram).map(|header| header.received_with(ecn)) else {
            self.stats.foreign += 1;
            return;
        };
        if header.job != self.config.job {
            self.stats.foreign += 1;
            return;
        }
        match header.kind {
            Kind::Result => self.handle_result(now, &header, &datagram[HEADER_BYTES..], io),
            Kind::Nack => self.handle_nack(now, &header),
            Kind::Accept => match self.control.accept(&header, datagram) {
                Some(accept) => self.handle_accept(now, header.epoch, accept),
                None => self.stats.unauthentic += 1,
            },
            Kind::Refuse => match self.control.refuse(&header, datagram) {
                Some(refuse) => self.handle_refuse(now, &refuse),
                None => self.stats.unauthentic += 1,
            },
            Kind::Join
            | Kind::Leave
            | Kind::Data
            | Kind::Partial
            | Kind::Remind
            | Kind::NotHere
            | Kind::Probe => self.stats.foreign += 1,
        }
    }

    fn handle_result(
        &mut self,
        now: Time,
        header: &Header,
        payload: &[u8],
        io: &mut impl Gradients,
    ) {
        if header.epoch != self.control.epoch || header.epoch == Epoch(0) {
            self.stats.late += 1;
            return;
        }
        if !self.is_authentic(header) {
            return;
        }
        if header.rank != Rank::SWITCH || header.units != self.config.units {
            self.stats.foreign += 1;
            return;
        }
        self.last_heard = now;
        let [marked, collided] = [Flags::MARKED, Flags::COLLISION].map(|f| header.flags.has(f));
        let (fragment, element) = (header.fragment, header.element);
        match self.window.take(now, fragment, element, collided) {
            Taken::Foreign => self.stats.foreign += 1,
            Taken::Duplicate => {
                self.stats.duplicates += 1;
            }
            Taken::New { seq, .. } if header.flags.has(Flags::OVERFLOW) => {
                self.overflow(now, seq);
            }
            Taken::New { seq, latency } => {
                let from_ps = header.flags.has(Flags::FROM_PS);
                if from_ps {
                    self.stats.from_ps += 1;
                } else {
                    self.stats.from_switch += 1;
                }
                self.last_progress = now;
                let stats = &mut self.stats.congestion;
                self.congestion.result(marked, collided, stats);
                self.flight.result(now, self.window.rtt().least());
                let delivery = Delivery { latency, from_ps };
                io.result(seq, header.element, payload, delivery);
                if self.window.base() == self.end && !self.delivered {
                    self.delivered = true;
                    self.awaiting.ends(now);
                    self.events.push_back(Event::Delivered);
                    self.leave_if_done(now);
                }
            }
        }
    }

    /// Whether a frame of our epoch has the right tag.
    fn is_authentic(&mut self, header: &Header) -> bool {
        let good = self.control.verifies(header);
        self.stats.unauthentic += u64::from(!good);
        good
    }

    fn handle_nack(&mut self, now: Time, header: &Header) {
        if header.epoch != self.control.epoch || header.rank != self.local {
            self.stats.late += 1;
            return;
        }
        if !self.is_authentic(header) {
            return;
        }
        self.last_heard = now;
        if let Asked::Result { seq } = self.window.asked(now, header.fragment) {
            // Bounded: what does not fit will be asked for again (P-3).
            if self.asked.len() < usize::from(self.config.window) && !self.asked.contains(&seq) {
                self.asked.push_back(seq);
            }
        }
    }

    // --- what goes out ---------------------------------------------------------------------

    /// Writes the next datagram to `out`, if there is one to send now.
    ///
    /// # Panics
    /// If `out` is shorter than [`datagram_bytes`](crate::datagram_bytes) of the units.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        out: &mut [u8],
        io: &mut impl Gradients,
    ) -> Option<Transmit> {
        if self.is_closed() {
            return None;
        }
        self.observe(now);
        if self.next_control <= now {
            return Some(self.transmit_control(now, out));
        }
        match self.phase {
            Phase::Running => {
                if let Some(transmit) = self.transmit_again(now, out, io) {
                    return Some(transmit);
                }
            }
            Phase::Leaving { error: None, .. } => {}
            _ => return None,
        }
        if let Some(transmit) = self.transmit_asked(out, io) {
            return Some(transmit);
        }
        self.transmit_new(now, out, io)
    }

    fn transmit_again(
        &mut self,
        now: Time,
        out: &mut [u8],
        io: &mut impl Gradients,
    ) -> Option<Transmit> {
        let again = self.window.pop_retransmit()?;
        self.window.retransmitted(now, &again);
        let counts = &mut self.stats.retransmissions;
        match again.cause {
            Cause::Timeout => counts.probes_timeout += 1,
            Cause::Early => counts.probes_early += 1,
            Cause::Nack => counts.contributions += 1,
        }
        if again.cause != Cause::Nack {
            let header = Header {
                kind: Kind::Probe,
                units: 0,
                bitmap: 0,
                ..self.data_header(again.seq, Element::None, 0, Flags::NONE)
            };
            return Some(self.emit(out, &header));
        }
        let contribution = io.contribute(again.seq, self.payload(out));
        // Elements that their owner has changed meanwhile.
        if contribution == Contribution::Overflow {
            self.overflow(now, again.seq);
            return None;
        }
        assert_eq!(contribution, Contribution::Ready(again.element), "W-3");
        let flags = Flags::RESEND;
        Some(self.emit_data(out, again.seq, again.element, again.priority, flags))
    }

    fn transmit_asked(&mut self, out: &mut [u8], io: &mut impl Gradients) -> Option<Transmit> {
        while let Some(seq) = self.asked.pop_front() {
            if let Some(element) = io.stored_result(seq, self.payload(out)) {
                self.stats.results_resent += 1;
                let header = Header {
                    kind: Kind::Result,
                    bitmap: 0,
                    ..self.data_header(seq, element, 0, Flags::NONE)
                };
                return Some(self.emit(out, &header));
            }
        }
        None
    }

    fn transmit_new(
        &mut self,
        now: Time,
        out: &mut [u8],
        io: &mut impl Gradients,
    ) -> Option<Transmit> {
        if !self.is_open() {
            return None;
        }
        let seq = self.window.next();
        let element = match io.contribute(seq, self.payload(out)) {
            Contribution::Ready(element) => element,
            Contribution::NotReady => return None,
            Contribution::Overflow => {
                self.overflow(now, seq);
                return None;
            }
        };
        while self.submissions.front().is_some_and(|s| s.end <= seq) {
            self.submissions.pop_front();
        }
        let priority = self.priority_of(seq);
        self.window.sent_new(now, element, priority);
        self.stats.fragments += 1;
        Some(self.emit_data(out, seq, element, priority, Flags::NONE))
    }

    /// Ends the job for all: an integer of fragment `seq` left its range.
    fn overflow(&mut self, now: Time, seq: u64) {
        let error = WorkerError::Overflow { fragment: seq };
        self.leave_with(now, LeaveCode::Overflow, seq, error);
    }

    fn payload<'a>(&self, out: &'a mut [u8]) -> &'a mut [u8] {
        &mut out[HEADER_BYTES..][..usize::from(self.config.units) * UNIT_BYTES]
    }

    fn data_header(&self, seq: u64, element: Element, priority: u8, flags: Flags) -> Header {
        Header {
            kind: Kind::Data,
            flags,
            priority,
            element,
            job: self.config.job,
            epoch: self.control.epoch,
            fragment: FragmentId(seq as u32),
            rank: self.local,
            units: self.config.units,
            bitmap: self.local.bit(),
            tag: AuthTag::NONE,
        }
    }

    fn emit_data(
        &self,
        out: &mut [u8],
        seq: u64,
        element: Element,
        priority: u8,
        flags: Flags,
    ) -> Transmit {
        self.emit(out, &self.data_header(seq, element, priority, flags))
    }

    fn emit(&self, out: &mut [u8], header: &Header) -> Transmit {
        self.control.seal(*header).emit(out);
        let (base, shards) = self
            .accepted
            .as_ref()
            .map_or((self.config.port, 1), |a| (a.base_port, a.shards));
        Transmit {
            len: HEADER_BYTES + header.payload_bytes(),
            port: base + (header.fragment.0 % u32::from(shards)) as u16,
        }
    }

    // --- time ------------------------------------------------------------------------------

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called, unless something else
    /// happens first.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let phase = match self.phase {
            Phase::Closed => return None,
            Phase::Joining => self.started.after(self.config.join_timeout),
            Phase::Leaving { until, .. } => until,
            Phase::Running => {
                let stall = self.last_progress.after(self.config.stall_timeout);
                [self.window.deadline(), (!self.delivered).then_some(stall)]
                    .into_iter()
                    .flatten()
                    .min()
                    .unwrap_or(self.next_control)
            }
        };
        Some(phase.min(self.next_control))
    }

    /// Notes the time of a call, and excludes the time in which this worker stood still (see
    /// [`LATE`]).
    fn observe(&mut self, now: Time) {
        let since = now.since(core::mem::replace(&mut self.observed, now));
        if since <= LATE {
            return;
        }
        let late = self
            .poll_timeout()
            .map_or(Duration::ZERO, |due| now.since(due))
            .min(since);
        if late > LATE {
            for at in [
                &mut self.last_heard,
                &mut self.last_progress,
                &mut self.started,
            ] {
                *at = at.after(late);
            }
        }
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.observe(now);
        match self.phase {
            Phase::Closed => {}
            Phase::Joining => {
                if self.started.after(self.config.join_timeout) <= now {
                    // Or our place would be taken for a member by those that come after us.
                    let error = self.not_started(self.config.join_timeout);
                    self.leave_with(now, LeaveCode::Failed, 0, error);
                }
            }
            Phase::Running => {
                self.window.expire(now);
                let after = self.config.stall_timeout;
                if !self.delivered && self.last_progress.after(after) <= now {
                    if let Some(error) = self.switch_silent(now, after) {
                        return self.leave_with(now, LeaveCode::Failed, 0, error);
                    }
                    let (fragment, error) = (self.window.base(), self.stalled(after));
                    self.leave_with(now, LeaveCode::Stalled, fragment, error);
                }
            }
            Phase::Leaving { until, .. } => {
                if until <= now {
                    self.close();
                }
            }
        }
    }

    /// The next thing that the caller may want to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
