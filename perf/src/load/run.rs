//! The generator's loop: receive, keep up memberships, send again, send what is due, flush; on one thread,
//! without waiting for anything.
//!
//! # How it ends
//!
//! When its time is over, as many contributions as are allowed have been made, or it is told to stop, nothing
//! new is begun. What is under way may still finish, until [`LOST_AFTER_NS`]; then all members leave.
//!
//! # Idle
//!
//! A turn in which nothing arrived and nothing left is idle. As long as a good share of the time is, the
//! generator is not what limits the rate.

use super::faults::Faults;
use super::flow::{Asked, Flow, Pace, Taken, Times};
use super::live::{Live, Snapshot};
use super::measure::{Counts, Latencies};
use super::members::Members;
use super::pattern::{Sums, Template};
use super::plan::{JobPlan, Plan, SwitchPlan};
use super::rig::{BURST, Wire, addresses};
use anyhow::{Context, Result, bail, ensure};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_dpdk::{Mbuf, free_bulk};
use tally_endpoint::{PsStats, Time, Transmit};
use tally_wire::frame::{UDP_END, group_of};
use tally_wire::header::HEADER_BYTES;
use tally_wire::{
    AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, HEADERS_BYTES, Header, Kind, Rank,
    Train, UdpFrame,
};

/// A fragment whose last contribution was sent so long ago is given up.
pub const LOST_AFTER_NS: u64 = 2_000_000_000;
/// Between two looks at what is overdue.
const OVERDUE_EVERY_NS: u64 = 200_000;
/// Between two snapshots.
const LIVE_EVERY_NS: u64 = 1_000_000_000;
/// How long goodbyes may take.
const LEAVE_NS: u64 = 3_000_000_000;
/// How long a first fragment of a job with fixed members may take.
const SEEK_NS: u64 = 300_000_000;
/// Where its fragments may begin: one of these is ahead of whatever an earlier load has left behind.
const SEEK_FROM: [FragmentId; 3] = [
    FragmentId(0),
    FragmentId(u32::MAX / 3),
    FragmentId(u32::MAX / 3 * 2),
];
/// Share of idle time below which the generator may be what limits the rate.
const BOUND_BELOW: f64 = 0.05;

/// What answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A switch of ours.
    Switch,
    /// Something that sends every frame back with its Ethernet addresses swapped.
    Macswap,
}

/// When it ends, and what is done on the way.
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
    /// Where the random numbers start.
    pub seed: u64,
    /// Whether to compare every word of every result.
    pub verify: bool,
}

/// What came of one job.
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

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// In the order of the plan.
    pub jobs: Vec<JobOutcome>,
    /// The measured time.
    pub measured_s: f64,
    /// Share of it in which the generator had nothing to do.
    pub idle_share: f64,
    /// It was told to stop before its time.
    pub interrupted: bool,
    /// Frames lost on purpose, when sent and when received, and held back.
    pub injected: [u64; 3],
    /// Frames that were none of ours.
    pub foreign: u64,
}

impl Outcome {
    /// Whether the generator may have been what limited the rate.
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

struct JobRun<'a> {
    plan: &'a JobPlan,
    members: Members,
    epoch: Epoch,
    /// Its secret, once it runs.
    secret: Option<EpochSecret>,
    templates: Vec<Template>,
    sums: Sums,
    /// Which ranks a result on a port reaches, by port.
    ranks_at: Vec<u64>,
    flow: Option<Flow>,
    /// Whether nothing is sent again: a fragment is to be finished at once, or not at all.
    is_seeking: bool,
    counts: Counts,
    latencies: Latencies,
}

impl<'a> JobRun<'a> {
    fn new(now: Time, plan: &'a JobPlan, switch: &SwitchPlan, ports: usize) -> Result<Self> {
        let mut ranks_at = vec![0; ports];
        for (rank, seat) in plan.workers.iter().enumerate() {
            ranks_at[seat.port] |= 1 << rank;
        }
        let workers = plan.workers.len() as u8;
        Ok(Self {
            members: Members::new(now, plan, switch)?,
            epoch: Epoch(0),
            secret: None,
            templates: Vec::new(),
            sums: Sums::new(plan.id, plan.element, workers, plan.units),
            ranks_at,
            flow: None,
            is_seeking: false,
            counts: Counts::default(),
            latencies: Latencies::new(plan.priorities.values().len()),
            plan,
        })
    }

