//! A node and its parent: what the node asks and tells it, and what follows from its answers.
//!
//! The parent sees a worker: JOIN, heartbeats, LEAVE. What it says of the epoch is this node's
//! epoch. A node that a member asks while it has none asks its parent first (TR-22).

use super::link::{ASKED, Departure, LEAVE_FAILED, REFUSED, Said, Wanted};
use super::node::own_name;
use super::visit::{Refusal, Visit, control_header};
use super::{Ending, Incarnation, Job, Phase};
use crate::registry::{Action, RegistryConfig};
use crate::roster::{Member, Roster, Uplink};
use std::time::Duration;
use tally_wire::control::{
    Cause, Concern, DATAGRAM_BYTES, JoinTree, LeaveCode, LeaveTree, Reason, Role, State,
};
use tally_wire::{Epoch, FragmentId, Join, Kind, Leave, Part, Refuse, Time};

impl Job {
    /// Whether all at and below this node have joined and confirmed the epoch (TR-24).
    pub(super) fn is_ready(&self) -> bool {
        match self.phase {
            Phase::Running | Phase::Paused => true,
            Phase::Idle => false,
            Phase::Forming => {
                let here = self.joined() == self.all() && self.all_ready() && self.has_servers();
                here && if self.resumed.is_some() {
                    self.missing_server().is_none()
                } else {
                    let mut all = self.memberships();
                    self.called == self.round && all.all(|(_, it)| it.round == self.round)
                }
            }
        }
    }

    /// Whether all child switches that have joined are ready.
    pub(super) fn all_ready(&self) -> bool {
        self.workers.iter().flatten().all(|it| it.ready)
    }

    /// Whether the parent, if there is one, lets this epoch run.
    pub(super) fn may_run(&self) -> bool {
        // A job that runs without its PS has run.
        self.phase == Phase::Paused
            || self.link.as_ref().is_none_or(|link| {
                let runs =
                    |it: Said| it.state == State::Running && it.incarnation == self.incarnation;
                link.said.is_some_and(runs)
            })
    }

    /// The node has no epoch: the parent is asked for one, and the member waits.
    pub(super) fn ask_parent(&mut self, visit: &Visit<'_>, wanted: Wanted) -> Option<Refusal> {
        let parent = self.config.tree.as_ref()?.parent?;
        let link = self.link.as_mut()?;
        if let Some((verdict, until)) = link.verdict
            && visit.now < until
        {
            return Some(verdict);
        }
        link.want(wanted);
        let reason = match link.refused {
            Some(reason @ Reason::Draining) => return Some(Refusal::new(reason)),
            reason => reason.map_or(0, |reason| reason as u32),
        };
        Some(Refusal {
            concern: Some(Concern {
                ranks: None,
                switch: link.waits_for.unwrap_or(parent.switch),
                whole: true,
                behind: None,
            }),
            ..Refusal::numbers(Reason::Parent, reason, 0_u32)
        })
    }

    /// Whether members are told that the node waits for its parent, and not that they wait.
    pub(super) fn waits_for_parent(&self, now: Time) -> bool {
        self.phase == Phase::Forming && self.link.as_ref().is_some_and(|link| link.is_silent(now))
    }

    /// Where the parent is.
    pub(in crate::registry) fn parent_address(&self) -> Option<Member> {
        self.link.as_ref()?.address
    }

    /// The parent is there from now on.
    pub(in crate::registry) fn set_parent_address(
        &mut self,
        now: Time,
        address: Option<Member>,
        actions: &mut Vec<Action>,
    ) {
        let Some(link) = &mut self.link else { return };
        if link.address == address {
            return;
        }
        link.address = address;
        link.next = now;
        self.bind_anew(actions);
    }

