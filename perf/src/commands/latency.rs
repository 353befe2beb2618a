//! `tally-perf latency`: latency of the switch under light and heavy load, beside `dpdk-testpmd`
//! with `macswap`.
//!
//! # What is compared
//!
//! Both programs have the same `net_memif` ports, one for each worker, and the same CPU, one after
//! the other; the [generator](tally_load) has another CPU and plays all workers. First it finds
//! each program's highest rate: in a closed loop, which loses nothing because a window bounds the
//! frames in flight. Then, in an open loop at some shares of *its own* highest rate, it measures
//! latencies. macswap sends every frame back; the switch sends one result to each worker for one
//! contribution of each, so frames out equal frames in for both.
//!
//! - macswap: from when a frame was due until it is back.
//! - switch: from when the *last* contribution of a fragment was due until its result is back, one
//!   sample for each port. Also from the *first* contribution on: that includes the wait for the
//!   other contributions, which is the load's and not the switch's.
//!
//! Contributions of a fragment are due one after the other, at equal distances, as macswap's frames
//! are. Latencies are corrected for coordinated omission. Each load runs on a program just started.
//!
//! # The catches
//!
//! - A round trip includes the generator's own receiving and sending, and a copy by memif's driver
//!   each way at each end. These are the same for both programs. The switch's own figure, from a
//!   fragment's first contribution to its result, is in the column `residence`: without poll
//!   iterations and copies of the generator, with the wait for the other contributions.
//! - Both programs and the generator spin. With two CPUs anything else that runs stops one of them:
//!   the DPDK threads of either, the switch's control thread and the kernel do. The tails, from the
//!   99.9th percentile on, come from that; use more CPUs for meaningful tails.
//! - The highest rate may be the generator's own. The column `generator idle` shows it: near 0 % it
//!   is, and the shares are of the rate that it could offer. macswap is often faster than the
//!   generator.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tally_load::capture::{JOB, KEY, SWITCH_IP, SWITCH_MAC, config};
use tally_load::flow::Pace;
use tally_load::measure::Percentiles;
use tally_load::plan::{Plan, Wishes};
use tally_load::report::Figures;
use tally_load::rig::{Rig, Wire};
use tally_load::run::{Limits, Outcome, Peer, Run};
use tally_report::{Machine, Report, Spread};
use tally_schema::switch::config::{AddressConfig, Config, Idle, JobSection, PortSection};
use tally_testkit::cluster::Program;
use tally_testkit::replay::{Cpus, Switch, Testpmd, statistics};
use tally_wire::{Element, Key, UNIT_BYTES};

/// Before a rate or a latency is measured.
const WARM_UP: Duration = Duration::from_millis(500);
/// For how long the highest rate is looked for.
const SEARCH: Duration = Duration::from_secs(1);
/// How long the switch may take to end.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Frames in each direction of a port, as a power of two.
const LOG2_RING: u32 = 10;
/// Ethernet, two VLAN tags and the frame check sequence around the MTU.
const AROUND_MTU: u16 = 26;

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Workers, each on a port of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=32))]
    workers: u8,

    /// Payload in bytes, a multiple of 64
    #[arg(long, default_value_t = 1024)]
    payload: u16,

    /// Window in fragments of the search for the highest rate
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=512))]
    window: u16,

    /// Loads in percent of each program's highest rate, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [10, 50, 90])]
    load: Vec<u32>,

    /// Rounds in which the programs take turns
    #[arg(long, default_value_t = 3)]
    rounds: u32,

    /// Measured seconds of each load
    #[arg(long, default_value_t = 2)]
    seconds: u32,

    /// No dpdk-testpmd
    #[arg(long)]
    no_macswap: bool,
}

