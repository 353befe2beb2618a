//! When a round begins, and with what priorities.
//!
//! A round stands for a step of training: a pause, in which a framework would compute, and the
//! all-reduce of all tensors. Its fragments are submitted in runs along the vector, each with the
//! priority of a layer at its place; the session's answers to others go on during pauses.
//!
//! Priorities are those of a [`Profile`], from what this worker measures, unless the configuration
//! has one for all. The catch: tensors come in the order of their names, which is that of the layers
//! only where the names say so (frameworks list parameters in the order of the forward pass, but
//! `layer10` sorts before `layer2`).

use core::time::Duration;
use tally_endpoint::{Profile, Time, Worker};

/// Runs of a round: more would not show in a priority of 8 bits.
const RUNS: u64 = 16;

/// The rounds of an all-reduce.
pub(crate) struct Rounds {
    plan: Plan,
    left: u32,
    stage: Stage,
    began: Option<Time>,
    submitted: Time,
    times: Vec<Duration>,
    profile: Option<Profile>,
    /// The lowest and the highest priority so far.
    priorities: Option<(u8, u8)>,
}

/// What all rounds are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) fragments: u64,
    /// The pause before a round.
    pub(crate) compute: Duration,
    /// The priority of all fragments, in place of that of a profile.
    pub(crate) priority: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    Computing { until: Time },
    Communicating,
}

impl Rounds {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            left: plan.rounds,
            stage: Stage::Idle,
            began: None,
            submitted: Time(0),
            times: Vec::with_capacity(plan.rounds as usize),
            profile: None,
            priorities: None,
        }
    }

    /// Fragments of all rounds.
    pub(crate) fn fragments(&self) -> u64 {
        self.plan.fragments * u64::from(self.plan.rounds)
    }

    /// When the first round began, its pause included.
    pub(crate) fn began(&self) -> Option<Time> {
        self.began
    }

    /// Of each round that is over, the time from its submission to its last result.
    pub(crate) fn times(&self) -> &[Duration] {
        &self.times
    }

    /// The lowest and the highest priority that fragments had.
    pub(crate) fn priorities(&self) -> Option<(u8, u8)> {
        self.priorities
    }

    /// When [`poll`](Self::poll) has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self.stage {
            Stage::Computing { until } => Some(until),
            Stage::Idle | Stage::Communicating => None,
        }
    }

    /// The job runs: the first round begins.
    pub(crate) fn running(&mut self, now: Time) {
        self.began = Some(now);
        self.profile = Some(Profile::new(now, Some(u64::from(self.plan.rounds))));
        self.begin(now);
    }

    /// All results of a round are there.
    pub(crate) fn delivered(&mut self, now: Time) {
        self.times.push(now.since(self.submitted));
        if let Some(profile) = &mut self.profile {
            profile.communication_ends(now);
            profile.step_ended(now);
        }
        self.stage = Stage::Idle;
        self.begin(now);
    }

    fn begin(&mut self, now: Time) {
        if self.left > 0 {
            self.left -= 1;
            let until = now.after(self.plan.compute);
            self.stage = Stage::Computing { until };
            if let Some(profile) = &mut self.profile {
                profile.compute_begins(now);
            }
        }
    }

    /// Submits the round's fragments if its pause is over, after `prepare`. Says whether it was.
    pub(crate) fn poll(&mut self, now: Time, worker: &mut Worker, prepare: impl FnOnce()) -> bool {
        if self.deadline().is_none_or(|until| until > now) {
            return false;
        }
        self.stage = Stage::Communicating;
        self.submitted = now;
        if let Some(profile) = &mut self.profile {
            profile.compute_ends(now);
            profile.communication_begins(now);
        }
        prepare();
        for (fragments, priority) in self.runs() {
            let (least, most) = self.priorities.unwrap_or((priority, priority));
            self.priorities = Some((least.min(priority), most.max(priority)));
            worker.submit(now, fragments, priority);
        }
        if self.left == 0 || self.plan.fragments == 0 {
            worker.finish(now);
        }
        true
    }

    /// Fragments and priority of each run of a round.
    fn runs(&self) -> Vec<(u64, u8)> {
        let all = self.plan.fragments;
        if all == 0 {
            return Vec::new();
        }
        match (self.plan.priority, &self.profile) {
            (None, Some(profile)) => {
                let runs = RUNS.min(all);
                let priority = |run| profile.priority(run as u32, runs as u32);
                let end = |run| all * run / runs;
                (0..runs)
                    .map(|run| (end(run + 1) - end(run), priority(run)))
                    .collect()
            }
            (priority, _) => vec![(all, priority.unwrap_or_default())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_wire::{JobId, Key};

    const MS: Duration = Duration::from_millis(1);

    fn rounds(fragments: u64, compute: Duration, priority: Option<u8>) -> Rounds {
        Rounds::new(Plan {
            rounds: 3,
            fragments,
            compute,
            priority,
        })
    }

    fn worker() -> Worker {
        let key = Key::new(b"sixteen bytes or more").unwrap();
        let config = tally_endpoint::WorkerConfig::new(JobId(1), key, 0, 1, [0; 32], 1);
        Worker::new(Time(0), config)
    }

    #[test]
    fn runs_cover_the_vector_with_falling_priorities() {
        for fragments in [1, 2, 15, 16, 17, 1000] {
            let mut r = rounds(fragments, Duration::ZERO, None);
            r.running(Time(0));
            let runs = r.runs();
            assert_eq!(runs.len() as u64, fragments.min(RUNS));
            assert_eq!(runs.iter().map(|r| r.0).sum::<u64>(), fragments);
            let priorities: Vec<_> = runs.iter().map(|r| r.1).collect();
            assert_eq!(priorities[0], 128);
            assert!(priorities.iter().rev().is_sorted(), "{priorities:?}");
        }
    }

    #[test]
    fn a_configured_priority_is_that_of_all() {
        let mut r = rounds(1000, Duration::ZERO, Some(7));
        r.running(Time(0));
        assert_eq!(r.runs(), [(1000, 7)]);
        r.delivered(Time(1_000_000_000));
        assert_eq!(r.runs(), [(1000, 7)]);
    }

    #[test]
    fn rounds_wait_for_their_pause_and_priorities_for_measurements() {
        let mut r = rounds(100, 30 * MS, None);
        let mut w = worker();
        let mut prepared = 0;
        let mut now = Time(5_000_000);
        assert!(!r.poll(now, &mut w, || unreachable!("it does not run")));
        r.running(now);
        for _ in 0..3 {
            let until = now.after(30 * MS);
            assert_eq!(r.deadline(), Some(until));
            assert!(!r.poll(now, &mut w, || unreachable!("too early")));
            assert!(r.poll(until, &mut w, || prepared += 1));
            assert!(!r.poll(until, &mut w, || unreachable!("again")));
            now = until.after(30 * MS);
            r.delivered(now);
        }
        assert_eq!((r.deadline(), prepared), (None, 3), "no fourth");
        assert_eq!(r.began(), Some(Time(5_000_000)));
        // One round of 60 ms to go, as much pause as not: 171 + 6 * 4.06.
        assert_eq!(r.priorities(), Some((128 - 24, 195)));
    }

    #[test]
    fn a_job_of_nothing_ends_at_once() {
        let mut r = rounds(0, Duration::ZERO, None);
        let mut w = worker();
        r.running(Time(0));
        assert!(r.poll(Time(0), &mut w, || {}));
        assert_eq!((r.runs(), r.priorities()), (Vec::new(), None));
    }
}
