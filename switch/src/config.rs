//! The operator's configuration: one JSON file.
//!
//! [`Config::load`] reads and checks it. What comes out is possible on paper; whether the machine
//! agrees (devices, hugepages, CPUs) shows when the switch starts.

mod card;
mod pool;
mod switchml;

pub use card::{BarSection, CardJobs, CardSection, Registers};
pub use pool::PoolSection;
pub use switchml::{Listen, Network, SwitchmlSection};

use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tally_config::ConfigError;
use tally_engine::forwarding::ADDRESSES_MAX;
use tally_engine::queue::{CLASSES, QueueConfig};
use tally_wire::auth::TAG_BYTES;
use tally_wire::frame::ETHERNET_BYTES;
use tally_wire::{DEFAULT_PORT, HEADERS_BYTES, Key, MAX_UNITS, MAX_WORKERS, Mac, UNIT_BYTES};

/// Most data cores: the number of shards is a power of two and fits the header's port range.
pub const MAX_CORES: usize = 64;
/// What devices that are interfaces of the kernel are called, before their number.
const PACKET: &str = "packet";
/// The MTU of Ethernet without jumbo frames.
pub const MTU_ORDINARY: u16 = 1500;
/// What a port's queues need for each core at least, however many share them: frames in a class, two
/// bursts; and frames before marks, as the engine's default has it.
const SHARE_FRAMES_MIN: u32 = 128;
const SHARE_MARK_FRAMES_MIN: u32 = 64;
/// Bytes of a frame's headers that count against the MTU: all but Ethernet's.
const AROUND_PAYLOAD: u16 = (HEADERS_BYTES - ETHERNET_BYTES + TAG_BYTES) as u16;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The switch's own address.
    pub address: AddressConfig,
    /// Packet memory.
    #[serde(default)]
    pub eal: EalSection,
    /// CPUs of the data cores; one shard each. A power of two of them.
    #[serde(default = "default_cores")]
    pub cores: Vec<usize>,
    /// CPU of the control thread; by default wherever the kernel puts it.
    pub control_core: Option<usize>,
    /// Ports, at least one.
    pub ports: Vec<PortSection>,
    /// The aggregator pool.
    #[serde(default)]
    pub pool: PoolSection,
    /// What waits for a port.
    #[serde(default)]
    pub queue: QueueSection,
    /// Jobs that workers may join.
    #[serde(default)]
    pub jobs: Vec<JobSection>,
    /// SwitchML's clients; without it, there are none.
    pub switchml: Option<SwitchmlSection>,
    /// The card that aggregates in hardware; without it, there is none.
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
    /// SIMD backend: `auto`, or one by name.
    #[serde(default = "default_kernel")]
    pub kernel: String,
    /// What a data core does that has nothing to do.
    #[serde(default)]
    pub idle: Idle,
    /// Where to answer requests for statistics: path of a Unix socket.
    pub stats_socket: Option<PathBuf>,
}

/// The switch's own address, to which workers and parameter servers send.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressConfig {
    /// Ethernet address.
    #[serde(deserialize_with = "from_text")]
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// First UDP port.
    #[serde(default = "default_udp_port")]
    pub udp_port: u16,
}

/// Where packet memory comes from.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
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
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EalSection {
    /// Where packet memory comes from.
    #[serde(default = "default_memory")]
    pub memory: MemoryKind,
    /// How much of it, in MiB; by default as much as the pool of frames needs.
    pub megabytes: Option<u32>,
    /// DPDK's log level.
    #[serde(default)]
    pub log: Log,
}

impl Default for EalSection {
    fn default() -> Self {
        Self {
            memory: default_memory(),
            megabytes: None,
            log: Log::default(),
        }
    }
}

/// DPDK's log level.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
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
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSection {
    /// Its name in reports; by default that of the device.
    pub name: Option<String>,
    /// PCI address, an interface of the kernel (`packet0,iface=eth1`), or a DPDK virtual device with its
    /// arguments (`net_memif0,role=server`).
    pub device: String,
    /// MTU in bytes, 576 to 9000.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Receive and transmit descriptors, clipped to what the device takes.
    #[serde(default = "default_descriptors")]
    pub descriptors: u16,
    /// Which of the data cores owns it, counted from 0; by default they take turns.
    pub core: Option<usize>,
    /// Who puts frames into the receive queue of the core whose shard they are for.
    #[serde(default)]
    pub steering: Steering,
}