#[derive(Serialize)]
struct Parameters<'a> {
    workers: u8,
    payload_bytes: u16,
    window: u16,
    load_percent: &'a [u32],
    rounds: u32,
    seconds: u32,
    data_cpu: usize,
    generator_cpu: usize,
    testpmd: String,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    program: &'static str,
    round: u32,
    /// The highest rate that it was found to take in this round, and how idle the generator was.
    highest_frames_per_s: f64,
    highest_generator_idle: f64,
    load_percent: u32,
    #[serde(flatten)]
    figures: Figures,
    generator_idle: f64,
    /// The switch's own: from a fragment's first contribution to its result.
    residence: Option<tally_schema::switch::report::Latency>,
}

/// One program at one load, over the rounds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    program: &'static str,
    load_percent: u32,
    frames_per_s: Spread,
    made_share: Spread,
    p50_us: Spread,
    p90_us: Spread,
    p99_us: Spread,
    p999_us: Spread,
    p9999_us: Spread,
    /// From the first contribution on; of the switch alone.
    first_p50_us: Option<Spread>,
    residence_p50_us: Option<Spread>,
    residence_p99_us: Option<Spread>,
    highest_frames_per_s: Spread,
    highest_generator_idle: Spread,
    /// Its median latency less that of macswap in the same round, at the same percentage.
    over_macswap_p50_us: Option<Spread>,
    over_macswap_p99_us: Option<Spread>,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    samples: Vec<Sample>,
}

/// Runs it.
///
/// # Errors
/// If a program does not run, a sum is wrong, or a fragment is lost.
pub fn run(args: &Args) -> Result<Report> {
    ensure!(
        args.rounds > 0 && args.seconds > 0,
        "--rounds and --seconds: at least 1"
    );
    for load in &args.load {
        ensure!((1..=100).contains(load), "--load {load}: 1 to 100 percent");
    }
    // Before this thread is put on one CPU.
    let machine = Machine::detect();
    let switch = Switch::beside_this_program()?;
    let testpmd = if args.no_macswap {
        Err("left out by --no-macswap".to_owned())
    } else {
        Testpmd::find()
    };
    let folder = tempfile::Builder::new()
        .prefix("tally-latency-")
        .tempdir()
        .context("temporary folder")?;
    let bench = Bench::new(args, folder.path(), switch, testpmd)?;
    let mut samples = Vec::new();
    for round in 1..=args.rounds {
        for peer in [Peer::Macswap, Peer::Switch] {
            if peer == Peer::Switch || bench.testpmd.is_ok() {
                bench.measure(peer, round, &mut samples)?;
            }
        }
    }
    let results = Results {
        rows: bench.rows(&samples)?,
        samples,
    };
    let parameters = Parameters {
        workers: args.workers,
        payload_bytes: args.payload,
        window: args.window,
        load_percent: &args.load,
        rounds: args.rounds,
        seconds: args.seconds,
        data_cpu: bench.cpus.data,
        generator_cpu: bench.cpus.control,
        testpmd: match &bench.testpmd {
            Ok(testpmd) => testpmd.version()?,
            Err(reason) => reason.clone(),
        },
    };
    let table = bench.table(&results.rows);
    Report::new(machine, &parameters, &results, Vec::new(), table)
}

struct Bench<'a> {
    args: &'a Args,
    folder: &'a Path,
    config: PathBuf,
    plan: Plan,
    rig: Rig,
    cpus: Cpus,
    switch: Switch,
    testpmd: Result<Testpmd, String>,
}

/// A program and our ports to it. The program ends first: testpmd's driver may crash if its peer
/// disappears while it polls.
struct Contender {
    program: Program,
    wire: Wire,
}

