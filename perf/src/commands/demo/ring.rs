//! The demonstration with a ring of RoCEv2 hosts (NetReduce).
//!
//! Members have a transport in software ([`tally_testkit::ring_worker`]) in place of a NIC's. They
//! sum real gradients and synthetic tensors in the tensors' own types. With `--restart switch` the
//! switch is killed in the middle of each synthetic tensor: its state of the ring is lost, so the
//! members begin a new epoch and sum again.

use super::run::inputs;
use super::workloads::{Data, Workload, input, workloads};
use super::{Args, PATIENCE};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tally_report::{Machine, Report};
use tally_schema::switch::report::{NetreduceReport, Report as SwitchReport};
use tally_testkit::cluster::{Cluster, Cpus, Network, Spec};
use tally_testkit::reference::Reference;

/// Epochs of a member that a restart may end.
const RETRIES: &str = "5";
/// Path MTU.
const MTU: usize = 1024;

#[derive(Serialize)]
struct Parameters {
    network: Network,
    cpus: Cpus,
    members: u8,
    elements: u64,
    loss: f64,
    seed: u64,
    restart: bool,
    mtu: usize,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    name: String,
    arithmetic: String,
    exact: bool,
    verdict: String,
    goodput_gbps: f64,
    seconds: f64,
    packets: u64,
    retransmitted: u64,
    epochs: u32,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    switch: SwitchReport,
}

/// Runs it.
pub(super) fn run(args: &Args) -> Result<Report> {
    let network = args.network();
    eprintln!("starting a switch with a ring ({})", network.describe());
    let mut cluster = Cluster::start(Spec {
        network,
        jobs: Vec::new(),
        guests: args.workers.into(),
        ring: true,
        cores: args.cores,
        ..Spec::default()
    })?;
    let cpus = cluster.cpus().clone();
    let mut rows = Vec::new();
    for workload in &ring_workloads(args)? {
        eprintln!(
            "{} RoCEv2 hosts all-reduce: {} ({})",
            args.workers, workload.name, workload.arithmetic
        );
        rows.push(run_one(args, &mut cluster, workload)?);
    }
    let switch = cluster.stop_switch()?;
    let table = table(args, (network, &cpus), &rows, &switch);
    let parameters = Parameters {
        network,
        cpus,
        members: args.workers,
        elements: args.elements(),
        loss: args.loss,
        seed: args.seed,
        restart: args.restart.is_some(),
        mtu: MTU,
    };
    let targets = super::summary::exactness(rows.iter().filter(|row| !row.exact).count(), &switch);
    let results = Results { rows, switch };
    Report::new(Machine::detect(), &parameters, &results, targets, table)
}

/// Those whose types a ring sums as they are.
fn ring_workloads(args: &Args) -> Result<Vec<Workload>> {
    let mut all = workloads(args)?;
    all.retain(|it| match it.data {
        // With `fixed`, the same gradients come as integers.
        Data::Real(_) => {
            it.arithmetic != "native" && !(it.name.contains("i32") && it.arithmetic == "fixed")
        }
        Data::Synthetic(_, element) => it.arithmetic != "fixed" && element != "i8",
    });
    for workload in &mut all {
        if workload.arithmetic == "fixed" {
            workload.arithmetic = "native";
        }
    }
    Ok(all)
}

fn arguments(args: &Args, workload: &Workload, rank: u16) -> Vec<String> {
    let mut all = match &workload.data {
        Data::Real(folder) => vec![
            "--input".to_owned(),
            input(folder, rank).display().to_string(),
        ],
        Data::Synthetic(elements, element) => [
            "--synthetic",
            "--element",
            element,
            "--elements",
            &elements.to_string(),
            "--seed",
            &args.seed.to_string(),
        ]
        .map(str::to_owned)
        .to_vec(),
    };
    let loss = args.loss.to_string();
    let seed = args.seed.to_string();
    all.extend(["--loss", &loss, "--loss-seed", &seed].map(str::to_owned));
    if args.restart.is_some() {
        all.extend(["--retries", RETRIES].map(str::to_owned));
    }
    all
}

