//! The NetReduce ring of a cluster: its guests, with a RoCEv2 transport in software.
//!
//! Members meet over the kernel's TCP. In namespaces that goes through the switch, as ordinary
//! traffic; over memif, where hosts have no kernel's network, over the loopback interface.

use super::Cluster;
use super::files::read_json;
use super::identity::{host_mac, key};
use super::network::Network;
use super::process::Program;
use crate::ring_worker::RingWorkerReport;
use anyhow::{Context, Result};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use tally_schema::agent::config::Transport;
use tally_schema::switch::config::{NetreduceSection, RingSection};
use tally_wire::{Key, Mac};

/// The number of the ring.
const RING: u32 = 7;
/// Where rank 0 listens in its namespace.
const COORDINATOR_PORT: u16 = 4790;

/// What all members of a ring are started with.
pub(crate) struct RingArguments<'a> {
    pub(crate) ring: u32,
    /// By rank.
    pub(crate) members: &'a [Ipv4Addr],
    pub(crate) macs: Vec<Mac>,
    pub(crate) coordinator: SocketAddr,
    pub(crate) key_file: &'a Path,
}

impl RingArguments<'_> {
    /// Adds the arguments of a member on a host with this transport.
    pub(crate) fn add_to(&self, command: &mut Command, rank: usize, transport: &Transport) {
        fn list<T: ToString>(all: &[T]) -> String {
            let all: Vec<_> = all.iter().map(ToString::to_string).collect();
            all.join(",")
        }
        command.arg("ring-worker");
        command.args(["--ring", &self.ring.to_string()]);
        command.arg("--key-file").arg(self.key_file);
        command.args(["--rank", &rank.to_string()]);
        command.args(["--members", &list(self.members)]);
        command.args(["--coordinator", &self.coordinator.to_string()]);
        match transport {
            Transport::Dpdk { device, .. } => {
                command.args(["--device", device, "--macs", &list(&self.macs)]);
            }
            Transport::Udp { .. } => {
                command.args(["--interface", "eth0"]);
            }
        }
    }
}

/// Where rank 0 of a ring listens for the others: over memif, where hosts have no kernel's network,
/// on the loopback interface.
pub(crate) fn coordinator(network: Network, first: Ipv4Addr) -> Result<SocketAddr> {
    match network {
        Network::Namespaces => Ok((first, COORDINATOR_PORT).into()),
        Network::Memif => {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a free port")?;
            Ok(free.local_addr()?)
        }
    }
}

/// The hexadecimal digits of a key.
pub(crate) fn digits(key: &Key) -> String {
    let bytes = key.as_bytes().iter();
    bytes.fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// What a member is called in logs.
fn name(rank: usize) -> String {
    format!("ring-worker{rank}")
}

impl Cluster {
    fn ring_members(&self) -> Vec<Ipv4Addr> {
        let guests = 0..self.spec.guests;
        guests
            .map(|guest| self.ip(self.guest_host(guest)))
            .collect()
    }

    /// The section of the switch's configuration for a ring of all guests.
    #[must_use]
    pub fn netreduce_section(&self) -> NetreduceSection {
        let ring = RingSection::new(RING, key(0), self.ring_members());
        NetreduceSection {
            held: ring.ring(None).held_max() as u32,
            rings: vec![ring],
            ..NetreduceSection::default()
        }
    }

    /// Starts all members of the ring; `arguments` has those of each rank.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_ring(&self, arguments: impl Fn(usize) -> Vec<String>) -> Result<Vec<Program>> {
        let members = self.ring_members();
        let coordinator = coordinator(self.spec.network, members[0])?;
        let key_file = self.write_text("ring.key", &digits(&key(0)))?;
        let start = |rank: usize| {
            let id = self.guest_host(rank);
            let host = self.wires.host(id);
            let report = self.ring_report_path(rank);
            let _ = std::fs::remove_file(&report);
            let mut command = self.on_host(&host, "tally-testkit");
            let first = self.guest_host(0).0;
            let ring = RingArguments {
                ring: RING,
                members: &members,
                macs: (0..members.len()).map(|at| host_mac(first + at)).collect(),
                coordinator,
                key_file: &key_file,
            };
            ring.add_to(&mut command, rank, &host.transport);
            command.arg("--output").arg(self.ring_output(rank));
            command.arg("--report").arg(&report).args(arguments(rank));
            let name = name(rank);
            Program::start(&name, command, &self.file(&format!("{name}.log")))
        };
        (0..members.len()).map(start).collect()
    }

    /// Where a member writes its sums.
    #[must_use]
    pub fn ring_output(&self, rank: usize) -> PathBuf {
        self.file(&format!("{}.safetensors", name(rank)))
    }

    fn ring_report_path(&self, rank: usize) -> PathBuf {
        self.file(&format!("{}-report.json", name(rank)))
    }

    /// What a member did, once it has ended.
    ///
    /// # Errors
    /// If there is no report.
    pub fn ring_report(&self, rank: usize) -> Result<RingWorkerReport> {
        read_json(&self.ring_report_path(rank))
    }
}
