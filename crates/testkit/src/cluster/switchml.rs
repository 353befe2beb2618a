//! The SwitchML jobs of a cluster: workers of our own client, each on a host, and where they find
//! the controller.
//!
//! The controller is in the switch's process and listens on a socket of the kernel. The hosts'
//! network is not the kernel's there, so in namespaces they have a second one for control, as hosts
//! of a real switch have.

use super::Cluster;
use super::files::read_json;
use super::identity::{CONTROLLER_IP, HostId};
use super::network::Network;
use super::process::Program;
use super::spec::Spec;
use crate::switchml::worker::{self, Outcome};
use anyhow::{Context, Result, ensure};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;
use tally_schema::agent::config::Transport;
use tally_schema::switch::config::SwitchmlSection;

/// The published default.
const CONTROLLER_PORT: u16 = 50_099;

/// Where the controller of one job is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Controller {
    listen: SocketAddr,
    at: SocketAddr,
}

/// One for each SwitchML job.
pub(super) fn controllers(spec: &Spec) -> Result<Vec<Controller>> {
    // Held until all are found, so that they differ.
    let mut found = Vec::new();
    for job in 0..spec.switchml.len() {
        found.push(match spec.network {
            Network::Namespaces => {
                let port = CONTROLLER_PORT + job as u16;
                let listen = (Ipv4Addr::UNSPECIFIED, port).into();
                let at = (CONTROLLER_IP, port).into();
                (Controller { listen, at }, None)
            }
            // Others may run on this machine.
            Network::Memif => {
                let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a free port")?;
                let at = free.local_addr()?;
                (Controller { listen: at, at }, Some(free))
            }
        });
    }
    Ok(found
        .into_iter()
        .map(|(controller, _)| controller)
        .collect())
}

/// What a worker is called in logs.
pub(super) fn name(job: usize, rank: u8) -> String {
    format!("switchml{job}-worker{rank}")
}

impl Cluster {
    pub(super) fn switchml_section(&self) -> Option<SwitchmlSection> {
        let listen: Vec<_> = self.controllers.iter().map(|c| c.listen.into()).collect();
        (!listen.is_empty()).then(|| SwitchmlSection::new(listen))
    }

    /// The host of a worker of a SwitchML job.
    #[must_use]
    pub fn switchml_host(&self, job: usize, rank: u8) -> HostId {
        let before = self.spec.switchml[..job].iter();
        let before = before.map(|&workers| usize::from(workers)).sum::<usize>();
        HostId(self.spec.hosts_of(self.spec.jobs.len()) + before + usize::from(rank))
    }

    /// Where the workers of a SwitchML job find the controller. In namespaces only they do.
    #[must_use]
    pub fn switchml_controller(&self, job: usize) -> SocketAddr {
        self.controllers[job].at
    }

    fn switchml_report(&self, job: usize, rank: u8) -> PathBuf {
        self.file(&format!("{}-report.json", name(job, rank)))
    }

    /// Starts the first `workers` workers of a SwitchML job, with these arguments for each
    /// ([`switchml_worker`](crate::switchml_worker)).
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_switchml(
        &self,
        job: usize,
        workers: u8,
        arguments: &[&str],
    ) -> Result<Vec<Program>> {
        (0..workers)
            .map(|rank| self.start_switchml_worker(job, workers, rank, arguments))
            .collect()
    }

    /// Starts one of them.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_switchml_worker(
        &self,
        job: usize,
        workers: u8,
        rank: u8,
        arguments: &[&str],
    ) -> Result<Program> {
        ensure!(workers <= self.spec.switchml[job], "{workers} workers");
        let at = self.switchml_host(job, rank);
        let host = self.wires.host(at);
        let report = self.switchml_report(job, rank);
        // One of an earlier run would be read in place of the one that is missing.
        let _ = std::fs::remove_file(&report);
        let mut command = self.on_host(&host, "tally-testkit");
        command.arg("switchml-worker");
        command.args(["--controller", &self.switchml_controller(job).to_string()]);
        command.args(["--rank", &rank.to_string()]);
        command.args(["--workers", &workers.to_string()]);
        command.args(["--ip", &self.ip(at).to_string()]);
        match &host.transport {
            Transport::Dpdk { device, mac, .. } => {
                command.args(["--device", device, "--mac", &mac.to_string()]);
            }
            Transport::Udp { .. } => {
                command.args(["--interface", "eth0"]);
            }
        }
        command.arg("--report").arg(&report).args(arguments);
        let name = name(job, rank);
        Program::start(&name, command, &self.file(&format!("{name}.log")))
    }

    /// Waits for the good end of workers, and returns what they did, by session and rank: each of
    /// them must have found all of its sums right, and all must have the same bits.
    ///
    /// # Errors
    /// If one ends badly or too late, or they differ.
    pub fn finish_switchml(
        &self,
        job: usize,
        workers: Vec<Program>,
        patience: Duration,
    ) -> Result<Vec<Vec<Outcome>>> {
        let mut by_rank = Vec::new();
        for (rank, worker) in (0..).zip(workers) {
            worker.wait_ok(patience)?;
            let outcomes: Vec<Outcome> = read_json(&self.switchml_report(job, rank))?;
            by_rank.push(outcomes);
        }
        let sessions = by_rank.first().map_or(0, Vec::len);
        let by_session = (0..sessions).map(|session| {
            let of_session: Vec<_> = by_rank
                .iter()
                .filter_map(|outcomes| outcomes.get(session).cloned())
                .collect();
            worker::agree(&of_session)?;
            Ok(of_session)
        });
        by_session.collect()
    }
}
