//! `tally-switch` with a job of eight workers, all of whose fragments are finished in the switch.

use super::capture::{JOB, SWITCH_IP, SWITCH_MAC, WORKER_PORT, WORKERS, worker};
use super::{Captures, CpuTime, Cpus, DESCRIPTORS, Rate, WARM_UP, device, mtu};
use crate::cluster::Program;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tally_switch::datapath::BURST;
use tally_switch::report::Report;

const START_PATIENCE: Duration = Duration::from_secs(20);
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Results that were decided on and not yet sent when a report was made: those of a turn.
const TURN_FRAMES: u64 = BURST as u64 * WORKERS as u64;

/// A `tally-switch` program.
#[derive(Clone, Debug)]
pub struct Switch {
    program: PathBuf,
}

impl Switch {
    /// The one that was built together with this program.
    ///
    /// # Errors
    /// If it was not.
    pub fn beside_this_program() -> Result<Self> {
        let this = std::env::current_exe()?;
        let folder = this.parent().context("folder of this program")?;
        Self::at(&folder.join("tally-switch"))
    }

    /// The one at that path.
    ///
    /// # Errors
    /// If there is none.
    pub fn at(program: &Path) -> Result<Self> {
        ensure!(
            program.is_file(),
            "{} is not there: cargo build --release",
            program.display()
        );
        Ok(Self {
            program: program.to_owned(),
        })
    }

    /// Starts it with a configuration and waits until it runs.
    ///
    /// # Errors
    /// If it does not.
    pub fn start(&self, config: &Path, log: &Path) -> Result<Program> {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(config);
        let mut program = Program::start("switch", command, log)?;
        program.wait_until("it runs", START_PATIENCE, |log| {
            log.contains("running on CPU")
        })?;
        Ok(program)
    }

    /// The rate at which it sums frames, over that many seconds.
    ///
    /// # Errors
    /// If it does not run, or if any frame had another fate than to be summed and answered: then
    /// the number would mean something else.
    pub fn measure(&self, captures: &Captures, cpus: Cpus, seconds: u32) -> Result<Rate> {
        let folder = captures.folder();
        let path = folder.join("switch.json");
        let socket = folder.join("switch.sock");
        let config = config(captures, cpus, &socket);
        std::fs::write(&path, simd_json::to_string(&config)?)
            .with_context(|| path.display().to_string())?;
        let program = self.start(&path, &folder.join("switch.log"))?;
        std::thread::sleep(WARM_UP);
        let cpu_before = CpuTime::of(program.id())?;
        let before = statistics(&socket)?;
        std::thread::sleep(Duration::from_secs(seconds.into()));
        let after = statistics(&socket)?;
        let cpu_after = CpuTime::of(program.id())?;
        // A good end is one with all buffers back in their pool.
        program.stop(STOP_PATIENCE)?;
        let frames = check(&before, &after)?;
        let frames_per_wall_s = frames as f64 / (after.seconds - before.seconds);
        Ok(Rate::new(
            frames_per_wall_s,
            cpu_before.share_until(&cpu_after),
        ))
    }
}

/// What the switch behind that socket says of itself.
pub(crate) fn statistics(socket: &Path) -> Result<Report> {
    let mut text = Vec::new();
    UnixStream::connect(socket)
        .and_then(|mut stream| stream.read_to_end(&mut text))
        .context("the switch's statistics")?;
    simd_json::from_slice(&mut text).context("the switch's statistics")
}

/// The frames that came in between two reports, every one of which was summed and answered.
fn check(before: &Report, after: &Report) -> Result<u64> {
    let count = |report: &Report, name: &str| report.counters.get(name).copied().unwrap_or(0);
    let counted = |name| count(after, name) - count(before, name);
    let moved = |of: fn(&tally_switch::report::PortReport) -> u64| {
        let sum = |report: &Report| report.ports.iter().map(of).sum::<u64>();
        sum(after) - sum(before)
    };
    let received = moved(|port| port.rx_frames);
    let sent = moved(|port| port.tx_frames);
    let summed = counted("contributions");
    let results = counted("results");
    ensure!(
        after.drops == before.drops,
        "the switch dropped frames: {:?}, then {:?}",
        before.drops,
        after.drops
    );
    for name in ["partials", "collisions", "overflows", "results_from_ps"] {
        let n = counted(name);
        ensure!(n == 0, "the switch did not only sum: {n} {name}");
    }
    let workers = u64::from(WORKERS);
    ensure!(
        received > 0 && summed == received && results * workers == summed,
        "of {received} frames the switch summed {summed}, to {results} results for {workers} workers"
    );
    ensure!(
        sent.abs_diff(results * workers) <= TURN_FRAMES,
        "{results} results for {workers} workers, but {sent} frames left"
    );
    Ok(received)
}

#[derive(Serialize)]
struct Config {
    address: Address,
    cores: [usize; 1],
    control_core: usize,
    ports: Vec<Port>,
    pool: Pool,
    jobs: [Job; 1],
    window: u16,
    idle: &'static str,
    stats_socket: PathBuf,
}

#[derive(Serialize)]
struct Address {
    mac: String,
    ip: Ipv4Addr,
}

#[derive(Serialize)]
struct Port {
    name: String,
    device: String,
    mtu: u16,
    descriptors: u16,
}

#[derive(Serialize)]
struct Pool {
    slots: u32,
}

#[derive(Serialize)]
struct Job {
    id: u16,
    key: &'static str,
    workers: u8,
    fixed: Fixed,
}

#[derive(Serialize)]
struct Fixed {
    payload_bytes: u16,
    workers: Vec<Member>,
    ps: Member,
}

#[derive(Serialize)]
struct Member {
    port: String,
    mac: String,
    ip: Ipv4Addr,
    udp_port: u16,
}

fn config(captures: &Captures, cpus: Cpus, socket: &Path) -> Config {
    let name = |rank: u8| format!("worker{rank}");
    let member = |rank: u8, port: String| {
        let (mac, ip) = worker(rank);
        Member {
            port,
            mac: mac.to_string(),
            ip,
            udp_port: WORKER_PORT,
        }
    };
    let mtu = mtu(captures.payload_bytes);
    Config {
        address: Address {
            mac: SWITCH_MAC.to_string(),
            ip: SWITCH_IP,
        },
        cores: [cpus.data],
        control_core: cpus.control,
        ports: captures
            .files()
            .iter()
            .zip(0..)
            .map(|(file, rank)| Port {
                name: name(rank),
                device: device(usize::from(rank), file),
                mtu,
                descriptors: DESCRIPTORS,
            })
            .collect(),
        // As many as there are fragments in a run: no two of those under way share one.
        pool: Pool {
            slots: u32::from(captures.run_fragments),
        },
        jobs: [Job {
            id: JOB.0,
            // Nobody joins.
            key: "00112233445566778899aabbccddeeff",
            workers: WORKERS,
            fixed: Fixed {
                payload_bytes: captures.payload_bytes,
                workers: (0..WORKERS).map(|rank| member(rank, name(rank))).collect(),
                // Nothing ever goes to it.
                ps: member(WORKERS, name(0)),
            },
        }],
        // The ring holds two windows, and must hold no more than a run.
        window: captures.run_fragments / 2,
        idle: "spin",
        stats_socket: socket.to_owned(),
    }
}
