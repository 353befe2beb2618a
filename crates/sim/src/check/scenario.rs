//! One run: jobs come and go while things go wrong (the safety phase), then nothing goes wrong any
//! more and everything must end (convergence), and then each job runs once more from the start.

mod changes;
mod incidents;
mod rings;
mod sessions;
mod watch;

use super::card;
use super::claims::{self, Sight};
use super::custody::Custody;
use super::data::{Contributor, Facts};
use super::ending::{Ending, Incarnation, Member, SLACK};
use super::fabric::{self, Fabric};
use super::findings::{Checker, Findings};
use super::options::Options;
use super::options::fabric::{FAR, FabricOptions, NEAR};
use super::ring::Rings;
use super::session::{self, Sessions};
use super::setup::{job_id, link_config, switch_config, world_config};
use super::switchml;
use crate::address::{Address, HostId, Node, Place, SessionId, SwitchId};
use crate::frame::{Frame, Origin};
use crate::host::Kind;
use crate::link::{Faults, Link};
use crate::rng::Rng;
use crate::switch::{Did, Switch, Transit};
use crate::world::{App, World};
use changes::Changed;
use std::rc::Rc;
use std::time::Duration;
use tally_endpoint::{Event, PsConfig, WorkerConfig};
use tally_engine::PortId;
use tally_engine::registry::JobPhase;
use tally_kernels::Kernels;
use tally_wire::Time;

/// How often the watchers look.
const TICK: Duration = Duration::from_millis(20);
/// Incarnations of a job during the safety phase at most.
const INCARNATIONS: usize = 4;
/// Time for the last frames to arrive.
const DRAIN: Duration = Duration::from_millis(500);

/// What the app has asked to be told, by token.
pub(super) enum Plan {
    Incident(usize),
    CardFails(usize),
    SwitchStarts { switch: u16 },
    TrunkHeals,
    PsStarts { job: usize },
    WorkerStarts { incarnation: usize, rank: u8 },
    Submit { incarnation: usize, rank: u8 },
    Launch { job: usize, after: usize },
    JobReturns { job: usize },
    SafetyEnds,
    Session(session::Step),
    RingTrouble(usize),
    RingReturns { ring: usize },
    Forge,
    Tick,
    Drained,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Safety,
    Convergence,
    /// Each job once more, undisturbed.
    OnceMore,
    Drain,
}

/// A run in progress.
pub struct Scenario {
    pub(super) options: Options,
    pub(super) findings: Findings,
    pub(super) incarnations: Vec<Incarnation>,
    /// By job, its incarnation that lives or lived last.
    pub(super) current: Vec<usize>,
    changed: Changed,
    /// By job, its parameter server, and where it runs.
    ps: Vec<(Option<SessionId>, Address)>,
    /// By session: incarnation and rank.
    workers: Vec<Option<(usize, u8)>>,
    /// By worker's place in all jobs: its host.
    pub(super) hosts: Vec<HostId>,
    pub(super) forger: HostId,
    /// Its port at the first switch.
    forger_port: PortId,
    plans: Vec<Plan>,
    phase: Phase,
    pub(super) quiet_since: Time,
    /// By switch.
    custody: [Custody; 2],
    pub(super) fabric: Option<Fabric>,
    /// A host with a port to which the host of a parameter server can move.
    spare: Option<HostId>,
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
    pub(super) sessions: Option<Sessions>,
    pub(super) rings: Option<Rings>,
}

