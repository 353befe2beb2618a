//! Ring all-reduce on the hosts, over the same links as switches that sum: a fluid model.
//!
//! Jobs train as in [`run`](super::run): the same layers, computation times and starts. A job's
//! ring reduces one layer after another, each once all workers have submitted it. While rings are
//! at work, each sends at one rate: what its cables take, or an equal share of the uplinks. Frames
//! take as much of the wire as a switch's. The time of a frame on its way, through 2(n - 1) steps,
//! is left out, and so are losses and flows that meet on one of several uplinks: all this favours
//! the ring.

use super::models::Plan;
use super::scenario::{Draws, FRAME_BYTES, GBIT_PER_S, LeafSpine, Scenario};
use super::training::{Next, Then, Training};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// A layer that is, or will be, reduced.
struct Layer {
    number: u32,
    /// Workers that have not submitted it.
    missing: usize,
    /// What each cable has still to carry of it.
    bytes: f64,
}

struct Job {
    plan: Rc<Plan>,
    workers: Vec<Training>,
    /// By worker: layers submitted.
    submitted: Vec<usize>,
    /// Layers in the order of their submission, which all workers have in common.
    queue: VecDeque<Layer>,
    /// Layers reduced.
    reduced: usize,
    /// What a cable carries, over the layer's own bytes.
    share: f64,
    starts: u64,
    ends: Option<u64>,
}

impl Job {
    /// Whether its ring is at work.
    fn is_active(&self) -> bool {
        self.queue.front().is_some_and(|it| it.missing == 0)
    }

    fn submit(&mut self, rank: usize, layer: u32) {
        let at = self.submitted[rank] - self.reduced;
        self.submitted[rank] += 1;
        if at == self.queue.len() {
            let fragments = self.plan.layers[layer as usize].fragments;
            self.queue.push_back(Layer {
                number: layer,
                missing: self.workers.len(),
                bytes: (fragments * FRAME_BYTES) as f64 * self.share,
            });
        }
        debug_assert_eq!(self.queue[at].number, layer);
        self.queue[at].missing -= 1;
    }
}

/// All rings, and when computations end, in nanoseconds.
struct Rings {
    jobs: Vec<Job>,
    computed: BinaryHeap<Reverse<(u64, usize, usize)>>,
    /// Bytes that a cable takes in a nanosecond.
    cable: f64,
    /// The same, if one ring had all uplinks.
    uplinks: f64,
}

impl Rings {
    fn act(&mut self, now: u64, job: usize, rank: usize, next: Next) {
        if let Some(layer) = next.submit {
            self.jobs[job].submit(rank, layer);
        }
        self.resume(now, job, rank, next.then);
    }

    fn resume(&mut self, now: u64, job: usize, rank: usize, then: Then) {
        if let Then::Compute(time) = then {
            let at = now + time.as_nanos() as u64;
            self.computed.push(Reverse((at, job, rank)));
        }
    }

    /// Bytes that a ring at work sends in a nanosecond.
    fn rate(&self) -> f64 {
        let active = self.jobs.iter().filter(|job| job.is_active()).count();
        self.cable.min(self.uplinks / active.max(1) as f64)
    }

    /// The ring that is done first, and when.
    fn first_done(&self, now: u64) -> Option<(u64, usize)> {
        let rate = self.rate();
        let jobs = self.jobs.iter().enumerate();
        let done = jobs.filter(|(_, job)| job.is_active()).map(|(n, job)| {
            let left = job.queue.front().map_or(0.0, |layer| layer.bytes);
            (now + (left / rate).ceil() as u64, n)
        });
        done.min()
    }

    /// Has rings send for so long.
    fn send(&mut self, nanos: u64) {
        let sent = self.rate() * nanos as f64;
        for job in self.jobs.iter_mut().filter(|job| job.is_active()) {
            if let Some(layer) = job.queue.front_mut() {
                layer.bytes = (layer.bytes - sent).max(0.0);
            }
        }
    }

    /// A ring has reduced a layer.
    fn deliver(&mut self, now: u64, job: usize) {
        let Some(layer) = self.jobs[job].queue.pop_front() else {
            return;
        };
        self.jobs[job].reduced += 1;
        for rank in 0..self.jobs[job].workers.len() {
            if let Some(then) = self.jobs[job].workers[rank].delivered(layer.number) {
                self.resume(now, job, rank, then);
            }
        }
        if self.jobs[job].workers.iter().all(Training::is_done) {
            self.jobs[job].ends = Some(now);
        }
    }

