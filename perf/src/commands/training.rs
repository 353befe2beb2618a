//! `tally-perf training`: PyTorch's DistributedDataParallel over links of one rate, with Tally and
//! with Gloo.
//!
//! # What is compared
//!
//! Two models train on made-up images. `vgg` has nearly ten million parameters in large layers at
//! its end and little to compute: the network limits it. `resnet` has 0.2 million and much to
//! compute. Every host is a network namespace with one link, shaped as in
//! [`allreduce`](super::allreduce): Tally's switch or the kernel's bridge is in the middle. A rank
//! runs on each host, and for Tally the host's agent (`tally-agent serve`), too. The rendezvous and
//! the parameters at the start, which go through Gloo in both cases, take the same links and are
//! not timed.
//!
//! Gloo and Tally have DDP's all-reduce of f32 as it is, so that the backend's name is all that
//! differs. Beside them are narrower wires: Tally's hook (`tally.ddp_hook`), and PyTorch's own
//! `bf16_compress_hook` over Gloo.
//!
//! The contenders take turns. A *step* is forward pass, backward pass and the optimizer's, at the
//! slowest rank. *Communication* lasts from the moment when the first bucket of gradients was
//! handed over to the moment when the last was back. A hook around the backend's records both, in
//! the same way for all; computation in between is part of it. *Not hidden* is the step less the
//! median step of the same ranks without synchronisation (`no_sync`), so it includes copies into
//! and out of buckets. Ratios divide medians of the same turn.
//!
//! # The catches
//!
//! - All programs share all CPUs of the machine: ranks, agents, switch, kernel. With more ranks
//!   than CPUs, computing takes longer than it would on hosts of their own, and communication costs
//!   computing.
//! - After the last step all ranks of a contender must have the same parameters, bit for bit. After
//!   two they must be those of Gloo but for the rounding of sums (and more of it on narrow wires).
//!   After many they are not: these models make 1e-2 of a difference of 1e-7 in ten steps, with any
//!   backend.

use crate::peers::python_tally;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tally_report::{Machine, Report, Spread, Target};
use tally_testkit::cluster::{
    Cluster, Cpus, Links, Namespaces, Network, Program, Spec, Timeouts, allowed, host_address,
    prefixed,
};

const PROGRAM: &str = include_str!("../../training/train.py");
/// Fragments that a worker of Tally may have unfinished, as for `allreduce`.
const WINDOW: u16 = 256;
/// For a contender's turn: its programs begin, train each model, and end.
const PATIENCE: Duration = Duration::from_secs(600);
/// What the targets are for.
const TARGET_WORKERS: u8 = 4;
/// Gloo's communication by Tally's where it is what takes time; the limit is 2 (n - 1) / n = 1.5.
const COMMUNICATION_TARGET: f64 = 1.3;
/// Tally's images per second by Gloo's where computing is what takes time.
const COMPUTATION_TARGET: f64 = 0.95;

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Numbers of workers, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4], value_parser = clap::value_parser!(u8).range(2..=16))]
    workers: Vec<u8>,

    /// Models, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Model::Vgg, Model::Resnet])]
    models: Vec<Model>,

    /// Wires beside f32, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Wire::Fixed, Wire::Bf16])]
    wires: Vec<Wire>,

    /// No wires beside f32
    #[arg(long, conflicts_with = "wires")]
    f32_only: bool,

    /// Rate of the links, each way, in Mbit/s
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    rate_mbit: u32,

    /// MTU of the links, 576 to 9000
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,

    /// Turns of each contender
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,

    /// Measured steps of a turn, with synchronisation and again without
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,

    /// Two workers, one turn of three steps: a check that it works, not a measurement
    #[arg(long, conflicts_with_all = ["workers", "turns", "steps"])]
    quick: bool,

    /// Python with torch and tally [default: the one that worker-agent/python/setup makes beside
    /// the programs' folder]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Model {
    /// Bound by communication
    Vgg,
    /// Bound by computing
    Resnet,
}

/// How gradients travel, if not as f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Wire {
    /// Block fixed point
    Fixed,
    /// bfloat16
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Backend {
    Gloo,
    Tally,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Self::Gloo => "gloo",
            Self::Tally => "tally",
        }
    }
}

/// One training, as the program is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Case {
    model: Model,
    /// None is f32, without a hook of Tally's.
    wire: Option<Wire>,
}

