//! Processes of other protocols than Tally's: clients of SwitchML, members of rings.

use super::World;
use crate::address::{Address, HostId, SessionId, SwitchId};
use crate::frame::Frame;
use crate::host::{Data, Kind};
use crate::ring;
use crate::switchml::{Client, Plan};
use std::rc::Rc;
use tally_engine::netreduce::RingConfig;
use tally_wire::netreduce::RingId;
use tally_wire::switchml::is_port;
use tally_wire::{JobId, Time, roce};

impl<D: Data> World<D> {
    /// Starts a client of SwitchML.
    pub fn start_switchml(&mut self, address: Address, plan: Plan, rank: usize) -> SessionId {
        let switch = plan.switch;
        let client = Box::new(Client::new(self.now, plan, rank, address));
        self.start(switch, address, JobId(0), Kind::Switchml(client))
    }

    /// Binds a session of SwitchML on all cores of its switch; says whether there was room.
    pub fn bind_switchml(&mut self, plan: &Plan) -> bool {
        let (switch, mut outside) = self.split(plan.switch);
        switch.bind_switchml(&plan.session, &mut outside)
    }

    /// Ends a session of SwitchML on all cores of its switch.
    pub fn unbind_switchml(&mut self, plan: &Plan) {
        self.switches[usize::from(plan.switch.0)].unbind_switchml(plan.session.id);
    }

    /// Starts a member of a ring.
    pub fn start_member(&mut self, plan: &Rc<ring::Plan>, rank: usize) -> SessionId {
        let member = Box::new(ring::Member::new(self.now, Rc::clone(plan), rank));
        self.start(
            plan.switch,
            plan.address(rank),
            JobId(0),
            Kind::Ring(member),
        )
    }

    /// Serves a ring on all cores of a switch.
    pub fn bind_ring(&mut self, switch: SwitchId, config: RingConfig) {
        let (switch, mut outside) = self.split(switch);
        switch.bind_ring(config, &mut outside);
    }

    /// Ends a ring on all cores of a switch.
    pub fn unbind_ring(&mut self, switch: SwitchId, id: RingId) {
        let (switch, mut outside) = self.split(switch);
        switch.unbind_ring(id, &mut outside);
    }

    /// A member of a ring; `None` for a dead one.
    #[must_use]
    pub fn member(&self, id: SessionId) -> Option<&ring::Member> {
        match &self.session(id).kind {
            Kind::Ring(member) => Some(member),
            _ => None,
        }
    }

    /// Has a member answer every packet with a NAK until then.
    pub fn storm(&mut self, id: SessionId, until: Time) {
        if let Kind::Ring(member) = &mut self.sessions[id.0 as usize].kind {
            member.storm_until = until;
        }
    }

    /// Gives a frame from one of SwitchML's ports to the client that it is to.
    pub(super) fn is_for_switchml(&mut self, id: HostId, frame: &Frame) -> bool {
        let Some((udp, _)) = frame.udp() else {
            return false;
        };
        if !is_port(udp.addresses.src_port) {
            return false;
        }
        for n in 0..self.hosts[usize::from(id.0)].sessions.len() {
            let session_id = self.hosts[usize::from(id.0)].sessions[n];
            let session = &mut self.sessions[session_id.0 as usize];
            let own = session.address;
            if let Kind::Switchml(client) = &mut session.kind
                && (udp.addresses.dst_mac, udp.addresses.dst_ip) == (own.mac(), own.ip())
                && udp.addresses.dst_port == own.udp_port
            {
                client.handle(self.now, &udp, frame.bytes());
                self.serve(session_id);
                return true;
            }
        }
        false
    }

    /// Gives a frame of RoCE to the members of rings on its host.
    pub(super) fn is_for_ring(&mut self, id: HostId, frame: &Frame) -> bool {
        let Some((udp, _)) = frame.udp() else {
            return false;
        };
        if udp.addresses.dst_port != roce::PORT {
            return false;
        }
        for n in 0..self.hosts[usize::from(id.0)].sessions.len() {
            let session_id = self.hosts[usize::from(id.0)].sessions[n];
            let session = &mut self.sessions[session_id.0 as usize];
            if let Kind::Ring(member) = &mut session.kind
                && udp.addresses.dst_mac == session.address.mac()
                && member.handle(self.now, frame.bytes())
            {
                self.serve(session_id);
            }
        }
        true
    }
}
