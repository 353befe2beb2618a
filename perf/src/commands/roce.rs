//! `tally-perf roce`: throughput of one core of the switch for a ring of RoCEv2 hosts (NetReduce).
//!
//! # What is compared
//!
//! Eight members send packets of one path MTU; eight packets leave for eight that come. In each
//! round, one after the other on the same core: `dpdk-testpmd`'s `macswap` on the same frames, the
//! switch with the native protocol and the same payload, the switch with the ring.
//! [`replay`](tally_testkit::replay) feeds them. A round's ratio divides neighbours in time, and
//! the report has the median of the rounds' ratios.
//!
//! The invariant CRC is measured by itself, beside `memcpy` of the same payload: each packet's is
//! checked when it comes. Those that leave share one pass over the sum.
//!
//! # The catches
//!
//! - Those of [`datapath`](super::datapath): the driver's copy of each frame is in all three, and
//!   there is no loss and no queue.
//! - The native protocol sends one frame a port, which all share. A ring's packets have headers, a
//!   copy of the sum and an ICRC of their own.

use crate::rates;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;
use tally_report::{Machine, Report, Spread, Target};
use tally_switch::datapath::BURST;
use tally_testkit::replay::{Captures, Cpus, Memory, Rate, RingCaptures, Switch, Testpmd, WORKERS};
use tally_wire::netreduce::Element;
use tally_wire::roce::payload_crc;

/// Share of the native protocol's packets per second that a ring should reach.
const TARGET_NATIVE: f64 = 0.6;
/// Fragments of the native captures' runs, of which there are three: as many frames as a ring's
/// captures have. The driver reads them from memory, so it takes longer with more.
const RUN_FRAGMENTS: u16 = (RingCaptures::FRAMES / 3) as u16;
/// Bytes over which a CRC and a copy are timed.
const TIMED_BYTES: usize = 256 << 20;

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Path MTUs in bytes, separated by commas: 256, 512, 1024, 2048, 4096
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 4096])]
    mtu: Vec<u16>,

    /// Rounds in which the programs take turns
    #[arg(long, default_value_t = 5)]
    rounds: u32,

    /// Measured seconds of each program in a round
    #[arg(long, default_value_t = 2)]
    seconds: u32,

    /// Pages of all programs' packet memory
    #[arg(long, value_enum, default_value_t)]
    memory: Memory,

    /// Another tally-switch to compare with, as the one before a change
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,

    /// No dpdk-testpmd
    #[arg(long)]
    no_macswap: bool,

    /// One short round: a check that it works, not a measurement
    #[arg(long)]
    quick: bool,
}

#[derive(Serialize)]
struct Parameters<'a> {
    members: u8,
    cpus: Cpus,
    mtu: &'a [u16],
    rounds: u32,
    seconds: u32,
    memory: Memory,
    burst_frames: usize,
    testpmd: String,
}

/// One program at one path MTU.
#[derive(Clone, Debug, Serialize)]
struct Row {
    program: &'static str,
    mtu: u16,
    frames_per_s: Spread,
    cpu_share: f64,
    ns_per_frame: f64,
    /// Bits of payload that come in per second of the core's time.
    goodput_gbit_per_s: f64,
    /// Frames per second divided by those of macswap in the same round.
    to_macswap: Option<Spread>,
    /// Frames per second divided by those of the native protocol in the same round.
    to_native: Option<Spread>,
    /// Frames per second divided by those of the other switch in the same round.
    to_other: Option<Spread>,
}

/// The CRC of a payload, beside a copy.
#[derive(Clone, Copy, Debug, Serialize)]
struct Crc {
    mtu: u16,
    crc_ns: f64,
    memcpy_ns: f64,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    crc: Vec<Crc>,
}

/// By round.
#[derive(Default)]
struct Rates {
    macswap: Vec<Rate>,
    native: Vec<Rate>,
    ring: Vec<Rate>,
    other: Vec<Rate>,
}

