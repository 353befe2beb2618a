//! Members of SwitchML's sessions among the hosts of the ordinary switch.
//!
//! Their published client takes all that its port gets for results. So what is flooded does not go to
//! ports behind which a member was seen, and whoever asks by ARP for a member's address is answered here,
//! in its name. Frames to its own address go to it as to anybody, also when the table of addresses has forgotten
//! it: members speak to the switch, which needs no table for them.
//!
//! Catches: another host behind the same port is not flooded to either. It is reached once it has spoken. And a
//! client whose device is open, but that has not sent yet, was seen nowhere: ports can be said to be quiet from the start.

use std::net::Ipv4Addr;
use std::sync::Arc;
use tally_engine::PortId;
use tally_engine::switchml::{Session, SessionId, Station};
use tally_wire::{Mac, neighbour};

use crate::forwarding::MacTable;

/// The members of all bound sessions, as one data core knows them.
#[derive(Default)]
pub struct Members {
    sessions: Vec<Arc<Session>>,
    /// By port, whether nothing is ever flooded to it.
    quiet: Vec<bool>,
    any_quiet: bool,
    /// By port, whether it is quiet or a member is behind it.
    spared: Vec<bool>,
    /// As of which state of the table of addresses; `None`: of none.
    as_of: Option<u32>,
}

