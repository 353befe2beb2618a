//! The plan of a load, checked before any device is opened: switch, ports, simulated hosts, jobs.
//!
//! The switch is that of its own configuration file; there is no other way to name an address to
//! send to. Ports are in the order of the configuration's: the k-th device is the other end of the
//! switch's k-th port. Workers that join are assigned to the ports in turn, then the parameter
//! servers; fixed members have the ports of the configuration.

use super::flow::Pace;
use anyhow::{Context, Result, bail, ensure};
use std::net::Ipv4Addr;
use std::path::Path;
use std::str::FromStr;
use tally_schema::switch::config::{Config, FixedMember, JobSection, MemoryKind};
use tally_wire::{Element, HEADERS_BYTES, JobId, Key, Mac, UNIT_BYTES};

/// The source port of every simulated worker and parameter server.
const MEMBER_PORT: u16 = 40_000;
/// Default payload in units: 1 KiB.
const UNITS_DEFAULT: u8 = 16;
/// Default window: with eight workers and 1 KiB about half a megabyte in flight, which is about a
/// core's cache.
const WINDOW_DEFAULT: u16 = 64;
/// Upper bound of the priorities of one job.
const PRIORITIES_MAX: usize = 8;

/// The options of a load.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// Devices, each by itself or as `NAME=DEVICE`.
    pub ports: Vec<String>,
    /// Jobs to load; all if empty.
    pub jobs: Vec<u16>,
    /// Payload of a fragment.
    pub payload_bytes: Option<u16>,
    /// Element type.
    pub element: Element,
    /// Fragments in flight in each job.
    pub window: Option<u16>,
    /// Open loop: the rate of each job.
    pub rate: Option<Rate>,
    /// Of all jobs, or of one.
    pub priorities: Vec<(Option<u16>, Priorities)>,
    /// Whether other processes are the parameter servers.
    pub external_ps: bool,
    /// The address of the first simulated host.
    pub first_host: Option<Ipv4Addr>,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            jobs: Vec::new(),
            payload_bytes: None,
            element: Element::I32,
            window: None,
            rate: None,
            priorities: Vec::new(),
            external_ps: false,
            first_host: None,
        }
    }
}

/// How fast, in frames or in bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Frames per second.
    Frames(f64),
    /// Bits per second, of whole frames from Ethernet header to the end of the payload.
    Bits(f64),
}

impl FromStr for Rate {
    type Err = String;

    /// `500kpps`, `2.5Mpps`, `10Gbps`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}`: a rate in packets or bits per second, as 500kpps, 2Mpps or 10Gbps")
        };
        let (number, is_frames) = match (text.strip_suffix("pps"), text.strip_suffix("bps")) {
            (Some(number), _) => (number, true),
            (_, Some(number)) => (number, false),
            _ => return Err(wrong()),
        };
        let unit = number.chars().last().ok_or_else(wrong)?;
        let scale = match unit {
            'k' => 1e3,
            'M' => 1e6,
            'G' => 1e9,
            _ => 1.0,
        };
        let digits = number.trim_end_matches(['k', 'M', 'G']);
        ensure_one_letter(number, digits).ok_or_else(wrong)?;
        let value = digits.parse::<f64>().map_err(|_| wrong())? * scale;
        if !(1.0..=1e13).contains(&value) {
            return Err(wrong());
        }
        Ok(if is_frames {
            Self::Frames(value)
        } else {
            Self::Bits(value)
        })
    }
}

fn ensure_one_letter(number: &str, digits: &str) -> Option<()> {
    (number.len() - digits.len() <= 1).then_some(())
}

/// Priorities and how many fragments have each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Priorities(Vec<(u8, u32)>);

impl Default for Priorities {
    fn default() -> Self {
        Self(vec![(0, 1)])
    }
}

impl FromStr for Priorities {
    type Err = String;

