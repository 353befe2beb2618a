//! The demonstration with a ring of RoCEv2 hosts (NetReduce).
//!
//! Members have a transport in software ([`tally_testkit::ring_worker`]) in place of a NIC's. They
//! sum real gradients and synthetic tensors in the tensors' own types. With `--restart` a switch is
//! killed in the middle of each synthetic tensor: its state of the ring is lost, so the members
//! begin a new epoch and sum again. With `--fabric` the members are behind the leaves, which sum
//! theirs, and the first spine sums what the leaves send.

use super::run::inputs;
use super::workloads::{Data, Workload, input, workloads};
use super::{Args, PATIENCE};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tally_report::{Machine, Report};
use tally_schema::switch::report::Report as SwitchReport;
use tally_testkit::cluster::{Cluster, Cpus, Network, Program, Spec};
use tally_testkit::fabric::{Fabric, FabricSpec, Shape, SwitchId};
use tally_testkit::reference::Reference;
use tally_testkit::ring_worker::RingWorkerReport;

/// Epochs of a member that a restart may end.
const RETRIES: &str = "5";
/// Path MTU.
const MTU: usize = 1024;

#[derive(Serialize)]
struct Parameters {
    network: Network,
    cpus: String,
    members: usize,
    elements: u64,
    loss: f64,
    seed: u64,
    restart: Option<String>,
    fabric: Option<Shape>,
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
    switches: Vec<SwitchReport>,
}

/// The switches and hosts.
enum Site {
    /// One switch, and the CPUs.
    One(Box<Cluster>),
    /// A fabric, and the switch that is killed.
    Tree(Box<Fabric>, Option<SwitchId>),
}

impl Site {
    fn start(args: &Args) -> Result<Self> {
        let network = args.network();
        let Some(shape) = args.fabric else {
            eprintln!("starting a switch with a ring ({})", network.describe());
            let cluster = Cluster::start(Spec {
                network,
                jobs: Vec::new(),
                guests: args.workers.into(),
                ring: true,
                cores: args.cores,
                ..Spec::default()
            })?;
            return Ok(Self::One(Box::new(cluster)));
        };
        let killed = args.restart.as_deref();
        let killed = killed.map(|name| super::fabric::restarted(name, shape));
        let killed = killed.transpose()?.and_then(|all| all.first().copied());
        let count = shape.spines + shape.leaves;
        eprintln!(
            "starting {count} switches with a ring ({})",
            network.describe()
        );
        let fabric = Fabric::start(FabricSpec {
            network,
            shape,
            jobs: 0,
            guests: shape.workers,
            ring: true,
            ..FabricSpec::default()
        })?;
        Ok(Self::Tree(Box::new(fabric), killed))
    }

    fn start_ring(&self, arguments: impl Fn(usize) -> Vec<String>) -> Result<Vec<Program>> {
        match self {
            Self::One(cluster) => cluster.start_ring(arguments),
            Self::Tree(fabric, _) => fabric.start_ring(arguments),
        }
    }

    fn report(&self, rank: usize) -> Result<RingWorkerReport> {
        match self {
            Self::One(cluster) => cluster.ring_report(rank),
            Self::Tree(fabric, _) => fabric.ring_report(rank),
        }
    }

    fn output(&self, rank: usize) -> PathBuf {
        match self {
            Self::One(cluster) => cluster.ring_output(rank),
            Self::Tree(fabric, _) => fabric.ring_output(rank),
        }
    }

    /// Bytes of elements in the sums of the switch that is killed, since it started.
    fn sum_bytes(&self) -> Result<u64> {
        let report = match self {
            Self::One(cluster) => cluster.switch_report()?,
            Self::Tree(fabric, killed) => fabric.switch_report(killed.unwrap_or(SwitchId(0)))?,
        };
        let rings = report
            .netreduce
            .context("the switch reports no rings")?
            .rings;
        Ok(rings.iter().map(|it| it.counters.sum_bytes).sum())
    }

    fn restart(&mut self) -> Result<()> {
        match self {
            Self::One(cluster) => {
                cluster.kill_switch()?;
                cluster.start_switch()
            }
            Self::Tree(fabric, killed) => {
                fabric.restart(killed.unwrap_or(SwitchId(0)))?;
                Ok(())
            }
        }
    }

    fn stop(&mut self) -> Result<Vec<SwitchReport>> {
        match self {
            Self::One(cluster) => Ok(vec![cluster.stop_switch()?]),
            Self::Tree(fabric, _) => {
                let switches: Vec<_> = fabric.plan().switches().collect();
                let stopped = switches.into_iter().map(|it| fabric.stop_switch(it));
                stopped.collect()
            }
        }
    }

