//! Two programs under the same load on one core: `tally-switch` and `dpdk-testpmd`.
//!
//! # How it works
//!
//! Each program has eight `net_pcap` ports. In the direction of receiving, the driver replays a
//! [capture](Captures) for ever, out of memory: it copies each frame into a fresh buffer, in the
//! place where a NIC would write it by DMA. In the other direction it gives the buffer back to its
//! pool and counts it as sent. So there is no other process to generate or to swallow frames, the
//! device costs both programs the same, and all that differs is what they do with a frame.
//!
//! Both have the same command line of the EAL, pools of the same buffers, bursts of 32, the same
//! CPU, and another CPU (if there is one) for the thread that says how things are.
//!
//! # The catches
//!
//! - The copy is in the denominator and in the numerator of every ratio. A NIC would make it for
//!   nothing, and both programs would be faster.
//! - A program that receives faster is fed faster: there is no loss and no queue, so this says
//!   nothing of latency.

mod capture;
mod switch;
mod testpmd;

pub use capture::{Captures, WORKERS};
pub use switch::Switch;
pub use testpmd::Testpmd;

use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// How long a program runs before it is measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// Frames in each program's pool, of which some hundreds are in turn.
const POOL_FRAMES: u32 = 32_767;
/// Descriptors of a port. `net_pcap` has none, but its callers plan with them.
const DESCRIPTORS: u16 = 64;

/// Who has which CPU.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cpus {
    /// The one core that moves frames, the same for both programs.
    pub data: usize,
    /// The threads beside it: control, statistics.
    pub control: usize,
}

impl Cpus {
    /// The first CPU for data, the second one, if there is one, for the rest.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        let data = cpus.first().map_or(0, |cpu| cpu.id);
        let control = cpus.get(1).map_or(data, |cpu| cpu.id);
        Self { data, control }
    }
}

/// MTU of the ports: the ordinary one where the payload fits it.
fn mtu(payload_bytes: u16) -> u16 {
    // IPv4, UDP and Tally headers in front of the payload.
    if payload_bytes + 50 <= 1500 {
        1500
    } else {
        9000
    }
}

/// The device of a worker's port, as DPDK takes it.
fn device(port: usize, capture: &Path) -> String {
    format!("net_pcap{port},rx_pcap={},infinite_rx=1", capture.display())
}
