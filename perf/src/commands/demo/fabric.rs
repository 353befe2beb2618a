//! The demonstration over a fabric of switches: each job has a tree whose root is a spine.

use super::run::{arguments, inputs};
use super::workloads::{Workload, workloads};
use super::{Args, PATIENCE};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;
use tally_report::{Machine, Report, Target};
use tally_schema::agent::report::{Report as WorkerReport, Retransmissions};
use tally_schema::switch::report::Report as SwitchReport;
use tally_testkit::cluster::{Network, Program};
use tally_testkit::fabric::{Fabric, FabricSpec, Plan, Shape, SwitchId, Uplink};
use tally_testkit::reference::Reference;

/// One all-reduce of one job.
#[derive(Clone, Debug, Serialize)]
struct Row {
    name: String,
    arithmetic: String,
    job: usize,
    root: String,
    exact: bool,
    verdict: String,
    goodput_gbps: f64,
    fragments: u64,
    from_switch: u64,
    from_ps: u64,
    retransmissions: Retransmissions,
}

/// A switch that was killed and came back.
#[derive(Clone, Debug, Serialize)]
struct Restarted {
    name: String,
    arithmetic: String,
    switch: String,
    /// Results of the job that had left its root when the switch was killed.
    results: u64,
    fragments: u64,
    down_ms: f64,
}

#[derive(Serialize)]
struct Parameters {
    fabric: Shape,
    network: Network,
    jobs: usize,
    parameter_servers: u8,
    elements: u64,
    loss: f64,
    seed: u64,
    policy: String,
    restart: Option<String>,
    payload_bytes: u16,
    window: u16,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    restarts: Vec<Restarted>,
    uplinks: Vec<Uplink>,
    switches: Vec<SwitchReport>,
}

/// The switches that `--restart` names.
pub fn restarted(names: &str, shape: Shape) -> Result<Vec<SwitchId>> {
    let plan = Plan::new(&FabricSpec {
        shape,
        ..FabricSpec::default()
    })?;
    let find = |name: &str| match plan.find(name) {
        Some(switch) => Ok(switch),
        None => {
            let all: Vec<_> = plan.switches().map(|it| plan.name(it)).collect();
            bail!("--restart {name}: one of {}", all.join(", "))
        }
    };
    names.split(',').map(find).collect()
}

fn spec(args: &Args, shape: Shape) -> FabricSpec {
    FabricSpec {
        network: args.network(),
        shape,
        jobs: shape.spines,
        parameter_servers: args.parameter_servers,
        payload_bytes: args.payload,
        mtu: if args.payload + 78 <= 1500 {
            1500
        } else {
            9000
        },
        window: args.window(),
        policy: args.policy,
        slots: args.slots,
        loss: args.loss,
        loss_seed: args.seed,
        ..FabricSpec::default()
    }
}

/// Runs it.
pub fn run(args: &Args, shape: Shape) -> Result<Report> {
    let network = args.network();
    let names = args.restart.as_deref();
    let killed = names.map_or_else(|| Ok(Vec::new()), |names| restarted(names, shape))?;
    eprintln!(
        "starting {} switches and {} for each ({})",
        shape.spines + shape.leaves,
        match args.parameter_servers {
            1 => "a parameter server".to_owned(),
            several => format!("{several} parameter servers"),
        },
        network.describe()
    );
    let mut fabric = Fabric::start(spec(args, shape))?;
    for job in 0..fabric.plan().jobs() {
        eprint!("{}", fabric.plan().picture(job));
    }
    let (mut rows, mut restarts) = (Vec::new(), Vec::new());
    for workload in workloads(args)? {
        eprintln!(
            "{} jobs of {} workers all-reduce: {} ({})",
            fabric.plan().jobs(),
            shape.total(),
            workload.name,
            workload.arithmetic
        );
        rows.extend(run_one(
            args,
            &mut fabric,
            &workload,
            &killed,
            &mut restarts,
        )?);
    }
    // The parameter servers first: while they say goodbye, the switches must answer.
    fabric.stop_all_ps()?;
    let mut switches = Vec::new();
    for switch in fabric.plan().switches() {
        switches.push(fabric.stop_switch(switch)?);
    }
    let uplinks = fabric.plan().uplinks(&switches);
    let results = Results {
        rows,
        restarts,
        uplinks,
        switches,
    };
    let parameters = Parameters {
        fabric: shape,
        network,
        jobs: fabric.plan().jobs(),
        parameter_servers: args.parameter_servers,
        elements: args.elements(),
        loss: args.loss,
        seed: args.seed,
        policy: args.policy.to_string(),
        restart: args.restart.clone(),
        payload_bytes: args.payload,
        window: args.window(),
    };
    let table = table(&parameters, fabric.plan(), &results);
    let targets = targets(&results);
    Report::new(Machine::detect(), &parameters, &results, targets, table)
}

