//! The operator's configuration: one JSON file.
//!
//! [`Config::load`] reads and checks it. What comes out is possible on paper; whether the machine
//! agrees (devices, hugepages, CPUs) shows when the switch starts.

mod card;
mod check;
mod control;
mod diff;
pub mod fabric;
mod jobs;
mod limits;
mod netreduce;
mod pool;
mod switchml;
mod tenants;
mod tree;

pub use card::{BarSection, CardJobs, CardSection, Registers};
pub use control::{ControlSection, ControlTcp};
pub use diff::{Changes, Edit, Restart};
pub use fabric::{FabricSection, LinkSection, PortRef};
pub use jobs::{ChildSection, FixedMember, FixedMembers, JobSection, TreeSection};
pub(crate) use jobs::{is_one, one};
pub use limits::LimitsSection;
pub use netreduce::{
    NetreduceSection, RingLeafSection, RingSection, RingTreeSection, check_ring_trees,
};
pub use pool::PoolSection;
pub use switchml::{Listen, Network, SwitchmlSection};
pub use tenants::{IdRange, TenantJob, TenantSection};
pub use tree::{TOTAL_MAX, check_trees};

use crate::agent::config::Access;
use crate::event::{LogSection, MetricsSection};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tally_config::ConfigError;
use tally_engine::queue::QueueConfig;
use tally_kernels::{Backend, Kernels};
use tally_wire::auth::TAG_BYTES;
use tally_wire::frame::ETHERNET_BYTES;
use tally_wire::{DEFAULT_PORT, HEADERS_BYTES, MAX_UNITS, Mac, UNIT_BYTES};

/// Most data cores: the number of shards is a power of two and fits the header's port range.
pub const MAX_CORES: usize = 64;
/// What devices that are interfaces of the kernel are called, before their number.
const PACKET: &str = "packet";
/// The MTU of Ethernet without jumbo frames.
pub const MTU_ORDINARY: u16 = 1500;
/// What a port's queues need for each core at least, however many share them: frames in a class,
/// two bursts; and frames before marks, as the engine's default has it.
const SHARE_FRAMES_MIN: u32 = 128;
const SHARE_MARK_FRAMES_MIN: u32 = 64;
/// Bytes of a frame's headers that count against the MTU: all but Ethernet's.
const AROUND_PAYLOAD: u16 = (HEADERS_BYTES - ETHERNET_BYTES + TAG_BYTES) as u16;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The switch's name in logs, LLDP and its lock; by default its IPv4 address, without a lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The switch's own address.
    pub address: AddressConfig,
    /// Packet memory.
    #[serde(default)]
    pub eal: EalSection,
    /// CPUs of the data cores; one shard each. A power of two of them.
    #[serde(default = "default_cores")]
    pub cores: Vec<usize>,
    /// CPU of the control thread; by default wherever the kernel puts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_core: Option<usize>,
    /// Ports, at least one.
    pub ports: Vec<PortSection>,
    /// Ports at most, with those that are added while the switch runs; by default those of `ports`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ports: Option<u16>,
    /// Whether ports that lead to wires send LLDP.
    #[serde(default = "default_true", skip_serializing_if = "is_true")]
    pub lldp: bool,
    /// Whether ports that lead to wires are watched for loops.
    #[serde(default = "default_true", skip_serializing_if = "is_true")]
    pub loop_guard: bool,
    /// Links to other switches; without it, all ports are hosts'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricSection>,
    /// The aggregator pool.
    #[serde(default)]
    pub pool: PoolSection,
    /// What waits for a port.
    #[serde(default)]
    pub queue: QueueSection,
    /// Jobs that workers may join.
    #[serde(default)]
    pub jobs: Vec<JobSection>,
    /// Tenants, whose workers make jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantSection>,
    /// SwitchML's clients; without it, there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switchml: Option<SwitchmlSection>,
    /// Rings of RoCEv2 hosts (NetReduce); without it, there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netreduce: Option<NetreduceSection>,
    /// The card that aggregates in hardware; without it, there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<CardSection>,
    /// Largest window of a worker, in fragments.
    #[serde(default = "default_window")]
    pub window: u16,
    /// A member that is silent for longer is lost.
    #[serde(default = "default_member_timeout_ms")]
    pub member_timeout_ms: u64,
    /// What one port may do as a port of an ordinary switch.
    #[serde(default)]
    pub limits: LimitsSection,
    /// MAC addresses that are silent for longer are forgotten.
    #[serde(default = "default_mac_ageing_s")]
    pub mac_ageing_s: u32,
    /// SIMD backend.
    #[serde(default, with = "crate::text")]
    #[schemars(with = "String")]
    pub kernel: Kernel,
    /// What a data core does that has nothing to do.
    #[serde(default)]
    pub idle: Idle,
    /// Where to answer requests for statistics: path of a Unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats_socket: Option<PathBuf>,
    /// Who may ask there.
    #[serde(default, skip_serializing_if = "Access::is_default")]
    pub stats_access: Access,
    /// Where the switch takes requests; without it, nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlSection>,
    /// What the log writes, and how.
    #[serde(default, skip_serializing_if = "LogSection::is_default")]
    pub log: LogSection,
    /// Where metrics and the switch's page are served over HTTP; without it, nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsSection>,
}

