//! One run: jobs that train side by side, on one switch or a leaf-spine fabric, with one policy and
//! one seed.
//!
//! Everything joins first; when all jobs run, each starts to compute after its own random time. The
//! run ends when every worker has left. What it measures is in [`Outcome`].

use super::breakdown::{Breakdown, Ended, Samples, counters};
use super::feed::Feed;
use super::models::Plan;
use super::ring;
pub use super::scenario::Scenario;
use super::scenario::job_id;
use super::scenario::{
    Draws, FRAGMENT_BYTES, FRAME_BYTES, GBIT_PER_S, LeafSpine, NicService, Scheme, Stalls,
};
use super::setup::{DELAY, Sites, UNITS};
use super::training::{Next, Then, Training};
use crate::address::{Address, HostId, Node, SessionId, SwitchId};
use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::world::{App, World};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tally_endpoint::{Event, Profile, PsConfig, WorkerConfig};
use tally_engine::PolicyName;
use tally_kernels::Kernels;
use tally_wire::{Key, Time};

/// What a host's adapter is given ahead of the wire: some ten frames.
const AHEAD: Duration = Duration::from_micros(1);
/// The UDP port of every session.
const UDP_PORT: u16 = 40_000;
/// The UDP port of the first PS at a worker's host.
const PS_PORT: u16 = 50_000;
/// How long JOIN and all that may take, and then the training, in simulated time.
const LIMIT: Duration = Duration::from_secs(100);
/// How often the breakdown looks at every worker.
const SAMPLE: Duration = Duration::from_micros(20);

/// What a run measured of a job.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JobOutcome {
    /// The name of its model.
    pub model: &'static str,
    /// From its own start to its own end.
    pub jct_ms: f64,
    /// What it would take if results came at once: computation alone.
    pub computation_ms: f64,
    /// What its gradients would take on an idle link.
    pub sending_ms: f64,
    /// Gradients of one worker over the completion time.
    pub goodput_gbit_per_s: f64,
    /// Load of the link to its PS over the completion time, as a share of what the link can.
    pub ps_link: f64,
}

/// What a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Its policy.
    pub policy: String,
    /// Its seed.
    pub seed: u64,
    /// By number.
    pub jobs: Vec<JobOutcome>,
    /// Results that a PS finished, of all.
    pub from_ps: f64,
    /// Contributions that found their slot taken, of all.
    pub collisions: f64,
    /// Slots that were given up to a higher priority, of those taken.
    pub preemptions: f64,
    /// Bytes up and down a leaf's uplinks, in gradients of a worker of each job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplinks: Option<(f64, f64)>,
    /// Where time and fragments went.
    pub breakdown: Breakdown,
    /// Events simulated.
    pub events: u64,
    /// Simulated time.
    pub simulated_ms: f64,
    /// Real time.
    pub wall_s: f64,
}

impl Outcome {
    /// Mean of something over the jobs of a model, or over all.
    #[must_use]
    pub fn mean(&self, model: Option<&str>, of: impl Fn(&JobOutcome) -> f64) -> Option<f64> {
        let jobs = || {
            let jobs = self.jobs.iter();
            jobs.filter(|job| model.is_none_or(|m| m == job.model))
        };
        let count = jobs().count();
        (count > 0).then(|| jobs().map(of).sum::<f64>() / count as f64)
    }

    /// Mean completion time over all jobs.
    #[must_use]
    pub fn jct_ms(&self) -> f64 {
        self.mean(None, |job| job.jct_ms).unwrap_or(f64::NAN)
    }
}

/// What the alarms of a run mean.
enum Alarm {
    Start(usize),
    Computed(usize),
    /// A host's processes stop for a while.
    Stall(usize),
    Sample,
}

impl Alarm {
    const fn token(self) -> u64 {
        match self {
            Self::Start(job) => (job as u64) << 2,
            Self::Computed(worker) => (worker as u64) << 2 | 1,
            Self::Sample => 2,
            Self::Stall(host) => (host as u64) << 2 | 3,
        }
    }

