//! One job's members: from idle over forming and running back to idle.
//!
//! The registry finds the job and checks the key; everything that follows from a good JOIN or LEAVE,
//! and from silence, is decided here.

mod answers;

use super::{Action, JobConfig, Refusals, RegistryConfig};
use crate::roster::{Member, Roster};
use std::collections::VecDeque;
use std::time::Duration;
use tally_wire::control::{Behind, DATAGRAM_BYTES, LeaveCode, Reason, Role, Shape, State};
use tally_wire::header::CONTROL_UNITS;
use tally_wire::{
    AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Join, Kind, Leave, Rank, Refuse,
    Time, all_ranks,
};

/// After this long without a sign of life another instance may take over a place that is not in the
/// middle of a job: three times the period of J-1.
const TAKEOVER: Duration = Duration::from_millis(1500);

/// Epochs that a new one of the same job differs from: frames of them may still be on their way.
const RECENT_EPOCHS: usize = 256;

/// Which epoch: numbers come again, the salt tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Incarnation {
    pub(super) epoch: Epoch,
    pub(super) salt: u64,
}

impl Incarnation {
    /// None: the job, or the member, has had no epoch.
    pub(super) const NONE: Self = Self {
        epoch: Epoch(0),
        salt: 0,
    };

    /// What a member says it is in.
    pub(super) fn said(epoch: Epoch, salt: u64) -> Self {
        match epoch {
            Epoch(0) => Self::NONE,
            epoch => Self { epoch, salt },
        }
    }
}

/// A member that has joined.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    member: Member,
    instance: u64,
    heard: Time,
    /// It came to the job without an epoch, and has not been told since that it runs.
    fresh: bool,
    /// The turn in which it said last that it is in the job's epoch.
    turn: u64,
    /// The instance that asked for its place, and for which the roll was called once more.
    rival: u64,
    /// The first fragment of the epoch that it has not contributed to, as it said last (J-10).
    sent: Option<FragmentId>,
    /// How much of its time it awaits results, as it said last (J-11).
    awaiting: u16,
}

impl Seat {
    fn new(visit: &Visit<'_>) -> Self {
        Self {
            member: visit.from,
            instance: visit.instance,
            heard: visit.now,
            fresh: visit.incarnation == Incarnation::NONE,
            turn: 0,
            rival: 0,
            sent: None,
            awaiting: 0,
        }
    }

    fn is(&self, visit: &Visit<'_>) -> bool {
        self.instance == visit.instance && self.member == visit.from
    }

    /// A JOIN that was overtaken, or comes twice, takes nothing back.
    fn has_sent(&mut self, sent: FragmentId, awaiting: u16) {
        if self.sent.is_none_or(|before| sent.ahead_of(before) >= 0) {
            (self.sent, self.awaiting) = (Some(sent), awaiting);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nobody has joined.
    Idle,
    /// Members are missing, and no shard knows of the epoch yet.
    Forming,
    /// All are there.
    Running,
    /// As running, but the PS has gone and none has come in its place.
    Paused,
}

/// What the first worker of an epoch said and the others must say too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    by: Rank,
    units: u8,
    shape: Shape,
}

/// How the last epoch ended, for members that ask afterwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    incarnation: Incarnation,
    /// The challenge of its last turn: who missed the news leaves with it.
    challenge: u64,
    outcome: Result<(), Refusal>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) config: JobConfig,
    pub(super) index: usize,
    pub(super) phase: Phase,
    pub(super) incarnation: Incarnation,
    /// Its last epochs, the latest first.
    recent: VecDeque<Epoch>,
    /// Incarnations drawn since the switch's start.
    drawn: u64,
    /// What the challenge is made from.
    pub(super) turn: u64,
    /// The turn of the last roll call (J-5): while it lasts, who is in its place says so.
    pub(super) called: u64,
    pub(super) workers: Vec<Option<Seat>>,
    pub(super) agreed: Option<Agreed>,
    pub(super) left: u64,
    /// Since when it is known that an epoch that forms has run before, under the switch's last
    /// start (J-4): all its workers are known, and no others may take part.
    pub(super) resumed: Option<Time>,
    /// A worker brought the epoch along, under the switch's last start (J-4): others may have run it.
    pub(super) brought: bool,
    pub(super) ps: Option<Seat>,
    /// The epoch that the PS has confirmed (J-5).
    pub(super) ps_incarnation: Incarnation,
    pub(super) ended: Option<Ending>,
    /// Members come from the configuration and stay.
    pub(super) fixed: bool,
}

