//! One job with one seed: what is simulated, and what is counted.

use crate::address::{Address, SessionId, SwitchId};
use crate::host::Data;
use crate::link::{Faults, LinkConfig, LinkStats};
use crate::oracle::{Contributions, Sums};
use crate::rng::Rng;
use crate::switch::{Steering, SwitchConfig};
use crate::world::{App, World, WorldConfig};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tally_endpoint::{Contribution, Delivery, Event, Gradients, PsConfig, WorkerConfig};
use tally_engine::queue::QueueConfig;
use tally_engine::{JobConfig, PolicyName, PoolConfig, PoolJob, RegistryConfig};
use tally_kernels::Kernels;
use tally_wire::{DEFAULT_PORT, Element, JobId, Key, Time, UNIT_BYTES};

/// Units of the payload that is really summed.
const UNITS: u8 = 1;
/// What a host's adapter is given ahead of the wire: some ten frames.
const AHEAD: Duration = Duration::from_micros(1);
const JOB: JobId = JobId(1);
/// The UDP port of every session.
const UDP_PORT: u16 = 40_000;
/// Slots of the pool: four windows of the default.
const SLOTS: u32 = 1024;
/// The registry's share of joining, and the simulated time that everything may take.
const CONTROL_DELAY: Duration = Duration::from_micros(20);
const LIMIT: Duration = Duration::from_secs(100);

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// Workers of the job.
    pub workers: u8,
    /// Rate of every link.
    pub rate_gbit: f64,
    /// From a host to the switch, or back.
    pub delay_ns: u64,
    /// Payload bytes that a fragment stands for.
    pub payload_bytes: u32,
    /// Fragments that a worker may have unfinished.
    pub window: u16,
    /// Fragments of the message.
    pub fragments: u64,
    /// f32 folded in rank order; else i32, as block fixed point sends it.
    pub float: bool,
}

/// What the workers' links lose.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Pattern {
    /// Each frame with this probability in a million, each way, at every worker.
    Random(u32),
    /// 64 frames in a row, one burst in 2,000 frames, each way at worker 0.
    Bursts,
    /// 1 % of the frames from the switch to workers.
    Results,
    /// 1 % of the frames from workers to the switch.
    Contributions,
    /// 3 % of the frames of worker 0, each way.
    OneWorker,
}

impl Pattern {
    /// All but `Random`.
    pub const FIXED: [Self; 4] = [
        Self::Bursts,
        Self::Results,
        Self::Contributions,
        Self::OneWorker,
    ];

    /// Faults of a worker's link to the switch, and back.
    fn faults(self, rank: u8) -> (Faults, Faults) {
        let lose = |loss_ppm, loss_burst| Faults {
            loss_ppm,
            loss_burst,
            ..Faults::NONE
        };
        let both = |faults| (faults, faults);
        match self {
            Self::Random(ppm) => both(lose(ppm, 1)),
            Self::Bursts if rank == 0 => both(lose(500, 64)),
            Self::OneWorker if rank == 0 => both(lose(30_000, 1)),
            Self::Results => (Faults::NONE, lose(10_000, 1)),
            Self::Contributions => (lose(10_000, 1), Faults::NONE),
            Self::Bursts | Self::OneWorker => both(Faults::NONE),
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Random(ppm) => f.pad(&format!("{} %", f64::from(*ppm) / 1e4)),
            Self::Bursts => f.pad("bursts of 64, worker 0"),
            Self::Results => f.pad("1 % of results"),
            Self::Contributions => f.pad("1 % of contributions"),
            Self::OneWorker => f.pad("3 %, worker 0"),
        }
    }
}

/// Frames of a run, and why they were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Frames {
    /// Lost by the workers' links.
    pub lost: u64,
    /// Of them, DATA and RESULT.
    pub payload_lost: u64,
    /// DATA and RESULT on the workers' links beyond one contribution and one result for each
    /// worker and fragment, and all with a payload on the parameter server's link.
    pub payload_again: u64,
    /// Contributions retransmitted by workers.
    pub contributions_again: u64,
    /// Results sent again by workers, which the switch publishes.
    pub results_by_workers: u64,
    /// Results sent again by the switch from its ring.
    pub results_by_switch: u64,
    /// Results of the parameter server, first ones and again.
    pub results_by_ps: u64,
    /// PROBEs because the timeout passed.
    pub probes_timeout: u64,
    /// PROBEs because a fragment that was sent later had its result.
    pub probes_early: u64,
    /// NACKs to workers, by the switch and by the parameter server.
    pub nacks: u64,
}

