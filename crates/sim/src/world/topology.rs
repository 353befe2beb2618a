//! What is connected to what.

use super::World;
use crate::address::{BridgeId, HostId, Node, Peer, SWITCHES_MAX, SwitchId};
use crate::bridge::Bridge;
use crate::events::Event;
use crate::host::{Data, Host};
use crate::link::{Link, LinkConfig};
use crate::port::Port;
use crate::switch::{CardSetup, Switch, SwitchConfig};
use std::time::Duration;
use tally_engine::PortId;
use tally_engine::forwarding::fabric::Plan;

impl<D: Data> World<D> {
    /// Adds another switch without ports.
    ///
    /// # Panics
    /// If there are [`SWITCHES_MAX`] already.
    pub fn add_switch(&mut self, config: SwitchConfig) -> SwitchId {
        let id = SwitchId(self.switches.len() as u16);
        assert!(id.0 < SWITCHES_MAX, "more switches than have addresses");
        self.switches.push(Switch::new(id, config, self.room));
        id
    }

    /// Adds an ordinary switch without ports.
    pub fn add_bridge(&mut self) -> BridgeId {
        self.bridges.push(Bridge::default());
        BridgeId(self.bridges.len() as u16 - 1)
    }

    /// The ports of a switch, by number.
    #[must_use]
    pub fn ports(&self, node: Node) -> &[Port] {
        match node {
            Node::Switch(id) => &self.switches[usize::from(id.0)].ports,
            Node::Bridge(id) => &self.bridges[usize::from(id.0)].ports,
        }
    }

    /// The cable from a port.
    pub fn link(&mut self, node: Node, port: PortId) -> &mut Link {
        &mut self.port(node, port).link
    }

    fn port(&mut self, node: Node, port: PortId) -> &mut Port {
        let ports = match node {
            Node::Switch(id) => &mut self.switches[usize::from(id.0)].ports,
            Node::Bridge(id) => &mut self.bridges[usize::from(id.0)].ports,
        };
        &mut ports[usize::from(port.0)]
    }

    fn add_port(&mut self, node: Node, link: LinkConfig, peer: Peer) -> PortId {
        match node {
            Node::Switch(id) => self.switches[usize::from(id.0)].add_port(link, peer),
            Node::Bridge(id) => self.bridges[usize::from(id.0)].add_port(link, peer),
        }
    }

    /// Connects the next port of `a` to the next port of `b`, each direction with its own faults.
    ///
    /// # Panics
    /// If one of them is a switch that has received a frame or command already.
    pub fn add_trunk(
        &mut self,
        a: impl Into<Node>,
        b: impl Into<Node>,
        a_to_b: LinkConfig,
        b_to_a: LinkConfig,
    ) -> (PortId, PortId) {
        let (a, b) = (a.into(), b.into());
        let at_b = PortId(self.ports(b).len() as u16);
        let at_a = self.add_port(a, a_to_b, b.port(at_b));
        self.add_port(b, b_to_a, a.port(at_a));
        (at_a, at_b)
    }

    /// Makes a switch a part of a fabric, with these links.
    ///
    /// # Panics
    /// If it has received a frame or command already.
    pub fn join_fabric(&mut self, switch: SwitchId, plan: Plan) {
        self.switches[usize::from(switch.0)].join_fabric(plan);
        self.events.push(self.now, Event::Fabric(switch));
    }

    /// Connects a host to the next port of a switch.
    ///
    /// # Panics
    /// If the switch has received a frame or command already.
    pub fn add_host(
        &mut self,
        node: impl Into<Node>,
        uplink: LinkConfig,
        downlink: LinkConfig,
        ahead: Duration,
    ) -> HostId {
        let node = node.into();
        let id = HostId(self.hosts.len() as u16);
        let port = self.add_port(node, downlink, Peer::Host(id));
        self.hosts.push(Host::new(id, (node, port), uplink, ahead));
        id
    }

    /// Exchanges the ports of two hosts. Frames that have left arrive where they were sent.
    pub fn swap_hosts(&mut self, a: HostId, b: HostId) {
        let [at_a, at_b] = [a, b].map(|host| self.hosts[usize::from(host.0)].at);
        for (host, (node, port)) in [(a, at_b), (b, at_a)] {
            self.hosts[usize::from(host.0)].at = (node, port);
            self.port(node, port).peer = Peer::Host(host);
        }
    }

    /// Connects a card to the next port of a switch.
    ///
    /// # Panics
    /// If the switch has received a frame or command already.
    pub fn add_card(&mut self, switch: SwitchId, setup: CardSetup, link: LinkConfig) {
        self.switches[usize::from(switch.0)].add_card(setup, link, self.now);
        self.events.push(self.now, Event::CardTimer(switch));
    }

    /// A host's cable from its switch.
    #[must_use]
    pub fn downlink(&self, host: HostId) -> &Link {
        let (node, port) = self.hosts[usize::from(host.0)].at;
        &self.ports(node)[usize::from(port.0)].link
    }

    /// Changes a host's cable to its switch, and that from it.
    pub fn change_cables(&mut self, host: HostId, change: impl Fn(&mut Link)) {
        let host = &mut self.hosts[usize::from(host.0)];
        change(&mut host.uplink);
        let (node, port) = host.at;
        change(self.link(node, port));
    }

    /// Changes both directions of the cable at a port of a switch that is not a card's.
    pub fn change_trunk(&mut self, node: Node, port: PortId, change: impl Fn(&mut Link)) {
        change(self.link(node, port));
        match self.ports(node)[usize::from(port.0)].peer {
            Peer::Switch(id, port) => change(self.link(id.into(), port)),
            Peer::Bridge(id, port) => change(self.link(id.into(), port)),
            Peer::Host(host) => change(&mut self.hosts[usize::from(host.0)].uplink),
            Peer::Card(_) => {}
        }
    }
}
