//! One worker's all-reduce, from JOIN to LEAVE, over any link.

use crate::config::{Transport, WorkerConfig};
use crate::doctor;
use crate::error::AgentError;
use crate::link::loss::{Loss, Lossy};
use crate::link::udp::Group;
use crate::link::{Link, LinkError};
use crate::report::{Congestion, Report, micros};
use crate::rounds::{Plan, Rounds};
use crate::tensors::Tensors;
use crate::vector::{Arithmetic, Vector};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_endpoint::{Ecn, Event, Members, Time, Worker};
use tally_kernels::Backend;
use tally_wire::control::Shape;

/// How long to wait at most before looking at the stop flag again.
pub(crate) const IDLE_MAX: Duration = Duration::from_millis(50);
/// Batches received in a row before anything else gets its turn.
const RECEIVES_MAX: usize = 32;
/// The part of a result's typical time for which more may gather. Less is too short for a sleep, more
/// would delay others.
const GATHER_DIVISOR: u32 = 16;
const GATHER_MIN: Duration = Duration::from_micros(60);
const GATHER_MAX: Duration = Duration::from_micros(500);
/// Between two calls of [`Observer::progress`].
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// What becomes of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Op {
    /// Their sum over all workers.
    Sum,
    /// The sum divided by the number of workers.
    Mean,
}

impl Op {
    /// The name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
        }
    }
}

/// How to run an all-reduce.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What becomes of the tensors.
    pub op: Op,
    /// How floats are summed.
    pub arithmetic: Arithmetic,
    /// How often, for measurements; all workers need the same number.
    pub rounds: u32,
    /// The pause before each round, which stands for a framework's computing. Where workers' pauses
    /// differ, the stall timeout bounds by how much.
    pub compute: Duration,
    /// Losses on purpose.
    pub loss: Option<Loss>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            op: Op::Sum,
            arithmetic: Arithmetic::Fixed,
            rounds: 1,
            compute: Duration::ZERO,
            loss: None,
        }
    }
}

/// Who wants to know how it goes.
pub trait Observer {
    /// The job waits for members.
    fn waiting(&mut self, members: Members);
    /// The job runs.
    fn running(&mut self, epoch: u16);
    /// So many fragments of all rounds have their results. Called ten times a second, and at the
    /// end.
    fn progress(&mut self, done: u64, total: u64);
}

/// Nobody does.
impl Observer for () {
    fn waiting(&mut self, _: Members) {}
    fn running(&mut self, _: u16) {}
    fn progress(&mut self, _: u64, _: u64) {}
}

/// Opens the link that `transport` describes.
///
/// # Errors
/// If it cannot be opened.
pub fn open_link(
    transport: &Transport,
    switch: crate::config::SwitchAddress,
    group: Option<Group>,
    units: Option<u8>,
) -> Result<Box<dyn Link>, LinkError> {
    match transport {
        Transport::Udp { bind } => {
            let link = crate::link::udp::UdpLink::open(*bind, switch.address, group, units)?;
            Ok(Box::new(link))
        }
        #[cfg(feature = "dpdk")]
        Transport::Dpdk {
            eal,
            device,
            mac,
            address,
            port,
        } => {
            use crate::link::dpdk::{DpdkPort, START_FOR};
            let (mac, address) = (*mac, *address);
            let local = crate::link::ethernet::Local { mac, address };
            let mut port = DpdkPort::new(eal, device, local, *port, switch.address, units)?;
            port.connect(START_FOR)?;
            Ok(Box::new(port.link(group.map(|it| it.address))))
        }
        #[cfg(not(feature = "dpdk"))]
        Transport::Dpdk { .. } => Err(LinkError::NoDpdk),
    }
}

