//! `tally-perf load`: simulated workers load a switch that runs somewhere else, as hard as it takes or as
//! fast as it is told.
//!
//! # What it does
//!
//! It reads the switch's own configuration file, so it sends to no address that is not in there, and plays
//! the workers of its jobs and, unless told otherwise, their parameter servers: they join with the job's key,
//! contribute, take results, and leave. Every result's sum is checked; a wrong one ends the command with an
//! error. [`load`](crate::load) says how it works.
//!
//! *Closed loop*: `--window` fragments of each job are always under way; it finds the rate that the switch
//! takes. *Open loop*, with `--rate`: contributions are due by the clock, whatever comes back; it finds the
//! latency at that rate.
//!
//! It ends by itself: after `--seconds` (an hour at most) or `--frames`, and when interrupted. Then the
//! members leave, and the report is printed.
//!
//! # The catches
//!
//! - Latency is from when a fragment's *last* contribution was due to its result's arrival at a port, and so
//!   has the generator's own turns at both ends. In the open loop "due" is the clock's, so that the time
//!   in which something stood still counts for all that should have been sent meanwhile (corrected for
//!   coordinated omission); `uncorrected_us` leaves that out. In the closed loop due means that the window
//!   had room, and the latency is mostly the window's.
//! - Results leave a switch once for each port with workers. Workers that share a port share that frame, and
//!   its loss.
//! - One thread plays everybody. `idle_share` says how much of its time it had nothing to do; below 5 % the
//!   rate may be the generator's and not the switch's.
//! - It does not slow down for marks or collisions, as workers would.
//! - Seconds are those of the clock. On a machine that others use, that shows.

use crate::load::live::Live;
use crate::load::measure::{Counts, Latencies, Percentiles};
use crate::load::plan::{JobPlan, Plan, Priorities, Rate, Wishes};
use crate::load::rig::Rig;
use crate::load::run::{JobOutcome, LOST_AFTER_NS, Limits, Outcome, Peer, Run};
use anyhow::{Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tally_endpoint::PsStats;
use tally_report::{Machine, Report, Target};
use tally_wire::{Element, UNIT_BYTES};

/// The longest load.
const SECONDS_MAX: f64 = 3600.0;
/// The longest warm-up.
const WARM_UP_MAX: f64 = 60.0;
/// Most contributions of a load.
const FRAMES_MAX: u64 = 100_000_000_000;

/// What is loaded, and how.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The switch's own configuration file: nothing is sent to any other address
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// DPDK device at the other end of one of the switch's ports, once for each, in the order of the
    /// configuration or with the port's name in front: [NAME=]DEVICE. By default a client for each net_memif
    /// server
    #[arg(long = "port", value_name = "DEVICE")]
    ports: Vec<String>,

    /// Jobs to load; by default all of the configuration
    #[arg(long = "job", value_name = "ID")]
    jobs: Vec<u16>,

    /// Payload in bytes, a multiple of 64; by default 1024, or what the ports carry or the configuration fixes
    #[arg(long, value_name = "BYTES")]
    payload: Option<u16>,

    /// Element type
    #[arg(long, value_enum, default_value_t = ElementName::I32)]
    element: ElementName,

    /// Fragments of each job under way, at most; by default 64, or what the switch serves
    #[arg(long, value_name = "FRAGMENTS")]
    window: Option<u16>,

    /// Open loop: contributions of each job, all its workers together, in packets per second (500kpps,
    /// 2Mpps) or bits per second of their frames (10Gbps). Without it the loop is closed
    #[arg(long)]
    rate: Option<Rate>,

    /// Priorities and the weights with which fragments have them, as 0:50,200:50; of one job with its number
    /// in front, as 7=200:1
    #[arg(long, value_name = "[JOB=]P:WEIGHT,…", value_parser = priorities)]
    priorities: Vec<(Option<u16>, Priorities)>,

    /// Share of frames lost on purpose, sent and received, 0 to 0.5
    #[arg(long, default_value_t = 0.0)]
    loss: f64,

    /// Share of sent frames that others overtake, 0 to 0.5
    #[arg(long, default_value_t = 0.0)]
    reorder: f64,

    /// What decides which frames those are
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Compare every word of every result, and not only two lines of it
    #[arg(long)]
    verify: bool,

    /// Seconds for which contributions are made and measured, 3600 at most
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,

    /// Seconds before that which are not measured
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    warm_up: f64,

    /// Contributions in all, at most
    #[arg(long, default_value_t = FRAMES_MAX)]
    frames: u64,

    /// The jobs' parameter servers are other processes (tally-agent ps)
    #[arg(long)]
    external_ps: bool,

    /// CPU for the generator; by default the first one that is no data core of the configuration
    #[arg(long)]
    cpu: Option<usize>,

    /// IPv4 address of the first simulated host; by default 128.1 in the switch's /16
    #[arg(long, value_name = "IP")]
    first_host: Option<Ipv4Addr>,

    /// No live view on standard error
    #[arg(long)]
    quiet: bool,
}