/// One datagram being answered.
pub(super) struct Visit<'a> {
    pub(super) config: &'a RegistryConfig,
    pub(super) now: Time,
    pub(super) from: Member,
    pub(super) rank: Rank,
    pub(super) incarnation: Incarnation,
    pub(super) instance: u64,
    pub(super) refusals: &'a mut Refusals,
    pub(super) actions: Vec<Action>,
}

impl Visit<'_> {
    /// A refusal that cannot be authenticated.
    pub(super) fn hint(&mut self, job: JobId, reason: Reason) {
        if !self.refusals.take(self.now) {
            return;
        }
        let refuse = Refuse {
            instance: self.instance,
            challenge: 0,
            reason,
            about: None,
            found: 0,
            allowed: 0,
            behind: 0,
        };
        let mut datagram = Box::new([0; DATAGRAM_BYTES]);
        control_header(Kind::Refuse, job, Epoch(0), self.rank).emit(&mut *datagram);
        refuse.emit(&mut *datagram);
        self.actions.push(Action::Send(self.from, datagram));
    }
}

/// Why a job refuses, with the numbers that belong to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    reason: Reason,
    about: Option<Rank>,
    found: u32,
    allowed: u32,
    behind: u64,
}

impl Refusal {
    fn new(reason: Reason) -> Self {
        Self {
            reason,
            about: None,
            found: 0,
            allowed: 0,
            behind: 0,
        }
    }

    fn numbers(reason: Reason, found: impl Into<u32>, allowed: impl Into<u32>) -> Self {
        Self {
            found: found.into(),
            allowed: allowed.into(),
            ..Self::new(reason)
        }
    }

    fn about(self, rank: Rank) -> Self {
        Self {
            about: Some(rank),
            ..self
        }
    }
}

impl Job {
    pub(super) fn new(config: JobConfig, index: usize) -> Self {
        Self {
            index,
            phase: Phase::Idle,
            incarnation: Incarnation::NONE,
            recent: VecDeque::new(),
            drawn: 0,
            turn: 0,
            called: 0,
            workers: vec![None; usize::from(config.workers)],
            agreed: None,
            left: 0,
            resumed: None,
            brought: false,
            ps: None,
            ps_incarnation: Incarnation::NONE,
            ended: None,
            fixed: false,
            config,
        }
    }

    pub(super) fn all(&self) -> u64 {
        all_ranks(self.config.workers)
    }

    pub(super) fn joined(&self) -> u64 {
        let seats = self
            .workers
            .iter()
            .enumerate()
            .filter(|(_, seat)| seat.is_some());
        seats.fold(0, |bits, (rank, _)| bits | 1 << rank)
    }

    /// The seats with their ranks, the PS last.
    fn seats(&self) -> impl Iterator<Item = (Rank, &Seat)> {
        let workers = self.workers.iter().enumerate();
        let workers = workers.filter_map(|(r, seat)| Some((Rank(r as u8), seat.as_ref()?)));
        workers.chain(self.ps.iter().map(|seat| (Rank::PS, seat)))
    }

    pub(super) fn challenge(&self, config: &RegistryConfig) -> u64 {
        let digest = config.derive(b"challenge", self.config.id, self.turn);
        // Never 0: that is what a member says that has none.
        leading_u64(&digest) | 1
    }

    pub(super) fn join(&mut self, visit: &mut Visit<'_>, join: &Join) {
        if join.challenge != self.challenge(visit.config) {
            return self.refuse(visit, Refusal::new(Reason::Challenge));
        }
        let joined = match join.role {
            Role::Ps => self.join_ps(visit, join),
            Role::Worker => self.join_worker(visit, join),
        };
        match joined {
            Err(refusal) => self.refuse(visit, refusal),
            Ok(Joined::Now) => {
                let called = self.called;
                self.run_if_complete(visit);
                if self.called == called {
                    self.accept(visit, self.state());
                }
            }
            Ok(Joined::Before) => self.accept(visit, State::Ended),
        }
    }

