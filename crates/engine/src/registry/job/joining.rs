//! JOIN: a member takes its place, keeps it, or is refused.

use super::link::Wanted;
use super::membership::TAKEOVER;
use super::visit::{Refusal, Visit};
use super::{Agreed, Ending, Incarnation, Job, Phase};
use tally_wire::Join;
use tally_wire::control::{Below, JoinTree, Reason, Role, State};

/// When a JOIN that was not refused counts.
enum Joined {
    /// The member takes part.
    Now,
    /// Its epoch has ended well.
    Before,
}

impl Job {
    pub(in crate::registry) fn join(&mut self, visit: &mut Visit<'_>, join: &Join) {
        if self.removed.is_some() {
            return self.refuse(visit, Refusal::new(Reason::Removed));
        }
        if join.challenge != self.challenge(visit.config) {
            // A host that only asks (`tally-agent doctor`) learns what it can set right.
            let has_ps = u8::from(self.has_servers() || self.fixed);
            let call = Refusal::numbers(Reason::Challenge, has_ps, self.total());
            return self.refuse(visit, call);
        }
        let joined = match join.role {
            Role::Ps => self.join_server(visit, join).map(|()| Joined::Now),
            Role::Worker | Role::Switch => self
                .locate(visit, join)
                .and_then(|()| self.join_worker(visit, join)),
        };
        match joined {
            Err(refusal) => self.refuse(visit, refusal),
            Ok(Joined::Now) => {
                let called = self.called;
                self.run_if_complete(visit);
                if self.called != called {
                    return;
                }
                if self.waits_for_parent(visit.now) {
                    let waits = self.of_parent(visit.config, Reason::Parent);
                    self.refuse(visit, waits);
                } else {
                    self.accept(visit, self.state());
                }
            }
            Ok(Joined::Before) => self.accept(visit, State::Ended),
        }
    }

    /// Whether the job, and the switch, have what a worker says that it has.
    fn check_numbers(&self, visit: &Visit<'_>, join: &Join) -> Result<(), Refusal> {
        if visit.rank.0 >= self.members() {
            return Err(Refusal::numbers(
                Reason::BadRank,
                visit.rank.0,
                self.members(),
            ));
        }
        // In a tree it has been compared already, with all workers of it.
        if self.config.tree.is_none() && join.workers != self.config.workers {
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
        if join.window > self.window(visit.config) {
            return Err(Refusal::numbers(
                Reason::Window,
                join.window,
                self.window(visit.config),
            ));
        }
        Ok(())
    }

    fn join_worker(&mut self, visit: &mut Visit<'_>, join: &Join) -> Result<Joined, Refusal> {
        self.check_numbers(visit, join)?;
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
        if self.draining && self.phase == Phase::Idle && !join.running {
            return Err(Refusal::new(Reason::Draining));
        }
        if self.phase == Phase::Idle {
            let wanted = Wanted {
                incarnation: visit.incarnation,
                running: join.running,
                units: join.units,
                shape: join.shape,
                at: visit.now,
            };
            if let Some(waits) = self.ask_parent(visit, wanted) {
                return Err(waits);
            }
        }
        if join.running {
            self.resume(visit);
        }
        self.look_at_switch(visit)?;
        let called = self.called == self.round;
        match &mut self.workers[usize::from(visit.rank.0)] {
            Some(membership) if membership.is(visit) => {}
            _ if self.resumed.is_some() && visit.incarnation == Incarnation::NONE => {
                return Err(Refusal::new(Reason::RankTaken).about(visit.rank));
            }
            Some(membership)
                if self.phase != Phase::Forming || visit.now.since(membership.heard) < TAKEOVER =>
            {
                // It may have died since it answered; but once for each that asks is enough.
                let doubtful =
                    called && membership.round == self.round && membership.rival != visit.instance;
                if doubtful && self.phase == Phase::Forming {
                    membership.rival = visit.instance;
                    self.confirm(visit);
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
        let has_elements = join.units != 0;
        if let Some(agreed) = self.agreed.filter(|_| has_elements) {
            if agreed.units != join.units {
                let refusal = Refusal::numbers(Reason::Payload, join.units, agreed.units);
                return Err(refusal.about(agreed.by));
            }
            if agreed.shape != join.shape {
                return Err(Refusal::new(Reason::Shape).about(agreed.by));
            }
        }
        self.enter(visit);
        if let (Some(sent), Some(membership)) =
            (join.sent, &mut self.workers[usize::from(visit.rank.0)])
            && visit.incarnation == self.incarnation
        {
            membership.has_sent(sent, join.awaiting);
        }
        if has_elements {
            self.agreed.get_or_insert(Agreed {
                by: visit.rank,
                units: join.units,
                shape: join.shape,
            });
        }
        if let Some(JoinTree::Switch(below)) = join.tree {
            self.hear_switch(visit, below);
        }
        Ok(Joined::Now)
    }

    /// Whether a child switch that is a member may stay it: it may have restarted, or come by
    /// another link (TR-23).
    fn look_at_switch(&mut self, visit: &mut Visit<'_>) -> Result<(), Refusal> {
        let runs = self.runs();
        let Some(it) = &mut self.workers[usize::from(visit.rank.0)] else {
            return Ok(());
        };
        if !visit.by_switch || !it.is(visit) {
            return Ok(());
        }
        if runs && visit.incarnation == Incarnation::NONE {
            // It knows of no epoch: its members are new ones. The old ones are lost in time.
            return Err(Refusal::new(Reason::RankTaken).about(visit.rank));
        }
        if it.member != visit.from && it.moving != Some((visit.from, self.round)) {
            // A recorded JOIN from elsewhere moves nothing: the challenge goes there only.
            self.round += 1;
            it.moving = Some((visit.from, self.round));
            return Err(Refusal::new(Reason::Challenge));
        }
        Ok(())
    }

    /// Takes what a child switch says of what is below it.
    fn hear_switch(&mut self, visit: &mut Visit<'_>, below: Below) {
        let is_current = visit.incarnation == self.incarnation;
        let Some(it) = &mut self.workers[usize::from(visit.rank.0)] else {
            return;
        };
        it.ready = below.ready && is_current;
        it.below = Some(below);
        it.moving = None;
        if !is_current {
            it.round = 0;
        }
        if std::mem::replace(&mut it.member, visit.from) != visit.from {
            self.bind_anew(&mut visit.actions);
        }
    }
}
