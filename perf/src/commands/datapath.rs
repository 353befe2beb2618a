//! `tally-perf datapath`: throughput of one core, beside `dpdk-testpmd` with `macswap`.
//!
//! # What is compared
//!
//! DPDK's own test program receives a frame, swaps two addresses and sends it: `macswap`. A switch
//! in software cannot do less, so that is the yardstick. The switch validates the frame's sender
//! and header, sums its payload, and sends a result to all workers for every eight frames: frames
//! out equal frames in.
//!
//! Both run on the same CPU, one after the other, in every round; [`replay`](tally_testkit::replay)
//! feeds them. A round's ratio divides neighbours in time, and the report has the median of the
//! rounds' ratios.
//!
//! # The catches
//!
//! - The command fails unless the switch summed every frame and finished every fragment.
//! - Seconds are CPU time of the core's thread: the whole time on a machine that is not shared. The
//!   column `of CPU` has the share.
//! - With hugepages (`--memory hugepages`) both programs are faster, macswap by more: on ordinary
//!   pages each frame begins on a page of its own, and the cost of that is most of macswap's time.
//! - Bits per second are those of the frames from Ethernet header to the end of the payload,
//!   without preamble, frame check sequence and gap.
//! - The roof is macswap's time for a frame plus the time to read and sum its payload
//!   ([`roofline`]): the time of a switch that does nothing else. A processor can overlap the two
//!   in part, so the roof is not a hard limit.
//! - Cycles are seconds times the clock that `/proc/cpuinfo` gives for the CPU at the start. Many
//!   machines, virtual ones most of all, give a nominal one there; the ratio of two such figures
//!   is right anyway.

use crate::{rates, roofline};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use tally_report::{Machine, Report, Spread, Target};
use tally_switch::datapath::BURST;
use tally_testkit::replay::{Captures, Cpus, Memory, Rate, Switch, Testpmd, WORKERS};

/// Share of macswap's packets per second that the switch should reach.
const TARGET_RATIO: f64 = 0.75;
/// Share of the roof that the switch should reach, at every payload.
const TARGET_ROOF: f64 = 0.85;
/// The payload that the target for macswap is for.
const TARGET_PAYLOAD_BYTES: u16 = 1024;
/// As the protocol calls them.
const ELEMENTS: [&str; 6] = ["i32", "f32", "f16", "bf16", "i16", "i8"];

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Payloads in bytes, separated by commas: multiples of 64 up to 8192
    #[arg(long, value_delimiter = ',', default_values_t = [256, 1024, 8192])]
    payload: Vec<u16>,

    /// Element types, separated by commas: i32, f32, f16, bf16, i16, i8
    #[arg(long, value_delimiter = ',', default_values_t = ["i32", "f32"].map(str::to_owned))]
    element: Vec<String>,

    /// Rounds in which the programs take turns
    #[arg(long, default_value_t = 5)]
    rounds: u32,

    /// Measured seconds of each program in a round
    #[arg(long, default_value_t = 2)]
    seconds: u32,

    /// Fragments after which a worker's fragment numbers jump; the switch's window is half of it
    #[arg(long, default_value_t = 64)]
    run_fragments: u16,

    /// Pages of both programs' packet memory
    #[arg(long, value_enum, default_value_t)]
    memory: Memory,

    /// Another tally-switch to compare with, as the one before a change
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,

    /// No dpdk-testpmd
    #[arg(long)]
    no_macswap: bool,
}

#[derive(Serialize)]
struct Parameters<'a> {
    workers: u8,
    cpus: Cpus,
    payload_bytes: &'a [u16],
    elements: &'a [String],
    rounds: u32,
    seconds: u32,
    run_fragments: u16,
    memory: Memory,
    burst_frames: usize,
    testpmd: String,
    cpu_mhz: Option<f64>,
}

/// One program at one payload.
#[derive(Clone, Debug, Serialize)]
struct Row {
    program: String,
    payload_bytes: u16,
    /// None for programs that do not look at payloads.
    element: Option<&'static str>,
    /// What is replayed, by all ports.
    capture_bytes: u64,
    frames_per_s: Spread,
    cpu_share: f64,
    gbit_per_s: f64,
    ns_per_frame: f64,
    cycles_per_frame: Option<f64>,
    /// Frames per second divided by those of macswap in the same round.
    to_macswap: Option<Spread>,
    /// Nanoseconds to read and sum a payload.
    sum_ns: Option<f64>,
    /// Frames per second divided by those of a program that needs macswap's time in the same round
    /// plus that for the sum.
    to_roof: Option<Spread>,
    /// Frames per second divided by those of the other switch in the same round.
    to_other: Option<Spread>,
}