/// The switch's own address, to which workers and parameter servers send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressConfig {
    /// Ethernet address.
    #[serde(with = "crate::text")]
    #[schemars(with = "String")]
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// First UDP port.
    #[serde(default = "default_udp_port")]
    pub udp_port: u16,
}

/// Where packet memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// Ordinary pages.
    NoHuge,
    /// Hugepages without files.
    InMemory,
    /// Hugepages as files.
    Hugepages,
}

/// DPDK's environment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EalSection {
    /// Where packet memory comes from.
    #[serde(default = "default_memory")]
    pub memory: MemoryKind,
    /// How much of it, in MiB; by default as much as the pool of frames needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub megabytes: Option<u32>,
    /// DPDK's log level.
    #[serde(default)]
    pub log: Log,
    /// Whether the switch answers `dpdk-telemetry.py`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub telemetry: bool,
}

impl Default for EalSection {
    fn default() -> Self {
        Self {
            memory: default_memory(),
            megabytes: None,
            log: Log::default(),
            telemetry: false,
        }
    }
}

/// DPDK's log level.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Log {
    /// What went wrong.
    #[default]
    Error,
    /// What may go wrong.
    Warning,
    /// DPDK's own default.
    Notice,
    /// Everything.
    Debug,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortSection {
    /// Its name in reports; by default that of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// PCI address, an interface of the kernel (`packet0,iface=eth1`), or a DPDK virtual device
    /// with its arguments (`net_memif0,role=server`).
    pub device: String,
    /// MTU in bytes, 576 to 9000.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Receive and transmit descriptors, clipped to what the device takes.
    #[serde(default = "default_descriptors")]
    pub descriptors: u16,
    /// Which of the data cores owns it, counted from 0; by default they take turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
    /// Who puts frames into the receive queue of the core whose shard they are for.
    #[serde(default)]
    pub steering: Steering,
    /// Whether the switch starts without this interface of the kernel, and opens it later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// Who puts frames into the receive queue of the core whose shard they are for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// A NIC by flow rules if it has them, else by RSS if it has that. Other devices: none.
    #[default]
    Auto,
    /// The device, by flow rules; without them the switch does not start.
    Rules,
    /// The device, by a hash of addresses and ports, which knows nothing of shards.
    Rss,
    /// The other end: what concerns shard s it sends into queue s.
    Peer,
    /// None: there is one queue.
    Handover,
}

