//! `tally-perf policies`: several jobs share one switch and too little memory, under each policy.
//!
//! A small mix of training jobs as real processes: one that mostly communicates, one that mostly
//! computes, one in between, each with its own workers and parameter server. A round is a pause
//! that stands for computation, then an all-reduce. A job's completion time (JCT) is that of its
//! fixed number of rounds. All start together: their parameter servers, without which a job does
//! not run, are started last, side by side.
//!
//! The policies take turns within each repetition, on the same network and the same CPUs, and are
//! compared within it; the report has the median of the ratios. In the first repetition of each
//! policy every worker's result is compared with the reference, bit for bit, and later ones with
//! that.
//!
//! The pool is small. With the default number of slots for a window, one job of three workers alone
//! reaches about four fifths of its speed on two CPUs in namespaces; with a third of that number
//! less than half (`tally-perf demo --workers 3 --window N`). Whether a policy beats `static`
//! depends on the pool's size (docs/PERFORMANCE.md), so look at several.
//!
//! Catches: under `fcfs` every sum passes through the parameter server, so none counts as finished
//! by the switch. With few CPUs the hosts share one, and load on it (a parameter server that has to
//! finish much) weighs more than on machines of their own; a small job's JCT varies with all that
//! the kernel schedules. The table says which program had which CPU. The numbers of the mix are
//! fixed: a policy is improved, never its scenario.

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tally_engine::PolicyName;
use tally_report::{Machine, Report, Spread, Target};
use tally_schema::agent::report::{Report as WorkerReport, Retransmissions};
use tally_testkit::cluster::{Cluster, Cpus, Network, Program, Spec};
use tally_testkit::reference::{Inputs, Reference};

/// Time that one run of the mix may take.
const PATIENCE: Duration = Duration::from_secs(120);
const PAYLOAD_BYTES: u16 = 1024;
const WINDOW: u16 = 256;

/// One job of the mix.
#[derive(Clone, Copy, Debug, Serialize)]
struct Job {
    name: &'static str,
    workers: u8,
    /// Of its gradients, f32.
    elements: u64,
    /// The pause before each all-reduce.
    compute_ms: u32,
    rounds: u32,
}

/// Shaped after a large model with little computation (as VGG), a small one with much (as
/// ResNet50), and one between the two; small enough for two CPUs.
const MIX: [Job; 3] = [
    Job {
        name: "communication-heavy",
        workers: 3,
        elements: 400_000,
        compute_ms: 5,
        rounds: 8,
    },
    Job {
        name: "in between",
        workers: 3,
        elements: 200_000,
        compute_ms: 50,
        rounds: 8,
    },
    Job {
        name: "computation-heavy",
        workers: 2,
        elements: 100_000,
        compute_ms: 100,
        rounds: 8,
    },
];
/// Rounds with `--quick`.
const QUICK_ROUNDS: u32 = 2;

/// Arguments of the comparison.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Turns of each policy
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: u32,

    /// One repetition of a few rounds: a check that it works, not a measurement
    #[arg(long, conflicts_with = "repetitions")]
    quick: bool,

    /// Slots of the switch, a power of two; few, so that the jobs must share them
    #[arg(long, default_value_t = 8)]
    slots: u32,

    /// Network between the processes [default: namespaces for root, memif otherwise]
    #[arg(long, value_enum)]
    network: Option<Network>,

    /// Random seed of the synthetic gradients
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Reference program
    #[arg(long, default_value = "worker-agent/reference/check.py")]
    reference: PathBuf,
}

/// One job in one run.
#[derive(Clone, Debug, Serialize)]
struct JobRun {
    /// From its first contribution to its last result, of the slowest worker.
    jct_s: f64,
    from_switch: u64,
    from_ps: u64,
    retransmissions: Retransmissions,
}

/// The mix under one policy, once.
#[derive(Clone, Debug, Serialize)]
struct Run {
    policy: String,
    /// Bits of all gradients of one worker of each job, divided by the time of the longest job.
    goodput_gbps: f64,
    /// Mean of the jobs.
    jct_s: f64,
    /// From the first job's start to the last one's.
    start_skew_ms: f64,
    jobs: Vec<JobRun>,
    preemptions: u64,
    collisions: u64,
}

/// All runs of one policy.
#[derive(Clone, Debug, Serialize)]
struct Summary {
    policy: String,
    goodput_gbps: Spread,
    jct_s: Spread,
    /// Of each job.
    jobs_jct_s: Vec<Spread>,
    /// Of the results, those that the switch finished; the PS finished the others.
    switch_share: Spread,
    retransmissions: Spread,
}

