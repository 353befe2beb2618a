//! Members of SwitchML's sessions among the hosts of the ordinary switch.
//!
//! Their published client takes all that its port gets for results. So what is flooded does not go
//! to ports behind which a member has spoken, and ARP requests for a member's address are answered
//! here, in its name. Frames to its own address go to it as to anybody, also when the table of
//! addresses has forgotten it: members speak to the switch, which needs no table for them.
//!
//! A member has spoken when a frame of it was sent to the address that it alone was told
//! ([`Whereabouts`]). Until then a session is words: a host that made it up can neither keep floods
//! from a host nor answer ARP for it.
//!
//! Catches: another host behind the same port is not flooded to either. It is reached once it has
//! spoken. And a client whose device is open, but that has not sent yet, was seen nowhere: ports
//! can be said to be quiet from the start.

use super::{HostAddress, Session, SessionId};
use crate::PortId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tally_wire::field::{self, arp};
use tally_wire::{Mac, neighbour};

/// A worker that has not spoken.
const UNKNOWN: u32 = u32::MAX;

/// Behind which port each worker of a session spoke first, on whichever data core. Shared by all of
/// them.
#[derive(Debug)]
pub struct Whereabouts(Box<[AtomicU32]>);

impl Whereabouts {
    /// Of so many workers, none of which has spoken.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicU32::new(UNKNOWN)).collect())
    }

    /// Where this rank spoke first.
    fn port(&self, rank: usize) -> Option<PortId> {
        let port = self.0.get(rank)?.load(Ordering::Relaxed);
        (port != UNKNOWN).then_some(PortId(port as u16))
    }

    /// A frame of this rank came in on this port. Says where its first one did.
    fn spoke(&self, rank: usize, port: PortId) -> Option<PortId> {
        let place = self.0.get(rank)?;
        let (new, relaxed) = (u32::from(port.0), Ordering::Relaxed);
        match place.compare_exchange(UNKNOWN, new, relaxed, relaxed) {
            Ok(_) => Some(port),
            Err(first) => Some(PortId(first as u16)),
        }
    }
}

/// A session, as a data core knows its members.
struct Entry {
    session: Arc<Session>,
    whereabouts: Arc<Whereabouts>,
}

impl Entry {
    /// Its workers that have spoken, and where.
    fn spoken(&self) -> impl Iterator<Item = (&HostAddress, PortId)> {
        let workers = self.session.workers.iter().enumerate();
        workers.filter_map(|(rank, station)| Some((station, self.whereabouts.port(rank)?)))
    }
}

/// The members of all bound sessions, as one data core knows them.
#[derive(Default)]
pub struct Members {
    entries: Vec<Entry>,
    /// By port, whether nothing is ever flooded to it.
    quiet: Vec<bool>,
}

