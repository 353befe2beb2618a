//! Racks with and without Tally, whose hosts have an agent each: what Rina is for.
//!
//! Each rack is a network namespace: one that sums has Tally's switch, another a bridge of the
//! kernel. Their uplinks meet in a bridge. A job takes all hosts, in the order of racks. In a rack
//! that sums, the first host has a parameter server, too. Needs root.

mod process;

use crate::cluster::commands::ip;
use crate::cluster::files::write_secret;
use crate::cluster::leftovers::{PREFIX, remove_leftover_folders};
use crate::cluster::namespaces::{self, enter, remove_leftovers, shape};
use crate::cluster::{Program, allowed, prefixed};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tally_schema::agent::config::{
    AgentConfig, AgentJob, AgentPs, AgentTransport, Algorithm, JobRina, RinaRack, SwitchAddress,
    Timeouts,
};
use tally_schema::switch::config::{AddressConfig, Config, JobSection, PortSection};
use tally_wire::{Key, Mac};

pub use process::{Process, Source};

/// How long a program may take until it runs: several start on few CPUs.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// What may wait for a shaped link.
const WAITING_BYTES: u32 = 4 << 20;
/// TCP port of the first job's members; the next jobs' follow.
const PORT: u16 = 4791;
const FIRST_JOB: u16 = 7;

/// One rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RackSpec {
    /// Whether it has Tally's switch.
    pub sums: bool,
    /// Its hosts.
    pub hosts: usize,
}

/// The ranks of each member, as the reference takes them.
#[must_use]
pub fn members_text(racks: &[RackSpec]) -> String {
    let mut members: Vec<Vec<usize>> = Vec::new();
    let mut first = 0;
    for rack in racks {
        let ranks = first..first + rack.hosts;
        if rack.sums {
            members.push(ranks.collect());
        } else {
            members.extend(ranks.map(|rank| vec![rank]));
        }
        first += rack.hosts;
    }
    format!("{members:?}")
}

/// What racks are like.
#[derive(Clone, Debug)]
pub struct RacksSpec {
    /// In the order of the ring.
    pub racks: Vec<RackSpec>,
    /// Jobs of all hosts.
    pub jobs: u16,
    /// Ranks of each host.
    pub ranks_per_host: u16,
    /// Bytes of elements in a frame.
    pub payload_bytes: u16,
    /// Share of frames that each host of a rack that sums drops on purpose, each way.
    pub loss: f64,
    /// Random seed of that.
    pub loss_seed: u64,
    /// Rate of a host's link in Mbit/s; without, as fast as the kernel is.
    pub host_mbit: Option<u32>,
    /// Rate of a rack's uplink.
    pub uplink_mbit: Option<u32>,
    /// Of all agents.
    pub timeouts: Timeouts,
    /// The folder of the programs.
    pub programs: PathBuf,
}

impl RacksSpec {
    /// Racks with one job, and everything else as it is by default.
    #[must_use]
    pub fn new(racks: Vec<RackSpec>, programs: PathBuf) -> Self {
        Self {
            racks,
            jobs: 1,
            ranks_per_host: 1,
            payload_bytes: 1024,
            loss: 0.0,
            loss_seed: 1,
            host_mbit: None,
            uplink_mbit: None,
            timeouts: Timeouts::default(),
            programs,
        }
    }

    /// Hosts of all racks.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.racks.iter().map(|rack| rack.hosts).sum()
    }

    /// The rack of a host, and its number there.
    fn place(&self, host: usize) -> (usize, usize) {
        let mut first = 0;
        for (rack, it) in self.racks.iter().enumerate() {
            if host < first + it.hosts {
                return (rack, host - first);
            }
            first += it.hosts;
        }
        panic!("host {host} of {first}")
    }

    /// The address of a host.
    #[must_use]
    pub fn address(&self, host: usize) -> Ipv4Addr {
        let (rack, number) = self.place(host);
        Ipv4Addr::new(10, 84, rack as u8, number as u8 + 1)
    }

    fn rina(&self, job: u16) -> JobRina {
        let mut hosts = 0..self.hosts();
        let rack = |it: &RackSpec| RinaRack {
            sums: it.sums,
            hosts: (hosts.by_ref().take(it.hosts))
                .map(|host| SocketAddrV4::new(self.address(host), PORT + job))
                .collect(),
        };
        JobRina {
            racks: self.racks.iter().map(rack).collect(),
        }
    }
}