    /// Which CPUs the programs have.
    fn cpus(&self) -> String {
        match self {
            Self::One(cluster) => {
                let cpus = cluster.cpus();
                let [switch, hosts] = [&cpus.switch, &cpus.hosts].map(|it| Cpus::list(it));
                format!("switch on CPU {switch}, hosts on CPU {hosts}")
            }
            Self::Tree(fabric, _) => {
                let switches = fabric.plan().switches().map(|switch| {
                    let cpus = Cpus::list(&fabric.switch_config(switch).cores);
                    format!("{} on CPU {cpus}", fabric.plan().name(switch))
                });
                let switches: Vec<_> = switches.collect();
                format!("{}; hosts on all", switches.join(", "))
            }
        }
    }
}

/// Runs it.
pub(super) fn run(args: &Args) -> Result<Report> {
    let network = args.network();
    let mut site = Site::start(args)?;
    let mut rows = Vec::new();
    for workload in &ring_workloads(args)? {
        eprintln!(
            "{} RoCEv2 hosts all-reduce: {} ({})",
            args.members(),
            workload.name,
            workload.arithmetic
        );
        rows.push(run_one(args, &mut site, workload)?);
    }
    let switches = site.stop()?;
    let table = table(args, (network, &site.cpus()), &rows, &switches);
    let parameters = Parameters {
        network,
        cpus: site.cpus(),
        members: args.members(),
        elements: args.elements(),
        loss: args.loss,
        seed: args.seed,
        restart: args.restart.clone(),
        fabric: args.fabric,
        mtu: MTU,
    };
    let wrong = rows.iter().filter(|row| !row.exact).count();
    let targets = super::summary::exactness(wrong, &switches);
    let results = Results { rows, switches };
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

fn run_one(args: &Args, site: &mut Site, workload: &Workload) -> Result<Row> {
    let members = args.members();
    let programs = site.start_ring(|rank| arguments(args, workload, rank as u16))?;
    let (elements, element_bytes) = workload.size();
    let patience = PATIENCE + Duration::from_micros(4 * elements * members as u64);
    if args.restart.is_some() && elements > 0 {
        restart(site, elements * element_bytes)?;
    }
    for program in programs {
        program.wait_ok(patience)?;
    }
    let reports = (0..members).map(|rank| site.report(rank));
    let reports = reports.collect::<Result<Vec<_>>>()?;
    let reference = Reference {
        program: args.reference.clone(),
    };
    let inputs = inputs(workload, args.seed, members as u16);
    let outputs = (0..members).map(|rank| site.output(rank));
    let (arithmetic, payload) = (workload.arithmetic, args.payload);
    let verdict = match &*site {
        Site::One(_) => reference.check(arithmetic, payload, &inputs, outputs)?,
        Site::Tree(fabric, _) => {
            let tree = fabric.plan().ranks();
            reference.check_tree(&tree, arithmetic, payload, &inputs, outputs)?
        }
    };
    let epochs = reports.iter().map(|it| it.epochs).max().unwrap_or(0);
    ensure!(
        args.restart.is_none() || elements == 0 || epochs > 1,
        "the switch was killed after the sums: give more --elements"
    );
    let of_all = |of: fn(&RingWorkerReport) -> u64| reports.iter().map(of).sum::<u64>();
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

/// Kills the switch when it has a third of the sums, and starts it again.
fn restart(site: &mut Site, bytes: u64) -> Result<()> {
    let before = site.sum_bytes()?;
    let deadline = Instant::now() + PATIENCE;
    while site.sum_bytes()? < before + bytes / 3 {
        if Instant::now() >= deadline {
            bail!("the ring has not summed a third of its tensor within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    site.restart()
}

fn table(
    args: &Args,
    (network, cpus): (Network, &str),
    rows: &[Row],
    switches: &[SwitchReport],
) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} RoCEv2 hosts in a ring, transport in software, {}\npath MTU {MTU}, loss {} %, seed {}\n\
         {cpus}\n",
        args.members(),
        network.describe(),
        args.loss * 100.0,
        args.seed
    );
    if let Some(Shape {
        spines,
        leaves,
        workers,
    }) = args.fabric
    {
        let _ = writeln!(
            out,
            "{spines} spines, {leaves} leaves with {workers} hosts each: leaves sum their hosts, spine1 the leaves\n"
        );
    }
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
    for (n, switch) in switches.iter().enumerate() {
        let Some(netreduce) = &switch.netreduce else {
            continue;
        };
        if let Some(shape) = args.fabric {
            let leaf = n.checked_sub(shape.spines);
            let name =
                leaf.map_or_else(|| format!("spine{}", n + 1), |it| format!("leaf{}", it + 1));
            let _ = write!(out, "\n{name}");
        }
        let _ = write!(out, "\n{netreduce}");
    }
    if args.restart.is_some() {
        let _ = writeln!(
            out,
            "\nA switch was killed in the middle of each synthetic tensor and started again; the \
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
