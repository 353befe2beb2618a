//! `tally-switch` with a job of eight workers, all of whose fragments are finished in the switch.

use super::{
    Captures, CpuTime, Cpus, DESCRIPTORS, Memory, Rate, Replayed, WARM_UP, WORKERS, device,
};
use crate::cluster::Program;
use anyhow::{Context, Result, ensure};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tally_load::capture::config::{self, Setting};
use tally_schema::switch::report::Report;
use tally_switch::datapath::BURST;

pub(super) const START_PATIENCE: Duration = Duration::from_secs(60);
/// Rounds of the captures before it is measured.
const ROUNDS_BEFORE: u64 = 2;
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// A `tally-switch` program.
#[derive(Clone, Debug)]
pub struct Switch {
    program: PathBuf,
    memory: Memory,
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
            memory: Memory::default(),
        })
    }

    /// With this packet memory when it is replayed to.
    #[must_use]
    pub fn with(self, memory: Memory) -> Self {
        Self { memory, ..self }
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory
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
        let running = self.replay(captures, &[cpus.data], cpus.control)?;
        Running::measure(vec![running], seconds)
    }

    /// Starts it with what is replayed into it, and with a data core on each of those CPUs.
    ///
    /// # Errors
    /// If it does not run.
    pub fn replay<'a>(
        &self,
        captures: &'a Captures,
        cores: &[usize],
        control: usize,
    ) -> Result<Running<'a>> {
        let name = cores
            .iter()
            .fold("switch".to_owned(), |name, cpu| format!("{name}-{cpu}"));
        let file = |suffix: &str| captures.folder().join(format!("{name}.{suffix}"));
        let (path, socket) = (file("json"), file("sock"));
        let devices = captures.files().iter().enumerate();
        let config = config::config(
            &captures.shape,
            devices.map(|(port, files)| device(port, files)).collect(),
            Setting {
                cores: cores.to_vec(),
                control_core: Some(control),
                descriptors: DESCRIPTORS,
                stats_socket: socket.clone(),
                memory: self.memory.of_switch(),
            },
        );
        config::write(&config, &path)?;
        Ok(Running {
            program: self.start(&path, &file("log"))?,
            socket,
            captures,
            cores: cores.len(),
        })
    }
}

/// A switch into which captures are replayed.
pub struct Running<'a> {
    program: Program,
    socket: PathBuf,
    captures: &'a Captures,
    cores: usize,
}

impl Running<'_> {
    /// The rate at which switches that run at the same time sum frames, all together, over that
    /// many seconds.
    ///
    /// # Errors
    /// As [`Switch::measure`].
    pub fn measure(switches: Vec<Self>, seconds: u32) -> Result<Rate> {
        std::thread::sleep(WARM_UP);
        for switch in &switches {
            switch.warm_up()?;
        }
        let sample = |switch: &Self| {
            let cpu = CpuTime::of(switch.program.id())?;
            Ok((cpu, statistics(&switch.socket)?))
        };
        let before = switches.iter().map(sample).collect::<Result<Vec<_>>>()?;
        std::thread::sleep(Duration::from_secs(seconds.into()));
        let after = switches.iter().map(sample).collect::<Result<Vec<_>>>()?;
        let (mut frames_per_wall_s, mut cpu_share, mut cores) = (0.0, 0.0, 0);
        for ((switch, before), after) in switches.into_iter().zip(before).zip(after) {
            // A good end is one with all buffers back in their pool.
            switch.program.stop(STOP_PATIENCE)?;
            let frames = check(switch.captures, &before.1, &after.1)?;
            frames_per_wall_s += frames as f64 / (after.1.gauges.seconds - before.1.gauges.seconds);
            cpu_share += before.0.share_of_each_until(&after.0, switch.cores) * switch.cores as f64;
            cores += switch.cores;
        }
        Ok(Rate::new(frames_per_wall_s, cpu_share / cores as f64))
    }

    /// Until every buffer has been in use once: the kernel gives a page when it is first touched.
    fn warm_up(&self) -> Result<()> {
        let enough = ROUNDS_BEFORE * u64::from(self.captures.shape.frames());
        let deadline = Instant::now() + START_PATIENCE;
        while received(&statistics(&self.socket)?) < enough {
            ensure!(
                Instant::now() < deadline,
                "the switch: not {enough} frames within {START_PATIENCE:?}"
            );
            std::thread::sleep(WARM_UP / 10);
        }
        Ok(())
    }
}

/// What the switch behind that socket says of itself.
pub fn statistics(socket: &Path) -> Result<Report> {
    let mut text = Vec::new();
    UnixStream::connect(socket)
        .and_then(|mut stream| stream.read_to_end(&mut text))
        .context("the switch's statistics")?;
    simd_json::from_slice(&mut text).context("the switch's statistics")
}

fn received(report: &Report) -> u64 {
    report
        .ports
        .iter()
        .map(|port| port.counters.rx_frames)
        .sum()
}

/// The frames that came in between two reports, every one of which was summed and answered.
///
/// Data cores report one after the other. Without steering another core sums the frames that one
/// has received, and some are in flight between the two reports: a hundredth of the frames, plus
/// the capacity of the rings between the cores.
fn check(captures: &Captures, before: &Report, after: &Report) -> Result<u64> {
    let shape = &captures.shape;
    let count = |report: &Report, name: &str| report.counters.get(name).copied().unwrap_or(0);
    let counted = |name| count(after, name) - count(before, name);
    let received = received(after) - received(before);
    let sent_by = |report: &Report| {
        report
            .ports
            .iter()
            .map(|port| port.counters.tx_frames)
            .sum::<u64>()
    };
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
    let cores = usize::from(shape.shards);
    let handed = if captures.is_steered() {
        0
    } else {
        received / 100 + tally_switch::handover::frames_max(cores) as u64
    };
    let workers = u64::from(shape.workers_of_job());
    let ports = u64::from(shape.ports / shape.jobs);
    // While a turn of all workers at a port is in flight, so are their sums.
    let turn = match shape.turn_fragments {
        1 => 0,
        fragments => u64::from(fragments) * workers,
    };
    let is_whole = summed.abs_diff(results * workers) <= turn + handed;
    ensure!(
        received > 0 && summed.abs_diff(received) <= handed && is_whole,
        "of {received} frames the switch summed {summed}, to {results} results for {workers} workers"
    );
    // Results that were decided on and not yet sent when a report was made: those of a turn of each
    // core.
    let staged = (BURST * WORKERS as usize * cores) as u64;
    ensure!(
        sent.abs_diff(results * ports) <= staged + handed,
        "{results} results for {ports} ports, but {sent} frames left"
    );
    Ok(received)
}