    fn header(&self, kind: Kind, rank: Rank, bitmap: u64) -> Header {
        Header {
            kind,
            flags: Flags::NONE,
            priority: 0,
            element: self.plan.element,
            job: self.plan.id,
            epoch: self.epoch,
            fragment: FragmentId(0),
            rank,
            units: self.plan.units,
            bitmap,
            tag: AuthTag::NONE,
        }
    }

    /// The job runs: from here on its workers have frames to send.
    fn run_in(&mut self, epoch: Epoch, switch: &SwitchPlan) {
        self.epoch = epoch;
        self.secret = self.members.secret();
        let seats = self.plan.workers.iter().zip(0..);
        self.templates = seats
            .map(|(seat, rank)| {
                let rank = Rank(rank);
                let header = self.header(Kind::Data, rank, rank.bit());
                let addresses = addresses(switch, seat, switch.base_port);
                Template::new(&addresses, &header, switch.shards)
            })
            .collect();
    }

    fn sealed(&self, header: Header) -> Header {
        self.secret.map_or(header, |secret| secret.seal(header))
    }

    fn is_drained(&self) -> bool {
        self.flow.as_ref().is_none_or(Flow::is_drained)
    }
}

/// A load on its way.
pub struct Run<'a> {
    plan: &'a Plan,
    peer: Peer,
    wire: &'a mut Wire,
    limits: &'a Limits,
    stop: &'a AtomicBool,
    live: Option<Live>,
    clock: Clock,
    jobs: Vec<JobRun<'a>>,
    /// By port: what its last result was, and of which job.
    trains: Vec<Option<(Train, usize)>>,
    burst: Vec<Mbuf>,
    /// Fragments to send again, and to whose ranks.
    again: Vec<(u64, u64)>,
    next_overdue: u64,
    faults: Faults,
    foreign: u64,
    /// From when on results count for the latencies.
    measured_from: u64,
    idle_ns: u64,
    /// The end of the last turn, and whether it was idle.
    last_turn: (u64, bool),
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
            again: Vec::new(),
            next_overdue: 0,
            faults: Faults::new(0.0, 0.0, 0),
            foreign: 0,
            measured_from: u64::MAX,
            idle_ns: 0,
            last_turn: (0, false),
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
            // What they say last is of no interest; the first error is.
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
        // The view has nothing more to show, and its last line is not to mix with others.
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
            "not one result came back for {} frames",
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
            self.turn()?;
            ensure!(!self.is_stopped(), "interrupted before the jobs ran");
        }
        for job in &mut self.jobs {
            if let Some(epoch) = job.members.epoch() {
                job.run_in(epoch, &self.plan.switch);
            }
        }
        Ok(())
    }

    /// Where a job's fragments begin: at 0 in an epoch of its own. A job with fixed members is always in the
    /// same one, in which an earlier load may have come to any fragment.
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
                self.turn()?;
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
        bail!("job {id}: the switch answers no fragment of its fixed members")
    }

    /// Turns until so long after `from`, or until there is nothing more to do. Gives what has happened in each
    /// job, and what was due.
    fn until(&mut self, from: u64, time: Duration) -> Result<(Vec<Counts>, Vec<u64>)> {
        let end = from + time.as_nanos() as u64;
        let mut shown = (from, self.counts(), self.idle_ns);
        loop {
            let now = self.turn()?;
            let sent = |job: &JobRun<'_>| job.flow.as_ref().is_none_or(Flow::is_sent);
            if now >= end || self.is_stopped() || self.jobs.iter().all(sent) {
                break;
            }
            if now - shown.0 >= LIVE_EVERY_NS && self.live.is_some() {
                shown = self.show(now, shown);
            }
        }
        // Not the clock's time of now: what is due counts to the end of the last turn.
        let due = |job: &JobRun<'_>| {
            job.flow
                .as_ref()
                .map_or(0, |flow| flow.due_by(self.last_turn.0))
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

    /// Waits for what is under way.
    fn drain(&mut self) -> Result<()> {
        let deadline = self.clock.ns() + 2 * LOST_AFTER_NS;
        while !self.jobs.iter().all(JobRun::is_drained) {
            if self.turn()? >= deadline {
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
        // From here on nothing of theirs is lost on purpose: a goodbye is not what is tested.
        self.faults.stop();
        loop {
            let now = self.turn()?;
            let mut left = true;
            for job in &mut self.jobs {
                left &= job.members.have_left(Time(now));
            }
            if left || now >= deadline {
                return Ok(());
            }
        }
    }

    /// One turn of the loop. Gives the moment at which it began.
    fn turn(&mut self) -> Result<u64> {
        let now = self.clock.ns();
        let (before, was_idle) = self.last_turn;
        if was_idle {
            self.idle_ns += now - before;
        }
        let (arrived, is_behind) = self.receive()?;
        if self.peer == Peer::Switch {
            self.serve(now)?;
        }
        if now >= self.next_overdue && !is_behind {
            self.next_overdue = now + OVERDUE_EVERY_NS;
            self.send_again(now);
        }
        let mut made = false;
        for job in 0..self.jobs.len() {
            made |= self.generate(job);
        }
        let left = self.wire.flush(!made);
        self.last_turn = (now, arrived == 0 && !made && !left);
        Ok(now)
    }

    /// Takes what has arrived: how many frames, and whether there may be more.
    fn receive(&mut self) -> Result<(usize, bool)> {
        let (mut arrived, mut is_behind) = (0, false);
        let mut burst = std::mem::take(&mut self.burst);
        let mut outcome = Ok(());
        for port in 0..self.wire.len() {
            let n = self.wire.receive(port, &mut burst);
            if n == 0 {
                continue;
            }
            arrived += n;
            is_behind |= n == BURST;
            for mbuf in &burst {
                mbuf.prefetch(0);
            }
            let now = self.clock.ns();
            for mbuf in &burst {
                if mbuf.is_contiguous() && !self.faults.loses_received() {
                    let taken = self.take(now, port, mbuf.data());
                    outcome = outcome.and(taken);
                }
            }
            free_bulk(&mut burst);
        }
        self.burst = burst;
        outcome.map(|()| (arrived, is_behind))
    }

    /// Takes one frame.
    #[inline]
    fn take(&mut self, now: u64, port: usize, frame: &[u8]) -> Result<()> {
        if let Some((train, job)) = &self.trains[port]
            && let Some(header) = train.header_of(frame)
        {
            return self.take_data(now, port, *job, &header, frame);
        }
        let Ok(udp) = UdpFrame::parse(frame) else {
            self.foreign += 1;
            return Ok(());
        };
        let datagram = udp.datagram(frame);
        let switch = &self.plan.switch;
        let job = Header::parse(datagram).ok().and_then(|header| {
            let job = self.jobs.iter().position(|job| job.plan.id == header.job)?;
            Some((header.received_with(udp.ecn), job))
        });
        // Only the switch has its MAC; of macswap it is what our own frames went to.
        let Some((header, job)) = job.filter(|_| udp.addresses.src_mac == switch.mac) else {
            self.foreign += 1;
            return Ok(());
        };
        let is_result = header.kind == Kind::Result && header.rank == Rank::SWITCH;
        match self.peer {
            Peer::Switch if is_result => {
                if udp.addresses.dst_ip != group_of(header.job) {
                    self.foreign += 1;
                    return Ok(());
                }
            }
            Peer::Macswap if header.kind == Kind::Data => {}
            Peer::Macswap => {
                self.foreign += 1;
                return Ok(());
            }
            Peer::Switch => {
                let run = &mut self.jobs[job];
                if header.kind == Kind::Nack {
                    self.answer(job, &header);
                } else {
                    run.members.take(Time(now), udp.ecn, &header, datagram);
                    self.serve_job(job, now)?;
                }
                return Ok(());
            }
        }
        self.trains[port] = frame
            .first_chunk()
            .map(|headers| (Train::new(headers, header), job));
        self.take_data(now, port, job, &header, frame)
    }

    /// A result, or a contribution that has come back.
    #[inline]
    fn take_data(
        &mut self,
        now: u64,
        port: usize,
        job: usize,
        header: &Header,
        frame: &[u8],
    ) -> Result<()> {
        let run = &mut self.jobs[job];
        let Some(flow) = &mut run.flow else {
            run.counts.unasked += 1;
            return Ok(());
        };
        if self.peer == Peer::Macswap {
            match flow.echo(now, header.fragment, header.rank.0) {
                Some(due) => {
                    run.counts.results += 1;
                    run.counts.fragments += u64::from(header.rank.0 == 0);
                    if now >= self.measured_from {
                        run.latencies.corrected[0]
                            .saturating_record(now.saturating_sub(due).max(1));
                    }
                }
                None => run.counts.unasked += 1,
            }
            return Ok(());
        }
        if header.epoch != run.epoch {
            run.counts.unasked += 1;
            return Ok(());
        }
        let id = run.plan.id.0;
        let fits = header.units == run.plan.units
            && header.element == run.plan.element
            && run.secret.is_some_and(|secret| secret.verifies(header));
        ensure!(fits, "job {id}: a result that is none of it: {header:?}");
        let times = match flow.result(now, header.fragment, run.ranks_at[port]) {
            Taken::New(times) => times,
            Taken::Duplicate => {
                run.counts.duplicates += 1;
                return Ok(());
            }
            Taken::Unasked => {
                run.counts.unasked += 1;
                return Ok(());
            }
            Taken::TooEarly => bail!(
                "job {id}: fragment {} has a result before all of its contributions have been sent",
                header.fragment.0
            ),
        };
        let payload = &frame[HEADERS_BYTES..][..header.payload_bytes()];
        if let Err(wrong) = run.sums.check(header.fragment, payload, self.limits.verify) {
            bail!(
                "job {id}: WRONG SUM of fragment {}: word {} is {} and should be {}",
                header.fragment.0,
                wrong.word,
                wrong.found,
                wrong.expected
            );
        }
        ensure!(
            !header.flags.has(Flags::OVERFLOW),
            "job {id}: fragment {} is said to overflow, which it cannot",
            header.fragment.0
        );
        run.count(header, &times);
        // By when it was sent: behind its schedule, a load has latencies all the same.
        if times.sent >= self.measured_from {
            run.record(now, &times);
            if let Some(live) = &mut self.live {
                let nanos = now.saturating_sub(times.due_last).max(1);
                live.latency_ns.saturating_record(nanos);
            }
        }
        Ok(())
    }

    /// What the parameter server asks of a worker.
    fn answer(&mut self, job: usize, header: &Header) {
        let run = &mut self.jobs[job];
        let rank = header.rank;
        if header.epoch != run.epoch || !run.secret.is_some_and(|secret| secret.verifies(header)) {
            return;
        }
        let asked = run.flow.as_mut();
        let asked = asked.and_then(|flow| flow.asked(header.fragment, rank.0));
        run.counts.nacks += 1;
        match asked {
            Some((seq, Asked::Data)) => self.resend(job, seq, rank.bit()),
            Some((seq, Asked::Result)) => {
                let run = &self.jobs[job];
                let fragment = header.fragment;
                let (_, priority) = run.plan.priorities.of(seq);
                let result = Header {
                    fragment,
                    priority,
                    ..run.header(Kind::Result, rank, 0)
                };
                let result = run.sealed(result);
                let switch = &self.plan.switch;
                let port = switch.base_port + (fragment.0 & u32::from(switch.shards - 1)) as u16;
                let len = HEADER_BYTES + result.payload_bytes();
                let seat = &run.plan.workers[usize::from(rank.0)];
                self.wire.send(switch, seat, &mut self.faults, &mut |out| {
                    result.emit(out);
                    run.sums.write(fragment, &mut out[HEADER_BYTES..len]);
                    Some(Transmit { len, port })
                });
            }
            Some((_, Asked::Nothing)) | None => {}
        }
    }

    /// Does what the sessions have to do.
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
            .serve(Time(now), |seat, fill| {
                wire.send(switch, seat, faults, fill)
            })
            .with_context(|| format!("job {}", run.plan.id.0))
    }

    /// Probes what has waited too long, and gives up what has waited much too long.
    fn send_again(&mut self, now: u64) {
        for job in 0..self.jobs.len() {
            let run = &mut self.jobs[job];
            let Some(flow) = &mut run.flow else { continue };
            run.counts.lost += flow.give_up(now, now.saturating_sub(LOST_AFTER_NS));
            if self.peer == Peer::Macswap || run.is_seeking {
                continue;
            }
            let mut again = std::mem::take(&mut self.again);
            flow.overdue(now, |seq, ranks| again.push((seq, ranks)));
            for (seq, ranks) in again.drain(..) {
                self.probe(job, seq, ranks);
            }
            self.again = again;
        }
    }

    /// Sends PROBEs of some ranks for a fragment.
    fn probe(&mut self, job: usize, seq: u64, ranks: u64) {
        let run = &self.jobs[job];
        let Some(flow) = &run.flow else { return };
        let fragment = flow.fragment(seq);
        let switch = &self.plan.switch;
        let port = switch.base_port + (fragment.0 & u32::from(switch.shards - 1)) as u16;
        let seats = run.plan.workers.iter().zip(0..);
        for (seat, rank) in seats.filter(|(_, rank)| ranks >> rank & 1 == 1) {
            let probe = run.sealed(Header {
                fragment,
                units: 0,
                element: Element::None,
                ..run.header(Kind::Probe, Rank(rank), 0)
            });
            self.wire.send(switch, seat, &mut self.faults, &mut |out| {
                probe.emit(out);
                let len = HEADER_BYTES;
                Some(Transmit { len, port })
            });
        }
    }

    /// Sends the contributions of some ranks to a fragment again.
    fn resend(&mut self, job: usize, seq: u64, ranks: u64) {
        let run = &mut self.jobs[job];
        let Some(flow) = &run.flow else { return };
        let fragment = flow.fragment(seq);
        let (_, priority) = run.plan.priorities.of(seq);
        let bytes = run.plan.frame_bytes();
        let seats = run.plan.workers.iter().enumerate();
        for (rank, seat) in seats.filter(|(rank, _)| ranks >> rank & 1 == 1) {
            // A port that is full already is no place for more; its timer will come again.
            if !self.wire.has_room(seat.port) {
                continue;
            }
            let template = &run.templates[rank];
            let made = self
                .wire
                .contribute(seat.port, 1, bytes, &mut self.faults, |_, frame| {
                    template.write(frame, fragment, priority, Flags::RESEND.0);
                });
            run.counts.frames_again += made as u64;
        }
    }

    /// Makes the contributions that are due. Says whether there were any.
    fn generate(&mut self, job: usize) -> bool {
        let run = &mut self.jobs[job];
        let Some(flow) = &mut run.flow else {
            return false;
        };
        let workers = &run.plan.workers;
        if flow.is_sent() || !workers.iter().all(|seat| self.wire.has_room(seat.port)) {
            return false;
        }
        let batch = flow.take(self.clock.ns());
        if batch.is_empty() {
            return false;
        }
        let bytes = run.plan.frame_bytes();
        let priorities = &run.plan.priorities;
        for (rank, seat) in workers.iter().enumerate() {
            let Range { start, end } = flow.of_rank(&batch, rank as u8);
            if start == end {
                continue;
            }
            let template = &run.templates[rank];
            let count = (end - start) as usize;
            self.wire
                .contribute(seat.port, count, bytes, &mut self.faults, |at, frame| {
                    let seq = start + at as u64;
                    let (_, priority) = priorities.of(seq);
                    template.write(frame, flow.fragment(seq), priority, 0);
                });
        }
        run.counts.frames_sent += batch.end - batch.start;
        true
    }
}

impl JobRun<'_> {
    #[inline]
    fn count(&mut self, header: &Header, times: &Times) {
        let counts = &mut self.counts;
        counts.results += 1;
        counts.fragments += u64::from(times.complete);
        counts.from_ps += u64::from(header.flags.has(Flags::FROM_PS));
        counts.collided += u64::from(header.flags.has(Flags::COLLISION));
        counts.marked += u64::from(header.flags.has(Flags::MARKED));
    }

    #[inline]
    fn record(&mut self, now: u64, times: &Times) {
        let (class, _) = self.plan.priorities.of(times.seq);
        let latencies = &mut self.latencies;
        let since = |then: u64| now.saturating_sub(then).max(1);
        latencies.corrected[class].saturating_record(since(times.due_last));
        latencies
            .from_first
            .saturating_record(since(times.due_first));
        latencies.uncorrected.saturating_record(since(times.sent));
        let late = times.sent.saturating_sub(times.due_last).max(1);
        latencies.late.saturating_record(late);
    }
}

const _: () = assert!(UDP_END + HEADER_BYTES == HEADERS_BYTES);
