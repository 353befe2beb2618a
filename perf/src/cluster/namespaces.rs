//! Network namespaces: one for the switch, one for each host, a veth pair between the two.
//!
//! Links may be shaped, by the same token bucket in each direction. What sits in the middle is the
//! caller's: Tally's switch on the ends of the pairs, or the kernel's own bridge ([`Namespaces::bridge`]).

use super::switchml::CONTROLLER_IP;
use super::{Driver, PREFIX, check_run, is_leftover};
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
const HEADERS_BYTES: u16 = 50;
const PAYLOAD_BYTES_MAX: u16 = 8192;

impl Links {
    /// The longest payload of Tally's that fits.
    #[must_use]
    pub fn payload_bytes(self) -> u16 {
        ((self.mtu - HEADERS_BYTES) / 64 * 64).min(PAYLOAD_BYTES_MAX)
    }
}

/// What a shaped link sends at once after a pause: two of the kernel's largest segments, so that it
/// need not cut them up.
const BURST_BYTES: u32 = 131_072;
/// What may wait for a shaped link.
const WAITING_BYTES: u32 = 16 << 20;

/// Namespaces, joined by veth pairs, that go away with the value.
pub struct Namespaces {
    names: Vec<String>,
    driver: Driver,
}

impl Namespaces {
    /// A namespace for the switch and `hosts` for hosts, each with `eth0` on one end of a pair whose
    /// other is `port` and its number at the switch.
    ///
    /// # Errors
    /// What the machine refuses.
    pub fn new(hosts: usize, links: Links) -> Result<Self> {
        remove_leftovers()?;
        let mut namespaces = Self {
            names: Vec::new(),
            driver: Driver::default(),
        };
        let switch = namespaces.add("switch")?;
        for host in 0..hosts {
            let name = namespaces.add(&format!("host{host}"))?;
            let port = format!("port{host}");
            let mtu = links.mtu.to_string();
            ip(&[
                "link", "add", &port, "mtu", &mtu, "netns", &switch, "type", "veth", "peer",
                "name", "eth0", "mtu", &mtu, "netns", &name,
            ])?;
            let address = format!("{}/24", super::address(super::HostId(host)));
            ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &switch, "link", "set", &port, "up"])?;
            if let Some(rate_mbit) = links.rate_mbit {
                shape(&name, "eth0", rate_mbit)?;
                shape(&switch, &port, rate_mbit)?;
            }
        }
        Ok(namespaces)
    }

    /// Prepares the hosts for Tally's switch. A veth pair has no wire on which a NIC would cut up what the
    /// kernel makes in one piece: only what the switch cuts up itself may be whole.
    ///
    /// # Errors
    /// What the machine refuses.
    pub(super) fn prepare_for_switch(&mut self, driver: Driver) -> Result<()> {
        self.driver = driver;
        let mut off = vec!["tso", "off"];
        if driver != Driver::Packet || !tally_packet::superframes() {
            off.extend(["tx-udp-segmentation", "off"]);
        }
        for name in &self.names[1..] {
            let run = ["netns", "exec", name, "ethtool", "-K", "eth0"];
            check_run(Command::new("ip").args(run).args(&off))?;
        }
        Ok(())
    }

    /// The switch's device for a host.
    pub(super) fn device(&self, host: usize) -> String {
        match self.driver {
            Driver::Packet => format!("packet{host},iface=port{host}"),
            Driver::AfPacket => format!("net_af_packet{host},iface=port{host}"),
        }
    }

    /// A second network, by which the hosts from `first` on reach what listens in the switch's namespace, at
    /// [`CONTROLLER_IP`].
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

    /// The name of a host's namespace.
    #[must_use]
    pub fn host_name(&self, host: usize) -> &str {
        &self.names[host + 1]
    }

    fn add(&mut self, role: &str) -> Result<String> {
        let name = format!("{PREFIX}{}-{role}", std::process::id());
        ip(&["netns", "add", &name])?;
        self.names.push(name.clone());
        // No neighbour discovery and no router solicitations into the measurements.
        let sysctl = "net.ipv6.conf.all.disable_ipv6=1";
        let set = [
            "netns",
            "exec",
            &name,
            "sysctl",
            "-qw",
            sysctl,
            "net.ipv6.conf.default.disable_ipv6=1",
        ];
        // A kernel without IPv6 has no such key, and no such traffic.
        let _ = ip(&set);
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
        for name in &self.names {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn shape(namespace: &str, device: &str, rate_mbit: u32) -> Result<()> {
    check_run(
        Command::new("tc")
            .args([
                "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf",
            ])
            .args(["rate", &format!("{rate_mbit}mbit")])
            .args(["burst", &BURST_BYTES.to_string()])
            .args(["limit", &WAITING_BYTES.to_string()]),
    )
}

/// The command words that run a program in a namespace.
fn enter(name: &str) -> Vec<String> {
    ["ip", "netns", "exec", name].map(str::to_owned).to_vec()
}

fn ip(arguments: &[&str]) -> Result<()> {
    check_run(Command::new("ip").args(arguments))
}

/// Removes the namespaces of runs whose process is gone.
fn remove_leftovers() -> Result<()> {
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