/// Who puts frames into the receive queue of the core whose shard they are for.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// A NIC by flow rules if it has them, else by RSS if it has that. Other devices: nobody.
    #[default]
    Auto,
    /// The device, by flow rules; without them the switch does not start.
    Rules,
    /// The device, by a hash of addresses and ports, which knows nothing of shards.
    Rss,
    /// The other end: what concerns shard s it sends into queue s.
    Peer,
    /// Nobody: there is one queue.
    Handover,
}

impl PortSection {
    /// Name in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.device_name())
    }

    /// Bytes of the longest ordinary frame that leaves by it: the MTU behind an Ethernet header with one
    /// VLAN tag.
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

    /// Whether the driver keeps frames beyond its end: DPDK 22.11's `net_af_xdp` never frees what is
    /// in its fill queue.
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
#[derive(Clone, Copy, Debug, Deserialize)]
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

/// Limits of each port, as one of an ordinary switch.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSection {
    /// MAC addresses learnt behind it.
    pub addresses: u32,
    /// Frames from it that are flooded in a second; 0: no limit.
    pub floods_per_s: u32,
    /// Answers to ARP and ping in a second; 0: no limit.
    pub answers_per_s: u32,
}

impl Default for LimitsSection {
    fn default() -> Self {
        Self {
            addresses: 1024,
            floods_per_s: 10_000,
            answers_per_s: 10_000,
        }
    }
}

/// One job.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSection {
    /// Its number.
    pub id: u16,
    /// Its key: 32 to 128 hexadecimal digits.
    #[serde(deserialize_with = "from_text")]
    pub key: Key,
    /// Its workers, 1 to 64.
    pub workers: u8,
    /// Slots that the job has for certain, of all shards together; by default a little under `esa`.
    pub min_slots: Option<u32>,
    /// Slots that it has at most, of all shards together.
    pub max_slots: Option<u32>,
    /// Members that need not join, for load generators that replay captures.
    pub fixed: Option<FixedMembers>,
}

/// Members known beforehand.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedMembers {
    /// Payload of every element frame.
    pub payload_bytes: u16,
    /// The workers, by rank.
    pub workers: Vec<FixedMember>,
    /// The parameter server.
    pub ps: FixedMember,
}

/// Where a fixed member is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedMember {
    /// Name of the port.
    pub port: String,
    /// Ethernet address.
    #[serde(deserialize_with = "from_text")]
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// UDP port.
    pub udp_port: u16,
}

/// What a data core does that has nothing to do.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Polls less and less often, up to every 100 µs.
    #[default]
    Backoff,
    /// Polls.
    Spin,
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
fn default_kernel() -> String {
    "auto".into()
}
const fn default_mtu() -> u16 {
    1500
}
const fn default_descriptors() -> u16 {
    1024
}

fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

impl Config {
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

