//! `tally-switch` with a job of eight workers, all of whose fragments are finished in the switch.

use super::config::{Config, Setting};
use super::{Captures, CpuTime, Cpus, DESCRIPTORS, Rate, Shape, WARM_UP, WORKERS, device};
use crate::cluster::Program;
use anyhow::{Context, Result, ensure};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tally_switch::datapath::BURST;
use tally_switch::report::Report;

const START_PATIENCE: Duration = Duration::from_secs(20);
/// Rounds of the captures before it is measured.
const ROUNDS_BEFORE: u64 = 2;
const STOP_PATIENCE: Duration = Duration::from_secs(10);

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
        let devices = captures.files().iter().enumerate();
        let config = Config::new(
            &captures.shape,
            devices.map(|(port, file)| device(port, file)).collect(),
            Setting {
                cores: vec![cpus.data],
                control_core: Some(cpus.control),
                descriptors: DESCRIPTORS,
                stats_socket: socket.clone(),
                memory: "no-huge",
            },
        );
        config.write(&path)?;
        let program = self.start(&path, &folder.join("switch.log"))?;
        std::thread::sleep(WARM_UP);
        // Every buffer has been in use once: the kernel gives a page when it is first touched.
        let enough = ROUNDS_BEFORE * u64::from(captures.shape.frames());
        let deadline = Instant::now() + START_PATIENCE;
        while received(&statistics(&socket)?) < enough {
            ensure!(
                Instant::now() < deadline,
                "the switch: not {enough} frames within {START_PATIENCE:?}"
            );
            std::thread::sleep(WARM_UP / 10);
        }
        let cpu_before = CpuTime::of(program.id())?;
        let before = statistics(&socket)?;
        std::thread::sleep(Duration::from_secs(seconds.into()));
        let after = statistics(&socket)?;
        let cpu_after = CpuTime::of(program.id())?;
        // A good end is one with all buffers back in their pool.
        program.stop(STOP_PATIENCE)?;
        let frames = check(&captures.shape, &before, &after)?;
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

fn received(report: &Report) -> u64 {
    report.ports.iter().map(|port| port.rx_frames).sum()
}

/// The frames that came in between two reports, every one of which was summed and answered.
fn check(shape: &Shape, before: &Report, after: &Report) -> Result<u64> {
    let count = |report: &Report, name: &str| report.counters.get(name).copied().unwrap_or(0);
    let counted = |name| count(after, name) - count(before, name);
    let received = received(after) - received(before);
    let sent_by = |report: &Report| report.ports.iter().map(|port| port.tx_frames).sum::<u64>();
    let sent = sent_by(after) - sent_by(before);
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
    let (workers, ports) = (u64::from(shape.workers), u64::from(shape.ports));
    // While a turn of all workers at a port is under way, so are their sums.
    let under_way = u64::from(shape.turn_fragments) * workers;
    let is_whole = match shape.turn_fragments {
        1 => results * workers == summed,
        _ => summed.abs_diff(results * workers) <= under_way,
    };
    ensure!(
        received > 0 && summed == received && is_whole,
        "of {received} frames the switch summed {summed}, to {results} results for {workers} workers"
    );
    // Results that were decided on and not yet sent when a report was made: those of a turn of the core.
    let staged = (BURST * WORKERS as usize) as u64;
    ensure!(
        sent.abs_diff(results * ports) <= staged,
        "{results} results for {ports} ports, but {sent} frames left"
    );
    Ok(received)
}
