//! What the fabric says of itself: for reports, and for those who send to neighbours.

use super::Problem;
use crate::{ParentAddress, PortId};
use std::net::Ipv4Addr;
use std::time::Duration;
use tally_wire::{Mac, SwitchName};

/// One link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Its port.
    pub port: PortId,
    /// The switch at its other end.
    pub switch: String,
    /// Whether that is above.
    pub is_up: bool,
    /// How long it has lived; `None`: it is dead.
    pub alive_for: Option<Duration>,
    /// Frames of the neighbour's own that were lost.
    pub frames_lost: u64,
    /// Times that it died.
    pub deaths: u64,
    /// Frames that were not what is configured.
    pub wrong: u64,
    /// Switches of the lowest tier that are reached by the neighbour.
    pub reach: usize,
    /// What came last that was wrong, of a dead link.
    pub problem: Option<Problem>,
}

/// A neighbour that is heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourStatus {
    /// Its name.
    pub switch: String,
    /// Whether it is above.
    pub is_up: bool,
    /// Its MAC.
    pub mac: Mac,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Its first UDP port.
    pub udp_port: u16,
    /// The live links to it, at least one.
    pub links: Vec<PortId>,
}

impl From<&NeighbourStatus> for ParentAddress {
    fn from(status: &NeighbourStatus) -> Self {
        Self {
            name: SwitchName::new(&status.switch),
            mac: status.mac,
            ip: status.ip,
        }
    }
}
