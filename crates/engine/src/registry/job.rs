//! One job: its epochs, from idle over forming and running back to idle.
//!
//! The registry finds the job and checks the key. What follows from a good JOIN, from a good LEAVE
//! and from silence is decided in `joining.rs`, `leaving.rs` and `silence.rs`. They change the
//! job's phase here: an epoch opens, runs once all members have confirmed it, and ends.

mod answers;
mod changing;
mod joining;
mod leaving;
mod link;
mod membership;
mod node;
mod parent;
mod servers;
mod silence;
mod status;
mod visit;

pub use status::MemberStatus;
#[cfg(test)]
pub(super) use visit::control_header;
pub(super) use visit::{Refusal, Visit};

use super::event::{Event, Events};
use super::{Action, JobConfig, RegistryConfig};
use link::Link;
use membership::Membership;
use servers::Server;
use std::collections::VecDeque;
use std::sync::Arc;
use tally_wire::control::{Reason, Shape, State};
use tally_wire::{Epoch, EpochSecret, Key, Part, Rank, Time, all_ranks};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No member has joined.
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
    /// Its last challenge: a member that missed the news leaves with it.
    challenge: u64,
    outcome: Result<(), Refusal>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) config: JobConfig,
    pub(super) phase: Phase,
    pub(super) incarnation: Incarnation,
    /// The key that the secret of `incarnation` is derived from (K-2).
    pub(super) epoch_key: Key,
    /// Its last epochs, the latest first.
    recent: VecDeque<Epoch>,
    /// Incarnations drawn since the switch's start.
    drawn: u64,
    /// What the challenge is made from; advances with each challenge.
    pub(super) round: u64,
    /// The last confirmation round (J-5): while it lasts, each member confirms that it is there.
    pub(super) called: u64,
    pub(super) workers: Vec<Option<Membership>>,
    pub(super) agreed: Option<Agreed>,
    pub(super) left: u64,
    /// Since when it is known that an epoch that forms has run before, under the switch's last
    /// start (J-4): all its workers are known, and no others may take part.
    pub(super) resumed: Option<Time>,
    /// A worker brought the epoch along, under the switch's last start (J-4): others may have run
    /// it.
    pub(super) brought: bool,
    /// The places of its parameter servers, by part.
    servers: Vec<Server>,
    pub(super) ended: Option<Ending>,
    /// Members come from the configuration and stay.
    pub(super) fixed: bool,
    /// No epoch begins.
    pub(super) draining: bool,
    /// When it was removed: it is remembered for those that ask.
    pub(super) removed: Option<Time>,
    /// The tenant that it is of, if a JOIN made it.
    pub(super) tenant: Option<Arc<str>>,
    /// When a worker was heard last.
    pub(super) last_worker: Time,
    /// To its parent, if it is a node that has one.
    pub(super) link: Option<Box<Link>>,
    /// The epoch's secret, if the parent has given it.
    pub(super) given: Option<EpochSecret>,
    /// What happened since the registry took them last.
    pub(super) events: Events,
}

impl Job {
    /// Its challenges and incarnations are none of before `serial`.
    pub(super) fn new(config: JobConfig, serial: u64) -> Self {
        Self {
            phase: Phase::Idle,
            incarnation: Incarnation::NONE,
            epoch_key: config.key.clone(),
            recent: VecDeque::new(),
            drawn: serial,
            round: serial,
            called: 0,
            workers: vec![None; usize::from(config.members())],
            agreed: None,
            left: 0,
            resumed: None,
            brought: false,
            servers: servers::places(config.servers),
            ended: None,
            fixed: false,
            draining: false,
            removed: None,
            tenant: None,
            last_worker: Time(0),
            link: Link::of(&config),
            given: None,
            events: Events::default(),
            config,
        }
    }

    pub(super) fn all(&self) -> u64 {
        all_ranks(self.config.members())
    }

    pub(super) fn joined(&self) -> u64 {
        let memberships = self
            .workers
            .iter()
            .enumerate()
            .filter(|(_, membership)| membership.is_some());
        memberships.fold(0, |bits, (rank, _)| bits | 1 << rank)
    }

    /// The memberships with their ranks, the parameter servers last.
    fn memberships(&self) -> impl Iterator<Item = (Rank, &Membership)> {
        let workers = self.workers.iter().enumerate();
        let workers =
            workers.filter_map(|(r, membership)| Some((Rank(r as u8), membership.as_ref()?)));
        let servers = self.servers.iter();
        let servers = servers.filter_map(|it| Some((Rank::PS, it.membership.as_ref()?)));
        workers.chain(servers)
    }

    pub(super) fn challenge(&self, config: &RegistryConfig) -> u64 {
        let digest = config.derive(b"challenge", self.config.id, self.round);
        // Never 0: that is what a member says that has none.
        leading_u64(&digest) | 1
    }