/// Runs a workload in all jobs at once.
fn run_one(
    args: &Args,
    fabric: &mut Fabric,
    workload: &Workload,
    killed: &[SwitchId],
    restarts: &mut Vec<Restarted>,
) -> Result<Vec<Row>> {
    let total = fabric.spec().shape.total() as u16;
    let jobs = fabric.plan().jobs();
    let seed = |job: usize| args.seed.wrapping_add(job as u64);
    let before: Vec<_> = (0..jobs)
        .map(|job| fabric.results(fabric.plan().root(job)))
        .collect::<Result<_>>()?;
    let mut workers: Vec<Program> = Vec::new();
    for job in 0..jobs {
        workers
            .extend(fabric.start_workers(job, |rank| arguments(args, workload, seed(job), rank))?);
    }
    let (elements, element_bytes) = workload.size();
    let fragments = (elements * element_bytes).div_ceil(u64::from(args.payload));
    if elements > 0 {
        restarts.extend(restart(
            fabric,
            workload,
            killed,
            &before,
            fragments,
            &mut workers,
        )?);
    }
    let patience = PATIENCE + Duration::from_micros(elements * u64::from(total) * jobs as u64);
    for worker in workers {
        worker.wait_ok(patience)?;
    }
    let reference = Reference {
        program: args.reference.clone(),
    };
    let tree = fabric.plan().ranks();
    (0..jobs)
        .map(|job| {
            let outputs = (0..total).map(|rank| fabric.output(job, rank));
            let inputs = inputs(workload, seed(job), total);
            let arithmetic = workload.arithmetic;
            let verdict =
                reference.check_tree(&tree, arithmetic, args.payload, &inputs, outputs)?;
            let reports: Vec<WorkerReport> = (0..total)
                .map(|rank| fabric.worker_report(job, rank))
                .collect::<Result<_>>()?;
            let first = reports.first().context("at least one worker")?;
            // The job is as fast as its slowest.
            let goodputs = reports.iter().map(|it| it.goodput_gbit_per_s);
            Ok(Row {
                name: workload.name.clone(),
                arithmetic: arithmetic.to_owned(),
                job,
                root: fabric.plan().name(fabric.plan().root(job)),
                exact: verdict.exact,
                verdict: verdict.text,
                goodput_gbps: goodputs.fold(f64::INFINITY, f64::min),
                fragments: first.fragments,
                from_switch: first.from_switch,
                from_ps: first.from_ps,
                retransmissions: Retransmissions::of_all(
                    reports.iter().map(|it| it.retransmissions),
                ),
            })
        })
        .collect()
}