    /// Checks what the types do not say.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let bad = |key: String, found: &dyn std::fmt::Display, allowed: &str| {
            Err(ConfigError::value(path, key, found, allowed))
        };
        let AddressConfig { mac, ip, udp_port } = self.address;
        if mac.is_group() || mac == Mac::default() {
            return bad(
                "address.mac".into(),
                &mac,
                "an address of one station, not a group's",
            );
        }
        if ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified() || ip.is_loopback() {
            return bad("address.ip".into(), &ip, "an address of one host");
        }
        if udp_port == 0 || udp_port.checked_add(MAX_CORES as u16).is_none() {
            return bad("address.udp_port".into(), &udp_port, "1 to 65471");
        }
        let cores = self.cores.len();
        if !cores.is_power_of_two() || cores > MAX_CORES {
            let found = format!("{cores} cores");
            return bad(
                "cores".into(),
                &found,
                "1, 2, 4, … or 64 of them (one shard each)",
            );
        }
        if self.cores.iter().collect::<BTreeSet<_>>().len() != cores {
            return bad(
                "cores".into(),
                &format!("{:?}", self.cores),
                "each CPU once",
            );
        }
        if self.ports.is_empty() {
            return bad("ports".into(), &"none", "at least one");
        }
        let mut labels = BTreeSet::new();
        let mut devices = BTreeSet::new();
        for (i, port) in self.ports.iter().enumerate() {
            let key = |field| format!("ports[{i}].{field}");
            if port.device_name().is_empty() {
                return bad(
                    key("device"),
                    &"nothing",
                    "a PCI address or a DPDK virtual device",
                );
            }
            let is_known = port.is_pci() || port.device_name().starts_with("net_");
            if !is_known && port.interface().is_none_or(str::is_empty) {
                let allowed = "a PCI address (0000:01:00.0), an interface of the kernel (packet0,iface=eth1) or \
                               a DPDK virtual device (net_…)";
                return bad(key("device"), &format!("`{}`", port.device), allowed);
            }
            if !devices.insert(port.device_name()) {
                let found = format!("`{}` a second time", port.device_name());
                return bad(
                    key("device"),
                    &found,
                    "each device once; number them (net_memif0, net_memif1)",
                );
            }
            if !labels.insert(port.label()) {
                return bad(
                    key("name"),
                    &format!("`{}` a second time", port.label()),
                    "a name of its own",
                );
            }
            if !(576..=9000).contains(&port.mtu) {
                return bad(key("mtu"), &port.mtu, "576 to 9000 bytes");
            }
            if !(64..=8192).contains(&port.descriptors) {
                return bad(key("descriptors"), &port.descriptors, "64 to 8192");
            }
            if let Some(core) = port.core.filter(|&core| core >= cores) {
                return bad(key("core"), &core, &format!("0 to {}", cores - 1));
            }
        }
        if !(1..=16384).contains(&self.window) {
            return bad("window".into(), &self.window, "1 to 16384 fragments");
        }
        if !(1000..=3_600_000).contains(&self.member_timeout_ms) {
            let allowed = "1000 to 3600000 (members speak every 500 ms)";
            return bad("member_timeout_ms".into(), &self.member_timeout_ms, allowed);
        }
        if self.mac_ageing_s == 0 {
            return bad("mac_ageing_s".into(), &0, "1 or more seconds");
        }
        if self.limits.addresses > ADDRESSES_MAX {
            let allowed = format!("0 to {ADDRESSES_MAX} addresses of each port");
            return bad("limits.addresses".into(), &self.limits.addresses, &allowed);
        }
        if let Err(why) = self.kernels() {
            return bad("kernel".into(), &format!("`{}`", self.kernel), &why);
        }
        self.check_queue(path)?;
        self.check_pool(path)?;
        self.check_jobs(path)?;
        self.check_limits(path)?;
        self.check_card(path)?;
        self.check_switchml(path)
    }

    fn check_queue(&self, path: &Path) -> Result<(), ConfigError> {
        let bad = |key: &str, found: u32, allowed: &str| {
            Err(ConfigError::value(path, key, found, allowed))
        };
        let QueueSection {
            frames,
            mark_frames,
            guard,
        } = self.queue;
        if !(32..=65536).contains(&frames) {
            return bad("queue.frames", frames, "32 to 65536 frames in each class");
        }
        let never = CLASSES as u32 * frames;
        if !(1..=never).contains(&mark_frames) {
            let allowed = format!("1 to 8 × queue.frames, {never}, which is never reached");
            return bad("queue.mark_frames", mark_frames, &allowed);
        }
        if !(1..=65535).contains(&guard) {
            return bad("queue.guard", guard, "1 to 65535 frames");
        }
        Ok(())
    }

    fn check_jobs(&self, path: &Path) -> Result<(), ConfigError> {
        let bad = |key: String, found: &dyn std::fmt::Display, allowed: &str| {
            Err(ConfigError::value(path, key, found, allowed))
        };
        let limit = tally_engine::native::aggregator::MAX_JOBS;
        if self.jobs.len() > limit {
            return bad("jobs".into(), &self.jobs.len(), &format!("at most {limit}"));
        }
        let mut ids = BTreeSet::new();
        for (i, job) in self.jobs.iter().enumerate() {
            let key = |field: &str| format!("jobs[{i}].{field}");
            if !ids.insert(job.id) {
                return bad(
                    key("id"),
                    &format!("{} a second time", job.id),
                    "a number of its own",
                );
            }
            if !(1..=MAX_WORKERS).contains(&usize::from(job.workers)) {
                return bad(key("workers"), &job.workers, "1 to 64");
            }
            let Some(fixed) = &job.fixed else { continue };
            if fixed.workers.len() != usize::from(job.workers) {
                let allowed = format!("as many as `workers`, {}", job.workers);
                return bad(key("fixed.workers"), &fixed.workers.len(), &allowed);
            }
            let limit = u16::from(self.units()) * UNIT_BYTES as u16;
            if fixed.payload_bytes == 0
                || fixed.payload_bytes > limit
                || !fixed.payload_bytes.is_multiple_of(UNIT_BYTES as u16)
            {
                let allowed = format!("a multiple of 64 up to {limit}, which the MTU allows");
                return bad(key("fixed.payload_bytes"), &fixed.payload_bytes, &allowed);
            }
            for (member, at) in fixed
                .workers
                .iter()
                .zip(0..)
                .chain([(&fixed.ps, usize::MAX)])
            {
                if !self.member_ports().any(|port| port.label() == member.port) {
                    let at = if at == usize::MAX {
                        "fixed.ps".into()
                    } else {
                        format!("fixed.workers[{at}]")
                    };
                    let names: Vec<_> = self.member_ports().map(PortSection::label).collect();
                    let found = format!("`{}`", member.port);
                    return bad(
                        key(&format!("{at}.port")),
                        &found,
                        &format!("one of {}", names.join(", ")),
                    );
                }
            }
        }
        Ok(())
    }

    /// The kernels that the configuration asks for.
    ///
    /// # Errors
    /// What is allowed instead.
    pub fn kernels(&self) -> Result<tally_kernels::Kernels, String> {
        use tally_kernels::{Backend, Kernels};
        if self.kernel == "auto" {
            return Ok(Kernels::best());
        }
        let available: Vec<_> = Backend::available().map(|b| b.to_string()).collect();
        let backend: Result<Backend, _> = self.kernel.parse();
        backend
            .ok()
            .and_then(|backend| Kernels::new(backend).ok())
            .ok_or_else(|| format!("on this machine one of auto, {}", available.join(", ")))
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

    /// What each of that many data cores may let wait for one port: its part, but no less than is good
    /// for bursts.
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
            let others = self
                .jobs
                .iter()
                .map(|job| u32::from(job.workers) - 1)
                .sum::<u32>();
            (others * u32::from(self.window)).min(1 << 16)
        })
    }

    /// Frames in the pool that they all come from: as many as the switch can hold at one time, rounded
    /// up to what fills DPDK's ring.
    #[must_use]
    pub fn frames(&self) -> u32 {
        let cores = self.cores.len() as u16;
        let waiting = CLASSES as u32 * self.queue_share(cores).frames;
        // A port has no more queues than there are cores, of those that hold frames.
        let each = |port: &PortSection| {
            2 * u32::from(port.descriptors) + waiting + crate::platform::STAGE_FRAMES as u32
        };
        let ports = u32::from(cores) * self.ports.iter().map(each).sum::<u32>();
        let rings = self.jobs.len() as u32 * u32::from(self.served_window()) * 2;
        let rings = rings.next_power_of_two() * 2;
        let bursts = self.cores.len() as u32 * 1024;
        let handover = crate::handover::frames_max(self.cores.len()) as u32;
        let switchml = self.switchml_frames();
        let all = ports + rings + self.slots() + self.held() + bursts + handover + switchml;
        all.next_power_of_two() - 1
    }

    /// Packet memory, in MiB.
    #[must_use]
    pub fn megabytes(&self) -> u32 {
        self.eal.megabytes.unwrap_or_else(|| {
            // Descriptor, headroom, DPDK's own header and padding.
            let each = u64::from(self.frame_bytes_max()) + 512;
            // No buffer crosses a page, so on ordinary pages each takes whole ones.
            let page = if self.eal.memory == MemoryKind::NoHuge {
                4096
            } else {
                64
            };
            let frames = u64::from(self.frames()) * each.next_multiple_of(page);
            // DPDK's own tables and the drivers' rings.
            (frames * 9 / 8 / (1 << 20)) as u32 + 64
        })
    }
}

#[cfg(test)]
mod tests;
