//! Where time and fragments went in a run: what computation waited for, what held senders back, how
//! long results took by way of switch and parameter server (PS), and what the repairs were.
//!
//! Two sources: counters that engine and sessions keep anyway, and samples of every worker's state
//! taken at fixed intervals of simulated time. Jobs of one model are taken together.

use super::feed::{Feed, Latency};
use super::models::Plan;
use crate::address::{Node, SessionId};
use crate::switch::Switch;
use crate::world::World;
use serde::Serialize;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;
use tally_engine::Counters;
use tally_engine::metrics::MetricSet as _;

/// What a worker was doing when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It had nothing to send and no fragment without result.
    Idle,
    /// All that was submitted had been sent, and results were missing.
    Tail,
    /// It had something to send, and as many fragments unfinished as its congestion window allows.
    Window,
    /// It had something to send and room in that window, but the oldest unfinished fragment is too
    /// far behind (W-2).
    Order,
    /// It was sending.
    Sending,
}

const STATES: [State; 5] = [
    State::Idle,
    State::Tail,
    State::Window,
    State::Order,
    State::Sending,
];

#[derive(Clone, Debug, Default)]
struct JobSamples {
    count: u64,
    states: [u64; STATES.len()],
    link_window: u64,
    aggregation_window: u64,
    in_flight: u64,
    /// By layer.
    waited: Vec<Duration>,
    /// By layer: sum, and how many.
    priorities: Vec<(u64, u64)>,
}

impl JobSamples {
    fn new(layers: usize) -> Self {
        Self {
            waited: vec![Duration::ZERO; layers],
            priorities: vec![(0, 0); layers],
            ..Self::default()
        }
    }

    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.link_window += other.link_window;
        self.aggregation_window += other.aggregation_window;
        self.in_flight += other.in_flight;
        for (sum, n) in self.states.iter_mut().zip(other.states) {
            *sum += n;
        }
        for (sum, time) in self.waited.iter_mut().zip(&other.waited) {
            *sum += *time;
        }
        for (sum, n) in self.priorities.iter_mut().zip(&other.priorities) {
            *sum = (sum.0 + n.0, sum.1 + n.1);
        }
    }
}

/// What is noted during a run.
pub(super) struct Samples {
    jobs: Vec<JobSamples>,
    slots_in_use: u64,
    pool_samples: u64,
}

impl Samples {
    pub(super) fn new(plans: &[Rc<Plan>]) -> Self {
        let job = |plan: &Rc<Plan>| JobSamples::new(plan.layers.len());
        Self {
            jobs: plans.iter().map(job).collect(),
            slots_in_use: 0,
            pool_samples: 0,
        }
    }

    pub(super) fn waited(&mut self, job: usize, layer: u32, time: Duration) {
        self.jobs[job].waited[layer as usize] += time;
    }

    pub(super) fn priority(&mut self, job: usize, layer: u32, priority: u8) {
        let (sum, count) = &mut self.jobs[job].priorities[layer as usize];
        *sum += u64::from(priority);
        *count += 1;
    }

    /// Looks at all pools.
    pub(super) fn look_at_pools(&mut self, switches: &[Switch]) {
        let shards = switches.iter().flat_map(Switch::shards);
        self.slots_in_use += shards.map(|s| s.slots_in_use() as u64).sum::<u64>();
        self.pool_samples += 1;
    }

    /// Looks at a worker of a job that runs, which has submitted `submitted` fragments.
    pub(super) fn look_at_worker(
        &mut self,
        world: &World<Feed>,
        job: usize,
        session: SessionId,
        submitted: u64,
    ) {
        let Some((worker, _)) = world.worker(session) else {
            return;
        };
        let stats = worker.stats();
        let finished = stats.from_switch + stats.from_ps;
        let in_flight = stats.fragments - finished;
        let (link, aggregation) = worker.windows();
        let uplink = &world.hosts[host_of(world, session)].uplink;
        let state = if stats.fragments == submitted {
            if in_flight == 0 {
                State::Idle
            } else {
                State::Tail
            }
        } else if in_flight >= u64::from(aggregation) {
            State::Window
        } else if uplink.backlog(world.now).is_zero() {
            State::Order
        } else {
            State::Sending
        };
        let samples = &mut self.jobs[job];
        samples.count += 1;
        samples.states[state as usize] += 1;
        samples.link_window += u64::from(link);
        samples.aggregation_window += u64::from(aggregation);
        samples.in_flight += in_flight;
    }
}

