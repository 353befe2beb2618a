//! What an operator changes while jobs run: a job is removed and added again, a key is rotated.

use super::{Plan, Scenario};
use crate::check::data::Contributor;
use crate::check::options::Options;
use crate::check::setup::{job_config, job_id, key_of};
use crate::world::World;
use std::time::Duration;
use tally_wire::{Key, Time};

/// What the operator has changed, by job.
pub(super) struct Changed {
    /// How often the key was rotated.
    rotations: Vec<u8>,
    /// Whether the switch does not have the job now.
    pub(super) removed: Vec<bool>,
    /// When all jobs are back.
    safety_ends: Time,
}

impl Changed {
    pub(super) fn new(world: &World<Contributor>, options: &Options) -> Self {
        let jobs = options.jobs.len();
        Self {
            rotations: vec![0; jobs],
            removed: vec![false; jobs],
            safety_ends: world.now.after(options.safety),
        }
    }
}

impl Scenario {
    /// The operator removes a job. It is back after so long, and when the safety phase ends.
    pub(super) fn remove_job(
        &mut self,
        world: &mut World<Contributor>,
        job: usize,
        down: Duration,
    ) {
        if std::mem::replace(&mut self.changed.removed[job], true) {
            return;
        }
        let current = &mut self.incarnations[self.current[job]];
        current.removed = true;
        current.hurt_at = world.now;
        world.remove_job(self.options.switch_of(job), job_id(job));
        let back = world
            .now
            .after(down)
            .min(self.changed.safety_ends)
            .max(world.now);
        self.plan(world, back, Plan::JobReturns { job });
    }

    pub(super) fn job_returns(&mut self, world: &mut World<Contributor>, job: usize) {
        world.note(|| format!("job {job}: added again"));
        self.changed.removed[job] = false;
        self.set_job(world, job);
    }

    /// Of two keys that are valid at once, no third one.
    pub(super) fn rotate_key(&mut self, world: &mut World<Contributor>, job: usize) {
        if self.changed.rotations[job] == 0 && !self.changed.removed[job] {
            self.changed.rotations[job] = 1;
            self.set_job(world, job);
        }
    }

    fn set_job(&mut self, world: &mut World<Contributor>, job: usize) {
        let config = job_config(&self.options, job, self.changed.rotations[job]);
        world.set_job(self.options.switch_of(job), config);
    }

    /// The key of a process that starts: one of the two that are valid.
    pub(in crate::check) fn key_of_new(&self, job: usize, instance: u64) -> Key {
        let is_old = instance & 1 == 1;
        key_of(
            job,
            if is_old {
                0
            } else {
                self.changed.rotations[job]
            },
        )
    }
}
