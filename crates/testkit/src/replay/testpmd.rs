//! `dpdk-testpmd` with `macswap`: DPDK's own measure of a switch that reads and writes headers.

use super::{CpuTime, Cpus, DESCRIPTORS, Memory, POOL_FRAMES, Rate, Replayed, device};
use crate::cluster::Program;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tally_switch::datapath::BURST;

/// The program, which Debian has in the package `dpdk-dev`.
const NAME: &str = "dpdk-testpmd";
/// What goes before the seconds that are measured: the first of its reports covers no time, the
/// second one the start.
const WARM_UP_REPORTS: usize = 2;
/// What a buffer has in front of the frame.
const HEADROOM_BYTES: u32 = 128;

/// An installed `dpdk-testpmd`.
#[derive(Clone, Debug)]
pub struct Testpmd {
    program: PathBuf,
    memory: Memory,
}

impl Testpmd {
    /// Looks for the program.
    ///
    /// # Errors
    /// What to install, for people.
    pub fn find() -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|folder| folder.join(NAME))
            .find(|program| program.is_file())
            .map(|program| Self {
                program,
                memory: Memory::default(),
            })
            .ok_or_else(|| format!("{NAME} is not installed (Debian's package: dpdk-dev)"))
    }

    /// With this packet memory when it is replayed to.
    #[must_use]
    pub fn with(self, memory: Memory) -> Self {
        Self { memory, ..self }
    }

    /// The rate at which it receives and sends frames, over that many seconds.
    ///
    /// # Errors
    /// If it does not start, does not report, or loses frames.
    pub fn measure(&self, captures: &impl Replayed, cpus: Cpus, seconds: u32) -> Result<Rate> {
        let mut command = Command::new(&self.program);
        command
            .arg(format!("--lcores=0@{},1@{}", cpus.control, cpus.data))
            .args(["--main-lcore=0", "--no-pci", "--no-telemetry"])
            .args(self.memory.of_eal())
            .arg("--iova-mode=va");
        let buffer_bytes = HEADROOM_BYTES + u32::from(captures.mtu() + 26).max(2048);
        let megabytes = POOL_FRAMES / 1024 * (buffer_bytes + 512) / 1024 * 3 / 2 + 64;
        command.arg(format!("-m{megabytes}"));
        for (port, files) in captures.files().iter().enumerate() {
            command.arg(format!("--vdev={}", device(port, files)));
        }
        command
            .args(["--", "--forward-mode=macswap", "--nb-cores=1"])
            .arg(format!("--burst={BURST}"))
            .args(["--port-topology=paired", "--no-flush-rx", "--mbcache=256"])
            .arg(format!("--total-num-mbufs={POOL_FRAMES}"))
            .arg(format!("--mbuf-size={buffer_bytes}"))
            .arg(format!("--rxd={DESCRIPTORS}"))
            .arg(format!("--txd={DESCRIPTORS}"))
            .arg("--stats-period=1");
        let ports = captures.files().len();
        let reports = WARM_UP_REPORTS + seconds as usize;
        let mut program =
            Program::start("testpmd", command, &captures.folder().join("testpmd.log"))?;
        let wait_for = |reports: usize, program: &mut Program| {
            let patience = Duration::from_secs(20 + u64::from(seconds));
            program.wait_until("it has reported often enough", patience, |log| {
                rates(log, "Tx-pps:").count() >= reports * ports
            })?;
            CpuTime::of(program.id())
        };
        let cpu_before = wait_for(WARM_UP_REPORTS, &mut program)?;
        let cpu_after = wait_for(reports, &mut program)?;
        let log = program.log();
        // Its end is of no interest; there is nothing that it leaves behind.
        drop(program);
        let mean = |word| {
            let of_ports = rates(&log, word)
                .take(reports * ports)
                .skip(WARM_UP_REPORTS * ports);
            of_ports.sum::<f64>() / f64::from(seconds)
        };
        let (received, sent) = (mean("Rx-pps:"), mean("Tx-pps:"));
        ensure!(
            received > 0.0 && (sent / received - 1.0).abs() < 0.01,
            "testpmd: {received} frames per second in, {sent} out"
        );
        Ok(Rate::new(received, cpu_before.share_until(&cpu_after)))
    }

    /// Starts it on these devices, where it sends every frame back whence it came, with its
    /// Ethernet addresses swapped, until it is dropped. Frames are up to `frame_bytes` long.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn reflect(
        &self,
        devices: &[String],
        frame_bytes: u16,
        cpus: Cpus,
        log: &Path,
    ) -> Result<Program> {
        // We may have put ourselves on one CPU, and DPDK takes none that it does not inherit.
        let mut command = Command::new("taskset");
        command
            .arg("-c")
            .arg(format!("{},{}", cpus.data, cpus.control))
            .arg(&self.program);
        let buffer_bytes = HEADROOM_BYTES + u32::from(frame_bytes).max(2048);
        let megabytes = POOL_FRAMES / 1024 * (buffer_bytes + 512) / 1024 * 3 / 2 + 64;
        command
            .arg(format!("--lcores=0@{},1@{}", cpus.control, cpus.data))
            .args(["--main-lcore=0", "--no-pci", "--no-telemetry"])
            .args(["--no-huge", "--no-shconf", "--iova-mode=va"])
            .arg(format!("-m{megabytes}"))
            .args(devices.iter().map(|device| format!("--vdev={device}")))
            .args(["--", "--forward-mode=macswap", "--nb-cores=1"])
            .arg(format!("--burst={BURST}"))
            .args(["--port-topology=loop", "--no-flush-rx", "--mbcache=256"])
            .arg(format!("--total-num-mbufs={POOL_FRAMES}"))
            .arg(format!("--mbuf-size={buffer_bytes}"))
            // Its peers come later. It reports rarely, or it would wait for a key, and end.
            .args(["--disable-link-check", "--stats-period=3600"]);
        Program::start("testpmd", command, log)
    }

    /// Which version it is.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn version(&self) -> Result<String> {
        let output = Command::new(&self.program)
            .arg("--version")
            .output()
            .with_context(|| self.program.display().to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let version = text.lines().find(|line| line.contains("DPDK"));
        Ok(version.unwrap_or("unknown").trim().to_owned())
    }
}

/// The numbers behind a word, in order: one for each port and report.
fn rates<'a>(log: &'a str, word: &'a str) -> impl Iterator<Item = f64> + 'a {
    log.lines().filter_map(move |line| {
        let rest = line.trim_start().strip_prefix(word)?;
        rest.split_whitespace().next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::rates;

    #[test]
    fn rates_are_found_in_what_testpmd_prints() {
        let log = "  RX-packets: 10534560   RX-missed: 0\n\n  Throughput (since last show)\n  \
                   Rx-pps:      2634426          Rx-bps:  22930047504\n  \
                   Tx-pps:      2634427          Tx-bps:  22930047504\n  ####\n  \
                   Rx-pps:      7 ";
        assert_eq!(
            rates(log, "Rx-pps:").collect::<Vec<_>>(),
            [2_634_426.0, 7.0]
        );
        assert_eq!(rates(log, "Tx-pps:").collect::<Vec<_>>(), [2_634_427.0]);
    }
}
