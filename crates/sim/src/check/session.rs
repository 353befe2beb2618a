//! A job of sessions beside the others: every result of every collective is what its kind says, and
//! every rank ends as it must, also where frames are lost, ranks die or are cancelled, and one rank
//! brings something else.
//!
//! Its runs follow one another while faults happen; when they have ended, one more is undisturbed.

use super::data::{Contributor, Facts};
use super::ending::{Ending, Incarnation, Member};
use super::findings::{Checker, Findings};
use super::options::fabric::NEAR;
use super::options::session::{SessionOptions, Trouble};
use super::options::{JobOptions, Options};
use super::setup::{job_id, key};
use crate::address::{Address, HostId, SessionId};
use crate::collectives::{Ended, Script};
use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::world::World;
use std::rc::Rc;
use std::time::Duration;
use tally_endpoint::{PsConfig, WorkerConfig, WorkerError};
use tally_kernels::Kernels;
use tally_wire::control::LeaveCode;
use tally_wire::{Element, Time};

/// Runs while faults happen at most.
const RUNS: usize = 4;
/// From the end of faults until all of them are over: partitions and restarts last.
const SETTLING: Duration = Duration::from_secs(1);
/// Events for each fragment of each rank, on average, at most.
const EVENTS_PER_FRAGMENT: u64 = 400;

/// What a job of sessions has asked to be told.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// To start its parameter server.
    PsStarts,
    /// To start a rank's process.
    RankStarts {
        /// Of which run.
        run: usize,
        /// Which.
        rank: u8,
    },
    /// That something goes wrong: which of the options' troubles.
    Trouble(usize),
}

/// One run, from the first rank's start to the last one's end.
struct Run {
    incarnation: Incarnation,
    script: Rc<Script>,
    /// Ranks whose calls were cancelled.
    gave_up: u64,
    /// Nothing goes wrong in it.
    is_quiet: bool,
}

/// The job, and its runs.
pub struct Sessions {
    options: SessionOptions,
    /// Its place behind the other jobs.
    job: usize,
    hosts: Vec<HostId>,
    ps: (Option<SessionId>, Address),
    runs: Vec<Run>,
    /// Faults have ended at that moment.
    quiet_since: Option<Time>,
    rng: Rng,
    /// Collectives that are done, over all ranks and runs.
    pub done: u64,
}

impl Sessions {
    /// Connects the hosts of its ranks and of its parameter server.
    pub fn new(
        world: &mut World<Contributor>,
        options: &SessionOptions,
        job: usize,
        link: LinkConfig,
        rng: Rng,
    ) -> Self {
        let mut host = || world.add_host(NEAR, link, link, Duration::ZERO);
        let hosts = (0..options.workers).map(|_| host()).collect();
        let address = Address {
            host: host(),
            udp_port: 50_000 + job as u16,
        };
        Self {
            options: options.clone(),
            job,
            hosts,
            ps: (None, address),
            runs: Vec::new(),
            quiet_since: None,
            rng,
            done: 0,
        }
    }

    /// Its ranks.
    #[must_use]
    pub const fn workers(&self) -> u8 {
        self.options.workers
    }

    /// Ranks of the job with this place: none, unless it is this one.
    #[must_use]
    pub fn workers_of(&self, job: usize) -> u8 {
        if job == self.job {
            self.options.workers
        } else {
            0
        }
    }

