//! Membership: who may take part in which job, and whether they still do.
//!
//! A job goes from *idle* through *forming* (some have joined) to *running* (all have) and back to
//! idle, when all workers have left or one has failed; while its PS is gone it is *paused*: that is
//! `job.rs`. [`Registry::handle`] takes one control datagram, [`Registry::handle_timeout`] looks
//! after silence; both answer with [`Action`]s, in the order in which they are to be carried out.
//! PROTOCOL.md, sections 3 and 4, is the specification.
//!
//! An incarnation of a job is an epoch and a salt (J-4). Both are digests of a secret of this start
//! of the switch, the job and a counter: a member of one job can foresee no other job's, nor its
//! own job's next.
//!
//! The catch in here is the challenge (J-2). It is a digest of a secret of this start of the
//! switch, the job, and a counter that moves on whenever a recorded JOIN could otherwise take a
//! place that it was not said for: when an epoch opens or ends, when a PS is bound, in each
//! confirmation round (J-5), and when any member's place is given up. So a process that finds a
//! place vacated has to ask for the challenge anew.
//!
//! A second catch: a switch that stood still has heard no member, and each looks silent. Time in
//! which the registry was not called does not count as silence ([`Registry::observe`]).

mod changes;
mod event;
mod job;
mod parents;

mod tenants;
mod tree;

pub use changes::Runs;
pub use tenants::TenantConfig;
pub use tree::{Child, Fabric, Parent, ParentStatus, Tree};

pub use event::Event;
pub use job::MemberStatus;

use crate::roster::{Member, PortId, Roster};
use event::Events;
use job::{Incarnation, Job, Phase, Visit};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tally_wire::control::{DATAGRAM_BYTES, Reason, Role, claims_switch};
use tally_wire::field;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Epoch, Header, JobId, Join, Key, Kind, Leave, Mac, Time, all_ranks};
use tenants::JobsOf;

/// Longest time between two calls that counts as silence of the members: the period of J-1.
const OBSERVED: Duration = Duration::from_millis(500);
/// What [`Registry::excuse`] leaves each member: two periods of J-1.
const EXCUSED: Duration = Duration::from_millis(1000);

/// Refusals that a port may have at once: all workers of a job and its PS may ask for the
/// challenge, twice.
const REFUSALS_AT_ONCE: u32 = 130;
/// And one more each.
const REFUSAL_EVERY: Duration = Duration::from_millis(2);

/// A job as the operator configures it.
#[derive(Clone, Debug)]
pub struct JobConfig {
    /// Its number.
    pub id: JobId,
    /// Its key.
    pub key: Key,
    /// Its key before that, while members may still have it.
    pub previous_key: Option<Key>,
    /// Its workers, 1 to 64. In a tree: those at this switch, which may be none.
    pub workers: u8,
    /// The place of this switch in the job's tree, if it has one.
    pub tree: Option<Tree>,
    /// Its parameter servers at this switch, by fragment: 1, 2, 4, 8 or 16.
    pub servers: u8,
}

impl JobConfig {
    /// Members at this switch, the PS apart: workers and child switches.
    #[must_use]
    pub fn members(&self) -> u8 {
        let children = self.tree.as_ref().map_or(0, |tree| tree.children.len());
        self.workers + children as u8
    }
}

/// The one of two keys under which a datagram is sealed.
fn verified_by<'a>(key: &'a Key, previous: Option<&'a Key>, datagram: &[u8]) -> Option<&'a Key> {
    let mut keys = [key].into_iter().chain(previous);
    keys.find(|key| key.verify(datagram))
}

/// What the registry tells members about the switch, and how long it waits for them.
#[derive(Clone, Debug)]
pub struct RegistryConfig {
    /// The switch's own address.
    pub mac: Mac,
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
    /// The switch as a part of a fabric, if it is.
    pub fabric: Option<Fabric>,
}

