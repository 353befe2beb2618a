//! A whole Tally on one machine: a switch, and the workers and parameter servers of one or several
//! jobs, as real processes.
//!
//! `spec.rs` says what a cluster is like and `identity.rs` who is who in it: hosts, addresses,
//! jobs, keys. Programs run on one of two networks (`network.rs`): `namespaces.rs` (root: each host
//! in its own network namespace, on veth pairs, the switch on packet sockets) and `memif.rs` (any
//! user: shared memory between the processes, no kernel in between). Configuration files are the
//! same on both except for the devices.
//!
//! [`Cluster`] has a file for each kind of program: `switch.rs`, `members.rs` (workers and
//! parameter servers), `agents.rs`, `switchml.rs`, `rings.rs` and `card.rs`. Guests are hosts
//! without one (`guests.rs`), or virtual machines (`machines.rs`). Faults are `loss.rs` (frames
//! that members drop), `wire.rs` (frames that links drop) and `restart.rs`.
//!
//! Every worker and every parameter server is a host of its own. A memif host connects once in the
//! life of the process at either end, so only namespaces carry restarts.
//!
//! Everything a cluster makes has the process id in its name or lies in one temporary folder. It
//! goes away with the value, also when a later step fails; the next run removes what a killed one
//! left (`leftovers.rs`).

mod agents;
mod card;
pub(crate) mod commands;
mod cpus;
pub(crate) mod files;
mod guests;
mod identity;
pub(crate) mod leftovers;
mod loss;
mod machines;
mod members;
mod memif;
pub(crate) mod namespaces;
mod network;
mod process;
mod restart;
pub(crate) mod rings;
mod spec;
mod switch;
mod switchml;
mod wire;

pub use card::Standstill;
pub use commands::prefixed;
pub use cpus::Cpus;
pub use identity::{HostId, SWITCH_IP, host_address};
pub use loss::LossPattern;
pub use machines::Machine;
pub use namespaces::{Driver, Links, Namespaces, allowed};
pub use network::Network;
pub use process::{Ended, Program};
pub use restart::{Process, Restarted};
pub use spec::Spec;
pub use tally_schema::agent::config::Timeouts;
pub use wire::{LostFrames, WireLosses};

use anyhow::{Context, Result, ensure};
use files::write_secret;
use identity::HOSTS_MAX;
use leftovers::{PREFIX, remove_leftover_folders};
use memif::Memif;
use network::{Host, Wires};
use serde::Serialize;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tally_wire::part::is_count;

/// A cluster, some of whose programs run. Jobs are numbered from 0, in the order of the
/// specification.
pub struct Cluster {
    spec: Spec,
    /// Where the switch listens for each SwitchML job, and where its workers find that.
    controllers: Vec<switchml::Controller>,
    /// Whether workers write their results to files.
    outputs: bool,
    folder: tempfile::TempDir,
    wires: Wires,
    cpus: Cpus,
    // Dropped in this order, before the wires.
    /// By job and part.
    ps: Vec<Vec<Option<Program>>>,
    switch: Option<Program>,
    /// The card that there may be, and its link.
    card: Option<card::CardLink>,
}

impl Cluster {
    /// Makes the network and starts the switch and the parameter servers on it.
    ///
    /// # Errors
    /// What the machine refuses, or the log of a program that ends at once.
    pub fn start(spec: Spec) -> Result<Self> {
        let mut cluster = Self::new(spec)?;
        cluster.start_switch()?;
        for job in 0..cluster.spec.jobs.len() {
            cluster.start_ps(job)?;
        }
        Ok(cluster)
    }