/// What the cores of all switches did.
pub(super) fn counters(world: &World<Feed>) -> Counters {
    let mut sum = Counters::default();
    for switch in &world.switches {
        sum.add(&switch.counters());
    }
    sum
}

/// The number of a session's host.
fn host_of(world: &World<Feed>, session: SessionId) -> usize {
    usize::from(world.session(session).address.host.0)
}

/// A job whose run is over.
pub(super) struct Ended {
    pub(super) plan: Rc<Plan>,
    pub(super) workers: Vec<SessionId>,
    pub(super) ps: SessionId,
    /// Fragments of each worker.
    pub(super) fragments: u64,
    /// From its start to its end.
    pub(super) seconds: f64,
}

/// Fragments of one way to the result.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Way {
    /// Share of all results.
    pub share: f64,
    /// Time from contribution to result.
    pub mean_us: f64,
    /// Median, as the upper end of a bucket twice as wide as the one before.
    pub p50_us: u64,
    /// 99th percentile, likewise.
    pub p99_us: u64,
}

impl Way {
    fn new(latency: &Latency, all: u64) -> Self {
        Self {
            share: latency.count as f64 / all.max(1) as f64,
            mean_us: latency.mean_us(),
            p50_us: latency.quantile_us(0.5),
            p99_us: latency.quantile_us(0.99),
        }
    }
}

/// The jobs of one model. Rates `per_mille` are of the fragments of these jobs, shares of the
/// workers' time from the jobs' start to their end.
#[derive(Clone, Debug, Serialize)]
pub struct OfModel {
    /// Its name.
    pub model: &'static str,
    /// Share of time in which a worker's computation waited for results.
    pub waiting: f64,
    /// The same by layer, in ms over the whole job, for the layers that were waited for most.
    pub waited_ms: Vec<(u32, f64)>,
    /// Share of time: nothing to send, nothing under way.
    pub idle: f64,
    /// Share of time: all sent, results missing.
    pub tail: f64,
    /// Share of time: held back by the congestion window.
    pub window: f64,
    /// Share of time: held back by the oldest unfinished fragment.
    pub order: f64,
    /// Share of time: sending.
    pub sending: f64,
    /// Mean link window.
    pub link_window: f64,
    /// Mean aggregation window.
    pub aggregation_window: f64,
    /// Mean number of unfinished fragments.
    pub in_flight: f64,
    /// Finished by the switch.
    pub by_switch: Way,
    /// Finished by the PS.
    pub by_ps: Way,
    /// Mean priority of the first and of the last layer.
    pub priorities: (f64, f64),
    /// PROBEs by timeout and early, and contributions retransmitted.
    pub again_per_mille: (f64, f64, f64),
    /// PARTIALs that came to the PS.
    pub partials_per_mille: f64,
    /// REMINDs.
    pub reminds_per_mille: f64,
    /// NACKs.
    pub nacks_per_mille: f64,
    /// PARTIALs that brought nothing, or overlapped.
    pub useless_per_mille: f64,
    /// Load of links: worker to switch, switch to worker, switch to PS, PS to switch.
    pub links: [f64; 4],
    /// Frames dropped at the ports to the workers and to the PS.
    pub dropped: (u64, u64),
    /// Frames marked there.
    pub marked: (u64, u64),
    /// Longest queues there.
    pub queue_max: (u32, u32),
}

