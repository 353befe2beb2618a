//! A fabric on one machine: spines, leaves, the links between them, hosts behind the leaves, and
//! the workers and parameter servers of jobs, as real processes.
//!
//! `plan.rs` says who is who: names, addresses, links, and each job's tree. Programs run on one of
//! two networks: `namespaces.rs` (root: a network namespace for each switch and each host, veth
//! pairs between them) and `memif.rs` (any user: shared memory between the processes).
//! `switches.rs` starts and ends switches, `members.rs` workers and parameter servers, `rings.rs`
//! members of a ring; `uplinks.rs` reads what leaves sent up.
//!
//! Each job has its own hosts: a worker host behind each leaf for each of its ranks there. The
//! parameter server of all jobs' nodes at one switch is one process; of several, each has a part of
//! the fragments. That of a spine is behind a leaf, as hosts are.
//!
//! The catch: all switches poll, so they back off where CPUs are few. A fabric removes what it made
//! when the value goes away, as a [`cluster`](crate::cluster) does.

mod members;
mod memif;
mod namespaces;
mod plan;
mod rings;
mod spec;
mod switches;
mod uplinks;

pub use namespaces::{LinkEnd, Namespaces};
pub use plan::{Host, HostRole, Link, Plan, SwitchId};
pub use spec::{FabricSpec, Shape};
pub use uplinks::Uplink;

use crate::cluster::files::write_secret;
use crate::cluster::leftovers::{PREFIX, remove_leftover_folders};
use crate::cluster::{Network, Program};
use anyhow::{Context, Result, ensure};
use memif::Memif;
use serde::Serialize;
use std::path::{Path, PathBuf};
use tally_schema::agent::config::Transport;

/// A fabric, some of whose programs run.
pub struct Fabric {
    spec: FabricSpec,
    plan: Plan,
    folder: tempfile::TempDir,
    wires: Wires,
    cpus: Vec<usize>,
    // Dropped in this order, before the wires.
    ps: Vec<Option<Program>>,
    switches: Vec<Option<Program>>,
}

/// The network that was made.
enum Wires {
    Namespaces(Namespaces),
    Memif(Memif),
}

impl Fabric {
    /// Makes the network and starts all switches and parameter servers on it.
    ///
    /// # Errors
    /// What the machine refuses, or the log of a program that ends at once.
    pub fn start(spec: FabricSpec) -> Result<Self> {
        let mut fabric = Self::new(spec)?;
        fabric.start_switches()?;
        fabric.start_all_ps()?;
        Ok(fabric)
    }

    /// Makes the network, without a running program.
    ///
    /// # Errors
    /// What the machine refuses.
    pub fn new(spec: FabricSpec) -> Result<Self> {
        let plan = Plan::new(&spec)?;
        for program in ["tally-switch", "tally-agent"] {
            let path = spec.programs.join(program);
            ensure!(
                path.exists(),
                "{} is missing: cargo build --release -p tally-switch -p tally-agent",
                path.display()
            );
        }
        remove_leftover_folders();
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir()
            .context("temporary folder")?;
        let wires = match spec.network {
            Network::Namespaces => Wires::Namespaces(Namespaces::new(&spec, &plan)?),
            Network::Memif => Wires::Memif(Memif::new(folder.path(), spec.mtu)),
        };
        let ps = plan.ps_hosts().map(|_| None).collect();
        let switches = plan.switches().map(|_| None).collect();
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        let cpus: Vec<_> = cpus.iter().map(|core| core.id).collect();
        ensure!(!cpus.is_empty(), "no CPU that this process may use");
        Ok(Self {
            spec,
            plan,
            folder,
            wires,
            cpus,
            ps,
            switches,
        })
    }

    /// Who is who.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What it is like.
    #[must_use]
    pub fn spec(&self) -> &FabricSpec {
        &self.spec
    }

    /// The network, where it is one of namespaces.
    #[must_use]
    pub fn namespaces(&self) -> Option<&Namespaces> {
        match &self.wires {
            Wires::Namespaces(wires) => Some(wires),
            Wires::Memif(_) => None,
        }
    }

    /// Joins the hosts by the kernel's bridges in place of our switches, over the links of one
    /// spine: those of a second one would close a loop.
    ///
    /// # Errors
    /// If the network is not one of namespaces, or what the machine refuses.
    pub fn bridge(&self, spine: SwitchId) -> Result<()> {
        let wires = self.namespaces();
        let wires = wires.context("bridges need network namespaces (root)")?;
        wires.bridge(&self.plan, spine)
    }

    /// The folder for files of this run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Words in front of a command that is to run on a host.
    #[must_use]
    pub fn host_prefix(&self, host: usize) -> Vec<String> {
        match &self.wires {
            Wires::Namespaces(wires) => wires.host_prefix(host),
            Wires::Memif(_) => Vec::new(),
        }
    }

    fn transport(&self, host: usize) -> Transport {
        let Host { ip, mac, leaf, .. } = self.plan.hosts()[host];
        match &self.wires {
            Wires::Namespaces(_) => Transport::udp(ip),
            Wires::Memif(wires) => {
                let leaf = self.plan.name(self.plan.leaf(leaf));
                Transport::dpdk(wires.host_device(&leaf, self.plan.port(host)), mac, ip)
            }
        }
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