impl PortSection {
    /// Of that device, with everything else as it is by default.
    #[must_use]
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            name: None,
            device: device.into(),
            mtu: default_mtu(),
            descriptors: default_descriptors(),
            core: None,
            steering: Steering::default(),
            optional: false,
        }
    }

    /// The interface of the kernel that it is or that its driver uses.
    #[must_use]
    pub fn kernel_interface(&self) -> Option<&str> {
        const DRIVERS: [&str; 3] = ["net_af_packet", "net_af_xdp", "net_tap"];
        if self.interface().is_some() {
            return self.interface();
        }
        let driver = self.device_name();
        let is_one = DRIVERS.iter().any(|name| driver.starts_with(name));
        is_one.then(|| self.argument("iface")).flatten()
    }

    /// The value of an argument of its driver; the last one counts.
    #[must_use]
    pub fn argument(&self, key: &str) -> Option<&str> {
        let mut arguments = self.device_arguments().rsplit(',');
        arguments.find_map(|argument| argument.trim().strip_prefix(key)?.strip_prefix('='))
    }

    /// Whether it leads to a wire, at whose other end a switch may be: a NIC or an interface of the
    /// kernel. LLDP and the loop guard's probes are sent there only.
    #[must_use]
    pub fn is_wired(&self) -> bool {
        self.is_pci() || self.kernel_interface().is_some()
    }

    /// Name in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.device_name())
    }

    /// Bytes of the longest ordinary frame that leaves by it: the MTU behind an Ethernet header
    /// with one VLAN tag.
    #[must_use]
    pub fn longest_frame(&self) -> usize {
        usize::from(self.mtu) + 18
    }

    /// Name of the DPDK device.
    #[must_use]
    pub fn device_name(&self) -> &str {
        self.device.split(',').next().unwrap_or_default()
    }

    /// Arguments of the DPDK device.
    #[must_use]
    pub fn device_arguments(&self) -> &str {
        self.device
            .split_once(',')
            .map_or("", |(_, arguments)| arguments)
    }

    /// The buffer that the driver's own arguments ask for: `bsize` of `net_memif`, `framesz` of
    /// `net_af_packet`.
    fn driver_frame_bytes(&self) -> u16 {
        let arguments = self.device_arguments().split(',');
        let sizes = arguments.filter_map(|argument| match argument.split_once('=')? {
            ("bsize" | "framesz", bytes) => bytes.parse().ok(),
            _ => None,
        });
        sizes.max().unwrap_or(0)
    }

    /// Whether the driver keeps frames beyond its end: DPDK 22.11's `net_af_xdp` never frees what
    /// is in its fill queue.
    #[must_use]
    pub fn keeps_frames(&self) -> bool {
        self.device_name().starts_with("net_af_xdp")
    }

    /// The interface of the kernel, if it is one that is no DPDK device.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        let number = self.device_name().strip_prefix(PACKET)?;
        if !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        self.device_arguments().strip_prefix("iface=")
    }

    /// Whether the device is named by PCI address.
    #[must_use]
    pub fn is_pci(&self) -> bool {
        self.device_name().contains(':')
    }
}

/// The queues of each port: eight classes of them. [`QueueConfig`] says what the numbers are for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSection {
    /// Frames that wait in one class at most.
    pub frames: u32,
    /// A frame that finds as many before it is marked.
    pub mark_frames: u32,
    /// Frames from above that a waiting class lets pass.
    pub guard: u32,
}

impl Default for QueueSection {
    fn default() -> Self {
        let QueueConfig {
            frames,
            mark_frames,
            guard,
        } = QueueConfig::default();
        Self {
            frames,
            mark_frames,
            guard,
        }
    }
}

/// A SIMD backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernel {
    /// The fastest that the machine has.
    #[default]
    Auto,
    /// This one.
    Only(Backend),
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(backend) => backend.fmt(f),
        }
    }
}

impl FromStr for Kernel {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "auto" {
            return Ok(Self::Auto);
        }
        name.parse().map(Self::Only).map_err(|_| {
            let all = Backend::ALL.map(|backend| backend.to_string());
            format!("found `{name}`, expected one of auto, {}", all.join(", "))
        })
    }
}

/// What a data core does that has nothing to do.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Polls less and less often, up to every 100 µs.
    #[default]
    Backoff,
    /// Polls.
    Spin,
}

/// What is as by default is not written: an older switch reads the file, too.
const fn is_true(value: &bool) -> bool {
    *value
}
const fn default_true() -> bool {
    true
}
fn default_cores() -> Vec<usize> {
    vec![0]
}
const fn default_udp_port() -> u16 {
    DEFAULT_PORT
}
const fn default_memory() -> MemoryKind {
    MemoryKind::NoHuge
}
const fn default_window() -> u16 {
    256
}
const fn default_member_timeout_ms() -> u64 {
    5000
}
const fn default_mac_ageing_s() -> u32 {
    300
}
const fn default_mtu() -> u16 {
    1500
}
const fn default_descriptors() -> u16 {
    1024
}

impl AddressConfig {
    /// At the default UDP port.
    #[must_use]
    pub const fn new(mac: Mac, ip: Ipv4Addr) -> Self {
        Self {
            mac,
            ip,
            udp_port: default_udp_port(),
        }
    }
}

