//! A whole Tally on one machine: a switch, and the workers and parameter servers of one or several
//! jobs, as real processes.
//!
//! Two networks: `namespaces.rs` (root: each host in its own network namespace, on veth pairs, the
//! switch on packet sockets) and `memif.rs` (any user: shared memory between the processes, no
//! kernel in between). What runs on them is the same, with the same configuration files but for the
//! devices.
//!
//! Every worker and every parameter server is a host of its own. A memif host connects once in the
//! life of the process at either end, so only namespaces carry restarts.
//!
//! Everything a cluster makes has the process id in its name or lies in one temporary folder, and
//! goes away with the value, also when something fails half way; what a killed run left behind is
//! removed by the next one.

mod card;
mod cpus;
mod files;
mod guests;
mod loss;
mod memif;
mod namespaces;
mod process;
mod restart;
mod switchml;
mod wire;

pub use card::Standstill;
pub use cpus::Cpus;
pub use files::{
    Injected, LatencyReport, PsJobReport, PsReport, Retransmissions, Traffic, WorkerReport,
};
pub use loss::LossPattern;
pub use namespaces::{Links, Namespaces, allowed};
pub use process::{Ended, Program};
pub use restart::{Process, Restarted};
pub use wire::{LostFrames, WireLosses};

use anyhow::{Context, Result, bail, ensure};
use files::{Transport, read_json};
use serde::Serialize;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What everything of ours is called, before the process id.
const PREFIX: &str = "tally-";
/// The number of the first job; the others follow.
const FIRST_JOB: u16 = 7;
/// The switch's address.
pub const SWITCH_IP: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
const SWITCH_MAC: &str = "02:54:41:4c:4c:59";
/// Hosts that have addresses beside the switch's.
const HOSTS_MAX: usize = 253;

/// How the processes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Network namespaces and veth pairs, packet sockets in the switch, UDP sockets in the hosts
    Namespaces,
    /// Shared memory, `net_memif` in all processes
    Memif,
}

impl Network {
    /// What it is made of, for people.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Namespaces => "network namespaces, veth pairs, packet sockets",
            Self::Memif => "net_memif, no privileges, no hugepages",
        }
    }

    /// Whether a process may be killed and started again.
    #[must_use]
    pub fn carries_restarts(self) -> bool {
        self == Self::Namespaces
    }

    /// Namespaces for root, memif for everybody else.
    #[must_use]
    pub fn for_this_user() -> Self {
        if allowed() {
            Self::Namespaces
        } else {
            Self::Memif
        }
    }
}

/// What the cluster is to be like.
#[derive(Clone, Debug)]
pub struct Spec {
    /// How the processes reach each other.
    pub network: Network,
    /// Workers of each job, 1 to 64.
    pub jobs: Vec<u8>,
    /// Workers of each SwitchML job that may run at the same time, 1 to 64. Each has a controller's address of its
    /// own.
    pub switchml: Vec<u8>,
    /// Hosts on which none of our programs runs, at ports of their own.
    pub guests: usize,
    /// Whether all jobs are on a simulated card.
    pub card: bool,
    /// What the switch has at its end of the pairs, in namespaces.
    pub driver: Driver,
    /// Data cores of the switch, a power of two.
    pub cores: usize,
    /// Whether workers and parameter servers may use the switch's CPUs as well.
    pub share_cpus: bool,
    /// MTU of all links; by default the ordinary one where the payload fits it.
    pub mtu: Option<u16>,
    /// What each link carries each way, in Mbit/s, in namespaces; by default what the kernel can.
    pub rate_mbit: Option<u32>,
    /// Payload of a fragment.
    pub payload_bytes: u16,
    /// Fragments a worker may have unfinished.
    pub window: u16,
    /// Policy of the switch.
    pub policy: String,
    /// Slots of the switch; by default what it makes of its caches.
    pub slots: Option<u32>,
    /// Share of frames dropped at each worker and the PS, each way.
    pub loss: f64,
    /// Where its random numbers start.
    pub loss_seed: u64,
    /// Which of these frames may be dropped.
    pub loss_pattern: LossPattern,
    /// Share of frames that the kernel drops on each link, each way, in namespaces; by default
    /// links have no lossy wires (`wire`).
    pub wire_loss: Option<f64>,
    /// Queue of each shaped link, in bytes; by default long enough for all windows.
    pub queue_bytes: Option<u32>,
    /// When the workers give up.
    pub timeouts: Timeouts,
    /// How long a member may be silent before the switch gives its job up; by default the switch's own.
    pub member_timeout_ms: Option<u32>,
    /// The key that the workers have, if it is not their job's.
    pub worker_key: Option<String>,
    /// Where the programs are.
    pub programs: PathBuf,
}

