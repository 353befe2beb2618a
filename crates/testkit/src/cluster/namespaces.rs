//! Network namespaces: one for the switch, one for each host, a veth pair between the two.
//!
//! Links may be shaped, by the same token bucket in each direction. What sits in the middle is the
//! caller's: Tally's switch on the ends of the pairs, or the kernel's own bridge
//! ([`Namespaces::bridge`]).

use super::commands::{check_run, ip};
use super::identity::{CONTROLLER_IP, SWITCH_IP, host_address};
use super::leftovers::{PREFIX, is_leftover};
use super::wire::{self, WireLosses};
use anyhow::{Context, Result};
use serde::Serialize;
use std::process::Command;

/// Whether this user may make namespaces: root may.
#[must_use]
pub fn allowed() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
            Some(uids.split_whitespace().nth(1)? == "0")
        })
        .unwrap_or(false)
}

/// What all links are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Links {
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Bits of Ethernet frames each way, in Mbit/s; without, as fast as the kernel is.
    pub rate_mbit: Option<u32>,
}

/// IPv4, UDP and Tally headers.
const HEADERS_BYTES: u16 = 58;
const PAYLOAD_BYTES_MAX: u16 = 8192;

impl Links {
    /// The longest payload of Tally's that fits.
    #[must_use]
    pub fn payload_bytes(self) -> u16 {
        ((self.mtu - HEADERS_BYTES) / 64 * 64).min(PAYLOAD_BYTES_MAX)
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

/// What a shaped link sends at once after a pause, at most: two of the kernel's largest segments,
/// so that it need not cut them up.
const BURST_BYTES_MAX: u32 = 131_072;
/// The same at least: two of the longest frames.
const BURST_BYTES_MIN: u32 = 18_432;
/// Bytes of a burst by Mbit/s: about a millisecond. A longer one would make a slow link look as one
/// of short delay, by which timeouts are chosen.
const BURST_BYTES_PER_MBIT: u32 = 132;
/// What may wait for a shaped link, unless it is limited.
const WAITING_BYTES: u32 = 16 << 20;

/// Namespaces, joined by veth pairs, that go away with the value.
pub struct Namespaces {
    names: Vec<String>,
    /// The one in the middle of all pairs, where they are lossy wires.
    wires: Option<String>,
    links: Links,
    driver: Driver,
}

/// Makes the namespace of a role in this process's network, without IPv6.
pub(crate) fn make(role: &str) -> Result<String> {
    let name = format!("{PREFIX}{}-{role}", std::process::id());
    ip(&["netns", "add", &name])?;
    let mut set = vec!["netns", "exec", &name, "sysctl", "-qw"];
    // No neighbour discovery and no router solicitations into the measurements.
    set.push("net.ipv6.conf.all.disable_ipv6=1");
    set.push("net.ipv6.conf.default.disable_ipv6=1");
    // A kernel without IPv6 has no such key, and no such traffic.
    let _ = ip(&set);
    Ok(name)
}

impl Namespaces {
    /// A namespace for the switch and `hosts` for hosts, each with `eth0` on one end of a pair
    /// whose other is `port` and its number at the switch.
    ///
    /// # Errors
    /// What the machine refuses.
    pub fn new(hosts: usize, links: Links) -> Result<Self> {
        Self::build(hosts, links, None)
    }

    /// The same with lossy wires (`wire`) in the middle of the pairs, which lose this share of
    /// frames each way. Both ends segment all superframes.
    ///
    /// # Errors
    /// What the machine refuses.
    pub fn lossy(hosts: usize, links: Links, share: f64) -> Result<Self> {
        Self::build(hosts, links, Some(share))
    }

    fn build(hosts: usize, links: Links, loss: Option<f64>) -> Result<Self> {
        remove_leftovers()?;
        let mut namespaces = Self {
            names: Vec::new(),
            wires: None,
            links,
            driver: Driver::default(),
        };
        let switch = namespaces.add("switch")?;
        if loss.is_some() {
            let name = namespaces.add("wires")?;
            wire::prepare(&name)?;
            // It is no host.
            namespaces.wires = namespaces.names.pop();
        }
        for host in 0..hosts {
            let name = namespaces.add(&format!("host{host}"))?;
            let port = format!("port{host}");
            let mtu = links.mtu.to_string();
            let pair = |(a, at): (&str, &str), (b, bt): (&str, &str)| {
                ip(&[
                    "link", "add", a, "mtu", &mtu, "netns", at, "type", "veth", "peer", "name", b,
                    "mtu", &mtu, "netns", bt,
                ])
            };
            match &namespaces.wires {
                None => pair((&port, &switch), ("eth0", &name))?,
                Some(wires) => {
                    let [near, far] = wire::ends(host);
                    pair((&near, wires), ("eth0", &name))?;
                    pair((&port, &switch), (&far, wires))?;
                    for end in [&near, &far] {
                        ip(&["-n", wires, "link", "set", end, "up"])?;
                    }
                    wire::join(wires, host, loss.unwrap_or(0.0))?;
                    for (at, device) in [(&name, "eth0"), (&switch, &port)] {
                        cut_superframes(at, device, &["tso", "tx-udp-segmentation"])?;
                    }
                }
            }
            let address = format!("{}/24", host_address(host));
            ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &switch, "link", "set", &port, "up"])?;
            if let Some(rate_mbit) = links.rate_mbit {
                shape(&name, "eth0", rate_mbit, WAITING_BYTES)?;
                shape(&switch, &port, rate_mbit, WAITING_BYTES)?;
            }
        }
        Ok(namespaces)
    }

