//! Silence: members that have stopped sending heartbeats lose their place, or end the job (J-6).

use super::super::event::Event;
use super::membership::Membership;
use super::visit::Refusal;
use super::{Job, Phase};
use crate::registry::{Action, RegistryConfig};
use std::time::Duration;
use tally_wire::control::Reason;
use tally_wire::{Part, Rank, Time};

impl Job {
    /// When the member that has been silent longest was heard; those that left a job that runs may
    /// be silent.
    pub(in crate::registry) fn first_heard(&self) -> Option<Time> {
        let may_be_silent = if self.phase == Phase::Forming && self.resumed.is_none() {
            0
        } else {
            self.left
        };
        let present = self
            .memberships()
            .filter(|(rank, _)| may_be_silent & rank.bit() == 0);
        let absent = self.resumed.filter(|_| self.absent().is_some());
        present
            .map(|(_, membership)| membership.heard)
            .chain(absent)
            .chain(self.parent_heard())
            .min()
    }

    /// Time in which the switch could hear no member.
    pub(in crate::registry) fn postpone(&mut self, missed: Duration) {
        self.postpone_servers(missed);
        let workers = self.workers.iter_mut().flatten();
        let heard = workers.map(|membership| &mut membership.heard);
        let link = self.link.as_mut().map(|link| &mut link.heard);
        heard
            .chain(&mut self.resumed)
            .chain(link)
            .for_each(|heard| *heard = heard.after(missed));
    }

    /// J-6.
    pub(in crate::registry) fn look_for_silence(
        &mut self,
        now: Time,
        config: &RegistryConfig,
        actions: &mut Vec<Action>,
    ) {
        self.look_for_parent(now, config, actions);
        let silent = |membership: &Membership| now.since(membership.heard) >= config.member_timeout;
        self.lose_silent_servers(now, config);
        if let Some(since) = self.resumed {
            // Those that left may be silent, as in a job that runs.
            let silent = |rank: &Rank| {
                let membership = self.workers[usize::from(rank.0)].as_ref();
                let heard = membership.map_or(since, |membership| membership.heard);
                self.left & rank.bit() == 0 && now.since(heard) >= config.member_timeout
            };
            if let Some(rank) = (0..self.members()).map(Rank).find(silent) {
                self.lose(now, rank, config, actions);
            }
            return;
        }
        if self.phase == Phase::Forming {
            for rank in 0..self.members() {
                let membership = self.workers[usize::from(rank)].as_ref();
                if let Some(lost) = membership.filter(|it| silent(it)) {
                    self.events.push(Event::Lost {
                        job: self.config.id,
                        rank: Rank(rank),
                        part: Part::ONLY,
                        member: Some(lost.member),
                        silent: now.since(lost.heard),
                    });
                    self.vacate(Rank(rank));
                }
            }
            return;
        }
        let lost = self.memberships().find(|(rank, membership)| {
            rank.is_worker() && self.left & rank.bit() == 0 && silent(membership)
        });
        if let Some((rank, _)) = lost {
            self.lose(now, rank, config, actions);
        }
    }

    /// The job ends because of a worker's silence.
    fn lose(&mut self, now: Time, rank: Rank, config: &RegistryConfig, actions: &mut Vec<Action>) {
        let membership = self.workers[usize::from(rank.0)].as_ref();
        let heard = membership
            .map(|membership| membership.heard)
            .or(self.resumed);
        let silence = heard.map_or(config.member_timeout, |heard| now.since(heard));
        let millis = |d: Duration| d.as_millis().min(u128::from(u32::MAX)) as u32;
        self.events.push(Event::Lost {
            job: self.config.id,
            rank,
            part: Part::ONLY,
            member: membership.map(|membership| membership.member),
            silent: silence,
        });
        let numbers = (millis(silence), millis(config.member_timeout));
        let refusal = Refusal::numbers(Reason::MemberLost, numbers.0, numbers.1).about(rank);
        self.fail(config, refusal, actions);
    }
}
