//! What the types of the configuration do not say: ranges, names given twice, references.

use super::jobs::SWITCH_WORKERS;
use super::{AddressConfig, Config, FixedMembers, MAX_CORES, PortSection, QueueSection};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use tally_config::ConfigError;
use tally_engine::forwarding::ADDRESSES_MAX;
use tally_engine::queue::CLASSES;
use tally_wire::part::is_count;
use tally_wire::{MAX_WORKERS, Mac, UNIT_BYTES};

/// Ports at most.
const PORTS_MAX: u16 = 1024;

/// What was found, each with its key.
pub(super) struct Faults<'a> {
    path: &'a Path,
    found: Vec<ConfigError>,
}

impl Faults<'_> {
    /// Adds a fault if something is bad.
    pub(super) fn test(
        &mut self,
        is_bad: bool,
        key: impl Into<String>,
        found: &dyn fmt::Display,
        allowed: &str,
    ) {
        if is_bad {
            let fault = ConfigError::value(self.path, key, found, allowed);
            self.found.push(fault);
        }
    }
}

impl Config {
    /// Checks what the types do not say.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn check(&self, path: &Path) -> Result<(), ConfigError> {
        self.faults(path).into_iter().next().map_or(Ok(()), Err)
    }

    /// All that the types do not say and that is wrong.
    #[must_use]
    pub fn faults(&self, path: &Path) -> Vec<ConfigError> {
        let mut faults = Faults {
            path,
            found: Vec::new(),
        };
        self.check_address(&mut faults);
        self.check_cores(&mut faults);
        self.check_ports(&mut faults);
        self.check_numbers(&mut faults);
        self.check_queue(&mut faults);
        self.check_fabric(&mut faults);
        let mut found = faults.found;
        // The pool is divided among cores, of which there may be none.
        if self.cores.len().is_power_of_two() && !self.ports.is_empty() {
            found.extend(self.check_tenants(path).err());
            found.extend(self.check_pool(path).err());
        }
        let mut faults = Faults { path, found };
        self.check_jobs(&mut faults);
        let mut found = faults.found;
        if found.is_empty() {
            found.extend(self.check_limits(path).err());
            found.extend(self.check_card(path).err());
            found.extend(self.check_control(path).err());
            found.extend(self.check_switchml(path).err());
            found.extend(self.check_netreduce(path).err());
        }
        found
    }

    fn check_address(&self, faults: &mut Faults<'_>) {
        let AddressConfig { mac, ip, udp_port } = self.address;
        let is_no_host = mac.is_group() || mac == Mac::default();
        let allowed = "an address of one station, not a group's";
        faults.test(is_no_host, "address.mac", &mac, allowed);
        let is_no_host =
            ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified() || ip.is_loopback();
        faults.test(is_no_host, "address.ip", &ip, "an address of one host");
        let is_bad = udp_port == 0 || udp_port.checked_add(MAX_CORES as u16).is_none();
        faults.test(is_bad, "address.udp_port", &udp_port, "1 to 65471");
    }

    fn check_cores(&self, faults: &mut Faults<'_>) {
        let cores = self.cores.len();
        faults.test(
            !cores.is_power_of_two() || cores > MAX_CORES,
            "cores",
            &format_args!("{cores} cores"),
            "1, 2, 4, … or 64 of them (one shard each)",
        );
        faults.test(
            self.cores.iter().collect::<BTreeSet<_>>().len() != cores,
            "cores",
            &format_args!("{:?}", self.cores),
            "each CPU once",
        );
    }

    fn check_numbers(&self, faults: &mut Faults<'_>) {
        faults.test(
            !(1..=16384).contains(&self.window),
            "window",
            &self.window,
            "1 to 16384 fragments",
        );
        faults.test(
            !(1000..=3_600_000).contains(&self.member_timeout_ms),
            "member_timeout_ms",
            &self.member_timeout_ms,
            "1000 to 3600000 (members speak every 500 ms)",
        );
        let ageing = self.mac_ageing_s;
        faults.test(ageing == 0, "mac_ageing_s", &ageing, "1 or more seconds");
        faults.test(
            self.limits.addresses > ADDRESSES_MAX,
            "limits.addresses",
            &self.limits.addresses,
            &format!("0 to {ADDRESSES_MAX} addresses of each port"),
        );
        if let Err(why) = self.kernels() {
            faults.test(true, "kernel", &format_args!("`{}`", self.kernel), &why);
        }
    }

    fn check_ports(&self, faults: &mut Faults<'_>) {
        faults.test(self.ports.is_empty(), "ports", &"none", "at least one");
        let ports = self.ports.len();
        if let Some(most) = self.max_ports {
            let is_bad = usize::from(most) < ports || most > PORTS_MAX;
            let allowed = format!("{ports} (the ports of this file) to {PORTS_MAX}");
            faults.test(is_bad, "max_ports", &most, &allowed);
        }
        if let Some(name) = &self.name {
            let is_good =
                (1..=64).contains(&name.len()) && name.chars().all(|c| c.is_ascii_graphic());
            let found = format_args!("`{}`", name.escape_default());
            let allowed = "1 to 64 visible ASCII characters";
            faults.test(!is_good, "name", &found, allowed);
        }
        let mut labels = BTreeSet::new();
        let mut devices = BTreeSet::new();
        for (i, port) in self.ports.iter().enumerate() {
            self.check_port(i, port, faults);
            let key = |field| format!("ports[{i}].{field}");
            faults.test(
                !devices.insert(port.device_name()),
                key("device"),
                &format_args!("`{}` a second time", port.device_name()),
                "each device once; number them (net_memif0, net_memif1)",
            );
            faults.test(
                !labels.insert(port.label()),
                key("name"),
                &format_args!("`{}` a second time", port.label()),
                "a name of its own",
            );
        }
    }

    fn check_port(&self, i: usize, port: &PortSection, faults: &mut Faults<'_>) {
        let key = |field| format!("ports[{i}].{field}");
        if port.device_name().is_empty() {
            let allowed = "a PCI address or a DPDK virtual device";
            faults.test(true, key("device"), &"nothing", allowed);
        } else {
            let is_known = port.is_pci() || port.device_name().starts_with("net_");
            let is_bad = !is_known && port.interface().is_none_or(str::is_empty);
            let allowed = "a PCI address (0000:01:00.0), an interface of the kernel (packet0,iface=eth1) or \
                           a DPDK virtual device (net_…)";
            let found = format_args!("`{}`", port.device);
            faults.test(is_bad, key("device"), &found, allowed);
        }
        let is_bad = port.optional && port.interface().is_none();
        let allowed = "`optional` only for an interface of the kernel (packet0,iface=eth1)";
        faults.test(is_bad, key("optional"), &true, allowed);
        let (mtu, descriptors) = (port.mtu, port.descriptors);
        let is_bad = !(576..=9000).contains(&mtu);
        faults.test(is_bad, key("mtu"), &mtu, "576 to 9000 bytes");
        let is_bad = !(64..=8192).contains(&descriptors);
        faults.test(is_bad, key("descriptors"), &descriptors, "64 to 8192");
        let cores = self.cores.len();
        if let Some(core) = port.core.filter(|&core| core >= cores) {
            let allowed = format!("0 to {}", cores.saturating_sub(1));
            faults.test(true, key("core"), &core, &allowed);
        }
    }

    fn check_queue(&self, faults: &mut Faults<'_>) {
        let QueueSection {
            frames,
            mark_frames,
            guard,
        } = self.queue;
        let is_bad = !(32..=65536).contains(&frames);
        let allowed = "32 to 65536 frames in each class";
        faults.test(is_bad, "queue.frames", &frames, allowed);
        let never = (CLASSES as u32).saturating_mul(frames);
        let is_marking = (1..=never).contains(&mark_frames);
        let allowed = format!("1 to 8 × queue.frames, {never}, which is never reached");
        faults.test(!is_marking, "queue.mark_frames", &mark_frames, &allowed);
        let is_bad = !(1..=65535).contains(&guard);
        faults.test(is_bad, "queue.guard", &guard, "1 to 65535 frames");
    }

    fn check_jobs(&self, faults: &mut Faults<'_>) {
        let mut ids = BTreeSet::new();
        for (i, job) in self.jobs.iter().enumerate() {
            let key = |field: &str| format!("jobs[{i}].{field}");
            faults.test(
                !ids.insert(job.id),
                key("id"),
                &format_args!("{} a second time", job.id),
                "a number of its own",
            );
            faults.test(
                job.previous_key.as_ref() == Some(&job.key),
                key("previous_key"),
                &"the key itself",
                "the key before it",
            );
            if let Some(tree) = &job.tree {
                self.check_tree(i, job, tree, faults);
            } else {
                let has_workers = (1..=MAX_WORKERS).contains(&usize::from(job.workers));
                faults.test(!has_workers, key("workers"), &job.workers, SWITCH_WORKERS);
            }
            let (servers, is_fixed) = (job.parameter_servers, job.fixed.is_some());
            let is_bad = !is_count(servers) || is_fixed && servers != 1;
            let allowed = if is_fixed {
                "1 in a job of fixed members"
            } else {
                "1, 2, 4, 8 or 16"
            };
            faults.test(is_bad, key("parameter_servers"), &servers, allowed);
            if let Some(fixed) = &job.fixed {
                self.check_fixed(i, job.workers, fixed, faults);
            }
        }
    }

    fn check_fixed(&self, i: usize, workers: u8, fixed: &FixedMembers, faults: &mut Faults<'_>) {
        let key = |field: &str| format!("jobs[{i}].fixed.{field}");
        faults.test(
            fixed.workers.len() != usize::from(workers),
            key("workers"),
            &fixed.workers.len(),
            &format!("`workers`, {workers}"),
        );
        let (bytes, limit) = (
            fixed.payload_bytes,
            u16::from(self.units()) * UNIT_BYTES as u16,
        );
        faults.test(
            bytes == 0 || bytes > limit || !bytes.is_multiple_of(UNIT_BYTES as u16),
            key("payload_bytes"),
            &bytes,
            &format!("a multiple of 64 up to {limit}, which the MTU allows"),
        );
        let workers = (0..).map(|at| format!("workers[{at}]")).zip(&fixed.workers);
        for (at, member) in workers.chain([("ps".to_owned(), &fixed.ps)]) {
            let names: Vec<_> = self.member_ports().map(PortSection::label).collect();
            faults.test(
                !names.contains(&member.port.as_str()),
                key(&format!("{at}.port")),
                &format_args!("`{}`", member.port),
                &format!("one of {}", names.join(", ")),
            );
        }
    }
}