    /// Whether a member of this epoch has nothing to say any more: another is, or was, the last.
    /// Only a switch that has had none since its start does not know.
    fn is_stale(&self, incarnation: Incarnation) -> bool {
        self.incarnation != Incarnation::NONE && self.incarnation != incarnation
    }

    /// A worker that may is in its place, and in an epoch.
    fn enter(&mut self, visit: &mut Visit<'_>) {
        if self.phase == Phase::Idle {
            self.open(visit);
        }
        self.last_worker = visit.now;
        let said = self.said(visit);
        let membership = &mut self.workers[usize::from(visit.rank.0)];
        let before = match membership.take() {
            Some(membership) if membership.is(visit) => membership,
            _ => {
                self.events.push(Event::Joined {
                    job: self.config.id,
                    rank: visit.rank,
                    part: Part::ONLY,
                    member: visit.from,
                });
                Membership::new(visit, &self.config)
            }
        };
        *membership = Some(Membership {
            heard: visit.now,
            round: said.unwrap_or(before.round),
            key: visit.key(&self.config).clone(),
            ..before
        });
    }

    /// The round, if the visitor is in the job's epoch.
    fn said(&self, visit: &Visit<'_>) -> Option<u64> {
        (visit.incarnation == self.incarnation).then_some(self.round)
    }

