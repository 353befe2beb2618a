//! `tally-perf demo`: the main job, from start to proof.
//!
//! Workers all-reduce real gradients, then a larger synthetic tensor, through a real switch. Every
//! worker's result is compared bit for bit with a reference that shares no code with Tally: a
//! Python program that computes the sum from the specification.
//!
//! With `--card` the job is on a simulated FPGA card beside the switch, and in a last all-reduce the card is killed on
//! the spot: the job goes on in software.
//!
//! With `--restart` the switch, the parameter server or both are killed and started again in the
//! middle of each synthetic all-reduce, which must be exact all the same.

use crate::cluster::{
    Cluster, Cpus, Network, Process, Program, Restarted, Retransmissions, Spec, WorkerReport,
};
use crate::reference::{Inputs, Reference, Verdict};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tally_engine::PolicyName;
use tally_report::{Machine, Report, Target};
use tally_switch::report::CardReport;

/// The sets of real gradients, with what they are.
const REAL: [(&str, &str); 4] = [
    ("step0", "digits, step 0"),
    ("step40", "digits, step 40"),
    ("step399", "digits, step 399"),
    ("mixed", "digits, bf16 f16 f32 i32"),
];
/// Workers for which real gradients are recorded; further ranks take them again from the first.
const REAL_WORKERS: u8 = 8;
/// How often real gradients are summed where there is a card: once would be over before the job is on it.
const CARD_ROUNDS: &str = "30";
/// How often the sum is made in which the card is killed. In software it takes a few milliseconds.
const KILLED_ROUNDS: u64 = 8;
/// Ports of a switch that a card can name.
const CARD_PORTS: u32 = 16;
/// Time that a run may take, besides a second for each million of elements and worker.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of the demonstration.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Workers, 1 to 64
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,

    /// Elements of the synthetic tensor, by default 4M, which is four million, with --card 400k; 0 leaves it out
    #[arg(long, value_parser = parse_count)]
    elements: Option<u64>,

    /// Share of all frames that each worker and the parameter server drop on purpose, each way
    #[arg(long, default_value_t = 0.0)]
    loss: f64,

    /// Policy of the switch
    #[arg(long, default_value = "esa", value_parser = policy_names())]
    policy: String,

    /// Kill a process in the middle of each synthetic all-reduce, and start it again (needs root)
    #[arg(long, value_enum, value_name = "WHAT")]
    restart: Option<Restart>,

    /// Have the job on a simulated card, and kill that in the middle of a last all-reduce
    #[arg(long, conflicts_with_all = ["restart"])]
    card: bool,

    /// Slots of the switch, a power of two; by default what its cache holds
    #[arg(long)]
    slots: Option<u32>,

    /// Data cores of the switch, a power of two
    #[arg(long, default_value_t = 1)]
    cores: usize,

    /// How the processes reach each other; by default namespaces for root, memif otherwise
    #[arg(long, value_enum)]
    network: Option<Network>,

    /// Payload of a fragment in bytes, a multiple of 64 up to 8192
    #[arg(long, default_value_t = 1024)]
    payload: u16,

    /// Fragments that a worker may have unfinished, by default 256, with --card 64
    #[arg(long)]
    window: Option<u16>,

    /// Where the synthetic data and the losses start
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Folder of the real gradients
    #[arg(long, default_value = "worker-agent/gradients")]
    gradients: PathBuf,

    /// The reference program
    #[arg(long, default_value = "worker-agent/reference/check.py")]
    reference: PathBuf,
}

impl Args {
    fn elements(&self) -> u64 {
        // What a simulated card does in some seconds.
        let default = if self.card { 400_000 } else { 4_000_000 };
        self.elements.unwrap_or(default)
    }

    fn window(&self) -> u16 {
        // More would only wait for a simulated card.
        let default = if self.card { 64 } else { 256 };
        self.window.unwrap_or(default)
    }
}

/// What `--restart` kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Restart {
    /// The switch, half way
    Switch,
    /// The parameter server, half way
    Ps,
    /// The parameter server after a third, the switch after two
    Both,
}

