//! The network of a fabric in network namespaces: one for each switch and each host, a veth pair
//! for each link.

use super::plan::{Link, Plan, SwitchId};
use super::spec::FabricSpec;
use crate::cluster::commands::{check_run, ip};
use crate::cluster::namespaces::{self, enter, remove_leftovers, shape};
use anyhow::{Context, Result};
use std::process::Command;

/// What may wait for a shaped link.
const WAITING_BYTES: u32 = 4 << 20;

/// The interface of a link at one of its switches.
#[derive(Clone, Debug)]
pub struct LinkEnd {
    /// The namespace of the switch.
    pub namespace: String,
    /// The interface.
    pub interface: String,
}

/// Namespaces that go away with the value.
pub struct Namespaces {
    switches: Vec<String>,
    hosts: Vec<String>,
    made: Vec<String>,
}

impl Namespaces {
    pub(super) fn new(spec: &FabricSpec, plan: &Plan) -> Result<Self> {
        remove_leftovers()?;
        let mut all = Self {
            switches: Vec::new(),
            hosts: Vec::new(),
            made: Vec::new(),
        };
        for switch in plan.switches() {
            let name = all.add(&plan.name(switch))?;
            all.switches.push(name);
        }
        let mtu = spec.mtu.to_string();
        let pair =
            |(a, at): (&str, &str), (b, bt): (&str, &str), rate: Option<u32>| -> Result<()> {
                ip(&[
                    "link", "add", a, "mtu", &mtu, "netns", at, "type", "veth", "peer", "name", b,
                    "mtu", &mtu, "netns", bt,
                ])?;
                for (device, namespace) in [(a, at), (b, bt)] {
                    ip(&["-n", namespace, "link", "set", device, "up"])?;
                    if let Some(rate) = rate {
                        shape(namespace, device, rate, WAITING_BYTES)?;
                    }
                }
                Ok(())
            };
        for (n, host) in plan.hosts().iter().enumerate() {
            let name = all.add(&format!("host{n}"))?;
            let leaf = &all.switches[plan.leaf(host.leaf).0];
            pair((&host_port(n), leaf), ("eth0", &name), spec.host_mbit)?;
            let address = format!("{}/16", host.ip);
            ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            all.hosts.push(name);
        }
        for (n, link) in plan.links().iter().enumerate() {
            let [leaf, spine] = [link.leaf, link.spine].map(|it| &*all.switches[it.0]);
            let port = link_port(n);
            pair((&port, leaf), (&port, spine), spec.uplink_mbit)?;
        }
        Ok(all)
    }

    fn add(&mut self, role: &str) -> Result<String> {
        let name = namespaces::make(role)?;
        self.made.push(name.clone());
        Ok(name)
    }

    /// The device of a leaf for a host, its `port`th.
    pub(super) fn host_device(&self, host: usize, port: usize) -> String {
        format!("packet{port},iface={}", host_port(host))
    }

    /// The device of a switch for a link, its `port`th.
    pub(super) fn link_device(&self, link: usize, port: usize) -> String {
        format!("packet{port},iface={}", link_port(link))
    }

    /// The interface of a link at one of its switches.
    #[must_use]
    pub fn link_end(&self, link: usize, SwitchId(at): SwitchId) -> LinkEnd {
        LinkEnd {
            namespace: self.switches[at].clone(),
            interface: link_port(link),
        }
    }

    /// Takes a link between switches down, or up again, at one end.
    ///
    /// # Errors
    /// What the machine refuses.
    pub fn set_link(&self, link: usize, at: SwitchId, is_up: bool) -> Result<()> {
        let LinkEnd {
            namespace,
            interface,
        } = self.link_end(link, at);
        let state = if is_up { "up" } else { "down" };
        ip(&["-n", &namespace, "link", "set", &interface, state])
    }

    /// Joins all hosts by bridges of the kernel, one in each namespace of a leaf and of this spine.
    pub(super) fn bridge(&self, plan: &Plan, spine: SwitchId) -> Result<()> {
        for switch in plan.switches() {
            if plan.is_spine(switch) && switch != spine {
                continue;
            }
            let at = &self.switches[switch.0];
            ip(&["-n", at, "link", "add", "bridge", "type", "bridge"])?;
            let hosts = plan.hosts_of(switch).map(|(host, _)| host_port(host));
            let links = plan.links_of(switch).filter(|&(link, _)| {
                let Link {
                    spine: top, number, ..
                } = plan.links()[link];
                (top, number) == (spine, 0)
            });
            let links = links.map(|(link, _)| link_port(link));
            for port in hosts.chain(links) {
                ip(&["-n", at, "link", "set", &port, "master", "bridge"])?;
            }
            ip(&["-n", at, "link", "set", "bridge", "up"])?;
        }
        Ok(())
    }

    /// Bytes that have left by a link at one of its switches.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn sent_bytes(&self, link: usize, at: SwitchId) -> Result<u64> {
        let end = self.link_end(link, at);
        counter(&end.namespace, &end.interface, "tx_bytes")
    }

    /// Bytes that have left a host.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn host_sent_bytes(&self, host: usize) -> Result<u64> {
        counter(&self.hosts[host], "eth0", "tx_bytes")
    }

    /// The namespace of a host.
    #[must_use]
    pub fn host_name(&self, host: usize) -> &str {
        &self.hosts[host]
    }

    /// Words in front of a command that is to run on a host.
    #[must_use]
    pub fn host_prefix(&self, host: usize) -> Vec<String> {
        enter(&self.hosts[host])
    }

    /// Words in front of a command that is to run where a switch does.
    #[must_use]
    pub fn switch_prefix(&self, SwitchId(switch): SwitchId) -> Vec<String> {
        enter(&self.switches[switch])
    }
}

fn host_port(host: usize) -> String {
    format!("port{host}")
}

fn link_port(link: usize) -> String {
    format!("link{link}")
}

fn counter(namespace: &str, interface: &str, name: &str) -> Result<u64> {
    let mut command = Command::new("ip");
    let path = format!("/sys/class/net/{interface}/statistics/{name}");
    command.args(["netns", "exec", namespace, "cat", &path]);
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let value = text.trim().parse();
    value.with_context(|| format!("{command:?}: found `{text}`, expected a number"))
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.made {
            let _ = check_run(Command::new("ip").args(["netns", "delete", name]));
        }
    }
}