impl Frames {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        self.lost += other.lost;
        self.payload_lost += other.payload_lost;
        self.payload_again += other.payload_again;
        self.contributions_again += other.contributions_again;
        self.results_by_workers += other.results_by_workers;
        self.results_by_switch += other.results_by_switch;
        self.results_by_ps += other.results_by_ps;
        self.probes_timeout += other.probes_timeout;
        self.probes_early += other.probes_early;
        self.nacks += other.nacks;
    }
}

/// What a run measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// From the submission to the last worker's last result.
    pub time_us: f64,
    /// Payload of one worker over that time.
    pub goodput_gbit: f64,
    /// Frames lost and sent.
    pub frames: Frames,
    /// Nanoseconds from first contribution to result, of each fragment at each worker, ascending.
    #[serde(skip)]
    pub latencies_ns: Vec<u32>,
}

impl Outcome {
    /// A quantile of the latencies, in µs.
    #[must_use]
    pub fn latency_us(&self, q: f64) -> f64 {
        let last = self.latencies_ns.len().saturating_sub(1);
        let at = (last as f64 * q).round() as usize;
        let ns = self.latencies_ns.get(at).copied().unwrap_or(0);
        f64::from(ns) / 1e3
    }
}

/// A worker's data, and what came of it.
struct Feed {
    rank: u8,
    element: Element,
    contributions: Contributions,
    sums: Rc<RefCell<Sums>>,
    /// By fragment, in nanoseconds.
    latencies: Vec<u32>,
    wrong: u64,
}

impl Gradients for Feed {
    fn contribute(&mut self, seq: u64, payload: &mut [u8]) -> Contribution {
        self.contributions
            .write(self.rank, seq, self.element, payload);
        Contribution::Ready(self.element)
    }

    fn result(&mut self, seq: u64, element: Element, payload: &[u8], delivery: Delivery) {
        let right =
            element == self.element && payload == self.sums.borrow_mut().sum(seq, self.element);
        self.wrong += u64::from(!right);
        let ns = delivery.latency.as_nanos();
        self.latencies.push(u32::try_from(ns).unwrap_or(u32::MAX));
    }

    fn stored_result(&mut self, seq: u64, payload: &mut [u8]) -> Option<Element> {
        payload.copy_from_slice(self.sums.borrow_mut().sum(seq, self.element));
        Some(self.element)
    }
}

impl Data for Feed {}

struct Run {
    scenario: Scenario,
    pattern: Pattern,
    running: usize,
    delivered: usize,
    finished: usize,
    /// When the message was submitted, and all counters at that moment.
    begins: Option<(Time, Snapshot)>,
    /// The same when the last worker had its last result.
    ends: Option<(Time, Snapshot)>,
    failure: Option<String>,
}

/// What links and sessions have done so far. The workers' hosts are the first.
#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    frames: Frames,
    elements: u64,
}

impl Snapshot {
    fn take(world: &World<Feed>, workers: u8) -> Self {
        let mut s = Self::default();
        for (n, host) in world.hosts.iter().enumerate() {
            for stats in [host.uplink.stats, world.downlink(host.id).stats] {
                let LinkStats {
                    element_frames,
                    lost,
                    element_frames_lost,
                    ..
                } = stats;
                s.elements += element_frames;
                if n < usize::from(workers) {
                    s.frames.lost += lost;
                    s.frames.payload_lost += element_frames_lost;
                }
            }
        }
        for rank in 0..u32::from(workers) {
            let Some((worker, _)) = world.worker(SessionId(rank)) else {
                continue;
            };
            let stats = worker.stats();
            s.frames.contributions_again += stats.retransmissions.contributions;
            s.frames.probes_timeout += stats.retransmissions.probes_timeout;
            s.frames.probes_early += stats.retransmissions.probes_early;
            s.frames.results_by_workers += stats.results_resent;
        }
        let counters = world.switches[0].counters();
        s.frames.results_by_switch = counters.results_again;
        s.frames.nacks = counters.nacks + counters.probe_nacks;
        if let Some(ps) = world.ps(SessionId(workers.into())) {
            s.frames.results_by_ps = ps.stats().results + ps.stats().results_resent;
        }
        s
    }
}