/// When a worker gives up, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Timeouts {
    /// Without an answer to JOIN, or with members missing.
    pub join_ms: u64,
    /// Without a result while the job runs.
    pub stall_ms: u64,
}

impl Default for Spec {
    /// One job of four workers as they are by default, on this user's network, with the programs beside this one.
    fn default() -> Self {
        let own = std::env::current_exe().unwrap_or_default();
        Self {
            network: Network::for_this_user(),
            jobs: vec![4],
            switchml: Vec::new(),
            guests: 0,
            card: false,
            driver: Driver::Packet,
            cores: 1,
            share_cpus: false,
            mtu: None,
            rate_mbit: None,
            payload_bytes: 1024,
            window: 256,
            policy: "esa".into(),
            slots: None,
            loss: 0.0,
            loss_seed: 1,
            loss_pattern: LossPattern::default(),
            wire_loss: None,
            queue_bytes: None,
            timeouts: Timeouts {
                join_ms: 30_000,
                stall_ms: 10_000,
            },
            member_timeout_ms: None,
            worker_key: None,
            programs: own.parent().map(Path::to_owned).unwrap_or_default(),
        }
    }
}

/// What drives the switch's ports in namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// Our own packet sockets
    #[default]
    Packet,
    /// DPDK's `net_af_packet`
    AfPacket,
}

/// One host of the network: the workers and the PS of the first job, of the second, and so on, then the workers of
/// the SwitchML jobs, then the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostId(usize);

/// A host, as a program running on it must be told.
#[derive(Clone, Debug)]
struct Host {
    /// Words in front of the command, as `ip netns exec NAME`.
    prefix: Vec<String>,
    /// The `transport` of its configuration.
    transport: Transport,
}

enum Wires {
    Namespaces(Namespaces),
    Memif(memif::Memif),
}

impl Wires {
    fn switch_prefix(&self) -> Vec<String> {
        match self {
            Self::Namespaces(wires) => wires.switch_prefix(),
            Self::Memif(_) => Vec::new(),
        }
    }

    fn device(&self, host: HostId) -> String {
        match self {
            Self::Namespaces(wires) => wires.device(host.0),
            Self::Memif(wires) => wires.device(host.0),
        }
    }

    fn host(&self, host: HostId) -> Host {
        let ip = address(host);
        let HostId(host) = host;
        match self {
            Self::Namespaces(wires) => Host {
                prefix: wires.host_prefix(host),
                transport: Transport::Udp {
                    bind: format!("{ip}:0"),
                },
            },
            Self::Memif(wires) => Host {
                prefix: Vec::new(),
                transport: Transport::Dpdk {
                    device: wires.client_device(host),
                    mac: host_mac(host),
                    address: ip,
                },
            },
        }
    }
}

/// The address of a host.
fn address(HostId(host): HostId) -> Ipv4Addr {
    host_address(host)
}

/// The Ethernet address of a host that has no kernel to give it one.
fn host_mac(host: usize) -> String {
    format!("02:84:00:00:00:{host:02x}")
}

