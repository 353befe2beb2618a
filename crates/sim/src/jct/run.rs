//! One run: jobs that train side by side, on one switch, with one policy and one seed.
//!
//! Everything joins first; when all jobs run, each starts to compute after its own random time. The
//! run ends when every worker has left. What it measures is in [`Outcome`].

use super::breakdown::{Breakdown, Ended, Samples};
use super::feed::Feed;
use super::models::{Model, Plan};
use super::training::{Next, Then, Training};
use crate::address::{Address, SessionId, SwitchId};
use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::switch::{Steering, SwitchConfig};
use crate::world::{App, World, WorldConfig};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tally_endpoint::{Event, Profile, PsConfig, WorkerConfig};
use tally_engine::native::policy::Static;
use tally_engine::queue::QueueConfig;
use tally_engine::{JobConfig, PolicyName, PoolConfig, PoolJob, RegistryConfig};
use tally_kernels::Kernels;
use tally_wire::{DEFAULT_PORT, JobId, Key, Time};

/// Payload that a fragment stands for.
pub const FRAGMENT_BYTES: u64 = 1024;
/// Units of the payload that is really summed.
const UNITS: u8 = 1;
/// Every link.
const GBIT_PER_S: f64 = 100.0;
/// One way, from a host to the switch or back.
const DELAY: Duration = Duration::from_nanos(2500);
/// What a host's adapter is given ahead of the wire: some ten frames.
const AHEAD: Duration = Duration::from_micros(1);
/// The UDP port of every session.
const UDP_PORT: u16 = 40_000;
/// How long JOIN and all that may take, and then the training, in simulated time.
const LIMIT: Duration = Duration::from_secs(100);
/// How often the breakdown looks at every worker.
const SAMPLE: Duration = Duration::from_micros(20);

/// What is simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scenario {
    /// Models of the jobs, in turn.
    #[serde(serialize_with = "names")]
    pub mix: Vec<Model>,
    /// Jobs.
    pub jobs: usize,
    /// Workers of the first job, of the second, and so on, in turn.
    pub workers: Vec<u8>,
    /// Slots of the pool.
    pub slots: u32,
    /// Slots that a fragment may be in; none: the policy's default.
    pub ways: Option<u32>,
    /// Fragments that a worker may have unfinished; the switch may serve fewer.
    pub window: u16,
    /// What parameters and computation are divided by.
    pub scale: u64,
    /// Iterations of each job.
    pub iterations: u32,
}

fn names<S: serde::Serializer>(mix: &[Model], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(mix.iter().map(|m| m.name()))
}

impl Scenario {
    /// Windows as the real switch serves them: no larger than the slots that a job may use.
    #[must_use]
    pub fn served_window(&self, policy: PolicyName) -> u16 {
        let slots = match policy {
            PolicyName::Static => Static::share(self.jobs, self.slots),
            PolicyName::Esa | PolicyName::Fcfs => self.slots,
            PolicyName::None => u32::MAX,
        };
        self.window.min(u16::try_from(slots).unwrap_or(u16::MAX))
    }

    fn workers(&self, job: usize) -> u8 {
        self.workers[job % self.workers.len()]
    }

    fn switch(&self, policy: PolicyName, keys: &[Key]) -> SwitchConfig {
        let window = self.served_window(policy);
        let jobs = (0..self.jobs).map(|job| JobConfig {
            id: job_id(job),
            key: keys[job].clone(),
            workers: self.workers(job),
            previous_key: None,
            servers: 1,
            tree: None,
        });
        SwitchConfig {
            pool: PoolConfig {
                slots: self.slots,
                ways: self.ways.unwrap_or(policy.default_ways()).min(self.slots),
                held: 0,
                window,
                shards: 1,
                shard: 0,
                jobs: (0..self.jobs).map(job_id).map(PoolJob::unlimited).collect(),
                policy,
                places: 0,
            },
            registry: RegistryConfig {
                mac: SwitchId(0).mac(),
                base_port: DEFAULT_PORT,
                shards: 1,
                window,
                units: UNITS,
                member_timeout: Duration::from_secs(5),
                secret: [7; 32],
                fabric: None,
            },
            jobs: jobs.collect(),
            queue: QueueConfig::default(),
            control_delay: Duration::from_micros(20),
            poll: None,
            steering: Steering::Rules,
            kernels: Kernels::best(),
            forwarding: crate::switch::forwarding_config(0),
            switchml: None,
        }
    }
}

const fn job_id(job: usize) -> JobId {
    JobId(job as u16 + 1)
}

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
    Sample,
}

impl Alarm {
    const fn token(self) -> u64 {
        match self {
            Self::Start(job) => (job as u64) << 2,
            Self::Computed(worker) => (worker as u64) << 2 | 1,
            Self::Sample => 2,
        }
    }