impl Run {
    fn set_faults(world: &mut World<Feed>, workers: u8, pattern: Pattern) {
        for rank in 0..workers {
            let (up, down) = pattern.faults(rank);
            let host = &mut world.hosts[usize::from(rank)];
            host.uplink.config.faults = up;
            let (node, port) = host.at;
            world.link(node, port).config.faults = down;
        }
    }

    fn submit(&mut self, world: &mut World<Feed>) {
        let Scenario {
            workers, fragments, ..
        } = self.scenario;
        Self::set_faults(world, workers, self.pattern);
        self.begins = Some((world.now, Snapshot::take(world, workers)));
        for rank in 0..u32::from(workers) {
            world.with_worker(SessionId(rank), |now, worker, _| {
                worker.submit(now, fragments, 128);
            });
        }
    }

    fn end(&mut self, world: &mut World<Feed>) {
        let workers = self.scenario.workers;
        self.ends = Some((world.now, Snapshot::take(world, workers)));
        Self::set_faults(world, workers, Pattern::Random(0));
        for rank in 0..u32::from(workers) {
            world.with_worker(SessionId(rank), |now, worker, _| worker.finish(now));
        }
    }
}

impl App<Feed> for Run {
    fn worker_event(&mut self, world: &mut World<Feed>, _: SessionId, event: Event) {
        let workers = usize::from(self.scenario.workers);
        match event {
            Event::Waiting(_) => {}
            Event::Running { .. } => {
                self.running += 1;
                if self.running == workers {
                    self.submit(world);
                }
            }
            Event::Delivered => {
                self.delivered += 1;
                if self.delivered == workers {
                    self.end(world);
                }
            }
            Event::Finished => {
                self.finished += 1;
                if self.finished == workers {
                    world.stop();
                }
            }
            Event::Failed(error) => {
                self.failure.get_or_insert(error.to_string());
                world.stop();
            }
        }
    }

    fn alarm(&mut self, _: &mut World<Feed>, _: u64) {}
}

fn switch(scenario: &Scenario, key: &Key) -> SwitchConfig {
    let held = u32::from(scenario.workers - 1) * u32::from(scenario.window);
    SwitchConfig {
        forwarding: crate::switch::forwarding_config(0),
        switchml: None,
        netreduce: None,
        pool: PoolConfig {
            slots: SLOTS.max(u32::from(scenario.window).next_power_of_two()),
            ways: PolicyName::Esa.default_ways(),
            held,
            window: scenario.window,
            shards: 1,
            shard: 0,
            jobs: vec![PoolJob::unlimited(JOB)],
            policy: PolicyName::Esa,
            places: 0,
        },
        registry: RegistryConfig {
            mac: SwitchId(0).mac(),
            base_port: DEFAULT_PORT,
            shards: 1,
            window: scenario.window,
            units: UNITS,
            member_timeout: Duration::from_secs(5),
            secret: [7; 32],
            fabric: None,
        },
        jobs: vec![JobConfig {
            id: JOB,
            key: key.clone(),
            workers: scenario.workers,
            previous_key: None,
            servers: 1,
            tree: None,
        }],
        queue: QueueConfig::default(),
        control_delay: CONTROL_DELAY,
        poll: None,
        steering: Steering::Rules,
        kernels: Kernels::best(),
    }
}

