//! The generator's loop: receive, serve sessions, retransmit, send what is due, flush; on one
//! thread that never blocks.
//!
//! `job.rs` is the state of one job, `receive.rs` what happens to a frame that arrives, `send.rs`
//! what makes new ones. Here is the order of a poll iteration and the phases of a load: join, find
//! the first fragment, warm up, measure, drain, leave.
//!
//! # How it ends
//!
//! No contribution is made after its time, after `frames_max` contributions, or once it is told to
//! stop. Fragments in flight may still finish, until [`LOST_AFTER_NS`]; then all members leave.
//!
//! # Idle
//!
//! A poll iteration in which no frame arrived and none left is idle. The generator limits the rate
//! only if hardly any time is idle ([`Outcome::is_generator_bound`]).

mod job;
mod receive;
mod send;

use crate::faults::Faults;
use crate::flow::{Flow, Pace};
use crate::live::{Live, Snapshot};
use crate::measure::{Counts, Latencies};
use crate::plan::{JobPlan, Plan};
use crate::rig::{BURST, Wire};
use anyhow::{Context, Result, bail, ensure};
use job::JobRun;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_dpdk::Mbuf;
use tally_endpoint::{PsStats, Time};
use tally_wire::{Epoch, FragmentId, Train};

/// Age of a fragment's last contribution at which the fragment is given up.
pub const LOST_AFTER_NS: u64 = 2_000_000_000;
/// Between two searches for overdue fragments.
const OVERDUE_EVERY_NS: u64 = 200_000;
/// Between two snapshots.
const LIVE_EVERY_NS: u64 = 1_000_000_000;
/// How long leaving may take.
const LEAVE_NS: u64 = 3_000_000_000;
/// How long a first fragment of a job with fixed members may take.
const SEEK_NS: u64 = 300_000_000;
/// First fragments to try: one of these is ahead of those that an earlier load used.
const SEEK_FROM: [FragmentId; 3] = [
    FragmentId(0),
    FragmentId(u32::MAX / 3),
    FragmentId(u32::MAX / 3 * 2),
];
/// Share of idle time below which the generator may limit the rate.
const BOUND_BELOW: f64 = 0.05;

/// The program at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A switch of ours.
    Switch,
    /// Something that sends every frame back with its Ethernet addresses swapped.
    Macswap,
}

/// When a load ends, and which faults and checks it has.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long contributions are made, beside the warm-up.
    pub measure: Duration,
    /// How long before anything is measured.
    pub warm_up: Duration,
    /// Contributions in all, at most.
    pub frames_max: u64,
    /// Share of frames lost, and held back.
    pub loss: f64,
    /// As above.
    pub reorder: f64,
    /// Random seed of the faults.
    pub seed: u64,
    /// Whether to compare every word of every result.
    pub verify: bool,
}

/// The outcome of one job.
#[derive(Debug)]
pub struct JobOutcome {
    /// Over the whole time.
    pub counts: Counts,
    /// In the measured time.
    pub measured: Counts,
    /// Open loop: contributions that were due in the measured time.
    pub due: Option<u64>,
    /// In the measured time.
    pub latencies: Latencies,
    /// What the parameter server did, if we played it.
    pub ps: Option<PsStats>,
}

/// The outcome of a load.
#[derive(Debug)]
pub struct Outcome {
    /// In the order of the plan.
    pub jobs: Vec<JobOutcome>,
    /// The measured time.
    pub measured_s: f64,
    /// Share of it in which the generator was idle.
    pub idle_share: f64,
    /// Whether it was told to stop before its time.
    pub interrupted: bool,
    /// Frames lost on purpose, when sent and when received, and held back.
    pub injected: [u64; 3],
    /// Frames that belong to no job of the load.
    pub foreign: u64,
}

impl Outcome {
    /// Whether the generator may have limited the rate.
    #[must_use]
    pub fn is_generator_bound(&self) -> bool {
        self.idle_share < BOUND_BELOW
    }
}

