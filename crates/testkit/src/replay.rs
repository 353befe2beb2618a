//! Two programs under the same load on one core: `tally-switch` and `dpdk-testpmd`.
//!
//! # How it works
//!
//! Each program has eight `net_pcap` ports. In the direction of receiving, the driver replays a
//! [capture](Captures) without end, out of memory: it copies each frame into a fresh buffer, in the
//! place where a NIC would write it by DMA. In the other direction it gives the buffer back to its
//! pool and counts it as sent. So there is no other process to generate or to swallow frames, the
//! device costs both programs the same, and all that differs is what they do with a frame.
//!
//! Both have the same command line of the EAL, the same kind of packet memory, pools of the same
//! buffers, the same bursts, the same CPU, and another CPU (if there is one) for the thread that
//! answers statistics.
//!
//! Rates are per second of CPU time that the core's thread had, so that other programs on a shared
//! machine cost it its caches at most. The share of the CPU that it had is reported.
//!
//! # The catches
//!
//! - The copy is in the denominator and in the numerator of every ratio. A NIC would make it for
//!   nothing, and both programs would be faster.
//! - Bursts of 16 make both programs faster here than those of 32 that DPDK's programs are used to
//!   (`macswap` by a fifth, the switch by a twentieth): what a burst has copied then stays in L1.
//!   A NIC copies into no core's L1, so it is no reason to prefer them.
//! - A program that receives faster is fed faster: there is no loss and no queue, so this says
//!   nothing of latency.

mod captures;
mod rings;
mod slots;
mod switch;
mod testpmd;

pub use captures::Captures;
pub use rings::RingCaptures;
pub use slots::SlotCaptures;
pub use switch::statistics;
pub use switch::{Running, Switch};
pub use testpmd::Testpmd;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tally_schema::switch::config::MemoryKind;

/// Workers of the measured job, each on a port of its own.
pub const WORKERS: u8 = 8;
/// How long a program runs before it is measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// Frames in each program's pool, of which some hundreds are in turn.
const POOL_FRAMES: u32 = 32_767;
/// Hugepages that a program takes, with payloads of 8 KiB.
const HUGEPAGES_KIB: u64 = 1 << 20;
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

/// Pages of packet memory, for both programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// Of 4 KiB, which any user has
    #[default]
    Ordinary,
    /// Hugepages, which must be free: `echo 1024 > /proc/sys/vm/nr_hugepages`
    Hugepages,
}

impl Memory {
    /// As a switch's configuration calls it.
    const fn of_switch(self) -> MemoryKind {
        match self {
            Self::Ordinary => MemoryKind::NoHuge,
            Self::Hugepages => MemoryKind::InMemory,
        }
    }

    /// As the command line of the EAL says it.
    const fn of_eal(self) -> &'static [&'static str] {
        match self {
            Self::Ordinary => &["--no-huge", "--no-shconf"],
            Self::Hugepages => &["--in-memory"],
        }
    }

    /// Whether there is enough of it.
    ///
    /// # Errors
    /// How to get it, for people.
    pub fn check(self) -> Result<()> {
        if self == Self::Ordinary {
            return Ok(());
        }
        let info = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let number = |name| {
            let line = info.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        let pages = number("HugePages_Free:").unwrap_or(0);
        let kib = pages * number("Hugepagesize:").unwrap_or(0);
        ensure!(
            kib >= HUGEPAGES_KIB,
            "{} MiB of hugepages are free, and a program takes up to {} MiB: \
             echo 1024 > /proc/sys/vm/nr_hugepages",
            kib >> 10,
            HUGEPAGES_KIB >> 10
        );
        Ok(())
    }
}

/// What a program did on its core.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Frames received per second of the core's time.
    pub frames_per_s: f64,
    /// Share of the CPU that the core's thread had.
    pub cpu_share: f64,
}

impl Rate {
    fn new(frames_per_wall_s: f64, cpu_share: f64) -> Self {
        Self {
            frames_per_s: frames_per_wall_s / cpu_share,
            cpu_share,
        }
    }
}

/// A moment in the life of a program's threads.
struct CpuTime {
    at: Instant,
    /// Nanoseconds on a CPU, by thread.
    threads: BTreeMap<String, u64>,
}

impl CpuTime {
    fn of(process: u32) -> Result<Self> {
        let mut threads = BTreeMap::new();
        let folder = format!("/proc/{process}/task");
        for thread in std::fs::read_dir(&folder).context(folder)? {
            let thread = thread?;
            let path = thread.path().join("schedstat");
            let text =
                std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let nanos = text.split_whitespace().next().unwrap_or_default().parse()?;
            threads.insert(thread.file_name().to_string_lossy().into_owned(), nanos);
        }
        let at = Instant::now();
        Ok(Self { at, threads })
    }

    /// Share of a CPU that the busiest thread had since: the one that polls.
    fn share_until(&self, end: &Self) -> f64 {
        self.share_of_each_until(end, 1)
    }

    /// Share of a CPU that each of that many busiest threads had since, on average: those that
    /// poll.
    fn share_of_each_until(&self, end: &Self, threads: usize) -> f64 {
        let mut nanos: Vec<_> = end
            .threads
            .iter()
            .map(|(id, nanos)| nanos - self.threads.get(id).unwrap_or(&0))
            .collect();
        nanos.sort_unstable_by(|a, b| b.cmp(a));
        let nanos = nanos.iter().take(threads).sum::<u64>() as f64 / threads as f64;
        nanos / (end.at - self.at).as_nanos() as f64
    }
}

/// Captures to replay.
pub trait Replayed {
    /// The captures, by port and queue.
    fn files(&self) -> &[Vec<PathBuf>];

    /// Where they are, with room for more.
    fn folder(&self) -> &Path;

    /// MTU of the ports.
    fn mtu(&self) -> u16;
}

/// The device of a worker's port, as DPDK takes it: a queue for each capture.
fn device(port: usize, captures: &[PathBuf]) -> String {
    let queues = captures
        .iter()
        .map(|capture| format!("rx_pcap={},", capture.display()));
    format!("net_pcap{port},{}infinite_rx=1", queues.collect::<String>())
}