    fn join_ps(&mut self, visit: &Visit<'_>, join: &Join) -> Result<Joined, Refusal> {
        if visit.rank != Rank::PS {
            return Err(Refusal::numbers(
                Reason::BadRank,
                visit.rank.0,
                self.config.workers,
            ));
        }
        if ![0, self.config.workers].contains(&join.workers) {
            return Err(Refusal::numbers(
                Reason::Workers,
                join.workers,
                self.config.workers,
            ));
        }
        if self.fixed {
            return Err(Refusal::new(Reason::RankTaken));
        }
        match &self.ps {
            Some(seat) if seat.is(visit) => {}
            Some(seat) if visit.now.since(seat.heard) < TAKEOVER => {
                return Err(Refusal::new(Reason::RankTaken));
            }
            Some(_) => {
                // Said by somebody new, or by the old one long ago: the next challenge will tell.
                self.lose_ps();
                return Err(Refusal::new(Reason::Challenge));
            }
            None => self.lose_ps(),
        }
        let before = self.ps.as_ref().map_or(0, |seat| seat.turn);
        self.ps = Some(Seat {
            turn: self.said(visit).unwrap_or(before),
            ..Seat::new(visit)
        });
        // What the same PS has confirmed, a JOIN that was overtaken does not take back.
        if self.ps_incarnation != self.incarnation || self.incarnation == Incarnation::NONE {
            self.ps_incarnation = visit.incarnation;
        }
        Ok(Joined::Now)
    }

    /// An epoch that runs goes on as soon as a PS has confirmed it again.
    fn lose_ps(&mut self) {
        self.turn += 1;
        self.ps = None;
        self.ps_incarnation = Incarnation::NONE;
        if self.phase == Phase::Running {
            self.phase = Phase::Paused;
        }
    }

    fn join_worker(&mut self, visit: &mut Visit<'_>, join: &Join) -> Result<Joined, Refusal> {
        if visit.rank.0 >= self.config.workers {
            return Err(Refusal::numbers(
                Reason::BadRank,
                visit.rank.0,
                self.config.workers,
            ));
        }
        if join.workers != self.config.workers {
            return Err(Refusal::numbers(
                Reason::Workers,
                join.workers,
                self.config.workers,
            ));
        }
        if join.units > visit.config.units {
            return Err(Refusal::numbers(
                Reason::Payload,
                join.units,
                visit.config.units,
            ));
        }
        if join.window > visit.config.window {
            return Err(Refusal::numbers(
                Reason::Window,
                join.window,
                visit.config.window,
            ));
        }
        if self.fixed {
            return Err(Refusal::new(Reason::RankTaken).about(visit.rank));
        }
        if visit.incarnation != Incarnation::NONE {
            // A member of an epoch that has ended hears how (J-6, J-7).
            match self.ended {
                Some(Ending {
                    incarnation,
                    outcome,
                    ..
                }) if incarnation == visit.incarnation => {
                    return outcome.map(|()| Joined::Before);
                }
                _ if !self.is_stale(visit.incarnation) => {}
                // The switch restarted while the job formed. Who has not been told that the epoch
                // runs has sent nothing in it, and is as good as new.
                _ if !join.running => visit.incarnation = Incarnation::NONE,
                _ => return Err(Refusal::new(Reason::StaleEpoch)),
            }
        }
        if join.running {
            self.resume(visit);
        }
        let called = self.called == self.turn;
        match &mut self.workers[usize::from(visit.rank.0)] {
            Some(seat) if seat.is(visit) => {}
            _ if self.resumed.is_some() && visit.incarnation == Incarnation::NONE => {
                return Err(Refusal::new(Reason::RankTaken).about(visit.rank));
            }
            Some(seat)
                if self.phase != Phase::Forming || visit.now.since(seat.heard) < TAKEOVER =>
            {
                // It may have died since it answered; but once for each that asks is enough.
                let doubtful = called && seat.turn == self.turn && seat.rival != visit.instance;
                if doubtful && self.phase == Phase::Forming {
                    seat.rival = visit.instance;
                    self.call(visit);
                }
                return Err(Refusal::new(Reason::RankTaken).about(visit.rank));
            }
            Some(_) => {
                // As with the PS. What the one that has gone agreed on goes with it.
                self.vacate(visit.rank);
                return Err(Refusal::new(Reason::Challenge));
            }
            None => {}
        }
        if let Some(agreed) = self.agreed {
            if agreed.units != join.units {
                let refusal = Refusal::numbers(Reason::Payload, join.units, agreed.units);
                return Err(refusal.about(agreed.by));
            }
            if agreed.shape != join.shape {
                return Err(Refusal::new(Reason::Shape).about(agreed.by));
            }
        }
        self.take_seat(visit);
        if let (Some(sent), Some(seat)) = (join.sent, &mut self.workers[usize::from(visit.rank.0)])
            && visit.incarnation == self.incarnation
        {
            seat.has_sent(sent, join.awaiting);
        }
        self.agreed.get_or_insert(Agreed {
            by: visit.rank,
            units: join.units,
            shape: join.shape,
        });
        Ok(Joined::Now)
    }

