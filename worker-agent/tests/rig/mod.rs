//! A switch of the simplest kind, and a parameter server, at sockets of the loopback interface:
//! each rig has a network of its own, apart from all else on this machine.
#![allow(dead_code, reason = "every test program uses a part")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]

pub mod agent;
#[path = "../../../crates/endpoint/tests/common/mod.rs"]
pub mod common;

use common::Rng;
use common::switch::{Habits, SHARDS, Switch};
use nix::sys::socket::{IpMembershipRequest, setsockopt, sockopt};
use std::collections::HashMap;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tally_agent::config::{PsConfig, WorkerConfig};
use tally_agent::link::loss::Loss;
use tally_agent::serve;
use tally_wire::frame::group_of;
use tally_wire::{Header, Kind, MAX_PAYLOAD_BYTES};

const BASE_PORT: u16 = 31249;
/// The key of the naive switch, in hexadecimal.
pub const KEY: &str = "7369787465656e206279746573206f72206d6f7265";

/// Writes a configuration, which no other user may read as it has keys.
pub fn write_config(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// A network of its own: 127.0.`net`.0/24, with the switch at .254.
pub struct Rig {
    net: u8,
    pub workers: u8,
    pub payload_bytes: u32,
    pub window: u16,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Rig {
    pub fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, self.net, host)
    }

    pub fn new(workers: u8, habits: Habits, with_ps: bool) -> Self {
        Self::with(workers, Switch::new(workers, habits), with_ps)
    }

    pub fn with(workers: u8, switch: Switch, with_ps: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = Vec::new();
        let (net, sockets) = free_network();
        let mut rig = Self {
            net,
            workers,
            payload_bytes: 256,
            window: 32,
            stop,
            threads,
        };
        let at = rig.address(254);
        let stop = rig.stop.clone();
        let run = move || run_switch(&sockets, at, switch, &stop);
        rig.threads.push(std::thread::spawn(run));
        if with_ps {
            let text = format!(
                r#"{{"switch": {{"address": "{at}"}}, "jobs": [{{"id": 7, "key": "{KEY}"}}],
                    "transport": {{"type": "udp", "bind": "{}:0"}}}}"#,
                rig.address(200)
            );
            let config: PsConfig = tally_config::parse("ps.json", text.as_bytes()).unwrap();
            let stop = rig.stop.clone();
            rig.threads.push(std::thread::spawn(move || {
                let loss = Some(Loss::of_each(0.02, 9));
                serve(&config, loss, &mut |_, _| {}, &stop).unwrap();
            }));
        }
        rig
    }

    pub fn worker_json(&self, rank: u8, join_ms: u64) -> String {
        format!(
            r#"{{"switch": {{"address": "{}"}},
                "job": {{"id": 7, "key": "{KEY}", "workers": {}, "rank": {rank}}},
                "transport": {{"type": "udp", "bind": "{}:0"}},
                "payload_bytes": {}, "window": {}, "timeouts": {{"join_ms": {join_ms}}}}}"#,
            self.address(254),
            self.workers,
            self.address(rank + 1),
            self.payload_bytes,
            self.window,
        )
    }

    pub fn worker(&self, rank: u8) -> WorkerConfig {
        tally_config::parse("w.json", self.worker_json(rank, 20_000).as_bytes()).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// A network without a switch, in this process or another, with our sockets.
fn free_network() -> (u8, Vec<UdpSocket>) {
    // Not one that a rig of this process has just left, nor 127.0.0.0/24, which has the interface's
    // own address.
    static NEXT: AtomicU8 = AtomicU8::new(0);
    for _ in 0..=u8::MAX {
        let net = NEXT.fetch_add(1, Ordering::Relaxed) % u8::MAX + 1;
        let at = Ipv4Addr::new(127, 0, net, 254);
        let bind = |shard| UdpSocket::bind((at, BASE_PORT + shard));
        match (0..u16::from(SHARDS)).map(bind).collect::<io::Result<_>>() {
            Ok(sockets) => return (net, sockets),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("{at}: {error}"),
        }
    }
    panic!("all networks of the loopback interface are taken");
}

fn run_switch(sockets: &[UdpSocket], at: Ipv4Addr, mut switch: Switch, stop: &AtomicBool) {
    let group = group_of(common::switch::JOB);
    let to_group = SocketAddrV4::new(group, BASE_PORT);
    // Joined nowhere but on the loopback interface, and sent there.
    setsockopt(
        &sockets[0],
        sockopt::IpAddMembership,
        &IpMembershipRequest::new(group, Some(at)),
    )
    .unwrap();
    setsockopt(&sockets[0], sockopt::IpMulticastLoop, &true).unwrap();
    let mut rng = Rng(1);
    let mut members: HashMap<u8, SocketAddr> = HashMap::new();
    let mut buffer = vec![0; MAX_PAYLOAD_BYTES + 64];
    sockets
        .iter()
        .for_each(|s| s.set_nonblocking(true).unwrap());
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for socket in sockets {
            let Ok((len, from)) = socket.recv_from(&mut buffer) else {
                continue;
            };
            idle = false;
            // Of one of an agent's jobs that this switch does not have.
            if Header::parse(&buffer[..len]).is_ok_and(|it| it.job != common::switch::JOB) {
                continue;
            }
            if buffer[0] & 0xf == Kind::Join as u8 {
                members.insert(buffer[12], from);
            }
            let mut last = Vec::new();
            for (to, datagram) in switch.handle(&mut rng, &buffer[..len]) {
                if datagram[0] & 0xf == Kind::Result as u8 && to != 255 {
                    if datagram != last {
                        sockets[0].send_to(&datagram, to_group).unwrap();
                        last = datagram;
                    }
                } else if let Some(to) = members.get(&to) {
                    // The PS may be gone.
                    let _ = sockets[0].send_to(&datagram, to);
                }
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