    /// A worker says that this epoch has run already: then the switch had restarted. A member that
    /// has come without an epoch since is a new process in the place of the one that the others
    /// have summed with. Nothing that it says may meet what they say.
    fn resume(&mut self, visit: &Visit<'_>) {
        let known = matches!(self.phase, Phase::Running | Phase::Paused);
        if known || self.resumed.is_some() {
            return;
        }
        for rank in 0..self.members() {
            let membership = &self.workers[usize::from(rank)];
            if membership
                .as_ref()
                .is_some_and(|membership| membership.fresh)
            {
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

    /// The place of a worker that has gone before the job ran.
    fn vacate(&mut self, rank: Rank) {
        self.workers[usize::from(rank.0)] = None;
        self.left &= !rank.bit();
        self.round += 1;
        self.close_if_empty();
    }

    /// J-4.
    fn open(&mut self, visit: &mut Visit<'_>) {
        self.phase = Phase::Forming;
        self.round += 1;
        self.brought = visit.incarnation != Incarnation::NONE;
        (self.incarnation, self.epoch_key) = match visit.incarnation {
            Incarnation::NONE => (self.new_incarnation(visit.config), self.config.key.clone()),
            // Never a switch key (TR-21).
            brought if visit.by_switch => (brought, self.config.key.clone()),
            brought => (brought, visit.key(&self.config).clone()),
        };
        self.remember();
    }

    /// Whether this epoch may have run before the switch's last start, with workers other than
    /// those that have come: one that was not told that it runs brought it along, and a new process
    /// has the place of one that may have been. Then the PS may have parts of that one.
    fn may_have_run(&self) -> bool {
        let mut memberships = self.workers.iter().flatten();
        // What a child switch does not say may be below it.
        let may_be = |it: &Membership| it.fresh || it.switch;
        self.brought && self.resumed.is_none() && memberships.any(may_be)
    }

    /// All that have come move to a new epoch (J-4). They have sent nothing in this one.
    fn renew(&mut self, visit: &Visit<'_>) {
        self.brought = false;
        self.round += 1;
        self.incarnation = self.new_incarnation(visit.config);
        self.epoch_key = self.config.key.clone();
        self.remember();
    }

    fn remember(&mut self) {
        self.recent.truncate(RECENT_EPOCHS - 1);
        self.recent.push_front(self.incarnation.epoch);
    }

    /// An unpredictable incarnation, of an epoch that no member or frame may still mean:
    /// after a restart of the switch members bring along epochs that it has not given.
    fn new_incarnation(&mut self, config: &RegistryConfig) -> Incarnation {
        loop {
            self.drawn += 1;
            let digest = config.derive(b"incarnation", self.config.id, self.drawn);
            let [e0, e1, salt @ ..] = digest;
            let new = Incarnation {
                epoch: Epoch(u16::from_be_bytes([e0, e1])),
                salt: leading_u64(&salt),
            };
            let mut confirmed = self.servers.iter().map(|it| it.incarnation.epoch);
            let is_known = new.epoch == Epoch(0) || confirmed.any(|it| it == new.epoch);
            if new.salt != 0 && !is_known && !self.recent.contains(&new.epoch) {
                return new;
            }
        }
    }

    /// The secret of the epoch (A-6, TR-21).
    fn secret(&self) -> EpochSecret {
        let Incarnation { epoch, salt } = self.incarnation;
        let own = || self.epoch_key.epoch_secret(self.config.id, epoch, salt);
        self.given.unwrap_or_else(own)
    }

    /// J-5: run when all are there and say so, or have come back to an epoch that has run.
    fn run_if_complete(&mut self, visit: &mut Visit<'_>) {
        if !matches!(self.phase, Phase::Forming | Phase::Paused) || self.joined() != self.all() {
            return;
        }
        if !self.has_servers() || self.agreed.is_none() || !self.all_ready() {
            return;
        }
        if self.phase == Phase::Forming && self.resumed.is_none() {
            // A parent renews for all.
            if self.may_have_run() && self.link.is_none() {
                self.renew(visit);
            }
            if self.called != self.round {
                return self.confirm(visit);
            }
            if self
                .memberships()
                .any(|(_, membership)| membership.round != self.round)
            {
                return;
            }
        } else if self.missing_server().is_some() {
            if visit.rank != Rank::PS {
                self.ask_servers(visit);
            }
            return;
        }
        let Some(roster) = self.roster().filter(|_| self.may_run()) else {
            return;
        };
        visit.actions.push(Action::Bind(Box::new(roster)));
        self.phase = Phase::Running;
        self.events.push(Event::Running {
            job: self.config.id,
            epoch: self.incarnation.epoch,
            workers: self.members(),
        });
        self.resumed = None;
        self.tell_all(visit, State::Running);
    }

    /// Unsolicited ACCEPT to all members but the one that is answered.
    fn tell_all(&self, visit: &mut Visit<'_>, state: State) {
        let is_other =
            |it: &(Rank, &Membership)| it.0 != visit.rank || it.0 == Rank::PS && !it.1.is(visit);
        let others: Vec<_> = self.memberships().filter(is_other).collect();
        for (rank, membership) in others {
            let to = self.to(rank, membership);
            let news = self.acceptance(visit.config, to, state);
            visit.actions.push(Action::Send(membership.member, news));
        }
    }

    /// Starts a confirmation round: a place may be that of a process that has died, and a member
    /// that has joined may not know the epoch. So all hear of it, and that they are to say JOIN
    /// with it under a new challenge.
    fn confirm(&mut self, visit: &mut Visit<'_>) {
        let news = |job: &Self, rank, membership: &Membership| {
            let to = job.to(rank, membership);
            let news = job.acceptance(visit.config, to, State::Waiting);
            Action::Send(membership.member, news)
        };
        let news: Vec<_> = self
            .memberships()
            .map(|(r, membership)| news(self, r, membership))
            .collect();
        self.round += 1;
        self.called = self.round;
        let call = |(rank, membership): (Rank, &Membership)| {
            let call = Refusal::new(Reason::Challenge);
            let call = self.refused(visit.config, self.to(rank, membership), call);
            Action::Send(membership.member, call)
        };
        let calls: Vec<_> = self.memberships().map(call).collect();
        visit.actions.extend(news.into_iter().chain(calls));
    }

    /// All workers have left.
    fn finish(&mut self, visit: &mut Visit<'_>) {
        for (rank, membership) in self.memberships() {
            let to = self.to(rank, membership);
            let news = self.acceptance(visit.config, to, State::Ended);
            visit.actions.push(Action::Send(membership.member, news));
        }
        visit.actions.push(Action::Unbind(self.config.id));
        self.close(visit.config, Ok(()));
    }

    /// The epoch has failed; all members hear why.
    fn fail(&mut self, config: &RegistryConfig, refusal: Refusal, actions: &mut Vec<Action>) {
        let refusal = self.globalise(config, refusal);
        for (rank, membership) in self.memberships() {
            if refusal.about != Some(rank) {
                let news = self.refused(config, self.to(rank, membership), refusal);
                actions.push(Action::Send(membership.member, news));
            }
        }
        actions.push(Action::Unbind(self.config.id));
        self.leave_parent(config, &refusal);
        self.close(config, Err(refusal));
    }

    /// All workers of a node have left, and its parent is silent.
    fn end_alone(&mut self, config: &RegistryConfig, actions: &mut Vec<Action>) {
        for (rank, membership) in self.memberships() {
            let news = self.acceptance(config, self.to(rank, membership), State::Ended);
            actions.push(Action::Send(membership.member, news));
        }
        actions.push(Action::Unbind(self.config.id));
        self.close(config, Ok(()));
    }

    fn close(&mut self, config: &RegistryConfig, outcome: Result<(), Refusal>) {
        if self.phase != Phase::Idle {
            self.events.push(Event::Ended {
                job: self.config.id,
                epoch: self.incarnation.epoch,
                failure: outcome.err().map(|why| (why.reason, why.about)),
                concern: outcome.err().and_then(|why| why.concern),
            });
        }
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
            self.round += 1;
            self.agreed = None;
            self.given = None;
            self.left = 0;
            self.resumed = None;
        }
    }
}

fn leading_u64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |n, &b| n << 8 | u64::from(b))
}