    /// Whether a member of this epoch has nothing to say any more: another is, or was, the last. Only
    /// a switch that has had none since its start does not know.
    fn is_stale(&self, incarnation: Incarnation) -> bool {
        self.incarnation != Incarnation::NONE && self.incarnation != incarnation
    }

    /// A worker that may is in its place, and in an epoch.
    fn take_seat(&mut self, visit: &mut Visit<'_>) {
        if self.phase == Phase::Idle {
            self.open(visit);
        }
        let said = self.said(visit);
        let seat = &mut self.workers[usize::from(visit.rank.0)];
        let before = match seat.take() {
            Some(seat) if seat.is(visit) => seat,
            _ => Seat::new(visit),
        };
        *seat = Some(Seat {
            heard: visit.now,
            turn: said.unwrap_or(before.turn),
            ..before
        });
    }

    /// The turn, if the visitor is in the job's epoch.
    fn said(&self, visit: &Visit<'_>) -> Option<u64> {
        (visit.incarnation == self.incarnation).then_some(self.turn)
    }

    /// A worker says that this epoch has run already: then the switch had restarted. Whoever has
    /// come without an epoch since is not the one that the others have summed with, but a new process
    /// in its place, and nothing that it says may meet what they say.
    fn resume(&mut self, visit: &Visit<'_>) {
        let known = matches!(self.phase, Phase::Running | Phase::Paused);
        if known || self.resumed.is_some() {
            return;
        }
        for rank in 0..self.config.workers {
            let seat = &self.workers[usize::from(rank)];
            if seat.as_ref().is_some_and(|seat| seat.fresh) {
                self.vacate(Rank(rank));
            }
        }
        self.resumed = Some(visit.now);
    }

    /// The first rank that has not come back to an epoch that has run.
    fn absent(&self) -> Option<Rank> {
        let missing = self.all() & !self.joined();
        (missing != 0).then(|| Rank(missing.trailing_zeros() as u8))
    }

    /// Who has contributed least and who is slowest, of those that have not left; only once all have said how far
    /// they are: who has not said may be behind them all.
    fn behind(&self) -> Option<Behind> {
        let mut behind: Option<Behind> = None;
        for rank in (0..self.config.workers).map(Rank) {
            if self.left & rank.bit() != 0 {
                continue;
            }
            let seat = self.workers[usize::from(rank.0)].as_ref()?;
            let (sent, awaiting) = (seat.sent?, seat.awaiting);
            let it = behind.get_or_insert(Behind {
                least: sent,
                ranks: 0,
                slowest: rank,
                awaiting,
            });
            let ahead = sent.ahead_of(it.least);
            if ahead < 0 {
                (it.least, it.ranks) = (sent, 0);
            }
            if ahead <= 0 {
                it.ranks |= rank.bit();
            }
            if awaiting < it.awaiting {
                (it.slowest, it.awaiting) = (rank, awaiting);
            }
        }
        behind
    }

