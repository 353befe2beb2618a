//! What a job answers: ACCEPT and REFUSE, sealed under its key.

use super::membership::Membership;
use super::visit::{Refusal, Visit, control_header};
use super::{Incarnation, Job, Phase};
use crate::registry::event::Event;
use crate::registry::{Action, Datagram, RegistryConfig};
use tally_wire::control::{Behind, DATAGRAM_BYTES, Reason, State};
use tally_wire::frame::group_of;
use tally_wire::{Accept, Epoch, Key, Kind, Rank, Refuse};

/// Whom an answer is for.
#[derive(Clone, Copy)]
pub(super) struct To<'a> {
    /// Local rank.
    rank: Rank,
    /// The rank in the header.
    wire_rank: Rank,
    instance: u64,
    /// The epoch that a refusal is about.
    epoch: Epoch,
    /// Under which it is sealed.
    key: &'a Key,
}

impl Job {
    pub(super) fn to<'a>(&self, rank: Rank, membership: &'a Membership) -> To<'a> {
        To {
            rank,
            wire_rank: self.wire_rank(rank),
            instance: membership.instance,
            epoch: self.incarnation.epoch,
            key: &membership.key,
        }
    }

    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::Running => State::Running,
            _ => State::Waiting,
        }
    }

    /// The largest window that is served: this switch's, or its parent's if that is smaller.
    pub(super) fn window(&self, config: &RegistryConfig) -> u16 {
        let parent = (self.link.as_ref()).map_or(u16::MAX, |link| link.window);
        config.window.min(parent)
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
        // J-6: the end of an epoch has its number. The answer may arrive in the next epoch.
        let of_ended = self
            .ended
            .is_some_and(|it| it.incarnation == visit.incarnation);
        let epoch = if of_ended {
            visit.incarnation.epoch
        } else {
            self.incarnation.epoch
        };
        To {
            rank: visit.rank,
            wire_rank: visit.wire_rank,
            instance: visit.instance,
            epoch,
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
            Reason::Challenge
                | Reason::Window
                | Reason::MemberLost
                | Reason::MemberFailed
                | Reason::Parent
        );
        if is_news {
            visit.events.push(Event::Refused {
                job: self.config.id,
                rank: visit.rank,
                located: visit.located,
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
            wire_rank,
            instance,
            epoch: _,
            key,
        }: To<'_>,
        state: State,
    ) -> Box<Datagram> {
        let Incarnation { epoch, salt } = incarnation;
        let challenge = self.challenge(config);
        let is_wrapped = incarnation == self.incarnation
            && match self.given {
                None => *key != self.epoch_key,
                Some(given) => given != key.epoch_secret(self.config.id, epoch, salt),
            };
        let wrapped =
            is_wrapped.then(|| key.wrap(self.secret(), self.config.id, epoch, salt, challenge));
        let (place, behind) = self.place(rank, state);
        let accept = Accept {
            instance,
            challenge,
            state,
            workers: self.members(),
            units: self.agreed.map_or(0, |agreed| agreed.units),
            shards: config.shards,
            base_port: config.base_port,
            window: self.window(config),
            joined: self.joined(),
            left: self.left,
            missing_ps: self.missing_server(),
            mac: config.mac,
            salt,
            wrapped,
            group: group_of(self.config.id),
            behind,
            place,
        };
        let mut datagram = Box::new([0; DATAGRAM_BYTES]);
        control_header(Kind::Accept, self.config.id, epoch, wire_rank).emit(&mut *datagram);
        accept.emit(&mut *datagram);
        key.seal(&mut *datagram);
        datagram
    }

    pub(super) fn refused(
        &self,
        config: &RegistryConfig,
        To {
            rank: _,
            wire_rank,
            instance,
            epoch,
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
            concern,
        } = self.globalise(config, refusal);
        let challenge = self.challenge(config);
        let mut datagram = Box::new([0; DATAGRAM_BYTES]);
        let epoch = match reason {
            Reason::Challenge => self.incarnation.epoch,
            _ => epoch,
        };
        control_header(Kind::Refuse, self.config.id, epoch, wire_rank).emit(&mut *datagram);
        Refuse {
            instance,
            challenge,
            reason,
            // A local rank says nothing to a member of a tree.
            about: about.filter(|_| concern.is_none()),
            found,
            allowed,
            behind,
            concern,
        }
        .emit(&mut *datagram);
        key.seal(&mut *datagram);
        datagram
    }

    /// Who has contributed least and who is slowest, of those that have not left; only once all
    /// have said how far they are: who has not said may be behind them all.
    pub(super) fn behind(&self) -> Option<Behind> {
        let mut behind: Option<Behind> = None;
        for rank in (0..self.members()).map(Rank) {
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
