//! One run: jobs come and go while things go wrong (the safety phase), then nothing goes wrong any
//! more and everything must end (convergence), and then each job runs once more from the start.

use super::claims;
use super::custody::Custody;
use super::data::{Contributor, Facts};
use super::findings::{Checker, Findings};
use super::judge::{Ending, Incarnation, Member, SLACK};
use super::options::{Incident, Options};
use super::switchml;
use super::watch;
use crate::frame::{Address, Frame, HostId};
use crate::host::{Kind, SessionId};
use crate::link::{Faults, LinkConfig};
use crate::rng::Rng;
use crate::switch::{Did, SwitchConfig, Transit, forwarding_config};
use crate::world::{App, Place, World, WorldConfig};
use std::rc::Rc;
use std::time::Duration;
use tally_endpoint::{Event, PsConfig, WorkerConfig};
use tally_engine::queue::QueueConfig;
use tally_engine::registry::JobPhase;
use tally_engine::switchml::SwitchmlConfig;
use tally_engine::{JobConfig, Limits, PoolConfig, RegistryConfig};
use tally_kernels::Kernels;
use tally_wire::{DEFAULT_PORT, JobId, Key, Time};

/// How often the watchers look.
const TICK: Duration = Duration::from_millis(20);
/// Incarnations of a job during the safety phase at most.
const INCARNATIONS: usize = 4;
/// Time for the last frames to arrive.
const DRAIN: Duration = Duration::from_millis(500);

/// What the app has asked to be told, by token.
enum Plan {
    Incident(usize),
    SwitchStarts,
    PsStarts { job: usize },
    WorkerStarts { incarnation: usize, rank: u8 },
    Submit { incarnation: usize, rank: u8 },
    Launch { job: usize, after: usize },
    SafetyEnds,
    Forge,
    Tick,
    Drained,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Safety,
    Convergence,
    /// Each job once more, undisturbed.
    Again,
    Drain,
}

/// A run in progress.
pub struct Scenario {
    pub(super) options: Options,
    pub(super) findings: Findings,
    pub(super) incarnations: Vec<Incarnation>,
    /// By job, its incarnation that lives or lived last.
    pub(super) current: Vec<usize>,
    /// By job, its parameter server, and where it runs.
    ps: Vec<(Option<SessionId>, Address)>,
    /// By session: incarnation and rank.
    workers: Vec<Option<(usize, u8)>>,
    /// By worker's place in all jobs: its host.
    pub(super) hosts: Vec<HostId>,
    pub(super) forger: HostId,
    plans: Vec<Plan>,
    phase: Phase,
    pub(super) quiet_since: Time,
    custody: Custody,
    instances: u64,
    /// Incarnations that will start.
    launches: usize,
    rng: Rng,
    /// Whole frames that forwarding decided on, and those that it let pass.
    pub(super) whole: u64,
    pub(super) forwarded: u64,
    /// Fragments contributed to by all workers of all incarnations, for bounds.
    pub(super) expected_fragments: u64,
    pub(super) switchml: Option<switchml::Session>,
}

fn key(job: usize) -> Key {
    Key::new(&[job as u8 + 1; 32]).expect("32 bytes make a key")
}

pub(super) const fn job_id(job: usize) -> JobId {
    JobId(job as u16 * 3 + 1)
}