    /// The place of a worker that has gone before the job ran.
    fn vacate(&mut self, rank: Rank) {
        self.workers[usize::from(rank.0)] = None;
        self.left &= !rank.bit();
        self.turn += 1;
        self.close_if_empty();
    }

    /// J-4.
    fn open(&mut self, visit: &mut Visit<'_>) {
        self.phase = Phase::Forming;
        self.turn += 1;
        self.brought = visit.incarnation != Incarnation::NONE;
        self.incarnation = match visit.incarnation {
            Incarnation::NONE => self.new_incarnation(visit.config),
            brought => brought,
        };
        self.remember();
    }

    /// Whether this epoch may have run before the switch's last start, with workers other than those that have come:
    /// one that was not told that it runs brought it along, and a new process has the place of one that may
    /// have been. Then the PS may have parts of that one.
    fn may_have_run(&self) -> bool {
        let mut seats = self.workers.iter().flatten();
        self.brought && self.resumed.is_none() && seats.any(|seat| seat.fresh)
    }

    /// All that have come move to a new epoch (J-4). They have sent nothing in this one.
    fn renew(&mut self, visit: &Visit<'_>) {
        self.brought = false;
        self.turn += 1;
        self.incarnation = self.new_incarnation(visit.config);
        self.remember();
    }

    fn remember(&mut self) {
        self.recent.truncate(RECENT_EPOCHS - 1);
        self.recent.push_front(self.incarnation.epoch);
    }

    /// An incarnation that nobody can foresee, of an epoch that no member or frame may still mean: after a
    /// restart of the switch members bring along epochs that it has not given.
    fn new_incarnation(&mut self, config: &RegistryConfig) -> Incarnation {
        loop {
            self.drawn += 1;
            let digest = config.derive(b"incarnation", self.config.id, self.drawn);
            let [e0, e1, salt @ ..] = digest;
            let new = Incarnation {
                epoch: Epoch(u16::from_be_bytes([e0, e1])),
                salt: leading_u64(&salt),
            };
            let known = [Epoch(0), self.ps_incarnation.epoch];
            if new.salt != 0 && !known.contains(&new.epoch) && !self.recent.contains(&new.epoch) {
                return new;
            }
        }
    }

    /// J-5: run when all are there and say so, or have come back to an epoch that has run.
    fn run_if_complete(&mut self, visit: &mut Visit<'_>) {
        if !matches!(self.phase, Phase::Forming | Phase::Paused) || self.joined() != self.all() {
            return;
        }
        let ps = self.ps.as_ref().map(|ps| (ps.member, ps.instance));
        let (Some((ps, ps_instance)), Some(agreed)) = (ps, self.agreed) else {
            return;
        };
        if self.phase == Phase::Forming && self.resumed.is_none() {
            if self.may_have_run() {
                self.renew(visit);
            }
            if self.called != self.turn {
                return self.call(visit);
            }
            if self.seats().any(|(_, seat)| seat.turn != self.turn) {
                return;
            }
        } else if self.ps_incarnation != self.incarnation {
            if visit.rank != Rank::PS {
                let news = self.acceptance(visit.config, Rank::PS, ps_instance, State::Waiting);
                visit.actions.push(Action::Send(ps, news));
            }
            return;
        }
        let workers = self
            .workers
            .iter()
            .flatten()
            .map(|seat| seat.member)
            .collect();
        let Incarnation { epoch, salt } = self.incarnation;
        let roster = Roster::new(
            self.config.id,
            epoch,
            self.config.key.epoch_secret(self.config.id, epoch, salt),
            agreed.units,
            workers,
            ps,
        );
        visit
            .actions
            .push(Action::Bind(Box::new(roster), self.index));
        self.phase = Phase::Running;
        self.resumed = None;
        for (rank, seat) in self.seats().filter(|(rank, _)| *rank != visit.rank) {
            let news = self.acceptance(visit.config, rank, seat.instance, State::Running);
            visit.actions.push(Action::Send(seat.member, news));
        }
    }

