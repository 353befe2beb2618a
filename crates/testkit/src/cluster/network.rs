//! How the processes of a cluster reach each other, and how a program gets onto a host.

use super::identity::{HostId, address, host_mac};
use super::memif::Memif;
use super::namespaces::{Namespaces, allowed};
use serde::Serialize;
use tally_schema::agent::config::Transport;

/// How the processes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Network namespaces and veth pairs, packet sockets in the switch, UDP sockets in the hosts
    Namespaces,
    /// Shared memory, `net_memif` in all processes
    Memif,
}

impl Network {
    /// What it is made of, for people.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Namespaces => "network namespaces, veth pairs, packet sockets",
            Self::Memif => "net_memif, no privileges, no hugepages",
        }
    }

    /// Whether a process may be killed and started again.
    #[must_use]
    pub fn carries_restarts(self) -> bool {
        self == Self::Namespaces
    }

    /// Namespaces for root, memif for other users.
    #[must_use]
    pub fn for_this_user() -> Self {
        if allowed() {
            Self::Namespaces
        } else {
            Self::Memif
        }
    }
}

/// A host, as a program running on it must be told.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// Words in front of the command, as `ip netns exec NAME`.
    pub(super) prefix: Vec<String>,
    /// The `transport` of its configuration.
    pub(super) transport: Transport,
}

/// The network that was made.
pub(super) enum Wires {
    Namespaces(Namespaces),
    Memif(Memif),
}

impl Wires {
    pub(super) fn switch_prefix(&self) -> Vec<String> {
        match self {
            Self::Namespaces(wires) => wires.switch_prefix(),
            Self::Memif(_) => Vec::new(),
        }
    }

    pub(super) fn device(&self, host: HostId) -> String {
        match self {
            Self::Namespaces(wires) => wires.device(host.0),
            Self::Memif(wires) => wires.device(host.0),
        }
    }

    pub(super) fn host(&self, host: HostId) -> Host {
        let ip = address(host);
        let HostId(host) = host;
        match self {
            Self::Namespaces(wires) => Host {
                prefix: wires.host_prefix(host),
                transport: Transport::udp(ip),
            },
            Self::Memif(wires) => Host {
                prefix: Vec::new(),
                transport: Transport::dpdk(wires.client_device(host), host_mac(host), ip),
            },
        }
    }
}