    const fn of(token: u64) -> Self {
        let n = (token >> 2) as usize;
        match token & 3 {
            0 => Self::Start(n),
            1 => Self::Computed(n),
            3 => Self::Stall(n),
            _ => Self::Sample,
        }
    }
}

/// A worker, as the run sees it.
struct Member {
    job: usize,
    session: SessionId,
    training: Training,
    profile: Option<Profile>,
    /// Fragments submitted.
    submitted: u64,
    /// What its computation waits for, and since when.
    waits: Option<(u32, Time)>,
    /// Layers submitted whose results are not there.
    unfinished: u32,
    is_done: bool,
}

/// A job, as the run sees it.
struct Job {
    plan: Rc<Plan>,
    members: std::ops::Range<usize>,
    ps: SessionId,
    starts: Time,
    /// Frames and bytes to its PS before the start.
    ps_bytes: u64,
    ends: Option<Time>,
    ps_bytes_end: u64,
    undone: usize,
}

impl Job {
    /// From start to end.
    fn seconds(&self) -> f64 {
        let took = |end: Time| end.since(self.starts).as_secs_f64();
        self.ends.map_or(0.0, took)
    }
}

struct Run {
    jobs: Vec<Job>,
    members: Vec<Member>,
    /// The member of a session; workers have the first sessions.
    offsets: Vec<Duration>,
    iterations: u32,
    unknown_lengths: bool,
    stalls: Option<Stalls>,
    /// Hosts of workers: the first ones.
    workers_hosts: usize,
    rng: Rng,
    running: usize,
    left: usize,
    failure: Option<String>,
    /// Layers that have finished, in and out of one call.
    finished: Vec<u32>,
    samples: Samples,
    /// When all jobs ran.
    begun: Option<Time>,
}

/// The session of the worker that is the `n`-th of all.
const fn session_of(member: usize) -> SessionId {
    SessionId(member as u32)
}

impl Run {
    fn act(&mut self, world: &mut World<Feed>, at: usize, next: Next) {
        let now = world.now;
        let member = &mut self.members[at];
        let plan = &self.jobs[member.job].plan;
        if let Some(layer) = next.submit {
            let fragments = plan.layers[layer as usize].fragments;
            let profile = member.profile.as_mut();
            let priority = profile.map_or(0, |profile| {
                if member.unfinished == 0 {
                    profile.communication_begins(now);
                }
                profile.submits(fragments);
                profile.priority(layer, plan.layers.len() as u32)
            });
            let total = member.profile.as_ref().and_then(Profile::fragments_total);
            member.unfinished += 1;
            member.submitted += fragments;
            self.samples.priority(member.job, layer, priority);
            world.with_worker(member.session, |now, worker, feed| {
                feed.submit(layer, fragments);
                worker.expect(total);
                worker.submit(now, fragments, priority);
            });
        }
        if next.iterated
            && let Some(profile) = &mut member.profile
        {
            profile.step_ended(now);
        }
        self.resume(world, at, next.then);
    }

    fn resume(&mut self, world: &mut World<Feed>, at: usize, then: Then) {
        let now = world.now;
        let member = &mut self.members[at];
        let was_waiting = member.waits.take();
        if let Some((layer, since)) = was_waiting {
            self.samples.waited(member.job, layer, now.since(since));
        }
        if let Some(profile) = &mut member.profile {
            match (was_waiting, then) {
                (Some(_), Then::Compute(_)) => profile.compute_begins(now),
                (None, Then::Wait(_) | Then::Drain) => profile.compute_ends(now),
                _ => {}
            }
        }
        match then {
            Then::Compute(time) => world.alarm(now.after(time), Alarm::Computed(at).token()),
            Then::Wait(layer) => member.waits = Some((layer, now)),
            Then::Drain => member.waits = Some((0, now)),
        }
    }

