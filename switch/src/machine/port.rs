//! One port: its device, what it may carry, and who may open it.

use super::system::has_capability;
use super::{folder_of, written};
use crate::config::{MemoryKind, PortSection};
use std::fs;
use std::path::{Path, PathBuf};
use tally_schema::doctor::Check;

/// The right to packet sockets.
const CAP_NET_RAW: u32 = 13;
/// Bytes around the MTU in a buffer: Ethernet, two VLAN tags, and the frame check sequence.
const AROUND_MTU: u16 = 26;
/// A buffer of `net_memif` and `net_af_packet` whose size is not given.
const BUFFER_BYTES: u16 = 2048;
/// The flag of an interface that is up.
const IFF_UP: u32 = 1;

pub(super) fn examine(section: &PortSection, memory: MemoryKind) -> Vec<Check> {
    if section.is_pci() {
        return vec![pci(section, memory)];
    }
    if let Some(interface) = section.interface() {
        return kernel(section, interface);
    }
    let driver = section
        .device_name()
        .trim_end_matches(|c: char| c.is_ascii_digit());
    match driver {
        "net_memif" => memif(section),
        "net_af_packet" | "net_af_xdp" => {
            let mut checks = buffers(section, driver == "net_af_packet", "framesz");
            let interface = argument(section, "iface").unwrap_or_default();
            checks.extend(kernel(section, interface));
            checks
        }
        _ => Vec::new(),
    }
}

