//! Who is who in a cluster: addresses of its hosts and its switch, numbers and keys of its jobs.

use std::net::Ipv4Addr;
use tally_wire::{Key, Mac};

/// The number of the first job; the others follow.
const FIRST_JOB: u16 = 7;
/// The switch's address.
pub const SWITCH_IP: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
pub(super) const SWITCH_MAC: Mac = Mac([0x02, 0x54, 0x41, 0x4c, 0x4c, 0x59]);
/// The switch's address in the network for control.
pub(super) const CONTROLLER_IP: Ipv4Addr = Ipv4Addr::new(10, 85, 0, 254);
/// Hosts that have addresses beside the switch's.
pub(super) const HOSTS_MAX: usize = 253;

/// One host of the network: the workers and the PS of the first job, of the second, and so on, then
/// the workers of the SwitchML jobs, then the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostId(pub(super) usize);

/// The address of a host.
pub(super) fn address(HostId(host): HostId) -> Ipv4Addr {
    host_address(host)
}

/// The Ethernet address of a host that has no kernel to give it one.
pub(super) const fn host_mac(host: usize) -> Mac {
    Mac([0x02, 0x84, 0, 0, 0, host as u8])
}

/// The address of the host of that number in its network.
pub fn host_address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 0, host as u8 + 1)
}

/// The number of a job on the wire.
pub(super) fn job_id(job: usize) -> u16 {
    FIRST_JOB + job as u16
}

/// Its key. Not secret: the network is private to the cluster.
pub(super) fn key(job: usize) -> Key {
    let number = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128 + job as u128;
    Key::new(&number.to_be_bytes()).expect("16 bytes")
}
