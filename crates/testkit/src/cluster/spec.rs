//! The specification of a cluster: jobs, hosts, links, faults.

use super::loss::LossPattern;
use super::namespaces::{Driver, Links};
use super::network::Network;
use std::path::{Path, PathBuf};
use tally_engine::PolicyName;
use tally_schema::agent::config::Timeouts;
use tally_wire::Key;

/// The specification of a cluster.
#[derive(Clone, Debug)]
pub struct Spec {
    /// How the processes reach each other.
    pub network: Network,
    /// Workers of each job, 1 to 64.
    pub jobs: Vec<u8>,
    /// Parameter servers of each job: 1, 2, 4, 8 or 16.
    pub parameter_servers: u8,
    /// Workers of each SwitchML job that may run at the same time, 1 to 64. Each has a controller's
    /// address of its own.
    pub switchml: Vec<u8>,
    /// Hosts on which none of our programs runs, at ports of their own.
    pub guests: usize,
    /// Whether the guests are a NetReduce ring.
    pub ring: bool,
    /// Whether all jobs are on a simulated card.
    pub card: bool,
    /// Driver of the switch's ports, in namespaces.
    pub driver: Driver,
    /// Data cores of the switch, a power of two.
    pub cores: usize,
    /// Whether workers and parameter servers may use the switch's CPUs as well.
    pub share_cpus: bool,
    /// MTU of all links; by default the ordinary one where the payload fits it.
    pub mtu: Option<u16>,
    /// Rate of each link each way, in Mbit/s, in namespaces; by default not limited.
    pub rate_mbit: Option<u32>,
    /// Payload of a fragment.
    pub payload_bytes: u16,
    /// Window of a worker, in fragments.
    pub window: u16,
    /// Policy of the switch.
    pub policy: PolicyName,
    /// Slots of the switch; by default what it makes of its caches.
    pub slots: Option<u32>,
    /// Share of frames dropped at each worker and the PS, each way.
    pub loss: f64,
    /// Random seed of that loss.
    pub loss_seed: u64,
    /// Which of these frames may be dropped.
    pub loss_pattern: LossPattern,
    /// Share of frames that the kernel drops on each link, each way, in namespaces; by default
    /// links have no lossy wires (`wire`).
    pub wire_loss: Option<f64>,
    /// Queue of each shaped link, in bytes; by default long enough for all windows.
    pub queue_bytes: Option<u32>,
    /// Timeouts of the workers.
    pub timeouts: Timeouts,
    /// Time without a heartbeat after which the switch fails the member's job; by default the
    /// switch's own.
    pub member_timeout_ms: Option<u64>,
    /// The workers' key, if it is not their job's.
    pub worker_key: Option<Key>,
    /// Memory that each process may share with its agent, in units of 2^20 bytes; by default the
    /// agent's own.
    pub memory_mib: Option<u32>,
    /// Folder of the programs.
    pub programs: PathBuf,
}

impl Default for Spec {
    /// One job of four workers as they are by default, on this user's network, with the programs
    /// beside this one.
    fn default() -> Self {
        let own = std::env::current_exe().unwrap_or_default();
        Self {
            network: Network::for_this_user(),
            jobs: vec![4],
            parameter_servers: 1,
            switchml: Vec::new(),
            guests: 0,
            ring: false,
            card: false,
            driver: Driver::Packet,
            cores: 1,
            share_cpus: false,
            mtu: None,
            rate_mbit: None,
            payload_bytes: 1024,
            window: 256,
            policy: PolicyName::Esa,
            slots: None,
            loss: 0.0,
            loss_seed: 1,
            loss_pattern: LossPattern::default(),
            wire_loss: None,
            queue_bytes: None,
            timeouts: Timeouts::default(),
            member_timeout_ms: None,
            worker_key: None,
            memory_mib: None,
            programs: own.parent().map(Path::to_owned).unwrap_or_default(),
        }
    }
}

impl Spec {
    pub(super) fn hosts(&self) -> usize {
        let switchml = self.switchml.iter().map(|&workers| usize::from(workers));
        self.hosts_of(self.jobs.len()) + switchml.sum::<usize>() + self.guests
    }

    /// Hosts of the first jobs: their workers and parameter servers.
    pub(super) fn hosts_of(&self, jobs: usize) -> usize {
        let servers = usize::from(self.parameter_servers);
        let jobs = self.jobs[..jobs].iter();
        jobs.map(|&workers| usize::from(workers) + servers).sum()
    }

    /// What its links are like.
    #[must_use]
    pub fn links(&self) -> Links {
        // IPv4, UDP and Tally headers in front of the payload.
        let fitting = if self.payload_bytes + 50 <= 1500 {
            1500
        } else {
            9000
        };
        Links {
            mtu: self.mtu.unwrap_or(fitting),
            rate_mbit: self.rate_mbit,
        }
    }
}