/// Runs it.
///
/// # Errors
/// If a program does not run, or the switch did anything else than to sum.
pub fn run(args: &Args) -> Result<Report> {
    let args = &if args.quick {
        Args {
            rounds: 1,
            seconds: 1,
            ..args.clone()
        }
    } else {
        args.clone()
    };
    ensure!(
        args.rounds > 0 && args.seconds > 0,
        "--rounds and --seconds: at least 1"
    );
    for mtu in &args.mtu {
        ensure!(
            mtu.is_power_of_two() && (256..=4096).contains(mtu),
            "--mtu {mtu}: 256, 512, 1024, 2048 or 4096"
        );
    }
    args.memory.check()?;
    let switch = Switch::beside_this_program()?.with(args.memory);
    let other = args.against.as_deref().map(Switch::at).transpose()?;
    let other = other.map(|other| other.with(args.memory));
    let testpmd = if args.no_macswap {
        Err("left out by --no-macswap".to_owned())
    } else {
        Testpmd::find().map(|testpmd| testpmd.with(args.memory))
    };
    let cpus = Cpus::of_this_machine();
    let mut rows = Vec::new();
    for &mtu in &args.mtu {
        let ring = RingCaptures::write(mtu.into(), Element::I32)?;
        let native = Captures::write(mtu, "i32", RUN_FRAGMENTS)?;
        let mut rates = Rates::default();
        for round in 1..=args.rounds {
            eprintln!("path MTU {mtu} B, round {round} of {}", args.rounds);
            if let Ok(testpmd) = &testpmd {
                (rates.macswap).push(testpmd.measure(&ring, cpus, args.seconds)?);
            }
            (rates.native).push(switch.measure(&native, cpus, args.seconds)?);
            (rates.ring).push(switch.measure_ring(&ring, cpus, args.seconds)?);
            if let Some(other) = &other {
                (rates.other).push(other.measure_ring(&ring, cpus, args.seconds)?);
            }
        }
        for (program, of) in [
            ("macswap", &rates.macswap),
            ("native", &rates.native),
            ("netreduce", &rates.ring),
            ("other switch", &rates.other),
        ] {
            rows.extend(row(program, mtu, of, &rates));
        }
    }
    let crc: Vec<_> = args.mtu.iter().map(|&mtu| time_crc(mtu)).collect();
    let targets = targets(&rows);
    let version = match &testpmd {
        Ok(testpmd) => testpmd.version()?,
        Err(reason) => reason.clone(),
    };
    let table = table(args, cpus, testpmd.err(), &rows, &crc);
    let parameters = Parameters {
        members: WORKERS,
        cpus,
        mtu: &args.mtu,
        rounds: args.rounds,
        seconds: args.seconds,
        memory: args.memory,
        burst_frames: BURST,
        testpmd: version,
    };
    let results = Results { rows, crc };
    Report::new(Machine::detect(), &parameters, &results, targets, table)
}

fn targets(rows: &[Row]) -> Vec<Target> {
    let rings = rows.iter().filter(|row| row.program == "netreduce");
    rings
        .filter_map(|row| {
            Some(Target::at_least(
                &format!("to_native_{}", row.mtu),
                row.to_native?.median,
                "of native",
                TARGET_NATIVE,
                "packets per second of a ring beside those of the native protocol",
            ))
        })
        .collect()
}

/// Times both over payloads that stay in L1.
fn time_crc(mtu: u16) -> Crc {
    let payload = vec![0xa5_u8; mtu.into()];
    let mut copy = payload.clone();
    let times = TIMED_BYTES / usize::from(mtu);
    let time = |act: &mut dyn FnMut(&[u8])| {
        let start = Instant::now();
        for _ in 0..times {
            act(black_box(&payload));
        }
        start.elapsed().as_nanos() as f64 / times as f64
    };
    let crc_ns = time(&mut |payload| {
        black_box(payload_crc(payload));
    });
    let memcpy_ns = time(&mut |payload| {
        copy.copy_from_slice(payload);
        black_box(&mut copy);
    });
    Crc {
        mtu,
        crc_ns,
        memcpy_ns,
    }
}

fn row(program: &'static str, mtu: u16, of: &[Rate], all: &Rates) -> Option<Row> {
    let frames_per_s = rates::frames_per_s(of)?;
    Some(Row {
        program,
        mtu,
        frames_per_s,
        cpu_share: rates::cpu_share(of)?,
        ns_per_frame: 1e9 / frames_per_s.median,
        goodput_gbit_per_s: frames_per_s.median * f64::from(mtu) * 8.0 / 1e9,
        to_macswap: rates::ratio(of, &all.macswap),
        to_native: rates::ratio(of, &all.native),
        to_other: rates::ratio(of, &all.other),
    })
}

fn table(args: &Args, cpus: Cpus, no_macswap: Option<String>, rows: &[Row], crc: &[Crc]) -> String {
    let mut out = String::new();
    let Cpus { data, control } = cpus;
    let _ = writeln!(
        out,
        "{WORKERS} members on {WORKERS} ports, one core: CPU {data} for each program in turn, CPU \
         {control} for its control thread; {}\n{} rounds of {} s; median of the rounds, ratios with least and most",
        match args.memory {
            Memory::Ordinary => "ordinary pages",
            Memory::Hugepages => "hugepages",
        },
        args.rounds,
        args.seconds
    );
    if let Some(reason) = no_macswap {
        let _ = writeln!(out, "no macswap: {reason}");
    }
    let _ = writeln!(
        out,
        "\n{:<13} {:>6} {:>8} {:>9} {:>8} {:>6}  {:<19}  {:<19}",
        "program", "MTU", "Mframe/s", "ns/frame", "Gbit/s", "of CPU", "to macswap", "to native",
    );
    for row in rows {
        let _ = write!(
            out,
            "{:<13} {:>6} {:>8.2} {:>9.1} {:>8.1} {:>5.0}%  {:<19}  {:<19}",
            row.program,
            row.mtu,
            row.frames_per_s.median / 1e6,
            row.ns_per_frame,
            row.goodput_gbit_per_s,
            row.cpu_share * 100.0,
            rates::shown(row.to_macswap),
            rates::shown(row.to_native),
        );
        if row.program == "netreduce" && args.against.is_some() {
            let _ = write!(out, "  to other switch {}", rates::shown(row.to_other));
        }
        out.push('\n');
    }
    for crc in crc {
        let _ = writeln!(
            out,
            "CRC of {} bytes: {:.1} ns, memcpy {:.1} ns",
            crc.mtu, crc.crc_ns, crc.memcpy_ns
        );
    }
    out
}