impl Scenario {
    /// The world of these options, and the scenario at its start.
    #[must_use]
    pub fn new(options: Options, findings: Findings) -> (World<Contributor>, Self) {
        let mut rng = Rng::new(options.seed ^ 0x5ce0_a210);
        let units_max = options.units_max();
        let config = world_config(&options, &mut rng);
        let mut world = World::new(config, switch_config(&options, NEAR, units_max, &mut rng));
        let link = link_config(&options, options.faults);
        let fabric = options.fabric.as_ref();
        let mut fabric = fabric.map(|of| {
            Fabric::new(&mut world, of, link, || {
                switch_config(&options, FAR, units_max, &mut rng)
            })
        });
        for switch in &world.switches {
            switch.memory.record();
        }
        // Where a host is that may be behind the second switch.
        let node = |is_far: fn(&FabricOptions) -> &[bool], n: usize| {
            let far = options.fabric.as_ref().map(|of| is_far(of)[n]);
            let fabric = fabric.as_ref().zip(far);
            fabric.map_or(NEAR.into(), |(fabric, is_far)| fabric.node(is_far))
        };
        world.tap = (options.forged_per_s > 0).then(Default::default);
        let total = options.jobs.iter().map(|j| usize::from(j.workers)).sum();
        // A poll iteration goes by ports: ranks are not to be in the same order.
        let mut places: Vec<_> = (0..total).collect();
        rng.shuffle(&mut places);
        let mut hosts = vec![HostId(0); total];
        for host in 0..total {
            let worker = places.iter().position(|&place| place == host).unwrap_or(0);
            let node = node(|of| &of.far_workers, worker);
            hosts[worker] = world.add_host(node, link, link, options.ahead);
        }
        let mut ps_host = None;
        let ps = (0..options.jobs.len()).map(|job| {
            if ps_host.is_none() || !options.shared_ps_host {
                let node = node(|of| &of.far_ps, job);
                ps_host = Some(world.add_host(node, link, link, options.ahead));
            }
            let host = ps_host.unwrap_or(HostId(0));
            let udp_port = 50_000 + job as u16;
            (None, Address { host, udp_port })
        });
        let ps: Vec<_> = ps.collect();
        let n = options.jobs.len();
        let sessions = options.sessions.as_ref();
        let sessions = sessions.map(|of| Sessions::new(&mut world, of, n, link, rng.fork()));
        let switchml = options.switchml.map(|of| {
            let nodes = (0..of.workers).map(|rank| node(|of| &of.far_clients, rank.into()));
            let nodes: Vec<Node> = nodes.collect();
            switchml::Session::new(&mut world, of, link, &nodes)
        });
        let rings = options.rings.as_ref();
        let rings = rings.map(|of| {
            let at = vec![NEAR; of.hosts];
            Rings::new(&mut world, of, link, (&at, NEAR), rng.fork())
        });
        let spare = options.moving_ps().map(|job| {
            let (_, Address { host, .. }) = ps[job];
            let (node, _) = world.hosts[usize::from(host.0)].at;
            world.add_host(node, link, link, options.ahead)
        });
        // Behind all members: a poll iteration goes by ports, and no copy may overtake its
        // original.
        let forger = world.add_host(NEAR, link, link, Duration::ZERO);
        card::connect(&mut world, &options, link);
        if let Some(fabric) = &mut fabric {
            fabric.survey(&world, options.forged_per_s == 0);
        }
        let mut scenario = Self {
            findings,
            incarnations: Vec::new(),
            current: Vec::new(),
            changed: Changed::new(&world, &options),
            ps,
            workers: Vec::new(),
            hosts,
            forger,
            forger_port: world.hosts[usize::from(forger.0)].at.1,
            plans: Vec::new(),
            phase: Phase::Safety,
            quiet_since: Time(0),
            custody: [NEAR, FAR].map(Custody::new),
            fabric,
            spare,
            instances: 0,
            launches: 0,
            rng,
            whole: 0,
            forwarded: 0,
            expected_fragments: 0,
            switchml,
            sessions,
            rings,
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
        self.begin_sessions(world);
        self.begin_rings(world);
        for n in 0..self.options.incidents.len() {
            let at = world.now.after(self.options.incidents[n].0);
            self.plan(world, at, Plan::Incident(n));
        }
        for n in 0..self
            .options
            .card
            .as_ref()
            .map_or(0, |card| card.incidents.len())
        {
            let after = self.options.card.as_ref().map(|card| card.incidents[n].0);
            let at = world.now.after(after.unwrap_or_default());
            self.plan(world, at, Plan::CardFails(n));
        }
        let end = world.now.after(self.options.safety);
        self.plan(world, end, Plan::SafetyEnds);
        self.plan(world, world.now, Plan::Tick);
        if self.options.forged_per_s > 0 {
            self.plan(world, world.now, Plan::Forge);
        }
    }

    pub(super) fn plan(&mut self, world: &mut World<Contributor>, at: Time, plan: Plan) {
        self.plans.push(plan);
        world.alarm(at, self.plans.len() as u64 - 1);
    }

    /// A moment up to `us` microseconds from now.
    pub(super) fn soon(&mut self, world: &World<Contributor>, us: u64) -> Time {
        let us = self.rng.below(us + 1);
        world.now.after(Duration::from_micros(us))
    }

    pub(super) fn instance(&mut self) -> u64 {
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
            removed: self.changed.removed[job],
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
            self.key_of_new(job, instance),
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
        let session = world.start_worker(self.options.switch_of(job), address, config, data);
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
        let instance = self.instance();
        let key = self.key_of_new(job, instance);
        let config = PsConfig::new(job_id(job), key, instance);
        let switch = self.options.switch_of(job);
        let (session, address) = &mut self.ps[job];
        *session = Some(world.start_ps(switch, *address, config, Kernels::best()));
    }

    // --- what happens next -----------------------------------------------------------------

    /// A worker has ended. When its job has, the next incarnation may start.
    fn ended(&mut self, world: &mut World<Contributor>, session: SessionId, ending: Ending) {
        let Some((n, rank)) = self.workers[session.0 as usize] else {
            return;
        };
        let incarnation = &mut self.incarnations[n];
        let verdict = match &ending {
            Ending::Failed(error) => incarnation.validate(usize::from(rank), error),
            _ => {
                let results = world.worker(session).map_or(0, |(_, data)| data.results);
                incarnation.validate_finish(results)
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
        watch::look_at_totals(self, world);
        let mut is_done = true;
        let quiet = (self.phase != Phase::Safety).then_some(self.quiet_since);
        if let Some(session) = &mut self.switchml {
            session.look(world, &self.findings, quiet);
            is_done = session.is_done(world);
        }
        self.look_at_sessions(world);
        is_done &= self.sessions.as_ref().is_none_or(Sessions::is_done);
        if let Some(rings) = &mut self.rings {
            rings.look(world, &self.findings);
            is_done &= rings.is_done();
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
        } else if self.phase == Phase::OnceMore && self.all_over() && is_done {
            self.phase = Phase::Drain;
            self.plan(world, world.now.after(DRAIN), Plan::Drained);
        }
        self.plan(world, world.now.after(TICK), Plan::Tick);
    }

    fn safety_ends(&mut self, world: &mut World<Contributor>) {
        world.note(|| "faults end".to_owned());
        self.phase = Phase::Convergence;
        self.quiet_since = world.now;
        card::faults_end(world);
        let good = |link: &mut Link| {
            link.config.faults = Faults::NONE;
            // Queues that drop at once would be a fault that never ends.
            link.config.backlog_bytes = link.config.backlog_bytes.max(1_000_000);
        };
        for host in 0..world.hosts.len() {
            world.change_cables(HostId(host as u16), good);
        }
        if let Some(fabric) = &self.fabric {
            fabric.change(world, good);
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
        self.check_ledger(world);
        for (s, switch) in world.switches.iter().enumerate() {
            self.check_empty(s, switch);
        }
        card::look_at_end(world, &self.findings);
        if let Some(rings) = &mut self.rings {
            rings.end(world, &self.findings);
        }
        world.stop();
    }

    /// Nothing is left in a switch after all jobs.
    fn check_empty(&self, s: usize, switch: &Switch) {
        for (n, shard) in switch.shards().enumerate() {
            let (slots, held) = (shard.slots_in_use(), shard.held_in_use());
            self.findings
                .require(slots == 0 && held == 0, Checker::Leak, || {
                    format!(
                        "switch {s}, shard {n} has {slots} slots and {held} held contributions \
                         after all jobs"
                    )
                });
        }
        let live = switch.ledger().live();
        self.findings.require(live == 0, Checker::Leak, || {
            format!("the engine of switch {s} has {live} buffers after all jobs")
        });
        for status in switch.registry.status() {
            self.findings
                .require(status.phase == JobPhase::Idle, Checker::Leak, || {
                    let job = status.id.0;
                    format!("switch {s}: job {job} is {:?} after all", status.phase)
                });
        }
    }
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
        let own = match (place, &self.fabric) {
            (Place::Host(host), Some(fabric)) => fabric.switch_of(host),
            _ => NEAR,
        };
        claims::look_at_claims(&self.findings, place, frame, own);
        self.look_for_return(place, frame);
        if let Some(fabric) = &self.fabric {
            fabric::look_at_maker(&self.findings, place, frame);
            fabric.look_at_trunk(&self.findings, place, frame);
        }
        watch::look_at_frame(self, place, frame);
    }

    fn forwarded(&mut self, _: Time, switch: SwitchId, transit: &Transit) {
        self.whole += 1;
        self.forwarded += u64::from(transit.verdict.is_ok());
        claims::look_at_transit(&self.findings, switch, transit, self.sight(switch));
        if let Some(fabric) = &self.fabric {
            fabric.look_at_transit(&self.findings, switch, transit);
        }
    }

    fn engine_did(&mut self, _: Time, switch: SwitchId, did: &[Did]) {
        // A refusal may name a job that does not exist.
        let options = &self.options;
        let workers = |job: u16| {
            let job = usize::from(job / 3);
            match options.jobs.get(job) {
                Some(of) => (options.switch_of(job) == switch).then_some(of.workers),
                None => {
                    let sessions = self.sessions.as_ref().filter(|_| switch == NEAR)?;
                    Some(sessions.workers_of(job)).filter(|&workers| workers > 0)
                }
            }
        };
        let window = options.switch_window;
        self.custody[usize::from(switch.0)].note(did, &self.findings, workers, window);
    }

    fn alarm(&mut self, world: &mut World<Contributor>, token: u64) {
        match self.plans[token as usize] {
            Plan::CardFails(n) => {
                if let Some(options) = &self.options.card {
                    card::fail(world, options.incidents[n].1);
                }
            }
            Plan::Incident(n) => self.incident(world, self.options.incidents[n].1),
            Plan::SwitchStarts { switch } => self.start_switch(world, switch),
            Plan::TrunkHeals => {
                if let Some(fabric) = self.fabric.as_ref().filter(|_| self.phase == Phase::Safety) {
                    fabric.heal(world);
                }
            }
            Plan::PsStarts { job } => self.start_ps(world, job),
            Plan::WorkerStarts { incarnation, rank } => {
                self.start_worker(world, incarnation, rank);
            }
            Plan::Submit { incarnation, rank } => self.submit(world, incarnation, rank),
            Plan::JobReturns { job } => self.job_returns(world, job),
            Plan::Launch { job, after } => {
                self.launches -= 1;
                if self.current[job] == after {
                    self.launch(world, job);
                }
            }
            Plan::Session(step) => self.session_step(world, step),
            Plan::RingTrouble(n) => self.ring_trouble(world, n),
            Plan::RingReturns { ring } => self.ring_returns(world, ring),
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
    /// Looks for a host's own frame that has come back to it. A host that moves may meet one that
    /// it sent before.
    fn look_for_return(&self, place: Place, frame: &Frame) {
        let Place::Host(host) = place else { return };
        if frame.origin() != Origin::Host(host) {
            return;
        }
        let moving = self.options.moving_ps().map(|job| self.ps[job].1.host);
        self.findings
            .require(moving == Some(host), Checker::Forwarding, || {
                format!("a frame came back to its sender, {place}")
            });
    }

    /// What a switch sees of the hostile host.
    fn sight(&self, switch: SwitchId) -> Sight {
        match &self.fabric {
            Some(fabric) => fabric.sight(switch, self.forger_port),
            None => Sight {
                hostile: self.forger_port,
                shared: None,
            },
        }
    }

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
