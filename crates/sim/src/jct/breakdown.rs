//! Where time and fragments went in a run: what computation waited for, what held senders back, how
//! long results took by way of switch and parameter server (PS), and what the repairs were.
//!
//! Two sources: counters that engine and sessions keep anyway, and samples of every worker's state
//! taken at fixed intervals of simulated time. Jobs of one model are taken together.

use super::feed::{Feed, Latency};
use super::models::Plan;
use super::run::{Job, Run, host_of};
use crate::world::World;
use serde::Serialize;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;
use tally_wire::Time;

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

/// What is noted during a run.
pub(super) struct Samples {
    jobs: Vec<JobSamples>,
    slots_in_use: u64,
    pool_samples: u64,
}

impl Samples {
    pub(super) fn new(plans: &[Rc<Plan>]) -> Self {
        let job = |plan: &Rc<Plan>| JobSamples {
            waited: vec![Duration::ZERO; plan.layers.len()],
            priorities: vec![(0, 0); plan.layers.len()],
            ..JobSamples::default()
        };
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
}

impl Run {
    /// Looks at every worker of the jobs that run, and at the pool.
    pub(super) fn sample(&mut self, world: &World<Feed>) {
        let shards = world.switch.shards();
        self.samples.slots_in_use += shards.map(|s| s.slots_in_use() as u64).sum::<u64>();
        self.samples.pool_samples += 1;
        for (job, samples) in self.jobs.iter().zip(&mut self.samples.jobs) {
            if job.ends.is_some() {
                continue;
            }
            for member in &self.members[job.members.clone()] {
                let Some((worker, _)) = world.worker(member.session) else {
                    continue;
                };
                if member.profile.is_none() {
                    continue;
                }
                let stats = worker.stats();
                let finished = stats.from_switch + stats.from_ps;
                let in_flight = stats.fragments - finished;
                let (link, aggregation) = worker.windows();
                let state = if stats.fragments == member.submitted {
                    if in_flight == 0 {
                        State::Idle
                    } else {
                        State::Tail
                    }
                } else if in_flight >= u64::from(aggregation) {
                    State::Window
                } else if world.hosts[usize::from(world.session(member.session).address.host.0)]
                    .uplink
                    .backlog(world.now)
                    .is_zero()
                {
                    State::Order
                } else {
                    State::Sending
                };
                samples.count += 1;
                samples.states[state as usize] += 1;
                samples.link_window += u64::from(link);
                samples.aggregation_window += u64::from(aggregation);
                samples.in_flight += in_flight;
            }
        }
    }
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

/// The jobs of one model. Rates `per_mille` are of the fragments of these jobs, shares of the workers'
/// time from the jobs' start to their end.
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
#[derive(Clone, Debug, Serialize)]
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
    pub(super) fn new(run: &Run, world: &World<Feed>) -> Self {
        let mut names: Vec<_> = run.jobs.iter().map(|j| j.plan.model.name()).collect();
        names.sort_unstable();
        names.dedup();
        let counters = world.switch.counters();
        let drops = tally_engine::DropReason::ALL.iter();
        let drops = drops.map(|&reason| (reason.name(), counters.dropped(reason)));
        Self {
            models: names
                .iter()
                .map(|name| of_model(name, run, world))
                .collect(),
            slots_in_use: run.samples.slots_in_use as f64 / run.samples.pool_samples.max(1) as f64,
            engine: counters.named().to_vec(),
            drops: drops.filter(|d| d.1 > 0).collect(),
        }
    }
}

#[allow(clippy::too_many_lines)]
fn of_model(name: &'static str, run: &Run, world: &World<Feed>) -> OfModel {
    let jobs: Vec<(usize, &Job)> = run
        .jobs
        .iter()
        .enumerate()
        .filter(|(_, job)| job.plan.model.name() == name)
        .collect();
    let mut samples = JobSamples::default();
    let mut waited = vec![Duration::ZERO; jobs[0].1.plan.layers.len()];
    let (mut by_switch, mut by_ps) = (Latency::default(), Latency::default());
    let (mut again, mut partials, mut reminds, mut nacks, mut useless) = ((0, 0, 0), 0, 0, 0, 0);
    let (mut worker_s, mut ps_s, mut bytes) = (0.0, 0.0, [0; 4]);
    let (mut dropped, mut marked, mut queue_max) = ((0, 0), (0, 0), (0, 0));
    let mut priorities = vec![(0, 0); waited.len()];
    let (mut fragments, mut workers) = (0, 0);
    for &(number, job) in &jobs {
        let s = &run.samples.jobs[number];
        samples.count += s.count;
        samples.link_window += s.link_window;
        samples.aggregation_window += s.aggregation_window;
        samples.in_flight += s.in_flight;
        for (sum, n) in samples.states.iter_mut().zip(s.states) {
            *sum += n;
        }
        for (sum, time) in waited.iter_mut().zip(&s.waited) {
            *sum += *time;
        }
        for (sum, n) in priorities.iter_mut().zip(&s.priorities) {
            *sum = (sum.0 + n.0, sum.1 + n.1);
        }
        let seconds = job.seconds();
        ps_s += seconds;
        workers += job.members.len();
        for member in &run.members[job.members.clone()] {
            let Some((worker, feed)) = world.worker(member.session) else {
                continue;
            };
            worker_s += seconds;
            by_switch.merge(&feed.by_switch);
            by_ps.merge(&feed.by_ps);
            let r = worker.stats().retransmissions;
            again = (
                again.0 + r.probes_timeout,
                again.1 + r.probes_early,
                again.2 + r.contributions,
            );
            let host = usize::from(host_of(world, member.session).0);
            let port = &world.switch.ports[host];
            bytes[0] += world.hosts[host].uplink.stats.wire_bytes;
            bytes[1] += port.link.stats.wire_bytes;
            let counters = world.switch.queue_counters(host);
            dropped.0 += counters.dropped_total();
            marked.0 += counters.marked;
            queue_max.0 = counters.frames_max.max(queue_max.0);
        }
        fragments += job.plan.fragments() * u64::from(run.iterations());
        let host = usize::from(host_of(world, job.ps).0);
        let port = &world.switch.ports[host];
        bytes[2] += port.link.stats.wire_bytes;
        bytes[3] += world.hosts[host].uplink.stats.wire_bytes;
        let counters = world.switch.queue_counters(host);
        dropped.1 += counters.dropped_total();
        marked.1 += counters.marked;
        queue_max.1 = counters.frames_max.max(queue_max.1);
        if let Some(ps) = world.ps(job.ps) {
            let stats = ps.stats();
            partials += stats.partials;
            reminds += stats.reminds;
            nacks += stats.nacks;
            useless += stats.duplicates + stats.overlaps;
        }
    }
    let per_mille = |n: u64| n as f64 * 1000.0 / fragments.max(1) as f64;
    let all = by_switch.count + by_ps.count;
    let mean = |n: u64| n as f64 / samples.count.max(1) as f64;
    let state = |s: State| mean(samples.states[s as usize]);
    let load = |bytes: u64, seconds: f64| bytes as f64 * 8.0 / (seconds * 100e9);
    let waiting: f64 = waited.iter().map(Duration::as_secs_f64).sum();
    let mut waited_ms: Vec<_> = waited
        .iter()
        .enumerate()
        .map(|(layer, time)| (layer as u32, time.as_secs_f64() * 1e3 / workers as f64))
        .collect();
    waited_ms.sort_by(|a, b| b.1.total_cmp(&a.1));
    waited_ms.truncate(4);
    let priority = |at: usize| priorities[at].0 as f64 / priorities[at].1.max(1) as f64;
    OfModel {
        model: name,
        waiting: waiting / worker_s,
        waited_ms,
        idle: state(State::Idle),
        tail: state(State::Tail),
        window: state(State::Window),
        order: state(State::Order),
        sending: state(State::Sending),
        link_window: mean(samples.link_window),
        aggregation_window: mean(samples.aggregation_window),
        in_flight: mean(samples.in_flight),
        by_switch: Way::new(&by_switch, all),
        by_ps: Way::new(&by_ps, all),
        priorities: (priority(0), priority(priorities.len() - 1)),
        again_per_mille: {
            let per_worker = |n| per_mille(n) / (workers as f64 / jobs.len() as f64);
            (
                per_worker(again.0),
                per_worker(again.1),
                per_worker(again.2),
            )
        },
        partials_per_mille: per_mille(partials),
        reminds_per_mille: per_mille(reminds),
        nacks_per_mille: per_mille(nacks),
        useless_per_mille: per_mille(useless),
        links: [
            load(bytes[0], worker_s),
            load(bytes[1], worker_s),
            load(bytes[2], ps_s),
            load(bytes[3], ps_s),
        ],
        dropped,
        marked,
        queue_max,
    }
}

impl Job {
    /// From start to end.
    fn seconds(&self) -> f64 {
        let took = |end: Time| end.since(self.starts()).as_secs_f64();
        self.ends.map_or(0.0, took)
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