    /// Prepares the hosts for Tally's switch. A veth pair has no wire on which a NIC would cut up
    /// what the kernel makes in one piece. The switch's own ports take that, DPDK's do not.
    ///
    /// # Errors
    /// What the machine refuses.
    pub(super) fn prepare_for_switch(&mut self, driver: Driver) -> Result<()> {
        self.driver = driver;
        let off: &[_] = match driver {
            Driver::AfPacket => &["tso", "tx-udp-segmentation"],
            Driver::Packet if tally_packet::superframes() => return Ok(()),
            Driver::Packet => &["tx-udp-segmentation"],
        };
        for name in &self.names[1..] {
            cut_superframes(name, "eth0", off)?;
        }
        Ok(())
    }

    /// Limits the queue of each shaped link to this many bytes; it drops what exceeds them.
    ///
    /// # Errors
    /// If links are not shaped, or what the machine refuses.
    pub(super) fn limit_queues(&self, bytes: u32) -> Result<()> {
        let rate_mbit = self.links.rate_mbit;
        let rate_mbit = rate_mbit.context("only shaped links have a queue to limit")?;
        for host in 0..self.names.len() - 1 {
            shape(self.host_name(host), "eth0", rate_mbit, bytes)?;
            shape(&self.names[0], &format!("port{host}"), rate_mbit, bytes)?;
        }
        Ok(())
    }

