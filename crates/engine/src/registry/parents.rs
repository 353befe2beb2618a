//! Parents of nodes: where they are, and what comes from them.

use super::job::{Incarnation, Visit};
use super::{Action, Fabric, ParentStatus, Registry, verified_by};
use crate::roster::Member;
use tally_wire::{Accept, Header, JobId, Kind, Rank, Refuse, Time};

impl Registry {
    /// Changes the switch keys. Nothing that runs is interrupted while the old key stays as the
    /// previous one.
    pub fn set_fabric(&mut self, fabric: Option<Fabric>) {
        self.config.fabric = fabric;
        self.jobs.values_mut().for_each(super::job::Job::forget_key);
    }

    /// Says where the parent of a job's node is: the port that leads to it, and its addresses. The
    /// UDP port is that of its JOINs; `None`: no link to it is alive.
    pub fn set_parent_address(
        &mut self,
        now: Time,
        id: JobId,
        address: Option<Member>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(job) = self.jobs.get_mut(&id) {
            job.set_parent_address(now, address, &mut actions);
            job.drive(now, &self.config, &mut actions);
            self.events.append(&mut job.events);
        }
        actions
    }

    /// How the node of a job and its parent stand; `None` at a root.
    #[must_use]
    pub fn parent(&self, id: JobId, now: Time) -> Option<ParentStatus> {
        self.jobs.get(&id)?.parent_status(now)
    }

    /// Sends JOIN and LEAVE to parents as their periods pass.
    /// [`handle_timeout`](Self::handle_timeout) does the same.
    pub fn poll_links(&mut self, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        for job in self.jobs.values_mut() {
            if job.link_due().is_some_and(|due| due <= now) {
                job.drive(now, &self.config, &mut actions);
                self.events.append(&mut job.events);
            }
        }
        actions
    }

    /// When a parent is to be told something, if ever.
    pub(super) fn links_due(&self) -> Option<Time> {
        self.jobs.values().filter_map(|job| job.link_due()).min()
    }

    /// Takes ACCEPT or REFUSE of a job's parent.
    pub(super) fn handle_parent(
        &mut self,
        now: Time,
        from: Member,
        header: &Header,
        datagram: &[u8],
    ) -> Vec<Action> {
        self.observe(now);
        let Some(fabric) = &self.config.fabric else {
            return Vec::new();
        };
        let Some(job) = self.jobs.get_mut(&header.job) else {
            return Vec::new();
        };
        let is_at = |it: Member| (it.port, it.mac, it.ip) == (from.port, from.mac, from.ip);
        if !job.parent_address().is_some_and(is_at) || job.rank_at_parent() != Some(header.rank) {
            return Vec::new();
        }
        let key = verified_by(&fabric.key, fabric.previous_key.as_ref(), datagram);
        let mut visit = Visit {
            config: &self.config,
            now,
            from,
            rank: Rank::SWITCH,
            wire_rank: header.rank,
            by_switch: false,
            located: true,
            incarnation: Incarnation::NONE,
            instance: 0,
            key: None,
            refusals: self.refusals.entry(from.port).or_default(),
            actions: Vec::new(),
            events: super::event::Events::default(),
        };
        match (header.kind, key) {
            (Kind::Accept, Some(key)) => {
                if let Ok(accept) = Accept::parse(datagram) {
                    job.accepted(&mut visit, key, header.epoch, &accept);
                }
            }
            (Kind::Refuse, key) => {
                if let Ok(refuse) = Refuse::parse(datagram) {
                    job.refused_by_parent(&mut visit, key, header.epoch, &refuse);
                }
            }
            _ => {}
        }
        let mut actions = visit.actions;
        job.drive(now, &self.config, &mut actions);
        self.events.append(&mut job.events);
        actions
    }
}