    /// Whether the last run, in which nothing went wrong, is over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let last = self.runs.last();
        last.is_some_and(|run| run.is_quiet && run.incarnation.is_over())
    }

    /// Events that it may cause, at most.
    #[must_use]
    pub fn events_max(&self) -> u64 {
        let of = |run: &Run| {
            // Descriptors and scales, too.
            let fragments = 2 * self.options.fragments + 20 * run.script.steps.len() as u64;
            fragments * u64::from(self.options.workers) * EVENTS_PER_FRAGMENT
        };
        self.runs.iter().map(of).sum()
    }

    /// The next run. Returns its number, and microseconds until its last rank starts at most.
    pub fn launch(&mut self, now: Time, window: u16, is_quiet: bool) -> (usize, u64) {
        let SessionOptions {
            workers,
            units,
            steps,
            fragments,
            ..
        } = self.options;
        let rng = &mut self.rng;
        let mut script = Script::draw(rng, workers, units, steps, fragments);
        if workers > 1 && rng.chance(self.options.differs_ppm) {
            script.differ(rng);
        }
        // What membership is judged by: none of its fragments is of this job.
        let job = JobOptions {
            workers,
            units,
            window: self.options.window,
            messages: Vec::new(),
            elements: vec![Element::I32],
            first: 0,
            depends: None,
            priorities: Vec::new(),
            infinite_ppm: 0,
            overflow: None,
        };
        let facts = Facts::new(self.job, self.runs.len(), &job, 0, window);
        self.runs.push(Run {
            incarnation: Incarnation {
                facts: Rc::new(facts),
                members: vec![Member::default(); usize::from(workers)],
                epoch: None,
                killed: 0,
                interrupted: 0,
                removed: false,
                hurt_at: now,
                switch_started_at: None,
                progress: (0, now),
            },
            script: Rc::new(script),
            gave_up: 0,
            is_quiet,
        });
        (self.runs.len() - 1, self.rng.pick(&[0, 1_000, 100_000]))
    }

    /// When something goes wrong, by number.
    #[must_use]
    pub fn troubles(&self, now: Time) -> Vec<Time> {
        let troubles = self.options.troubles.iter();
        troubles.map(|(at, _)| now.after(*at)).collect()
    }

    /// Starts the parameter server.
    pub fn start_ps(&mut self, world: &mut World<Contributor>, instance: u64) {
        let config = PsConfig::new(job_id(self.job), key(self.job), instance);
        self.ps.0 = Some(world.start_ps(NEAR, self.ps.1, config, Kernels::best()));
    }

    /// Starts a rank's process of a run.
    pub fn start_rank(
        &mut self,
        world: &mut World<Contributor>,
        options: &Options,
        instance: u64,
        (n, rank): (usize, u8),
    ) {
        let run = &mut self.runs[n];
        let member = &mut run.incarnation.members[usize::from(rank)];
        if member.ending.is_some() {
            // Killed before it began.
            return;
        }
        let (job, workers) = (self.job, self.options.workers);
        let shape = tally_session::shape(run.script.payload_bytes as u32, 1);
        let mut config = WorkerConfig::new(job_id(job), key(job), rank, workers, shape, instance);
        config.units = self.options.units;
        config.window = self.options.window;
        config.join_timeout = options.join_timeout;
        config.stall_timeout = options.stall_timeout;
        let address = Address {
            host: self.hosts[usize::from(rank)],
            udp_port: if options.reuse_ports {
                40_000
            } else {
                40_000 + n as u16
            },
        };
        let script = Rc::clone(&run.script);
        member.session = Some(world.start_collectives(NEAR, address, config, script));
    }

    /// Lets something go wrong. Returns when the parameter server starts again, if it has died.
    pub fn trouble(&mut self, world: &mut World<Contributor>, n: usize) -> Option<Time> {
        let trouble = self.options.troubles[n].1;
        world.note(|| format!("sessions: {trouble:?}"));
        let now = world.now;
        match trouble {
            Trouble::Death(rank) => self.kill(world, rank),
            Trouble::Interrupt(rank) => self.cancel(world, rank, true),
            Trouble::GiveUp(rank) => self.cancel(world, rank, false),
            Trouble::Restart => {
                for rank in 0..self.options.workers {
                    self.kill(world, rank);
                }
            }
            Trouble::PsRestart(down) => {
                world.kill(self.ps.0.take()?);
                return Some(now.after(down));
            }
            Trouble::Partition(rank, lasting) => {
                let host = self.hosts[usize::from(rank)];
                world.change_cables(host, |link| link.cut_until = now.after(lasting));
            }
            Trouble::Straggler(rank, lasting) => {
                world.put_to_sleep(self.hosts[usize::from(rank)], now.after(lasting));
            }
        }
        None
    }

    /// The switch has started anew: it knows nothing of ranks that finished before.
    pub fn switch_started(&mut self, now: Time) {
        let run = self.runs.last_mut();
        if let Some(run) = run.filter(|run| !run.incarnation.is_over()) {
            run.incarnation.switch_started_at = Some(now);
        }
    }

    /// Looks at results, at how ranks end, and that they do. Faults have ended at `quiet`. Returns
    /// whether the next run, if it may begin, is one in which nothing goes wrong.
    pub fn look(
        &mut self,
        world: &mut World<Contributor>,
        findings: &Findings,
        options: &Options,
        quiet: Option<Time>,
    ) -> Option<bool> {
        self.quiet_since = self.quiet_since.or(quiet);
        let runs = self.runs.len();
        let run = self.runs.last_mut()?;
        let (done, wrong) = run.look(world);
        self.done += done;
        if let Some(wrong) = wrong {
            let text = || format!("sessions, run {}: {wrong}", runs - 1);
            findings.report(Checker::Session, text);
        }
        let is_over = run.incarnation.is_over();
        if let Some(quiet) = self.quiet_since {
            let (member, join) = (options.member_timeout, options.join_timeout);
            let due = run.incarnation.due(quiet, member, join);
            let late = || format!("run {} of the sessions is not over", runs - 1);
            let in_time = is_over || world.now <= due;
            findings.require(in_time, Checker::Convergence, late);
        }
        let settled = |quiet: Time| world.now >= quiet.after(SETTLING);
        let is_quiet = self.quiet_since.is_some_and(settled);
        let is_more = is_quiet || self.quiet_since.is_none() && runs < RUNS;
        (is_over && !run.is_quiet && is_more).then_some(is_quiet)
    }

    fn kill(&mut self, world: &mut World<Contributor>, rank: u8) {
        let Some(run) = self.runs.last_mut() else {
            return;
        };
        let member = &mut run.incarnation.members[usize::from(rank)];
        if member.ending.is_some() {
            return;
        }
        if let Some(session) = member.session {
            world.kill(session);
        }
        member.ending = Some((world.now, Ending::Killed));
        run.incarnation.killed |= 1 << rank;
        run.incarnation.hurt_at = world.now;
    }

    /// Cancels a rank's calls, if it runs.
    fn cancel(&mut self, world: &mut World<Contributor>, rank: u8, is_interrupt: bool) {
        let Some(run) = self.runs.last_mut() else {
            return;
        };
        let member = &run.incarnation.members[usize::from(rank)];
        let Some(id) = member.session.filter(|_| member.ending.is_none()) else {
            return;
        };
        run.incarnation.hurt_at = world.now;
        if is_interrupt {
            run.incarnation.interrupted |= 1 << rank;
        } else {
            run.gave_up |= 1 << rank;
        }
        world.with_process(id, |now, process| {
            if is_interrupt {
                process.session_mut().interrupt(now);
            } else {
                process.session_mut().give_up(now);
            }
        });
    }
}

