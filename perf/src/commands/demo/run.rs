//! One all-reduce of the demonstration, compared with the reference.

use super::faults::{KILLED_ROUNDS, Killed, card_results, kill_card, restart_all};
use super::workloads::{Data, Workload, input};
use super::{Args, PATIENCE};
use anyhow::{Context, Result};
use serde::Serialize;
use std::time::Duration;
use tally_schema::agent::report::{Report as WorkerReport, Retransmissions};
use tally_testkit::cluster::{Cluster, Restarted};
use tally_testkit::reference::{Inputs, Reference, Verdict};

/// How often real gradients are summed with a card: one sum would end before the job is on it.
const CARD_ROUNDS: &str = "30";

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub arithmetic: String,
    pub exact: bool,
    pub verdict: String,
    pub goodput_gbps: f64,
    pub seconds: f64,
    pub fragments: u64,
    pub from_switch: u64,
    pub from_ps: u64,
    pub retransmissions: Retransmissions,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub restarts: Vec<Restarted>,
    /// Results that the card finished, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_card: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed: Option<Killed>,
}

pub fn run_one(args: &Args, cluster: &mut Cluster, workload: &Workload) -> Result<Row> {
    let before = cluster.results()?;
    let card_before = card_results(cluster)?;
    let mut workers =
        cluster.start_workers(0, |rank| arguments(args, workload, args.seed, rank.into()))?;
    let (elements, element_bytes) = workload.size();
    let patience = PATIENCE + Duration::from_micros(elements * u64::from(args.workers));
    let restarts = match args.restart() {
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
        p999_us: worst(|r| r.latency_us.p99_9),
        restarts,
        from_card,
        killed,
    })
}

/// What the worker of that rank is told of a workload.
pub fn arguments(args: &Args, workload: &Workload, seed: u64, rank: u16) -> Vec<String> {
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
                &seed.to_string(),
            ]
            .map(str::to_owned),
        ),
    }
    if workload.kills_card {
        arguments.extend(["--repeat".to_owned(), KILLED_ROUNDS.to_string()]);
    }
    arguments
}

/// Asks the reference.
fn check(args: &Args, cluster: &Cluster, workload: &Workload) -> Result<Verdict> {
    let inputs = inputs(workload, args.seed, args.workers.into());
    let reference = Reference {
        program: args.reference.clone(),
    };
    let outputs = (0..args.workers).map(|rank| cluster.output(0, rank));
    reference.check(workload.arithmetic, args.payload, &inputs, outputs)
}

/// What the workers of a job sum.
pub fn inputs(workload: &Workload, seed: u64, workers: u16) -> Inputs {
    match &workload.data {
        Data::Real(folder) => Inputs::Files((0..workers).map(|rank| input(folder, rank)).collect()),
        &Data::Synthetic(elements, element) => Inputs::Synthetic {
            seed,
            element,
            elements,
            workers,
        },
    }
}
