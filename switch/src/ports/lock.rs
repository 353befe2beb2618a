//! Locks: one switch at a time on an interface, a device, or with an instance name.
//!
//! A lock is a listening Unix socket with an abstract name. Such names belong to the network
//! namespace, as interfaces do, need no folder and no rights, and vanish with their process, also
//! in a crash. Who finds a name taken asks the kernel who listens there.
//!
//! The catch: any user of the machine can take a name first. The error names that process.

use crate::config::{Config, PortSection};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// What all names begin with.
const PREFIX: &str = "tally/";
/// Bytes of a name at most: an address has 108, the first of them zero.
const NAME_BYTES_MAX: usize = 107;

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{what}: in use by {holder}; stop that one, or take it out of this configuration")]
    InUse {
        /// What is in use.
        what: String,
        /// Who has it.
        holder: String,
    },
    /// The kernel refuses.
    #[error("{what}: locking it: {source}")]
    System {
        /// What is to be locked.
        what: String,
        /// Its reason.
        source: io::Error,
    },
}

/// A lock, held until it is dropped.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "held for its address")] UnixListener);

impl Lock {
    /// Locks what has this name among all that is of its kind; an error calls it `what`.
    ///
    /// # Errors
    /// If another process, or this one, holds it.
    pub fn take(kind: &str, name: &str, what: &str) -> Result<Self, LockError> {
        let system = |source| LockError::System {
            what: what.to_owned(),
            source,
        };
        let address = address_of(kind, name).map_err(system)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Self(listener)),
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => Err(LockError::InUse {
                what: what.to_owned(),
                holder: holder(&address),
            }),
            Err(why) => Err(system(why)),
        }
    }
}

fn address_of(kind: &str, name: &str) -> io::Result<SocketAddr> {
    let mut full = format!("{PREFIX}{kind}/{name}");
    if full.len() > NAME_BYTES_MAX {
        // FNV-1a: the same in each version of the program.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        full = format!("{PREFIX}{kind}/#{hash:016x}");
    }
    SocketAddr::from_abstract_name(full)
}

/// Program and process that listen at the address.
fn holder(address: &SocketAddr) -> String {
    let found = UnixStream::connect_addr(address);
    let found = found.and_then(|stream| Ok(getsockopt(&stream, PeerCredentials)?));
    let Ok(peer) = found else {
        return "another process".to_owned();
    };
    // 0: in another namespace of processes.
    if peer.pid() <= 0 {
        return format!("a process of user {} in another container", peer.uid());
    }
    let program = std::fs::read_to_string(format!("/proc/{}/comm", peer.pid()));
    let program = program.map_or_else(
        |_| "a program".to_owned(),
        |name| name.trim().escape_default().to_string(),
    );
    format!("{program}, process {}", peer.pid())
}

/// Locks all that the configuration names.
///
/// # Errors
/// What another process has.
pub fn take_all(config: &Config) -> Result<Vec<Lock>, LockError> {
    let mut locks = Vec::new();
    if let Some(name) = &config.name {
        let what = format!("switch `{name}`");
        locks.push(Lock::take("switch", name, &what)?);
    }
    for section in &config.ports {
        locks.extend(take(section)?);
    }
    Ok(locks)
}

/// Locks what one port uses; `None` if any number of processes may use it.
///
/// # Errors
/// If another process has it.
pub fn take(section: &PortSection) -> Result<Option<Lock>, LockError> {
    let Some((kind, name)) = resource_of(section) else {
        return Ok(None);
    };
    // A name that this file does not know is as good as what it says.
    let what = if kind == "interface" {
        name.clone()
    } else {
        section.device.clone()
    };
    Lock::take(kind, &name, &what).map(Some)
}

/// What a port uses alone.
fn resource_of(section: &PortSection) -> Option<(&'static str, String)> {
    if let Some(interface) = section.kernel_interface() {
        return Some(("interface", interface.to_owned()));
    }
    if section.is_pci() {
        let address = section.device_name().to_ascii_lowercase();
        let is_short = address.matches(':').count() == 1;
        let domain = if is_short { "0000:" } else { "" };
        return Some(("device", format!("{domain}{address}")));
    }
    let driver = section.device_name();
    if driver.starts_with("net_memif") {
        let of = |key, default| section.argument(key).unwrap_or(default);
        let socket = of("socket", "/run/memif.sock");
        let (role, id) = (of("role", "client"), of("id", "0"));
        return Some(("memif", format!("{role} {id} {socket}")));
    }
    let path = section.argument("iface");
    let path = path.filter(|_| driver.starts_with("net_vhost"))?;
    Some(("vhost", path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use(error: &LockError) -> &str {
        match error {
            LockError::InUse { holder, .. } => holder,
            LockError::System { .. } => "",
        }
    }

    #[test]
    fn a_lock_is_refused_by_name_and_process_and_free_after_its_holder() {
        let name = format!("test {}", std::process::id());
        let lock = Lock::take("interface", &name, "eth1").unwrap();
        let error = Lock::take("interface", &name, "eth1").unwrap_err();
        let pid = format!("process {}", std::process::id());
        assert!(in_use(&error).ends_with(&pid), "{error}");
        assert!(error.to_string().starts_with("eth1: in use by "), "{error}");
        assert!(Lock::take("device", &name, "eth1").is_ok(), "another kind");
        drop(lock);
        assert!(Lock::take("interface", &name, "eth1").is_ok());
    }

    #[test]
    fn long_names_are_told_apart() {
        let name = |last: char| format!("{}{}{last}", std::process::id(), "x".repeat(200));
        let _one = Lock::take("memif", &name('a'), "").unwrap();
        assert!(Lock::take("memif", &name('a'), "").is_err());
        assert!(Lock::take("memif", &name('b'), "").is_ok());
    }

    #[test]
    fn one_interface_is_one_resource_by_any_driver() {
        let of = |device: &str| resource_of(&PortSection::new(device));
        let eth1 = Some(("interface", "eth1".to_owned()));
        for device in [
            "packet0,iface=eth1",
            "net_af_packet3,iface=eth1,framecnt=1024",
            "net_af_xdp0,iface=eth1",
        ] {
            assert_eq!(of(device), eth1, "{device}");
        }
        let nic = Some(("device", "0000:01:0a.0".to_owned()));
        assert_eq!(of("0000:01:0A.0"), nic);
        assert_eq!(of("01:0a.0"), nic);
        let server = of("net_memif0,role=server,id=3,socket=/run/a,socket-abstract=no");
        assert_eq!(server, Some(("memif", "server 3 /run/a".to_owned())));
        let client = of("net_memif7,role=client,id=3,socket=/run/a");
        assert_eq!(client, Some(("memif", "client 3 /run/a".to_owned())));
        for shared in ["net_null0", "net_pcap0,rx_pcap=a", "net_ring0"] {
            assert_eq!(of(shared), None);
        }
    }
}
