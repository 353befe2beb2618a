//! `tally-perf latency`: how long a frame is in the switch under light and heavy load, beside
//! `dpdk-testpmd` with `macswap`.
//!
//! # What is compared
//!
//! Both programs have the same `net_memif` ports, one for each worker, and the same CPU, one after the other;
//! the [generator](crate::load) has another CPU and plays all workers. First it finds each program's highest
//! rate: in a closed loop, which loses nothing because a window bounds what is under way. Then, in an open loop at
//! some shares of *its own* highest rate, it measures the time from when a frame was due to when what came of
//! it was back. macswap sends every frame back; the switch sends one result to each worker for as many
//! contributions, so equally many frames leave both.
//!
//! - macswap: from when a frame was due until it is back.
//! - switch: from when the *last* contribution of a fragment was due until its result is back, one sample for
//!   each port. From the *first* contribution on, too: that has the waiting for the others in it, which is the
//!   load's and not the switch's.
//!
//! Contributions of a fragment are due one after the other, at equal distances, as macswap's frames are.
//! Latencies are corrected for coordinated omission. Each load is put on a program that has just been started.
//!
//! # The catches
//!
//! - A round trip has the generator's own receiving and sending in it, and a copy by memif's driver each
//!   way at each end. It is the same for both programs; what differs is the program. The switch's own figure,
//!   from a fragment's first contribution to its result, is in the column `residence`; it has no turn and
//!   no copy of the generator's in it, and the waiting for the other contributions.
//! - Both programs and the generator spin. With two CPUs nothing else can run without stopping one of
//!   them: the DPDK threads of either, the switch's control thread and the kernel do so now and then. The
//!   tails, from the 99.9th percentile on, are made of that; take more CPUs for tails that mean something.
//! - The highest rate may be the generator's own. The column `generator idle` says so: near 0 % it is, and then
//!   the shares are of what it could offer. macswap is often faster than the generator.

use crate::cluster::Program;
use crate::commands::load::{Figures, own_cpu};
use crate::load::flow::Pace;
use crate::load::measure::Percentiles;
use crate::load::plan::{Plan, Wishes};
use crate::load::rig::{Rig, Wire};
use crate::load::run::{Limits, Outcome, Peer, Run};
use crate::replay::{Cpus, Switch, Testpmd, statistics};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use simd_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tally_report::{Machine, Report, Spread};
use tally_wire::{Element, UNIT_BYTES};

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

    /// Fragments under way while the highest rate is looked for
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=512))]
    window: u16,

    /// Loads, in percent of each program's highest rate
    #[arg(long, value_delimiter = ',', default_values_t = [10, 50, 90])]
    load: Vec<u32>,

    /// Rounds in which the programs take turns
    #[arg(long, default_value_t = 3)]
    rounds: u32,

    /// Seconds for each load
    #[arg(long, default_value_t = 2)]
    seconds: u32,

    /// Leave out dpdk-testpmd
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
    residence: Option<tally_switch::report::Latency>,
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

/// A program and our ports to it. The program ends first: testpmd's driver may crash when its peer goes
/// while it polls.
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
        std::fs::write(&config, config_of(args, folder, cpus)?)?;
        let wishes = Wishes {
            payload_bytes: Some(args.payload),
            window: Some(args.window),
            ..Wishes::default()
        };
        let plan = Plan::new(&config, &wishes)?;
        let cpu = own_cpu(&plan);
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
    ) -> Result<(Outcome, Option<tally_switch::report::Latency>)> {
        let mut plan = self.plan.clone();
        for job in &mut plan.jobs {
            job.pace = pace;
            // What is late in an open loop is late because of the program, and not because of a small window.
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
            let seats = job.workers.iter().chain(&job.ps);
            contender.wire.find_switch(&plan.switch, seats)?;
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
             CPU {control} for the generator (and for whatever else runs): both spin\n\
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

fn config_of(args: &Args, folder: &Path, cpus: Cpus) -> Result<String> {
    let ports: Vec<_> = (0..ports(args))
        .map(|at| {
            json!({ "name": format!("worker{at}"), "device": device(args, folder, at), "mtu": mtu(args) })
        })
        .collect();
    let config = json!({
        "address": { "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254" },
        "cores": [cpus.data],
        "control_core": cpus.control,
        "idle": "spin",
        "ports": ports,
        "pool": { "slots": 1024 },
        "window": 512,
        "jobs": [{ "id": 7, "key": "00112233445566778899aabbccddeeff", "workers": args.workers }],
        "stats_socket": folder.join("switch.stat").display().to_string(),
    });
    simd_json::to_string(&config).context("configuration as JSON")
}
