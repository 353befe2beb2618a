//! Bytes of a leaf's workers, and of its links to the spines.

use super::plan::{HostRole, Plan, SwitchId};
use serde::Serialize;
use tally_schema::switch::report::Report;

/// What one leaf received and sent up, from its own counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uplink {
    /// Name of the leaf.
    pub leaf: String,
    /// Bytes from workers.
    pub from_workers: u64,
    /// Bytes to switches above.
    pub up: u64,
}

impl Uplink {
    /// Bytes to switches above by bytes from workers.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.up as f64 / self.from_workers.max(1) as f64
    }
}

impl Plan {
    /// The uplink bytes of each leaf, from the reports of all switches. A switch that was restarted
    /// counts from its restart.
    #[must_use]
    pub fn uplinks(&self, reports: &[Report]) -> Vec<Uplink> {
        let leaves = self.switches().filter(|&switch| !self.is_spine(switch));
        let of = |switch: SwitchId| {
            let ports = &reports[switch.0].ports;
            let workers = self.hosts_of(switch);
            let workers = workers.filter(|(_, host)| matches!(host.role, HostRole::Worker(..)));
            let workers: Vec<_> = workers.map(|(n, _)| self.host_name(n)).collect();
            let links: Vec<_> = self
                .links_of(switch)
                .map(|(n, _)| self.link_name(n, switch))
                .collect();
            let from = ports.iter().filter(|port| workers.contains(&port.name));
            let to = ports.iter().filter(|port| links.contains(&port.name));
            Uplink {
                leaf: self.name(switch),
                from_workers: from.map(|port| port.counters.rx_bytes).sum(),
                up: to.map(|port| port.counters.tx_bytes).sum(),
            }
        };
        leaves.map(of).collect()
    }
}
