//! Worlds of switches in trees: one sum is folded from switch to switch, while trunks fail and
//! switches, workers and parameter servers die and restart.
//!
//! As in [`scenario`](super::scenario), jobs come and go while things go wrong, then nothing goes
//! wrong any more and everything must end, and then each job runs once more from the start. Every
//! sum on a trunk and every result at a host is compared with the fold by the tree
//! ([`TreeSums`](crate::oracle::TreeSums)).

mod ending;
mod incidents;
mod setup;
mod spy;
mod watch;

use super::custody::Custody;
use super::data::{Contributor, Facts};
use super::ending::{Ending, Incarnation, Member, SLACK};
use super::findings::{Checker, Findings};
use super::options::tree::TreeOptions;
use super::ring::Rings;
use super::setup::job_id;
use crate::address::{Address, HostId, Place, SessionId, SwitchId};
use crate::fabric::Trunk;
use crate::frame::Frame;
use crate::link::{Faults, Link};
use crate::rng::Rng;
use crate::switch::{Did, Switch};
use crate::world::{App, World, WorldConfig};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tally_endpoint::{Event, PsConfig};
use tally_engine::registry::JobPhase;
use tally_wire::{Part, Time};

/// How often the watchers look.
const TICK: Duration = Duration::from_millis(20);
/// Incarnations of a job during the safety phase at most.
const INCARNATIONS: usize = 4;
/// Time for the last frames to arrive.
const DRAIN: Duration = Duration::from_millis(500);

/// What the app has asked to be told, by token.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Incident(usize),
    InJob(usize),
    SwitchStarts(usize),
    TrunkHeals(usize),
    PsStarts { job: usize, node: usize },
    WorkerStarts { incarnation: usize, rank: u8 },
    Submit { incarnation: usize, rank: u8 },
    Launch { job: usize, after: usize },
    RingTrouble(usize),
    RingReturns(usize),
    SafetyEnds,
    Forge,
    Tick,
    Drained,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Safety,
    Convergence,
    OnceMore,
    Drain,
}

/// The parameter servers of a node, on one host.
#[derive(Clone, Debug)]
struct NodePs {
    /// By part (P-6).
    sessions: Vec<Option<SessionId>>,
    /// Of the first; the others have the next UDP ports.
    address: Address,
}

/// A run in progress.
pub struct TreeScenario {
    options: TreeOptions,
    findings: Findings,
    /// Those of all jobs.
    pub incarnations: Vec<Incarnation>,
    /// By job, its incarnation that lives or lived last.
    current: Vec<usize>,
    /// By switch, those above it.
    trunks: Vec<Vec<Trunk>>,
    /// By job and node.
    ps: Vec<Vec<NodePs>>,
    /// By job and global rank.
    hosts: Vec<Vec<HostId>>,
    /// By session: incarnation and rank.
    workers: Vec<Option<(usize, u8)>>,
    forger: HostId,
    /// Rings beside the jobs.
    pub rings: Option<Rings>,
    /// A hostile host at another switch than the first, and that switch.
    spy: Option<(HostId, usize)>,
    /// The last results that switches have sent, for the spy.
    heard: VecDeque<Frame>,
    plans: Vec<Plan>,
    /// Incidents of the first job that have been planned.
    in_job_planned: usize,
    phase: Phase,
    quiet_since: Time,
    /// By switch.
    custody: Vec<Custody>,
    /// Switches that are down.
    down: usize,
    instances: u64,
    /// Incarnations that will start.
    launches: usize,
    rng: Rng,
    /// Fragments contributed to by all workers of all incarnations, for bounds.
    pub expected_fragments: u64,
}

