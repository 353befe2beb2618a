//! Membership: who may take part in which job, and whether they still do.
//!
//! A job goes from *idle* through *forming* (some have joined) to *running* (all have) and back to
//! idle, when all workers have left or one has failed; while its PS is gone it is *paused*: that is
//! `job.rs`. [`Registry::handle`] takes one control datagram, [`Registry::handle_timeout`] looks after
//! silence; both answer with [`Action`]s, in the order in which they are to be carried out.
//! PROTOCOL.md, sections 3 and 4, is the specification.
//!
//! The catch in here is the challenge (J-2). It is a digest of a secret of this start of the
//! switch, the job, and a counter that moves on whenever a recorded JOIN could otherwise take a place
//! that it was not said for: when an epoch opens or ends, when a PS is bound, when the roll is called
//! (J-5), and when any member's place is given up. So whoever finds a place vacated has to ask for the challenge anew.

mod job;

use crate::roster::{Member, Roster};
use job::{Job, Phase, Visit};
use std::collections::BTreeMap;
use std::time::Duration;
use tally_wire::control::{DATAGRAM_BYTES, Reason};
use tally_wire::{Epoch, Header, JobId, Join, Key, Kind, Leave, Time, all_ranks};

/// A job as the operator configures it.
#[derive(Clone, Debug)]
pub struct JobConfig {
    /// Its number.
    pub id: JobId,
    /// Its key.
    pub key: Key,
    /// Its workers, 1 to 64.
    pub workers: u8,
}

/// What the registry tells members about the switch, and how long it waits for them.
#[derive(Clone, Debug)]
pub struct RegistryConfig {
    /// First UDP port.
    pub base_port: u16,
    /// Number of UDP ports for fragments.
    pub shards: u8,
    /// Largest window, in fragments.
    pub window: u16,
    /// Largest payload, in units.
    pub units: u8,
    /// A member that is silent for longer is lost.
    pub member_timeout: Duration,
    /// Unpredictable, and new with every start.
    pub secret: [u8; 32],
    /// The epoch before the first; new with every start, so that epochs do not repeat at once.
    pub first_epoch: u16,
}

/// A control datagram: Tally header and payload.
pub type Datagram = [u8; DATAGRAM_BYTES];

/// What the switch is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this datagram to a member.
    Send(Member, Box<Datagram>),
    /// Start this epoch (or take new addresses of it) on all shards; the job is the `index`-th of
    /// the configuration.
    Bind(Box<Roster>, usize),
    /// End the job on all shards.
    Unbind(JobId),
}

/// All configured jobs and their members.
#[derive(Debug)]
pub struct Registry {
    config: RegistryConfig,
    jobs: BTreeMap<JobId, Job>,
    next_epoch: u16,
}

/// The summary of one job, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// The job.
    pub id: JobId,
    /// Its current epoch.
    pub epoch: Epoch,
    /// Its workers.
    pub workers: u8,
    /// `idle`, `waiting`, `running` or `paused` (its PS is gone).
    pub phase: &'static str,
    /// Ranks that have joined.
    pub joined: u64,
    /// Ranks that have left.
    pub left: u64,
    /// Whether a PS has joined.
    pub ps: bool,
}

impl Registry {
    /// All jobs idle.
    #[must_use]
    pub fn new(config: RegistryConfig, jobs: Vec<JobConfig>) -> Self {
        let jobs = jobs.into_iter().enumerate();
        let jobs = jobs.map(|(index, config)| (config.id, Job::new(config, index)));
        Self {
            next_epoch: config.first_epoch,
            jobs: jobs.collect(),
            config,
        }
    }

    /// A job whose members are known beforehand and need not join: it runs from the start, for
    /// ever, with epoch 1. For load generators that replay captures.
    ///
    /// # Panics
    /// If the job is not configured or `members` are not as many as its workers.
    #[must_use]
    pub fn fix_members(
        &mut self,
        id: JobId,
        units: u8,
        members: Vec<Member>,
        ps: Member,
    ) -> Action {
        let job = self.jobs.get_mut(&id).expect("a configured job");
        assert_eq!(members.len(), usize::from(job.config.workers));
        job.fixed = true;
        job.epoch = Epoch(1);
        job.phase = Phase::Running;
        Action::Bind(
            Box::new(Roster::new(id, Epoch(1), units, members, ps)),
            job.index,
        )
    }

    /// How the jobs stand.
    pub fn status(&self) -> impl Iterator<Item = JobStatus> {
        self.jobs.values().map(|job| JobStatus {
            id: job.config.id,
            epoch: job.epoch,
            workers: job.config.workers,
            phase: match job.phase {
                Phase::Idle => "idle",
                Phase::Forming => "waiting",
                Phase::Running => "running",
                Phase::Paused => "paused",
            },
            joined: if job.fixed {
                all_ranks(job.config.workers)
            } else {
                job.joined()
            },
            left: job.left,
            ps: job.fixed || job.ps.is_some(),
        })
    }

    /// Takes one JOIN or LEAVE. `datagram` is the whole UDP payload and parses as `header`.
    pub fn handle(
        &mut self,
        now: Time,
        from: Member,
        header: &Header,
        datagram: &[u8],
    ) -> Vec<Action> {
        if !matches!(header.kind, Kind::Join | Kind::Leave) || datagram.len() != DATAGRAM_BYTES {
            return Vec::new();
        }
        // The instance stands first in both payloads. Until verified, it is only echoed.
        let instance = datagram[22..30]
            .iter()
            .fold(0, |n, &b| n << 8 | u64::from(b));
        let mut visit = Visit {
            config: &self.config,
            next_epoch: &mut self.next_epoch,
            now,
            from,
            rank: header.rank,
            epoch: header.epoch,
            instance,
            actions: Vec::new(),
        };
        match self.jobs.get_mut(&header.job) {
            None => visit.hint(header.job, Reason::UnknownJob),
            Some(job) if !job.config.key.verify(datagram) => {
                visit.hint(header.job, Reason::BadMac);
            }
            // What does not parse under the right key is a bug of the member; it times out.
            Some(job) if header.kind == Kind::Join => {
                if let Ok(join) = Join::parse(datagram) {
                    job.join(&mut visit, &join);
                }
            }
            Some(job) => {
                if let Ok(leave) = Leave::parse(datagram) {
                    job.leave(&mut visit, &leave);
                }
            }
        }
        visit.actions
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do, if ever.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let timeout = self.config.member_timeout;
        self.jobs
            .values()
            .filter_map(|job| job.first_heard())
            .min()
            .map(|t| t.after(timeout))
    }

    /// Looks for members that have been silent for too long (J-6).
    pub fn handle_timeout(&mut self, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        for job in self.jobs.values_mut() {
            job.look_for_silence(now, &self.config, &mut actions);
        }
        actions
    }
}

#[cfg(test)]
mod tests;