    /// New addresses, or another secret, of an epoch that runs.
    pub(super) fn bind_anew(&self, actions: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Running | Phase::Paused)
            && let Some(roster) = self.roster()
        {
            actions.push(Action::Bind(Box::new(roster)));
        }
    }

    /// The roster of the epoch, once all are there.
    pub(super) fn roster(&self) -> Option<Roster> {
        let agreed = self.agreed?;
        let servers = self
            .servers
            .iter()
            .map(|it| Some(it.membership.as_ref()?.member));
        let servers: Vec<_> = servers.collect::<Option<_>>()?;
        let workers: Option<Vec<_>> = self
            .workers
            .iter()
            .map(|it| it.as_ref().map(|membership| membership.member))
            .collect();
        let roster = Roster::new(
            self.config.id,
            self.incarnation.epoch,
            self.secret(),
            agreed.units,
            workers?,
            *servers.first()?,
        );
        let roster = roster.with_switches(self.switches()).with_servers(servers);
        let Some(link) = &self.link else {
            return Some(roster);
        };
        let (said, address) = (link.said?, link.address?);
        Some(roster.with_uplink(Uplink {
            parent: Member {
                udp_port: said.base_port,
                ..address
            },
            rank: self.config.tree.as_ref()?.parent?.rank,
            shards: said.shards,
        }))
    }

    /// ACCEPT of the parent.
    pub(in crate::registry) fn parent_accepts(&mut self, visit: &mut Visit<'_>, said: Said) {
        let Some(link) = &mut self.link else { return };
        link.refused = None;
        link.waits_for = None;
        link.verdict = None;
        link.heard = visit.now;
        if let Some(departure) = link.departure {
            // Its own epoch's end is what the parent answers to LEAVE.
            if said.state == State::Ended || said.incarnation == departure.incarnation {
                link.departure = None;
            }
            return;
        }
        if said.state == State::Ended {
            return self.parent_ended(visit, said.incarnation);
        }
        let before = link.said.replace(said);
        match self.phase {
            Phase::Idle => self.open_below(visit, said),
            Phase::Forming if said.incarnation != self.incarnation => {
                if self.resumed.is_some() {
                    let refusal = self.of_parent(visit.config, Reason::StaleEpoch);
                    return self.fail(visit.config, refusal, &mut visit.actions);
                }
                self.brought = false;
                self.round += 1;
                self.take_epoch(said);
                self.run_if_complete(visit);
            }
            Phase::Forming => {
                self.given = Some(said.secret);
                if said.place.has_run && self.brought {
                    self.resume(visit);
                }
                self.run_if_complete(visit);
            }
            Phase::Running | Phase::Paused => {
                if said.incarnation != self.incarnation {
                    let refusal = self.of_parent(visit.config, Reason::StaleEpoch);
                    return self.fail(visit.config, refusal, &mut visit.actions);
                }
                self.follow(visit, before, said);
            }
        }
    }

    /// An epoch that runs has other numbers or another secret at its parent.
    fn follow(&mut self, visit: &mut Visit<'_>, before: Option<Said>, said: Said) {
        let same =
            before.is_some_and(|it| (it.base_port, it.shards) == (said.base_port, said.shards));
        let renewed = self.given != Some(said.secret);
        if renewed {
            // K-3: no two secrets under one challenge.
            self.round += 1;
            self.given = Some(said.secret);
        }
        if renewed || !same {
            self.bind_anew(&mut visit.actions);
        }
        if renewed {
            self.tell_all(visit, self.state());
        }
    }

    /// The parent has given an epoch to a node that had none.
    fn open_below(&mut self, visit: &Visit<'_>, said: Said) {
        let Some(link) = &mut self.link else { return };
        let Some(wanted) = link.wanted.take() else {
            return;
        };
        link.empty = Some(visit.now);
        self.phase = Phase::Forming;
        self.round += 1;
        self.brought = wanted.incarnation == said.incarnation;
        self.take_epoch(said);
        if self.brought && (said.place.has_run || wanted.running) {
            self.resumed = Some(visit.now);
        }
    }

    fn take_epoch(&mut self, said: Said) {
        self.incarnation = said.incarnation;
        self.given = Some(said.secret);
        self.remember();
    }

    /// The parent says that all workers of this epoch have left.
    fn parent_ended(&mut self, visit: &mut Visit<'_>, incarnation: Incarnation) {
        let here = incarnation == self.incarnation && incarnation != Incarnation::NONE;
        if here && self.phase != Phase::Idle && self.left == self.all() {
            return self.finish(visit);
        }
        if here
            && self.phase == Phase::Forming
            && self.resumed.is_none()
            && let Some(link) = &mut self.link
        {
            // Members that have not been told that it runs are of the next one.
            link.over = Some(incarnation);
            return;
        }
        self.end_wanted(visit, incarnation, Ok(()));
    }

    /// The epoch that a member brought to an idle node has ended so.
    fn end_wanted(
        &mut self,
        visit: &Visit<'_>,
        incarnation: Incarnation,
        outcome: Result<(), Refusal>,
    ) {
        let Some(link) = &mut self.link else { return };
        let is_it = link.wanted.is_some_and(|it| it.incarnation == incarnation);
        if self.phase != Phase::Idle || !is_it {
            return;
        }
        link.wanted = None;
        if incarnation == Incarnation::NONE {
            if let Err(refusal) = outcome {
                link.verdict = Some((refusal, visit.now.after(REFUSED)));
            }
            return;
        }
        let challenge = self.challenge(visit.config);
        self.ended = Some(Ending {
            incarnation,
            challenge,
            outcome,
        });
    }

    /// REFUSE of the parent, authentic unless it is a hint.
    pub(in crate::registry) fn parent_refuses(
        &mut self,
        visit: &mut Visit<'_>,
        epoch: Epoch,
        refuse: &Refuse,
    ) {
        let Some(link) = &mut self.link else { return };
        let reason = refuse.reason;
        if reason.is_hint() {
            link.refused = Some(reason);
            return;
        }
        link.heard = visit.now;
        match reason {
            Reason::Challenge => {
                if link.challenge != refuse.challenge {
                    link.challenge = refuse.challenge;
                    link.next = visit.now;
                    self.confirm_below(visit);
                }
            }
            _ if link.departure.is_some() => link.departure = None,
            Reason::Window => {
                link.window = refuse.allowed.clamp(1, u32::from(u16::MAX)) as u16;
                link.next = visit.now;
            }
            Reason::Parent => {
                link.waits_for = refuse.concern.map(|it| it.switch);
                link.refused = Reason::from_number(refuse.found);
            }
            // The configurations of the two switches differ, which members cannot set right.
            Reason::BadRank | Reason::Workers => link.refused = Some(reason),
            _ if !reason.is_final() => link.refused = Some(reason),
            _ => {
                let refusal = Refusal {
                    found: refuse.found,
                    allowed: refuse.allowed,
                    concern: refuse.concern,
                    ..self.of_parent(visit.config, reason)
                };
                self.parent_ends(visit, epoch, refusal);
            }
        }
    }

    /// The parent's confirmation round is one of all below it: a member may have died since the
    /// last round here.
    fn confirm_below(&mut self, visit: &mut Visit<'_>) {
        let forms = self.phase == Phase::Forming && self.resumed.is_none();
        if forms && self.is_ready() {
            self.confirm(visit);
        }
    }

    /// The parent refuses for good.
    fn parent_ends(&mut self, visit: &mut Visit<'_>, epoch: Epoch, refusal: Refusal) {
        let is_idle = self.phase == Phase::Idle;
        let incarnation = if is_idle {
            let wanted = (self.link.as_ref()).and_then(|link| link.wanted);
            wanted.map_or(Incarnation::NONE, |it| it.incarnation)
        } else {
            self.incarnation
        };
        // TR-25: the end of another epoch, delivered late. The members that ask now are in the next
        // epoch, or in none.
        let says_how = matches!(refusal.reason, Reason::MemberLost | Reason::MemberFailed)
            || self.ended.is_some_and(|it| it.incarnation.epoch == epoch);
        if says_how && incarnation.epoch != epoch {
            return;
        }
        if is_idle {
            return self.end_wanted(visit, incarnation, Err(refusal));
        }
        self.fail(visit.config, refusal, &mut visit.actions);
        // The parent knows.
        if let Some(link) = &mut self.link {
            link.departure = None;
        }
    }

    /// A refusal that concerns the parent itself.
    pub(super) fn of_parent(&self, config: &RegistryConfig, reason: Reason) -> Refusal {
        let parent = self.config.tree.as_ref().and_then(|tree| tree.parent);
        Refusal {
            concern: Some(Concern {
                ranks: None,
                switch: parent.map_or_else(|| own_name(config), |parent| parent.switch),
                whole: true,
                behind: None,
            }),
            ..Refusal::new(reason)
        }
    }

    /// The job has failed at this node; the parent is to be told, if it knows of the node.
    pub(super) fn leave_parent(&mut self, config: &RegistryConfig, refusal: &Refusal) {
        let ranks = self.config.tree.as_ref().and_then(|tree| {
            let first = tree.first;
            tally_wire::RankRange::new(first, first + tree.ranks(self.config.workers))
        });
        let concern = refusal.concern.unwrap_or(Concern {
            ranks,
            switch: own_name(config),
            whole: true,
            behind: None,
        });
        let incarnation = self.incarnation;
        let Some(link) = (self.link.as_mut()).filter(|link| link.said.is_some()) else {
            return;
        };
        link.departure = Some(Departure {
            incarnation,
            code: LeaveCode::Failed,
            cause: Some(Cause {
                reason: refusal.reason,
                found: refusal.found,
                allowed: refusal.allowed,
                concern,
            }),
            until: None,
        });
        link.next = Time(0);
    }

    /// When [`drive`](Self::drive) has something to do.
    pub(in crate::registry) fn link_due(&self) -> Option<Time> {
        let link = self.link.as_ref()?;
        let is_active =
            self.phase != Phase::Idle || link.wanted.is_some() || link.departure.is_some();
        is_active.then_some(link.next)
    }

    /// Sends JOIN or LEAVE to the parent when its period has passed or the node has news.
    pub(in crate::registry) fn drive(
        &mut self,
        now: Time,
        config: &RegistryConfig,
        actions: &mut Vec<Action>,
    ) {
        if self.link.is_none() || config.fabric.is_none() {
            return;
        }
        self.expire_link(now);
        let runs = matches!(self.phase, Phase::Running | Phase::Paused);
        let told = (self.is_ready(), runs);
        let all_left = self.phase != Phase::Idle && self.left == self.all();
        let Some(link) = &mut self.link else { return };
        let is_news = self.phase != Phase::Idle && link.told != told;
        let is_active =
            self.phase != Phase::Idle || link.wanted.is_some() || link.departure.is_some();
        if !is_active || link.next > now && !is_news {
            return;
        }
        let period = link.period(now, !runs || all_left || link.departure.is_some());
        link.told = told;
        link.next = now.after(period);
        let Some(address) = link.address else { return };
        let datagram = match link.departure {
            Some(it) => self.emit_leave(config, it),
            None if all_left => {
                let it = Departure {
                    incarnation: self.incarnation,
                    code: LeaveCode::Finished,
                    cause: None,
                    until: None,
                };
                self.emit_leave(config, it)
            }
            None => self.emit_join(config),
        };
        if let Some(datagram) = datagram {
            actions.push(Action::Send(address, datagram));
        }
    }

    /// What time ends: askers that are gone, an epoch without members.
    fn expire_link(&mut self, now: Time) {
        let idle = self.phase == Phase::Idle;
        let is_empty = self.phase == Phase::Forming && self.joined() == 0;
        let Some(link) = &mut self.link else { return };
        link.wanted.take_if(|it| !idle || now.since(it.at) >= ASKED);
        if let Some(it) = &mut link.departure
            && *it.until.get_or_insert(now.after(LEAVE_FAILED)) <= now
        {
            link.departure = None;
        }
        if is_empty {
            let since = *link.empty.get_or_insert(now);
            if now.since(since) >= ASKED {
                self.close_if_empty();
            }
        } else {
            link.empty = None;
        }
        let Some(link) = &mut self.link else { return };
        if self.phase == Phase::Idle {
            link.told = (false, false);
            if link.said.take().is_some() && link.departure.is_none() && link.wanted.is_none() {
                // All that had joined have gone before the job ran.
                link.departure = (self.ended.map(|end| end.incarnation) != Some(self.incarnation))
                    .then_some(Departure {
                        incarnation: self.incarnation,
                        code: LeaveCode::Failed,
                        cause: None,
                        until: None,
                    });
                link.next = now;
            }
        }
    }

    /// When the parent was heard, while its silence counts: while the job runs, or has run.
    pub(super) fn parent_heard(&self) -> Option<Time> {
        let counts = match self.phase {
            Phase::Idle => false,
            Phase::Forming => self.resumed.is_some(),
            Phase::Running | Phase::Paused => true,
        };
        self.link.as_ref().filter(|_| counts).map(|link| link.heard)
    }

    /// The parent is lost when it has been silent for too long (TR-25).
    pub(super) fn look_for_parent(
        &mut self,
        now: Time,
        config: &RegistryConfig,
        actions: &mut Vec<Action>,
    ) {
        let silent = self.parent_heard().map(|heard| now.since(heard));
        let Some(silent) = silent.filter(|&silent| silent >= config.member_timeout) else {
            return;
        };
        if self.left == self.all() {
            // All have their results: no worker waits.
            return self.end_alone(config, actions);
        }
        let millis = |d: Duration| d.as_millis().min(u128::from(u32::MAX)) as u32;
        let refusal = Refusal {
            found: millis(silent),
            allowed: millis(config.member_timeout),
            ..self.of_parent(config, Reason::MemberLost)
        };
        self.fail(config, refusal, actions);
        if let Some(link) = &mut self.link {
            link.departure = None;
        }
    }

    fn emit_join(&mut self, config: &RegistryConfig) -> Option<Box<[u8; DATAGRAM_BYTES]>> {
        let (below, behind) = self.below()?;
        let rank = self.config.tree.as_ref()?.parent?.rank;
        let idle = self.phase == Phase::Idle;
        let runs = matches!(self.phase, Phase::Running | Phase::Paused);
        let job = self.config.id;
        let (agreed, resumed) = (self.agreed, self.resumed.is_some());
        let mut incarnation = self.incarnation;
        let link = self.link.as_mut()?;
        let mut running = runs || resumed;
        let (mut units, mut shape) = agreed.map_or((0, [0; 32]), |it| (it.units, it.shape));
        if idle {
            let wanted = link.wanted?;
            (incarnation, running) = (wanted.incarnation, wanted.running);
            (units, shape) = (wanted.units, wanted.shape);
        }
        if link.over == Some(incarnation) {
            incarnation = Incarnation::NONE;
        }
        let sent = behind.filter(|_| running);
        let join = Join {
            instance: link.instance,
            challenge: link.challenge,
            role: Role::Switch,
            workers: 0,
            units,
            running,
            window: config.window.min(link.window),
            shape,
            sent: sent.map(|it| it.least),
            awaiting: sent.map_or(0, |it| it.awaiting),
            salt: incarnation.salt,
            tree: Some(JoinTree::Switch(below)),
            part: Part::ONLY,
        };
        let mut datagram = Box::new([0; DATAGRAM_BYTES]);
        control_header(Kind::Join, job, incarnation.epoch, rank).emit(&mut *datagram);
        join.emit(&mut *datagram);
        link.key(config.fabric.as_ref()?).seal(&mut *datagram);
        Some(datagram)
    }

    fn emit_leave(
        &mut self,
        config: &RegistryConfig,
        it: Departure,
    ) -> Option<Box<[u8; DATAGRAM_BYTES]>> {
        let rank = self.config.tree.as_ref()?.parent?.rank;
        let job = self.config.id;
        let link = self.link.as_mut()?;
        let leave = Leave {
            instance: link.instance,
            challenge: link.challenge,
            code: it.code,
            fragment: FragmentId(0),
            behind: 0,
            salt: it.incarnation.salt,
            tree: Some(LeaveTree::Switch(it.cause)),
        };
        let mut datagram = Box::new([0; DATAGRAM_BYTES]);
        control_header(Kind::Leave, job, it.incarnation.epoch, rank).emit(&mut *datagram);
        leave.emit(&mut *datagram);
        link.key(config.fabric.as_ref()?).seal(&mut *datagram);
        Some(datagram)
    }
}