impl<'a> Bench<'a> {
    fn new(
        args: &'a Args,
        folder: &'a Path,
        switch: Switch,
        testpmd: Result<Testpmd, String>,
    ) -> Result<Self> {
        let cpus = Cpus::of_this_machine();
        ensure!(
            cpus.data != cpus.control,
            "the generator needs a CPU beside the program's: this machine lets us have one"
        );
        let config = folder.join("switch.json");
        config::write(&config_of(args, folder, cpus), &config)?;
        let wishes = Wishes {
            payload_bytes: Some(args.payload),
            window: Some(args.window),
            ..Wishes::default()
        };
        let plan = Plan::new(&config, &wishes)?;
        let cpu = plan.generator_cpu();
        ensure!(cpu == Some(cpus.control), "the generator's CPU is taken");
        Ok(Self {
            args,
            folder,
            config,
            rig: Rig::new(&plan, Element::I32, cpu)?,
            plan,
            cpus,
            switch,
            testpmd,
        })
    }

    /// One program at all loads, once.
    fn measure(&self, peer: Peer, round: u32, samples: &mut Vec<Sample>) -> Result<()> {
        let program = match peer {
            Peer::Switch => "switch",
            Peer::Macswap => "macswap",
        };
        let highest = self.load(peer, Pace::Closed, SEARCH)?.0;
        let highest_frames_per_s = self.figures(&highest)?.frames_per_s;
        eprintln!(
            "round {round} of {}: {program} takes {:.3} Mframe/s",
            self.args.rounds,
            highest_frames_per_s / 1e6
        );
        for &load_percent in &self.args.load {
            let rate = highest_frames_per_s * f64::from(load_percent) / 100.0;
            let interval_ns = 1e9 / rate;
            let time = Duration::from_secs(self.args.seconds.into());
            let (outcome, residence) = self.load(peer, Pace::Open { interval_ns }, time)?;
            samples.push(Sample {
                program,
                round,
                highest_frames_per_s,
                highest_generator_idle: highest.idle_share,
                load_percent,
                figures: self.figures(&outcome)?,
                generator_idle: outcome.idle_share,
                residence,
            });
        }
        Ok(())
    }

    fn figures(&self, outcome: &Outcome) -> Result<Figures> {
        let (plan, job) = self
            .plan
            .jobs
            .first()
            .zip(outcome.jobs.first())
            .context("one job")?;
        ensure!(
            job.counts.lost == 0,
            "{} fragments were lost: the ports are no place for this load",
            job.counts.lost
        );
        Ok(Figures::of(plan, job, outcome.measured_s))
    }

    /// One load on a program that is started for it.
    fn load(
        &self,
        peer: Peer,
        pace: Pace,
        measure: Duration,
    ) -> Result<(Outcome, Option<tally_schema::switch::report::Latency>)> {
        let mut plan = self.plan.clone();
        for job in &mut plan.jobs {
            job.pace = pace;
            // In an open loop latency must come from the program, not from a small window.
            if pace != Pace::Closed {
                job.window = plan.switch.window;
            }
        }
        let limits = Limits {
            measure,
            warm_up: WARM_UP,
            frames_max: u64::MAX,
            loss: 0.0,
            reorder: 0.0,
            seed: 0,
            verify: false,
        };
        let mut contender = self.start(peer)?;
        if peer == Peer::Switch {
            let job = &plan.jobs[0];
            let hosts = job.workers.iter().chain(&job.ps);
            contender.wire.find_switch(&plan.switch, hosts)?;
        }
        let stop = AtomicBool::new(false);
        let outcome = Run::to_the_end(&plan, peer, &mut contender.wire, &limits, None, &stop)?;
        let Contender { program, wire } = contender;
        let residence = match peer {
            Peer::Switch => {
                let report = statistics(&self.folder.join("switch.stat"))?;
                program.stop(STOP_PATIENCE)?;
                Some(report.residence)
            }
            Peer::Macswap => {
                // Its end is of no interest; there is nothing that it leaves behind.
                drop(program);
                None
            }
        };
        drop(wire);
        Ok((outcome, residence))
    }