impl Config {
    /// With everything else as it is by default.
    #[must_use]
    pub fn new(address: AddressConfig, ports: Vec<PortSection>) -> Self {
        Self {
            name: None,
            address,
            eal: EalSection::default(),
            cores: default_cores(),
            control_core: None,
            ports,
            max_ports: None,
            lldp: true,
            loop_guard: true,
            fabric: None,
            pool: PoolSection::default(),
            queue: QueueSection::default(),
            jobs: Vec::new(),
            tenants: Vec::new(),
            switchml: None,
            netreduce: None,
            card: None,
            window: default_window(),
            member_timeout_ms: default_member_timeout_ms(),
            limits: LimitsSection::default(),
            mac_ageing_s: default_mac_ageing_s(),
            kernel: Kernel::default(),
            idle: Idle::default(),
            stats_socket: None,
            stats_access: Access::default(),
            control: None,
            log: LogSection::default(),
            metrics: None,
        }
    }

    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// The first thing in it that cannot be, naming the file, the key, what was found and what is
    /// allowed.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let config: Self = tally_config::load(path)?;
        config.check(path)?;
        Ok(config)
    }

    /// As [`load`](Self::load), with all that cannot be in place of the first. There is no
    /// configuration if so much is wrong that nothing more can be said of it.
    #[must_use]
    pub fn load_all(path: &Path) -> (Option<Self>, Vec<ConfigError>) {
        let (config, mut found) = tally_config::load_all::<Self>(path);
        if let Some(config) = &config {
            let key = |error: &ConfigError| match error {
                ConfigError::Content { key, .. } => Some(key.clone()),
                _ => None,
            };
            let known: Vec<_> = found.iter().filter_map(key).collect();
            // A value that was taken out has its default, whose faults are none of the file's.
            let is_new = |error: &ConfigError| key(error).is_none_or(|it| !known.contains(&it));
            found.extend(config.faults(path).into_iter().filter(is_new));
        }
        (config, found)
    }

    /// The kernels that the configuration asks for.
    ///
    /// # Errors
    /// What is allowed instead.
    pub fn kernels(&self) -> Result<Kernels, String> {
        let kernels = match self.kernel {
            Kernel::Auto => Some(Kernels::best()),
            Kernel::Only(backend) => Kernels::new(backend).ok(),
        };
        kernels.ok_or_else(|| {
            let available: Vec<_> = Backend::available().map(|b| b.to_string()).collect();
            format!("on this machine one of auto, {}", available.join(", "))
        })
    }

    /// The switch's name in logs and LLDP.
    #[must_use]
    pub fn system_name(&self) -> String {
        let name = self.name.clone();
        name.unwrap_or_else(|| self.address.ip.to_string())
    }

    /// Ports that there is room for, those of the file among them.
    #[must_use]
    pub fn ports_max(&self) -> usize {
        let most = self.max_ports.map_or(0, usize::from);
        most.max(self.ports.len())
    }

    /// Largest payload that all ports of members carry, in units of 64 bytes.
    #[must_use]
    pub fn units(&self) -> u8 {
        let mtu = self.member_ports().map(|port| port.mtu).min().unwrap_or(0);
        let units = mtu.saturating_sub(AROUND_PAYLOAD) / UNIT_BYTES as u16;
        units.min(u16::from(MAX_UNITS)) as u8
    }

    /// The longest frame that a port receives, in bytes.
    #[must_use]
    pub fn frame_bytes_max(&self) -> u16 {
        // Ethernet, two VLAN tags and the frame check sequence around the MTU; some drivers
        // (`net_af_packet`) take no buffers below 2 KiB.
        let longest = self
            .ports
            .iter()
            .map(|port| port.driver_frame_bytes().max(port.mtu + 26));
        longest.max().unwrap_or(0).max(2048)
    }

    /// The queues of one port.
    #[must_use]
    pub fn queue(&self) -> QueueConfig {
        let QueueSection {
            frames,
            mark_frames,
            guard,
        } = self.queue;
        QueueConfig {
            frames,
            mark_frames,
            guard,
        }
    }

    /// What each of that many data cores may let wait for one port: its part, but no less than is
    /// good for bursts.
    #[must_use]
    pub fn queue_share(&self, cores: u16) -> QueueConfig {
        let whole = self.queue();
        let part = |of: u32, least: u32| of.div_ceil(u32::from(cores)).max(of.min(least));
        QueueConfig {
            frames: part(whole.frames, SHARE_FRAMES_MIN),
            mark_frames: part(whole.mark_frames, SHARE_MARK_FRAMES_MIN),
            guard: whole.guard,
        }
    }

    /// Contributions held out of order, all shards together.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.pool.held.unwrap_or_else(|| {
            // A window of every job, with all workers but the one that is waited for.
            let jobs = self
                .jobs
                .iter()
                .map(|job| u32::from(job.members()).saturating_sub(1));
            let tenants = self.tenants.iter().map(TenantSection::others_max);
            let spare = u32::from(self.spare_places()) * pool::SPARE_OTHERS;
            let others = jobs.chain(tenants).sum::<u32>() + spare;
            (others * u32::from(self.window)).min(1 << 16)
        })
    }
}

#[cfg(test)]
mod tests;