impl TreeScenario {
    /// The world of these options, and the scenario at its start.
    #[must_use]
    pub fn new(options: TreeOptions, findings: Findings) -> (World<Contributor>, Self) {
        let mut rng = Rng::new(options.base.seed ^ 0x7ee5_ce0a_210f);
        let units_max = options.base.units_max();
        let config = WorldConfig {
            seed: rng.next(),
            units_max,
            mtu: options.rings.as_ref().map_or(0, |(rings, _)| rings.mtu()),
            nominal_payload_bytes: None,
        };
        let (mut world, trunks) = setup::switches(&options, config, &mut rng);
        let places = setup::hosts(&options, &mut world, &mut rng);
        let rings = setup::rings(&options, &mut world);
        for switch in 0..options.above.len() {
            setup::introduce(&options, &mut world, &trunks, switch);
        }
        world.tap = (options.base.forged_per_s > 0).then(Default::default);
        let switches = options.above.len() as u16;
        let mut scenario = Self {
            findings,
            incarnations: Vec::new(),
            current: Vec::new(),
            trunks,
            ps: places.ps,
            hosts: places.workers,
            workers: Vec::new(),
            forger: places.forger,
            rings,
            spy: places.spy,
            heard: VecDeque::new(),
            plans: Vec::new(),
            in_job_planned: 0,
            phase: Phase::Safety,
            quiet_since: Time(0),
            custody: (0..switches).map(|n| Custody::new(SwitchId(n))).collect(),
            down: 0,
            instances: 0,
            launches: 0,
            rng,
            expected_fragments: 0,
            options,
        };
        scenario.begin(&mut world);
        (world, scenario)
    }

    fn begin(&mut self, world: &mut World<Contributor>) {
        for job in 0..self.options.jobs.len() {
            for node in 0..self.options.jobs[job].switches.len() {
                let at = self.soon(world, 30_000);
                self.plan(world, at, Plan::PsStarts { job, node });
            }
            self.current.push(usize::MAX);
            self.launch(world, job);
        }
        for n in 0..self.options.incidents.len() {
            let at = world.now.after(self.options.incidents[n].0);
            self.plan(world, at, Plan::Incident(n));
        }
        if let Some(rings) = &mut self.rings {
            rings.begin(world);
            for (n, at) in rings.troubles(world.now).into_iter().enumerate() {
                self.plan(world, at, Plan::RingTrouble(n));
            }
        }
        let end = world.now.after(self.options.base.safety);
        self.plan(world, end, Plan::SafetyEnds);
        self.plan(world, world.now, Plan::Tick);
        if self.options.base.forged_per_s > 0 {
            self.plan(world, world.now, Plan::Forge);
        }
    }

    /// The first job begins to run: what is to happen in mid-fragment does, once.
    fn job_begins(&mut self, world: &mut World<Contributor>) {
        let before = self.in_job_planned;
        self.in_job_planned = self.options.in_job.len();
        for n in before..self.in_job_planned {
            let at = world.now.after(self.options.in_job[n].0);
            self.plan(world, at, Plan::InJob(n));
        }
    }

    fn plan(&mut self, world: &mut World<Contributor>, at: Time, plan: Plan) {
        self.plans.push(plan);
        world.alarm(at, self.plans.len() as u64 - 1);
    }

    /// A moment up to `us` microseconds from now.
    fn soon(&mut self, world: &World<Contributor>, us: u64) -> Time {
        let us = self.rng.below(us + 1);
        world.now.after(Duration::from_micros(us))
    }

    fn instance(&mut self) -> u64 {
        self.instances += 1;
        self.rng.next() << 16 | self.instances
    }

    /// Starts the next incarnation of a job.
    fn launch(&mut self, world: &mut World<Contributor>, job: usize) {
        let number = self.incarnations.len();
        let of = &self.options.jobs[job];
        let salt = self.rng.next();
        let window = self.options.base.switch_window;
        let facts = Facts::new(job, number, &of.options, salt, window);
        let facts = facts.with_tree(Rc::clone(&of.tree));
        let workers = of.options.workers;
        self.expected_fragments += of.options.fragments() * u64::from(workers);
        self.incarnations.push(Incarnation {
            facts: Rc::new(facts),
            members: vec![Member::default(); usize::from(workers)],
            epoch: None,
            killed: 0,
            interrupted: 0,
            removed: false,
            hurt_at: world.now,
            switch_started_at: None,
            progress: (0, world.now),
        });
        self.current[job] = number;
        world.note(|| format!("job {job}: incarnation {number} starts"));
        let spread = self.rng.pick(&[0, 1_000, 100_000]);
        for rank in 0..workers {
            let at = self.soon(world, spread);
            let incarnation = number;
            self.plan(world, at, Plan::WorkerStarts { incarnation, rank });
        }
    }

