//! Lower bound of the mean completion time, for any policy and any order.
//!
//! Two bounds, of which the larger counts. Each leaves out latency, memory, parameter servers and
//! the variation of computation times.
//!
//! * *Alone*: each job has its links to itself. An iteration's most urgent layer is sent first,
//!   and may overtake others at any byte.
//! * *Links*: jobs that share NICs send one after the other from their first gradient on, the one
//!   with the least bytes left first (SRPT, which no order beats in the mean). They compute nothing
//!   more.

use super::models::Plan;
use super::scenario::{Draws, FRAME_BYTES, GBIT_PER_S, Scenario};

/// Milliseconds that the frames of `fragments` take.
fn sending_ms(fragments: u64) -> f64 {
    (fragments * FRAME_BYTES) as f64 * 8e-6 / GBIT_PER_S
}

impl Scenario {
    /// Bound of the mean completion time, of jobs below one switch.
    #[must_use]
    pub fn bound_ms(&self, seed: u64) -> Option<f64> {
        if self.fabric.is_some() {
            return None;
        }
        let draws = Draws::new(self, seed);
        let plans = || draws.plans.iter();
        let alone: f64 = plans().map(|plan| alone_ms(plan, self.iterations)).sum();
        let links = if self.shared_nic.is_some() {
            let starts = draws.offsets.iter().map(|at| at.as_secs_f64() * 1e3);
            let jobs = starts.zip(plans()).map(|(start, plan)| {
                let forward: f64 = plan.layers.iter().map(|l| l.forward.as_secs_f64()).sum();
                let last = plan.layers.last().map_or(0.0, |l| l.backward.as_secs_f64());
                Sending {
                    start,
                    release: start + (forward + last) * 1e3,
                    left: sending_ms(plan.fragments() * u64::from(self.iterations)),
                }
            });
            srpt_ms(jobs.collect())
        } else {
            0.0
        };
        Some(alone.max(links) / self.jobs as f64)
    }
}

struct Sending {
    start: f64,
    release: f64,
    left: f64,
}

/// Sum of completion times on one link, the shortest first.
fn srpt_ms(mut jobs: Vec<Sending>) -> f64 {
    let (mut now, mut sum) = (0.0f64, 0.0);
    while !jobs.is_empty() {
        let released = |job: &&Sending| job.release <= now;
        let next = jobs.iter().filter(|job| !released(job));
        let next = next.map(|job| job.release).fold(f64::INFINITY, f64::min);
        let ready = (0..jobs.len()).filter(|&at| released(&&jobs[at]));
        let Some(at) = ready.min_by(|&a, &b| jobs[a].left.total_cmp(&jobs[b].left)) else {
            now = next;
            continue;
        };
        if now + jobs[at].left <= next {
            now += jobs[at].left;
            sum += now - jobs.swap_remove(at).start;
        } else {
            jobs[at].left -= next - now;
            now = next;
        }
    }
    sum
}

/// Completion time of a job whose links are its own.
fn alone_ms(plan: &Plan, iterations: u32) -> f64 {
    let n = plan.layers.len();
    // Moment from which the link is free, in the order in which layers of one iteration are served:
    // preemption by urgency is the same as serving the pending layers again after each submission.
    let mut pending: Vec<(usize, f64)> = Vec::new();
    let (mut now, mut sent_to) = (0.0f64, 0.0f64);
    // Lets the link send until `until`, or, with a layer, until that layer has its result.
    let mut serve = |pending: &mut Vec<(usize, f64)>, until: f64, layer: Option<usize>| -> f64 {
        while let Some(at) = (0..pending.len()).min_by_key(|&at| pending[at].0) {
            if layer.is_some_and(|layer| pending.iter().all(|it| it.0 != layer)) {
                break;
            }
            let left = pending[at].1;
            if layer.is_none() && sent_to + left > until {
                pending[at].1 -= until - sent_to;
                break;
            }
            sent_to += left;
            pending.remove(at);
        }
        if layer.is_none() {
            sent_to = sent_to.max(until);
        }
        sent_to
    };
    for iteration in 0..iterations {
        for layer in 0..n {
            if iteration > 0 {
                serve(&mut pending, now, None);
                if pending.iter().any(|it| it.0 == layer) {
                    now = now.max(serve(&mut pending, now, Some(layer)));
                }
            }
            now += plan.layers[layer].forward.as_secs_f64() * 1e3;
        }
        for layer in (0..n).rev() {
            now += plan.layers[layer].backward.as_secs_f64() * 1e3;
            serve(&mut pending, now, None);
            pending.push((layer, sending_ms(plan.layers[layer].fragments)));
        }
    }
    while !pending.is_empty() {
        let last = pending.iter().map(|it| it.0).max();
        now = now.max(serve(&mut pending, now, last));
    }
    now
}

#[cfg(test)]
mod tests {
    use super::super::models::Model;
    use super::super::scenario::{FRAGMENT_BYTES, NicService};
    use super::super::sweep::middle;
    use super::*;

    /// The figures are those of an independent model, in another language.
    #[test]
    fn a_job_alone_takes_what_the_fluid_model_says() {
        let of = |model| alone_ms(&Plan::new(model, 16, FRAGMENT_BYTES), 5);
        let mean = f64::midpoint(of(Model::Vgg19), of(Model::Resnet50));
        assert!((mean - 10.22).abs() < 0.05, "{mean}");
    }

    #[test]
    fn the_shortest_first_has_the_least_sum() {
        let job = |start, release, left| Sending {
            start,
            release,
            left,
        };
        // The second preempts the first, which ends at 12.
        let jobs = vec![job(0.0, 0.0, 10.0), job(1.0, 2.0, 2.0)];
        assert!((srpt_ms(jobs) - (12.0 + 3.0)).abs() < 1e-9);
    }

    #[test]
    fn jobs_that_share_a_link_take_longer() {
        let mut scenario = middle(64, None);
        let alone = scenario.bound_ms(1).unwrap();
        scenario.shared_nic = Some(NicService::Ordered);
        let shared = scenario.bound_ms(1).unwrap();
        assert!(
            (6.5..7.5).contains(&shared) && alone < 2.7,
            "{shared} {alone}"
        );
    }
}
