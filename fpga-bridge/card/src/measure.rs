//! How many cycles the card takes for a frame of each kind, and the line rate that follows.
//!
//! A model of the usual size is brought to where the traffic begins, slots taken or results kept.
//! Then the input is never idle, and the output never stalls, for about a thousand frames. The
//! first hundred fill the queues, and are not counted; of the rest, cycles from one frame's last
//! beat to the other's are.
//!
//! Bytes on the wire are those of the frame with 24 more, for check sequence, preamble and gap.
//! Where a card says more than it is told, as when a REMIND evicts a payload, it is the output that
//! is full: so the rate of a kind is that of the direction that has more to carry.

mod bench;
mod traffic;

use bench::Bench;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use traffic::{KINDS, Traffic};

/// The clock that rates are given for.
pub const CLOCK_MHZ: f64 = 250.0;

/// Check sequence, preamble and gap of a frame on Ethernet.
const WIRE_BYTES: u64 = 24;

/// Payloads that are measured.
pub const PAYLOAD_BYTES: [u16; 3] = [64, 256, 1024];

/// One kind of traffic, with payloads of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub traffic: String,
    /// What it is.
    pub meaning: String,
    /// Whether the card says more than it is told: a payload that a short frame evicts takes its
    /// time.
    pub amplifies: bool,
    /// Bytes of the payloads.
    pub payload_bytes: u16,
    /// Frames that were counted.
    pub frames: u64,
    /// Beats of 64 bytes that a frame has, on the average.
    pub beats_per_frame: f64,
    /// Cycles until the input has taken the next one.
    pub cycles_per_frame: f64,
    /// Frames that leave for one that comes.
    pub frames_out_per_frame: f64,
    /// Gbit/s on the wire, at [`CLOCK_MHZ`].
    pub gbit_per_s_in: f64,
    /// The same, of what leaves.
    pub gbit_per_s_out: f64,
    /// The larger of both.
    pub gbit_per_s: f64,
}

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// The clock that rates are given for.
    pub clock_mhz: f64,
    /// Slots of the pool.
    pub slots: u32,
    /// Longest payload.
    pub payload_bytes: u32,
    /// Jobs at a time.
    pub jobs: u32,
    /// Workers of a job.
    pub members: u32,
    /// Results kept of each job.
    pub ring: u32,
    /// Bytes of payloads in the slots, and in the rings.
    pub slot_memory_bytes: u64,
    /// As above.
    pub ring_memory_bytes: u64,
    /// By kind and payload.
    pub rows: Vec<Row>,
}

/// Measures all kinds.
///
/// # Errors
/// If the model hangs or finds itself at fault.
pub fn run() -> Result<Measurement, String> {
    let parameters = crate::Model::new().parameters();
    let mut rows = Vec::new();
    for kind in KINDS {
        for payload_bytes in PAYLOAD_BYTES {
            let mut bench = Bench::new((payload_bytes / 64) as u8)?;
            let traffic = (kind.traffic)(&mut bench)?;
            let counted = bench
                .count(&traffic)
                .map_err(|error| format!("{}: {error}", kind.name))?;
            rows.push(counted.row(kind, payload_bytes));
        }
    }
    let payload = u64::from(parameters.payload_bytes);
    Ok(Measurement {
        clock_mhz: CLOCK_MHZ,
        slots: parameters.slots,
        payload_bytes: parameters.payload_bytes,
        jobs: parameters.jobs,
        members: parameters.members,
        ring: parameters.ring,
        slot_memory_bytes: u64::from(parameters.slots) * payload,
        ring_memory_bytes: u64::from(parameters.jobs * parameters.ring) * payload,
        rows,
    })
}

/// What went by while it was counted.
pub(crate) struct Counted {
    frames: u64,
    cycles: u64,
    /// On the average of all frames.
    bytes_in: f64,
    beats_in: f64,
    bytes_out: f64,
    frames_out: f64,
}

impl Counted {
    fn row(&self, kind: &Traffic, payload_bytes: u16) -> Row {
        let cycles = self.cycles as f64 / self.frames as f64;
        let rate = |bytes: f64| bytes * 8.0 / cycles * CLOCK_MHZ / 1000.0;
        let (into, out) = (rate(self.bytes_in), rate(self.bytes_out));
        Row {
            traffic: kind.name.to_owned(),
            meaning: kind.meaning.to_owned(),
            amplifies: kind.amplifies,
            payload_bytes,
            frames: self.frames,
            beats_per_frame: self.beats_in,
            cycles_per_frame: cycles,
            frames_out_per_frame: self.frames_out,
            gbit_per_s_in: into,
            gbit_per_s_out: out,
            gbit_per_s: into.max(out),
        }
    }
}

impl Measurement {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} slots of {} bytes, {} jobs of {} workers, {} results kept of each; clock {} MHz\n\n",
            self.slots, self.payload_bytes, self.jobs, self.members, self.ring, self.clock_mhz
        );
        let _ = writeln!(
            text,
            "{:<18} {:>7} {:>6} {:>7} {:>7} {:>7} {:>7}  what it is",
            "traffic", "payload", "beats", "cycles", "Gb/s", "in", "out"
        );
        for row in &self.rows {
            let _ = writeln!(
                text,
                "{:<18} {:>7} {:>6.2} {:>7.2} {:>7.1} {:>7.1} {:>7.1}  {}",
                row.traffic,
                row.payload_bytes,
                row.beats_per_frame,
                row.cycles_per_frame,
                row.gbit_per_s,
                row.gbit_per_s_in,
                row.gbit_per_s_out,
                row.meaning
            );
        }
        text
    }
}