/// Runs it.
///
/// # Errors
/// If a program does not run, or the switch did anything else than to sum.
pub fn run(args: &Args) -> Result<Report> {
    let elements = elements(args)?;
    args.memory.check()?;
    let switch = Switch::beside_this_program()?.with(args.memory);
    let other = args.against.as_deref().map(Switch::at).transpose()?;
    let other = other.map(|other| other.with(args.memory));
    let testpmd = if args.no_macswap {
        Err("left out by --no-macswap".to_owned())
    } else {
        Testpmd::find().map(|testpmd| testpmd.with(args.memory))
    };
    let bench = Bench {
        args,
        cpus: Cpus::of_this_machine(),
        cpu_mhz: cpu_mhz(),
        switch,
        other,
        testpmd,
    };
    let mut rows = Vec::new();
    for &payload_bytes in &args.payload {
        bench.measure(payload_bytes, &elements, &mut rows)?;
    }
    let parameters = Parameters {
        workers: WORKERS,
        cpus: bench.cpus,
        payload_bytes: &args.payload,
        elements: &args.element,
        rounds: args.rounds,
        seconds: args.seconds,
        run_fragments: args.run_fragments,
        memory: args.memory,
        burst_frames: BURST,
        testpmd: match &bench.testpmd {
            Ok(testpmd) => testpmd.version()?,
            Err(reason) => reason.clone(),
        },
        cpu_mhz: bench.cpu_mhz,
    };
    let ours = rows.iter().filter(|row| row.program == "switch");
    let targets = elements.iter().map(|e| bench.target(e, &rows));
    let targets = targets.chain(ours.map(|row| bench.roof_target(row)));
    let targets = targets.collect();
    let table = bench.table(&rows);
    Report::new(Machine::detect(), &parameters, &rows, targets, table)
}

fn elements(args: &Args) -> Result<Vec<&'static str>> {
    ensure!(
        args.rounds > 0 && args.seconds > 0,
        "--rounds and --seconds: at least 1"
    );
    let run = args.run_fragments;
    ensure!(
        run.is_power_of_two() && (32..=4096).contains(&run),
        "--run-fragments {run}: a power of two from 32 to 4096"
    );
    for payload in &args.payload {
        ensure!(
            (64..=8192).contains(payload) && payload.is_multiple_of(64),
            "--payload {payload}: a multiple of 64 up to 8192"
        );
    }
    let known = |name: &String| {
        let found = ELEMENTS.iter().find(|element| *element == name);
        found
            .copied()
            .with_context(|| format!("--element {name}: one of {}", ELEMENTS.join(", ")))
    };
    args.element.iter().map(known).collect()
}

/// By round, the rate to that of the roof.
fn to_roof(ours: &[Rate], macswap: &[Rate], sum_ns: f64) -> Option<Spread> {
    let ratios = ours.iter().zip(macswap).map(|(ours, macswap)| {
        let roof_ns = 1e9 / macswap.frames_per_s + sum_ns;
        ours.frames_per_s * roof_ns / 1e9
    });
    Spread::of(&ratios.collect::<Vec<_>>())
}

/// The clock of the first CPU, as the kernel knows it.
fn cpu_mhz() -> Option<f64> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split_once(':')?.1.trim().parse().ok()
}

struct Bench<'a> {
    args: &'a Args,
    cpus: Cpus,
    cpu_mhz: Option<f64>,
    switch: Switch,
    other: Option<Switch>,
    testpmd: Result<Testpmd, String>,
}