fn run_one(args: &Args, cluster: &mut Cluster, workload: &Workload) -> Result<Row> {
    let members = usize::from(args.workers);
    let programs = cluster.start_ring(|rank| arguments(args, workload, rank as u16))?;
    let (elements, element_bytes) = workload.size();
    let patience = PATIENCE + Duration::from_micros(4 * elements * u64::from(args.workers));
    if args.restart.is_some() && elements > 0 {
        restart(cluster, elements * element_bytes)?;
    }
    for program in programs {
        program.wait_ok(patience)?;
    }
    let reports = (0..members).map(|rank| cluster.ring_report(rank));
    let reports = reports.collect::<Result<Vec<_>>>()?;
    let reference = Reference {
        program: args.reference.clone(),
    };
    let inputs = inputs(workload, args.seed, args.workers.into());
    let outputs = (0..members).map(|rank| cluster.ring_output(rank));
    let verdict = reference.check(workload.arithmetic, args.payload, &inputs, outputs)?;
    let epochs = reports.iter().map(|it| it.epochs).max().unwrap_or(0);
    ensure!(
        args.restart.is_none() || elements == 0 || epochs > 1,
        "the switch was killed after the sums: give more --elements"
    );
    let of_all = |of: fn(&tally_testkit::ring_worker::RingWorkerReport) -> u64| {
        reports.iter().map(of).sum::<u64>()
    };
    Ok(Row {
        name: workload.name.clone(),
        arithmetic: workload.arithmetic.to_owned(),
        exact: verdict.exact,
        verdict: verdict.text,
        goodput_gbps: (reports.iter())
            .map(|it| it.goodput_gbit_per_s)
            .fold(f64::INFINITY, f64::min),
        seconds: reports.iter().map(|it| it.seconds).fold(0.0, f64::max),
        packets: of_all(|it| it.sent),
        retransmitted: of_all(|it| it.retransmitted),
        epochs,
    })
}

fn ring(cluster: &Cluster) -> Result<NetreduceReport> {
    let report = cluster.switch_report()?.netreduce;
    report.ok_or_else(|| anyhow::anyhow!("the switch reports no rings"))
}

/// Kills the switch when the ring has a third of its sums, and starts it again.
fn restart(cluster: &mut Cluster, bytes: u64) -> Result<()> {
    let done = |report: &NetreduceReport| report.rings.iter().map(|it| it.counters.sum_bytes).sum();
    let before: u64 = done(&ring(cluster)?);
    let deadline = Instant::now() + PATIENCE;
    while done(&ring(cluster)?) < before + bytes / 3 {
        if Instant::now() >= deadline {
            bail!("the ring has not summed a third of its tensor within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    cluster.kill_switch()?;
    cluster.start_switch()
}

fn table(
    args: &Args,
    (network, cpus): (Network, &Cpus),
    rows: &[Row],
    switch: &SwitchReport,
) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} RoCEv2 hosts in a ring, transport in software, {}\npath MTU {MTU}, loss {} %, seed {}\n\
         switch on CPU {}, hosts on CPU {}\n",
        args.workers,
        network.describe(),
        args.loss * 100.0,
        args.seed,
        Cpus::list(&cpus.switch),
        Cpus::list(&cpus.hosts)
    );
    let _ = writeln!(
        out,
        "{:<32} {:<7} {:>7} {:>10} {:>10} {:>13} {:>7}",
        "gradients", "sum as", "exact", "Gbit/s", "packets", "retransmitted", "epochs"
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<32} {:<7} {:>7} {:>10.3} {:>10} {:>13} {:>7}",
            row.name,
            row.arithmetic,
            if row.exact { "yes" } else { "NO" },
            row.goodput_gbps,
            row.packets,
            row.retransmitted,
            row.epochs
        );
    }
    if let Some(netreduce) = &switch.netreduce {
        let _ = write!(out, "\n{netreduce}");
    }
    if args.restart.is_some() {
        let _ = writeln!(
            out,
            "\nThe switch was killed in the middle of each synthetic tensor and started again; the \
             members began a new epoch."
        );
    }
    let wrong: Vec<_> = rows.iter().filter(|row| !row.exact).collect();
    let _ = match wrong.as_slice() {
        [] => writeln!(out, "\nEXACT: every host has every bit of every sum."),
        _ => writeln!(out, "\nWRONG: {} of {} runs.", wrong.len(), rows.len()),
    };
    for row in wrong {
        let _ = writeln!(out, "{} ({}):\n{}", row.name, row.arithmetic, row.verdict);
    }
    out
}