    /// Lets time pass until nothing is left to do.
    fn run(&mut self) {
        let mut now = 0;
        loop {
            let computed = self.computed.peek().map(|Reverse((at, ..))| *at);
            let done = self.first_done(now);
            let (at, reduced) = match (computed, done) {
                (Some(computed), Some((done, job))) if done <= computed => (done, Some(job)),
                (Some(computed), _) => (computed, None),
                (None, Some((done, job))) => (done, Some(job)),
                (None, None) => return,
            };
            self.send(at - now);
            now = at;
            if let Some(job) = reduced {
                self.deliver(now, job);
            } else if let Some(Reverse((_, job, rank))) = self.computed.pop() {
                let next = self.jobs[job].workers[rank].computed();
                self.act(now, job, rank, next);
            }
        }
    }
}

/// From each job's start to its end; none if it has none.
pub(super) fn run(scenario: &Scenario, fabric: LeafSpine, draws: Draws) -> Vec<Option<Duration>> {
    let bytes_per_ns = |gbit_per_s: f64| gbit_per_s / 8.0;
    let of = fabric.crossings(scenario.workers(0));
    let mut rings = Rings {
        jobs: Vec::new(),
        computed: BinaryHeap::new(),
        cable: bytes_per_ns(GBIT_PER_S),
        uplinks: bytes_per_ns(fabric.uplink_gbit_per_s.into()) * of.worker / of.uplink.0,
    };
    let jobs = draws
        .plans
        .into_iter()
        .zip(draws.workers)
        .zip(draws.offsets);
    for ((plan, workers), offset) in jobs {
        let training = |(_, rng)| Training::new(Rc::clone(&plan), scenario.iterations, rng);
        let workers: Vec<_> = workers.into_iter().map(training).collect();
        rings.jobs.push(Job {
            submitted: vec![0; workers.len()],
            workers,
            queue: VecDeque::new(),
            reduced: 0,
            share: of.worker,
            starts: offset.as_nanos() as u64,
            ends: None,
            plan,
        });
    }
    for job in 0..rings.jobs.len() {
        let starts = rings.jobs[job].starts;
        for rank in 0..rings.jobs[job].workers.len() {
            let next = rings.jobs[job].workers[rank].begin();
            rings.act(starts, job, rank, next);
        }
    }
    rings.run();
    let took = |job: &Job| Some(Duration::from_nanos(job.ends? - job.starts));
    rings.jobs.iter().map(took).collect()
}

#[cfg(test)]
mod tests {
    use super::super::models::Model;
    use super::super::scenario::Scheme;
    use super::*;

    fn scenario(jobs: usize, scheme: Scheme) -> Scenario {
        Scenario {
            mix: vec![Model::Vgg19],
            jobs,
            workers: vec![16],
            slots: 512,
            ways: None,
            window: 256,
            scale: 128,
            iterations: 5,
            unknown_lengths: false,
            shared_nic: None,
            colocated_ps: false,
            stalls: None,
            fabric: Some(LeafSpine {
                leaves: 4,
                uplink_gbit_per_s: 400,
                scheme,
            }),
        }
    }

    fn times(jobs: usize, scheme: Scheme) -> Vec<f64> {
        let scenario = scenario(jobs, scheme);
        let draws = Draws::new(&scenario, 1);
        let times = run(&scenario, scenario.fabric.unwrap(), draws);
        times.iter().map(|t| t.unwrap().as_secs_f64()).collect()
    }

    /// What the gradients of all iterations take on a cable.
    fn sending(scenario: &Scenario) -> f64 {
        let plan = Plan::new(scenario.mix[0], scenario.scale, 1024);
        let bytes = plan.fragments() * u64::from(scenario.iterations) * FRAME_BYTES;
        bytes as f64 * 8e-9 / GBIT_PER_S
    }

    #[test]
    fn a_ring_alone_is_bound_by_its_cables_and_computation() {
        let time = times(1, Scheme::Ring)[0];
        let bound = 1.875 * sending(&scenario(1, Scheme::Ring));
        assert!((bound..1.5 * bound).contains(&time), "{time} {bound}");
    }

    #[test]
    fn rings_that_share_uplinks_are_slower_when_each_step_crosses_them() {
        let near = times(4, Scheme::Ring);
        let scattered = times(4, Scheme::RingScattered);
        let alone = times(1, Scheme::RingScattered);
        assert_eq!((near.len(), scattered.len()), (4, 4));
        for (near, scattered) in near.iter().zip(&scattered) {
            assert!(scattered > &(2.0 * near), "{near} {scattered}");
        }
        // Alone, sixteen flows have the rate of sixteen cables.
        assert!((alone[0] / near[0] - 1.0).abs() < 0.1, "{alone:?} {near:?}");
    }
}