/// Element types, as the protocol names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementName {
    /// 32-bit integers
    I32,
    /// 32-bit floats
    F32,
}

impl From<ElementName> for Element {
    fn from(name: ElementName) -> Self {
        match name {
            ElementName::I32 => Self::I32,
            ElementName::F32 => Self::F32,
        }
    }
}

fn priorities(text: &str) -> Result<(Option<u16>, Priorities), String> {
    let (job, list) = match text.split_once('=') {
        Some((job, list)) => {
            let wrong = |_| format!("`{job}`: the number of a job, in front of `=`");
            (Some(job.parse().map_err(wrong)?), list)
        }
        None => (None, text),
    };
    Ok((job, list.parse()?))
}

impl Args {
    fn check(&self) -> Result<()> {
        for (name, share) in [("--loss", self.loss), ("--reorder", self.reorder)] {
            ensure!((0.0..=0.5).contains(&share), "{name} {share}: 0 to 0.5");
        }
        let Self {
            seconds, warm_up, ..
        } = *self;
        ensure!(
            seconds > 0.0 && seconds <= SECONDS_MAX,
            "--seconds {seconds}: more than 0, and {SECONDS_MAX} at most"
        );
        ensure!(
            (0.0..=WARM_UP_MAX).contains(&warm_up),
            "--warm-up {warm_up}: 0 to {WARM_UP_MAX}"
        );
        ensure!(
            (1..=FRAMES_MAX).contains(&self.frames),
            "--frames {}: 1 to {FRAMES_MAX}",
            self.frames
        );
        Ok(())
    }

    fn wishes(&self) -> Wishes {
        Wishes {
            ports: self.ports.clone(),
            jobs: self.jobs.clone(),
            payload_bytes: self.payload,
            element: self.element.into(),
            window: self.window,
            rate: self.rate,
            priorities: self.priorities.clone(),
            external_ps: self.external_ps,
            first_host: self.first_host,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            measure: Duration::from_secs_f64(self.seconds),
            warm_up: Duration::from_secs_f64(self.warm_up),
            frames_max: self.frames,
            loss: self.loss,
            reorder: self.reorder,
            seed: self.seed,
            verify: self.verify,
        }
    }
}

/// A CPU for the generator: the first one that is no data core of the switch.
#[must_use]
pub fn own_cpu(plan: &Plan) -> Option<usize> {
    let cpus = core_affinity::get_core_ids().unwrap_or_default();
    let mut cpus = cpus.iter().map(|cpu| cpu.id);
    cpus.find(|cpu| !plan.switch_cores.contains(cpu))
}

#[derive(Serialize)]
struct Parameters {
    switch: String,
    ports: Vec<String>,
    cpu: Option<usize>,
    loop_is: &'static str,
    element: ElementName,
    seconds: f64,
    warm_up_s: f64,
    frames_max: u64,
    loss: f64,
    reorder: f64,
    seed: u64,
    verify: &'static str,
    external_ps: bool,
    jobs: Vec<JobParameters>,
}

#[derive(Serialize)]
struct JobParameters {
    id: u16,
    workers: usize,
    fixed: bool,
    payload_bytes: usize,
    window: u16,
    /// Contributions per second; none in the closed loop.
    frames_per_s: Option<f64>,
}