/// Racks, some of whose programs run.
pub struct Racks {
    spec: RacksSpec,
    folder: tempfile::TempDir,
    cpus: Vec<usize>,
    /// By rack, by host, and the middle.
    namespaces: Namespaces,
    // Dropped before the namespaces, as `drop` says.
    switches: Vec<Option<Program>>,
    agents: Vec<Option<Program>>,
}

/// Namespaces that go away with the value.
#[derive(Default)]
struct Namespaces {
    racks: Vec<String>,
    hosts: Vec<String>,
    made: Vec<String>,
}

impl Namespaces {
    fn add(&mut self, role: &str) -> Result<String> {
        let name = namespaces::make(role)?;
        self.made.push(name.clone());
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        Ok(name)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.made {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

impl Drop for Racks {
    fn drop(&mut self) {
        self.agents.clear();
        self.switches.clear();
    }
}

/// A veth pair, shaped at both ends.
fn pair((a, at): (&str, &str), (b, bt): (&str, &str), rate: Option<u32>) -> Result<()> {
    ip(&[
        "link", "add", a, "netns", at, "type", "veth", "peer", "name", b, "netns", bt,
    ])?;
    for (device, namespace) in [(a, at), (b, bt)] {
        ip(&["-n", namespace, "link", "set", device, "up"])?;
        if let Some(rate) = rate {
            shape(namespace, device, rate, WAITING_BYTES)?;
        }
    }
    Ok(())
}

fn bridge(namespace: &str, ports: &[String]) -> Result<()> {
    ip(&["-n", namespace, "link", "add", "bridge", "type", "bridge"])?;
    for port in ports {
        ip(&["-n", namespace, "link", "set", port, "master", "bridge"])?;
    }
    ip(&["-n", namespace, "link", "set", "bridge", "up"])
}

impl Racks {
    /// Makes the network and starts all switches and agents on it.
    ///
    /// # Errors
    /// What the machine refuses, or the log of a program that ends at once.
    pub fn start(spec: RacksSpec) -> Result<Self> {
        let mut racks = Self::new(spec)?;
        for rack in 0..racks.spec.racks.len() {
            if racks.spec.racks[rack].sums {
                racks.start_switch(rack)?;
            }
        }
        for host in 0..racks.spec.hosts() {
            racks.start_agent(host, |_| {})?;
        }
        Ok(racks)
    }

    /// Makes the network, without a running program.
    ///
    /// # Errors
    /// What the machine refuses.
    pub fn new(spec: RacksSpec) -> Result<Self> {
        ensure!(allowed(), "racks need network namespaces (root)");
        for it in &spec.racks {
            ensure!(
                (1..=64).contains(&it.hosts),
                "a rack of {}: 1 to 64",
                it.hosts
            );
        }
        ensure!(
            (1..=200).contains(&spec.racks.len()),
            "{} racks: 1 to 200",
            spec.racks.len()
        );
        for program in ["tally-switch", "tally-agent"] {
            let path = spec.programs.join(program);
            let build = "cargo build --release -p tally-switch -p tally-agent";
            ensure!(path.exists(), "{} is missing: {build}", path.display());
        }
        remove_leftover_folders();
        remove_leftovers()?;
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir()
            .context("temporary folder")?;
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        let cpus: Vec<_> = cpus.iter().map(|core| core.id).collect();
        ensure!(!cpus.is_empty(), "no CPU that this process may use");
        let mut racks = Self {
            switches: spec.racks.iter().map(|_| None).collect(),
            agents: (0..spec.hosts()).map(|_| None).collect(),
            spec,
            folder,
            cpus,
            namespaces: Namespaces::default(),
        };
        racks.build()?;
        Ok(racks)
    }

    fn build(&mut self) -> Result<()> {
        let (spec, all) = (&self.spec, &mut self.namespaces);
        let middle = all.add("middle")?;
        let mut uplinks = Vec::new();
        let mut host = 0;
        for (rack, it) in spec.racks.iter().enumerate() {
            let name = all.add(&format!("rack{rack}"))?;
            let mut ports = Vec::new();
            for number in 0..it.hosts {
                let at = all.add(&format!("host{host}"))?;
                let port = format!("port{number}");
                pair((&port, &name), ("eth0", &at), spec.host_mbit)?;
                let address = format!("{}/16", spec.address(host));
                ip(&["-n", &at, "address", "add", &address, "dev", "eth0"])?;
                all.hosts.push(at);
                ports.push(port);
                host += 1;
            }
            let uplink = format!("rack{rack}");
            pair(("uplink", &name), (&uplink, &middle), spec.uplink_mbit)?;
            uplinks.push(uplink);
            ports.push("uplink".into());
            if !it.sums {
                bridge(&name, &ports)?;
            }
            all.racks.push(name);
        }
        bridge(&middle, &uplinks)
    }

    /// What they are like.
    #[must_use]
    pub fn spec(&self) -> &RacksSpec {
        &self.spec
    }

    /// The number of a job on the wire.
    #[must_use]
    pub const fn job_id(job: u16) -> u16 {
        FIRST_JOB + job
    }

    /// The key of a job.
    #[must_use]
    pub fn key(job: u16) -> Key {
        let mut bytes = [0x5a; 16];
        bytes[14..].copy_from_slice(&Self::job_id(job).to_be_bytes());
        // It is long enough.
        Key::new(&bytes).unwrap_or_else(|_| unreachable!("16 bytes"))
    }

    /// Where a member of a job listens.
    #[must_use]
    pub fn listener(&self, job: u16, host: usize) -> SocketAddrV4 {
        SocketAddrV4::new(self.spec.address(host), PORT + job)
    }

    /// The socket of a host's agent.
    #[must_use]
    pub fn socket(&self, host: usize) -> PathBuf {
        self.file(&format!("agent{host}.sock"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Words in front of a command that is to run on a host.
    #[must_use]
    pub fn host_prefix(&self, host: usize) -> Vec<String> {
        enter(&self.namespaces.hosts[host])
    }

    /// The namespace of a host.
    #[must_use]
    pub fn host_name(&self, host: usize) -> &str {
        &self.namespaces.hosts[host]
    }

    /// The agent of a host.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn agent(&self, host: usize) -> &Program {
        self.agents[host].as_ref().expect("an agent that runs")
    }

    fn write(&self, name: &str, config: &impl Serialize) -> Result<PathBuf> {
        let path = self.file(name);
        write_secret(&path, &simd_json::to_string(config)?)?;
        Ok(path)
    }

    fn switch_ip(rack: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 84, rack as u8, 254)
    }

    /// Starts the switch of a rack that sums.
    ///
    /// # Errors
    /// If it ends at once.
    pub fn start_switch(&mut self, rack: usize) -> Result<()> {
        let it = self.spec.racks[rack];
        ensure!(it.sums, "rack {rack} has no switch that sums");
        let mac = Mac([0x02, 0x54, 0x41, 0x4c, 0, rack as u8]);
        let address = AddressConfig::new(mac, Self::switch_ip(rack));
        let hosts = (0..it.hosts).map(|number| format!("port{number}"));
        let ports = hosts.chain(["uplink".to_owned()]).enumerate();
        let port = |(number, name): (usize, String)| PortSection {
            name: Some(name.clone()),
            ..PortSection::new(format!("packet{number},iface={name}"))
        };
        let mut config = Config::new(address, ports.map(port).collect());
        config.cores = vec![self.cpus[rack % self.cpus.len()]];
        config.jobs = (0..self.spec.jobs)
            .map(|job| JobSection::new(Self::job_id(job), Self::key(job), it.hosts as u8))
            .collect();
        let name = format!("switch{rack}");
        let path = self.write(&format!("{name}.json"), &config)?;
        let prefix = enter(&self.namespaces.racks[rack]);
        let mut command = prefixed(&prefix, &self.spec.programs.join("tally-switch"));
        command.arg("--config").arg(path);
        let mut program = Program::start(&name, command, &self.file(&format!("{name}.log")))?;
        program.wait_until("it runs", START_PATIENCE, |log| {
            log.contains("running on CPU")
        })?;
        self.switches[rack] = Some(program);
        Ok(())
    }

    /// Kills the switch of a rack on the spot.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill_switch(&mut self, rack: usize) -> Result<()> {
        match self.switches[rack].take() {
            Some(program) => program.kill(),
            None => bail!("the switch of rack {rack} does not run"),
        }
    }

    /// The configuration that a host's agent is started with.
    #[must_use]
    pub fn agent_config(&self, host: usize) -> AgentConfig {
        let spec = &self.spec;
        let (rack, number) = spec.place(host);
        let workers = spec.hosts() as u16 * spec.ranks_per_host;
        let job = |job| AgentJob {
            ranks_per_host: spec.ranks_per_host,
            algorithm: Algorithm::Ring,
            rina: Some(spec.rina(job)),
            ..AgentJob::new(Self::job_id(job), Self::key(job), workers)
        };
        let jobs = (0..spec.jobs).map(job).collect();
        let bind = spec.address(host);
        let switch = SwitchAddress::new(Self::switch_ip(rack));
        AgentConfig {
            socket: self.socket(host),
            payload_bytes: spec.payload_bytes.into(),
            timeouts: spec.timeouts,
            ps: (spec.racks[rack].sums && number == 0).then(AgentPs::default),
            ..AgentConfig::new(switch, AgentTransport::Udp { bind }, jobs)
        }
    }

    /// Starts the agent of a host, with something changed in its configuration.
    ///
    /// # Errors
    /// If it ends at once.
    pub fn start_agent(
        &mut self,
        host: usize,
        change: impl FnOnce(&mut AgentConfig),
    ) -> Result<()> {
        let mut config = self.agent_config(host);
        change(&mut config);
        let name = format!("agent{host}");
        let path = self.write(&format!("{name}.json"), &config)?;
        let prefix = self.host_prefix(host);
        let mut command: Command = prefixed(&prefix, &self.spec.programs.join("tally-agent"));
        command.args(["serve", "--config"]).arg(path);
        if self.spec.loss > 0.0 && self.spec.racks[self.spec.place(host).0].sums {
            let seed = self.spec.loss_seed * 1000 + host as u64;
            command.arg("--loss").arg(self.spec.loss.to_string());
            command.arg("--loss-seed").arg(seed.to_string());
        }
        let mut program = Program::start(&name, command, &self.file(&format!("{name}.log")))?;
        program.wait_until("it listens", START_PATIENCE, |log| {
            log.contains("listening at")
        })?;
        self.agents[host] = Some(program);
        Ok(())
    }

    /// Kills the agent of a host on the spot.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill_agent(&mut self, host: usize) -> Result<()> {
        match self.agents[host].take() {
            Some(program) => program.kill(),
            None => bail!("the agent of host {host} does not run"),
        }
    }

    /// Has all programs end in order.
    ///
    /// # Errors
    /// If one does not, or has crashed.
    pub fn end(mut self) -> Result<()> {
        for program in self
            .agents
            .drain(..)
            .chain(self.switches.drain(..))
            .flatten()
        {
            let log = program.stop(START_PATIENCE)?;
            ensure!(!log.contains("crashed"), "{log}");
        }
        Ok(())
    }

    /// The folder for files of this run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