/// Sums `input` with the other workers of the job. Returns the result, in the tensors' layout, and
/// a report. When `stop` becomes true the job is left, which ends it for the others as well.
///
/// # Errors
/// Whatever keeps the result from being complete and right.
///
/// # Panics
/// If `config` has no rank, or has not passed its check.
pub fn allreduce(
    config: &WorkerConfig,
    options: &Options,
    input: &Tensors,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<(Tensors, Report), AgentError> {
    let (group, units) = (Some(config.group()), Some(config.units()));
    let link = open_link(&config.transport, config.switch, group, units)?;
    match options.loss {
        Some(loss) => over(
            Lossy::new(link, loss),
            config,
            options,
            input,
            observer,
            stop,
        ),
        None => over(link, config, options, input, observer, stop),
    }
}

/// As [`allreduce`], over a link that is open.
///
/// # Errors
/// As [`allreduce`].
///
/// # Panics
/// As [`allreduce`].
pub fn over(
    mut link: impl Link,
    config: &WorkerConfig,
    options: &Options,
    input: &Tensors,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<(Tensors, Report), AgentError> {
    let job = &config.job;
    let rank = job
        .rank
        .expect("the caller has made sure that there is a rank");
    let shape = input
        .layout
        .digest(options.arithmetic.name(), config.payload_bytes);
    let session = session_of(config, rank, shape)?;
    let payload_bytes = config.payload_bytes as usize;
    let mut vector = Vector::new(
        input,
        options.arithmetic,
        job.workers,
        config.window,
        payload_bytes,
    );
    let clock = Clock::start();
    let mut worker = Worker::new(clock.now(), session);
    let mut rounds = Rounds::new(Plan {
        rounds: options.rounds,
        fragments: vector.fragments(),
        compute: options.compute,
        priority: job.priority,
    });
    let total = rounds.fragments();

    let (mut first_sent, mut last_result) = (None, Time(0));
    let mut epoch = None;
    let mut next_progress = clock.now().after(PROGRESS_EVERY);
    let outcome = 'session: loop {
        let now = clock.now();
        let delivered = worker.delivered();
        let received = receive_all(&mut link, &mut |ecn, datagram| {
            worker.handle_datagram(now, ecn, datagram, &mut vector);
        })?;
        link.pin(worker.switch_mac(now));
        if worker.delivered() != delivered {
            last_result = now;
        }
        if stop.load(Ordering::Relaxed) {
            worker.interrupt(now);
        }
        if worker.poll_timeout().is_some_and(|at| at <= now) {
            worker.handle_timeout(now);
        }
        let now = clock.now();
        let sent = link.send(&mut |out| worker.poll_transmit(now, out, &mut vector))?;
        if first_sent.is_none() && worker.stats().fragments > 0 {
            first_sent = Some(now);
        }
        while let Some(event) = worker.poll_event() {
            match event {
                Event::Waiting(members) => observer.waiting(members),
                Event::Running { epoch: e } => {
                    epoch = Some(e.0);
                    observer.running(e.0);
                    rounds.running(now);
                }
                Event::Delivered => rounds.delivered(now),
                Event::Finished => break 'session Ok(()),
                Event::Failed(error) => break 'session Err(error),
            }
        }
        let begun = rounds.poll(now, &mut worker, || vector.next_round());
        if next_progress <= now && epoch.is_some() {
            next_progress = now.after(PROGRESS_EVERY);
            observer.progress(worker.delivered(), total);
        }
        if received == 0 && sent == 0 && !begun {
            let next = [worker.poll_timeout(), rounds.deadline()];
            let next = next.into_iter().flatten().min();
            let until = next.map_or(IDLE_MAX, |at| at.since(now));
            link.wait(until.min(IDLE_MAX), gather(&worker), None)?;
        }
    };
    if let Err(error) = outcome {
        let obstacle = doctor::obstacle(&config.transport, config.payload_bytes);
        let trouble = obstacle.or_else(|| link.trouble());
        let tensors = |fragment| Some(vector.names_in(fragment));
        let began = epoch.is_some();
        return Err(AgentError::of_session(
            error, job.id, rank, began, trouble, tensors,
        ));
    }
    observer.progress(worker.delivered(), total);

    let stats = worker.stats();
    let seconds = last_result
        .since(first_sent.unwrap_or(last_result))
        .as_secs_f64();
    let tensor_bytes = input.layout.bytes() as u64;
    let bits = tensor_bytes as f64 * 8.0 * f64::from(options.rounds);
    let report = Report {
        job: job.id,
        epoch: epoch.unwrap_or(0),
        rank,
        workers: job.workers,
        op: options.op.name(),
        arithmetic: options.arithmetic.name(),
        transport: match config.transport {
            Transport::Udp { .. } => "udp",
            Transport::Dpdk { .. } => "dpdk",
        },
        kernels: Backend::best().name(),
        payload_bytes: config.payload_bytes,
        window: config.window,
        rounds: options.rounds,
        elements: (input.layout.floats + input.layout.ints) as u64,
        tensor_bytes,
        seconds,
        job_seconds: last_result
            .since(rounds.began().unwrap_or(last_result))
            .as_secs_f64(),
        round_seconds: rounds.times().iter().map(Duration::as_secs_f64).collect(),
        compute_ms: options.compute.as_secs_f64() * 1e3,
        goodput_gbit_per_s: if seconds > 0.0 {
            bits / seconds / 1e9
        } else {
            0.0
        },
        fragments: stats.fragments,
        from_switch: stats.from_switch,
        from_ps: stats.from_ps,
        retransmissions: stats.into(),
        results_resent: stats.results_resent,
        duplicates: stats.duplicates,
        late: stats.late,
        foreign: stats.foreign,
        priority_min: rounds.priorities().map(|p| p.0),
        priority_max: rounds.priorities().map(|p| p.1),
        congestion: Congestion::new(worker.windows(), &stats.congestion),
        latency_us: (&vector.latency_ns).into(),
        typical_us: worker.typical_latency().map(micros),
        rto_us: micros(worker.rto()),
        loss: link.losses(),
    };
    let mut output = vector.output;
    if options.op == Op::Mean {
        output.divide_by(job.workers);
    }
    Ok((output, report))
}

/// Lends all that has come to `take`, before the clock says what has not: a worker that was asleep finds
/// its results waiting and its timers run out. Returns how many datagrams there were.
pub(crate) fn receive_all(
    link: &mut (impl Link + ?Sized),
    take: &mut dyn FnMut(Ecn, &[u8]),
) -> Result<usize, LinkError> {
    let mut received = 0;
    for _ in 0..RECEIVES_MAX {
        let batch = link.receive(take)?;
        received += batch;
        if batch == 0 {
            break;
        }
    }
    Ok(received)
}

/// How long it pays to let results gather: a small part of the time that they take, where they take
/// long because many are under way.
pub(crate) fn gather(worker: &Worker) -> Duration {
    let typical = worker.typical_latency().unwrap_or_default();
    let part = typical / GATHER_DIVISOR;
    if part < GATHER_MIN {
        Duration::ZERO
    } else {
        part.min(GATHER_MAX)
    }
}

/// What the endpoint is to know of a worker whose members agree on that shape.
pub(crate) fn session_of(
    config: &WorkerConfig,
    rank: u8,
    shape: Shape,
) -> Result<tally_endpoint::WorkerConfig, AgentError> {
    let job = &config.job;
    let (id, key) = (job.job_id(), job.key.clone());
    let instance = instance()?;
    let mut session =
        tally_endpoint::WorkerConfig::new(id, key, rank, job.workers, shape, instance);
    session.units = config.units();
    session.window = config.window;
    session.port = config.switch.port;
    session.join_timeout = config.timeouts.join();
    session.stall_timeout = config.timeouts.stall();
    session.linger = config.timeouts.linger();
    Ok(session)
}

/// A random number that names this session (J-1).
pub(crate) fn instance() -> Result<u64, AgentError> {
    loop {
        match getrandom::u64() {
            Ok(0) => {}
            Ok(instance) => return Ok(instance),
            Err(e) => return Err(AgentError::Random(e)),
        }
    }
}

/// The sessions' clock.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Time {
        Time(0).after(self.0.elapsed())
    }
}
