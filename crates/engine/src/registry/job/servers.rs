//! The parameter servers of a job: which part of the fragments each completes, and whether it has
//! confirmed the epoch (P-6).
//!
//! A job runs when all are there. One that is lost pauses it, and the job resumes once another
//! serves its part; the others keep what they have.

use super::super::event::Event;
use super::membership::{Membership, TAKEOVER};
use super::visit::{Refusal, Visit};
use super::{Incarnation, Job, Phase};
use crate::registry::{Action, RegistryConfig};
use std::time::Duration;
use tally_wire::control::{Reason, State};
use tally_wire::{Join, Part, Rank, Time};

/// The place of one server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) membership: Option<Membership>,
    /// The epoch that it has confirmed (J-5).
    pub(super) incarnation: Incarnation,
}

impl Server {
    const NONE: Self = Self {
        membership: None,
        incarnation: Incarnation::NONE,
    };
}

/// Free places of `count` servers, at least one.
pub(super) fn places(count: u8) -> Vec<Server> {
    (0..count.max(1)).map(|_| Server::NONE).collect()
}

impl Job {
    /// Whether all servers have joined.
    pub(in crate::registry) fn has_servers(&self) -> bool {
        self.servers.iter().all(|it| it.membership.is_some())
    }

    /// The parts whose servers have joined, as a bitmap.
    pub(in crate::registry) fn servers_joined(&self) -> u16 {
        let joined = self.servers.iter().map(|it| it.membership.is_some());
        joined.rev().fold(0, |bits, is| bits << 1 | u16::from(is))
    }

    /// The first part whose server has not joined, or not confirmed the job's epoch.
    pub(super) fn missing_server(&self) -> Option<Part> {
        let is_there = |it: &Server| it.membership.is_some() && it.incarnation == self.incarnation;
        let mut servers = (0..).zip(&self.servers);
        let missing = servers.find(|(_, it)| !is_there(it));
        missing.map(|(index, _)| self.part(index))
    }

    /// The members that serve, with their parts.
    pub(super) fn served_parts(&self) -> impl Iterator<Item = (Part, &Membership)> {
        let servers = (0..).zip(&self.servers);
        servers.filter_map(|(index, it)| Some((self.part(index), it.membership.as_ref()?)))
    }

    fn part(&self, index: u8) -> Part {
        Part::new(index, self.servers.len() as u8).unwrap_or(Part::ONLY)
    }

    /// Loses the server of a part. An epoch that runs resumes as soon as another has confirmed it.
    pub(super) fn lose_server(&mut self, index: u8) {
        let part = self.part(index);
        self.round += 1;
        self.servers[usize::from(index)] = Server::NONE;
        if self.phase == Phase::Running {
            self.phase = Phase::Paused;
            self.events.push(Event::Paused {
                job: self.config.id,
                epoch: self.incarnation.epoch,
                part,
            });
        }
    }

    /// Frees the places of all servers, and makes `count` of them.
    pub(super) fn vacate_servers(&mut self, count: u8) {
        (0..self.servers.len() as u8).for_each(|index| self.lose_server(index));
        self.servers = places(count);
    }

    /// A server leaves.
    pub(super) fn server_leaves(&mut self, visit: &Visit<'_>) {
        let is = |it: &Server| it.membership.as_ref().is_some_and(|it| it.is(visit));
        for index in 0..self.servers.len() as u8 {
            if is(&self.servers[usize::from(index)]) {
                self.say_left(visit, self.part(index));
                self.lose_server(index);
            }
        }
    }

    /// Servers that have been silent for too long are lost (J-6).
    pub(super) fn lose_silent_servers(&mut self, now: Time, config: &RegistryConfig) {
        for index in 0..self.servers.len() as u8 {
            let server = self.servers[usize::from(index)].membership.as_ref();
            let Some(lost) = server.filter(|it| now.since(it.heard) >= config.member_timeout)
            else {
                continue;
            };
            self.events.push(Event::Lost {
                job: self.config.id,
                rank: Rank::PS,
                part: self.part(index),
                member: Some(lost.member),
                silent: now.since(lost.heard),
            });
            self.lose_server(index);
        }
    }

    /// Tells the servers that have not confirmed the epoch which one it is.
    pub(super) fn ask_servers(&self, visit: &mut Visit<'_>) {
        let servers = self.servers.iter();
        let unsure = servers.filter(|it| it.incarnation != self.incarnation);
        for membership in unsure.filter_map(|it| it.membership.as_ref()) {
            let to = self.to(Rank::PS, membership);
            let news = self.acceptance(visit.config, to, State::Waiting);
            visit.actions.push(Action::Send(membership.member, news));
        }
    }

    /// Time in which the switch could not hear the servers.
    pub(super) fn postpone_servers(&mut self, missed: Duration) {
        for it in self
            .servers
            .iter_mut()
            .filter_map(|it| it.membership.as_mut())
        {
            it.heard = it.heard.after(missed);
        }
    }

    /// Takes a JOIN of a PS.
    pub(super) fn join_server(&mut self, visit: &Visit<'_>, join: &Join) -> Result<(), Refusal> {
        if visit.rank != Rank::PS {
            return Err(Refusal::numbers(
                Reason::BadRank,
                visit.rank.0,
                self.members(),
            ));
        }
        if ![0, self.members()].contains(&join.workers) {
            return Err(Refusal::numbers(
                Reason::Workers,
                join.workers,
                self.members(),
            ));
        }
        // Else two could complete one fragment, or none.
        let parts = self.servers.len() as u8;
        if join.part.count() != parts {
            return Err(Refusal::numbers(Reason::Parts, join.part.count(), parts));
        }
        if self.fixed {
            return Err(Refusal::new(Reason::RankTaken));
        }
        let index = join.part.index();
        let at = usize::from(index);
        match &self.servers[at].membership {
            Some(membership) if membership.is(visit) => {}
            Some(membership) if visit.now.since(membership.heard) < TAKEOVER => {
                return Err(Refusal::new(Reason::RankTaken));
            }
            Some(_) => {
                // A new PS, or a late JOIN of the old one: the next challenge tells them apart.
                self.lose_server(index);
                return Err(Refusal::new(Reason::Challenge));
            }
            None => self.lose_server(index),
        }
        let before = self.servers[at].membership.as_ref().map(|it| it.round);
        if before.is_none() {
            self.events.push(Event::Joined {
                job: self.config.id,
                rank: visit.rank,
                part: join.part,
                member: visit.from,
            });
        }
        let round = self.said(visit).or(before).unwrap_or(0);
        let (current, key) = (self.incarnation, &self.config);
        let membership = Membership {
            round,
            ..Membership::new(visit, key)
        };
        let server = &mut self.servers[at];
        server.membership = Some(membership);
        // What the same PS has confirmed, a JOIN that was overtaken does not take back.
        if server.incarnation != current || current == Incarnation::NONE {
            server.incarnation = visit.incarnation;
        }
        Ok(())
    }
}