    fn start(&self, peer: Peer) -> Result<Contender> {
        let program = match (peer, &self.testpmd) {
            (Peer::Macswap, Ok(testpmd)) => {
                let devices: Vec<_> = (0..ports(self.args)).map(|at| self.device(at)).collect();
                let log = self.folder.join("testpmd.log");
                // What the driver left behind when its last owner was killed.
                let _ = std::fs::remove_file(socket(self.folder));
                testpmd.reflect(&devices, buffer_bytes(self.args), self.cpus, &log)?
            }
            _ => {
                let log = self.folder.join("switch.log");
                self.switch.start(&self.config, &log)?
            }
        };
        let wire = self.rig.open(&self.plan.ports);
        let wire = wire.with_context(|| format!("its peer said:\n{}", program.log()))?;
        Ok(Contender { program, wire })
    }

    fn device(&self, at: usize) -> String {
        device(self.args, self.folder, at)
    }

    fn rows(&self, samples: &[Sample]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for program in ["macswap", "switch"] {
            for &load_percent in &self.args.load {
                let of = |name| {
                    let of_name =
                        move |s: &&Sample| s.program == name && s.load_percent == load_percent;
                    samples.iter().filter(of_name).collect::<Vec<_>>()
                };
                let own = of(program);
                if !own.is_empty() {
                    rows.push(row(program, load_percent, &own, &of("macswap"))?);
                }
            }
        }
        Ok(rows)
    }

    fn table(&self, rows: &[Row]) -> String {
        let mut out = String::new();
        let Args {
            workers,
            payload,
            rounds,
            seconds,
            ..
        } = self.args;
        let Cpus { data, control } = self.cpus;
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{workers} workers on {workers} net_memif ports, payload {payload} B; CPU {data} for each program in turn, \
             CPU {control} for the generator and all other programs: both spin\n\
             {rounds} rounds of {seconds} s for each load; round trips in us, medians of the rounds"
        );
        if let Err(reason) = &self.testpmd {
            let _ = writeln!(out, "no macswap: {reason}");
        }
        let _ = writeln!(
            out,
            "\n{:<8} {:>5} {:>9} {:>7} {:>8} {:>8} {:>8} {:>8} {:>9} {:>10} {:>16}",
            "program",
            "load",
            "Mframe/s",
            "made",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "p99.99",
            "first p50",
            "residence 50/99"
        );
        for row in rows {
            let opt = |s: &Option<Spread>| s.map_or("-".into(), |s| format!("{:.1}", s.median));
            let residence = match (&row.residence_p50_us, &row.residence_p99_us) {
                (Some(p50), Some(p99)) => format!("{:.1}/{:.1}", p50.median, p99.median),
                _ => "-".into(),
            };
            let _ = writeln!(
                out,
                "{:<8} {:>4}% {:>9.3} {:>6.1}% {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>9.1} {:>10} {:>16}",
                row.program,
                row.load_percent,
                row.frames_per_s.median / 1e6,
                row.made_share.median * 100.0,
                row.p50_us.median,
                row.p90_us.median,
                row.p99_us.median,
                row.p999_us.median,
                row.p9999_us.median,
                opt(&row.first_p50_us),
                residence
            );
        }
        let _ = writeln!(out);
        let range = |s: &Spread| format!("{:.1} ({:.1} to {:.1})", s.median, s.min, s.max);
        for row in rows {
            if let (Some(p50), Some(p99)) = (&row.over_macswap_p50_us, &row.over_macswap_p99_us) {
                let _ = writeln!(
                    out,
                    "at {:>3} %: the switch takes longer than macswap in the same round by p50 {} us, p99 {} us",
                    row.load_percent,
                    range(p50),
                    range(p99)
                );
            }
        }
        for program in ["macswap", "switch"] {
            if let Some(row) = rows.iter().find(|row| row.program == program) {
                let highest = &row.highest_frames_per_s;
                let _ = writeln!(
                    out,
                    "{program}: highest rate {:.3} Mframe/s ({:.3} to {:.3}), generator idle {:.0} % then",
                    highest.median / 1e6,
                    highest.min / 1e6,
                    highest.max / 1e6,
                    row.highest_generator_idle.median * 100.0
                );
            }
        }
        out
    }
}

