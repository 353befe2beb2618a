//! `tally-perf card`: cycles that the FPGA card's design takes for each kind of traffic.
//!
//! The program `tally-card`, which is made of the RTL, counts the cycles of its model
//! (`tally-card measure`); this command compares them with the targets. They do not depend on the
//! machine.
//!
//! # The catches
//!
//! * Rates are cycles at 250 MHz, at which no board has run the design (docs/FPGA.md says what is
//!   known of its timing).
//! * A short frame, as a REMIND, may evict a long payload; no beat is accepted until that has left.
//!   Such traffic is a line of its own, without a target.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use tally_report::{Machine, Report, Target};

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The program `tally-card` [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub card: Option<PathBuf>,
}

/// A frame of 1 KiB of payload is so many beats of 64 bytes, and should take no more cycles.
const CYCLES_OF_A_KIB: f64 = 17.0;

/// Any traffic should be taken at that rate.
const GBIT_PER_S: f64 = 100.0;

/// As `tally-card measure --json` has it.
#[derive(Deserialize)]
struct Measurement {
    clock_mhz: f64,
    slots: u32,
    payload_bytes: u32,
    jobs: u32,
    members: u32,
    ring: u32,
    slot_memory_bytes: u64,
    ring_memory_bytes: u64,
    rows: Vec<Row>,
}

/// One kind of traffic, with payloads of one size.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Row {
    traffic: String,
    meaning: String,
    amplifies: bool,
    payload_bytes: u16,
    frames: u64,
    beats_per_frame: f64,
    cycles_per_frame: f64,
    frames_out_per_frame: f64,
    gbit_per_s_in: f64,
    gbit_per_s_out: f64,
    gbit_per_s: f64,
}

#[derive(Serialize)]
struct Parameters {
    clock_mhz: f64,
    slots: u32,
    payload_bytes: u32,
    jobs: u32,
    members: u32,
    ring: u32,
    slot_memory_bytes: u64,
    ring_memory_bytes: u64,
}

/// Runs `tally-card measure`, and reports.
///
/// # Errors
///
/// When there is no such program, or it fails.
pub fn run(args: &Args) -> Result<Report> {
    let card = args.card.clone().unwrap_or_else(beside);
    let hint = "`cargo build --release -p tally-card` makes it; --card names another";
    let output = Command::new(&card)
        .args(["measure", "--json"])
        .output()
        .with_context(|| format!("{}: {hint}", card.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", card.display(), why.trim());
    }
    let mut json = output.stdout;
    let measured: Measurement = simd_json::from_slice(&mut json)
        .with_context(|| format!("what {} printed", card.display()))?;
    let parameters = Parameters {
        clock_mhz: measured.clock_mhz,
        slots: measured.slots,
        payload_bytes: measured.payload_bytes,
        jobs: measured.jobs,
        members: measured.members,
        ring: measured.ring,
        slot_memory_bytes: measured.slot_memory_bytes,
        ring_memory_bytes: measured.ring_memory_bytes,
    };
    let table = table(&parameters, &measured.rows);
    let targets = targets(&measured.rows);
    Report::new(
        Machine::detect(),
        &parameters,
        &measured.rows,
        targets,
        table,
    )
}

fn beside() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.with_file_name("tally-card")
}

fn targets(rows: &[Row]) -> Vec<Target> {
    let plain = || rows.iter().filter(|row| !row.amplifies);
    let of_a_kib = plain().filter(|row| row.beats_per_frame == CYCLES_OF_A_KIB);
    let slowest = of_a_kib.max_by(|a, b| a.cycles_per_frame.total_cmp(&b.cycles_per_frame));
    let cycles = match slowest {
        Some(row) => {
            let how = format!("most cycles of a frame of 17 beats; {}", row.traffic);
            Target::at_most(
                "1 KiB payload",
                row.cycles_per_frame,
                "cycles",
                CYCLES_OF_A_KIB,
                &how,
            )
        }
        None => Target::not_measured("1 KiB payload", "cycles", CYCLES_OF_A_KIB, "no such row"),
    };
    let mut targets = vec![cycles];
    for payload_bytes in [64, 256, 1024] {
        let name = format!("every mix, {payload_bytes} B payload");
        let of_size = plain().filter(|row| row.payload_bytes == payload_bytes);
        let slowest = of_size.min_by(|a, b| a.gbit_per_s.total_cmp(&b.gbit_per_s));
        targets.push(match slowest {
            Some(row) => {
                let how = format!("lowest line rate at 250 MHz; {}", row.traffic);
                Target::at_least(&name, row.gbit_per_s, "Gbit/s", GBIT_PER_S, &how)
            }
            None => Target::not_measured(&name, "Gbit/s", GBIT_PER_S, "no such row"),
        });
    }
    targets
}

fn table(parameters: &Parameters, rows: &[Row]) -> String {
    let mut text = format!(
        "{} slots of {} B ({} KiB), {} jobs of {} workers, {} results kept of each ({} KiB); rates at {} MHz\n\n",
        parameters.slots,
        parameters.payload_bytes,
        parameters.slot_memory_bytes >> 10,
        parameters.jobs,
        parameters.members,
        parameters.ring,
        parameters.ring_memory_bytes >> 10,
        parameters.clock_mhz
    );
    let _ = writeln!(
        text,
        "{:<18} {:>9} {:>6} {:>7} {:>7} {:>7} {:>7}  what it is",
        "traffic", "payload B", "beats", "cycles", "Gbit/s", "in", "out"
    );
    for row in rows {
        let _ = writeln!(
            text,
            "{:<18} {:>9} {:>6.2} {:>7.2} {:>7.1} {:>7.1} {:>7.1}  {}{}",
            row.traffic,
            row.payload_bytes,
            row.beats_per_frame,
            row.cycles_per_frame,
            row.gbit_per_s,
            row.gbit_per_s_in,
            row.gbit_per_s_out,
            row.meaning,
            if row.amplifies { " *" } else { "" }
        );
    }
    text.push_str("\n* more leaves than came in: no target\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(traffic: &str, payload_bytes: u16, beats: f64, cycles: f64, rate: f64) -> Row {
        Row {
            traffic: traffic.into(),
            meaning: String::new(),
            amplifies: traffic == "remind",
            payload_bytes,
            frames: 1,
            beats_per_frame: beats,
            cycles_per_frame: cycles,
            frames_out_per_frame: 0.0,
            gbit_per_s_in: rate,
            gbit_per_s_out: 0.0,
            gbit_per_s: rate,
        }
    }

    #[test]
    fn the_slowest_traffic_is_held_to_the_target_and_what_amplifies_is_not() {
        let rows = [
            row("add", 1024, 17.0, 17.0, 130.0),
            row("preempt", 1024, 17.0, 18.0, 123.0),
            row("remind", 1024, 1.0, 17.0, 10.0),
            row("add", 64, 2.0, 2.0, 152.0),
        ];
        let targets = targets(&rows);
        let met: Vec<_> = targets.iter().map(|target| target.met).collect();
        assert_eq!(met, [Some(false), Some(true), None, Some(true)]);
        assert!(targets[0].how.ends_with("preempt"));
    }
}