/// Where everything went.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Breakdown {
    /// By model.
    pub models: Vec<OfModel>,
    /// Mean number of slots in use, sampled.
    pub slots_in_use: f64,
    /// The engine's counters.
    pub engine: Vec<(&'static str, u64)>,
    /// The engine's drops.
    pub drops: Vec<(&'static str, u64)>,
}

impl Breakdown {
    pub(super) fn new(samples: &Samples, jobs: &[Ended], world: &World<Feed>) -> Self {
        let mut names: Vec<_> = jobs.iter().map(|j| j.plan.model.name()).collect();
        names.sort_unstable();
        names.dedup();
        let counters = counters(world);
        let drops = counters.drops.iter();
        let drops = drops.map(|(reason, frames)| (reason.name(), frames));
        Self {
            models: names
                .iter()
                .map(|name| Sums::of(name, samples, jobs, world).of_model(name))
                .collect(),
            slots_in_use: samples.slots_in_use as f64 / samples.pool_samples.max(1) as f64,
            engine: counters.named(),
            drops: drops.filter(|d| d.1 > 0).collect(),
        }
    }
}

/// The ports to the workers, or those to the parameter servers, of the jobs of one model.
#[derive(Default)]
struct PortSums {
    /// Time that the links were there.
    seconds: f64,
    /// Bytes from hosts, and to them.
    bytes: (u64, u64),
    dropped: u64,
    marked: u64,
    queue_max: u32,
}

impl PortSums {
    fn add(&mut self, world: &World<Feed>, session: SessionId, seconds: f64) {
        let host = &world.hosts[host_of(world, session)];
        let (node, port) = host.at;
        self.seconds += seconds;
        self.bytes.0 += host.uplink.stats.wire_bytes;
        self.bytes.1 += world.downlink(host.id).stats.wire_bytes;
        let Node::Switch(switch) = node else { return };
        let switch = &world.switches[usize::from(switch.0)];
        let counters = switch.queue_counters(port.0.into());
        self.dropped += counters.dropped_total();
        self.marked += counters.ecn_marked;
        self.queue_max = counters.queue_frames_max.max(self.queue_max);
    }

    /// Load of the links from hosts, and to them.
    fn loads(&self) -> (f64, f64) {
        let load = |bytes: u64| bytes as f64 * 8.0 / (self.seconds * 100e9);
        (load(self.bytes.0), load(self.bytes.1))
    }
}

/// Sums over the jobs of one model.
struct Sums {
    jobs: usize,
    workers: usize,
    fragments: u64,
    samples: JobSamples,
    by_switch: Latency,
    by_ps: Latency,
    again: (u64, u64, u64),
    partials: u64,
    reminds: u64,
    nacks: u64,
    useless: u64,
    /// To workers, and to parameter servers.
    ports: (PortSums, PortSums),
}

impl Sums {
    fn of(name: &str, samples: &Samples, jobs: &[Ended], world: &World<Feed>) -> Self {
        let mut sums = Self {
            jobs: 0,
            workers: 0,
            fragments: 0,
            samples: JobSamples::default(),
            by_switch: Latency::default(),
            by_ps: Latency::default(),
            again: (0, 0, 0),
            partials: 0,
            reminds: 0,
            nacks: 0,
            useless: 0,
            ports: <(PortSums, PortSums)>::default(),
        };
        let of_model = jobs.iter().zip(&samples.jobs);
        for (job, samples) in of_model.filter(|(job, _)| job.plan.model.name() == name) {
            if sums.jobs == 0 {
                sums.samples = JobSamples::new(job.plan.layers.len());
            }
            sums.samples.add(samples);
            sums.add(job, world);
        }
        sums
    }

    fn add(&mut self, job: &Ended, world: &World<Feed>) {
        self.jobs += 1;
        self.workers += job.workers.len();
        self.fragments += job.fragments;
        for &session in &job.workers {
            let Some((worker, feed)) = world.worker(session) else {
                continue;
            };
            self.by_switch.merge(&feed.by_switch);
            self.by_ps.merge(&feed.by_ps);
            let r = worker.stats().retransmissions;
            self.again.0 += r.probes_timeout;
            self.again.1 += r.probes_early;
            self.again.2 += r.contributions;
            self.ports.0.add(world, session, job.seconds);
        }
        self.ports.1.add(world, job.ps, job.seconds);
        if let Some(ps) = world.ps(job.ps) {
            let stats = ps.stats();
            self.partials += stats.partials;
            self.reminds += stats.reminds;
            self.nacks += stats.nacks;
            self.useless += stats.duplicates + stats.overlaps;
        }
    }

    fn of_model(&self, name: &'static str) -> OfModel {
        let samples = &self.samples;
        let per_mille = |n: u64| n as f64 * 1000.0 / self.fragments.max(1) as f64;
        let per_worker = |n| per_mille(n) / (self.workers as f64 / self.jobs as f64);
        let all = self.by_switch.count + self.by_ps.count;
        let mean = |n: u64| n as f64 / samples.count.max(1) as f64;
        let state = |s: State| mean(samples.states[s as usize]);
        let (to_workers, to_ps) = &self.ports;
        let (worker_up, worker_down) = to_workers.loads();
        let (ps_out, ps_in) = to_ps.loads();
        let waiting: f64 = samples.waited.iter().map(Duration::as_secs_f64).sum();
        let waited = samples.waited.iter().enumerate();
        let ms = |time: &Duration| time.as_secs_f64() * 1e3 / self.workers as f64;
        let mut waited_ms: Vec<_> = waited
            .map(|(layer, time)| (layer as u32, ms(time)))
            .collect();
        waited_ms.sort_by(|a, b| b.1.total_cmp(&a.1));
        waited_ms.truncate(4);
        let priority = |(sum, count): (u64, u64)| sum as f64 / count.max(1) as f64;
        let priority = |of: Option<&(u64, u64)>| of.copied().map_or(0.0, priority);
        OfModel {
            model: name,
            waiting: waiting / to_workers.seconds,
            waited_ms,
            idle: state(State::Idle),
            tail: state(State::Tail),
            window: state(State::Window),
            order: state(State::Order),
            sending: state(State::Sending),
            link_window: mean(samples.link_window),
            aggregation_window: mean(samples.aggregation_window),
            in_flight: mean(samples.in_flight),
            by_switch: Way::new(&self.by_switch, all),
            by_ps: Way::new(&self.by_ps, all),
            priorities: (
                priority(samples.priorities.first()),
                priority(samples.priorities.last()),
            ),
            again_per_mille: (
                per_worker(self.again.0),
                per_worker(self.again.1),
                per_worker(self.again.2),
            ),
            partials_per_mille: per_mille(self.partials),
            reminds_per_mille: per_mille(self.reminds),
            nacks_per_mille: per_mille(self.nacks),
            useless_per_mille: per_mille(self.useless),
            links: [worker_up, worker_down, ps_in, ps_out],
            dropped: (to_workers.dropped, to_ps.dropped),
            marked: (to_workers.marked, to_ps.marked),
            queue_max: (to_workers.queue_max, to_ps.queue_max),
        }
    }
}

impl fmt::Display for Breakdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "slots in use, mean {:.0}", self.slots_in_use)?;
        for m in &self.models {
            let p = |share: f64| 100.0 * share;
            writeln!(f, "{}", m.model)?;
            write!(
                f,
                "  computation waited {:.0} %; most for layer",
                p(m.waiting)
            )?;
            for (layer, ms) in &m.waited_ms {
                write!(f, "  {layer}: {ms:.2} ms")?;
            }
            writeln!(
                f,
                "\n  senders: idle {:.0} %, all sent {:.0} %, window {:.0} %, order {:.0} %, sending {:.0} %",
                p(m.idle),
                p(m.tail),
                p(m.window),
                p(m.order),
                p(m.sending)
            )?;
            writeln!(
                f,
                "  windows: link {:.0}, aggregation {:.0}; unfinished {:.0}; priorities: first layer {:.0}, last {:.0}",
                m.link_window, m.aggregation_window, m.in_flight, m.priorities.0, m.priorities.1
            )?;
            for (name, way) in [("switch", m.by_switch), ("PS", m.by_ps)] {
                writeln!(
                    f,
                    "  by {name}: {:.1} %, mean {:.0} us, p50 <= {} us, p99 <= {} us",
                    p(way.share),
                    way.mean_us,
                    way.p50_us,
                    way.p99_us
                )?;
            }
            writeln!(
                f,
                "  per 1000 fragments: {:.0} partials, {:.1} of them useless, {:.1} REMINDs, {:.1} NACKs",
                m.partials_per_mille, m.useless_per_mille, m.reminds_per_mille, m.nacks_per_mille
            )?;
            let (timeout, early, nack) = m.again_per_mille;
            writeln!(
                f,
                "  per 1000 contributions: PROBEs by timeout {timeout:.2}, early {early:.2}, retransmitted {nack:.2}"
            )?;
            writeln!(
                f,
                "  links: worker up {:.0} %, down {:.0} %; PS in {:.0} %, out {:.0} %",
                p(m.links[0]),
                p(m.links[1]),
                p(m.links[2]),
                p(m.links[3])
            )?;
            writeln!(
                f,
                "  ports to workers and PS: dropped {:?}, marked {:?}, longest {:?}",
                m.dropped, m.marked, m.queue_max
            )?;
        }
        for (name, n) in self.engine.iter().chain(&self.drops) {
            if *n > 0 {
                write!(f, "{name} {n}  ")?;
            }
        }
        writeln!(f)
    }
}
