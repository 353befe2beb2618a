//! The device and the memory of an agent with a DPDK port.

use super::local::IsServed;
use super::{Check, path};
use crate::config::{AgentConfig, AgentTransport, Eal, Memory};
use crate::link::open_link;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// For the device to come up, its peer to appear, and the switch to answer.
const OPEN_WITHIN: Duration = Duration::from_secs(6);

pub(super) fn examine(config: &AgentConfig, file: &Path, agent: IsServed, checks: &mut Vec<Check>) {
    let AgentTransport::Dpdk { eal, device, .. } = &config.transport else {
        return;
    };
    let is_running = agent == IsServed(true);
    let device = present(device, Path::new("/"));
    let is_there = device.fix.is_none();
    checks.push(device);
    // A running agent has taken its own.
    let memory = (!is_running)
        .then(|| hugepages(eal, Path::new("/")))
        .flatten();
    let has_memory = memory.as_ref().is_none_or(|it| it.fix.is_none());
    checks.extend(memory);
    if is_running {
        let found = "not asked, as the running agent has the device";
        let fix = format!("tally-agent status --socket {}", config.socket.display());
        checks.push(Check::warning("switch", found, fix));
    } else if is_there && has_memory {
        checks.extend(ask(config, file));
    }
}

/// What to do about the other end of a device.
const LOOK_AT_SWITCH: &str =
    "at the switch: systemctl status tally-switch; journalctl -u tally-switch";

/// Asks through the device. DPDK may wait for it longer than we want to, so it does so on a thread
/// that is then abandoned.
fn ask(config: &AgentConfig, file: &Path) -> Vec<Check> {
    let (done, outcome) = channel();
    let (config, file) = (config.clone(), file.to_owned());
    let asking = std::thread::spawn(move || {
        let worker = config.worker(&config.jobs[0], 0);
        let mut checks = Vec::new();
        match open_link(&worker.transport, config.switch, None, Some(worker.units())) {
            Ok(mut link) => {
                if let Some(said) = path::ask(&config, &mut *link, &mut checks) {
                    if said.iter().all(Option::is_none) {
                        let why = link.trouble().unwrap_or_else(|| {
                            format!("no answer at UDP port {}", config.switch.port)
                        });
                        let found = format!("{} does not answer: {why}", config.switch.address);
                        let fix = path::find_switch(&config, &file);
                        checks.push(Check::bad("switch", found, fix));
                    } else {
                        let found = format!("{} answers", config.switch.address);
                        checks.push(Check::good("switch", found));
                        checks.extend(path::verdicts(&config, &file, &said));
                    }
                }
            }
            Err(why) => {
                let fix =
                    "\"log\": \"debug\" under `eal` says more, at the switch; here: dmesg | tail";
                checks.push(Check::bad("device", why.to_string(), fix));
            }
        }
        // If it took too long, the receiver is gone.
        let _ = done.send(checks);
    });
    match outcome.recv_timeout(OPEN_WITHIN) {
        Ok(checks) => {
            let _ = asking.join();
            checks
        }
        Err(RecvTimeoutError::Timeout) => {
            let found = format!(
                "it did not come up within {} s: its peer, or the cable",
                OPEN_WITHIN.as_secs()
            );
            vec![Check::bad("device", found, LOOK_AT_SWITCH)]
        }
        Err(RecvTimeoutError::Disconnected) => {
            let found = "opening it crashed, a bug of ours; see above";
            vec![Check::bad("device", found, "dmesg | tail")]
        }
    }
}