impl Scenario {
    /// The world of these options, and the scenario at its start.
    #[must_use]
    pub fn new(options: Options, findings: Findings) -> (World<Contributor>, Self) {
        let mut rng = Rng::new(options.seed ^ 0x5ce0_a210);
        let units_max = options.jobs.iter().map(|j| j.units).max().unwrap_or(1);
        let mut world = World::new(
            WorldConfig {
                seed: rng.next(),
                units_max,
                nominal_payload_bytes: None,
            },
            switch_config(&options, units_max, &mut rng),
        );
        world.switch.memory.record();
        world.tap = (options.forged_per_s > 0).then(Default::default);
        let link = link_config(&options, options.faults);
        let total = options.jobs.iter().map(|j| usize::from(j.workers)).sum();
        let mut hosts: Vec<_> = (0..total)
            .map(|_| world.add_host(link, link, options.ahead))
            .collect();
        // A poll iteration goes by ports: ranks are not to be in the same order.
        for n in (1..total).rev() {
            hosts.swap(n, rng.below(n as u64 + 1) as usize);
        }
        let mut ps_host = None;
        let ps = (0..options.jobs.len()).map(|job| {
            if ps_host.is_none() || !options.shared_ps_host {
                ps_host = Some(world.add_host(link, link, options.ahead));
            }
            let host = ps_host.unwrap_or(HostId(0));
            let udp_port = 50_000 + job as u16;
            (None, Address { host, udp_port })
        });
        let ps = ps.collect();
        let forger = world.add_host(link, link, Duration::ZERO);
        let switchml = options.switchml;
        let switchml = switchml.map(|of| switchml::Session::new(&mut world, of, link));
        let mut scenario = Self {
            findings,
            incarnations: Vec::new(),
            current: Vec::new(),
            ps,
            workers: Vec::new(),
            hosts,
            forger,
            plans: Vec::new(),
            phase: Phase::Safety,
            quiet_since: Time(0),
            custody: Custody::default(),
            instances: 0,
            launches: 0,
            rng,
            whole: 0,
            forwarded: 0,
            expected_fragments: 0,
            switchml,
            options,
        };
        scenario.begin(&mut world);
        (world, scenario)
    }

    fn begin(&mut self, world: &mut World<Contributor>) {
        for job in 0..self.options.jobs.len() {
            let at = self.soon(world, 30_000);
            self.plan(world, at, Plan::PsStarts { job });
            self.current.push(usize::MAX);
            self.launch(world, job);
        }
        self.begin_switchml(world);
        for n in 0..self.options.incidents.len() {
            let at = world.now.after(self.options.incidents[n].0);
            self.plan(world, at, Plan::Incident(n));
        }
        let end = world.now.after(self.options.safety);
        self.plan(world, end, Plan::SafetyEnds);
        self.plan(world, world.now, Plan::Tick);
        if self.options.forged_per_s > 0 {
            self.plan(world, world.now, Plan::Forge);
        }
    }

    fn plan(&mut self, world: &mut World<Contributor>, at: Time, plan: Plan) {
        self.plans.push(plan);
        world.alarm(at, self.plans.len() as u64 - 1);
    }