struct Clock(Instant);

impl Clock {
    fn ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// A load that runs.
pub struct Run<'a> {
    plan: &'a Plan,
    peer: Peer,
    wire: &'a mut Wire,
    limits: &'a Limits,
    stop: &'a AtomicBool,
    live: Option<Live>,
    clock: Clock,
    jobs: Vec<JobRun<'a>>,
    /// By port: the headers of its last result, and its job.
    trains: Vec<Option<(Train, usize)>>,
    burst: Vec<Mbuf>,
    /// Fragments to probe, and for which ranks.
    overdue: Vec<(u64, u64)>,
    next_overdue: u64,
    faults: Faults,
    foreign: u64,
    /// From when on results count for the latencies.
    measured_from: u64,
    idle_ns: u64,
    /// The end of the last poll iteration, and whether it was idle.
    last_poll: (u64, bool),
}

impl<'a> Run<'a> {
    /// Loads what `plan` says, over open ports, until its `limits` or until `stop` is set.
    ///
    /// # Errors
    /// If a job does not begin or breaks off, if a sum is wrong, or if nothing comes back.
    pub fn to_the_end(
        plan: &'a Plan,
        peer: Peer,
        wire: &'a mut Wire,
        limits: &'a Limits,
        live: Option<Live>,
        stop: &'a AtomicBool,
    ) -> Result<Outcome> {
        let ports = wire.len();
        let mut run = Self {
            plan,
            peer,
            wire,
            limits,
            stop,
            live,
            clock: Clock(Instant::now()),
            jobs: Vec::new(),
            trains: vec![None; ports],
            burst: Vec::with_capacity(BURST),
            overdue: Vec::new(),
            next_overdue: 0,
            faults: Faults::new(0.0, 0.0, 0),
            foreign: 0,
            measured_from: u64::MAX,
            idle_ns: 0,
            last_poll: (0, false),
        };
        for job in &plan.jobs {
            let job = JobRun::new(Time(0), job, &plan.switch, ports)?;
            run.jobs.push(job);
        }
        let outcome = run.load();
        if outcome.is_err() {
            let now = Time(run.clock.ns());
            for job in &mut run.jobs {
                job.members.give_up(now);
            }
            // The first error is the one to report.
            let _ = run.say_goodbye();
        }
        outcome
    }