    fn fail(&mut self, world: &mut World<Feed>, text: String) {
        self.failure.get_or_insert(text);
        world.stop();
    }

    /// Has a host stall some time after `after`.
    fn plan_stall(&mut self, world: &mut World<Feed>, host: usize, after: Duration) {
        if let Some(stalls) = self.stalls {
            let wait = self.rng.below(2000 * u64::from(stalls.every_us));
            let at = world.now.after(after + Duration::from_nanos(wait));
            world.alarm(at, Alarm::Stall(host).token());
        }
    }

    fn stall(&mut self, world: &mut World<Feed>, host: usize) {
        let are_running = self.jobs.iter().any(|job| job.ends.is_none());
        let Some(stalls) = self.stalls.filter(|_| are_running) else {
            return;
        };
        let time = Duration::from_nanos(self.rng.below(2000 * u64::from(stalls.mean_us)));
        world.put_to_sleep(HostId(host as u16), world.now.after(time));
        self.plan_stall(world, host, time);
    }

    fn ps_bytes(&self, world: &World<Feed>, job: usize) -> u64 {
        let host = world.session(self.jobs[job].ps).address.host;
        world.downlink(host).stats.wire_bytes
    }
}

impl App<Feed> for Run {
    fn worker_event(&mut self, world: &mut World<Feed>, session: SessionId, event: Event) {
        let at = session.0 as usize;
        match event {
            Event::Waiting(_) => {}
            Event::Running { .. } => {
                self.running += 1;
                if self.running == self.members.len() {
                    self.begun = Some(world.now);
                    for job in 0..self.jobs.len() {
                        let starts = world.now.after(self.offsets[job]);
                        self.jobs[job].starts = starts;
                        world.alarm(starts, Alarm::Start(job).token());
                    }
                    world.alarm(world.now, Alarm::Sample.token());
                    for host in 0..self.workers_hosts {
                        self.plan_stall(world, host, Duration::ZERO);
                    }
                }
            }
            Event::Delivered => {}
            Event::Finished => {
                self.left += 1;
                if self.left == self.members.len() {
                    world.stop();
                }
            }
            Event::Failed(error) => {
                let job = self.members[at].job;
                self.fail(world, format!("a worker of job {job} failed: {error}"));
            }
        }
    }

    fn news(&mut self, world: &mut World<Feed>, session: SessionId) {
        let at = session.0 as usize;
        let mut finished = std::mem::take(&mut self.finished);
        world.with_worker(session, |_, _, feed| feed.take_finished(&mut finished));
        for layer in finished.drain(..) {
            let now = world.now;
            let member = &mut self.members[at];
            member.unfinished -= 1;
            if member.unfinished == 0
                && let Some(profile) = &mut member.profile
            {
                profile.communication_ends(now);
            }
            if let Some(then) = member.training.delivered(layer) {
                self.resume(world, at, then);
            }
        }
        self.finished = finished;
        let member = &mut self.members[at];
        if !member.is_done && member.training.is_done() {
            member.is_done = true;
            if let Some((layer, since)) = member.waits.take() {
                self.samples
                    .waited(member.job, layer, world.now.since(since));
            }
            let number = member.job;
            let job = &mut self.jobs[number];
            job.undone -= 1;
            if job.undone == 0 {
                job.ends = Some(world.now);
                let bytes = self.ps_bytes(world, number);
                self.jobs[number].ps_bytes_end = bytes;
                for member in self.jobs[number].members.clone() {
                    world.with_worker(session_of(member), |now, worker, _| worker.finish(now));
                }
            }
        }
    }