/// The address of the host of that number in its network.
pub(crate) fn host_address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 0, host as u8 + 1)
}

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
    ps: Vec<Option<Program>>,
    switch: Option<Program>,
    /// The card that there may be, and its link.
    card: Option<card::CardLink>,
}

impl Cluster {
    /// Makes the network and starts the switch and the parameter servers on it.
    ///
    /// # Errors
    /// What the machine refuses, and whatever a program says that ends at once.
    pub fn start(spec: Spec) -> Result<Self> {
        let mut cluster = Self::new(spec)?;
        cluster.start_switch()?;
        for job in 0..cluster.spec.jobs.len() {
            cluster.start_ps(job)?;
        }
        Ok(cluster)
    }

    /// Makes the network, on which nothing runs.
    ///
    /// # Errors
    /// What the machine refuses.
    pub fn new(spec: Spec) -> Result<Self> {
        for &workers in spec.jobs.iter().chain(&spec.switchml) {
            ensure!((1..=64).contains(&workers), "{workers} workers: 1 to 64");
        }
        let hosts = spec.hosts();
        let hosts_max = HOSTS_MAX - usize::from(spec.card);
        ensure!(
            (1..=hosts_max).contains(&hosts),
            "{hosts} workers and parameter servers: 1 to {hosts_max}"
        );
        let mut programs = vec!["tally-switch", "tally-agent"];
        if !spec.switchml.is_empty() {
            programs.push("tally-perf");
        }
        if spec.card {
            programs.push("tally-card");
        }
        for program in programs {
            let path = spec.programs.join(program);
            ensure!(
                path.exists(),
                "{} is missing: cargo build --release -p tally-switch -p tally-agent -p tally-perf{}",
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
                    wires.join_controllers(hosts_of(&spec.jobs))?;
                }
                Wires::Namespaces(wires)
            }
            Network::Memif => Wires::Memif(memif::Memif::new(folder.path(), &spec)),
        };
        let ps = spec.jobs.iter().map(|_| None).collect();
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

    /// Has the switch use another policy from its next start on.
    pub fn set_policy(&mut self, policy: &str) {
        policy.clone_into(&mut self.spec.policy);
    }

    /// Has workers that are started from now on write their results to files, as they do at first, or not.
    pub fn set_outputs(&mut self, outputs: bool) {
        self.outputs = outputs;
    }

    /// The switch's ports, one for each host.
    fn ports(&self) -> Vec<files::SwitchPort> {
        let links = self.spec.links();
        let mtu = links.mtu;
        let mut ports = Vec::new();
        let mut add = |name, host| {
            let device = self.wires.device(host);
            ports.push(files::SwitchPort { name, device, mtu });
        };
        for (job, &workers) in self.spec.jobs.iter().enumerate() {
            for rank in 0..workers {
                add(self.worker_name(job, rank), self.worker_host(job, rank));
            }
            add(self.ps_name(job), self.ps_host(job));
        }
        for (job, &workers) in self.spec.switchml.iter().enumerate() {
            for rank in 0..workers {
                add(switchml::name(job, rank), self.switchml_host(job, rank));
            }
        }
        for guest in 0..self.spec.guests {
            add(guests::name(guest), self.guest_host(guest));
        }
        ports.extend(self.card.as_ref().map(|link| link.port(mtu)));
        ports
    }