    /// A moment up to so many microseconds from now.
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
        let options = &self.options.jobs[job];
        let salt = self.rng.next();
        let facts = Facts::new(job, number, options, salt, self.options.switch_window);
        let workers = options.workers;
        self.expected_fragments += options.fragments() * u64::from(workers);
        self.incarnations.push(Incarnation {
            facts: Rc::new(facts),
            members: vec![Member::default(); usize::from(workers)],
            epoch: None,
            killed: 0,
            interrupted: 0,
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
        if self.incarnations[incarnation].members[usize::from(rank)]
            .ending
            .is_some()
        {
            // Killed before it began.
            return;
        }
        let instance = self.instance();
        let facts = Rc::clone(&self.incarnations[incarnation].facts);
        let job = facts.job;
        let options = &facts.options;
        let before: usize = self.options.jobs[..job]
            .iter()
            .map(|j| usize::from(j.workers))
            .sum();
        let host = self.hosts[before + usize::from(rank)];
        let reuse = if self.options.reuse_ports {
            0
        } else {
            incarnation as u16
        };
        let mut config = WorkerConfig::new(
            job_id(job),
            key(job),
            rank,
            options.workers,
            [7; 32],
            instance,
        );
        config.units = options.units;
        config.window = options.window;
        config.join_timeout = self.options.join_timeout;
        config.stall_timeout = self.options.stall_timeout;
        config.first_fragment = options.first;
        let data = Contributor::new(rank, facts, self.findings.clone());
        let address = Address {
            host,
            udp_port: 40_000 + reuse,
        };
        let session = world.start_worker(address, config, data);
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

    fn start_ps(&mut self, world: &mut World<Contributor>, job: usize) {
        let config = PsConfig::new(job_id(job), key(job), self.instance());
        let (session, address) = &mut self.ps[job];
        *session = Some(world.start_ps(*address, config, Kernels::best()));
    }

    // --- what goes wrong -------------------------------------------------------------------

    fn incident(&mut self, world: &mut World<Contributor>, incident: Incident) {
        world.note(|| format!("{incident:?}"));
        let now = world.now;
        let host = |host: usize| usize::from(self.hosts.get(host).unwrap_or(&self.ps[0].1.host).0);
        match incident {
            Incident::SwitchRestart { down } => {
                self.check_ledger(world);
                world.stop_switch();
                self.custody.forget();
                self.plan(world, now.after(down), Plan::SwitchStarts);
            }
            Incident::PsRestart { job, down } => {
                if let Some(session) = self.ps[job].0.take() {
                    world.kill(session);
                    self.plan(world, now.after(down), Plan::PsStarts { job });
                }
            }
            Incident::WorkerDeath { job, rank } => self.kill(world, self.current[job], rank),
            Incident::Interrupt { job, rank } => {
                let incarnation = &mut self.incarnations[self.current[job]];
                let member = &incarnation.members[usize::from(rank)];
                if let Some(session) = member.session.filter(|_| member.ending.is_none()) {
                    incarnation.interrupted |= 1 << rank;
                    incarnation.hurt_at = now;
                    world.with_worker(session, |now, worker, _| worker.interrupt(now));
                }
            }
            Incident::JobRestart { job } => {
                let current = self.current[job];
                for rank in 0..self.options.jobs[job].workers {
                    self.kill(world, current, rank);
                }
                self.relaunch(world, job);
            }
            Incident::Partition { host: n, lasting } => {
                let n = host(n);
                let until = now.after(lasting);
                world.hosts[n].uplink.cut_until = until;
                world.switch.ports[n].link.cut_until = until;
            }
            Incident::Straggler { host: n, lasting } => {
                world.put_to_sleep(HostId(host(n) as u16), now.after(lasting));
            }
            Incident::Spike {
                host: n,
                lasting,
                delay,
            } => {
                let n = host(n);
                for link in [&mut world.hosts[n].uplink, &mut world.switch.ports[n].link] {
                    link.slow_until = now.after(lasting);
                    link.spike = delay;
                }
            }
        }
    }

    fn kill(&mut self, world: &mut World<Contributor>, incarnation: usize, rank: u8) {
        let incarnation = &mut self.incarnations[incarnation];
        let member = &mut incarnation.members[usize::from(rank)];
        if member.ending.is_some() {
            return;
        }
        if let Some(session) = member.session {
            world.kill(session);
        }
        member.ending = Some((world.now, Ending::Killed));
        incarnation.killed |= 1 << rank;
        incarnation.hurt_at = world.now;
    }

    // --- how it goes on --------------------------------------------------------------------

    /// A worker has ended. When its job has, the next incarnation may start.
    fn ended(&mut self, world: &mut World<Contributor>, session: SessionId, ending: Ending) {
        let Some((n, rank)) = self.workers[session.0 as usize] else {
            return;
        };
        let incarnation = &mut self.incarnations[n];
        let verdict = match &ending {
            Ending::Failed(error) => incarnation.judge(usize::from(rank), error),
            _ => {
                let results = world.worker(session).map_or(0, |(_, data)| data.results);
                incarnation.judge_finish(results)
            }
        };
        let job = incarnation.facts.job;
        if let Err(why) = verdict {
            self.findings.report(Checker::Outcome, || {
                format!("job {job}, incarnation {n}, rank {rank} {why}")
            });
        }
        world.note(|| format!("job {job}, incarnation {n}, rank {rank}: {ending:?}"));
        incarnation.members[usize::from(rank)].ending = Some((world.now, ending));
        world.kill(session);
        if self.current[job] == n && self.incarnations[n].is_over() && self.phase == Phase::Safety {
            let of_job = self.incarnations.iter().filter(|i| i.facts.job == job);
            if of_job.count() < INCARNATIONS {
                self.relaunch(world, job);
            }
        }
    }

    fn all_over(&self) -> bool {
        self.launches == 0 && self.current.iter().all(|&n| self.incarnations[n].is_over())
    }

    fn begin_switchml(&mut self, world: &mut World<Contributor>) {
        if let Some(session) = &mut self.switchml {
            session.begin(world, &mut self.rng, &self.findings);
        }
    }

    fn tick(&mut self, world: &mut World<Contributor>) {
        watch::look(self, world);
        watch::look_at_slots(self, world);
        let mut is_done = true;
        if let Some(session) = &self.switchml {
            session.look(world, &self.findings);
            is_done = session.is_done(world);
        }
        if matches!(self.phase, Phase::Convergence | Phase::Again) {
            watch::look_for_late(self, world);
            watch::look_for_starvation(self, world);
        }
        if self.phase == Phase::Convergence && self.all_over() {
            self.phase = Phase::Again;
            world.note(|| "all over; once more".to_owned());
            self.quiet_since = world.now;
            for job in 0..self.options.jobs.len() {
                self.launch(world, job);
            }
        } else if self.phase == Phase::Again && self.all_over() && is_done {
            self.phase = Phase::Drain;
            self.plan(world, world.now.after(DRAIN), Plan::Drained);
        }
        self.plan(world, world.now.after(TICK), Plan::Tick);
    }

    fn safety_ends(&mut self, world: &mut World<Contributor>) {
        world.note(|| "faults end".to_owned());
        self.phase = Phase::Convergence;
        self.quiet_since = world.now;
        let good = link_config(&self.options, Faults::NONE);
        for (host, port) in world.hosts.iter_mut().zip(&mut world.switch.ports) {
            for link in [&mut host.uplink, &mut port.link] {
                link.config.faults = good.faults;
                // Queues that drop at once would be a fault that never ends.
                link.config.backlog_bytes = link.config.backlog_bytes.max(1_000_000);
            }
        }
    }

    fn check_ledger(&self, world: &World<Contributor>) {
        let lost = world.switch.ledger().lost();
        self.findings.require(lost == 0, Checker::Leak, || {
            format!("{lost} buffers disappeared in the engine")
        });
    }

    fn drained(&mut self, world: &mut World<Contributor>) {
        self.check_ledger(world);
        for (n, shard) in world.switch.shards().enumerate() {
            let (slots, held) = (shard.slots_in_use(), shard.held_in_use());
            self.findings
                .require(slots == 0 && held == 0, Checker::Leak, || {
                    format!(
                        "shard {n} has {slots} slots and {held} held contributions after all jobs"
                    )
                });
        }
        let live = world.switch.ledger().live();
        self.findings.require(live == 0, Checker::Leak, || {
            format!("the engine has {live} buffers after all jobs")
        });
        for status in world.switch.registry.status() {
            self.findings
                .require(status.phase == JobPhase::Idle, Checker::Leak, || {
                    format!("job {} is {:?} after all", status.id.0, status.phase)
                });
        }
        watch::look_at_totals(self, world);
        world.stop();
    }
}

fn link_config(options: &Options, faults: Faults) -> LinkConfig {
    LinkConfig {
        byte_ps: 8000 / options.gbit_per_s,
        delay: options.delay,
        backlog_bytes: options.backlog_bytes,
        faults,
    }
}

fn switch_config(options: &Options, units: u8, rng: &mut Rng) -> SwitchConfig {
    let jobs = options.jobs.iter().enumerate();
    let jobs = jobs.map(|(job, o)| JobConfig {
        id: job_id(job),
        key: key(job),
        workers: o.workers,
    });
    let min_held = options.held / (2 * options.jobs.len() as u32);
    let limits = options.limits.iter().map(|&(min_slots, max_slots)| Limits {
        min_slots,
        max_slots,
        min_held,
    });
    let limits = limits.collect();
    let (frames, mark_frames, guard) = options.queue;
    SwitchConfig {
        pool: PoolConfig {
            slots: options.slots,
            ways: options.ways,
            limits,
            held: options.held,
            window: options.switch_window,
            shards: options.shards,
            shard: 0,
            jobs: options.jobs.len(),
            policy: options.policy,
        },
        registry: RegistryConfig {
            mac: crate::switch::SWITCH_MAC,
            base_port: DEFAULT_PORT,
            shards: options.shards,
            window: options.switch_window,
            units,
            member_timeout: options.member_timeout,
            secret: secret(rng),
        },
        jobs: jobs.collect(),
        queue: QueueConfig {
            frames,
            mark_frames,
            guard,
        },
        control_delay: options.control_delay,
        poll: options.poll,
        steering: options.steering,
        kernels: Kernels::best(),
        forwarding: forwarding_config(rng.next()),
        switchml: options.switchml.map(|of| SwitchmlConfig {
            sessions: 2,
            slots: of.slots,
            held: 2 * u32::from(of.slots),
            shards: 1,
            shard: 0,
        }),
    }
}

fn secret(rng: &mut Rng) -> [u8; 32] {
    let mut secret = [0; 32];
    for bytes in secret.chunks_exact_mut(8) {
        bytes.copy_from_slice(&rng.next().to_le_bytes());
    }
    secret
}

impl App<Contributor> for Scenario {
    fn worker_event(&mut self, world: &mut World<Contributor>, session: SessionId, event: Event) {
        let Some((n, rank)) = self.workers[session.0 as usize] else {
            return;
        };
        match event {
            Event::Waiting(_) => {}
            Event::Running { epoch } => {
                let incarnation = &mut self.incarnations[n];
                incarnation.members[usize::from(rank)].has_run = true;
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
        claims::look_at_claims(&self.findings, place, frame);
        watch::look_at_frame(self, place, frame);
    }

    fn forwarded(&mut self, _: Time, transit: &Transit) {
        self.whole += 1;
        self.forwarded += u64::from(transit.verdict.is_ok());
        claims::look_at_transit(&self.findings, transit, self.forger);
    }

    fn engine_did(&mut self, _: Time, did: &[Did]) {
        // A refusal may name a job that does not exist.
        let jobs = &self.options.jobs;
        let workers = |job: u16| jobs.get(usize::from(job / 3)).map_or(0, |job| job.workers);
        let window = self.options.switch_window;
        self.custody.note(did, &self.findings, workers, window);
    }

    fn alarm(&mut self, world: &mut World<Contributor>, token: u64) {
        match self.plans[token as usize] {
            Plan::Incident(n) => self.incident(world, self.options.incidents[n].1),
            Plan::SwitchStarts => {
                world.note(|| "the switch starts".to_owned());
                let secret = secret(&mut self.rng);
                world.start_switch(secret);
                self.begin_switchml(world);
                for incarnation in &mut self.incarnations {
                    if !incarnation.is_over() {
                        incarnation.switch_started_at = Some(world.now);
                    }
                }
            }
            Plan::PsStarts { job } => self.start_ps(world, job),
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
            Plan::SafetyEnds => self.safety_ends(world),
            Plan::Tick => self.tick(world),
            Plan::Drained => self.drained(world),
            Plan::Forge if self.phase == Phase::Safety => {
                super::forge::forge(world, &mut self.rng, self.forger, self.options.hand_over);
                let gap = Duration::from_nanos(2_000_000_000 / self.options.forged_per_s);
                let at = self.soon(world, gap.as_micros() as u64);
                self.plan(world, at, Plan::Forge);
            }
            Plan::Forge => {}
        }
        if self.findings.any() {
            world.stop();
        }
    }
}

impl Scenario {
    /// Whether a session's process still runs.
    pub(super) fn results(&self, world: &World<Contributor>, n: usize) -> u64 {
        let sessions = self.incarnations[n]
            .members
            .iter()
            .filter_map(|m| m.session);
        let results = sessions.filter_map(|id| match &world.session(id).kind {
            Kind::Worker(_, data) => Some(data.results),
            _ => None,
        });
        results.sum()
    }

    /// Until when everything must be over.
    pub(super) fn deadline(&self) -> Duration {
        self.options.safety
            + self.options.join_timeout
            + 2 * self.options.member_timeout
            + 4 * SLACK
    }
}