/// A policy's figures by those of `esa` in the same repetition.
#[derive(Clone, Debug, Serialize)]
struct Ratio {
    policy: String,
    jct_over_esa: Spread,
    esa_goodput_over: Spread,
}

#[derive(Serialize)]
struct Parameters {
    network: Network,
    cpus: Cpus,
    mix: Vec<Job>,
    slots: u32,
    payload_bytes: u16,
    window: u16,
    repetitions: u32,
    seed: u64,
}

#[derive(Serialize)]
struct Results {
    policies: Vec<Summary>,
    ratios: Vec<Ratio>,
    runs: Vec<Run>,
}

/// Runs it.
///
/// # Errors
/// If anything could not be run, and if any worker's result is wrong.
pub fn run(args: &Args) -> Result<Report> {
    let network = args.network.unwrap_or_else(Network::for_this_user);
    let mut mix = MIX.to_vec();
    let mut repetitions = args.repetitions;
    if args.quick {
        repetitions = 1;
        for job in &mut mix {
            job.rounds = QUICK_ROUNDS;
        }
    }
    let mut cluster = Cluster::new(Spec {
        network,
        jobs: mix.iter().map(|job| job.workers).collect(),
        payload_bytes: PAYLOAD_BYTES,
        window: WINDOW,
        slots: Some(args.slots),
        ..Spec::default()
    })?;
    let cpus = cluster.cpus().clone();
    let mut mixed = Mixed {
        args,
        mix: &mix,
        cluster: &mut cluster,
        results: Vec::new(),
    };
    let mut runs = Vec::new();
    for repetition in 1..=repetitions {
        for (_, policy) in PolicyName::ALL {
            eprintln!("repetition {repetition} of {repetitions}: {policy}");
            let run = mixed.run(policy);
            runs.push(run.with_context(|| format!("under {policy}"))?);
        }
    }
    drop(cluster);

    let policies: Vec<_> = PolicyName::ALL
        .iter()
        .map(|(policy, _)| summary(policy, &runs, mix.len()))
        .collect::<Result<_>>()?;
    let ratios = ratios(&runs)?;
    let parameters = Parameters {
        network,
        cpus,
        mix,
        slots: args.slots,
        payload_bytes: PAYLOAD_BYTES,
        window: WINDOW,
        repetitions,
        seed: args.seed,
    };
    let results = Results {
        policies,
        ratios,
        runs,
    };
    let table = table(&parameters, &results);
    let targets = targets(args, &results.ratios);
    Report::new(Machine::detect(), &parameters, &results, targets, table)
}

/// What the runs of the mix have in common.
struct Mixed<'a> {
    args: &'a Args,
    mix: &'a [Job],
    cluster: &'a mut Cluster,
    /// Each job's result, once the reference has found it right.
    results: Vec<(PolicyName, Vec<Vec<u8>>)>,
}