    /// Starts the switch, which must not run.
    ///
    /// # Errors
    /// If it ends at once.
    pub fn start_switch(&mut self) -> Result<()> {
        ensure!(self.switch.is_none(), "the switch runs already");
        let jobs = self.spec.jobs.iter().enumerate();
        let config = files::SwitchConfig {
            address: files::SwitchAddress {
                mac: SWITCH_MAC,
                ip: SWITCH_IP,
            },
            cores: &self.cpus.switch,
            ports: self.ports(),
            pool: files::SwitchPool {
                policy: &self.spec.policy,
                slots: self.spec.slots,
            },
            jobs: jobs
                .map(|(job, &workers)| files::SwitchJob {
                    id: job_id(job),
                    key: key(job),
                    workers,
                })
                .collect(),
            switchml: self.switchml_section(),
            card: self
                .card
                .as_ref()
                .map(|link| link.section(self.spec.jobs.len())),
            window: self.spec.window,
            member_timeout_ms: self.spec.member_timeout_ms,
            stats_socket: self.file("switch.sock"),
        };
        let path = self.write("switch.json", &config)?;
        let mut command = prefixed(
            &self.wires.switch_prefix(),
            &self.spec.programs.join("tally-switch"),
        );
        command
            .arg("--config")
            .arg(path)
            .arg("--report")
            .arg(self.file("switch-report.json"));
        let mut program = Program::start("switch", command, &self.file("switch.log"))?;
        program.wait_until("it listens", Duration::from_secs(20), |log| {
            log.contains("running on CPU")
        })?;
        self.switch = Some(program);
        Ok(())
    }