    fn load(&mut self) -> Result<Outcome> {
        if self.peer == Peer::Switch {
            self.begin()?;
        } else {
            for job in &mut self.jobs {
                job.run_in(Epoch(1), &self.plan.switch);
            }
        }
        let firsts: Vec<_> = (0..self.jobs.len())
            .map(|job| self.first_fragment(job))
            .collect::<Result<_>>()?;
        let limits = self.limits;
        self.faults = Faults::new(limits.loss, limits.reorder, limits.seed);
        let start = self.clock.ns();
        let jobs = self.jobs.len() as u64;
        for (at, (job, first)) in self.jobs.iter_mut().zip(firsts).enumerate() {
            let JobPlan {
                workers,
                window,
                pace,
                ..
            } = job.plan;
            let workers = workers.len() as u8;
            let mut flow = Flow::new(workers, *window, *pace, first, start);
            let share =
                limits.frames_max / jobs + u64::from((at as u64) < limits.frames_max % jobs);
            flow.stop_before(share / u64::from(workers));
            job.flow = Some(flow);
            job.counts = Counts::default();
        }
        let (before, due_before) = self.until(start, limits.warm_up)?;
        for job in &mut self.jobs {
            job.latencies = Latencies::new(job.plan.priorities.values().len());
        }
        self.idle_ns = 0;
        let from = self.clock.ns();
        self.measured_from = from;
        let (after, due_after) = self.until(from, limits.measure)?;
        let to = self.clock.ns();
        let idle_share = self.idle_ns as f64 / (to - from).max(1) as f64;
        let interrupted = self.is_stopped();
        for flow in self.jobs.iter_mut().filter_map(|job| job.flow.as_mut()) {
            flow.stop();
        }
        self.drain()?;
        // The last line of the live view must not mix with the report.
        self.live = None;
        let at_end = self.clock.ns();
        for job in &mut self.jobs {
            job.members.leave(Time(at_end));
        }
        if self.peer == Peer::Switch {
            self.say_goodbye()?;
        }
        ensure!(
            self.jobs.iter().any(|job| job.counts.results > 0) || interrupted,
            "no result for any of {} frames sent",
            self.counts().frames_sent
        );
        let jobs = self.jobs.drain(..).enumerate();
        let jobs = jobs.map(|(at, job)| JobOutcome {
            counts: job.counts,
            measured: after[at].since(before[at]),
            due: matches!(job.plan.pace, Pace::Open { .. })
                .then(|| due_after[at].saturating_sub(due_before[at])),
            ps: job.members.ps_stats().copied(),
            latencies: job.latencies,
        });
        Ok(Outcome {
            jobs: jobs.collect(),
            measured_s: (to - from) as f64 / 1e9,
            idle_share,
            interrupted,
            injected: [
                self.faults.lost_sent,
                self.faults.lost_received,
                self.faults.reordered,
            ],
            foreign: self.foreign,
        })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn counts(&self) -> Counts {
        let counts = self.jobs.iter().map(|job| job.counts);
        counts.fold(Counts::default(), Counts::plus)
    }

    /// Joins all jobs.
    fn begin(&mut self) -> Result<()> {
        while self.jobs.iter().any(|job| job.members.epoch().is_none()) {
            self.poll()?;
            ensure!(!self.is_stopped(), "interrupted before the jobs ran");
        }
        for job in &mut self.jobs {
            if let Some(epoch) = job.members.epoch() {
                job.run_in(epoch, &self.plan.switch);
            }
        }
        Ok(())
    }

    /// Where a job's fragments begin: at 0 in an epoch of its own. A job with fixed members is
    /// always in the same one, in which an earlier load may have come to any fragment.
    fn first_fragment(&mut self, job: usize) -> Result<FragmentId> {
        if !self.jobs[job].plan.is_fixed || self.peer == Peer::Macswap {
            return Ok(FragmentId(0));
        }
        for from in SEEK_FROM {
            let now = self.clock.ns();
            let run = &mut self.jobs[job];
            let workers = run.plan.workers.len() as u8;
            let mut flow = Flow::new(workers, 1, Pace::Closed, from, now);
            flow.stop_before(1);
            run.flow = Some(flow);
            run.is_seeking = true;
            while self.clock.ns() < now + SEEK_NS && !self.is_stopped() {
                self.poll()?;
                let run = &mut self.jobs[job];
                if run
                    .flow
                    .as_ref()
                    .is_some_and(|f| f.is_sent() && f.is_drained())
                {
                    run.is_seeking = false;
                    run.flow = None;
                    return Ok(from.plus(1));
                }
            }
        }
        let id = self.jobs[job].plan.id.0;
        bail!(
            "job {id}: no result for its fixed members: is the parameter server running, and are the ports those of the configuration?"
        )
    }

    /// Polls until `time` after `from`, or until all is sent. Returns each job's counts and the
    /// contributions that were due.
    fn until(&mut self, from: u64, time: Duration) -> Result<(Vec<Counts>, Vec<u64>)> {
        let end = from + time.as_nanos() as u64;
        let mut shown = (from, self.counts(), self.idle_ns);
        loop {
            let now = self.poll()?;
            let sent = |job: &JobRun<'_>| job.flow.as_ref().is_none_or(Flow::is_sent);
            if now >= end || self.is_stopped() || self.jobs.iter().all(sent) {
                break;
            }
            if now - shown.0 >= LIVE_EVERY_NS && self.live.is_some() {
                shown = self.show(now, shown);
            }
        }
        // Contributions are due up to the end of the last poll iteration, not up to now.
        let due = |job: &JobRun<'_>| {
            job.flow
                .as_ref()
                .map_or(0, |flow| flow.due_by(self.last_poll.0))
        };
        Ok((
            self.jobs.iter().map(|job| job.counts).collect(),
            self.jobs.iter().map(due).collect(),
        ))
    }