impl Mixed<'_> {
    /// Runs all jobs at once, once.
    fn run(&mut self, policy: PolicyName) -> Result<Run> {
        self.cluster.set_policy(policy);
        self.cluster.start_switch()?;
        let mut workers = Vec::new();
        for (number, job) in self.mix.iter().enumerate() {
            let seed = self.seed(number);
            let arguments = [
                ("--elements", job.elements),
                ("--seed", seed),
                ("--repeat", job.rounds.into()),
                ("--compute", job.compute_ms.into()),
            ];
            let arguments = arguments.map(|(name, value)| [name.to_owned(), value.to_string()]);
            let arguments: Vec<_> = ["--synthetic".to_owned()]
                .into_iter()
                .chain(arguments.into_iter().flatten())
                .collect();
            workers.push(self.cluster.start_workers(number, |_| arguments.clone())?);
        }
        // No job runs before its PS is there: these start the jobs, together.
        for job in 0..self.mix.len() {
            self.cluster.start_ps(job)?;
        }
        let start_skew = wait_for_start(&mut workers)?;
        for worker in workers.into_iter().flatten() {
            worker.wait_ok(PATIENCE)?;
        }
        // The parameter servers first: while they say goodbye, the switch must answer.
        for job in 0..self.mix.len() {
            self.cluster.stop_ps(job)?;
        }
        let switch = self.cluster.stop_switch()?;
        ensure!(
            switch.frames_missing == Some(0),
            "frames of the switch's pool are missing at its end: {:?}",
            switch.frames_missing
        );
        self.check(policy)?;

        let jobs: Vec<_> = (0..self.mix.len())
            .map(|job| self.job_run(job))
            .collect::<Result<_>>()?;
        let bits: f64 = self
            .mix
            .iter()
            .map(|job| (job.elements * 32 * u64::from(job.rounds)) as f64)
            .sum();
        let longest = jobs.iter().map(|job| job.jct_s).fold(0.0, f64::max);
        let counter = |name: &str| switch.counters.get(name).copied().unwrap_or(0);
        Ok(Run {
            policy: policy.to_string(),
            goodput_gbps: bits / longest / 1e9,
            jct_s: jobs.iter().map(|job| job.jct_s).sum::<f64>() / jobs.len() as f64,
            start_skew_ms: start_skew.as_secs_f64() * 1e3,
            jobs,
            preemptions: counter("preemptions"),
            collisions: counter("collisions"),
        })
    }

    /// Every job sums numbers of its own.
    fn seed(&self, job: usize) -> u64 {
        self.args.seed.wrapping_add(job as u64)
    }

    fn job_run(&self, job: usize) -> Result<JobRun> {
        let reports: Vec<WorkerReport> = (0..self.mix[job].workers)
            .map(|rank| self.cluster.worker_report(job, rank))
            .collect::<Result<_>>()?;
        let first = reports.first().context("at least one worker")?;
        Ok(JobRun {
            jct_s: reports.iter().map(|r| r.seconds).fold(0.0, f64::max),
            from_switch: first.from_switch,
            from_ps: first.from_ps,
            retransmissions: Retransmissions::of_all(reports.iter().map(|r| r.retransmissions)),
        })
    }

    /// Compares every worker's result: the first time under a policy with the reference, later
    /// with what the reference has found right.
    fn check(&mut self, policy: PolicyName) -> Result<()> {
        let outputs = |job: usize| {
            let cluster = &*self.cluster;
            (0..self.mix[job].workers).map(move |rank| cluster.output(job, rank))
        };
        let right = self.results.iter().find(|(of, _)| *of == policy);
        if let Some((_, right)) = right {
            for (job, right) in right.iter().enumerate() {
                for output in outputs(job) {
                    ensure!(
                        std::fs::read(&output)? == *right,
                        "{}: other bits than in the first repetition",
                        output.display()
                    );
                }
            }
            return Ok(());
        }
        let reference = Reference {
            program: self.args.reference.clone(),
        };
        let mut right = Vec::new();
        for (number, job) in self.mix.iter().enumerate() {
            let inputs = Inputs::Synthetic {
                seed: self.seed(number),
                element: "f32",
                elements: job.elements,
                workers: job.workers.into(),
            };
            let verdict = reference.check("fixed", PAYLOAD_BYTES, &inputs, outputs(number))?;
            if !verdict.exact {
                bail!("the {} job is wrong: {}", job.name, verdict.text);
            }
            right.push(std::fs::read(self.cluster.output(number, 0))?);
        }
        self.results.push((policy, right));
        Ok(())
    }
}