/// One job, or all of them, over the measured time.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Contributions made per second, of all workers.
    pub frames_per_s: f64,
    /// Their bits per second, from Ethernet header to the end of the payload.
    pub gbit_per_s: f64,
    /// Fragments finished per second.
    pub fragments_per_s: f64,
    /// Payload bits that each worker got summed per second; of several jobs, their sum.
    pub goodput_gbit_per_s: f64,
    /// Open loop: of the contributions that were due, those that were made.
    pub made_share: Option<f64>,
    /// From when a fragment's last contribution was due to its result at a port.
    pub latency_us: Percentiles,
    /// From when its first contribution was due.
    pub from_first_us: Percentiles,
    /// From when its last contribution was sent: not corrected for coordinated omission.
    pub uncorrected_us: Percentiles,
    /// From when its last contribution was due until it was sent.
    pub sent_late_us: Percentiles,
    /// Over the whole time, warm-up and end included.
    pub counts: Counts,
}

#[derive(Serialize)]
struct JobResults {
    id: u16,
    #[serde(flatten)]
    figures: Figures,
    priorities: Vec<ByPriority>,
    /// What its parameter server did, if we played it.
    ps: Option<PsCounts>,
}

#[derive(Serialize)]
struct ByPriority {
    priority: u8,
    latency_us: Percentiles,
}

#[derive(Serialize)]
struct PsCounts {
    partials: u64,
    results: u64,
    nacks: u64,
    reminds: u64,
}

impl From<&PsStats> for PsCounts {
    fn from(stats: &PsStats) -> Self {
        Self {
            partials: stats.partials,
            results: stats.results,
            nacks: stats.nacks,
            reminds: stats.reminds,
        }
    }
}

#[derive(Serialize)]
struct Results {
    all: Figures,
    jobs: Vec<JobResults>,
    measured_s: f64,
    /// Share of the measured time in which the generator had nothing to do.
    idle_share: f64,
    /// Whether the rate may be the generator's and not the switch's.
    generator_bound: bool,
    interrupted: bool,
    lost_on_purpose_sent: u64,
    lost_on_purpose_received: u64,
    reordered_on_purpose: u64,
    foreign_frames: u64,
}

/// Runs it.
///
/// # Errors
/// If it cannot begin, if a job breaks off, or if a sum is wrong.
pub fn run(args: &Args) -> Result<Report> {
    args.check()?;
    // Before this thread is put on one CPU, of which alone it would then know.
    let machine = Machine::detect();
    let plan = Plan::new(&args.config, &args.wishes())?;
    let cpu = args.cpu.or_else(|| own_cpu(&plan));
    let stop = stop_on_signals()?;
    // Before this thread is put on its CPU: the view is not to share it.
    let live = (!args.quiet).then(Live::start).transpose()?;
    let rig = Rig::new(&plan, args.element.into(), cpu)?;
    let mut wire = rig.open(&plan.ports)?;
    let seats = plan.jobs.iter();
    let seats = seats.flat_map(|job| job.workers.iter().chain(&job.ps));
    wire.find_switch(&plan.switch, seats)?;
    let limits = args.limits();
    let outcome = Run::to_the_end(&plan, Peer::Switch, &mut wire, &limits, live, &stop)?;
    drop((wire, rig));

    let parameters = parameters(args, &plan, cpu);
    let results = results(&plan, &outcome);
    let lost = results.all.counts.lost;
    let seconds = LOST_AFTER_NS / 1_000_000_000;
    let how =
        format!("fragments that had no result within {seconds} s, although sent again and again");
    let targets = vec![Target::at_most("lost", lost as f64, "fragments", 0.0, &how)];
    let table = table(&parameters, &results);
    Report::new(machine, &parameters, &results, targets, table)
}

/// A flag that SIGINT and SIGTERM set. The second one kills.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn parameters(args: &Args, plan: &Plan, cpu: Option<usize>) -> Parameters {
    let port = |port: &crate::load::plan::PortPlan| format!("{}={}", port.name, port.device);
    Parameters {
        switch: format!(
            "{} {} UDP {}",
            plan.switch.ip, plan.switch.mac, plan.switch.base_port
        ),
        ports: plan.ports.iter().map(port).collect(),
        cpu,
        loop_is: if args.rate.is_some() {
            "open"
        } else {
            "closed"
        },
        element: args.element,
        seconds: args.seconds,
        warm_up_s: args.warm_up,
        frames_max: args.frames,
        loss: args.loss,
        reorder: args.reorder,
        seed: args.seed,
        verify: if args.verify {
            "all words"
        } else {
            "two lines"
        },
        external_ps: args.external_ps,
        jobs: plan.jobs.iter().map(JobParameters::of).collect(),
    }
}

