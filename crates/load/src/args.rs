//! The arguments of `tally-load run`.

use crate::plan::{Priorities, Rate, Wishes};
use crate::run::Limits;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;
use tally_wire::Element;

/// Examples, below `--help`.
pub const EXAMPLES: &str = "\
Examples:
  tally-load run --config switch.json                         closed loop, ten seconds
  tally-load run --config switch.json --window 256 --seconds 60 --json
  tally-load run --config switch.json --rate 2Mpps            open loop, of each job
  tally-load run --config switch.json --rate 10Gbps --priorities 0:50,200:50 --job 7
  tally-load run --config switch.json --loss 0.01 --reorder 0.01 --seed 7 --verify
  tally-load run --config switch.json --port rack1=0000:81:00.0 --port rack2=0000:81:00.1";
/// The longest load.
const SECONDS_MAX: f64 = 3600.0;
/// The longest warm-up.
const WARM_UP_MAX: f64 = 60.0;
/// Most contributions of a load.
const FRAMES_MAX: u64 = 100_000_000_000;

/// What is loaded, and how.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The switch's own configuration file: the only source of addresses
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,

    /// DPDK device at the other end of a port of the switch; once for each port, in the
    /// configuration's order or by name [default: a client for each net_memif server]
    #[arg(long = "port", value_name = "[NAME=]DEVICE")]
    ports: Vec<String>,

    /// Job to load; once for each [default: all of the configuration]
    #[arg(long = "job", value_name = "ID")]
    jobs: Vec<u16>,

    /// Payload of a frame in bytes, a multiple of 64 [default: 1024, or what the ports carry or the
    /// configuration fixes]
    #[arg(long, value_name = "BYTES")]
    payload: Option<u16>,

    /// Element type
    #[arg(long, value_enum, default_value_t = ElementName::I32)]
    pub(crate) element: ElementName,

    /// Upper bound of fragments in flight in each job [default: 64, or what the switch serves]
    #[arg(long, value_name = "FRAGMENTS")]
    window: Option<u16>,

    /// Open loop: rate of each job's contributions, all workers together, in packets per second
    /// (500kpps, 2Mpps) or bits per second of their frames (10Gbps) [default: closed loop]
    #[arg(long)]
    pub(crate) rate: Option<Rate>,

    /// Priorities of fragments and their weights, as 0:50,200:50; of one job with its number in
    /// front, as 7=200:1
    #[arg(long, value_name = "[JOB=]P:WEIGHT,…", value_parser = priorities)]
    priorities: Vec<(Option<u16>, Priorities)>,

    /// Share of frames dropped on purpose, sent and received, 0 to 0.5
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub(crate) loss: f64,

    /// Share of sent frames delayed behind others, 0 to 0.5
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub(crate) reorder: f64,

    /// Random seed of loss and reordering
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Comparison of every word of every result, in place of two cache lines of it
    #[arg(long)]
    pub(crate) verify: bool,

    /// Measured time in seconds, 3600 at most
    #[arg(long, default_value_t = 10.0)]
    pub(crate) seconds: f64,

    /// Time before the measured time in seconds, 60 at most
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    pub(crate) warm_up: f64,

    /// Upper bound of contributions in total
    #[arg(long, default_value_t = FRAMES_MAX)]
    pub(crate) frames: u64,

    /// Parameter servers in processes of their own (tally-agent ps), not simulated ones
    #[arg(long)]
    pub(crate) external_ps: bool,

    /// CPU of the generator [default: the first one that is no data core of the configuration]
    #[arg(long)]
    pub(crate) cpu: Option<usize>,

    /// IPv4 address of the first simulated host [default: 128.1 in the switch's /16]
    #[arg(long, value_name = "IP")]
    first_host: Option<Ipv4Addr>,

    /// No live view on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// Element types, as the protocol names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementName {
    /// 32-bit integers
    I32,
    /// 32-bit floats
    F32,
}

impl From<ElementName> for Element {
    fn from(name: ElementName) -> Self {
        match name {
            ElementName::I32 => Self::I32,
            ElementName::F32 => Self::F32,
        }
    }
}

fn priorities(text: &str) -> Result<(Option<u16>, Priorities), String> {
    let (job, list) = match text.split_once('=') {
        Some((job, list)) => {
            let wrong = |_| format!("`{job}`: the number of a job, in front of `=`");
            (Some(job.parse().map_err(wrong)?), list)
        }
        None => (None, text),
    };
    Ok((job, list.parse()?))
}

impl Args {
    /// Checks the ranges.
    pub(crate) fn check(&self) -> Result<()> {
        for (name, share) in [("--loss", self.loss), ("--reorder", self.reorder)] {
            ensure!((0.0..=0.5).contains(&share), "{name} {share}: 0 to 0.5");
        }
        let Self {
            seconds, warm_up, ..
        } = *self;
        ensure!(
            seconds > 0.0 && seconds <= SECONDS_MAX,
            "--seconds {seconds}: more than 0, and {SECONDS_MAX} at most"
        );
        ensure!(
            (0.0..=WARM_UP_MAX).contains(&warm_up),
            "--warm-up {warm_up}: 0 to {WARM_UP_MAX}"
        );
        ensure!(
            (1..=FRAMES_MAX).contains(&self.frames),
            "--frames {}: 1 to {FRAMES_MAX}",
            self.frames
        );
        Ok(())
    }

    /// What is asked of the plan.
    pub(crate) fn wishes(&self) -> Wishes {
        Wishes {
            ports: self.ports.clone(),
            jobs: self.jobs.clone(),
            payload_bytes: self.payload,
            element: self.element.into(),
            window: self.window,
            rate: self.rate,
            priorities: self.priorities.clone(),
            external_ps: self.external_ps,
            first_host: self.first_host,
        }
    }

    /// What ends the load.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            measure: Duration::from_secs_f64(self.seconds),
            warm_up: Duration::from_secs_f64(self.warm_up),
            frames_max: self.frames,
            loss: self.loss,
            reorder: self.reorder,
            seed: self.seed,
            verify: self.verify,
        }
    }
}