impl Restart {
    /// Which processes, each after how many of how many parts of the fragments.
    fn plan(self) -> &'static [(Process, u64, u64)] {
        match self {
            Self::Switch => &[(Process::Switch, 1, 2)],
            Self::Ps => &[(Process::Ps, 1, 2)],
            Self::Both => &[(Process::Ps, 1, 3), (Process::Switch, 2, 3)],
        }
    }
}

/// What the switch has.
fn policy_names() -> Vec<&'static str> {
    PolicyName::ALL.iter().map(|(name, _)| *name).collect()
}

/// A number with an optional suffix k, M or G (powers of ten).
fn parse_count(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(|| format!("`{text}` is no count, as 4M or 250k"))
}

/// One all-reduce.
struct Workload {
    name: String,
    arithmetic: &'static str,
    data: Data,
    /// Whether the card is killed in the middle.
    kills_card: bool,
}

enum Data {
    Real(PathBuf),
    /// So many elements, of this type.
    Synthetic(u64, &'static str),
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    name: String,
    arithmetic: String,
    exact: bool,
    verdict: String,
    goodput_gbps: f64,
    seconds: f64,
    fragments: u64,
    from_switch: u64,
    from_ps: u64,
    retransmissions: Retransmissions,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    restarts: Vec<Restarted>,
    /// Results that the card finished, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    from_card: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    killed: Option<Killed>,
}

/// That the card was killed in mid-run.
#[derive(Clone, Copy, Debug, Serialize)]
struct Killed {
    /// Results of the job that had left the switch by then.
    results: u64,
    /// Data fragments of the job.
    fragments: u64,
    /// The longest time without a result from then on.
    standstill_ms: f64,
}

#[derive(Serialize)]
struct Parameters {
    network: Network,
    cpus: Cpus,
    workers: u8,
    elements: u64,
    loss: f64,
    seed: u64,
    policy: String,
    restart: Option<Restart>,
    card: bool,
    payload_bytes: u16,
    window: u16,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    switch: tally_switch::report::Report,
    ps: simd_json::OwnedValue,
}

/// Runs it.
///
/// # Errors
/// If anything could not be run. A wrong sum is no error of the run: it is in the report.
pub fn run(args: &Args) -> Result<Report> {
    ensure!(
        (0.0..0.9).contains(&args.loss),
        "--loss {}: 0 up to 0.9",
        args.loss
    );
    ensure!(
        args.payload > 0 && args.payload <= 8192 && args.payload.is_multiple_of(64),
        "--payload {}: a multiple of 64 up to 8192",
        args.payload
    );
    let network = args.network.unwrap_or_else(Network::for_this_user);
    if args.restart.is_some() {
        ensure!(
            network.carries_restarts(),
            "--restart: over memif a process connects once in its life, so none can come back; \
             restarts need --network namespaces, as root"
        );
        ensure!(
            args.elements() > 0,
            "--restart happens in the synthetic all-reduces, which --elements 0 leaves out"
        );
    }
    if args.card {
        ensure!(
            args.policy == "esa" && args.elements() > 0,
            "--card needs --policy esa, which is what cards do, and --elements for the all-reduce in which it is killed"
        );
    }
    let workloads = workloads(args)?;
    let spec = Spec {
        network,
        jobs: vec![args.workers],
        cores: args.cores,
        card: args.card,
        payload_bytes: args.payload,
        window: args.window(),
        policy: args.policy.clone(),
        slots: args.slots,
        loss: args.loss,
        loss_seed: args.seed,
        ..Spec::default()
    };
    eprintln!(
        "starting a switch and a parameter server ({})",
        network.describe()
    );
    let mut cluster = Cluster::start(spec)?;
    if args.card {
        eprintln!("starting a simulated card");
        cluster.start_card()?;
        let card = cluster.switch_report()?.card.unwrap_or_default();
        fits_card(args, &card)?;
    }
    let cpus = cluster.cpus().clone();
    let mut rows = Vec::new();
    for workload in &workloads {
        eprintln!(
            "{} workers all-reduce: {} ({})",
            args.workers, workload.name, workload.arithmetic
        );
        rows.push(run_one(args, &mut cluster, workload)?);
    }
    // The PS first: while it says goodbye, the switch must answer.
    let ps = cluster.stop_ps(0)?;
    let switch = cluster.stop_switch()?;
    let buffers_whole = switch.frames_missing == Some(0);
    let table = table(args, network, &cpus, &rows, &switch);
    let wrong = rows.iter().filter(|row| !row.exact).count() as f64;
    let mut targets = vec![
        Target::at_most(
            "inexact_runs",
            wrong,
            "runs",
            0.0,
            "every worker's result against the reference, bit for bit",
        ),
        Target::at_most(
            "buffers_missing",
            f64::from(u8::from(!buffers_whole)),
            "pools",
            0.0,
            "the switch's pool of frames is whole at its end",
        ),
    ];
    targets.extend(card_targets(&rows));
    let parameters = Parameters {
        network,
        cpus,
        workers: args.workers,
        elements: args.elements(),
        loss: args.loss,
        seed: args.seed,
        policy: args.policy.clone(),
        restart: args.restart,
        card: args.card,
        payload_bytes: args.payload,
        window: args.window(),
    };
    Report::new(
        Machine::detect(),
        &parameters,
        &Results { rows, switch, ps },
        targets,
        table,
    )
}

/// That the card did the work until it was killed, and that the job went on soon.
fn card_targets(rows: &[Row]) -> Vec<Target> {
    // The first fragments of a job come before it is on the card. Floats in rank order go to the PS, as far as they are
    // out of their turn.
    let on_card = rows
        .iter()
        .filter(|row| row.killed.is_none() && row.arithmetic == "fixed");
    let sum = on_card.fold((0, 0), |(card, all), row| {
        (card + row.from_card.unwrap_or(0), all + row.fragments)
    });
    let mut targets = Vec::new();
    if rows.iter().any(|row| row.from_card.is_some()) {
        targets.push(Target::at_least(
            "card_share",
            sum.0 as f64 / sum.1 as f64,
            "of results",
            0.5,
            "the card finished at least half of all sums in fixed point until it was killed",
        ));
    }
    targets.extend(rows.iter().filter_map(|row| row.killed).map(|killed| {
        Target::at_most(
            "standstill",
            killed.standstill_ms,
            "ms",
            1000.0,
            "the job goes on in software within a second after the card was killed",
        )
    }));
    targets
}

fn workloads(args: &Args) -> Result<Vec<Workload>> {
    let mut workloads = Vec::new();
    for (folder, name) in REAL {
        let digits = args.gradients.join("digits").join(folder);
        let path = if digits.exists() {
            digits
        } else {
            args.gradients.join(folder)
        };
        ensure!(
            path.exists(),
            "{}: no recorded gradients (run from the project's folder, or give --gradients)",
            path.display()
        );
        workloads.push(Workload {
            name: name.into(),
            arithmetic: "fixed",
            data: Data::Real(path.clone()),
            kills_card: false,
        });
        if folder == "mixed" {
            workloads.push(Workload {
                name: name.into(),
                arithmetic: "own",
                data: Data::Real(path.clone()),
                kills_card: false,
            });
        }
        if folder == "step40" {
            workloads.push(Workload {
                name: name.into(),
                arithmetic: "native",
                data: Data::Real(path),
                kills_card: false,
            });
        }
    }
    if args.elements() > 0 {
        for arithmetic in ["fixed", "native"] {
            workloads.push(Workload {
                name: format!("synthetic, {} elements", args.elements()),
                arithmetic,
                data: Data::Synthetic(args.elements(), "f32"),
                kills_card: false,
            });
        }
        for element in ["f16", "i8"] {
            workloads.push(Workload {
                name: format!("synthetic, {} elements {element}", args.elements()),
                arithmetic: "own",
                data: Data::Synthetic(args.elements(), element),
                kills_card: false,
            });
        }
    }
    if args.card {
        workloads.push(Workload {
            name: format!("the same, {} elements", args.elements()),
            arithmetic: "fixed",
            data: Data::Synthetic(args.elements(), "f32"),
            kills_card: true,
        });
    }
    Ok(workloads)
}

fn input(folder: &Path, rank: u8) -> PathBuf {
    folder.join(format!("rank{}.safetensors", rank % REAL_WORKERS))
}

fn run_one(args: &Args, cluster: &mut Cluster, workload: &Workload) -> Result<Row> {
    let before = cluster.results()?;
    let card_before = card_results(cluster)?;
    let mut workers = cluster.start_workers(0, |rank| {
        let mut arguments = vec!["--arithmetic".to_owned(), workload.arithmetic.to_owned()];
        match &workload.data {
            Data::Real(folder) => {
                arguments.extend([
                    "--input".to_owned(),
                    input(folder, rank).display().to_string(),
                ]);
                if args.card {
                    arguments.extend(["--repeat", CARD_ROUNDS].map(str::to_owned));
                }
            }
            Data::Synthetic(elements, element) => arguments.extend(
                [
                    "--synthetic",
                    "--element",
                    element,
                    "--elements",
                    &elements.to_string(),
                    "--seed",
                    &args.seed.to_string(),
                ]
                .map(str::to_owned),
            ),
        }
        if workload.kills_card {
            arguments.extend(["--repeat".to_owned(), KILLED_ROUNDS.to_string()]);
        }
        arguments
    })?;
    let (elements, element_bytes) = match workload.data {
        Data::Real(_) => (0, 0),
        Data::Synthetic(elements, "f16") => (elements, 2),
        Data::Synthetic(elements, "i8") => (elements, 1),
        Data::Synthetic(elements, _) => (elements, 4),
    };
    let patience = PATIENCE + Duration::from_micros(elements * u64::from(args.workers));
    let restarts = match args.restart {
        Some(restart) if elements > 0 => {
            let fragments = (elements * element_bytes).div_ceil(u64::from(args.payload));
            restart_all(restart, cluster, &mut workers, before, fragments)?
        }
        _ => Vec::new(),
    };
    let killed = if workload.kills_card {
        let fragments = (elements * element_bytes).div_ceil(u64::from(args.payload));
        let fragments = fragments * KILLED_ROUNDS;
        Some(kill_card(
            cluster,
            &mut workers,
            before,
            fragments,
            patience,
        )?)
    } else {
        None
    };
    for worker in workers {
        worker.wait_ok(patience)?;
    }
    let from_card = card_results(cluster)?.zip(card_before);
    let from_card = from_card.map(|(after, before)| after.saturating_sub(before));
    let reports: Vec<WorkerReport> = (0..args.workers)
        .map(|rank| cluster.worker_report(0, rank))
        .collect::<Result<_>>()?;
    let verdict = check(args, cluster, workload)?;
    // Of each figure, the worst worker's: the job is as fast as its slowest.
    let worst = |of: fn(&WorkerReport) -> f64| reports.iter().map(of).fold(0.0, f64::max);
    let first = reports.first().context("at least one worker")?;
    // It sends some again.
    let from_card = from_card.map(|results| results.min(first.fragments));
    Ok(Row {
        name: workload.name.clone(),
        arithmetic: workload.arithmetic.to_owned(),
        exact: verdict.exact,
        verdict: verdict.text,
        goodput_gbps: reports
            .iter()
            .map(|r| r.goodput_gbit_per_s)
            .fold(f64::INFINITY, f64::min),
        seconds: worst(|r| r.seconds),
        fragments: first.fragments,
        from_switch: first.from_switch,
        from_ps: first.from_ps,
        retransmissions: Retransmissions::of_all(reports.iter().map(|r| r.retransmissions)),
        p50_us: worst(|r| r.latency_us.p50),
        p99_us: worst(|r| r.latency_us.p99),
        p999_us: worst(|r| r.latency_us.p999),
        restarts,
        from_card,
        killed,
    })
}

/// That the card has room for the job, of which nothing would be on it otherwise.
fn fits_card(args: &Args, card: &CardReport) -> Result<()> {
    // The parameter server's port is one of those that a card knows.
    let workers_max = card.members.min(CARD_PORTS - 1);
    ensure!(
        (2..=workers_max).contains(&u32::from(args.workers)),
        "--workers {}: a job on the card has 2 to {workers_max}",
        args.workers
    );
    ensure!(
        u32::from(args.payload) <= card.payload_bytes,
        "--payload {}: the card has room for {}",
        args.payload,
        card.payload_bytes
    );
    ensure!(
        u32::from(args.window()) <= card.ring / 2,
        "--window {}: the card has results of {} fragments, half of which is the largest window",
        args.window(),
        card.ring
    );
    Ok(())
}

/// Results that the card has finished so far, if there is one.
fn card_results(cluster: &Cluster) -> Result<Option<u64>> {
    Ok(cluster.switch_report()?.card.map(|card| card.results))
}

/// Kills the card when it is about a third into the first sum, or when it has got the job, and sees to it that the switch says what became of the job.
fn kill_card(
    cluster: &mut Cluster,
    workers: &mut [Program],
    before: u64,
    fragments: u64,
    patience: Duration,
) -> Result<Killed> {
    let standstill = cluster.kill_card(before + fragments / KILLED_ROUNDS / 3, patience, || {
        let mut all = true;
        for worker in &mut *workers {
            all &= worker.is_running()?;
        }
        Ok(all)
    })?;
    let results = standstill.results - before;
    ensure!(
        results < fragments && standstill.time > Duration::ZERO,
        "the all-reduce was over before the card was killed, after {results} of {fragments} fragments: \
         --card needs more --elements"
    );
    let card = cluster.switch_report()?.card.unwrap_or_default();
    ensure!(
        card.failures > 0,
        "the card is dead, and to the switch it is {}",
        card.state
    );
    let standstill_ms = standstill.time.as_secs_f64() * 1e3;
    eprintln!(
        "  card killed after {results} of {fragments} fragments; the job went on in software after {standstill_ms:.0} ms"
    );
    Ok(Killed {
        results,
        fragments,
        standstill_ms,
    })
}

/// Kills and starts again, each process when its share of the fragments has results. `before` have
/// left the switch in earlier jobs.
fn restart_all(
    restart: Restart,
    cluster: &mut Cluster,
    workers: &mut [Program],
    before: u64,
    fragments: u64,
) -> Result<Vec<Restarted>> {
    let mut restarts = Vec::new();
    for &(process, part, parts) in restart.plan() {
        let at = before + fragments * part / parts;
        let results = cluster.wait_for_results(at, PATIENCE)? - before;
        let down = cluster.restart(process)?;
        for worker in &mut *workers {
            ensure!(
                results < fragments && worker.is_running()?,
                "the all-reduce was over before the {process} had come back: \
                 --restart needs more --elements"
            );
        }
        eprintln!("  {process} killed after {results} of {fragments} fragments, and back");
        restarts.push(Restarted {
            process,
            results,
            fragments,
            down_ms: down.as_secs_f64() * 1e3,
        });
    }
    Ok(restarts)
}

/// Asks the reference.
fn check(args: &Args, cluster: &Cluster, workload: &Workload) -> Result<Verdict> {
    let inputs = match &workload.data {
        Data::Real(folder) => {
            Inputs::Files((0..args.workers).map(|rank| input(folder, rank)).collect())
        }
        &Data::Synthetic(elements, element) => Inputs::Synthetic {
            seed: args.seed,
            element,
            elements,
            workers: args.workers,
        },
    };
    let reference = Reference {
        program: args.reference.clone(),
    };
    let outputs = (0..args.workers).map(|rank| cluster.output(0, rank));
    reference.check(workload.arithmetic, args.payload, &inputs, outputs)
}

fn table(
    args: &Args,
    network: Network,
    cpus: &Cpus,
    rows: &[Row],
    switch: &tally_switch::report::Report,
) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} workers, {}\npolicy {}, {} slots, payload {} B, window {}, loss {} %, seed {}\nswitch on CPU {}, workers and parameter server on CPU {}\n",
        args.workers,
        network.describe(),
        args.policy,
        switch.slots,
        args.payload,
        args.window(),
        args.loss * 100.0,
        args.seed,
        Cpus::list(&cpus.switch),
        Cpus::list(&cpus.hosts)
    );
    let _ = writeln!(
        out,
        "{:<28} {:<7} {:>7} {:>10} {:>10} {:>9} {:>8} {:>8} {:>9} {:>9} {:>9}{}",
        "gradients",
        "sum as",
        "exact",
        "Gbit/s",
        "fragments",
        "switch",
        "PS",
        "resent",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        if args.card { "   by card" } else { "" }
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<28} {:<7} {:>7} {:>10.3} {:>10} {:>9} {:>8} {:>8} {:>9.0} {:>9.0} {:>9.0}{}",
            row.name,
            row.arithmetic,
            if row.exact { "yes" } else { "NO" },
            row.goodput_gbps,
            row.fragments,
            row.from_switch,
            row.from_ps,
            row.retransmissions.sum(),
            row.p50_us,
            row.p99_us,
            row.p999_us,
            row.from_card.map_or(String::new(), |n| format!("{n:>10}"))
        );
    }
    for killed in rows.iter().filter_map(|row| row.killed) {
        let _ = writeln!(
            out,
            "\nThe card was killed after {} of {} fragments. The job went on in software, and stood still for {:.0} ms.",
            killed.results, killed.fragments, killed.standstill_ms
        );
    }
    if args.restart.is_some() {
        let _ = writeln!(out, "\nkilled in mid-run, and started again");
    }
    for row in rows {
        for restarted in &row.restarts {
            let _ = writeln!(
                out,
                "{:<28} {:<7} {} after {} of {} fragments, back in {:.0} ms",
                row.name,
                row.arithmetic,
                restarted.process,
                restarted.results,
                restarted.fragments,
                restarted.down_ms
            );
        }
    }
    let wrong: Vec<_> = rows.iter().filter(|row| !row.exact).collect();
    let _ = match wrong.as_slice() {
        [] => writeln!(out, "\nEXACT: every worker has every bit of every sum."),
        _ => writeln!(out, "\nWRONG: {} of {} runs.", wrong.len(), rows.len()),
    };
    for row in wrong {
        let _ = writeln!(out, "{} ({}):\n{}", row.name, row.arithmetic, row.verdict);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Args, CardReport, fits_card, parse_count};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_job_that_no_card_can_have_is_refused_with_what_it_can() {
        let card = CardReport {
            payload_bytes: 1024,
            members: 16,
            ring: 512,
            ..CardReport::default()
        };
        let told = |line: &str| {
            let line = format!("demo --card {line}");
            let Line { args } = Line::parse_from(line.split_whitespace());
            fits_card(&args, &card).map_err(|error| error.to_string())
        };
        for good in ["", "--workers 2", "--workers 15 --window 256"] {
            assert_eq!(told(good), Ok(()), "{good}");
        }
        for (bad, word) in [
            ("--workers 1", "2 to 15"),
            ("--workers 16", "2 to 15"),
            ("--payload 1088", "1024"),
            ("--window 257", "512"),
        ] {
            let error = told(bad).unwrap_err();
            assert!(error.contains(word) && error.contains(bad), "{error}");
        }
    }

    #[test]
    fn counts() {
        assert_eq!(parse_count("4M"), Ok(4_000_000));
        assert_eq!(parse_count("250k"), Ok(250_000));
        assert_eq!(parse_count("17"), Ok(17));
        for bad in [
            "",
            "M",
            "-1",
            "1.5M",
            "4MM",
            "99999999999999999999",
            "99999999999G",
        ] {
            assert!(parse_count(bad).is_err(), "{bad}");
        }
    }
}
