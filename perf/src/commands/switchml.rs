//! `tally-perf switchml`: throughput of one core of the switch for SwitchML's clients.
//!
//! # What is compared
//!
//! Eight workers send packets of one size; a result goes to each of them for every eight packets,
//! so frames out equal frames in. In each round, one after the other on the same core:
//! `dpdk-testpmd`'s `macswap` on the same frames, the switch with the native dialect and the same
//! payload, the switch with SwitchML's. [`replay`](tally_testkit::replay) feeds them,
//! [`SlotCaptures`] loops SwitchML's packets. A round's ratio divides neighbours in time, and the
//! report has the median of the rounds' ratios.
//!
//! The reference is the hardware that SwitchML was made for. A port of 100 Gbit/s at a Tofino
//! cannot carry more goodput than its wire leaves beside headers, frame check sequence, preamble
//! and gap: 77.1 Gbit/s of elements at 256 bytes a packet, 93.1 at 1024. `ports` is the number of
//! such ports, always full, that one core would serve.
//!
//! # The catches
//!
//! - Those of [`datapath`](super::datapath): the driver's copy of each frame is in all three, and
//!   there is no loss and no queue.
//! - The native dialect sends a result once on each port, as one buffer that all share. SwitchML's
//!   has headers of its own for each worker, and a copy of the sum or a second segment: that is
//!   most of the difference.
//! - A Tofino does not get slower with more workers, and a core does: goodput is that of all
//!   workers together.

use crate::rates;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use tally_report::{Machine, Report, Spread};
use tally_switch::datapath::BURST;
use tally_testkit::replay::{Captures, Cpus, Memory, Rate, SlotCaptures, Switch, Testpmd, WORKERS};
use tally_wire::switchml::{HEADERS_BYTES, Size};

/// Bytes of a frame on the wire beside what DPDK sees: frame check sequence, preamble, gap.
const AROUND_FRAME: usize = 24;
/// A Tofino's port, in Gbit/s.
const PORT_GBIT: f64 = 100.0;

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Bytes of elements in a packet, separated by commas: powers of two from 128 to 8192
    #[arg(long, value_delimiter = ',', default_values_t = [256, 1024])]
    payload: Vec<u16>,

    /// Rounds in which the programs take turns
    #[arg(long, default_value_t = 5)]
    rounds: u32,

    /// Measured seconds of each program in a round
    #[arg(long, default_value_t = 2)]
    seconds: u32,

    /// Slots of each worker; the native dialect's fragments take the same memory
    #[arg(long, default_value_t = 96)]
    slots: u16,

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
    workers: u8,
    cpus: Cpus,
    payload_bytes: &'a [u16],
    rounds: u32,
    seconds: u32,
    slots: u16,
    memory: Memory,
    burst_frames: usize,
    testpmd: String,
}

/// One program at one payload.
#[derive(Clone, Debug, Serialize)]
struct Row {
    program: &'static str,
    payload_bytes: u16,
    frame_bytes: usize,
    frames_per_s: Spread,
    cpu_share: f64,
    ns_per_frame: f64,
    /// Bits of elements that come in per second of the core's time.
    goodput_gbit_per_s: f64,
    /// Frames per second divided by those of macswap in the same round.
    to_macswap: Option<Spread>,
    /// Frames per second divided by those of the native dialect in the same round.
    to_native: Option<Spread>,
    /// Frames per second divided by those of the other switch in the same round.
    to_other: Option<Spread>,
    /// What a Tofino's port carries at most of such packets.
    tofino_port_gbit_per_s: f64,
    /// How many such ports that goodput is.
    tofino_ports: f64,
}

/// Goodput that a port of 100 Gbit/s carries at most.
fn ceiling_gbit(payload_bytes: usize) -> f64 {
    let wire = payload_bytes + HEADERS_BYTES + AROUND_FRAME;
    PORT_GBIT * payload_bytes as f64 / wire as f64
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
    let sizes = sizes(args)?;
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
        switch,
        other,
        testpmd,
    };
    let mut rows = Vec::new();
    for size in sizes {
        bench.measure(size, &mut rows)?;
    }
    let parameters = Parameters {
        workers: WORKERS,
        cpus: bench.cpus,
        payload_bytes: &args.payload,
        rounds: args.rounds,
        seconds: args.seconds,
        slots: args.slots,
        memory: args.memory,
        burst_frames: BURST,
        testpmd: match &bench.testpmd {
            Ok(testpmd) => testpmd.version()?,
            Err(reason) => reason.clone(),
        },
    };
    let table = bench.table(&rows);
    Report::new(Machine::detect(), &parameters, &rows, Vec::new(), table)
}

fn sizes(args: &Args) -> Result<Vec<Size>> {
    ensure!(
        args.rounds > 0 && args.seconds > 0,
        "--rounds and --seconds: at least 1"
    );
    // A run of the native dialect's captures is two thirds of that, and a power of two.
    let run = args.slots / 3 * 2;
    ensure!(
        args.slots.is_multiple_of(3) && run.is_power_of_two() && (32..=4096).contains(&run),
        "--slots {}: three times a power of two, from 48 to 6144",
        args.slots
    );
    let size = |bytes: &u16| {
        let found = Size::ALL.into_iter();
        let mut found = found.filter(|size| size.payload_bytes() == usize::from(*bytes));
        found
            .next()
            .with_context(|| format!("--payload {bytes}: a power of two from 128 to 8192"))
    };
    args.payload.iter().map(size).collect()
}