impl RegistryConfig {
    /// 32 bytes derived from the secret of this start. Without it they are unpredictable, also from
    /// those for other arguments. No label is another's beginning.
    fn derive(&self, label: &[u8], job: JobId, counter: u64) -> [u8; 32] {
        Sha256::new()
            .chain_update(self.secret)
            .chain_update(label)
            .chain_update(job.0.to_be_bytes())
            .chain_update(counter.to_be_bytes())
            .finalize()
            .into()
    }
}

/// A control datagram: Tally header and payload.
pub type Datagram = [u8; DATAGRAM_BYTES];

/// What the switch is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this datagram to a member.
    Send(Member, Box<Datagram>),
    /// Start this epoch (or take new addresses of it) on all shards.
    Bind(Box<Roster>),
    /// End the job on all shards.
    Unbind(JobId),
    /// Configure a job of a tenant on all shards, with this number of workers.
    Create(JobId, u8),
    /// Take a job of a tenant, which does not run, from all shards.
    Forget(JobId),
}

/// All configured jobs and their members.
#[derive(Debug)]
pub struct Registry {
    config: RegistryConfig,
    jobs: BTreeMap<JobId, Job>,
    /// Whose jobs are made by JOIN, by name.
    tenants: BTreeMap<Arc<str>, TenantConfig>,
    /// What a new job counts from: no challenge and no incarnation of a job that was forgotten
    /// comes again.
    serial: u64,
    /// The time of the last call.
    observed: Time,
    /// What each port has left of refusals.
    refusals: BTreeMap<PortId, Refusals>,
    /// What happened since they were taken last.
    events: Events,
}

/// The refusals of one port, of which there are [`REFUSALS_AT_ONCE`] at once and one each
/// [`REFUSAL_EVERY`] on average. A recorded JOIN is worth a refusal, and so is one without the key:
/// both cost an attacker nothing.
#[derive(Debug, Default)]
struct Refusals {
    /// When as many refusals as at once will have been earned.
    full: Time,
}

impl Refusals {
    /// Takes one, if one is left.
    fn take(&mut self, now: Time) -> bool {
        let after = self.full.max(now).after(REFUSAL_EVERY);
        let is_left = after.since(now) <= REFUSAL_EVERY * REFUSALS_AT_ONCE;
        if is_left {
            self.full = after;
        }
        is_left
    }
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
    /// What it does.
    pub phase: JobPhase,
    /// Ranks that have joined.
    pub joined: u64,
    /// Ranks that have left.
    pub left: u64,
    /// Whether all parameter servers have joined.
    pub ps: bool,
    /// Parameter servers.
    pub servers: u8,
    /// The parts whose parameter servers have joined, as a bitmap.
    pub servers_joined: u16,
    /// Whether no epoch may begin.
    pub draining: bool,
    /// Ranks that joined under the previous key.
    pub previous_key: u64,
    /// Whether a PS did.
    pub ps_previous_key: bool,
    /// The tenant that it is of, if a JOIN made it.
    pub tenant: Option<Arc<str>>,
}

impl JobStatus {
    /// Whether it is drained: it does not run, and does not begin.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.phase == JobPhase::Idle
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPhase {
    /// No member has joined.
    Idle,
    /// Some members have joined.
    Waiting,
    /// All members have joined.
    Running,
    /// Its PS is gone.
    Paused,
}

impl Registry {
    /// All jobs idle.
    #[must_use]
    pub fn new(config: RegistryConfig, jobs: Vec<JobConfig>) -> Self {
        let jobs = jobs.into_iter().map(|job| (job.id, Job::new(job, 0)));
        Self {
            jobs: jobs.collect(),
            tenants: BTreeMap::new(),
            serial: 0,
            observed: Time(0),
            refusals: BTreeMap::new(),
            events: Events::default(),
            config,
        }
    }

    /// A job whose members are known beforehand and need not join: it runs from the start without
    /// end, with epoch 1 and salt 0. For load generators that replay captures.
    ///
    /// # Panics
    /// If the job is not configured, or the number of `members` is not that of its workers.
    #[must_use]
    pub fn fix_members(
        &mut self,
        id: JobId,
        units: u8,
        members: Vec<Member>,
        ps: Member,
    ) -> Action {
        let job = self.jobs.get_mut(&id).expect("a configured job");
        assert_eq!(members.len(), usize::from(job.config.members()));
        job.fixed = true;
        job.incarnation = Incarnation::said(Epoch(1), 0);
        job.phase = Phase::Running;
        job.epoch_key = job.config.key.clone();
        let secret = job.epoch_key.epoch_secret(id, Epoch(1), 0);
        let roster = Roster::new(id, Epoch(1), secret, units, members, ps);
        Action::Bind(Box::new(roster))
    }