impl JobParameters {
    fn of(job: &JobPlan) -> Self {
        let frames_per_s = match job.pace {
            crate::load::flow::Pace::Closed => None,
            crate::load::flow::Pace::Open { interval_ns } => Some(1e9 / interval_ns),
        };
        Self {
            id: job.id.0,
            workers: job.workers.len(),
            fixed: job.is_fixed,
            payload_bytes: usize::from(job.units) * UNIT_BYTES,
            window: job.window,
            frames_per_s,
        }
    }
}

impl Figures {
    /// Of one job.
    #[must_use]
    pub fn of(plan: &JobPlan, job: &JobOutcome, seconds: f64) -> Self {
        let per_s = |n: u64| n as f64 / seconds;
        let frames_per_s = per_s(job.measured.frames_sent);
        let fragments_per_s = per_s(job.measured.fragments);
        let payload_bits = usize::from(plan.units) as f64 * UNIT_BYTES as f64 * 8.0;
        let Latencies {
            from_first,
            uncorrected,
            late,
            ..
        } = &job.latencies;
        Self {
            frames_per_s,
            gbit_per_s: frames_per_s * plan.frame_bytes() as f64 * 8.0 / 1e9,
            fragments_per_s,
            goodput_gbit_per_s: fragments_per_s * payload_bits / 1e9,
            made_share: job
                .due
                .map(|due| job.measured.frames_sent as f64 / due.max(1) as f64),
            latency_us: Percentiles::of(&job.latencies.all()),
            from_first_us: Percentiles::of(from_first),
            uncorrected_us: Percentiles::of(uncorrected),
            sent_late_us: Percentiles::of(late),
            counts: job.counts,
        }
    }
}

fn results(plan: &Plan, outcome: &Outcome) -> Results {
    let seconds = outcome.measured_s;
    let jobs: Vec<_> = plan
        .jobs
        .iter()
        .zip(&outcome.jobs)
        .map(|(plan, job)| JobResults {
            id: plan.id.0,
            figures: Figures::of(plan, job, seconds),
            priorities: plan
                .priorities
                .values()
                .zip(&job.latencies.corrected)
                .map(|(priority, latency)| ByPriority {
                    priority,
                    latency_us: Percentiles::of(latency),
                })
                .collect(),
            ps: job.ps.as_ref().map(PsCounts::from),
        })
        .collect();
    Results {
        all: all_of(&jobs, outcome),
        jobs,
        measured_s: seconds,
        idle_share: outcome.idle_share,
        generator_bound: outcome.is_generator_bound(),
        interrupted: outcome.interrupted,
        lost_on_purpose_sent: outcome.injected[0],
        lost_on_purpose_received: outcome.injected[1],
        reordered_on_purpose: outcome.injected[2],
        foreign_frames: outcome.foreign,
    }
}

/// All jobs together.
fn all_of(jobs: &[JobResults], outcome: &Outcome) -> Figures {
    let sum = |of: fn(&Figures) -> f64| jobs.iter().map(|job| of(&job.figures)).sum();
    let mut latencies = Latencies::new(1);
    for job in &outcome.jobs {
        latencies.corrected[0] += job.latencies.all();
        latencies.from_first += &job.latencies.from_first;
        latencies.uncorrected += &job.latencies.uncorrected;
        latencies.late += &job.latencies.late;
    }
    let due: Option<u64> = outcome.jobs.iter().map(|job| job.due).sum();
    let made: u64 = outcome
        .jobs
        .iter()
        .map(|job| job.measured.frames_sent)
        .sum();
    let counts = jobs.iter().map(|job| job.figures.counts);
    Figures {
        frames_per_s: sum(|f| f.frames_per_s),
        gbit_per_s: sum(|f| f.gbit_per_s),
        fragments_per_s: sum(|f| f.fragments_per_s),
        goodput_gbit_per_s: sum(|f| f.goodput_gbit_per_s),
        made_share: due.map(|due| made as f64 / due.max(1) as f64),
        latency_us: Percentiles::of(&latencies.corrected[0]),
        from_first_us: Percentiles::of(&latencies.from_first),
        uncorrected_us: Percentiles::of(&latencies.uncorrected),
        sent_late_us: Percentiles::of(&latencies.late),
        counts: counts.fold(Counts::default(), Counts::plus),
    }
}