    fn show(&mut self, now: u64, shown: (u64, Counts, u64)) -> (u64, Counts, u64) {
        let (since, before, idle_before) = shown;
        let counts = self.counts();
        let span_s = (now - since) as f64 / 1e9;
        let passed = counts.since(before);
        // Jobs may differ in size; the view takes the mean of their frames.
        let frames = |of: fn(&JobPlan) -> usize| {
            let bytes: usize = self.jobs.iter().map(|job| of(job.plan)).sum();
            bytes as f64 * 8.0 / self.jobs.len().max(1) as f64
        };
        let sent_bits = passed.frames_sent as f64 * frames(JobPlan::frame_bytes);
        let goodput_bits = passed.fragments as f64 * frames(|job| usize::from(job.units) * 64);
        if let Some(live) = &mut self.live {
            let snapshot = Snapshot {
                seconds: now as f64 / 1e9,
                span_s,
                counts: passed,
                sent_bits,
                goodput_bits,
                latency_ns: live.latency_ns.clone(),
                idle_share: (self.idle_ns - idle_before) as f64 / (now - since) as f64,
            };
            live.show(snapshot);
        }
        (now, counts, self.idle_ns)
    }

    /// Waits for the fragments in flight.
    fn drain(&mut self) -> Result<()> {
        let deadline = self.clock.ns() + 2 * LOST_AFTER_NS;
        while !self.jobs.iter().all(JobRun::is_drained) {
            if self.poll()? >= deadline {
                for job in &mut self.jobs {
                    if let Some(flow) = &mut job.flow {
                        job.counts.lost += flow.give_up(deadline, u64::MAX);
                    }
                }
                break;
            }
        }
        Ok(())
    }

    fn say_goodbye(&mut self) -> Result<()> {
        let deadline = self.clock.ns() + LEAVE_NS;
        // No more injected loss: leaving is not tested here.
        self.faults.stop();
        loop {
            let now = self.poll()?;
            let mut left = true;
            for job in &mut self.jobs {
                left &= job.members.have_left(Time(now));
            }
            if left || now >= deadline {
                return Ok(());
            }
        }
    }

    /// One poll iteration. Returns the moment at which it began.
    fn poll(&mut self) -> Result<u64> {
        let now = self.clock.ns();
        let (before, was_idle) = self.last_poll;
        if was_idle {
            self.idle_ns += now - before;
        }
        let (arrived, is_behind) = self.receive()?;
        if self.peer == Peer::Switch {
            self.serve(now)?;
        }
        if now >= self.next_overdue && !is_behind {
            self.next_overdue = now + OVERDUE_EVERY_NS;
            self.probe_overdue(now);
        }
        let mut made = false;
        for job in 0..self.jobs.len() {
            made |= self.generate(job);
        }
        let left = self.wire.flush(!made);
        self.last_poll = (now, arrived == 0 && !made && !left);
        Ok(now)
    }

    /// Serves the sessions of all jobs.
    fn serve(&mut self, now: u64) -> Result<()> {
        for job in 0..self.jobs.len() {
            if self.jobs[job].members.is_due(Time(now)) {
                self.serve_job(job, now)?;
            }
        }
        Ok(())
    }

    fn serve_job(&mut self, job: usize, now: u64) -> Result<()> {
        let (wire, faults, switch) = (&mut *self.wire, &mut self.faults, &self.plan.switch);
        let run = &mut self.jobs[job];
        run.members
            .serve(Time(now), |host, fill| {
                wire.send(switch, host, faults, fill)
            })
            .with_context(|| format!("job {}", run.plan.id.0))
    }
}