    /// Frames that the wire of each host has lost; none where wires are not lossy.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn wire_losses(&self) -> Result<Vec<WireLosses>> {
        let Some(wires) = &self.wires else {
            return Ok(Vec::new());
        };
        let hosts = 0..self.names.len() - 1;
        hosts.map(|host| wire::losses(wires, host)).collect()
    }

    /// Has the hosts' TCP use this congestion control, by their routes: as a namespace's default
    /// the kernel accepts only those that the machine's administrator allowed.
    ///
    /// # Errors
    /// If the kernel does not have it.
    pub fn set_congestion_control(&self, name: &str) -> Result<()> {
        let [a, b, c, _] = SWITCH_IP.octets();
        let network = format!("{a}.{b}.{c}.0/24");
        for host in &self.names[1..] {
            ip(&[
                "-n", host, "route", "replace", &network, "dev", "eth0", "congctl", name,
            ])?;
        }
        Ok(())
    }

    /// Segments that the hosts' TCP has sent again.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn tcp_retransmissions(&self) -> Result<u64> {
        let mut all = 0;
        for host in &self.names[1..] {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", host, "cat", "/proc/net/snmp"]);
            let output = command.output().with_context(|| format!("{command:?}"))?;
            let text = String::from_utf8_lossy(&output.stdout);
            let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
            let (names, values) = (lines.next(), lines.next());
            let (names, values) = names.zip(values).context("/proc/net/snmp has no TCP")?;
            let mut pairs = names.split_whitespace().zip(values.split_whitespace());
            let found = pairs.find(|(name, _)| *name == "RetransSegs");
            all += found
                .and_then(|(_, value)| value.parse::<u64>().ok())
                .context("/proc/net/snmp has no RetransSegs")?;
        }
        Ok(all)
    }

    /// The switch's device for a host.
    pub(super) fn device(&self, host: usize) -> String {
        match self.driver {
            Driver::Packet => format!("packet{host},iface=port{host}"),
            Driver::AfPacket => format!("net_af_packet{host},iface=port{host}"),
        }
    }

    /// A second network, by which the hosts from `first` on reach what listens in the switch's
    /// namespace, at [`CONTROLLER_IP`].
    ///
    /// # Errors
    /// What the machine refuses.
    pub(super) fn join_controllers(&self, first: usize) -> Result<()> {
        let switch = &self.names[0];
        ip(&["-n", switch, "link", "add", "control", "type", "bridge"])?;
        let own = format!("{CONTROLLER_IP}/24");
        ip(&["-n", switch, "address", "add", &own, "dev", "control"])?;
        ip(&["-n", switch, "link", "set", "control", "up"])?;
        for host in first..self.names.len() - 1 {
            let (name, port) = (self.host_name(host), format!("control{host}"));
            ip(&[
                "link", "add", &port, "netns", switch, "type", "veth", "peer", "name", "eth1",
                "netns", name,
            ])?;
            let [a, b, c, _] = CONTROLLER_IP.octets();
            let address = format!("{a}.{b}.{c}.{}/24", host + 1);
            ip(&["-n", name, "address", "add", &address, "dev", "eth1"])?;
            ip(&["-n", name, "link", "set", "eth1", "up"])?;
            ip(&[
                "-n", switch, "link", "set", &port, "master", "control", "up",
            ])?;
        }
        Ok(())
    }

    /// Joins all hosts by the kernel's bridge, in place of a switch of ours.
    ///
    /// # Errors
    /// What the machine refuses.
    pub fn bridge(&self) -> Result<()> {
        let switch = &self.names[0];
        ip(&["-n", switch, "link", "add", "bridge", "type", "bridge"])?;
        for host in 0..self.names.len() - 1 {
            let port = format!("port{host}");
            ip(&["-n", switch, "link", "set", &port, "master", "bridge"])?;
        }
        ip(&["-n", switch, "link", "set", "bridge", "up"])
    }

    /// The names of all: the switch's, then those of the hosts.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name of a host's namespace.
    #[must_use]
    pub fn host_name(&self, host: usize) -> &str {
        &self.names[host + 1]
    }

    fn add(&mut self, role: &str) -> Result<String> {
        let name = make(role)?;
        self.names.push(name.clone());
        Ok(name)
    }

    /// Words in front of a command that is to run where the switch does.
    #[must_use]
    pub fn switch_prefix(&self) -> Vec<String> {
        enter(&self.names[0])
    }

    /// Words in front of a command that is to run on a host.
    #[must_use]
    pub fn host_prefix(&self, host: usize) -> Vec<String> {
        enter(&self.names[host + 1])
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in self.names.iter().chain(&self.wires) {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

pub(crate) fn shape(
    namespace: &str,
    device: &str,
    rate_mbit: u32,
    waiting_bytes: u32,
) -> Result<()> {
    let burst = rate_mbit.saturating_mul(BURST_BYTES_PER_MBIT);
    let burst = burst.clamp(BURST_BYTES_MIN, BURST_BYTES_MAX);
    check_run(
        Command::new("tc")
            .args([
                "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf",
            ])
            .args(["rate", &format!("{rate_mbit}mbit")])
            .args(["burst", &burst.to_string()])
            .args(["limit", &waiting_bytes.to_string()]),
    )
}

/// Turns these offloads of a device off, so that the kernel segments before it.
fn cut_superframes(namespace: &str, device: &str, features: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "ethtool", "-K", device]);
    for feature in features {
        command.args([feature, "off"]);
    }
    check_run(&mut command)
}

/// The command words that run a program in a namespace.
pub(crate) fn enter(name: &str) -> Vec<String> {
    ["ip", "netns", "exec", name].map(str::to_owned).to_vec()
}

/// Removes the namespaces of runs whose process is gone.
pub(crate) fn remove_leftovers() -> Result<()> {
    let list = Command::new("ip")
        .args(["netns", "list"])
        .output()
        .context("ip netns list")?;
    for line in String::from_utf8_lossy(&list.stdout).lines() {
        let Some(name) = line.split_whitespace().next() else {
            continue;
        };
        if is_leftover(name) {
            ip(&["netns", "delete", name])?;
        }
    }
    Ok(())
}