    /// `0:50,200:50`, or one priority for all.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}`: up to {PRIORITIES_MAX} priorities from 0 to 255 with their weights, as 0:50,200:50"
            )
        };
        let one = |part: &str| {
            let (priority, weight) = part.split_once(':').unwrap_or((part, "1"));
            let weight = weight
                .parse()
                .ok()
                .filter(|n| (1..=1_000_000).contains(n))?;
            Some((priority.parse().ok()?, weight))
        };
        let list: Vec<(u8, u32)> = text
            .split(',')
            .map(one)
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        let is_new = |at: usize| !list[..at].iter().any(|(p, _)| *p == list[at].0);
        if list.len() > PRIORITIES_MAX || !(0..list.len()).all(is_new) {
            return Err(wrong());
        }
        Ok(Self(list))
    }
}

impl Priorities {
    /// Which of the list a fragment has, and its value. Fragments of a priority are strewn, the
    /// same ones in each run.
    #[inline]
    #[must_use]
    pub fn of(&self, seq: u64) -> (usize, u8) {
        if let [(priority, _)] = self.0[..] {
            return (0, priority);
        }
        let total: u64 = self.0.iter().map(|(_, weight)| u64::from(*weight)).sum();
        // Fibonacci hashing: its upper bits are spread evenly.
        let spread = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut left = (spread * total) >> 32;
        for (at, &(priority, weight)) in self.0.iter().enumerate() {
            match left.checked_sub(weight.into()) {
                Some(rest) => left = rest,
                None => return (at, priority),
            }
        }
        (0, self.0[0].0)
    }

    /// The list's priorities.
    pub fn values(&self) -> impl ExactSizeIterator<Item = u8> {
        self.0.iter().map(|&(priority, _)| priority)
    }
}

/// The switch, as its configuration has it.
#[derive(Clone, Copy, Debug)]
pub struct SwitchPlan {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// First UDP port.
    pub base_port: u16,
    /// UDP ports, a power of two.
    pub shards: u16,
    /// Largest window that it serves.
    pub window: u16,
}

/// Our end of one of the switch's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// The switch's name for it.
    pub name: String,
    /// The DPDK device at our end.
    pub device: String,
}

/// A simulated host: a worker or a parameter server at one of our ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Which of our ports.
    pub port: usize,
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// UDP port.
    pub udp_port: u16,
}

/// One job.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Its number.
    pub id: JobId,
    /// Its key.
    pub key: Key,
    /// By rank.
    pub workers: Vec<Host>,
    /// None if another process plays it.
    pub ps: Option<Host>,
    /// Whether the members are fixed and need not join.
    pub is_fixed: bool,
    /// Payload in units of 64 bytes.
    pub units: u8,
    /// Element type.
    pub element: Element,
    /// Fragments in flight.
    pub window: u16,
    /// When contributions are due.
    pub pace: Pace,
    /// Whose turn it is at slots and ports.
    pub priorities: Priorities,
}

impl JobPlan {
    /// Bytes of a contribution's frame.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        HEADERS_BYTES + usize::from(self.units) * UNIT_BYTES
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The only address that anything is sent to.
    pub switch: SwitchPlan,
    /// Our ports.
    pub ports: Vec<PortPlan>,
    /// The jobs to load.
    pub jobs: Vec<JobPlan>,
    /// Where packet memory comes from.
    pub memory: MemoryKind,
    /// The longest frame of the switch's ports.
    pub frame_bytes_max: u16,
    /// CPUs of the switch's data cores.
    pub switch_cores: Vec<usize>,
}

impl Plan {
    /// Decides.
    ///
    /// # Errors
    /// What of the configuration or the wishes cannot be.
    pub fn new(path: &Path, wishes: &Wishes) -> Result<Self> {
        let config = Config::load(path)?;
        ensure!(
            !config.jobs.is_empty(),
            "{}: jobs: found none, expected at least one to load",
            path.display()
        );
        let ports = ports(&config, &wishes.ports)?;
        let switch = SwitchPlan {
            mac: config.address.mac,
            ip: config.address.ip,
            base_port: config.address.udp_port,
            shards: config.cores.len() as u16,
            window: config.served_window(),
        };
        let chosen = chosen_jobs(&config, &wishes.jobs)?;
        for (job, _) in &wishes.priorities {
            ensure!(
                job.is_none_or(|id| chosen.iter().any(|section| section.id == id)),
                "--priorities {}=…: no such job is loaded",
                job.unwrap_or_default()
            );
        }
        let mut hosts = Hosts::new(switch, wishes.first_host, ports.len())?;
        let jobs = chosen
            .into_iter()
            .map(|section| {
                let job = job(section, &config, wishes, switch.window, &ports, &mut hosts);
                job.with_context(|| format!("job {}", section.id))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            switch,
            ports,
            jobs,
            memory: config.eal.memory,
            frame_bytes_max: config.frame_bytes_max(),
            switch_cores: config.cores.clone(),
        })
    }