    /// Starts the next incarnation at once: places of processes that have died may still be taken.
    fn relaunch(&mut self, world: &mut World<Contributor>, job: usize) {
        let after = self.current[job];
        self.launches += 1;
        self.plan(world, world.now, Plan::Launch { job, after });
    }

    fn start_worker(&mut self, world: &mut World<Contributor>, incarnation: usize, rank: u8) {
        let member = &self.incarnations[incarnation].members[usize::from(rank)];
        if member.ending.is_some() {
            // Killed before it began.
            return;
        }
        let instance = self.instance();
        let facts = Rc::clone(&self.incarnations[incarnation].facts);
        let job = facts.job;
        let reuse = if self.options.base.reuse_ports {
            0
        } else {
            incarnation as u16
        };
        let address = Address {
            host: self.hosts[job][usize::from(rank)],
            udp_port: 40_000 + reuse,
        };
        let config = setup::worker_config(&self.options, job, rank, instance);
        let of = &self.options.jobs[job];
        let switch = SwitchId(of.switches[of.tree.place(rank.into()).0] as u16);
        let data = Contributor::new(rank, facts, self.findings.clone());
        let session = world.start_worker(switch, address, config, data);
        self.workers.resize(session.0 as usize + 1, None);
        self.workers[session.0 as usize] = Some((incarnation, rank));
        self.incarnations[incarnation].members[usize::from(rank)].session = Some(session);
        self.submit(world, incarnation, rank);
    }

    /// A worker submits its next message, and says so if it is the last.
    fn submit(&mut self, world: &mut World<Contributor>, incarnation: usize, rank: u8) {
        let incarnation = &mut self.incarnations[incarnation];
        let member = &mut incarnation.members[usize::from(rank)];
        let Some(session) = member.session.filter(|_| member.ending.is_none()) else {
            return;
        };
        let options = &incarnation.facts.options;
        let n = member.submitted;
        member.submitted += 1;
        let (fragments, priority) = (options.messages[n], options.priorities[n]);
        let last = n + 1 == options.messages.len();
        world.with_worker(session, |now, worker, _| {
            worker.submit(now, fragments, priority);
            if last {
                worker.finish(now);
            }
        });
    }

    fn start_ps(&mut self, world: &mut World<Contributor>, job: usize, node: usize) {
        let switch = SwitchId(self.options.jobs[job].switches[node] as u16);
        let kernels = tally_kernels::Kernels::best();
        let parts = self.ps[job][node].sessions.len() as u8;
        for index in 0..parts {
            if self.ps[job][node].sessions[usize::from(index)].is_some() {
                continue;
            }
            let config = PsConfig {
                part: Part::new(index, parts).unwrap_or(Part::ONLY),
                ..setup::ps_config(job, self.instance())
            };
            let ps = &mut self.ps[job][node];
            let address = Address {
                udp_port: ps.address.udp_port + u16::from(index),
                ..ps.address
            };
            let session = world.start_ps(switch, address, config, kernels);
            ps.sessions[usize::from(index)] = Some(session);
        }
    }

    /// A worker has ended. When its job has, the next incarnation may start.
    fn ended(&mut self, world: &mut World<Contributor>, session: SessionId, ending: Ending) {
        let Some((n, rank)) = self.workers[session.0 as usize] else {
            return;
        };
        let incarnation = &self.incarnations[n];
        let job = incarnation.facts.job;
        let verdict = match &ending {
            Ending::Failed(error) => {
                ending::validate(incarnation, &self.options.jobs[job], rank, error)
            }
            _ => {
                let results = world.worker(session).map_or(0, |(_, data)| data.results);
                incarnation.validate_finish(results)
            }
        };
        if let Err(why) = verdict {
            self.findings.report(Checker::Outcome, || {
                format!("job {job}, incarnation {n}, rank {rank} {why}")
            });
        }
        world.note(|| format!("job {job}, incarnation {n}, rank {rank}: {ending:?}"));
        self.incarnations[n].members[usize::from(rank)].ending = Some((world.now, ending));
        world.kill(session);
        if self.current[job] == n && self.incarnations[n].is_over() && self.phase == Phase::Safety {
            let of_job = self.incarnations.iter().filter(|i| i.facts.job == job);
            if of_job.count() < INCARNATIONS {
                self.relaunch(world, job);
            }
        }
    }