    fn alarm(&mut self, world: &mut World<Feed>, token: u64) {
        match Alarm::of(token) {
            Alarm::Start(job) => {
                self.jobs[job].ps_bytes = self.ps_bytes(world, job);
                let now = world.now;
                for at in self.jobs[job].members.clone() {
                    let member = &mut self.members[at];
                    let iterations = u64::from(self.iterations);
                    let known = Some(iterations).filter(|_| !self.unknown_lengths);
                    let mut profile = Profile::new(now, known);
                    profile.compute_begins(now);
                    member.profile = Some(profile);
                    let next = member.training.begin();
                    self.act(world, at, next);
                }
            }
            Alarm::Computed(at) => {
                let next = self.members[at].training.computed();
                self.act(world, at, next);
            }
            Alarm::Stall(host) => self.stall(world, host),
            Alarm::Sample => {
                self.samples.look_at_pools(&world.switches);
                for member in &self.members {
                    let runs = self.jobs[member.job].ends.is_none() && member.profile.is_some();
                    if runs {
                        let Member {
                            job,
                            session,
                            submitted,
                            ..
                        } = *member;
                        self.samples.look_at_worker(world, job, session, submitted);
                    }
                }
                if self.jobs.iter().any(|job| job.ends.is_none()) {
                    world.alarm(world.now.after(SAMPLE), Alarm::Sample.token());
                }
            }
        }
    }
}

impl Scenario {
    fn outcome_of(&self, plan: &Plan, seconds: f64, ps_bits: f64) -> JobOutcome {
        let iterations = f64::from(self.iterations);
        let fragments = plan.fragments() as f64 * iterations;
        JobOutcome {
            model: plan.model.name(),
            jct_ms: seconds * 1e3,
            computation_ms: plan.computation().as_secs_f64() * iterations * 1e3,
            sending_ms: fragments * FRAME_BYTES as f64 * 8e-6 / GBIT_PER_S,
            goodput_gbit_per_s: fragments * FRAGMENT_BYTES as f64 * 8e-9 / seconds,
            ps_link: ps_bits / (seconds * GBIT_PER_S * 1e9),
        }
    }
}

/// Runs a scenario.
///
/// # Errors
/// When a job does not end, a sum is wrong, or the engine has lost a frame.
pub fn run(scenario: &Scenario, policy: PolicyName, seed: u64) -> Result<Outcome> {
    let clock = Instant::now();
    let draws = Draws::new(scenario, seed);
    if let Some(fabric) = scenario.fabric
        && matches!(fabric.scheme, Scheme::Ring | Scheme::RingScattered)
    {
        return run_rings(scenario, fabric, policy, seed, draws);
    }
    let keys: Vec<_> = (0..scenario.jobs)
        .map(|job| Key::new(format!("the key of job {job:08}").as_bytes()))
        .collect::<Result<_, _>>()?;
    let (mut world, sites) = Sites::build(scenario, policy, &keys, draws.world);
    let mut app = start(scenario, &keys, &mut world, &sites, draws);
    let until = world.now.after(LIMIT);
    let ended = world.run(&mut app, until);
    if let Some(failure) = app.failure {
        bail!("{policy}, seed {seed}: {failure}");
    }
    ensure!(
        ended,
        "{policy}, seed {seed}: not ended in {LIMIT:?} of simulated time"
    );
    let wrong: u64 = (0..app.members.len())
        .filter_map(|m| world.worker(session_of(m)))
        .map(|(_, feed)| feed.wrong)
        .sum();
    ensure!(wrong == 0, "{policy}, seed {seed}: {wrong} sums are wrong");
    let lost: u64 = world.switches.iter().map(|s| s.ledger().lost()).sum();
    ensure!(
        lost == 0,
        "{policy}, seed {seed}: the engines lost {lost} frames"
    );
    let outcome = Outcome {
        wall_s: clock.elapsed().as_secs_f64(),
        ..measure(scenario, &app, &world, &sites, policy, seed)
    };
    Ok(outcome)
}

