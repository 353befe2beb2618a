//! What `tally-load run` reports: figures of each job and of all together, as JSON and as a table.

use crate::args::{Args, ElementName};
use crate::flow::Pace;
use crate::measure::{Counts, Latencies, Percentiles};
use crate::plan::{JobPlan, Plan, PortPlan};
use crate::run::{JobOutcome, Outcome};
use serde::Serialize;
use std::fmt::Write as _;
use tally_endpoint::PsStats;
use tally_wire::UNIT_BYTES;

#[derive(Serialize)]
pub(crate) struct Parameters {
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
pub(crate) struct Results {
    pub all: Figures,
    jobs: Vec<JobResults>,
    measured_s: f64,
    /// Share of the measured time in which the generator was idle.
    idle_share: f64,
    /// Whether the rate may be the generator's and not the switch's.
    generator_bound: bool,
    interrupted: bool,
    lost_on_purpose_sent: u64,
    lost_on_purpose_received: u64,
    reordered_on_purpose: u64,
    foreign_frames: u64,
}

/// What was asked for.
pub(crate) fn parameters(args: &Args, plan: &Plan, cpu: Option<usize>) -> Parameters {
    let port = |port: &PortPlan| format!("{}={}", port.name, port.device);
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
            Pace::Closed => None,
            Pace::Open { interval_ns } => Some(1e9 / interval_ns),
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

/// What was measured.
pub(crate) fn results(plan: &Plan, outcome: &Outcome) -> Results {
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

/// The report for people.
pub(crate) fn table(parameters: &Parameters, results: &Results) -> String {
    let mut out = heading(parameters, results);
    out += &table_of_jobs(parameters, results);
    out += &table_of_latencies(results);
    out += &verdict(parameters, results);
    out
}

/// What was loaded, from where and for how long.
fn heading(parameters: &Parameters, results: &Results) -> String {
    let cpu = match parameters.cpu {
        Some(cpu) => format!("on CPU {cpu}"),
        None => "on no CPU of its own".to_owned(),
    };
    let interrupted = if results.interrupted {
        ", INTERRUPTED"
    } else {
        ""
    };
    format!(
        "{} loop against {}, {} ports, generator {cpu}\n{:.1} s measured{interrupted}\n",
        parameters.loop_is,
        parameters.switch,
        parameters.ports.len(),
        results.measured_s,
    )
}

/// A line for each job.
fn table_of_jobs(parameters: &Parameters, results: &Results) -> String {
    // Writing to a string does not fail.
    let mut out = String::new();
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
    out
}

/// Latencies of all jobs, then those of each priority of a job that has several.
fn table_of_latencies(results: &Results) -> String {
    let mut out = String::new();
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
    out
}

/// Faults that were injected, what was checked, and whether the generator limited the rate.
fn verdict(parameters: &Parameters, results: &Results) -> String {
    let mut out = String::new();
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
         The generator was idle {:.0} % of the time{}.",
        results.all.counts.results,
        results.all.counts.fragments,
        parameters.verify,
        100.0 * results.idle_share,
        if results.generator_bound {
            ": the rate may be ITS limit, not the switch's"
        } else {
            ": it is not what limits the rate"
        }
    );
    out
}