impl Members {
    /// For a switch of so many ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        Self {
            sessions: Vec::new(),
            quiet: vec![false; ports],
            any_quiet: false,
            spared: vec![false; ports],
            as_of: None,
        }
    }

    /// From now on nothing is flooded to this port, whoever is behind it.
    pub fn set_quiet(&mut self, port: PortId) {
        if let Some(quiet) = self.quiet.get_mut(usize::from(port.0)) {
            *quiet = true;
            self.any_quiet = true;
            self.as_of = None;
        }
    }

    /// A session has begun.
    pub fn bind(&mut self, session: &Arc<Session>) {
        self.unbind(session.id);
        self.sessions.push(Arc::clone(session));
    }

    /// A session has ended.
    pub fn unbind(&mut self, id: SessionId) {
        self.sessions.retain(|session| session.id != id);
        self.as_of = None;
    }

    fn stations(&self) -> impl Iterator<Item = &Station> {
        self.sessions.iter().flat_map(|session| &session.workers)
    }

    /// By port, whether it is quiet or a member is behind it; empty if that is so of none.
    pub fn spared(&mut self, macs: &MacTable) -> &[bool] {
        if self.sessions.is_empty() {
            return if self.any_quiet { &self.quiet } else { &[] };
        }
        let now = macs.changes();
        if self.as_of != Some(now) {
            self.spared.copy_from_slice(&self.quiet);
            for session in &self.sessions {
                for station in &session.workers {
                    let port = macs.last_port_of(station.mac);
                    if let Some(port) =
                        port.and_then(|port| self.spared.get_mut(usize::from(port.0)))
                    {
                        *port = true;
                    }
                }
            }
            self.as_of = Some(now);
        }
        &self.spared
    }

    /// Where the member with this address was last seen, however long ago.
    #[must_use]
    pub fn port_of(&self, mac: Mac, macs: &MacTable) -> Option<PortId> {
        let is_member = self.stations().any(|station| station.mac == mac);
        is_member.then(|| macs.last_port_of(mac)).flatten()
    }

    /// Turns an ARP request for a member behind another port than `ingress` into that member's reply, and says so
    /// with `true`; leaves anything else alone. Behind the same port, it hears the question itself.
    pub fn answer_arp(&self, frame: &mut [u8], ingress: PortId, macs: &MacTable) -> bool {
        let Some(&[a, b, c, d]) = frame.get(38..42).and_then(<[u8]>::first_chunk) else {
            return false;
        };
        let wanted = Ipv4Addr::new(a, b, c, d);
        let Some(&Station { mac, ip }) = self.stations().find(|station| station.ip == wanted)
        else {
            return false;
        };
        let port = macs.last_port_of(mac);
        port.is_some_and(|port| port != ingress) && neighbour::answer_arp(frame, mac, ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_wire::neighbour::{arp_request, arp_sender};
    use tally_wire::switchml::Size;

    fn station(n: u8) -> Station {
        Station {
            mac: Mac([2, 0, 0, 0, 0, n]),
            ip: Ipv4Addr::new(10, 84, 0, n),
        }
    }

    fn session(id: u64, workers: &[u8]) -> Arc<Session> {
        Arc::new(Session {
            id: SessionId(id),
            size: Size::B256,
            workers: workers.iter().map(|&n| station(n)).collect(),
        })
    }

    #[test]
    fn ports_of_members_are_spared_as_soon_as_they_are_seen_and_until_their_sessions_end() {
        let macs = MacTable::new(10);
        let mut members = Members::new(3);
        macs.learn(station(1).mac, PortId(1), 0);
        assert!(members.spared(&macs).is_empty());
        members.bind(&session(7, &[1, 2]));
        assert_eq!(members.spared(&macs), [false, true, false]);
        // Seen now, and at another port.
        macs.learn(station(2).mac, PortId(2), 0);
        assert_eq!(members.spared(&macs), [false, true, true]);
        macs.learn(station(1).mac, PortId(0), 1);
        assert_eq!(members.spared(&macs), [true, false, true]);
        // The same address in another session; the first one again, with other workers.
        members.bind(&session(8, &[2]));
        members.bind(&session(7, &[3]));
        assert_eq!(members.spared(&macs), [false, false, true]);
        members.unbind(SessionId(8));
        assert_eq!(members.spared(&macs), [false; 3]);
        members.unbind(SessionId(7));
        assert!(members.spared(&macs).is_empty());
    }

    #[test]
    fn quiet_ports_are_spared_always() {
        let macs = MacTable::new(10);
        let mut members = Members::new(3);
        members.set_quiet(PortId(2));
        members.set_quiet(PortId(3));
        assert_eq!(members.spared(&macs), [false, false, true]);
        members.bind(&session(7, &[1]));
        assert_eq!(members.spared(&macs), [false, false, true]);
        macs.learn(station(1).mac, PortId(0), 0);
        assert_eq!(members.spared(&macs), [true, false, true]);
        members.unbind(SessionId(7));
        assert_eq!(members.spared(&macs), [false, false, true]);
    }

    #[test]
    fn a_member_is_found_when_its_address_has_aged() {
        let macs = MacTable::new(10);
        let mut members = Members::new(3);
        members.bind(&session(7, &[1, 2]));
        for n in [1, 9] {
            macs.learn(station(n).mac, PortId(1), 0);
            assert_eq!(macs.port_of(station(n).mac, 11), None);
        }
        assert_eq!(members.port_of(station(1).mac, &macs), Some(PortId(1)));
        assert_eq!(members.port_of(station(2).mac, &macs), None, "never seen");
        assert_eq!(members.port_of(station(9).mac, &macs), None, "no member");
    }

    #[test]
    fn whoever_asks_for_a_member_gets_its_answer() {
        let macs = MacTable::new(10);
        let mut members = Members::new(3);
        members.bind(&session(7, &[1, 2]));
        macs.learn(station(1).mac, PortId(1), 0);
        let (asker, own_ip) = (station(9).mac, station(9).ip);
        let ask = |wanted: u8, ingress: u16| {
            let mut frame = arp_request(asker, own_ip, station(wanted).ip);
            let before = frame;
            let answered = members.answer_arp(&mut frame, PortId(ingress), &macs);
            assert_eq!(answered, frame != before);
            answered.then_some(frame)
        };
        let answer = ask(1, 0).unwrap();
        assert_eq!(arp_sender(&answer, station(1).ip), Some(station(1).mac));
        assert_eq!(answer[..6], asker.0);
        assert_eq!(answer[6..12], station(1).mac.0);
        assert_eq!(ask(1, 1), None, "behind the same port");
        assert_eq!(ask(2, 0), None, "not seen yet");
        assert_eq!(ask(8, 0), None, "no member");
        let mut short = [0; 41];
        assert!(!members.answer_arp(&mut short, PortId(0), &macs));
        // An answer is no question.
        let mut answer = answer;
        answer[38..42].copy_from_slice(&station(1).ip.octets());
        assert!(!members.answer_arp(&mut answer, PortId(0), &macs));
    }
}