    /// Starts the parameter server of a job, which must not run.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_ps(&mut self, job: usize) -> Result<()> {
        let name = self.ps_name(job);
        ensure!(self.ps[job].is_none(), "{name} runs already");
        let host = self.wires.host(self.ps_host(job));
        let config = files::PsConfig {
            switch: files::AgentSwitch { address: SWITCH_IP },
            jobs: [files::PsJob {
                id: job_id(job),
                key: key(job),
            }],
            transport: &host.transport,
        };
        let path = self.write(&format!("{name}.json"), &config)?;
        let mut command = self.on_host(&host, "tally-agent");
        command.arg("ps").arg("--config").arg(path);
        command.arg("--report").arg(self.ps_report_path(job));
        self.add_loss(&mut command, job, loss::PS);
        let log = self.file(&format!("{name}.log"));
        self.ps[job] = Some(Program::start(&name, command, &log)?);
        Ok(())
    }

    /// Stops the switch and gives its report.
    ///
    /// # Errors
    /// If it does not run, does not stop, or says that it failed.
    pub fn stop_switch(&mut self) -> Result<tally_switch::report::Report> {
        let program = self.switch.take().context("the switch does not run")?;
        program.stop(Duration::from_secs(10))?;
        read_json(&self.file("switch-report.json"))
    }

    /// Stops the PS of a job and gives its report.
    ///
    /// # Errors
    /// If it does not run, does not stop, or says that it failed.
    pub fn stop_ps(&mut self, job: usize) -> Result<simd_json::OwnedValue> {
        self.running_ps(job)?.stop(Duration::from_secs(10))?;
        read_json(&self.ps_report_path(job))
    }

    /// The report of a PS that has been stopped.
    ///
    /// # Errors
    /// If there is none.
    pub fn ps_report(&self, job: usize) -> Result<PsReport> {
        read_json(&self.ps_report_path(job))
    }

    fn running_ps(&mut self, job: usize) -> Result<Program> {
        let program = self.ps[job].take();
        program.with_context(|| format!("the {} does not run", self.ps_name(job)))
    }

    /// The running switch's counters.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn switch_report(&self) -> Result<tally_switch::report::Report> {
        use std::io::Read;
        let mut text = Vec::new();
        std::os::unix::net::UnixStream::connect(self.file("switch.sock"))
            .and_then(|mut stream| stream.read_to_end(&mut text))
            .context("the switch's statistics")?;
        simd_json::from_slice(&mut text).context("the switch's statistics")
    }

    /// Starts all workers of a job on one all-reduce, the worker of rank r with the arguments
    /// `arguments(r)` and its output at [`output`](Self::output).
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_workers(
        &self,
        job: usize,
        arguments: impl Fn(u8) -> Vec<String>,
    ) -> Result<Vec<Program>> {
        (0..self.spec.jobs[job])
            .map(|rank| self.start_worker(job, rank, arguments(rank)))
            .collect()
    }

    /// Starts one worker.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_worker(&self, job: usize, rank: u8, arguments: Vec<String>) -> Result<Program> {
        let host = self.wires.host(self.worker_host(job, rank));
        let name = self.worker_name(job, rank);
        let key = self.spec.worker_key.clone();
        let config = files::WorkerConfig {
            switch: files::AgentSwitch { address: SWITCH_IP },
            job: files::WorkerJob {
                id: job_id(job),
                key: key.unwrap_or_else(|| self::key(job)),
                workers: self.spec.jobs[job],
                rank,
            },
            transport: &host.transport,
            payload_bytes: self.spec.payload_bytes,
            window: self.spec.window,
            timeouts: &self.spec.timeouts,
        };
        let path = self.write(&format!("{name}.json"), &config)?;
        let mut command = self.on_host(&host, "tally-agent");
        command.arg("allreduce").arg("--config").arg(path);
        if self.outputs {
            command.arg("--output").arg(self.output(job, rank));
        }
        command
            .arg("--report")
            .arg(self.worker_report_path(job, rank));
        command.args(arguments);
        self.add_loss(&mut command, job, rank);
        Program::start(&name, command, &self.file(&format!("{name}.log")))
    }

    /// Starts the agent of a worker's host, which serves training processes there, in namespaces.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent(&self, job: usize, rank: u8) -> Result<Program> {
        let at = self.worker_host(job, rank);
        ensure!(
            matches!(self.wires, Wires::Namespaces(_)),
            "agents of hosts need the kernel's sockets"
        );
        let socket = self.agent_socket(job, rank);
        let config = files::AgentConfig {
            socket: &socket,
            switch: files::AgentSwitch { address: SWITCH_IP },
            jobs: [files::SwitchJob {
                id: job_id(job),
                key: key(job),
                workers: self.spec.jobs[job],
            }],
            transport: files::AgentTransport::Udp { bind: self.ip(at) },
            payload_bytes: self.spec.payload_bytes,
            window: self.spec.window,
            timeouts: &self.spec.timeouts,
        };
        let name = format!("agent-{}", self.worker_name(job, rank));
        let path = self.write(&format!("{name}.json"), &config)?;
        let mut command = self.on_host(&self.wires.host(at), "tally-agent");
        command.arg("serve").arg("--config").arg(path);
        let mut program = Program::start(&name, command, &self.file(&format!("{name}.log")))?;
        program.wait_until("it listens", Duration::from_secs(20), |_| socket.exists())?;
        Ok(program)
    }

    fn agent_socket(&self, job: usize, rank: u8) -> PathBuf {
        self.file(&format!("{}.sock", self.worker_name(job, rank)))
    }

    /// What the environment tells a training process of its job and its [agent](Self::start_agent).
    #[must_use]
    pub fn training_environment(&self, job: usize, rank: u8) -> [(&'static str, String); 2] {
        let socket = self.agent_socket(job, rank).display().to_string();
        [
            ("TALLY_JOB", job_id(job).to_string()),
            ("TALLY_SOCKET", socket),
        ]
    }

    /// Where a worker writes its result.
    #[must_use]
    pub fn output(&self, job: usize, rank: u8) -> PathBuf {
        self.file(&format!("{}.safetensors", self.worker_name(job, rank)))
    }

    fn worker_report_path(&self, job: usize, rank: u8) -> PathBuf {
        self.file(&format!("{}-report.json", self.worker_name(job, rank)))
    }

    fn ps_report_path(&self, job: usize) -> PathBuf {
        self.file(&format!("{}-report.json", self.ps_name(job)))
    }

    /// A worker's report, once it has ended.
    ///
    /// # Errors
    /// If there is none.
    pub fn worker_report(&self, job: usize, rank: u8) -> Result<WorkerReport> {
        read_json(&self.worker_report_path(job, rank))
    }

    /// A command that runs on a host: in its namespace, where it has one.
    #[must_use]
    pub fn command_on(&self, host: HostId, program: &str) -> Command {
        prefixed(&self.wires.host(host).prefix, Path::new(program))
    }

    /// The host of a worker.
    #[must_use]
    pub fn worker_host(&self, job: usize, rank: u8) -> HostId {
        HostId(hosts_of(&self.spec.jobs[..job]) + usize::from(rank))
    }

    /// The host of a job's parameter server.
    #[must_use]
    pub fn ps_host(&self, job: usize) -> HostId {
        HostId(hosts_of(&self.spec.jobs[..=job]) - 1)
    }

    /// The address of a host.
    #[must_use]
    pub fn ip(&self, host: HostId) -> Ipv4Addr {
        address(host)
    }

    /// Kills the parameter server of a job on the spot.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill_ps(&mut self, job: usize) -> Result<()> {
        self.running_ps(job)?.kill()
    }

    /// Sends the switch a signal by name.
    ///
    /// # Errors
    /// If no switch runs, or `kill` cannot be run.
    pub fn signal_switch(&self, signal: &str) -> Result<()> {
        let switch = self.switch.as_ref().context("no switch runs")?;
        switch.signal(signal)
    }

    /// Kills the switch on the spot.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill_switch(&mut self) -> Result<()> {
        self.switch
            .take()
            .context("the switch does not run")?
            .kill()
    }

    /// What a worker is called in logs; its job is left out where there is one.
    fn worker_name(&self, job: usize, rank: u8) -> String {
        match self.spec.jobs.len() {
            1 => format!("worker{rank}"),
            _ => format!("job{job}-worker{rank}"),
        }
    }

    fn ps_name(&self, job: usize) -> String {
        match self.spec.jobs.len() {
            1 => "ps".into(),
            _ => format!("job{job}-ps"),
        }
    }

    fn on_host(&self, host: &Host, program: &str) -> Command {
        let mut command = prefixed(&host.prefix, Path::new("taskset"));
        command
            .args(["-c", &Cpus::list(&self.cpus.hosts)])
            .arg(self.spec.programs.join(program));
        command
    }

    fn write(&self, name: &str, config: &impl Serialize) -> Result<PathBuf> {
        let path = self.file(name);
        let text = simd_json::to_string(config)?;
        // It has keys.
        let mut options = std::fs::File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        options
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

/// The number of a job on the wire.
fn job_id(job: usize) -> u16 {
    FIRST_JOB + job as u16
}

/// Its key. Not secret: the network is private to the cluster.
fn key(job: usize) -> String {
    format!(
        "{:032x}",
        0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128 + job as u128
    )
}

/// Hosts of some jobs: their workers and a PS for each.
fn hosts_of(jobs: &[u8]) -> usize {
    jobs.iter().map(|&workers| usize::from(workers) + 1).sum()
}

impl Spec {
    fn hosts(&self) -> usize {
        let switchml = self.switchml.iter().map(|&workers| usize::from(workers));
        hosts_of(&self.jobs) + switchml.sum::<usize>() + self.guests
    }

    /// What its links are like.
    #[must_use]
    pub fn links(&self) -> Links {
        // IPv4, UDP and Tally headers in front of the payload.
        let fitting = if self.payload_bytes + 50 <= 1500 {
            1500
        } else {
            9000
        };
        Links {
            mtu: self.mtu.unwrap_or(fitting),
            rate_mbit: self.rate_mbit,
        }
    }
}

/// A command that ends with this process, however that ends.
pub(crate) fn prefixed(prefix: &[String], program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    command.args(prefix).arg(program);
    command
}

/// Whether this is the name of something of ours whose process is gone.
fn is_leftover(name: &str) -> bool {
    let id = name
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists())
}

/// Removes the folders of runs whose process is gone, as far as this user may.
fn remove_leftover_folders() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        if is_leftover(&entry.file_name().to_string_lossy()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs a command to its end; its standard error is part of the error.
fn check_run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
