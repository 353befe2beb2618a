//! A whole Tally on one machine: a switch, a parameter server and workers as real processes.
//!
//! Two networks: `namespaces.rs` (root: each host in its own network namespace, on veth pairs, the
//! switch on `net_af_packet`) and `memif.rs` (any user: shared memory between the processes, no
//! kernel in between). What runs on them is the same, with the same configuration files but for the
//! devices.
//!
//! Everything a cluster makes has the process id in its name or lies in one temporary folder, and
//! goes away with the value, also when something fails half way; what a killed run left behind is
//! removed by the next one.

mod memif;
mod namespaces;
mod process;

pub use process::{Ended, Program};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What everything of ours is called, before the process id.
const PREFIX: &str = "tally-";
/// The job that the cluster runs.
pub const JOB: u16 = 7;
/// Its key. Not secret: the network is private to the cluster.
pub const KEY: &str = "00112233445566778899aabbccddeeff";
/// The switch's address.
pub const SWITCH_IP: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
const SWITCH_MAC: &str = "02:54:41:4c:4c:59";
/// The parameter server's address.
const PS_IP: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 253);

/// How the processes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Network namespaces and veth pairs, `net_af_packet` in the switch, sockets in the hosts
    Namespaces,
    /// Shared memory, `net_memif` in all processes
    Memif,
}

impl Network {
    /// Namespaces for root, memif for everybody else.
    #[must_use]
    pub fn for_this_user() -> Self {
        if namespaces::allowed() {
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
    /// Workers, 1 to 64.
    pub workers: u8,
    /// Data cores of the switch, a power of two.
    pub cores: usize,
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
    /// When the workers give up.
    pub timeouts: Timeouts,
    /// The key that the workers have.
    pub worker_key: String,
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
    /// Four workers as they are by default, on this user's network, with the programs beside this one.
    fn default() -> Self {
        let own = std::env::current_exe().unwrap_or_default();
        Self {
            network: Network::for_this_user(),
            workers: 4,
            cores: 1,
            payload_bytes: 1024,
            window: 256,
            policy: "esa".into(),
            slots: None,
            loss: 0.0,
            loss_seed: 1,
            timeouts: Timeouts {
                join_ms: 30_000,
                stall_ms: 10_000,
            },
            worker_key: KEY.into(),
            programs: own.parent().map(Path::to_owned).unwrap_or_default(),
        }
    }
}

/// One host of the network, as a program running on it must be told.
#[derive(Clone, Debug)]
struct Host {
    /// Words in front of the command, as `ip netns exec NAME`.
    prefix: Vec<String>,
    /// The `transport` of its configuration.
    transport: Transport,
}

/// The `transport` of an agent's configuration.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Transport {
    Udp {
        bind: String,
    },
    Dpdk {
        device: String,
        mac: String,
        address: Ipv4Addr,
    },
}

enum Wires {
    Namespaces(namespaces::Namespaces),
    Memif(memif::Memif),
}

impl Wires {
    fn switch_prefix(&self) -> Vec<String> {
        match self {
            Self::Namespaces(wires) => wires.switch_prefix(),
            Self::Memif(_) => Vec::new(),
        }
    }

    fn device(&self, host: usize, mtu: u16) -> String {
        match self {
            Self::Namespaces(_) => namespaces::device(host, mtu),
            Self::Memif(wires) => wires.device(host),
        }
    }

    fn host(&self, host: usize, ip: Ipv4Addr) -> Host {
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
                    mac: format!("02:84:00:00:00:{host:02x}"),
                    address: ip,
                },
            },
        }
    }
}

/// A running cluster. Hosts are numbered: workers by rank, then the PS.
pub struct Cluster {
    spec: Spec,
    folder: tempfile::TempDir,
    wires: Wires,
    cpus: Cpus,
    // Dropped in this order, before the wires.
    ps: Option<Program>,
    switch: Option<Program>,
}

/// Which CPUs who may use.
#[derive(Clone, Debug, Serialize)]
pub struct Cpus {
    /// The switch's data cores.
    pub switch: Vec<usize>,
    /// Workers and PS.
    pub hosts: Vec<usize>,
}

impl Cpus {
    /// The first `cores` CPUs for the switch and the others for the hosts; if that leaves them
    /// none, they share all.
    ///
    /// # Errors
    /// If there are fewer CPUs.
    pub fn of_this_machine(cores: usize) -> Result<Self> {
        let cpus = allowed_cpus();
        ensure!(
            (1..=cpus.len()).contains(&cores),
            "{cores} data cores on {} CPUs",
            cpus.len()
        );
        let (switch, hosts) = cpus.split_at(cores);
        let hosts = if hosts.is_empty() { &cpus } else { hosts };
        Ok(Self {
            switch: switch.to_vec(),
            hosts: hosts.to_vec(),
        })
    }

    /// As `taskset` takes them.
    #[must_use]
    pub fn list(cpus: &[usize]) -> String {
        cpus.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    }
}

fn allowed_cpus() -> Vec<usize> {
    core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|core| core.id)
        .collect()
}