#[derive(Serialize)]
struct Plan<'a> {
    steps: u32,
    cases: &'a [Case],
}

/// What a rank says of a case.
#[derive(Clone, Deserialize)]
struct Said {
    case: Case,
    batch: u32,
    gradient_bytes: u64,
    step_s: Vec<f64>,
    communication_s: Vec<f64>,
    compute_s: Vec<f64>,
    digest: String,
}

/// A contender in one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Contender {
    backend: Backend,
    #[serde(flatten)]
    case: Case,
}

/// Medians of one turn.
#[derive(Clone, Copy)]
struct Turn {
    step: f64,
    communication: f64,
    not_hidden: f64,
    /// From Gloo's parameters, by how far those have moved.
    apart: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    workers: u8,
    links: Links,
    #[serde(flatten)]
    contender: Contender,
    /// Of a rank.
    batch: u32,
    gradient_bytes: u64,
    /// Of all ranks.
    images_per_s: Spread,
    step_s: Spread,
    communication_s: Spread,
    not_hidden_s: Spread,
    /// Images per second by those of Gloo with f32.
    images_to_gloo: Spread,
    /// Gloo's time in communication, with f32, by this one.
    communication_of_gloo: Spread,
    /// Distance of the parameters from Gloo's after two steps, by how far Gloo's have moved: the
    /// largest of all turns.
    apart_max: f64,
}

#[derive(Serialize)]
struct Parameters {
    turns: u32,
    steps: u32,
    window: u16,
    payload_bytes: u16,
    torch: String,
    cpus: Cpus,
}

/// Runs it.
///
/// # Errors
/// If a contender does not run, or trains to something else.
pub fn run(args: &Args) -> Result<Report> {
    ensure!(allowed(), "this needs root, for network namespaces");
    let mut args = args.clone();
    if args.quick {
        (args.workers, args.turns, args.steps) = (vec![2], 1, 3);
    }
    if args.f32_only {
        args.wires.clear();
    }
    let python = args.python.clone().unwrap_or_else(python_tally);
    let torch = check_python(&python)?;
    let folder = tempfile::Builder::new()
        .prefix(&format!("tally-{}-training-", std::process::id()))
        .tempdir()
        .context("temporary folder")?;
    let program = folder.path().join("train.py");
    std::fs::write(&program, PROGRAM).with_context(|| program.display().to_string())?;
    let links = Links {
        mtu: args.mtu,
        rate_mbit: Some(args.rate_mbit),
    };
    let bench = Bench {
        args,
        links,
        python,
        program,
        folder: folder.path().to_owned(),
    };
    let mut rows = Vec::new();
    for &workers in &bench.args.workers {
        rows.extend(bench.measure(workers)?);
    }
    let mut cpus = Cpus::of_this_machine(1)?;
    cpus.share();
    let parameters = Parameters {
        turns: bench.args.turns,
        steps: bench.args.steps,
        window: WINDOW,
        payload_bytes: links.payload_bytes(),
        torch,
        cpus,
    };
    let table = bench.table(&parameters, &rows);
    let targets = bench.targets(&rows);
    Report::new(Machine::detect(), &parameters, &rows, targets, table)
}

