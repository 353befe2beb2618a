//! A plan of `crates/planner`, carried out on one machine by real processes.
//!
//! The problem's devices become network namespaces, and its cables veth pairs between them:
//!
//! | of the problem | here |
//! |---|---|
//! | switch, as it forwards | a namespace that routes IP (*node*) |
//! | switch, as it sums | a `tally-switch` behind a cable of the switch's capacity |
//! | host | a namespace behind a cable of the host's rate |
//! | parameter server (PS) | a `tally-switch` that sums nothing, behind a cable of the PS's rate, and `tally-agent ps` |
//! | share of a job | a job of Tally, with its part of the elements |
//! | stream of a share | a *circuit*: a VXLAN tunnel on the route of the stream |
//!
//! `layout.rs` makes jobs and circuits of a plan, `network.rs` namespaces, cables and tunnels of
//! these, `programs.rs` starts switches, parameter servers and agents, and `rounds.rs` has all
//! workers all-reduce at once and checks every element.
//!
//! **Rates.** A rate of the problem is that of gradients. A cable is shaped to the rate of the
//! frames with payload that have this rate of payload. Frames on their way to where they are summed
//! count. Results return on the same cables; they count if the problem's `results` says so, but
//! never against a capacity.
//!
//! **Shares in proportion.** At each cable a circuit is assured of its part of the rate, which is
//! its part of the frames. What others leave, it may use, too. So no share takes what the plan
//! gives to another one, and no rate is limited to the planned one.
//!
//! **Windows.** A worker's window is a time at its planned rate, some milliseconds. A worker probes
//! for results that are more than 5 ms behind the last one (PROTOCOL.md, R-1). In longer queues it
//! would retransmit contributions that are not lost.
//!
//! Catches:
//!
//! - Elements are i32: a job of 16-bit types is refused.
//! - If one switch sums for another in one share, and the other way round in another share, the
//!   plan is refused: in a fabric one of two switches is above the other.
//! - A switch that gets one stream of a share passes it on, as a tree's switch with one member.

mod layout;
mod network;
mod programs;
mod rounds;

pub use layout::{Circuit, Layout, Part, Role};
pub use rounds::Round;

use crate::cluster::Program;
use crate::cluster::leftovers::{PREFIX, remove_leftover_folders};
use crate::cluster::namespaces::allowed;
use anyhow::{Context, Result, ensure};
use network::Network;
use std::path::PathBuf;
use std::time::Duration;
use tally_planner::{Plan, Problem, Resource};

/// How a plan is carried out.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Mbit/s that stand for one unit of the problem's rates.
    pub mbit_per_unit: f64,
    /// Payload of a fragment.
    pub payload_bytes: u16,
    /// Time in which a worker sends the fragments that it has in flight, at its planned rate. The
    /// queues are about as long.
    pub window: Duration,
    /// Fragments of the gradients of the job with the highest rate. Jobs of lower rates have fewer,
    /// so that all take the same time.
    pub fragments: u64,
    /// Folder of the programs.
    pub programs: PathBuf,
}

impl Scale {
    /// Bytes of a frame in a tunnel, as cables count them: the payload behind the headers of
    /// Ethernet, IPv4, UDP and Tally, behind those of VXLAN.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        const HEADERS: u64 = 14 + 20 + 8 + 22;
        const TUNNEL: u64 = 14 + 20 + 8 + 8;
        u64::from(self.payload_bytes) + HEADERS + TUNNEL
    }

    /// Fragments that a worker of this rate has in flight.
    fn in_flight(&self, rate: f64) -> f64 {
        let bytes = rate * self.mbit_per_unit * 1e6 / 8.0 * self.window.as_secs_f64();
        bytes / f64::from(self.payload_bytes)
    }

    /// Bits a second of frames that carry gradients of this rate.
    fn bits(&self, rate: f64) -> f64 {
        let payload = rate * self.mbit_per_unit * 1e6;
        payload * self.frame_bytes() as f64 / f64::from(self.payload_bytes)
    }
}

/// A plan whose programs run.
pub struct Planned {
    layout: Layout,
    scale: Scale,
    folder: tempfile::TempDir,
    // Dropped in this order, before the network.
    agents: Vec<Program>,
    servers: Vec<Program>,
    switches: Vec<Program>,
    network: Network,
}

impl Planned {
    /// Makes the network of a plan and starts all programs.
    ///
    /// # Errors
    /// A plan that cannot be carried out, what the machine refuses, or the log of a program that
    /// ends at once.
    pub fn start(problem: &Problem, plan: &Plan, scale: Scale) -> Result<Self> {
        ensure!(
            allowed(),
            "a plan is carried out in network namespaces: run it as root"
        );
        for program in ["tally-switch", "tally-agent"] {
            let path = scale.programs.join(program);
            ensure!(
                path.exists(),
                "{} is missing: cargo build --release -p tally-switch -p tally-agent",
                path.display()
            );
        }
        let highest = plan.jobs.iter().map(|job| job.rate).fold(0.0, f64::max);
        let layout = Layout::new(problem, plan, scale.fragments, scale.in_flight(highest))?;
        remove_leftover_folders();
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir()
            .context("temporary folder")?;
        let network = Network::new(problem, &layout, &scale)?;
        let mut planned = Self {
            layout,
            scale,
            folder,
            agents: Vec::new(),
            servers: Vec::new(),
            switches: Vec::new(),
            network,
        };
        planned.start_programs()?;
        Ok(planned)
    }

    /// Jobs and circuits of the plan.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Processes of `tally-switch`, with those of parameter servers.
    #[must_use]
    pub fn switches(&self) -> usize {
        self.switches.len()
    }

    /// Bytes of gradients that passed each shaped cable's way and each capacity since the start,
    /// by those that the plan's streams have in `rounds` rounds. Frames of control are among them.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn carried(&self, rounds: u32) -> Result<Vec<(Resource, f64)>> {
        let frames = self.layout.frames().into_iter();
        frames
            .map(|(resource, frames)| {
                let expected = frames * u64::from(rounds) * self.scale.frame_bytes();
                let sent = self.network.gradient_bytes(resource)?;
                Ok((resource, sent as f64 / expected as f64))
            })
            .collect()
    }
}
