//! What a job answers: ACCEPT and REFUSE, sealed under its key.

use super::membership::Membership;
use super::visit::{Refusal, Visit, control_header};
use super::{Incarnation, Job, Phase};
use crate::registry::event::Event;
use crate::registry::{Action, Datagram, RegistryConfig};
use tally_wire::control::{Behind, DATAGRAM_BYTES, Reason, State};
use tally_wire::frame::group_of;
use tally_wire::{Accept, Key, Kind, Rank, Refuse};

/// Whom an answer is for.
#[derive(Clone, Copy)]
pub(super) struct To<'a> {
    rank: Rank,
    instance: u64,
    /// Under which it is sealed.
    key: &'a Key,
}

impl<'a> To<'a> {
    pub(super) fn member(rank: Rank, membership: &'a Membership) -> Self {
        Self {
            rank,
            instance: membership.instance,
            key: &membership.key,
        }
    }
}

impl Job {
    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::Running => State::Running,
            _ => State::Waiting,
        }
    }

    pub(super) fn accept(&self, visit: &mut Visit<'_>, state: State) {
        // What has ended is the asker's epoch, also when the next one has opened.
        let incarnation = match state {
            State::Ended => visit.incarnation,
            _ => self.incarnation,
        };
        let to = self.visitor(visit);
        let answer = self.acceptance_of(incarnation, visit.config, to, state);
        visit.actions.push(Action::Send(visit.from, answer));
    }

    /// The one whose datagram is being answered.
    fn visitor<'a>(&'a self, visit: &'a Visit<'_>) -> To<'a> {
        To {
            rank: visit.rank,
            instance: visit.instance,
            key: visit.key(&self.config),
        }
    }

    pub(in crate::registry) fn refuse(&self, visit: &mut Visit<'_>, refusal: Refusal) {
        if !visit.refusals.take(visit.now) {
            return;
        }
        // The first two are asked again at once, and the others say how an epoch has ended.
        let is_news = !matches!(
            refusal.reason,
            Reason::Challenge | Reason::Window | Reason::MemberLost | Reason::MemberFailed
        );
        if is_news {
            visit.events.push(Event::Refused {
                job: self.config.id,
                rank: visit.rank,
                from: visit.from,
                reason: refusal.reason,
                found: refusal.found,
                allowed: refusal.allowed,
            });
        }
        let answer = self.refused(visit.config, self.visitor(visit), refusal);
        visit.actions.push(Action::Send(visit.from, answer));
    }

    pub(super) fn acceptance(
        &self,
        config: &RegistryConfig,
        to: To<'_>,
        state: State,
    ) -> Box<Datagram> {
        self.acceptance_of(self.incarnation, config, to, state)
    }

    pub(super) fn acceptance_of(
        &self,
        incarnation: Incarnation,
        config: &RegistryConfig,
        To {
            rank,
            instance,
            key,
        }: To<'_>,
        state: State,
    ) -> Box<Datagram> {
        let Incarnation { epoch, salt } = incarnation;
        let challenge = self.challenge(config);
        let is_wrapped = incarnation == self.incarnation && *key != self.epoch_key;
        let wrapped = is_wrapped.then(|| {
            let secret = self.epoch_key.epoch_secret(self.config.id, epoch, salt);
            key.wrap(secret, self.config.id, epoch, salt, challenge)
        });
        let accept = Accept {
            instance,
            challenge,
            state,
            workers: self.config.workers,
            units: self.agreed.map_or(0, |agreed| agreed.units),
            shards: config.shards,
            base_port: config.base_port,
            window: config.window,
            joined: self.joined(),
            left: self.left,
            ps: self.ps.is_some() && self.ps_incarnation == self.incarnation,
            mac: config.mac,
            salt,
            wrapped,
            group: group_of(self.config.id),
            behind: (rank.is_worker() && state != State::Ended)
                .then(|| self.behind())
                .flatten(),
            place: None,
        };
        let mut datagram = Box::new([0; DATAGRAM_BYTES]);
        control_header(Kind::Accept, self.config.id, epoch, rank).emit(&mut *datagram);
        accept.emit(&mut *datagram);
        key.seal(&mut *datagram);
        datagram
    }

    pub(super) fn refused(
        &self,
        config: &RegistryConfig,
        To {
            rank,
            instance,
            key,
        }: To<'_>,
        refusal: Refusal,
    ) -> Box<Datagram> {
        let Refusal {
            reason,
            about,
            found,
            allowed,
            behind,
        } = refusal;
        let challenge = self.challenge(config);
        let mut datagram = Box::new([0; DATAGRAM_BYTES]);
        control_header(Kind::Refuse, self.config.id, self.incarnation.epoch, rank)
            .emit(&mut *datagram);
        Refuse {
            instance,
            challenge,
            reason,
            about,
            found,
            allowed,
            behind,
            concern: None,
        }
        .emit(&mut *datagram);
        key.seal(&mut *datagram);
        datagram
    }

    /// Who has contributed least and who is slowest, of those that have not left; only once all
    /// have said how far they are: who has not said may be behind them all.
    fn behind(&self) -> Option<Behind> {
        let mut behind: Option<Behind> = None;
        for rank in (0..self.config.workers).map(Rank) {
            if self.left & rank.bit() != 0 {
                continue;
            }
            let membership = self.workers[usize::from(rank.0)].as_ref()?;
            let (sent, awaiting) = (membership.sent?, membership.awaiting);
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
}
