//! Network namespaces: one for the switch, one for each host, a veth pair between the two.

use super::{PREFIX, check_run, is_leftover};
use anyhow::{Context, Result};
use std::process::Command;

/// Whether this user may make namespaces: root may.
pub(super) fn allowed() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
            Some(uids.split_whitespace().nth(1)? == "0")
        })
        .unwrap_or(false)
}

pub(super) struct Namespaces {
    names: Vec<String>,
}

/// The switch's device for a host.
pub(super) fn device(host: usize, mtu: u16) -> String {
    // The driver cuts off what is longer than its frames.
    let ring = if mtu > 1500 {
        "blocksz=16384,framesz=16384,framecnt=256"
    } else {
        "framecnt=1024"
    };
    format!("net_af_packet{host},iface=port{host},{ring},qdisc_bypass=1")
}

impl Namespaces {
    pub(super) fn new(hosts: usize, mtu: u16) -> Result<Self> {
        remove_leftovers()?;
        let mut namespaces = Self { names: Vec::new() };
        let switch = namespaces.add("switch")?;
        for host in 0..hosts {
            let name = namespaces.add(&format!("host{host}"))?;
            let port = format!("port{host}");
            let mtu = mtu.to_string();
            ip(&[
                "link", "add", &port, "mtu", &mtu, "netns", &switch, "type", "veth", "peer",
                "name", "eth0", "mtu", &mtu, "netns", &name,
            ])?;
            let address = format!("{}/24", super::address(super::HostId(host)));
            ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &switch, "link", "set", &port, "up"])?;
            // A veth pair has no wire on which a checksum or a segment would be finished: who
            // reads frames from it raw, as the switch does, must get them finished.
            check_run(
                Command::new("ip")
                    .args(["netns", "exec", &name, "ethtool", "-K", "eth0", "tx", "off"]),
            )?;
        }
        Ok(namespaces)
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

    pub(super) fn switch_prefix(&self) -> Vec<String> {
        enter(&self.names[0])
    }

    pub(super) fn host_prefix(&self, host: usize) -> Vec<String> {
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