    /// A CPU for the generator: the first one that no data core of the switch has.
    #[must_use]
    pub fn generator_cpu(&self) -> Option<usize> {
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        let mut cpus = cpus.iter().map(|cpu| cpu.id);
        cpus.find(|cpu| !self.switch_cores.contains(cpu))
    }
}

fn ports(config: &Config, devices: &[String]) -> Result<Vec<PortPlan>> {
    // No host is behind a card's.
    let names: Vec<_> = config.member_ports().map(|port| port.label()).collect();
    if devices.is_empty() {
        return config.member_ports().map(other_end).collect();
    }
    let mut plans: Vec<PortPlan> = Vec::new();
    for (at, text) in devices.iter().enumerate() {
        // A name ends before the first comma, where a device's arguments begin.
        let head = text.split(',').next().unwrap_or_default();
        let (name, device) = match head.split_once('=') {
            Some((name, _)) => (name, &text[name.len() + 1..]),
            None => match names.get(at) {
                Some(name) => (*name, text.as_str()),
                None => bail!(
                    "--port {text}: the switch has {} ports in its configuration",
                    names.len()
                ),
            },
        };
        ensure!(
            names.contains(&name),
            "--port {text}: the switch has no port `{name}` in its configuration, but {}",
            names.join(", ")
        );
        ensure!(
            plans.iter().all(|plan| plan.name != name),
            "--port {text}: port {name} a second time"
        );
        ensure!(!device.is_empty(), "--port {text}: which device?");
        plans.push(PortPlan {
            name: name.to_owned(),
            device: device.to_owned(),
        });
    }
    Ok(plans)
}

/// The client of a `net_memif` server; of anything else the user must say what is at the other end.
fn other_end(port: &tally_schema::switch::config::PortSection) -> Result<PortPlan> {
    let is_server = |argument: &&str| *argument == "role=server";
    let mut arguments = port.device_arguments().split(',');
    ensure!(
        port.device_name().starts_with("net_memif") && arguments.any(|a| is_server(&a)),
        "port {} of the switch is {}: say with --port, once for each port, which device is at its other end",
        port.label(),
        port.device
    );
    Ok(PortPlan {
        name: port.label().to_owned(),
        device: port.device.replacen("role=server", "role=client", 1),
    })
}

fn chosen_jobs<'a>(config: &'a Config, ids: &[u16]) -> Result<Vec<&'a JobSection>> {
    if ids.is_empty() {
        return Ok(config.jobs.iter().collect());
    }
    let find = |(at, id): (usize, &u16)| {
        ensure!(!ids[..at].contains(id), "--job {id}: a second time");
        let job = config.jobs.iter().find(|job| job.id == *id);
        job.with_context(|| {
            let all: Vec<_> = config.jobs.iter().map(|job| job.id.to_string()).collect();
            format!("--job {id}: the configuration has {}", all.join(", "))
        })
    };
    ids.iter().enumerate().map(find).collect()
}

/// Addresses and ports for members that join.
struct Hosts {
    next: u32,
    switch: SwitchPlan,
    port: usize,
    ports: usize,
}

impl Hosts {
    fn new(switch: SwitchPlan, first: Option<Ipv4Addr>, ports: usize) -> Result<Self> {
        let [a, b, _, _] = switch.ip.octets();
        let first = first.unwrap_or(Ipv4Addr::new(a, b, 128, 1));
        ensure!(
            !first.is_multicast() && !first.is_loopback() && !first.is_unspecified(),
            "--first-host {first}: an address of one host"
        );
        Ok(Self {
            next: first.into(),
            switch,
            port: 0,
            ports,
        })
    }