    const fn of(token: u64) -> Self {
        let n = (token >> 2) as usize;
        match token & 3 {
            0 => Self::Start(n),
            1 => Self::Computed(n),
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
                profile.priority(layer, plan.layers.len() as u32)
            });
            member.unfinished += 1;
            member.submitted += fragments;
            self.samples.priority(member.job, layer, priority);
            world.with_worker(member.session, |now, worker, feed| {
                feed.submit(layer, fragments);
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
                    let mut profile = Profile::new(now, Some(u64::from(self.iterations)));
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
            Alarm::Sample => {
                self.samples.look_at_pool(&world.switches[0]);
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

/// Runs a scenario.
///
/// # Errors
/// When a job does not end, a sum is wrong, or the engine has lost a frame.
pub fn run(scenario: &Scenario, policy: PolicyName, seed: u64) -> Result<Outcome> {
    let clock = Instant::now();
    let mut rng = Rng::new(seed);
    let keys: Vec<_> = (0..scenario.jobs)
        .map(|job| Key::new(format!("the key of job {job:08}").as_bytes()))
        .collect::<Result<_, _>>()?;
    let config = WorldConfig {
        seed: rng.next(),
        units_max: UNITS,
        nominal_payload_bytes: Some(FRAGMENT_BYTES as u32),
    };
    let mut world = World::new(config, scenario.switch(policy, &keys));
    let (mut app, plans) = start(scenario, &keys, &mut world, &mut rng);
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
    let lost = world.switches[0].ledger().lost();
    ensure!(
        lost == 0,
        "{policy}, seed {seed}: the engine lost {lost} frames"
    );

    let frame_s = f64::from(crate::link::OVERHEAD_BYTES) + 22.0 + FRAGMENT_BYTES as f64;
    let frame_s = frame_s * 8e-9 / GBIT_PER_S;
    let jobs = app.jobs.iter().zip(&plans).map(|(job, plan)| {
        let seconds = job.seconds();
        let iterations = f64::from(scenario.iterations);
        let fragments = plan.fragments() as f64 * iterations;
        let ps_bits = (job.ps_bytes_end - job.ps_bytes) as f64 * 8.0;
        JobOutcome {
            model: plan.model.name(),
            jct_ms: seconds * 1e3,
            computation_ms: plan.computation().as_secs_f64() * iterations * 1e3,
            sending_ms: fragments * frame_s * 1e3,
            goodput_gbit_per_s: fragments * FRAGMENT_BYTES as f64 * 8e-9 / seconds,
            ps_link: ps_bits / (seconds * GBIT_PER_S * 1e9),
        }
    });
    let jobs = jobs.collect();
    let counters = world.switches[0].counters();
    let ended = app.jobs.iter().map(|job| Ended {
        plan: Rc::clone(&job.plan),
        workers: app.members[job.members.clone()]
            .iter()
            .map(|m| m.session)
            .collect(),
        ps: job.ps,
        fragments: job.plan.fragments() * u64::from(scenario.iterations),
        seconds: job.seconds(),
    });
    let breakdown = Breakdown::new(&app.samples, &ended.collect::<Vec<_>>(), &world);
    let share = |n: u64, of: u64| n as f64 / of.max(1) as f64;
    Ok(Outcome {
        policy: policy.to_string(),
        seed,
        jobs,
        from_ps: share(
            counters.results_from_ps,
            counters.results_from_ps + counters.results,
        ),
        collisions: share(
            counters.collisions,
            counters.collisions + counters.contributions,
        ),
        preemptions: share(counters.preemptions, counters.slots_taken),
        breakdown,
        events: world.happened,
        simulated_ms: world
            .now
            .since(app.begun.unwrap_or(world.now))
            .as_secs_f64()
            * 1e3,
        wall_s: clock.elapsed().as_secs_f64(),
    })
}

fn start(
    scenario: &Scenario,
    keys: &[Key],
    world: &mut World<Feed>,
    rng: &mut Rng,
) -> (Run, Vec<Rc<Plan>>) {
    let plans: Vec<_> = (0..scenario.jobs)
        .map(|job| scenario.mix[job % scenario.mix.len()])
        .map(|model| Rc::new(Plan::new(model, scenario.scale, FRAGMENT_BYTES)))
        .collect();
    let longest = plans.iter().map(|p| p.computation()).max();
    let longest = longest.unwrap_or_default().as_nanos() as u64;
    let offsets = (0..scenario.jobs).map(|_| Duration::from_nanos(rng.below(longest.max(1))));
    let offsets = offsets.collect();
    let link = LinkConfig::new(GBIT_PER_S, DELAY);
    let address = |world: &mut World<Feed>| Address {
        host: world.add_host(SwitchId(0), link, link, AHEAD),
        udp_port: UDP_PORT,
    };
    let (mut jobs, mut members) = (Vec::new(), Vec::new());
    for (number, plan) in plans.iter().enumerate() {
        let (job, workers) = (job_id(number), scenario.workers(number));
        let first = members.len();
        for rank in 0..workers {
            let address = address(world);
            let instance = rng.next() | 1;
            let mut config =
                WorkerConfig::new(job, keys[number].clone(), rank, workers, [0; 32], instance);
            config.units = UNITS;
            config.window = scenario.window;
            let feed = Feed::new(job, rank.into(), workers.into());
            let session = world.start_worker(SwitchId(0), address, config, feed);
            debug_assert_eq!(session, session_of(members.len()));
            members.push(Member {
                job: number,
                session,
                training: Training::new(Rc::clone(plan), scenario.iterations, rng.fork()),
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
    for (number, job) in jobs.iter_mut().enumerate() {
        let address = address(world);
        let config = PsConfig::new(job_id(number), keys[number].clone(), rng.next() | 1);
        job.ps = world.start_ps(SwitchId(0), address, config, Kernels::best());
    }
    let samples = Samples::new(&plans);
    let run = Run {
        jobs,
        members,
        offsets,
        iterations: scenario.iterations,
        running: 0,
        left: 0,
        failure: None,
        finished: Vec::new(),
        samples,
        begun: None,
    };
    (run, plans)
}