    fn all_over(&self) -> bool {
        let is_over = |&n: &usize| self.incarnations[n].is_over();
        let are_done = self.rings.as_ref().is_none_or(Rings::is_done);
        self.down == 0 && self.launches == 0 && are_done && self.current.iter().all(is_over)
    }

    fn tick(&mut self, world: &mut World<Contributor>) {
        watch::look_at_totals(self, world);
        if let Some(rings) = &mut self.rings {
            rings.look(world, &self.findings);
        }
        if matches!(self.phase, Phase::Convergence | Phase::OnceMore) {
            watch::look_for_late(self, world);
            watch::look_for_starvation(self, world);
        }
        if self.phase == Phase::Convergence && self.all_over() {
            self.phase = Phase::OnceMore;
            world.note(|| "all over; once more".to_owned());
            self.quiet_since = world.now;
            for job in 0..self.options.jobs.len() {
                self.launch(world, job);
            }
        } else if self.phase == Phase::OnceMore && self.all_over() {
            self.phase = Phase::Drain;
            self.plan(world, world.now.after(DRAIN), Plan::Drained);
        }
        self.plan(world, world.now.after(TICK), Plan::Tick);
    }

    fn safety_ends(&mut self, world: &mut World<Contributor>) {
        world.note(|| "faults end".to_owned());
        self.phase = Phase::Convergence;
        self.quiet_since = world.now;
        let good = |link: &mut Link| {
            link.config.faults = Faults::NONE;
            link.slow_until = Time(0);
            // Queues that drop at once would be a fault that never ends.
            link.config.backlog_bytes = link.config.backlog_bytes.max(1_000_000);
        };
        for host in 0..world.hosts.len() {
            world.change_cables(HostId(host as u16), good);
        }
        for lower in 0..self.trunks.len() {
            self.change_trunks(world, lower, good);
        }
    }

    fn check_ledger(&self, world: &World<Contributor>) {
        for (s, switch) in world.switches.iter().enumerate() {
            let lost = switch.ledger().lost();
            self.findings.require(lost == 0, Checker::Leak, || {
                format!("{lost} buffers disappeared in the engine of switch {s}")
            });
        }
    }

    fn drained(&mut self, world: &mut World<Contributor>) {
        if let Some(rings) = &mut self.rings {
            rings.end(world, &self.findings);
        }
        self.check_ledger(world);
        for (s, switch) in world.switches.iter().enumerate() {
            self.check_empty(s, switch);
        }
        world.stop();
    }

    /// Nothing is left in a switch after all jobs.
    fn check_empty(&self, s: usize, switch: &Switch) {
        let findings = &self.findings;
        for (n, shard) in switch.shards().enumerate() {
            let (slots, held) = (shard.slots_in_use(), shard.held_in_use());
            findings.require(slots == 0 && held == 0, Checker::Leak, || {
                format!("switch {s}, shard {n} has {slots} slots and {held} held contributions")
            });
        }
        let live = switch.ledger().live();
        findings.require(live == 0, Checker::Leak, || {
            format!("the engine of switch {s} has {live} buffers after all jobs")
        });
        for status in switch.registry.status() {
            findings.require(status.phase == JobPhase::Idle, Checker::Leak, || {
                let job = status.id.0;
                format!("switch {s}: job {job} is {:?} after all", status.phase)
            });
        }
    }

    /// Until when everything must be over.
    pub(super) fn deadline(&self) -> Duration {
        let base = &self.options.base;
        base.safety + base.join_timeout + 4 * base.member_timeout + 5 * SLACK
    }
}