    /// Calls the roll: a place may be that of a process that has died, and who has joined may not know
    /// the epoch. So all hear of it, and that they are to say JOIN with it under a new challenge.
    fn call(&mut self, visit: &mut Visit<'_>) {
        let news = |job: &Self, rank, seat: &Seat| {
            let news = job.acceptance(visit.config, rank, seat.instance, State::Waiting);
            Action::Send(seat.member, news)
        };
        let news: Vec<_> = self.seats().map(|(r, seat)| news(self, r, seat)).collect();
        self.turn += 1;
        self.called = self.turn;
        let call = |(rank, seat): (Rank, &Seat)| {
            let call = Refusal::new(Reason::Challenge);
            let call = self.refused(visit.config, rank, seat.instance, call);
            Action::Send(seat.member, call)
        };
        let calls: Vec<_> = self.seats().map(call).collect();
        visit.actions.extend(news.into_iter().chain(calls));
    }

    pub(super) fn leave(&mut self, visit: &mut Visit<'_>, leave: &Leave) {
        let current = leave.challenge == self.challenge(visit.config);
        // The end of an epoch changes the challenge; who missed the news leaves with the old one.
        if let Some(end) = self.ended
            && end.incarnation == visit.incarnation
            && visit.rank.is_worker()
            && (current || end.challenge == leave.challenge)
        {
            return match end.outcome {
                Ok(()) => self.accept(visit, State::Ended),
                Err(refusal) => self.refuse(visit, refusal),
            };
        }
        if !current {
            return self.refuse(visit, Refusal::new(Reason::Challenge));
        }
        if self.fixed {
            return self.refuse(visit, Refusal::new(Reason::RankTaken));
        }
        let rank = visit.rank;
        if rank == Rank::PS {
            if self.ps.as_ref().is_some_and(|seat| seat.is(visit)) {
                self.lose_ps();
            }
            return self.accept(visit, State::Ended);
        }
        let open = matches!(self.phase, Phase::Running | Phase::Paused);
        let Some(seat) = self.workers.get(usize::from(rank.0)) else {
            let refusal = Refusal::numbers(Reason::BadRank, rank.0, self.config.workers);
            return self.refuse(visit, refusal);
        };
        let finished = leave.code == LeaveCode::Finished;
        let stale = match (self.phase, seat) {
            // The switch had restarted: the others still need this one's answers (R-3, J-7).
            (Phase::Idle, _) => !finished || visit.incarnation == Incarnation::NONE,
            (_, Some(seat)) => !seat.is(visit),
            (_, None) => false,
        };
        if stale || self.is_stale(visit.incarnation) {
            return self.refuse(visit, Refusal::new(Reason::StaleEpoch));
        }
        if !finished {
            if open {
                let refusal = Refusal {
                    behind: leave.behind & self.all() & !rank.bit(),
                    ..Refusal::numbers(Reason::MemberFailed, leave.code as u8, leave.fragment.0)
                };
                self.fail(visit.config, refusal.about(rank), &mut visit.actions);
            } else if seat.is_some() {
                // It had joined and changed its mind before all were there.
                self.vacate(rank);
            }
            return self.accept(visit, State::Ended);
        }
        self.resume(visit);
        self.take_seat(visit);
        self.left |= rank.bit();
        if self.left == self.all() {
            self.finish(visit);
        } else {
            self.run_if_complete(visit);
            self.accept(visit, self.state());
        }
    }

    /// All workers have left.
    fn finish(&mut self, visit: &mut Visit<'_>) {
        for (rank, seat) in self.seats() {
            let news = self.acceptance(visit.config, rank, seat.instance, State::Ended);
            visit.actions.push(Action::Send(seat.member, news));
        }
        visit.actions.push(Action::Unbind(self.config.id));
        self.close(visit.config, Ok(()));
    }

    /// The epoch has failed; everybody hears why.
    fn fail(&mut self, config: &RegistryConfig, refusal: Refusal, actions: &mut Vec<Action>) {
        for (rank, seat) in self.seats() {
            if refusal.about != Some(rank) {
                let news = self.refused(config, rank, seat.instance, refusal);
                actions.push(Action::Send(seat.member, news));
            }
        }
        actions.push(Action::Unbind(self.config.id));
        self.close(config, Err(refusal));
    }

