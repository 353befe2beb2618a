//! The MACs of members, each at the ports that it joined from.
//!
//! A job's members come by their keys, not by what was overheard: so they are not learnt, do not
//! age, and no flood of addresses evicts them.
//!
//! The catch: a host that has a job's key may pin any MAC at its own port. A MAC pinned at two
//! ports is allowed from both, and frames to it leave by the one that was pinned first.

use crate::{PortId, Roster};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use tally_wire::{JobId, Mac};

/// Spreads a MAC over a word (Fibonacci hashing).
#[derive(Clone, Default)]
pub struct MacHasher(u64);

impl Hasher for MacHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        let product = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A port at which a MAC is pinned, and by how many members.
#[derive(Clone, Copy, Debug)]
struct Pin {
    port: PortId,
    members: u32,
}

/// The pinned MACs.
#[derive(Clone, Debug, Default)]
pub struct Pins {
    by_mac: HashMap<u64, Vec<Pin>, BuildHasherDefault<MacHasher>>,
    by_job: BTreeMap<JobId, Vec<(Mac, PortId)>>,
}

impl Pins {
    /// Pins the members of a job, each at the place of its port; those that it had before are
    /// released.
    pub fn bind(&mut self, roster: &Roster, place: impl Fn(PortId) -> PortId) {
        // First the new ones, so that who stays keeps its place.
        // A child switch is a neighbour, whose MAC is known by its links.
        let hosts = roster.workers.iter().enumerate();
        let hosts = hosts.filter(|(rank, _)| roster.switches >> rank & 1 == 0);
        let members = hosts.map(|(_, host)| host).chain(&roster.servers);
        let members: Vec<_> = members
            .map(|member| (member.mac, place(member.port)))
            .collect();
        for &(mac, port) in &members {
            let pins = self.by_mac.entry(mac.to_u64()).or_default();
            match pins.iter_mut().find(|pin| pin.port == port) {
                Some(pin) => pin.members += 1,
                None => pins.push(Pin { port, members: 1 }),
            }
        }
        let before = self.by_job.insert(roster.job, members);
        self.release(before);
    }

    /// Releases the members of a job.
    pub fn unbind(&mut self, job: JobId) {
        let before = self.by_job.remove(&job);
        self.release(before);
    }

    fn release(&mut self, members: Option<Vec<(Mac, PortId)>>) {
        for (mac, port) in members.into_iter().flatten() {
            let Some(pins) = self.by_mac.get_mut(&mac.to_u64()) else {
                continue;
            };
            if let Some(pin) = pins.iter_mut().find(|pin| pin.port == port) {
                pin.members -= 1;
            }
            pins.retain(|pin| pin.members > 0);
            if pins.is_empty() {
                self.by_mac.remove(&mac.to_u64());
            }
        }
    }

    /// Whether `mac` may be the source of a frame from a port by which frames of hosts may come
    /// that are pinned at others.
    #[inline]
    #[must_use]
    pub fn allow(&self, mac: Mac, may_come: impl Fn(PortId) -> bool) -> bool {
        let pins = self.find(mac);
        pins.is_none_or(|pins| pins.iter().any(|pin| may_come(pin.port)))
    }

    /// The port at which `mac` is pinned.
    #[inline]
    #[must_use]
    pub fn port_of(&self, mac: Mac) -> Option<PortId> {
        Some(self.find(mac)?.first()?.port)
    }

    #[inline]
    fn find(&self, mac: Mac) -> Option<&Vec<Pin>> {
        if self.by_mac.is_empty() {
            return None;
        }
        self.by_mac.get(&mac.to_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Member;
    use std::net::Ipv4Addr;
    use tally_wire::{Epoch, EpochSecret};

    fn mac(n: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, n])
    }

    fn allows(pins: &Pins, n: u8, port: u16) -> bool {
        pins.allow(mac(n), |pin| pin == PortId(port))
    }

    fn member(n: u8, port: u16) -> Member {
        Member {
            port: PortId(port),
            mac: mac(n),
            ip: Ipv4Addr::new(10, 84, 0, n),
            udp_port: 4000,
        }
    }

    fn roster(job: u16, workers: &[(u8, u16)], ps: (u8, u16)) -> Roster {
        let workers = workers.iter().map(|&(n, port)| member(n, port));
        Roster::new(
            JobId(job),
            Epoch(1),
            EpochSecret::new([1; 16]),
            16,
            workers.collect(),
            member(ps.0, ps.1),
        )
    }

    #[test]
    fn a_child_switch_is_not_pinned_and_the_hosts_beside_it_are() {
        let mut pins = Pins::default();
        let roster = roster(7, &[(1, 1), (2, 2)], (3, 3)).with_switches(0b10);
        pins.bind(&roster, |port| port);
        assert!(!allows(&pins, 1, 9) && !allows(&pins, 3, 9));
        // It may have several links, and sends frames of its own by each.
        assert!(allows(&pins, 2, 9));
        pins.unbind(JobId(7));
        assert!(allows(&pins, 1, 9));
    }

    #[test]
    fn members_are_pinned_from_bind_to_unbind() {
        let mut pins = Pins::default();
        assert!(allows(&pins, 1, 9));
        pins.bind(&roster(7, &[(1, 1), (2, 2)], (3, 3)), |port| port);
        for n in 1..=3 {
            assert_eq!(pins.port_of(mac(n)), Some(PortId(n.into())));
            assert!(allows(&pins, n, n.into()));
            assert!(!allows(&pins, n, 9));
        }
        assert!(allows(&pins, 4, 9));
        pins.unbind(JobId(8));
        assert!(!allows(&pins, 1, 9), "another job");
        pins.unbind(JobId(7));
        assert!(allows(&pins, 1, 9));
        assert!(pins.by_mac.is_empty());
    }

    #[test]
    fn a_new_roster_moves_who_came_back_elsewhere() {
        let mut pins = Pins::default();
        pins.bind(&roster(7, &[(1, 1), (2, 2)], (3, 3)), |port| port);
        pins.bind(&roster(7, &[(1, 1), (2, 2)], (3, 5)), |port| port);
        assert_eq!(pins.port_of(mac(3)), Some(PortId(5)));
        assert!(!allows(&pins, 3, 3));
        assert_eq!(pins.port_of(mac(1)), Some(PortId(1)));
        pins.unbind(JobId(7));
        assert!(pins.by_mac.is_empty());
    }

    #[test]
    fn a_host_with_members_of_two_jobs_stays_pinned_until_both_end() {
        let mut pins = Pins::default();
        pins.bind(&roster(7, &[(1, 1), (1, 1)], (3, 3)), |port| port);
        pins.bind(&roster(8, &[(1, 1)], (3, 3)), |port| port);
        pins.unbind(JobId(7));
        assert_eq!(pins.port_of(mac(1)), Some(PortId(1)));
        // Another tenant, who says it is that host: the host keeps its port.
        pins.bind(&roster(9, &[(1, 6)], (4, 6)), |port| port);
        assert_eq!(pins.port_of(mac(1)), Some(PortId(1)));
        assert!(allows(&pins, 1, 1) && !allows(&pins, 1, 7));
        pins.unbind(JobId(8));
        assert_eq!(pins.port_of(mac(1)), Some(PortId(6)));
    }
}