/// Waits until each job runs, and gives the time between the first and the last.
fn wait_for_start(workers: &mut [Vec<Program>]) -> Result<Duration> {
    let mut started = vec![None; workers.len()];
    let begin = Instant::now();
    while started.contains(&None) {
        for (started, workers) in started.iter_mut().zip(&mut *workers) {
            let worker = workers.first_mut().context("at least one worker")?;
            if started.is_none() && worker.log().contains("running, epoch") {
                *started = Some(Instant::now());
            }
            ensure!(
                worker.is_running()? || started.is_some(),
                "a worker ended before its job ran:\n{}",
                worker.log()
            );
        }
        ensure!(
            begin.elapsed() < PATIENCE,
            "not all jobs run after {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    let started: Vec<_> = started.into_iter().flatten().collect();
    let first = started.iter().min().context("at least one job")?;
    let last = started.iter().max().context("at least one job")?;
    Ok(*last - *first)
}

fn spread(samples: impl IntoIterator<Item = f64>) -> Result<Spread> {
    let samples: Vec<_> = samples.into_iter().collect();
    Spread::of(&samples).context("at least one repetition")
}

fn summary(policy: &str, runs: &[Run], jobs: usize) -> Result<Summary> {
    let runs: Vec<_> = runs.iter().filter(|run| run.policy == policy).collect();
    let of = |figure: fn(&Run) -> f64| spread(runs.iter().map(|run| figure(run)));
    Ok(Summary {
        policy: policy.to_owned(),
        goodput_gbps: of(|run| run.goodput_gbps)?,
        jct_s: of(|run| run.jct_s)?,
        jobs_jct_s: (0..jobs)
            .map(|job| spread(runs.iter().map(|run| run.jobs[job].jct_s)))
            .collect::<Result<_>>()?,
        switch_share: of(|run| {
            let sum = |of: fn(&JobRun) -> u64| run.jobs.iter().map(of).sum::<u64>() as f64;
            let switch = sum(|job| job.from_switch);
            switch / (switch + sum(|job| job.from_ps))
        })?,
        retransmissions: of(|run| {
            let all = run.jobs.iter().map(|job| job.retransmissions);
            Retransmissions::of_all(all).nack as f64
        })?,
    })
}

/// Each policy but `esa`, beside the `esa` of the same repetition.
fn ratios(runs: &[Run]) -> Result<Vec<Ratio>> {
    let of = |policy: &str| {
        let policy = policy.to_owned();
        runs.iter().filter(move |run| run.policy == policy)
    };
    PolicyName::ALL
        .iter()
        .filter(|(policy, _)| *policy != "esa")
        .map(|(policy, _)| {
            let pairs = || of(policy).zip(of("esa"));
            Ok(Ratio {
                policy: (*policy).to_owned(),
                jct_over_esa: spread(pairs().map(|(other, esa)| other.jct_s / esa.jct_s))?,
                esa_goodput_over: spread(
                    pairs().map(|(other, esa)| esa.goodput_gbps / other.goodput_gbps),
                )?,
            })
        })
        .collect()
}

fn targets(args: &Args, ratios: &[Ratio]) -> Vec<Target> {
    let target = |ratio: &Ratio| {
        let name = format!("jct_{}_over_esa", ratio.policy);
        if args.quick {
            return Target::not_measured(&name, "ratio", 1.0, "--quick says nothing of speed");
        }
        let Spread { median, min, max } = ratio.jct_over_esa;
        let how = format!(
            "median of the mean job completion times' ratio within a repetition; {min:.2} to {max:.2}"
        );
        Target::at_least(&name, median, "ratio", 1.0, &how)
    };
    ratios.iter().map(target).collect()
}

fn table(parameters: &Parameters, results: &Results) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{} jobs at once, {}\n{} slots, payload {} B, window {}, {} repetitions, seed {}\nswitch on CPU {}, all workers and parameter servers on CPU {}\n",
        parameters.mix.len(),
        parameters.network.describe(),
        parameters.slots,
        parameters.payload_bytes,
        parameters.window,
        parameters.repetitions,
        parameters.seed,
        Cpus::list(&parameters.cpus.switch),
        Cpus::list(&parameters.cpus.hosts)
    );
    for (number, job) in parameters.mix.iter().enumerate() {
        let _ = writeln!(
            out,
            "job {}  {:<20} {} workers, {} rounds of {} ms and {} elements",
            number + 1,
            job.name,
            job.workers,
            job.rounds,
            job.compute_ms,
            job.elements
        );
    }
    let _ = write!(
        out,
        "\n{:<7} {:>22} {:>22}",
        "policy", "Gbit/s (least-most)", "mean JCT s"
    );
    for number in 1..=parameters.mix.len() {
        let _ = write!(out, " {:>8}", format!("job {number} s"));
    }
    let _ = writeln!(out, " {:>9} {:>8}", "by switch", "resent");
    let range = |s: &Spread| format!("{:.3} ({:.3}-{:.3})", s.median, s.min, s.max);
    for policy in &results.policies {
        let _ = write!(
            out,
            "{:<7} {:>22} {:>22}",
            policy.policy,
            range(&policy.goodput_gbps),
            range(&policy.jct_s)
        );
        for job in &policy.jobs_jct_s {
            let _ = write!(out, " {:>8.3}", job.median);
        }
        let _ = writeln!(
            out,
            " {:>8.1}% {:>8.0}",
            policy.switch_share.median * 100.0,
            policy.retransmissions.median
        );
    }
    let _ = writeln!(out);
    for ratio in &results.ratios {
        let _ = writeln!(
            out,
            "{:<7} mean JCT by that of esa {}, goodput of esa by its own {}",
            ratio.policy,
            range(&ratio.jct_over_esa),
            range(&ratio.esa_goodput_over)
        );
    }
    let skew = results.runs.iter().map(|run| run.start_skew_ms);
    let _ = writeln!(
        out,
        "\nEXACT: every worker has every bit of every sum. The jobs of a run started within {:.0} ms.",
        skew.fold(0.0, f64::max)
    );
    out
}