    fn close(&mut self, config: &RegistryConfig, outcome: Result<(), Refusal>) {
        let challenge = self.challenge(config);
        self.ended = Some(Ending {
            incarnation: self.incarnation,
            challenge,
            outcome,
        });
        self.workers.fill(None);
        self.close_if_empty();
    }

    fn close_if_empty(&mut self) {
        if self.joined() == 0 {
            self.phase = Phase::Idle;
            self.turn += 1;
            self.agreed = None;
            self.left = 0;
            self.resumed = None;
        }
    }

    /// When the member that has been silent longest was heard; those that left a job that runs may
    /// be silent.
    pub(super) fn first_heard(&self) -> Option<Time> {
        let may_be_silent = if self.phase == Phase::Forming && self.resumed.is_none() {
            0
        } else {
            self.left
        };
        let present = self
            .seats()
            .filter(|(rank, _)| may_be_silent & rank.bit() == 0);
        let absent = self.resumed.filter(|_| self.absent().is_some());
        present.map(|(_, seat)| seat.heard).chain(absent).min()
    }

    /// Time in which the switch could hear no member.
    pub(super) fn postpone(&mut self, missed: Duration) {
        let seats = self.workers.iter_mut().flatten().chain(&mut self.ps);
        let heard = seats.map(|seat| &mut seat.heard);
        heard
            .chain(&mut self.resumed)
            .for_each(|heard| *heard = heard.after(missed));
    }

    /// J-6.
    pub(super) fn look_for_silence(
        &mut self,
        now: Time,
        config: &RegistryConfig,
        actions: &mut Vec<Action>,
    ) {
        let silent = |seat: &Seat| now.since(seat.heard) >= config.member_timeout;
        if self.ps.as_ref().is_some_and(silent) {
            self.lose_ps();
        }
        if let Some(since) = self.resumed {
            // Those that left may be silent, as in a job that runs.
            let silent = |rank: &Rank| {
                let seat = self.workers[usize::from(rank.0)].as_ref();
                let heard = seat.map_or(since, |seat| seat.heard);
                self.left & rank.bit() == 0 && now.since(heard) >= config.member_timeout
            };
            if let Some(rank) = (0..self.config.workers).map(Rank).find(silent) {
                self.lose(now, rank, config, actions);
            }
            return;
        }
        if self.phase == Phase::Forming {
            for rank in 0..self.config.workers {
                if self.workers[usize::from(rank)].as_ref().is_some_and(silent) {
                    self.vacate(Rank(rank));
                }
            }
            return;
        }
        let lost = self
            .seats()
            .find(|(rank, seat)| rank.is_worker() && self.left & rank.bit() == 0 && silent(seat));
        if let Some((rank, _)) = lost {
            self.lose(now, rank, config, actions);
        }
    }

    /// The job ends because of a worker's silence.
    fn lose(&mut self, now: Time, rank: Rank, config: &RegistryConfig, actions: &mut Vec<Action>) {
        let seat = self.workers[usize::from(rank.0)].as_ref();
        let heard = seat.map(|seat| seat.heard).or(self.resumed);
        let silence = heard.map_or(config.member_timeout, |heard| now.since(heard));
        let millis = |d: Duration| d.as_millis().min(u128::from(u32::MAX)) as u32;
        let numbers = (millis(silence), millis(config.member_timeout));
        let refusal = Refusal::numbers(Reason::MemberLost, numbers.0, numbers.1).about(rank);
        self.fail(config, refusal, actions);
    }
}

/// When a JOIN that was not refused counts.
enum Joined {
    /// The member takes part.
    Now,
    /// Its epoch has ended well.
    Before,
}

pub(super) fn control_header(kind: Kind, job: JobId, epoch: Epoch, rank: Rank) -> Header {
    Header {
        kind,
        flags: Flags::NONE,
        priority: 0,
        element: Element::None,
        job,
        epoch,
        fragment: FragmentId(0),
        rank,
        units: CONTROL_UNITS,
        bitmap: 0,
        tag: AuthTag::NONE,
    }
}

fn leading_u64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |n, &b| n << 8 | u64::from(b))
}