/// What came of a run that has ended; the real time apart.
fn measure(
    scenario: &Scenario,
    app: &Run,
    world: &World<Feed>,
    sites: &Sites,
    policy: PolicyName,
    seed: u64,
) -> Outcome {
    let jobs = app.jobs.iter().map(|job| {
        let ps_bits = (job.ps_bytes_end - job.ps_bytes) as f64 * 8.0;
        scenario.outcome_of(&job.plan, job.seconds(), ps_bits)
    });
    let jobs = jobs.collect();
    let iterations = u64::from(scenario.iterations);
    let fragments = |job: &Job| job.plan.fragments() * iterations;
    let gradients: u64 = app.jobs.iter().map(fragments).sum();
    let gradients = (gradients * FRAME_BYTES) as f64;
    let uplinks = sites.uplink_bytes(world);
    let counters = counters(world);
    let ended = app.jobs.iter().map(|job| Ended {
        plan: Rc::clone(&job.plan),
        workers: app.members[job.members.clone()]
            .iter()
            .map(|m| m.session)
            .collect(),
        ps: job.ps,
        fragments: fragments(job),
        seconds: job.seconds(),
    });
    let breakdown = Breakdown::new(&app.samples, &ended.collect::<Vec<_>>(), world);
    let share = |n: u64, of: u64| n as f64 / of.max(1) as f64;
    // Of results, not of the sums that children send up.
    let root = world.switches[0].counters();
    Outcome {
        policy: policy.to_string(),
        seed,
        jobs,
        from_ps: share(root.results_from_ps, root.results_from_ps + root.results),
        collisions: share(
            counters.collisions,
            counters.collisions + counters.contributions,
        ),
        preemptions: share(counters.preemptions, counters.slots_taken),
        uplinks: uplinks.map(|(up, down)| (up / gradients, down / gradients)),
        breakdown,
        events: world.happened,
        simulated_ms: world
            .now
            .since(app.begun.unwrap_or(world.now))
            .as_secs_f64()
            * 1e3,
        wall_s: 0.0,
    }
}

/// As [`run`], of rings on the hosts.
fn run_rings(
    scenario: &Scenario,
    fabric: LeafSpine,
    policy: PolicyName,
    seed: u64,
    draws: Draws,
) -> Result<Outcome> {
    let clock = Instant::now();
    let plans = draws.plans.clone();
    let mut jobs = Vec::new();
    for (plan, time) in plans.iter().zip(ring::run(scenario, fabric, draws)) {
        let Some(time) = time else {
            bail!("ring, seed {seed}: a job has not ended");
        };
        jobs.push(scenario.outcome_of(plan, time.as_secs_f64(), 0.0));
    }
    Ok(Outcome {
        policy: policy.to_string(),
        seed,
        simulated_ms: jobs.iter().map(|job| job.jct_ms).fold(0.0, f64::max),
        jobs,
        from_ps: 0.0,
        collisions: 0.0,
        preemptions: 0.0,
        uplinks: Some(fabric.crossings(scenario.workers(0)).uplink),
        breakdown: Breakdown::default(),
        events: 0,
        wall_s: clock.elapsed().as_secs_f64(),
    })
}

/// Where the sessions of a run are.
struct Hosts {
    /// Of workers, job by job.
    workers: Vec<Address>,
    /// Of parameter servers, with their switches: job by job, and node by node.
    servers: Vec<(SwitchId, Address)>,
    /// Number of the hosts that have workers: they are the first ones.
    of_workers: usize,
}