/// Whether the device is there, under the root of the file system.
fn present(device: &str, root: &Path) -> Check {
    let name = device.split(',').next().unwrap_or_default();
    let argument = |key: &str| {
        let mut all = device.split(',').skip(1);
        all.find_map(|it| it.strip_prefix(key)?.strip_prefix('='))
    };
    if let Some(address) = pci(name) {
        return nic(&address, root);
    }
    if name.starts_with("net_memif") && argument("socket-abstract") != Some("no") {
        // In the kernel's abstract namespace there is no file to look for.
        return Check::good("device", name);
    }
    let (path, fix) = match (name, argument("socket"), argument("iface")) {
        (name, Some(socket), _) if name.starts_with("net_memif") => {
            (socket.to_owned(), LOOK_AT_SWITCH.to_owned())
        }
        (_, _, Some(interface)) => (
            format!("/sys/class/net/{interface}"),
            "ip link show".to_owned(),
        ),
        _ => return Check::good("device", name),
    };
    if root.join(path.trim_start_matches('/')).exists() {
        Check::good("device", format!("{name}: {path} is there"))
    } else {
        Check::bad("device", format!("{name}: {path} is not there"), fix)
    }
}

/// The whole PCI address, if it is one.
fn pci(name: &str) -> Option<String> {
    let digits = |text: &str| text.bytes().all(|it| it.is_ascii_hexdigit());
    let (rest, function) = name.split_once('.')?;
    let parts: Vec<_> = rest.split(':').collect();
    let is_one = digits(function) && parts.iter().all(|it| digits(it));
    match (is_one, parts.len()) {
        (true, 2) => Some(format!("0000:{name}")),
        (true, 3) => Some(name.to_owned()),
        _ => None,
    }
}

/// Drivers with which DPDK can have a device. Those of the last kind share it with the kernel.
const DRIVERS: [&str; 6] = [
    "vfio-pci",
    "uio_pci_generic",
    "igb_uio",
    "mlx4_core",
    "mlx5_core",
    "mana",
];

fn nic(address: &str, root: &Path) -> Check {
    let folder = root.join("sys/bus/pci/devices").join(address);
    if !folder.exists() {
        let found = format!("there is no PCI device {address}");
        return Check::bad("device", found, "lspci -D -d ::0200");
    }
    let driver = std::fs::read_link(folder.join("driver")).ok();
    let driver = driver.and_then(|it| Some(it.file_name()?.to_str()?.to_owned()));
    let shown = driver.as_deref().unwrap_or("no driver");
    if DRIVERS.contains(&shown) {
        return Check::good("device", format!("{address} is with {shown}"));
    }
    let found = format!("{address} is with {shown}, from which DPDK cannot take it");
    let fix = format!("modprobe vfio-pci && dpdk-devbind.py --bind=vfio-pci {address}");
    Check::bad("device", found, fix)
}