impl Cluster {
    /// Makes the network and starts the switch and the PS on it.
    ///
    /// # Errors
    /// What the machine refuses, and whatever a program says that ends at once.
    pub fn start(spec: Spec) -> Result<Self> {
        ensure!(
            (1..=64).contains(&spec.workers),
            "--workers {}: 1 to 64",
            spec.workers
        );
        remove_leftover_folders();
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir()
            .context("temporary folder")?;
        let cpus = Cpus::of_this_machine(spec.cores)?;
        let hosts = usize::from(spec.workers) + 1;
        let wires = match spec.network {
            Network::Namespaces => {
                Wires::Namespaces(namespaces::Namespaces::new(hosts, spec.mtu())?)
            }
            Network::Memif => Wires::Memif(memif::Memif::new(folder.path(), &spec)),
        };
        let mut cluster = Self {
            spec,
            folder,
            wires,
            cpus,
            ps: None,
            switch: None,
        };
        cluster.start_switch()?;
        cluster.start_ps()?;
        Ok(cluster)
    }

    /// The CPUs that its processes may use.
    #[must_use]
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    /// The folder for files of this run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the switch, which must not run.
    ///
    /// # Errors
    /// If it ends at once.
    pub fn start_switch(&mut self) -> Result<()> {
        let hosts = usize::from(self.spec.workers) + 1;
        let ports: Vec<_> = (0..hosts)
            .map(|host| SwitchPort {
                name: self.host_name(host),
                device: self.wires.device(host, self.spec.mtu()),
                mtu: self.spec.mtu(),
            })
            .collect();
        let config = SwitchConfig {
            address: SwitchAddress {
                mac: SWITCH_MAC,
                ip: SWITCH_IP,
            },
            cores: &self.cpus.switch,
            ports,
            pool: SwitchPool {
                policy: &self.spec.policy,
                slots: self.spec.slots,
            },
            jobs: [SwitchJob {
                id: JOB,
                key: KEY,
                workers: self.spec.workers,
            }],
            window: self.spec.window,
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

    /// Starts the parameter server, which must not run.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_ps(&mut self) -> Result<()> {
        let host = self.wires.host(usize::from(self.spec.workers), PS_IP);
        let config = PsConfig {
            switch: AgentSwitch { address: SWITCH_IP },
            jobs: [PsJob { id: JOB, key: KEY }],
            transport: &host.transport,
        };
        let path = self.write("ps.json", &config)?;
        let mut command = self.on_host(&host);
        command.arg("ps").arg("--config").arg(path);
        command.arg("--report").arg(self.file("ps-report.json"));
        self.add_loss(&mut command, 255);
        self.ps = Some(Program::start("ps", command, &self.file("ps.log"))?);
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

    /// Stops the PS and gives its report.
    ///
    /// # Errors
    /// If it does not run, does not stop, or says that it failed.
    pub fn stop_ps(&mut self) -> Result<simd_json::OwnedValue> {
        let program = self
            .ps
            .take()
            .context("the parameter server does not run")?;
        program.stop(Duration::from_secs(10))?;
        read_json(&self.file("ps-report.json"))
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

    /// Starts all workers on one all-reduce, the worker of rank r with the arguments `arguments(r)`
    /// and its output at [`output`](Self::output).
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_workers(&self, arguments: impl Fn(u8) -> Vec<String>) -> Result<Vec<Program>> {
        (0..self.spec.workers)
            .map(|rank| self.start_worker(rank, arguments(rank)))
            .collect()
    }

    /// Starts one worker.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_worker(&self, rank: u8, arguments: Vec<String>) -> Result<Program> {
        let host = self
            .wires
            .host(usize::from(rank), self.ip(usize::from(rank)));
        let config = WorkerConfig {
            switch: AgentSwitch { address: SWITCH_IP },
            job: WorkerJob {
                id: JOB,
                key: &self.spec.worker_key,
                workers: self.spec.workers,
                rank,
            },
            transport: &host.transport,
            payload_bytes: self.spec.payload_bytes,
            window: self.spec.window,
            timeouts: &self.spec.timeouts,
        };
        let path = self.write(&format!("worker{rank}.json"), &config)?;
        let mut command = self.on_host(&host);
        command.arg("allreduce").arg("--config").arg(path);
        command.arg("--output").arg(self.output(rank));
        command.arg("--report").arg(self.report_path(rank));
        command.args(arguments);
        self.add_loss(&mut command, u64::from(rank));
        Program::start(
            &format!("worker {rank}"),
            command,
            &self.file(&format!("worker{rank}.log")),
        )
    }

    /// Where the worker of that rank writes its result.
    #[must_use]
    pub fn output(&self, rank: u8) -> PathBuf {
        self.file(&format!("sum{rank}.safetensors"))
    }

    fn report_path(&self, rank: u8) -> PathBuf {
        self.file(&format!("worker{rank}-report.json"))
    }

    /// The report of the worker of that rank, once it has ended.
    ///
    /// # Errors
    /// If there is none.
    pub fn worker_report(&self, rank: u8) -> Result<WorkerReport> {
        read_json(&self.report_path(rank))
    }

    /// A command that runs on a host (a worker's rank, or the number of workers for the PS): in its
    /// namespace, where it has one.
    #[must_use]
    pub fn command_on(&self, host: usize, program: &str) -> Command {
        let ip = self.ip(host);
        prefixed(&self.wires.host(host, ip).prefix, Path::new(program))
    }

    /// The address of a host.
    #[must_use]
    pub fn ip(&self, host: usize) -> Ipv4Addr {
        if host == usize::from(self.spec.workers) {
            PS_IP
        } else {
            Ipv4Addr::new(10, 84, 0, host as u8 + 1)
        }
    }

    /// Kills the parameter server on the spot.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill_ps(&mut self) -> Result<()> {
        let ps = self.ps.take();
        ps.context("the parameter server does not run")?.kill()
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

    fn host_name(&self, host: usize) -> String {
        if host == usize::from(self.spec.workers) {
            "ps".into()
        } else {
            format!("worker{host}")
        }
    }

    fn on_host(&self, host: &Host) -> Command {
        let mut command = prefixed(&host.prefix, Path::new("taskset"));
        command
            .args(["-c", &Cpus::list(&self.cpus.hosts)])
            .arg(self.spec.programs.join("tally-agent"));
        command
    }

    fn add_loss(&self, command: &mut Command, who: u64) {
        if self.spec.loss > 0.0 {
            command.arg("--loss").arg(self.spec.loss.to_string());
            command
                .arg("--loss-seed")
                .arg((self.spec.loss_seed * 1000 + who).to_string());
        }
    }

    fn write(&self, name: &str, config: &impl Serialize) -> Result<PathBuf> {
        let path = self.file(name);
        std::fs::write(&path, simd_json::to_string(config)?)
            .with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

impl Spec {
    /// MTU of all links: the ordinary one where the payload fits it.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        // IPv4, UDP and Tally headers in front of the payload.
        if self.payload_bytes + 50 <= 1500 {
            1500
        } else {
            9000
        }
    }
}

/// What an agent reports of one all-reduce, as far as the cluster's users read it.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct WorkerReport {
    /// Payload bits of the input per second, in Gbit/s, from the first frame to the last result.
    pub goodput_gbit_per_s: f64,
    /// That time.
    pub seconds: f64,
    /// Fragments.
    pub fragments: u64,
    /// Results that the switch finished.
    pub from_switch: u64,
    /// Results that the PS finished.
    pub from_ps: u64,
    /// Contributions sent again, by cause.
    pub retransmissions: Retransmissions,
    /// From contribution to result.
    pub latency_us: LatencyReport,
}

/// Contributions sent again, by cause.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Retransmissions {
    /// A timeout.
    pub timeout: u64,
    /// Later ones had results.
    pub early: u64,
    /// The PS asked.
    pub nack: u64,
}

impl Retransmissions {
    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.timeout + self.early + self.nack
    }
}