impl App<Contributor> for TreeScenario {
    fn worker_event(&mut self, world: &mut World<Contributor>, session: SessionId, event: Event) {
        let Some((n, rank)) = self.workers[session.0 as usize] else {
            return;
        };
        match event {
            Event::Waiting(_) => {}
            Event::Running { epoch } => {
                let incarnation = &mut self.incarnations[n];
                incarnation.members[usize::from(rank)].has_run = true;
                if incarnation.epoch.is_none() && incarnation.facts.job == 0 {
                    self.job_begins(world);
                }
                let incarnation = &mut self.incarnations[n];
                let known = *incarnation.epoch.get_or_insert(epoch);
                self.findings.require(known == epoch, Checker::Outcome, || {
                    format!("incarnation {n}, rank {rank}: epoch {epoch:?}, others have {known:?}")
                });
            }
            Event::Delivered => {
                let incarnation = &self.incarnations[n];
                let member = &incarnation.members[usize::from(rank)];
                if member.submitted < incarnation.facts.options.messages.len() {
                    let pause = self.rng.pick(&[0, 0, 10, 20_000]);
                    let at = self.soon(world, pause);
                    let incarnation = n;
                    self.plan(world, at, Plan::Submit { incarnation, rank });
                }
            }
            Event::Finished => self.ended(world, session, Ending::Finished),
            Event::Failed(error) => self.ended(world, session, Ending::Failed(error)),
        }
        if self.findings.any() {
            world.stop();
        }
    }

    fn news(&mut self, world: &mut World<Contributor>, _: SessionId) {
        world.stop();
    }

    fn observe(&mut self, _: Time, place: Place, frame: &Frame) {
        self.overhear(frame);
        watch::look_at_frame(self, place, frame);
    }

    fn engine_did(&mut self, _: Time, switch: SwitchId, did: &[Did]) {
        let options = &self.options;
        let members = |job: u16| {
            let of = options.jobs.iter().enumerate();
            let (_, of) = of.into_iter().find(|(n, _)| job_id(*n).0 == job)?;
            let node = of.node_of(switch.0.into())?;
            Some(of.tree.nodes[node].members())
        };
        let window = options.base.switch_window;
        self.custody[usize::from(switch.0)].note(did, &self.findings, members, window);
    }

    fn alarm(&mut self, world: &mut World<Contributor>, token: u64) {
        match self.plans[token as usize] {
            Plan::Incident(n) => self.incident(world, self.options.incidents[n].1),
            Plan::InJob(n) if self.phase == Phase::Safety => {
                self.incident(world, self.options.in_job[n].1);
            }
            Plan::SwitchStarts(switch) => self.start_switch(world, switch),
            Plan::TrunkHeals(switch) if self.phase == Phase::Safety => self.heal(world, switch),
            Plan::PsStarts { job, node } => self.start_ps(world, job, node),
            Plan::WorkerStarts { incarnation, rank } => {
                self.start_worker(world, incarnation, rank);
            }
            Plan::Submit { incarnation, rank } => self.submit(world, incarnation, rank),
            Plan::Launch { job, after } => {
                self.launches -= 1;
                if self.current[job] == after {
                    self.launch(world, job);
                }
            }
            Plan::RingTrouble(n) => {
                let rings = self.rings.as_mut();
                let back = rings.and_then(|rings| rings.trouble(world, &self.findings, n));
                if let Some((ring, at)) = back {
                    self.plan(world, at, Plan::RingReturns(ring));
                }
            }
            Plan::RingReturns(ring) => {
                if let Some(rings) = &mut self.rings {
                    rings.add(world, ring);
                }
            }
            Plan::SafetyEnds => self.safety_ends(world),
            Plan::Tick => self.tick(world),
            Plan::Drained => self.drained(world),
            Plan::Forge if self.phase == Phase::Safety => {
                let base = &self.options.base;
                super::forge::forge(world, &mut self.rng, self.forger, base.hand_over);
                let gap = Duration::from_nanos(2_000_000_000 / base.forged_per_s);
                self.forge_parent(world);
                let at = self.soon(world, gap.as_micros() as u64);
                self.plan(world, at, Plan::Forge);
            }
            Plan::TrunkHeals(_) | Plan::Forge | Plan::InJob(_) => {}
        }
        if self.findings.any() {
            world.stop();
        }
    }
}
