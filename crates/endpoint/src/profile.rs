//! Which fragments are worth a slot: their priority, from what a worker measures of its own job.
//!
//! A slot is best lent to those whom it brings nearest to their end: to jobs that wait for the
//! network more than they compute, to jobs that will soon be done (and then leave the pool to the
//! others), and, within a job, to the layers that its next forward pass begins with. ESA (arXiv
//! 2201.06398) multiplies the three; a product that spans ten decades goes into 8 bits as its
//! logarithm:
//!
//! ```text
//! priority = 171 + 6 · (log2(communication / computation) − log2(remaining s) − log2(1 + 15 · place))
//! ```
//!
//! limited to 1..=255. Six steps are an octave; 171 is a job with a second to go that communicates
//! as long as it computes. An hour to go is 100, a millisecond 231; half the ratio is 6 less; the
//! last layer is 24 behind the first.
//!
//! * *Communication* is the time of a step in which results are awaited, *computation* that in
//!   which the framework computes; they may overlap. Both are smoothed over steps, and their ratio
//!   is taken for no more than 32:1 either way: a job that does not compute at all is not
//!   infinitely important.
//! * *Remaining* is the mean time of a step by the steps that are left. Where their number is
//!   unknown, it is the time the job has had so far, as in Tiresias (NSDI'19): jobs' lengths have
//!   so heavy a tail that the longer one has run, the longer it will. A new job so comes first.
//! * *Place* is the layer's, from 0 for the first to 1 for the last.
//!
//! # Where it departs
//!
//! * ESA divides by the layer's number, so that a network of 100 layers would be behind one of 10
//!   on average, for being cut finer. Here only the relative place counts.
//! * Tiresias counts service as time by GPUs, in a few queues. Here it is time alone, because
//!   workers of a job wait for one another, and as finely as 8 bits allow.
//! * Nothing here is exact across workers: each measures its own job, and those that compute slower
//!   wait less for the network. A slot keeps the highest priority of its contributions (S-1).
//! * A job that is starved communicates longer, which raises its ratio: within bounds it helps
//!   itself.
//!
//! Before the first step has been measured the priority is 128 less the layer's part. All
//! arithmetic is in integers, so that a replay has the same bits anywhere.

use core::time::Duration;
use tally_wire::Time;

/// The priority of the first layer of a job of which nothing is known.
const UNKNOWN: i64 = 128;
/// Steps of priority in an octave, and the priority of a ratio of 1 and one second.
const PER_OCTAVE: i64 = 6;
const AT_ONE: i64 = 171;
/// Binary places of logarithms.
const PLACES: u32 = 8;
const OCTAVE: i64 = 1 << PLACES;
/// More than this many octaves of ratio are this many.
const RATIO_OCTAVES_MAX: i64 = 5;
/// The last layer is behind the first as 1 is behind 16.
const PLACE_SPAN: u64 = 15;
/// Weight of a step in the smoothed times: 1 in this number.
const SMOOTHING: u64 = 4;
/// Shorter times are taken for this.
const TIME_NS_MIN: u64 = 1000;

/// Measurements of one job at one worker.
#[derive(Clone, Debug)]
pub struct Profile {
    steps_total: Option<u64>,
    steps: u64,
    began: Time,
    step_began: Time,
    /// Smoothed time of a whole step.
    step_ns: u64,
    computation: Activity,
    communication: Activity,
    /// Fragments so far, and those of the steps that are over.
    fragments: u64,
    fragments_of_steps: u64,
}

/// Duration of an activity in a step.
#[derive(Clone, Copy, Debug, Default)]
struct Activity {
    since: Option<Time>,
    /// In this step, as far as it has ended.
    so_far: Duration,
    /// Smoothed over steps.
    mean_ns: u64,
}

impl Activity {
    fn begins(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    fn ends(&mut self, now: Time) {
        if let Some(since) = self.since.take() {
            self.so_far += now.since(since);
        }
    }

    /// An activity under way is divided between the steps.
    fn step_ended(&mut self, now: Time, is_first: bool) {
        if self.since.is_some() {
            self.ends(now);
            self.begins(now);
        }
        let time = core::mem::take(&mut self.so_far);
        self.mean_ns = smooth(self.mean_ns, time, is_first);
    }
}

fn smooth(mean_ns: u64, time: Duration, is_first: bool) -> u64 {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    if is_first {
        ns
    } else {
        mean_ns - mean_ns / SMOOTHING + ns / SMOOTHING
    }
}

impl Profile {
    /// Of a job whose first step begins `now`, and that will have `steps_total` steps if that is
    /// known.
    #[must_use]
    pub const fn new(now: Time, steps_total: Option<u64>) -> Self {
        let none = Activity {
            since: None,
            so_far: Duration::ZERO,
            mean_ns: 0,
        };
        Self {
            steps_total,
            steps: 0,
            began: now,
            step_began: now,
            step_ns: 0,
            computation: none,
            communication: none,
            fragments: 0,
            fragments_of_steps: 0,
        }
    }