impl Bench<'_> {
    /// All programs at one payload.
    fn measure(
        &self,
        payload_bytes: u16,
        elements: &[&'static str],
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        let run_fragments = self.args.run_fragments;
        let captures: Vec<_> = elements
            .iter()
            .map(|element| Captures::write(payload_bytes, element, run_fragments))
            .collect::<Result<_>>()?;
        let mut macswap = Vec::new();
        let mut ours = vec![Vec::new(); captures.len()];
        let mut others = vec![Vec::new(); captures.len()];
        for round in 1..=self.args.rounds {
            eprintln!(
                "payload {payload_bytes} B, round {round} of {}",
                self.args.rounds
            );
            let (cpus, seconds) = (self.cpus, self.args.seconds);
            if let (Ok(testpmd), Some(captures)) = (&self.testpmd, captures.first()) {
                macswap.push(testpmd.measure(captures, cpus, seconds)?);
            }
            for (at, captures) in captures.iter().enumerate() {
                ours[at].push(self.switch.measure(captures, cpus, seconds)?);
                if let Some(other) = &self.other {
                    others[at].push(other.measure(captures, cpus, seconds)?);
                }
            }
        }
        if let Some(captures) = captures.first() {
            rows.extend(self.row("macswap", None, captures, &macswap, &macswap, &[]));
        }
        for ((captures, ours), others) in captures.iter().zip(&ours).zip(&others) {
            let element = Some(captures.shape.element);
            let sum_ns = roofline::sum_ns(
                self.cpus.data,
                payload_bytes,
                captures.shape.frame_bytes(),
                captures.shape.element,
            )?;
            let ours_row = self.row("switch", element, captures, ours, &macswap, others);
            rows.extend(ours_row.map(|row| Row {
                sum_ns: Some(sum_ns),
                to_roof: to_roof(ours, &macswap, sum_ns),
                ..row
            }));
            rows.extend(self.row("other switch", element, captures, others, &macswap, others));
        }
        Ok(())
    }

    fn row(
        &self,
        program: &str,
        element: Option<&'static str>,
        captures: &Captures,
        rates: &[Rate],
        macswap: &[Rate],
        other: &[Rate],
    ) -> Option<Row> {
        let frames_per_s = rates::frames_per_s(rates)?;
        let cpu_share = rates::cpu_share(rates)?;
        let ns_per_frame = 1e9 / frames_per_s.median;
        Some(Row {
            program: program.to_owned(),
            payload_bytes: captures.shape.payload_bytes,
            element,
            capture_bytes: captures.bytes(),
            frames_per_s,
            cpu_share,
            gbit_per_s: frames_per_s.median * captures.shape.frame_bytes() as f64 * 8.0 / 1e9,
            ns_per_frame,
            cycles_per_frame: self.cpu_mhz.map(|mhz| ns_per_frame * mhz / 1e3),
            to_macswap: rates::ratio(rates, macswap),
            sum_ns: None,
            to_roof: None,
            to_other: rates::ratio(rates, other),
        })
    }

    fn roof_target(&self, row: &Row) -> Target {
        let element = row.element.unwrap_or("-");
        let name = format!("rate_to_roof_{}_{element}", row.payload_bytes);
        match (row.to_roof, &self.testpmd) {
            (Some(ratio), _) => Target::at_least(
                &name,
                ratio.median,
                "ratio",
                TARGET_ROOF,
                "frames per second, to macswap's time and that for the sum; median of the rounds",
            ),
            (None, Err(reason)) => Target::not_measured(&name, "ratio", TARGET_ROOF, reason),
            (None, Ok(_)) => Target::not_measured(&name, "ratio", TARGET_ROOF, "no round"),
        }
    }

    fn target(&self, element: &str, rows: &[Row]) -> Target {
        let name = format!("rate_to_macswap_{TARGET_PAYLOAD_BYTES}_{element}");
        let of_target = |row: &&Row| {
            row.payload_bytes == TARGET_PAYLOAD_BYTES
                && row.program == "switch"
                && row.element == Some(element)
        };
        let ratio = rows.iter().find(of_target).and_then(|row| row.to_macswap);
        match (ratio, &self.testpmd) {
            (Some(ratio), _) => Target::at_least(
                &name,
                ratio.median,
                "ratio",
                TARGET_RATIO,
                "frames per second, to those of macswap on the same core; median of the rounds",
            ),
            (None, Err(reason)) => Target::not_measured(&name, "ratio", TARGET_RATIO, reason),
            (None, Ok(_)) => {
                let reason = format!("no payload of {TARGET_PAYLOAD_BYTES} bytes asked for");
                Target::not_measured(&name, "ratio", TARGET_RATIO, &reason)
            }
        }
    }

    fn table(&self, rows: &[Row]) -> String {
        let mut out = String::new();
        let Cpus { data, control } = self.cpus;
        let _ = writeln!(
            out,
            "{WORKERS} workers on {WORKERS} ports, one core: CPU {data} for each program in turn, \
             CPU {control} for its control thread; {}\n\
             {} rounds of {} s; median of the rounds, ratios with least and most",
            match self.args.memory {
                Memory::Ordinary => "ordinary pages",
                Memory::Hugepages => "hugepages",
            },
            self.args.rounds,
            self.args.seconds
        );
        if let Err(reason) = &self.testpmd {
            let _ = writeln!(out, "no macswap: {reason}");
        }
        let _ = writeln!(
            out,
            "\n{:<13} {:<5} {:>7} {:>8} {:>9} {:>9} {:>10} {:>7} {:>6}  {:<19}  {:<19}  capture",
            "program",
            "sums",
            "payload",
            "Mframe/s",
            "Gbit/s",
            "ns/frame",
            "cyc/frame",
            "spread",
            "of CPU",
            "to macswap",
            "to roof"
        );
        for row in rows {
            let Spread { median, min, max } = row.frames_per_s;
            let _ = write!(
                out,
                "{:<13} {:<5} {:>7} {:>8.2} {:>9.1} {:>9.1} {:>10} {:>6.1}% {:>5.0}%  {:<19}  {:<19}  {} KiB",
                row.program,
                row.element.unwrap_or("-"),
                row.payload_bytes,
                median / 1e6,
                row.gbit_per_s,
                row.ns_per_frame,
                row.cycles_per_frame
                    .map_or("-".into(), |cycles| format!("{cycles:.0}")),
                (max - min) / median * 100.0,
                row.cpu_share * 100.0,
                rates::shown(row.to_macswap),
                rates::shown(row.to_roof),
                row.capture_bytes >> 10
            );
            if row.program == "switch" && self.other.is_some() {
                let _ = write!(out, ", to other switch {}", rates::shown(row.to_other));
            }
            out.push('\n');
        }
        out
    }
}