struct Bench<'a> {
    args: &'a Args,
    cpus: Cpus,
    switch: Switch,
    other: Option<Switch>,
    testpmd: Result<Testpmd, String>,
}

/// By round.
#[derive(Default)]
struct Rates {
    macswap: Vec<Rate>,
    native: Vec<Rate>,
    ours: Vec<Rate>,
    others: Vec<Rate>,
}

impl Bench<'_> {
    /// All programs at one size.
    fn measure(&self, size: Size, rows: &mut Vec<Row>) -> Result<()> {
        let payload_bytes = size.payload_bytes() as u16;
        let captures = SlotCaptures::write(size, self.args.slots)?;
        let native = Captures::write(payload_bytes, "i32", self.args.slots / 3 * 2)?;
        let mut rates = Rates::default();
        for round in 1..=self.args.rounds {
            eprintln!(
                "payload {payload_bytes} B, round {round} of {}",
                self.args.rounds
            );
            let (cpus, seconds) = (self.cpus, self.args.seconds);
            if let Ok(testpmd) = &self.testpmd {
                rates
                    .macswap
                    .push(testpmd.measure(&captures, cpus, seconds)?);
            }
            rates
                .native
                .push(self.switch.measure(&native, cpus, seconds)?);
            let ours = self.switch.measure_slots(&captures, cpus, seconds)?;
            rates.ours.push(ours);
            if let Some(other) = &self.other {
                rates
                    .others
                    .push(other.measure_slots(&captures, cpus, seconds)?);
            }
        }
        let frame_bytes = captures.frame_bytes();
        let native_bytes = native.shape.frame_bytes();
        for (program, frame_bytes, of) in [
            ("macswap", frame_bytes, &rates.macswap),
            ("native", native_bytes, &rates.native),
            ("switchml", frame_bytes, &rates.ours),
            ("other switch", frame_bytes, &rates.others),
        ] {
            rows.extend(row(program, size, frame_bytes, of, &rates));
        }
        Ok(())
    }

    fn table(&self, rows: &[Row]) -> String {
        let mut out = String::new();
        let Cpus { data, control } = self.cpus;
        let _ = writeln!(
            out,
            "{WORKERS} workers on {WORKERS} ports, one core: CPU {data} for each program in turn, CPU {control} for its \
             control thread; {}\n{} rounds of {} s; median of the rounds, ratios with least and most",
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
            "\n{:<13} {:>7} {:>8} {:>9} {:>8} {:>6}  {:<19}  {:<19}  {:>7} of a Tofino",
            "program",
            "payload",
            "Mframe/s",
            "ns/frame",
            "goodput",
            "of CPU",
            "to macswap",
            "to native",
            "ports",
        );
        for row in rows {
            let _ = write!(
                out,
                "{:<13} {:>7} {:>8.2} {:>9.1} {:>8.1} {:>5.0}%  {:<19}  {:<19}  {:>7.2} of {:.1} Gbit/s",
                row.program,
                row.payload_bytes,
                row.frames_per_s.median / 1e6,
                row.ns_per_frame,
                row.goodput_gbit_per_s,
                row.cpu_share * 100.0,
                rates::shown(row.to_macswap),
                rates::shown(row.to_native),
                row.tofino_ports,
                row.tofino_port_gbit_per_s,
            );
            if row.program == "switchml" && self.other.is_some() {
                let _ = write!(out, ", to other switch {}", rates::shown(row.to_other));
            }
            out.push('\n');
        }
        out
    }
}

fn row(
    program: &'static str,
    size: Size,
    frame_bytes: usize,
    of: &[Rate],
    all: &Rates,
) -> Option<Row> {
    let frames_per_s = rates::frames_per_s(of)?;
    let payload_bytes = size.payload_bytes();
    let goodput_gbit_per_s = frames_per_s.median * payload_bytes as f64 * 8.0 / 1e9;
    let ceiling = ceiling_gbit(payload_bytes);
    Some(Row {
        program,
        payload_bytes: payload_bytes as u16,
        frame_bytes,
        frames_per_s,
        cpu_share: rates::cpu_share(of)?,
        ns_per_frame: 1e9 / frames_per_s.median,
        goodput_gbit_per_s,
        to_macswap: rates::ratio(of, &all.macswap),
        to_native: rates::ratio(of, &all.native),
        to_other: rates::ratio(of, &all.others),
        tofino_port_gbit_per_s: ceiling,
        tofino_ports: goodput_gbit_per_s / ceiling,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_the_published_ones() {
        for (payload, percent) in [(256, 77.1), (1024, 93.1)] {
            assert!((ceiling_gbit(payload) - percent).abs() < 0.05, "{payload}");
        }
    }
}