    /// The framework begins to compute; nothing if it does already.
    pub fn compute_begins(&mut self, now: Time) {
        self.computation.begins(now);
    }

    /// It stops.
    pub fn compute_ends(&mut self, now: Time) {
        self.computation.ends(now);
    }

    /// Results are awaited from now on; nothing if they are already.
    pub fn communication_begins(&mut self, now: Time) {
        self.communication.begins(now);
    }

    /// All have come.
    pub fn communication_ends(&mut self, now: Time) {
        self.communication.ends(now);
    }

    /// A step (an iteration of training) is over, and the next one begins.
    pub fn step_ended(&mut self, now: Time) {
        let is_first = self.steps == 0;
        self.computation.step_ended(now, is_first);
        self.communication.step_ended(now, is_first);
        self.step_ns = smooth(self.step_ns, now.since(self.step_began), is_first);
        self.step_began = now;
        self.fragments_of_steps = self.fragments;
        self.steps += 1;
    }

    /// That number of fragments more is submitted, in the current step.
    pub const fn submits(&mut self, fragments: u64) {
        self.fragments += fragments;
    }

    /// Fragments of the whole job; `None` where the number of steps is unknown. As long as no step
    /// is over, it is a lower bound: the first step may have more.
    #[must_use]
    pub fn fragments_total(&self) -> Option<u64> {
        let total = self.steps_total?;
        let all = match self.steps {
            0 => u128::from(self.fragments) * u128::from(total),
            steps => u128::from(self.fragments_of_steps) * u128::from(total) / u128::from(steps),
        };
        Some(u64::try_from(all).unwrap_or(u64::MAX))
    }

    /// The priority of fragments of layer `layer` of `layers`, counted from the one that the
    /// forward pass begins with; 1 to 255. Changes only with [`step_ended`](Self::step_ended).
    #[must_use]
    pub fn priority(&self, layer: u32, layers: u32) -> u8 {
        if self.steps == 0 {
            return quantised(UNKNOWN, -octaves_of_place(layer, layers));
        }
        let remaining_ns = match self.steps_total {
            // The current step is one of them.
            Some(total) => total
                .saturating_sub(self.steps)
                .max(1)
                .saturating_mul(self.step_ns),
            None => self.step_began.since(self.began).as_nanos() as u64,
        };
        let octaves = octaves_of_ratio(self.communication.mean_ns, self.computation.mean_ns)
            - octaves_of_seconds(remaining_ns)
            - octaves_of_place(layer, layers);
        quantised(AT_ONE, octaves)
    }
}

fn octaves_of_ratio(communication_ns: u64, computation_ns: u64) -> i64 {
    let limit = RATIO_OCTAVES_MAX * OCTAVE;
    let octaves = log2(communication_ns.max(TIME_NS_MIN)) - log2(computation_ns.max(TIME_NS_MIN));
    octaves.clamp(-limit, limit)
}

fn octaves_of_seconds(ns: u64) -> i64 {
    log2(ns.max(TIME_NS_MIN)) - log2(1_000_000_000)
}

fn octaves_of_place(layer: u32, layers: u32) -> i64 {
    let last = u64::from(layers.saturating_sub(1).max(1));
    let layer = u64::from(layer).min(last);
    log2(last + PLACE_SPAN * layer) - log2(last)
}

fn quantised(base: i64, octaves: i64) -> u8 {
    let steps = (PER_OCTAVE * octaves + OCTAVE / 2).div_euclid(OCTAVE);
    (base + steps).clamp(1, 255) as u8
}

/// The logarithm of `n`, at least 1, to base 2, with [`PLACES`] binary places, rounded down.
fn log2(n: u64) -> i64 {
    let whole = n.max(1).ilog2();
    // From 1 to below 2, with 31 binary places. Squaring doubles the logarithm, whose next place is
    // whether the square has reached 2.
    let mut x = (n.max(1) << (63 - whole)) >> 32;
    let mut log = i64::from(whole);
    for _ in 0..PLACES {
        x = (x * x) >> 31;
        let place = x >> 32;
        x >>= place;
        log = log << 1 | place as i64;
    }
    log
}

#[cfg(test)]
mod tests;
