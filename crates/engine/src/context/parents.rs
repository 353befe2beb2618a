//! Parent switches, by the port that leads to each.
//!
//! A switch sends RESULT to the job's group. At the port of a parent the core takes such a frame
//! for the native protocol; at any other port it claims to be the switch's own and is dropped
//! (A-4, TR-8). ACCEPT and REFUSE of a parent go to control, those of others are dropped.
//!
//! Control names the parents that its configuration and the links have; a roster with an uplink
//! names its own. An entry stays when its jobs end: late results of theirs are of an unknown job,
//! not a host's claim.

use crate::{Member, PortId, Roster};
use std::net::Ipv4Addr;
use tally_wire::field::{self, ethernet, ipv4};
use tally_wire::frame::{ETHERTYPE_IPV4, UDP_END};
use tally_wire::{JobId, Mac, SwitchName};

/// Name and addresses of a parent switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentAddress {
    /// Its name; empty if only the roster of a job names it.
    pub name: SwitchName,
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
}

/// Parent switches by port. Empty in a switch without trees.
#[derive(Clone, Debug, Default)]
pub struct Parents {
    by_port: Vec<Option<ParentAddress>>,
}

impl Parents {
    /// Names the parent behind a port, in place of the one before; `None`: there is none.
    pub fn set(&mut self, port: PortId, parent: Option<ParentAddress>) {
        let at = usize::from(port.0);
        if at >= self.by_port.len() && parent.is_some() {
            self.by_port.resize(at + 1, None);
        }
        if let Some(entry) = self.by_port.get_mut(at) {
            *entry = parent;
        }
    }

    /// Names the parent of a job.
    pub(crate) fn bind(&mut self, roster: &Roster) {
        let Some(uplink) = &roster.uplink else {
            return;
        };
        let Member { port, mac, ip, .. } = uplink.parent;
        if !self.is_parent(port, mac, ip) {
            let name = SwitchName::new("");
            self.set(port, Some(ParentAddress { name, mac, ip }));
        }
    }

    fn get(&self, port: PortId) -> Option<&ParentAddress> {
        self.by_port.get(usize::from(port.0))?.as_ref()
    }

    /// The links to the parent of this name.
    pub(crate) fn links<'a>(
        &'a self,
        name: &'a SwitchName,
    ) -> impl Iterator<Item = (PortId, &'a ParentAddress)> + Clone {
        let ports = (0..self.by_port.len()).map(|at| PortId(at as u16));
        let all = ports.filter_map(|port| Some((port, self.get(port)?)));
        all.filter(move |(_, parent)| parent.name == *name)
    }

    /// Whether frames from this port with these addresses are a parent's.
    #[must_use]
    pub fn is_parent(&self, port: PortId, mac: Mac, ip: Ipv4Addr) -> bool {
        (self.get(port)).is_some_and(|parent| (parent.mac, parent.ip) == (mac, ip))
    }

    /// Whether the frame is a parent's to the group of a job.
    #[inline]
    #[must_use]
    pub fn claims(&self, port: PortId, frame: &[u8]) -> bool {
        !self.by_port.is_empty() && self.is_to_group(port, frame)
    }

    #[cold]
    fn is_to_group(&self, port: PortId, frame: &[u8]) -> bool {
        let Some(b) = frame.first_chunk::<UDP_END>() else {
            return false;
        };
        let group = field::ip(b, ipv4::DST);
        field::be16(b, ethernet::ETHERTYPE) == ETHERTYPE_IPV4
            && job_of(group).is_some()
            && field::mac(b, ethernet::DST) == Mac::of_group(group)
            && self.is_parent(port, field::mac(b, ethernet::SRC), field::ip(b, ipv4::SRC))
    }
}

/// The job of a group; `None` if the address is none of a job's group.
pub(crate) fn job_of(group: Ipv4Addr) -> Option<JobId> {
    match group.octets() {
        [239, 84, high, low] => Some(JobId(u16::from_be_bytes([high, low]))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_wire::frame::group_of;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

    fn parent(name: &str) -> ParentAddress {
        ParentAddress {
            name: SwitchName::new(name),
            mac: MAC,
            ip: IP,
        }
    }

    fn frame(to: Ipv4Addr) -> Vec<u8> {
        let mut frame = vec![0; UDP_END];
        frame[ethernet::DST].copy_from_slice(&Mac::of_group(to).0);
        frame[ethernet::SRC].copy_from_slice(&MAC.0);
        frame[ethernet::ETHERTYPE].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        frame[ipv4::SRC].copy_from_slice(&IP.octets());
        frame[ipv4::DST].copy_from_slice(&to.octets());
        frame
    }

    #[test]
    fn tr_8_a_group_is_claimed_only_from_the_port_and_addresses_of_a_parent() {
        let good = frame(group_of(JobId(0x1234)));
        let mut parents = Parents::default();
        assert!(!parents.claims(PortId(3), &good), "no parent is known");
        parents.set(PortId(3), Some(parent("")));
        assert!(parents.claims(PortId(3), &good));
        assert!(!parents.claims(PortId(2), &good) && !parents.claims(PortId(4), &good));
        for at in [0, 6, 12, 26, 30, 31] {
            let mut other = good.clone();
            other[at] ^= 1;
            assert!(!parents.claims(PortId(3), &other), "byte {at}");
        }
        assert!(!parents.claims(PortId(3), &frame(Ipv4Addr::new(239, 85, 0, 1))));
        assert!(!parents.claims(PortId(3), &good[..UDP_END - 1]));
        parents.set(PortId(3), None);
        assert!(!parents.claims(PortId(3), &good));
    }

    #[test]
    fn links_are_those_of_a_name() {
        let mut parents = Parents::default();
        parents.set(PortId(3), Some(parent("a")));
        parents.set(PortId(5), Some(parent("a")));
        parents.set(PortId(4), Some(parent("b")));
        let links = |name| -> Vec<_> {
            let name = SwitchName::new(name);
            parents.links(&name).map(|(port, _)| port.0).collect()
        };
        assert_eq!(
            (links("a"), links("b"), links("c")),
            (vec![3, 5], vec![4], vec![])
        );
    }

    #[test]
    fn the_job_of_a_group() {
        for id in [0, 7, 255, 256, u16::MAX] {
            assert_eq!(job_of(group_of(JobId(id))), Some(JobId(id)));
        }
        assert_eq!(job_of(Ipv4Addr::new(239, 83, 0, 7)), None);
    }
}