fn row(
    program: &'static str,
    load_percent: u32,
    own: &[&Sample],
    macswap: &[&Sample],
) -> Result<Row> {
    let spread = |of: &dyn Fn(&Sample) -> Option<f64>| {
        let values: Option<Vec<_>> = own.iter().map(|sample| of(sample)).collect();
        values.and_then(|values| Spread::of(&values))
    };
    let all =
        |of: fn(&Sample) -> f64| spread(&|sample| Some(of(sample))).context("at least one round");
    let over = |of: fn(&Percentiles) -> f64| {
        let latency = |sample: &Sample| of(&sample.figures.latency_us);
        let pairs = own.iter().zip(macswap);
        let values: Vec<_> = pairs
            .map(|(own, base)| latency(own) - latency(base))
            .collect();
        (program != "macswap")
            .then(|| Spread::of(&values))
            .flatten()
    };
    let is_switch = program == "switch";
    Ok(Row {
        program,
        load_percent,
        frames_per_s: all(|s| s.figures.frames_per_s)?,
        made_share: all(|s| s.figures.made_share.unwrap_or(1.0))?,
        p50_us: all(|s| s.figures.latency_us.p50)?,
        p90_us: all(|s| s.figures.latency_us.p90)?,
        p99_us: all(|s| s.figures.latency_us.p99)?,
        p999_us: all(|s| s.figures.latency_us.p999)?,
        p9999_us: all(|s| s.figures.latency_us.p9999)?,
        first_p50_us: spread(&|s| is_switch.then_some(s.figures.from_first_us.p50)),
        residence_p50_us: spread(&|s| Some(s.residence.as_ref()?.p50_us)),
        residence_p99_us: spread(&|s| Some(s.residence.as_ref()?.p99_us)),
        highest_frames_per_s: all(|s| s.highest_frames_per_s)?,
        highest_generator_idle: all(|s| s.highest_generator_idle)?,
        over_macswap_p50_us: over(|p| p.p50),
        over_macswap_p99_us: over(|p| p.p99),
    })
}

/// One for each worker. The parameter server shares the first worker's.
fn ports(args: &Args) -> usize {
    usize::from(args.workers)
}

fn mtu(args: &Args) -> u16 {
    // IPv4, UDP and Tally headers in front of the payload.
    if args.payload + 50 <= 1500 {
        1500
    } else {
        9000
    }
}

fn buffer_bytes(args: &Args) -> u16 {
    (mtu(args) + AROUND_MTU)
        .max(2048)
        .next_multiple_of(UNIT_BYTES as u16)
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("memif.sock")
}

fn device(args: &Args, folder: &Path, at: usize) -> String {
    format!(
        "net_memif{at},role=server,id={at},socket={},socket-abstract=no,bsize={},rsize={LOG2_RING}",
        socket(folder).display(),
        buffer_bytes(args)
    )
}

fn config_of(args: &Args, folder: &Path, cpus: Cpus) -> Config {
    let port = |at| PortSection {
        name: Some(format!("worker{at}")),
        mtu: mtu(args),
        ..PortSection::new(device(args, folder, at))
    };
    let key: Key = KEY.parse().expect("32 hexadecimal digits");
    let address = AddressConfig::new(SWITCH_MAC, SWITCH_IP);
    let mut config = Config::new(address, (0..ports(args)).map(port).collect());
    config.cores = vec![cpus.data];
    config.control_core = Some(cpus.control);
    config.idle = Idle::Spin;
    config.pool.slots = Some(1024);
    config.window = 512;
    config.jobs = vec![JobSection::new(JOB.0, key, args.workers)];
    config.stats_socket = Some(folder.join("switch.stat"));
    config
}