    /// How the jobs stand.
    pub fn status(&self) -> impl Iterator<Item = JobStatus> {
        let jobs = self.jobs.values().filter(|job| job.removed.is_none());
        jobs.map(|job| JobStatus {
            id: job.config.id,
            epoch: job.incarnation.epoch,
            workers: job.config.workers,
            phase: match job.phase {
                Phase::Idle => JobPhase::Idle,
                Phase::Forming => JobPhase::Waiting,
                Phase::Running => JobPhase::Running,
                Phase::Paused => JobPhase::Paused,
            },
            joined: if job.fixed {
                all_ranks(job.config.members())
            } else {
                job.joined()
            },
            left: job.left,
            ps: job.fixed || job.has_servers(),
            servers: job.config.servers,
            servers_joined: if job.fixed { 1 } else { job.servers_joined() },
            draining: job.draining,
            previous_key: job.previous_key(),
            ps_previous_key: job.ps_previous_key(),
            tenant: job.tenant.clone(),
        })
    }

    /// The members of a job that have joined, the parameter servers last.
    #[must_use]
    pub fn members(&self, id: JobId, now: Time) -> Vec<MemberStatus> {
        let job = self.jobs.get(&id);
        job.map_or_else(Vec::new, |job| job.member_status(now))
    }

    /// Units of a payload of the job, once its first worker has joined; 0 before.
    #[must_use]
    pub fn payload_units(&self, id: JobId) -> u8 {
        self.jobs.get(&id).map_or(0, Job::payload_units)
    }

    /// The place of this switch in the tree of a job, and the workers at this switch.
    #[must_use]
    pub fn tree(&self, id: JobId) -> Option<(&Tree, u8)> {
        let config = &self.jobs.get(&id)?.config;
        Some((config.tree.as_ref()?, config.workers))
    }

    /// Takes one JOIN or LEAVE. `datagram` is the whole UDP payload and parses as `header`.
    pub fn handle(
        &mut self,
        now: Time,
        from: Member,
        header: &Header,
        datagram: &[u8],
    ) -> Vec<Action> {
        if datagram.len() != DATAGRAM_BYTES {
            return Vec::new();
        }
        match header.kind {
            Kind::Join | Kind::Leave => {}
            Kind::Accept | Kind::Refuse => return self.handle_parent(now, from, header, datagram),
            _ => return Vec::new(),
        }
        self.observe(now);
        // Not even a refusal goes to what is no host's address, or the switch's own.
        if !from.is_one_host() || from.mac == self.config.mac {
            return Vec::new();
        }
        // The instance stands first in both payloads. Until verified, it is only echoed.
        let instance = field::be64(datagram, HEADER_BYTES..HEADER_BYTES + 8);
        let by_switch = self.is_of_child(header, datagram);
        let keys = if by_switch {
            let fabric = self.config.fabric.as_ref();
            fabric.map(|it| (&it.key, it.previous_key.as_ref()))
        } else {
            self.keys(header.job)
        };
        let key = keys.and_then(|(key, previous)| verified_by(key, previous, datagram));
        let reason = if keys.is_none() {
            Reason::UnknownJob
        } else {
            Reason::BadMac
        };
        let key = key.cloned();
        let mut visit = Visit {
            config: &self.config,
            now,
            from,
            rank: header.rank,
            wire_rank: header.rank,
            by_switch,
            located: by_switch,
            incarnation: Incarnation::NONE,
            instance,
            key: key.as_ref(),
            refusals: self.refusals.entry(from.port).or_default(),
            actions: Vec::new(),
            events: Events::default(),
        };
        if key.is_none() {
            visit.hint(header.job, reason);
        } else if header.kind == Kind::Join {
            // What does not parse under the right key is a bug of the member; it times out.
            // Nor is a switch one of a job without child switches here.
            if let Ok(join) = Join::parse(datagram)
                && (join.role == Role::Switch) == by_switch
            {
                visit.incarnation = Incarnation::said(header.epoch, join.salt);
                let mut jobs = JobsOf {
                    jobs: &mut self.jobs,
                    tenants: &self.tenants,
                    serial: &mut self.serial,
                };
                jobs.join(&mut visit, header.job, &join);
            }
        } else if let Ok(leave) = Leave::parse(datagram) {
            visit.incarnation = Incarnation::said(header.epoch, leave.salt);
            match self.jobs.get_mut(&header.job) {
                Some(job) => job.leave(&mut visit, &leave),
                None => visit.hint(header.job, Reason::UnknownJob),
            }
        }
        let Visit {
            mut actions,
            events: mut refused,
            ..
        } = visit;
        if let Some(job) = self.jobs.get_mut(&header.job) {
            job.drive(now, &self.config, &mut actions);
            self.events.append(&mut job.events);
        }
        self.events.append(&mut refused);
        actions
    }