    fn allocate(&mut self) -> Result<Host> {
        if Ipv4Addr::from(self.next) == self.switch.ip {
            self.next += 1;
        }
        let ip = Ipv4Addr::from(self.next);
        ensure!(!ip.is_multicast(), "no addresses left after {ip}");
        self.next += 1;
        let [a, b, c, d] = ip.octets();
        let port = self.port;
        self.port = (port + 1) % self.ports;
        Ok(Host {
            port,
            // Locally administered, unicast.
            mac: Mac([0x02, 0x84, a, b, c, d]),
            ip,
            udp_port: MEMBER_PORT,
        })
    }
}

fn job(
    section: &JobSection,
    config: &Config,
    wishes: &Wishes,
    window_max: u16,
    ports: &[PortPlan],
    hosts: &mut Hosts,
) -> Result<JobPlan> {
    let units = units(section, config, wishes.payload_bytes)?;
    let window = wishes.window.unwrap_or(WINDOW_DEFAULT.min(window_max));
    ensure!(
        (1..=window_max).contains(&window),
        "--window {window}: 1 to {window_max}, which the switch serves"
    );
    let (workers, ps) = match &section.fixed {
        Some(fixed) => {
            let host = |member: &FixedMember| fixed_host(member, ports);
            let workers = fixed.workers.iter().map(host).collect::<Result<_>>()?;
            let ps = (!wishes.external_ps).then(|| host(&fixed.ps)).transpose()?;
            (workers, ps)
        }
        None => {
            let workers = (0..section.workers).map(|_| hosts.allocate());
            let workers: Vec<_> = workers.collect::<Result<_>>()?;
            let ps = (!wishes.external_ps)
                .then(|| hosts.allocate())
                .transpose()?;
            (workers, ps)
        }
    };
    let own = |(job, _): &&(Option<u16>, Priorities)| *job == Some(section.id);
    let of_all = |(job, _): &&(Option<u16>, Priorities)| job.is_none();
    let priorities = wishes.priorities.iter();
    let priorities = priorities
        .clone()
        .find(own)
        .or_else(|| priorities.clone().find(of_all));
    let mut job = JobPlan {
        id: JobId(section.id),
        key: section.key.clone(),
        workers,
        ps,
        is_fixed: section.fixed.is_some(),
        units,
        element: wishes.element,
        window,
        pace: Pace::Closed,
        priorities: priorities.map(|(_, p)| p.clone()).unwrap_or_default(),
    };
    if let Some(rate) = wishes.rate {
        let frames_per_s = match rate {
            Rate::Frames(rate) => rate,
            Rate::Bits(rate) => rate / (job.frame_bytes() as f64 * 8.0),
        };
        job.pace = Pace::Open {
            interval_ns: 1e9 / frames_per_s,
        };
    }
    Ok(job)
}

fn units(section: &JobSection, config: &Config, wanted: Option<u16>) -> Result<u8> {
    let units_max = config.units();
    let unit = UNIT_BYTES as u16;
    if let Some(fixed) = &section.fixed {
        let bytes = fixed.payload_bytes;
        ensure!(
            wanted.is_none_or(|wanted| wanted == bytes),
            "--payload {}: the configuration fixes it at {bytes}",
            wanted.unwrap_or_default()
        );
        return Ok((bytes / unit) as u8);
    }
    let bytes = wanted.unwrap_or(unit * u16::from(UNITS_DEFAULT.min(units_max)));
    let bytes_max = unit * u16::from(units_max);
    ensure!(
        (unit..=bytes_max).contains(&bytes) && bytes.is_multiple_of(unit),
        "--payload {bytes}: a multiple of 64 from 64 to {bytes_max}, which the switch's ports carry"
    );
    Ok((bytes / unit) as u8)
}

fn fixed_host(member: &FixedMember, ports: &[PortPlan]) -> Result<Host> {
    let port = ports.iter().position(|port| port.name == member.port);
    let port = port.with_context(|| {
        format!(
            "its member {} is at port {}, for which there is no --port",
            member.ip, member.port
        )
    })?;
    Ok(Host {
        port,
        mac: member.mac,
        ip: member.ip,
        udp_port: member.udp_port,
    })
}

#[cfg(test)]
mod tests;