fn table(parameters: &Parameters, results: &Results) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let cpu = match parameters.cpu {
        Some(cpu) => format!("on CPU {cpu}"),
        None => "on no CPU of its own".to_owned(),
    };
    let _ = writeln!(
        out,
        "{} loop against {}, {} ports, generator {cpu}\n{:.1} s measured{}",
        parameters.loop_is,
        parameters.switch,
        parameters.ports.len(),
        results.measured_s,
        if results.interrupted {
            ", INTERRUPTED"
        } else {
            ""
        },
    );
    let _ = writeln!(
        out,
        "\n{:<6} {:>7} {:>7} {:>6} {:>9} {:>9} {:>9} {:>7} {:>8} {:>8} {:>8} {:>6} {:>9} {:>8}",
        "job",
        "workers",
        "payload",
        "window",
        "Mframe/s",
        "Gbit/s in",
        "goodput",
        "made",
        "again",
        "collided",
        "by PS",
        "marked",
        "PS parts",
        "lost"
    );
    for (job, result) in parameters.jobs.iter().zip(&results.jobs) {
        let (f, c) = (&result.figures, &result.figures.counts);
        let share = |n: u64| format!("{:.2}%", 100.0 * n as f64 / c.results.max(1) as f64);
        let made = f
            .made_share
            .map_or("-".into(), |share| format!("{:.1}%", 100.0 * share));
        let _ = writeln!(
            out,
            "{:<6} {:>7} {:>7} {:>6} {:>9.3} {:>9.2} {:>9.2} {:>7} {:>8} {:>8} {:>8} {:>6} {:>9} {:>8}",
            job.id,
            job.workers,
            job.payload_bytes,
            job.window,
            f.frames_per_s / 1e6,
            f.gbit_per_s,
            f.goodput_gbit_per_s,
            made,
            c.frames_again,
            share(c.collided),
            share(c.from_ps),
            share(c.marked),
            result
                .ps
                .as_ref()
                .map_or("-".into(), |ps| ps.partials.to_string()),
            c.lost
        );
    }
    let _ = writeln!(
        out,
        "\n{:<26} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "all jobs, us", "p50", "p90", "p99", "p99.9", "p99.99", "max"
    );
    let mut row = |name: &str, p: &Percentiles| {
        let _ = writeln!(
            out,
            "{name:<26} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
            p.p50, p.p90, p.p99, p.p999, p.p9999, p.max
        );
    };
    row("last due to result", &results.all.latency_us);
    row("first due to result", &results.all.from_first_us);
    row("uncorrected (from sent)", &results.all.uncorrected_us);
    row("sent late", &results.all.sent_late_us);
    for job in results.jobs.iter().filter(|job| job.priorities.len() > 1) {
        for by in &job.priorities {
            let name = format!("job {} priority {}", job.id, by.priority);
            row(&name, &by.latency_us);
        }
    }
    let [sent, received, held] = [
        results.lost_on_purpose_sent,
        results.lost_on_purpose_received,
        results.reordered_on_purpose,
    ];
    if sent + received + held > 0 {
        let _ = writeln!(
            out,
            "\non purpose: {sent} frames lost when sent, {received} when received, {held} overtaken"
        );
    }
    let _ = writeln!(
        out,
        "\nEXACT: {} results of {} fragments compared with their sums ({}).\n\
         The generator had nothing to do in {:.0} % of the time{}.",
        results.all.counts.results,
        results.all.counts.fragments,
        parameters.verify,
        100.0 * results.idle_share,
        if results.generator_bound {
            ": the rate may be ITS limit and not the switch's"
        } else {
            ": it is not what limits the rate"
        }
    );
    out
}