/// Whether there is enough memory in hugepages, if it is to come from there.
fn hugepages(eal: &Eal, root: &Path) -> Option<Check> {
    if eal.memory != Memory::Hugepages {
        return None;
    }
    let number = |path: std::path::PathBuf| -> Option<u64> {
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse().ok()
    };
    let needed_kib = u64::from(eal.megabytes) << 10;
    let sizes = std::fs::read_dir(root.join("sys/kernel/mm/hugepages"));
    let sizes = sizes.into_iter().flatten().flatten();
    let sizes: Vec<(u64, u64)> = sizes
        .filter_map(|it| {
            let name = it.file_name().into_string().ok()?;
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            Some((kib.parse().ok()?, number(it.path().join("free_hugepages"))?))
        })
        .collect();
    let free_kib: u64 = sizes.iter().map(|(kib, free)| kib * free).sum();
    let found = format!(
        "{} MiB are free in hugepages, and eal.megabytes is {}",
        free_kib >> 10,
        eal.megabytes
    );
    if free_kib >= needed_kib {
        return Some(Check::good("hugepages", found));
    }
    // The smallest are what `vm.nr_hugepages` usually counts, and the only ones that can be
    // reserved later.
    let Some((kib, _)) = sizes.iter().min() else {
        let found = "this kernel has none";
        let fix = "\"memory\": \"no-huge\" in transport.eal, which is enough for virtual devices";
        return Some(Check::bad("hugepages", found, fix));
    };
    let all = number(root.join("proc/sys/vm/nr_hugepages")).unwrap_or(0);
    let wanted = all + (needed_kib - free_kib).div_ceil(*kib);
    let fix = format!("sysctl -w vm.nr_hugepages={wanted}");
    Some(Check::bad("hugepages", found, fix))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use std::fs::{create_dir_all, write};

    /// A file system with so many free hugepages of 2 MiB and 1 GiB.
    fn pages(small: u64, large: u64) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, free) in [("hugepages-2048kB", small), ("hugepages-1048576kB", large)] {
            let folder = root.path().join("sys/kernel/mm/hugepages").join(name);
            create_dir_all(&folder).unwrap();
            write(folder.join("free_hugepages"), format!("{free}\n")).unwrap();
        }
        create_dir_all(root.path().join("proc/sys/vm")).unwrap();
        write(root.path().join("proc/sys/vm/nr_hugepages"), "100\n").unwrap();
        root
    }

    #[test]
    fn hugepages_are_counted_and_the_missing_ones_asked_for() {
        let validate = |megabytes, small, large| {
            let eal = Eal {
                memory: Memory::Hugepages,
                megabytes,
            };
            let check = hugepages(&eal, pages(small, large).path()).unwrap();
            (check.verdict, check.fix)
        };
        assert_eq!(validate(64, 32, 0), (Verdict::Good, None));
        assert_eq!(validate(1024, 0, 1), (Verdict::Good, None));
        let fix = Some("sysctl -w vm.nr_hugepages=101".to_owned());
        assert_eq!(validate(64, 31, 0), (Verdict::Bad, fix));
        let fix = Some("sysctl -w vm.nr_hugepages=132".to_owned());
        assert_eq!(validate(63, 0, 0), (Verdict::Bad, fix));
        assert_eq!(hugepages(&Eal::default(), pages(0, 0).path()), None);
        let none = tempfile::tempdir().unwrap();
        let eal = Eal {
            memory: Memory::Hugepages,
            megabytes: 64,
        };
        let check = hugepages(&eal, none.path()).unwrap();
        assert_eq!(check.found, "this kernel has none");
    }

    #[test]
    fn devices_are_looked_for() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let validate = |device: &str| present(device, root.path());
        for short in ["41:00.0", "0000:41:00.0"] {
            assert_eq!(validate(short).found, "there is no PCI device 0000:41:00.0");
        }
        create_dir_all(at("sys/bus/pci/devices/0000:41:00.0")).unwrap();
        create_dir_all(at("sys/class/net/eth3")).unwrap();
        let check = validate("0000:41:00.0,arg=1");
        assert_eq!(check.verdict, Verdict::Bad);
        let fix = check.fix.unwrap();
        assert!(fix.ends_with("--bind=vfio-pci 0000:41:00.0"), "{fix}");
        let driver = at("sys/bus/pci/devices/0000:41:00.0/driver");
        std::os::unix::fs::symlink("../../../drivers/vfio-pci", driver).unwrap();
        assert_eq!(validate("0000:41:00.0").verdict, Verdict::Good);
        assert_eq!(validate("net_af_packet0,iface=eth3").verdict, Verdict::Good);
        assert_eq!(validate("net_af_packet0,iface=eth4").verdict, Verdict::Bad);
        let memif = "net_memif0,role=client,socket-abstract=no,socket=/run/m.sock";
        assert_eq!(validate(memif).verdict, Verdict::Bad);
        create_dir_all(at("run")).unwrap();
        write(at("run/m.sock"), "").unwrap();
        assert_eq!(validate(memif).verdict, Verdict::Good);
        assert_eq!(
            validate("net_memif0,role=client,socket=/x").verdict,
            Verdict::Good
        );
        assert_eq!(validate("net_null0").verdict, Verdict::Good);
    }
}