/// The world of one job, whose processes have started.
fn world(scenario: &Scenario, seed: u64) -> Result<World<Feed>> {
    let mut rng = Rng::new(seed);
    let key = Key::new(b"the key of the job on lossy links")?;
    let config = WorldConfig {
        seed: rng.next(),
        units_max: UNITS,
        mtu: 0,
        nominal_payload_bytes: Some(scenario.payload_bytes),
    };
    let mut world = World::new(config, switch(scenario, &key));
    let delay = Duration::from_nanos(scenario.delay_ns);
    let link = LinkConfig::new(scenario.rate_gbit, delay);
    let contributions = Contributions {
        salt: rng.next(),
        workers: scenario.workers,
        infinite_ppm: 0,
    };
    let sums = Sums::new(
        contributions,
        UNIT_BYTES * usize::from(UNITS),
        4 * usize::from(scenario.window),
    );
    let sums = Rc::new(RefCell::new(sums));
    for rank in 0..scenario.workers {
        let address = Address {
            host: world.add_host(SwitchId(0), link, link, AHEAD),
            udp_port: UDP_PORT,
        };
        let instance = rng.next() | 1;
        let mut config =
            WorkerConfig::new(JOB, key.clone(), rank, scenario.workers, [0; 32], instance);
        config.units = UNITS;
        config.window = scenario.window;
        let feed = Feed {
            rank,
            element: if scenario.float {
                Element::F32
            } else {
                Element::I32
            },
            contributions,
            sums: Rc::clone(&sums),
            latencies: Vec::with_capacity(scenario.fragments as usize),
            wrong: 0,
        };
        world.start_worker(SwitchId(0), address, config, feed);
    }
    let address = Address {
        host: world.add_host(SwitchId(0), link, link, AHEAD),
        udp_port: UDP_PORT,
    };
    world.start_ps(
        SwitchId(0),
        address,
        PsConfig::new(JOB, key, rng.next() | 1),
        Kernels::best(),
    );
    Ok(world)
}

/// Simulates one job.
///
/// # Errors
/// When a sum is wrong or missing, the job fails or does not end, or the engine has lost a frame.
pub fn run(scenario: &Scenario, pattern: Pattern, seed: u64) -> Result<Outcome> {
    let mut world = world(scenario, seed)?;
    let mut app = Run {
        scenario: *scenario,
        pattern,
        running: 0,
        delivered: 0,
        finished: 0,
        begins: None,
        ends: None,
        failure: None,
    };
    let until = world.now.after(LIMIT);
    let ended = world.run(&mut app, until);
    if let Some(failure) = app.failure {
        bail!("{pattern}, seed {seed}: {failure}");
    }
    let (Some((begins, before)), Some((ends, after)), true) = (app.begins, app.ends, ended) else {
        bail!("{pattern}, seed {seed}: did not end in {LIMIT:?} of simulated time");
    };
    let mut latencies_ns = Vec::new();
    let mut wrong = 0;
    for rank in 0..u32::from(scenario.workers) {
        if let Some((_, feed)) = world.worker(SessionId(rank)) {
            latencies_ns.extend_from_slice(&feed.latencies);
            wrong += feed.wrong;
        }
    }
    let expected = scenario.fragments * u64::from(scenario.workers);
    ensure!(
        wrong == 0 && latencies_ns.len() as u64 == expected,
        "{pattern}, seed {seed}: {wrong} wrong sums, {} results, expected {expected}",
        latencies_ns.len()
    );
    let lost = world.switches[0].ledger().lost();
    ensure!(
        lost == 0,
        "{pattern}, seed {seed}: the engine lost {lost} frames"
    );
    latencies_ns.sort_unstable();
    let seconds = ends.since(begins).as_secs_f64();
    let bits = scenario.fragments as f64 * f64::from(scenario.payload_bytes) * 8.0;
    Ok(Outcome {
        seed,
        time_us: seconds * 1e6,
        goodput_gbit: bits / seconds * 1e-9,
        frames: difference(&after, &before, 2 * expected),
        latencies_ns,
    })
}

/// What happened between two snapshots.
///
/// Without loss, `needed` frames with a payload are needed.
fn difference(after: &Snapshot, before: &Snapshot, needed: u64) -> Frames {
    let (a, b) = (&after.frames, &before.frames);
    Frames {
        lost: a.lost - b.lost,
        payload_lost: a.payload_lost - b.payload_lost,
        payload_again: (after.elements - before.elements).saturating_sub(needed),
        contributions_again: a.contributions_again - b.contributions_again,
        results_by_workers: a.results_by_workers - b.results_by_workers,
        results_by_switch: a.results_by_switch - b.results_by_switch,
        results_by_ps: a.results_by_ps - b.results_by_ps,
        probes_timeout: a.probes_timeout - b.probes_timeout,
        probes_early: a.probes_early - b.probes_early,
        nacks: a.nacks - b.nacks,
    }
}
