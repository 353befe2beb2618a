//! A NetReduce ring over a fabric: the guests behind all leaves, in rank order, with a RoCEv2
//! transport in software. The leaves sum, and the first spine is the root.

use super::Fabric;
use super::plan::{HostRole, SwitchId, key};
use crate::cluster::Program;
use crate::cluster::files::read_json;
use crate::cluster::rings::{RingArguments, coordinator, digits};
use crate::ring_worker::RingWorkerReport;
use anyhow::{Context, Result};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use tally_schema::switch::config::{
    NetreduceSection, RingLeafSection, RingSection, RingTreeSection,
};
use tally_wire::Mac;

/// The number of the ring.
const RING: u32 = 7;

fn name(rank: usize) -> String {
    format!("ring-worker{rank}")
}

impl Fabric {
    /// Guests by rank: their numbers, addresses and Ethernet addresses.
    fn ring_hosts(&self) -> Vec<(usize, Ipv4Addr, Mac)> {
        let hosts = self.plan.hosts().iter().enumerate();
        let guests = hosts.filter(|(_, host)| matches!(host.role, HostRole::Guest(_)));
        guests.map(|(n, host)| (n, host.ip, host.mac)).collect()
    }

    /// The ring, as the first spine and all leaves have it.
    pub(super) fn netreduce_section(&self, switch: SwitchId) -> Option<NetreduceSection> {
        let (plan, shape) = (&self.plan, self.spec.shape);
        if !self.spec.ring || plan.is_spine(switch) && switch.0 > 0 {
            return None;
        }
        let leaf = |leaf: usize| RingLeafSection {
            switch: plan.name(plan.leaf(leaf)),
            members: self.spec.guests as u8,
        };
        let members = self.ring_hosts().into_iter().map(|(_, ip, _)| ip).collect();
        let ring = RingSection {
            tree: Some(RingTreeSection {
                root: plan.name(SwitchId(0)),
                leaves: (0..shape.leaves).map(leaf).collect(),
            }),
            ..RingSection::new(RING, key(0), members)
        };
        Some(NetreduceSection {
            held: ring.ring(Some(&plan.name(switch))).held_max() as u32,
            rings: vec![ring],
            ..NetreduceSection::default()
        })
    }

    /// Starts all members of the ring; `arguments` has those of each rank.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_ring(&self, arguments: impl Fn(usize) -> Vec<String>) -> Result<Vec<Program>> {
        let hosts = self.ring_hosts();
        let members: Vec<_> = hosts.iter().map(|(_, ip, _)| *ip).collect();
        let first = members.first().context("a ring of no guests")?;
        let key_file = self.write_text("ring.key", &digits(&key(0)))?;
        let ring = RingArguments {
            ring: RING,
            members: &members,
            macs: hosts.iter().map(|(_, _, mac)| *mac).collect(),
            coordinator: coordinator(self.spec.network, *first)?,
            key_file: &key_file,
        };
        let start = |(rank, (host, ..)): (usize, &(usize, Ipv4Addr, Mac))| {
            let report = self.ring_report_path(rank);
            let _ = std::fs::remove_file(&report);
            let mut command = self.command_on(*host, "tally-testkit");
            ring.add_to(&mut command, rank, &self.transport(*host));
            command.arg("--output").arg(self.ring_output(rank));
            command.arg("--report").arg(&report).args(arguments(rank));
            let name = name(rank);
            Program::start(&name, command, &self.file(&format!("{name}.log")))
        };
        hosts.iter().enumerate().map(start).collect()
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