impl Hosts {
    fn connect(scenario: &Scenario, world: &mut World<Feed>, sites: &Sites) -> Self {
        let link = LinkConfig::new(GBIT_PER_S, DELAY);
        let address = |world: &mut World<Feed>, at: Node| Address {
            host: world.add_host(at, link, link, AHEAD),
            udp_port: UDP_PORT,
        };
        // All cables first: the order of hosts is that of sessions.
        let mut hosts: Vec<Address> = Vec::new();
        for job in 0..scenario.jobs {
            let workers = scenario.workers(job);
            for rank in 0..workers {
                let first = hosts.get(usize::from(rank));
                let address = match first.filter(|_| scenario.shared_nic.is_some()) {
                    Some(&Address { host, .. }) => Address {
                        host,
                        udp_port: UDP_PORT + job as u16,
                    },
                    None => address(world, sites.of_worker(rank, workers).0),
                };
                let host = &mut world.hosts[usize::from(address.host.0)];
                if scenario.shared_nic == Some(NicService::RoundRobin) {
                    host.order = None;
                }
                let at = host.at;
                sites.join_group(world, at, job_id(job));
                hosts.push(address);
            }
        }
        let of_workers = world.hosts.len();
        let mut ps_hosts = Vec::new();
        let mut of_job = 0;
        for job in 0..scenario.jobs {
            let workers = usize::from(scenario.workers(job));
            let host = hosts[of_job + job % workers].host;
            of_job += workers;
            let nodes = sites.nodes.iter();
            ps_hosts.extend(nodes.map(|&at| {
                let ps = match scenario.colocated_ps {
                    true => Address {
                        host,
                        udp_port: PS_PORT + job as u16,
                    },
                    false => address(world, at.into()),
                };
                (at, ps)
            }));
        }
        Self {
            workers: hosts,
            servers: ps_hosts,
            of_workers,
        }
    }
}

fn start(
    scenario: &Scenario,
    keys: &[Key],
    world: &mut World<Feed>,
    sites: &Sites,
    draws: Draws,
) -> Run {
    let mut rng = draws.rng;
    let Hosts {
        workers: hosts,
        servers: ps_hosts,
        of_workers,
    } = Hosts::connect(scenario, world, sites);
    let ids: Vec<_> = (0..scenario.jobs).map(job_id).collect();
    sites.introduce(world, &ids);
    let (mut jobs, mut members) = (Vec::new(), Vec::new());
    let mut hosts = hosts.into_iter();
    for (number, (plan, of_job)) in draws.plans.iter().zip(draws.workers).enumerate() {
        let (job, workers) = (job_id(number), scenario.workers(number));
        let first = members.len();
        for ((rank, (instance, rng)), address) in (0..).zip(of_job).zip(&mut hosts) {
            let mut config =
                WorkerConfig::new(job, keys[number].clone(), rank, workers, [0; 32], instance);
            config.units = UNITS;
            config.window = scenario.window;
            let feed = Feed::new(job, rank.into(), workers.into());
            let at = sites.of_worker(rank, workers).1;
            let session = world.start_worker(at, address, config, feed);
            debug_assert_eq!(session, session_of(members.len()));
            members.push(Member {
                job: number,
                session,
                training: Training::new(Rc::clone(plan), scenario.iterations, rng),
                profile: None,
                submitted: 0,
                waits: None,
                unfinished: 0,
                is_done: false,
            });
        }
        jobs.push(Job {
            plan: Rc::clone(plan),
            members: first..members.len(),
            ps: SessionId(0),
            starts: Time(0),
            ps_bytes: 0,
            ends: None,
            ps_bytes_end: 0,
            undone: usize::from(workers),
        });
    }
    // After the workers, so that a worker's session has its own number among workers.
    let of_jobs = ps_hosts.chunks(sites.nodes.len());
    for (number, (job, of_job)) in jobs.iter_mut().zip(of_jobs).enumerate() {
        for (node, &(at, address)) in of_job.iter().enumerate() {
            let config = PsConfig::new(job_id(number), keys[number].clone(), rng.next() | 1);
            let ps = world.start_ps(at, address, config, Kernels::best());
            if node == 0 {
                job.ps = ps;
            }
        }
    }
    let samples = Samples::new(&draws.plans);
    Run {
        jobs,
        members,
        offsets: draws.offsets,
        iterations: scenario.iterations,
        unknown_lengths: scenario.unknown_lengths,
        stalls: scenario.stalls,
        workers_hosts: of_workers,
        rng: rng.fork(),
        running: 0,
        left: 0,
        failure: None,
        finished: Vec::new(),
        samples,
        begun: None,
    }
}