impl Members {
    /// For a switch of so many ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        Self {
            entries: Vec::new(),
            quiet: vec![false; ports],
        }
    }

    /// From now on nothing is flooded to this port, member or not.
    pub fn set_quiet(&mut self, port: PortId) {
        if let Some(quiet) = self.quiet.get_mut(usize::from(port.0)) {
            *quiet = true;
        }
    }

    /// A session has begun.
    pub fn bind(&mut self, session: &Arc<Session>, whereabouts: Arc<Whereabouts>) {
        self.unbind(session.id);
        let session = Arc::clone(session);
        self.entries.push(Entry {
            session,
            whereabouts,
        });
    }

    /// A session has ended.
    pub fn unbind(&mut self, id: SessionId) {
        self.entries.retain(|entry| entry.session.id != id);
    }

    /// A frame of a worker came in on this port. Says on which its first one did.
    pub fn spoke(&self, id: SessionId, rank: u8, port: PortId) -> Option<PortId> {
        let entry = self.entries.iter().find(|entry| entry.session.id == id)?;
        entry.whereabouts.spoke(usize::from(rank), port)
    }

    /// Members that have spoken, and where.
    fn spoken(&self) -> impl Iterator<Item = (&HostAddress, PortId)> {
        self.entries.iter().flat_map(Entry::spoken)
    }

    /// Sets the ports that are quiet, and those that have a member behind them: not links, which
    /// lead to other hosts, too.
    pub fn spare_floods(&self, spared: &mut [bool], is_link: &dyn Fn(PortId) -> bool) {
        for (spared, _) in spared
            .iter_mut()
            .zip(&self.quiet)
            .filter(|(_, quiet)| **quiet)
        {
            *spared = true;
        }
        for (_, port) in self.spoken().filter(|&(_, port)| !is_link(port)) {
            if let Some(spared) = spared.get_mut(usize::from(port.0)) {
                *spared = true;
            }
        }
    }

    /// Where the member with this address is.
    #[must_use]
    pub fn port_of(&self, mac: Mac) -> Option<PortId> {
        let mut spoken = self.spoken();
        let member = spoken.find(|(station, _)| station.mac == mac);
        member.map(|(_, port)| port)
    }

    /// Turns an ARP request for a member into that member's reply, and says so with `true`; leaves
    /// anything else alone. Behind a port that `hears` the question, it answers itself.
    pub fn answer_arp(&self, frame: &mut [u8], hears: &dyn Fn(PortId) -> bool) -> bool {
        if frame.len() < arp::TARGET.end {
            return false;
        }
        let wanted = field::ip(frame, arp::TARGET_IP);
        let mut spoken = self.spoken();
        let Some((&HostAddress { mac, ip }, port)) =
            spoken.find(|(station, _)| station.ip == wanted)
        else {
            return false;
        };
        !hears(port) && neighbour::answer_arp(frame, mac, ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tally_wire::neighbour::{arp_request, arp_sender};
    use tally_wire::switchml::Size;

    fn station(n: u8) -> HostAddress {
        HostAddress {
            mac: Mac([2, 0, 0, 0, 0, n]),
            ip: Ipv4Addr::new(10, 84, 0, n),
        }
    }

    fn spared(members: &Members) -> [bool; 3] {
        let mut spared = [false; 3];
        members.spare_floods(&mut spared, &|_| false);
        spared
    }

    fn bind(members: &mut Members, id: u64, workers: &[u8]) {
        let session = Session {
            id: SessionId(id),
            size: Size::B256,
            workers: workers.iter().map(|&n| station(n)).collect(),
            switch_macs: workers.iter().map(|&n| Mac([6, 0, 0, 0, 0, n])).collect(),
        };
        let whereabouts = Whereabouts::new(workers.len());
        members.bind(&Arc::new(session), Arc::new(whereabouts));
    }

    #[test]
    fn ports_of_members_are_spared_as_soon_as_they_speak_and_until_their_sessions_end() {
        let mut members = Members::new(3);
        assert_eq!(spared(&members), [false; 3]);
        bind(&mut members, 7, &[1, 2]);
        assert_eq!(spared(&members), [false; 3], "words alone");
        assert_eq!(members.spoke(SessionId(7), 0, PortId(1)), Some(PortId(1)));
        assert_eq!(spared(&members), [false, true, false]);
        // Where it spoke first it stays.
        assert_eq!(members.spoke(SessionId(7), 0, PortId(2)), Some(PortId(1)));
        assert_eq!(spared(&members), [false, true, false]);
        // No such session, no such rank, no such port.
        assert_eq!(members.spoke(SessionId(8), 0, PortId(2)), None);
        assert_eq!(members.spoke(SessionId(7), 2, PortId(2)), None);
        members.spoke(SessionId(7), 1, PortId(9));
        assert_eq!(spared(&members), [false, true, false]);
        // The first one again, with other workers.
        bind(&mut members, 7, &[3]);
        assert_eq!(spared(&members), [false; 3]);
        members.unbind(SessionId(7));
        assert_eq!(spared(&members), [false; 3]);
    }

    #[test]
    fn what_one_core_has_seen_all_know() {
        let whereabouts = Arc::new(Whereabouts::new(1));
        let session = Arc::new(Session {
            id: SessionId(7),
            size: Size::B256,
            workers: vec![station(1)],
            switch_macs: vec![Mac([6, 0, 0, 0, 0, 1])],
        });
        let mut cores = [Members::new(3), Members::new(3)];
        for core in &mut cores {
            core.bind(&session, Arc::clone(&whereabouts));
        }
        let [one, other] = &mut cores;
        assert_eq!(one.spoke(SessionId(7), 0, PortId(2)), Some(PortId(2)));
        assert_eq!(spared(other), [false, false, true]);
        assert_eq!(other.spoke(SessionId(7), 0, PortId(1)), Some(PortId(2)));
    }

    #[test]
    fn quiet_ports_are_spared_always() {
        let mut members = Members::new(3);
        members.set_quiet(PortId(2));
        members.set_quiet(PortId(3));
        assert_eq!(spared(&members), [false, false, true]);
        bind(&mut members, 7, &[1]);
        assert_eq!(spared(&members), [false, false, true]);
        members.spoke(SessionId(7), 0, PortId(0));
        assert_eq!(spared(&members), [true, false, true]);
        members.unbind(SessionId(7));
        assert_eq!(spared(&members), [false, false, true]);
    }

    #[test]
    fn a_member_is_found_once_it_has_spoken() {
        let mut members = Members::new(3);
        bind(&mut members, 7, &[1, 2]);
        members.spoke(SessionId(7), 0, PortId(1));
        assert_eq!(members.port_of(station(1).mac), Some(PortId(1)));
        assert_eq!(members.port_of(station(2).mac), None, "never seen");
        assert_eq!(members.port_of(station(9).mac), None, "no member");
    }

    #[test]
    fn a_host_that_asks_for_a_member_gets_its_answer() {
        let mut members = Members::new(3);
        bind(&mut members, 7, &[1, 2]);
        members.spoke(SessionId(7), 0, PortId(1));
        let (asker, own_ip) = (station(9).mac, station(9).ip);
        let ask = |wanted: u8, ingress: u16| {
            let mut frame = arp_request(asker, own_ip, station(wanted).ip);
            let before = frame;
            let answered = members.answer_arp(&mut frame, &|port| port == PortId(ingress));
            assert_eq!(answered, frame != before);
            answered.then_some(frame)
        };
        let answer = ask(1, 0).unwrap();
        assert_eq!(arp_sender(&answer, station(1).ip), Some(station(1).mac));
        assert_eq!(answer[..6], asker.0);
        assert_eq!(answer[6..12], station(1).mac.0);
        assert_eq!(ask(1, 1), None, "behind the same port");
        assert_eq!(ask(2, 0), None, "not spoken yet");
        assert_eq!(ask(8, 0), None, "no member");
        let mut short = [0; 41];
        assert!(!members.answer_arp(&mut short, &|_| false));
        // An answer is no question.
        let mut answer = answer;
        answer[38..42].copy_from_slice(&station(1).ip.octets());
        assert!(!members.answer_arp(&mut answer, &|_| false));
    }
}