impl Run {
    /// Takes note of what has become of the ranks. Returns collectives that are done, and what is
    /// wrong.
    fn look(&mut self, world: &mut World<Contributor>) -> (u64, Option<String>) {
        let (mut wrong, mut ended, mut done) = (None, Vec::new(), 0);
        for (rank, member) in self.incarnation.members.iter_mut().enumerate() {
            let Some(id) = member.session.filter(|_| member.ending.is_none()) else {
                continue;
            };
            let Some(process) = world.process(id) else {
                continue;
            };
            member.has_run = process.session().epoch().is_some();
            wrong = wrong.or_else(|| process.wrong.clone());
            if let Some((at, how)) = process.ended.clone() {
                let ending = match &how {
                    Ended::Finished => Ending::Finished,
                    Ended::Failed(error, _) => Ending::Failed(error.clone()),
                };
                member.ending = Some((at, ending));
                done += process.done as u64;
                let collectives = process.done;
                world.note(|| format!("session of rank {rank}: {how:?}"));
                world.kill(id);
                ended.push((rank, how, collectives));
            }
        }
        for (rank, how, done) in ended {
            if let Err(why) = self.validate(rank, &how, done) {
                wrong.get_or_insert(format!("rank {rank} {why}; {:?}", self.script.differs));
            }
        }
        (done, wrong)
    }