/// The version of PyTorch there.
fn check_python(python: &Path) -> Result<String> {
    let hint = "worker-agent/python/setup makes one with torch and tally, in target/python-venv; --python names another";
    let code = "import torch, tally.torch; print(torch.__version__)";
    let output = Command::new(python)
        .args(["-c", code])
        .output()
        .with_context(|| format!("{}: {hint}", python.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.trim().lines().last().unwrap_or_default();
        bail!("{}: {why}; {hint}", python.display());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

struct Bench {
    args: Args,
    links: Links,
    python: PathBuf,
    program: PathBuf,
    /// For what the ranks write.
    folder: PathBuf,
}

impl Bench {
    /// What a backend trains in its turn.
    fn cases(&self, backend: Backend) -> Vec<Case> {
        let mut cases = Vec::new();
        for &model in &self.args.models {
            cases.push(Case { model, wire: None });
            let wires = self.args.wires.iter();
            // What PyTorch has for Gloo.
            let wires = wires.filter(|wire| backend == Backend::Tally || **wire == Wire::Bf16);
            cases.extend(wires.map(|&wire| Case {
                model,
                wire: Some(wire),
            }));
        }
        cases
    }

    fn measure(&self, workers: u8) -> Result<Vec<Row>> {
        let mut all: Vec<(Contender, Vec<Turn>, Said)> = Vec::new();
        for turn in 1..=self.args.turns {
            for backend in [Backend::Gloo, Backend::Tally] {
                let name = backend.name();
                eprintln!(
                    "{workers} workers, turn {turn} of {}: {name}",
                    self.args.turns
                );
                let cases = self.cases(backend);
                let logs = match backend {
                    Backend::Gloo => self.turn_of_gloo(workers, &cases),
                    Backend::Tally => self.turn_of_tally(workers, &cases),
                };
                let said = parse(&logs.context(name)?)?;
                for case in cases {
                    let of_case = said.iter().flatten().filter(|said| said.case == case);
                    let of_case: Vec<_> = of_case.collect();
                    ensure!(
                        of_case.len() == usize::from(workers),
                        "{name}: {} ranks said something of {case:?}",
                        of_case.len()
                    );
                    let contender = Contender { backend, case };
                    let result = self.validate(contender, &of_case)?;
                    match all.iter_mut().find(|(it, ..)| *it == contender) {
                        Some((_, turns, _)) => turns.push(result),
                        None => all.push((contender, vec![result], of_case[0].clone())),
                    }
                }
            }
        }
        all.sort_by_key(|(it, ..)| self.args.models.iter().position(|m| *m == it.case.model));
        let rows = all.iter().map(|(contender, turns, said)| {
            let gloo = Contender {
                backend: Backend::Gloo,
                case: Case {
                    wire: None,
                    ..contender.case
                },
            };
            let gloo = all.iter().find(|(it, ..)| *it == gloo);
            let (_, gloo, _) = gloo.context("Gloo has had its turn")?;
            let spread = |value: &dyn Fn(&Turn, &Turn) -> f64| {
                let values: Vec<_> = turns.iter().zip(gloo).map(|(a, b)| value(a, b)).collect();
                Spread::of(&values).context("at least one turn")
            };
            let images = f64::from(said.batch) * f64::from(workers);
            Ok(Row {
                workers,
                links: self.links,
                contender: *contender,
                batch: said.batch,
                gradient_bytes: said.gradient_bytes,
                images_per_s: spread(&|it, _| images / it.step)?,
                step_s: spread(&|it, _| it.step)?,
                communication_s: spread(&|it, _| it.communication)?,
                not_hidden_s: spread(&|it, _| it.not_hidden)?,
                images_to_gloo: spread(&|it, gloo| gloo.step / it.step)?,
                communication_of_gloo: spread(&|it, gloo| gloo.communication / it.communication)?,
                apart_max: turns.iter().map(|it| it.apart).fold(0.0, f64::max),
            })
        });
        rows.collect()
    }

    /// Checks the parameters of all ranks at the end, and takes the medians.
    fn validate(&self, contender: Contender, said: &[&Said]) -> Result<Turn> {
        let Contender { backend, case } = contender;
        ensure!(
            said.iter().all(|one| one.digest == said[0].digest),
            "{contender:?}: ranks end with different parameters"
        );
        let apart = apart(
            &self.moved(Backend::Gloo, Case { wire: None, ..case })?,
            &self.moved(backend, case)?,
        );
        // f32 sums in another order, or as integers by fragment; eight bits of fraction.
        let most = match case.wire {
            None | Some(Wire::Fixed) => 1e-3,
            Some(Wire::Bf16) => 1e-1,
        };
        ensure!(
            apart <= most,
            "{contender:?}: parameters are {apart:.1e} of their way from Gloo's, expected at most {most}"
        );
        let slowest = |of: fn(&Said) -> &[f64]| {
            let steps = (0..self.args.steps as usize).map(|step| {
                let times = said.iter().filter_map(|one| of(one).get(step));
                times.copied().fold(0.0, f64::max)
            });
            Spread::of(&steps.collect::<Vec<_>>()).map_or(0.0, |spread| spread.median)
        };
        let step = slowest(|one| &one.step_s);
        Ok(Turn {
            step,
            communication: slowest(|one| &one.communication_s),
            not_hidden: step - slowest(|one| &one.compute_s),
            apart,
        })
    }

    /// How far the parameters have moved after two steps of the latest turn.
    fn moved(&self, backend: Backend, case: Case) -> Result<Vec<f32>> {
        let wire = match case.wire {
            None => "default",
            Some(Wire::Fixed) => "fixed",
            Some(Wire::Bf16) => "bf16",
        };
        let model = match case.model {
            Model::Vgg => "vgg",
            Model::Resnet => "resnet",
        };
        let path = self
            .folder
            .join(format!("{}-{model}-{wire}.f32", backend.name()));
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let (floats, _) = bytes.as_chunks::<4>();
        Ok(floats.iter().map(|b| f32::from_ne_bytes(*b)).collect())
    }

    fn turn_of_gloo(&self, workers: u8, cases: &[Case]) -> Result<Vec<String>> {
        let hosts = Namespaces::new(usize::from(workers), self.links)?;
        hosts.bridge()?;
        let ranks = (0..workers).map(|rank| {
            let command = prefixed(&hosts.host_prefix(usize::from(rank)), &self.python);
            self.start(command, Backend::Gloo, rank, workers, cases)
        });
        end(ranks.collect::<Result<_>>()?)
    }

    fn turn_of_tally(&self, workers: u8, cases: &[Case]) -> Result<Vec<String>> {
        let spec = Spec {
            network: Network::Namespaces,
            jobs: vec![workers],
            share_cpus: true,
            mtu: Some(self.links.mtu),
            rate_mbit: self.links.rate_mbit,
            payload_bytes: self.links.payload_bytes(),
            window: WINDOW,
            slots: Some(u32::from(WINDOW) * 2),
            timeouts: Timeouts {
                join_ms: 60_000,
                stall_ms: 30_000,
                ..Timeouts::default()
            },
            ..Spec::default()
        };
        let mut cluster = Cluster::start(spec)?;
        let agents: Vec<_> = (0..workers)
            .map(|rank| cluster.start_agent(0, rank))
            .collect::<Result<_>>()?;
        let python = self.python.to_string_lossy();
        let ranks = (0..workers).map(|rank| {
            let mut command = cluster.command_on(cluster.worker_host(0, rank), &python);
            command.envs(cluster.training_environment(0, rank));
            self.start(command, Backend::Tally, rank, workers, cases)
        });
        let logs = end(ranks.collect::<Result<_>>()?)?;
        for agent in agents {
            agent.stop(Duration::from_secs(10))?;
        }
        cluster.stop_ps(0)?;
        cluster.stop_switch()?;
        Ok(logs)
    }

    fn start(
        &self,
        mut command: Command,
        backend: Backend,
        rank: u8,
        workers: u8,
        cases: &[Case],
    ) -> Result<Program> {
        let plan = Plan {
            steps: self.args.steps,
            cases,
        };
        let name = backend.name();
        command.arg(&self.program);
        command.args([name, &rank.to_string(), &workers.to_string()]);
        command.arg(host_address(0).to_string());
        command.arg(&self.folder).arg(simd_json::to_string(&plan)?);
        command.env("GLOO_SOCKET_IFNAME", "eth0");
        command.env("OMP_NUM_THREADS", "1");
        let name = format!("{name}{rank}");
        let log = self.folder.join(format!("{name}.log"));
        Program::start(&name, command, &log)
    }

    fn targets(&self, rows: &[Row]) -> Vec<Target> {
        let of = |model| {
            rows.iter().find(|row| {
                let case = Case { model, wire: None };
                let backend = Backend::Tally;
                row.workers == TARGET_WORKERS && row.contender == Contender { backend, case }
            })
        };
        let target = |name: &str, value: Option<Spread>, least, how| {
            let name = format!("{name}_{TARGET_WORKERS}");
            match value {
                _ if (self.args.rate_mbit, self.args.mtu) != (1000, 9000) => {
                    let reason = "the target is for links of 1000 Mbit/s, MTU 9000";
                    Target::not_measured(&name, "ratio", least, reason)
                }
                Some(value) => Target::at_least(&name, value.median, "ratio", least, how),
                None => Target::not_measured(&name, "ratio", least, "not asked for"),
            }
        };
        vec![
            target(
                "vgg_communication_of_gloo_to_tally",
                of(Model::Vgg).map(|row| row.communication_of_gloo),
                COMMUNICATION_TARGET,
                "Gloo's time in communication by Tally's, f32, median of the turns; the limit is 1.5",
            ),
            target(
                "resnet_images_of_tally_to_gloo",
                of(Model::Resnet).map(|row| row.images_to_gloo),
                COMPUTATION_TARGET,
                "images per second by Gloo's, f32, median of the turns; computing takes all the time",
            ),
        ]
    }

    fn table(&self, parameters: &Parameters, rows: &[Row]) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "training with DDP, torch {}, links of {} Mbit/s, MTU {}; {} turns of {} steps; medians of the turns' medians, \
             ratios with least and most\neverybody on CPU {}, Tally's switch on CPU {} of them; payload {} B, window {}",
            parameters.torch,
            self.links.rate_mbit.unwrap_or_default(),
            self.links.mtu,
            parameters.turns,
            parameters.steps,
            Cpus::list(&parameters.cpus.hosts),
            Cpus::list(&parameters.cpus.switch),
            parameters.payload_bytes,
            parameters.window,
        );
        let mut before = None;
        for row in rows {
            let Case { model, wire } = row.contender.case;
            if before != Some((row.workers, model)) {
                before = Some((row.workers, model));
                let _ = writeln!(
                    out,
                    "\n{model:?}, {:.1} MB of gradients, {} workers of {} images\n{:<12} {:>9} {:>8} {:>8} {:>10}  \
                     {:<18} {:<18} {:>9}",
                    row.gradient_bytes as f64 * 1e-6,
                    row.workers,
                    row.batch,
                    "",
                    "images/s",
                    "step ms",
                    "comm ms",
                    "not hidden",
                    "images to Gloo's",
                    "Gloo's comm to it",
                    "apart"
                );
            }
            let wire = match wire {
                None => "f32",
                Some(Wire::Fixed) => "fixed",
                Some(Wire::Bf16) => "bf16",
            };
            let ratio = |s: Spread| format!("{:.2} ({:.2}-{:.2})", s.median, s.min, s.max);
            let _ = writeln!(
                out,
                "{:<12} {:>9.1} {:>8.1} {:>8.1} {:>10.1}  {:<18} {:<18} {:>9.1e}",
                format!("{} {wire}", row.contender.backend.name()),
                row.images_per_s.median,
                row.step_s.median * 1e3,
                row.communication_s.median * 1e3,
                row.not_hidden_s.median * 1e3,
                ratio(row.images_to_gloo),
                ratio(row.communication_of_gloo),
                row.apart_max,
            );
        }
        out
    }
}

/// What the ranks printed, once all have ended well.
fn end(ranks: Vec<Program>) -> Result<Vec<String>> {
    ranks.into_iter().map(|it| it.wait_ok(PATIENCE)).collect()
}

/// What each rank said.
fn parse(logs: &[String]) -> Result<Vec<Vec<Said>>> {
    let line = |line: &str| {
        let mut line = line.as_bytes().to_vec();
        simd_json::from_slice::<Said>(&mut line).context("a rank's report")
    };
    let of_rank = |log: &String| {
        let lines = log.lines().filter(|line| line.starts_with('{'));
        lines.map(line).collect()
    };
    logs.iter().map(of_rank).collect()
}

/// The distance of `b` from `a`, by the length of `a`.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let square = |x: f64| x * x;
    let length: f64 = a.iter().map(|&x| square(x.into())).sum();
    let differences = a.iter().zip(b);
    let distance: f64 = differences
        .map(|(&x, &y)| square(f64::from(x) - f64::from(y)))
        .sum();
    (distance / length).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_apart_is_so_by_what_it_has_moved() {
        let a = [3.0, 4.0];
        assert!(apart(&a, &a) == 0.0);
        assert!((apart(&a, &[3.0, 4.5]) - 0.1).abs() < 1e-12);
        assert!(apart(&a, &[3.0]).is_infinite());
        // Neither a NaN nor parameters that never moved pass as near.
        assert!(apart(&a, &[3.0, f32::NAN]).is_nan());
        assert!(apart(&[0.0], &[0.0]).is_nan());
    }

    #[test]
    fn a_python_without_the_packages_is_told_what_to_do() {
        for python in ["/nowhere/python", "/bin/false"] {
            let error = check_python(Path::new(python)).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains("worker-agent/python/setup"), "{error}");
            assert!(error.contains(python), "{error}");
        }
    }
}
