//! What the types of the configuration do not say: ranges, names given twice, references.

use super::{AddressConfig, Config, MAX_CORES, PortSection, QueueSection};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use tally_config::ConfigError;
use tally_engine::forwarding::ADDRESSES_MAX;
use tally_engine::queue::CLASSES;
use tally_wire::{MAX_WORKERS, Mac, UNIT_BYTES};

impl Config {
    /// Checks what the types do not say.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let bad = |key: String, found: &dyn fmt::Display, allowed: &str| {
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
        self.check_ports(path)?;
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
        self.check_control(path)?;
        self.check_switchml(path)
    }

    fn check_ports(&self, path: &Path) -> Result<(), ConfigError> {
        let bad = |key: String, found: &dyn fmt::Display, allowed: &str| {
            Err(ConfigError::value(path, key, found, allowed))
        };
        let cores = self.cores.len();
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
        Ok(())
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
        let bad = |key: String, found: &dyn fmt::Display, allowed: &str| {
            Err(ConfigError::value(path, key, found, allowed))
        };
        let limit = tally_engine::native::admission::MAX_JOBS;
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
                let allowed = format!("`workers`, {}", job.workers);
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
}