    /// Whether a JOIN or LEAVE claims to be of a child switch, at a node that has some.
    fn is_of_child(&self, header: &Header, datagram: &[u8]) -> bool {
        let tree = self
            .jobs
            .get(&header.job)
            .and_then(|job| job.config.tree.as_ref());
        tree.is_some_and(|tree| !tree.children.is_empty()) && claims_switch(header.kind, datagram)
    }

    /// The keys under which a datagram of this job may be sealed.
    fn keys(&self, id: JobId) -> Option<(&Key, Option<&Key>)> {
        if let Some(Job { config, .. }) = self.jobs.get(&id) {
            return Some((&config.key, config.previous_key.as_ref()));
        }
        let tenant = tenants::of(&self.tenants, id)?;
        Some((&tenant.key, tenant.previous_key.as_ref()))
    }

    /// Takes note of the time. The part of a gap since the last call that is beyond the period of
    /// J-1 is no member's silence, and is returned: the process was stopped, or had no CPU.
    ///
    /// [`handle`](Self::handle) and [`handle_timeout`](Self::handle_timeout) do the same; the
    /// adapter calls it for the gap's length.
    pub fn observe(&mut self, now: Time) -> Duration {
        let gap = now.since(std::mem::replace(&mut self.observed, now));
        let missed = gap.saturating_sub(OBSERVED);
        if !missed.is_zero() {
            self.jobs.values_mut().for_each(|job| job.postpone(missed));
        }
        missed
    }

    /// Leaves each member a second at least from now: their frames did not reach the registry.
    pub fn excuse(&mut self, now: Time) {
        let Some(due) = self.silence_due() else {
            return;
        };
        let missed = now.after(EXCUSED).since(due);
        self.jobs.values_mut().for_each(|job| job.postpone(missed));
    }

    /// When a member will have been silent for too long, if none is heard until then.
    #[must_use]
    pub fn silence_due(&self) -> Option<Time> {
        let first = self.jobs.values().filter_map(Job::first_heard).min()?;
        Some(first.after(self.config.member_timeout))
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest, if ever.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let look = self.observed.after(OBSERVED);
        let due = match self.silence_due() {
            Some(due) => Some(due.min(look)),
            None => self.expires().then_some(look),
        };
        due.into_iter().chain(self.links_due()).min()
    }

    /// What happened since the last call, in its order.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.take()
    }

    /// Looks for members that have been silent for too long (J-6), and for jobs to forget
    /// ([`expire`](Self::expire)).
    pub fn handle_timeout(&mut self, now: Time) -> Vec<Action> {
        self.observe(now);
        let mut actions = Vec::new();
        for job in self.jobs.values_mut() {
            job.look_for_silence(now, &self.config, &mut actions);
            self.events.append(&mut job.events);
        }
        actions.append(&mut self.expire(now));
        actions.append(&mut self.poll_links(now));
        actions
    }
}

#[cfg(test)]
mod tests;