    /// Whether a rank may have ended so.
    fn validate(&self, rank: usize, how: &Ended, done: usize) -> Result<(), String> {
        let all = self.script.steps.len();
        let (error, mismatch) = match how {
            Ended::Finished if self.script.differs.is_some() => {
                return Err("finished, although a rank brings something else".into());
            }
            Ended::Finished if done == all => return Ok(()),
            Ended::Finished => return Err(format!("finished with {done} of {all} collectives")),
            Ended::Failed(error, mismatch) => (error, mismatch),
        };
        let differs = self.script.differs.as_ref();
        if let Some(mismatch) = mismatch {
            let Some((at, who, _)) = differs else {
                return Err(format!("found a mismatch: {mismatch}"));
            };
            // Of two ranks neither is the majority.
            let ranks = if self.script.workers == 2 {
                3
            } else {
                1 << who
            };
            let right = (mismatch.ticket, mismatch.ranks.0) == (*at as u64, ranks);
            return right.then_some(()).ok_or(format!("says: {mismatch}"));
        }
        let failed = |by: u64| match error {
            WorkerError::MemberFailed {
                rank: Some(rank),
                code: Some(LeaveCode::Failed),
                ..
            } => rank.bit() & by != 0,
            _ => false,
        };
        let ok = match error {
            WorkerError::GivenUp => self.gave_up >> rank & 1 == 1,
            // It may have lost the descriptor, and may not see the others for longer than they
            // stay.
            _ if differs.is_some() && !self.is_quiet => {
                failed(u64::MAX) || matches!(error, WorkerError::Overflow { .. })
            }
            _ => failed(self.gave_up),
        };
        if ok {
            Ok(())
        } else {
            self.incarnation.validate(rank, error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Outcome, run_options};
    use crate::link::Faults;

    /// What becomes of these sessions in a network without faults, beside small jobs.
    fn undisturbed(seed: u64, sessions: SessionOptions) -> Outcome {
        let mut options = Options::draw(seed);
        options.faults = Faults::NONE;
        options.incidents.clear();
        options.forged_per_s = 0;
        options.safety = Duration::from_millis(50);
        options.jobs.truncate(1);
        options.limits.clear();
        options.sessions = Some(sessions);
        run_options(options, 0)
    }

    fn sessions(workers: u8, differs_ppm: u32, troubles: &[Trouble]) -> SessionOptions {
        let at = Duration::from_millis(1);
        SessionOptions {
            workers,
            units: 1,
            window: 7,
            steps: 8,
            fragments: 300,
            differs_ppm,
            troubles: troubles.iter().map(|&trouble| (at, trouble)).collect(),
        }
    }

    #[test]
    fn all_collectives_are_done_if_nothing_goes_wrong() {
        for seed in 0..10 {
            let outcome = undisturbed(seed, sessions(3, 0, &[]));
            assert!(
                outcome.finding.is_none(),
                "seed {seed}: {:?}",
                outcome.finding
            );
            // Runs follow one another, and one of them is the last.
            let collectives = outcome.totals.collectives;
            assert!(
                collectives >= 2 * 24 && collectives.is_multiple_of(24),
                "{collectives}"
            );
        }
    }

    /// Those that found it wait to leave, and for the switch to say that they have, without being
    /// woken all the time.
    #[test]
    fn a_rank_that_brings_something_else_is_named_and_no_rank_spins() {
        for seed in 0..10 {
            let outcome = undisturbed(seed, sessions(3, 1_000_000, &[]));
            assert!(
                outcome.finding.is_none(),
                "seed {seed}: {:?}",
                outcome.finding
            );
            assert!(outcome.totals.collectives < 5 * 24);
        }
    }

    #[test]
    fn what_goes_wrong_at_one_rank_ends_all_as_it_must() {
        let ms = Duration::from_millis(300);
        let troubles = [
            Trouble::Death(1),
            Trouble::Interrupt(0),
            Trouble::GiveUp(2),
            Trouble::Restart,
            Trouble::PsRestart(ms),
            Trouble::Partition(1, ms),
            Trouble::Straggler(2, ms),
        ];
        for (seed, trouble) in (0..).zip(troubles) {
            let outcome = undisturbed(seed, sessions(3, 0, &[trouble]));
            let finding = outcome.finding;
            assert!(finding.is_none(), "{trouble:?}: {finding:?}");
        }
    }
}