/// Kills and starts again each of these switches, when its share of the fragments has results.
fn restart(
    fabric: &mut Fabric,
    workload: &Workload,
    killed: &[SwitchId],
    before: &[u64],
    fragments: u64,
    workers: &mut [Program],
) -> Result<Vec<Restarted>> {
    let mut restarts = Vec::new();
    let mut is_fresh = vec![false; before.len()];
    for (n, &switch) in killed.iter().enumerate() {
        let root_of = |job: &usize| fabric.plan().root(*job) == switch;
        let job = (0..before.len()).find(root_of).unwrap_or(0);
        let root = fabric.plan().root(job);
        // A root that has come back counts from 0, and what went before is unknown.
        let before = if is_fresh[job] { 0 } else { before[job] };
        let part = fragments * (n as u64 + 1) / (killed.len() as u64 + 1);
        let part = if is_fresh[job] { part / 4 } else { part };
        let results = fabric.wait_for_results(root, before + part, PATIENCE)? - before;
        let down = fabric.restart(switch)?;
        is_fresh[job] |= root == switch;
        let name = fabric.plan().name(switch);
        // Jobs with another root do not wait for a spine that is down.
        let of_a_job = workers.len() / is_fresh.len();
        for worker in &mut workers[job * of_a_job..][..of_a_job] {
            ensure!(
                results < fragments && worker.is_running()?,
                "the all-reduce was over before {name} had come back: --restart needs more --elements"
            );
        }
        eprintln!("  {name} killed after {results} of {fragments} fragments, and back");
        restarts.push(Restarted {
            name: workload.name.clone(),
            arithmetic: workload.arithmetic.to_owned(),
            switch: name,
            results,
            fragments,
            down_ms: down.as_secs_f64() * 1e3,
        });
    }
    Ok(restarts)
}

fn targets(results: &Results) -> Vec<Target> {
    let wrong = results.rows.iter().filter(|row| !row.exact).count();
    super::summary::exactness(wrong, &results.switches)
}

fn table(parameters: &Parameters, plan: &Plan, results: &Results) -> String {
    let mut out = String::new();
    let shape = parameters.fabric;
    let _ = writeln!(
        out,
        "{} spines, {} leaves, {} workers of each job behind each, {}\npolicy {}, payload {} B, window {}, \
         loss {} %, seed {}\n",
        shape.spines,
        shape.leaves,
        shape.workers,
        parameters.network.describe(),
        parameters.policy,
        parameters.payload_bytes,
        parameters.window,
        parameters.loss * 100.0,
        parameters.seed
    );
    for job in 0..parameters.jobs {
        out += &plan.picture(job);
    }
    let _ = writeln!(
        out,
        "\n{:<32} {:<7} {:<7} {:>6} {:>8} {:>10} {:>9} {:>8} {:>8}",
        "gradients", "sum as", "root", "exact", "Gbit/s", "fragments", "switch", "PS", "resent"
    );
    for row in &results.rows {
        let _ = writeln!(
            out,
            "{:<32} {:<7} {:<7} {:>6} {:>8.3} {:>10} {:>9} {:>8} {:>8}",
            row.name,
            row.arithmetic,
            row.root,
            if row.exact { "yes" } else { "NO" },
            row.goodput_gbps,
            row.fragments,
            row.from_switch,
            row.from_ps,
            row.retransmissions.nack
        );
    }
    let _ = writeln!(
        out,
        "\n{:<8} {:>16} {:>12} {:>8}",
        "leaf", "MB from workers", "MB up", "share"
    );
    for uplink in &results.uplinks {
        let _ = writeln!(
            out,
            "{:<8} {:>16.1} {:>12.1} {:>7.1}%",
            uplink.leaf,
            uplink.from_workers as f64 / 1e6,
            uplink.up as f64 / 1e6,
            100.0 * uplink.share()
        );
    }
    if !results.restarts.is_empty() {
        let _ = writeln!(out, "\nkilled in the middle of a run and started again");
    }
    for it in &results.restarts {
        let _ = writeln!(
            out,
            "{:<32} {:<7} {} after {} of {} fragments, back in {:.0} ms",
            it.name, it.arithmetic, it.switch, it.results, it.fragments, it.down_ms
        );
    }
    let wrong: Vec<_> = results.rows.iter().filter(|row| !row.exact).collect();
    let _ = match wrong.len() {
        0 => writeln!(out, "\nEXACT: every worker has every bit of every sum."),
        n => writeln!(out, "\nWRONG: {n} of {} runs.", results.rows.len()),
    };
    for row in wrong {
        let _ = writeln!(
            out,
            "{} ({}), job {}:\n{}",
            row.name, row.arithmetic, row.job, row.verdict
        );
    }
    out
}