/// The value of one of the device's own arguments.
fn argument<'a>(section: &'a PortSection, name: &str) -> Option<&'a str> {
    let arguments = section.device_arguments().split(',');
    arguments
        .filter_map(|it| it.split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

fn pci(section: &PortSection, memory: MemoryKind) -> Check {
    let (label, address) = (section.label(), section.device_name());
    let device = PathBuf::from("/sys/bus/pci/devices").join(address);
    let bad = |found: String, fix: String| Check::bad("port", format!("{label}: {found}"), fix);
    if !device.exists() {
        let found = format!("this machine has no PCI device {address}");
        return bad(found, "lspci -D | grep -i ethernet".into());
    }
    if memory == MemoryKind::NoHuge {
        let found = format!("{address} needs hugepages, and eal.memory is `no-huge`");
        return bad(found, "\"eal\": { \"memory\": \"in-memory\" }".into());
    }
    let name_of = |link: &str| {
        let target = fs::read_link(device.join(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    let bind = format!("modprobe vfio-pci; dpdk-devbind.py -b vfio-pci {address}");
    match name_of("driver").as_deref() {
        Some("vfio-pci") => {}
        // These serve the kernel and DPDK at a time.
        Some("mlx5_core" | "mlx4_core" | "mana") => {
            return Check::good("port", format!("{label}: {address} has a driver for both"));
        }
        Some(other @ ("uio_pci_generic" | "igb_uio")) => {
            let found = format!("{label}: {address} is bound to {other}, which needs root");
            return Check::warning("port", found, bind);
        }
        Some(other) => {
            return bad(
                format!("{address} is bound to {other}, expected vfio-pci"),
                bind,
            );
        }
        None => {
            return bad(
                format!("{address} is bound to no driver, expected vfio-pci"),
                bind,
            );
        }
    }
    let Some(group) = name_of("iommu_group") else {
        let found = format!("{address} has no IOMMU group");
        return bad(
            found,
            "intel_iommu=on iommu=pt on the kernel's command line".into(),
        );
    };
    let group = format!("/dev/vfio/{group}");
    match fs::OpenOptions::new().read(true).write(true).open(&group) {
        Ok(_) => Check::good("port", format!("{label}: {address} is bound to vfio-pci")),
        // The group has one user: a switch that runs.
        Err(error) if error.raw_os_error() == Some(16) => {
            let found =
                format!("{label}: {group} is in use: a switch that runs, or a virtual machine");
            Check::warning("port", found, format!("fuser -v {group}"))
        }
        Err(error) => bad(
            format!("{group}: {error}"),
            format!("chgrp tally {group}; chmod 660 {group} (60-tally-vfio.rules)"),
        ),
    }
}

fn kernel(section: &PortSection, interface: &str) -> Vec<Check> {
    let label = section.label();
    // `/sys` may be of another network namespace, and then says nothing of this interface.
    let folder = PathBuf::from("/sys/class/net").join(interface);
    if nix::net::if_::if_nametoindex(interface).is_err() {
        let found = format!("{label}: no interface `{interface}` in this network namespace");
        return vec![Check::bad("port", found, "ip -brief link")];
    }
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let number = |file: &str| read(file)?.trim().parse::<u32>().ok();
    let mut checks = Vec::new();
    if has_capability(CAP_NET_RAW) == Some(false) {
        let found = format!("{label}: packet sockets need CAP_NET_RAW, and this process lacks it");
        checks.push(Check::bad(
            "port",
            found,
            "run as root, or AmbientCapabilities=CAP_NET_RAW",
        ));
    }
    let flags =
        read("flags").and_then(|it| u32::from_str_radix(it.trim().strip_prefix("0x")?, 16).ok());
    let up = format!("ip link set dev {interface} up");
    if flags.is_some_and(|flags| flags & IFF_UP == 0) {
        checks.push(Check::bad(
            "port",
            format!("{label}: {interface} is down"),
            up,
        ));
    } else if number("carrier") == Some(0) {
        let found = format!("{label}: {interface} is up and has no link");
        checks.push(Check::warning(
            "port",
            found,
            "the cable, and the interface at its other end",
        ));
    }
    let (mtu, wanted) = (number("mtu"), u32::from(section.mtu));
    match mtu {
        Some(mtu) if mtu < wanted => {
            let found = format!(
                "{label}: {interface} has MTU {mtu}, and `mtu` is {wanted}: longer frames are lost"
            );
            let fix = format!("ip link set dev {interface} mtu {wanted}");
            checks.push(Check::bad("port", found, fix));
        }
        Some(mtu) if mtu > wanted => {
            let found = format!(
                "{label}: {interface} has MTU {mtu}, and `mtu` is {wanted}: hosts that use more lose frames"
            );
            checks.push(Check::warning(
                "port",
                found,
                format!("\"mtu\": {}", mtu.min(9000)),
            ));
        }
        _ => {}
    }
    if checks.is_empty() {
        let mtu = mtu.map_or(String::new(), |mtu| format!(", MTU {mtu}"));
        checks.push(Check::good(
            "port",
            format!("{label}: {interface} has a link{mtu}"),
        ));
    }
    checks
}

/// That buffers of a fixed size hold the longest frame.
fn buffers(section: &PortSection, is_fixed: bool, name: &str) -> Vec<Check> {
    let given = argument(section, name);
    let bytes = given.map_or(Some(BUFFER_BYTES), |it| it.parse().ok());
    let needed = section.mtu + AROUND_MTU;
    match bytes {
        Some(bytes) if is_fixed && bytes < needed => {
            let label = section.label();
            let found = format!(
                "{label}: {name} is {bytes}, and `mtu` {} needs {needed}",
                section.mtu
            );
            vec![Check::bad(
                "port",
                found,
                format!("{name}={}", needed.next_multiple_of(1024)),
            )]
        }
        _ => Vec::new(),
    }
}

fn memif(section: &PortSection) -> Vec<Check> {
    let mut checks = buffers(section, true, "bsize");
    let label = section.label();
    let path = argument(section, "socket").map(Path::new);
    let is_file = argument(section, "socket-abstract") == Some("no");
    if let Some(path) = path.filter(|_| is_file) {
        let folder = folder_of(path);
        let trial = written("port", &folder.join(".tally-check"));
        if trial.fix.is_some() {
            checks.push(trial);
        }
    }
    if checks.is_empty() {
        let role = argument(section, "role").unwrap_or("client");
        checks.push(Check::good(
            "port",
            format!("{label}: {role} of a shared memory"),
        ));
    }
    checks
}
