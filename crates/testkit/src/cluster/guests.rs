//! Hosts on which none of our programs runs: ordinary ones, and hostile ones.

use super::Cluster;
use super::identity::HostId;
use super::network::Wires;
use std::path::PathBuf;

/// What a guest's port is called.
pub(super) fn name(guest: usize) -> String {
    format!("guest{guest}")
}

impl Cluster {
    /// The host of a guest.
    #[must_use]
    pub fn guest_host(&self, guest: usize) -> HostId {
        HostId(self.spec.hosts() - self.spec.guests + guest)
    }

    /// The hosts' network namespaces, behind the switch's; none where the network is another one.
    #[must_use]
    pub fn namespaces(&self) -> &[String] {
        match &self.wires {
            Wires::Namespaces(wires) => wires.names(),
            Wires::Memif(_) => &[],
        }
    }

    /// The file that stands for a host's network namespace, if it has one.
    #[must_use]
    pub fn namespace(&self, HostId(host): HostId) -> Option<PathBuf> {
        match &self.wires {
            Wires::Namespaces(wires) => {
                Some(PathBuf::from("/run/netns").join(wires.host_name(host)))
            }
            Wires::Memif(_) => None,
        }
    }
}