    /// Makes the network, without a running program.
    ///
    /// # Errors
    /// What the machine refuses.
    pub fn new(spec: Spec) -> Result<Self> {
        for &workers in spec.jobs.iter().chain(&spec.switchml) {
            ensure!((1..=64).contains(&workers), "{workers} workers: 1 to 64");
        }
        ensure!(
            is_count(spec.parameter_servers),
            "{} parameter servers: 1, 2, 4, 8 or 16",
            spec.parameter_servers
        );
        let hosts = spec.hosts();
        let hosts_max = HOSTS_MAX - usize::from(spec.card);
        ensure!(
            (1..=hosts_max).contains(&hosts),
            "{hosts} workers and parameter servers: 1 to {hosts_max}"
        );
        let mut programs = vec!["tally-switch", "tally-agent"];
        if !spec.switchml.is_empty() || spec.ring {
            programs.push("tally-testkit");
        }
        if spec.card {
            programs.push("tally-card");
        }
        for program in programs {
            let path = spec.programs.join(program);
            ensure!(
                path.exists(),
                "{} is missing: cargo build --release -p tally-switch -p tally-agent -p tally-testkit{}",
                path.display(),
                if spec.card { " -p tally-card" } else { "" }
            );
        }
        remove_leftover_folders();
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir()
            .context("temporary folder")?;
        let mut cpus = Cpus::of_this_machine(spec.cores)?;
        if spec.share_cpus {
            cpus.share();
        }
        let wires = match spec.network {
            Network::Namespaces => {
                // The card's is one more, of which only the pair is used.
                let ports = hosts + usize::from(spec.card);
                let mut wires = match spec.wire_loss {
                    Some(share) => Namespaces::lossy(ports, spec.links(), share)?,
                    None => Namespaces::new(ports, spec.links())?,
                };
                wires.prepare_for_switch(spec.driver)?;
                if let Some(bytes) = spec.queue_bytes {
                    wires.limit_queues(bytes)?;
                }
                if !spec.switchml.is_empty() {
                    wires.join_controllers(spec.hosts_of(spec.jobs.len()))?;
                }
                Wires::Namespaces(wires)
            }
            Network::Memif => Wires::Memif(Memif::new(
                folder.path().join("memif.sock"),
                spec.links().mtu,
            )),
        };
        let servers = || (0..spec.parameter_servers).map(|_| None).collect();
        let ps = spec.jobs.iter().map(|_| servers()).collect();
        let controllers = switchml::controllers(&spec)?;
        let mtu = spec.links().mtu;
        let card = spec
            .card
            .then(|| card::CardLink::new(folder.path(), &wires, hosts, mtu));
        Ok(Self {
            card,
            spec,
            controllers,
            outputs: true,
            folder,
            wires,
            cpus,
            ps,
            switch: None,
        })
    }

    /// The CPUs that its processes may use.
    #[must_use]
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    /// Frames lost on the wire of each host; none where wires are not lossy.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn wire_losses(&self) -> Result<Vec<WireLosses>> {
        match &self.wires {
            Wires::Namespaces(wires) => wires.wire_losses(),
            Wires::Memif(_) => Ok(Vec::new()),
        }
    }

    /// The folder for files of this run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The number of a job on the wire.
    #[must_use]
    pub fn job_id(job: usize) -> u16 {
        identity::job_id(job)
    }

    /// A process that runs.
    #[must_use]
    pub fn program(&self, process: Process) -> Option<&Program> {
        match process {
            Process::Switch => self.switch.as_ref(),
            Process::Ps => self.ps.first()?.last()?.as_ref(),
        }
    }

    /// The address of a host.
    #[must_use]
    pub fn ip(&self, host: HostId) -> Ipv4Addr {
        identity::address(host)
    }

    /// A command that runs on a host: in its namespace, where it has one.
    #[must_use]
    pub fn command_on(&self, host: HostId, program: &str) -> Command {
        prefixed(&self.wires.host(host).prefix, Path::new(program))
    }

    fn on_host(&self, host: &Host, program: &str) -> Command {
        let mut command = prefixed(&host.prefix, Path::new("taskset"));
        command
            .args(["-c", &Cpus::list(&self.cpus.hosts)])
            .arg(self.spec.programs.join(program));
        command
    }

    fn write(&self, name: &str, config: &impl Serialize) -> Result<PathBuf> {
        self.write_text(name, &simd_json::to_string(config)?)
    }

    fn write_text(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.file(name);
        write_secret(&path, text)?;
        Ok(path)
    }
}