/// Percentiles in microseconds.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct LatencyReport {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p999: f64,
}

/// A command that ends with this process, however that ends.
fn prefixed(prefix: &[String], program: &Path) -> Command {
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

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let mut text = std::fs::read(path).with_context(|| path.display().to_string())?;
    simd_json::from_slice(&mut text).with_context(|| path.display().to_string())
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

// The configuration files, as far as the cluster fills them in.

#[derive(Serialize)]
struct SwitchConfig<'a> {
    address: SwitchAddress<'a>,
    cores: &'a [usize],
    ports: Vec<SwitchPort>,
    pool: SwitchPool<'a>,
    jobs: [SwitchJob<'a>; 1],
    window: u16,
    stats_socket: PathBuf,
}

#[derive(Serialize)]
struct SwitchAddress<'a> {
    mac: &'a str,
    ip: Ipv4Addr,
}

#[derive(Serialize)]
struct SwitchPort {
    name: String,
    device: String,
    mtu: u16,
}

#[derive(Serialize)]
struct SwitchPool<'a> {
    policy: &'a str,
    slots: Option<u32>,
}

#[derive(Serialize)]
struct SwitchJob<'a> {
    id: u16,
    key: &'a str,
    workers: u8,
}

#[derive(Serialize)]
struct AgentSwitch {
    address: Ipv4Addr,
}

#[derive(Serialize)]
struct PsConfig<'a> {
    switch: AgentSwitch,
    jobs: [PsJob<'a>; 1],
    transport: &'a Transport,
}

#[derive(Serialize)]
struct PsJob<'a> {
    id: u16,
    key: &'a str,
}

#[derive(Serialize)]
struct WorkerConfig<'a> {
    switch: AgentSwitch,
    job: WorkerJob<'a>,
    transport: &'a Transport,
    payload_bytes: u16,
    window: u16,
    timeouts: &'a Timeouts,
}

#[derive(Serialize)]
struct WorkerJob<'a> {
    id: u16,
    key: &'a str,
    workers: u8,
    rank: u8,
}
